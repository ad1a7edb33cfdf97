"""A site's reply as it travels, and how a calibrator reads it: a site may lie."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from privcal.secure import canonical
from privcal.secure.sharing import PRIME
from privcal.transport.content import ANSWER, TOLD, Reply, Request, check_stamp
from privcal.transport.letter import MAX_LETTER, Stamp, check_id
from privcal.trusted.checks import whole
from privcal.trusted.errors import REFUSALS, InputError
from privcal.trusted.policy import MAX_ROWS_PER_PERSON, SecureRules


@dataclass(frozen=True)
class Replied:
    """A reply as it is sealed: between whom, about which letter, and by which roster of its writer."""

    federation: str
    roster: Stamp
    sender: str
    reader: str
    about: str
    """The digest of the letter that it answers."""
    body: Mapping[str, Any]
    """The reply's parts."""
    blank: int = 0
    """Blanks beside them: as many as make every reply to the request equally long."""

    @classmethod
    def to(cls, request: Request, about: str, roster: Stamp, reply: Reply) -> Replied:
        ids = request.federation, roster, request.reader, request.sender
        body = reply.facts
        blank = request.room - len(canonical.write(body))
        if blank < 0:
            raise ValueError("a reply has more numbers than were asked for")
        return cls(*ids, about, body, blank)

    @property
    def text(self) -> str:
        """The one spelling; how long it is goes by the request and the roster's number alone."""
        return canonical.write({"kind": "reply", **vars(self), "blank": " " * self.blank})

    @classmethod
    def read(cls, text: Any) -> Replied:
        """The parts of a reply, checked; its body is for `read_reply`, with the request at hand."""
        facts = canonical.read(text, MAX_LETTER)
        if facts.pop("kind", None) != "reply" or set(facts) != {f.name for f in fields(cls)}:
            raise InputError("it is no reply")
        for name in ("federation", "sender", "reader"):
            check_id(facts[name])
        if not isinstance(facts["about"], str) or not re.fullmatch("[0-9a-f]{64}", facts["about"]):
            raise InputError("it does not say which letter it answers")
        if not isinstance(facts["body"], dict) or not isinstance(facts["roster"], list):
            raise InputError("it has no body, or names no roster")
        if not isinstance(facts["blank"], str) or facts["blank"].strip(" "):
            raise InputError("beside its body there must be blanks alone")
        facts |= {"roster": tuple(facts["roster"]), "blank": len(facts["blank"])}
        check_stamp(facts["roster"])
        return cls(**facts)


def read_reply(facts: Mapping[str, Any], request: Request) -> Reply:
    """The content of a reply, checked: a site may lie. ValueError says why it cannot be used."""
    facts = dict(facts)
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
    sums, [length] = facts["sums"], request.lengths
    if not isinstance(sums, list) or len(sums) != length:
        raise ValueError(f"its part is not of the {length} numbers that were asked for")
    if not all(type(v) is int and 0 <= v < PRIME for v in sums):
        raise ValueError("its part is not of numbers below the prime")
    return Reply(sums=tuple(sums))


def _read_answers(facts: dict[str, Any], request: Request) -> Reply:
    needed = set(ANSWER)
    if not needed <= set(facts) <= needed | {"max_rows"}:
        raise ValueError("its reply has other parts")
    answers = facts["answers"]
    if not isinstance(answers, list) or not all(isinstance(values, list) for values in answers):
        raise ValueError("its answers are not lists of numbers")
    if tuple(map(len, answers)) != request.lengths:
        wanted = " and ".join(map(str, request.lengths))
        raise ValueError(f"its answer is not of the {wanted} numbers that were asked for")
    if not all(type(v) is int and abs(v) < 2**62 for values in answers for v in values):
        raise ValueError("its answer is off the grid")
    _check_whole(facts, "rows_per_person", "max_rows")
    ledger = facts["ledger"]
    if not isinstance(ledger, str) or not re.fullmatch("[0-9a-f]{32}", ledger):
        raise ValueError("its ledger has no id")
    read = tuple(map(tuple, answers))
    return Reply(read, facts["rows_per_person"], facts.get("max_rows"), ledger)


_READERS = {
    "ask": _read_answers,
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
