"""The calibrator's way to the sites: signed requests out, sealed replies back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from privcal.data.panels import Unusable, code_of, typical_rows
from privcal.data.plausible import MAX_SITE_ROWS, beyond
from privcal.secure.keys import SealingKey
from privcal.secure.terms import Members
from privcal.transport.federation.calibrator.link import Link
from privcal.transport.federation.shared import revocations
from privcal.transport.federation.shared.kit import is_calibrator
from privcal.transport.federation.shared.messages import MAX_LIFETIME, Signer, open_reply
from privcal.transport.federation.shared.requests import LIFETIME, Reply, Request
from privcal.transport.federation.shared.roster import Card, stored_roster
from privcal.trusted.errors import CalibrationError, InputError, Refused
from privcal.trusted.question import Question
from privcal.trusted.source import Answer

TIMEOUT = 120
"""Seconds a site has for one reply. A reply that comes later is paid for all the same: the next
attempt at the same campaign gets it."""

_ABOUT = "about"
"""In place of a campaign's name, where there is none yet."""

SEND_TIMEOUT = 0.3
"""Seconds for a message on its way, where no reply is waited for."""


class Sites:
    """The sites of a federation, as a panel; a context manager, because it is connected meanwhile."""

    rows_per_person: int

    def __init__(
        self,
        kit: str | Path,
        *,
        rows_per_person: int = 1,
        max_rows: int = MAX_SITE_ROWS,
        timeout: int = TIMEOUT,
        without: Collection[str] = (),
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.kit = Path(kit)
        if not is_calibrator(self.kit):
            raise InputError(f"{kit} is not a calibrator's start-up kit")
        self._signer = Signer.of_kit(self.kit)
        self._roster = stored_roster(self.kit)
        if not self._roster.cards:
            raise InputError(
                f"{kit} has no roster yet: run privcal federation roster {kit}, and compare its "
                "digest with the sites' owners"
            )
        for name in without:
            if self._roster.card(name) is None:
                raise InputError(f"{name} is not on the roster, so it would not be asked anyway")
        self._without = frozenset(without)
        self.asker = self._signer.name
        self.rows_per_person, self.max_rows = rows_per_person, max_rows
        self._timeout, self._warn = timeout, warn
        self.names: Sequence[str] = ()
        self.travelled = 0
        """Characters of all requests and replies, for benchmarks."""
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
        names = []
        revoked = revocations.load(self.kit)
        cards = {card.site: b"" for card in self._roster.cards if card.site not in self._without}
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
                names.append(name)
        return sorted(names)

    @property
    def away(self) -> int:
        """How many of the roster cannot be asked just now, beside those that are left out on purpose."""
        asked = {card.site for card in self._roster.cards} - self._without
        return len(asked - set(self.names))

    @property
    def sources(self) -> int:
        return len(self.names)

    @cached_property
    def rows_per_source(self) -> float | None:
        """About how many rows a site has, as far as their owners tell; asked for when needed."""
        return typical_rows(r.rows for r in self.told.values() if isinstance(r, Reply))

    @cached_property
    def told(self) -> dict[str, Reply | Refused]:
        """What owners tell whoever may ask, by their sites' names; asked for when needed."""
        replies = self._ask("about", self.names, _ABOUT, ())
        return {name: reply for name, reply in replies if isinstance(reply, (Reply, Refused))}

    @cached_property
    def members(self) -> Members:
        """Everybody on the roster."""
        return self._roster.members

    def _card(self, name: str) -> Card:
        card = self._roster.card(name)
        assert card is not None
        return card

    def refusals(self, questions: Sequence[Question]) -> dict[str, str]:
        """The sites that would not answer all of these; the others have reserved what they cost."""
        if not questions:
            return {}
        self._campaign = questions[0].campaign
        refused = {}
        for name, reply in self._ask("offer", self.names, self._campaign, questions):
            if isinstance(reply, Exception):
                refused[name] = code_of(reply)
        return refused

    def release(self) -> None:
        """The campaign is over: what is still kept for it, others may have."""
        if self._campaign is not None:
            self.give_back(self._campaign)

    def give_back(self, campaign: str) -> None:
        """Tell all sites that a campaign is over."""
        for _ in self._ask("release", self.names, campaign, (), timeout=SEND_TIMEOUT):
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
        request, key = self.request(kind, campaign, names, questions, timeout=timeout)
        return self.exchange(dict.fromkeys(names, request), key, timeout)

    def request(
        self,
        kind: str,
        campaign: str,
        names: Sequence[str],
        questions: Sequence[Question] = (),
        *,
        timeout: float | None = None,
        **secure: Any,
    ) -> tuple[Request, SealingKey]:
        """A request that holds for as long as its replies are waited for, and its key."""
        lifetime = min(MAX_LIFETIME, max(LIFETIME, 2 * int(timeout or self._timeout)))
        return Request.make(kind, campaign, questions, names, lifetime=lifetime, **secure)

    def exchange(
        self, requests: Mapping[str, Request], key: SealingKey, timeout: float | None = None
    ) -> Iterator[tuple[str, Reply | Exception]]:
        """What each site says to its request; all are of one key."""
        signed = {id(request): self._signer.sign(request) for request in requests.values()}
        messages = {name: signed[id(request)] for name, request in requests.items()}
        self.travelled += sum(map(len, messages.values()))
        sent = {name: message.encode() for name, message in messages.items()}
        for name, reply in self._link.ask_all("ask", sent, timeout or self._timeout):
            if reply is None:
                yield name, Unusable("late")
                continue
            self.travelled += len(reply)
            try:
                read = open_reply(reply, messages[name], self._card(name), key, requests[name])
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
        return Answer(tuple(reply.values), question, reply.ledger)
