"""What is inside letters: a good request or one sentence, a good reply or one sentence, all replies of one length."""

from __future__ import annotations

import base64
import json
import timeit
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privcal.trusted.errors import REFUSALS, InputError
from privcal.trusted.policy import SecureRules
from privcal.trusted.queries import FAMILY, BinnedGap, Gap, Hats, Histogram, Query

pytest.importorskip("cryptography", reason="needs cryptography: pip install privcal[secure]")

from privcal.secure.keys import CLASSICAL, HYBRID, SealingKey
from privcal.secure.terms import MAX_SITES, Terms
from privcal.transport.content import (
    KINDS,
    MAX_LIFETIME,
    MAX_QUESTIONS,
    SECURE,
    Reply,
    Request,
    check_fits,
)
from privcal.transport.letter import MAX_LETTER, Letter
from privcal.transport.replied import Replied, read_reply
from tests.support.parties import BOX, FOUR, SEAL, SITES, question, spelt
from tests.support.parties import terms as terms_of

ID, FEDERATION, ASKER, SITE = "0123456789abcdef" * 2, "a" * 32, "b" * 32, "c" * 32
ROSTER = " ".join(["0a1b"] * 12)
STAMP = (3, ROSTER)
PRIME_127 = 2**127 - 1


def terms(sites: tuple[str, ...] = SITES, query: Query = FOUR, **more: Any) -> Terms:
    return terms_of(ROSTER, sites, query, **more)


def request(kind: str = "ask", **more: Any) -> Request:
    """A request of each kind, as an honest calibrator makes it; `more` replaces its parts."""
    facts: dict[str, Any] = {
        "kind": kind,
        "federation": FEDERATION,
        "roster": STAMP,
        "sender": ASKER,
        "reader": SITE,
        "campaign": "c",
        "issued": 1_800_000_000,
        "until": 1_800_086_400,
        "reply_key": SEAL.public,
    }
    if kind == "ask":
        asked = more.get("questions", (question(),))
        facts |= {"plan": asked, "questions": asked}
    if kind in SECURE:
        facts |= {"terms": terms()}
    if kind in ("check", "open"):
        facts |= {"boxes": {"site-2": BOX, "site-3": BOX}}
    return Request(**{**facts, **more})


OFFER = request("about", plan=(question(query=FOUR),), terms=terms())
GOOD = {kind: request(kind) for kind in KINDS} | {"offer": OFFER}
ASKED = question().facts()
FACTS = json.loads(request().text)


def having(of: str = "ask", /, **facts: Any) -> str:
    return spelt({**json.loads(GOOD[of].text), **facts})


def changed(**facts: Any) -> str:
    """A request whose one question has other facts, in the plan too."""
    one = {**ASKED, **facts}
    return having(questions=[one], plan=[one])


def asking(**query: Any) -> str:
    return changed(query=query)


def without(name: str) -> str:
    one = {k: v for k, v in ASKED.items() if k != name}
    return having(questions=[one], plan=[one])


def planning(*questions: Any) -> str:
    return having("about", plan=list(questions))


def with_terms(kind: str, **facts: Any) -> str:
    """A request whose terms have other facts, spelt as terms are."""
    return having(kind, terms=spelt({**json.loads(terms().text), **facts}))


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

