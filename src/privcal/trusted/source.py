"""A source: scores, a ledger and a policy. It answers questions with exact private noise."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from privcal.trusted.accounts import person_hash
from privcal.trusted.book import Book
from privcal.trusted.chain import Facts, Unit
from privcal.trusted.epsilon import from_nano
from privcal.trusted.errors import InputError, Refused
from privcal.trusted.noise import add_noise
from privcal.trusted.policy import Policy, SecureRules
from privcal.trusted.queries import GRID, Query
from privcal.trusted.question import Question, check_asker, own_copy
from privcal.trusted.scores import FloatArray, IntArray, Scores


@dataclass(frozen=True)
class Answer:
    """What leaves a source: noisy sums, and the question they answer.

    Attributes
    ----------
    points
        The noisy sums as whole numbers, in points of the grid of 2⁻²⁰, one for each number of the query.
    question
        The question as it was asked.
    ledger
        The random id of the ledger that was charged: two answers with one id are about the same
        people, whatever the source is called.

    Examples
    --------
    >>> from privcal import Question, Scores, Source
    >>> from privcal.queries import Gap
    >>> scores = Scores(probabilities=[[0.8, 0.2], [0.3, 0.7]], labels=[0, 1])
    >>> answer = Source(scores, ledger=None).answer(Question.of(Gap(), 0.5, "spring"))
    >>> answer.epsilon, answer.values.shape
    (0.5, (1,))
    """

    points: tuple[int, ...]
    question: Question
    ledger: str = ""

    @property
    def values(self) -> FloatArray:
        """The noisy sums as numbers, of shape (length of the query,)."""
        return np.array(self.points, np.float64) / GRID

    @property
    def epsilon(self) -> float:
        """The ε that was charged."""
        return self.question.epsilon


class Rows(Protocol):
    """Data that are opened only when a charged question needs them: a file, say."""

    @property
    def model(self) -> str | None: ...

    def check_there(self) -> None:
        """Raise InputError where there is nothing to open. Rows play no part."""
        ...

    def read(self) -> Scores:
        """The scores; a malformed row is marked, and counts as zero in every answer."""
        ...


@dataclass(frozen=True)
class Rules:
    """What holds for one question: the ledger's fixed facts, and the policy as narrowed."""

    facts: Facts
    policy: Policy

    @property
    def rows_per_person(self) -> int:
        """How many rows of one person count."""
        return self.policy.rows_per_person if self.facts.unit == "person" else 1

    def sensitivity(self, query: Query) -> int:
        """The most that one person (or row) can change the exact sums, in L1 and grid points."""
        return self.rows_per_person * query.bound

    @property
    def population_cap(self) -> int | None:
        """The cap on all that is spent; None where each person has a budget of their own."""
        return self.policy.nano_total if self.policy.budget == "population" else None


