"""Networks trained elsewhere: the same logits as where they come from, or one clear sentence."""

from __future__ import annotations

import json
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="networks need torch: pip install 'privcal[train]'")

from privcal.lab.images import ImageArray  # noqa: E402
from privcal.lab.training.logits import (  # noqa: E402
    ArchiveSpec,
    build,
    make_archive,
    network_logits,
)
from privcal.lab.training.pretrained import (  # noqa: E402
    load_pretrained,
    read_safetensors,
)
from privcal.trusted.errors import InputError  # noqa: E402
from tests.support.builders import sentence  # noqa: E402
from tests.support.foreign_networks import ResNet50, WideResNet, write_safetensors  # noqa: E402

torch.set_num_threads(1)  # the tests themselves run side by side

CIFAR = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def images(name: str, side: int, classes: int, rows: int = 3) -> ImageArray:
    rng = np.random.default_rng(side)
    pixels = rng.integers(0, 256, (rows, side, side, 3), np.uint8)
    names = tuple(f"class {i}" for i in range(classes))
    return ImageArray(name, names, np.arange(rows) % classes, pixels)


def by_themselves(network: Any, test: ImageArray, usual: Any) -> np.ndarray:
    """What the network says where it comes from: pixels in [0, 1], then normalised."""
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in usual)
    pixels = torch.from_numpy(test.pixels).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        return network.eval()((pixels - mean) / std).numpy()


def said(path: Path, name: str, test: ImageArray, *more: Any) -> np.ndarray:
    return network_logits(load_pretrained(path, name, test, *more).network("cpu"), test, "cpu")


@pytest.fixture(scope="module")
def wide() -> Any:
    torch.manual_seed(1)
    return WideResNet(16, 2, 10)


TEST = images("CIFAR-10", 32, 10)


def test_a_resnet_50_in_torchvisions_layout_says_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network, test = ResNet50(7), images("ImageNet", 75, 7, 2)
    path = write_safetensors(tmp_path / "r.safetensors", network.state_dict())
    expected = by_themselves(network, test, IMAGENET)
    np.testing.assert_allclose(said(path, "resnet-50", test), expected, rtol=1e-3, atol=1e-3)
    assert np.abs(expected).max() > 0.1


def test_a_wide_resnet_in_the_usual_layout_says_the_same(tmp_path: Path, wide: Any) -> None:
    path = write_safetensors(tmp_path / "w.safetensors", wide.state_dict())
    expected = by_themselves(wide, TEST, CIFAR)
    np.testing.assert_allclose(said(path, "wrn-16-2", TEST), expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.1


def renamed(state: dict[str, Any], *changes: tuple[str, str]) -> dict[str, Any]:
    for pattern, new in changes:
        state = {re.sub(pattern, new, key): value for key, value in state.items()}
    return state


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda s: s,
        lambda s: {"state_dict": s, "epoch": 3},
        lambda s: {"model": renamed(s, ("^", "module."))},
        lambda s: {"net": {"state_dict": renamed(s, ("^", "_orig_mod.module."))}, "acc": 0.9},
        lambda s: {k: v for k, v in s.items() if "num_batches" not in k},
        lambda s: {k: v.double() if v.is_floating_point() else v for k, v in s.items()},
        lambda s: renamed(s, (r"^block(\d)\.layer\.", r"layer\1."), ("convShortcut", "shortcut.0"),
                          ("^fc", "linear")),
    ],
)  # fmt: skip
def test_wrappers_prefixes_and_other_names_do_not_matter(
    tmp_path: Path, wide: Any, wrapped: Any
) -> None:
    torch.save(wrapped(wide.state_dict()), tmp_path / "w.pt")
    np.testing.assert_allclose(
        said(tmp_path / "w.pt", "wrn-16-2", TEST), by_themselves(wide, TEST, CIFAR), atol=1e-4
    )


def test_half_precision_is_read_as_it_is(tmp_path: Path, wide: Any) -> None:
    for kind in (torch.float16, torch.bfloat16):
        state = {
            k: v.to(kind) if v.is_floating_point() else v for k, v in wide.state_dict().items()
        }
        path = write_safetensors(tmp_path / "h.safetensors", state)
        again = WideResNet(16, 2, 10)
        again.load_state_dict(state)
        expected = by_themselves(again, TEST, CIFAR)
        np.testing.assert_allclose(said(path, "wrn-16-2", TEST), expected, atol=1e-4)


