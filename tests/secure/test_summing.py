"""Which totals are believed: the bound on the noise, and on what rows can claim."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="secure sums need cryptography: privcal[secure]")

import privcal
from privcal.secure.panel import Secure, SecurePanel
from privcal.secure.shares import add_noise_share
from privcal.secure.sharing import PRIME
from privcal.secure.summing import FINAL, Unfinished, beyond, noise_limit
from privcal.secure.terms import Terms
from privcal.trusted.queries import GRID, CellHistogram, Gap, Histogram, Query
from privcal.trusted.question import Question
from tests.support.odd_way import OddWay, make_sources, only, panel, total_of


def terms(
    sites: int = 10, colluding: int = 2, alone: int = 10, query: Query | None = None, **more: Any
) -> Terms:
    names = tuple(f"s{i:03d}" for i in range(sites))
    question = Question.of(query or Gap(), 0.5, "spring")
    return Terms(question, "acme", names, colluding, sites - 1, alone, 1, "roster", **more)


def exact_tail(terms: Terms, sources: int, x: float) -> float:
    """P[|noise| > x] of the total, in units of the scale: by numbers on a coarse grid of it.

    The generating function of a discrete Laplace variable, to its powers, by a Fourier transform.
    """
    step, size = 1 / 16, 1 << 14
    at = np.cos(2 * np.pi * np.arange(size) / size)

    def laplace(gamma: float) -> Any:
        return (math.cosh(gamma) - 1) / (math.cosh(gamma) - at)

    both = laplace(step) ** (sources / terms.honest) * laplace(step * terms.alone) ** sources
    law = np.fft.irfft(both[: size // 2 + 1], size)
    values = np.fft.fftfreq(size, 1 / size) * step
    return float(law[np.abs(values) > x].sum())


@pytest.mark.parametrize(("sites", "colluding", "alone"), [(5, 1, 10), (10, 2, 3), (100, 20, 10)])
@pytest.mark.parametrize("chance", [1e-2, 1e-4, 1e-6])
def test_the_bound_on_the_noise_holds_and_half_of_it_would_not(
    sites: int, colluding: int, alone: int, chance: float
) -> None:
    asked = terms(sites, colluding, alone)
    scale = asked.sensitivity / 0.5
    limit = noise_limit(asked, sites, chance) / scale
    tail = exact_tail(asked, sites, limit)
    assert tail < chance
    assert exact_tail(asked, sites, 0.5 * limit) > chance


def test_the_noise_that_sites_add_stays_within_it() -> None:
    asked = terms(8, 2, query=CellHistogram(bins=10))
    cells = asked.question.query.length
    chance = 0.02
    limit = noise_limit(asked, 8, chance)
    zeros = np.zeros(cells, np.int64)
    nano = asked.question.nano_epsilon
    found = [
        add_noise_share(zeros, asked.sensitivity, nano, asked.honest, asked.alone)
        for _ in range(8 * 40)
    ]
    sums = np.array(found, dtype=object).reshape(40, 8, cells).sum(axis=1)
    over = np.mean(np.abs(sums.astype(float)) > limit)
    assert over < chance  # of 800 numbers; the bound leaves less than half of it
    assert np.abs(sums.astype(float)).max() > limit / 6  # and the noise is there


def test_it_grows_with_what_the_noise_grows_with() -> None:
    base = noise_limit(terms(20, 4), 20, 1e-9)
    assert noise_limit(terms(20, 4), 20, 1e-12) > base
    assert noise_limit(terms(20, 8), 20, 1e-9) > base  # fewer honest, larger shares
    assert noise_limit(terms(20, 4, alone=2), 20, 1e-9) > base
    # A row moves two of a histogram's numbers.
    assert noise_limit(terms(20, 4, query=Histogram()), 20, 1e-9) == pytest.approx(2 * base)


def test_a_total_is_beyond_what_all_rows_and_the_noise_can_give() -> None:
    asked = terms(10, query=CellHistogram(bins=3))
    bound = asked.question.query.bound
    noise = noise_limit(asked, 10, 1e-9 / 6)
    assert not beyond([0] * 6, asked, [30] * 10)
    assert not beyond([300 * bound, 0, 0, 0, 0, 0], asked, [30] * 10)
    assert not beyond([int(300 * bound + noise), 0, 0, 0, 0, 0], asked, [30] * 10)
    assert beyond([int(301 * bound + noise), 0, 0, 0, 0, 0], asked, [30] * 10)
    assert beyond([-int(301 * bound + noise), 0, 0, 0, 0, 0], asked, [30] * 10)
    both = int(151 * bound + noise)
    assert beyond([both, both, 0, 0, 0, 0], asked, [30] * 10)  # rows are counted once


def test_honest_totals_are_believed() -> None:
    way = OddWay(make_sources(5))
    way.max_rows = 20  # what they have
    total = total_of(panel(way))
    assert total.average.sum() < 20 + 6 * 20


class Claims(OddWay):
    """One source claims a million rows in a cell: it deals that instead of its answer."""

    def __init__(self, *given: Any, liar: str = "s03", **more: Any) -> None:
        super().__init__(*given, **more)
        self.max_rows = 1000
        self.changes["share"] = only(liar, then=self.claim)

    def claim(self, terms: Terms, name: str, dealt: Any) -> Any:
        from privcal.secure.participant import Dealt
        from privcal.secure.sharing import split

        values = [self.claimed, *([0] * (terms.question.query.length - 1))]
        rows = split(values, terms.threshold, len(terms.sites))
        boxes = {
            site: self.box(terms, name, site, row)
            for site, row in zip(terms.sites, rows, strict=True)
        }
        return Dealt(boxes, dealt.ledger, self.declared)

    claimed = 10**6 * GRID
    declared: int | None = None


def test_a_total_that_nobody_can_have_ends_the_run_and_says_so() -> None:
    with pytest.raises(Unfinished, match="beyond what their rows and the noise can give") as e:
        total_of(panel(Claims(make_sources(5))))
    assert FINAL in str(e.value)
    assert not e.value.again


def test_a_bound_that_the_owner_declares_counts_only_if_it_is_lower() -> None:
    way = Claims(make_sources(5))
    way.declared = 10**9
    with pytest.raises(Unfinished, match="beyond"):
        total_of(panel(way))
    way = Claims(make_sources(5))
    way.max_rows = 10**6
    assert total_of(panel(way)).average[0] > 10**5
    way = Claims(make_sources(5))
    way.max_rows, way.declared = 10**6, 5
    for source in way.panel.own.values():
        source.max_rows = 50
    with pytest.raises(Unfinished, match="beyond"):
        total_of(panel(way))


@pytest.mark.slow
def test_in_groups_a_liar_spoils_one_and_the_median_is_another() -> None:
    way = Claims(make_sources(60))
    asked: SecurePanel = panel(way, colluding=3, groups=3)
    total = total_of(asked)
    averages = sorted(part.values[0] / len(part.sources) for part in total.parts)
    assert averages[2] > 10**4
    assert total.average[0] < 100


@pytest.mark.slow
@pytest.mark.parametrize("claimed", [PRIME // 2, -(PRIME // 2)])
def test_in_groups_no_lie_is_too_large_for_a_sketch(claimed: int, tmp_path: Path) -> None:
    way = Claims(make_sources(60))
    way.claimed = claimed
    asked = SecurePanel(way, Secure(colluding=3, groups=3))
    sketch = privcal.calibrate(asked, "sketch", 0.5).sketch
    assert sketch is not None
    [total] = sketch.totals
    assert max(abs(part.values[0]) for part in total.parts) > 10**31
    assert np.abs(total.average).max() < 100
    sketch.save(tmp_path / "sketch.json")
    assert type(sketch).load(tmp_path / "sketch.json") == sketch
