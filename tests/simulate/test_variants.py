"""A method and its options: one value from the run to the table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from privcal import methods, study
from privcal.simulate.streams import sequence, stream
from privcal.simulate.variants import Variant, takes_public, with_public
from privcal.study.grids import FACTOR_VARIANTS, FACTORS, GRIDS, Setting, variants
from privcal.study.store import load
from tests.conftest import random_scores
from tests.support.study_folder import as_the_paper_says, make_study


def test_its_text_is_its_name() -> None:
    assert str(Variant("acc-t")) == "acc-t"
    assert str(Variant("ece-t", (("bins", 30),))) == "ece-t(bins=30)"
    assert (
        str(Variant("nll-t", (("clip", 5.0), ("iterations", 3)))) == "nll-t(clip=5, iterations=3)"
    )
    assert str(with_public("sketch", 2000)) == "sketch(public=2000)"


def test_the_usual_options_are_known_from_the_method_itself() -> None:
    assert Variant("acc-t", (("iterations", 5),)).is_default
    assert Variant("nll-t", (("clip", 10.0),)).is_default
    assert not Variant("ece-t", (("bins", 30),)).is_default
    assert not Variant("gone", (("bins", 30),)).is_default
    assert Variant("anything").is_default


def test_methods_with_a_use_for_public_rows_say_so() -> None:
    assert [name for name in methods.names() if takes_public(name)] == ["sketch"]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    scores = random_scores(300, seed=3)
    logits = scores.outputs.array
    np.savez(tmp_path / "tiny.npz", labels=scores.labels, clean=logits / 2, fog=logits)
    return tmp_path / "tiny.npz"


def test_a_stored_study_gives_back_the_variants_that_were_run(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the types of their options, though the file holds their names only."""
    monkeypatch.setitem(GRIDS, FACTORS, [Setting("epsilon", 2, 5, 1.0)])
    common = {"trials": 2, "jobs": 1, "shifts": ["fog"]}
    study.run([archive], grid=FACTORS, out=tmp_path / "f", **common)
    found = load(tmp_path / "f")
    assert found.given == variants(FACTORS, None)
    assert {type(v.value("clip")) for v in found.variants if "clip" in v.names} == {float}
    assert {type(v.value("bins")) for v in found.variants if "bins" in v.names} == {int}
    grid = tmp_path / "own.toml"
    grid.write_text("[sources]\nvalues = [2]\nsamples = 5\nepsilon = 1.0\n")
    some = ["acc-t", "sketch"]
    study.run([archive], grid=str(grid), methods=some, public_rows=60, out=tmp_path / "p", **common)
    assert load(tmp_path / "p").variants == [
        *map(Variant, ("acc-t", "sketch")),
        with_public("sketch", 60),
    ]
    assert json.loads((tmp_path / "p" / "study.json").read_text())["methods"] == [
        "acc-t",
        "sketch",
        "sketch(public=60)",
    ]


@pytest.mark.parametrize("name", ["strange(bins=30", "a(b)(c=1)", "f(x=1, y)", "(=)"])
def test_a_name_that_looks_like_options_is_a_name(name: str, tmp_path: Path) -> None:
    """Nothing is read out of the text: what a study cannot have run is a method of that name."""
    folder = make_study(tmp_path / "s", as_the_paper_says, [name, FACTOR_VARIANTS[0]])
    assert load(folder).given == [Variant(name), FACTOR_VARIANTS[0]]


def test_a_stream_depends_on_its_seed_and_names_alone() -> None:
    variant = Variant("acc-t", (("iterations", 3),))
    first = stream(1, "fog", variant, 0.5).random(4).tolist()
    assert stream(1, "fog", "acc-t(iterations=3)", 0.5).random(4).tolist() == first
    assert np.random.default_rng(sequence(1, "fog", variant, 0.5)).random(4).tolist() == first
    for other in (
        (2, "fog", variant, 0.5),
        (1, "fog", Variant("acc-t"), 0.5),
        (1, variant, "fog", 0.5),
    ):
        assert stream(*other).random(4).tolist() != first
