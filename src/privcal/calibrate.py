"""The loop: ask every source what the method wants to know, give it the averages, return the map."""

from __future__ import annotations

import json
import secrets
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, NoReturn, Protocol

import numpy as np

from privcal import methods
from privcal.errors import REFUSALS, CalibrationError, InputError, Refused
from privcal.maps import Map
from privcal.methods.base import Ask, Batch, History, drive, plan
from privcal.plausible import FEWEST, IMPLAUSIBLE, implausible, impossible
from privcal.privacy import approvals
from privcal.privacy.epsilon import NANO, from_nano, to_nano
from privcal.privacy.ledger import Asking, Key
from privcal.queries import Hats, Query
from privcal.scores import Scores
from privcal.sketch.saved import Sketch
from privcal.source import Answer, Source
from privcal.sources import check_public


class Answers(Protocol):
    """Anything that answers queries: a local Source, or a way to a distant one."""

    @property
    def name(self) -> str | None: ...

    def answer(
        self, query: Query, epsilon: Fraction, request_id: str, asker: str, model: str | None
    ) -> Answer: ...


@dataclass(frozen=True)
class Question:
    """One question of a campaign, as every source gets it."""

    campaign: str
    round: int
    index: int
    nano_epsilon: int
    query: Query
    model: str | None

    @property
    def request_id(self) -> str:
        return f"{self.campaign}/{self.round}/{self.index}"

    def asked_by(self, asker: str) -> Asking:
        """As a ledger is offered it."""
        # Where a later question looks depends on the answers: only the first are known.
        key, known = Key.parse(asker, self.request_id), self.round == 0
        return Asking(key, self.query, self.nano_epsilon, known)

    def text(self) -> str:
        """The one spelling of a question: what is recorded, and what is signed."""
        facts = {**vars(self), "query": self.query.to_dict()}
        return json.dumps(facts, sort_keys=True, separators=(",", ":"))


class Panel(Protocol):
    """Sources that are asked together: here, or over a network."""

    names: Sequence[str]
    asker: str
    """The name under which these sources are asked."""
    rows_per_person: int
    """The most rows of one person that count at any of them."""

    def refusals(self, questions: Sequence[Question]) -> dict[str, str]:
        """Who will not answer all of these, and why, as far as that can be told for nothing.

        The others keep for this campaign what it costs, until `release`.
        """
        ...

    def release(self) -> None:
        """The run is over: what is still kept for it is given back."""
        ...

    def ask(
        self, names: Sequence[str], question: Question
    ) -> Iterator[tuple[str, Answer | Exception]]:
        """What each of these sources answers, or why it does not, in whatever order it comes."""
        ...


class Here:
    """Sources in this process, asked one after the other."""

    def __init__(self, sources: Sequence[Answers], asker: str) -> None:
        if not sources:
            raise InputError("there are no sources to ask")
        _check_distinct(sources)
        self.names: Sequence[str] = _names(sources)
        self.asker = asker
        self.rows_per_person = max(map(_rows_per_person, sources))
        self._sources = dict(zip(self.names, sources, strict=True))
        self._campaign: str | None = None
        """For which the sources keep what it costs."""

    def refusals(self, questions: Sequence[Question]) -> dict[str, str]:
        if not questions:
            return {}
        own = {name: s for name, s in self._sources.items() if isinstance(s, Source)}
        asked = [question.asked_by(self.asker) for question in questions]
        self._campaign, model = questions[0].campaign, questions[0].model
        found = {
            name: source.offer(asked, self._campaign, self.asker, model)
            for name, source in own.items()
        }
        refused = {name: code for name, code in found.items() if code is not None}
        _check_alike({name: s for name, s in own.items() if name not in refused}, model)
        return refused

    def release(self) -> None:
        for source in self._sources.values():
            if isinstance(source, Source) and self._campaign is not None:
                source.release(self.asker, self._campaign)

    def ask(
        self, names: Sequence[str], question: Question
    ) -> Iterator[tuple[str, Answer | Exception]]:
        for name in names:
            try:
                with _undisturbed():
                    answer: Answer | Exception = self._sources[name].answer(
                        question.query,
                        Fraction(question.nano_epsilon, NANO),
                        question.request_id,
                        self.asker,
                        question.model,
                    )
            except Exception as problem:
                answer = problem
            yield name, answer


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C waits for the answer it comes into: what is charged is stored, and not lost."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
    dropped: Mapping[str, str]
    """Who has left the run so far, and why."""


