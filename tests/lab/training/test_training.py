"""Networks, batches, training and logits, on images of a few pixels' worth."""

from __future__ import annotations

import json
import pickle
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'privcal[train]'")

from privcal.lab.corruptions import corrupt  # noqa: E402
from privcal.lab.images import CorruptedArchive, ImageArray, ImageFiles, open_corrupted  # noqa: E402
from privcal.lab.training import logits as asking  # noqa: E402
from privcal.lab.training import train as training  # noqa: E402
from privcal.lab.training.logits import (  # noqa: E402
    ArchiveSpec,
    build,
    make_archive,
    network_logits,
    same_rows,
)
from privcal.lab.training.train import (  # noqa: E402  # noqa: E402
    Batches,
    Checkpoint,
    Recipe,
    Step,
    choose_device,
    load_checkpoint,
    rate,
    read_recipe,
    recipe_names,
    train,
)
from privcal.planning.simulate.archive import read_archive  # noqa: E402
from privcal.trusted import records  # noqa: E402
from privcal.trusted.errors import InputError  # noqa: E402
from tests.support.builders import a_file  # noqa: E402
from tests.support.image_archives import cifar_c  # noqa: E402
from tests.support.training_reference import resnet50, wide_resnet  # noqa: E402

torch.set_num_threads(1)  # the tests themselves run side by side

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
TINY = replace(read_recipe("cifar10"), network="wrn-10-1", epochs=4, batch=16)


