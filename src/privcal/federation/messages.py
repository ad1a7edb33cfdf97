"""What travels: a question signed by the calibrator, and a site's reply.

The server between them is trusted with nothing. A question is one canonical text, signed with the
key of the calibrator's start-up kit and sent with its certificate, which a site checks against the
root certificate in its own kit. So nobody else can ask in the calibrator's name, change a question
or raise its ε, and asking the same again gets the same stored answer.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from typing import Any

from privcal.calibrate import Question
from privcal.errors import REFUSALS, InputError, Refused
from privcal.federation.names import CALIBRATOR_ROLE
from privcal.privacy.ledger import Key
from privcal.queries import parse

MAX_MESSAGE = 32_768
"""Characters: the longest question is far shorter, and a site reads no more."""

MAX_REPLY = 65_536


def read_question(text: str) -> Question:
    facts = json.loads(text)
    if not isinstance(facts, dict) or set(facts) != {f.name for f in fields(Question)}:
        raise InputError("a question has other parts")
    for name in ("round", "index", "nano_epsilon"):
        if type(facts[name]) is not int or not 0 <= facts[name] < 2**53:
            raise InputError(f"{name} must be a whole number")
    if facts["nano_epsilon"] == 0:
        raise InputError("a question must cost something")
    if not isinstance(facts["campaign"], str) or "/" in facts["campaign"]:
        raise InputError("campaign must be a name")
    if facts["model"] is not None and not isinstance(facts["model"], str):
        raise InputError("model must be a name")
    question = Question(**{**facts, "query": parse(facts["query"])})
    Key.parse("anyone", question.request_id)
    return question


@dataclass(frozen=True)
class Signer:
    """The calibrator's identity: its certificate and the key that signs."""

    name: str
    certificate: str
    key: Any

    @classmethod
    def of_kit(cls, startup: Any) -> Signer:
        """From the `startup` folder of a calibrator's kit."""
        from nvflare.lighter.utils import _cert_to_submitter, load_crt_chain, load_private_key_file

        try:
            chain = load_crt_chain(str(startup / "client.crt"))
            key = load_private_key_file(str(startup / "client.key"))
            text = (startup / "client.crt").read_text("ascii")
        except (OSError, ValueError) as error:
            raise InputError(f"{startup} holds no readable key and certificate: {error}") from None
        return cls(_cert_to_submitter(chain[0])[0], text, key)

    def sign(self, question: Question) -> str:
        """The message: question, signature and certificate."""
        from nvflare.lighter.utils import sign_content

        text = question.text()
        signature = sign_content(text, self.key)
        return json.dumps(
            {"question": text, "signature": signature, "certificate": self.certificate}
        )


def open_message(message: Any, root_certificate: str) -> tuple[str, Question]:
    """Who signed a message, and what it asks. Anything else is refused as `bad_request`."""
    from nvflare.lighter.utils import (
        _cert_to_submitter,
        load_crt,
        load_crt_chain_bytes,
        validate_admin_leaf_cert,
        verify_cert_chain,
        verify_content,
    )

    try:
        if not isinstance(message, str) or len(message) > MAX_MESSAGE:
            raise InputError("a message must be a text that is not too long")
        parts = json.loads(message)
        chain = load_crt_chain_bytes(parts["certificate"].encode("ascii"))
        verify_cert_chain(chain[0], chain[1:], load_crt(root_certificate))
        validate_admin_leaf_cert(chain[0])
        name, _, role = _cert_to_submitter(chain[0])
        if role != CALIBRATOR_ROLE:  # a site or the server has a good certificate too
            raise InputError("a message must be signed by a calibrator")
        verify_content(parts["question"], parts["signature"], chain[0].public_key())
        return str(name), read_question(parts["question"])
    except Exception as error:  # whatever is wrong with a message is the sender's doing
        raise Refused("bad_request") from error


@dataclass(frozen=True)
class Reply:
    """What a site sends back: whole numbers on the grid and three public facts, or a code."""

    values: tuple[int, ...] = ()
    rows_per_person: int = 1
    max_rows: int | None = None
    """The owner's public upper bound on the rows that count, where it declares one."""
    ledger: str = ""
    """The random id of the site's ledger: two answers with one id are about the same people."""
    refused: str | None = None

    def text(self) -> str:
        facts = {"refused": self.refused} if self.refused else asdict(self)
        return json.dumps({k: v for k, v in facts.items() if v is not None})


def read_reply(text: Any, length: int) -> Reply:
    """A site's reply, checked: a site may lie, and its reply may be anything."""
    if not isinstance(text, str) or len(text) > MAX_REPLY:
        raise ValueError("its reply is not a text, or too long")
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("its reply cannot be read") from None
    if not isinstance(facts, dict):
        raise ValueError("its reply cannot be read")
    if "refused" in facts:
        code = facts["refused"]
        if set(facts) != {"refused"} or not isinstance(code, str) or code not in REFUSALS:
            raise ValueError("it refused with an unknown code")
        return Reply(refused=code)
    needed = {"values", "rows_per_person", "ledger"}
    if not needed <= set(facts) <= needed | {"max_rows"}:
        raise ValueError("its reply has other parts")
    values = facts["values"]
    if not isinstance(values, list) or len(values) != length:
        raise ValueError(f"its answer is not of the {length} numbers that were asked for")
    if not all(type(v) is int and abs(v) < 2**62 for v in values):
        raise ValueError("its answer is off the grid")
    for name in ("rows_per_person", "max_rows"):
        value = facts.get(name, 1)
        if type(value) is not int or not 1 <= value < 2**31:
            raise ValueError(f"its {name} is not a whole number")
    ledger = facts["ledger"]
    if not isinstance(ledger, str) or not re.fullmatch("[0-9a-f]{32}", ledger):
        raise ValueError("its ledger has no id")
    return Reply(tuple(values), facts["rows_per_person"], facts.get("max_rows"), ledger)
