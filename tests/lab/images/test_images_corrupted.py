"""The published -C archives: the rows of each severity, and nothing read before it is asked for."""

import os

import numpy as np
import pytest
from PIL import Image

from privcal.lab.images import ImageArray, ImageFiles, open_corrupted, open_images
from privcal.lab.images.sets import CIFAR10, CIFAR100, CORRUPTIONS
from tests.support import image_archives as archives
from tests.support.builders import a_file, sentence
from tests.support.image_archives import WNIDS

LABELS = np.array([3, 8, 8, 0, 9, 6, 1])
EXTRAS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")


def refusal(path, *more):
    said = sentence(lambda: open_corrupted(path).images(*more or ("snow", 2)).take(slice(None)))
    assert len(said) < 600
    return said


# --- CIFAR-10-C and CIFAR-100-C -------------------------------------------------------------------


def test_each_severity_is_its_fifth_of_the_rows(tmp_path):
    arrays = archives.cifar_c(tmp_path / "CIFAR-10-C", LABELS, (*EXTRAS, *reversed(CORRUPTIONS)))
    for path in (tmp_path, str(tmp_path / "CIFAR-10-C")):
        archive = open_corrupted(path)
        assert (archive.name, archive.classes) == ("CIFAR-10-C", CIFAR10)
        assert archive.corruptions == CORRUPTIONS
        assert archive.labels.dtype == np.int64
        np.testing.assert_array_equal(archive.labels, LABELS)
        for name in CORRUPTIONS:
            for severity in range(1, 6):
                images = archive.images(name, severity)
                assert (images.name, images.side, len(images)) == ("CIFAR-10-C", 32, len(LABELS))
                assert images.classes == CIFAR10
                np.testing.assert_array_equal(images.labels, LABELS)
                rows = arrays[name].reshape(5, len(LABELS), 32, 32, 3)[severity - 1]
                np.testing.assert_array_equal(images.take(slice(None)), rows)
                np.testing.assert_array_equal(images.take(np.array([6, 2])), rows[[6, 2]])


def test_a_severity_is_a_part_of_a_memory_map_and_no_more(tmp_path):
    archives.cifar_c(tmp_path / "c", LABELS, ("fog",))
    images = open_corrupted(tmp_path / "c").images("fog", 4)
    assert isinstance(images, ImageArray)
    assert isinstance(images.pixels, np.memmap)
    assert not images.pixels.flags.writeable
    assert images.pixels.nbytes == len(LABELS) * 3072
    whole = images.pixels
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    start = images.pixels.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    assert start == 3 * len(LABELS) * 3072


@pytest.mark.skipif(os.name != "posix", reason="elsewhere a mapped file cannot be written")
def test_pixels_are_read_when_they_are_taken(tmp_path):
    arrays = archives.cifar_c(tmp_path / "c", LABELS, ("fog",))
    images = open_corrupted(tmp_path / "c").images("fog", 1)
    changed = 255 - arrays["fog"]
    with open(tmp_path / "c" / "fog.npy", "r+b") as file:
        file.seek(-changed.nbytes, os.SEEK_END)
        file.write(changed.tobytes())
    taken = images.take(slice(None))
    np.testing.assert_array_equal(taken, changed[: len(LABELS)])
    assert not isinstance(taken, np.memmap)
    taken[:] = 0  # a copy: the file stays as it is
    np.testing.assert_array_equal(images.take(slice(None)), changed[: len(LABELS)])


def test_labels_above_nine_are_those_of_cifar_100(tmp_path):
    archives.cifar_c(tmp_path / "c", np.array([0, 99, 4]), ("snow", "gaussian_noise"))
    archive = open_corrupted(tmp_path / "c")
    assert (archive.name, archive.classes) == ("CIFAR-100-C", CIFAR100)
    assert archive.corruptions == ("gaussian_noise", "snow")
    assert len(set(CIFAR100)) == 100
    assert sorted(CIFAR100) == list(CIFAR100)


def other_length(folder):
    np.save(folder / "labels.npy", np.tile(LABELS, 10))
    return "as there are 70 labels"


