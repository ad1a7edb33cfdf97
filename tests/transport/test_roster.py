"""Cards and rosters: whose keys they are, that no two are alike, and what a coordinator alone can do: remove."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privcal.trusted.errors import InputError

pytest.importorskip("cryptography", reason="needs cryptography: pip install privcal[secure]")

from privcal.secure.keys import CLASSICAL, SealingKey
from privcal.transport import roster as module
from privcal.transport.keys import Keys, rotate
from privcal.transport.roster import LIFETIME, Card, Changes, Roster, shrinks, signed_by
from tests.support.parties import ANN, BOB, DAY, SITES, Parties, spelt


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    """Parties whose keys stay as they are."""
    return Parties(tmp_path_factory.mktemp("roster") / "parties")


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    return Parties(tmp_path / "parties")


def card_by(keys: Keys, **other: Any) -> Card:
    """A card as its rules say, made with keys that one has, of whatever one likes."""
    card = keys.card
    facts = {name: getattr(card, name) for name in ("role", "name", "signing", "sealing", "made")}
    return Card.make(tuple({**facts, **other}.values()), keys.sign)


# --- cards ----------------------------------------------------------------------------------


def test_a_card_comes_through_unchanged(shared: Parties, tmp_path: Path) -> None:
    keys = shared.keys("site-1")
    card = keys.card
    assert Card.read(card.text) == card == card_by(keys)
    card.save(tmp_path / "card.json")
    assert Card.load(tmp_path / "card.json") == card
    assert (card.role, card.name, card.id) == ("site", "site-1", keys.id)
    assert (card.signing, card.sealing) == (keys.public, keys.sealing_public)


def test_a_key_that_a_party_does_not_have_cannot_be_shown(shared: Parties) -> None:
    """Site-2 shows site-1's signing key as its own."""
    mine, others = shared.keys("site-2").card, shared.keys("site-1").card
    with pytest.raises(InputError, match="not signed with the key that it shows"):
        replace(mine, signing=others.signing)
    with pytest.raises(InputError, match="not signed with the key that it shows"):
        replace(mine, signing=others.signing, possession=others.possession)
    with pytest.raises(InputError, match="not signed with the key that it shows"):
        card_by(shared.keys("site-2"), signing=others.signing)


@pytest.mark.parametrize("name", ["sealing", "made", "name", "role"])
def test_a_card_changed_on_its_way_is_refused(shared: Parties, name: str) -> None:
    card, other = shared.keys("site-1").card, shared.keys(ANN).card
    value = card.made + 1 if name == "made" else getattr(other, name)
    with pytest.raises(InputError, match="not signed with the key"):
        replace(card, **{name: value})


@pytest.mark.parametrize("name", ["", "a/b", "x" * 64, "a b", ".", "-x", "é", "a\n", 7, None])
def test_some_names_are_no_partys(shared: Parties, name: Any) -> None:
    with pytest.raises(InputError, match="name must be of letters"):
        card_by(shared.keys("site-1"), name=name)


@pytest.mark.parametrize(
    "sealing",
    [
        "x25519:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "x25519:AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "rot13:AAAA",
    ],
)
def test_a_card_with_a_key_that_nothing_can_be_sealed_for_is_refused(
    shared: Parties, sealing: str
) -> None:
    with pytest.raises(InputError, match=r"sealing key|sealed for"):
        card_by(shared.keys("site-1"), sealing=sealing)


def test_a_card_with_a_signing_key_for_which_anyone_can_sign_is_refused(shared: Parties) -> None:
    """A site that wants to disown its replies: for the point of order 1 this is a signature."""
    one = base64.b64encode((1).to_bytes(32, "little")).decode()
    anything = base64.b64encode((1).to_bytes(32, "little") + bytes(32)).decode()
    with pytest.raises(InputError, match="relied on"):
        replace(shared.keys("site-1").card, signing=one, possession=anything)


def test_a_card_may_show_a_key_of_either_suite(shared: Parties) -> None:
    public = SealingKey.make(CLASSICAL).public
    assert card_by(shared.keys("site-1"), sealing=public).sealing == public


CARDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "nothing": lambda facts: "",
    "null": lambda facts: None,
    "spaces": lambda facts: json.dumps(facts),
    "a part twice": lambda facts: spelt(facts).replace('"made"', '"made":1,"made"'),
    "a part beside": lambda facts: spelt({**facts, "rows": 812}),
    "another version": lambda facts: spelt({**facts, "privcal": 3}),
    "no version": lambda facts: spelt({k: v for k, v in facts.items() if k != "privcal"}),
    "a version that is true": lambda facts: spelt({**facts, "privcal": True}),
    "made true": lambda facts: spelt({**facts, "made": True}),
    "made NaN": lambda facts: spelt({**facts, "made": float("nan")}),
    "made before time": lambda facts: spelt({**facts, "made": -1}),
    "made after time": lambda facts: spelt({**facts, "made": 2**33}),
    "a role of its own": lambda facts: spelt({**facts, "role": "coordinator"}),
    "oversize": lambda facts: spelt({**facts, "possession": "x" * 40_000}),
    **{
        f"{name} a list": (lambda facts, name=name: spelt({**facts, name: []}))
        for name in Card.__dataclass_fields__
    },
    **{
        f"no {name}": (lambda facts, name=name: spelt({k: facts[k] for k in facts if k != name}))
        for name in Card.__dataclass_fields__
    },
}


@pytest.mark.parametrize("name", CARDS)
def test_a_malformed_card_is_refused(shared: Parties, name: str) -> None:
    facts = json.loads(shared.keys("site-1").card.text)
    with pytest.raises(InputError, match=r"^[^\n]{1,400}$"):
        Card.read(CARDS[name](facts))


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=200), start=st.integers(0, 2500), length=st.integers(0, 50))
def test_any_change_of_any_place_of_a_card_is_refused(
    shared: Parties, text: str, start: int, length: int
) -> None:
    good = shared.keys("site-1").card.text
    sent = good[:start] + text + good[start + length :]
    if sent != good:
        with pytest.raises(InputError):
            Card.read(sent)


# --- rosters --------------------------------------------------------------------------------


def test_a_roster_comes_through_unchanged_in_any_order(shared: Parties, tmp_path: Path) -> None:
    roster = shared.roster
    assert Roster.read(roster.text) == roster
    turned = replace(roster, cards=roster.cards[::-1])
    assert [card.name for card in turned.cards] == [ANN, BOB, *SITES]
    assert (turned.text, turned.digest) == (roster.text, roster.digest)
    roster.save(tmp_path / "roster.json")
    assert Roster.load(tmp_path / "roster.json") == roster
    assert set(roster.members.by_name) == {*SITES}, "calibrators take no part in sums"
    assert roster.members.digest == roster.digest
    assert roster.party(shared.keys(BOB).id) == roster.named(BOB) == shared.keys(BOB).card
    assert (roster.party("0" * 32), roster.named("eve")) == (None, None)


def test_two_federations_of_the_same_parties_are_two(shared: Parties) -> None:
    one, two = shared.first(), shared.first()
    assert one.federation != two.federation
    assert one.digest != two.digest
    assert not shared.next(one, *shared).follows(two)


def test_the_digest_can_be_read_aloud_and_is_of_all_but_the_signatures(shared: Parties) -> None:
    roster = shared.roster
    assert re.fullmatch(r"([0-9a-f]{4} ){11}[0-9a-f]{4}", roster.digest)
    assert replace(roster, signatures=()).digest == roster.digest
    two = (*roster.coordinators, shared.keys(BOB).public)
    for other in (
        {"federation": "0" * 32},
        {"number": 2, "before": roster.digest},
        {"issued": roster.issued - 1},
        {"until": roster.until + 1},
        {"coordinators": two},
        {"coordinators": two[1:]},
        {"cards": roster.cards[1:]},
        {"gone": (("eve", "0" * 32),)},
    ):
        changed = replace(roster, **other)
        assert changed.digest != roster.digest, other
        assert changed.signers == (), "nor do the signatures hold for another"


def test_two_parties_with_something_in_common_are_not_in_one_roster(shared: Parties) -> None:
    roster, keys = shared.roster, shared.keys("site-2")
    one = shared.keys("site-1").card
    shouted = card_by(keys, name="SITE-1")
    for cards, what in (
        ((one, card_by(shared.keys("site-1"), name="site-2")), "signing key"),
        ((one, card_by(keys, sealing=one.sealing)), "sealing key"),
        ((one, shouted), "name"),
        ((one, one), "name"),
    ):
        with pytest.raises(InputError, match=f"have the same {what} in the roster"):
            replace(roster, cards=cards)


