"""Sources that are asked together: in this process, or by whatever way to distant ones."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import numpy as np

from privcal.data.sources import check_one_model, check_public, check_queries, check_same
from privcal.data.wording import schema_of
from privcal.trusted.errors import REFUSALS, InputError, Refused
from privcal.trusted.question import Question
from privcal.trusted.scores import Scores
from privcal.trusted.source import Answer, Source

_Reply = TypeVar("_Reply")


class Answerer(Protocol):
    """Anything that answers questions: a local Source, or a way to a distant one."""

    @property
    def name(self) -> str | None: ...

    def answer(self, question: Question, asker: str) -> Answer: ...


class Unusable(RuntimeError):
    """A reply that is not used. `code` says why, in words that are ours and not the source's."""

    def __init__(self, code: str, why: str | None = None) -> None:
        super().__init__(why or code)
        self.code = code


def problem_of(code: str) -> Exception:
    """The exception that a code is of: a refusal, or a reply that is not used."""
    return Refused(code) if code in REFUSALS else Unusable(code)


def code_of(problem: Exception) -> str:
    """Why a source failed, in a word."""
    return str(getattr(problem, "code", None) or type(problem).__name__)


def may_be_charged(problem: Exception) -> bool:
    """Whether a source that failed with this may have charged the question first."""
    return not isinstance(problem, Refused) or problem.code in ("unavailable", "lost")


class Panel(Protocol):
    """Sources that are asked together: in this process, or over a network.

    `names` are those of its sources, `asker` is the name under which they are asked, and
    `rows_per_person` the most rows of one person that count at any of them. How finely they are
    asked goes by `sources`, how many they are, and `rows_per_source`, about how many rows one of
    them has, where owners tell. A panel that goes on with a campaign has those of its beginning.
    """

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def asker(self) -> str: ...

    @property
    def rows_per_person(self) -> int: ...

    @property
    def sources(self) -> int: ...

    @property
    def rows_per_source(self) -> float | None: ...

    def refusals(self, questions: Sequence[Question]) -> dict[str, str]:
        """The sources that will not answer all of these, and why, as far as asking that is free.

        The others reserve what the campaign costs, until `release`.
        """
        ...

    def release(self) -> None:
        """Give back what is still reserved: the run is over."""
        ...

    def ask(
        self, names: Sequence[str], question: Question
    ) -> Iterator[tuple[str, Answer | Exception]]:
        """The answer of each of these sources, or why there is none, in whatever order they come."""
        ...


def away_from(panel: object) -> int:
    """How many sources should have been there beside those of a panel, as far as it knows."""
    away: int = getattr(panel, "away", 0)
    return away


class LocalPanel:
    """Sources in this process, asked one after the other."""

    def __init__(self, sources: Sequence[Answerer], asker: str) -> None:
        if not isinstance(sources, Iterable):
            raise InputError(
                f"a {type(sources).__name__} is not a list of sources: give [source, …]"
            )
        if not sources:
            raise InputError("there are no sources to ask")
        for source in sources:
            if not hasattr(source, "answer"):
                kind = type(source).__name__
                raise InputError(
                    f"a {kind} is not a source: privcal.Source(scores, privcal.Policy(...), "
                    "ledger=None) makes one of Scores"
                )
        _check_distinct(sources)
        self.names: Sequence[str] = _names(sources)
        self.asker = asker
        self.rows_per_person = max(_told(s, "rows_per_person", 1) for s in sources)
        self.sources = len(self.names)
        self.rows_per_source = typical_rows(_told(s, "declared_rows", None) for s in sources)
        self._sources = dict(zip(self.names, sources, strict=True))
        self.schema: dict[str, Any] = {}
        """What the sources' scores are (see `privcal.data.classes.schema_of`), known once they were asked whether they answer."""
        self._campaign: str | None = None  # the one for which the sources have reserved

    @property
    def model(self) -> str | None:
        """The model whose scores these are, where the sources know one and agree on it."""
        known = {source.model for source in self.own.values() if source.model}
        return known.pop() if len(known) == 1 else None

    @property
    def own(self) -> dict[str, Source]:
        """The sources of this process's own, by name."""
        return {name: s for name, s in self._sources.items() if isinstance(s, Source)}

    def refusals(self, questions: Sequence[Question]) -> dict[str, str]:
        return self.offered(questions, lambda _, source: source.offer(questions, self.asker))

    def offered(
        self, questions: Sequence[Question], offer: Callable[[str, Source], str | None]
    ) -> dict[str, str]:
        """The sources that will not answer all of these, and the codes with which they refuse an offer."""
        if not questions:
            return {}
        own = self.own
        facts = (
            (name, rows if rows is None else rows.classes, source.only_confidence)
            for name, source in own.items()
            for rows in [source.rows_in_memory]  # files stay closed
        )
        check_queries(facts, [question.query for question in questions])
        self._campaign = questions[0].campaign
        codes = {name: offer(name, source) for name, source in own.items()}
        refused = {name: code for name, code in codes.items() if code is not None}
        willing = {name: source for name, source in own.items() if name not in refused}
        _check_alike(willing, questions[0].model)
        self.schema = schema_of([source.scores for source in willing.values()])
        return refused

    def check_public(self, public: Scores | None) -> None:
        """Raise InputError where public rows are a source's own; files stay closed until charged."""
        own = ((name, source.rows_in_memory) for name, source in self.own.items())
        if public is not None:
            check_public(public, ((name, rows) for name, rows in own if rows is not None))

    def release(self) -> None:
        for source in self.own.values():
            if self._campaign is not None:
                source.release(self._campaign, self.asker)

    def ask(
        self, names: Sequence[str], question: Question
    ) -> Iterator[tuple[str, Answer | Exception]]:
        return in_turn(names, lambda name: self._sources[name].answer(question, self.asker))


