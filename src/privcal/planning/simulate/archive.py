"""Logit archives: what is simulated on."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from privcal.data.datasets import CIFAR10C, NOT_SHIFTS
from privcal.data.opening import private_as
from privcal.data.place import Data
from privcal.data.scores import Scores
from privcal.trusted.checks import known, whole
from privcal.trusted.errors import InputError

CLEAN = "clean"
"""The shift of the unperturbed scores."""
MADE_HERE = "made by privcal"
"""What `corrupted` says in the meta of an archive that is not of published images."""
DRAWN_FROST = ("drawn by privcal", "procedural")
"""What `frost` says there, now or in older archives, unless the frost is from photographs."""


@dataclass(frozen=True)
class Archive:
    """One model's logits under several shifts, in one or more .npz files.

    Arrays are read when they are asked for, so an archive may be larger than memory.
    """

    files: tuple[Path, ...]
    where: dict[str, Path] = field(hash=False)
    """The file that holds each shift."""
    dataset: str
    severity: int | None
    rows: int
    classes: int
    corrupted: str | None
    """Where the corrupted images come from, if the archive says so."""
    frost: str | None
    digest: str
    """Identifies the contents, so that results are not continued with other data."""

    @property
    def shifts(self) -> list[str]:
        return list(self.where)

    def scores(self, shift: str) -> Scores:
        path = self.where[known("shift", shift, self.where)]
        with _open(path) as archive:
            logits = _member(path, archive, shift)
            if logits.dtype == np.float16:
                logits = logits.astype(np.float32)  # once, not anew at every temperature
            try:
                return Scores(logits=logits, labels=_member(path, archive, "labels"))
            except InputError as error:
                raise InputError(f"{path}, {shift}: {error}") from None


def read_archive(paths: Sequence[str | Path] = ()) -> Archive:
    """Open an archive of one or several parts; without paths, the bundled CIFAR-10-C one.

    Each part is an .npz file with `labels`, one (rows, classes) array of logits for each shift
    (`clean` is the unperturbed one), and optionally `meta`, a JSON text that names the
    `dataset` and the `severity`.
    """
    if not paths:
        with as_file(files("privcal.data.datasets") / CIFAR10C) as bundled:
            return _read([bundled])
    return _read([Path(p) for p in paths])


def _read(paths: list[Path]) -> Archive:
    facts: dict[str, Any] = {}
    where: dict[str, Path] = {}
    digest = hashlib.sha256()
    labels: Any = None
    for path in paths:
        if not path.is_file():
            raise InputError(f"there is no file {path}")
        if (known := private_as(Data.at(path))) is not None:
            raise InputError(
                f"{path} holds the rows of {known}, which has a ledger: a simulation on them would show "
                "exact figures; simulate on rows that everybody here may look at"
            )
        with _open(path) as archive:
            if "labels" not in archive.files:
                raise InputError(f"{path} holds no labels")
            mine = _member(path, archive, "labels")
            if labels is not None and not np.array_equal(labels, mine):
                raise InputError(f"{path} has other labels than {paths[0]}; parts must agree")
            labels = mine
            if "meta" in archive.files:
                facts = {**facts, **_meta(path, _member(path, archive, "meta"))}
            for shift in archive.files:
                if shift in NOT_SHIFTS:
                    continue
                if shift in where:
                    raise InputError(f"shift {shift!r} is in {where[shift]} and again in {path}")
                where[shift] = path
        digest.update(path.read_bytes())
    if not where:
        raise InputError(f"{paths[0]} holds no logits")
    # The unperturbed scores last, as in the paper's tables.
    ordered = {s: where[s] for s in sorted(where, key=lambda s: (s == CLEAN, s))}
    # Without a name of its own: that of the file, or of the folder where there are parts.
    name = paths[0].stem if len(paths) == 1 else paths[0].resolve().parent.name
    first = next(iter(ordered))
    return Archive(
        tuple(paths),
        ordered,
        dataset=str(facts.get("dataset") or name),
        severity=facts.get("severity"),
        rows=len(labels),
        classes=_classes(ordered[first], first),
        corrupted=_text(facts.get("corrupted")),
        frost=_text(facts.get("frost")),
        digest=digest.hexdigest()[:16],
    )


def _open(path: Path) -> Any:
    try:
        loaded = np.load(path, allow_pickle=False)
    except Exception as error:
        # NumPy's own words would advise to load what must not be loaded.
        why = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        raise InputError(
            f"{path} is not a readable .npz file, or is cut short{why}; an archive of logits is "
            "wanted, as privcal data pack writes it"
        ) from None
    if isinstance(loaded, np.ndarray):
        raise InputError(f"{path} is not a readable .npz file: it holds one array without a name")
    return loaded


_ONE_AT_A_TIME = Lock()
"""NumPy parses an array's header with `ast`, and two threads that do so at once can raise a
`SystemError` in Python up to 3.11.7 and in 3.12.0 and 3.12.1 (CPython issue 106905)."""


def _member(path: Path, archive: Any, name: str) -> Any:
    try:
        with _ONE_AT_A_TIME:
            return archive[name]
    except Exception:
        raise InputError(
            f"{name} in {path} cannot be read: it is damaged, or no array of numbers"
        ) from None


def _classes(path: Path, shift: str) -> int:
    """The width of a shift's logits, from their header alone; other shapes are refused when read."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{shift}.npy") as member:
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[np.lib.format.read_magic(member)]
            shape, _, _ = read_header(member)
    except Exception as error:
        raise InputError(f"{shift} in {path} cannot be read: {error}") from None
    return int(shape[-1]) if shape else 0


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _meta(path: Path, entry: Any) -> dict[str, Any]:
    try:
        facts = json.loads(str(entry))
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise InputError(f"meta in {path} is not a JSON object")
    if facts.get("severity") is not None:
        whole(f"severity in the meta of {path}", facts["severity"])
    return facts
