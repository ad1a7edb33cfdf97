"""What a coalition's whole view tells, by statistics: T − 1 sums nothing, a total no more than ε.

Games as the audit plays them (`privcal.lab.audit.run`): a coin chooses between neighbours, a rule that
was learnt from some games guesses in others, and how often it is right bounds ε from below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from privcal.lab.audit.run import epsilon_bound, learn, p_value
from privcal.secure.shares import add_noise_share
from privcal.secure.sharing import PRIME, combine, split
from privcal.secure.terms import threshold
from privcal.trusted.epsilon import to_nano
from privcal.trusted.queries import GRID

pytest.importorskip("cryptography", reason="secure sums need cryptography: privcal[secure]")

from tests.support.coalition import EVE, federation, given

SITES, COLLUDING = 5, 1
T = threshold(SITES, COLLUDING)
NEEDED, HONEST = T, T - COLLUDING
GAMES, EPSILON, ALONE = 4000, 0.5, 10

Deal = Callable[[int], int]
"""What a hospital with so many rows deals."""


def noisy(honest: int = HONEST, alone: int = ALONE) -> Deal:
    nano = to_nano(EPSILON)
    return lambda rows: add_noise_share(np.array([rows]), 1, nano, honest, alone)[0]


def view(victim: int, deal: Deal, sums: int) -> list[float]:
    """All that the calibrator, the carrier and the last site see, where so many honest sums open.

    The set is the one with the least noise: the colluding site and as few honest ones as can be. What
    is said first is what the theorem says is all there is: the total less what the coalition knows.
    """
    dealt = [split([deal(victim if i == 0 else 0)], T, SITES) for i in range(HONEST)]
    own = [row[SITES - 1][0] for row in dealt]  # its own piece of each answer, which it knows
    shown = {j: [sum(row[j - 1][0] for row in dealt) % PRIME] for j in range(1, sums + 1)}
    shown[SITES] = [sum(own) % PRIME]
    complete = combine(shown, T)
    guessed = combine(shown, len(shown))  # as if so few were enough
    assert guessed is not None
    told = 0.0 if complete is None else float(complete.values[0])
    pieces = [value / PRIME for value in (*own, *(row[0] for row in shown.values()))]
    return [told, float(guessed.values[0]), *pieces, *((16 * p) % 1 for p in pieces)]


Score = tuple[int, int]
"""How many guesses a learnt rule made, and how many of them were right."""


def scores(one: Callable[[], list[float]], other: Callable[[], list[float]]) -> tuple[Score, Score]:
    """How a rule that looks at the whole view fares, and one that looks at the total alone."""
    coin = np.random.default_rng().integers(2, size=GAMES).astype(bool)
    seen = np.array([one() if heads else other() for heads in coin])
    half = GAMES // 2
    whole, first = (
        learn(some[:half], coin[:half]).score(some[half:], coin[half:])
        for some in (seen, seen[:, :1])
    )
    return whole, first


def game(deal: Deal, sums: int, rows: tuple[int, int] = (1, 0)) -> tuple[Score, Score]:
    one, other = rows
    return scores(lambda: view(one, deal, sums), lambda: view(other, deal, sums))


def test_fewer_sums_than_the_threshold_tell_nothing_and_one_more_tells_all() -> None:
    """Without any noise, between no row and a million: the pieces alone must hide that."""
    whole, _ = game(int, sums=T - COLLUDING - 1, rows=(10**6, 0))
    assert p_value(*whole, epsilon=0.0) > 1e-6
    whole, _ = game(int, sums=T - COLLUDING, rows=(10**6, 0))
    assert whole == (GAMES // 2, GAMES // 2)


@pytest.mark.slow
def test_a_coalitions_whole_view_tells_no_more_than_epsilon() -> None:
    whole, first = game(noisy(), sums=SITES - COLLUDING)
    assert p_value(*whole, EPSILON) > 1e-6
    assert p_value(*first, EPSILON) > 1e-6
    assert epsilon_bound(*first, 0.01) > 0.25 * EPSILON  # it is no blind rule


@pytest.mark.slow
def test_half_the_noise_is_noticed() -> None:
    """Shares for twice as many honest sites as there are: half the variance.

    One game in ten learns a rule that guesses too seldom to tell, so there are four.
    """
    games = (game(noisy(honest=2 * HONEST), sums=SITES - COLLUDING) for _ in range(4))
    assert min(p_value(*first, EPSILON) for _, first in games) < 1e-6


@pytest.mark.parametrize("noticed", [False, True])
def test_everybody_else_together_learns_no_more_than_alone_says(noticed: bool) -> None:
    """All others collude and have the victim's number; what hides it is its own noise."""
    claimed = 2
    deal = noisy(honest=50, alone=2 * claimed if noticed else claimed)
    _, first = scores(lambda: [float(deal(1))], lambda: [float(deal(0))])
    assert (p_value(*first, claimed * EPSILON) < 1e-6) == noticed


def test_the_view_is_that_of_the_real_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What sites really show is linear in what they dealt, as the games have it."""
    from privcal.secure import participant

    values: list[list[int]] = []

    def noted(*args: Any) -> list[int]:
        values.append(add_noise_share(*args))
        return values[-1]

    monkeypatch.setattr(participant, "add_noise_share", noted)
    hospitals = federation(SITES)
    terms = hospitals.terms()
    assert (terms.threshold, terms.honest) == (T, HONEST)
    dealt = hospitals.share(terms)
    chosen = hospitals.names[SITES - NEEDED :]
    shown = {
        terms.point(j): hospitals.site(j).open(terms, EVE, given(dealt, j, chosen))
        for j in hospitals.names
    }
    complete = combine(shown, T)
    assert complete is not None
    expected = [sum(column) for column in zip(*values[SITES - NEEDED :], strict=True)]
    assert complete.values == expected
    assert abs(complete.values[1] / GRID - 30) < 60  # 2 + 4 + 8 + 16 rows, with the noise of one