def in_turn(
    names: Iterable[str], do: Callable[[str], _Reply]
) -> Iterator[tuple[str, _Reply | Exception]]:
    """What comes of each source, one after the other, or why nothing does."""
    for name in names:
        try:
            with undisturbed():
                reply: _Reply | Exception = do(name)
        except Exception as problem:
            reply = problem
        yield name, reply


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let Ctrl-C wait for the answer being made: what is charged is stored, and not lost.

    A process that is started meanwhile is not disturbed by it either.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _told(source: Answerer, fact: str, otherwise: int | None) -> Any:
    """What a source tells of its rows."""
    try:
        return getattr(source, fact, otherwise)
    except Refused:  # its ledger is missing: it will not answer
        return otherwise


def typical_rows(declared: Iterable[int | None]) -> float | None:
    """About how many rows a source has, from what owners tell; None where none does.

    The median, so that one who exaggerates changes little.
    """
    told = [rows for rows in declared if rows is not None]
    return float(np.median(told)) if told else None


def own_ledgers(
    told: Mapping[str, str], answers: Mapping[str, Sequence[float]] | None = None
) -> dict[str, str]:
    """The ids of ledgers, by source, of those that are nobody else's: a source may say anything.

    One that two sources say is theirs is neither's, unless they gave the same `answers` too, and
    so have one ledger indeed. Nor is a source's name an id: who has none goes by the name.

    >>> own_ledgers({"north": "4f", "south": "4f", "east": "north", "west": "9a"})
    {'west': '9a'}
    """
    whose: dict[str, set[object]] = {}
    for name, ledger in told.items():
        answer = name if answers is None else tuple(answers[name])
        whose.setdefault(ledger, set()).add(answer)
    return {
        name: ledger
        for name, ledger in told.items()
        if len(whose[ledger]) == 1 and ledger not in told
    }


def _names(sources: Sequence[Answerer]) -> list[str]:
    """The name of each source; where two have the same, the ids of their ledgers tell them apart."""
    names = [s.name or f"source {i}" for i, s in enumerate(sources, 1)]
    counts = Counter(names)
    names = [
        f"{name} ({source.ledger.id[:8]})"
        if counts[name] > 1 and isinstance(source, Source)
        else name
        for name, source in zip(names, sources, strict=True)
    ]
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise InputError(f"two sources are called {twice!r}")
    return names


def _check_alike(sources: Mapping[str, Source], model: str | None) -> None:
    """An InputError unless these sources have one model and one unit of protection."""
    check_one_model([(name, source.scores) for name, source in sources.items()])
    units = [(name, source.unit) for name, source in sources.items()]
    check_same("{} as its unit of protection", units)
    if model is None:  # otherwise those of another model refuse
        check_same("scores of model {}", [(name, s.model) for name, s in sources.items()])


def _check_distinct(sources: Sequence[Answerer]) -> None:
    """An InputError where sources share a ledger: they would be given each other's answers."""
    if len({id(s) for s in sources}) < len(sources):
        raise InputError("the same source is given twice")
    ledgers = [s.ledger for s in sources if isinstance(s, Source) and s.ledger.exists]
    if len({ledger.id for ledger in ledgers}) < len(ledgers):
        raise InputError("two sources share one ledger; put their rows into one source")
