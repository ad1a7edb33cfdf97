"""Whatever lies in a mailbox, of whatever kind, an honest letter is read within a stated number of looks.

Of N files in a good writer's folder that are named as letters for the same reader and are none, a
look reads 64, in an order of chance: N / 64 looks, and 100 where there are more than 20,000 names,
of which each look sees a random part. Everything that is named otherwise costs no look at all.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from math import ceil
from pathlib import Path

import pytest

from privcal.transport import mailbox
from privcal.transport.letter import MAX_LETTER, file_name
from privcal.transport.mailbox import AGAIN_AT, Box, FolderBox, Looks
from privcal.transport.post.remote import RemoteBox
from tests.transport.post.conftest import FEDERATION, OTHER, OWN

LETTER = b"an honest letter" * 2_500
NAME = file_name(OTHER, LETTER)


class Place:
    """A mailbox, and a way for anybody to leave whatever they like in it."""

    def __init__(self, box: Box, folder: Path | None) -> None:
        self.box, self.folder = box, folder

    def lay(self, name: str, content: bytes = b"strange", writer: str = OWN) -> None:
        if self.folder is None:
            self.box.put(writer, name, content)
        else:
            (self.folder / writer).mkdir(parents=True, exist_ok=True)
            (self.folder / writer / name).write_bytes(content)


@pytest.fixture(params=["folder", "sftp", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "folder":
        yield Place(FolderBox(tmp_path, FEDERATION), tmp_path / FEDERATION)
        return
    server = request.getfixturevalue(request.param)
    server = server() if request.param == "sftp" else server
    box = RemoteBox(server.url, FEDERATION, server.options)
    yield Place(box, server.files / "box" / FEDERATION if request.param == "sftp" else None)
    box.close()


@pytest.fixture
def folder(tmp_path: Path) -> Place:
    return Place(FolderBox(tmp_path, FEDERATION), tmp_path / FEDERATION)


def strange(reader: str = OTHER) -> str:
    return f"{reader}-{secrets.token_hex(32)}"


def looks_until_read(looks: Looks, most: int) -> int:
    """How many looks it takes until the honest letter is read."""
    for count in range(1, most + 1):
        if any(name == NAME for _, name, _ in looks.look([OWN])):
            return count
    raise AssertionError(f"not read within {most} looks")


def test_files_for_others_and_of_odd_names_cost_no_look(place: Place) -> None:
    place.box.put(OWN, NAME, LETTER)
    for _ in range(300):
        place.lay(strange("c" * 32))
    for name in ("x", "a b", "*", "[ab]", "?", NAME[:-1], f"{NAME}0", "\u00e9"):
        if place.folder is not None:
            place.lay(name)
    assert looks_until_read(Looks(place.box, OTHER), 1) == 1


def test_a_hundred_thousand_names_of_another_form_cost_no_look(folder: Place) -> None:
    folder.box.put(OWN, NAME, LETTER)
    for k in range(100_000):
        os.close(os.open(folder.folder / OWN / f"strange-{k}", os.O_CREAT))
    assert looks_until_read(Looks(folder.box, OTHER), 1) == 1


def test_files_that_are_named_as_letters_cost_a_look_for_sixty_four(place: Place) -> None:
    place.box.put(OWN, NAME, LETTER)
    for _ in range(300):
        place.lay(strange())
    assert looks_until_read(Looks(place.box, OTHER), ceil(301 / 64)) >= 1


class Flooded:
    """A server's listing of names of which nothing is there, or two MiB of something else, and one letter."""

    def __init__(self, names: int, content: bytes | None) -> None:
        self._names, self._content = [strange() for _ in range(names)], content

    def list(self, writer: str) -> Iterator[str]:
        yield from self._names
        yield NAME

    def get(self, writer: str, name: str) -> bytes | None:
        return LETTER if name == NAME else self._content


def test_a_listing_of_names_that_are_not_there_costs_a_look_for_sixty_four() -> None:
    assert looks_until_read(Looks(Flooded(5_000, None), OTHER), ceil(5_001 / 64)) >= 1


def test_files_of_two_mib_cost_a_look_for_sixteen() -> None:
    box = Flooded(500, b"x" * MAX_LETTER)
    assert looks_until_read(Looks(box, OTHER), ceil(501 / 16)) >= 1


