"""The loop: ask every source what the method wants to know, give it the averages, return the map."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from privcal import methods
from privcal.errors import CalibrationError, InputError, Refused
from privcal.maps import Map
from privcal.methods.base import Ask, Batch, History, drive
from privcal.privacy.epsilon import NANO, from_nano, to_nano
from privcal.privacy.ledger import Key
from privcal.queries import Hats, Query
from privcal.scores import Scores
from privcal.sketch.saved import Sketch
from privcal.source import Answer


class Answers(Protocol):
    """Anything that answers queries: a local Source, or a way to a distant one."""

    name: str | None

    def answer(
        self, query: Query, epsilon: Fraction, request_id: str, asker: str, model: str | None
    ) -> Answer: ...


@dataclass(frozen=True)
class Asked:
    """One question and what came back: nothing here is exact."""

    round: int
    query: Query
    epsilon: float
    answers: dict[str, tuple[float, ...]]
    """The noisy values of each source that answered."""


@dataclass(frozen=True)
class Progress:
    """Where a run is: how many sources have answered question `asked`."""

    asked: int
    query: Query
    answered: int
    sources: int


@dataclass(frozen=True)
class Result:
    """What a calibration gives back.

    `spent` is the ε each source was charged, in the order of the sources; where a source failed
    in a question, that question counts, as it may have been charged. `dropped` says which
    sources left the run, and why. `sketch` is the release itself where the run asked for one:
    it can be saved, merged with others, and read again.
    """

    map: Map
    method: str
    epsilon: float
    campaign: str
    spent: tuple[float, ...]
    rounds: tuple[Asked, ...]
    dropped: dict[str, str]
    sketch: Sketch | None = None


class SourceDropped(UserWarning):
    """A source refused or failed, and the run went on without it."""


def calibrate(
    sources: Sequence[Answers],
    method: str = "acc-t",
    epsilon: float = 1.0,
    *,
    min_sources: int = 1,
    seed: int | None = None,
    asker: str = "local",
    campaign: str | None = None,
    model: str | None = None,
    progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Result:
    """Recalibrate from many sources, spending exactly `epsilon` at each.

    Parameters
    ----------
    sources
        The sources to ask. Each adds its own noise and keeps its own budget.
    method
        A name from `privcal.methods.names()`; `options` are that method's own.
    min_sources
        With fewer sources left than this the run stops with a `CalibrationError`.
    seed
        For the method's own randomness. It never reaches a source: noise is never seeded.
    campaign
        Names the run. Asking again under the same name replays stored answers, free of charge.
    model
        The model being calibrated; a source whose scores came from another refuses.

    A source that refuses or fails is dropped with a warning, from earlier rounds too, because
    averages over different sources must not be compared.
    """
    chosen = methods.make(method, **options)
    if not sources:
        raise InputError("there are no sources to ask")
    if isinstance(min_sources, bool) or not isinstance(min_sources, int) or min_sources < 1:
        raise InputError(f"min_sources must be a whole number of at least 1, not {min_sources!r}")
    _check_distinct(sources)
    nano = to_nano(epsilon)
    campaign = campaign or secrets.token_hex(8)
    Key.parse(asker, campaign)  # complain now rather than through every source's refusal
    if "/" in campaign:
        raise InputError(f"a campaign's name cannot contain a slash: {campaign!r}")
    run = _Run(sources, asker, campaign, model, min_sources, progress)
    [found] = drive(chosen.run(Batch(1, nano, np.random.default_rng(seed))), run.ask)
    facts = {
        "method": method,
        "options": {name: _said(getattr(chosen, name)) for name in options},
        "epsilon_per_source": from_nano(nano) if run.asked else 0.0,
        "sources": len(run.present),
        "campaign": run.campaign,
        "model": model,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "privcal": _version(),
    }
    return Result(
        map=found.with_provenance(**{k: v for k, v in facts.items() if v not in (None, {})}),
        method=method,
        epsilon=from_nano(nano),
        campaign=run.campaign,
        spent=run.spent(),
        rounds=tuple(run.asked),
        dropped=run.dropped,
        sketch=run.sketch(getattr(chosen, "rows_per_person", 1)),
    )


class _Run:
    """The state of one run: who is present, what they answered, what it cost them."""

    def __init__(
        self,
        sources: Sequence[Answers],
        asker: str,
        campaign: str,
        model: str | None,
        min_sources: int,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.sources = dict(zip(_names(sources), sources, strict=True))
        self.present = list(self.sources)
        self.asker, self.campaign, self.model = asker, campaign, model
        self.min_sources, self.progress = min_sources, progress
        self.nano_spent = dict.fromkeys(self.sources, 0)
        self.asked: list[Asked] = []
        self.dropped: dict[str, str] = {}
        self.round = 0

    def ask(self, asks: Sequence[Ask]) -> History:
        """One round: every present source answers every question. Averages of all rounds so far."""
        for index, ask in enumerate(asks):
            query = ask.for_run(0)
            answers: dict[str, tuple[float, ...]] = {}
            for name in list(self.present):
                values = self._answer(name, query, ask.nano_epsilon, f"{self.round}/{index}")
                if values is not None:
                    answers[name] = values
                if self.progress:
                    self.progress(Progress(len(self.asked), query, len(answers), len(self.present)))
            self.asked.append(Asked(self.round, query, from_nano(ask.nano_epsilon), answers))
            if len(self.present) < self.min_sources:
                why = "; ".join(f"{n}: {reason}" for n, reason in list(self.dropped.items())[:3])
                raise CalibrationError(
                    f"only {len(self.present)} of {len(self.sources)} sources are left, "
                    f"fewer than the {self.min_sources} required ({why})",
                    self.spent(),
                )
        self.round += 1
        return History(
            (
                np.mean([asked.answers[n] for n in self.present], axis=0)[None, :]
                for asked in self.asked
            ),
            sources=len(self.present),
        )

    def spent(self) -> tuple[float, ...]:
        return tuple(from_nano(n) for n in self.nano_spent.values())

    def sketch(self, rows_per_person: int) -> Sketch | None:
        """The answers as a sketch, where that was the one question."""
        if len(self.asked) != 1 or not isinstance(query := self.asked[0].query, Hats):
            return None
        [asked] = self.asked
        return Sketch.of(
            query,
            {name: asked.answers[name] for name in self.present},
            to_nano(asked.epsilon),
            asker=self.asker,
            campaign=self.campaign,
            rows_per_person=rows_per_person,
            model=self.model,
        )

    def _answer(self, name: str, query: Query, nano: int, place: str) -> tuple[float, ...] | None:
        try:
            answer = self.sources[name].answer(
                query, Fraction(nano, NANO), f"{self.campaign}/{place}", self.asker, self.model
            )
            values = np.asarray(answer.values, np.float64)
            if values.shape != (query.length,) or not np.isfinite(values).all():
                raise ValueError("its answer is malformed")
        except Exception as problem:
            reason = problem.code if isinstance(problem, Refused) else type(problem).__name__
            if reason in ("unavailable", "lost") or not isinstance(problem, Refused):
                self.nano_spent[name] += nano  # it may have been charged before it failed
            self.present.remove(name)
            self.dropped[name] = reason
            warnings.warn(
                f"{name} left in round {self.round + 1}: {problem}", SourceDropped, stacklevel=5
            )
            return None
        self.nano_spent[name] += answer.nano_epsilon
        return tuple(float(v) for v in values)


def _names(sources: Sequence[Answers]) -> list[str]:
    names = [s.name or f"source {i}" for i, s in enumerate(sources, 1)]
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise InputError(f"two sources are called {twice!r}")
    return names


def _check_distinct(sources: Sequence[Answers]) -> None:
    """Sources that share a ledger would be given each other's stored answers."""
    if len({id(s) for s in sources}) < len(sources):
        raise InputError("the same source is given twice")
    ledgers = [ledger for s in sources if (ledger := getattr(s, "ledger", None)) is not None]
    if len({getattr(ledger, "path", None) or id(ledger) for ledger in ledgers}) < len(ledgers):
        raise InputError("two sources share one ledger; put their rows into one source")


def _said(option: Any) -> Any:
    """An option as the map's provenance tells it; public rows only by their number."""
    return f"{len(option)} rows" if isinstance(option, Scores) else np.asarray(option).tolist()


def _version() -> str:
    from privcal import __version__

    return __version__
