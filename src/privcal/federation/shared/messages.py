"""The messages: a request signed by a calibrator, and a site's reply, sealed for it.

Whatever carries them is trusted with nothing. A request is one canonical text, signed with the key
of the calibrator's start-up kit and sent with its certificate, which a site checks against the
root certificate in its own kit. It says when it was made and for how long it holds, which sites
it is meant for, and the key that replies are sealed for. So nobody else can ask in the
calibrator's name, change a question or raise its ε, or carry it to another site or into another
week; and asking the same again gets the same stored answer.

A reply is sealed for the key in the request and signed with the site's own key, both
together with the site's name and the request's digest. So nobody else reads it, and none can be
invented, changed, or passed off as another site's or as the answer to another request. Its length
depends on how many numbers were asked for, and in a secure sum of how many sites, and on nothing
else.

In a secure sum (`privcal.secure`) the terms stand inside the request, in their own one spelling, so
whoever asks has signed them. What dealers sealed for a site is in a request to that site alone.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from privcal.checks import whole
from privcal.crypto import canonical
from privcal.crypto.canonical import from_base64, to_base64
from privcal.crypto.sealing import HYBRID, OVERHEAD, SealingKey, check_public_key, seal
from privcal.crypto.signatures import check_signature
from privcal.errors import REFUSALS, InputError, Refused
from privcal.federation.shared import certificates
from privcal.federation.shared.kit import CALIBRATOR_ROLE, SITE_NAME
from privcal.federation.shared.roster import MAX_SITES, Card
from privcal.privacy.policy import MAX_ROWS_PER_PERSON, SecureRules
from privcal.privacy.sharing import PRIME
from privcal.question import Question, check_campaign, read_question
from privcal.secure.boxes import Box, sealed_size
from privcal.secure.terms import Terms, read_terms

PROTOCOL_VERSION = 3
"""The version of requests and replies."""
MAX_MESSAGE = 2 * 1_048_576
"""Characters of a request or a reply: nobody reads more. The longest offer, to the most sites, is
shorter; a secure sum of 300 sites and 100 numbers just fits."""
MAX_QUESTIONS = 128
"""The longest search asks 101."""
MAX_LIFETIME = 3600
MAX_LIFETIME_BY_MAIL = 90 * 24 * 3600
"""Seconds that a request may hold, over a network and in a file."""
LIFETIME = 600
CLOCK_SKEW = 60
"""Seconds that a calibrator's clock may be ahead of a site's."""

SECURE = ("share", "check", "open")
"""The kinds of request of a secure sum, as they follow each other."""

_REQUEST, _REPLY, _REFUSAL = (
    f"privcal {what} {PROTOCOL_VERSION}" for what in ("request", "reply", "no")
)
_FIELDS_OF_1 = {"question", "signature", "certificate"}  # version 1 did not say so
_ROOM, _ROOM_FOR_ONE = 256, 24
"""Bytes of a reply: the most that its facts need, and the most that one number needs."""
_ROOM_FOR_A_SUM = 40
"""The same for one number of a part of a secure sum: there are 39 digits below 2¹²⁷."""
_ROOM_FOR_A_BOX = 128
"""What a box needs beside itself and two names: a signature and what stands between."""
_REFUSAL_LENGTH = 256
"""Characters of a refusal that is not sealed."""
UNSEALED = frozenset({"bad_request", "version", "addressee", "expired", "busy", "unavailable"})
"""The refusals that may go unsealed: a site says them before it knows whom to seal for."""


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
    if not _ours(facts):
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


@dataclass(frozen=True)
class Signer:
    """The calibrator's identity: its certificate and the key that signs."""

    name: str
    certificate: str
    key: Any

    @classmethod
    def of_kit(cls, kit: Path) -> Signer:
        """The calibrator whose start-up kit it is."""
        holder, certificate, key = certificates.of_kit(kit)
        return cls(holder.name, certificate, key)

    def sign(self, request: Request) -> str:
        """The message: request, signature and certificate."""
        text = request.text()
        if len(text) > MAX_MESSAGE:
            raise InputError("a request is longer than anybody reads")
        if not request.boxes:  # what a site would refuse as malformed is told here, and not sent
            read_request(text)
        return canonical.write(
            {
                "privcal": PROTOCOL_VERSION,
                "request": text,
                "signature": certificates.sign(_signed(text), self.key),
                "certificate": self.certificate,
            }
        )


@dataclass(frozen=True)
class Opened:
    """A message that a site may look at more closely."""

    asker: str
    fingerprint: str
    """SHA-256 of the asker's public key, which the asker proved to have."""
    request: Request
    digest: str
    """The digest of the whole message, which a reply names."""


