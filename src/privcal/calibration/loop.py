"""The loop: ask every source what the method wants to know, give it the averages, return the map.

The words for a question at each of its stages are in `privcal.trusted.question`.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any, NoReturn

import numpy as np

from privcal.calibration import default, methods
from privcal.calibration.maps import Map, TemperatureMap
from privcal.calibration.methods.base import Ask, Batch, History, Method, drive, plan
from privcal.calibration.sketch.evaluation import Estimate
from privcal.calibration.sketch.sketch import Sketch
from privcal.data.panels import (
    Answerer,
    LocalPanel,
    Panel,
    Unusable,
    away_from,
    code_of,
    may_be_charged,
)
from privcal.data.plausible import FEWEST, IMPLAUSIBLE, implausible, impossible
from privcal.data.scores import Scores
from privcal.data.wording import other_classes, plural
from privcal.secure import need_cryptography
from privcal.secure.panel import Secure, SecurePanel
from privcal.secure.round import NoiseLaw, Round
from privcal.secure.summing import Step, Tell, Unfinished, Way
from privcal.trusted import approvals
from privcal.trusted.checks import one_of, whole
from privcal.trusted.epsilon import from_nano, to_nano
from privcal.trusted.errors import REFUSALS, CalibrationError, InputError
from privcal.trusted.queries import Query
from privcal.trusted.question import Question, check_asker, check_campaign
from privcal.trusted.source import Answer
from privcal.version import __version__

AGGREGATIONS = ("each", "secure")
"""How sources answer: each for itself, or all together in sums of which nobody sees a part."""


@dataclass(frozen=True)
class Progress:
    """The state of a run: how many of its sources have answered question number `asked`.

    `dropped` are the sources that have left it so far, and why. A secure sum has three stages, and so
    many have replied in this one: "share", "check" or "open".
    """

    asked: int
    query: Query
    answered: int
    sources: int
    dropped: Mapping[str, str]
    stage: str | None = None


@dataclass(frozen=True)
class Result:
    """What a calibration gives back.

    Attributes
    ----------
    map
        The map from scores to corrected confidence, with its provenance. `note` says what is to be
        minded about it, such as a search that ended at the limit of its range.
    method
        The name of the method.
    epsilon
        The ε that each source was to be charged.
    campaign
        The name of the run: asking again under it is free of charge.
    spent
        The ε each source was charged, in the order of the sources. Where a source failed in a
        question, that question counts, as it may have been charged.
    rounds
        Every question that was asked, with its noisy answers.
    dropped
        The sources that left the run, and why.
    sketch
        The release itself where the run asked for one: it can be saved, merged with others, and
        read again.

    Examples
    --------
    >>> import numpy as np, privcal
    >>> scores = privcal.Scores(logits=np.eye(3), labels=[0, 1, 1])
    >>> sources = [privcal.Source(scores, ledger=None, name=name) for name in ("north", "south")]
    >>> result = privcal.calibrate(sources, "acc-t", epsilon=0.6)
    >>> result.spent, len(result.rounds), sorted(result.rounds[0].answers)
    ((0.6, 0.6), 5, ['north', 'south'])
    """

    map: Map
    method: str
    epsilon: float
    campaign: str
    spent: tuple[float, ...]
    rounds: tuple[Round, ...]
    dropped: dict[str, str]
    sketch: Sketch | None = None

    @property
    def note(self) -> str | None:
        """What the method wants to be known of the map: for a temperature, that the search never
        moved off one end of its range, and what to do then."""
        return self.map.note

    @property
    def unchanged(self) -> float | None:
        """The probability that nothing changed; None where the method did not think of that."""
        return self.map.unchanged

    @property
    def left_out(self) -> tuple[str, ...]:
        """Sources that answered what no honest source does (see `privcal.data.plausible`)."""
        return tuple(name for name, why in self.dropped.items() if why == IMPLAUSIBLE)

    @property
    def answered(self) -> int:
        """How many sources answered every question."""
        return len(self.spent) - len(self.dropped)

    @property
    def noise(self) -> NoiseLaw | None:
        """For a secure sum, the law of the noise in its averages; None where each source adds its own."""
        laws = [round.noise for round in self.rounds if round.noise.secure]
        return laws[0] if laws else None

    @property
    def alone(self) -> float | None:
        """For a secure sum: what everybody else together could have learnt of a source at most, as ε.

        It is `alone` times what a source was charged; None where each source adds its own noise.
        """
        if self.noise is None or self.noise.alone is None:
            return None
        return self.noise.alone * max(self.spent, default=0.0)

    def metrics(self) -> dict[str, float]:
        """The run as a flat dict of finite numbers, as MLflow and its like log them.

        What it cost, who answered, the map's temperature where it has one; and where the run left a
        sketch, what that estimates of the hidden rows: `ece_after` with `ece_after_low` and
        `ece_after_high`, its 95 % credible interval, and so on. Nothing in it was measured on rows, and
        a name with `_low` and `_high` beside it is an estimate.
        """
        found: dict[str, float | None] = {
            "epsilon": max(self.spent, default=0.0),
            "epsilon_alone": self.alone,
            "sources": len(self.spent),
            "answered": self.answered,
            "dropped": len(self.dropped),
            "questions": len(self.rounds),
            "temperature": self.map.temperature if isinstance(self.map, TemperatureMap) else None,
            "unchanged": self.unchanged,
        }
        for name, estimate in ({} if self.sketch is None else self._estimates(self.sketch)).items():
            found[name] = estimate.value
            found |= {f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        return {
            name: value for name, value in found.items() if value is not None and isfinite(value)
        }

    @staticmethod
    def _estimates(sketch: Sketch) -> dict[str, Estimate]:
        public = None if sketch.reader is None else sketch.reader.public
        return sketch.evaluate(public).estimates()

    def __repr__(self) -> str:
        return (
            f"Result({self.method}: {self.map.describe()}; {self.answered} of {len(self.spent)} "
            f"sources, each charged ε = {max(self.spent, default=0.0):g})"
        )

    def _repr_html_(self) -> str:
        from privcal.data.html import Fact, fragment, some

        facts: dict[str, Fact] = {
            "map": self.map.describe(),
            "sources that answered": f"{self.answered:,} of {len(self.spent):,}",
            "ε charged to each": max(self.spent, default=0.0),
            "ε against all others together": self.alone,
            "left out": some([f"{name} ({why})" for name, why in self.dropped.items()]) or None,
            "campaign": self.campaign,
            "note": self.note,
        }
        if self.sketch is not None:
            facts |= {
                name.replace("_", " "): f"{estimate} (estimate)"
                for name, estimate in self._estimates(self.sketch).items()
            }
        return fragment(f"Calibration by {self.method}", facts)


def usual_least(sources: int) -> int:
    """How many of so many sources a run has to have where nobody says: nine tenths, or all but one.

    >>> [usual_least(n) for n in (1, 2, 9, 30)]
    [1, 1, 8, 27]
    """
    return max(1, sources - max(1, sources // 10))


def enough(sources: int) -> str:
    """The end of a sentence: how to be content with so few."""
    return f"; to accept {sources}, give --min-sources {sources}" if sources else ""


class Stopped(CalibrationError):
    """The error of a run that could not finish.

    `codes` says why sources left it, and `final` that the same campaign cannot go on.
    """

    def __init__(
        self, message: str, spent: Sequence[float], codes: Iterable[str], final: bool = False
    ) -> None:
        super().__init__(message, spent)
        self.codes, self.final = frozenset(codes), final


class SourceDropped(UserWarning):
    """A source refused or failed, and the run went on without it."""


def calibrate(
    sources: Sequence[Answerer] | Panel | SecurePanel,
    method: str | Method = default.METHOD,
    epsilon: float = 1.0,
    *,
    min_sources: int | None = None,
    seed: int | None = None,
    aggregation: str | Secure = "each",
    asker: str = "local",
    campaign: str | None = None,
    model: str | None = None,
    class_names: Sequence[str] | None = None,
    progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Result:
    """Recalibrate from many sources, spending exactly `epsilon` at each.

    Before the first question, sources that could not pay for all of them, or would refuse one, are
    left out, free of charge; with too few others nobody is asked at all. A source that refuses or
    fails later is dropped with a warning, from earlier rounds too, because averages over different
    sources must not be compared. So is one whose answer the others speak against, as far as eight
    or more of them can (see `privcal.data.plausible`); what it was charged stays spent.

    Parameters
    ----------
    sources
        The sources to ask, or a panel of distant ones. Each adds its own noise and keeps its own
        budget.
    method
        A name from `privcal.methods.names()`, with that method's own `options`; or a method that
        `privcal.methods.make` made. By default the one that `privcal.advise` recommends.
    min_sources
        With fewer sources left than this the run stops with a `CalibrationError`. By default it stops
        before anybody is charged if more than a tenth of the sources, and more than one, would not
        answer, and goes on with those it has if some leave it later.
    aggregation
        "each": every source adds its own noise and answers by itself. "secure", or
        `privcal.secure.panel.Secure` with what is to be said of it: the sources' answers are summed
        so that nobody sees one of them, and the total has little more noise than one answer has
        otherwise. It needs three sources or more; the first question may go on without some of
        them, every later one needs those of the first. Sources in this process run the real
        protocol too, though whoever runs it could look at their rows.
    seed
        For the method's own randomness. It never reaches a source: noise is never seeded.
    asker
        The name under which these sources are asked; a panel has its own.
    campaign
        The name of the run, by default a random one. Asking again under the same name replays
        stored answers, free of charge.
    model
        The model being calibrated; a source whose scores came from another refuses. By default
        the one that the sources say their scores are of.
    class_names
        What the model's classes are called, in order; by default what the sources in this process,
        or the public rows, call them. Distant sources do not tell.
    progress
        Called after every answer.

    Returns
    -------
    Result
        The map, what it cost, and what was asked.

    Examples
    --------
    >>> import numpy as np, privcal
    >>> rng = np.random.default_rng(0)
    >>> scores = privcal.Scores(logits=rng.normal(size=(60, 3)), labels=rng.integers(0, 3, 60))
    >>> sources = [privcal.Source(scores.take(part), ledger=None) for part in np.split(np.arange(60), 3)]
    >>> result = privcal.calibrate(sources, "acc-t", epsilon=1.0)
    >>> 0.5 <= result.map.temperature <= 6
    True
    >>> result.spent
    (1.0, 1.0, 1.0)
    """
    chosen = methods.make(method, **options) if isinstance(method, str) else method
    if options and chosen is method:
        raise InputError(f"{chosen.name} is made already: give its options to methods.make")
    if min_sources is not None:
        whole("min_sources", min_sources, 1)
    public: Scores | None = getattr(chosen, "public", None)
    panel = _panel(sources, asker, aggregation, public)
    asking = panel if isinstance(panel, SecurePanel) else Each(panel)
    model = model or getattr(panel, "model", None)
    nano = to_nano(epsilon)
    campaign = campaign or secrets.token_hex(8)
    check_asker(panel.asker)  # complain now rather than through every source's refusal
    check_campaign(campaign)
    run = _Run(panel, asking, campaign, model, min_sources, progress)
    try:
        known = run.noise, panel.sources, panel.rows_per_source
        run.check(plan(chosen, nano, *known))
        run.schema = _schema(panel, class_names, public)
        batch = Batch(1, nano, np.random.default_rng(seed), *known)
        [found] = drive(chosen.run(batch), run.ask)
    finally:
        panel.release()
    facts = {
        "method": chosen.name,
        "options": chosen.options(),
        "rows_per_person": panel.rows_per_person if panel.rows_per_person > 1 else None,
        "epsilon_per_source": from_nano(nano) if run.rounds else 0.0,
        "sources": len(run.present),
        "answered": [len(round.sources) for round in run.rounds],
        **asking.facts(run.noise),
        # How many, not who: a map is shipped to people who have nothing to do with the sources.
        "left_out": run.left_out,
        "campaign": run.campaign,
        "model": model,
        **run.schema,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "privcal": __version__,
    }
    return Result(
        map=found.with_provenance(**{k: v for k, v in facts.items() if v not in (None, {}, [])}),
        method=chosen.name,
        epsilon=from_nano(nano),
        campaign=run.campaign,
        spent=run.spent(),
        rounds=tuple(run.rounds),
        dropped=run.dropped,
        sketch=run.sketch(chosen),
    )


def _schema(
    panel: Panel | SecurePanel, class_names: Sequence[str] | None, public: Scores | None
) -> dict[str, Any]:
    """What the map tells of the scores it is for: as the sources' are, else as the asker says."""
    given = class_names or (public.class_names if public is not None else None)
    asked: dict[str, Any] = {
        "classes": None if public is None else public.classes,
        "class_names": None,
    }
    if given:
        asked = {"classes": len(given), "class_names": list(given)}
    theirs = {k: v for k, v in getattr(panel, "schema", {}).items() if v is not None}
    names = theirs.get("class_names")
    if given and names and list(given) != names:
        raise other_classes("this run", given, "its sources", names)
    if None not in (asked["classes"], theirs.get("classes")) and (
        asked["classes"] != theirs["classes"]
    ):
        raise InputError(
            f"the sources have scores of {theirs['classes']} classes, and this run is of a model of "
            f"{asked['classes']}"
        )
    return {k: v for k, v in (asked | theirs).items() if v is not None}


