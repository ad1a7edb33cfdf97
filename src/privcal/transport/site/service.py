"""The process of a site that has the letters: it reads no data.

A carrier brings bytes and takes bytes away, and is trusted with nothing. What it brings is looked
at in the order of what that costs: length, spelling, reader, writer, signature, seal, content. Then
a child that has the data and no network (`worker`) is given what was asked, and its reply waits
until it may leave, sealed for the asker. Whoever did not write to this site as a calibrator of its
roster hears nothing at all and is counted; every other letter gets one reply, and a refusal is as
long as an answer.

What a reply says is on disk before it leaves (`outbox`). A site's own file that it does not know
is the witness that it was put back to an older state, or runs twice: it stops answering.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from privcal.data.files import replacing
from privcal.data.ledger import Ledger
from privcal.secure import canonical
from privcal.transport.content import Reply, Request
from privcal.transport.letter import Letter
from privcal.transport.replied import Replied
from privcal.transport.roster import Card, Roster
from privcal.transport.site import log
from privcal.transport.site.child import MAX_REQUESTS, Child, Turns, hold
from privcal.transport.site.outbox import Outbox
from privcal.transport.site.settings import DELAY, Site
from privcal.transport.standing import Standing
from privcal.trusted.errors import InputError, Refused

AGAIN = 600.0
"""Seconds after which a letter that was refused is looked at again: its owner may have approved it."""

AHEAD = 60
"""Seconds by which an asker's clock may be ahead."""

STRANGERS = ""
"""In place of an asker's name: all whom no policy admits, together."""

FAULTS = ("unavailable", "ledger_missing", "ledger_rolled_back")
"""Refusals for which the site is to blame, and not what was asked."""

STATUS = "status.json"
"""In the site's folder: how the site is, for `privcal site health`."""

CHARGED = ("unavailable", "lost")
"""Refusals after which a question may have been charged."""

Told = Callable[[dict[str, Any]], None]


class Silent(Exception):
    """A letter that gets no reply; its text is what it is counted as."""