def not_by_five(folder):
    np.save(folder / "labels.npy", np.zeros(36, int))
    return "36 labels"


def no_rows(folder):
    np.save(folder / "labels.npy", np.zeros(0, int))
    return "0 labels"


def other_labels(folder):
    labels = np.tile(LABELS, 5)
    labels[9] = 5
    np.save(folder / "labels.npy", labels)
    return "other labels for one severity"


def fractions(folder):
    np.save(folder / "labels.npy", np.tile(LABELS, 5).astype(float))
    return "float64"


def out_of_range(folder):
    np.save(folder / "labels.npy", np.tile([100, *LABELS[1:]], 5))
    return "from 0 to 99, not 100"


def pickled_labels(folder):
    np.save(folder / "labels.npy", np.array([[1], {}], object))
    return "labels.npy is not a readable .npy file"


def no_labels(folder):
    (folder / "labels.npy").unlink()
    return "there is no file"


def wrong_kind(folder):
    np.save(folder / "snow.npy", np.zeros((35, 32, 32, 3), np.float32))
    return "not float32 of shape (35, 32, 32, 3)"


def wrong_shape(folder):
    np.save(folder / "snow.npy", np.zeros((35, 3, 32, 32), np.uint8))
    return "not uint8 of shape (35, 3, 32, 32)"


def cut(folder):
    data = (folder / "snow.npy").read_bytes()
    (folder / "snow.npy").write_bytes(data[:-1])
    return "snow.npy is not a readable .npy file, or is cut short"


def empty(folder):
    (folder / "snow.npy").write_bytes(b"")
    return "snow.npy is not a readable .npy file, or is cut short"


def renamed(folder):
    with open(folder / "snow.npy", "wb") as file:
        np.savez(file, a=LABELS)
    return "whatever its name says"


@pytest.mark.parametrize(
    "harm",
    [
        other_length, not_by_five, no_rows, other_labels, fractions, out_of_range, pickled_labels,
        no_labels, wrong_kind, wrong_shape, cut, empty, renamed,
    ],
)  # fmt: skip
def test_cifar_c_that_is_not_whole_is_refused_when_it_is_opened(tmp_path, harm):
    archives.cifar_c(tmp_path / "c", LABELS, ("fog", "snow"))
    said = harm(tmp_path / "c")
    assert said in refusal(tmp_path / "c", "fog", 1)


# --- ImageNet-C and Tiny-ImageNet-C ---------------------------------------------------------------


@pytest.mark.parametrize("groups", [(), ("weather", "noise")])
def test_imagenet_c_has_the_rows_of_imagenet(tmp_path, groups):
    root = archives.imagenet_c(tmp_path / "ImageNet-C", groups=groups)
    archives.imagenet_c(root, ("speckle_noise",), groups=("extra",) if groups else ())
    clean = open_images(archives.imagenet(tmp_path / "clean"), "test")
    archive = open_corrupted(root)
    assert (archive.name, archive.classes) == ("ImageNet-C", WNIDS)
    assert archive.corruptions == ("gaussian_noise", "snow")
    np.testing.assert_array_equal(archive.labels, clean.labels)
    seen = set()
    for name in archive.corruptions:
        for severity in range(1, 6):
            images = archive.images(name, severity)
            assert isinstance(images, ImageFiles)
            assert (images.name, images.classes, images.side) == ("ImageNet-C", WNIDS, 224)
            assert images.names == clean.names
            np.testing.assert_array_equal(images.labels, archive.labels)
            assert {file.parts[-4:-2] for file in images.files} == {(name, str(severity))}
            last = images.take(slice(-1, None))
            np.testing.assert_array_equal(last[0], np.asarray(Image.open(images.files[-1])))
            seen.add(last.tobytes())
    assert len(seen) == 10


def test_image_files_of_64_are_tiny_imagenet_c(tmp_path):
    archives.imagenet_c(tmp_path / "Tiny-ImageNet-C", size=(64, 64))
    archive = open_corrupted(tmp_path)
    assert archive.name == "Tiny-ImageNet-C"
    images = archive.images("snow", 5)
    assert (images.name, images.side, images.take(slice(None)).shape) == (
        "Tiny-ImageNet-C",
        64,
        (6, 64, 64, 3),
    )