def _panel(
    sources: Sequence[Answerer] | Panel | Way | SecurePanel,
    asker: str,
    aggregation: str | Secure,
    public: Scores | None,
) -> Panel | SecurePanel:
    """Those who are asked, for the kind of answers that is wanted."""
    if not isinstance(aggregation, Secure):
        one_of("aggregation", aggregation, AGGREGATIONS)
    if isinstance(sources, SecurePanel):
        return sources
    distant = hasattr(sources, "ask") or hasattr(sources, "share")
    panel: Any = sources if distant else LocalPanel(sources, asker)  # type: ignore[arg-type]
    if isinstance(panel, LocalPanel):
        panel.check_public(public)
    if aggregation == "each":
        return panel  # type: ignore[no-any-return]
    need_cryptography()
    if isinstance(panel, LocalPanel):
        from privcal.secure.local import LocalWay

        panel = LocalWay(panel)
    if not hasattr(panel, "share"):
        raise InputError("these sources take no part in secure sums: leave out aggregation")
    return SecurePanel(panel, aggregation if isinstance(aggregation, Secure) else Secure())


class Each:
    """Sources that answer each by itself: what they answer becomes a round, as a secure panel's does.

    An answer that no honest source gives, as far as it and the others tell, is not used.
    """

    alone = None

    def __init__(self, panel: Panel) -> None:
        self._panel = panel
        self.noise = NoiseLaw(panel.rows_per_person)
        """The law of the noise that is to be expected in the averages."""
        self.compared = False
        """Whether there ever were enough answers to tell one from the others."""
        self._numbers = 0  # how many all questions ask for together
        self._before: list[Round] = []

    def facts(self, law: NoiseLaw) -> dict[str, Any]:
        """What a map tells of how it was asked for: nothing, as this is the usual way."""
        return {}

    def refusals(self, questions: Sequence[Question]) -> dict[str, str]:
        """Those that will not answer all of these; the others reserve what it all costs."""
        self._numbers = sum(question.query.length for question in questions)
        return self._panel.refusals(questions)

    def ask(self, names: Sequence[str], question: Question, tell: Tell) -> Round:
        """What these sources answer; `tell` hears of every reply, and of every answer that is not used."""
        answers: dict[str, tuple[float, ...]] = {}
        ledgers: dict[str, str] = {}
        left = 0
        for name, reply in self._panel.ask(names, question):
            problem = _problem(reply, question)
            if problem is None:
                assert isinstance(reply, Answer)
                answers[name], ledgers[name] = tuple(reply.values.tolist()), reply.ledger
            charged = problem is None or may_be_charged(problem)
            left += problem is not None
            tell(Step(None, name, len(answers), len(names) - left, charged, problem))
        answered = Round(question, answers, self.noise, ledgers)
        for name in self._implausible([*self._before[-1:], answered]):
            del answers[name]
            why = Unusable(IMPLAUSIBLE, "its answer is implausible beside the others'")
            tell(Step(None, name, len(answers), len(answers), left=why))
        self._before.append(answered)
        return answered

    def _implausible(self, newest: Sequence[Round]) -> list[str]:
        """The sources whose newest answer the others speak against."""
        names = newest[-1].sources
        if len(names) < FEWEST:
            return []
        self.compared = True
        odd = implausible(
            [np.array([each.answers[name] for name in names]) for each in newest],
            [each.question for each in newest],
            self.noise.rows_per_person,
            self._numbers,
        )
        return [name for name, out in zip(names, odd, strict=True) if out]


