"""A shared map, refined at home: what one source's exact rows add to the sketch of all.

The shared map says how its curve is uncertain, and one source may differ from all of them
together. So, in log-odds at the map's scores,

    curve = shared curve + Σ uᵢ · shared directionᵢ + τ · (u₁ · level + u₂ · slope + bend)

with standard normal weights u; the bend is a Gaussian process, a few functions with a weight each.
The rows are seen exactly: each is right with the probability that the curve gives it. The most
probable u come from Newton steps, and the curvature there is their covariance. τ, how unlike the
others the source is, is one of four values, averaged by evidence: one half is believed beforehand
of τ = 0, a source like the others.

The result is the posterior mean probability. So is the shared map, and whatever τ is, before any
row the mean probability is that of the shared map: no rows would change nothing. The rows decide
every digit of the result, so that it stays where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from privcal.calibration.fit import SHIFT
from privcal.calibration.maps import CurveMap, Map, check_may_leave, sigmoid
from privcal.calibration.sketch.model import rising
from privcal.data.files import digest
from privcal.data.scores import Scores
from privcal.data.wording import schema_of
from privcal.trusted.errors import InputError
from privcal.trusted.scores import BoolArray, FloatArray, IntArray
from privcal.version import __version__

LEAST_ROWS = 30
"""Fewer rows say little about whether a source is like the others, and one that is would lose."""

UNLIKE = {0.0: 1 / 2, 0.5: 1 / 6, 1.0: 1 / 6, 2.0: 1 / 6}
"""The values of τ, and what is believed of each beforehand."""

_LEVEL, _SLOPE, _BEND = 0.6, 0.125, 0.25
"""How far a source with τ = 1 is from the others, as standard deviations in log-odds: everywhere,
for each step of the score, and around the straight line."""

_BULK = 3.0
"""The score far above which scores differ less and less, in slope and bend."""

_LENGTH, _NEGLIGIBLE = 1.5, 1e-3
"""The length scale of bends, and the share of the largest one's variance below which one is left
out."""

_STEPS, _CLOSE = 100, 1e-9
"""The most steps, and the decrease that the next one can still bring that ends them."""

_OUTSIDE = 50.0
"""How far beyond a map's scores a row counts: further, a line through two points means nothing."""

_LEAST_SLOPE = 1e-3
"""Slope that the resulting curve has at least, so that a map always rises."""


def refine(map: Map, scores: Scores, *, force: bool = False) -> CurveMap:
    """A shared map, fitted to one source's own rows as well; it stays with them.

    No ε is spent, because nothing leaves: keep the result where the rows are. Each source begins
    with the shared map, never with one refined elsewhere.

    Parameters
    ----------
    map
        The shared map of a sketch, which says how it is uncertain (its `directions`).
    scores
        The source's own labelled rows, at least 30.
    force
        Whether fewer rows will do, too. A source like the others is then better off without them.

    Returns
    -------
    CurveMap
        A map of the same kind, with the same scores. It is not `private`, `stays_at_home` is true
        of it, and it has no directions: they are there to be refined.

    Examples
    --------
    >>> level = ((0.5, 0.5),)  # how the shared curve is uncertain: all of it, up or down
    >>> shared = privcal.CurveMap(1.0, scores=(0.0, 4.0), log_odds=(0.0, 4.0), directions=level)
    >>> own = privcal.Scores(logits=[[2.0, 0.0]] * 40, labels=[0, 1] * 20)
    >>> shared.confidence([[2.0, 0.0]]).round(2).tolist()
    [0.88]
    >>> refined = privcal.refine(shared, own)
    >>> bool(0.5 < refined.confidence([[2.0, 0.0]])[0] < 0.7)
    True
    >>> refined.private, refined.stays_at_home
    (False, True)
    """
    if not isinstance(scores, Scores):
        raise InputError(f"a map is refined with Scores, not {type(scores).__name__}")
    shared = _check_map(map, scores)
    own = rows_of(shared, scores)
    count = len(own.left)
    if count == 0 or (count < LEAST_ROWS and not force):
        raise InputError(
            f"{count} own rows are too few to refine a map: fewer than {LEAST_ROWS} say little, and a "
            "source like the others is better off with the shared map"
            + ("; force (--force) does it all the same" if count else "")
        )
    fits = [fit(shared, own, unlike) for unlike in UNLIKE]
    weight = weigh(fits)
    trust = 1 / np.maximum(weight @ np.array([f.variance for f in fits]), 1e-12)
    least = _LEAST_SLOPE * np.array(shared.scores)
    [curve] = rising((average(fits, weight) - least)[None, :], trust[None, :]) + least
    facts = {
        "method": "refine",
        "rows": count,
        "like_the_others": round(float(weight[0]), 3),
        "model": scores.model or map.provenance.get("model"),
        **schema_of([scores]),
        "class_names": list(map.class_names or scores.class_names or ()) or None,
        "shared": {"sha256": digest(map.to_dict()), "provenance": map.provenance},
        "stays_at_home": True,
        "privcal": __version__,
    }
    return replace(
        shared,
        log_odds=tuple(curve.tolist()),
        directions=(),
        private=False,
        provenance={name: fact for name, fact in facts.items() if fact is not None},
    )