MALFORMED: dict[str, str] = {
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
    **{f"campaign {c!r} throughout": having(campaign=c, questions=[{**ASKED, "campaign": c}], plan=[{**ASKED, "campaign": c}])
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
    **{f"a request without {name}": spelt({k: v for k, v in FACTS.items() if k != name}) for name in FACTS},
    **{f"request of kind {k!r}": having(kind=k) for k in ("", "Ask", "question", "offer", "reply", "share", "release", None, 1, [], {})},
    **{f"{who} {n!r}"[:60]: having(**{who: n}) for who in ("federation", "sender", "reader") for n in (
        "", "site-1", "A" * 32, "a" * 31, "a" * 33, "a" * 31 + "\n", None, 1, [], {}, ["a" * 32])},
    **{f"roster {r!r}"[:60]: having(roster=r) for r in (
        None, 3, [], [3], [3, ROSTER, 1], [0, ROSTER], [-1, ROSTER], [3.0, ROSTER], [True, ROSTER], ["3", ROSTER],
        [2**31 + 1, ROSTER], [3, ""], [3, "0" * 59], [3, ROSTER.upper()], [3, ROSTER + "\n"], [3, None], {"3": ROSTER})},
    **{f"issued {n}": having(issued=v) for n, v in WHOLE.items()},
    **{f"until {n}": having(until=v) for n, v in WHOLE.items()},
    "until before it was issued": having(until=FACTS["issued"] - 1),
    "until when it was issued": having(until=FACTS["issued"]),
    "until after 90 days": having(until=FACTS["issued"] + MAX_LIFETIME + 1),
    **{f"sealed for {n}": having(reply_key=v) for n, v in SEALS.items()},
    "no question": having(questions=[]),
    "a question twice": having(questions=[ASKED, ASKED]),
    "questions that are no list": having(questions=ASKED),
    "a question that is a text": having(questions=[spelt(ASKED)]),
    "too many questions": having(questions=[ASKED] * (MAX_QUESTIONS + 1)),
    "a question that is not in the plan": having(questions=[{**ASKED, "index": 1}]),
    "a question of a higher cost than in the plan": having(questions=[{**ASKED, "nano_epsilon": 10**9}]),
    "a question of another kind than in the plan": having(questions=[{**ASKED, "query": FOUR.to_dict()}]),
    "no plan": having(plan=[]),
    "a part beside": having(epsilon=100),
    "a version inside": having(privcal=4),
    "sites": having(sites=["site-1"]),
    "a question of another campaign": having(campaign="other"),
    "a space": having().replace(",", ", ", 1),
    "a line break after it": having() + "\n",
    "a part twice": having().replace('"campaign":"c"', '"campaign":"never","campaign":"c"', 1),
    "an epsilon twice": having().replace('"nano_epsilon"', '"nano_epsilon":1,"nano_epsilon"'),
    "another order": json.dumps(dict(reversed(FACTS.items())), separators=(",", ":")),
    "an escape": having().replace('"kind"', '"\\u006bind"', 1),
    "a plan with one question twice": planning(ASKED, ASKED),
    "a plan about two models": planning(ASKED, {**ASKED, "index": 1, "model": "another"}),
    "a plan of two campaigns": planning(ASKED, {**ASKED, "index": 1, "campaign": "another"}),
    "a plan of too much": planning(*({**ASKED, "index": k} for k in range(MAX_QUESTIONS + 1))),
    "a plan with one bad question": planning(ASKED, {**ASKED, "index": 1, "nano_epsilon": 0}),
    **{f"{kind} with a question": having(kind, questions=[ASKED]) for kind in GOOD if kind != "ask"},
    **{f"{kind} with a plan": having(kind, plan=[ASKED]) for kind in ("release", *SECURE)},
    # Secure sums.
    **{f"{kind} without terms": having(kind, terms=None) for kind in SECURE},
    **{f"{kind} with terms": having(kind, terms=terms().text) for kind in ("ask", "release", "about")},
    **{f"{kind} with boxes": having(kind, boxes={"site-2": list(BOX)}) for kind in GOOD if kind not in ("check", "open")},
    **{f"{kind} without boxes": having(kind, boxes={}) for kind in ("check", "open")},
    **{f"{kind} of another campaign": with_terms(kind, question=question("other").facts()) for kind in ("offer", *SECURE)},
    "open with a box of a stranger": having("open", boxes={"site-9": list(BOX)}),
    "boxes as a list": having("open", boxes=[["site-2", *BOX]]),
    "a box that is a text": having("open", boxes={"site-2": "box"}),
    "a box of three": having("open", boxes={"site-2": [*BOX, "x"]}),
    "a box of numbers": having("open", boxes={"site-2": [1, 2]}),
    "a box that is nothing": having("open", boxes={"site-2": None}),
    "terms as a table": having("share", terms=json.loads(terms().text)),
    "terms spelt otherwise": having("share", terms=json.dumps(json.loads(terms().text))),
    "terms with a part beside": with_terms("share", note="hello"),
    **{f"terms with {name} {value}": with_terms("share", **{name: value})
       for name, value in [("threshold", 2), ("threshold", 0), ("honest", 3), ("honest", 0),
                           ("colluding", 0), ("colluding", -1), ("needed", 2), ("needed", 4),
                           ("alone", 0), ("rows_per_person", 0), ("version", 2), ("version", 1.0),
                           ("sites", ["site-3", "site-1", "site-2"]), ("groups", 2), ("group", 1),
                           ("asker", ""), ("roster", 7)]},
}  # fmt: skip


def test_there_are_at_least_400_malformed_requests() -> None:
    assert len(MALFORMED) >= 400


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_request_gets_one_sentence_though_a_calibrator_sealed_it(name: str) -> None:
    with pytest.raises(InputError, match=r"^[^\n]{1,600}$"):
        Request.read(MALFORMED[name])


@pytest.mark.parametrize("kind", GOOD)
def test_the_good_requests_that_these_were_made_from_are_read(kind: str) -> None:
    assert Request.read(having(kind)) == GOOD[kind]
    assert Request.read(GOOD[kind].text).text == GOOD[kind].text


@pytest.mark.parametrize(
    "text",
    [None, b"{}", 5, FACTS, having() + " " * MAX_LETTER],
    ids=["nothing", "bytes", "number", "facts", "long"],
)
def test_what_is_no_text_or_too_long_is_no_request(text: Any) -> None:
    with pytest.raises(InputError, match="not a text, or too long"):
        Request.read(text)


def test_a_reply_is_no_request_and_a_request_no_reply() -> None:
    reply = Replied.to(request(), "0" * 64, STAMP, Reply(refused="asker"))
    with pytest.raises(InputError, match="other parts"):
        Request.read(reply.text)
    for made in GOOD.values():
        with pytest.raises(InputError, match="it is no reply"):
            Replied.read(made.text)


# --- round trips ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        question(),
        question("with é and ☃", 7, BinnedGap(0.3, 30), nano_epsilon=1, index=3, model=None),
        question("h", 2**31 - 1, Hats(2.0, (-1.0, 0.1, 99.0)), nano_epsilon=10**15),
        *(question(kind, query=cls()) for kind, cls in FAMILY.items()),
    ],
)
def test_a_request_comes_through_unchanged(asked: Any) -> None:
    asking = request(campaign=asked.campaign, questions=(asked,))
    release = request("release", campaign=asked.campaign)
    for made in (asking, request("about", campaign=asked.campaign, plan=(asked,)), release):
        assert Request.read(made.text) == made
    assert (asking.model, release.model) == (asked.model, None)


