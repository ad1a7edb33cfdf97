"""A federation in a folder: sites with keys, data and ledgers, calibrators, and one mailbox.

Everything runs in this process: a site's child is replaced by what it does. `federation(...)` makes
it, `Federation.round()` lets every site look once, and `Asker` writes letters as an honest calibrator,
or anybody else, would.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privcal.data.datasets import cifar10c
from privcal.data.ledger import Ledger
from privcal.secure.keys import SealingKey
from privcal.transport import keys as party_keys
from privcal.transport.carry import Carrier
from privcal.transport.content import Reply, Request
from privcal.transport.keys import Keys
from privcal.transport.letter import Letter
from privcal.transport.mailbox import Box, FolderBox
from privcal.transport.replied import Replied, read_reply
from privcal.transport.roster import Card, Roster
from privcal.transport.site import service, setup, worker
from privcal.transport.site.service import Service
from privcal.transport.site.settings import LEDGER
from privcal.transport.standing import Standing
from privcal.trusted.policy import Policy, SecureRules
from privcal.trusted.queries import Gap, Query
from privcal.trusted.question import Question

ANN, BOB = "ann", "bob"
MODEL = "resnet50-v3"
YEAR = 365 * 24 * 3600


class InProcess:
    """Instead of the child: what it does, without its process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def ask(self, asker: str, request: Request) -> Reply:
        return worker.safely(self.folder, asker, request)

    def wake(self) -> None: ...

    def stop(self) -> None: ...


def write_rows(path: Path, rows: int, seed: int = 0, person: str | None = None) -> Path:
    """Rows of real scores, as a site has them."""
    scores = cifar10c("motion_blur")
    mine = scores.take(np.random.default_rng(seed).permutation(len(scores))[:rows])
    people = {} if person is None else {"person": [f"{person}-{n}" for n in range(rows)]}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, labels=mine.labels, logits=mine.outputs.array, **people)
    return path


def question(
    campaign: str = "c",
    round: int = 0,
    query: Query | None = None,
    epsilon: float = 0.5,
    **more: Any,
) -> Question:
    facts = {"index": 0, "model": MODEL, **more}
    return Question(campaign, round, nano_epsilon=nano(epsilon), query=query or Gap(1.5), **facts)


def nano(epsilon: float) -> int:
    return round(epsilon * 10**9)


def rules(**more: Any) -> SecureRules:
    """An owner's rules for secure sums."""
    return SecureRules(**{"colluding": 1, "min_honest": 2, "alone": 10, **more})


def make_party(folder: Path, name: str, role: str) -> Keys:
    """A party's folder with its keys."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    return Keys.make(folder, name, role)


def make_site(
    folder: Path,
    rows: int | Path = 30,
    seed: int = 0,
    policy: Policy | None = None,
    delay: float = 0.1,
) -> Path:
    """A site's keys, data (or so many rows), ledger and settings; it has no roster yet."""
    if isinstance(rows, int):
        rows = write_rows(folder.parent / "data" / f"{folder.name}.npz", rows, seed)
    rules = policy or Policy(10.0, model=MODEL)
    setup.init(folder, rows, rules, delay=delay, warn=lambda text: None)
    return folder


def first_roster(coordinator: Keys, cards: Sequence[Card]) -> Roster:
    now = int(time.time())
    return Roster.first(cards, [coordinator.public], now, now + YEAR).signed(coordinator)


def next_roster(coordinator: Keys, before: Roster, cards: Sequence[Card]) -> Roster:
    now = int(time.time())
    return before.next(cards, now, before.until).signed(coordinator)


@dataclass
class Federation:
    """Parties' folders by name, and their mailbox."""

    folder: Path
    sites: tuple[str, ...]
    calibrators: tuple[str, ...]
    coordinator: Keys
    box: Box
    running: dict[str, tuple[Service, Carrier]] = field(default_factory=dict)

    def at(self, name: str) -> Path:
        """A party's folder."""
        return self.folder / name

    @property
    def roster(self) -> Roster:
        """The newest one that the first site goes by."""
        return Standing(self.at(self.sites[0])).roster

    @property
    def mailbox(self) -> Path:
        return self.folder / "mailbox"

    def id(self, name: str) -> str:
        return Keys.load(self.at(name)).id

    def ledger(self, name: str) -> Ledger:
        return Ledger(self.at(name) / LEDGER)

    def accept(self, roster: Roster, *names: str) -> Roster:
        """Let the owners of these parties, or of all on it, accept a roster."""
        for name in names or [card.name for card in roster.cards]:
            Standing(self.at(name)).accept(roster, roster.digest)
        return roster

    def without(self, *names: str) -> Roster:
        """The next roster, without these; nobody accepted it yet."""
        before = self.roster
        cards = [card for card in before.cards if card.name not in names]
        return next_roster(self.coordinator, before, cards)

    def rekeyed(self, *names: str, **how: Any) -> Roster:
        """The next roster, after these rotated their keys (`keys.rotate`); nobody accepted it yet."""
        for name in names:
            party_keys.rotate(self.at(name), **how)
        cards = [
            Keys.load(self.at(card.name)).card if card.name in names else card
            for card in self.roster.cards
        ]
        return next_roster(self.coordinator, self.roster, cards)

    def start(self, *names: str, box: Box | None = None) -> None:
        """Run these sites, or all: each with a carrier between it and the mailbox."""
        for name in names or self.sites:
            site = Service(self.at(name))
            self.running[name] = site, Carrier(box or self.box, site)

    def stop(self, *names: str) -> None:
        for name in names or list(self.running):
            site, carrier = self.running.pop(name)
            carrier.close()
            site.close()

    def site(self, name: str) -> Service:
        return self.running[name][0]

    def round(self, *names: str) -> None:
        """Every running site, or these: one look at the mailbox, until all replies are there."""
        for name in names or list(self.running):
            self.running[name][1].look()
        for name in names or list(self.running):
            self.running[name][1].wait()

    def asker(self, name: str = ANN) -> Asker:
        return Asker(self, name)