def test_of_more_names_than_a_look_sees_each_look_sees_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Chance of a failure: less than 0.8¹⁰⁰."""
    monkeypatch.setattr(mailbox, "MAX_NAMES", 200)
    monkeypatch.setattr(mailbox, "MAX_FILES", 8)
    warned: list[str] = []
    looks = Looks(Flooded(1_000, None), OTHER, warned.append)
    assert looks_until_read(looks, 1_001 // 8 + 100) >= 1
    assert "a random part of them is read" in warned[0]


def test_names_of_another_form_push_no_letter_out_of_the_random_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mailbox, "MAX_NAMES", 10)

    class Box(Flooded):
        def list(self, writer: str) -> Iterator[str]:
            yield from self._names
            yield from (f"odd-{k}" for k in range(9_000))
            yield NAME

    seen = sum(NAME in Looks(Box(10, None), OTHER)._names(OWN, mailbox._Seen()) for _ in range(200))
    assert seen > 100, "10 of 11 names are seen each time"


def test_what_is_remembered_of_a_flooded_folder_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "MAX_NAMES", 50)
    monkeypatch.setattr(mailbox, "MAX_KNOWN", 200)
    looks = Looks(box := Flooded(100, None), OTHER)
    for _ in range(20):
        box._names = [strange() for _ in range(100)]
        list(looks.look([OWN]))
    assert len(looks._seen[OWN].odd) <= 200 + 64


def test_a_partial_file_is_read_when_it_is_whole(place: Place) -> None:
    """Nothing, a part, and more than a letter is passed over; then the letter is read, once."""
    looks = Looks(place.box, OTHER)
    for content, waited in zip((b"", LETTER[:1000], LETTER + b"!"), AGAIN_AT, strict=False):
        place.lay(NAME, content)
        for _ in range(waited):
            assert list(looks.look([OWN])) == []
    place.lay(NAME, LETTER)
    assert looks_until_read(looks, sum(AGAIN_AT)) >= 1
    assert list(looks.look([OWN])) == [], "a name that was read is never read again"
    place.lay(NAME, b"other bytes")
    assert list(looks.look([OWN])) == []


def test_a_letter_under_another_name_is_not_read(place: Place) -> None:
    place.lay(strange(), LETTER)
    place.lay(file_name("c" * 32, LETTER), LETTER)
    if place.folder is not None:
        place.lay(NAME.upper(), LETTER)
    assert list(Looks(place.box, OTHER).look([OWN])) == []


def test_what_is_no_plain_file_is_not_read_and_keeps_nothing_back(folder: Place) -> None:
    where = folder.folder / OWN
    where.mkdir(parents=True)
    outside = folder.folder.parent / "outside"
    outside.write_bytes(LETTER)
    (where / NAME).symlink_to(outside)
    (where / strange()).mkdir()
    os.mkfifo(where / strange())
    (where / strange()).symlink_to("/dev/zero")
    looks = Looks(folder.box, OTHER)
    assert list(looks.look([OWN])) == []
    (where / NAME).unlink()
    folder.box.put(OWN, NAME, LETTER)
    assert looks_until_read(looks, 5) >= 1


def test_a_writers_folder_that_is_a_link_is_not_followed(folder: Place) -> None:
    elsewhere = folder.folder.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / NAME).write_bytes(LETTER)
    folder.folder.mkdir()
    (folder.folder / OWN).symlink_to(elsewhere)
    warned: list[str] = []
    assert list(Looks(folder.box, OTHER, warned.append).look([OWN])) == []
    assert warned


def test_a_folder_or_a_file_that_may_not_be_read_keeps_no_letter_back_over_sftp(
    sftp: Callable,
) -> None:
    server = sftp()
    box = RemoteBox(server.url, FEDERATION, server.options)
    box.put(OWN, NAME, LETTER)
    for _ in range(30):
        (server.files / "box" / FEDERATION / OWN / strange()).mkdir()
    assert looks_until_read(Looks(box, OTHER), 1) == 1
    box.close()


def test_a_file_whose_reading_never_ends_keeps_no_letter_back() -> None:
    """One file ends a look at a writer's folder; at the next one it comes last."""

    class Box(Flooded):
        def get(self, writer: str, name: str) -> bytes | None:
            if name != NAME:
                raise OSError("did not answer")
            return LETTER

    assert looks_until_read(Looks(Box(10, None), OTHER), 11) >= 1


def test_one_writers_flood_delays_no_other_writer(place: Place) -> None:
    for _ in range(100):
        place.lay(strange())
    place.box.put("d" * 32, NAME, LETTER)
    found = [writer for writer, *_ in Looks(place.box, OTHER).look([OWN, "d" * 32])]
    assert found == ["d" * 32]