@pytest.mark.parametrize("seconds", [1, MAX_LIFETIME])
def test_a_letter_holds_for_a_second_to_90_days(seconds: int) -> None:
    made = request(until=FACTS["issued"] + seconds)
    assert Request.read(made.text) == made


@pytest.mark.parametrize("kind", ["offer", *SECURE])
def test_terms_and_boxes_come_through_unchanged(kind: str) -> None:
    read = Request.read(GOOD[kind].text)
    assert read == GOOD[kind]
    assert read.terms is not None
    assert read.terms.digest == terms().digest
    assert read.model == terms().question.model


def test_a_later_round_asks_with_the_same_plan_and_other_parameters() -> None:
    """What the plan tells of them is their kind, their length and their cost."""
    plan = (question(round=0), question(round=1), question(round=2))
    asked = question(round=1, query=Gap(2.5))
    made = request(plan=plan, questions=(asked,))
    assert Request.read(made.text).questions == (asked,)


def test_the_longest_request_fits_into_a_letter() -> None:
    knots = tuple(k + 1 / 3 for k in range(32))
    plan = tuple(
        question("☃" * 200, k, Hats(1 / 3, knots), model="☃" * 200) for k in range(MAX_QUESTIONS)
    )
    made = request(campaign="☃" * 200, questions=plan)
    assert len(Letter.write(made.text, Signing(), SITE, SEAL.public).content) < MAX_LETTER


@pytest.mark.parametrize(
    "odd", [{"model": "m" * 201}, {"nano_epsilon": 0}, {"index": -1}, {"round": 2**31}]
)
def test_a_calibrator_is_told_before_it_sends_what_every_site_would_refuse(odd: Any) -> None:
    with pytest.raises(InputError):
        request(questions=(question(**odd),))


