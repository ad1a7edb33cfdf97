"""The loop: ask every source what the method wants to know, give it the averages, return the map.

The words for a question at each of its stages are in `privcal.question`.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any, NoReturn

import numpy as np

from privcal import default, methods
from privcal.checks import one_of, whole
from privcal.errors import REFUSALS, CalibrationError, InputError
from privcal.maps import Map, TemperatureMap
from privcal.methods.base import Answered, Ask, Batch, History, Method, drive, plan
from privcal.panels import Answerer, LocalPanel, Panel, code_of, may_be_charged, own_ledgers
from privcal.plausible import FEWEST, IMPLAUSIBLE, implausible, impossible
from privcal.privacy import approvals
from privcal.privacy.epsilon import from_nano, to_nano
from privcal.privacy.laws import NoiseLaw
from privcal.queries import Query
from privcal.question import Question, check_asker, check_campaign
from privcal.scores import FloatArray, Scores
from privcal.secure import need_cryptography
from privcal.secure.panel import Secure, SecurePanel
from privcal.secure.summing import Step, Unfinished
from privcal.secure.way import Way
from privcal.sketch.evaluation import Estimate
from privcal.sketch.sketch import Sketch
from privcal.source import Answer
from privcal.totals import Total
from privcal.version import __version__
from privcal.wording import plural

AGGREGATIONS = ("each", "secure")
"""How sources answer: each for itself, or all together in sums of which nobody sees a part."""


@dataclass(frozen=True)
class Asked:
    """A question, and the noisy values of each source that answered it.

    In a secure sum nobody sees these: there are no answers then, but their `total`.
    """

    question: Question
    answers: dict[str, tuple[float, ...]]
    total: Total | None = None

    @property
    def round(self) -> int:
        """The round it was asked in, from 0."""
        return self.question.round

    @property
    def query(self) -> Query:
        """The query that was asked."""
        return self.question.query

    @property
    def epsilon(self) -> float:
        """The ε that each source was charged for it."""
        return self.question.epsilon


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
    rounds: tuple[Asked, ...]
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
        """Sources that answered what no honest source does (see `privcal.plausible`)."""
        return tuple(name for name, why in self.dropped.items() if why == IMPLAUSIBLE)

    @property
    def answered(self) -> int:
        """How many sources answered every question."""
        return len(self.spent) - len(self.dropped)

    @property
    def noise(self) -> NoiseLaw | None:
        """For a secure sum, the law of the noise in its averages; None where each source adds its own."""
        totals = [asked.total for asked in self.rounds if asked.total is not None]
        return totals[0].noise if totals else None

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
        from privcal.notebook import Fact, fragment, some

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


class SourceDropped(UserWarning):
    """A source refused or failed, and the run went on without it."""


def calibrate(
    sources: Sequence[Answerer] | Panel | SecurePanel,
    method: str | Method = default.METHOD,
    epsilon: float = 1.0,
    *,
    min_sources: int = 1,
    seed: int | None = None,
    aggregation: str | Secure = "each",
    asker: str = "local",
    campaign: str | None = None,
    model: str | None = None,
    progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Result:
    """Recalibrate from many sources, spending exactly `epsilon` at each.

    Before the first question, sources that could not pay for all of them, or would refuse one, are
    left out, free of charge; with too few others nobody is asked at all. A source that refuses or
    fails later is dropped with a warning, from earlier rounds too, because averages over different
    sources must not be compared. So is one whose answer the others speak against, as far as eight
    or more of them can (see `privcal.plausible`); what it was charged stays spent.

    Parameters
    ----------
    sources
        The sources to ask, or a panel of distant ones. Each adds its own noise and keeps its own
        budget.
    method
        A name from `privcal.methods.names()`, with that method's own `options`; or a method that
        `privcal.methods.make` made. By default the one that `privcal.advise` recommends.
    min_sources
        With fewer sources left than this the run stops with a `CalibrationError`.
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
    min_sources = whole("min_sources", min_sources, 1)
    panel = _panel(sources, asker, aggregation, getattr(chosen, "public", None))
    model = model or getattr(panel, "model", None)
    nano = to_nano(epsilon)
    campaign = campaign or secrets.token_hex(8)
    check_asker(panel.asker)  # complain now rather than through every source's refusal
    check_campaign(campaign)
    run = _Run(panel, campaign, model, min_sources, progress)
    try:
        known = run.noise, panel.sources, panel.rows_per_source
        run.check(plan(chosen, nano, *known))
        batch = Batch(1, nano, np.random.default_rng(seed), *known)
        [found] = drive(chosen.run(batch), run.ask)
    finally:
        panel.release()
    facts = {
        "method": chosen.name,
        "options": chosen.options(),
        "rows_per_person": panel.rows_per_person if panel.rows_per_person > 1 else None,
        "epsilon_per_source": from_nano(nano) if run.asked else 0.0,
        "sources": len(run.present),
        "answered": [_count(asked) for asked in run.asked],
        **run.secure_facts(),
        # How many, not who: a map is shipped to people who have nothing to do with the sources.
        "left_out": run.left_out,
        "campaign": run.campaign,
        "model": model,
        "classes": getattr(panel, "classes", None),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "privcal": __version__,
    }
    return Result(
        map=found.with_provenance(**{k: v for k, v in facts.items() if v not in (None, {}, [])}),
        method=chosen.name,
        epsilon=from_nano(nano),
        campaign=run.campaign,
        spent=run.spent(),
        rounds=tuple(run.asked),
        dropped=run.dropped,
        sketch=run.sketch(chosen),
    )


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