def test_two_parties_of_one_id_are_not_in_one_roster(
    shared: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """128 bits of a hash: whoever found two such keys could read the other's letters as theirs."""
    monkeypatch.setattr(module, "id_of", lambda signing: "0" * 32)
    cards = [rebuilt(shared.keys(name).card) for name in SITES[:2]]
    with pytest.raises(InputError, match="site-1 and site-2 have the same ID in the roster"):
        replace(shared.roster, cards=tuple(cards))


def rebuilt(card: Card) -> Card:
    return Card.read(card.text)


ROSTERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "empty": lambda facts: "",
    "cut": lambda facts: spelt(facts)[:-5],
    "spaces": lambda facts: json.dumps(facts),
    "not sorted": lambda facts: spelt({**facts, "cards": facts["cards"][::-1]}),
    "a party twice": lambda facts: spelt({**facts, "cards": facts["cards"] + facts["cards"][:1]}),
    "another version": lambda facts: spelt({**facts, "privcal": 3}),
    "no version": lambda facts: spelt({"cards": facts["cards"]}),
    "a part beside": lambda facts: spelt({**facts, "digest": "0000"}),
    "no list": lambda facts: spelt({**facts, "cards": {}}),
    "no card": lambda facts: spelt({**facts, "cards": [1]}),
    "not ASCII": lambda facts: spelt(facts) + "é",
    "a part twice": lambda facts: spelt(facts).replace('{"before"', '{"before":"","before"', 1),
    "a changed card": lambda facts: spelt(facts).replace('"site-1"', '"site-9"'),
    "no coordinator": lambda facts: spelt({**facts, "coordinators": []}),
    "three coordinators": lambda facts: spelt({**facts, "coordinators": facts["coordinators"] * 3}),
    "a coordinator twice": lambda facts: spelt(
        {**facts, "coordinators": facts["coordinators"] * 2}
    ),
    "a coordinator that is none": lambda facts: spelt({**facts, "coordinators": ["ann"]}),
    "number 0": lambda facts: spelt({**facts, "number": 0}),
    "a first one with one before": lambda facts: spelt(
        {**facts, "before": " ".join(["0a1b"] * 12)}
    ),
    "a second one without": lambda facts: spelt({**facts, "number": 2}),
    "a second one after something odd": lambda facts: spelt(
        {**facts, "number": 2, "before": "0a1b"}
    ),
    "an end before its beginning": lambda facts: spelt({**facts, "until": facts["issued"]}),
    "401 days": lambda facts: spelt({**facts, "until": facts["issued"] + LIFETIME + 1}),
    "a name that is gone without an ID": lambda facts: spelt({**facts, "gone": [["eve"]]}),
    "an odd name that is gone": lambda facts: spelt({**facts, "gone": [["e v e", "0" * 32]]}),
    "three signatures": lambda facts: spelt({**facts, "signatures": [""] * 3}),
    **{
        f"{name} {odd!r}": (lambda facts, name=name, odd=odd: spelt({**facts, name: odd}))
        for name in Roster.__dataclass_fields__
        for odd in (None, 1.0, True, "x", {}, [[]])
    },
}


@pytest.mark.parametrize("name", ROSTERS)
def test_a_damaged_roster_is_said_to_be_damaged(shared: Parties, tmp_path: Path, name: str) -> None:
    path = tmp_path / "given.json"
    path.write_text(ROSTERS[name](json.loads(shared.roster.text)), encoding="utf-8")
    with pytest.raises(InputError, match=r"given\.json is not a roster, or damaged: [^\n]+$"):
        Roster.load(path)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    for load, what in ((Roster.load, "roster"), (Card.load, "card")):
        with pytest.raises(InputError, match=f"cannot read {what} .*nowhere"):
            load(tmp_path / "nowhere")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_change_of_any_place_of_a_roster_is_read_as_it_stands_or_gets_one_sentence(
    shared: Parties, data: st.DataObject
) -> None:
    """Where it is read, it is another roster, or the coordinator's signature does not hold."""
    text = shared.roster.text
    start = data.draw(st.integers(0, len(text)))
    sent = (
        text[:start] + data.draw(st.text(max_size=9)) + text[start + data.draw(st.integers(0, 9)) :]
    )
    try:
        found = Roster.read(sent)
    except InputError as error:
        said = str(error)
        assert "\n" not in said
        return
    assert found.text == sent
    assert sent == text or found.signers == ()


def test_the_longest_roster_is_bounded_before_its_cards_are_looked_at(
    shared: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Card, "of", lambda facts: pytest.fail("a card was looked at"))
    facts = json.loads(shared.roster.text)
    with pytest.raises(InputError, match="cards must be a list of 0 to 2,000 values"):
        Roster.read(spelt({**facts, "cards": [{}] * 2001}))
    with pytest.raises(InputError, match="too long"):
        Roster.read(spelt({**facts, "signatures": ["x" * module.MAX_ROSTER]}))


