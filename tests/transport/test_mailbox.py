"""A mailbox may be anybody's: what lies in it is read within limits, by its name, and never twice."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from privcal.trusted.errors import InputError

pytest.importorskip("cryptography", reason="needs cryptography: pip install privcal[secure]")

from privcal.transport import mailbox
from privcal.transport.letter import MAX_LETTER, file_name
from privcal.transport.mailbox import AGAIN_AT, MAX_ROSTER, NAME, ROSTER, FolderBox, Looks

ME, ANN, BOB, FEDERATION = "a" * 32, "b" * 32, "c" * 32, "f" * 32


@pytest.fixture
def box(tmp_path: Path) -> FolderBox:
    return FolderBox(tmp_path, FEDERATION)


def leave(box: FolderBox, content: bytes, writer: str = ANN, reader: str = ME) -> str:
    name = file_name(reader, content)
    box.put(writer, name, content)
    return name


def place(tmp_path: Path, name: str = "", writer: str = ANN) -> Path:
    path = tmp_path / FEDERATION / writer
    path.mkdir(parents=True, exist_ok=True)
    return path / name


def looked(looks: Looks, *writers: str) -> list[bytes]:
    return [content for _, _, content in looks.look(writers or (ANN,))]


# --- three operations on a folder -----------------------------------------------------------


def test_what_is_put_is_listed_read_and_deleted(box: FolderBox) -> None:
    name = leave(box, b"a letter")
    assert list(box.list(ANN)) == [name]
    assert box.get(ANN, name) == b"a letter"
    box.put(ANN, name, b"a letter")
    box.delete(ANN, name)
    box.delete(ANN, name)
    assert (list(box.list(ANN)), box.get(ANN, name)) == ([], None)
    assert list(box.list(BOB)) == [], "a writer without a folder"


def test_a_roster_lies_beside_the_writers_folders(box: FolderBox, tmp_path: Path) -> None:
    box.put("", "roster-2", b"a roster")
    leave(box, b"x")
    assert sorted(box.list("")) == sorted(["roster-2", ANN])
    assert box.get("", "roster-2") == b"a roster"
    assert (tmp_path / FEDERATION / "roster-2").is_file()


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        FolderBox(tmp_path / "nowhere", FEDERATION)


def test_a_part_of_an_own_file_is_made_whole(box: FolderBox, tmp_path: Path) -> None:
    name = leave(box, b"a letter")
    place(tmp_path, name).write_bytes(b"a le")
    box.put(ANN, name, b"a letter")
    assert box.get(ANN, name) == b"a letter"


def test_nothing_is_written_through_a_link(box: FolderBox, tmp_path: Path) -> None:
    """Who may write in the folder plants a link to a file of the site's account."""
    own = tmp_path / "ledger"
    own.write_bytes(b"a ledger")
    name = file_name(ME, b"a letter")
    place(tmp_path, name).symlink_to(own)
    box.put(ANN, name, b"a letter")
    assert own.read_bytes() == b"a ledger"
    assert box.get(ANN, name) == b"a letter"