class Service:
    """A site that answers, whatever carries the letters.

    Parameters
    ----------
    folder
        The site's folder, with its keys, settings and rosters.
    told
        Is given a few facts of every letter that was replied to.
    """

    def __init__(self, folder: Path, told: Told = lambda facts: None) -> None:
        self.folder = folder.resolve()
        self._standing, self._told = Standing(self.folder), told
        keys = self._standing.keys  # complain now rather than to every asker
        Site.load(self.folder)
        self.id, self.name = keys.id, keys.name
        self.federation = self._roster().federation
        self._outbox = Outbox(self.folder, self.id)
        self._child = Child(self.folder)
        self._opening, self._hinting = threading.Lock(), threading.Lock()
        self._counting = threading.Lock()
        self._turns = Turns()
        self._ledgers: dict[Path, Ledger] = {}
        self._strangers: set[str] = set()
        """The IDs of those who were not admitted when they last asked."""
        self.refused: Counter[str] = Counter()
        """How many letters were refused, by code."""
        self.unheard: Counter[str] = Counter()
        """How many got no reply, by what they were."""
        self.last_letter: float | None = None
        self.looks: dict[str, float] = {}
        """When each carrier was last heard of."""
        self.failing_since: float | None = None
        """Since when nothing was answered, and something refused for which the site is to blame."""
        self.clocks: dict[str, tuple[int, float]] = {}
        """Of each asker who is admitted the date of the newest letter, and by how much that was ahead."""
        self.slowest = 0.0
        """How many delays the slowest answer took: above one, its time could be seen."""
        self._check_entries()

    # --- what carriers use ------------------------------------------------------------------

    def writers(self) -> list[str]:
        """The IDs of those whose files a carrier brings: calibrators, and the site itself."""
        blocked = self._standing.blocked
        cards = self._roster().cards
        asking = [c.id for c in cards if c.role == "calibrator" and c.name not in blocked]
        return [*asking, self.id]

    def take(self, content: bytes) -> bytes | None:
        """The reply to whatever a carrier brings, or None: nothing leaves."""
        arrived = time.monotonic()
        try:
            return self._take(content, arrived)
        except Silent as silent:
            self.unheard[str(silent)] += 1
        except Exception as error:  # no keys, a disk that is gone
            self.unheard["fault"] += 1
            log.write(self.folder, f"a letter was not answered: {log.line(error)}")
        return None

    def expired(self) -> list[str]:
        """The names of the site's own files that a mailbox need not keep any more."""
        return self._outbox.expired(time.time())

    def looked(self, carrier: str) -> None:
        """Note that a carrier just looked for letters."""
        self.looks[carrier] = time.time()

    @property
    def stopped(self) -> str:
        """Why the site answers nothing more with its present keys; empty where it does."""
        return self._outbox.stopped

    def close(self) -> None:
        """Stop the child, and close the outbox."""
        self._child.stop()
        self._outbox.close()

    # --- from the cheapest check to the dearest ---------------------------------------------

    def _take(self, content: bytes, arrived: float) -> bytes | None:
        try:
            letter = Letter.read(content)
        except InputError:
            self._hint(content)
            return None
        if letter.sender == self.id:
            self._witness(letter)
            return None
        if letter.reader != self.id:
            raise Silent("addressee")
        if self.stopped:
            raise Silent("stopped")
        card = self._sender(letter)
        before = self._outbox.find(letter.digest)
        if before is not None:
            again = before.code and before.looked + AGAIN <= time.time()
            if before.reply is None or not again:  # ended, or said not long ago
                return before.reply
        with self._opening:  # one after the other: a few milliseconds each
            request = self._opened(letter, card)
        self.last_letter = time.time()
        reply = self._reply(card, request, arrived)
        return self._sealed(letter, card, request, reply)

    def _sender(self, letter: Letter) -> Card:
        """The calibrator of the present roster who signed a letter."""
        card = self._roster().party(letter.sender)
        if card is None or card.role != "calibrator":
            raise Silent("stranger")
        if card.name in self._standing.blocked:
            raise Silent("blocked")
        try:
            letter.check(card.signing)
        except ValueError:
            raise Silent("signature") from None
        return card

    def _opened(self, letter: Letter, card: Card) -> Request:
        """The request in an authentic letter."""
        keys = self._standing.keys
        try:
            request = Request.read(letter.open(*keys.openers(time.time())))
            named = request.sender, request.reader, request.federation
            if named != (letter.sender, letter.reader, self._roster().federation):
                raise InputError("it names others inside than outside")
        except ValueError as error:
            log.refusal(self.folder, card.name, InputError(f"a letter cannot be read: {error}"))
            raise Silent("bad_request") from None
        return request

    def _hint(self, content: bytes) -> None:
        """Take what is no letter for a roster, and lend at most a tenth of the time to that."""
        with self._hinting:
            began = time.monotonic()
            taken = self._standing.hint(content)
            if not taken:
                self.unheard["no letter"] += 1
                time.sleep(min(1.0, 9 * (time.monotonic() - began)))

    def _witness(self, letter: Letter) -> None:
        """Stop where a file has this site's signature and is none that it knows."""
        try:
            letter.check(self._standing.keys.public)
        except ValueError:
            raise Silent("signature") from None
        if not self._outbox.sent(letter.name):
            self._stop(
                f"the mailbox has the file {letter.name[:45]}..., which this site signed and does not "
                "know: its folder was put back to an older state, or it runs twice"
            )

    def _check_entries(self) -> None:
        """Stop where a ledger has fewer entries than before."""
        for population in Site.load(self.folder).populations:
            path = population.ledger
            ledger = self._ledgers.setdefault(path, Ledger(path))
            # One thread at a time: what one has read would be fewer than what another kept meanwhile.
            with (
                self._counting,
                contextlib.suppress(Refused),
            ):  # gone, or damaged: said to whoever asks
                if self._outbox.fewer(ledger.id, ledger.height):
                    self._stop(f"{path.name} has fewer entries than it had: it was put back")

    def _stop(self, why: str) -> None:
        if not self.stopped:
            self._outbox.stop(why)
            log.write(self.folder, f"stopped: {why}")

    # --- what is replied --------------------------------------------------------------------

    def _reply(self, card: Card, request: Request, arrived: float) -> Reply:
        """The reply, when it may leave."""
        share = STRANGERS if card.id in self._strangers else card.name
        try:
            with self._turns.room(share) as place:
                return self._reply_in_room(card, request, arrived, place)
        except Refused as refused:  # `busy`: said at once, and nothing was looked at
            return Reply(refused=log.refusal(self.folder, card.name, refused))

    def _reply_in_room(self, card: Card, request: Request, arrived: float, place: int) -> Reply:
        """The reply, when it may leave.

        When it leaves does not depend on rows, even for somebody who watches all replies to
        letters of their choice. The reply to an asker who is turned away leaves at a multiple of
        the delay after the letter came, whichever it is; it waits neither for the child nor
        for a turn. To find it the policy is read from the ledger, which a charge may have locked
        just then, for a time that depends on how many persons it is about: that is why it is held,
        and why room and the place in the queue were given before. All others wait for the turns
        before theirs. Their order is one of names and places (`Turns.turn`); a turn in which rows
        are looked at, and everything that they lock, lasts for whole delays (`_in_turn`); and
        any other is a look at the ledger, alone.
        """
        refused = self._turned_away(card, request)
        try:
            if refused is not None:
                reply = Reply(refused=refused)
            elif request.kind == "ask":
                return self._answers(card, request, place)
            elif request.kind == "share":
                return self._in_turn(card.name, request, place)
            else:
                with self._turns.turn(card.name, place):
                    reply = self._asked(card.name, request)
        except Exception as error:  # a child that died
            reply = Reply(refused=log.refusal(self.folder, card.name, error))
        if refused or request.kind not in ("check", "open"):  # about boxes, and no rows
            hold(arrived, self._delay())
        return reply

    def _turned_away(self, card: Card, request: Request) -> str | None:
        """The code for an asker whom no policy admits, another roster, or another date; or None.

        It is found here, without the child and its one turn: whoever may not ask keeps nobody waiting.
        The charge looks at the policy again, in its own transaction.
        """
        self._check_entries()
        if self.stopped:
            raise Silent("stopped")
        try:
            if not Site.load(self.folder).admits(card.name):
                self._strangers.add(card.id)
                raise Refused("asker")
            self._strangers.discard(card.id)
            self._compare_clocks(card.name, request)
            self._check_date(request)
            self._check_roster(request)
        except (Refused, InputError, OSError) as problem:
            return log.refusal(self.folder, card.name, problem)
        return None

    def _check_date(self, request: Request) -> None:
        now = time.time()
        if request.issued > now + AHEAD or request.until <= now:
            raise Refused("expired")

    def _check_roster(self, request: Request) -> None:
        """Refused unless it goes by the present roster; what ends a sum goes by the one of its terms."""
        if request.kind in ("check", "open", "release"):
            return  # of the terms' roster the child knows
        roster = self._roster()
        if request.roster != roster.stamp or roster.until <= time.time():
            raise Refused("roster")

    def _compare_clocks(self, asker: str, request: Request) -> None:
        """Keep what the newest letter says of its asker's clock; one that was long on its way is older."""
        ahead = request.issued - time.time()
        known = self.clocks.get(asker)
        if known is None or known[0] < request.issued:
            self.clocks[asker] = request.issued, ahead

    def _answers(self, card: Card, request: Request, place: int) -> Reply:
        """The reply to a letter with questions: each has a turn of its own, and a delay.

        Together in one turn, many questions would add up what each of them took, until it is longer
        than the delay and shows. A letter that is refused leaves when it would have been answered.
        """
        plan = canonical.write([question.facts() for question in request.plan])
        pinned = self._outbox.pin(
            card.id, request.campaign, hashlib.sha256(plan.encode("ascii")).hexdigest()
        )
        if pinned is None:
            raise Refused("id_conflict") from InputError(
                "the campaign came with another plan before"
            )
        answered: list[Reply] = []
        began = time.monotonic()
        for question in request.questions:
            try:
                self._check_date(request)
                reply = self._in_turn(card.name, replace(request, questions=(question,)), place)
            except Exception as error:  # a child that died
                reply = Reply(refused=log.refusal(self.folder, card.name, error))
            if reply.refused:
                if pinned and not answered and reply.refused not in CHARGED:
                    self._outbox.unpin(card.id, request.campaign)
                wanted = began + len(request.questions) * self._delay()
                time.sleep(max(0.0, wanted - time.monotonic()))
                return reply
            answered.append(reply)
        facts = {(one.ledger, one.rows_per_person, one.max_rows) for one in answered}
        if len(facts) > 1:  # its owner changed the settings meanwhile
            return Reply(refused="unavailable")
        return replace(answered[0], answers=tuple(one.answers[0] for one in answered))

    def _in_turn(self, asker: str, request: Request, place: int) -> Reply:
        """The reply to one question, which has the child to itself for a whole delay, or several.

        Whoever answers in a secure sum is asked like this too.

        Were the next request looked at as soon as the rows are read, a few dozen questions sent at
        once would add up what each of them took, until it is longer than the delay and shows.
        """
        delay = self._delay()
        with self._turns.turn(asker, place):
            self._child.wake()
            began = time.monotonic()
            try:
                return self._asked(asker, request)
            finally:
                self.slowest = max(self.slowest, (time.monotonic() - began) / delay)
                hold(began, delay)

    def _asked(self, asker: str, request: Request) -> Reply:
        """The child's reply; how many entries the ledgers have then is kept before it leaves."""
        reply = self._child.ask(asker, request)
        self._check_entries()
        return reply

    def _sealed(self, letter: Letter, card: Card, request: Request, reply: Reply) -> bytes:
        """The bytes of a reply, which are on disk now, and leave."""
        if self.stopped:
            raise Silent("stopped")
        self._count(reply.refused)
        keys, now = self._standing.keys, time.time()
        replied = Replied.to(request, letter.digest, self._roster().stamp, reply)
        made = Letter.write(replied.text, keys, letter.sender, request.reply_key)
        until = max(request.until, int(now))
        self._told(
            {
                "letter": letter.digest,
                "from": card.name,
                "kind": request.kind,
                "campaign": request.campaign,
                "refused": reply.refused,
            }
        )
        return self._outbox.store(letter.digest, reply.refused, until, now, made.name, made.content)

    def _count(self, code: str | None) -> None:
        if code is None:
            self.failing_since = None
            return
        self.refused[code] += 1
        if code in FAULTS:
            self.failing_since = self.failing_since or time.time()

    def _roster(self) -> Roster:
        """The newest roster, ended or not."""
        roster = self._standing.latest
        return self._standing.roster if roster is None else roster  # which says that there is none

    def _delay(self) -> float:
        try:
            return Site.load(self.folder).delay
        except InputError:  # the owner is changing the settings
            return DELAY

    # --- for the owner ----------------------------------------------------------------------

    def write_status(self) -> None:
        """Say how the site is, in its folder."""
        facts = {
            "time": time.time(),
            "process": os.getpid(),
            "last_letter": self.last_letter,
            "looks": self.looks,
            "queue": self._turns.taken,
            "room": MAX_REQUESTS,
            "slowest_answer_in_delays": round(self.slowest, 3),
            "refused": dict(self.refused),
            "unheard": dict(self.unheard),
            "failing_since": self.failing_since,
            "clocks": {asker: round(ahead, 1) for asker, (_, ahead) in self.clocks.items()},
        }
        with contextlib.suppress(OSError), replacing(self.folder / STATUS) as part:
            part.write_text(json.dumps(facts) + "\n", "utf-8")


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold the lock of a site: two processes of one site would answer beside each other."""
    import fcntl

    with (folder / "running.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{folder} runs already; stop that process first") from None
        yield