@dataclass(frozen=True)
class Result:
    """What a calibration gives back.

    `spent` is the ε each source was charged, in the order of the sources; where a source failed
    in a question, that question counts, as it may have been charged. `dropped` says which
    sources left the run, and why; `left_out` those whose answers were not believed. `sketch` is
    the release itself where the run asked for one: it can be saved, merged with others, and read
    again.
    """

    map: Map
    method: str
    epsilon: float
    campaign: str
    spent: tuple[float, ...]
    rounds: tuple[Asked, ...]
    dropped: dict[str, str]
    sketch: Sketch | None = None

    @property
    def left_out(self) -> tuple[str, ...]:
        """Sources that answered what no honest source does (see `privcal.plausible`)."""
        return tuple(name for name, why in self.dropped.items() if why == IMPLAUSIBLE)


class SourceDropped(UserWarning):
    """A source refused or failed, and the run went on without it."""


def calibrate(
    sources: Sequence[Answers] | Panel,
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
        The sources to ask, or a panel of distant ones. Each adds its own noise and keeps its own
        budget.
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

    Before the first question, sources that could not pay for all of them, or would refuse one, are
    left out, free of charge; with too few others nobody is asked at all. A source that refuses or
    fails later is dropped with a warning, from earlier rounds too, because averages over different
    sources must not be compared. So is one whose answer the others speak against, as far as eight
    or more of them can (see `privcal.plausible`); what it was charged stays spent.
    """
    chosen = methods.make(method, **options)
    if isinstance(min_sources, bool) or not isinstance(min_sources, int) or min_sources < 1:
        raise InputError(f"min_sources must be a whole number of at least 1, not {min_sources!r}")
    panel: Panel = sources if hasattr(sources, "ask") else Here(sources, asker)  # type: ignore[assignment]
    rows = panel.rows_per_person
    if rows > 1 and hasattr(chosen, "rows_per_person") and "rows_per_person" not in options:
        options["rows_per_person"] = rows  # the most noise that any of them adds
        chosen = methods.make(method, **options)
    if isinstance(public := options.get("public"), Scores) and not hasattr(sources, "ask"):
        local = [source for source in sources if isinstance(source, Source)]
        check_public(public, ((source.name or "a source", source.scores) for source in local))
    nano = to_nano(epsilon)
    campaign = campaign or secrets.token_hex(8)
    Key.parse(panel.asker, campaign)  # complain now rather than through every source's refusal
    if "/" in campaign:
        raise InputError(f"a campaign's name cannot contain a slash: {campaign!r}")
    run = _Run(panel, campaign, model, min_sources, progress)
    try:
        run.check(plan(chosen, nano))
        [found] = drive(chosen.run(Batch(1, nano, np.random.default_rng(seed))), run.ask)
    finally:
        panel.release()
    facts = {
        "method": method,
        "options": {name: _said(getattr(chosen, name)) for name in options},
        "epsilon_per_source": from_nano(nano) if run.asked else 0.0,
        "sources": len(run.present),
        "answered": [len(asked.answers) for asked in run.asked],
        # How many, not who: a map is shipped to people who have nothing to do with the sources.
        "left_out": run.left_out,
        "campaign": run.campaign,
        "model": model,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "privcal": _version(),
    }
    return Result(
        map=found.with_provenance(**{k: v for k, v in facts.items() if v not in (None, {}, [])}),
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
        panel: Panel,
        campaign: str,
        model: str | None,
        min_sources: int,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.panel = panel
        self.present = list(panel.names)
        self.campaign, self.model = campaign, model
        self.min_sources, self.progress = min_sources, progress
        self.nano_spent = dict.fromkeys(panel.names, 0)
        self.questions: list[Question] = []
        self.asked: list[Asked] = []
        self.dropped: dict[str, str] = {}
        self.ledgers: dict[str, str] = {}
        self.round = 0
        self.numbers = 0
        """Of all questions together."""
        self.compared = False
        """Whether there ever were enough answers to tell one from the others."""

    def check(self, planned: Sequence[tuple[int, int, Ask]]) -> None:
        """Before anybody is charged: are there enough sources that can answer everything?"""
        questions = [
            Question(self.campaign, round, index, ask.nano_epsilon, ask.for_run(0), self.model)
            for round, index, ask in planned
        ]
        self.numbers = sum(question.query.length for question in questions)
        for name, code in self.panel.refusals(questions).items():
            self.present.remove(name)
            self.dropped[name] = code
            warnings.warn(f"{name} is not asked: {_why(code)}", SourceDropped, stacklevel=4)
        if len(self.present) < self.min_sources:
            waits = "awaiting_approval" in self.dropped.values()
            self._stop(
                "can answer",
                "; nobody was asked and nothing charged"
                + (self._when_approved(questions) if waits else ""),
            )

    def _when_approved(self, questions: Sequence[Question]) -> str:
        """What an asker tells the owners, and does afterwards."""
        asked = [(q.round, q.index, q.nano_epsilon, q.query.canonical()) for q in questions]
        digest = approvals.digest(self.panel.asker, self.campaign, asked)
        return (
            f"; once it is approved, ask again as campaign {self.campaign} (--campaign "
            f"{self.campaign}); the digest of its questions is {digest}"
        )

    def _stop(self, what: str, more: str = "") -> NoReturn:
        why = "; ".join(f"{name}: {_why(code)}" for name, code in list(self.dropped.items())[:3])
        raise CalibrationError(
            f"only {len(self.present)} of {len(self.nano_spent)} sources {what}, fewer than the "
            f"{self.min_sources} required" + (f" ({why})" if why else "") + more,
            self.spent(),
        )

    def ask(self, asks: Sequence[Ask]) -> History:
        """One round: every present source answers every question. Averages of all rounds so far."""
        for index, ask in enumerate(asks):
            query = ask.for_run(0)
            question = Question(
                self.campaign, self.round, index, ask.nano_epsilon, query, self.model
            )
            answers: dict[str, tuple[float, ...]] = {}
            for name, answer in self.panel.ask(tuple(self.present), question):
                values = self._values(name, answer, question)
                if values is not None:
                    answers[name] = values
                if self.progress:
                    self.progress(
                        Progress(
                            len(self.asked),
                            query,
                            len(answers),
                            len(self.present),
                            dict(self.dropped),
                        )
                    )
            self.questions.append(question)
            self._believe(answers)
            self.asked.append(Asked(self.round, query, from_nano(ask.nano_epsilon), answers))
            if len(self.present) < self.min_sources:
                self._stop("are left")
        self.round += 1
        return History(
            (
                np.mean([asked.answers[n] for n in self.present], axis=0)[None, :]
                for asked in self.asked
            ),
            sources=len(self.present),
        )

    def _believe(self, answers: dict[str, tuple[float, ...]]) -> None:
        """Whoever answered what the others speak against leaves the run: its answer is not used."""
        if len(answers) < FEWEST:
            return
        self.compared = True
        odd = implausible(
            [
                np.array([given[name] for name in answers])
                for given in (*(asked.answers for asked in self.asked[-1:]), answers)
            ],
            self.questions[-2:],
            self.panel.rows_per_person,
            self.numbers,
        )
        for name in [name for name, out in zip(answers, odd, strict=True) if out]:
            del answers[name]
            self._leave(name, IMPLAUSIBLE, "its answer is implausible beside the others'")

    @property
    def left_out(self) -> int | None:
        """How many were not believed; None where nobody could be told from the others."""
        found = list(self.dropped.values()).count(IMPLAUSIBLE)
        return found if found or self.compared else None

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
            {name: self.ledgers[name] for name in self.present},
            to_nano(asked.epsilon),
            asker=self.panel.asker,
            campaign=self.campaign,
            rows_per_person=rows_per_person,
            model=self.model,
        )

    def _values(
        self, name: str, answer: Answer | Exception, question: Question
    ) -> tuple[float, ...] | None:
        """What a source answered; None if it leaves the run here."""
        problem = answer if isinstance(answer, Exception) else None
        if isinstance(answer, Answer):
            values = np.asarray(answer.values, np.float64)
            if values.shape == (question.query.length,) and np.isfinite(values).all():
                self.nano_spent[name] += answer.nano_epsilon
                if impossible(values):
                    self._leave(name, IMPLAUSIBLE, "its answer is beyond what any sum can be")
                    return None
                self.ledgers[name] = answer.ledger
                return tuple(float(v) for v in values)
            problem = ValueError("its answer is malformed")
        reason = getattr(problem, "code", None) or type(problem).__name__
        if reason in ("unavailable", "lost") or not isinstance(problem, Refused):
            self.nano_spent[name] += question.nano_epsilon  # it may have been charged first
        self._leave(name, reason, problem)
        return None

    def _leave(self, name: str, reason: str, said: object) -> None:
        self.present.remove(name)
        self.dropped[name] = reason
        warnings.warn(f"{name} left in round {self.round + 1}: {said}", SourceDropped, stacklevel=6)


def _rows_per_person(source: Answers) -> int:
    try:
        return int(getattr(source, "rows_per_person", 1))
    except Refused:  # its ledger is missing: it will not answer
        return 1


def _why(code: str) -> str:
    return f"{code}, {REFUSALS[code]}" if code in REFUSALS else code


def _names(sources: Sequence[Answers]) -> list[str]:
    """What each source is called; where two have one name, the ids of their ledgers tell them apart."""
    names = [s.name or f"source {i}" for i, s in enumerate(sources, 1)]
    often = Counter(names)
    names = [
        f"{name} ({source.ledger.id[:8]})"
        if often[name] > 1 and isinstance(source, Source)
        else name
        for name, source in zip(names, sources, strict=True)
    ]
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise InputError(f"two sources are called {twice!r}")
    return names


def _check_alike(sources: Mapping[str, Source], model: str | None) -> None:
    """One map is for one model, and one promise for one unit of protection."""
    facts: list[tuple[str, Callable[[Source], object]]] = [
        ("scores of {} classes", lambda source: source.scores.classes),
        ("{} as its unit of protection", lambda source: source.unit),
    ]
    if model is None:  # otherwise those of another model refuse
        facts.append(("scores of model {}", lambda source: source.model))
    for what, fact in facts:
        found = {fact(source): name for name, source in sources.items() if fact(source)}
        if len(found) > 1:
            (one, first), (other, second) = list(found.items())[:2]
            raise InputError(
                f"{first} has {what.format(one)}, {second} {what.format(other)}: ask them apart"
            )


def _check_distinct(sources: Sequence[Answers]) -> None:
    """Sources that share a ledger would be given each other's stored answers."""
    if len({id(s) for s in sources}) < len(sources):
        raise InputError("the same source is given twice")
    ledgers = [s.ledger for s in sources if isinstance(s, Source) and s.ledger.exists]
    if len({ledger.id for ledger in ledgers}) < len(ledgers):
        raise InputError("two sources share one ledger; put their rows into one source")


def _said(option: Any) -> Any:
    """An option as the map's provenance tells it; public rows only by their number."""
    return f"{len(option)} rows" if isinstance(option, Scores) else np.asarray(option).tolist()


def _version() -> str:
    from privcal import __version__

    return __version__
