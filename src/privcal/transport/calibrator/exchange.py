"""Letters out, and what the sites say to them: one round after the other, over any mailbox.

Whatever carries letters can lose, delay, repeat and reorder them, and so can a site that lies. So a
reply counts only if the site's key in the roster signed it, if it was sealed for this round's key,
and if it names the very letter that it answers. An answer beats a refusal, in whatever order they
come; a round ends at its deadline, whatever the mailbox does, because a thread of its own waits for
that.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from privcal.data.files import read_json, write_document
from privcal.data.panels import Unusable
from privcal.data.wording import plural
from privcal.secure import canonical
from privcal.transport.calibrator.letterbook import Letterbook, Round, ended, note_sent
from privcal.transport.content import MAX_LIFETIME, Reply, Request
from privcal.transport.keys import Keys
from privcal.transport.letter import Letter, Stamp
from privcal.transport.mailbox import ROSTER, Box, Looks, pause
from privcal.transport.replied import Replied, read_reply
from privcal.transport.roster import Card, Roster
from privcal.transport.standing import Standing
from privcal.trusted.errors import InputError, Refused

WAIT = 120.0
"""Seconds that sites have for a round. A later reply is paid for all the same: the same command reads it."""
EVERY = 1.0
"""Seconds between two looks at a mailbox, the most (`mailbox.pause`)."""
LIFETIME = 600
"""The fewest seconds that a letter holds."""
SENDING = 5.0
"""Seconds to bring letters away whose replies nobody waits for."""
HEARD = "heard.json"
"""In a calibrator's folder: when each site's last letter came."""

FREE = ("about", "release")
"""What is written anew each time: it tells how things are now, and nothing is lost with a reply."""
WAITING = ("awaiting_approval", "busy", "unavailable")
"""Refusals that may give way to an answer while a round lasts."""

_File = tuple[str, str, bytes]


@dataclass
class Exchange:
    """A calibrator's letters over one mailbox.

    Parameters
    ----------
    standing
        The calibrator's keys and roster.
    box
        The mailbox.
    book
        Where letters are kept.
    wait, every
        Seconds for a round, and between two looks.
    warn, tell
        Are told in a sentence what is odd, and whom the round waits for.
    silent
        Send nothing: the campaign is finished, and only read again.
    """

    standing: Standing
    box: Box
    book: Letterbook = field(default_factory=Letterbook)
    wait: float = WAIT
    every: float = EVERY
    warn: Callable[[str], None] = lambda text: None
    tell: Callable[[str], None] = lambda text: None
    silent: bool = False

    def __post_init__(self) -> None:
        self.roster = self.standing.roster
        self.keys = participant(self.standing, self.roster)
        self.trips = 0
        """Rounds that were waited for."""
        self.travelled = 0
        """Bytes of all letters, for benchmarks."""
        self.stamps: dict[str, Stamp] = {}
        """The roster that each site's last letter went by."""
        self._looks = Looks(self.box, self.keys.id, self._warn_once)
        self._warned: set[str] = set()
        self._using = threading.Lock()
        self._opened: dict[str, Reply] = {}  # answers, by the digest of the letter they answer
        self._others: set[tuple[str, str]] = (
            set()
        )  # files that were read and are of no round so far

    def ask(
        self,
        kind: str,
        campaign: str,
        names: Sequence[str],
        boxes: Mapping[str, Any] | None = None,
        **parts: Any,
    ) -> Iterator[tuple[str, Reply | Exception]]:
        """What each of these sites says, in whatever order it comes; of who is not in time, "late"."""
        if self.silent:
            yield from ((name, Unusable("absent")) for name in names)
            return
        title = f"{kind}-{self._digest(kind, campaign, parts)}"
        round, requests = self._written(title, kind, campaign, names, boxes, parts)
        letters = {name: round.letters[name][1] for name in names}
        self.trips += 1
        if round.again:
            for writer, file in list(self._others):
                self._looks.forget(writer, file)
        waiting = _Waiting(self, kind, requests, letters, round)
        try:
            yield from waiting.replies()
        finally:
            waiting.stop.set()
            self._heard(waiting.heard)
            if waiting.refused and kind not in FREE:
                # What refused may answer when it is asked anew; to these bytes it said what it says.
                for name in waiting.refused:
                    del round.letters[name]
                self.book.save(title, round)

    def send(self, kind: str, campaign: str, names: Sequence[str]) -> None:
        """Bring letters away whose replies do not matter."""
        if self.silent or not names:
            return
        round, _ = self._written(kind, kind, campaign, names, None, {})
        gone = threading.Thread(target=self._put, args=([*round.letters.values()],), daemon=True)
        gone.start()
        gone.join(SENDING)

    def _put(self, letters: Sequence[tuple[str, Letter]]) -> None:
        with self._using:
            for _, letter in letters:
                try:
                    self.box.put(self.keys.id, letter.name, letter.content)
                except OSError as error:
                    self._warn_once(f"the mailbox takes no letter: {error.strerror or error}")
                    return

    def clean(self) -> None:
        """Remove from the mailbox the own letters that ended more than seven days ago."""

        def remove() -> None:
            with self._using:
                for name, note in ended(self.standing.folder):
                    try:
                        self.box.delete(self.keys.id, name)
                    except OSError:
                        return
                    note.unlink(missing_ok=True)

        threading.Thread(target=remove, daemon=True).start()

    # --- writing ------------------------------------------------------------------------------

    def _digest(self, kind: str, campaign: str, parts: Mapping[str, Any]) -> str:
        """What a round is about: the same question by the same roster is the same round."""
        terms = parts.get("terms")
        facts = {
            "kind": kind,
            "campaign": campaign,
            "roster": self.roster.stamp,
            "plan": [question.text() for question in parts.get("plan", ())],
            "questions": [question.text() for question in parts.get("questions", ())],
            "terms": None if terms is None else terms.text,
        }
        return hashlib.sha256(canonical.write(facts).encode("ascii")).hexdigest()[:32]

    def _written(
        self,
        title: str,
        kind: str,
        campaign: str,
        names: Sequence[str],
        boxes: Mapping[str, Any] | None,
        parts: Mapping[str, Any],
    ) -> tuple[Round, dict[str, Request]]:
        """The round with a letter to each of these sites, durable where it can cost anything."""
        lifetime = min(MAX_LIFETIME, max(LIFETIME, 2 * int(self.wait)))
        book = Letterbook() if kind in FREE else self.book
        round = book.round(title, lifetime)
        requests, reply_key = {}, round.key.public
        for name in names:
            card = self.card(name)
            own = {} if boxes is None else {"boxes": boxes[name]}
            request = Request(
                kind,
                self.roster.federation,
                self.roster.stamp,
                self.keys.id,
                card.id,
                campaign,
                round.issued,
                round.until,
                reply_key,
                **parts,
                **own,
            )
            round.letter(name, request.text, self._writing(request, card))
            requests[name] = request
        book.save(title, round)
        note_sent(
            self.standing.folder, {round.letters[name][1].name: round.until for name in names}
        )
        return round, requests

    def _writing(self, request: Request, card: Card) -> Callable[[], Letter]:
        return lambda: Letter.write(request.text, self.keys, card.id, card.sealing)

    def card(self, name: str) -> Card:
        card = self.roster.named(name)
        assert card is not None
        return card

    # --- what was said ------------------------------------------------------------------------

    def _heard(self, names: Sequence[str]) -> None:
        """Note when these sites' last letters came."""
        if names:
            now = int(time.time())
            write_document(
                self.standing.folder / HEARD,
                {**last_heard(self.standing.folder), **dict.fromkeys(names, now)},
            )

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self.warn(text)


