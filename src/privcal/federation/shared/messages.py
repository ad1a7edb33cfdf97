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
depends on how many numbers were asked for, and on nothing else.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from privcal.checks import whole
from privcal.crypto import canonical
from privcal.crypto.canonical import from_base64, to_base64
from privcal.crypto.sealing import OVERHEAD, SealingKey, check_public_key, seal
from privcal.crypto.signatures import check_signature
from privcal.errors import REFUSALS, InputError, Refused
from privcal.federation.shared import certificates
from privcal.federation.shared.kit import CALIBRATOR_ROLE, SITE_NAME
from privcal.federation.shared.roster import MAX_SITES, Card
from privcal.question import Question, check_campaign, read_question

PROTOCOL_VERSION = 2
"""The version of requests and replies."""
MAX_MESSAGE = 1_048_576
"""Characters: a site reads no more. The longest offer, to the most sites, is shorter."""
MAX_QUESTIONS = 128
"""The longest search asks 101."""
MAX_LIFETIME = 3600
MAX_LIFETIME_BY_MAIL = 90 * 24 * 3600
"""Seconds that a request may hold, over a network and in a file."""
LIFETIME = 600
CLOCK_SKEW = 60
"""Seconds that a calibrator's clock may be ahead of a site's."""

_REQUEST, _REPLY, _REFUSAL = (
    f"privcal {what} {PROTOCOL_VERSION}" for what in ("request", "reply", "no")
)
_FIELDS_OF_1 = {"question", "signature", "certificate"}  # version 1 did not say so
_ROOM, _ROOM_FOR_ONE = 256, 24
"""Bytes of a reply: the most that its facts need, and the most that one number needs."""
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
        "about": what does the owner tell everybody, before there is a plan? Only the rows.
    sites
        The names it is meant for.
    issued, lifetime
        When it was made, in Unix seconds, and for how many seconds it holds.
    seal
        The public half of a sealing key that was made for this request.
    """

    kind: str
    campaign: str
    questions: tuple[Question, ...]
    sites: tuple[str, ...]
    seal: str
    issued: int
    lifetime: int = LIFETIME

    def __post_init__(self) -> None:
        numbers = {
            "question": (1, 1),
            "offer": (1, MAX_QUESTIONS),
            "release": (0, 0),
            "about": (0, 0),
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

    @classmethod
    def make(
        cls,
        kind: str,
        campaign: str,
        questions: Sequence[Question],
        sites: Sequence[str],
        *,
        lifetime: int = LIFETIME,
    ) -> tuple[Request, SealingKey]:
        """A request of now, with the key that opens its replies and that nobody else ever has."""
        key = SealingKey.make()
        names = tuple(sorted(sites))
        issued = int(time.time())
        return cls(kind, campaign, tuple(questions), names, key.public, issued, lifetime), key

    @property
    def length(self) -> int:
        """How many numbers an answer has: none but for a question."""
        return self.questions[0].query.length if self.kind == "question" else 0

    def text(self) -> str:
        """The one spelling of a request, which is what is signed."""
        questions = [question.facts() for question in self.questions]
        return canonical.write({"privcal": PROTOCOL_VERSION, **vars(self), "questions": questions})


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
    questions = tuple(map(read_question, facts["questions"]))
    request = Request(**{**facts, "questions": questions, "sites": tuple(facts["sites"])})
    if request.text() != text:  # 2 for 2.0, or a parameter left to its default
        raise InputError("a request has one spelling")
    return request


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
        read_request(text)  # what a site would refuse as malformed is told here, and not sent
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
    """A site's reply: whole numbers on the grid and three public facts, yes, or a code."""

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

    def text(self) -> str:
        if self.refused:
            return canonical.write({"refused": self.refused})
        if self.accepted:
            told = {} if self.rows is None else {"rows": self.rows}
            return canonical.write({"accepted": True, **told})
        facts = asdict(self)
        del facts["refused"], facts["accepted"], facts["rows"]
        return canonical.write({k: v for k, v in facts.items() if v is not None})


class Signing(Protocol):
    """A site's keys, as far as replies need them (`site.keys.SiteKeys`)."""

    def sign(self, text: str) -> str: ...


def seal_reply(reply: Reply, opened: Opened, keys: Signing, site: str) -> str:
    """A reply as it travels, for the asker alone."""
    text = reply.text().encode("ascii")
    room = _room(opened.request.length)
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


def open_reply(text: Any, message: str, card: Card, key: SealingKey, length: int) -> Reply:
    """The reply of this card's site to `message`; or a ValueError, which says why not.

    A reply is never trusted: not that it comes from that site, nor that the site is honest.
    """
    size = OVERHEAD[key.suite] + _room(length)
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
    return read_reply(plain.decode("latin-1").rstrip(" "), length)


def _about(tag: str, site: str, digest: str, *more: str) -> str:
    return canonical.write([tag, site, digest, *more])


def _room(length: int) -> int:
    return _ROOM + _ROOM_FOR_ONE * length


def read_reply(text: Any, length: int) -> Reply:
    """The content of a sealed reply, checked: a site may lie."""
    try:
        facts = canonical.read(text, _room(length))
    except InputError:
        raise ValueError("its reply cannot be read") from None
    if "refused" in facts:
        if set(facts) != {"refused"}:
            raise ValueError("it refused with an unknown code")
        return Reply(refused=_code(facts["refused"]))
    if length == 0:
        if set(facts) - {"rows"} != {"accepted"} or facts["accepted"] is not True:
            raise ValueError("its reply is neither yes nor a refusal")
        _check_whole(facts, "rows")
        return Reply(accepted=True, rows=facts.get("rows"))
    needed = {"values", "rows_per_person", "ledger"}
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


def _check_whole(facts: dict[str, Any], *names: str) -> None:
    for name in names:
        value = facts.get(name, 1)
        if type(value) is not int or not 1 <= value < 2**31:
            raise ValueError(f"its {name} is not a whole number")


def _code(code: Any) -> str:
    if not isinstance(code, str) or code not in REFUSALS:
        raise ValueError("it refused with an unknown code")
    return code
