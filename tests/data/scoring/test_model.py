"""What a model file is: its name, its inputs, and what is refused before anything is run."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install privcal[onnx]")
onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper, parser  # noqa: E402

from privcal.data.scoring import Model, model_name  # noqa: E402
from privcal.trusted.errors import InputError  # noqa: E402
from tests.support import scoring_parts as parts  # noqa: E402
from tests.support.builders import a_file  # noqa: E402

PLAIN = "u = MatMul(x, w) y = Softmax(u)"


def external(path: str = "/etc/passwd") -> Any:
    """A model whose weights are to be read from a file of the machine."""
    model = parts.net(PLAIN)
    [weights] = model.graph.initializer
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value=path)
    weights.external_data.add(key="length", value=str(4 * parts.WIDTH * 3))
    return model


def custom() -> Any:
    model = parts.net(PLAIN)
    model.graph.node[0].domain = "evil.corp"
    model.opset_import.append(helper.make_opsetid("evil.corp", 1))
    return model


def random() -> Any:
    return parts.net("r = RandomNormalLike(x) z = Add(x, r) u = MatMul(z, w) y = Softmax(u)")


def loop() -> Any:
    """A model that takes as long for a row as its first number says."""
    body = parser.parse_graph(
        "body (int64 i, bool a, float[N, 3] b) => (bool c, float[N, 3] d) "
        "{ c = Identity(a) d = Softmax(b) }"
    )
    text = (
        "one = Constant <value_ints = [0]> () first = Gather <axis = 1> (x, one) "
        "flat = Squeeze(first) times = Cast <to = 7> (flat) go = Constant <value_int = 1> () "
        "on = Cast <to = 9> (go) u = MatMul(x, w) y = Softmax(u)"
    )
    model = parts.net(text)
    model.graph.node[-1].CopyFrom(helper.make_node("Loop", ["times", "on", "u"], ["y"], body=body))
    return model


MALICIOUS = {"external": external, "custom": custom, "random": random, "loop": loop}


def opened(folder: Path, model: Any, **more: Any) -> Model:
    return Model(parts.save(folder / "model.onnx", model), **more)


def test_a_model_is_named_by_the_digest_of_the_bytes_that_are_run(tmp_path: Path) -> None:
    model = opened(tmp_path, parts.net(PLAIN))
    digest = hashlib.sha256((tmp_path / "model.onnx").read_bytes()).hexdigest()
    assert model.name == model_name(tmp_path / "model.onnx") == f"sha256:{digest}"


def test_a_file_replaced_between_its_digest_and_its_use_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes are read once; whatever lies there afterwards is not looked at."""
    path = parts.save(tmp_path / "model.onnx", parts.net(PLAIN))
    read = Path.read_bytes

    def read_and_replace(self: Path) -> bytes:
        content = read(self)
        self.write_bytes(random().SerializeToString())
        return content

    monkeypatch.setattr(Path, "read_bytes", read_and_replace)
    model = Model(path)
    row = {"x": np.ones((1, parts.WIDTH), np.float32)}
    assert model.run(row).tobytes() == model.run(row).tobytes()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("external", "its weights are in other files"),
        ("custom", "its operator MatMul of evil.corp is not known to score each row by itself"),
        ("random", "its operator RandomNormalLike is not known"),
        ("loop", "its operator Loop is not known"),
    ],
)
def test_a_model_that_is_not_a_function_of_its_file_is_refused(
    tmp_path: Path, name: str, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        opened(tmp_path, MALICIOUS[name]())


def test_the_attack_that_the_refusal_of_random_operators_is_for(tmp_path: Path) -> None:
    """The runtime itself runs them: the same row, twice, with other scores."""
    from privcal.data.scoring.alone import open_session as _session

    session = _session(random().SerializeToString())
    row = {"x": np.ones((1, parts.WIDTH), np.float32)}
    first, second = (session.run(["y"], row)[0] for _ in range(2))
    assert not np.array_equal(first, second)


def test_the_attack_that_the_refusal_of_loops_is_for() -> None:
    """The runtime runs them, as many times as a row says: after twenty it is at a fixed point."""
    from privcal.data.scoring.alone import open_session as _session

    session = _session(loop().SerializeToString())

    def after(times: int) -> Any:
        row = np.full((1, parts.WIDTH), times, np.float32)
        return session.run(["y"], {"x": row})[0]

    assert np.ptp(after(1)) > 0.1
    assert np.ptp(after(20)) < 1e-3


class Boom:
    def __reduce__(self) -> tuple[Any, Any]:
        return (pytest.fail, ("unpickled",))


@pytest.mark.parametrize("content", [b"", b"nonsense", pickle.dumps(Boom()), b"PK\x03\x04torch"])
def test_what_is_no_onnx_is_refused_and_never_unpickled(tmp_path: Path, content: bytes) -> None:
    path = a_file(tmp_path / "model.pkl", content)
    with pytest.raises(InputError, match=r"is not an ONNX model.*skl2onnx \(docs/scoring.md\)$"):
        Model(path)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read model .*No such file"):
        Model(tmp_path / "model.onnx")


def test_without_the_extra_one_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parts.save(tmp_path / "model.onnx", parts.net(PLAIN))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'privcal\[onnx\]'"):
        Model(path)
    assert model_name(path).startswith("sha256:")


def test_a_model_for_batches_of_one_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="takes 64 rows at once; export it for any number of rows"):
        opened(tmp_path, parts.net(PLAIN, given="float[64, 7] x"))


def test_log_odds_of_one_class_become_two_logits(tmp_path: Path) -> None:
    model = opened(
        tmp_path, parts.net("logit = MatMul(x, w) y = Identity(logit)", 1), kind="logits"
    )
    x = parts.numbers(1)
    [weights] = map(numpy_helper.to_array, onnx.load(tmp_path / "model.onnx").graph.initializer)
    found = model.as_scores(model.run({"x": x})[None])
    np.testing.assert_allclose(found, [[0, (x @ weights).item()]], rtol=1e-5)
    assert (model.columns, model.classes) == (2, ("0", "1"))


def test_a_probability_that_rounding_put_above_1_is_1_and_one_far_above_stays(
    tmp_path: Path,
) -> None:
    model = opened(tmp_path, parts.net(PLAIN))
    said = np.array([[1 + 2e-7, -1e-7, 0.5], [1.1, -0.1, 0]], np.float32)
    expected = np.array([[1, 0, 0.5], [1.1, -0.1, 0]], np.float32)
    assert np.array_equal(model.as_scores(said), expected)


@pytest.mark.parametrize("classes", [["a", "b"], ["a", "a", "b"], ["a", "", "b"]])
def test_names_that_are_not_those_of_all_classes_are_refused(
    tmp_path: Path, classes: list[str]
) -> None:
    with pytest.raises(InputError, match="has 3 classes: name each of them once"):
        opened(tmp_path, parts.net(PLAIN), classes=classes)