class _Waiting:
    """One round while it is waited for."""

    def __init__(
        self,
        exchange: Exchange,
        kind: str,
        requests: Mapping[str, Request],
        letters: Mapping[str, Letter],
        round: Round,
    ) -> None:
        self._exchange, self._kind = exchange, kind
        self._requests, self._letters, self._key = requests, letters, round.key
        self._names = {exchange.card(name).id: name for name in letters}
        self._end = time.monotonic() + exchange.wait
        self._files: SimpleQueue[_File | None] = SimpleQueue()
        self.left = list(letters)
        self.stop = threading.Event()
        self._told = ""
        self.heard: list[str] = []
        self.refused: dict[str, Exception] = {}
        """What came of the sites that gave no answer."""

    def replies(self) -> Iterator[tuple[str, Reply | Exception]]:
        exchange = self._exchange
        for name in [n for n in self.left if self._letters[n].digest in exchange._opened]:
            self.left.remove(name)  # asked once more in this run
            yield name, exchange._opened[self._letters[name].digest]
        if self.left:
            threading.Thread(target=self._carry, daemon=True).start()
        while self.left and (rest := self._end - time.monotonic()) > 0:
            self._tell()
            try:
                file = self._files.get(timeout=rest)
            except Empty:
                break
            found = self._read(*file) if file is not None else None
            if found is not None and found[0] in self.left:  # the same file may be brought again
                name, reply = found
                if isinstance(reply, Exception):
                    self.refused[name] = reply
                    continue
                self.refused.pop(name, None)
                self.left.remove(name)
                exchange._opened[self._letters[name].digest] = reply
                yield name, reply
            elif file is None:  # a look is over: a refusal that came alone stands
                yield from self._given_up(self._final)
        yield from self._given_up(lambda _: True)

    def _given_up(self, which: Callable[[str], bool]) -> Iterator[tuple[str, Exception]]:
        for name in [name for name in self.left if which(name)]:
            self.left.remove(name)
            yield name, self.refused.get(name) or Unusable("late")

    def _final(self, name: str) -> bool:
        problem = self.refused.get(name)
        return problem is not None and getattr(problem, "code", "") not in WAITING

    def _tell(self) -> None:
        few = ", ".join(self.left[:3]) + (", …" if len(self.left) > 3 else "")
        came = len(self._letters) - len(self.left)
        text = f"{self._kind}: {came} of {plural(len(self._letters), 'site')} replied, waiting for {few}"
        if text != self._told:
            self._told = text
            self._exchange.tell(text)

    def _carry(self) -> None:
        """In a thread: put the letters, then look until the round is over."""
        exchange = self._exchange
        todo, came = [self._letters[name] for name in self.left], time.monotonic()
        with exchange._using:  # an operation of the round before may still hang
            while not self.stop.is_set():
                try:
                    while todo and not self.stop.is_set():
                        exchange.box.put(exchange.keys.id, todo[-1].name, todo[-1].content)
                        exchange.travelled += len(todo.pop().content)
                except OSError as error:
                    exchange._warn_once(
                        f"the mailbox takes no letter: {error.strerror or error}; it is tried again"
                    )
                began = time.monotonic()
                for file in exchange._looks.look(list(self._names)):
                    came = time.monotonic()
                    exchange._others.add(file[:2])
                    self._files.put(file)
                    if self.stop.is_set():
                        break
                self._files.put(None)
                now = time.monotonic()
                self.stop.wait(pause(exchange.every, now - came, now - began))

    def _read(self, writer: str, file: str, content: bytes) -> tuple[str, Reply | Exception] | None:
        """Which site says what in a file; None where it is no reply to a letter of this round."""
        name, exchange = self._names[writer], self._exchange
        try:
            letter = Letter.read(content)
            if (letter.sender, letter.reader) != (writer, exchange.keys.id):
                return None
            letter.check(exchange.card(name).signing)
            replied = Replied.read(letter.open(self._key))
        except ValueError:  # a stranger's, or for the key of another round
            return None
        exchange._others.discard((writer, file))
        request = self._requests[name]
        if (replied.federation, replied.sender, replied.reader, replied.about) != (
            exchange.roster.federation,
            writer,
            exchange.keys.id,
            self._letters[name].digest,
        ):
            return None
        exchange.travelled += len(content)
        self._note(name, replied.roster)
        try:
            read = read_reply(replied.body, request)
        except ValueError as error:
            return name, Unusable(str(error))
        return name, Refused(read.refused) if read.refused else read

    def _note(self, name: str, stamp: Stamp) -> None:
        exchange = self._exchange
        self.heard.append(name)
        exchange.stamps[name] = stamp
        own = exchange.roster.stamp
        if stamp[0] > own[0]:
            exchange._warn_once(
                f"{name} goes by roster {stamp[0]}, and yours is roster {own[0]}: ask for the new one, "
                "compare its digest, and accept it (privcal roster accept)"
            )


