"""What a method is, and the list of them.

A method is written once, over a batch of B runs: it yields rounds of questions, receives the
averages over sources, and returns one map for each run. A real calibration is a batch of one; a
study is a batch of hundreds that differ in their rows and noise. So decisions are made with
`np.where`, not `if`, and what is benchmarked is what ships.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from privcal.calibration import plugins
from privcal.calibration.maps import KINDS, Map
from privcal.calibration.methods.options import check_known, parse
from privcal.data.scores import Scores
from privcal.secure.round import NoiseLaw, Round
from privcal.trusted.checks import known
from privcal.trusted.errors import InputError
from privcal.trusted.queries import Query
from privcal.trusted.scores import FloatArray

if TYPE_CHECKING:
    from privcal.calibration.sketch.sketch import Sketch


@dataclass(frozen=True)
class Batch:
    """What a method is given."""

    runs: int
    """The number of runs, B."""
    nano_epsilon: int
    """The nano-ε that each run spends at each source."""
    rng: np.random.Generator
    """The method's own randomness; noise never comes from here."""
    noise: NoiseLaw = field(default_factory=NoiseLaw)
    """The law of the noise that is to be expected in the averages."""
    sources: int = 1
    """How many sources are to be asked."""
    rows_per_source: float | None = None
    """About how many rows a source has, where that is publicly known."""


@dataclass(frozen=True)
class Ask:
    """One question to every source of every run, with its share of ε.

    `temperatures` has one entry for each run and replaces the query's own; None where the
    query has no temperature. Where runs differ by more than that, `queries` has the query of each,
    all of one length and bound, and `query` is the first of them.
    """

    query: Query
    nano_epsilon: int
    temperatures: FloatArray | None = None
    queries: Sequence[Query] | None = None

    @classmethod
    def of_runs(cls, queries: Sequence[Query], nano_epsilon: int) -> Ask:
        """One question to every source, another in each run."""
        return cls(queries[0], nano_epsilon, queries=queries)

    def for_run(self, run: int) -> Query:
        if self.queries is not None:
            return self.queries[run]
        return self.query if self.temperatures is None else self.query.at(self.temperatures[run])


class History(list[FloatArray]):
    """The averages over sources for every `Ask` made so far, oldest first, each (B, length).

    All of them come back in every round, because a source that drops out drops out of the
    earlier averages too: only averages over the same sources may be compared. `sources` says
    over how many, and `noise` is the law of the noise in them.
    """

    def __init__(
        self, averages: Iterable[FloatArray] = (), *, sources: int, noise: NoiseLaw | None = None
    ) -> None:
        super().__init__(averages)
        self.sources, self.noise = sources, noise or NoiseLaw()

    def variance(self, nano_epsilon: int) -> float:
        """The variance of the noise in one number of an average that cost so much at each source."""
        return self.noise.variance(nano_epsilon, self.sources)

    @property
    def independent(self) -> int:
        """Of how many sources an average varies as much with the rows that they happen to have."""
        return int(self.noise.independent(self.sources))


Rounds = Generator[Sequence[Ask], History, Sequence[Map]]


@dataclass(frozen=True)
class Plan:
    """What a run is going to ask, and what kinds of map it may return.

    Where a question looks may depend on the answers before it; how many there are, of what kind and
    at what cost does not.
    """

    rounds: Sequence[Sequence[Ask]]
    """The questions of each round, each with its share of ε."""
    makes: tuple[type[Map], ...]
    """The kinds of map."""


def drive(rounds: Rounds, answer: Callable[[Sequence[Ask]], History]) -> Sequence[Map]:
    """Run a method to its end: `answer` turns each round's questions into the history so far."""
    try:
        asks = next(rounds)
        while True:
            asks = rounds.send(answer(asks))
    except StopIteration as stop:
        maps: Sequence[Map] = stop.value
        return maps


@dataclass(frozen=True)
class Method(ABC):
    """What to ask next, and what map to return.

    A method is a frozen dataclass under `register`. Its fields are its options; whatever can be
    wrong with them is said in `__post_init__`, before anything is asked.
    """

    name: ClassVar[str] = ""
    """The name under which the class is registered."""
    takes_public: ClassVar[bool] = False
    """Whether there is an option `public`, for clean labelled scores of the calibrator's own."""
    given: ClassVar[frozenset[str]] = frozenset()
    """The names of the options that `make` was given."""

    @abstractmethod
    def run(self, batch: Batch) -> Rounds:
        """Yield rounds of questions, receive the `History` so far, return one map for each run."""

    def plan(self, batch: Batch) -> Plan:
        """What `run` asks in such a batch of one.

        Without a plan of its own a method is tried: every answer is zero.
        """
        rounds: list[Sequence[Ask]] = []
        history = History(sources=1)

        def answer(asks: Sequence[Ask]) -> History:
            rounds.append(asks)
            history.extend(np.zeros((1, ask.query.length)) for ask in asks)
            return history

        maps: Sequence[Map] = ()
        with (
            np.errstate(all="ignore"),
            warnings.catch_warnings(),
            contextlib.suppress(ArithmeticError),
        ):
            warnings.simplefilter("ignore")
            maps = drive(self.run(batch), answer)
        return Plan(rounds, tuple(map(type, maps)))

    def sketch(self, answered: Sequence[Round], **terms: Any) -> Sketch | None:
        """The answers of a run as a value that can be kept, if the method makes one of them.

        `terms` are those of `Sketch.of`: asker, campaign, ledgers, rows_per_person, model.
        """
        return None

    def options(self) -> dict[str, Any]:
        """The options that were given or are not the defaults, as a map's provenance tells them."""
        values = ((f, _as_json(getattr(self, f.name))) for f in fields(self))
        return {
            f.name: value
            for f, value in values
            if f.name in self.given or value != _as_json(f.default)
        }


