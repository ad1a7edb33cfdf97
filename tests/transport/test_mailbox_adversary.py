"""What storage can do with letters that it cannot read: show, hide, bring back, plant and delete.

The numbers are those of the groups of attacks in `docs/`: of the mailbox put back (1), split views (2),
replies withheld (3), a refusal in place of an answer (4), letters in wrong places (5), two runs of
one campaign (12), files of others deleted (17). Each costs answers at most.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import privcal
from privcal.secure.panel import Secure
from privcal.secure.summing import Unfinished
from privcal.transport import carry
from privcal.transport.mailbox import NAME
from privcal.transport.standing import Standing
from privcal.trusted.errors import CalibrationError
from tests.support.campaigns import (
    EPSILON,
    QUESTIONS,
    calibrated,
    charges,
    check_all,
    check_ledgers,
    looking,
    openings,
    quiet,
    rows,
)
from tests.support.carrier import Hides, State
from tests.support.letters import nano
from tests.transport.conftest import World

SUM = Secure(colluding=1, needed=4)
BOTH = pytest.mark.parametrize("secure", [None, SUM], ids=["each", "secure"])
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::privcal.calibration.loop.SourceDropped"),
]


def told_at(kind: str, act: Callable[[], None]) -> Callable[[str], None]:
    """What `tell` of a calibrator does: once, when it begins to wait for replies of this kind."""
    done: list[bool] = []

    def tell(text: str) -> None:
        if text.startswith(f"{kind}:") and not done:
            done.append(True)
            act()

    return tell


def ever(world: World) -> State:
    """All files that were ever put."""
    return {file: one for state in world.storage.states for file, one in state.items()}


def look_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start all sites anew, and let them look twice at everything."""
    monkeypatch.setattr(carry, "AGAIN", 0.0)
    world.restart()
    for _ in range(2):
        world.fed.round()


def sums_of(made: privcal.Result) -> list[tuple[tuple[str, ...], tuple[float, ...]]]:
    """Whose answers are in each total of a map, and the total."""
    assert all(round.total is not None for round in made.rounds)
    return [(round.total.sources, round.total.parts[0].values) for round in made.rounds]


# --- 1: put back ------------------------------------------------------------------------------