def missing_severity(root):
    os.rename(root / "snow" / "3", root / "other")
    return f"there is no folder {root / 'snow' / '3'}"


def missing_class(root):
    os.rename(root / "snow" / "3" / WNIDS[1], root / "other")
    return f"{root / 'snow' / '3'} has no folder {WNIDS[1]}"


def missing_class_in_the_first(root):
    os.rename(root / "gaussian_noise" / "1" / WNIDS[1], root / "other")
    return f"{root / 'gaussian_noise' / '1'} has no folder {WNIDS[1]}"


def missing_image_file(root):
    (root / "snow" / "2" / WNIDS[2] / "ILSVRC2012_val_70.JPEG").unlink()
    return f"there is no file {root / 'snow' / '2' / WNIDS[2] / 'ILSVRC2012_val_70.JPEG'}"


def image_file_too_many(root):
    archives.jpeg(root / "snow" / "2" / WNIDS[2] / "more.JPEG", 1)
    return f"there is no file {root / 'gaussian_noise' / '1' / WNIDS[2] / 'more.JPEG'}"


def no_image_files_of_a_class(root):
    for file in (root / "snow" / "2" / WNIDS[2]).iterdir():
        file.unlink()
    return f"{root / 'snow' / '2' / WNIDS[2]} holds no image files"


def no_image_files_at_all(root):
    for file in root.rglob("*.JPEG"):
        file.unlink()
    return "holds no image files"


def no_classes_at_all(root):
    no_image_files_at_all(root)
    for folder in root.glob("*/*/*"):
        folder.rmdir()
    return "holds no folders of classes"


def damaged_image_file(root):
    file = root / "snow" / "2" / WNIDS[1] / "ILSVRC2012_val_80.JPEG"
    file.write_bytes(file.read_bytes()[:-300])
    return f"{file} is not a readable JPEG or PNG file, or is cut short"


def damaged_first_image_file(root):
    file = a_file(root / "gaussian_noise" / "1" / WNIDS[0] / "ILSVRC2012_val_90.JPEG", b"")
    return f"{file} is not a readable JPEG or PNG file, or is cut short"


@pytest.mark.parametrize(
    "harm",
    [
        missing_severity, missing_class, missing_class_in_the_first, missing_image_file,
        image_file_too_many, no_image_files_of_a_class, no_image_files_at_all, no_classes_at_all,
        damaged_image_file, damaged_first_image_file,
    ],
)  # fmt: skip
def test_imagenet_c_that_is_not_whole_is_refused(tmp_path, harm):
    root = archives.imagenet_c(tmp_path / "c", size=(64, 64))
    said = harm(root)
    assert said in refusal(root)


# --- Both -----------------------------------------------------------------------------------------


def test_what_is_not_there_is_refused_by_name(tmp_path):
    archives.cifar_c(tmp_path / "CIFAR-10-C", LABELS, ("fog", "snow"))
    assert "no corruption 'rain'; there are snow, fog" in refusal(tmp_path, "rain", 1)
    for severity in (0, 6, 2.5):
        assert "from 1 to 5" in refusal(tmp_path, "fog", severity)


def test_an_unknown_layout_lists_those_that_are_known(tmp_path):
    said = refusal(tmp_path)
    for known in ("CIFAR-10-C", "CIFAR-100-C", "labels.npy", "ImageNet-C", "Tiny-ImageNet-C"):
        assert known in said
    assert "there is no folder" in refusal(tmp_path / "nowhere")
    (tmp_path / "CIFAR-10-C.tar").write_bytes(b"x")
    assert "unpack the archive" in refusal(tmp_path / "CIFAR-10-C.tar")
    (tmp_path / "CIFAR-10-C").mkdir()
    (tmp_path / "CIFAR-100-C").mkdir()
    assert "CIFAR-10-C and CIFAR-100-C; give one of them" in refusal(tmp_path)
