"""The method that is taken where nobody names one is the one that `privcal.advise` recommends.

`python -m tests.calibration.test_default` simulates the table behind the reason anew; it takes an hour.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import privcal
from privcal.calibration import default
from privcal.calibration.sketch.prior import ROWS_PER_SOURCE
from privcal.planning.advise.expect import PlanTask, Scenario, expect
from privcal.planning.advise.plan import PRIOR, Point, best
from privcal.planning.simulate.archive import CLEAN, read_archive
from tests.support.builders import a_source

SOURCES = (1, 3, 10, 30, 100, 300, 1000)
ROWS = (3, 10, 30, 100, 300, 1000)
EPSILON = (0.1, 0.3, 1, 3, 10)
PUBLIC_ROWS = 500
MOST_ROWS = 100_000
"""With more rows in all than these nothing gets better that the table could show."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting", [(30, 30, 1.0), (10, 100, 0.3), (50, 20, 0.5), (3, 40, 3.0), (200, 10, 2.0)]
)
def test_it_is_what_advise_recommends_and_as_good_as_advise_expects(
    setting: tuple[int, int, float],
) -> None:
    sources, rows, epsilon = setting
    plan = privcal.advise(sources=sources, samples=rows, epsilon=epsilon, trials=6)
    assert str(plan.method) == default.METHOD
    for method in ("sketch", "acc-t"):
        live = plan.point.of(method).ece
        known = default.expected(method, sources, rows, epsilon)
        assert abs(known - live.mean) < 4 * live.se + 0.1 * live.mean, method


@pytest.mark.slow
def test_with_public_rows_too() -> None:
    archive = read_archive(())
    [point], _ = expect(
        PlanTask(archive, 30, [Scenario(30, 30, 1.0)], PUBLIC_ROWS, 6, 0, shifts=archive.shifts[1:])
    )
    found = best(point)
    assert found.method == default.METHOD
    live = _of(point, "sketch with public rows")
    assert default.expected("sketch with public rows", 30, 30, 1.0) == pytest.approx(live, rel=0.25)


def test_calibrate_takes_it() -> None:
    scores = privcal.Scores(logits=np.eye(3), labels=[0, 1, 1])
    source = a_source(scores, name="north")
    assert privcal.calibrate([source]).method == default.METHOD


def test_why_is_said_with_the_setting_and_what_else_there_is() -> None:
    said = default.why(30, None, 1.0)
    for part in ("sketch, because", "30 sources of about 30 rows (a guess", "acc-t 0.", "--method"):
        assert part in said
    assert "a guess" not in default.why(30, 40, 1.0)
    assert "needs no data" not in said
    assert "privcal sketch prior" in default.why(2, 5, 0.1)


def test_the_guess_of_rows_is_that_of_the_sketch() -> None:
    assert table()["rows_unless_told"] == ROWS_PER_SOURCE


def test_between_the_settings_of_the_table_it_is_interpolated_and_beyond_it_is_the_end() -> None:
    ece = table()["ece"]["sketch"]
    assert default.expected("sketch", 30, 30, 1) == pytest.approx(ece[3][2][2])
    middle = default.expected("sketch", 30, 30, 3**0.5)
    assert middle == pytest.approx((ece[3][2][2] + ece[3][2][3]) / 2)
    assert default.expected("sketch", 10**6, 10**6, 1000) == ece[-1][-1][-1]
    assert default.expected("acc-t", 0.5, 1, 1e-6) == table()["ece"]["acc-t"][0][0][0]


def table() -> Any:
    return json.loads(default.TABLE.read_text("utf-8"))


# --- the table ---------------------------------------------------------------------------


def _of(point: Point, name: str) -> float:
    """The expected ECE by the name in the table."""
    method, _, public = name.partition(" ")
    [found] = [
        e
        for e in point.expected
        if e.method.method == method
        and bool(e.method.public_rows) == bool(public)
        and "leave_alone" not in e.method.names
    ]
    return round(found.ece.mean, 4)


def simulated() -> dict[str, Any]:
    """The table, as `privcal.advise` would expect it."""
    archive = read_archive(())
    shifts = [shift for shift in archive.shifts if shift != CLEAN]
    points: dict[tuple[int, int, int], tuple[Point, Point]] = {}
    for i, sources in enumerate(SOURCES):
        for j, rows in enumerate(ROWS):
            if sources * rows > MOST_ROWS:  # as the largest that is simulated
                points |= {(i, j, k): points[i, j - 1, k] for k in range(len(EPSILON))}
                continue
            scenarios = [Scenario(sources, rows, epsilon) for epsilon in EPSILON]
            tasks = [
                PlanTask(archive, rows, scenarios, n, 20, 0, shifts=shifts)
                for n in (0, PUBLIC_ROWS)
            ]
            both = zip(*(expect(task)[0] for task in tasks), strict=True)
            points |= {(i, j, k): pair for k, pair in enumerate(both)}
    without, with_public = points[0, 0, 0]

    def grid(name: str, which: int) -> list[list[list[float]]]:
        return [
            [[_of(points[i, j, k][which], name) for k in range(5)] for j in range(len(ROWS))]
            for i in range(len(SOURCES))
        ]

    return {
        "dataset": archive.dataset,
        "rows_unless_told": ROWS_PER_SOURCE,
        "sources": SOURCES,
        "rows": ROWS,
        "epsilon": EPSILON,
        "uncalibrated": _of(without, "uncalibrated"),
        PRIOR: _of(without, PRIOR),
        f"{PRIOR} with public rows": _of(with_public, f"{PRIOR} with public rows"),
        "ece": {
            "sketch": grid("sketch", 0),
            "acc-t": grid("acc-t", 0),
            "sketch with public rows": grid("sketch with public rows", 1),
        },
    }


if __name__ == "__main__":
    default.TABLE.write_text(json.dumps(simulated()) + "\n", "utf-8")
