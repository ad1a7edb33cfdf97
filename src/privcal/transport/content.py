"""What is inside letters: a calibrator's request to one site, and the site's reply.

`letter` seals and signs them. A site's data process knows the content alone.

A request says of which federation and roster it is, between whom, when it was made and how long it
holds, and brings the key that the reply is sealed for. A reply names the letter that it answers.
Its length depends on how many numbers were asked for, and in a secure sum of how many sites, and on
nothing else: a refusal is as long as an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from privcal.secure import canonical
from privcal.secure.boxes import Box, sealed_size
from privcal.secure.keys import HYBRID, OVERHEAD, check_public_key
from privcal.secure.terms import MAX_SITES, Terms, read_terms
from privcal.transport.letter import DIGEST, MAX_LETTER, Stamp, check_id
from privcal.trusted.checks import whole
from privcal.trusted.errors import InputError
from privcal.trusted.policy import SecureRules
from privcal.trusted.question import Question, check_campaign, read_question

MAX_QUESTIONS = 128
"""The longest search asks 101."""
MAX_LIFETIME = 90 * 24 * 3600
"""Seconds that a letter may hold."""
SECURE = ("share", "check", "open")
"""The kinds of request of a secure sum, as they follow each other."""
KINDS = ("about", "ask", "release", *SECURE)

_ROOM, _ROOM_FOR_ONE = 256, 24
"""Bytes of a reply: the most that its facts need, and the most that one number needs."""
_ROOM_FOR_A_SUM = 40
"""The same for one number of a part of a secure sum: there are 39 digits below 2¹²⁷."""
_ROOM_FOR_A_BOX = 128
"""What a box needs beside itself and two names: a signature and what stands between."""
_BESIDE = 8192
"""Bytes that all else in a letter of a secure sum needs: keys, the question, the outside."""


@dataclass(frozen=True)
class Request:
    """A calibrator's request to one site.

    kind
        "about": what does the owner tell everybody? With a plan: would the site answer all of it?
        That costs nothing and reserves the budget. "ask": questions, to be answered. "release": the
        plan will not be asked. And the three of a secure sum: "share", "check", "open".
    federation, roster
        The federation's ID, and the number and digest of the roster that the asker goes by.
    sender, reader
        The IDs of both; those on the outside of the letter must be the same.
    issued, until
        When it was made and until when it holds, in Unix seconds.
    reply_key
        The public half of a sealing key that was made for the replies of one round.
    plan
        All questions of the campaign; those of later rounds are here for their kind and their cost.
    questions
        Those that are to be answered now.
    terms
        Those of a secure sum, which name its question; with a plan, of one of the campaign's.
    boxes
        What dealers sealed for this site, and signed, by their names: to check or open.
    """

    kind: str
    federation: str
    roster: Stamp
    sender: str
    reader: str
    campaign: str
    issued: int
    until: int
    reply_key: str
    plan: tuple[Question, ...] = ()
    questions: tuple[Question, ...] = ()
    terms: Terms | None = None
    boxes: Mapping[str, Box] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in KINDS:
            raise InputError(f"a request must be one of {', '.join(KINDS)}")
        for id in (self.federation, self.sender, self.reader):
            check_id(id)
        check_stamp(self.roster)
        check_campaign(self.campaign)
        for name in ("issued", "until"):
            whole(name, getattr(self, name), 0, 2**53)
        whole("seconds that a letter holds", self.until - self.issued, 1, MAX_LIFETIME)
        check_public_key(self.reply_key)
        self._check_questions()
        self._check_secure()

    def _check_questions(self) -> None:
        asking = self.kind == "ask"
        if asking != bool(self.questions) or len(self.questions) > MAX_QUESTIONS:
            raise InputError(f"a letter that asks must have 1 to {MAX_QUESTIONS} questions")
        if len(self.plan) > MAX_QUESTIONS or (self.plan and self.kind not in ("about", "ask")):
            raise InputError(f"a plan of up to {MAX_QUESTIONS} questions is in about and ask alone")
        everything = (*self.plan, *self.questions)
        if any(question.campaign != self.campaign for question in everything):
            raise InputError("all questions of a letter must be of its campaign")
        if len({question.model for question in everything}) > 1:
            raise InputError("all questions of a letter must be about one model")
        for some in (self.plan, self.questions):
            if len({(one.round, one.index) for one in some}) < len(some):
                raise InputError("a question of a letter is there twice")
        if asking:
            self._check_planned()

    def _check_planned(self) -> None:
        """InputError unless the questions are at their places in the plan, at its cost."""
        planned = {(q.round, q.index): q for q in self.plan}
        for asked in self.questions:
            other = planned.get((asked.round, asked.index))
            if other is None or _cost(asked) != _cost(other):
                raise InputError("its questions are not those that the campaign's plan tells of")

    def _check_secure(self) -> None:
        """InputError unless terms and boxes are those that a request of this kind has."""
        with_boxes = self.kind in ("check", "open")
        if with_boxes != bool(self.boxes):
            raise InputError(f"boxes are in requests to check and to open, not in {self.kind}")
        if self.terms is None:
            if self.kind in SECURE:
                raise InputError(f"{self.kind} needs terms")
            return
        if self.kind not in ("about", *SECURE) or (self.kind == "about" and not self.plan):
            raise InputError(f"{self.kind} has no terms")
        if self.terms.question.campaign != self.campaign:
            raise InputError("the terms of a letter must be of its campaign")
        if not set(self.boxes) <= set(self.terms.sites):
            raise InputError(f"{self.kind} has boxes of other sites than its terms name")
        longest = max(self.plan, key=lambda asked: asked.query.length, default=None)
        check_fits(self.terms if longest is None else self.terms.about(longest))

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many numbers each of its answers has: none but for questions and what opens a sum."""
        if self.kind == "open" and self.terms is not None:
            return (self.terms.question.query.length,)
        return tuple(question.query.length for question in self.questions)

    @property
    def model(self) -> str | None:
        """The model it is about: a letter is about one."""
        if self.terms is not None:
            return self.terms.question.model
        return next((question.model for question in (*self.questions, *self.plan)), None)

    @property
    def room(self) -> int:
        """Bytes of every reply's content, whatever it says."""
        if self.terms is not None and self.kind == "share":
            return _room_of_boxes(self.terms)
        if self.terms is not None and self.kind == "check":
            return _ROOM + sum(len(name) + 3 for name in self.terms.sites)
        one = _ROOM_FOR_A_SUM if self.kind == "open" else _ROOM_FOR_ONE
        return _ROOM + sum(4 + one * length for length in self.lengths)

    @property
    def text(self) -> str:
        """The one spelling of a request, which is what is sealed."""
        facts = {
            **vars(self),
            "plan": [question.facts() for question in self.plan],
            "questions": [question.facts() for question in self.questions],
            "terms": None if self.terms is None else self.terms.text,
        }
        return canonical.write(facts)

    @classmethod
    def read(cls, text: Any) -> Request:
        """A request from its one spelling; InputError for whatever else it is."""
        facts = canonical.read_any_spelling(text, MAX_LETTER)  # its spelling is looked at below
        if set(facts) != {f.name for f in fields(cls)}:
            raise InputError("a request has other parts")
        for name in ("plan", "questions", "roster"):
            if not isinstance(facts[name], list) or len(facts[name]) > MAX_QUESTIONS:
                raise InputError(f"{name} must be a list, and not too long")
        read = {
            "roster": tuple(facts["roster"]),
            "plan": tuple(map(read_question, facts["plan"])),
            "questions": tuple(map(read_question, facts["questions"])),
            "terms": None if facts["terms"] is None else read_terms(facts["terms"], MAX_LETTER),
            "boxes": _read_boxes(facts["boxes"]),
        }
        request = cls(**{**facts, **read})
        if request.text != text:  # 2 for 2.0, or a parameter left to its default
            raise InputError("a request has one spelling")
        return request


