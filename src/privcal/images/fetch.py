"""Data sets and photographs that are downloaded once, whole or not at all."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from privcal.documents import read_json, write_document
from privcal.errors import InputError
from privcal.images.packages import PACKAGES, Package

MARKER = "complete.json"
DAY = 86400


def fetch(name: str, *, again: bool = False, say: Callable[[str], None] = lambda _: None) -> Path:
    """The folder of what is called so; downloaded unless it is there already.

    It is checked before the folder takes its place, in one step.
    """
    package = _package(name)
    if not again and (folder := fetched_folder(name)):
        return folder
    cache = cache_folder()
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
        packed = package.download(work)
        folder = work / name
        folder.mkdir()
        package.unpack(packed, folder)
        say(f"checking {name}")
        package.check(folder)
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
            (folder / file).stat().st_size == marker["sizes"][file] for file in package.files
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


def _package(name: str) -> Package:
    if name not in PACKAGES:
        raise InputError(f"cannot fetch {name!r}; there are {', '.join(PACKAGES)}")
    return PACKAGES[name]


def _mark(package: Package, folder: Path) -> None:
    sizes = {file: (folder / file).stat().st_size for file in package.files}
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
