"""The paper's claims: each verdict on data where it must be given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from privcal.study.grids import Setting
from privcal.study.paper import claims, ranking
from privcal.study.paper.claims import FAILS, HOLDS, UNKNOWN, claims_of, more_helps_table
from privcal.study.paper.factors import factor_claims
from privcal.study.paper.reported import METHODS
from privcal.study.results import Results
from privcal.study.store import load
from tests.support.study_folder import (
    EXACT,
    FACTOR_SETTINGS,
    VARIANTS,
    Ece,
    as_the_paper_says,
    factors_as_the_paper_says,
    make_study,
)
from tests.support.study_folder import few_will_do as few_will_do  # a fixture

pytestmark = pytest.mark.usefixtures("few_will_do")


def study(tmp_path: Path, ece: Ece, **more: object) -> Results:
    return load(make_study(tmp_path / "study", ece, **{"exact": EXACT} | more))  # type: ignore[arg-type]


def factors(tmp_path: Path, ece: Ece, **more: object) -> Results:
    folder = make_study(
        tmp_path / "factors",
        ece,
        VARIANTS,
        settings=FACTOR_SETTINGS,
        grid="factors",
        **more,  # type: ignore[arg-type]
    )
    return load(folder)


def with_small_epsilon_noisy(shift: str, method: str, setting: Setting) -> float:
    value = as_the_paper_says(shift, method, setting)
    noisy = setting.epsilon == 0.2 and method not in ("one-source", "uncalibrated")
    return value + 0.1 if noisy else value


def upside_down(shift: str, method: str, setting: Setting) -> float:
    return 0.5 - with_small_epsilon_noisy(shift, method, setting)


def test_every_claim_holds_on_data_made_to_its_measure(tmp_path: Path) -> None:
    found = claims_of(study(tmp_path, with_small_epsilon_noisy))
    assert {c.name: c.verdict for c in found} == {c.name: HOLDS for c in found}
    assert len(found) == 7


def test_every_claim_fails_on_data_turned_upside_down(tmp_path: Path) -> None:
    exact = {"base": 0.2, "nll-t": 0.03, "acc-t": 0.06, "ece-t": 0.03}
    found = {c.name: c.verdict for c in claims_of(study(tmp_path, upside_down, exact=exact))}
    assert set(found.values()) == {FAILS}


def test_nothing_can_be_told_without_methods_exact_fits_or_standard_errors(tmp_path: Path) -> None:
    alone = study(tmp_path / "a", as_the_paper_says, methods=["uncalibrated"], exact=None)
    assert {c.verdict for c in claims_of(alone)} == {UNKNOWN}
    clean = study(tmp_path / "b", as_the_paper_says, shifts=["clean"])
    assert {c.verdict for c in claims_of(clean)} == {UNKNOWN}
    once = study(tmp_path / "c", with_small_epsilon_noisy, se=float("nan"))
    assert claims.more_helps(once, "sources").verdict == UNKNOWN
    vague = study(tmp_path / "d", with_small_epsilon_noisy, se=10.0)
    assert claims.one_source_at_small_epsilon(vague).verdict == UNKNOWN


def test_the_margin_over_the_next_is_given_for_us_and_for_the_paper(tmp_path: Path) -> None:
    def flat(shift: str, method: str, setting: Setting) -> float:
        return {"acc-t": 0.06, "nll-t": 0.08}.get(method, 0.2)

    found = claims.best_in_the_median(study(tmp_path, flat))
    assert found.verdict == HOLDS
    assert "0.0600, 25% below nll-t (0.0800)" in found.reading
    assert "18 of 18 cells" in found.reading
    assert "In the paper (CIFAR-10): 0.0836, 28% below nll-t (0.1157)" in found.reading


def test_a_method_the_paper_does_not_have_cannot_undo_its_claim_but_is_named(
    tmp_path: Path,
) -> None:
    def better(shift: str, method: str, setting: Setting) -> float:
        return 0.001 if method == "brand-new" else with_small_epsilon_noisy(shift, method, setting)

    found = claims.best_in_the_median(study(tmp_path, better, methods=[*METHODS, "brand-new"]))
    assert found.verdict == HOLDS
    assert "Of all methods here brand-new is best (0.0010)" in found.reading


def test_one_method_that_more_does_not_help_is_enough(tmp_path: Path) -> None:
    def stubborn(shift: str, method: str, setting: Setting) -> float:
        if method == "nll-t":
            return 0.1 + setting.sources / 1000
        return as_the_paper_says(shift, method, setting)

    results = study(tmp_path, stubborn)
    assert claims.more_helps(results, "sources").verdict == FAILS
    rows = {row[0]: row for row in more_helps_table(results).rows}
    assert rows["nll-t"][1] == "0 / 3"
    assert rows["acc-t"][1] == "3 / 0"
    assert rows["uncalibrated"][1] == "0 / 0"


# --- factors -----------------------------------------------------------------------------


def test_every_direction_of_the_table_of_factors_holds(tmp_path: Path) -> None:
    found = factor_claims(factors(tmp_path, factors_as_the_paper_says))
    assert {c.name: c.verdict for c in found} == {c.name: HOLDS for c in found}
    assert len(found) == 8


def test_every_direction_fails_on_data_turned_upside_down(tmp_path: Path) -> None:
    found = factor_claims(factors(tmp_path, lambda *at: 1 - factors_as_the_paper_says(*at)))
    assert {c.name: c.verdict for c in found} == {c.name: FAILS for c in found}


@pytest.mark.parametrize("given", [False, True])
def test_without_a_study_of_factors_its_directions_cannot_be_told(
    tmp_path: Path, given: bool
) -> None:
    other = study(tmp_path, as_the_paper_says, shifts=["clean"]) if given else None
    assert {c.verdict for c in factor_claims(other)} == {UNKNOWN}


# --- the order of methods ----------------------------------------------------------------


def ranked(values: dict[str, float]) -> Callable[[str, str, Setting], float]:
    return lambda shift, method, setting: values[method]


PAPERS = dict(zip(("acc-t", "nll-t", "ece-t"), (0.1, 0.2, 0.3), strict=True)) | {
    "histogram-binning": 0.4,
    "one-source": 0.5,
    "uncalibrated": 0.6,
}


def test_the_papers_own_order_is_recognised(tmp_path: Path) -> None:
    found = ranking.beside_the_paper(study(tmp_path, ranked(PAPERS)))
    assert found is not None
    assert found[1] == ["The order is the paper's, in all 15 pairs of methods."]


def test_the_method_that_moved_is_named_with_what_the_paper_leaves_open(tmp_path: Path) -> None:
    found = ranking.beside_the_paper(study(tmp_path, ranked(PAPERS | {"one-source": 0.15})))
    assert found is not None
    _, notes = found
    assert notes[0] == (
        "12 of 15 pairs of methods are in the paper's order; all the others involve one-source."
    )
    assert notes[-1].startswith("one-source has place 2 here and 5 there: ours is the exact fit")
    assert not any(note.startswith("nll-t") for note in notes)


def test_there_is_no_order_beside_a_paper_that_has_no_such_data(tmp_path: Path) -> None:
    results = study(tmp_path, ranked(PAPERS), dataset="Tiny-ImageNet-C")
    assert ranking.beside_the_paper(results) is None


def test_where_brier_tells_another_story_it_is_told(tmp_path: Path) -> None:
    # In these made-up studies a lower ECE means a higher Brier.
    notes = ranking.ece_against_others(study(tmp_path, ranked(PAPERS)))
    assert notes[0] == "In the median the ECE puts acc-t first, the Brier score uncalibrated."
    assert notes[1].startswith("acc-t looks better by ECE (place 1 of 6) than by Brier (place 6)")
    assert "The AURC, which is about order alone, is least for acc-t (median 0.0" in notes[-1]
    assert "and greatest for uncalibrated" in notes[-1]
