"""Letters that are signed, and answers that are sealed: the messages of a federation, in files.

A signed letter is a list of requests as they go over the network (`federation.shared.messages`): an
offer of the whole campaign, then each question of the round, all by one asker, to the same sites,
under one key for the replies. A site's answer file is the list of its replies. So whatever carries
the files is trusted with nothing: it cannot ask in the calibrator's name, change a question, carry
it to another site, read an answer, or invent one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privcal.secure import canonical
from privcal.secure.keys import SealingKey
from privcal.transport.federation.shared import revocations
from privcal.transport.federation.shared.kit import is_calibrator
from privcal.transport.federation.shared.messages import (
    Opened,
    Signer,
    open_message,
    open_reply,
    seal_reply,
)
from privcal.transport.federation.shared.requests import (
    MAX_LIFETIME_BY_MAIL,
    Reply,
    Request,
    read_request,
)
from privcal.transport.federation.shared.roster import Card, Roster, stored_roster
from privcal.transport.federation.site.keys import SiteKeys
from privcal.transport.mail.letters import (
    LETTER_VERSION,
    MAX_QUESTIONS,
    QUESTION_FORMAT,
    Given,
    answer_document,
    check_answer,
    check_plan,
)
from privcal.trusted.errors import InputError, Refused
from privcal.trusted.question import Question

DAYS = 30
"""How long a letter holds, unless its asker says otherwise."""
MAX_DAYS = MAX_LIFETIME_BY_MAIL // (24 * 3600)


class Signed:
    """The calibrator's side, with its start-up kit and the roster in it."""

    proves = True

    def __init__(self, kit: Path, sites: Sequence[str] | None = None, days: int = DAYS) -> None:
        if not is_calibrator(kit):
            raise InputError(f"{kit} is not a calibrator's start-up kit")
        self._signer = Signer.of_kit(kit)
        self._roster = stored_roster(kit)
        if not self._roster.cards:
            raise InputError(
                f"{kit} has no roster yet: run privcal federation roster {kit} with the sites' "
                "cards, and compare its digest with their owners"
            )
        self.sites = _not_revoked(kit, self._roster, sites)
        self._lifetime = days * 24 * 3600

    @property
    def asker(self) -> str:
        return self._signer.name

    def write(
        self, plan: Sequence[Question], questions: Sequence[Question], to: Mapping[str, str] | None
    ) -> tuple[dict[str, Any], str | None]:
        check_plan(plan, questions)
        key, issued = SealingKey.make(), int(time.time())
        sites = tuple(sorted(self.sites if to is None else to))

        def signed(kind: str, asked: Sequence[Question]) -> str:
            facts = kind, asked[0].campaign, tuple(asked), sites, key.public, issued
            return self._signer.sign(Request(*facts, self._lifetime))

        messages = [signed("offer", plan), *(signed("question", [q]) for q in questions)]
        document = {
            "format": QUESTION_FORMAT,
            "version": LETTER_VERSION,
            "messages": messages,
        }
        return document, key.secret

    def read(
        self, letter: Mapping[str, Any], secret: str | None, answer: Mapping[str, Any]
    ) -> list[tuple[str, Given | Exception]]:
        check_answer(answer, "site", "replies")
        site, texts, messages = answer["site"], answer["replies"], letter["messages"]
        card = self._roster.card(site) if isinstance(site, str) else None
        if card is None or secret is None:
            raise InputError("it is not from a site of your roster")
        if not isinstance(texts, list) or not 1 <= len(texts) <= len(messages):
            raise InputError(f"it has other replies than {site} was asked for")
        replies = [
            _reply(*both, card, SealingKey.read(secret))
            for both in zip(texts, messages, strict=False)
        ]
        for reply in replies:
            if reply.refused:
                return [(site, Refused(reply.refused))]
        if len(replies) < len(messages):
            raise InputError(f"{site} did not answer all questions")
        facts = {(reply.ledger, reply.rows_per_person) for reply in replies[1:]}
        if len(facts) > 1:
            raise InputError(f"{site} answered from several ledgers")
        ((ledger, rows_per_person),) = facts
        values = tuple(reply.values for reply in replies[1:])
        return [(site, Given(site, ledger, rows_per_person, values))]

    def questions(self, letter: Mapping[str, Any]) -> list[Question]:
        return [q for request in _requests(letter)[1:] for q in request.questions]

    def missing(self, letter: Mapping[str, Any], answered: Sequence[str]) -> list[str]:
        return [site for site in _requests(letter)[0].sites if site not in answered]


