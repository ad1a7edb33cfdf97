"""Whether a question may be charged: budget, limits, reservations, and the owner's approval.

What is asked here is answered within the transaction that charges, so nothing changes in between.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from privcal.errors import Refused
from privcal.privacy import approvals, chain
from privcal.privacy.approvals import Proposal
from privcal.privacy.policy import Policy
from privcal.privacy.reservations import Reservation
from privcal.question import Question


def check_payable(
    db: sqlite3.Connection,
    policy: Policy,
    asker: str,
    nano: int,
    requests: int,
    others: list[Reservation],
    own: Reservation | None,
) -> None:
    """Refused unless so much more can be paid, beside what others have reserved.

    What the campaign has reserved itself is there for it; the caps hold all the same.
    """
    spent, off = chain.head(db).spent, chain.written_off(db)
    each = policy.budget == "person"
    paid = off if each else spent
    of_one = policy.nano_of(asker)
    by_asker = 0 if of_one is None else chain.spent_by(db, asker)
    if paid + nano > policy.nano_total or (of_one is not None and by_asker + nano > of_one):
        raise Refused("over_budget")
    if own is None or nano > own.nano:
        if each:  # by whoever was new when the oldest of them reserved
            running = [other.since for other in (*others, *([own] if own else []))]
            paid += max(0, spent - off - min(running, default=spent - off))
        held = sum(other.nano for other in others)
        held_by_asker = sum(other.nano for other in others if other.asker == asker)
        if paid + nano + held > policy.nano_total or (
            of_one is not None and by_asker + nano + held_by_asker > of_one
        ):
            raise Refused("reserved")
    rate = policy.requests_per_hour
    if rate is not None:
        beside = [] if own is not None and requests <= own.requests else others
        more = requests + sum(other.requests for other in beside)
        if chain.recent_charges(db, rate) + more > rate:
            raise Refused("too_often")


def disapproval(
    db: sqlite3.Connection,
    policy: Policy,
    questions: Sequence[Question],
    asker: str,
    nano: int,
    offered: bool,
) -> str | None:
    """Why these questions may not be charged yet, or None where their owner approved them.

    A campaign that is not approved is noted as waiting. `nano` is what its questions cost: some of
    them may be answered already.
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
        nano + chain.spent_by(db, asker, campaign),
        approvals.digest(asker, questions),
    )
    rows = db.execute("SELECT * FROM entry WHERE kind = ? ORDER BY seq DESC", (chain.APPROVED,))
    if any(Proposal.of(chain.checked(row)["what"]).cover(wanted) for row in rows):
        return None
    approvals.note(db, wanted, chain.stamp(chain.now()), first=not offered)
    return "awaiting_approval"
