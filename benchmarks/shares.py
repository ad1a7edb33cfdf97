"""The parts of secure sums: shares of the noise beside OpenDP's Laplace, sharing beside MPyC's.

CPU time, since that is what is wanted of a site. What its whole part in a secure sum costs is in
`secure_site`.
"""

from __future__ import annotations

import logging
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any
from unittest import mock

import numpy as np

from benchmarks import report
from benchmarks.paired import ratio, take_turns
from privcal.secure.shares import noise_share
from privcal.secure.sharing import PRIME, combine, split
from privcal.secure.terms import threshold, usual_colluding
from privcal.trusted.epsilon import NANO
from privcal.trusted.noise import add_noise
from privcal.trusted.queries import GRID

NUMBERS, DRAWS, ROUNDS = 30, 1000, 31
OPENDP, SPLIT, RECOMBINE = "OpenDP's discrete Laplace", "MPyC's random_split", "MPyC's recombine"


def run() -> None:
    _noise()
    if find_spec("mpyc") is None:
        report.note("no sharing: MPyC is not installed (pip install 'privcal[test]')")
        return
    _sharing()


def _noise() -> None:
    def shares(honest: int) -> None:
        for _ in range(DRAWS):
            noise_share(GRID, NANO, honest)

    contestants: dict[str, Callable[[], Any]] = {
        OPENDP: partial(add_noise, np.zeros(DRAWS, np.int64), GRID, NANO),
        **{f"a share, h = {honest}": partial(shares, honest) for honest in (1, 5, 25, 200)},
    }
    contestants[OPENDP]()  # imports it and certifies the scale
    seconds = take_turns(contestants, ROUNDS, time.process_time)
    rate = {name: DRAWS / statistics.median(taken) for name, taken in seconds.items()}
    report.table(
        f"noise on the grid of 2⁻²⁰, ε = 1, {ROUNDS} rounds of {DRAWS:,}",
        ("what", "per CPU second", "times OpenDP's speed"),
        [
            (name, f"{rate[name]:,.0f}", f"{ratio(seconds[OPENDP], seconds[name]):.2f}")
            for name in contestants
        ],
    )
    report.at_least("shares, h = 25", rate["a share, h = 25"], 20_000, "/s")


def _sharing() -> None:
    lines = []
    for sites in (50, 300):
        seconds = take_turns(_sharers(sites), 9, time.process_time)
        for name, taken in seconds.items():
            peer = SPLIT if "split" in name else RECOMBINE
            median = report.duration(statistics.median(taken))
            lines.append((str(sites), name, median, f"{ratio(taken, seconds[peer]):.2f}"))
    report.table(
        f"Shamir's sharing of {NUMBERS} numbers modulo 2¹²⁷ − 1, 9 rounds",
        ("sites", "what", "median CPU", "times MPyC's"),
        lines,
    )


def _sharers(sites: int) -> dict[str, Callable[[], Any]]:
    mpyc, modulo = _mpyc()
    enough = threshold(sites, usual_colluding(sites))
    values = [(-7) ** place for place in range(NUMBERS)]
    shares = dict(enumerate(split(values, enough, sites), 1))
    some = dict(list(shares.items())[:enough])
    most = (sites - enough) // 2
    wrong = shares | {x: [0] * NUMBERS for x in range(1, 1 + most)}

    def recombine() -> None:
        mpyc._recombination_vector.cache_clear()  # each secure sum is opened by other sites
        mpyc.recombine(modulo, list(some.items()))

    return {
        "split": partial(split, values, enough, sites),
        SPLIT: partial(mpyc.random_split, modulo, [v % PRIME for v in values], enough - 1, sites),
        "combine, just enough shares": partial(combine, some, enough),
        RECOMBINE: recombine,
        "combine, all shares": partial(combine, shares, enough),
        f"combine, {most} of them wrong": partial(combine, wrong, enough),
    }


def _mpyc() -> tuple[Any, Any]:
    """Its sharing, and its field; the import reads the command line and sets logging up."""
    handlers, level = logging.root.handlers[:], logging.root.level
    with mock.patch.object(sys, "argv", sys.argv[:1]), mock.patch("sys.stdout", sys.stderr):
        from mpyc import thresha
        from mpyc.finfields import GF
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    return thresha, GF(PRIME)
