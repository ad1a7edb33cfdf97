"""Whatever is sent to a site: a good request of a calibrator, or a fixed code. And what comes back."""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privcal.trusted.errors import REFUSALS, InputError, Refused
from privcal.trusted.queries import FAMILY, BinnedGap, Gap, Hats, Histogram

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")

from privcal.secure.keys import CLASSICAL, HYBRID, SealingKey, seal
from privcal.transport.federation.shared.messages import (
    CLOCK_SKEW,
    UNSEALED,
    Opened,
    Signer,
    digest,
    open_message,
    open_reply,
    plain_refusal,
    read_reply,
    seal_reply,
)
from privcal.transport.federation.shared.requests import (
    MAX_MESSAGE,
    MAX_QUESTIONS,
    Reply,
    Request,
    read_request,
)
from privcal.transport.federation.site.keys import SiteKeys
from privcal.transport.federation.site.roster import own_card
from tests.support import federation_parts as parts
from tests.support.federation_parts import ANN, BOB, SEAL, message, question, request, signer, spelt

ID = "0123456789abcdef" * 2


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = parts.make_kits(tmp_path_factory.mktemp("federation") / "kits", sites=2)
    for name in ("site-1", "site-2"):
        SiteKeys.make(made / name)
    return made


@pytest.fixture(scope="module")
def root(kits: Path) -> Path:
    return kits / "site-1" / "startup" / "rootCA.pem"


@pytest.fixture(scope="module")
def ann(kits: Path) -> Signer:
    return signer(kits)


@pytest.fixture(scope="module")
def good(ann: Signer) -> str:
    return ann.sign(request(question("never")))


def refused(sent: Any, root: Path, site: str = "site-1", now: float | None = None) -> str:
    with pytest.raises(Refused) as refusal:
        open_message(sent, root, site=site, now=now)
    return refusal.value.code


# --- requests that are malformed, though a calibrator signed them ---------------------------

ASKED = parts.facts_of(question("never"))
GOOD = json.loads(request(question("never"), lifetime=3600).text())


def having(**facts: Any) -> str:
    return spelt({**GOOD, **facts})


def changed(**facts: Any) -> str:
    return having(questions=[{**ASKED, **facts}])


def asking(**query: Any) -> str:
    return changed(query=query)


def without(name: str) -> str:
    return having(questions=[{k: v for k, v in ASKED.items() if k != name}])


def offering(*questions: Any) -> str:
    return having(kind="offer", questions=list(questions))


def of_suite(suite: str, raw: bytes) -> str:
    return f"{suite}:{base64.b64encode(raw).decode()}"


