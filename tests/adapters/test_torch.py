"""A map as a module of PyTorch: the map's own numbers, buffers, gradients, scripts and exports."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from privcal.adapters.torch import MapModule  # noqa: E402
from privcal.calibration.maps import CurveMap, TemperatureMap  # noqa: E402
from privcal.trusted.errors import InputError  # noqa: E402
from tests.support.every_map import every_map, hard_logits, hard_probabilities  # noqa: E402

NAMES = sorted(every_map(2))
EACH_KIND = ["bins", "curve", "offsets", "risk", "warm"]


def agree(map: Any, module: Any, rows: Any, **scores: Any) -> None:
    p = module(rows)
    assert p.dtype is torch.float64
    p = p.detach().numpy()
    np.testing.assert_allclose(p, map.predict_proba(**scores), rtol=0, atol=1e-9)
    confidence = module.confidence(rows).detach().numpy()
    np.testing.assert_allclose(confidence, map.confidence(**scores), rtol=0, atol=1e-9)
    np.testing.assert_array_equal(p.argmax(axis=1), map.predict(**scores))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_logits_of_every_precision_give_what_the_map_gives(name: str, dtype: str) -> None:
    map = every_map(6)[name]
    numpy_type = np.float16 if dtype == "float16" else np.float32
    rows = torch.from_numpy(hard_logits(6, numpy_type)).to(getattr(torch, dtype))
    for some in (rows, rows[:1], rows[:0]):
        agree(map, MapModule(map), some, logits=some.double().numpy())


@pytest.mark.parametrize("name", NAMES)
def test_probabilities_and_one_column_of_them_give_what_the_map_gives(name: str) -> None:
    map = every_map(2)[name]
    p = torch.from_numpy(hard_probabilities(2))
    agree(map, MapModule(map, kind="probabilities"), p, probabilities=p.numpy())
    column = torch.cat([p[:, 1], torch.tensor([0.0, 1.0, 0.5])])
    for rows in (column, column[:, None]):
        agree(map, MapModule(map, kind="probabilities"), rows, probabilities=column.numpy())


@pytest.mark.parametrize("name", [n for n in NAMES if "risk" not in n and n != "offsets"])
def test_one_class_is_certain(name: str) -> None:
    map, rows = every_map(2)[name], torch.tensor([[1.0], [2.0]])
    agree(map, MapModule(map), rows, logits=rows.numpy())


@pytest.mark.parametrize("name", EACH_KIND)
def test_gradients_are_those_of_small_differences(name: str) -> None:
    rng = np.random.default_rng(5)
    rows = torch.tensor(rng.normal(0, 2, (6, 4)), requires_grad=True)
    module = MapModule(every_map(4)[name])
    assert torch.autograd.gradcheck(module, (rows,), eps=1e-7, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_hard_rows_are_numbers(name: str) -> None:
    rows = torch.from_numpy(hard_logits(5)).requires_grad_()
    MapModule(every_map(5)[name])(rows)[:, 0].sum().backward()
    assert torch.isfinite(rows.grad).all()


def test_what_a_map_is_made_of_is_saved_and_loaded_and_stays_double() -> None:
    module = MapModule(every_map(3)["offsets"])
    assert set(module.state_dict()) == {f"map.{name}" for name in (
        "temperature", "scores", "log_odds", "offsets", "corrected", "corrected_log_odds")}  # fmt: skip
    rows = torch.from_numpy(hard_logits(3))
    before = module(rows)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    offsets = every_map(3)["offsets"]
    other = MapModule(type(offsets)(1.0, *[(-1.0, -0.5, 0.0, 1.0, 2.0, 3.0)] * 2, (0.0,) * 3,
                                    *[(-1.0, -0.5, 0.0, 1.0, 2.0, 3.0)] * 2))  # fmt: skip
    assert not torch.equal(other(rows), before)
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(rows), before)
    half = torch.nn.Sequential(torch.nn.Linear(3, 3), module).half()
    assert half[0].weight.dtype is torch.float16
    assert torch.equal(module(rows), before)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", EACH_KIND)
def test_a_module_can_be_scripted(name: str) -> None:
    map, rows = every_map(3)[name], torch.from_numpy(hard_logits(3))
    try:
        scripted = torch.jit.script(MapModule(map))
    except (AttributeError, NotImplementedError) as error:
        pytest.skip(f"torch.jit.script is gone from torch {torch.__version__}: {error}")
    file = io.BytesIO()
    torch.jit.save(scripted, file)
    file.seek(0)
    agree(map, torch.jit.load(file), rows, logits=rows.numpy())


@pytest.mark.parametrize("name", EACH_KIND)
def test_a_module_can_be_exported(name: str) -> None:
    map, rows = every_map(3)[name], torch.from_numpy(hard_logits(3))
    count = torch.export.Dim("rows", min=1)
    program = torch.export.export(MapModule(map), (rows[:5],), dynamic_shapes=({0: count},))
    p = program.module()(rows).numpy()
    np.testing.assert_allclose(p, map.predict_proba(rows.numpy()), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["curve", "risk"])
def test_a_model_with_a_module_goes_to_onnx_by_torch(name: str) -> None:
    if find_spec("onnxscript") is None:
        pytest.skip("torch exports to ONNX with onnxscript, which is not installed")
    from tests.support.onnx_run import run_model

    map, rows = every_map(3)[name], torch.from_numpy(hard_logits(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(MapModule(map), (rows,), dynamo=True, verbose=False)
    [p] = run_model(
        program.model_proto, None, {program.model_proto.graph.input[0].name: rows.numpy()}
    )
    np.testing.assert_allclose(p, map.predict_proba(rows.numpy()), rtol=0, atol=1e-6)


def test_what_has_no_form_as_a_module_says_so() -> None:
    @dataclass(frozen=True)
    class Own(CurveMap):
        pass

    with pytest.raises(InputError, match="has no form as a module; the kinds that have one"):
        MapModule(Own(1.0, (0.0, 1.0), (0.0, 1.0)))
    with pytest.raises(InputError, match="kind must be logits or probabilities"):
        MapModule(TemperatureMap(2.0), kind="logit")