def _problem(reply: Answer | Exception, question: Question) -> Exception | None:
    """Why a reply is not used, as far as it tells itself; None for an answer that can be."""
    if isinstance(reply, Exception):
        return reply
    points = reply.points if isinstance(reply, Answer) else ()
    if len(points) != question.query.length or not all(type(point) is int for point in points):
        return ValueError("its answer is malformed")
    if impossible(points):
        return Unusable(IMPLAUSIBLE, "its answer is beyond what any sum can be")
    return None


class _Run:
    """The state of one run: the sources that are present, their answers, what it cost them."""

    def __init__(
        self,
        panel: Panel | SecurePanel,
        asking: Each | SecurePanel,
        campaign: str,
        model: str | None,
        min_sources: int | None,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.panel, self.asking = panel, asking
        self.of = len(panel.names) + away_from(panel)
        self.present = list(panel.names)
        self.campaign, self.model = campaign, model
        self.min_sources, self.progress = min_sources or 1, progress
        self.at_first = min_sources or usual_least(self.of)
        self.nano_spent = dict.fromkeys(panel.names, 0)
        self.rounds: list[Round] = []
        self.dropped: dict[str, str] = {}
        self.schema: dict[str, Any] = {}  # what the map tells of the scores it is for
        self.round = 0

    def _question(self, round: int, index: int, ask: Ask) -> Question:
        place = self.campaign, round, index
        return Question(*place, ask.nano_epsilon, ask.for_run(0), self.model)

    @property
    def noise(self) -> NoiseLaw:
        """The law of the noise in the averages: as it is, or as it is to be expected."""
        return self.rounds[0].noise if self.rounds else self.asking.noise

    def check(self, planned: Sequence[tuple[int, int, Ask]]) -> None:
        """Stop before anybody is charged, unless enough sources can answer everything."""
        questions = [self._question(*question) for question in planned]
        try:
            refused = self.asking.refusals(questions)
        except Unfinished as error:
            raise Stopped(str(error), self.spent(), error.left.values()) from None
        for name, code in refused.items():
            self._drop(name, code, f"is not asked: {_why(code)}")
        if len(self.present) < self.at_first:
            waits = "awaiting_approval" in self.dropped.values()
            self._stop(
                "can answer",
                self.at_first,
                "; nobody was asked and nothing charged"
                + (self._when_approved(questions) if waits else "")
                + (enough(len(self.present)) if self.at_first != self.min_sources else ""),
            )

    def _when_approved(self, questions: Sequence[Question]) -> str:
        """The end of a sentence: what the asker tells the owners, and does afterwards."""
        digest = approvals.digest(self.panel.asker, questions, self.asking.alone)
        return (
            f"; once it is approved, ask again as campaign {self.campaign} (--campaign "
            f"{self.campaign}); its digest, to compare with the owners, is {digest}"
        )

    def _stop(self, what: str, least: int, more: str = "") -> NoReturn:
        why = "; ".join(f"{name}: {_why(code)}" for name, code in list(self.dropped.items())[:3])
        raise Stopped(
            f"only {len(self.present)} of {self.of} sources {what}, fewer than the "
            f"{least} required" + (f" ({why})" if why else "") + more,
            self.spent(),
            self.dropped.values(),
        )

    def ask(self, asks: Sequence[Ask]) -> History:
        """Let every present source answer one round; returns the averages of all rounds so far."""
        for index, ask in enumerate(asks):
            self.rounds.append(self._answered(self._question(self.round, index, ask)))
            if len(self.present) < self.min_sources:
                self._stop("are left", self.min_sources)
        self.round += 1
        averages = (each.among(self.present).average[None, :] for each in self.rounds)
        # Later totals have less noise: all of the first are in them.
        return History(averages, sources=len(self.present), noise=self.rounds[-1].noise)

    def _answered(self, question: Question) -> Round:
        """What the present sources answer; those that do not are dropped."""

        def tell(step: Step) -> None:
            if step.charged:
                self.nano_spent[step.name] += question.nano_epsilon
            if step.left is not None:
                sentence = f"left in round {self.round + 1}: {step.left}"
                self._drop(step.name, code_of(step.left), sentence)
            if self.progress:
                asked, dropped = len(self.rounds), dict(self.dropped)
                told = step.done, step.of, dropped, step.stage
                self.progress(Progress(asked, question.query, *told))

        try:
            return self.asking.ask(tuple(self.present), question, tell)
        except Unfinished as error:
            again = f"; ask again as campaign {self.campaign}, what was paid comes back free"
            text = f"{error}; {self._cost()}{again if error.again else ''}"
            final = not error.again
            raise Stopped(text, self.spent(), error.left.values(), final) from None

    def _cost(self) -> str:
        paid = [epsilon for epsilon in self.spent() if epsilon]
        if not paid:
            return "nothing was charged"
        return (
            f"it cost epsilon {max(paid):g} at {plural(len(paid), 'source')}, and {self.asking.alone} "
            "times that against all others together"
        )

    @property
    def left_out(self) -> int | None:
        """How many were not believed; None where nobody could be told from the others."""
        count = list(self.dropped.values()).count(IMPLAUSIBLE)
        return count if count or self.asking.compared else None

    def spent(self) -> tuple[float, ...]:
        """The ε each source was charged, in the order of the sources."""
        return tuple(from_nano(n) for n in self.nano_spent.values())

    def sketch(self, method: Method) -> Sketch | None:
        """The answers as a value to keep, if the method makes one of them."""
        answered = [each.among(self.present) for each in self.rounds]
        return method.sketch(
            answered,
            asker=self.panel.asker,
            campaign=self.campaign,
            ledgers=answered[-1].ledgers if answered else {},
            rows_per_person=self.panel.rows_per_person,
            model=self.model,
            schema=self.schema,
        )

    def _drop(self, name: str, reason: str, sentence: str) -> None:
        self.present.remove(name)
        self.dropped[name] = reason
        warnings.warn(f"{name} {sentence}", SourceDropped, stacklevel=2)


def _why(code: str) -> str:
    return f"{code}, {REFUSALS[code]}" if code in REFUSALS else code
