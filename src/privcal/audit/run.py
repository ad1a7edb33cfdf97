"""`audit`: play every case, at every ε, on all cores."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from privcal.audit.bound import epsilon_bound, learn, p_value
from privcal.audit.games import play
from privcal.audit.pairs import Case, cases
from privcal.audit.result import CONFIDENCE, Audit, Promise
from privcal.checks import whole
from privcal.errors import InputError
from privcal.privacy.epsilon import from_nano, to_nano
from privcal.queries import FAMILY
from privcal.scores import BoolArray, FloatArray
from privcal.threads import default_threads

EPSILONS = (0.1, 1.0, 4.0)
"""Claims to test of single answers; harder pairs and whole methods are audited at 1."""

DRAWS = 20_000
MIN_DRAWS = 100
_LEARN = 4
"""One game in so many is to learn from; the rest are to score."""

_CHUNK = 2_000
"""Games in one piece of work: an interruption waits for no more than one call of the noise."""


def audit(
    *,
    only: Sequence[str] | None = None,
    epsilons: Sequence[float] | None = None,
    draws: int = DRAWS,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """Try to break every promise of privacy: of each kind of query, of each method.

    Parameters
    ----------
    only
        Some of `names()`; by default all of them.
    epsilons
        The claims to test; by default 0.1, 1 and 4 for each kind of query, 1 for the rest.
    draws
        Games for each claim. More bring the lower bound nearer to what is true.
    progress
        Called with how many games of how many are done.

    Returns
    -------
    Audit
        The lower bound on ε that was seen of each claim. `ok` is False if one was seen broken;
        that none was proves nothing.

    Examples
    --------
    >>> result = audit(only=["gap"], epsilons=[1.0], draws=1000)
    >>> [row.name for row in result.rows], result.ok
    (['gap'], True)
    """
    draws = whole("draws", draws, MIN_DRAWS)
    tasks = [(case, nano) for case in _chosen(only) for nano in _claims(case, epsilons)]
    sizes = [len(part) for part in np.array_split(np.empty(draws), -(-draws // _CHUNK))]
    stop = threading.Event()
    pool = ThreadPoolExecutor(default_threads())  # OpenDP draws without Python's lock
    rows, done = [], 0
    try:
        waiting = deque(
            (case, nano, [pool.submit(play, case, nano, size, stop.is_set) for size in sizes])
            for case, nano in tasks
        )
        while waiting:  # in order, and forgotten when counted: a million games fill memory
            case, nano, parts = waiting.popleft()
            played = []
            for part in parts:
                played.append(part.result())
                done += len(played[-1][1])
                if progress:
                    progress(done, draws * len(tasks))
            rows.append(_row(case, nano, *map(np.concatenate, zip(*played, strict=True))))
    finally:
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
    return Audit(tuple(rows), draws)


def names() -> list[str]:
    """The names of everything that can be audited: kinds of query, harder pairs, methods."""
    return [case.name for case in cases()]


def _row(case: Case, nano: int, statistics: FloatArray, coin: BoolArray) -> Promise:
    first, epsilon = len(coin) // _LEARN, from_nano(nano)
    rule = learn(statistics[:first], coin[:first])
    guesses, right = rule.score(statistics[first:], coin[first:])
    return Promise(
        name=case.name,
        what=case.what,
        epsilon=epsilon,
        measured=epsilon_bound(guesses, right, 1 - CONFIDENCE),
        guesses=guesses,
        right=right,
        p_value=p_value(guesses, right, epsilon),
    )


def _chosen(only: Sequence[str] | None) -> list[Case]:
    every = list(cases())
    known = [case.name for case in every]
    for name in only or ():
        if name not in known:
            raise InputError(
                f"there is nothing called {name!r} to audit; there are {', '.join(known)}"
            )
    if only is not None and not only:
        raise InputError("nothing is named to audit; leave it out for everything")
    return [case for case in every if only is None or case.name in only]


def _claims(case: Case, epsilons: Sequence[float] | None) -> list[int]:
    if epsilons is None:
        epsilons = EPSILONS if case.name in FAMILY else (1.0,)
    if not epsilons:
        raise InputError("no epsilon is named; leave it out for the usual ones")
    return [to_nano(epsilon) for epsilon in epsilons]
