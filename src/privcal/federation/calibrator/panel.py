"""The calibrator's way to the sites: signed requests out, sealed replies back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from privcal.campaign import Unusable
from privcal.errors import CalibrationError, InputError, Refused
from privcal.federation.authority.project import SITE
from privcal.federation.shared import revocations
from privcal.federation.shared.messages import (
    LIFETIME,
    MAX_LIFETIME,
    Reply,
    Request,
    Signer,
    open_reply,
)
from privcal.federation.shared.roster import MAX_SITES, Card, Roster, is_calibrators
from privcal.plausible import MAX_ROWS, beyond
from privcal.queries import GRID
from privcal.question import Question
from privcal.source import Answer

TIMEOUT = 120
"""Seconds a site has for one reply. A reply that comes later is paid for all the same: the next
attempt at the same campaign gets it."""

AGAIN = 30.0
"""Seconds after which a request is sent once more: what carried it may have died. At the site it
is the same request, and costs nothing again."""

GIVEN_UP = 10.0
"""Seconds without a connection after which the server is given up."""

STOPPED = 5.0
"""Seconds for the connection to end; what is left of it then ends with the process."""

SENT = 0.3
"""Seconds for a message on its way, where no reply is waited for."""

SERVER = "server"
"""What FLARE calls the cell of every server."""

_POLL = 0.05


class Sites:
    """The sites of a federation, as a panel; a context manager, because it is connected meanwhile."""

    rows_per_person: int

    def __init__(
        self,
        kit: str | Path,
        *,
        rows_per_person: int = 1,
        max_rows: int = MAX_ROWS,
        timeout: int = TIMEOUT,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.kit = Path(kit)
        if not is_calibrators(self.kit):
            raise InputError(f"{kit} is not a calibrator's start-up kit")
        self._signer = Signer.of_kit(self.kit / "startup")
        self._roster = Roster.of_kit(self.kit)
        if not self._roster.cards:
            raise InputError(
                f"{kit} has no roster yet: run privcal federation roster {kit}, and compare its "
                "digest with the sites' owners"
            )
        self.asker = self._signer.name
        self.rows_per_person, self.max_rows = rows_per_person, max_rows
        self._timeout, self._warn = timeout, warn
        self.names: Sequence[str] = ()
        self.travelled = 0
        """Characters of requests and replies so far."""
        self._link = Link(self.kit)
        self._campaign: str | None = None

    def __enter__(self) -> Sites:
        self._link.open()
        try:
            self.names = self._present()
            if not self.names:
                raise CalibrationError(
                    "no site of the roster can be asked; if they run, see privcal federation check "
                    f"{self.kit}: the server carries nothing for those who are revoked",
                    (),
                )
        except BaseException:
            self._link.close()
            raise
        return self

    def __exit__(self, *problem: object) -> None:
        self._link.close()

    def _present(self) -> list[str]:
        """The sites that are connected, with the keys that the roster says, and not revoked."""
        found = []
        revoked = revocations.load(self.kit)
        cards = {card.site: b"" for card in self._roster.cards}
        for name, text in self._link.ask_all("card", cards, 10.0):
            if not text:
                how = "is not connected" if text is None else "shows no card: it may have no keys"
                self._warn(f"{name} {how}, and is not asked")
                continue
            try:
                card = Card.read(text)
                same = card.keys == self._card(name).keys
            except InputError:
                same = False
            if not same:
                self._warn(
                    f"{name} has other keys than your roster says, and is not asked: see "
                    f"privcal federation roster {self.kit}"
                )
            elif revoked.refuses(name, self._card(name).fingerprint):
                self._warn(
                    f"{name} is revoked, or the key it had in your roster, and is not asked: if it "
                    f"was renewed, run privcal federation roster {self.kit}"
                )
            else:
                found.append(name)
        return sorted(found)

    def _card(self, name: str) -> Card:
        card = self._roster.card(name)
        assert card is not None
        return card

    def refusals(self, questions: Sequence[Question]) -> dict[str, str]:
        """Who would not answer all of these; whoever would has reserved what they cost."""
        if not questions:
            return {}
        self._campaign = questions[0].campaign
        refused = {}
        for name, reply in self._ask("offer", self.names, self._campaign, questions):
            if isinstance(reply, Exception):
                refused[name] = getattr(reply, "code", None) or str(reply)
        return refused

    def release(self) -> None:
        """The campaign is over: what is still kept for it, others may have."""
        if self._campaign is not None:
            for _ in self._ask("release", self.names, self._campaign, (), timeout=SENT):
                pass  # it was sent, and what they say to it does not matter

    def ask(
        self, names: Sequence[str], question: Question
    ) -> Iterator[tuple[str, Answer | Exception]]:
        for name, reply in self._ask("question", names, question.campaign, [question]):
            yield name, self._answer(reply, question)

    def _ask(
        self,
        kind: str,
        names: Sequence[str],
        campaign: str,
        questions: Sequence[Question],
        timeout: float | None = None,
    ) -> Iterator[tuple[str, Reply | Exception]]:
        timeout = timeout or self._timeout
        lifetime = min(MAX_LIFETIME, max(LIFETIME, 2 * int(timeout)))
        request, key = Request.make(kind, campaign, questions, names, lifetime=lifetime)
        message = self._signer.sign(request)
        self.travelled += len(message) * len(names)
        sent = {name: message.encode() for name in names}
        for name, reply in self._link.ask_all("ask", sent, timeout):
            if reply is None:
                yield name, Unusable("late")
                continue
            self.travelled += len(reply)
            try:
                read = open_reply(reply, message, self._card(name), key, request.length)
            except ValueError as error:
                yield name, Unusable(str(error))
            else:
                yield name, Refused(read.refused) if read.refused else read

    def _answer(self, reply: Reply | Exception, question: Question) -> Answer | Exception:
        """A reply is never trusted: whatever is odd about it, it is not used, with a reason."""
        if isinstance(reply, Exception):
            return reply
        if reply.rows_per_person != self.rows_per_person:
            return Unusable(f"counts {reply.rows_per_person} rows of a person")
        most = min(self.max_rows, reply.max_rows or self.max_rows)
        if beyond(reply.values, most, reply.rows_per_person, question):
            return Unusable("beyond what its rows and the noise can give")
        return Answer(np.array(reply.values, np.float64) / GRID, question, reply.ledger)


def gather(kit: Path, warn: Callable[[str], None] = lambda text: None) -> list[Card]:
    """The cards of all sites that are connected; whose they are is not yet verified."""
    link = Link(kit)
    link.open()
    try:
        if not (names := link.sites()):
            raise CalibrationError("no site is connected; gather the roster when they run", ())
        cards = []
        for name, text in link.ask_all("card", dict.fromkeys(names, b""), 10.0):
            try:
                card = Card.read(text)
                if card.site != name:
                    raise InputError(f"it is that of {card.site}")
                cards.append(card)
            except InputError as error:
                warn(f"{name} shows no card that can be used: {error}")
        return cards
    finally:
        link.close()


class Link:
    """A calibrator's connection to the server: bytes to many sites, and back what each replies."""

    def __init__(self, kit: Path) -> None:
        self._kit = kit
        self._cell: Any = None

    def open(self) -> None:
        from privcal.federation.shared.cells import calibrator_cell

        for library in ("nvflare", "asyncio", "aiohttp"):  # one sentence of ours says it better
            logging.getLogger(library).setLevel(logging.CRITICAL + 1)
        self._cell = calibrator_cell(self._kit)
        try:
            self._cell.start()
            if not self._connected(GIVEN_UP):
                raise CalibrationError(
                    f"the federation's server cannot be reached with {self._kit}", ()
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._cell is not None:
            # In a thread: Ctrl-C breaks off what the main one does, and a cell that is half stopped
            # keeps the process for ever.
            stopper = threading.Thread(target=self._cell.stop, daemon=True)
            stopper.start()
            stopper.join(STOPPED)

    def _connected(self, patience: float) -> bool:
        end = time.monotonic() + patience
        while not self._cell.is_backbone_ready():
            if time.monotonic() > end:
                return False
            time.sleep(_POLL)
        return True

    def sites(self) -> list[str]:
        """Who is connected now, as the server says."""
        [(_, text)] = self.ask_all("sites", {SERVER: b""}, 10.0)
        if text is None:
            raise CalibrationError(
                "the server does not say who is connected; it carries nothing for those who are "
                f"revoked, see privcal federation check {self._kit}",
                (),
            )
        return [name for name in text.split("\n") if SITE.fullmatch(name)][:MAX_SITES]

    def ask_all(
        self, topic: str, messages: dict[str, bytes], timeout: float
    ) -> Iterator[tuple[str, str | None]]:
        """What each replies, in whatever order it comes; None from who does not in time."""
        replies: SimpleQueue[tuple[str, str | None]] = SimpleQueue()
        end = time.monotonic() + timeout
        for name, message in messages.items():
            # Daemons: Ctrl-C does not wait for a site.
            threading.Thread(
                target=lambda *given: replies.put((given[1], self._ask(*given))),
                args=(topic, name, message, end),
                daemon=True,
            ).start()
        left = len(messages)
        while left:
            try:
                reply = replies.get(timeout=1.0)
            except Empty:
                if not self._connected(GIVEN_UP):
                    raise CalibrationError(
                        "the federation's server does not answer any more", ()
                    ) from None
                continue
            left -= 1
            yield reply

    def _ask(self, topic: str, site: str, message: bytes, end: float) -> str | None:
        from privcal.federation.shared.cells import ask

        while (left := end - time.monotonic()) > 0:
            reply = ask(self._cell, topic, site, message, min(left, AGAIN))
            if reply is not None:
                return reply.decode("utf-8", "replace")
            if topic != "ask" and self._cell.is_backbone_ready():
                return None  # not connected just now
            time.sleep(min(left, 1.0))
        return None