class Source:
    """One data holder's side: private rows, the ledger that protects them, the owner's rules.

    Neighbouring data differ by adding or removing one row, or all rows of one person where the
    ledger's unit of protection is the person. ε is per source: a person present at k sources is
    exposed to kε, and changing a record instead of removing it costs 2ε.

    Parameters
    ----------
    scores
        The private rows, or a way to open them.
    policy
        Rules that narrow those kept in the ledger. For a ledger in memory: its rules.
    ledger
        A ledger made with `Ledger.create` (or `privcal ledger create`), or its file; or None,
        given explicitly, for one in memory: for experiments, because it is forgotten when the
        process ends.
    name
        The name of this source in reports; by default the name kept in the ledger.
    max_rows
        The most rows that count, where the owner declares a bound: the sums are cut to what so
        many rows could give (see `_exact`).

    Examples
    --------
    >>> import numpy as np
    >>> from privcal import Policy, Question, Scores
    >>> from privcal.queries import Histogram
    >>> scores = Scores(logits=np.eye(3), labels=[0, 1, 1])
    >>> source = Source(scores, Policy(epsilon=1.0), ledger=None)
    >>> question = Question.of(Histogram(bins=5), 0.5, "spring")
    >>> answer = source.answer(question)
    >>> answer.values.shape, source.spent
    ((10,), 0.5)
    >>> np.array_equal(source.answer(question).values, answer.values)  # the same, free of charge
    True
    >>> source.spent
    0.5
    """

    def __init__(
        self,
        scores: Scores | Rows,
        policy: Policy | None = None,
        *,
        ledger: Book | str | Path | None,
        name: str | None = None,
        max_rows: int | None = None,
    ) -> None:
        self._data = scores
        self._narrower = policy
        self.max_rows = max_rows
        if ledger is None:
            unit: Unit = "row" if getattr(scores, "person", None) is None else "person"
            self.ledger = Book.in_memory(policy, unit=unit, name=name)
        else:
            self.ledger = ledger if isinstance(ledger, Book) else Book(ledger)
        self._name = name
        self._chosen: dict[tuple[int, str], IntArray] = {}
        self._known: dict[str, list[bytes]] = {}
        if isinstance(scores, Scores) and self.ledger.exists:
            narrowed = self.policy  # an InputError where the two are for different models
            self._check_fits(Rules(self.ledger.facts, narrowed))

    @property
    def name(self) -> str | None:
        """The name of this source in reports, where it has one."""
        if self._name is None and self.ledger.durable:
            try:
                return self.ledger.facts.name
            except Refused:  # missing or damaged: its answers will say so
                return None
        return self._name

    @property
    def policy(self) -> Policy:
        """The owner's rules in the ledger, narrowed by the policy that this source was given."""
        return self.ledger.policy.narrowed(self._narrower)

    @cached_property
    def scores(self) -> Scores:
        """The private rows, read when they are first needed; for the owner's eyes only."""
        return self._data if isinstance(self._data, Scores) else self._data.read()

    @property
    def rows_in_memory(self) -> Scores | None:
        """The private rows where they were given as such; None for data that are still to be opened."""
        return self._data if isinstance(self._data, Scores) else None

    @property
    def only_confidence(self) -> bool:
        """Whether the rows hold just the confidence in each answer, as far as is known unopened."""
        seen = self.__dict__.get("scores", self.rows_in_memory)
        if seen is None:
            return bool(getattr(self._data, "only_confidence", False))
        return bool(seen.outputs.kind == "confidence")

    @property
    def model(self) -> str | None:
        """The model whose scores these are, where it is known."""
        return self._data.model

    def __repr__(self) -> str:
        return f"Source({self.name or 'unnamed'}, {self.ledger!r})"  # no row count: it is private

    def answer(self, question: Question, asker: str = "local") -> Answer:
        """The noisy answer to a question.

        The same asker asking the same again gets the same answer again, free of charge. Question,
        policy, ledger and charge come before the rows are looked at: whatever is refused with
        another code than `unavailable` (or `lost`, where that is asked again) is refused whatever the rows are.

        Parameters
        ----------
        question
            The question. It is read as a copy of our own classes, checked anew.
        asker
            The name of whoever asks, as the ledger keeps it.

        Raises
        ------
        Refused
            With a code that says why (see `privcal.trusted.errors.REFUSALS`); nothing was charged, unless
            the code is `unavailable` or `lost`.
        """
        [question] = _own_copies([question], asker)
        rules = self._rules()
        asked = self.allowed([question], asker, rules)[0]
        values = self.ledger.charge(asked, asker, rules.policy)
        if values is None:
            try:
                values = self._draw(asked, asker, rules)
            except Exception as error:  # whatever it is may tell of the rows
                raise Refused("unavailable") from error
            self.ledger.store(asked, asker, values)
        return Answer(tuple(values), question, rules.facts.id)

    def offer(
        self,
        questions: Sequence[Question],
        asker: str = "local",
        alone: int | None = None,
        secure: SecureRules | None = None,
    ) -> str | None:
        """The code with which this source would refuse `asker` one of a campaign's questions, or None.

        Nothing is charged, and rows play no part. Where it would answer all of them, what that costs
        is kept for the campaign (see `privcal.trusted.reservations`) until it is charged or given back
        (`release`), or the campaign asked nothing for two and a half minutes. Where each person has a budget
        of their own, a run that would exceed it for everybody is refused: it could end in nothing
        but noise. `alone` is that of a secure sum's terms, where they are asked in one, and `secure`
        what is wanted of those beside the policy.
        """
        try:
            self.reserve(questions, asker, alone, secure)
        except Refused as refused:
            return refused.code
        return None

    def reserve(
        self,
        questions: Sequence[Question],
        asker: str = "local",
        alone: int | None = None,
        secure: SecureRules | None = None,
        lasts: float = 0.0,
    ) -> None:
        """Like `offer` for the same `questions`, `asker`, `alone` and `secure`, but a refusal is raised.

        Its cause is for the owner alone. What is kept holds for `lasts` seconds, where that is longer
        than usual, and a week at most.
        """
        questions = _own_copies(questions, asker)
        rules = self._rules() if alone is None else self.secured(secure)
        asked = self.allowed(questions, asker, rules, alone is not None)
        if code := self.ledger.reserve(asked, asker, rules.policy, alone, questions, lasts):
            raise Refused(code)

    def release(self, campaign: str, asker: str = "local") -> None:
        """Give back what a campaign of `asker` has reserved and not used."""
        with suppress(Refused):  # a ledger that is gone has reserved nothing
            self.ledger.release(campaign, asker)

    def _rules(self) -> Rules:
        facts, policy = self.ledger.terms()
        try:
            return Rules(facts, policy.narrowed(self._narrower))
        except InputError as error:  # the narrower rules are for another model
            raise Refused("model") from error

    def secured(self, secure: SecureRules | None) -> Rules:
        """The same for a secure sum, of which `secure` wants more than the policy says.

        Where the policy says nothing of secure sums, `secure` alone does. All that everybody else
        may ever learn is then the owner's total, as ever; a ledger in memory is for experiments,
        and takes their word for it.
        """
        rules = self._rules()
        more = replace(rules.policy, secure=secure)
        experiment = rules.policy.secure is None and not self.ledger.durable
        try:
            both = more if experiment else rules.policy.narrowed(more)
        except InputError as error:  # they are for different rosters
            raise Refused("roster") from error
        return replace(rules, policy=both)

    def allowed(
        self, questions: Sequence[Question], asker: str, rules: Rules, secure: bool = False
    ) -> list[Question]:
        """The `questions` about the model at hand; Refused unless the `rules` let `asker` ask all of them.

        `secure` says that they are asked in secure sums. Rows play no part.
        """
        for question in questions:
            rules.policy.check(question, asker, secure)
        if self.model is not None and any(q.model not in (None, self.model) for q in questions):
            raise Refused("model")
        seen = self.__dict__.get("scores", self.rows_in_memory)  # a file stays closed
        if seen is not None and any(q.query.classes > seen.classes for q in questions):
            raise Refused("model")
        if self.only_confidence and any(q.query.all_classes for q in questions):
            raise Refused("model")
        if not isinstance(self._data, Scores):
            try:
                self._data.check_there()  # a share that is not mounted costs nobody's budget
            except InputError as error:
                raise Refused("unavailable") from error
        return [replace(question, model=self.model or question.model) for question in questions]

    def sensitivity(self, query: Query) -> int:
        """The most that one person (or row) can change the exact sums of `query`, in L1 and grid points."""
        return self._rules().sensitivity(query)

    @property
    def unit(self) -> Unit:
        """Whom privacy protects here: each row, or each person."""
        return self.ledger.unit

    @property
    def rows_per_person(self) -> int:
        """How many rows of one person count; the noise grows with it. It is public, like the policy."""
        return self._rules().rows_per_person

    @property
    def declared_rows(self) -> int | None:
        """About how many rows there are, as the policy tells everybody; never counted here."""
        return self._rules().policy.rows

    @property
    def spent(self) -> float:
        """ε spent so far, over all askers and campaigns."""
        return from_nano(self.ledger.nano_spent)

    def counted_rows(self) -> IntArray:
        """The indices of the rows that count towards answers; for the owner's eyes only."""
        return self._kept(self._rules())

    @property
    def persons(self) -> list[str] | None:
        """Whom each row is about, as the ledger tells persons apart; for the owner's eyes only.

        None where rows are protected.
        """
        return self._persons(self._rules())

    def _exact(
        self,
        query: Query,
        rules: Rules | None = None,
        allowed: Callable[[set[bytes]], set[bytes]] | None = None,
    ) -> IntArray:
        """The exact sums over the rows that count; `allowed` says which persons still do.

        Where the owner declared `max_rows`, each number is cut to what so many rows could make
        it. Cutting to an interval moves no two numbers apart, so the sums of neighbours are no
        further from each other than before, and the sensitivity stays what it is. ∎
        """
        rules = rules or self._rules()
        self.scores.outputs.check_intact()
        contributions = query.contributions(self.scores)
        if self.scores.person is not None:
            kept = self._kept(rules)
            contributions = contributions.take(kept)
            if allowed is not None:
                hashes = self._hashes(rules)
                present = set(hashes)  # of each person at least one row counts
                counting = allowed(present)
                if len(counting) < len(present):
                    contributions = contributions.take([hashes[row] in counting for row in kept])
        total = contributions.sum(query.length)
        if self.max_rows is None:
            return total
        most = self.max_rows * query.bound
        return np.clip(total, -most, most)

    def _draw(self, question: Question, asker: str, rules: Rules) -> list[int]:
        """A new answer: the rows are looked at here, and nowhere before."""
        exact = self.counted(question, asker, rules)
        return self._noisy(exact, question.query, question.nano_epsilon, rules)

    def counted(self, question: Question, asker: str, rules: Rules) -> IntArray:
        """The exact sums of a charged `question` of `asker`, over all persons who may still count."""
        self._check_fits(rules)
        if question.query.classes > self.scores.classes:
            raise InputError(f"there is no class {question.query.classes - 1} in these scores")

        def charge(persons: set[bytes]) -> set[bytes]:
            return self.ledger.charge_persons(question, asker, persons, rules.policy)

        by_person = rules.population_cap is None
        return self._exact(question.query, rules, charge if by_person else None)

    def _noisy(
        self, exact: IntArray, query: Query, nano: int, rules: Rules | None = None
    ) -> list[int]:
        """Exact sums with the noise that such a question gets; all that leaves went through here."""
        return add_noise(exact, (rules or self._rules()).sensitivity(query), nano)

    def _check_fits(self, rules: Rules) -> None:
        """An InputError unless the scores fit: a column left out must not weaken the protection."""
        if rules.facts.unit == "person" and self.scores.person is None:
            raise InputError(
                "the ledger protects persons, but the scores carry no person ids: was their "
                "column renamed or left out?"
            )
        if rules.facts.unit == "row" and self.scores.person is not None:
            raise InputError(
                "the scores carry person ids, but the ledger protects single rows: make the "
                "ledger for persons, or leave the ids out"
            )
        model = rules.policy.model
        if model and self.model and model != self.model:
            raise InputError(
                f"the policy is for model {model!r} but the scores come from {self.model!r}"
            )

    def _kept(self, rules: Rules) -> IntArray:
        """The rows that count, chosen once for as long as the limit and the ledger are the same."""
        persons = self._persons(rules)
        if persons is None:
            return np.arange(len(self.scores))
        chosen = (rules.rows_per_person, rules.facts.secret)
        if chosen not in self._chosen:
            limit, secret = chosen
            self._chosen[chosen] = rows_kept(persons, limit, bytes.fromhex(secret))
        return self._chosen[chosen]

    def _persons(self, rules: Rules) -> list[str] | None:
        """Whom each row is about, as the ledger tells persons apart; None without ids."""
        if self.scores.person is None:
            return None
        persons = {id: rules.facts.person(id) for id in set(self.scores.person)}
        return [persons[id] for id in self.scores.person]

    def _hashes(self, rules: Rules) -> list[bytes]:
        """The hash by which the ledger's accounts know the person of each row."""
        secret = rules.facts.secret
        if secret not in self._known:
            persons = self._persons(rules) or []
            hashes = {who: person_hash(who, bytes.fromhex(secret)) for who in set(persons)}
            self._known[secret] = [hashes[who] for who in persons]
        return self._known[secret]


