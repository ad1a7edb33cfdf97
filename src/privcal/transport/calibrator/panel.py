"""The sites of a federation as a panel: the questions as letters, the replies as answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from privcal.calibration.campaign import Campaign
from privcal.data.panels import Unusable, code_of, typical_rows
from privcal.data.plausible import MAX_SITE_ROWS, beyond
from privcal.data.wording import plural
from privcal.secure.terms import Members, Terms
from privcal.transport.calibrator.exchange import EVERY, WAIT, Exchange, last_heard, take_hints
from privcal.transport.calibrator.letterbook import Letterbook
from privcal.transport.content import Reply
from privcal.transport.mailbox import Box
from privcal.transport.post import open_box
from privcal.transport.post.address import is_remote
from privcal.transport.standing import Standing
from privcal.trusted.errors import CalibrationError, InputError
from privcal.trusted.question import Question
from privcal.trusted.source import Answer

_ABOUT = "about"
"""In place of a campaign's name, where there is none yet."""
CREDENTIALS = "credentials.toml"
"""In a calibrator's folder: what the mailbox's server asks for."""


class Sites:
    """The sites of a roster, as a panel.

    Nobody is asked before something is wanted of them. The first letter to all tells who is there:
    who does not reply to it in time is named, and not asked again in this run.

    Parameters
    ----------
    exchange
        The letters.
    begun
        Whether the campaign asked before: nobody need tell once more what they told then.
    """

    def __init__(
        self,
        exchange: Exchange,
        *,
        rows_per_person: int = 1,
        max_rows: int = MAX_SITE_ROWS,
        without: Collection[str] = (),
        begun: bool = False,
    ) -> None:
        self.exchange, self._roster = exchange, exchange.roster
        sites = {card.name for card in self._roster.cards if card.role == "site"}
        if strange := sorted(set(without) - sites):
            raise InputError(
                f"{strange[0]} is not a site of the roster, so it would not be asked anyway"
            )
        self.asker = exchange.keys.name
        self.rows_per_person, self.max_rows = rows_per_person, max_rows
        self.begun = begun or exchange.silent
        self._wanted = sites - set(without) - set(exchange.standing.blocked)
        for name in sorted(sites - set(without) - self._wanted):
            exchange.warn(f"{name} is blocked here, and is not asked")
        self._absent: set[str] = set()
        self._plan: tuple[Question, ...] = ()
        exchange.clean()

    @classmethod
    def of(
        cls,
        folder: Path,
        mailbox: str,
        campaign: Campaign,
        *,
        wait: float = WAIT,
        every: float = EVERY,
        warn: Callable[[str], None] = lambda text: None,
        tell: Callable[[str], None] = lambda text: None,
        **settings: Any,
    ) -> Sites:
        """The sites of a calibrator's roster, for a campaign with a record on disk."""
        standing = Standing(folder)
        box = box_of(standing, mailbox)
        take_hints(standing, box)
        book = Letterbook(campaign.folder)
        exchange = Exchange(standing, box, book, wait, every, warn, tell, campaign.finished)
        return cls(exchange, begun=Campaign.began(campaign.folder), **settings)

    @property
    def names(self) -> Sequence[str]:
        """The sites that can be asked: of the roster those that replied to the first letter."""
        if not self.begun:
            self.told  # noqa: B018 (it finds who is there)
        return sorted(self._wanted - self._absent)

    @property
    def away(self) -> int:
        """How many of the roster cannot be asked just now, beside those that are left out on purpose."""
        return len(self._wanted) - len(self.names)

    @property
    def sources(self) -> int:
        return len(self.names)

    @cached_property
    def rows_per_source(self) -> float | None:
        """About how many rows a site has, as far as their owners tell."""
        return typical_rows(r.rows for r in self.told.values() if isinstance(r, Reply))

    @cached_property
    def told(self) -> dict[str, Reply | Exception]:
        """What owners tell every asker, by their sites' names: a free question, which shows who is there."""
        self.begun = True
        replies = dict(self._about(_ABOUT, sorted(self._wanted)))
        if len(self._absent) == len(self._wanted) and not self.exchange.silent:
            raise CalibrationError(
                "no site of the roster replied; privcal federation check looks at your folder and the "
                "mailbox",
                (),
            )
        return {name: reply for name, reply in replies.items() if name not in self._absent}

    @property
    def members(self) -> Members:
        """All sites on the roster."""
        return self._roster.members

    def refusals(self, questions: Sequence[Question]) -> dict[str, str]:
        """The sites that would not answer all of these; the others have reserved what they cost."""
        if not questions:
            return {}
        replies = self.offer(questions, self.names)
        return {name: code_of(reply) for name, reply in replies if isinstance(reply, Exception)}

    def offer(
        self, questions: Sequence[Question], names: Sequence[str], terms: Terms | None = None
    ) -> Iterator[tuple[str, Reply | Exception]]:
        """Would these sites answer all of it? Those that would reserve what it costs."""
        self._plan = tuple(questions)
        return self._about(questions[0].campaign, names, plan=self._plan, terms=terms)

    def _about(
        self, campaign: str, names: Sequence[str], **parts: Any
    ) -> Iterator[tuple[str, Reply | Exception]]:
        """The replies to "about": a site that is late is absent from then on, and named."""
        heard = last_heard(self.exchange.standing.folder)
        for name, reply in self.exchange.ask("about", campaign, names, **parts):
            if isinstance(reply, Unusable) and reply.code == "late":
                self._absent.add(name)
                when = heard.get(name)
                last = "no letter of it came yet" if when is None else f"the last came {_ago(when)}"
                self.exchange.warn(f"{name} does not reply, and is not asked ({last})")
            yield name, reply

    def release(self) -> None:
        """The campaign is over: what is still reserved for it, others may have."""
        if self._plan:
            self.give_back(self._plan[0].campaign)

    def give_back(self, campaign: str) -> None:
        """Tell all sites that a campaign is over."""
        self.exchange.send("release", campaign, sorted(self._wanted - self._absent))

    def ask(
        self, names: Sequence[str], question: Question
    ) -> Iterator[tuple[str, Answer | Exception]]:
        places = {(planned.round, planned.index) for planned in self._plan}
        plan = self._plan if (question.round, question.index) in places else (question,)
        asked: dict[str, Any] = {"plan": plan, "questions": (question,)}
        for name, reply in self.exchange.ask("ask", question.campaign, names, **asked):
            yield name, self._answer(reply, question)

    def _answer(self, reply: Reply | Exception, question: Question) -> Answer | Exception:
        """A reply is never trusted: whatever is odd about it, it is not used, with a reason."""
        if isinstance(reply, Exception):
            return reply
        if reply.rows_per_person != self.rows_per_person:
            return Unusable(f"counts {reply.rows_per_person} rows of a person")
        [values] = reply.answers
        most = min(self.max_rows, reply.max_rows or self.max_rows)
        if beyond(values, most, reply.rows_per_person, question):
            return Unusable("beyond what its rows and the noise can give")
        return Answer(values, question, reply.ledger)


def box_of(standing: Standing, where: str) -> Box:
    """A calibrator's mailbox: with the credentials in its folder, where that is on a server."""
    path = standing.folder / CREDENTIALS
    with_them = is_remote(where) and path.exists()
    return open_box(where, standing.roster.federation, path if with_them else None)


def _ago(when: int) -> str:
    """How long ago that was, roughly.

    >>> _ago(int(time.time()) - 7200)
    '2 hours ago'
    """
    passed = max(0, int(time.time()) - when)
    for seconds, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if passed >= seconds:
            return f"{plural(passed // seconds, unit)} ago"
    return f"{plural(passed, 'second')} ago"