def test_a_question_in_a_letter_is_parsed_in_a_few_times_of_what_json_takes() -> None:
    """Beside a fixed tenth of a millisecond or two, in which the key for replies is tried."""
    query = Hats(1.0, tuple(k + 1 / 3 for k in range(30)))

    def seconds(count: int, read: Any) -> float:
        plan = tuple(question(round=k, query=query) for k in range(count))
        text = request(plan=plan, questions=plan[:1]).text
        return min(timeit.repeat(lambda: read(text), number=3, repeat=7)) / 3

    def one(read: Any) -> float:
        return (seconds(101, read) - seconds(1, read)) / 100

    ours, plain = one(Request.read), one(json.loads)
    print(f"a question in a letter: {ours * 1e6:.0f} µs, as JSON alone {plain * 1e6:.0f} µs")
    assert ours < 15 * plain


# --- sizes of secure sums -------------------------------------------------------------------


class Signing:
    """Somebody's signing key."""

    public = base64.b64encode(bytes(range(32))).decode()

    def sign(self, text: str) -> str:
        return base64.b64encode(bytes(64)).decode()


def many(count: int, numbers: int, name: str = "a-hospital-{:04}") -> Terms:
    knots = tuple(float(k) for k in range(numbers // 2))
    names = tuple(name.format(k) for k in range(count))
    return terms(names, Hats(1.0, knots), colluding=count // 5, needed=count)


def sealed_box(agreed: Terms) -> tuple[str, str]:
    size = 1136 + 16 * agreed.question.query.length
    return "A" * (4 * -(-size // 3)), "A" * 88


def longest_names(numbers: int) -> Terms:
    """As many sites with the longest names as are let be asked together, of the longest question."""
    name = "x" * 59 + "{:04}"
    with pytest.raises(InputError) as error:
        check_fits(many(MAX_SITES, numbers, name))
    told = int(str(error.value).split("at most ")[1].split()[0])
    agreed = many(told, numbers, name)
    return agreed.about(replace(agreed.question, campaign="☃" * 200, model="☃" * 200))


@pytest.mark.parametrize(
    "agreed",
    [many(8, 30), many(300, 30), many(300, 64), longest_names(4), longest_names(64)],
    ids=lambda agreed: f"{len(agreed.sites)} sites",
)
def test_what_is_dealt_and_what_opens_it_fits(agreed: Terms) -> None:
    check_fits(agreed)
    boxes = dict.fromkeys(agreed.sites, sealed_box(agreed))
    text = spelt({"boxes": boxes, "ledger": "0" * 32, "max_rows": 2**31 - 1})
    share = request("share", terms=agreed, campaign=agreed.question.campaign)
    dealt = Replied.to(share, "0" * 64, STAMP, Reply(dealt=text)).text
    opening = request("open", terms=agreed, boxes=boxes, campaign=agreed.question.campaign).text
    for inside in (dealt, opening):
        assert len(Letter.write(inside, Signing(), ASKER, SEAL.public).content) <= MAX_LETTER


def test_what_does_not_fit_is_told_before_anything_is_sent() -> None:
    too_many = many(MAX_SITES, 30)
    with pytest.raises(
        InputError, match=r"1,000 sites and 30 numbers does not fit .* at most \d{3} "
    ) as error:
        request("share", terms=too_many)
    told = int(str(error.value).split("at most ")[1].split()[0])
    check_fits(many(told, 30))
    with pytest.raises(InputError, match="does not fit"):
        check_fits(many(told + 5, 30))
    with pytest.raises(InputError, match="does not fit"):
        request("about", terms=too_many, plan=(too_many.question,))


def test_a_plan_whose_last_question_does_not_fit_is_not_offered() -> None:
    small = many(600, 4)
    large = replace(many(600, 64).question, round=1)
    request("about", terms=small, plan=(small.question,))
    with pytest.raises(InputError, match="64 numbers does not fit"):
        request("about", terms=small, plan=(small.question, large))


# --- replies --------------------------------------------------------------------------------

RULES = SecureRules(colluding=2**31 - 1, min_honest=2**31 - 1, alone=1000)
BOXES = spelt({"boxes": dict.fromkeys(SITES, sealed_box(terms()))})
LARGEST = 2**62 - 1
REPLIES: dict[str, list[Reply]] = {
    "ask": [
        Reply(((0,) * 1,), 1, None, ID),
        Reply(((LARGEST,),), 2**31 - 1, 2**31 - 1, ID),
        Reply(((-LARGEST,),), 2**31 - 1, 2**31 - 1, ID),
    ],
    "about": [
        Reply(accepted=True),
        Reply(accepted=True, rows=1),
        Reply(accepted=True, rows=2**31 - 1, rules=RULES, rows_per_person=1000),
    ],
    "release": [Reply(accepted=True)],
    "share": [Reply(dealt=BOXES), Reply(dealt="")],
    "check": [Reply(bad=()), Reply(bad=("site-2",)), Reply(bad=("site-2", "site-3"))],
    "open": [Reply(sums=(0,) * 4), Reply(sums=(PRIME_127 - 1,) * 4)],
}
REPLIES["offer"] = REPLIES["about"]


def replied(asked: Request, reply: Reply) -> str:
    return Replied.to(asked, "0" * 64, STAMP, reply).text


@pytest.mark.parametrize("kind", REPLIES)
def test_replies_come_through_and_all_to_one_request_are_of_one_length(kind: str) -> None:
    """Refusals of every code are among them, and a letter is as long as its content makes it."""
    asked, lengths = GOOD[kind], set()
    for reply in (*REPLIES[kind], *(Reply(refused=code) for code in REFUSALS)):
        text = replied(asked, reply)
        read = Replied.read(text)
        assert read_reply(read.body, asked) == reply
        assert read.text == text
        assert (read.sender, read.reader) == (asked.reader, asked.sender), "the other way round"
        assert (read.federation, read.roster, read.about) == (FEDERATION, STAMP, "0" * 64)
        lengths.add(len(Letter.write(text, Signing(), ASKER, asked.reply_key).content))
    assert len(lengths) == 1


@pytest.mark.parametrize("query", [cls() for cls in FAMILY.values()] + [Histogram(100)])
def test_the_largest_answer_to_any_query_has_room(query: Any) -> None:
    asked = request(questions=(question(query=query),))
    small = Reply(((0,) * query.length,), 1, None, ID)
    large = Reply(((-LARGEST,) * query.length,), 2**31 - 1, 2**31 - 1, ID)
    assert len(replied(asked, small)) == len(replied(asked, large))
    assert read_reply(Replied.read(replied(asked, large)).body, asked) == large


def test_the_answers_of_many_questions_are_as_long_as_a_refusal_of_them() -> None:
    plan = tuple(question(round=k, query=FOUR) for k in range(20))
    asked = request(questions=plan)
    large = Reply(((-LARGEST,) * 4,) * 20, 2**31 - 1, 2**31 - 1, ID)
    assert len(replied(asked, large)) == len(replied(asked, Reply(refused="busy")))
    assert read_reply(large.facts | {"answers": [[1] * 4] * 20}, asked).answers == ((1,) * 4,) * 20


def test_an_answer_that_has_no_room_does_not_leave() -> None:
    with pytest.raises(ValueError, match="more numbers"):
        replied(request(), Reply(((2**61,) * 100,), 1, None, ID))


def test_the_room_of_a_reply_is_that_of_sites_and_numbers_and_nothing_else() -> None:
    def rooms(agreed: Terms) -> list[int]:
        boxes = {agreed.sites[1]: BOX}
        return [
            request("share", terms=agreed).room,
            request("check", terms=agreed, boxes=boxes).room,
            request("open", terms=agreed, boxes=boxes).room,
        ]

    usual = rooms(terms())
    for other in (terms(alone=1), terms(rows_per_person=5), terms(colluding=0)):
        assert rooms(other) == usual
    assert rooms(terms(query=Hats(1.0, (1.0, 2.0, 3.0))))[::2] > usual[::2]
    assert rooms(terms((*SITES, "site-4")))[:2] > usual[:2]


def test_what_an_owner_wants_of_secure_sums_is_told_and_no_more() -> None:
    told = Reply(accepted=True, rows=2**31 - 1, rules=RULES, rows_per_person=1000)
    assert read_reply(told.facts, request("about")) == told
    spent = replace(RULES, epsilon_alone=7.5)
    assert "7.5" not in spelt(Reply(accepted=True, rules=spent).facts)
    with pytest.raises(ValueError, match="neither yes nor a refusal"):
        read_reply(told.facts, request("release"))


def answering(**facts: Any) -> dict[str, Any]:
    return {"answers": [[1, 2, 3, 4]], "rows_per_person": 1, "ledger": ID, **facts}


def telling(**facts: Any) -> dict[str, Any]:
    honest = Reply(accepted=True, rules=RULES).facts["secure"]
    return {"accepted": True, "secure": {**honest, **facts}}


LIES: dict[str, list[Any]] = {
    "ask": [
        {}, {"answers": [[1, 2, 3, 4]]}, {"accepted": True}, answering(rows=812), answering(values=[1]),
        *(answering(answers=odd) for odd in (
            [], [[1]], [[1, 2, 3, 4, 5]], [[]], [[1, 2, 3, 4]] * 2, "1234", {"0": [1]}, [{"0": 1}], [[1, 2, 3, 0.5]],
            [[1, 2, 3, 4.0]], [[1, 2, 3, None]], [[1, 2, 3, True]], [[1, 2, 3, "4"]], [[1, 2, 3, 2**62]],
            [[1, 2, 3, -(2**62)]], [[1, 2, 3, 10**100]], [[1, 2, 3, [4]]], None)),
        *(answering(rows_per_person=odd) for odd in (0, 1.0, True, None, "John Smith")),
        *(answering(max_rows=odd) for odd in (0, 2**31, "many", None)),
        *(answering(ledger=odd) for odd in ("John Smith", ID + "\n", 7, ID.upper())),
        *({"refused": odd} for odd in ("because of John Smith", ["asker"], None, {}, "")),
        {"refused": "asker", "why": "John Smith"},
    ],
    "about": [
        *(telling(**odd) for odd in (
            {"colluding": -1}, {"colluding": "2"}, {"min_honest": 0}, {"alone": 0}, {"alone": 10**9},
            {"required": "yes"}, {"rows_per_person": 0}, {"rows_per_person": 10**9}, {"note": "John Smith"})),
        {"accepted": True, "secure": 7}, {"accepted": 1}, {"accepted": False}, answering(),
        *({"accepted": True, "rows": odd} for odd in (0, 2**31, -1, 1.5, True, None, "30")),
    ],
    "release": [{"accepted": True, "rows": 5}, {"accepted": "yes"}, {}],
    "share": [{"accepted": True}, {"dealt": 7}, {"dealt": "", "more": 1}, {}, {"sums": [1, 2, 3, 4]}],
    "check": [{"bad": "site-2"}, {"bad": ["site-1"]}, {"bad": ["John Smith"]}, {"bad": [7]}, {"bad": [[]]}, {"dealt": ""}],
    "open": [
        {"sums": [1, 2, 3]}, {"sums": [1, 2, 3, 4, 5]}, {"sums": [1, 2, 3, -1]}, {"sums": [1, 2, 3, 4.0]},
        {"sums": [1, 2, 3, PRIME_127]}, {"sums": [1, 2, 3, True]}, {"sums": {}}, {"bad": []}, answering(),
    ],
}  # fmt: skip
FOURS = {**GOOD, "ask": request(questions=(question(query=FOUR),))}


def test_the_answer_that_the_lies_were_made_from_is_used() -> None:
    assert read_reply(answering(), FOURS["ask"]).answers == ((1, 2, 3, 4),)


@pytest.mark.parametrize(("kind", "lie"), [(kind, lie) for kind in LIES for lie in LIES[kind]])
def test_a_reply_of_a_lying_site_is_not_used(kind: str, lie: Any) -> None:
    with pytest.raises(ValueError, match=r"^its? [^\n]+$") as error:
        read_reply(lie, FOURS[kind])
    assert "Smith" not in str(error.value)


ANSWERED = json.loads(replied(FOURS["ask"], Reply(((1, 2, 3, 4),), 1, None, ID)))
BROKEN = {
    "nothing": "", "a list": f"[{spelt(ANSWERED)}]", "spaces": json.dumps(ANSWERED), "cut": spelt(ANSWERED)[:-1],
    "a part beside": spelt({**ANSWERED, "refused": "asker"}),
    "a part twice": spelt(ANSWERED).replace('"about"', '"about":"","about"'),
    **{f"no {name}": spelt({k: v for k, v in ANSWERED.items() if k != name}) for name in ANSWERED},
    **{f"{name} {odd!r}": spelt({**ANSWERED, name: odd}) for name in ANSWERED for odd in (None, 7, [], "x", {"a": 1}, True)
       if (name, odd) != ("body", {"a": 1})},
    "not blank": spelt({**ANSWERED, "blank": ANSWERED["blank"][:-4] + "John"}),
    "a line break": spelt({**ANSWERED, "blank": "\n"}),
    "about the half": spelt({**ANSWERED, "about": "0" * 32}),
    "an ID that is loud": spelt({**ANSWERED, "sender": "A" * 32}),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_reply_gets_one_sentence(name: str) -> None:
    with pytest.raises(InputError, match=r"^[^\n]{1,200}$"):
        Replied.read(BROKEN[name])


# --- anything at all ------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


def the_same_or_a_sentence(read: Any, text: str) -> None:
    """Whatever is read is written back the same; all else is one sentence. Nothing else may come out."""
    try:
        found = read(text)
    except InputError as error:
        said = str(error)
        assert 0 < len(said) < 600
        assert "\n" not in said
    else:
        assert found.text == text


@settings(max_examples=400, deadline=None)
@given(kind=st.sampled_from(sorted(GOOD)), name=st.sampled_from(sorted(FACTS)), value=JSON)
def test_whatever_stands_in_a_part_of_a_request_it_is_read_or_gets_one_sentence(
    kind: str, name: str, value: Any
) -> None:
    the_same_or_a_sentence(Request.read, having(kind, **{name: value}))


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(sorted(ASKED)), value=JSON)
def test_whatever_stands_in_a_part_of_a_question_it_is_read_or_gets_one_sentence(
    name: str, value: Any
) -> None:
    the_same_or_a_sentence(Request.read, changed(**{name: value}))


@settings(max_examples=200, deadline=None)
@given(kind=st.sampled_from(["offer", *SECURE]), name=st.sampled_from(sorted(json.loads(terms().text))), value=JSON)  # fmt: skip
def test_whatever_stands_in_a_part_of_terms_they_are_read_or_get_one_sentence(
    kind: str, name: str, value: Any
) -> None:
    the_same_or_a_sentence(Request.read, with_terms(kind, **{name: value}))


@settings(max_examples=200, deadline=None)
@given(boxes=JSON | st.dictionaries(st.sampled_from(SITES), JSON))
def test_whatever_boxes_are_they_are_boxes_or_get_one_sentence(boxes: Any) -> None:
    the_same_or_a_sentence(Request.read, having("open", boxes=boxes))


@settings(max_examples=300, deadline=None)
@given(data=st.data(), what=st.sampled_from(["request", "reply"]))
def test_any_change_of_any_place_is_read_as_it_stands_or_gets_one_sentence(
    data: st.DataObject, what: str
) -> None:
    text = spelt(ANSWERED) if what == "reply" else having(data.draw(st.sampled_from(sorted(GOOD))))
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 20)))
    sent = text[:start] + data.draw(st.text(max_size=20)) + text[end:]
    the_same_or_a_sentence(Replied.read if what == "reply" else Request.read, sent)


@settings(max_examples=200, deadline=None)
@given(sent=JSON.map(json.dumps) | st.text() | JSON)
def test_anything_else_is_no_content(sent: Any) -> None:
    for read in (Request.read, Replied.read):
        with pytest.raises(InputError):
            read(sent)


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(ANSWERED)), value=JSON)
def test_whatever_stands_in_a_part_of_a_reply_it_is_read_or_gets_one_sentence(
    name: str, value: Any
) -> None:
    the_same_or_a_sentence(Replied.read, spelt({**ANSWERED, name: value}))


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(sorted(FOURS)),
    body=st.dictionaries(
        st.sampled_from(["answers", "ledger", "rows_per_person", "max_rows", "refused", "accepted",
                         "secure", "rows", "dealt", "bad", "sums"]),
        JSON,
    )
    | JSON.filter(lambda facts: isinstance(facts, dict)),
)  # fmt: skip
def test_whatever_a_site_seals_it_is_an_answer_a_code_or_unusable(kind: str, body: Any) -> None:
    try:
        reply = read_reply(body, FOURS[kind])
    except ValueError as error:
        said = str(error)
        assert said.startswith("it")
        return
    assert reply.refused in (None, *REFUSALS)
    assert Reply(**vars(reply)) == reply