def open_message(
    message: Any,
    root_certificate: str | Path,
    *,
    site: str,
    now: float | None = None,
    longest: int = MAX_LIFETIME,
) -> Opened:
    """The signer and the request of a message to `site`; or Refused.

    It may hold for at most `longest` seconds, as its signer says. The code is `version` for a message of another version, `addressee` for one to other sites,
    `expired` for one of another time, and `bad_request` for everything else. Nothing was charged
    yet, and that a reply can be sealed for the asker has been tried.
    """
    now = time.time() if now is None else now
    root = certificates.load(root_certificate)
    try:
        parts = canonical.read_any_spelling(message, MAX_MESSAGE)
        if _another_version(parts):
            raise Refused("version")
        if set(parts) != {"privcal", "request", "signature", "certificate"} or not _ours(parts):
            raise InputError("a message has other parts")
        if canonical.write(parts) != message:
            raise InputError("a message has one spelling")
        asker = certificates.holder(parts["certificate"], root, now)
        if asker.role != CALIBRATOR_ROLE:  # a site or the server has a good certificate too
            raise InputError("a message must be signed by a calibrator")
        asker.check(_signed(parts["request"]), parts["signature"])
        request = read_request(parts["request"])
        whole("lifetime", request.lifetime, 1, longest)
    except Refused:
        raise
    except Exception as error:  # whatever is wrong with a message is the sender's doing
        raise Refused("bad_request") from error
    if site not in request.sites:
        raise Refused("addressee")
    if not request.issued - CLOCK_SKEW <= now <= request.issued + request.lifetime:
        raise Refused("expired")
    return Opened(asker.name, asker.fingerprint, request, digest(message))


def _signed(text: Any) -> str:
    return canonical.write([_REQUEST, text])


def _ours(parts: dict[str, Any]) -> bool:
    return type(parts.get("privcal")) is int and parts["privcal"] == PROTOCOL_VERSION


def _another_version(parts: dict[str, Any]) -> bool:
    """Whether these are recognisably the parts of a message of another version."""
    return set(parts) == _FIELDS_OF_1 or (type(parts.get("privcal")) is int and not _ours(parts))


def digest(message: Any) -> str:
    """SHA-256 of whatever came, in hex: it may be no message at all."""
    data = message.encode("utf-8", "surrogatepass") if isinstance(message, str) else message
    return hashlib.sha256(data if isinstance(data, bytes) else b"").hexdigest()


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
        facts = {name: getattr(self, name) for name in (*_ANSWER, "max_rows")}
        return {name: value for name, value in facts.items() if value is not None}


_ANSWER = ("values", "rows_per_person", "ledger")
_TOLD = ("colluding", "min_honest", "alone", "required", "roster")
"""What everybody is told of an owner's rules for secure sums; how much may be spent is not."""


def _told(reply: Reply) -> dict[str, Any]:
    rules = {name: getattr(reply.rules, name) for name in _TOLD}
    return {**rules, "rows_per_person": reply.rows_per_person}


class Signing(Protocol):
    """A site's keys, as far as replies need them (`site.keys.SiteKeys`)."""

    def sign(self, text: str) -> str: ...


def seal_reply(reply: Reply, opened: Opened, keys: Signing, site: str) -> str:
    """A reply as it travels, for the asker alone."""
    text = reply.text().encode("ascii")
    room = opened.request.room
    if len(text) > room:
        raise ValueError("a reply has more numbers than were asked for")
    about = _about(_REPLY, site, opened.digest)
    sealed = to_base64(seal(opened.request.seal, text.ljust(room), about.encode("ascii")))
    signature = keys.sign(_about(_REPLY, site, opened.digest, sealed))
    return canonical.write({"privcal": PROTOCOL_VERSION, "sealed": sealed, "signature": signature})


def plain_refusal(code: str, message: Any, keys: Signing, site: str) -> str:
    """A refusal of what could not be opened, so that there is nobody to seal it for."""
    if code not in UNSEALED:
        raise ValueError(f"{code} must be sealed")
    signature = keys.sign(_about(_REFUSAL, site, digest(message), code))
    text = canonical.write({"privcal": PROTOCOL_VERSION, "refused": code, "signature": signature})
    return text.ljust(_REFUSAL_LENGTH)


def open_reply(text: Any, message: str, card: Card, key: SealingKey, request: Request) -> Reply:
    """The reply of this card's site to the `message` of a request; or a ValueError, which says why not.

    A reply is never trusted: not that it comes from that site, nor that the site is honest.
    """
    size = OVERHEAD[key.suite] + request.room
    if not isinstance(text, str) or len(text) > 2 * size:
        raise ValueError("its reply is not a text, or too long")
    refusal = len(text) == _REFUSAL_LENGTH
    try:
        parts = canonical.read(text.rstrip(" ") if refusal else text, len(text))
    except InputError:
        raise ValueError("its reply cannot be read") from None
    if not _ours(parts):
        raise ValueError("its reply is of another version")
    del parts["privcal"]
    about = (card.site, digest(message))
    if refusal and set(parts) == {"refused", "signature"}:
        code = _code(parts["refused"])
        check_signature(card.signing, _about(_REFUSAL, *about, code), parts["signature"])
        return Reply(refused=code)
    if set(parts) != {"sealed", "signature"}:
        raise ValueError("its reply has other parts")
    try:
        sealed = from_base64(parts["sealed"], size)
    except InputError:
        raise ValueError("its reply is not of the length that was asked for") from None
    check_signature(card.signing, _about(_REPLY, *about, parts["sealed"]), parts["signature"])
    plain = key.open(sealed, _about(_REPLY, *about).encode("ascii"))
    return read_reply(plain.decode("latin-1").rstrip(" "), request)


