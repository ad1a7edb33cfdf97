"""Cards and rosters: whose keys they are, that no two are alike, and what owners see change."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from privcal.trusted.errors import InputError

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")

from privcal.cli.app import app
from privcal.secure.keys import CLASSICAL, SealingKey
from privcal.transport.federation.calibrator.roster import pin
from privcal.transport.federation.shared import certificates
from privcal.transport.federation.shared.roster import Card, Changes, Roster, stored_roster
from privcal.transport.federation.site.keys import SiteKeys, rotate
from privcal.transport.federation.site.roster import accept, own_card
from tests.support import federation_parts as parts
from tests.support.federation_parts import ANN, spelt

SITES = ("site-1", "site-2", "site-3")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parts.make_kits(tmp_path_factory.mktemp("federation") / "kits", sites=3)


@pytest.fixture
def kits(made: Path, tmp_path: Path) -> Path:
    """Kits of the same people with new keys for each test."""
    for name in (*SITES, ANN, "localhost"):
        (tmp_path / name / "local").mkdir(parents=True)
        (tmp_path / name / "startup").symlink_to(made / name / "startup")
    (tmp_path / "ca").symlink_to(made / "ca")
    for name in SITES:
        SiteKeys.make(tmp_path / name)
    return tmp_path


def root(kits: Path) -> Path:
    return kits / "site-1" / "startup" / "rootCA.pem"


def cards(kits: Path) -> tuple[Card, ...]:
    return tuple(own_card(kits / name) for name in SITES)


def roster_file(kits: Path, *given: Card) -> Path:
    Roster(given or cards(kits)).save(kits / "given.json")
    return kits / "given.json"


def card_by(
    keys: SiteKeys, name: str, certificate: str, key: Any, sealing: str | None = None
) -> Card:
    """A card as its rules say, made with whatever keys and certificate one has."""
    own = (name, keys.public, sealing or keys.sealing.public, keys.made, certificate)
    possession = keys.sign(spelt(["privcal card 2", *own]))
    vouched = certificates.sign(spelt(["privcal name 2", *own, possession]), key)
    return Card(*own, possession, vouched)


# --- cards ----------------------------------------------------------------------------------


def test_a_card_comes_through_unchanged_and_is_vouched_for(kits: Path) -> None:
    card = own_card(kits / "site-1")
    assert Card.read(card.text) == card
    card.verify(root(kits), server="localhost")
    keys = SiteKeys.load(kits / "site-1")
    assert (card.site, card.org, card.keys) == (
        "site-1",
        "org_1",
        (keys.public, keys.sealing.public),
    )


def test_a_card_made_by_the_rules_is_like_that_of_the_site(kits: Path) -> None:
    """The control for the forged cards below."""
    _, pem, key = certificates.of_kit(kits / "site-1")
    card_by(SiteKeys.load(kits / "site-1"), "site-1", pem, key).verify(root(kits))


def test_a_site_cannot_make_a_card_in_anothers_name(kits: Path) -> None:
    _, pem, key = certificates.of_kit(kits / "site-2")
    keys = SiteKeys.load(kits / "site-2")
    with pytest.raises(InputError, match="comes from site-2, who is not that site"):
        card_by(keys, "site-1", pem, key).verify(root(kits))
    _, ones, _ = certificates.of_kit(kits / "site-1")
    with pytest.raises(InputError, match="not vouched for"):
        card_by(keys, "site-1", ones, key).verify(root(kits))


def test_a_calibrator_and_the_server_cannot_be_sites(kits: Path) -> None:
    """Their certificates are as good as a site's."""
    from nvflare.lighter.utils import load_private_key_file

    keys = SiteKeys.load(kits / "site-2")
    startup = kits / "localhost" / "startup"
    pem = (startup / "server.crt").read_text()
    servers = card_by(keys, "localhost", pem, load_private_key_file(str(startup / "server.key")))
    with pytest.raises(InputError, match="comes from localhost"):
        servers.verify(root(kits), server="localhost")
    with pytest.raises(InputError, match="comes from localhost"):
        Roster((servers,)).verify(kits / "site-1")
    with pytest.raises(InputError, match="comes from localhost"):
        Roster((servers,)).verify(kits / ANN)
    authority = json.loads((kits / "ca" / "cert.json").read_text())
    pem, key = parts.certificate("lead-1", "lead", authority=authority)
    with pytest.raises(InputError, match="comes from lead-1"):
        card_by(keys, "lead-1", pem, key).verify(root(kits))


