"""How many guesses were right, and what that says of ε.

The game. A fair coin chooses D or its neighbour D′; the mechanism answers about that one; a
rule looks at the answer and says "D", "D′" or nothing. The rule is learnt from some games and
scored on others.

Proof of the bound. Let the mechanism M be ε-differentially private and S the set of answers at
which the rule says "D". With the fair coin

    P[D | M ∈ S] = P[M(D) ∈ S] / (P[M(D) ∈ S] + P[M(D′) ∈ S]) ≤ e^ε / (1 + e^ε),

because P[M(D) ∈ S] ≤ e^ε·P[M(D′) ∈ S]; the converse inequality gives the same where it says
"D′". So each guess is right with a probability of at most q(ε) = e^ε/(1 + e^ε). The games that
are scored are independent of each other and of the rule, so of k guesses the number that are
right is stochastically at most binomial (k, q(ε)). Two things follow:

- Let c be the exact (Clopper and Pearson's) lower limit, at confidence 1 − α, of the
  probability of success that gave r of k. Then log(c / (1 − c)) > ε, that is c > q(ε), has a
  probability of at most α.
- P[Binomial(k, q(ε)) ≥ r] is a p-value of the claim that M is ε-differentially private.

Both directions of the definition are in it at once, and one rule is scored once, so there is
nothing to correct for. A rule that guesses in one direction only is among those to choose from.
With a poor rule, or few games, the bound is only smaller. ∎
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privcal.binomial import lower_limit, upper_tail
from privcal.scores import BoolArray, FloatArray, IntArray

_SHARES = 0.5 * 2.0 ** (-np.arange(23) / 2)
"""Shares of the games at either end in which a rule may guess: from a half to 1 in 4,096."""

_Z = 3.5
"""Rules are compared by a quick limit of so many deviations; only the scoring must be exact.

A limit as wide as this one prefers rules that guess often: the best of many rules is too often
one that was lucky in the few games it guessed in.
"""


@dataclass(frozen=True)
class Rule:
    """Which statistic to look at, and from where on to say "D" (`above`) or "D′" (`below`)."""

    statistic: int
    above: float
    below: float

    def score(self, statistics: FloatArray, coin: BoolArray) -> tuple[int, int]:
        """How many guesses there are in these games, and how many of them are right."""
        value = statistics[:, self.statistic]
        above, below = value >= self.above, value <= self.below
        right = int((above & coin).sum() + (below & ~coin).sum())
        return int(above.sum() + below.sum()), right


def learn(statistics: FloatArray, coin: BoolArray) -> Rule:
    """The rule that does best in these games: statistics (games, kinds), coin (games)."""
    best, rule = -1.0, Rule(0, math.inf, -math.inf)
    for kind in range(statistics.shape[1]):
        value = statistics[:, kind]
        order = np.argsort(value)
        ranked = value[order]
        ours = np.append(0, np.cumsum(coin[order]))  # of the lowest i games, those of D
        games = len(ranked)
        counts = np.unique(np.floor(_SHARES * games).astype(int).clip(1))
        above = np.append(ranked[games - counts], math.inf)
        below = np.append(ranked[counts - 1], -math.inf)
        # All games of equal value are on one side of a limit.
        up = np.searchsorted(ranked, above, side="left")
        down = np.searchsorted(ranked, below, side="right")
        right = (ours[-1] - ours[up])[:, None] + (down - ours[down])[None, :]
        guesses = (games - up)[:, None] + down[None, :]
        limit = np.where(above[:, None] > below[None, :], _quick_limit(guesses, right), -1.0)
        i, j = np.unravel_index(np.argmax(limit), limit.shape)
        if limit[i, j] > best:
            best, rule = float(limit[i, j]), Rule(kind, float(above[i]), float(below[j]))
    return rule


def _quick_limit(guesses: IntArray, right: IntArray) -> FloatArray:
    """Wilson's lower limit of the probability of success."""
    k = np.maximum(guesses, 1)
    p, z2 = right / k, _Z**2 / k
    limit = (p + z2 / 2 - _Z * np.sqrt(p * (1 - p) / k + z2 / (4 * k))) / (1 + z2)
    return np.asarray(np.where(guesses > 0, limit, 0.0))


def epsilon_bound(guesses: int, right: int, alpha: float) -> float:
    """The ε that so many right guesses show, at confidence 1 − alpha; never below 0."""
    c = lower_limit(guesses, right, alpha)
    return max(0.0, math.log(c) - math.log1p(-c)) if c > 0 else 0.0


def p_value(guesses: int, right: int, epsilon: float) -> float:
    """How likely so many right guesses are, at most, where ε-differential privacy holds."""
    return upper_tail(guesses, right, 1 / (1 + math.exp(-epsilon)))
