"""The owner's side of a campaign by mail: what a letter asks, in plain words, and the answer to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from privcal.data.panels import undisturbed
from privcal.data.wording import as_odds, asks, plural
from privcal.transport.mail.letters import Given, Letter
from privcal.trusted import approvals
from privcal.trusted.epsilon import from_nano
from privcal.trusted.errors import InputError, Refused
from privcal.trusted.question import Question
from privcal.trusted.source import Source


@dataclass(frozen=True)
class Asked:
    """What a letter asks of a source, and who does: `asker` is the name as the ledger records it."""

    asker: str
    plan: tuple[Question, ...]
    questions: tuple[Question, ...]
    ledgers: tuple[str, ...] | None = None

    @classmethod
    def by(cls, letter: Letter) -> Asked:
        """What a letter asks."""
        return cls(letter.known_as, letter.plan, letter.questions, letter.ledgers)

    @property
    def campaign(self) -> str:
        return self.questions[0].campaign

    @property
    def nano(self) -> int:
        """The nano-ε of all its questions."""
        return sum(question.nano_epsilon for question in self.questions)

    @property
    def whole(self) -> list[Question]:
        """All questions of the campaign, those that are known as they are asked."""
        places = {(q.round, q.index): q for q in (*self.plan, *self.questions)}
        return list(places.values())

    def check(self, source: Source) -> None:
        """Refused unless this source would answer, and could pay, the whole campaign; free."""
        if self.ledgers is not None and source.ledger.id not in self.ledgers:
            raise InputError(
                "this question is for those who answered the one before it, and "
                f"{source.name} did not: nothing was charged"
            )
        try:
            source.reserve(self.whole, self.asker)
        except Refused as refused:
            raise refused from (
                self._who_may(source) if refused.code == "asker" else refused.__cause__
            )

    def _who_may(self, source: Source) -> InputError:
        """Who asked and who may, for the owner alone: an asker from afar is told no other's name."""
        may = ", ".join(source.policy.askers or ()) or "no asker"
        return InputError(
            f"the letter is from {self.asker!r}, and your policy admits: {may}; if you know "
            "where it comes from, add that name to the policy's askers (privcal ledger policy --policy FILE)"
        )

    def answered_before(self, source: Source) -> bool:
        """Whether every question has its answer in the ledger, to be given again, free."""
        return all(source.ledger.has_answer(question, self.asker) for question in self.questions)

    def answer(self, source: Source) -> Given:
        """The answer of a source: charged first, drawn once, the same whenever it is asked for."""
        try:
            with undisturbed():
                answers = [source.answer(question, self.asker) for question in self.questions]
        finally:
            source.release(self.campaign, self.asker)
        values = tuple(answer.points for answer in answers)
        name = source.name or "unnamed"
        return Given(name, answers[0].ledger, source.rows_per_person, values)


def preview(asked: Asked, source: Source, names: Sequence[str] | None = None) -> list[str]:
    """What is asked of a source, what leaves, and what it costs: for its owner to say yes or no."""
    first = asked.questions[0]
    about = "a model that it does not name" if first.model is None else f"model {first.model}"
    numbers = sum(question.query.length for question in asked.questions)
    rounds = 1 + max(question.round for question in asked.plan)
    total = sum(question.nano_epsilon for question in asked.plan)
    lines = [
        f"{asked.asker} asks {source.name}, in campaign {asked.campaign}, about {about}:",
        *(_line(question, names) for question in asked.questions),
        "It is not signed: that it comes from them is only its own word, and whoever carries the answer "
        "can read it. Answer only if you know where it comes from.",
        f"Digest (the asker and the approval page show the same one): {approvals.digest(asked.asker, asked.plan)}",
        f"What leaves: {plural(numbers, 'number')} with noise that is drawn on this machine, the "
        f"name {source.name}, a random id of its ledger, and how many rows of a person count "
        f"({source.rows_per_person}). Never a row, a label, a score or how many there are.",
    ]
    if rounds > 1:
        lines.append(
            f"This is question {first.round + 1} of {rounds}: the whole campaign asks for epsilon "
            f"{from_nano(total):g}, and you can stop after any of them."
        )
    return [*lines, *_cost(asked, source, total)]


def _line(question: Question, names: Sequence[str] | None) -> str:
    return (
        f"  - {asks(question.query, names)}: {plural(question.query.length, 'number')}, for epsilon "
        f"{question.epsilon:g}"
    )


def _cost(asked: Asked, source: Source, total: int) -> list[str]:
    if asked.answered_before(source):
        return ["You have answered it before: the same answer is written again, and costs nothing."]
    policy, spent = source.policy, source.ledger.nano_spent
    whom = "each person" if policy.budget == "person" else "everybody together"
    cost = f"Cost: epsilon {from_nano(asked.nano):g} of the {policy.epsilon:g} on {whom}"
    if policy.budget == "population":
        rest = policy.nano_total - spent - asked.nano
        cost += f"; {from_nano(spent):g} is spent, and {from_nano(rest):g} will remain"
    return [
        f"{cost}.",
        f"For one {source.unit}, at epsilon {from_nano(total):g}: {as_odds(from_nano(total))}.",
    ]
