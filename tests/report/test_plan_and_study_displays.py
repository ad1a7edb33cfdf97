"""Plans and studies as displays: the numbers behind them, and what is drawn of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure

import privcal
from privcal import InputError, PlanDisplay, StudyDisplay
from privcal.lab.study.grids import Setting
from privcal.lab.study.store import load
from tests.support.study_folder import make_study


@cache
def plan() -> privcal.Plan:
    return privcal.advise(
        samples=10, sources=10, shifts=["fog"], trials=2, campaigns=2, new_people=0.5
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def ece(shift: str, method: str, setting: Setting) -> float:
        return 0.01 * len(shift) + 0.002 * len(method) + 0.01 / setting.epsilon

    return make_study(tmp_path_factory.mktemp("study") / "mine", ece)


def lines(axes: object) -> dict[str, tuple[list[float], list[float]]]:
    """The lines of some axes by their labels."""
    return {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata()))
        for line in axes.lines  # type: ignore[attr-defined]
    }


def test_what_a_plan_draws_is_what_its_frame_says() -> None:
    display = PlanDisplay.from_plan(plan())
    assert display.plot(Figure().add_subplot(), measure="brier") is display
    repeated = plan().repeated
    assert repeated is not None
    method = str(repeated.person.method)
    [line] = [xy for label, xy in lines(display.ax_).items() if '"person"' in label]
    framed = display.frame().filter(pl.col("method") == method).tail(2)
    assert line == (framed["campaign"].to_list(), framed["brier"].to_list())
    assert line[1] == [point.of(method).brier.mean for point in repeated.person.points]
    assert (framed["brier_low"] <= framed["brier"]).all()


def test_a_plan_of_one_point_has_nothing_to_draw() -> None:
    one = privcal.advise(samples=10, sources=10, shifts=["fog"], trials=2)
    with pytest.raises(InputError, match="only one point"):
        PlanDisplay.from_plan(one)
    with pytest.raises(InputError, match="measure must be one of ece, brier"):
        PlanDisplay.from_plan(plan()).plot(Figure().add_subplot(), measure="aurc")


def test_what_a_study_draws_is_what_its_frame_and_its_results_say(folder: Path) -> None:
    results = load(folder)
    display = StudyDisplay.from_folder(folder, sweep="epsilon")
    axes = display.plot(Figure().add_subplot(), measure="aurc").ax_
    drawn = lines(axes)
    assert list(drawn) == [str(variant) for variant in results.variants]
    for variant in results.variants:
        own = display.frame().filter(pl.col("method") == str(variant))
        assert drawn[str(variant)] == (own["epsilon"].to_list(), own["aurc"].to_list())
        curve = results.curve(variant, "epsilon")
        assert np.array_equal(own["aurc_se"].to_numpy(), curve.se("aurc"), equal_nan=True)


def test_one_shift_of_a_study_is_not_the_mean_of_all(folder: Path) -> None:
    shift = load(folder).perturbations[0]
    one, mean = StudyDisplay.from_folder(folder, shift=shift), StudyDisplay.from_folder(folder)
    assert not one.frame().equals(mean.frame())
    assert shift.replace("_", " ") in one.plot(Figure().add_subplot()).ax_.get_title()
    for wrong in ({"shift": "lunar"}, {"sweep": "tides"}):
        with pytest.raises(InputError, match="the study has no"):
            StudyDisplay.from_folder(folder, **wrong)
    with pytest.raises(InputError, match="measure must be"):
        mean.plot(Figure().add_subplot(), measure="nll")