def test_mean_and_std_are_the_data_sets_unless_said(tmp_path: Path, wide: Any) -> None:
    torch.save(wide.state_dict(), tmp_path / "w.pt")
    for usual in (((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)), ((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))):
        np.testing.assert_allclose(
            said(tmp_path / "w.pt", "wrn-16-2", TEST, *usual),
            by_themselves(wide, TEST, usual),
            atol=1e-4,
        )
    hundred = images("CIFAR-100", 32, 10)
    model = load_pretrained(tmp_path / "w.pt", "wrn-16-2", hundred)
    assert model.mean == (0.5071, 0.4866, 0.4409)


def test_an_archive_says_that_the_weights_were_given(tmp_path: Path, wide: Any) -> None:
    torch.save(wide.state_dict(), tmp_path / "w.pt")
    model = load_pretrained(tmp_path / "w.pt", "wrn-16-2", TEST)
    spec = ArchiveSpec(model, TEST, 5)
    meta = make_archive(spec, ["clean", "fog"], tmp_path / "a.npz")
    assert meta["network"] == "wrn-16-2"
    assert meta["trained"] == "elsewhere; the weights were given"
    assert (meta["mean"], meta["std"]) == tuple(map(list, CIFAR))
    assert "recipe" not in meta
    assert meta["seeds"] == {"training": None, "corruptions": 0}
    with np.load(tmp_path / "a.npz") as archive:
        np.testing.assert_allclose(
            archive["clean"], by_themselves(wide, TEST, CIFAR), rtol=2e-3, atol=2e-3
        )
    wide.fc.bias.data[0] += 1
    torch.save(wide.state_dict(), tmp_path / "w.pt")
    other = ArchiveSpec(load_pretrained(tmp_path / "w.pt", "wrn-16-2", TEST), TEST, 5)
    assert other.identity()["weights"] != meta["weights"]
    wide.fc.bias.data[0] -= 1


# --- what does not fit --------------------------------------------------------------------------


def without(key: str) -> Any:
    return lambda s: {k: v for k, v in s.items() if k != key}


def in_itself(key: str) -> dict[str, Any]:
    """A checkpoint that is its own state dict."""
    checkpoint: dict[str, Any] = {}
    checkpoint[key] = checkpoint
    return checkpoint


@pytest.mark.filterwarnings("ignore:.*(beta|prototype)")  # torch's own, of sparse and nested arrays
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without("block2.layer.1.conv2.weight"), "has no entry block2.layer.1.conv2.weight, which"),
        (without("fc.bias"), "has no entry fc.bias, which a wrn-16-2 needs"),
        (lambda s: {**s, "\x1b[2J\n" + "x" * 999: torch.ones(1)}, r"'\x1b[2J\nxxx"),
        (lambda s: {**s, "sub.weight": torch.ones(1)}, "has an entry 'sub.weight', which a wrn-16-2"),
        (lambda s: {**s, "fc.weight": torch.ones(5, 128)}, r"fc.weight has shape (5, 128), but a wrn-16-2 with 10 classes needs (10, 128)"),
        (lambda s: {**s, "fc.bias": torch.ones(10).long()}, "fc.bias is not an array of decimal"),
        (lambda s: {**s, "fc.bias": [0.0] * 10}, "fc.bias is not an array of decimal numbers"),
        (lambda s: {**s, "fc.bias": torch.full((10,), torch.nan)}, "fc.bias holds a value that is"),
        (lambda s: {**s, "fc.bias": torch.ones(10).to_sparse()}, "fc.bias is not an array of decimal"),
        (lambda s: {**s, "fc.bias": torch.ones(10, device="meta")}, "fc.bias is not an array of decimal"),
        (lambda s: {**s, "fc.weight": torch.ones(10, 128).to_sparse_csr()}, "fc.weight is not an array"),
        (lambda s: {**s, "fc.bias": torch.nested.nested_tensor([torch.ones(10)])}, "fc.bias is not an"),
        (lambda s: in_itself("model"), "has no entry conv1.weight"),
        (lambda s: {}, "has no entry conv1.weight"),
        (lambda s: {1: 2}, "holds no state dict"),
        (lambda s: [1, 2], "holds no state dict"),
        (lambda s: torch.ones(3), "holds no state dict"),
    ],
)  # fmt: skip
def test_the_first_entry_that_does_not_fit_is_named(
    tmp_path: Path, wide: Any, change: Any, says: str
) -> None:
    path = tmp_path / "w.pt"
    torch.save(change(dict(wide.state_dict())), path)
    said = sentence(load_pretrained, path, "wrn-16-2", TEST)
    assert said.startswith(str(path))
    assert says in said