def with_a_loose_bit(key: str) -> str:
    """Another spelling of the same 32 bytes: the last letter but one has two bits to spare."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    other = key[:-2] + letters[letters.index(key[-2]) + 1] + "="
    raw, again = (base64.b64decode(k.partition(":")[2]) for k in (key, other))
    assert raw == again
    return other


NUMBERS = {
    "NaN": float("nan"), "infinity": float("inf"), "-infinity": float("-inf"), "zero": 0, "-0.0": -0.0,
    "negative": -1.5, "huge": 1e300, "huge int": 10**400, "tiny": 5e-324, "true": True, "text": "1.5",
    "null": None, "list": [1.5], "object": {"a": 1},
}  # fmt: skip
WHOLE = {
    "NaN": float("nan"), "infinity": float("inf"), "negative": -1, "fraction": 1.5, "whole float": 1.0,
    "true": True, "text": "1", "null": None, "2**53": 2**53 + 1, "10**30": 10**30, "list": [1], "object": {},
}  # fmt: skip
WITH_TEMPERATURE = [k for k, cls in FAMILY.items() if "temperature" in cls.__dataclass_fields__]
WITH_BINS = [k for k, cls in FAMILY.items() if "bins" in cls.__dataclass_fields__]
DEEP = "[" * 3000 + "]" * 3000
PRIME = 2**255 - 19
LOW_ORDER = {
    "zero": bytes(32),
    "one": b"\1" + bytes(31),
    "order 8": bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    "order 8 again": bytes.fromhex(
        "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"
    ),
    "minus one": (PRIME - 1).to_bytes(32, "little"),
    "the prime": PRIME.to_bytes(32, "little"),
    "the prime and one": (PRIME + 1).to_bytes(32, "little"),
}
LATTICE = SealingKey.make(HYBRID).public  # its first half, with each of these as the second


def hybrid_with(raw: bytes) -> str:
    return of_suite(HYBRID, base64.b64decode(LATTICE.partition(":")[2])[:-32] + raw)


SEALS: dict[str, Any] = {
    **{f"x25519 of low order, {n}": of_suite(CLASSICAL, raw) for n, raw in LOW_ORDER.items()},
    **{f"hybrid of low order, {n}": hybrid_with(raw) for n, raw in LOW_ORDER.items()},
    "a lattice key beyond its modulus": of_suite(HYBRID, b"\xff" * 1184 + bytes(range(32))),
    "an unknown suite": of_suite("rot13", bytes(range(32))),
    "no suite": of_suite("", bytes(range(32))),
    "a suite without a key": "x25519:",
    "a suite alone": "x25519",
    "too short": of_suite(CLASSICAL, bytes(range(31))),
    "too long": of_suite(CLASSICAL, bytes(range(33))),
    "an x25519 key for the hybrid": of_suite(HYBRID, bytes(range(32))),
    "no base64": "x25519:" + "!" * 44,
    "base64 with a line break": "x25519:\n" + of_suite(CLASSICAL, bytes(range(32))).partition(":")[2],
    "base64 with a loose bit": with_a_loose_bit(SealingKey.make(CLASSICAL).public),
    "nothing": "", "null": None, "a number": 7, "a list": [], "much": "x25519:" + "A" * 100_000,
}  # fmt: skip

SIGNED: dict[str, str] = {
    **{f"{k} at {n}": asking(kind=k, temperature=v) for k in WITH_TEMPERATURE for n, v in NUMBERS.items()},
    **{f"{k} of bins {n}": asking(kind=k, bins=v) for k in WITH_BINS for n, v in WHOLE.items()},
    **{f"{k} of {n} bins": asking(kind=k, bins=n) for k in WITH_BINS for n in (0, 10**6)},
    **{f"nll clipped at {n}": asking(kind="nll", temperature=1.0, clip=v) for n, v in NUMBERS.items() if n != "tiny"},
    **{f"round {n}": changed(round=v) for n, v in WHOLE.items()},
    **{f"index {n}": changed(index=v) for n, v in WHOLE.items()},
    **{f"epsilon {n}": changed(nano_epsilon=v) for n, v in WHOLE.items()},
    **{f"without {name}": without(name) for name in ASKED},
    **{f"kind {kind!r}": asking(kind=kind) for kind in ("", "GAP", "sum", "__class__", "rows", "gap ", None, 1, ["gap"], {})},
    **{f"query {q!r}": changed(query=q) for q in (None, [], "gap", 1, {}, [["kind", "gap"]])},
    **{f"campaign {c!r}": changed(campaign=c) for c in ("", "a/b", "a\nb", "x" * 201, None, 1, [], "\x00", "../..")},
    **{f"campaign {c!r} throughout": having(campaign=c, questions=[{**ASKED, "campaign": c}])
       for c in ("", "a/b", "never/0/0", "a\nb", "x" * 201, None, 1, [], "\x00", "\ud800", "\u202e")},
    **{f"model {m!r}": changed(model=m) for m in (1, [], {}, True, "", "a\nb", "m" * 201, "\ud800")},
    "epsilon zero": changed(nano_epsilon=0),
    "round 2**31": changed(round=2**31),
    "index 2**31": changed(index=2**31),
    "an epsilon beside": changed(epsilon=100),
    "a policy beside": changed(policy={"epsilon": 100}),
    "a sensitivity": asking(kind="gap", temperature=1.5, sensitivity=0),
    "a path": asking(kind="gap", temperature=1.5, data="/etc/passwd"),
    "a person": asking(kind="gap", person="p1"),
    "a parameter left out": asking(kind="gap"),
    "a whole number for a fraction": asking(kind="gap", temperature=2),
    "one knot": asking(kind="hats", temperature=1.0, knots=[1.0]),
    "no knots": asking(kind="hats", temperature=1.0, knots=[]),
    "33 knots": asking(kind="hats", temperature=1.0, knots=list(map(float, range(33)))),
    "5000 knots": asking(kind="hats", temperature=1.0, knots=list(map(float, range(5000)))),
    "knots that fall": asking(kind="hats", temperature=1.0, knots=[2.0, 1.0]),
    "knots too near": asking(kind="hats", temperature=1.0, knots=[1.0, 1.001]),
    "knots of NaN": asking(kind="hats", temperature=1.0, knots=[0.0, float("nan")]),
    "knots of text": asking(kind="hats", temperature=1.0, knots=["a", "b"]),
    "knots that are a text": asking(kind="hats", temperature=1.0, knots="0123"),
    "knots too far": asking(kind="hats", temperature=1.0, knots=[0.0, 1e9]),
    "nested knots": asking(kind="hats", temperature=1.0, knots=[[0.0], [1.0]]),
    "deep knots": having().replace('"temperature":1.5', '"temperature":' + DEEP),
    "deep": DEEP,
    "nothing": "",
    "no JSON": "{",
    "a list": "[]",
    "a number": "1",
    "null": "null",
    "many digits": having().replace('"round":0', '"round":' + "9" * 5000),
    "1e999": having().replace('"temperature":1.5', '"temperature":1e999'),
    # The request around the question.
    **{f"a request without {name}": spelt({k: v for k, v in GOOD.items() if k != name}) for name in GOOD},
    **{f"request of kind {k!r}": having(kind=k) for k in ("", "Question", "share", "release", None, 1, [], {})},
    **{f"sites {s!r}"[:60]: having(sites=s) for s in (
        [], "site-1", None, {"site-1": 1}, [1], ["site-1", "site-1"], ["site-2", "site-1"], ["a/b"],
        ["site 1"], [""], ["x" * 64], ["site-1\n"], ["séte"], [["site-1"]], [f"s{k:04}" for k in range(1001)])},
    **{f"issued {n}": having(issued=v) for n, v in WHOLE.items()},
    **{f"lifetime {n}": having(lifetime=v) for n, v in WHOLE.items()},
    **{f"lifetime {n}": having(lifetime=n) for n in (0, 3601)},
    **{f"sealed for {n}": having(seal=v) for n, v in SEALS.items()},
    **{f"inner version {v!r}": having(privcal=v) for v in (1, 2, 4, 3.0, True, "3", None)},
    "no question": having(questions=[]),
    "two questions": having(questions=[ASKED, {**ASKED, "index": 1}]),
    "questions that are no list": having(questions=ASKED),
    "a question that is a text": having(questions=[spelt(ASKED)]),
    "a part beside": having(epsilon=100),
    "a question of another campaign": having(campaign="other"),
    "a space": having().replace(",", ", ", 1),
    "a line break after it": having() + "\n",
    "a part twice": having().replace('{"campaign"', '{"campaign":"never","campaign"', 1),
    "an epsilon twice": having().replace('"nano_epsilon"', '"nano_epsilon":1,"nano_epsilon"'),
    "another order": json.dumps(dict(reversed(GOOD.items())), separators=(",", ":")),
    "an offer of nothing": offering(),
    "an offer of one question twice": offering(ASKED, ASKED),
    "an offer about two models": offering(ASKED, {**ASKED, "index": 1, "model": "another"}),
    "an offer of two campaigns": offering(ASKED, {**ASKED, "index": 1, "campaign": "another"}),
    "an offer of too much": offering(*({**ASKED, "index": k} for k in range(MAX_QUESTIONS + 1))),
    "an offer with one bad question": offering(ASKED, {**ASKED, "index": 1, "nano_epsilon": 0}),
    "a release of a question": having(kind="release"),
}  # fmt: skip


def test_there_are_at_least_300_malformed_requests() -> None:
    assert len(SIGNED) >= 300


@pytest.mark.parametrize("name", SIGNED)
def test_a_malformed_question_is_refused_though_well_signed(
    root: Path, ann: Signer, name: str
) -> None:
    assert refused(message(ann, SIGNED[name]), root) == "bad_request"


def test_the_good_request_that_these_were_made_from_is_opened(root: Path, ann: Signer) -> None:
    opened = open_message(message(ann, having()), root, site="site-1")
    assert opened.request.questions == (question("never"),)
    assert opened.asker == ANN


# --- messages that are not what a calibrator signed -----------------------------------------

SENT: dict[str, Callable[[str], Any]] = {
    "nothing": lambda good: None,
    "bytes": lambda good: good.encode(),
    "a dict": lambda good: json.loads(good),
    "a number": lambda good: 5,
    "an empty text": lambda good: "",
    "no JSON": lambda good: good[:-1],
    "a list": lambda good: f"[{good}]",
    "deep": lambda good: "[" * 16000 + "]" * 16000,
    "too long": lambda good: good + " " * MAX_MESSAGE,
    "a space at the end": lambda good: good + " ",
    "other spaces": lambda good: json.dumps(json.loads(good)),
    "without a signature": lambda good: drop(good, "signature"),
    "without a certificate": lambda good: drop(good, "certificate"),
    "without a request": lambda good: drop(good, "request"),
    "without a version": lambda good: drop(good, "privcal"),
    "a part beside": lambda good: put(good, epsilon=100),
    "a version that is no number": lambda good: put(good, privcal="3"),
    "a version that is true": lambda good: put(good, privcal=True),
    "a version with a fraction": lambda good: put(good, privcal=3.0),
    "an empty signature": lambda good: put(good, signature=""),
    "a signature that is no text": lambda good: put(good, signature=[1]),
    "a signature of zeros": lambda good: put(good, signature="AAAA" * 86),
    "a signature with a line break": lambda good: put(
        good, signature="\n" + json.loads(good)["signature"]
    ),
    "a certificate that is none": lambda good: put(good, certificate="x"),
    "a certificate that is no text": lambda good: put(good, certificate=None),
    "a certificate beyond ASCII": lambda good: put(good, certificate="é"),
    "a certificate that is too long": lambda good: put(
        good, certificate=json.loads(good)["certificate"] * 20
    ),
    "a request that is no text": lambda good: put(good, request=GOOD),
    "two versions": lambda good: good.replace('"privcal":3', '"privcal":3,"privcal":4', 1),
    "a request twice": lambda good: good.replace('"request"', '"request":"{}","request"', 1),
    "a smaller epsilon after signing": lambda good: alter(good, "500000000", "400000000"),
    "a larger epsilon after signing": lambda good: alter(good, "500000000", "900000000"),
    "another temperature after signing": lambda good: alter(good, "1.5", "1.6"),
    "another site after signing": lambda good: alter(good, "site-1", "site-2"),
    "a longer life after signing": lambda good: alter(good, '"lifetime":600', '"lifetime":3600'),
    "the server's key after signing": lambda good: alter(
        good, SEAL.public, SealingKey.make().public
    ),
    "a space after signing": lambda good: alter(good, ",", ", "),
    "another campaign after signing": lambda good: alter(good, "never", "again"),
}


def drop(good: str, name: str) -> str:
    return spelt({k: v for k, v in json.loads(good).items() if k != name})


def put(good: str, **values: Any) -> str:
    return spelt({**json.loads(good), **values})


def alter(good: str, old: str, new: str) -> str:
    text = json.loads(good)["request"]
    assert old in text
    return put(good, request=text.replace(old, new))


@pytest.mark.parametrize("name", SENT)
def test_a_message_that_was_tampered_with_is_refused(root: Path, good: str, name: str) -> None:
    assert refused(SENT[name](good), root) == "bad_request"


def test_another_ones_signature_or_certificate_is_refused(
    root: Path, good: str, kits: Path
) -> None:
    bob = signer(kits, BOB)
    assert refused(put(good, certificate=bob.certificate), root) == "bad_request"
    signature = json.loads(bob.sign(request(question("never"))))["signature"]
    assert refused(put(good, signature=signature), root) == "bad_request"


def test_what_a_calibrator_signs_for_another_purpose_is_no_request(root: Path, ann: Signer) -> None:
    from nvflare.lighter.utils import sign_content

    bare = sign_content(having(), ann.key)
    assert refused(message(ann, having(), signature=bare), root) == "bad_request"


@pytest.mark.parametrize("who", ["site-1", "localhost"])
def test_a_good_certificate_of_someone_who_is_no_calibrator_is_refused(
    root: Path, kits: Path, who: str
) -> None:
    """A site, or the server, asks another site in its own name."""
    from nvflare.lighter.utils import load_private_key_file

    [path] = (kits / who / "startup").glob("*.key")
    key = load_private_key_file(str(path))
    fake = Signer(who, path.with_suffix(".crt").read_text(), key)
    assert refused(fake.sign(request(question("never"))), root) == "bad_request"


@pytest.mark.parametrize(
    ("signed", "role", "days"),
    [
        ("self", "lead", 360),
        ("elsewhere", "lead", 360),
        ("here", "member", 360),
        ("here", "lead", -1),
    ],
)
def test_a_certificate_that_is_self_made_foreign_or_expired_is_refused(
    root: Path, kits: Path, tmp_path: Path, signed: str, role: str, days: int
) -> None:
    if signed == "elsewhere":
        parts.make_kits(tmp_path / "kits", 1)
    folder = tmp_path / "kits" if signed == "elsewhere" else kits
    authority = None if signed == "self" else json.loads((folder / "ca" / "cert.json").read_text())
    pem, key = parts.certificate(ANN, role, authority=authority, days=days)
    assert refused(Signer(ANN, pem, key).sign(request(question("never"))), root) == "bad_request"


def test_such_a_certificate_made_by_the_authority_would_do(kits: Path, root: Path) -> None:
    """The control: what was wrong above is the issuer, the role, the date."""
    authority = json.loads((kits / "ca" / "cert.json").read_text())
    pem, key = parts.certificate("eve@lab.org", authority=authority)
    asked = request(question("made"))
    opened = open_message(Signer("eve@lab.org", pem, key).sign(asked), root, site="site-1")
    assert (opened.asker, opened.request) == ("eve@lab.org", asked)


def test_the_fingerprint_is_that_of_the_askers_key(kits: Path, root: Path) -> None:
    """A stolen key keeps its fingerprint under any name; two calibrators have two."""
    authority = json.loads((kits / "ca" / "cert.json").read_text())
    pem, key = parts.certificate("eve@lab.org", authority=authority)
    found = [
        open_message(by.sign(request()), root, site="site-1").fingerprint
        for by in (signer(kits), signer(kits), signer(kits, BOB), Signer("eve@lab.org", pem, key))
    ]
    assert found[0] == found[1]
    assert len(set(found)) == 3
    assert all(len(text) == 64 for text in found)


def test_a_site_without_its_root_certificate_does_not_blame_the_asker(
    good: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="is missing, or is not a certificate"):
        open_message(good, tmp_path / "rootCA.pem", site="site-1")


# --- another version, another site, another time --------------------------------------------


def test_a_message_of_the_first_version_is_told_so(root: Path, ann: Signer) -> None:
    """It said no version; its parts were these, spelt with spaces."""
    from nvflare.lighter.utils import sign_content

    text = question("never").text()
    old = {"question": text, "signature": sign_content(text, ann.key)}
    assert refused(json.dumps({**old, "certificate": ann.certificate}), root) == "version"


@pytest.mark.parametrize("version", [0, 1, 2, 4, -1, 10**6])
def test_a_message_of_another_version_is_told_so_whatever_else_it_is(
    root: Path, good: str, version: int
) -> None:
    assert refused(put(good, privcal=version), root) == "version"
    assert refused(json.dumps({"privcal": version, "new": ["parts"]}), root) == "version"


def test_a_message_for_other_sites_is_refused(root: Path, ann: Signer) -> None:
    to_others = ann.sign(request(sites=("site-2", "site-3")))
    assert refused(to_others, root) == "addressee"
    assert open_message(to_others, root, site="site-2").asker == ANN
    assert refused(ann.sign(request(sites=("site-11",))), root) == "addressee"


def test_a_message_holds_for_its_lifetime_by_the_sites_clock(root: Path, ann: Signer) -> None:
    asked = request(lifetime=30, issued=int(time.time()) + 100)  # the kits are of this minute
    sent = ann.sign(asked)
    for now in (asked.issued - CLOCK_SKEW, asked.issued, asked.issued + 30):
        assert open_message(sent, root, site="site-1", now=now).request == asked
    for now in (asked.issued - CLOCK_SKEW - 1, asked.issued + 30.5, asked.issued + 86400):
        assert refused(sent, root, now=now) == "expired"


def test_a_message_that_is_replayed_later_is_refused_and_a_calibrator_cannot_date_it_ahead(
    root: Path, ann: Signer
) -> None:
    today = int(time.time())
    assert refused(ann.sign(request(issued=today - 700)), root) == "expired"
    assert refused(ann.sign(request(issued=today + 3000)), root) == "expired"


def test_a_stranger_learns_nothing_from_a_code_but_the_version(root: Path, ann: Signer) -> None:
    """Whom a site takes itself for, and its clock, are told to calibrators alone."""
    for odd in (request(sites=("site-2",)), request(issued=1)):
        sent = ann.sign(odd)
        assert refused(sent, root) in ("addressee", "expired")
        assert refused(put(sent, signature="AAAA" * 86), root) == "bad_request"


# --- round trips ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        question(),
        question("a campaign with é and ☃", 7, BinnedGap(0.3, 30), 1e-9, index=3, model=None),
        question("h", 2**31 - 1, Hats(2.0, (-1.0, 0.1, 99.0)), 1e6),
        *(question(kind, query=cls()) for kind, cls in FAMILY.items()),
    ],
)
def test_a_request_comes_through_unchanged(asked: Any, root: Path, ann: Signer) -> None:
    kinds = ("question", "offer", "release", "about")
    for made in (request(asked, kind=kind) for kind in kinds):
        assert read_request(made.text()) == made
        opened = open_message(ann.sign(made), root, site="site-1")
        assert (opened.asker, opened.request) == (ANN, made)


def test_a_request_made_now_can_be_opened_and_its_key_opens_the_reply(
    kits: Path, root: Path, ann: Signer
) -> None:
    made, key = Request.make("question", "c", [question()], ["site-2", "site-1"])
    other, another_key = Request.make("question", "c", [question()], ["site-2", "site-1"])
    assert made.seal != other.seal
    sent = ann.sign(made)
    reply = Reply((7,), 1, None, ID)
    opened = open_message(sent, root, site="site-1")
    sealed = seal_reply(reply, opened, SiteKeys.load(kits / "site-1"), "site-1")
    card = own_card(kits / "site-1")
    assert open_reply(sealed, sent, card, key, made) == reply
    with pytest.raises(ValueError, match="another key"):
        open_reply(sealed, sent, card, another_key, made)


def test_the_longest_offer_is_below_the_limit(root: Path, ann: Signer) -> None:
    knots = tuple(k + 1 / 3 for k in range(32))
    plan = [
        question("☃" * 200, k, Hats(1 / 3, knots), model="☃" * 200) for k in range(MAX_QUESTIONS)
    ]
    sites = (*(f"{'x' * 58}-{k:04}" for k in range(999)), "y")
    sent = ann.sign(request(*plan, kind="offer", sites=sites))
    assert len(sent) < MAX_MESSAGE
    assert len(open_message(sent, root, site="y").request.questions) == MAX_QUESTIONS


@pytest.mark.parametrize(
    "odd", [{"model": "m" * 201}, {"epsilon": 0.0}, {"index": -1}, {"round": 2**31}]
)
def test_a_calibrator_is_told_before_it_sends_what_every_site_would_refuse(
    ann: Signer, odd: dict[str, Any]
) -> None:
    with pytest.raises(InputError):
        ann.sign(request(question(**odd)))


def test_a_signer_needs_a_key_and_a_certificate(kits: Path, tmp_path: Path) -> None:
    assert signer(kits, BOB).name == BOB
    with pytest.raises(InputError, match="is missing, or is not a certificate"):
        Signer.of_kit(tmp_path)
    startup = tmp_path / "startup"
    startup.mkdir()
    for text in ("no certificate", "é"):
        (startup / "client.crt").write_text(text)
        with pytest.raises(InputError, match="is not a certificate"):
            Signer.of_kit(tmp_path)
    shutil.copy(kits / BOB / "startup" / "client.crt", startup)
    (startup / "client.key").write_text("no key")
    with pytest.raises(InputError, match="is not a private key"):
        Signer.of_kit(tmp_path)


# --- replies --------------------------------------------------------------------------------

TWO = Hats(1.0, (-2.0, 4.0))  # four numbers
LENGTH = TWO.length


class Exchange:
    """One question, the two sites it went to, and what the calibrator holds."""

    def __init__(self, kits: Path, campaign: str = "c", suite: str = HYBRID, **more: Any) -> None:
        self.key = SealingKey.make(suite)
        asked = question(campaign, query=TWO)
        facts = {"sites": ("site-1", "site-2"), "seal": self.key.public, **more}
        self.request = request(asked, **facts)
        self.message = signer(kits).sign(self.request)
        self.keys = {name: SiteKeys.load(kits / name) for name in ("site-1", "site-2")}
        self.cards = {name: own_card(kits / name) for name in ("site-1", "site-2")}
        self.opened = {
            name: open_message(self.message, kits / name / "startup" / "rootCA.pem", site=name)
            for name in ("site-1", "site-2")
        }

    def reply(self, reply: Reply, site: str = "site-1") -> str:
        return seal_reply(reply, self.opened[site], self.keys[site], site)

    def refuse(self, code: str, site: str = "site-1") -> str:
        return plain_refusal(code, self.message, self.keys[site], site)

    def read(self, text: Any, site: str = "site-1") -> Reply:
        return open_reply(text, self.message, self.cards[site], self.key, self.request)

    def sealing(self, plain: bytes, site: str = "site-1") -> str:
        """Whatever a dishonest site seals and signs, by the rules in the module's own words."""
        about = ["privcal reply 3", site, digest(self.message)]
        box = base64.b64encode(seal(self.key.public, plain, spelt(about).encode())).decode()
        signature = self.keys[site].sign(spelt([*about, box]))
        return spelt({"privcal": 3, "sealed": box, "signature": signature})


