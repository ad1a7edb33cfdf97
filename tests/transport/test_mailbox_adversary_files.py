"""What storage can be: full of strange names and odd files, false in its listings, frozen, full.

Groups 9 (100,000 names), 10 (files that are not what they are called) and 11 (a server that fails).
An honest letter is answered within a stated number of looks, and nobody hangs.
"""

from __future__ import annotations

import itertools
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from privcal.transport import carry as carrying
from privcal.transport.carry import carry
from privcal.transport.letter import MAX_LETTER, digest
from privcal.transport.mailbox import MAX_FILES, FolderBox
from tests.support.campaigns import QUESTIONS, calibrated, charges, check_all, looking, quiet
from tests.support.letters import ANN, BOB, Asker, question
from tests.transport.conftest import World

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::privcal.calibration.loop.SourceDropped"),
]
SITE = "site-1"


def asked(world: World, name: str = ANN, campaign: str = "c") -> Callable[[], int]:
    """Put a letter with a question to the first site; returns how many replies to it there are."""
    asker: Asker = world.fed.asker(name)
    request = asker.request("ask", SITE, question(campaign))
    letter = asker.put(SITE, request)
    return lambda: len(asker.replies(SITE, request, letter))


def looks_until(world: World, answered: Callable[[], int], most: int) -> int:
    """How many looks of the first site it takes until the letter is answered."""
    for look in range(1, most + 1):
        world.fed.round(SITE)
        if answered():
            return look
    raise AssertionError(f"not answered within {most} looks")


def strange(number: int) -> Iterator[str]:
    for n in range(number):
        yield (f"../{n}", f"letter {n}\n*.txt", f"{n:064x}-{'0' * 32}", f"{'A' * 32}-{n:064X}")[
            n % 4
        ]


# --- 9: 100,000 names -------------------------------------------------------------------------


def test_a_letter_among_100_000_strange_names_is_answered_at_the_first_look(world: World) -> None:
    world.storage.lists.append(lambda party, writer, names: iter([*strange(100_000), *names]))
    assert looks_until(world, asked(world), 1) == 1


def test_a_letter_among_100_000_letters_to_others_is_answered_at_the_first_look(
    world: World,
) -> None:
    others = [f"{'ab' * 16}-{n:064x}" for n in range(100_000)]
    world.storage.lists.append(lambda party, writer, names: iter([*others, *names]))
    assert looks_until(world, asked(world), 1) == 1


def test_a_letter_among_names_of_files_that_are_not_there_is_answered_when_those_were_tried(
    world: World,
) -> None:
    id, folder = world.fed.id(SITE), world.fed.id(ANN)
    absent = [f"{id}-{secrets.token_hex(32)}" for _ in range(1000)]
    world.storage.lists.append(
        lambda party, writer, names: iter([*names, *absent] if writer == folder else names)
    )
    most = 1000 // MAX_FILES + 2
    assert looks_until(world, asked(world), most) <= most


def test_a_flood_in_one_writers_folder_keeps_no_other_writer_waiting(world: World) -> None:
    id, folder = world.fed.id(SITE), world.fed.id(BOB)
    garbage = random.Random(1).randbytes(MAX_LETTER)
    for n in range(100):  # 200 MB, of which a look reads 32
        world.storage.plant(folder, f"{id}-{n:064x}", garbage)
    absent = [f"{id}-{secrets.token_hex(32)}" for _ in range(30_000)]
    world.storage.lists.append(
        lambda party, writer, names: iter([*absent, *names] if writer == folder else names)
    )
    assert looks_until(world, asked(world), 1) == 1


def test_a_flood_of_well_named_garbage_from_a_calibrator_costs_no_epsilon_and_few_looks(
    world: World,
) -> None:
    id, folder = world.fed.id(SITE), world.fed.id(ANN)
    for n in range(200):
        content = random.Random(n).randbytes(1000)
        world.storage.plant(folder, f"{id}-{digest(content)}", content)
    most = 200 // MAX_FILES + 2
    assert looks_until(world, asked(world), most) <= most
    assert len(charges(world.fed, SITE)) == 1


# --- 10: odd files ----------------------------------------------------------------------------