# --- one roster after another ---------------------------------------------------------------


def test_a_roster_is_linked_to_the_one_before_and_remembers_who_left(shared: Parties) -> None:
    first = shared.roster
    second = shared.next(first, *shared.all_but("site-2"))
    third = shared.next(second, *shared.all_but("site-2", BOB))
    assert [r.number for r in (first, second, third)] == [1, 2, 3]
    assert (first.before, second.before, third.before) == ("", first.digest, second.digest)
    assert second.gone == (("site-2", shared.keys("site-2").id),)
    assert {name for name, _ in third.gone} == {"site-2", BOB}
    assert second.follows(first)
    assert third.follows(second)
    for one, other in ((third, first), (first, first), (second, third), (second, second)):
        assert not one.follows(other)
    other = shared.next(first, *shared.all_but("site-3"))
    assert not third.follows(other), "of the same number, and another digest"


def test_an_owner_sees_what_changed_since_the_roster_before(parties: Parties) -> None:
    first = parties.next(parties.roster, *parties.all_but("site-3"))
    assert first.since(parties.roster) == Changes(gone=("site-3",))
    rotate(parties.where / "site-2")
    again = parties.next(first, *parties.all_but("site-3"))
    assert again.since(first) == Changes(changed=("site-2",))
    back = parties.next(again, *parties)
    assert back.since(again) == Changes(new=("site-3",), back=("site-3",))
    longer = parties.next(back, *parties, until=back.until + DAY)
    assert longer.since(back) == Changes(longer=True)
    bob = parties.keys(BOB).public
    handed = parties.next(longer, *parties, coordinators=[parties.keys(ANN).public, bob])
    assert handed.since(longer) == Changes(coordinators=True)
    assert replace(handed, gone=()).since(longer) == Changes(coordinators=True, forgotten=True)
    shorter = parties.next(handed, *parties, until=handed.until - DAY)
    assert shorter.since(handed).only_removes


def test_an_id_that_left_and_comes_back_under_another_name_is_seen(parties: Parties) -> None:
    """A removed calibrator has a friend send its card in as the card of a new site."""
    without = parties.next(parties.roster, *parties.all_but(BOB))
    disguised = card_by(parties.keys(BOB), name="site-4", role="site")
    cards = (*without.cards, disguised)
    after = without.next(cards, int(time.time()), without.until).signed(parties.keys(ANN))
    assert after.since(without) == Changes(new=("site-4",), back=("site-4",))
    in_place = tuple(card for card in without.cards if card.name != "site-1")
    taken = card_by(parties.keys(BOB), name="site-1", role="site")
    after = without.next((*in_place, taken), int(time.time()), without.until)
    assert after.since(without) == Changes(changed=("site-1",), back=("site-1",))


def test_a_new_role_is_a_change(parties: Parties) -> None:
    """A site that becomes a calibrator may ask all the others."""
    asking = card_by(parties.keys("site-1"), role="calibrator")
    cards = [card for card in parties.roster.cards if card.name != "site-1"]
    after = parties.roster.next([*cards, asking], int(time.time()), parties.roster.until)
    assert after.since(parties.roster) == Changes(changed=("site-1",))


# --- what a coordinator can do alone --------------------------------------------------------


def test_the_coordinators_signature_may_shrink_a_roster(parties: Parties) -> None:
    own = parties.roster
    given = parties.next(own, *parties.all_but("site-2", BOB))
    assert shrinks(given, own)
    assert signed_by(given.text.encode(), own) == given
    assert signed_by(f"{given.text}\n".encode(), own) == given


def grown(parties: Parties) -> dict[str, Roster]:
    """What a coordinator, or a thief of its key, might sign beside a removal."""
    own = parties.roster
    eve = Keys.make(parties.where / "eve", "eve", "site")
    stolen = card_by(eve, name="site-1")
    others = [card for card in own.cards if card.name not in ("site-1", "site-2")]
    one = own.named("site-1")
    assert one is not None
    now = int(time.time())

    def after(*cards: Card, until: int = own.until, **more: Any) -> Roster:
        return own.next([*others, *cards], now, until, **more).signed(parties.keys(ANN))

    return {
        "a new party": after(one, eve.card),
        "another key for a name": after(stolen),
        "another sealing key": after(card_by(parties.keys("site-1"), sealing=eve.sealing_public)),
        "another role": after(card_by(parties.keys("site-1"), role="calibrator")),
        "another name for a key": after(card_by(parties.keys("site-1"), name="site-7")),
        "a longer time": after(one, until=own.until + 1),
        "other coordinators": after(one, coordinators=[parties.keys(ANN).public, eve.public]),
    }