@pytest.fixture(scope="module")
def asked(kits: Path) -> Exchange:
    return Exchange(kits)


ANSWERS = [
    Reply((0, 0, 0, 0), 1, None, ID),
    Reply((2**62 - 1,) * 4, 2**31 - 1, 2**31 - 1, ID),
    Reply((-(2**62) + 1,) * 4, 2**31 - 1, 2**31 - 1, ID),
    *(Reply(refused=code) for code in REFUSALS),
]


@pytest.mark.parametrize("reply", ANSWERS)
@pytest.mark.parametrize("suite", [HYBRID, CLASSICAL])
def test_a_reply_comes_through_unchanged(kits: Path, reply: Reply, suite: str) -> None:
    asked = Exchange(kits, suite=suite)
    assert asked.read(asked.reply(reply)) == reply


@pytest.mark.parametrize("rows", [1, 2**31 - 1])
def test_what_an_owner_tells_comes_through_unchanged_and_as_long_as_silence(
    kits: Path, rows: int
) -> None:
    asked = Exchange(kits, kind="about")
    told = asked.reply(Reply(accepted=True, rows=rows))
    assert asked.read(told) == Reply(accepted=True, rows=rows)
    assert len(told) == len(asked.reply(Reply(accepted=True)))


@pytest.mark.parametrize("rows", [0, 2**31, -1, 1.5, True, None, "30"])
def test_rows_that_cannot_be_are_not_believed(rows: Any) -> None:
    with pytest.raises(ValueError, match="its rows is not a whole number"):
        read_reply(spelt({"accepted": True, "rows": rows}), request(kind="about"))