def check_stamp(stamp: Any) -> None:
    """InputError unless this is a roster's number and digest."""
    if not isinstance(stamp, tuple) or len(stamp) != 2:
        raise InputError("a roster must be named by its number and digest")
    whole("the number of a roster", stamp[0], 1, 2**31)
    if not isinstance(stamp[1], str) or not DIGEST.fullmatch(stamp[1]):
        raise InputError("a roster must be named by its number and digest")


def _cost(question: Question) -> tuple[int, str, int]:
    return question.nano_epsilon, question.query.kind, question.query.length


def _room_of_boxes(terms: Terms) -> int:
    """Bytes for all that a site deals: they go by who is asked and how many numbers, no more."""
    each = 4 * -(-sealed_size(terms, HYBRID) // 3) + _ROOM_FOR_A_BOX
    return _ROOM + sum(each + len(name) for name in terms.sites)


def check_fits(terms: Terms) -> None:
    """InputError where a secure sum of so many sites and numbers has no room in a letter."""
    # What opens a sum is the longer letter: it has the terms, too, which name every site again.
    again = sum(len(name) + 5 for name in terms.sites)
    needed, most = _room_of_boxes(terms) + again, 3 * MAX_LETTER // 4 - OVERHEAD[HYBRID] - _BESIDE
    if needed > most:
        sites, numbers = len(terms.sites), terms.question.query.length
        raise InputError(
            f"a secure sum of {sites:,} sites and {numbers} numbers does not fit into a letter; ask "
            f"at most {sites * most // needed:,} of them together, or for fewer numbers"
        )


def _read_boxes(facts: Any) -> dict[str, Box]:
    """Boxes by their dealers' names; what is in them, the one who can open them finds out."""
    if not isinstance(facts, dict) or len(facts) > MAX_SITES:
        raise InputError("boxes must be a table of dealers, and not too long")
    if not all(
        isinstance(box, list) and len(box) == 2 and all(isinstance(part, str) for part in box)
        for box in facts.values()
    ):
        raise InputError("a box must be what was sealed, and its signature")
    return {name: (sealed, signature) for name, (sealed, signature) in facts.items()}


@dataclass(frozen=True)
class Reply:
    """What a site says to a request: whole numbers on the grid and three public facts, yes, or a code.

    In a secure sum: what it dealt, whose boxes are bad, or its part of the sum.
    """

    answers: tuple[tuple[int, ...], ...] = ()
    """The numbers of each question that was asked."""
    rows_per_person: int = 1
    max_rows: int | None = None
    """The owner's public upper bound on the rows that count, where it declares one."""
    ledger: str = ""
    """The random id of the site's ledger: two answers with one id are about the same people."""
    refused: str | None = None
    accepted: bool = False
    """Yes to a plan or a release."""
    rows: int | None = None
    """With yes: about how many rows the owner says there are, where that is told."""
    rules: SecureRules | None = None
    """With yes to "about": what must be so in secure sums; then `rows_per_person` is told as well."""
    dealt: str | None = None
    """The boxes for all sites, as `privcal.secure.participant` spells them."""
    bad: tuple[str, ...] | None = None
    """The dealers whose boxes cannot be opened."""
    sums: tuple[int, ...] | None = None
    """The sum of the shares in the boxes, below the prime."""

    @property
    def facts(self) -> dict[str, Any]:
        """Its parts as JSON has them."""
        if self.refused:
            return {"refused": self.refused}
        if self.accepted:
            told = {} if self.rows is None else {"rows": self.rows}
            wanted = {} if self.rules is None else {"secure": _told(self)}
            return {"accepted": True, **told, **wanted}
        for name in ("dealt", "bad", "sums"):
            if getattr(self, name) is not None:
                return {name: getattr(self, name)}
        facts = {name: getattr(self, name) for name in (*ANSWER, "max_rows")}
        return {name: value for name, value in facts.items() if value is not None}


ANSWER = ("answers", "rows_per_person", "ledger")
TOLD = ("colluding", "min_honest", "alone", "required")
"""What everybody is told of an owner's rules for secure sums; how much may be spent is not."""


def _told(reply: Reply) -> dict[str, Any]:
    rules = {name: getattr(reply.rules, name) for name in TOLD}
    return {**rules, "rows_per_person": reply.rows_per_person}
