"""The same quantities as privcal, the slow and obvious way: plain loops over Python floats.

Nothing here imports privcal. The one exception to plain loops are the temperature fits, which
have to go through tens of thousands of rows: NumPy in float64 there, with SciPy's solvers.
"""

import math
from bisect import bisect_left
from collections import defaultdict

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_softmax, softmax
from scipy.stats import foldnorm


def logits_of(probabilities):
    """Log-probabilities of one row; one lone number is the probability of class 1 of two.

    None is below that of 2⁻⁵³.
    """
    if len(probabilities) == 1:
        [p] = probabilities
        both = [-math.inf if p == 1 else math.log1p(-p), log(p)]
    else:
        both = [log(p) for p in probabilities]
    return [max(z, -53 * math.log(2)) for z in both]


def log(p):
    return -math.inf if p == 0 else math.log(p)


def probabilities_at(logits, temperature):
    top = max(logits)
    terms = [math.exp((z - top) / temperature) for z in logits]
    total = math.fsum(terms)
    return [term / total for term in terms]


def confidence_at(logits, temperature):
    return max(probabilities_at(logits, temperature))


def log_odds_at(logits, temperature):
    """log(c / (1 − c)) of the confidence c; of equal top classes one is predicted."""
    top = max(logits)
    others = list(logits)
    others.remove(top)
    return -log(math.fsum(math.exp((z - top) / temperature) for z in others))


def class_log_odds_at(logits, temperature, k):
    """log(p / (1 − p)) of the probability p of class k: exponents relative to the largest other."""
    others = [*logits[:k], *logits[k + 1 :]]
    if not others:
        return math.inf
    most = max(others)
    if most == -math.inf:
        return math.inf
    rest = math.log(math.fsum(math.exp((z - most) / temperature) for z in others))
    return (logits[k] - most) / temperature - rest


def hats_of(logits, label, temperature, knots, event=None):
    """What one row adds to each cell: a hat around each knot, wrong cells first.

    With an event: around the log-odds of that class, rows of other classes first.
    """
    if event is None:
        s = log_odds_at(logits, temperature)
        yes = logits.index(max(logits)) == label
    else:
        s = class_log_odds_at(logits, temperature, event)
        yes = label == event
    share = [0.0] * len(knots)
    for k, knot in enumerate(knots):
        if s == knot or (k == 0 and s < knot) or (k == len(knots) - 1 and s > knot):
            share[k] = 1.0
        elif k > 0 and knots[k - 1] < s < knot:
            share[k] = (s - knots[k - 1]) / (knot - knots[k - 1])
        elif k < len(knots) - 1 and knot < s < knots[k + 1]:
            share[k] = (knots[k + 1] - s) / (knots[k + 1] - knot)
    none = [0.0] * len(knots)
    return none + share if yes else share + none


def row_nll(logits, label, temperature):
    top = max(logits)
    log_sum = math.log(math.fsum(math.exp((z - top) / temperature) for z in logits))
    return log_sum - (logits[label] - top) / temperature


def moments_at(logits, temperature):
    """Σ exp(z/T) for z = logit − top logit, and the mean and variance of z under the softmax."""
    top = max(logits)
    z = [logit - top for logit in logits]
    p = probabilities_at(logits, temperature)
    pairs = [(pi, zi) for pi, zi in zip(p, z, strict=True) if pi > 0]
    mean = math.fsum(pi * zi for pi, zi in pairs)
    variance = math.fsum(pi * (zi - mean) ** 2 for pi, zi in pairs)
    return 1 / max(p), mean, variance


def width_bins(confidence, k):
    return [min(math.floor(k * c), k - 1) for c in confidence]