def _as_json(option: Any) -> Any:
    """An option as any map's file can hold it, since ε is spent when that is written.

    Public rows are told by their number alone.
    """
    if isinstance(option, Scores):
        return f"{len(option)} rows"
    if isinstance(option, (np.generic, np.ndarray)):
        option = option.tolist()
    if isinstance(option, (tuple, list)):
        return [_as_json(part) for part in option]
    if option is None or isinstance(option, (str, int)):
        return option
    if isinstance(option, float):
        return option if math.isfinite(option) else str(option)
    text = repr(option)
    return type(option).__name__ if " at 0x" in text else text  # an address is a new one every time


def plan(
    method: Method,
    nano_epsilon: int,
    noise: NoiseLaw | None = None,
    sources: int = 1,
    rows_per_source: float | None = None,
) -> list[tuple[int, int, Ask]]:
    """Every question of a method's plan, with its round and its index there, and its share of ε.

    Whatever is wrong with this ε, or with the map that comes out, is said here, before any source is
    asked.
    """
    given = noise or NoiseLaw(), sources, rows_per_source
    planned = method.plan(Batch(1, nano_epsilon, np.random.default_rng(0), *given))
    for kind in planned.makes:
        if kind not in KINDS.values():
            raise InputError(
                f"method {method.name} returns a {kind.__name__}, which is no registered kind of "
                "map, so no file could hold it: put @maps.register(...) above the class"
            )
    return [
        (round, index, ask)
        for round, asks in enumerate(planned.rounds)
        for index, ask in enumerate(asks)
    ]


_METHODS: dict[str, type[Method]] = {}
_ORDER: dict[str, float] = {}
_Class = TypeVar("_Class", bound=type[Method])


def register(name: str, *, order: float = math.inf) -> Callable[[_Class], _Class]:
    """Make a class of methods known under `name`, to `calibrate`, every command and every table.

    Parameters
    ----------
    name
        As people write it; taken names are refused.
    order
        The position among `names()`, where the paper's table gives one; the others follow by name.

    Examples
    --------
    >>> from privcal.maps import TemperatureMap
    >>> @register("lukewarm")
    ... @dataclass(frozen=True)
    ... class Lukewarm(Method):
    ...     temperature: float = 1.5
    ...
    ...     def run(self, batch):
    ...         yield from ()  # asks nothing
    ...         return [TemperatureMap(self.temperature)] * batch.runs
    >>> make("lukewarm", temperature=2.0)
    Lukewarm(temperature=2.0)
    >>> del _METHODS["lukewarm"]
    """

    def add(cls: _Class) -> _Class:
        if name in _METHODS:
            raise InputError(f"a method called {name!r} is already registered")
        if not (isinstance(cls, type) and issubclass(cls, Method)):
            raise InputError(f"method {name} must be a class derived from privcal.methods.Method")
        if taken := [f.name for f in fields(cls) if hasattr(Method, f.name)]:
            raise InputError(f"method {name} cannot have an option {taken[0]}: every method has it")
        cls.name = name
        _METHODS[name], _ORDER[name] = cls, order
        return cls

    return add


def names() -> list[str]:
    """The registered methods: the paper's in the order of its table, then the others by name.

    Those of other packages are among them (see `privcal.calibration.plugins`).

    Examples
    --------
    >>> names()[:3]
    ['uncalibrated', 'one-source', 'histogram-binning']
    """
    plugins.load()
    return sorted(_METHODS, key=lambda name: (_ORDER[name], name))


def find(name: str) -> type[Method]:
    """The class that is registered under a name; its fields are the method's options."""
    if name not in _METHODS:
        known("method", name, names())  # with those of other packages
    return _METHODS[name]


def make(name: str, **options: Any) -> Method:
    """The method of that name with these options, checked.

    Parameters
    ----------
    name
        One of `names()`.
    options
        The method's own, as its class documents them; those left out have their defaults.

    Returns
    -------
    Method
        For `privcal.calibrate`. Whatever is wrong with the options is an `InputError` here, before
        anything is asked: an unknown name, a value out of range, public rows that cannot be used.

    Examples
    --------
    >>> make("ece-t", bins=10)
    EceT(iterations=3, bounds=(0.5, 3.0), search='golden', spacing='linear', bins=10)
    >>> make("ece-t", bins=0)
    Traceback (most recent call last):
    ...
    privcal.trusted.errors.InputError: bins must be a whole number from 1 to 1,000, not 0
    """
    cls = find(name)
    check_known(name, cls, options)
    for f in fields(cls):
        if f.name not in options and f.default is f.default_factory is MISSING:
            raise InputError(f"method {name} needs its option {f.name}")
    method = cls(**options)
    object.__setattr__(method, "given", frozenset(options))
    return method


def parse_options(name: str, texts: Sequence[str]) -> dict[str, Any]:
    """Options of that method, from texts like `bins=30`, for `make`."""
    return parse(name, find(name), texts)