def _own_copies(questions: Sequence[Question], asker: str) -> list[Question]:
    """These questions as our own copies, which decide what they mean; Refused for anything else."""
    try:
        check_asker(asker)
        return [own_copy(question) for question in questions]
    except (InputError, AttributeError) as error:
        raise Refused("bad_request") from error


def rows_kept(person: list[str], limit: int, secret: bytes) -> IntArray:
    """The indices of at most `limit` rows of each person, chosen by a keyed hash.

    Proof that removing a person changes nothing else: a row is kept depending on the hashes of
    its own person's rows only, each a function of the secret, that person's id and the row's
    index among that person's rows. No other person enters. The secret keeps the choice from
    being known, or steered, by whoever orders the rows. ∎
    """
    rows_of: dict[str, list[int]] = {}
    for row, who in enumerate(person):
        rows_of.setdefault(who, []).append(row)

    def order(who: str, index: int) -> bytes:
        text = f"{index}:{who}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, key=secret, digest_size=16).digest()

    kept: list[int] = []
    for who, rows in rows_of.items():
        if len(rows) > limit:
            ranked = sorted(range(len(rows)), key=lambda index, who=who: order(who, index))  # type: ignore[misc]
            rows = [rows[index] for index in ranked[:limit]]
        kept.extend(rows)
    return np.array(sorted(kept), np.int64)
