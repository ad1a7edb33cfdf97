"""What a request asks of a site, and what the site replies: the content of messages.

`messages` signs the one and seals the other. A site's data process knows the content alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from privcal.secure import canonical
from privcal.secure.boxes import Box, sealed_size
from privcal.secure.keys import HYBRID, OVERHEAD, SealingKey, check_public_key
from privcal.secure.terms import Terms, read_terms
from privcal.transport.federation.shared.kit import MAX_SITES, SITE_NAME
from privcal.trusted.checks import whole
from privcal.trusted.errors import InputError
from privcal.trusted.policy import SecureRules
from privcal.trusted.question import Question, check_campaign, read_question

PROTOCOL_VERSION = 3
"""The version of requests and replies."""
MAX_MESSAGE = 2 * 1_048_576
"""Characters of a request or a reply: nobody reads more. The longest offer, to the most sites, is
shorter; a secure sum of 300 sites and 100 numbers just fits."""
MAX_QUESTIONS = 128
"""The longest search asks 101."""
MAX_LIFETIME_BY_MAIL = 90 * 24 * 3600
"""Seconds that a request in a file may hold: no request holds longer."""
LIFETIME = 600

SECURE = ("share", "check", "open")
"""The kinds of request of a secure sum, as they follow each other."""

_ROOM, _ROOM_FOR_ONE = 256, 24
"""Bytes of a reply: the most that its facts need, and the most that one number needs."""
_ROOM_FOR_A_SUM = 40
"""The same for one number of a part of a secure sum: there are 39 digits below 2¹²⁷."""
_ROOM_FOR_A_BOX = 128
"""What a box needs beside itself and two names: a signature and what stands between."""


@dataclass(frozen=True)
class Request:
    """A calibrator's request to some sites.

    kind
        "question": one question, to be answered. "offer": a whole plan; would the site answer
        all of it? It costs nothing. "release": the plan offered before will not be asked.
        "about": what does the owner tell everybody, before there is a plan? The rows, and what
        must be so in secure sums. And the three of a secure sum: "share", "check", "open".
    sites
        The names it is meant for.
    issued, lifetime
        When it was made, in Unix seconds, and for how many seconds it holds.
    seal
        The public half of a sealing key that was made for this request.
    terms
        Those of a secure sum, which name its question; in an offer, of one of the campaign's.
    boxes
        What dealers sealed for this one site, and signed, by their names: to check or open.
    """

    kind: str
    campaign: str
    questions: tuple[Question, ...]
    sites: tuple[str, ...]
    seal: str
    issued: int
    lifetime: int = LIFETIME
    terms: Terms | None = None
    boxes: Mapping[str, Box] = field(default_factory=dict)

    def __post_init__(self) -> None:
        numbers = {
            "question": (1, 1),
            "offer": (1, MAX_QUESTIONS),
            "release": (0, 0),
            "about": (0, 0),
            **dict.fromkeys(SECURE, (0, 0)),
        }
        if not isinstance(self.kind, str) or self.kind not in numbers:
            raise InputError(f"a request must be one of {', '.join(numbers)}")
        least, most = numbers[self.kind]
        if not least <= len(self.questions) <= most:
            raise InputError(f"{self.kind} must have {least} to {most} questions")
        check_campaign(self.campaign)
        if any(question.campaign != self.campaign for question in self.questions):
            raise InputError("all questions of a request must be of its campaign")
        if len({(one.round, one.index) for one in self.questions}) < len(self.questions):
            raise InputError("a question of a request is there twice")
        if len({question.model for question in self.questions}) > 1:
            raise InputError("all questions of a request must be about one model")
        if not 1 <= len(self.sites) <= MAX_SITES:
            raise InputError(f"a request must be meant for 1 to {MAX_SITES} sites")
        if not all(isinstance(name, str) and SITE_NAME.fullmatch(name) for name in self.sites):
            raise InputError("a request must be meant for sites by their names")
        if list(self.sites) != sorted(set(self.sites)):
            raise InputError("the sites of a request must be sorted, each once")
        for name, least, most in (("issued", 0, 2**53), ("lifetime", 1, MAX_LIFETIME_BY_MAIL)):
            whole(name, getattr(self, name), least, most)
        check_public_key(self.seal)
        self._check_secure()

    def _check_secure(self) -> None:
        """InputError unless terms and boxes are those that a request of this kind has."""
        with_boxes = self.kind in ("check", "open")
        if with_boxes != bool(self.boxes):
            raise InputError(f"boxes are in requests to check and to open, not in {self.kind}")
        if self.terms is None:
            if self.kind in SECURE:
                raise InputError(f"{self.kind} needs terms")
            return
        if self.kind not in ("offer", *SECURE):
            raise InputError(f"{self.kind} has no terms")
        if self.terms.question.campaign != self.campaign:
            raise InputError("the terms of a request must be of its campaign")
        if with_boxes:
            named = len(self.sites) == 1 and {*self.sites, *self.boxes} <= set(self.terms.sites)
        else:
            named = self.sites == self.terms.sites
        if not named:
            raise InputError(f"{self.kind} is meant for other sites than its terms name")
        for asked_for in self.questions or (self.terms.question,):
            check_fits(self.terms.about(asked_for))

    @classmethod
    def make(
        cls,
        kind: str,
        campaign: str,
        questions: Sequence[Question],
        sites: Sequence[str],
        *,
        lifetime: int = LIFETIME,
        terms: Terms | None = None,
        boxes: Mapping[str, Box] | None = None,
        key: SealingKey | None = None,
    ) -> tuple[Request, SealingKey]:
        """A request of now, with the key that opens its replies and that nobody else ever has.

        Requests that are made together, one for each site, may have one `key`.
        """
        key = key or SealingKey.make()
        names = tuple(sorted(sites))
        facts = kind, campaign, tuple(questions), names, key.public, int(time.time()), lifetime
        return cls(*facts, terms, dict(boxes or {})), key

    @property
    def length(self) -> int:
        """How many numbers an answer has: none but for a question and what opens a sum."""
        if self.terms is not None:
            return self.terms.question.query.length if self.kind == "open" else 0
        return self.questions[0].query.length if self.kind == "question" else 0

    @property
    def model(self) -> str | None:
        """The model it is about: a request is about one."""
        return self.questions[0].model if self.terms is None else self.terms.question.model

    @property
    def room(self) -> int:
        """Bytes of every reply to it, whatever it says."""
        if self.terms is not None and self.kind == "share":
            return _room_of_boxes(self.terms)
        if self.terms is not None and self.kind == "check":
            return _ROOM + sum(len(name) + 3 for name in self.terms.sites)
        if self.kind == "open":
            return _ROOM + _ROOM_FOR_A_SUM * self.length
        return _ROOM + _ROOM_FOR_ONE * self.length

    def text(self) -> str:
        """The one spelling of a request, which is what is signed."""
        facts = {
            **vars(self),
            "questions": [question.facts() for question in self.questions],
            "terms": None if self.terms is None else self.terms.text,
        }
        return canonical.write({"privcal": PROTOCOL_VERSION, **facts})


def _room_of_boxes(terms: Terms) -> int:
    """Bytes for all that a site deals: they go by who is asked and how many numbers, no more."""
    each = 4 * -(-sealed_size(terms, HYBRID) // 3) + _ROOM_FOR_A_BOX
    return _ROOM + sum(each + len(name) for name in terms.sites)


def check_fits(terms: Terms) -> None:
    """InputError where a secure sum of so many sites and numbers has no room in a message."""
    # As it travels: sealed, in base64, signed. What opens a sum is shorter.
    needed = 4 * -(-(OVERHEAD[HYBRID] + _room_of_boxes(terms)) // 3) + 256
    if needed > MAX_MESSAGE:
        sites, numbers = len(terms.sites), terms.question.query.length
        raise InputError(
            f"a secure sum of {sites:,} sites and {numbers} numbers does not fit into a message; ask "
            f"at most {sites * MAX_MESSAGE // needed:,} of them together, or for fewer numbers"
        )


def read_request(text: Any) -> Request:
    """A request from its one spelling; InputError for whatever else it is."""
    facts = canonical.read(text, MAX_MESSAGE)
    if set(facts) != {"privcal", *(f.name for f in fields(Request))}:
        raise InputError("a request has other parts")
    if not isinstance(facts["questions"], list) or not isinstance(facts["sites"], list):
        raise InputError("questions and sites must be lists")
    if len(facts["questions"]) > MAX_QUESTIONS or len(facts["sites"]) > MAX_SITES:
        raise InputError("a request has too many questions or sites")
    if not is_of_this_version(facts):
        raise InputError("a request must say its version inside too, where it is signed")
    del facts["privcal"]
    read = {
        "questions": tuple(map(read_question, facts["questions"])),
        "sites": tuple(facts["sites"]),
        "terms": None if facts["terms"] is None else read_terms(facts["terms"], MAX_MESSAGE),
        "boxes": _read_boxes(facts["boxes"]),
    }
    request = Request(**{**facts, **read})
    if request.text() != text:  # 2 for 2.0, or a parameter left to its default
        raise InputError("a request has one spelling")
    return request


def _read_boxes(facts: Any) -> dict[str, Box]:
    """Boxes by their dealers' names; what is in them, whoever can open them finds out."""
    if not isinstance(facts, dict) or len(facts) > MAX_SITES:
        raise InputError("boxes must be a table of dealers, and not too long")
    if not all(
        isinstance(box, list) and len(box) == 2 and all(isinstance(part, str) for part in box)
        for box in facts.values()
    ):
        raise InputError("a box must be what was sealed, and its signature")
    return {name: (sealed, signature) for name, (sealed, signature) in facts.items()}


