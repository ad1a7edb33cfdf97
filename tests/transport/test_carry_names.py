"""Names from a listing never leave the folder, and what the site wrote itself is shown to it whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from privcal.transport.carry import Carrier
from privcal.transport.letter import file_name
from privcal.transport.mailbox import Box, FolderBox

FEDERATION, SITE, ANN = "f" * 32, "a" * 32, "b" * 32


class Site:
    """A site that keeps what it is brought, and replies to it."""

    id = SITE

    def __init__(self, *gone: str) -> None:
        self.taken: list[bytes] = []
        self.gone = list(gone)

    def writers(self) -> list[str]:
        return [ANN, SITE]

    def expired(self) -> list[str]:
        return self.gone

    def take(self, content: bytes) -> bytes | None:
        self.taken.append(content)
        return b"reply to " + content


def look(box: Box, site: Site) -> None:
    carrier = Carrier(box, site)
    carrier.look()
    carrier.wait()
    carrier.close()


class Lying:
    """A mailbox that lists what it likes, and notes what is read and deleted."""

    def __init__(self, names: dict[str, list[str]], content: bytes | None = b"strange") -> None:
        self._names, self._content = names, content
        self.got: list[str] = []
        self.deleted: list[str] = []

    def list(self, writer: str) -> Iterator[str]:
        yield from self._names.get(writer, [])

    def get(self, writer: str, name: str) -> bytes | None:
        self.got.append(name)
        return self._content

    def put(self, writer: str, name: str, content: bytes) -> None: ...

    def delete(self, writer: str, name: str) -> None:
        self.deleted.append(name)


ODD = [
    "../../privcal.key", "/etc/passwd", "..", ".", "", "*", "[ab]", "?", "x\ny", "\u00e9", ".part",
    file_name(SITE, b"x").upper(), f"{file_name(SITE, b'x')}/..", f"./{file_name(SITE, b'x')}",
    f"{file_name(SITE, b'x')}\n", file_name(SITE, b"x")[:-1], f"roster-1/../{SITE}", "roster-01",
]  # fmt: skip


def test_no_name_of_a_listing_is_used_that_is_no_letters() -> None:
    """Of a writer's folder, of the site's own and of the rosters' alike: none leads out of its folder."""
    good = file_name(SITE, b"x")
    box = Lying({ANN: [*ODD, good], SITE: ODD, "": ODD})
    look(box, Site(*ODD))
    assert (box.got, box.deleted) == ([good], [])


def test_nothing_is_deleted_that_is_not_listed_in_the_sites_own_folder() -> None:
    mine, gone = file_name(ANN, b"1"), file_name(ANN, b"2")
    box = Lying({SITE: [mine], ANN: [gone]}, b"1")
    look(box, Site(mine, gone, "../../x"))
    assert box.deleted == [mine]


def test_an_own_file_that_is_still_being_copied_is_shown_when_it_is_whole(tmp_path: Path) -> None:
    """It may be the witness that another copy of the site wrote."""
    witness, name = b"of my other self", file_name(ANN, b"of my other self")
    mine, site = tmp_path / FEDERATION / SITE, Site()
    mine.mkdir(parents=True)
    (mine / name).write_bytes(witness[:5])
    carrier = Carrier(FolderBox(tmp_path, FEDERATION), site)
    carrier.look()
    (mine / name).write_bytes(witness)
    for _ in range(3):
        carrier.look()
    assert site.taken.count(witness) == 1