def test_another_network_than_said_is_refused(tmp_path: Path, wide: Any) -> None:
    torch.save(wide.state_dict(), tmp_path / "w.pt")
    for name, says in (
        ("wrn-10-2", "has an entry 'block1.layer.1.bn1.weight'"),
        ("wrn-22-2", "has no entry block1.layer.2.bn1.weight"),
        ("wrn-16-1", "has shape"),
        ("resnet-50", "has shape (16, 3, 3, 3)"),
        ("vgg", "there is no network 'vgg'"),
    ):
        with pytest.raises(InputError, match=re.escape(says)):
            load_pretrained(tmp_path / "w.pt", name, TEST)
    with pytest.raises(InputError, match="there is no file"):
        load_pretrained(tmp_path / "none.pt", "wrn-16-2", TEST)


def test_a_file_that_would_run_code_is_refused_and_runs_nothing(tmp_path: Path, wide: Any) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    path = tmp_path / "w.pt"

    def refused() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # one sentence, and none of torch's besides
            with pytest.raises(InputError, match="can be read without running code"):
                load_pretrained(path, "wrn-16-2", TEST)
        assert not (tmp_path / "ran").exists()

    for protocol in (2, 4):
        path.write_bytes(pickle.dumps({"conv1.weight": Evil()}, protocol))
        refused()
    torch.save({**wide.state_dict(), "conv1.weight": Evil()}, path)
    refused()
    torch.save(wide, path)  # a whole module: its class would be imported
    refused()
    torch.save(wide.state_dict(), path)
    whole = path.read_bytes()
    for part in (b"", b"hello", whole[: len(whole) // 2]):
        path.write_bytes(part)
        refused()
    torch.save(Evil(), path)  # and that it is evil indeed:
    torch.load(path, weights_only=False)
    assert (tmp_path / "ran").exists()


# --- safetensors ----------------------------------------------------------------------------------


def test_safetensors_hold_every_kind_of_number(tmp_path: Path) -> None:
    entries = {
        "a": torch.arange(6.0).reshape(2, 3),
        "odd": torch.tensor(7, dtype=torch.int64),
        "half": torch.tensor([1.5, -2.0], dtype=torch.float16),
        "b": torch.tensor([[3.0]], dtype=torch.bfloat16),
        "none": torch.empty(0, 4),
    }
    found = read_safetensors(write_safetensors(tmp_path / "x.safetensors", entries))
    assert list(found) == list(entries)
    for name, value in entries.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)


def entry(**change: Any) -> bytes:
    header = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **change}}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(8)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1234567",
        (100).to_bytes(8, "little") + b"{}",
        (2**63).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"{]",
        (2).to_bytes(8, "little") + b"\xff\xff",
        (200_000).to_bytes(8, "little") + b"[" * 200_000,
        entry()[:-1],
        entry(shape=[3]),
        entry(shape=[-2]),
        entry(shape=[2.0]),
        entry(shape=2),
        entry(shape=[2] + [1] * 64),
        entry(shape=[0, 2**64], data_offsets=[0, 0]),
        entry(shape=[0, 2**40, 2**40], data_offsets=[0, 0]),
        entry(data_offsets=[-8, 0]),
        entry(data_offsets=[8, 0]),
        entry(data_offsets=[8, 16]),
        entry(data_offsets=[0]),
        entry(data_offsets="08"),
        entry(dtype=32),
    ],
)
def test_a_damaged_safetensors_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(InputError, match=r"is not a readable \.safetensors file, or is cut short"):
        read_safetensors(tmp_path / "x.safetensors")


def test_an_unknown_type_of_number_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(entry(dtype="F8_E4M3"))
    with pytest.raises(InputError, match="'a' is of type 'F8_E4M3', which is not read here"):
        read_safetensors(tmp_path / "x.safetensors")


def test_the_network_of_a_recipe_has_names_of_its_own_that_are_read_too(tmp_path: Path) -> None:
    torch.manual_seed(3)
    ours = build("wrn-10-1", 10, *CIFAR).eval()
    path = write_safetensors(tmp_path / "x.safetensors", ours.body.state_dict())
    expected = network_logits(ours, TEST, "cpu")
    np.testing.assert_array_equal(said(path, "wrn-10-1", TEST), expected)