def mass_bins(confidence, k):
    """⌊k · rank / n⌋, where equal confidences all have the rank of the first of them."""
    ordered = sorted(confidence)
    return [bisect_left(ordered, c) * k // len(ordered) for c in confidence]


def bins_of(confidence, correct, where):
    """(rows, accuracy, mean confidence) of each bin that has rows."""
    members = defaultdict(list)
    for c, y, b in zip(confidence, correct, where, strict=True):
        members[b].append((float(c), float(y)))
    return [
        (
            len(rows),
            math.fsum(y for _, y in rows) / len(rows),
            math.fsum(c for c, _ in rows) / len(rows),
        )
        for rows in members.values()
    ]


def ece_of(bins):
    n = sum(count for count, _, _ in bins)
    return math.fsum(count / n * abs(a - c) for count, a, c in bins)


def ece(confidence, correct, k):
    return ece_of(bins_of(confidence, correct, width_bins(confidence, k)))


def equal_mass_ece(confidence, correct, k):
    return ece_of(bins_of(confidence, correct, mass_bins(confidence, k)))


def mce(confidence, correct, k):
    return max(abs(a - c) for _, a, c in bins_of(confidence, correct, width_bins(confidence, k)))


def debiased_ece(confidence, correct, k):
    """ECE − (E[ECE with each bin's accuracy redrawn from its normal law] − ECE)."""
    bins = bins_of(confidence, correct, width_bins(confidence, k))
    n = sum(count for count, _, _ in bins)
    redrawn = 0.0
    for count, a, c in bins:
        deviation = math.sqrt(a * (1 - a) / count)
        gap = abs(a - c)
        mean = foldnorm.mean(gap / deviation, scale=deviation) if deviation else gap
        redrawn += count / n * mean
    plain = ece_of(bins)
    return plain - (redrawn - plain)


def debiased_rms(confidence, correct, k):
    bins = bins_of(confidence, correct, width_bins(confidence, k))
    n = sum(count for count, _, _ in bins)
    square = 0.0
    for count, a, c in bins:
        variance = a * (1 - a) / (count - 1) if count > 1 else 0.0
        square += count / n * ((a - c) ** 2 - variance)
    return math.sqrt(max(square, 0.0))


def classwise_ece(probabilities, labels, k):
    classes = range(len(probabilities[0]))
    return math.fsum(
        ece([row[j] for row in probabilities], [label == j for label in labels], k) for j in classes
    ) / len(classes)


def brier(confidence, correct):
    return mean([(c - y) ** 2 for c, y in zip(confidence, correct, strict=True)])


def aurc(confidence, correct):
    """At each k: the errors of rows surely among the k most confident, and the share of those of
    the tie at the border that a random order of it puts among them."""
    rates = []
    ordered = sorted(confidence, reverse=True)
    pairs = list(zip(confidence, correct, strict=True))
    for k, border in enumerate(ordered, 1):
        above = [y for c, y in pairs if c > border]
        tied = [y for c, y in pairs if c == border]
        errors = above.count(False) + tied.count(False) * (k - len(above)) / len(tied)
        rates.append(errors / k)
    return mean(rates)


def brier_multiclass(probabilities, labels):
    return mean(
        [
            math.fsum((p - (j == label)) ** 2 for j, p in enumerate(row))
            for row, label in zip(probabilities, labels, strict=True)
        ]
    )


def nll(probabilities, labels):
    return mean([-log(row[label]) for row, label in zip(probabilities, labels, strict=True)])


def mean(values):
    return math.fsum(values) / len(values)


def mean_nll(logits, labels, temperature):
    rows = np.arange(len(labels))
    return -float(log_softmax(logits / temperature, axis=1)[rows, labels].mean())


def gap(logits, labels, temperature):
    """Mean confidence − accuracy."""
    shares = softmax(logits / temperature, axis=1)
    return float(shares.max(axis=1).mean() - (logits.argmax(axis=1) == labels).mean())


def best_temperature(objective, logits, labels, bounds):
    """The root of d(mean NLL)/d(1/T), or of mean confidence − accuracy, to about 1e-12."""
    logits = np.asarray(logits, np.float64)
    logits = logits - logits.max(axis=1, keepdims=True)
    label_logit = logits[np.arange(len(labels)), labels]

    def nll_slope(temperature):
        shares = softmax(logits / temperature, axis=1)
        return float(np.mean((shares * (logits - label_logit[:, None])).sum(axis=1)))

    slope = nll_slope if objective == "nll" else lambda t: gap(logits, labels, t)
    return brentq(slope, *bounds, xtol=1e-12, rtol=1e-14)


def least_nll(logits, labels, bounds):
    """The least mean NLL over T, found without its derivative."""
    minimum = minimize_scalar(
        lambda log_t: mean_nll(logits, labels, math.exp(log_t)),
        bounds=[math.log(t) for t in bounds],
        method="bounded",
        options={"xatol": 1e-9},
    )
    return minimum.fun
