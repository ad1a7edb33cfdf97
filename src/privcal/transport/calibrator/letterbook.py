"""A calibrator's letters on disk: their exact bytes, and the key that their replies are sealed for.

Both are durable before a letter leaves. So after a crash the same command sends the same bytes, and
can open what sites say to them. One round of a campaign (one question, or one message of a secure
sum, to all sites) is one file, which is the account's alone. The keys go with the campaign's last
answer: no reply can be opened after that.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from privcal.calibration.campaign import LETTERS
from privcal.data.files import read_json, replacing
from privcal.secure.keys import SealingKey
from privcal.transport.letter import Letter, digest
from privcal.trusted.errors import InputError

SENT = "sent"
"""In a calibrator's folder: an empty file for each letter in a mailbox, named by when it ends."""
GONE_AFTER = 7 * 24 * 3600
"""Seconds after its end when a letter is removed from the mailbox by its writer."""


@dataclass
class Round:
    """The letters of one round, by the names of the sites that they are for.

    issued, until
        The dates in all of them.
    letters
        Of each site the digest of what is inside, and the letter.
    again
        Whether some of them may have left before.
    """

    key: SealingKey
    issued: int
    until: int
    letters: dict[str, tuple[str, Letter]] = field(default_factory=dict)
    again: bool = False

    def letter(self, name: str, text: str, write: Callable[[], Letter]) -> Letter:
        """The letter to a site with this text inside: the one that was written before, if it was."""
        inside = digest(text.encode("ascii"))
        known = self.letters.get(name)
        if known is None or known[0] != inside:
            self.letters[name] = inside, write()
        return self.letters[name][1]


class Letterbook:
    """The letters of one campaign.

    Parameters
    ----------
    folder
        The campaign's record; None where letters are kept in memory, and end with the process.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = None if folder is None else folder / LETTERS
        self._rounds: dict[str, Round] = {}

    def round(self, name: str, lifetime: int) -> Round:
        """The round of this name, as it was written; a new one where there is none, or it ends soon."""
        now = int(time.time())
        known = self._rounds.get(name) or self._read(name)
        if known is None or known.until <= now + lifetime // 4:
            known = Round(SealingKey.make(), now, now + lifetime)
        else:
            known.again = True
        self._rounds[name] = known
        return known

    def save(self, name: str, round: Round) -> None:
        """Make a round durable: no letter of it may leave before."""
        if self._folder is None:
            return
        self._folder.mkdir(mode=0o700, exist_ok=True)
        letters = {
            site: [inside, letter.content.decode("ascii")]
            for site, (inside, letter) in round.letters.items()
        }
        facts = [round.key.secret, round.issued, round.until, letters]
        with replacing(self._path(name), private=True) as part:
            part.write_text(json.dumps(facts), encoding="ascii")

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{name}.json"

    def _read(self, name: str) -> Round | None:
        if self._folder is None or not (path := self._path(name)).exists():
            return None
        try:
            secret, issued, until, letters = read_json(path, "letters of a campaign")
            read = {
                site: (inside, Letter.read(text.encode("ascii")))
                for site, (inside, text) in letters.items()
            }
            return Round(SealingKey.read(secret), int(issued), int(until), read)
        except (
            ValueError,
            TypeError,
            AttributeError,
        ):  # without its cause, which might quote a key
            raise InputError(
                f"{path} is damaged; remove it, and new letters ask the same, free of charge"
            ) from None


def note_sent(folder: Path, names: Mapping[str, int]) -> None:
    """Note these letters, by when they end, in a calibrator's folder, before they leave."""
    (folder / SENT).mkdir(mode=0o700, exist_ok=True)
    for name, until in names.items():
        (folder / SENT / f"{until}-{name}").touch()


def ended(folder: Path) -> Iterator[tuple[str, Path]]:
    """The letters that ended more than seven days ago, and the notes of them."""
    for note in sorted((folder / SENT).glob("*-*-*")):
        until, _, name = note.name.partition("-")
        if until.isdecimal() and int(until) + GONE_AFTER < time.time():
            yield name, note
