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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from privcal.secure import canonical
from privcal.secure.canonical import from_base64, to_base64
from privcal.secure.keys import OVERHEAD, SealingKey, check_signature, seal
from privcal.secure.sharing import PRIME
from privcal.transport.federation.shared import certificates
from privcal.transport.federation.shared.kit import CALIBRATOR_ROLE
from privcal.transport.federation.shared.requests import (
    ANSWER,
    MAX_MESSAGE,
    PROTOCOL_VERSION,
    TOLD,
    Reply,
    Request,
    is_of_this_version,
    read_request,
)
from privcal.transport.federation.shared.roster import Card
from privcal.trusted.checks import whole
from privcal.trusted.errors import REFUSALS, InputError, Refused
from privcal.trusted.policy import MAX_ROWS_PER_PERSON, SecureRules

MAX_LIFETIME = 3600
"""Seconds that a request over a network may hold."""
CLOCK_SKEW = 60
"""Seconds that a calibrator's clock may be ahead of a site's."""

_REQUEST, _REPLY, _REFUSAL = (
    f"privcal {what} {PROTOCOL_VERSION}" for what in ("request", "reply", "no")
)
_FIELDS_OF_1 = {"question", "signature", "certificate"}  # version 1 did not say so
_REFUSAL_LENGTH = 256
"""Characters of a refusal that is not sealed."""
UNSEALED = frozenset({"bad_request", "version", "addressee", "expired", "busy", "unavailable"})
"""The refusals that may go unsealed: a site says them before it knows whom to seal for."""


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
    ahead: float
    """By how many seconds its date is ahead of this site's clock; below 0 where it is behind."""

    def check_date(self) -> None:
        """Refused (`expired`) unless its date is of now."""
        if not -self.request.lifetime <= self.ahead <= CLOCK_SKEW:
            side = "ahead of" if self.ahead > 0 else "behind"
            raise Refused("expired") from InputError(
                f"{self.asker} dated it {abs(self.ahead):,.0f} seconds {side} this site's clock, "
                f"to hold for {self.request.lifetime:,}"
            )


def open_message(
    message: Any,
    root_certificate: str | Path,
    *,
    site: str,
    now: float | None = None,
    longest: int = MAX_LIFETIME,
    dated: bool = True,
) -> Opened:
    """The signer and the request of a message to `site`; or Refused.

    It may hold for at most `longest` seconds, as its signer says. The code is `version` for a message of another version, `addressee` for one to other sites,
    `expired` for one of another time, and `bad_request` for everything else. Nothing was charged
    yet, and that a reply can be sealed for the asker has been tried. Where it is not `dated`,
    `Opened.check_date` must follow.
    """
    now = time.time() if now is None else now
    root = certificates.load(root_certificate)
    try:
        parts = canonical.read_any_spelling(message, MAX_MESSAGE)
        if _another_version(parts):
            raise Refused("version")
        if set(parts) != {
            "privcal",
            "request",
            "signature",
            "certificate",
        } or not is_of_this_version(parts):
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
    about = request, digest(message), request.issued - now
    opened = Opened(asker.name, asker.fingerprint, *about)
    if dated:
        opened.check_date()
    return opened


def _signed(text: Any) -> str:
    return canonical.write([_REQUEST, text])


def _another_version(parts: dict[str, Any]) -> bool:
    """Whether these are recognisably the parts of a message of another version."""
    return set(parts) == _FIELDS_OF_1 or (
        type(parts.get("privcal")) is int and not is_of_this_version(parts)
    )


def digest(message: Any) -> str:
    """SHA-256 of whatever came, in hex: it may be no message at all."""
    data = message.encode("utf-8", "surrogatepass") if isinstance(message, str) else message
    return hashlib.sha256(data if isinstance(data, bytes) else b"").hexdigest()


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
    if not is_of_this_version(parts):
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
    if not isinstance(facts, dict) or set(facts) != {*TOLD, "rows_per_person"}:
        raise ValueError("its rules for secure sums have other parts")
    if not isinstance(facts["roster"], str) or not re.fullmatch("[0-9a-f ]{59}", facts["roster"]):
        raise ValueError("its roster has no digest")
    try:
        rows_per_person = whole("rows", facts["rows_per_person"], 1, MAX_ROWS_PER_PERSON)
        return SecureRules(**{name: facts[name] for name in TOLD}), rows_per_person
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
    needed = set(ANSWER)
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
