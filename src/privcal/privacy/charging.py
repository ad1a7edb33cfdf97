"""Whether a question may be charged: budget, limits, reservations, and the owner's approval.

What is asked here is answered within the transaction that charges, so nothing changes in between.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from privcal.errors import Refused
from privcal.privacy import approvals, chain
from privcal.privacy.approvals import Proposal
from privcal.privacy.epsilon import Cost
from privcal.privacy.policy import Policy
from privcal.privacy.reservations import Reservation
from privcal.question import Question


def check_payable(
    db: sqlite3.Connection,
    policy: Policy,
    asker: str,
    cost: Cost,
    requests: int,
    others: list[Reservation],
    own: Reservation | None,
) -> None:
    """Refused unless so much more can be paid, beside what others have reserved.

    What the campaign has reserved itself is there for it; the caps hold all the same.
    """
    spent, off = chain.spent(db), chain.written_off(db)
    each = policy.budget == "person"
    room = policy.cap - spent
    if each:
        room = person_room(db, policy, [cost, *(other.cost for other in others)])
    of_one = policy.cap_of(asker)
    own_room = None if of_one is None else of_one - chain.spent_by(db, asker)
    if not cost.within(room) or (own_room is not None and not cost.within(own_room)):
        raise Refused("over_budget")
    if own is None or not cost.within(own.cost):
        held = sum((other.cost for other in others), Cost())
        if each:  # and what whoever was new when the oldest of them reserved has paid since
            charged = (spent - off).nano
            running = [other.since for other in (*others, *([own] if own else []))]
            held += Cost(max(0, charged - min(running, default=charged)))
        by_asker = sum((other.cost for other in others if other.asker == asker), Cost())
        if not (cost + held).within(room) or (
            own_room is not None and not (cost + by_asker).within(own_room)
        ):
            raise Refused("reserved")
    rate = policy.requests_per_hour
    if rate is not None:
        beside = [] if own is not None and requests <= own.requests else others
        more = requests + sum(other.requests for other in beside)
        if chain.recent_charges(db, rate) + more > rate:
            raise Refused("too_often")


def person_room(db: sqlite3.Connection, policy: Policy, wanted: Sequence[Cost] = ()) -> Cost:
    """What may be spent on one person beside what was written off.

    An account tells a person's ε, and not what that cost against everybody else together. It is at
    most so many times the ε as in the most expensive share, of those charged and those `wanted`: with
    an account that is held to what this says, nobody exceeds either total.
    """
    left = policy.cap - chain.written_off(db)
    ratios = (-(-cost.alone // cost.nano) for cost in wanted if cost.nano)
    ratio = max(chain.highest_ratio(db), *ratios, 1)
    return Cost.of(min(left.nano, left.alone // ratio), ratio)


def disapproval(
    db: sqlite3.Connection,
    policy: Policy,
    questions: Sequence[Question],
    asker: str,
    nano: int,
    alone: int | None,
    offered: bool,
) -> str | None:
    """Why these questions may not be charged yet, or None where their owner approved them.

    A campaign that is not approved is noted as waiting. `nano` is what its questions cost: some of
    them may be answered already. `alone` is that of secure sums, None outside of them.
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
        nano + chain.spent_by(db, asker, campaign).nano,
        approvals.digest(asker, questions, alone),
        alone,
    )
    rows = db.execute("SELECT * FROM entry WHERE kind = ? ORDER BY seq DESC", (chain.APPROVED,))
    if any(Proposal.of(chain.checked(row)["what"]).cover(wanted) for row in rows):
        return None
    approvals.note(db, wanted, chain.stamp(chain.now()), first=not offered)
    return "awaiting_approval"