def test_a_certificate_that_the_authority_did_not_make_is_refused(kits: Path) -> None:
    pem, key = parts.certificate("site-1", "")
    with pytest.raises(InputError, match="not vouched for"):
        card_by(SiteKeys.load(kits / "site-1"), "site-1", pem, key).verify(root(kits))


def test_a_key_that_the_site_does_not_have_cannot_be_shown(kits: Path) -> None:
    """Site-2 shows site-1's signing key as its own, though its kit vouches for it."""
    mine, others = own_card(kits / "site-2"), own_card(kits / "site-1")
    with pytest.raises(InputError, match="not signed with the key that it shows"):
        replace(mine, signing=others.signing)
    with pytest.raises(InputError, match="not signed with the key that it shows"):
        replace(mine, signing=others.signing, possession=others.possession)


@pytest.mark.parametrize("name", ["sealing", "made", "certificate", "site"])
def test_a_card_changed_on_its_way_is_refused(kits: Path, name: str) -> None:
    card = own_card(kits / "site-1")
    other = own_card(kits / "site-2")
    value = card.made + 1 if name == "made" else getattr(other, name)
    with pytest.raises(InputError, match="not signed with the key"):
        replace(card, **{name: value})


def test_what_vouches_for_a_card_belongs_to_that_card(kits: Path) -> None:
    old = own_card(kits / "site-1")
    rotate(kits / "site-1")
    new = own_card(kits / "site-1")
    with pytest.raises(InputError, match="not vouched for"):
        replace(new, vouched=old.vouched).verify(root(kits))


@pytest.mark.parametrize(
    "name", ["server", "Server", "calibrator", "", "a/b", "x" * 64, "a b", "."]
)
def test_some_names_are_no_sites(kits: Path, name: str) -> None:
    _, pem, key = certificates.of_kit(kits / "site-1")
    with pytest.raises(InputError, match="cannot be the name of a site"):
        card_by(SiteKeys.load(kits / "site-1"), name, pem, key)


@pytest.mark.parametrize(
    "sealing",
    [
        "x25519:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "x25519:AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "rot13:AAAA",
    ],
)
def test_a_card_with_a_key_that_nothing_can_be_sealed_for_is_refused(
    kits: Path, sealing: str
) -> None:
    _, pem, key = certificates.of_kit(kits / "site-1")
    with pytest.raises(InputError, match=r"sealing key|sealed for"):
        card_by(SiteKeys.load(kits / "site-1"), "site-1", pem, key, sealing)


def test_a_card_with_a_signing_key_for_which_anyone_can_sign_is_refused(kits: Path) -> None:
    """A site that wants to disown its replies: for the point of order 1 this is a signature."""
    one = base64.b64encode((1).to_bytes(32, "little")).decode()
    anything = base64.b64encode((1).to_bytes(32, "little") + bytes(32)).decode()
    with pytest.raises(InputError, match="relied on"):
        replace(own_card(kits / "site-1"), signing=one, possession=anything)


def test_a_card_may_show_a_key_of_either_suite(kits: Path) -> None:
    _, pem, key = certificates.of_kit(kits / "site-1")
    public = SealingKey.make(CLASSICAL).public
    card = card_by(SiteKeys.load(kits / "site-1"), "site-1", pem, key, public)
    card.verify(root(kits))
    assert card.suite == CLASSICAL


CARDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "nothing": lambda facts: "",
    "null": lambda facts: None,
    "spaces": lambda facts: json.dumps(facts),
    "a part twice": lambda facts: spelt(facts).replace('"made"', '"made":1,"made"'),
    "a part beside": lambda facts: spelt({**facts, "rows": 812}),
    "another version": lambda facts: spelt({**facts, "privcal": 1}),
    "a version that is true": lambda facts: spelt({**facts, "privcal": True}),
    "made true": lambda facts: spelt({**facts, "made": True}),
    "made NaN": lambda facts: spelt({**facts, "made": float("nan")}),
    "made before time": lambda facts: spelt({**facts, "made": -1}),
    "a certificate without end": lambda facts: spelt({**facts, "certificate": "x" * 20_000}),
    "oversize": lambda facts: spelt({**facts, "vouched": "x" * 40_000}),
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
def test_a_malformed_card_is_refused(kits: Path, name: str) -> None:
    facts = json.loads(own_card(kits / "site-1").text)
    with pytest.raises(InputError):
        Card.read(CARDS[name](facts))


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=200), start=st.integers(0, 4000), length=st.integers(0, 50))
def test_any_change_of_any_place_of_a_card_is_refused(
    one_card: tuple[Card, Path], text: str, start: int, length: int
) -> None:
    card, root = one_card
    sent = card.text[:start] + text + card.text[start + length :]
    if sent != card.text:
        with pytest.raises(InputError):
            Card.read(sent).verify(root)


@pytest.fixture(scope="module")
def one_card(made: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Card, Path]:
    folder = tmp_path_factory.mktemp("one") / "site-1"
    (folder / "local").mkdir(parents=True)
    (folder / "startup").symlink_to(made / "site-1" / "startup")
    SiteKeys.make(folder)
    return own_card(folder), folder / "startup" / "rootCA.pem"


# --- rosters --------------------------------------------------------------------------------


def test_a_roster_comes_through_unchanged_in_any_order(kits: Path) -> None:
    one, two, three = cards(kits)
    roster = Roster((three, one, two))
    assert [card.site for card in roster.cards] == list(SITES)
    roster.save(kits / "roster.json")
    assert Roster.load(kits / "roster.json") == roster == Roster((one, two, three))
    assert (kits / "roster.json").stat().st_mode & 0o077 == 0


def test_two_sites_with_a_key_in_common_are_not_in_one_roster(kits: Path) -> None:
    one, two, _ = cards(kits)
    _, pem, key = certificates.of_kit(kits / "site-2")
    same_signing = card_by(
        SiteKeys.load(kits / "site-1"), "site-2", pem, key, SealingKey.make().public
    )
    with pytest.raises(InputError, match="site-1 and site-2 have the same signing key"):
        Roster((one, same_signing))
    same_sealing = card_by(SiteKeys.load(kits / "site-2"), "site-2", pem, key, one.sealing)
    with pytest.raises(InputError, match="site-1 and site-2 have the same sealing key"):
        Roster((one, same_sealing))
    with pytest.raises(InputError, match="same name"):
        Roster((one, two, two))


def test_names_that_differ_in_case_alone_are_not_in_one_roster(kits: Path) -> None:
    _, pem, key = certificates.of_kit(kits / "site-2")
    shouted = card_by(SiteKeys.load(kits / "site-2"), "SITE-1", pem, key)
    with pytest.raises(InputError, match="same name"):
        Roster((own_card(kits / "site-1"), shouted))


def test_the_digest_can_be_read_aloud_and_is_of_names_and_keys(kits: Path) -> None:
    digest = Roster(cards(kits)).digest
    assert re.fullmatch(r"([0-9a-f]{4} ){11}[0-9a-f]{4}", digest)
    assert Roster(cards(kits)).digest == digest  # signed anew, the same keys
    assert Roster(cards(kits)[:2]).digest != digest
    rotate(kits / "site-3")
    assert Roster(cards(kits)).digest != digest


ROSTERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "empty": lambda facts: "",
    "cut": lambda facts: spelt(facts)[:-5],
    "spaces": lambda facts: json.dumps(facts),
    "not sorted": lambda facts: spelt({**facts, "cards": facts["cards"][::-1]}),
    "a site twice": lambda facts: spelt({**facts, "cards": facts["cards"] + facts["cards"][:1]}),
    "another version": lambda facts: spelt({**facts, "privcal": 3}),
    "no version": lambda facts: spelt({"cards": facts["cards"]}),
    "a part beside": lambda facts: spelt({**facts, "digest": "0000"}),
    "no list": lambda facts: spelt({**facts, "cards": {}}),
    "no card": lambda facts: spelt({**facts, "cards": [1]}),
    "not ASCII": lambda facts: spelt(facts) + "é",
    "a part twice": lambda facts: spelt(facts).replace('{"cards"', '{"cards":[],"cards"', 1),
}


@pytest.mark.parametrize("name", ROSTERS)
def test_a_damaged_roster_is_said_to_be_damaged(kits: Path, name: str) -> None:
    path = roster_file(kits)
    path.write_text(ROSTERS[name](json.loads(path.read_text())), encoding="utf-8")
    with pytest.raises(InputError, match=r"given\.json is not a roster, or damaged: [^\n]+$"):
        Roster.load(path)


# --- what an owner accepts ------------------------------------------------------------------


def test_an_owner_sees_what_changed_since_the_roster_before(kits: Path) -> None:
    site = kits / "site-1"
    assert stored_roster(site) == Roster(())
    one, two, _ = cards(kits)
    assert accept(site, roster_file(kits, one, two)) == Changes(new=("site-1", "site-2"))
    assert not accept(site, roster_file(kits, one, two))
    rotate(kits / "site-2")
    new = own_card(kits / "site-2")
    assert accept(site, roster_file(kits, one, new)) == Changes(rekeyed=("site-2",))
    three = own_card(kits / "site-3")
    assert accept(site, roster_file(kits, one, three)) == Changes(("site-3",), ("site-2",))
    assert stored_roster(site) == Roster((one, three))
    assert (site / "local" / "roster.json").stat().st_mode & 0o077 == 0


def test_a_site_accepts_no_roster_without_its_own_present_keys(kits: Path) -> None:
    one, two, three = cards(kits)
    with pytest.raises(InputError, match="site-1, this site, is not in"):
        accept(kits / "site-1", roster_file(kits, two, three))
    rotate(kits / "site-1")
    with pytest.raises(InputError, match="has other keys for site-1, this site"):
        accept(kits / "site-1", roster_file(kits, one, two, three))
    assert stored_roster(kits / "site-1") == Roster(())


def test_a_roster_with_one_card_that_is_not_vouched_for_is_not_accepted(kits: Path) -> None:
    one, two, _ = cards(kits)
    pem, key = parts.certificate("site-3", "")
    forged = card_by(SiteKeys.load(kits / "site-3"), "site-3", pem, key)
    accept(kits / "site-1", roster_file(kits, one, two))
    with pytest.raises(InputError, match="site-3 is not vouched for"):
        accept(kits / "site-1", roster_file(kits, one, two, forged))
    assert stored_roster(kits / "site-1") == Roster((one, two))


def test_a_damaged_roster_of_a_site_is_not_taken_for_none(kits: Path) -> None:
    given = roster_file(kits)
    accept(kits / "site-1", given)
    (kits / "site-1" / "local" / "roster.json").write_text("{}")
    with pytest.raises(InputError, match="damaged"):
        accept(kits / "site-1", given)


# --- what a calibrator pins -----------------------------------------------------------------


def test_a_calibrator_pins_cards_as_they_come(kits: Path) -> None:
    one, two, three = cards(kits)
    assert stored_roster(kits / ANN) == Roster(())
    assert pin(kits / ANN, [two, one]) == Changes(new=("site-1", "site-2"))
    assert pin(kits / ANN, [three]) == Changes(new=("site-3",))
    assert not pin(kits / ANN, [one])
    assert stored_roster(kits / ANN) == Roster((one, two, three))
    assert stored_roster(kits / ANN).card("site-2") == two
    assert stored_roster(kits / ANN).card("site-4") is None