def is_of_this_version(parts: dict[str, Any]) -> bool:
    """Whether these are the parts of a message of this version."""
    return type(parts.get("privcal")) is int and parts["privcal"] == PROTOCOL_VERSION


@dataclass(frozen=True)
class Reply:
    """A site's reply: whole numbers on the grid and three public facts, yes, or a code.

    In a secure sum: what it dealt, whose boxes are bad, or its part of the sum.
    """

    values: tuple[int, ...] = ()
    rows_per_person: int = 1
    max_rows: int | None = None
    """The owner's public upper bound on the rows that count, where it declares one."""
    ledger: str = ""
    """The random id of the site's ledger: two answers with one id are about the same people."""
    refused: str | None = None
    accepted: bool = False
    """Yes to an offer or a release."""
    rows: int | None = None
    """With yes: about how many rows the owner says there are, where that was asked and is told."""
    rules: SecureRules | None = None
    """With yes, where that was asked: what must be so in secure sums, with the roster at the site;
    then `rows_per_person` is told as well."""
    dealt: str | None = None
    """The boxes for all sites, as `privcal.secure.participant` spells them."""
    bad: tuple[str, ...] | None = None
    """The dealers whose boxes cannot be opened."""
    sums: tuple[int, ...] | None = None
    """The sum of the shares in the boxes, below the prime."""

    def text(self) -> str:
        return canonical.write(self._facts())

    def _facts(self) -> dict[str, Any]:
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


ANSWER = ("values", "rows_per_person", "ledger")
TOLD = ("colluding", "min_honest", "alone", "required", "roster")
"""What everybody is told of an owner's rules for secure sums; how much may be spent is not."""


def _told(reply: Reply) -> dict[str, Any]:
    rules = {name: getattr(reply.rules, name) for name in TOLD}
    return {**rules, "rows_per_person": reply.rows_per_person}