def images(rows: int, seed: int = 0, side: int = 32, classes: int = 4) -> ImageArray:
    """Brightness tells the class, so that there is something to learn."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(rows) % classes).astype(np.int64)
    light = labels[:, None, None, None] * 40
    pixels = (rng.integers(0, 100, (rows, side, side, 3)) + light).astype(np.uint8)
    return ImageArray("CIFAR-10", tuple("abcdefghij"[:classes]), labels, pixels)


def small(rows: int, seed: int = 0, classes: int = 4) -> ImageArray:
    """Images of 8 pixels a side, on which steps are cheap."""
    return images(rows, seed, 8, classes)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "net.pt"
    train(TINY, small(64), small(32, 1), path)
    return path


@pytest.fixture
def trained(once: Path, tmp_path: Path) -> Checkpoint:
    shutil.copy(once, tmp_path / "net.pt")
    return load_checkpoint(tmp_path / "net.pt")


@pytest.fixture
def trained_at_32(trained: Checkpoint, tmp_path: Path) -> Checkpoint:
    """The same weights for images that can be corrupted: they fit any side."""
    trained.side = 32
    trained.save(tmp_path / "net.pt")
    return trained


# --- recipes and networks -------------------------------------------------------------------------


def test_the_recipes_are_the_papers() -> None:
    assert recipe_names() == ["cifar10", "cifar100", "imagenet", "tiny-imagenet"]
    for name in recipe_names():
        recipe = read_recipe(name)
        assert recipe.learning_rate == 0.1
        assert recipe.epochs == (200 if "cifar" in name else 90)
        with torch.device("meta"):  # shapes alone
            build(recipe.network, 2, recipe.mean, recipe.std)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"epochs": 0}, "epochs must be a whole number of at least 1, not 0"),
        ({"batch": 1.5}, "batch must be a whole number"),
        ({"learning_rate": float("nan")}, "learning_rate must be a number of at least 0"),
        ({"momentum": 1.0}, "momentum must be below 1"),
        ({"weight_decay": "small"}, "weight_decay must be a number"),
        ({"augment": "mixup"}, "augment must be one of shift, resized-crop"),
        ({"std": [1, 0, 1]}, "std must be above 0"),
        ({"mean": [1, 0]}, "mean must be a list of 3 values"),
        ({"seed": -1}, "seed must be"),
        ({"network": 5}, "network must be text"),
    ],
)
def test_a_recipe_with_a_wrong_entry_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        records.read(Recipe, {**records.facts(TINY), **change}, "here")


def test_recipe_files_are_read_and_their_faults_named(tmp_path: Path) -> None:
    text = "\n".join(f"{k} = {json.dumps(v)}" for k, v in records.facts(TINY).items())
    path = a_file(tmp_path / "mine.toml", text)
    assert read_recipe(path) == TINY
    for broken, says in (
        (text + "\nepoch = 3", "has no 'epoch'; there are augment"),
        (text.replace("batch", "#"), "batch is missing"),
        ("a = ", "not valid TOML"),
    ):
        path.write_text(broken)
        with pytest.raises(InputError, match=says):
            read_recipe(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="is not valid TOML"):
        read_recipe(path)
    with pytest.raises(InputError, match="cannot read recipe"):
        read_recipe(tmp_path / "none.toml")
    with pytest.raises(InputError, match="there is no recipe 'cifar'; there are cifar10"):
        read_recipe("cifar")


def test_the_networks_have_the_published_numbers_of_weights() -> None:
    def weights(name: str, classes: int) -> int:
        with torch.device("meta"):  # shapes alone
            return sum(p.numel() for p in build(name, classes, MEAN, STD).parameters())

    assert weights("wrn-28-10", 10) == 36_479_194
    assert weights("wrn-28-10", 100) == 36_536_884
    assert weights("resnet-50", 1000) == 25_557_032


@pytest.mark.parametrize(
    ("name", "side", "reference"),
    [
        ("wrn-16-2", 8, wide_resnet),
        ("resnet-50", 32, resnet50),
        ("resnet-50-64", 8, resnet50),
    ],
)
def test_a_network_computes_what_a_slow_reference_does(
    name: str, side: int, reference: Any
) -> None:
    torch.manual_seed(1)
    network = build(name, 5, MEAN, STD).double().eval()
    for part in network.modules():  # as after a training: no statistic is 0 or 1
        if isinstance(part, torch.nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 1.5)
            torch.nn.init.normal_(part.weight, 1, 0.1)
            torch.nn.init.normal_(part.bias, 0, 0.1)
    pixels = images(2, side=side).pixels
    x = torch.from_numpy((pixels / 255 - MEAN) / STD).permute(0, 3, 1, 2)
    with torch.no_grad():
        found = network.body(x).numpy()
        outside = network.float()(torch.from_numpy(pixels)).numpy()
    weights = {k: v.double().numpy() for k, v in network.body.state_dict().items()}
    expected = reference(weights, x.numpy())
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_allclose(outside, expected, rtol=1e-2, atol=1e-3 * np.abs(expected).max())


def test_fresh_weights_keep_the_size_of_what_flows_back() -> None:
    """He's: variance 2 over the number of outputs that a weight reaches."""
    torch.manual_seed(0)
    network = build("wrn-10-4", 5, MEAN, STD)
    seen = set()
    for part in network.modules():
        if isinstance(part, torch.nn.Conv2d) and part.weight.numel() > 10_000:
            outputs, inputs, height, width = part.weight.shape
            expected = (2 / (outputs * height * width)) ** 0.5
            assert part.weight.std().item() == pytest.approx(expected, rel=0.05)
            seen.add(outputs == inputs)
    assert seen == {False, True}


@pytest.mark.parametrize("name", ["wrn-27-10", "wrn-4-1", "wrn-28-0", "vgg-16"])
def test_an_unknown_network_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"Wide ResNet's depth|there is no network"):
        build(name, 10, MEAN, STD)


