"""The calibrator's way to the sites in a secure sum: to each its own letters, and none to another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from statistics import median_low
from typing import TypeVar

from privcal.data.panels import Unusable, code_of
from privcal.secure.boxes import Box
from privcal.secure.participant import Dealt, read_dealt
from privcal.secure.terms import Terms
from privcal.transport.calibrator.panel import Sites
from privcal.transport.content import Reply
from privcal.trusted.policy import SecureRules, strictest
from privcal.trusted.question import Question

T = TypeVar("T")


class SecureSites:
    """The sites of a roster that take part in secure sums.

    These are the ones that say what they want of secure sums and have the calibrator's roster.
    `rules` is what all of them want: as many colluding, and as many honest, as the owner who wants
    the most, and as little seen by all others together as the owner who wants the least. A campaign
    that goes on has the rules of its beginning on record, so nobody is asked for them again.
    """

    rows_per_source: float | None = None
    rows_per_person = 1
    rules: SecureRules | None = None
    away = 0

    def __init__(self, sites: Sites) -> None:
        self._sites, warn = sites, sites.exchange.warn
        self.asker, self.members, self.max_rows = sites.asker, sites.members, sites.max_rows
        self._part: Collection[str] | None = None
        if sites.begun:
            return
        there = sites.names
        found = {name: self._found(name) for name in there}
        for problem in dict.fromkeys(each for each in found.values() if isinstance(each, str)):
            names = ", ".join(name for name in there if found[name] == problem)
            warn(f"not asked: {names} ({problem})")
        told = {name: reply for name, reply in found.items() if isinstance(reply, Reply)}
        self._part = list(told)
        self.away = sites.away + len(there) - len(told)
        self.rows_per_source = sites.rows_per_source
        self.rows_per_person = max((reply.rows_per_person for reply in told.values()), default=1)
        for text in _dear(told):
            warn(text)
        self.rules = strictest(reply.rules for reply in told.values())

    @property
    def names(self) -> Sequence[str]:
        """The sites that can be asked."""
        there = self._sites.names
        return [name for name in there if self._part is None or name in self._part]

    def _found(self, name: str) -> Reply | str:
        """What a site told; or why it cannot take part, as far as it tells."""
        reply = self._sites.told.get(name)
        stamp = self._sites.exchange.stamps.get(name)
        if stamp is not None and stamp[1] != self.members.digest:
            return (
                f"it goes by roster {stamp[0]}, not by yours: compare the digests with the owner, and "
                "accept the newer one (privcal roster accept)"
            )
        if not isinstance(reply, Reply):
            return "no word of what the owner wants of secure sums" if reply is None else str(reply)
        if reply.rules is None:
            return (
                "no part in secure sums, or not in yours: the owner's policy says nothing of them"
            )
        asked = len(self.members.by_name)
        if max(reply.rules.min_honest, 2) + reply.rules.colluding > asked:
            return (
                f"the owner wants {reply.rules.min_honest} honest hospitals beside "
                f"{reply.rules.colluding} that may collude, and the roster has {asked} in all"
            )
        return reply

    def offer(self, terms: Terms, questions: Sequence[Question]) -> dict[str, str]:
        """The sites of the terms that would refuse, and why; the others reserve what it all costs."""
        ask = partial(self._sites.offer, questions, terms=terms)
        replies = self._ask(ask, terms.sites, lambda reply: reply.accepted)
        return {name: code_of(reply) for name, reply in replies if isinstance(reply, Exception)}

    def release(self, campaign: str) -> None:
        """Give back what is still reserved: the run is over."""
        self._sites.give_back(campaign)

    def share(self, terms: Terms, names: Sequence[str]) -> Iterator[tuple[str, Dealt | Exception]]:
        """SHARE: what each of these sites dealt. It is charged for, once."""
        ask = partial(self._send, "share", terms)
        return self._ask(ask, names, lambda reply: read_dealt(reply.dealt, terms))

    def check(
        self, terms: Terms, boxes: Mapping[str, Mapping[str, Box]]
    ) -> Iterator[tuple[str, Sequence[str] | Exception]]:
        """CHECK: of the boxes for each site, by who dealt them, whose it cannot open."""
        ask = partial(self._send, "check", terms, boxes=boxes)
        return self._ask(ask, list(boxes), lambda reply: reply.bad or ())

    def open(
        self, terms: Terms, boxes: Mapping[str, Mapping[str, Box]]
    ) -> Iterator[tuple[str, Sequence[int] | Exception]]:
        """OPEN: the sum of what is in the boxes for each site."""
        ask = partial(self._send, "open", terms, boxes=boxes)
        return self._ask(ask, list(boxes), lambda reply: reply.sums or ())

    def _send(
        self,
        kind: str,
        terms: Terms,
        names: Sequence[str],
        boxes: Mapping[str, Mapping[str, Box]] | None = None,
    ) -> Iterator[tuple[str, Reply | Exception]]:
        campaign = terms.question.campaign
        return self._sites.exchange.ask(kind, campaign, names, boxes, terms=terms)

    def _ask(
        self,
        ask: Callable[[Sequence[str]], Iterator[tuple[str, Reply | Exception]]],
        names: Sequence[str],
        read: Callable[[Reply], T],
    ) -> Iterator[tuple[str, T | Exception]]:
        """One letter to each of these sites that can be asked; the others are absent."""
        there = [name for name in names if name in self.names]
        yield from ((name, Unusable("absent")) for name in names if name not in there)
        for name, reply in ask(there):
            yield name, _read(reply, read)


def _dear(told: Mapping[str, Reply]) -> Iterator[str]:
    """Who wants more than most, so that the noise of everybody's sum is larger, in sentences.

    Terms go by the strictest owner, and nobody need say why: one of them could spoil it for all.
    """
    rules = {name: reply.rules for name, reply in told.items() if reply.rules is not None}
    for what, wanted in (
        ("rows of a person count", {name: reply.rows_per_person for name, reply in told.items()}),
        ("hospitals may collude", {name: rule.colluding for name, rule in rules.items()}),
        (
            "times epsilon is all that the others may learn together",
            {name: -rule.alone for name, rule in rules.items()},  # the less, the dearer
        ),
    ):
        most = max(wanted.values(), default=0)
        usual = median_low(wanted.values()) if wanted else 0
        if most > usual:
            names = ", ".join(name for name, number in wanted.items() if number == most)
            yield (
                f"because of {names} the noise of the whole sum is larger: {abs(most)} {what} "
                f"(mostly {abs(usual)}); --without leaves a site out"
            )


def _read(reply: Reply | Exception, read: Callable[[Reply], T]) -> T | Exception:
    """What a reply says; a site may say anything."""
    if isinstance(reply, Exception):
        return reply
    try:
        return read(reply)
    except ValueError:
        return Unusable("what it dealt cannot be read")