def names_of(path: Path) -> list[str]:
    return [entry.name for entry in path.iterdir() if entry.is_file() and len(entry.name) == 97]


def test_a_campaign_among_links_pipes_folders_and_odd_names_ends_as_without_them(
    world: World, tmp_path: Path
) -> None:
    box = world.storage.box
    assert isinstance(box, FolderBox)
    secret = tmp_path / "secret"
    secret.write_text("nobody's")
    for name in ("ann", *world.fed.sites):
        writer = world.fed.id(name)
        folder = tmp_path / "box" / world.fed.roster.federation / writer
        folder.mkdir(parents=True)
        for n, reader in enumerate(map(world.fed.id, ("ann", *world.fed.sites))):
            os.mkfifo(folder / f"{reader}-{'1' * 64}")
            (folder / f"{reader}-{'2' * 64}").symlink_to(secret)
            (folder / f"{reader}-{'3' * 64}").mkdir()
            (folder / f"{reader}-{'4' * 64}").symlink_to("/dev/zero")
            (folder / f"{reader}-{'5' * 64}").touch()
            with (folder / f"{reader}-{'6' * 64}").open("wb") as file:
                file.truncate(1 << 32)  # 4 GiB, of holes
            (folder / f"*[{n}]?\n").write_text("odd")
            os.link(secret, folder / f"{reader}-{'7' * 64}")
    with looking(world.fed):
        made = calibrated(world.fed, world.ann, tmp_path / "record")
    assert len(made.rounds) == QUESTIONS
    check_all(world.fed, tmp_path / "record")
    assert secret.read_text() == "nobody's"