def _about(tag: str, site: str, digest: str, *more: str) -> str:
    return canonical.write([tag, site, digest, *more])


def read_reply(text: Any, request: Request) -> Reply:
    """The content of a sealed reply, checked: a site may lie."""
    try:
        facts = canonical.read(text, request.room)
    except InputError:
        raise ValueError("its reply cannot be read") from None
    if "refused" in facts:
        if set(facts) != {"refused"}:
            raise ValueError("it refused with an unknown code")
        return Reply(refused=_code(facts["refused"]))
    return _READERS.get(request.kind, _read_yes)(facts, request)


def _read_yes(facts: dict[str, Any], request: Request) -> Reply:
    told = {"rows", "secure"} if request.kind == "about" else set()
    if set(facts) - told != {"accepted"} or facts["accepted"] is not True:
        raise ValueError("its reply is neither yes nor a refusal")
    _check_whole(facts, "rows")
    rules, rows_per_person = None, 1
    if "secure" in facts:
        rules, rows_per_person = _read_rules(facts["secure"])
    return Reply(
        accepted=True, rows=facts.get("rows"), rules=rules, rows_per_person=rows_per_person
    )


def _read_rules(facts: Any) -> tuple[SecureRules, int]:
    """An owner's rules for secure sums, and how many rows of a person count there."""
    if not isinstance(facts, dict) or set(facts) != {*_TOLD, "rows_per_person"}:
        raise ValueError("its rules for secure sums have other parts")
    if not isinstance(facts["roster"], str) or not re.fullmatch("[0-9a-f ]{59}", facts["roster"]):
        raise ValueError("its roster has no digest")
    try:
        rows_per_person = whole("rows", facts["rows_per_person"], 1, MAX_ROWS_PER_PERSON)
        return SecureRules(**{name: facts[name] for name in _TOLD}), rows_per_person
    except InputError:  # which might quote it
        raise ValueError("its rules for secure sums cannot be") from None


def _read_dealt(facts: dict[str, Any], _: Request) -> Reply:
    if set(facts) != {"dealt"} or not isinstance(facts["dealt"], str):
        raise ValueError("its reply has other parts")
    return Reply(dealt=facts["dealt"])


def _read_bad(facts: dict[str, Any], request: Request) -> Reply:
    if set(facts) != {"bad"} or not isinstance(facts["bad"], list):
        raise ValueError("its reply has other parts")
    if not all(isinstance(name, str) and name in request.boxes for name in facts["bad"]):
        raise ValueError("it names dealers that it was not asked about")
    return Reply(bad=tuple(facts["bad"]))


def _read_sums(facts: dict[str, Any], request: Request) -> Reply:
    if set(facts) != {"sums"}:
        raise ValueError("its reply has other parts")
    sums = facts["sums"]
    if not isinstance(sums, list) or len(sums) != request.length:
        raise ValueError(f"its part is not of the {request.length} numbers that were asked for")
    if not all(type(v) is int and 0 <= v < PRIME for v in sums):
        raise ValueError("its part is not of numbers below the prime")
    return Reply(sums=tuple(sums))


def _read_answer(facts: dict[str, Any], request: Request) -> Reply:
    length = request.length
    needed = set(_ANSWER)
    if not needed <= set(facts) <= needed | {"max_rows"}:
        raise ValueError("its reply has other parts")
    values = facts["values"]
    if not isinstance(values, list) or len(values) != length:
        raise ValueError(f"its answer is not of the {length} numbers that were asked for")
    if not all(type(v) is int and abs(v) < 2**62 for v in values):
        raise ValueError("its answer is off the grid")
    _check_whole(facts, "rows_per_person", "max_rows")
    ledger = facts["ledger"]
    if not isinstance(ledger, str) or not re.fullmatch("[0-9a-f]{32}", ledger):
        raise ValueError("its ledger has no id")
    return Reply(tuple(values), facts["rows_per_person"], facts.get("max_rows"), ledger)


_READERS = {
    "question": _read_answer,
    "share": _read_dealt,
    "check": _read_bad,
    "open": _read_sums,
}


def _check_whole(facts: dict[str, Any], *names: str) -> None:
    for name in names:
        value = facts.get(name, 1)
        if type(value) is not int or not 1 <= value < 2**31:
            raise ValueError(f"its {name} is not a whole number")


def _code(code: Any) -> str:
    if not isinstance(code, str) or code not in REFUSALS:
        raise ValueError("it refused with an unknown code")
    return code