class _Run:
    """The state of one run: the sources that are present, their answers, what it cost them."""

    def __init__(
        self,
        panel: Panel | SecurePanel,
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
        self.asked: list[Asked] = []
        self.dropped: dict[str, str] = {}
        self.ledgers: dict[str, str] = {}
        self.round = 0
        self.numbers = 0  # how many all questions ask for together
        self.compared = False  # whether there ever were enough answers to tell one from the others

    def _question(self, round: int, index: int, ask: Ask) -> Question:
        place = self.campaign, round, index
        return Question(*place, ask.nano_epsilon, ask.for_run(0), self.model)

    @property
    def noise(self) -> NoiseLaw:
        """The law of the noise in the averages: as it is, or as it is to be expected."""
        for asked in self.asked[:1]:
            if asked.total is not None:
                return asked.total.noise
        if isinstance(self.panel, SecurePanel):
            return self.panel.noise
        return NoiseLaw(self.panel.rows_per_person)

    def check(self, planned: Sequence[tuple[int, int, Ask]]) -> None:
        """Stop before anybody is charged, unless enough sources can answer everything."""
        questions = [self._question(*question) for question in planned]
        self.numbers = sum(question.query.length for question in questions)
        try:
            refused = self.panel.refusals(questions)
        except Unfinished as error:
            raise CalibrationError(str(error), self.spent()) from None
        for name, code in refused.items():
            self._drop(name, code, f"is not asked: {_why(code)}")
        if len(self.present) < self.min_sources:
            waits = "awaiting_approval" in self.dropped.values()
            self._stop(
                "can answer",
                "; nobody was asked and nothing charged"
                + (self._when_approved(questions) if waits else ""),
            )

    def _when_approved(self, questions: Sequence[Question]) -> str:
        """The end of a sentence: what the asker tells the owners, and does afterwards."""
        alone = self.panel.alone if isinstance(self.panel, SecurePanel) else None
        digest = approvals.digest(self.panel.asker, questions, alone)
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
        """Let every present source answer one round; returns the averages of all rounds so far."""
        for index, ask in enumerate(asks):
            question = self._question(self.round, index, ask)
            if isinstance(self.panel, SecurePanel):
                self.asked.append(Asked(question, {}, self._total(self.panel, question)))
            else:
                self.asked.append(Asked(question, self._answers(self.panel, question)))
                self._drop_implausible()
            if len(self.present) < self.min_sources:
                self._stop("are left")
        self.round += 1
        averages = (self._average(asked)[None, :] for asked in self.asked)
        newest = self.asked[-1].total  # later ones have less noise: all of the first are in them
        noise = self.noise if newest is None else newest.noise
        return History(averages, sources=len(self.present), noise=noise)

    def _average(self, asked: Asked) -> FloatArray:
        if asked.total is not None:
            return asked.total.average
        return np.asarray(np.mean([asked.answers[name] for name in self.present], axis=0))

    def _answers(self, panel: Panel, question: Question) -> dict[str, tuple[float, ...]]:
        """What each present source answers; those that do not are dropped."""
        answers: dict[str, tuple[float, ...]] = {}
        for name, answer in panel.ask(tuple(self.present), question):
            values = self._values(name, answer, question)
            if values is not None:
                answers[name] = values
            self._tell(question, len(answers), len(self.present))
        return answers

    def _total(self, panel: SecurePanel, question: Question) -> Total:
        """What the present sources answer together; those that do not are dropped."""

        def tell(step: Step) -> None:
            if step.charged:
                self.nano_spent[step.name] += question.nano_epsilon
            if step.left is not None:
                self._leave(step.name, code_of(step.left), step.left)
            self._tell(question, step.done, step.of, step.stage)

        try:
            return panel.total(tuple(self.present), question, tell)
        except Unfinished as error:
            again = f"; ask again as campaign {self.campaign}, what was paid comes back free"
            raise CalibrationError(
                f"{error}; {self._cost(panel)}{again if error.again else ''}", self.spent()
            ) from None

    def _cost(self, panel: SecurePanel) -> str:
        paid = [epsilon for epsilon in self.spent() if epsilon]
        if not paid:
            return "nothing was charged"
        return (
            f"it cost epsilon {max(paid):g} at {plural(len(paid), 'source')}, and {panel.alone} times "
            "that against all others together"
        )

    def _tell(self, question: Question, answered: int, of: int, stage: str | None = None) -> None:
        if self.progress:
            asked, dropped = len(self.asked), dict(self.dropped)
            self.progress(Progress(asked, question.query, answered, of, dropped, stage))

    def _drop_implausible(self) -> None:
        """Drop the sources whose newest answer the others speak against: it is not used."""
        newest = self.asked[-1].answers
        if len(newest) < FEWEST:
            return
        self.compared = True
        odd = implausible(
            [np.array([asked.answers[name] for name in newest]) for asked in self.asked[-2:]],
            [asked.question for asked in self.asked[-2:]],
            self.panel.rows_per_person,
            self.numbers,
        )
        for name in [name for name, out in zip(newest, odd, strict=True) if out]:
            del newest[name]
            self._leave(name, IMPLAUSIBLE, "its answer is implausible beside the others'")

    @property
    def left_out(self) -> int | None:
        """How many were not believed; None where nobody could be told from the others."""
        count = list(self.dropped.values()).count(IMPLAUSIBLE)
        return count if count or self.compared else None

    def secure_facts(self) -> dict[str, Any]:
        """What a map tells of the secure sums that it comes of."""
        if not isinstance(self.panel, SecurePanel):
            return {}
        return {
            "aggregation": "secure",
            "colluding": self.panel.colluding,
            "honest": self.noise.honest,
            "alone": self.noise.alone,
            "groups": self.noise.groups if self.noise.groups > 1 else None,
        }

    def spent(self) -> tuple[float, ...]:
        """The ε each source was charged, in the order of the sources."""
        return tuple(from_nano(n) for n in self.nano_spent.values())

    def sketch(self, method: Method) -> Sketch | None:
        """The answers as a value to keep, if the method makes one of them."""
        answered = [
            Answered(
                asked.query,
                asked.question.nano_epsilon,
                {name: asked.answers[name] for name in self.present if asked.total is None},
                asked.total,
            )
            for asked in self.asked
        ]
        told = {name: self.ledgers[name] for name in self.present if name in self.ledgers}
        return method.sketch(
            answered,
            asker=self.panel.asker,
            campaign=self.campaign,
            ledgers=own_ledgers(told, answered[-1].answers) if answered else {},
            rows_per_person=self.panel.rows_per_person,
            model=self.model,
        )

    def _values(
        self, name: str, answer: Answer | Exception, question: Question
    ) -> tuple[float, ...] | None:
        """The values that a source answered; None if it leaves the run here."""
        if isinstance(answer, Answer):
            values = np.asarray(answer.values, np.float64)
            if values.shape == (question.query.length,) and np.isfinite(values).all():
                self.nano_spent[name] += question.nano_epsilon
                if impossible(values):
                    self._leave(name, IMPLAUSIBLE, "its answer is beyond what any sum can be")
                    return None
                self.ledgers[name] = answer.ledger
                return tuple(float(v) for v in values)
        malformed = ValueError("its answer is malformed")
        problem = answer if isinstance(answer, Exception) else malformed
        if may_be_charged(problem):
            self.nano_spent[name] += question.nano_epsilon
        self._leave(name, code_of(problem), problem)
        return None

    def _leave(self, name: str, reason: str, why: object) -> None:
        self._drop(name, reason, f"left in round {self.round + 1}: {why}")

    def _drop(self, name: str, reason: str, sentence: str) -> None:
        self.present.remove(name)
        self.dropped[name] = reason
        warnings.warn(f"{name} {sentence}", SourceDropped, stacklevel=2)


def _count(asked: Asked) -> int:
    return len(asked.answers if asked.total is None else asked.total.sources)


def _why(code: str) -> str:
    return f"{code}, {REFUSALS[code]}" if code in REFUSALS else code