@pytest.mark.parametrize("how", ["partial", "empty", "longer", "other bytes", "another letter"])
def test_a_file_that_is_not_what_its_name_says_is_read_when_it_is(
    everywhere: World, tmp_path: Path, how: str
) -> None:
    """A quarter of what parties read is cut, grown or exchanged, as if it were still being written."""
    world, dice, lock = everywhere, random.Random(how), threading.Lock()

    def change(party: str, writer: str, name: str, content: bytes) -> bytes:
        with lock:
            if dice.random() < 0.75:
                return content
        others = {c for (_, n), c in world.storage.state.items() if n != name} or {b""}
        return {
            "partial": content[: len(content) // 2],
            "empty": b"",
            "longer": content + b"\n" * 1000,
            "other bytes": bytes(len(content)),
            "another letter": min(others),
        }[how]

    world.storage.changes.append(change)
    with looking(world.fed):
        made = calibrated(world.fed, world.ann, tmp_path / "record")
    assert len(made.rounds) == QUESTIONS
    check_all(world.fed, tmp_path / "record")


def test_names_in_capitals_and_twice_and_copies_under_other_names_charge_once(
    everywhere: World, tmp_path: Path
) -> None:
    world = everywhere

    def more(party: str, writer: str, names: list[str]) -> Iterator[str]:
        return iter([*names, *(name.upper() for name in names), *names])

    world.storage.lists.append(more)
    with looking(world.fed):
        calibrated(world.fed, world.ann, tmp_path / "record")
    quiet(world.fed)
    check_all(world.fed, tmp_path / "record")


@pytest.mark.parametrize(
    "name", ["../../secret", "/etc/passwd", "*", "[a]", "?", "a\nb", "", ".", "..", "é", "a" * 5000]
)
def test_no_name_that_a_listing_tells_is_ever_asked_for(world: World, name: str) -> None:
    world.storage.lists.append(lambda party, writer, names: iter([*names, name]))
    assert looks_until(world, asked(world), 1) == 1
    assert name not in {one for _, do, _, one in world.storage.asked if do != "list"}


# --- 11: a server that fails ------------------------------------------------------------------


@pytest.mark.parametrize("what", ["list", "get", "put"])
@pytest.mark.parametrize("whose", [SITE, "ann", ""])
def test_who_cannot_use_the_mailbox_is_late_and_the_next_run_pays_nothing_twice(
    everywhere: World, tmp_path: Path, what: str, whose: str
) -> None:
    world, calls = everywhere, itertools.count()

    def trouble(party: str, do: str, writer: str, name: str) -> None:
        if do == what and whose in ("", party) and next(calls) % 3 == 0:
            raise OSError(28, "No space left on device")

    world.storage.troubles.append(trouble)
    with looking(world.fed):
        made = calibrated(world.fed, world.ann, tmp_path / "record", wait=10.0)
    assert len(made.rounds) == QUESTIONS
    quiet(world.fed)
    check_all(world.fed, tmp_path / "record")


@pytest.mark.parametrize("what", ["list", "get", "put"])
def test_a_mailbox_that_is_frozen_for_one_site_keeps_no_other_and_no_calibrator_waiting(
    world: World, tmp_path: Path, what: str
) -> None:
    thawed = world.storage.freeze(what, SITE)
    with looking(world.fed, *world.fed.sites[1:]):
        frozen = threading.Thread(target=world.fed.round, args=(SITE,), daemon=True)
        frozen.start()
        began = time.monotonic()
        made = calibrated(world.fed, world.ann, tmp_path / "record", wait=2.0)
        assert time.monotonic() - began < 20
    assert len(made.rounds) == QUESTIONS
    assert charges(world.fed, SITE) == {}
    thawed.set()
    frozen.join(30)
    assert not frozen.is_alive()
    check_all(world.fed, tmp_path / "record")


@pytest.mark.parametrize("what", ["list", "get", "put"])
def test_a_mailbox_that_is_frozen_for_the_calibrator_ends_its_run_at_the_deadline(
    world: World, tmp_path: Path, what: str
) -> None:
    from privcal.trusted.errors import CalibrationError

    thawed = world.storage.freeze(what, ANN)
    began = time.monotonic()
    with looking(world.fed), pytest.raises(CalibrationError, match="no site of the roster replied"):
        calibrated(world.fed, world.ann, tmp_path / "record", wait=1.0)
    assert time.monotonic() - began < 20
    thawed.set()
    with looking(world.fed):
        calibrated(world.fed, world.ann, tmp_path / "record")
    check_all(world.fed, tmp_path / "record")


@pytest.mark.parametrize("where", ["", "own", ANN])
@pytest.mark.parametrize("names", ["strange", "well formed"])
def test_a_listing_that_never_ends_ends_for_a_site(
    world: World, monkeypatch: pytest.MonkeyPatch, where: str, names: str
) -> None:
    monkeypatch.setattr("privcal.transport.mailbox.MAX_SECONDS", 0.5)
    monkeypatch.setattr(carrying, "MAX_SECONDS", 0.5, raising=False)
    writers = {"": "", "own": world.fed.id(SITE), ANN: world.fed.id(ANN)}
    id, rosters = world.fed.id(SITE), itertools.count(2)

    def endless(party: str, writer: str, there: list[str]) -> Iterator[str]:
        yield from there
        while writer == writers[where]:
            if names == "strange":
                yield "strange"
            else:
                yield f"{id}-{secrets.token_hex(32)}" if where else f"roster-{next(rosters)}"

    answered = asked(world, BOB)
    asked(world, ANN)
    monkeypatch.setattr(type(world.ann), "list", _unlisted(endless))
    look = threading.Thread(target=world.fed.round, args=(SITE,), daemon=True)
    look.start()
    look.join(20)
    assert not look.is_alive(), "a look ends, whatever a listing does"
    assert answered() == 1


def _unlisted(
    lists: Callable[[str, str, list[str]], Iterator[str]],
) -> Callable[..., Iterator[str]]:
    """The listing of a way that is never whole."""

    def listed(self: object, writer: str) -> Iterator[str]:
        storage, party = self.storage, self.party  # type: ignore[attr-defined]
        return lists(party, writer, storage.shown(party, writer))

    return listed


def test_a_carrier_that_is_stopped_stops_though_its_mailbox_fails(world: World) -> None:
    world.storage.fail("list")
    stopped, told = threading.Event(), list[str]()
    site = world.fed.site(SITE)
    way = world.storage.way(SITE)
    thread = threading.Thread(
        target=carry,
        args=(way, site),
        kwargs={"every": 0.02, "stopped": stopped, "tell": told.append},
    )
    thread.start()
    time.sleep(0.3)
    stopped.set()
    thread.join(10)
    assert not thread.is_alive()
    assert len(told) == 1, "said once, not at every look"
