"""The method that is taken where nobody names one, and why it is this one.

It is the one that `privcal.advise` recommends: at every setting of the table below, with public
rows and without, no method is clearly better. So it follows from public facts alone (how many
sources, about how many rows each has, ε), and needs no simulation at each run. The table holds
what is expected there, for the sentence that says why; `python -m tests.calibration.test_default` makes it
anew, which takes an hour.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from privcal.data.wording import plural

METHOD = "sketch"

ONLY = f"method: {METHOD}, the only one that corrects the risk of a class"
"""Why it is this method where an event is given: the table is about confidence."""

TABLE = Path(__file__).with_name("default.json")


def why(sources: int, rows: float | None, epsilon: float, public: bool = False) -> str:
    """Why it is this method: the ECE that is expected of it, and of others, in one sentence.

    Parameters
    ----------
    sources, rows, epsilon
        How many sources, about how many rows one of them has (None: nobody tells), and the ε of
        the run at each.
    public
        Whether there are public rows.
    """
    table = _table()
    guess = table["rows_unless_told"] if rows is None else rows
    setting = sources, guess, epsilon
    ours = expected("sketch with public rows" if public else "sketch", *setting)
    other = expected("acc-t", *setting)
    prior = table["prior with public rows" if public else "prior"]
    told = "" if rows is not None else " (a guess: no owner tells)"
    text = (
        f"method: {METHOD}, because for {plural(sources, 'source')} of about {guess:g} rows{told} at epsilon "
        f"{epsilon:g} its expected ECE is {ours:.3f}, that of acc-t {other:.3f}, and with nothing "
        f"done {table['uncalibrated']:.3f}, as simulated on shifts of {table['dataset']}; --method "
        "chooses another, privcal advise tells more"
    )
    if ours > 0.9 * prior:
        text += (
            f". Its prior map, which needs no data, is expected to have {prior:.3f} (privcal sketch "
            "prior): more sources, rows or epsilon are needed for anything clearly better"
        )
    return text


def expected(method: str, sources: float, rows: float, epsilon: float) -> float:
    """The expected ECE of a method of the table, interpolated between its settings.

    Linear in the logarithms of sources, rows and ε; beyond the ends of the table it is that of
    the end.
    """
    table = _table()
    axes = (table["sources"], table["rows"], table["epsilon"])
    places = [_between(axis, at) for axis, at in zip(axes, (sources, rows, epsilon), strict=True)]
    total = 0.0
    for corner in product(*places):
        (i, u), (j, v), (k, w) = corner
        total += u * v * w * float(table["ece"][method][i][j][k])
    return total


def _between(axis: Sequence[float], at: float) -> list[tuple[int, float]]:
    """The two neighbours of a value on an axis, with their weights."""
    at = min(max(at, axis[0]), axis[-1])
    above = next(index for index, value in enumerate(axis) if value >= at)
    if above == 0:
        return [(0, 1.0)]
    low, high = axis[above - 1], axis[above]
    weight = math.log(at / low) / math.log(high / low)
    return [(above - 1, 1 - weight), (above, weight)]


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(TABLE.read_text("utf-8"))
    return table