@pytest.mark.parametrize("kind", ["offer", "release", "about"])
def test_an_offer_is_answered_yes_or_refused(kits: Path, kind: str) -> None:
    asked = Exchange(kits, kind=kind)
    for reply in (Reply(accepted=True), Reply(refused="over_budget")):
        assert asked.read(asked.reply(reply)) == reply
    with pytest.raises(ValueError, match="neither yes nor a refusal"):
        asked.read(asked.reply(ANSWERS[0]))


def test_a_question_is_not_answered_with_yes(asked: Exchange) -> None:
    with pytest.raises(ValueError, match="other parts"):
        asked.read(asked.reply(Reply(accepted=True)))


@pytest.mark.parametrize("suite", [HYBRID, CLASSICAL])
def test_all_replies_to_one_question_are_of_one_length(kits: Path, suite: str) -> None:
    asked = Exchange(kits, suite=suite)
    assert len({len(asked.reply(reply)) for reply in ANSWERS}) == 1
    assert {len(asked.reply(reply, "site-2")) for reply in ANSWERS} == {
        len(asked.reply(ANSWERS[0]))
    }


def test_all_replies_to_one_offer_are_of_one_length(kits: Path) -> None:
    asked = Exchange(kits, kind="offer")
    yes = len(asked.reply(Reply(accepted=True)))
    assert {len(asked.reply(Reply(refused=code))) for code in REFUSALS} == {yes}