def participant(standing: Standing, roster: Roster) -> Keys:
    """The keys of a calibrator of this roster; InputError where they are no calibrator's of it."""
    keys = standing.keys
    own = roster.party(keys.id)
    if own is None or own.role != "calibrator":
        raise InputError(
            f"{standing.folder} has the keys of {keys.name}, who is no calibrator in roster "
            f"{roster.number}: send the card (privcal keys card) to whoever makes the roster"
        )
    return keys


def take_hints(standing: Standing, box: Box) -> None:
    """Take the rosters in a mailbox as far as they only remove, as sites do; within seconds, or not now."""

    def take() -> None:
        with suppress(OSError):
            names = [match for name in box.list("") if (match := ROSTER.fullmatch(name))]
            for match in sorted(names, key=lambda match: int(match[1])):
                content = box.get("", match[0])
                if content is not None and not over.is_set():
                    standing.hint(content)

    over = threading.Event()
    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(SENDING)
    over.set()


def last_heard(folder: Path) -> dict[str, int]:
    """When each site's last letter came, by its name, in Unix seconds."""
    path = folder / HEARD
    try:
        facts = read_json(path, "list of letters") if path.exists() else {}
        return {str(name): int(when) for name, when in facts.items()}
    except (InputError, ValueError, AttributeError):  # it decides nothing
        return {}
