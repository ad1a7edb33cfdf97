"""A rehearsal: a calibration on data that one may look at, and the truth beside it.

Its ledgers are in memory and nothing durable is touched: no ledger, no mark, no campaign, no map.
Because the rows may be looked at, the error of every method is measured, which a real calibration
never does. Rows that a ledger on this machine is known to be for are refused: they are private.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from privcal import methods, metrics
from privcal.calibrate import Result, SourceDropped, calibrate
from privcal.demo import without_noise
from privcal.errors import InputError
from privcal.maps import Map, TemperatureMap
from privcal.methods.base import Method
from privcal.privacy import opening
from privcal.privacy.opening import Data
from privcal.privacy.policy import Policy
from privcal.scores import BoolArray, FloatArray, Scores
from privcal.source import Source

REHEARSAL = "REHEARSAL"
DRAWS = 5
"""How often every method runs: a single draw of the noise says little."""


@dataclass(frozen=True)
class Error:
    """How wrong a confidence (of an event, a risk) is on the rows, exactly."""

    ece: float
    brier: float


@dataclass(frozen=True)
class Rehearsed:
    """One method: what it would cost each source, and how wrong its maps are."""

    method: str
    epsilon: float
    questions: int
    numbers: int
    """How many numbers would leave each source."""
    errors: tuple[Error, ...]
    """Of the map of each draw of the noise."""
    exact: Error | None
    """With the same rows and no noise."""

    @property
    def mean(self) -> Error:
        return Error(
            float(np.mean([e.ece for e in self.errors])),
            float(np.mean([e.brier for e in self.errors])),
        )


@dataclass(frozen=True)
class Rehearsal:
    """How a calibration would go, and what is true of the rows."""

    result: Result
    """Of the method that was asked for, with the first draw of the noise."""
    before: Error
    """With nothing done."""
    methods: tuple[Rehearsed, ...]
    refused: dict[str, str]
    """Methods that cannot run at this setting, and why."""
    rows: int
    unit: str


def check_open(named: Sequence[tuple[Data, Scores]], folder: Path | None = None) -> None:
    """Raise InputError where a ledger on this machine knows these rows, by file or by content."""
    for data, scores in named:
        known = opening.find(data, folder) is not None or opening.lost(data, folder)
        known = known or opening.known_as(scores) is not None
        if known or opening.private_as(data, folder) is not None:
            raise InputError(
                f"{data} has a ledger, so its rows are private, and a rehearsal shows exact figures: "
                "rehearse with data that everybody here may look at"
            )


def rehearse(
    named: Sequence[tuple[Data, Scores]],
    method: Method,
    epsilon: float,
    policy: Policy | None = None,
    *,
    min_sources: int = 1,
    asker: str = "local",
    model: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Rehearsal:
    """Run `method`, and every other one beside it, and measure on the very rows that were asked.

    Whoever calls this may look at the rows: `check_open`. Without a `policy` the ledgers in memory
    hold just what the run costs.
    """
    rules = policy or Policy(epsilon=epsilon)
    rows = [scores for _, scores in named]
    event = getattr(method, "event", None)

    def once(tried: Method) -> Result:
        sources = [Source(scores, rules, ledger=None, name=data.name) for data, scores in named]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SourceDropped)  # the result says it
            more = {"min_sources": min_sources, "asker": asker, "model": model}
            return calibrate(sources, tried, epsilon, campaign=REHEARSAL.lower(), **more)  # type: ignore[arg-type]

    others, refused = _others(method)
    result = once(method)  # whatever is wrong with the run itself is said first
    found = []
    for number, tried in enumerate([method, *others]):
        if progress:
            progress(tried.name, number, 1 + len(others))
        try:
            first = result if tried is method else once(tried)
            results = [first, *(once(tried) for _ in range(DRAWS - 1) if first.rounds)]
        except (InputError, RuntimeError) as error:
            refused[tried.name] = str(error)
            continue
        found.append(
            Rehearsed(
                tried.name,
                max(first.spent),
                len(first.rounds),
                sum(asked.query.length for asked in first.rounds),
                tuple(error_of(rows, result.map, event) for result in results),
                _exact(tried, rows, event),
            )
        )
    before = error_of(rows, TemperatureMap(1.0), event)
    return Rehearsal(
        result,
        before,
        tuple(found),
        refused,
        sum(map(len, rows)),
        "person" if _persons(rows) else "row",
    )


def _others(method: Method) -> tuple[list[Method], dict[str, str]]:
    """The other methods that ask sources, with public rows where they have a use for them."""
    made, refused = [], {}
    public = getattr(method, "public", None)
    for name in methods.names():
        if name in (method.name, "uncalibrated", "one-source"):
            continue
        takes = public is not None and methods.find(name).takes_public
        try:
            made.append(methods.make(name, **({"public": public} if takes else {})))
        except InputError as error:
            refused[name] = str(error)
    return made, refused


def error_of(rows: Sequence[Scores], map: Map, event: int | None) -> Error:
    """How wrong a map is on all these rows: its confidence, or its risk of an event."""
    said: list[FloatArray] = []
    true: list[BoolArray] = []
    for scores in rows:
        if event is None:
            said.append(map.confidence(scores))
            true.append(map.predict(scores) == scores.labels)
        else:
            said.append(map.predict_proba(scores)[:, event])
            true.append(scores.labels == event)
    p, y = np.concatenate(said), np.concatenate(true)
    return Error(metrics.ece(p, y), metrics.brier(p, y))


def _exact(method: Method, rows: Sequence[Scores], event: int | None) -> Error | None:
    """The error without noise; None where the rows are not of one kind, or there are none."""
    kinds = {(scores.outputs.kind, scores.outputs.array.shape[1]) for scores in rows}
    if len(kinds) > 1 or not any(map(len, rows)):
        return None
    [(kind, _)] = kinds
    truth = "correct" if kind == "confidence" else "labels"
    given: dict[str, Any] = {
        kind: np.concatenate([scores.outputs.array for scores in rows]),
        truth: np.concatenate([getattr(scores, truth) for scores in rows]),
    }
    pooled = Scores(**given)
    return error_of(rows, without_noise(method, pooled), event)


def _persons(rows: Sequence[Scores]) -> bool:
    return any(scores.person is not None for scores in rows)