@pytest.mark.parametrize("query", [cls() for cls in FAMILY.values()] + [Histogram(100)])
def test_the_largest_answer_to_any_query_has_room(kits: Path, root: Path, query: Any) -> None:
    key = SealingKey.make()
    made = request(question(query=query), seal=key.public)
    sent = signer(kits).sign(made)
    opened = open_message(sent, root, site="site-1")
    keys, card = SiteKeys.load(kits / "site-1"), own_card(kits / "site-1")
    small = Reply((0,) * query.length, 1, None, ID)
    large = Reply((-(2**62) + 1,) * query.length, 2**31 - 1, 2**31 - 1, ID)
    texts = [seal_reply(reply, opened, keys, "site-1") for reply in (small, large)]
    assert len(texts[0]) == len(texts[1])
    assert open_reply(texts[1], sent, card, key, made) == large


def test_an_answer_that_has_no_room_does_not_leave(asked: Exchange) -> None:
    with pytest.raises(ValueError, match="more numbers"):
        asked.reply(Reply((2**61,) * 100, 1, None, ID))


def test_unsealed_refusals_are_of_one_length(asked: Exchange) -> None:
    assert not UNSEALED - set(REFUSALS)
    assert len({len(asked.refuse(code)) for code in UNSEALED}) == 1
    for code in UNSEALED:
        assert asked.read(asked.refuse(code)) == Reply(refused=code)