def test_nothing_is_written_in_a_folder_that_is_a_link(box: FolderBox, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    place(tmp_path).parent.joinpath(BOB).symlink_to(tmp_path / "own")
    with pytest.raises(OSError, match=r"."):
        leave(box, b"a letter", BOB)
    with pytest.raises(OSError, match=r"."):
        list(box.list(BOB))
    assert list((tmp_path / "own").iterdir()) == []


def test_links_folders_pipes_and_large_files_are_no_letters(box: FolderBox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    names = [file_name(ME, bytes([k])) for k in range(5)]
    paths = [place(tmp_path, name) for name in names]
    paths[0].symlink_to(tmp_path / "secret")
    paths[1].mkdir()
    os.mkfifo(paths[2])
    paths[3].write_bytes(b"x" * (MAX_LETTER + 1))
    paths[4].symlink_to("/dev/zero")
    begun = time.monotonic()
    assert [box.get(ANN, name) for name in names] == [None] * 5
    assert looked(Looks(box, ME)) == []
    assert time.monotonic() - begun < 5
    (place(tmp_path).parent / "roster-1").write_bytes(b"x" * (MAX_ROSTER + 1))
    assert box.get("", "roster-1") is None


def test_a_file_that_grows_while_it_is_read_is_cut(
    box: FolderBox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(tmp_path, "x").write_bytes(b" " * 3 * MAX_LETTER)
    real = os.fstat
    monkeypatch.setattr(
        mailbox.os, "fstat", lambda file: os.stat_result((real(file).st_mode, *[0] * 9))
    )
    content = box.get(ANN, "x")
    assert content is not None
    assert len(content) == MAX_LETTER + 1


# --- looks ----------------------------------------------------------------------------------


def test_a_file_is_read_once_and_only_by_its_reader(box: FolderBox) -> None:
    leave(box, b"for me")
    leave(box, b"for Bob", reader=BOB)
    looks = Looks(box, ME)
    assert looked(looks) == [b"for me"]
    assert looked(looks) == []
    looks.forget(ANN, file_name(ME, b"for me"))
    looks.forget(BOB, "x")
    assert looked(looks) == [b"for me"]


def test_only_the_folders_of_known_writers_are_listed(box: FolderBox) -> None:
    leave(box, b"from a stranger", writer="e" * 32)
    assert looked(Looks(box, ME), ANN, BOB) == []


ODD = [
    "../../secret", "/etc/passwd", "x", "", f"{ME}-", f"{ME}-{'0' * 63}", f"{ME}-{'0' * 65}",
    f"{ME.upper()}-{'0' * 64}", f"{ME}-{'A' * 64}", f"{ME}-{'0' * 64}\n", f"{ME}-{'*' * 64}", "[a]", "?", ".part",
    f"{ME}-{'0' * 64}.tmp", f"x/{ME}-{'0' * 64}", f"{ME}-{'٣' * 64}",
]  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_a_name_that_does_not_fit_is_never_opened(
    box: FolderBox, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whatever a server lists."""
    monkeypatch.setattr(box, "list", lambda writer: iter([name]))
    monkeypatch.setattr(box, "get", lambda *_: pytest.fail("it was opened"))
    assert looked(Looks(box, ME)) == []
    assert NAME.fullmatch(name) is None


@pytest.mark.parametrize(
    "name", ["roster-0", "roster-01", "roster-", "roster--1", "roster-1\n", "roster-1234567890"]
)
def test_some_names_are_no_rosters(name: str) -> None:
    assert ROSTER.fullmatch(name) is None
    assert ROSTER.fullmatch("roster-17")


def test_a_file_that_is_not_what_its_name_says_is_read_again_at_last_at_64_looks(
    box: FolderBox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(tmp_path, file_name(ME, b"a letter")).write_bytes(b"a le")
    reads, get = [], box.get
    looks = Looks(box, ME)
    monkeypatch.setattr(box, "get", lambda *at: (reads.append(looks._look), get(*at))[1])
    for _ in range(200):
        assert looked(looks) == []
    first = reads[0]
    assert [read - before for before, read in itertools.pairwise(reads)] == [*AGAIN_AT]
    assert first == 1
    assert len(reads) == 1 + len(AGAIN_AT)


@pytest.mark.parametrize("part", [b"", b"a le", b"a letter, and more", b"another!"])
def test_a_file_is_read_when_it_is_whole(box: FolderBox, tmp_path: Path, part: bytes) -> None:
    path = place(tmp_path, file_name(ME, b"a letter"))
    path.write_bytes(part)
    looks = Looks(box, ME)
    assert looked(looks) == []
    path.write_bytes(b"a letter")
    assert [looked(looks) for _ in range(3)] == [[b"a letter"], [], []]


def test_a_file_that_was_read_and_changes_afterwards_is_not_read_again(
    box: FolderBox, tmp_path: Path
) -> None:
    name = leave(box, b"a letter")
    looks = Looks(box, ME)
    assert looked(looks) == [b"a letter"]
    place(tmp_path, name).write_bytes(b"another!")
    assert looked(looks) == []


def test_a_file_that_was_deleted_and_put_back_is_brought_again(box: FolderBox) -> None:
    """So what a carrier withheld for a while is not lost; the reader gives the same reply again."""
    name, looks = leave(box, b"a letter"), Looks(box, ME)
    assert looked(looks) == [b"a letter"]
    box.delete(ANN, name)
    assert looked(looks) == []
    leave(box, b"a letter")
    assert looked(looks) == [b"a letter"]


def test_each_writer_has_its_turn_and_no_more_than_its_limit(
    box: FolderBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "MAX_FILES", 8)
    for k in range(40):
        leave(box, b"%d" % k)
    leave(box, b"from Bob", writer=BOB)
    looks = Looks(box, ME)
    writers = [writer for writer, _, _ in looks.look((ANN, BOB))]
    assert writers == [ANN, BOB, *[ANN] * 7]
    assert [len(looked(looks, ANN, BOB)) for _ in range(5)] == [8, 8, 8, 8, 0]


def test_the_bytes_of_one_writer_in_a_look_are_bounded(
    box: FolderBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "MAX_BYTES", 1000)
    for k in range(6):
        leave(box, b"%d" % k * 400)
    looks = Looks(box, ME)
    assert [len(looked(looks)) for _ in range(3)] == [3, 3, 0]


def test_files_that_are_false_keep_an_honest_letter_waiting_for_a_few_looks_alone(
    box: FolderBox, tmp_path: Path
) -> None:
    """In a good writer's own folder, well-formed: 1,000 of them, 64 in a look."""
    for k in range(1000):
        place(tmp_path, f"{ME}-{k:064x}").write_bytes(b"garbage")
    leave(box, b"a letter")
    looks = Looks(box, ME)
    found = next(look for look in range(1, 100) if looked(looks))
    assert found <= 1000 // mailbox.MAX_FILES + 3


def test_of_too_many_names_a_random_part_is_read_and_the_owner_is_warned(
    box: FolderBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "MAX_NAMES", 50)
    told: list[str] = []
    letter = leave(box, b"a letter")
    names = [*(f"{ME}-{k:064x}" for k in range(200)), letter]
    monkeypatch.setattr(box, "list", lambda writer: iter(names))
    looks = Looks(box, ME, told.append)
    assert any(looked(looks) for _ in range(100)), "though it is listed last"
    assert told[0] == f"the folder of {ANN} has more than 50 names: a random part of them is read"


def test_a_listing_that_never_ends_is_ended(
    box: FolderBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(writer: str) -> Iterator[str]:
        number = 0
        while True:
            number += 1
            yield f"{ME}-{number:064x}"

    monkeypatch.setattr(mailbox, "MAX_NAMES", 100)
    monkeypatch.setattr(box, "list", endless)
    assert looked(Looks(box, ME)) == []
    now = iter(range(0, 10**9, 10))
    monkeypatch.setattr(mailbox, "MAX_NAMES", 10**8)
    assert looked(Looks(box, ME, clock=lambda: float(next(now)))) == []


def test_a_folder_that_cannot_be_read_keeps_no_other_waiting(
    box: FolderBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(box, b"from Bob", writer=BOB)
    listing, told = box.list, []

    def broken(writer: str) -> Iterator[str]:
        if writer == ANN:
            raise OSError(5, "Input/output error")
        return listing(writer)

    monkeypatch.setattr(box, "list", broken)
    assert looked(Looks(box, ME, told.append), ANN, BOB) == [b"from Bob"]
    assert told == [f"the folder of {ANN} cannot be read: Input/output error"]


def test_the_time_of_one_writer_in_a_look_is_bounded(
    box: FolderBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, reads = [0.0], list[str]()

    def slow(writer: str, name: str) -> bytes | None:
        now[0] += mailbox.MAX_SECONDS / 4
        reads.append(name)
        return None

    for k in range(20):
        leave(box, b"%d" % k)
    monkeypatch.setattr(box, "get", slow)
    assert looked(Looks(box, ME, clock=lambda: now[0])) == []
    assert len(reads) == 5