def test_a_changed_key_is_not_taken_unless_somebody_says_so(kits: Path) -> None:
    """The server, or the authority, shows another card for a name that is known."""
    before = cards(kits)
    pin(kits / ANN, before)
    rotate(kits / "site-2")
    new = own_card(kits / "site-2")
    with pytest.raises(InputError, match="site-2 came with other keys than before"):
        pin(kits / ANN, [new])
    with pytest.raises(InputError, match="site-2 came with other keys than before"):
        pin(kits / ANN, [new], rekeyed=["site-1"])
    assert stored_roster(kits / ANN) == Roster(before)
    with pytest.raises(InputError, match="there is no site 'site-7' in the roster"):
        pin(kits / ANN, [new], rekeyed=["site-2", "site-7"])
    assert pin(kits / ANN, [new], rekeyed=["site-2"]) == Changes(rekeyed=("site-2",))
    assert stored_roster(kits / ANN).card("site-2") == new


def test_a_card_that_is_not_vouched_for_is_not_pinned(kits: Path) -> None:
    pem, key = parts.certificate("site-1", "")
    forged = card_by(SiteKeys.load(kits / "site-1"), "site-1", pem, key)
    with pytest.raises(InputError, match="not vouched for"):
        pin(kits / ANN, [forged])
    assert not (kits / ANN / "roster.json").exists()


def test_a_new_site_with_a_key_of_a_known_one_is_not_pinned(kits: Path) -> None:
    one, _, _ = cards(kits)
    _, pem, key = certificates.of_kit(kits / "site-2")
    copied = card_by(SiteKeys.load(kits / "site-2"), "site-2", pem, key, one.sealing)
    pin(kits / ANN, [one])
    with pytest.raises(InputError, match="same sealing key"):
        pin(kits / ANN, [copied])


# --- commands -------------------------------------------------------------------------------


def run(*words: Any) -> Any:
    return CliRunner().invoke(app, ["site", *map(str, words)])


def test_the_commands_take_a_roster_and_show_it(kits: Path) -> None:
    pin(kits / ANN, [own_card(kits / name) for name in SITES])
    digest = stored_roster(kits / ANN).digest
    taken = run("roster", "accept", kits / "site-1", kits / ANN / "roster.json", "--json")
    assert json.loads(taken.stdout) == {
        "digest": digest,
        "new": list(SITES),
        "gone": [],
        "rekeyed": [],
    }
    for folder in (kits / ANN, kits / "site-1"):
        shown = run("roster", "show", folder)
        assert digest in shown.stdout
        assert "org_2" in shown.stdout
        facts = json.loads(run("roster", "show", folder, "--json").stdout)
        assert facts["digest"] == digest
        assert [site["site"] for site in facts["sites"]] == list(SITES)
    again = run("roster", "accept", kits / "site-1", kits / ANN / "roster.json")
    assert "the same sites with the same keys" in again.stdout


def test_the_commands_rotate_and_destroy_keys_and_say_so(kits: Path) -> None:
    before = SiteKeys.load(kits / "site-2")
    accept(kits / "site-1", roster_file(kits))
    rotated = run("keys", "rotate", kits / "site-2", "--json")
    assert set(json.loads(rotated.stdout)) == {"site", "made", "suite"}
    now = SiteKeys.load(kits / "site-2")
    assert now.public != before.public
    changed = run("roster", "accept", kits / "site-1", roster_file(kits))
    assert "other keys than before: site-2" in changed.stdout
    secrets = json.loads((kits / "site-2" / "local" / "keys" / "site.key").read_text())
    for result in (rotated, run("keys", "rotate", kits / "site-3"), changed):
        assert secrets["signing"][:20] not in result.output
        assert secrets["sealing"][16:40] not in result.output
    assert json.loads(run("keys", "destroy", kits / "site-2", "--json").stdout)
    with pytest.raises(InputError, match="cannot read the site's keys"):
        SiteKeys.load(kits / "site-2")
    assert os.listdir(kits / "site-2" / "local" / "keys") == []


def test_a_folder_without_a_roster_says_so(kits: Path) -> None:
    assert isinstance(run("roster", "show", kits / "site-1").exception, InputError)