@BOTH
def test_a_mailbox_put_back_to_every_earlier_state_gets_the_same_bytes_and_costs_nothing(
    everywhere: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secure: Secure | None
) -> None:
    world = everywhere
    with looking(world.fed):
        calibrated(world.fed, world.ann, tmp_path / "record", secure=secure)
    quiet(world.fed)
    check_all(world.fed, tmp_path / "record")
    before, files = [rows(world.fed, name) for name in world.fed.sites], ever(world)
    assert len(files) > 2 * QUESTIONS * len(world.fed.sites)
    states = list(world.storage.states)
    for state in states[:: max(1, len(states) // 8)]:
        world.storage.put_back(state)
        look_again(world, monkeypatch)
        check_all(world.fed, tmp_path / "record")
    assert ever(world) == files, "a letter that comes again gets the reply it got, byte for byte"
    assert [rows(world.fed, name) for name in world.fed.sites] == before


@pytest.mark.parametrize("kind", ["share", "check", "open"])
@pytest.mark.parametrize("whom", ["", "site-2", "ann"])
def test_a_mailbox_put_back_in_the_middle_of_a_sum_opens_one_set_and_the_right_total(
    world: World, no_noise: None, tmp_path: Path, kind: str, whom: str
) -> None:
    def put_back() -> None:
        before = world.storage.states[len(world.storage.states) // 2]
        if whom:
            world.storage.views[whom] = before
        else:
            world.storage.put_back(before)

    with looking(world.fed):
        with suppress(Unfinished, CalibrationError):
            calibrated(
                world.fed,
                world.ann,
                tmp_path / "record",
                secure=SUM,
                wait=1.0,
                tell=told_at(kind, put_back),
            )
        world.storage.views.clear()
        world.storage.put_back(ever(world))
        made = calibrated(world.fed, world.ann, tmp_path / "record", secure=SUM)
        alone = calibrated(world.fed, world.ann, tmp_path / "alone", campaign="alone")
    check_ledgers(world.fed, 2 * EPSILON)
    for (names, values), each in zip(sums_of(made)[:2], alone.rounds, strict=False):
        # The last question depends on who answered the first two.
        assert values == pytest.approx([sum(each.answers[n][0] for n in names)], abs=1e-4)


@BOTH
def test_an_old_state_for_one_reader_alone_costs_that_ones_answers(
    everywhere: World, tmp_path: Path, secure: Secure | None
) -> None:
    world = everywhere
    world.storage.views["site-5"] = {}  # it sees nothing of this year
    with looking(world.fed):
        made = calibrated(
            world.fed, world.ann, tmp_path / "record", secure=secure, wait=world.patience
        )
    check_all(world.fed, tmp_path / "record")
    assert charges(world.fed, "site-5") == {}
    for round in made.rounds:
        assert set(round.sources) == {f"site-{n}" for n in range(1, 5)}


# --- 2: split views ---------------------------------------------------------------------------


def test_sites_that_are_shown_different_rosters_are_not_in_one_sum(
    world: World, tmp_path: Path
) -> None:
    removal = world.fed.without("bob")
    name = f"roster-{removal.number}"
    world.storage.plant("", name, removal.text.encode("ascii"), party="site-1")
    world.fed.round("site-1")
    assert Standing(world.fed.at("site-1")).roster.number == 2
    with looking(world.fed):
        made = calibrated(world.fed, world.ann, tmp_path / "record", secure=SUM, wait=5.0)
    check_all(world.fed, tmp_path / "record")
    assert charges(world.fed, "site-1") == {}
    assert all("site-1" not in names for names, _ in sums_of(made))


def test_a_roster_that_adds_somebody_is_taken_by_nobody_whoever_signed_it(world: World) -> None:
    smaller = world.fed.without("bob")
    bob = world.fed.roster.named("bob")
    assert bob is not None
    larger = smaller.next([*smaller.cards, bob], smaller.issued, smaller.until)
    larger = larger.signed(world.fed.coordinator)
    for roster in (smaller, larger):
        world.storage.plant("", f"roster-{roster.number}", roster.text.encode("ascii"))
    world.fed.round()
    world.fed.round()
    assert {Standing(world.fed.at(n)).roster.number for n in world.fed.sites} == {2}


# --- 3, 4: withheld ---------------------------------------------------------------------------


def test_replies_that_are_withheld_choose_the_set_within_what_is_needed(
    everywhere: World, no_noise: None, tmp_path: Path
) -> None:
    world, hidden = everywhere, []
    hidden.append(world.fed.id("site-5"))

    def hide() -> None:
        world.storage.hide("ann", writer=hidden[0])

    with looking(world.fed):
        made = calibrated(
            world.fed,
            world.ann,
            tmp_path / "record",
            secure=SUM,
            wait=world.patience,
            tell=told_at("share", hide),
        )
    check_all(world.fed, tmp_path / "record")
    assert sums_of(made)[0][0] == ("site-1", "site-2", "site-3", "site-4")
    assert len(openings(world.fed, "site-1")) == QUESTIONS


def test_with_fewer_replies_than_needed_nothing_is_opened(world: World, tmp_path: Path) -> None:
    def hide() -> None:
        for name in ("site-4", "site-5"):
            world.storage.hide("ann", writer=world.fed.id(name))

    with looking(world.fed), pytest.raises(CalibrationError, match="nothing was opened"):
        calibrated(
            world.fed,
            world.ann,
            tmp_path / "record",
            secure=SUM,
            wait=1.0,
            tell=told_at("share", hide),
        )
    assert all(openings(world.fed, name) == {} for name in world.fed.sites)
    world.storage.hides.clear()
    with looking(world.fed):
        calibrated(world.fed, world.ann, tmp_path / "record", secure=SUM)
    check_all(world.fed, tmp_path / "record")


@BOTH
def test_an_answer_that_was_hidden_is_read_by_the_next_run_for_nothing(
    world: World, tmp_path: Path, secure: Secure | None
) -> None:
    kind = "ask" if secure is None else "open"

    def hide() -> None:
        for name in world.fed.sites:
            world.storage.hide("ann", writer=world.fed.id(name))

    with looking(world.fed):
        with pytest.raises((CalibrationError, Unfinished)):
            calibrated(
                world.fed,
                world.ann,
                tmp_path / "record",
                secure=secure,
                wait=1.5,
                tell=told_at(kind, hide),
            )
        paid = [world.fed.ledger(name).nano_spent for name in world.fed.sites]
        assert set(paid) == {nano(EPSILON) // QUESTIONS + 1}
        world.storage.hides.clear()
        made = calibrated(world.fed, world.ann, tmp_path / "record", secure=secure)
    assert len(made.rounds) == QUESTIONS
    check_all(world.fed, tmp_path / "record")


# --- 5: in wrong places -----------------------------------------------------------------------


def test_every_letter_in_every_folder_under_every_readers_name_changes_nothing(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with looking(world.fed):
        calibrated(world.fed, world.ann, tmp_path / "record")
        calibrated(world.fed, world.ann, tmp_path / "sum", secure=SUM, campaign="sum")
    quiet(world.fed)
    before, files = [rows(world.fed, name) for name in world.fed.sites], ever(world)
    ids = [world.fed.id(name) for name in ("ann", "bob", *world.fed.sites)]
    for (_, name), content in files.items():
        for writer in ids:
            for reader in ids[::3]:
                world.storage.plant(writer, f"{reader}-{name[33:]}", content)
    monkeypatch.setattr("privcal.transport.mailbox.MAX_FILES", 10_000)
    look_again(world, monkeypatch)
    assert [rows(world.fed, name) for name in world.fed.sites] == before
    assert {*ever(world).values()} == {*files.values()}, "no byte is new, whatever it is called"
    check_ledgers(world.fed, 2 * EPSILON)
    assert [site.stopped for site, _ in world.fed.running.values()] == [""] * 5
    assert sum(site.unheard["addressee"] for site, _ in world.fed.running.values()) > 0
    with looking(world.fed):
        calibrated(world.fed, world.ann, tmp_path / "next", campaign="next")


# --- 12: two runs -----------------------------------------------------------------------------


@BOTH
def test_two_calibrators_with_one_campaigns_name_pay_and_read_each_their_own(
    everywhere: World, tmp_path: Path, secure: Secure | None
) -> None:
    world, maps = everywhere, {}

    def run(name: str) -> None:
        way, record = world.storage.way(name), tmp_path / name
        maps[name] = calibrated(world.fed, way, record, name=name, secure=secure)

    with looking(world.fed):
        threads = [threading.Thread(target=run, args=(name,)) for name in ("ann", "bob")]
        for one in threads:
            one.start()
        for one in threads:
            one.join(60)
    assert maps.keys() == {"ann", "bob"}
    check_ledgers(world.fed, 2 * EPSILON)
    for name in world.fed.sites:
        assert len(charges(world.fed, name)) == 2 * QUESTIONS


def test_a_copied_record_reads_the_same_answers_and_opens_no_second_set(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between SHARE and OPEN somebody copies the record; storage shows the copy other SHAREs."""

    def copy() -> None:
        shutil.copytree(tmp_path / "record", tmp_path / "copy")
        text = (tmp_path / "copy" / "answers.jsonl").read_text().splitlines()
        (tmp_path / "copy" / "answers.jsonl").write_text(
            "".join(f"{line}\n" for line in text if '"chosen"' not in line)
        )

    with looking(world.fed):
        calibrated(
            world.fed, world.ann, tmp_path / "record", secure=SUM, tell=told_at("open", copy)
        )
        before = [openings(world.fed, name) for name in world.fed.sites]
        world.storage.hide("ann", writer=world.fed.id("site-5"))
        with pytest.raises(CalibrationError, match="opened"):
            calibrated(world.fed, world.ann, tmp_path / "copy", secure=SUM, wait=3.0)
    assert [openings(world.fed, name) for name in world.fed.sites] == before
    check_ledgers(world.fed)


# --- 17: deleted ------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("whose", ["the calibrator's", "the sites'"])
def test_a_campaign_goes_on_when_deleted_files_are_put_back(
    everywhere: World, tmp_path: Path, secure: Secure | None, whose: str
) -> None:
    world = everywhere
    kind = "ask" if secure is None else "share"
    own = world.fed.id("ann")
    gone: list[Hides] = []

    def deleted(party: str, writer: str, name: str) -> bool:
        return (writer == own) == (whose == "the calibrator's") and NAME.fullmatch(name) is not None

    def delete() -> None:
        gone.append(deleted)
        world.storage.hides.append(deleted)  # what is put is gone before anybody looks
        state = world.storage.state
        kept = {f: c for f, c in state.items() if not deleted("", *f)}
        world.storage.put_back(kept)

    with looking(world.fed):
        with pytest.raises((CalibrationError, Unfinished)):
            calibrated(
                world.fed,
                world.ann,
                tmp_path / "record",
                secure=secure,
                wait=world.patience / 2,
                tell=told_at(kind, delete),
            )
        world.storage.hides.remove(gone[0])
        world.storage.put_back(ever(world))
        made = calibrated(world.fed, world.ann, tmp_path / "record", secure=secure)
    assert len(made.rounds) == QUESTIONS
    check_all(world.fed, tmp_path / "record")


def test_the_site_puts_a_deleted_reply_there_again_when_the_letter_comes_again(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with looking(world.fed):
        calibrated(world.fed, world.ann, tmp_path / "record")
    quiet(world.fed)
    files, own = world.storage.state, world.fed.id("ann")
    for writer, name in files:
        if writer != own:
            world.storage.box.delete(writer, name)
    world.storage.states.append({f: c for f, c in files.items() if f[0] == own})
    look_again(world, monkeypatch)
    assert world.storage.state == files