def _check_map(map: Map, scores: Scores) -> CurveMap:
    if not isinstance(map, Map):
        raise InputError(f"what is refined is a Map, not {type(map).__name__}")
    check_may_leave(map, "refined again; refine the shared map, with all own rows")
    if not isinstance(map, CurveMap) or not map.directions:
        raise InputError(
            f"{map.describe()} does not say how it is uncertain, so own rows cannot be weighed "
            "against it; refine a map of the sketch, made without class_offsets"
        )
    scores.outputs.need_logits(SHIFT)
    map.check_scores(scores.outputs, scores.model)
    return map


# --- the posterior -------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """Rows as a curve of straight lines sees them: their place between two of its points."""

    points: int
    left: IntArray
    """The point of the curve below each row."""
    along: FloatArray
    """How far the row is on its way to the next one; beyond 0 and 1 past the ends."""
    right: BoolArray
    """Whether what the curve gives the probability of is so."""

    def cost(self, curve: FloatArray) -> float:
        """The negative log-likelihood of the rows."""
        eta = self._at(curve)
        return float(np.logaddexp(0, np.where(self.right, -eta, eta)).sum())

    def slopes(self, curve: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The cost's gradient (points,) and Hessian (points, points) in the curve's points."""
        p = sigmoid(self._at(curve))
        miss, weight, a, b = p - self.right, p * (1 - p), 1 - self.along, self.along
        gradient = self._sum(miss * a)
        gradient[1:] += self._sum(miss * b)[:-1]
        diagonal = self._sum(weight * a * a)
        diagonal[1:] += self._sum(weight * b * b)[:-1]
        beside = self._sum(weight * a * b)[:-1]
        return gradient, np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)

    def _at(self, curve: FloatArray) -> FloatArray:
        return np.asarray(curve[self.left] + np.diff(curve)[self.left] * self.along)

    def _sum(self, values: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(self.left, values, self.points), np.float64)


def rows_of(map: CurveMap, scores: Scores) -> Rows:
    """The well-formed rows of `scores`, as the curve of `map` sees them."""
    kept, x = scores.valid, np.array(map.scores)
    # A curve from the scores to themselves says where this kind of map reads a score.
    read = replace(map, log_odds=map.scores, directions=()).at(map.score(scores.outputs)[kept])
    read = np.clip(read, x[0] - _OUTSIDE, x[-1] + _OUTSIDE)
    left = np.clip(np.searchsorted(x, read, side="right") - 1, 0, len(x) - 2)
    along = (read - x[left]) / np.diff(x)[left]
    return Rows(len(x), left, along, map.target(scores)[kept])


@dataclass(frozen=True)
class Fitted:
    """What is known of a source's curve for one τ: log-odds that are normal, at each score."""

    mean: FloatArray
    variance: FloatArray
    log_evidence: float


def fit(shared: CurveMap, rows: Rows, unlike: float) -> Fitted:
    """The posterior for one τ.

    The cost is convex in u and the prior makes it strictly so: Newton steps, halved while they
    do not pay, find the one minimum whatever the rows are.
    """
    directions = _directions(shared, unlike)
    start = _mean_log_odds(np.array(shared.log_odds), directions)
    u = np.zeros(directions.shape[1])
    cost = rows.cost(start)
    for _ in range(_STEPS):
        gradient, hessian = rows.slopes(start + directions @ u)
        slope = directions.T @ gradient + u
        system = directions.T @ hessian @ directions + np.eye(len(u))
        step = -np.linalg.solve(system, slope)
        promised = -float(slope @ step)
        if promised < _CLOSE * max(1.0, cost):
            break
        length = 1.0
        while length > 1e-6:
            tried = u + length * step
            new = rows.cost(start + directions @ tried) + 0.5 * float(tried @ tried)
            if new <= cost - 0.25 * length * promised:
                break
            length /= 2
        else:
            break  # rounding hides what is left to gain
        u, cost = tried, new
    factor = np.linalg.cholesky(system)
    spread = np.linalg.solve(factor, directions.T)
    return Fitted(
        start + directions @ u,
        (spread**2).sum(axis=0),
        -cost - float(np.log(np.diag(factor)).sum()),
    )


def _directions(shared: CurveMap, unlike: float) -> FloatArray:
    """All functions that the curve may move by, at the map's scores: (points, functions).

    Flat at both ends: a map goes on beyond them as between its last two points, and what is
    believed of a row of which the model is certain must not be where a bend would lead to.
    """
    s = np.array(shared.scores)
    found = np.array(shared.directions).T
    if unlike:
        found = np.hstack([found, unlike * own_directions(s)])
    if len(s) > 3:
        found[[0, -1]] = found[[1, -2]]
    return found


def own_directions(s: FloatArray) -> FloatArray:
    """How one source may differ from the others, with τ = 1, at scores s: level, slope, bends."""
    x = _BULK * np.arcsinh(s / _BULK)
    values, vectors = np.linalg.eigh(np.exp(-0.5 * ((x[:, None] - x) / _LENGTH) ** 2))
    kept = values > _NEGLIGIBLE * values[-1]
    bends = _BEND * vectors[:, kept] * np.sqrt(values[kept])
    return np.column_stack([np.full(len(s), _LEVEL), _SLOPE * x, bends])


def weigh(fits: Sequence[Fitted]) -> FloatArray:
    """The probability of each τ, after the rows."""
    log_weight = np.log(list(UNLIKE.values())) + np.array([f.log_evidence for f in fits])
    weight = np.exp(log_weight - log_weight.max())
    return np.asarray(weight / weight.sum())


def average(fits: Sequence[Fitted], weight: FloatArray) -> FloatArray:
    """Log-odds of the posterior mean probability, over all τ.

    The mean of a probability whose log-odds are normal, by the usual probit approximation.
    """
    means = np.array([f.mean / np.sqrt(1 + np.pi * f.variance / 8) for f in fits])
    # Of both outcomes, as logarithms: a probability that rounds to 1 keeps its log-odds.
    log_right = _log_mean(-np.logaddexp(0, -means), weight)
    log_wrong = _log_mean(-np.logaddexp(0, means), weight)
    return log_right - log_wrong


def _log_mean(logs: FloatArray, weight: FloatArray) -> FloatArray:
    most = logs.max(axis=0)
    return np.asarray(most + np.log(weight @ np.exp(logs - most)))


def _mean_log_odds(curve: FloatArray, directions: FloatArray) -> FloatArray:
    """The mean log-odds behind the curve of a mean probability, which is nearer to zero."""
    return np.asarray(curve * np.sqrt(1 + np.pi * (directions**2).sum(axis=1) / 8))