def _not_revoked(kit: Path, roster: Roster, sites: Sequence[str] | None) -> tuple[str, ...]:
    """The sites to ask: those named, or all; InputError for one that is not in the roster."""
    revoked = revocations.load(kit)
    cards = {card.site: card for card in roster.cards}
    for name in sites or ():
        if name not in cards:
            raise InputError(
                f"there is no site {name!r} in your roster; there are {', '.join(cards)}"
            )
        if revoked.refuses(name, cards[name].fingerprint):
            raise InputError(f"{name} is revoked, or the key it has in your roster")
    good = (n for n, card in cards.items() if not revoked.refuses(n, card.fingerprint))
    return tuple(dict.fromkeys(sites or good))


def _reply(text: Any, message: str, card: Card, key: SealingKey) -> Reply:
    try:
        return open_reply(text, message, card, key, _request(message))
    except ValueError as error:
        raise InputError(f"it says that it comes from {card.site}, but {error}") from None


def _request(message: str) -> Request:
    """The request of a message of our own."""
    return read_request(canonical.read(message, len(message))["request"])


def _requests(letter: Mapping[str, Any]) -> list[Request]:
    return [_request(message) for message in letter["messages"]]


# --- at a site ---------------------------------------------------------------------------------


def open_letter(document: Mapping[str, Any], root: str | Path, site: str) -> list[Opened]:
    """The offer and the questions of a signed letter to `site`.

    Refused, as for any message, or InputError where they do not belong together.
    """
    messages = document.get("messages")
    if set(document) != {"format", "version", "messages"} or not isinstance(messages, list):
        raise InputError("it has other parts than a signed question")
    if not 2 <= len(messages) <= 1 + MAX_QUESTIONS:
        raise InputError("it has too few or too many messages")
    first = open_message(messages[0], root, site=site, longest=MAX_LIFETIME_BY_MAIL)
    opened = [first]
    for message in messages[1:]:
        opened.append(open_message(message, root, site=site, longest=MAX_LIFETIME_BY_MAIL))
    kinds = [one.request.kind for one in opened]
    if kinds != ["offer", *["question"] * (len(opened) - 1)]:
        raise InputError("it is not an offer and its questions")
    for one in opened:
        if (one.asker, one.fingerprint, one.request.sites, one.request.seal) != (
            first.asker,
            first.fingerprint,
            first.request.sites,
            first.request.seal,
        ):
            raise InputError("its messages do not belong together")
    check_plan(first.request.questions, [q for one in opened[1:] for q in one.request.questions])
    return opened


def sealed_answer(
    document: Mapping[str, Any], opened: Sequence[Opened], given: Given, folder: Path, site: str
) -> dict[str, Any]:
    """The answer file of a site whose owner answered: sealed, and signed with its own key."""
    keys = SiteKeys.load(folder)
    answers = [Reply(v, given.rows_per_person, ledger=given.ledger) for v in given.values]
    replies = zip([Reply(accepted=True), *answers], opened, strict=True)
    texts = [seal_reply(reply, one, keys, site) for reply, one in replies]
    return sealed_document(document, opened, texts, site)


def sealed_document(
    document: Mapping[str, Any], opened: Sequence[Opened], replies: Sequence[str], site: str
) -> dict[str, Any]:
    """The answer file with these replies to the messages of a letter."""
    campaign = opened[0].request.campaign
    return answer_document(document, campaign, site=site, replies=list(replies))