@pytest.mark.parametrize("code", sorted(set(REFUSALS) - UNSEALED))
def test_what_a_policy_or_a_ledger_says_never_leaves_unsealed(asked: Exchange, code: str) -> None:
    with pytest.raises(ValueError, match="must be sealed"):
        asked.refuse(code)


@pytest.mark.parametrize("message", [None, b"\xff", "\ud800", 7, "x" * 10])
def test_whatever_came_can_be_refused(asked: Exchange, message: Any) -> None:
    text = plain_refusal("bad_request", message, asked.keys["site-1"], "site-1")
    assert (
        open_reply(text, message, asked.cards["site-1"], asked.key, asked.request).refused
        == "bad_request"
    )


def test_the_server_sees_nothing_of_an_answer(asked: Exchange) -> None:
    text = asked.reply(Reply((123456789,) * 4, 1, 900, ID))
    assert set(json.loads(text)) == {"privcal", "sealed", "signature"}
    assert "123456789" not in text
    assert asked.reply(ANSWERS[0]) != asked.reply(ANSWERS[0])  # not even that two are the same


# --- replies that are not what a site sent, or not to this question ---------------------------


def test_replies_swapped_between_two_sites_are_not_used(asked: Exchange) -> None:
    one, two = asked.reply(ANSWERS[0]), asked.reply(ANSWERS[0], "site-2")
    for text, name in ((one, "site-2"), (two, "site-1")):
        with pytest.raises(ValueError, match="signature"):
            asked.read(text, name)


def test_a_site_cannot_sign_anothers_reply_as_its_own(asked: Exchange) -> None:
    """It carries the sealed part away, and signs that: what was sealed names its site."""
    box = json.loads(asked.reply(ANSWERS[0]))["sealed"]
    about = spelt(["privcal reply 3", "site-2", digest(asked.message), box])
    signature = asked.keys["site-2"].sign(about)
    stolen = spelt({"privcal": 3, "sealed": box, "signature": signature})
    with pytest.raises(ValueError, match="another key or about something else"):
        asked.read(stolen, "site-2")


def test_a_reply_to_an_earlier_question_is_not_used(kits: Path, asked: Exchange) -> None:
    earlier = Exchange(kits, campaign="earlier")
    for text in (earlier.reply(ANSWERS[0]), earlier.refuse("unavailable")):
        earlier.read(text)
        with pytest.raises(ValueError, match="signature"):
            asked.read(text)


def test_a_reply_to_the_same_question_asked_before_is_not_used(kits: Path) -> None:
    """Though both were sealed for the same key."""
    first = Exchange(kits, seal=SEAL.public)
    second = Exchange(kits, seal=SEAL.public)
    first.key = second.key = SEAL
    first.read(first.reply(ANSWERS[0]))
    with pytest.raises(ValueError, match="signature"):
        second.read(first.reply(ANSWERS[0]))


