"""What a party goes by: rosters that its owner accepted, smaller ones that a carrier brings, and no way back."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

import privcal
from privcal.data.ledger import Ledger
from privcal.trusted.errors import InputError, Refused
from privcal.trusted.queries import Gap
from privcal.trusted.question import Question

pytest.importorskip("cryptography", reason="needs cryptography: pip install privcal[secure]")

from privcal.transport.keys import rotate
from privcal.transport.roster import Changes, Roster
from privcal.transport.site import setup
from privcal.transport.site.settings import LEDGER, Site
from privcal.transport.standing import KEPT, Standing
from tests.support.parties import ANN, BOB, DAY, SITES, Parties, write_rows


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    return Parties(tmp_path / "parties")


@pytest.fixture
def one(parties: Parties) -> Standing:
    """Site-1, which accepted the first roster."""
    parties.accept("site-1")
    return parties.standing("site-1")


def hint(roster: Roster) -> bytes:
    return roster.text.encode()


# --- accepted by an owner -------------------------------------------------------------------


def test_a_party_goes_by_the_roster_that_its_owner_accepted(parties: Parties) -> None:
    for name in parties:
        standing = parties.standing(name)
        assert standing.latest is None
        with pytest.raises(InputError, match="has no roster yet: compare the digest"):
            _ = standing.roster
        changes = standing.accept(parties.roster, parties.roster.digest)
        assert changes == Changes(new=(ANN, BOB, *SITES))
        assert standing.roster == parties.standing(name).roster == parties.roster
    [file] = (parties.where / "site-1" / "rosters").iterdir()
    assert (file.name, file.parent.stat().st_mode & 0o077) == ("1.json", 0)


def test_nothing_counts_without_its_whole_digest(parties: Parties) -> None:
    standing, digest = parties.standing("site-1"), parties.roster.digest
    groups = digest.split()
    for typed in (
        "", "yes", groups[0], f"{groups[0]} {groups[-1]}", " ".join(groups[:-1]), digest[:-1],
        " ".join(groups[::-1]), digest + " 0000", parties.first().digest, digest.replace(" ", ""),
    ):  # fmt: skip
        with pytest.raises(InputError, match="has another digest than the one you gave"):
            standing.accept(parties.roster, typed)
    assert standing.latest is None
    standing.accept(parties.roster, f"  {'   '.join(groups)}\n")


def test_a_party_accepts_no_roster_without_its_own_present_card(parties: Parties) -> None:
    standing = parties.standing("site-1")
    without = parties.next(parties.roster, *parties.all_but("site-1"))
    with pytest.raises(InputError, match="the card of site-1 is not in roster 2 as it is now"):
        standing.accept(without, without.digest)
    rotate(standing.folder, now=True)
    with pytest.raises(InputError, match="another sealing key for site-1 than it has now"):
        standing.accept(parties.roster, parties.roster.digest)
    rotate(standing.folder, signing=True)
    with pytest.raises(InputError, match="is not in roster 1 as it is now"):
        standing.accept(parties.roster, parties.roster.digest)
    assert standing.latest is None


def test_a_roster_with_the_sealing_key_that_was_just_rotated_is_accepted(parties: Parties) -> None:
    """It was on its way when the owner made the new one; the old one still opens."""
    rotate(parties.where / "site-1")
    parties.accept("site-1")


def test_an_owner_adds_what_a_coordinator_cannot(parties: Parties, one: Standing) -> None:
    rotate(parties.where / "site-2", signing=True)
    after = parties.next(parties.roster, *parties.all_but(BOB))
    assert one.accept(after, after.digest) == Changes(gone=(BOB,), changed=("site-2",))
    again = parties.next(after, *parties)
    assert one.accept(again, again.digest) == Changes(new=(BOB,), back=(BOB,))
    assert one.accept(again, again.digest) == Changes()
    assert one.roster == again
    assert one.before == after


def test_rosters_that_were_missed_can_be_left_out(parties: Parties, one: Standing) -> None:
    rosters = [parties.roster]
    for name in (BOB, "site-3", "site-2"):
        rosters.append(parties.next(rosters[-1], *parties.all_but(name)))
    assert one.accept(rosters[3], rosters[3].digest).gone == ("site-2",)


def test_another_federation_gets_another_folder(parties: Parties, one: Standing) -> None:
    other = parties.next(parties.first(), *parties)
    with pytest.raises(InputError, match="is of another federation"):
        one.accept(other, other.digest)
    assert one.roster == parties.roster


def test_an_older_roster_is_not_taken_again_nor_another_of_one_number(
    parties: Parties, one: Standing
) -> None:
    """A split view: the collector of the cards shows one roster to each half of the owners."""
    second = parties.next(parties.roster, *parties.all_but(BOB))
    one.accept(second, second.digest)
    with pytest.raises(InputError, match="roster 1 was given and roster 2 was accepted"):
        one.accept(parties.roster, parties.roster.digest)
    other = parties.next(parties.roster, *parties.all_but("site-3"))
    assert (other.number, other.digest == second.digest) == (2, False)
    with pytest.raises(InputError, match=r"there is another roster 2 .* compare digests"):
        one.accept(other, other.digest)
    assert one.roster == second


def test_a_roster_ends_on_its_day(
    parties: Parties, one: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = parties.roster.until
    monkeypatch.setattr(time, "time", lambda: last - 1)
    assert one.roster == parties.roster
    for now in (last, last + DAY):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        with pytest.raises(InputError, match=r"roster 1 of .* has ended: ask its coordinator"):
            _ = one.roster
        with pytest.raises(InputError, match="has ended"):
            one.sender(parties.keys(ANN).id)
    assert one.latest == parties.roster, "what is shown of it stays"


def test_a_roster_from_the_future_does_not_hold_for_longer_than_400_days(parties: Parties) -> None:
    ahead = parties.roster.issued + 30 * DAY
    later = replace(parties.roster, issued=ahead, until=ahead + 400 * DAY)
    with pytest.raises(InputError, match="is dated after now"):
        parties.standing("site-1").accept(later, later.digest)


def test_a_damaged_roster_is_not_taken_for_none(parties: Parties, one: Standing) -> None:
    (one.folder / "rosters" / "1.json").write_text("{}")
    for act in (lambda: one.roster, lambda: one.accept(parties.roster, parties.roster.digest)):
        with pytest.raises(InputError, match=r"1\.json is not a roster, or damaged"):
            act()


# --- brought by a carrier -------------------------------------------------------------------


def test_a_removal_is_taken_automatically_and_one_after_the_other(
    parties: Parties, one: Standing
) -> None:
    second = parties.next(parties.roster, *parties.all_but(BOB))
    third = parties.next(second, *parties.all_but(BOB, "site-3"))
    assert one.hint(hint(second))
    assert one.hint(hint(third) + b"\n")
    assert one.roster == third
    for again in (parties.roster, second, third):
        assert not one.hint(hint(again))
    assert one.roster == third
    with pytest.raises(Refused, match="revoked"):
        one.sender(parties.keys(BOB).id)
    assert one.sender(parties.keys(ANN).id).name == ANN


def test_a_removal_takes_effect_though_a_roster_between_was_withheld(
    parties: Parties, one: Standing
) -> None:
    """A carrier hides the second roster, and shows the third: the one who left in it is out at once."""
    second = parties.next(parties.roster, *parties.all_but("site-3"))
    third = parties.next(second, *parties.all_but("site-3", BOB))
    assert one.hint(hint(third))
    assert one.roster == parties.roster, "sums and stamps go by what was accepted"
    for name in (BOB, "site-3"):
        with pytest.raises(Refused, match="revoked"):
            one.sender(parties.keys(name).id)
    assert one.blocked == (BOB, "site-3")
    assert not one.hint(hint(third)), "it changes nothing more"
    assert one.hint(hint(second))
    assert one.hint(hint(third))
    assert one.roster == third


def test_a_removal_takes_effect_though_it_comes_with_an_addition(
    parties: Parties, one: Standing
) -> None:
    """Else a coordinator who adds a hospital, and removes a thief next, would protect the thief."""
    rotate(parties.where / "site-2", signing=True)
    second = parties.next(parties.roster, *parties.all_but(BOB))
    assert one.hint(hint(second))
    assert one.roster == parties.roster
    assert set(one.blocked) == {BOB, "site-2"}
    with pytest.raises(Refused, match="revoked"):
        one.sender(parties.keys(BOB).id)
    with pytest.raises(Refused, match="revoked"):
        one.sender(parties.keys("site-2").id)
    one.accept(second, second.digest)
    assert not one.blocked
    assert one.sender(parties.keys("site-2").id).name == "site-2", "with the key that was accepted"


def test_who_was_left_out_by_a_hint_stays_out_of_an_older_roster_that_is_accepted_later(
    parties: Parties, one: Standing
) -> None:
    second = parties.next(parties.roster, *parties, until=parties.roster.until + 1)
    third = parties.next(second, *parties.all_but(BOB))
    assert one.hint(hint(third))
    one.accept(second, second.digest)
    with pytest.raises(Refused, match="revoked"):
        one.sender(parties.keys(BOB).id)


@pytest.mark.parametrize("what", ["stranger", "site", "other federation", "not signed", "nothing"])
def test_what_no_coordinator_signed_changes_nothing(
    parties: Parties, one: Standing, what: str
) -> None:
    plain = parties.roster.next(parties.roster.cards[1:], int(time.time()), parties.roster.until)
    bob, site = parties.keys(BOB), parties.keys("site-2")
    content = {
        "stranger": hint(replace(plain, signatures=(bob.sign(plain._signed),))),
        "site": hint(replace(plain, coordinators=(site.public,)).signed(site)),
        "other federation": hint(parties.next(parties.first(), *parties.all_but(BOB))),
        "not signed": hint(plain),
        "nothing": b"",
    }[what]
    assert not one.hint(content)
    assert (one.roster, one.blocked) == (parties.roster, ())


def test_a_party_without_a_roster_takes_no_hint(parties: Parties) -> None:
    """No trust on first use: the first one counts by its digest alone."""
    standing = parties.standing("site-1")
    assert not standing.hint(hint(parties.roster))
    assert not standing.hint(hint(parties.next(parties.roster, *parties)))
    assert standing.latest is None


def test_a_hint_cannot_let_a_roster_live_longer(parties: Parties, one: Standing) -> None:
    assert not one.hint(
        hint(parties.next(parties.roster, *parties, until=parties.roster.until + 1))
    )
    assert one.roster == parties.roster


# --- blocked by the owner -------------------------------------------------------------------


def test_a_blocked_party_is_out_at_once_and_for_every_process(
    parties: Parties, one: Standing
) -> None:
    running = parties.standing("site-1")
    id = parties.keys(ANN).id
    assert running.sender(id).name == ANN
    one.block(ANN)
    with pytest.raises(Refused, match="revoked"):
        running.sender(id)
    assert (running.blocked, running.roster) == ((ANN,), parties.roster)
    assert running.sender(parties.keys(BOB).id).name == BOB
    again = parties.next(parties.roster, *parties)
    one.accept(again, again.digest)
    with pytest.raises(Refused, match="revoked"):
        running.sender(id)
    one.unblock(ANN)
    assert running.sender(id).name == ANN


def test_a_blocked_name_stays_blocked_with_a_new_key(parties: Parties, one: Standing) -> None:
    one.block(BOB)
    rotate(parties.where / BOB, signing=True)
    again = parties.next(parties.roster, *parties)
    one.accept(again, again.digest)
    with pytest.raises(Refused, match="revoked"):
        one.sender(parties.keys(BOB).id)


def test_an_owner_may_let_in_who_a_hint_left_out(parties: Parties, one: Standing) -> None:
    second = parties.next(parties.roster, *parties.all_but("site-3"))
    one.hint(hint(parties.next(second, *parties.all_but("site-3", BOB))))
    one.unblock(BOB)
    assert one.sender(parties.keys(BOB).id).name == BOB
    assert one.blocked == ("site-3",)


def test_a_stranger_is_neither_blocked_nor_let_in(parties: Parties, one: Standing) -> None:
    with pytest.raises(InputError, match="there is no 'eve' in the roster"):
        one.block("eve")
    with pytest.raises(InputError, match=r"'ann@lab\.org' is not blocked"):
        one.unblock(ANN)
    with pytest.raises(Refused, match="revoked"):
        one.sender("0" * 32)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"names":[]}', '{"names":[1],"left_out":[]}', "7"]
)
def test_a_damaged_list_of_blocked_parties_lets_nobody_in(
    parties: Parties, one: Standing, text: str
) -> None:
    (one.folder / "blocked.json").write_text(text)
    with pytest.raises(InputError, match=r"blocked\.json"):
        one.sender(parties.keys(ANN).id)


# --- the roster that a secure sum began with ------------------------------------------------


def test_a_roster_is_known_by_its_digest_for_90_days_after_the_next(
    parties: Parties, one: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = parties.roster, parties.next(parties.roster, *parties.all_but(BOB))
    assert one.roster_of(first.digest) == first
    one.accept(second, second.digest)
    assert (one.roster_of(first.digest), one.roster_of(second.digest)) == (first, second)
    assert one.roster_of("0a1b " * 11 + "0a1b") is None
    taken = (one.folder / "rosters" / "2.json").stat().st_mtime
    monkeypatch.setattr(time, "time", lambda: taken + KEPT - 10)
    assert one.roster_of(first.digest) == first
    monkeypatch.setattr(time, "time", lambda: taken + KEPT + 10)
    assert one.roster_of(first.digest) is None
    assert one.roster_of(second.digest) == second


# --- no way back ----------------------------------------------------------------------------


@pytest.fixture
def site(parties: Parties, tmp_path: Path) -> Standing:
    """Site-1 with data and a ledger, which accepted the first roster, and then one without Bob."""
    rows = write_rows(tmp_path / "rows.npz", 30)
    setup.init(parties.where / "site-1", rows, privcal.Policy(2.0))
    parties.accept("site-1")
    shutil.copytree(parties.where / "site-1", tmp_path / "backup")
    parties.accept("site-1", roster=parties.next(parties.roster, *parties.all_but(BOB)))
    return parties.standing("site-1")


def put_back(site: Standing, backup: Path, *names: str) -> None:
    for name in names:
        path = site.folder / name
        if path.is_dir():
            shutil.rmtree(path)
            shutil.copytree(backup / name, path)
        else:
            shutil.copy(backup / name, path)


def test_each_roster_stands_in_the_ledger_once(parties: Parties, site: Standing) -> None:
    for _ in range(3):
        assert parties.standing("site-1").roster.number == 2
    ledger = Ledger(site.folder / LEDGER)
    noted = [entry.what for entry in ledger.entries() if entry.kind == "roster"]
    assert [text.split()[1] for text in noted] == ["1", "2"]
    assert ledger.noted_roster(parties.roster.federation) == site.roster.stamp
    assert ledger.noted_roster("0" * 32) is None
    assert ledger.nano_spent == 0


def test_rosters_that_were_put_back_to_an_older_state_are_refused(
    parties: Parties, site: Standing, tmp_path: Path
) -> None:
    """From a backup, or by somebody who wants Bob, whose key they have, in again."""
    running = parties.standing("site-1")
    assert running.roster.number == 2
    put_back(site, tmp_path / "backup", "rosters")
    for standing in (running, parties.standing("site-1")):
        for look in (
            lambda s: s.roster,
            lambda s: s.latest,
            lambda s: s.sender(parties.keys(BOB).id),
        ):
            with pytest.raises(InputError, match=r"roster 1 is there and roster 2 was accepted"):
                look(standing)
        with pytest.raises(InputError, match="roster 1 is there"):
            standing.hint(hint(parties.roster))


def test_rosters_that_are_gone_are_not_begun_anew_with_an_older_one(
    parties: Parties, site: Standing
) -> None:
    newest = site.roster
    shutil.rmtree(site.folder / "rosters")
    with pytest.raises(InputError, match="has no roster yet"):
        _ = site.roster
    with pytest.raises(InputError, match="roster 1 was given and roster 2 was accepted"):
        site.accept(parties.roster, parties.roster.digest)
    other = parties.next(parties.roster, *parties)
    with pytest.raises(InputError, match="there is another roster 2"):
        site.accept(other, other.digest)
    site.accept(newest, newest.digest)
    assert site.roster == newest


def test_rosters_and_ledgers_that_were_put_back_together_are_refused_by_the_mark(
    parties: Parties, site: Standing, tmp_path: Path
) -> None:
    put_back(site, tmp_path / "backup", "rosters", LEDGER)
    population = Site.load(site.folder).populations[0]
    with pytest.raises(Refused, match="ledger_rolled_back"):
        population.source("site-1").answer(Question.of(Gap(), 0.5, "c"), BOB)
    with pytest.raises(Refused, match="ledger_rolled_back"):
        Site.load(site.folder).bind_keys()
    Ledger(site.folder / LEDGER).reconcile()
    assert site.keys.lost is False
    assert Site.load(site.folder).bind_keys().lost, "reconciled, it needs new keys and a new roster"
    rotate(site.folder)
    with pytest.raises(InputError, match="roster 1 has another sealing key for site-1"):
        site.accept(parties.roster, parties.roster.digest)


def test_a_ledger_that_comes_later_notes_the_roster_too(parties: Parties, tmp_path: Path) -> None:
    """The owner accepts the roster first, and sets the site up then, or adds data."""
    parties.accept("site-1")
    folder, stamp = parties.where / "site-1", parties.roster.stamp
    made = setup.init(folder, write_rows(tmp_path / "a.npz", 30), privcal.Policy(), model="one")
    other = write_rows(tmp_path / "b.npz", 20, seed=1)
    made = setup.add(folder, other, privcal.Policy(), model="two")
    assert len(made.populations) == 2
    for population in made.populations:
        assert Ledger(population.ledger).noted_roster(parties.roster.federation) == stamp


def test_a_ledger_that_two_federations_share_knows_the_rosters_of_both(
    parties: Parties, tmp_path: Path
) -> None:
    """Site-2 is the same hospital in another federation, with the ledger beside the data."""
    rows = write_rows(tmp_path / "rows.npz", 30)
    [ledger] = privcal.create_ledgers(rows, privcal.Policy(), per_row=True)
    other = parties.first()
    for name, roster in (("site-1", parties.roster), ("site-2", other)):
        setup.init(parties.where / name, rows)
        parties.accept(name, roster=roster)
    second = parties.next(parties.roster, *parties)
    parties.accept("site-1", roster=second)
    assert parties.standing("site-2").roster == other
    assert ledger.noted_roster(other.federation) == other.stamp
    assert ledger.noted_roster(second.federation) == second.stamp


def test_a_calibrators_folder_has_no_ledger_and_works_all_the_same(parties: Parties) -> None:
    parties.accept(ANN)
    second = parties.next(parties.roster, *parties.all_but(BOB))
    assert parties.standing(ANN).hint(hint(second))
    with pytest.raises(InputError, match="roster 1 was given and roster 2 was accepted"):
        parties.accept(ANN)


def test_a_roster_is_read_again_only_where_its_file_changed(
    parties: Parties, one: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert one.roster == parties.roster
    monkeypatch.setattr(Roster, "load", lambda path: pytest.fail("it was read again"))
    assert one.roster == parties.roster
    os.utime(one.folder / "rosters" / "1.json", (1, 1))
    with pytest.raises(pytest.fail.Exception):
        _ = one.roster


def test_the_list_of_blocked_parties_is_the_owners_alone(one: Standing) -> None:
    one.block(ANN)
    path = one.folder / "blocked.json"
    assert json.loads(path.read_text()) == {"names": [ANN], "left_out": []}
    assert path.stat().st_mode & 0o077 == 0
