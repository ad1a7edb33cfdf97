"""Shares of the Laplace noise, exactly: h of them add up to the noise of one source.

Write r = e^(−γ) with γ = ε/Δ. A share is the difference of two independent Pólya (negative binomial)
variables with P[X = k] ∝ Γ(k + 1/h)/k!·r^k, whose generating function is ((1 − r)/(1 − r·z))^(1/h).

*h shares make the noise of one.* Generating functions of independent variables multiply, so that of
the sum of h shares is (1 − r)/(1 − r·z) · (1 − r)/(1 − r/z): of the difference of two geometric
variables, which is discrete Laplace, P[Z = z] ∝ e^(−γ|z|). Added to sums that one person moves by at
most Δ, it gives pure ε (`privcal.trusted.noise`). *More shares are no worse.* Whatever else is in
a total (more shares, floors, what others put in, the remainder modulo a prime) is independent of the
rows that are protected: it is added to something that is ε-private already. All shares must be drawn
with one γ; a smaller share at one source would be missing in the total of all. ∎

*The floor.* Each source adds discrete Laplace noise of its own at `alone`·ε first. The share comes
on top, independent of the rows, so this one source's numbers alone are (alone·ε)-private, whoever
sees them, whatever all others do, and even if shares were drawn wrongly. ∎

How a share is drawn
--------------------
The logarithm of the generating function of X is Σ_k (1/h)·(r^k/k)·(z^k − 1). So X is a sum of *jumps*:
those of size k are as many as a Poisson variable of mean r^k/(k·h) says, all sizes independent; and
a share has as many jumps of −k as of +k, on average. Their means are not rational. So we draw more
jumps than we need, with rational means, and keep each with the probability

    (the mean that is wanted) / (the mean with which it was drawn).

Points of a Poisson process that are kept independently of each other are a Poisson process again,
with the product for its means: what is kept has exactly the law that is wanted (*thinning*).

Sizes are drawn in octaves. Octave j holds the sizes 2^j ≤ k < 2^(j+1), and J is the first with
γ·2^J ≥ 1. Of either sign, jumps come with mean 1/h in each octave below J and in all others
together, of which octave J + i has the part 2^−(1+i) (a fair coin shows i heads before a tail);
within an octave all 2^j sizes are alike. With b = 0 below J, and b = 1 + i in octave J + i, a jump
of size k is drawn with mean 2^−b/(h·2^j), and kept with

    (2^j/k) · (2/e)^b · e^−(γk − b),        which multiplies to e^(−γk)/(h·k).

All three are probabilities: 2^j ≤ k, 2 < e, and γk ≥ γ·2^J·2^i ≥ 2^i ≥ 1 + i. ∎

Coins
-----
Nothing irrational is ever computed; all is made of fair bits from the operating system. Bits are
drawn when they are needed and none are kept, so that a process and its fork never share any. How
long a draw takes depends on what is drawn, so what goes out must wait for its time, as every reply
of a site does.

*p/q*: a whole number below q, drawn uniformly, is below p.

*1 − x/a·(1 − x/(a+1)·(1 − …))*: toss coins of probability x/a, x/(a+1), … until one fails; the
probability that an even number succeeded is that of (not the first) or (the first, and then not an
even number of the others), which is the series. For a = 1 it is e^(−x) (von Neumann). For a = 3 and
x = 1 it is 2/e: 1 − 1/3 + 1/(3·4) − … is twice 1/2! − 1/3! + 1/4! − …, which is e^(−1), as its first
two terms 1 − 1 cancel.

*A Poisson number of mean 1*: n heads before a tail have probability 2^−(1+n), and are kept with half
of 2^n/n!, which is never above 1; together that is proportional to 1/n!. Means are made from it: the
sum of m of them has mean m, and each of its points is kept with probability (mean wanted)/m.
"""

from __future__ import annotations

import secrets

from privcal.trusted.epsilon import NANO
from privcal.trusted.noise import add_noise
from privcal.trusted.scores import IntArray


def add_noise_share(
    total: IntArray, sensitivity: int, nano_epsilon: int, honest: int, alone: int
) -> list[int]:
    """`total` plus this source's share of the noise, and plus its own noise at `alone` times the ε.

    The sum of such totals over `honest` sources or more is ε-private for ε = nano_epsilon/10⁹, and
    each one alone is (alone·ε)-private. `sensitivity` is that of all of them.

    >>> import numpy as np
    >>> len(add_noise_share(np.array([3, 5]), 1, 10**9, honest=25, alone=10))
    2
    """
    if alone < 1:
        raise ValueError("a source's own noise is that of at least the whole epsilon")
    floored = add_noise(total, sensitivity, alone * nano_epsilon)
    return [value + noise_share(sensitivity, nano_epsilon, honest) for value in floored]


def noise_share(sensitivity: int, nano_epsilon: int, honest: int) -> int:
    """One of `honest` shares of discrete Laplace noise of scale sensitivity/ε.

    >>> isinstance(noise_share(sensitivity=2**20, nano_epsilon=10**9, honest=25), int)
    True
    """
    if sensitivity < 1 or nano_epsilon < 1 or honest < 1:
        raise ValueError("sensitivity, epsilon and the number of shares must be positive")
    p, q = nano_epsilon, NANO * sensitivity  # γ = p/q
    last = (-(-q // p) - 1).bit_length()  # the first J with γ·2^J ≥ 1
    # Both signs, J + 1 octaves: a mean of 2(J + 1)/h, thinned from the next whole number.
    mean, whole = 2 * (last + 1), -(-2 * (last + 1) // honest)
    total = 0
    for _ in range(sum(_poisson() for _ in range(whole))):
        octave = secrets.randbelow(last + 1)
        beyond = 0
        if octave == last:
            beyond = 1 + _heads()
            octave += beyond - 1
        bits = secrets.randbits(octave + 1)
        size = (1 << octave) + (bits >> 1)
        if (
            _coin(mean << octave, whole * honest * size)
            and all(_falling(1, 1, 3) for _ in range(beyond))
            and _exponential(p * size - beyond * q, q)
        ):
            total += size if bits & 1 else -size
    return total


def _coin(p: int, q: int) -> bool:
    """True with probability p/q."""
    return secrets.randbelow(q) < p


def _falling(p: int, q: int, first: int) -> bool:
    """True with probability 1 − x/a·(1 − x/(a+1)·(1 − …)), for x = p/q ≤ a and a = first."""
    place = first
    while _coin(p, q * place):
        place += 1
    return (place - first) % 2 == 0


def _exponential(p: int, q: int) -> bool:
    """True with probability e^(−p/q): a coin for each whole one in it, and one for the rest."""
    whole, rest = divmod(p, q)
    return all(_falling(1, 1, 1) for _ in range(whole)) and _falling(rest, q, 1)


def _heads() -> int:
    """How many heads a fair coin shows before the first tail."""
    before = 0
    while not (word := secrets.randbits(64)):
        before += 64
    return before + (word & -word).bit_length() - 1


def _poisson() -> int:
    """A Poisson number of mean 1."""
    while True:
        n = _heads()
        if _coin(1, 2) if n == 0 else all(_coin(2, i) for i in range(3, n + 1)):
            return n