def federation(
    folder: Path,
    sites: int = 3,
    *,
    calibrators: Sequence[str] = (ANN, BOB),
    rows: int | Path = 30,
    policy: Policy | None = None,
    delay: float = 0.1,
    start: bool = True,
    monkeypatch: pytest.MonkeyPatch | None = None,
) -> Federation:
    """Sites site-1 ... site-n and calibrators in folders of their own, all with one accepted roster.

    The first calibrator is the coordinator, too. With `monkeypatch` the sites have no child process
    but do its work in this one. `start` runs them all.
    """
    if monkeypatch is not None:
        monkeypatch.setattr(service, "Child", InProcess)
    names = tuple(f"site-{n}" for n in range(1, sites + 1))
    made = [make_party(folder / name, name, "calibrator") for name in calibrators]
    for n, name in enumerate(names):
        make_site(folder / name, rows, n, policy, delay)
    cards = [Keys.load(folder / name).card for name in (*calibrators, *names)]
    roster = first_roster(made[0], cards)
    (folder / "mailbox").mkdir()
    box = FolderBox(folder / "mailbox", roster.federation)
    found = Federation(folder, names, tuple(calibrators), made[0], box)
    found.accept(roster)
    if start:
        found.start()
    return found


def set_policy(fed: Federation, name: str, policy: Policy) -> None:
    fed.ledger(name).set_policy(policy)


@dataclass
class Asker:
    """A calibrator's side, letter by letter."""

    federation: Federation
    name: str
    key: SealingKey = field(default_factory=SealingKey.make)
    """For replies; a real calibrator makes one for each round."""

    @property
    def keys(self) -> Keys:
        return Keys.load(self.federation.at(self.name))

    @property
    def roster(self) -> Roster:
        return Standing(self.federation.at(self.name)).roster

    def request(self, kind: str, to: str, *questions: Question, **more: Any) -> Request:
        """A request of now that holds for an hour; `more` replaces its parts.

        Of an "ask" the plan is its questions, unless another is given.
        """
        roster, now = self.roster, int(time.time())
        campaign = questions[0].campaign if questions else "c"
        if kind == "ask":
            more = {"questions": questions, "plan": questions, **more}
        elif questions:
            more = {"plan": questions, **more}
        facts = {
            "federation": roster.federation,
            "roster": roster.stamp,
            "sender": self.keys.id,
            "reader": self.federation.id(to),
            "campaign": campaign,
            "issued": now,
            "until": now + 3600,
            "reply_key": self.key.public,
            **more,
        }
        return Request(kind, **facts)

    def write(self, to: str, request: Request) -> Letter:
        """A letter for a site's card."""
        card = self.roster.named(to)
        assert card is not None
        return Letter.write(request.text, self.keys, card.id, card.sealing)

    def put(self, to: str, request: Request) -> Letter:
        """The same, in the mailbox."""
        letter = self.write(to, request)
        self.federation.box.put(letter.sender, letter.name, letter.content)
        return letter

    def open(self, content: bytes, request: Request, letter: Letter) -> Reply:
        """A reply, checked as a calibrator checks it."""
        reply = Letter.read(content)
        card = self.roster.party(reply.sender)
        assert card is not None
        reply.check(card.signing)
        inside = Replied.read(reply.open(self.key))
        assert (inside.sender, inside.reader) == (request.reader, request.sender)
        assert inside.about == letter.digest
        return read_reply(inside.body, request)

    def replies(self, to: str, request: Request, letter: Letter) -> list[Reply]:
        """All replies to a letter that are in the mailbox."""
        box, found = self.federation.box, []
        mine = (name for name in box.list(request.reader) if name.startswith(self.keys.id))
        for name in sorted(mine):
            content = box.get(request.reader, name)
            assert content is not None
            try:
                inside = Replied.read(Letter.read(content).open(self.key))
            except ValueError:  # to another round
                continue
            if inside.about == letter.digest:
                found.append(self.open(content, request, letter))
        return found

    def say(self, to: str, request: Request) -> Reply | None:
        """What a running site replies at once, without a mailbox; None for silence."""
        letter = self.write(to, request)
        content = self.federation.site(to).take(letter.content)
        return None if content is None else self.open(content, request, letter)

    def ask(self, to: str, *args: Any, **more: Any) -> str | None:
        """The code of a refusal of one question; None for an answer."""
        asked = question(*args, **more)
        reply = self.say(to, self.request("ask", to, asked))
        assert reply is not None
        return reply.refused