def test_nothing_but_a_removal_is_taken_on_the_coordinators_word(parties: Parties) -> None:
    for what, after in grown(parties).items():
        assert after.follows(parties.roster)
        assert after.signers == (parties.keys(ANN).public,)
        assert not shrinks(after, parties.roster), what


def test_a_removal_is_taken_from_a_coordinator_of_the_own_roster_alone(parties: Parties) -> None:
    own = parties.roster
    cards = [card for card in own.cards if card.name != "site-2"]
    for name in parties.all_but(ANN):  # each signs, and even says that it is the coordinator
        keys = parties.keys(name)
        given = own.next(cards, own.issued, own.until, [keys.public]).signed(keys)
        both = own.next(cards, own.issued, own.until, [keys.public, parties.keys(ANN).public])
        for forged in (given, both.signed(keys), replace(both, signatures=given.signatures * 2)):
            assert not shrinks(forged, own)
            assert signed_by(forged.text.encode(), own) is None
    unsigned = own.next(cards, own.issued, own.until)
    assert not shrinks(unsigned, own)
    with pytest.raises(InputError, match="not a coordinator's of this roster"):
        unsigned.signed(parties.keys(BOB))


def test_a_roster_with_another_past_does_not_follow(parties: Parties) -> None:
    """Two second rosters: the third of one is no successor of the other, though it only removes."""
    one, other = (parties.next(parties.roster, *parties.all_but(who)) for who in (BOB, "site-3"))
    third = parties.next(one, *parties.all_but(BOB, "site-3"))
    forged = replace(third, gone=(*third.gone, *other.gone)).signed(parties.keys(ANN))
    assert third.follows(one)
    assert forged.number == other.number + 1
    for later in (third, forged):
        assert not later.follows(other)
        assert not shrinks(later, other)


def test_a_removal_is_not_forgotten_on_the_coordinators_word(parties: Parties) -> None:
    """Else Bob's name or key could come back later as if it were new."""
    own = parties.next(parties.roster, *parties.all_but(BOB))
    third = own.next([c for c in own.cards if c.name != "site-3"], own.issued, own.until)
    [bob] = own.gone
    for gone in ((), tuple(one for one in third.gone if one != bob), ((BOB, "0" * 32),)):
        after = replace(third, gone=gone).signed(parties.keys(ANN))
        assert after.follows(own)
        assert after.since(own).forgotten
        assert not shrinks(after, own)
    assert shrinks(third.signed(parties.keys(ANN)), own)


def test_of_two_coordinators_each_may_remove(parties: Parties) -> None:
    ann, bob = parties.keys(ANN), parties.keys(BOB)
    own = parties.next(parties.roster, *parties, coordinators=[ann.public, bob.public])
    cards = [card for card in own.cards if card.name != "site-2"]
    plain = own.next(cards, own.issued, own.until)
    for keys in (ann, bob):
        assert shrinks(plain.signed(keys), own)
        assert plain.signed(keys).signers == (keys.public,)
    both = plain.signed(ann).signed(bob)
    assert both.signers == (ann.public, bob.public)
    assert both.digest == plain.digest


def test_a_roster_of_another_federation_or_an_older_one_is_no_hint(parties: Parties) -> None:
    own = parties.next(parties.roster, *parties)
    elsewhere = parties.first()
    others = parties.next(parties.next(elsewhere, *parties), *SITES)
    for brought in (parties.roster, own, elsewhere, others):
        assert signed_by(brought.text.encode(), own) is None
        assert not shrinks(brought, own)


def test_a_strangers_hint_costs_no_look_at_a_card(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = parties.next(parties.roster, *SITES)
    stranger = replace(given, signatures=(parties.keys(BOB).sign(given._signed),))
    monkeypatch.setattr(Card, "of", lambda facts: pytest.fail("a card was looked at"))
    for content in (stranger.text.encode(), b"", b"{}", b"[" * 10**5, b"\xff", b'{"number":2}'):
        assert signed_by(content, parties.roster) is None


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=200) | st.dictionaries(
    st.sampled_from(sorted(Roster.__dataclass_fields__)), st.integers() | st.text() | st.lists(st.text())
).map(lambda facts: spelt(facts).encode()))  # fmt: skip
def test_whatever_a_carrier_brings_as_a_roster_is_no_error(shared: Parties, content: bytes) -> None:
    assert signed_by(content, shared.roster) is None
