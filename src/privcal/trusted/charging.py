"""Whether a question may be charged: budget, limits, reservations, and the owner's approval.

What is asked here is answered within the transaction that charges, so nothing changes in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from privcal.trusted import approvals, chain
from privcal.trusted.approvals import Proposal
from privcal.trusted.chain import Chain
from privcal.trusted.epsilon import Cost
from privcal.trusted.policy import Policy
from privcal.trusted.question import Question
from privcal.trusted.reservations import Reservation


@dataclass(frozen=True)
class Bill:
    """What so many requests of `asker` cost, beside what other campaigns have reserved.

    `own` is what the campaign has reserved itself: that is there for it; the caps hold all the same.
    """

    book: Chain
    policy: Policy
    asker: str
    cost: Cost
    requests: int
    others: list[Reservation]
    own: Reservation | None

    def refusal(self) -> str | None:
        """The first rule that keeps this from being charged; None where all are kept."""
        rules = (
            ("over_budget", self._over_budget),
            ("reserved", self._reserved),
            ("too_often", self._too_often),
        )
        return next((code for code, broken in rules if broken()), None)

    def _over_budget(self) -> bool:
        """More than is left, of the total or of the asker's own limit."""
        return not all(self.cost.within(room) for room, _ in self._rooms())

    def _reserved(self) -> bool:
        """More than is left beside what others have reserved, and the campaign has not reserved it."""
        if self.own is not None and self.cost.within(self.own.cost):
            return False
        return not all((self.cost + held).within(room) for room, held in self._rooms())

    def _too_often(self) -> bool:
        """More requests within an hour than the policy lets be; what is reserved will be asked soon."""
        rate = self.policy.requests_per_hour
        if rate is None:
            return False
        foreseen = self.own is not None and self.requests <= self.own.requests
        beside = 0 if foreseen else sum(other.requests for other in self.others)
        self.book.note_clock()
        return self.book.recent_charges(rate) + self.requests + beside > rate

    def _rooms(self) -> list[tuple[Cost, Cost]]:
        """What is left of the total, and of the asker's own limit; each with what is reserved of it."""
        book, policy = self.book, self.policy
        if policy.budget == "person":
            room = person_room(book, policy, [self.cost, *(other.cost for other in self.others)])
        else:
            room = policy.cap - book.spent
        rooms = [(room, _total(self.others) + self._paid_by_a_newcomer())]
        of_one = policy.cap_of(self.asker)
        if of_one is not None:
            own = _total(other for other in self.others if other.asker == self.asker)
            rooms.append((of_one - book.spent_by(self.asker), own))
        return rooms

    def _paid_by_a_newcomer(self) -> Cost:
        """What somebody has paid who was new when the oldest of the running campaigns reserved.

        Only where each person has a budget of their own (see `privcal.trusted.reservations`).
        """
        running = [each.since for each in (*self.others, self.own) if each is not None]
        if self.policy.budget != "person" or not running:
            return Cost()
        return Cost(max(0, (self.book.spent - self.book.written_off).nano - min(running)))


def _total(reservations: Iterable[Reservation]) -> Cost:
    return sum((each.cost for each in reservations), Cost())


def person_room(book: Chain, policy: Policy, wanted: Sequence[Cost] = ()) -> Cost:
    """What may be spent on one person beside what was written off.

    An account tells a person's ε, and not what that cost against everybody else together. It is at
    most so many times the ε as in the most expensive share, of those charged and those `wanted`: with
    an account that is held to what this says, nobody exceeds either total.
    """
    left = policy.cap - book.written_off
    ratios = (-(-cost.alone // cost.nano) for cost in wanted if cost.nano)
    ratio = max(book.highest_ratio, *ratios, 1)
    return Cost.of(min(left.nano, left.alone // ratio), ratio)


def disapproval(
    book: Chain,
    policy: Policy,
    questions: Sequence[Question],
    asker: str,
    nano: int,
    alone: int | None,
    offered: Sequence[Question] | None,
) -> str | None:
    """Why these questions may not be charged yet, or None where their owner approved them.

    A campaign that is not approved is noted as waiting. `nano` is what its questions cost: some of
    them may be answered already. `alone` is that of secure sums, None outside of them. `offered` are
    the questions of an offer as they came, None where one question is asked.
    """
    if not policy.approve:
        return None
    campaign = questions[0].campaign
    wanted = Proposal(
        asker,
        campaign,
        questions[0].model,
        tuple(sorted({question.query.kind for question in questions})),
        len(questions),
        nano + book.spent_by(asker, campaign).nano,
        approvals.digest(asker, offered or questions, alone),
        alone,
        approvals.asked(questions),
    )
    every = (Proposal.of(row["what"]) for row in book.of_kind(chain.APPROVED))
    approved = [proposal for proposal in every if proposal.whose == wanted.whose]
    shown = sum(proposal.nano for proposal in approved)
    if wanted.nano <= shown and any(proposal.cover(wanted) for proposal in approved):
        return None
    approvals.note(book.db, wanted, chain.stamp(chain.now()), first=offered is None)
    return "awaiting_approval"