def test_the_server_cannot_invent_an_answer_or_a_refusal(kits: Path, tmp_path: Path) -> None:
    asked = Exchange(kits)
    (tmp_path / "local").mkdir()
    servers = SiteKeys.make(tmp_path)
    invented = [
        seal_reply(ANSWERS[0], asked.opened["site-1"], servers, "site-1"),
        seal_reply(Reply(refused="over_budget"), asked.opened["site-1"], servers, "site-1"),
        plain_refusal("bad_request", asked.message, servers, "site-1"),
    ]
    for text in invented:
        with pytest.raises(ValueError, match="signature"):
            asked.read(text)


def test_the_server_cannot_change_a_refusal(asked: Exchange) -> None:
    text = asked.refuse("bad_request").replace("bad_request", "version").ljust(256)
    with pytest.raises(ValueError, match="signature"):
        asked.read(text)


def test_a_refusal_is_not_taken_for_a_sealed_reply_nor_the_other_way(asked: Exchange) -> None:
    """The two signatures are about different things, whatever their parts are called."""
    sealed = json.loads(asked.reply(ANSWERS[0]))
    renamed = {"privcal": 3, "refused": sealed["sealed"], "signature": sealed["signature"]}
    with pytest.raises(ValueError, match="other parts"):
        asked.read(spelt(renamed))
    borrowed = {"privcal": 3, "refused": "version", "signature": sealed["signature"]}
    with pytest.raises(ValueError, match="signature"):
        asked.read(spelt(borrowed).ljust(256))
    refusal = json.loads(asked.refuse("version"))
    with pytest.raises(ValueError, match="signature"):
        asked.read(put(spelt(sealed), signature=refusal["signature"]))


def test_a_reply_of_a_question_of_another_length_is_not_used(asked: Exchange) -> None:
    text = asked.reply(ANSWERS[0])
    others = [request(kind="offer"), *(request(question(query=q)) for q in (Gap(), Histogram(50)))]
    for other in others:
        with pytest.raises(ValueError, match=r"length|too long"):
            open_reply(text, asked.message, asked.cards["site-1"], asked.key, other)


BROKEN: dict[str, Callable[[str], Any]] = {
    "nothing": lambda text: None,
    "an empty text": lambda text: "",
    "bytes": lambda text: text.encode(),
    "a part of it": lambda text: text[:-1],
    "a space more": lambda text: text + " ",
    "much more": lambda text: text + " " * 10_000,
    "more of the sealed": lambda text: put(text, sealed=json.loads(text)["sealed"] + "AAAA"),
    "less of the sealed": lambda text: put(text, sealed=json.loads(text)["sealed"][:-4]),
    "nothing sealed": lambda text: put(text, sealed=""),
    "a number sealed": lambda text: put(text, sealed=7),
    "another box": lambda text: put(text, sealed="A" * len(json.loads(text)["sealed"])),
    "no signature": lambda text: drop(text, "signature"),
    "another signature": lambda text: put(text, signature="A" * 86 + "=="),
    "a signature of a number": lambda text: put(text, signature=1),
    "no version": lambda text: drop(text, "privcal"),
    "another version": lambda text: put(text, privcal=1),
    "a version with a fraction": lambda text: put(text, privcal=3.0),
    "a version that is true": lambda text: put(text, privcal=True),
    "a part beside": lambda text: put(text, refused="asker"),
    "a part twice": lambda text: text.replace('"sealed"', '"sealed":"","sealed"'),
    "other spaces": lambda text: json.dumps(json.loads(text)),
    "a list": lambda text: f"[{text}]",
    "deep": lambda text: "[" * 1000,
    "the old form": lambda text: ANSWERS[0].text(),
    "an old refusal": lambda text: '{"refused":"asker"}',
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_reply_that_was_tampered_with_is_not_used(asked: Exchange, name: str) -> None:
    with pytest.raises(ValueError, match=r"^its [^\n]+$"):
        asked.read(BROKEN[name](asked.reply(ANSWERS[0])))


def replying(**facts: Any) -> str:
    return spelt({"values": [1, 2, 3, 4], "rows_per_person": 1, "ledger": ID, **facts})


def test_the_answer_that_the_lies_below_were_made_from_is_used(asked: Exchange) -> None:
    room = len(asked.reply(ANSWERS[0]))
    text = asked.sealing(replying().encode().ljust(256 + 24 * LENGTH))
    assert len(text) == room
    assert asked.read(text).values == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[" * 300, "cannot be read"),
        ("[]", "cannot be read"),
        ("\xe9", "cannot be read"),
        (replying() + "\n", "cannot be read"),
        (json.dumps(json.loads(replying())), "cannot be read"),
        (replying().replace('{"ledger"', f'{{"ledger":"{ID}","ledger"'), "cannot be read"),
        ("{}", "other parts"),
        ('{"values":[1,2,3,4]}', "other parts"),
        ('{"accepted":true}', "other parts"),
        (replying(rows=812), "other parts"),
        (replying(values=[1]), "the 4 numbers"),
        (replying(values=[1, 2, 3, 4, 5]), "the 4 numbers"),
        (replying(values=[]), "the 4 numbers"),
        (replying(values="1234"), "the 4 numbers"),
        (replying(values={"0": 1, "1": 2, "2": 3, "3": 4}), "the 4 numbers"),
        (replying(values=[1, 2, 3, 0.5]), "off the grid"),
        (replying(values=[1, 2, 3, 4.0]), "off the grid"),
        (replying(values=[1, 2, 3, float("nan")]), "cannot be read"),
        (replying(values=[1, 2, 3, float("inf")]), "cannot be read"),
        (replying().replace("[1,", "[1e999,"), "cannot be read"),
        (replying(values=[1, 2, 3, None]), "off the grid"),
        (replying(values=[1, 2, 3, True]), "off the grid"),
        (replying(values=[1, 2, 3, "4"]), "off the grid"),
        (replying(values=[1, 2, 3, 2**62]), "off the grid"),
        (replying(values=[1, 2, 3, -(2**62)]), "off the grid"),
        (replying(values=[1, 2, 3, 10**100]), "off the grid"),
        (replying(values=[1, 2, 3, [4]]), "off the grid"),
        (replying(rows_per_person=0), "rows_per_person"),
        (replying(rows_per_person=1.0), "rows_per_person"),
        (replying(rows_per_person=True), "rows_per_person"),
        (replying(rows_per_person=None), "rows_per_person"),
        (replying(max_rows=0), "max_rows"),
        (replying(max_rows=2**31), "max_rows"),
        (replying(max_rows="many"), "max_rows"),
        (replying(max_rows=None), "max_rows"),
        (replying(ledger="John Smith"), "ledger has no id"),
        (replying(ledger=ID + "\n"), "ledger has no id"),
        (replying(ledger=7), "ledger has no id"),
        ('{"refused":"because of John Smith"}', "unknown code"),
        ('{"refused":["asker"]}', "unknown code"),
        ('{"refused":"asker","why":"John Smith"}', "unknown code"),
        ('{"refused":null}', "unknown code"),
    ],
)
def test_a_reply_of_a_lying_site_is_not_used(asked: Exchange, text: str, says: str) -> None:
    with pytest.raises(ValueError, match=r"^its? [^\n]+$") as error:
        asked.read(asked.sealing(text.encode("latin-1").ljust(256 + 24 * LENGTH)))
    assert says in str(error.value)
    assert "Smith" not in str(error.value)


