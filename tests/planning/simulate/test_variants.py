"""A method and its options: one value from the run to the table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from privcal import InputError
from privcal.calibration import methods
from privcal.lab import study
from privcal.lab.study.grids import (
    FACTOR_VARIANTS,
    FACTORS,
    GRIDS,
    Setting,
    is_usual,
    make,
    variants,
)
from privcal.lab.study.store import load
from privcal.planning.simulate.splits import sequence, stream
from privcal.planning.simulate.variants import Variant, takes_public, with_public
from tests.support.builders import a_file, an_archive
from tests.support.study_folder import as_the_paper_says, make_study


def test_its_text_is_its_name() -> None:
    assert str(Variant("acc-t")) == "acc-t"
    assert str(Variant("ece-t", (("bins", 30),))) == "ece-t(bins=30)"
    assert (
        str(Variant("nll-t", (("clip", 5.0), ("iterations", 3)))) == "nll-t(clip=5, iterations=3)"
    )
    assert str(with_public("sketch", 2000)) == "sketch(public=2000)"


@pytest.mark.parametrize(
    "variant",
    [
        Variant("acc-t"),
        Variant("acc-t", (("bounds", (0.5, 6.0)),)),
        Variant("nll-t", (("bounds", (0.25, 8.0)), ("clip", 5.0), ("spacing", "log"))),
        Variant("ece-t", (("search", "grid"), ("bins", 30))),
        Variant("sketch", (("hats", 7),)),
        Variant("sketch", (("unchanged", 0.25), ("leave_alone", True))),
    ],
)
def test_a_variant_is_read_back_from_its_text(variant: Variant) -> None:
    assert Variant.read(str(variant)) == variant
    assert Variant.read(str(variant).replace(", ", ",")) == variant


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("acc-t(bins=3)", "method acc-t has no option 'bins'"),
        ("acc-t(bounds=0.5;6)", "option bounds of method acc-t must be"),
        ("acct(bounds=0.5,6)", "there is no method 'acct'"),
        ("acc-t()", "an option is written name=value"),
        ("acc-t(bounds=6,0.5)", "the lower first"),
        ("one-source(bounds=1,2)", "method one-source has no option"),
    ],
)
def test_a_variant_that_cannot_be_is_refused_before_the_study_begins(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        variants("cifar", [text])


def test_named_variants_are_run_after_the_plain_methods_each_once() -> None:
    wide = "acc-t(bounds=0.5,6)"
    assert [str(v) for v in variants("cifar", [wide, "nll-t", "acc-t", wide])] == [
        "nll-t",
        "acc-t",
        wide,
    ]
    assert [str(v) for v in variants(FACTORS, [wide])] == [wide]


@pytest.mark.parametrize("name", ["acc-t", "nll-t", "ece-t"])
def test_a_study_searches_as_the_paper_does_unless_a_variant_says_otherwise(name: str) -> None:
    papers = make(Variant(name))
    assert (papers.iterations, papers.bounds, papers.search) == (5, (0.5, 3.0), "golden")
    assert papers.spacing == "linear"
    wide = make(Variant(name, (("bounds", (0.5, 6.0)),)))
    assert (wide.iterations, wide.bounds, wide.spacing) == (5, (0.5, 6.0), "linear")
    assert make(Variant("histogram-binning")) == methods.make("histogram-binning")


def test_the_usual_options_are_the_papers() -> None:
    assert is_usual(Variant("acc-t", (("iterations", 5),)))
    assert is_usual(Variant("acc-t", (("bounds", (0.5, 3.0)),)))
    assert is_usual(Variant("nll-t", (("clip", 10.0),)))
    assert not is_usual(Variant("acc-t", (("bounds", (0.5, 6.0)),)))
    assert not is_usual(Variant("ece-t", (("bins", 30),)))
    assert not is_usual(Variant("gone", (("bins", 30),)))
    assert is_usual(Variant("anything"))


def test_the_factors_vary_the_range_of_each_search() -> None:
    for name in ("acc-t", "nll-t", "ece-t"):
        mine = [v for v in FACTOR_VARIANTS if v.method == name and v.names == ["bounds"]]
        assert [v.text("bounds") for v in mine] == ["0.5,3", "0.5,4", "0.5,6", "0.25,8"]
        assert is_usual(mine[0])


def test_methods_with_a_use_for_public_rows_say_so() -> None:
    assert [name for name in methods.names() if takes_public(name)] == ["sketch"]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return an_archive(tmp_path / "tiny.npz", clean=0.5, fog=1)


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
    grid = a_file(tmp_path / "own.toml", "[sources]\nvalues = [2]\nsamples = 5\nepsilon = 1.0\n")
    some = ["acc-t", "sketch", "sketch(unchanged=0.25, leave_alone=true)"]
    study.run([archive], grid=str(grid), methods=some, public_rows=60, out=tmp_path / "p", **common)
    assert load(tmp_path / "p").variants == [
        *map(Variant, ("acc-t", "sketch")),
        with_public("sketch", 60),
        Variant("sketch", (("unchanged", 0.25), ("leave_alone", True))),
    ]
    assert json.loads((tmp_path / "p" / "study.json").read_text())["methods"] == [
        "acc-t",
        "sketch",
        "sketch(public=60)",
        "sketch(unchanged=0.25, leave_alone=true)",
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


def test_public_rows_of_a_variant_are_written_as_their_number() -> None:
    text = "sketch(class_offsets=true, public=2000)"
    variant = Variant.read(text)
    assert variant.public_rows == 2000
    assert str(variant) == text
    for wrong in ("sketch(public=many)", "sketch(public=0)", "acc-t(public=50)"):
        with pytest.raises(InputError):
            Variant.read(wrong)
