"""The messages of a secure sum: what a site takes for one, and what a calibrator takes for a reply."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privcal.secure.terms import MAX_SITES, Terms
from privcal.trusted.errors import REFUSALS, InputError, Refused
from privcal.trusted.policy import SecureRules
from privcal.trusted.queries import Hats, Query

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")

from privcal.transport.federation.shared.messages import (
    Opened,
    Signer,
    open_message,
    open_reply,
    read_reply,
    seal_reply,
)
from privcal.transport.federation.shared.requests import (
    MAX_MESSAGE,
    SECURE,
    Reply,
    Request,
    check_fits,
    read_request,
)
from privcal.transport.federation.site.keys import SiteKeys
from privcal.transport.federation.site.roster import own_card
from tests.support import federation_parts as parts
from tests.support.federation_parts import ANN, SEAL, message, question, request, spelt

SITES = ("site-1", "site-2", "site-3")
ROSTER = " ".join(["0a1b"] * 12)
FOUR = Hats(1.0, (-2.0, 4.0))  # four numbers
PRIME = 2**127 - 1
BOX = ("c2VhbGVk", "c2lnbmF0dXJl")


def terms(sites: tuple[str, ...] = SITES, query: Query = FOUR, **more: Any) -> Terms:
    facts = {"colluding": 1, "needed": len(sites), "alone": 10, "rows_per_person": 1, **more}
    return Terms(question("never", query=query), ANN, sites, roster=ROSTER, **facts)


def secure(kind: str, **more: Any) -> Request:
    """A request of each kind, as an honest calibrator makes it; `more` replaces its parts."""
    facts: dict[str, Any] = {"kind": kind, "questions": (), "sites": SITES, "terms": terms()}
    if kind == "offer":
        facts["questions"] = (terms().question,)
    if kind in ("check", "open"):
        facts |= {"sites": ("site-1",), "boxes": {"site-2": BOX, "site-3": BOX}}
    return replace(request(question("never"), kind="release", lifetime=3600), **{**facts, **more})


KINDS = ("offer", *SECURE)
REQUESTS = {kind: secure(kind) for kind in KINDS}


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = parts.make_kits(tmp_path_factory.mktemp("federation") / "kits", sites=2)
    SiteKeys.make(made / "site-1")
    return made


@pytest.fixture(scope="module")
def ann(kits: Path) -> Signer:
    return parts.signer(kits)


@pytest.fixture(scope="module")
def root(kits: Path) -> Path:
    return kits / "site-1" / "startup" / "rootCA.pem"


# --- requests -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_terms_and_boxes_come_through_unchanged(root: Path, ann: Signer, kind: str) -> None:
    made = REQUESTS[kind]
    opened = open_message(ann.sign(made), root, site="site-1")
    assert opened.request == made
    assert opened.request.terms is not None
    assert opened.request.terms.digest == terms().digest
    assert opened.request.model == terms().question.model


def having(kind: str, **facts: Any) -> str:
    return spelt({**json.loads(REQUESTS[kind].text()), **facts})


def with_terms(kind: str, **facts: Any) -> str:
    """A request whose terms have other facts, spelt as terms are."""
    return having(kind, terms=spelt({**json.loads(terms().text), **facts}))


OTHER = json.loads(replace(terms(), question=question("other")).text)
MALFORMED = {
    **{f"{kind} without terms": having(kind, terms=None) for kind in SECURE},
    **{
        f"{kind} with terms": spelt({**json.loads(request(kind=kind).text()), "terms": terms().text})
        for kind in ("question", "release", "about")
    },
    **{
        f"{kind} with boxes": having(kind, boxes={"site-2": list(BOX)})
        for kind in ("offer", "share")
    },
    **{f"{kind} without boxes": having(kind, boxes={}) for kind in ("check", "open")},
    **{f"{kind} of another campaign": with_terms(kind, **OTHER) for kind in KINDS},
    **{f"{kind} with a question beside": having(kind, questions=[parts.facts_of(terms().question)])
       for kind in SECURE},
    "share to some of them": having("share", sites=["site-1", "site-2"]),
    "offer to some of them": having("offer", sites=["site-1", "site-2"]),
    "open to two at once": having("open", sites=["site-1", "site-2"]),
    "check to two at once": having("check", sites=["site-1", "site-2"]),
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


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_request_is_refused_though_well_signed(
    root: Path, ann: Signer, name: str
) -> None:
    with pytest.raises(Refused, match="bad_request"):
        open_message(message(ann, MALFORMED[name]), root, site="site-1")


def test_the_requests_that_the_malformed_ones_were_made_from_are_good() -> None:
    for kind in KINDS:
        assert read_request(having(kind)) == REQUESTS[kind]
    assert read_request(with_terms("share")) == REQUESTS["share"]


def opened_or_refused(sent: str, root: Path) -> Opened | str:
    """Nothing else may come out."""
    try:
        return open_message(sent, root, site="site-1")
    except Refused as refusal:
        return refusal.code


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(kind=st.sampled_from(KINDS), name=st.sampled_from(sorted(json.loads(terms().text))), value=JSON)  # fmt: skip
def test_whatever_stands_in_a_part_of_signed_terms_it_is_opened_or_refused(
    root: Path, ann: Signer, kind: str, name: str, value: Any
) -> None:
    found = opened_or_refused(message(ann, with_terms(kind, **{name: value})), root)
    assert isinstance(found, Opened) or found == "bad_request"


@settings(max_examples=150, deadline=None)
@given(boxes=JSON | st.dictionaries(st.sampled_from(SITES), JSON))
def test_whatever_boxes_are_they_are_boxes_or_refused(root: Path, ann: Signer, boxes: Any) -> None:
    found = opened_or_refused(message(ann, having("open", boxes=boxes)), root)
    if isinstance(found, Opened):
        assert all(isinstance(part, str) for box in found.request.boxes.values() for part in box)
    else:
        assert found == "bad_request"


# --- sizes ----------------------------------------------------------------------------------


def many(count: int, numbers: int, name: str = "a-hospital-{:04}") -> Terms:
    knots = tuple(float(k) for k in range(numbers // 2))
    names = tuple(name.format(k) for k in range(count))
    return terms(names, Hats(1.0, knots), colluding=count // 5, needed=count)


def sealed_box(sites: Terms) -> tuple[str, str]:
    size = 1136 + 16 * sites.question.query.length
    return "A" * (4 * -(-size // 3)), "A" * 88


@pytest.mark.parametrize(("sites", "numbers"), [(8, 30), (300, 30), (300, 64)])
def test_what_is_dealt_and_what_opens_it_fits(
    kits: Path, ann: Signer, sites: int, numbers: int
) -> None:
    agreed = many(sites, numbers)
    check_fits(agreed)
    boxes = dict.fromkeys(agreed.sites, sealed_box(agreed))
    text = spelt({"boxes": boxes, "ledger": "0" * 32, "max_rows": 2**31 - 1})
    share = secure("share", sites=agreed.sites, terms=agreed)
    opened = Opened(ANN, "", share, "digest", 0.0)
    reply = seal_reply(Reply(dealt=text), opened, SiteKeys.load(kits / "site-1"), "site-1")
    assert len(reply) <= MAX_MESSAGE
    first = agreed.sites[0]
    sent = ann.sign(secure("open", sites=(first,), terms=agreed, boxes=boxes))
    assert len(sent) <= MAX_MESSAGE


def test_what_does_not_fit_is_told_before_anything_is_sent() -> None:
    too_many = many(MAX_SITES, 30)
    with pytest.raises(
        InputError, match=r"1,000 sites and 30 numbers does not fit .* at most 6"
    ) as error:
        secure("share", sites=too_many.sites, terms=too_many)
    told = int(str(error.value).split("at most ")[1].split()[0])
    check_fits(many(told, 30))
    with pytest.raises(InputError, match="does not fit"):
        check_fits(many(told + 5, 30))
    with pytest.raises(InputError, match="does not fit"):
        secure("offer", sites=too_many.sites, terms=too_many, questions=(too_many.question,))


def test_a_plan_whose_last_question_does_not_fit_is_not_offered() -> None:
    small = many(700, 4)
    large = replace(many(700, 64).question, round=1)
    secure("offer", sites=small.sites, terms=small, questions=(small.question,))
    with pytest.raises(InputError, match="64 numbers does not fit"):
        secure("offer", sites=small.sites, terms=small, questions=(small.question, large))


# --- replies --------------------------------------------------------------------------------

RULES = SecureRules(2**31 - 1, ROSTER, 2**31 - 1, 1000, None, False)
REPLIES = {
    "share": [Reply(dealt=spelt({"boxes": dict.fromkeys(SITES, sealed_box(terms()))})), Reply(dealt="")],
    "check": [Reply(bad=()), Reply(bad=("site-2",)), Reply(bad=("site-2", "site-3"))],
    "open": [Reply(sums=(0,) * 4), Reply(sums=(PRIME - 1,) * 4)],
}  # fmt: skip


@pytest.mark.parametrize("kind", SECURE)
def test_replies_come_through_and_all_to_one_request_are_of_one_length(
    kits: Path, root: Path, ann: Signer, kind: str
) -> None:
    keys, card = SiteKeys.load(kits / "site-1"), own_card(kits / "site-1")
    made = replace(REQUESTS[kind], seal=SEAL.public)
    sent = ann.sign(made)
    opened = open_message(sent, root, site="site-1")
    lengths = set()
    for reply in (*REPLIES[kind], *(Reply(refused=code) for code in REFUSALS)):
        text = seal_reply(reply, opened, keys, "site-1")
        assert open_reply(text, sent, card, SEAL, made) == reply
        lengths.add(len(text))
    assert len(lengths) == 1


def test_the_room_of_a_reply_is_that_of_sites_and_numbers_and_nothing_else() -> None:
    def rooms(agreed: Terms) -> list[int]:
        one = agreed.sites[:1]
        boxes = {agreed.sites[1]: BOX}
        return [
            secure("share", sites=agreed.sites, terms=agreed).room,
            secure("check", sites=one, terms=agreed, boxes=boxes).room,
            secure("open", sites=one, terms=agreed, boxes=boxes).room,
        ]

    usual = rooms(terms())
    others = [terms(alone=1), terms(rows_per_person=5), terms(colluding=0)]
    assert all(rooms(other) == usual for other in others)
    assert rooms(terms(query=Hats(1.0, (1.0, 2.0, 3.0))))[::2] > usual[::2]
    assert rooms(terms((*SITES, "site-4")))[:2] > usual[:2]


def test_what_an_owner_wants_of_secure_sums_is_told_and_no_more() -> None:
    asked = request(kind="about")
    told = Reply(accepted=True, rows=2**31 - 1, rules=RULES, rows_per_person=1000)
    assert len(told.text()) <= asked.room
    assert read_reply(told.text(), asked) == told
    spent = replace(RULES, epsilon_alone=7.5)
    assert "7.5" not in Reply(accepted=True, rules=spent).text()
    for kind in ("offer", "release"):
        with pytest.raises(ValueError, match="neither yes nor a refusal"):
            read_reply(told.text(), request(kind=kind))


def lying(**facts: Any) -> str:
    honest = json.loads(Reply(accepted=True, rules=RULES).text())["secure"]
    return spelt({"accepted": True, "secure": {**honest, **facts}})


LIES = {
    "about": [
        lying(colluding=-1), lying(colluding="2"), lying(min_honest=0), lying(alone=0), lying(alone=10**9),
        lying(roster="John Smith"), lying(roster=7), lying(required="yes"), lying(rows_per_person=0),
        lying(rows_per_person=10**9), lying(note="hello"), '{"accepted":true,"secure":7}',
    ],
    "share": ['{"accepted":true}', '{"dealt":7}', '{"dealt":"","more":1}', "{}", '{"sums":[1,2,3,4]}'],
    "check": ['{"bad":"site-2"}', '{"bad":["site-1"]}', '{"bad":["John Smith"]}', '{"bad":[7]}', '{"dealt":""}'],
    "open": [
        '{"sums":[1,2,3]}', '{"sums":[1,2,3,4,5]}', '{"sums":[1,2,3,-1]}', '{"sums":[1,2,3,4.0]}',
        f'{{"sums":[1,2,3,{PRIME}]}}', '{"sums":[1,2,3,true]}', '{"sums":{}}', '{"bad":[]}', '{"values":[1,2,3,4]}',
    ],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), [(kind, lie) for kind in LIES for lie in LIES[kind]])
def test_a_reply_of_a_lying_site_is_not_used(kind: str, text: str) -> None:
    asked = request(kind="about") if kind == "about" else REQUESTS[kind]
    with pytest.raises(ValueError, match=r"^its? [^\n]+$") as error:
        read_reply(text, asked)
    assert "Smith" not in str(error.value)
