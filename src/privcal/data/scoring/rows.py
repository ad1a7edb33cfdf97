"""Rows of a table, scored when they are asked for, and kept until the table or the model changes.

The scores are kept in the owner's own folder, for the owner's account alone, under a digest of all
that decides them: the table's bytes, the model's, how the one goes through the other, and the
runtime. They are made of a copy of the table, whose digest is that of the very bytes that are
scored: a table that changes meanwhile is another one, and scored when it is next asked for.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from privcal.data.place import Data
from privcal.data.readers import read_scores
from privcal.data.scores import Scores
from privcal.data.scoring.model import Setup, model_name, need_onnx
from privcal.data.tables import ending
from privcal.trusted.errors import InputError

SCORES = "scores"
"""In a site's `local/`: where its scores are kept, those of each model in a folder of their own."""

HALF_DONE = 86400.0
"""Seconds after which nobody works on a hidden file any more."""

VERSION = 2
"""Of the way scores are made: other ways, other scores. Those of 1 could be a model's that remembers."""


@dataclass(frozen=True)
class ScoredRows:
    """A table and the model file that scores it, as a source opens them.

    Parameters
    ----------
    data
        The table. Its person ids are those that the setup names.
    model_file
        The model, which must still be the file it was when its name was written down.
    model
        That name.
    setup
        How the table goes through the model.
    folder
        Where the scores are kept.
    """

    data: Data
    model_file: Path
    model: str
    setup: Setup
    folder: Path

    def check_there(self) -> None:
        """Raise InputError where there is no table, or another model. Rows play no part."""
        need_onnx()
        self.data.check_there()
        check_model_file(self.model_file, self.model)

    def read(self, strict: bool = False, progress: Callable[[int], None] | None = None) -> Scores:
        """The scores of all rows; a malformed one is marked and counts as zero, or, if strict, is an error."""
        person = None if self.setup.person is None else "person"
        while True:
            kept = self.make(strict, progress)
            try:
                return read_scores(kept, model=self.model, person=person, strict=strict)
            except InputError:
                if kept.exists():
                    raise  # else another process has newer ones, and has tidied up

    def make(self, strict: bool = False, progress: Callable[[int], None] | None = None) -> Path:
        """The file of the table's scores as it is now, made if it is not there."""
        self.check_there()
        kept = self._kept(_digest(self.data.path))
        if kept.exists() and not strict:
            return kept
        with self._copy() as (copy, digest):
            kept = self._kept(digest)
            self._score(copy, kept, strict, progress)
        self._tidy(kept)
        return kept

    def _score(
        self, table: Path, kept: Path, strict: bool, progress: Callable[[int], None] | None
    ) -> None:
        from privcal.data.scoring.run import scored, write_frames

        model = self.setup.open(self.model_file)
        if model.name != self.model:
            raise InputError(_replaced(self.model_file, self.model))
        frames = scored(model, table, self.setup, strict=strict, progress=progress)
        try:
            write_frames(model, frames, kept)
        except InputError as error:  # of the owner's table, not of its copy
            raise InputError(str(error).replace(str(table), str(self.data.path))) from None

    def _tidy(self, kept: Path) -> None:
        """Remove older scores, and what processes that were killed left half done."""
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):  # another process tidies up, too
                half_done = path.name.startswith(".")
                if path == kept or (half_done and time.time() - path.stat().st_mtime < HALF_DONE):
                    continue
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _kept(self, table: str) -> Path:
        """The file of scores for a table with this digest."""
        import onnxruntime

        facts = {
            "version": VERSION,
            "table": table,
            "model": self.model,
            "setup": asdict(self.setup),
            "runtime": onnxruntime.__version__,
        }
        text = json.dumps(facts, sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()}.parquet"

    @contextmanager
    def _copy(self) -> Iterator[tuple[Path, str]]:
        """A copy of the table as it is now, and its digest."""
        self.folder.parent.mkdir(mode=0o700, exist_ok=True)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        path = self.folder / f".{secrets.token_hex(4)}{ending(self.data.path)}"
        try:
            path.touch(mode=0o600, exist_ok=False)
            with path.open("wb") as copy:
                digest = _digest(self.data.path, copy)
            yield path, digest
        finally:
            path.unlink(missing_ok=True)


def check_model_file(path: Path, name: str) -> None:
    """Raise InputError where a model file is missing or no longer the one of this name."""
    if model_name(path) != name:
        raise InputError(_replaced(path, name))


def _replaced(path: Path, name: str) -> str:
    return (
        f"{path} is no longer the model {name}; put that file back, or set the site up for the "
        "new one"
    )


def _digest(path: Path, copy: Any = None) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                if copy is not None:
                    copy.write(block)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    return digest.hexdigest()