@pytest.mark.parametrize("text", [None, b"{}", 7, "x" * 100_000])
def test_what_is_no_text_or_too_long_is_no_reply(text: Any) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        read_reply(text, request())


# --- anything at all ------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


def opened_or_refused(sent: Any, root: Path) -> Opened | str:
    """Nothing else may come out."""
    try:
        return open_message(sent, root, site="site-1")
    except Refused as refusal:
        return refusal.code


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_change_of_any_place_of_a_message_is_refused(
    root: Path, good: str, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, min(len(good), start + 20)))
    sent = good[:start] + data.draw(st.text(max_size=20)) + good[end:]
    if sent != good and _another_text(sent, good):
        assert opened_or_refused(sent, root) in ("bad_request", "version")


def _another_text(sent: str, good: str) -> bool:
    """PEM has room around and after the certificate itself that says nothing."""
    try:
        return drop(sent, "certificate") != drop(good, "certificate")
    except (ValueError, AttributeError, RecursionError):
        return True


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(GOOD)), value=JSON)
def test_whatever_stands_in_a_part_of_a_signed_request_it_is_opened_or_refused(
    root: Path, ann: Signer, name: str, value: Any
) -> None:
    found = opened_or_refused(message(ann, having(**{name: value})), root)
    assert isinstance(found, Opened) or found in ("bad_request", "addressee", "expired")


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(ASKED)), value=JSON)
def test_whatever_stands_in_a_part_of_a_signed_question_it_is_opened_or_refused(
    root: Path, ann: Signer, name: str, value: Any
) -> None:
    found = opened_or_refused(message(ann, changed(**{name: value})), root)
    assert isinstance(found, Opened) or found == "bad_request"


@settings(max_examples=200, deadline=None)
@given(sent=JSON.map(json.dumps) | st.text() | JSON)
def test_anything_sent_is_refused(root: Path, sent: Any) -> None:
    assert opened_or_refused(sent, root) in ("bad_request", "version")


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_change_of_any_place_of_a_reply_makes_it_unusable(
    asked: Exchange, data: st.DataObject
) -> None:
    text = data.draw(st.sampled_from([asked.reply(ANSWERS[0]), asked.refuse("expired")]))
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 20)))
    sent = text[:start] + data.draw(st.text(max_size=20)) + text[end:]
    if sent != text:
        with pytest.raises(ValueError, match=r"^it"):
            asked.read(sent)


@settings(max_examples=300, deadline=None)
@given(
    plain=st.binary(max_size=256 + 24 * LENGTH)
    | JSON.map(lambda facts: spelt(facts).encode())
    | st.dictionaries(
        st.sampled_from(["values", "ledger", "rows_per_person", "max_rows", "refused", "accepted"]),
        JSON,
    ).map(lambda facts: spelt({**json.loads(replying()), **facts}).encode())
)
def test_whatever_a_site_seals_it_is_an_answer_a_code_or_unusable(
    asked: Exchange, plain: bytes
) -> None:
    try:
        reply = asked.read(asked.sealing(plain.ljust(256 + 24 * LENGTH)))
    except ValueError:
        return
    assert reply.refused in REFUSALS or len(reply.values) == LENGTH


def test_private_keys_are_in_nothing_that_is_sent_or_shown(
    kits: Path, asked: Exchange, tmp_path: Path
) -> None:
    shutil.copytree(kits / "site-1" / "local" / "keys", tmp_path / "keys")
    file = json.loads((tmp_path / "keys" / "site.key").read_text())
    secrets = [file["signing"].rstrip("="), file["sealing"].partition(":")[2].rstrip("=")]
    secrets.append(asked.key.secret.partition(":")[2].rstrip("="))
    shown = [
        asked.message,
        asked.reply(ANSWERS[0]),
        asked.refuse("expired"),
        asked.cards["site-1"].text,
        *map(repr, (asked.keys["site-1"], asked.key, asked.opened["site-1"], asked.request)),
        *map(str, (asked.keys["site-1"], asked.key)),
        repr(replace(asked.keys["site-1"], made=1)),
    ]
    for text in shown:
        for secret in secrets:
            assert secret[:20] not in text
