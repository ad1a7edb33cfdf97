"""The calibrator's way to the sites in a secure sum: to each its own messages, signed and sealed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median_low
from typing import TypeVar

from privcal.data.panels import Unusable, code_of
from privcal.secure.boxes import Box
from privcal.secure.keys import SealingKey
from privcal.secure.participant import Dealt, read_dealt
from privcal.secure.terms import Terms
from privcal.transport.federation.calibrator.panel import Sites
from privcal.transport.federation.shared.requests import Reply
from privcal.trusted.errors import Refused
from privcal.trusted.policy import strictest
from privcal.trusted.question import Question

T = TypeVar("T")


class SecureSites:
    """The sites of a federation that take part in secure sums, while a calibrator is connected.

    These are the ones that say what they want of secure sums and have the calibrator's roster.
    `rules` is what all of them want: as many colluding, and as many honest, as whoever wants the
    most, and as little seen by all others together as whoever wants the least.
    """

    def __init__(self, sites: Sites, warn: Callable[[str], None] = lambda text: None) -> None:
        self._sites = sites
        self.asker, self.members, self.max_rows = sites.asker, sites.members, sites.max_rows
        found = {name: self._found(name) for name in sites.names}
        for problem in dict.fromkeys(each for each in found.values() if isinstance(each, str)):
            names = ", ".join(name for name in sites.names if found[name] == problem)
            warn(f"not asked: {names} ({problem})")
        told = {name: reply for name, reply in found.items() if isinstance(reply, Reply)}
        self.names: Sequence[str] = list(told)
        self.away = sites.away + len(sites.names) - len(told)
        self.rows_per_source = sites.rows_per_source
        self.rows_per_person = max((reply.rows_per_person for reply in told.values()), default=1)
        for text in _dear(told):
            warn(text)
        self.rules = strictest(reply.rules for reply in told.values())

    def _found(self, name: str) -> Reply | str:
        """What a site told; or why it cannot take part, as far as it tells."""
        reply = self._sites.told.get(name)
        if reply is None:
            return "no word of what the owner wants of secure sums"
        if isinstance(reply, Refused):
            return str(reply)
        if reply.rules is None:
            return (
                "no part in secure sums, or not in yours: the owner's policy says nothing of them"
            )
        if reply.rules.roster != self.members.digest:
            return (
                "another roster than yours, or none: compare the digest with the owner, who takes yours "
                "with privcal site roster accept"
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
        replies = self._ask("offer", terms, terms.sites, _yes, questions)
        return {name: code_of(reply) for name, reply in replies if isinstance(reply, Exception)}

    def release(self, campaign: str) -> None:
        """Give back what is still reserved: the run is over."""
        self._sites.give_back(campaign)

    def share(self, terms: Terms, names: Sequence[str]) -> Iterator[tuple[str, Dealt | Exception]]:
        """SHARE: what each of these sites dealt. It is charged for, once."""
        return self._ask("share", terms, names, lambda reply: read_dealt(reply.dealt, terms))

    def check(
        self, terms: Terms, boxes: Mapping[str, Mapping[str, Box]]
    ) -> Iterator[tuple[str, Sequence[str] | Exception]]:
        """CHECK: of the boxes for each site, by who dealt them, whose it cannot open."""
        return self._each("check", terms, boxes, lambda reply: reply.bad or ())

    def open(
        self, terms: Terms, boxes: Mapping[str, Mapping[str, Box]]
    ) -> Iterator[tuple[str, Sequence[int] | Exception]]:
        """OPEN: the sum of what is in the boxes for each site."""
        return self._each("open", terms, boxes, lambda reply: reply.sums or ())

    def _ask(
        self,
        kind: str,
        terms: Terms,
        names: Sequence[str],
        read: Callable[[Reply], T],
        questions: Sequence[Question] = (),
    ) -> Iterator[tuple[str, T | Exception]]:
        """One request to all sites of the terms, sent to these of them."""
        campaign = terms.question.campaign
        request, key = self._sites.request(kind, campaign, terms.sites, questions, terms=terms)
        yield from _absent(names, self.names)
        there = [name for name in names if name in self.names]
        for name, reply in self._sites.exchange(dict.fromkeys(there, request), key):
            yield name, _read(reply, read)

    def _each(
        self,
        kind: str,
        terms: Terms,
        boxes: Mapping[str, Mapping[str, Box]],
        read: Callable[[Reply], T],
    ) -> Iterator[tuple[str, T | Exception]]:
        """To each site a request of its own, with the boxes that are for it."""
        key, campaign = SealingKey.make(), terms.question.campaign
        requests = {}
        for name in (name for name in boxes if name in self.names):
            requests[name], _ = self._sites.request(
                kind, campaign, [name], terms=terms, boxes=boxes[name], key=key
            )
        yield from _absent(boxes, self.names)
        for name, reply in self._sites.exchange(requests, key):
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


def _absent(
    names: Sequence[str] | Mapping[str, object], there: Sequence[str]
) -> Iterator[tuple[str, Exception]]:
    return ((name, Unusable("absent")) for name in names if name not in there)


def _yes(reply: Reply) -> bool:
    return reply.accepted


def _read(reply: Reply | Exception, read: Callable[[Reply], T]) -> T | Exception:
    """What a reply says; a site may say anything."""
    if isinstance(reply, Exception):
        return reply
    try:
        return read(reply)
    except ValueError:
        return Unusable("what it dealt cannot be read")