@pytest.mark.parametrize("cards", [0, 2])
def test_a_device_that_is_not_there_is_refused(cards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cards > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    there = ["cpu", "cuda", "cuda:0", "cuda:1"] if cards else ["cpu"]
    assert [choose_device(name) for name in there] == there
    assert choose_device("auto") == ("cuda" if cards else "cpu")
    for name in {"cuda", "cuda:0", "cuda:2", "cuda:1x", "cuda:", "mps", "gpu"} - set(there):
        with pytest.raises(InputError, match=f"no device '{name}' here; use auto or cpu"):
            choose_device(name)


# --- batches --------------------------------------------------------------------------------------


def test_an_epoch_has_every_image_once_moved_by_up_to_an_eighth_and_mirrored() -> None:
    some = images(600)
    wide = np.pad(some.pixels, ((0, 0), (4, 4), (4, 4), (0, 0)))
    place = {  # by a patch that is inside the image wherever it is moved
        wide[row, down + 10 : down + 14, right + 10 : right + 14].tobytes(): (row, down, right)
        for row in range(600)
        for down in range(9)
        for right in range(9)
    }
    seen, moves = [], []
    for pixels, labels in Batches(some, 50, "shift", 3, "cpu").epoch(0):
        assert pixels.dtype == torch.uint8
        for one, label in zip(pixels.numpy(), labels.numpy(), strict=True):
            mirrored = one[10:14, 10:14].tobytes() not in place
            image = one[:, ::-1] if mirrored else one
            row, down, right = place[image[10:14, 10:14].tobytes()]
            np.testing.assert_array_equal(wide[row, down : down + 32, right : right + 32], image)
            assert some.labels[row] == label
            seen.append(row)
            moves.append((down, right, mirrored))
    assert sorted(seen) == list(range(600))
    downs, rights, flips = np.array(moves).T
    for offsets in (downs, rights):
        assert set(offsets) == set(range(9))
        assert np.bincount(offsets).min() > 35  # 67 expected
    assert 240 < flips.sum() < 360
    for mirrored in (0, 1):
        for offsets in (downs, rights):
            assert set(offsets[flips == mirrored]) == set(range(9)), "one has no say in the other"


def test_order_and_changes_depend_on_seed_and_epoch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    some = images(70)
    one = list(Batches(some, 16, "shift", 0, "cpu").epoch(3))
    assert len(one) == 4, "the six left over are other ones in every epoch"
    late = list(Batches(some, 16, "shift", 0, "cpu").epoch(3, first=2))
    monkeypatch.setattr(training, "RESIDENT", 0)
    read = list(Batches(some, 16, "shift", 0, "cpu").epoch(3))
    for (a, x), (b, y) in zip(one[2:] + one, late + read, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(x, y)
    firsts = [
        next(Batches(some, 16, "shift", seed, "cpu").epoch(epoch))[0]
        for seed, epoch in ((0, 3), (0, 4), (1, 3), (1, 2))
    ]
    assert torch.equal(firsts[0], one[0][0])
    for i, first in enumerate(firsts):
        assert not any(torch.equal(first, other) for other in firsts[:i])


def test_a_resized_crop_is_a_part_of_the_image_at_seven_eighths() -> None:
    side = 64
    across = np.linspace(0, 255, side)[None, None, :, None]
    pixels = np.broadcast_to(across, (200, side, side, 3)).astype(np.uint8)
    some = ImageArray("ImageNet", ("a",), np.zeros(200, np.int64), pixels)
    (found, _) = next(iter(Batches(some, 200, "resized-crop", 0, "cpu").epoch(0)))
    assert found.shape == (200, 56, 56, 3)
    values = found.numpy().astype(float)
    assert np.abs(values - values[:, :1]).max() <= 1, "the ramp stays a ramp"
    slope = values[:, 0, -1, 0] - values[:, 0, 0, 0]
    assert 70 < (slope < 0).sum() < 130, "half of them mirrored"
    width = np.abs(slope) / 255
    assert 0.4 < width.min() < 0.6, "an area of 1/4 at 3:4 is .43 wide"
    assert width.max() > 0.95
    middle = values[:, 0].mean((1, 2)) / 255
    room = np.maximum((1 - width) / 2, 0.02)
    assert (np.abs(middle - 0.5) <= room + 0.02).all(), "no crop leaves the image"
    assert np.ptp(middle) > 0.3, "not always the centre"


def test_a_resized_crop_is_neither_always_square_nor_always_in_the_middle() -> None:
    side = 64
    place = np.linspace(0, 255, side)
    pixels = np.zeros((300, side, side, 3), np.uint8)
    pixels[..., 0], pixels[..., 1] = place[:, None], place  # red downwards, green to the right
    some = ImageArray("ImageNet", ("a",), np.zeros(300, np.int64), pixels)
    (found, _) = next(iter(Batches(some, 300, "resized-crop", 0, "cpu").epoch(0)))
    values = found.numpy().astype(float)
    height = (values[:, -1, 0, 0] - values[:, 0, 0, 0]) / 255
    width = np.abs(values[:, 0, -1, 1] - values[:, 0, 0, 1]) / 255
    shape = width / height
    assert 0.7 < shape.min() < 0.85
    assert 1.15 < shape.max() < 1.4
    assert 0.2 < (width * height).min() < 0.3
    top, bottom = values[:, 0, 0, 0] / 255, values[:, -1, 0, 0] / 255
    middle = values[:, 27:29, 0, 0].mean(1) / 255
    assert (np.abs(middle - (top + bottom) / 2) < 0.02).all(), "no crop leaves the image"
    low = height < 0.7  # where there is room to move
    assert top[low].min() < 0.05
    assert bottom[low].max() > 0.95
    assert np.ptp((top + bottom)[low]) > 0.4


# --- training -------------------------------------------------------------------------------------


def test_training_learns_and_leaves_a_network_that_says_the_same(
    trained: Checkpoint, tmp_path: Path
) -> None:
    longer = replace(TINY, epochs=12)
    done = train(longer, small(128), small(32, 1), tmp_path / "longer.pt")
    assert done.history[-1]["accuracy"] > 0.8
    assert [line["epoch"] for line in done.history] == list(range(1, 13))
    assert done.history[-1]["loss"] < done.history[0]["loss"]
    again = load_checkpoint(tmp_path / "longer.pt")
    assert again.finished
    assert again.history == done.history
    network = again.network("cpu")
    right = network_logits(network, small(32, 1), "cpu").argmax(1) == small(32, 1).labels
    assert right.mean() == done.history[-1]["accuracy"]
    # A finished one is not trained again.
    before = (tmp_path / "net.pt").read_bytes()
    assert train(TINY, small(64), small(32, 1), tmp_path / "net.pt").epochs == 4
    assert (tmp_path / "net.pt").read_bytes() == before


def test_a_training_is_plain_arithmetic(tmp_path: Path) -> None:
    """Nesterov's momentum, decay of every weight, a rate that falls along half a cosine."""
    recipe = replace(TINY, epochs=2, seed=3)
    done = train(recipe, small(40), small(32, 1), tmp_path / "net.pt")
    torch.manual_seed(3)
    network = build("wrn-10-1", 4, recipe.mean, recipe.std).train()
    weights = list(network.parameters())
    speed = [torch.zeros_like(w) for w in weights]
    step, losses = 0, []
    for epoch in (0, 1):
        for pixels, labels in Batches(small(40), 16, "shift", 3, "cpu").epoch(epoch):
            said = network(pixels).log_softmax(1)
            loss = -said[torch.arange(16), labels].mean()
            losses.append(loss.item())
            rate = 0.1 * (1 + np.cos(np.pi * step / 4)) / 2
            for w, v, slope in zip(weights, speed, torch.autograd.grad(loss, weights), strict=True):
                push = slope + 5e-4 * w.detach()
                v.mul_(0.9).add_(push)
                w.data -= rate * (push + 0.9 * v)
            step += 1
    assert done.step == step == 4
    for name, value in network.state_dict().items():
        torch.testing.assert_close(done.weights[name], value, rtol=1e-3, atol=1e-4)
    found = [line["loss"] for line in done.history]
    np.testing.assert_allclose(found, np.mean(np.reshape(losses, (2, 2)), 1), rtol=1e-4)


def test_the_test_images_are_looked_at_ten_times(tmp_path: Path) -> None:
    done = train(replace(TINY, epochs=12), small(8), small(8, 1), tmp_path / "net.pt")
    tested = [line["epoch"] for line in done.history if "accuracy" in line]
    assert tested == [1, 2, 4, 5, 6, 7, 8, 10, 11, 12]


class Clock:
    """A second for every look."""

    now = 0.0

    def monotonic(self) -> float:
        self.now += 1
        return self.now


def test_the_seconds_of_an_epoch_are_counted_across_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "REPORT_EVERY", 0)
    path, clock = tmp_path / "net.pt", Clock()
    monkeypatch.setattr(training, "time", clock)

    def interrupt(step: Step) -> None:
        if step.done == 7:
            raise Stop

    with pytest.raises(Stop):
        train(TINY, small(64), small(32, 1), path, save_every=0, progress=interrupt)
    kept = load_checkpoint(path)
    assert (kept.step, kept.epochs) == (6, 1)
    before = kept.history[0]["seconds"], kept.seconds
    assert min(before) > 0
    clock.now += 1000  # between the two runs, which is nobody's work
    done = train(TINY, small(64), small(32, 1), path)
    first, second, *rest = (line["seconds"] for line in done.history)
    assert first == before[0]
    assert before[1] < second < 1000
    whole = train(TINY, small(64), small(32, 1), tmp_path / "whole.pt")
    assert rest == [line["seconds"] for line in whole.history[2:]]


class Stop(Exception):
    pass


def same(one: Checkpoint, other: Checkpoint) -> bool:
    return all(torch.equal(one.weights[k], other.weights[k]) for k in one.weights)


@pytest.mark.parametrize("stop", [1, 4, 6, 15])
def test_an_interrupted_training_ends_as_if_it_had_not_been(
    stop: int, trained: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "REPORT_EVERY", 0)
    path = tmp_path / "again.pt"

    def interrupt(step: Step) -> None:
        if step.done == stop:
            raise Stop

    with pytest.raises(Stop):  # a crash: what was kept before it remains
        train(TINY, small(64), small(32, 1), path, save_every=0, progress=interrupt)
    assert path.exists() == (stop > 1)
    done = train(TINY, small(64), small(32, 1), path)
    assert same(done, trained)
    assert [x["loss"] for x in done.history] == [x["loss"] for x in trained.history]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_between_two_steps_and_loses_nothing(
    number: signal.Signals,
    trained: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training, "REPORT_EVERY", 0)
    path = tmp_path / "again.pt"

    def stop(*_: object) -> None:
        raise Stop

    def interrupt(step: Step) -> None:
        if step.done == 6:
            signal.raise_signal(number)

    before = signal.signal(number, stop)
    try:
        with pytest.raises(Stop):
            train(TINY, small(64), small(32, 1), path, progress=interrupt)
        assert signal.getsignal(number) is stop, "the handlers are as they were"
    finally:
        signal.signal(number, before)
    assert load_checkpoint(path).step == 6
    assert same(train(TINY, small(64), small(32, 1), path), trained)


def test_a_training_is_not_continued_as_another(tmp_path: Path, trained: Checkpoint) -> None:
    path = tmp_path / "net.pt"
    for recipe, some, says in (
        (replace(TINY, epochs=5, seed=2), small(64), r"another recipe \(epochs, seed\)"),
        (TINY, small(64, seed=9), "begun with other images"),
    ):
        with pytest.raises(InputError, match=says):
            train(recipe, some, small(32, 1), path)
    renamed = [replace(some, classes=("x", "y", "z", "w")) for some in (small(64), small(32, 1))]
    with pytest.raises(InputError, match="begun with other images"):
        train(TINY, *renamed, path)
    with pytest.raises(InputError, match="the recipe is for CIFAR-100, but the training images"):
        train(replace(TINY, data="CIFAR-100"), small(64), small(32, 1), tmp_path / "x.pt")
    with pytest.raises(InputError, match="different classes"):
        train(TINY, small(64), small(32, 1, classes=5), tmp_path / "x.pt")


def test_a_loss_that_is_no_number_is_said(tmp_path: Path) -> None:
    wild = replace(TINY, learning_rate=1e30)
    with pytest.raises(InputError, match="use a smaller learning rate"):
        train(wild, small(64), small(32, 1), tmp_path / "x.pt")


def test_progress_is_told_at_the_first_step_after_each_test_and_at_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However fast or slow the steps are: a log has the same lines on every machine."""
    monkeypatch.setattr(training, "REPORT_EVERY", 1e9)
    told: list[int] = []
    train(
        TINY,
        small(64),
        small(32, 1),
        tmp_path / "x.pt",
        progress=lambda step: told.append(step.done),
    )
    assert told == [1, 5, 9, 13, 16], "four steps and a test in each epoch"


def test_the_rate_follows_half_a_cosine() -> None:
    assert rate(0.1, 0, 100) == 0.1
    assert rate(0.1, 50, 100) == pytest.approx(0.05)
    assert rate(0.1, 100, 100) == pytest.approx(0)
    assert rate(0.1, 25, 100) == pytest.approx(0.1 * (1 + 2**-0.5) / 2)


def test_a_file_that_is_no_network_is_refused_and_runs_nothing(
    tmp_path: Path, trained: Checkpoint
) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    whole = (tmp_path / "net.pt").read_bytes()
    torch.save({"version": 1}, tmp_path / "partial")
    contents = {
        "empty": b"",
        "short": whole[: len(whole) // 2],
        "evil": pickle.dumps(Evil(), 2),
        "text": b"hello",
        "partial": (tmp_path / "partial").read_bytes(),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="is not a network that privcal trained"):
            load_checkpoint(tmp_path / name)
    assert not (tmp_path / "ran").exists()
    with pytest.raises(InputError, match="there is no file"):
        load_checkpoint(tmp_path / "none.pt")
    torch.save({"version": 99}, tmp_path / "newer.pt")
    with pytest.raises(InputError, match="another version"):
        load_checkpoint(tmp_path / "newer.pt")


def test_weights_of_another_network_are_refused(trained: Checkpoint) -> None:
    trained.recipe = replace(TINY, network="wrn-16-1")
    with pytest.raises(InputError, match="the weights do not fit a wrn-16-1"):
        trained.network("cpu")


def test_one_image_of_each_class_and_a_batch_larger_than_all(tmp_path: Path) -> None:
    done = train(replace(TINY, batch=500, epochs=2), images(4), images(1), tmp_path / "few.pt")
    assert [line["epoch"] for line in done.history] == [1, 2]
    assert done.step == 2
    make_archive(ArchiveSpec(done, images(1), 5), ["clean", "fog"], tmp_path / "few.npz")
    assert len(read_archive([tmp_path / "few.npz"]).scores("fog").labels) == 1


# --- logits ---------------------------------------------------------------------------------------


def test_an_archive_holds_what_the_network_says_of_each_corrupted_image(
    trained_at_32: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_batch_size", lambda side, device: 6)  # the last one smaller
    test = images(20, 5)
    out = tmp_path / "archive.npz"
    shifts = ["clean", "fog", "gaussian_noise"]
    meta = make_archive(ArchiveSpec(trained_at_32, test, 3, seed=7), shifts, out)
    network = trained_at_32.network("cpu")
    with np.load(out) as found:
        assert set(found.files) == {"meta", "labels", *shifts}
        np.testing.assert_array_equal(found["labels"], test.labels)
        assert json.loads(str(found["meta"])) == meta
        for shift in shifts:
            for row in (
                0,
                7,
                19,
            ):  # one at a time: an image's row in the set decides, not its batch
                pixels = torch.from_numpy(test.take(slice(row, row + 1)))
                if shift != "clean":
                    pixels = corrupt(pixels, shift, 3, seed=7, first=row)
                with torch.no_grad():
                    expected = network(pixels).numpy()[0]
                np.testing.assert_allclose(found[shift][row], expected, rtol=2e-3, atol=2e-3)
            assert found[shift].dtype == np.float16
            right = (found[shift].argmax(1) == test.labels).mean()
            assert meta["accuracy"][shift] == pytest.approx(right, abs=1e-4)
    assert (meta["dataset"], meta["severity"], meta["network"]) == ("CIFAR-10-C", 3, "wrn-10-1")
    assert meta["seeds"] == {"training": 0, "corruptions": 7}
    assert meta["recipe"] == records.facts(TINY)
    assert meta["epochs"] == 4
    archive = read_archive([out])
    assert (archive.dataset, archive.severity) == ("CIFAR-10-C", 3)
    assert archive.shifts == ["fog", "gaussian_noise", "clean"]
    assert list(tmp_path.glob("archive*")) == [out], "no parts are left"


def test_an_interrupted_archive_goes_on_with_what_it_has(
    trained_at_32: Checkpoint, tmp_path: Path
) -> None:
    spec, shifts = ArchiveSpec(trained_at_32, images(20, 5), 5), ["clean", "fog", "contrast"]
    make_archive(spec, shifts, tmp_path / "whole.npz")
    out = tmp_path / "archive.npz"

    def interrupt(shift: str, rows: int) -> None:
        if shift == "contrast":
            raise Stop

    with pytest.raises(Stop):
        make_archive(spec, shifts, out, progress=interrupt)
    assert not out.exists()
    changed = load_checkpoint(tmp_path / "net.pt")
    changed.weights["body.head.bias"][0] += 1
    for other in (
        ArchiveSpec(changed, images(20, 5), 5),
        ArchiveSpec(trained_at_32, images(20, 5), 5, seed=1),
        ArchiveSpec(trained_at_32, images(20, 6), 5),
    ):
        with pytest.raises(InputError, match="holds parts of another archive"):
            make_archive(other, shifts, out)
    made = []

    class Watched(ArchiveSpec):
        def logits(self, shift: str, *rest: Any) -> Any:
            made.append(shift)
            return super().logits(shift, *rest)

    make_archive(Watched(trained_at_32, images(20, 5), 5), shifts, out)
    assert made == ["contrast"]
    assert out.read_bytes() == (tmp_path / "whole.npz").read_bytes()


@pytest.fixture
def parts(trained_at_32: Checkpoint, tmp_path: Path) -> Path:
    """Of an archive that was interrupted before its second corruption, which is contrast."""

    def interrupt(shift: str, rows: int) -> None:
        if shift == "contrast":
            raise Stop

    shifts, out = ["clean", "fog", "contrast"], tmp_path / "archive.npz"
    make_archive(ArchiveSpec(trained_at_32, images(20, 5), 5), shifts, tmp_path / "whole.npz")
    with pytest.raises(Stop):
        make_archive(ArchiveSpec(trained_at_32, images(20, 5), 5), shifts, out, progress=interrupt)
    return tmp_path / "archive.npz.parts"


@pytest.mark.parametrize("left", [0, 20, 200])
def test_a_damaged_part_is_made_anew(trained_at_32: Checkpoint, parts: Path, left: int) -> None:
    fog = parts / "fog.npy"
    fog.write_bytes(fog.read_bytes()[:left])
    out = parts.with_suffix("")
    make_archive(ArchiveSpec(trained_at_32, images(20, 5), 5), ["clean", "fog", "contrast"], out)
    assert out.read_bytes() == out.with_name("whole.npz").read_bytes()
    assert not parts.exists()


@pytest.mark.parametrize("left", [None, 0, 50])
def test_parts_of_unknown_origin_are_not_used(
    trained_at_32: Checkpoint, parts: Path, left: int | None
) -> None:
    about = parts / "about.json"
    text = about.read_bytes()
    about.unlink()
    if left is not None:
        about.write_bytes(text[:left])
    spec, shifts, out = (
        ArchiveSpec(trained_at_32, images(20, 5), 5),
        ["clean"],
        parts.with_suffix(""),
    )
    with pytest.raises(InputError, match="holds parts of another archive; delete it"):
        make_archive(spec, shifts, out)
    assert (parts / "fog.npy").exists()
    for part in parts.glob("*.npy"):
        part.unlink()
    make_archive(spec, shifts, out)  # a folder without parts is in nobody's way


def test_an_archive_that_is_there_is_neither_made_anew_nor_replaced_by_another(
    trained_at_32: Checkpoint, tmp_path: Path
) -> None:
    out, spec = tmp_path / "archive.npz", ArchiveSpec(trained_at_32, images(20, 5), 5)
    meta = make_archive(spec, ["clean", "fog"], out)
    before = out.stat()
    rows: list[int] = []
    same = make_archive(spec, ["clean", "fog"], out, progress=lambda shift, n: rows.append(n))
    assert same == meta
    assert sum(rows) == 40, "the bar is at its end"
    for other, shifts in ((spec, ["clean"]), (replace(spec, seed=1), ["clean", "fog"])):
        with pytest.raises(InputError, match="is there and another archive; delete it, or rename"):
            make_archive(other, shifts, out)
    assert (out.stat().st_mtime_ns, out.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    for damaged in (out.read_bytes()[:-30], b""):
        out.write_bytes(damaged)
        with pytest.raises(InputError, match="is there and another archive"):
            make_archive(spec, ["clean", "fog"], out)


def test_a_published_archive_takes_the_place_of_our_own_corruptions(
    trained_at_32: Checkpoint, tmp_path: Path
) -> None:
    test = images(10, 5)
    published = cifar_c(tmp_path / "CIFAR-10-C", test.labels)
    corrupted = open_corrupted(tmp_path / "CIFAR-10-C")
    out = tmp_path / "archive.npz"
    meta = make_archive(ArchiveSpec(trained_at_32, test, 2, corrupted), ["clean", "snow"], out)
    assert meta["corrupted"].startswith("published archive ")
    assert (meta["frost"], meta["seeds"]["corruptions"]) == (None, None), "of no influence"
    second = ImageArray("CIFAR-10", test.classes, test.labels, published["snow"][10:20])
    expected = network_logits(trained_at_32.network("cpu"), second, "cpu")
    with np.load(out) as found:
        np.testing.assert_allclose(found["snow"], expected, rtol=2e-3, atol=2e-3)
    mixed = ImageArray("CIFAR-10", test.classes, test.labels[::-1].copy(), test.pixels)
    with pytest.raises(InputError, match="rows must line up"):
        ArchiveSpec(trained_at_32, mixed, 2, corrupted)
    with pytest.raises(InputError, match="rows must line up"):
        ArchiveSpec(trained_at_32, images(9, 5), 2, corrupted)
    cifar_c(tmp_path / "other", test.labels, seed=1)
    other = ArchiveSpec(trained_at_32, test, 2, open_corrupted(tmp_path / "other"))
    assert other.identity() != ArchiveSpec(trained_at_32, test, 2, corrupted).identity()
    larger = CorruptedArchive("X", (), ("snow",), test.labels, lambda *_: images(10, 5, side=64))
    with pytest.raises(InputError, match="rows must line up"):
        ArchiveSpec(trained_at_32, test, 2, larger)


def test_image_files_of_a_published_archive_must_be_the_same_by_name() -> None:
    def named(*names: str) -> Any:
        files = tuple(Path(name) for name in names)
        return ImageFiles("ImageNet", ("a", "b"), np.array([0, 1]), files, 32)

    assert same_rows(named("x/1.JPEG", "x/2.JPEG"), named("y/1.JPEG", "y/2.JPEG"))
    assert not same_rows(named("1.JPEG", "2.JPEG"), named("1.JPEG", "3.JPEG"))


def test_images_of_another_kind_than_the_network_knows_are_refused(
    trained_at_32: Checkpoint,
) -> None:
    for test, says in (
        (images(8, classes=5), "with 4 classes; these images are CIFAR-10 with 5"),
        (images(8, side=64), "32 pixels a side; these have 64"),
        (replace(images(8), name="CIFAR-100"), "trained on CIFAR-10"),
        (replace(images(8), classes=("a", "c", "b", "d")), "classes of other names"),
    ):
        with pytest.raises(InputError, match=says):
            ArchiveSpec(trained_at_32, test, 5)


def test_logits_beyond_float16_are_refused(trained_at_32: Checkpoint, tmp_path: Path) -> None:
    trained_at_32.weights["body.head.bias"][0] = 1e6
    with pytest.raises(InputError, match="under clean are not all finite numbers below 65,504"):
        make_archive(ArchiveSpec(trained_at_32, images(8), 5), ["clean"], tmp_path / "a.npz")
