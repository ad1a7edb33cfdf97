"""`privcal roster`: put together by a coordinator, compared by telephone, accepted by each owner."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="needs cryptography: pip install privcal[secure]")

from privcal.cli.roster import DAYS
from privcal.transport.keys import CARD, Keys, rotate
from privcal.transport.roster import Roster, shrinks
from tests.conftest import Run
from tests.support.parties import ANN, BOB, DAY, SITES, Parties


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    made = Parties(tmp_path / "parties")
    for name in made:
        made.keys(name).card.save(made.where / name / CARD)
    return made


def card(parties: Parties, name: str) -> Path:
    return parties.where / name / CARD


def make(run: Run, parties: Parties, *more: Any) -> Path:
    out = parties.where / "roster-1.json"
    cards = [card(parties, name) for name in (BOB, *SITES)]
    run.ok("roster", "make", *cards, "--as", parties.where / ANN, "--out", out, *more)
    return out


def following(run: Run, parties: Parties, before: Path, *more: Any) -> Path:
    out = parties.where / f"roster-{Roster.load(before).number + 1}.json"
    run.ok("roster", "next", before, "--as", parties.where / ANN, "--out", out, *more)
    return out


def test_a_coordinator_makes_the_first_roster_with_its_own_card(run: Run, parties: Parties) -> None:
    path = make(run, parties)
    roster = Roster.load(path)
    assert [one.name for one in roster.cards] == [ANN, BOB, *SITES]
    assert roster.signers == roster.coordinators == (parties.keys(ANN).public,)
    assert abs(roster.until - time.time() - DAYS * DAY) < 60
    told = run.json("roster", "show", path)
    assert (told["number"], told["digest"], told["signatures"]) == (1, roster.digest, 1)
    assert told["parties"][2] == {"name": "site-1", "role": "site", "id": parties.keys("site-1").id}
    out, _ = run.ok("roster", "show", path)
    assert f"digest: {roster.digest}" in out
    for one in roster.cards:
        assert one.id in out, "the whole of it is compared"


def test_an_owner_accepts_by_the_digest_and_is_warned_of_all_that_is_new(
    run: Run, parties: Parties
) -> None:
    path, site = make(run, parties), parties.where / "site-1"
    digest = Roster.load(path).digest.split()
    assert "another digest" in run.fails("roster", "accept", site, path, *digest[:2])
    assert "has no roster yet" in run.fails("roster", "show", site)
    out, err = run.ok("roster", "accept", site, path, *digest)
    assert f"WARNING: {ANN}, {BOB}, site-1, site-2, site-3: new in this roster" in err
    rotate(parties.where / "site-2")
    parties.keys("site-2").card.save(card(parties, "site-2"))
    second = following(run, parties, path, "--add", card(parties, "site-2"), "--remove", BOB)
    out, err = run.ok("roster", "accept", site, second, Roster.load(second).digest)
    assert "WARNING: site-2: with other keys or another role than before" in err
    assert f"gone: {BOB}" in out
    third = following(run, parties, second, "--add", card(parties, BOB), "--days", 400)
    _, err = run.ok("roster", "accept", site, third, *Roster.load(third).digest.split())
    for sentence in (
        f"WARNING: {BOB}: new in this roster",
        f"WARNING: {BOB}: removed before, and back now",
        "WARNING: the roster holds for longer",
    ):
        assert sentence in err
    told = run.json("roster", "show", site)
    assert (told["number"], told["changes"]["back"]) == (3, [BOB])
    assert "roster 2 was given and roster 3 was accepted" in run.fails(
        "roster", "accept", site, second, Roster.load(second).digest
    )


def test_a_roster_that_only_removes_needs_no_owner(run: Run, parties: Parties) -> None:
    first = make(run, parties)
    second = following(run, parties, first, "--remove", "site-2", "--remove", BOB)
    given, own = Roster.load(second), Roster.load(first)
    assert shrinks(given, own)
    assert given.until == own.until
    assert not shrinks(Roster.load(following(run, parties, second, "--days", 400)), given)


def test_only_a_coordinator_makes_the_next_one_unless_all_owners_are_to_accept_another(
    run: Run, parties: Parties
) -> None:
    first = make(run, parties)
    words = (
        "roster",
        "next",
        first,
        "--as",
        parties.where / BOB,
        "--out",
        parties.where / "b.json",
    )
    assert f"{BOB} is not a coordinator of" in run.fails(*words)
    out, _ = run.ok(*words, "--coordinator", BOB)
    assert "other keys than before may remove parties" in out
    assert Roster.load(parties.where / "b.json").coordinators == (parties.keys(BOB).public,)


def test_a_second_coordinator_signs_what_stays_the_same_roster(run: Run, parties: Parties) -> None:
    path = make(run, parties, "--coordinator", BOB)
    before = Roster.load(path)
    assert len(before.signers) == 1
    told = run.json("roster", "sign", path, "--as", parties.where / BOB)
    assert told == {"roster": str(path), "digest": before.digest, "signatures": 2}
    assert "not a coordinator's" in run.fails(
        "roster", "sign", path, "--as", parties.where / "site-1"
    )


def test_what_cannot_be_is_one_sentence(run: Run, parties: Parties) -> None:
    first, out = make(run, parties), parties.where / "out.json"
    twin = Keys.make(parties.where / "twin", "site-1", "site")
    twin.card.save(parties.where / "twin" / CARD)
    begin = ("--as", parties.where / ANN, "--out", out)
    for words, says in (
        (("next", first, *begin, "--remove", "eve"), "there is no party 'eve'"),
        (("next", first, *begin, "--add", card(parties, BOB), "--remove", BOB), "added and removed at once"),
        (("next", first, *begin, "--days", 401), "--days must be a whole number from 1 to 400"),
        (("next", first, *begin, "--coordinator", "eve"), "no party 'eve' who could be a coordinator"),
        (("make", card(parties, "site-1"), card(parties, "twin"), *begin), "two cards are of site-1"),
        (("make", first, *begin), "is not a card, or damaged"),
        (("show", card(parties, BOB)), "is not a roster, or damaged"),
    ):  # fmt: skip
        said = run.fails("roster", *words)
        assert says in said, words
        assert said.count("\n") == 1
    assert not out.exists()
