"""Playing the game of `privcal.audit.bound`: a coin, an answer with real noise, what it tells.

Every game's noise is drawn by the mechanism that serves sources. It adds independent noise to
each number it is given, so the answers of many games are one long vector of one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from privcal.audit.pairs import Case, Pair
from privcal.methods.base import Ask, Batch, History, drive
from privcal.privacy.epsilon import NANO
from privcal.queries import GRID
from privcal.scores import BoolArray, FloatArray, IntArray

AnyArray = npt.NDArray[Any]


class _Spent(Exception):
    """All of ε is used: a run asks for no more, and its map is of no interest here."""


def play(
    case: Case, nano_epsilon: int, games: int, stopped: Callable[[], bool] = lambda: False
) -> tuple[FloatArray, BoolArray]:
    """Statistics (games, 2) of so many games, and on which side the coin fell (True: D).

    The first statistic is the logarithm of the likelihood ratio of all answers: for Laplace
    noise of scale s, Σ (|x − f(D′)| − |x − f(D)|)/s over cells and questions, which no other
    statistic beats if the noise is what it should be. The second is the same of differences to
    a cell in which D and D′ agree: it says nothing more, unless cells share their noise.
    """
    rng = np.random.default_rng()  # for coins; no noise comes from here
    coin = rng.random(games) < 0.5
    statistics = np.zeros((games, 2))
    averages: list[FloatArray] = []
    spent = 0

    def answer(asks: Sequence[Ask]) -> History:
        nonlocal spent
        spent += sum(ask.nano_epsilon for ask in asks)
        last = spent >= nano_epsilon
        for ask in asks:
            if stopped():
                raise _Spent
            noisy, ratios = _ask(case.pair, ask, coin, last)
            averages.append(noisy / GRID)
            statistics[:] += ratios
        if last:
            raise _Spent
        return History(averages, sources=1)

    with suppress(_Spent):
        drive(case.run(Batch(games, nano_epsilon, rng)), answer)
    return statistics, coin


def _ask(pair: Pair, ask: Ask, coin: BoolArray, last: bool) -> tuple[FloatArray, FloatArray]:
    """One question in all games: the noisy sums, and what they add to the statistics."""
    whole, less = _exact(pair, ask, len(coin))
    changed = (whole != less).any(axis=0)
    same = np.flatnonzero(~changed)[:1]
    # Where D and D′ agree, independent noise says nothing of which it was. Such cells are drawn
    # only where the next question may depend on them, and one to compare the others with.
    cells = np.append(np.flatnonzero(changed), same) if last else np.arange(len(changed))
    whole, less = whole[:, cells], less[:, cells]
    exact = np.where(coin[:, None], whole, less)
    sensitivity = pair.whole.sensitivity(ask.query)
    drawn = pair.whole._noisy(exact.ravel(), ask.query, ask.nano_epsilon)  # as every answer gets it
    noisy = np.array(drawn, np.float64).reshape(exact.shape)
    sides = [noisy, whole, less], [_less(x, cells, same) for x in (noisy, whole, less)]
    unit = ask.nano_epsilon / NANO / sensitivity
    ratios = [unit * (np.abs(x - b) - np.abs(x - a)).sum(axis=1) for x, a, b in sides]
    return noisy, np.stack(ratios, axis=1)


def _less(values: AnyArray, cells: IntArray, same: IntArray) -> AnyArray:
    """The differences to one of the cells; the values themselves where there is none."""
    return values - values[:, np.isin(cells, same)] if len(same) else values


def _exact(pair: Pair, ask: Ask, games: int) -> tuple[IntArray, IntArray]:
    """The exact sums of D and of D′ in every game, each (games, length)."""
    if ask.temperatures is None:
        asked, where = [ask.query], np.zeros(games, np.int64)
    else:
        temperatures, where = np.unique(ask.temperatures, return_inverse=True)
        asked = [ask.query.at(t) for t in temperatures]
    sums = [pair.sums(query) for query in asked]
    whole, less = (np.stack(side)[where] for side in zip(*sums, strict=True))
    return whole, less
