"""Hospitals with real ledgers, and a calibrator who may send them whatever it likes.

Hospital number i has 2^i rows, all of them right, so that a total of plain answers tells exactly
whose are in it: where a test takes the noise away, an attack that gets at one hospital is seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privcal
from privcal.data.ledger import Ledger
from privcal.secure import participant
from privcal.secure.boxes import Box, open_box
from privcal.secure.keys import Keys, local_keys, member
from privcal.secure.participant import Dealt, Participant
from privcal.secure.sharing import PRIME, combine
from privcal.secure.terms import Members, Terms
from privcal.trusted.book import Book
from privcal.trusted.policy import SecureRules
from privcal.trusted.queries import GRID, CellHistogram, Query
from privcal.trusted.question import Question

EVE = "eve"
"""Who asks."""

Boxes = dict[str, Box]

_campaigns = itertools.count()


def question(campaign: str | None = None, query: Query | None = None, epsilon: float = 0.5) -> Any:
    """A question of a campaign of its own, unless told which."""
    name = campaign or f"campaign {next(_campaigns)}"
    return Question.of(query or CellHistogram(1), epsilon, name)


def rows(count: int) -> privcal.Scores:
    """So many rows of two classes, all right, at full confidence."""
    logits = np.tile(np.array([[9.0, -9.0]], np.float32), (count, 1))
    return privcal.Scores(logits=logits, labels=np.zeros(count, np.int64))


def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is dealt be the exact sums, so that a leak is seen at once."""
    monkeypatch.setattr(
        participant, "add_noise_share", lambda total, *_: [int(value) for value in total]
    )


@dataclass
class Hospital:
    """One hospital: its data and ledger, and what it needs to take part."""

    name: str
    source: privcal.Source
    keys: Keys

    @property
    def ledger(self) -> Book:
        return self.source.ledger


@dataclass
class Federation:
    """Hospitals on one roster; what is asked is said by `terms`, as the attacker likes it."""

    hospitals: dict[str, Hospital]
    rules: SecureRules | None
    members: Members = field(init=False)

    def __post_init__(self) -> None:
        self.accept()

    def accept(self) -> None:
        """All owners accept the roster of the keys that are there now."""
        self.members = Members({n: member(h.keys) for n, h in self.hospitals.items()})

    @property
    def names(self) -> list[str]:
        return sorted(self.hospitals)

    def site(self, name: str, rules: SecureRules | None = None, **other: Any) -> Participant:
        """A hospital as it takes part, started anew."""
        h = self.hospitals[name]
        members = other.get("members", self.members)
        return Participant(name, h.source, other.get("keys", h.keys), members, rules or self.rules)

    def terms(self, asked: Question | None = None, **parts: Any) -> Terms:
        """Terms that all agree to, unless `parts` say otherwise."""
        sites = tuple(sorted(parts.pop("sites", self.names)))
        t = parts.pop("colluding", 1)
        usual = {
            "question": asked or question(),
            "asker": EVE,
            "sites": sites,
            "colluding": t,
            "needed": parts.pop("needed", None) or _threshold(len(sites), t),
            "alone": 10,
            "rows_per_person": 1,
            "roster": self.members.digest,
        }
        return Terms(**{**usual, **parts})

    def share(self, terms: Terms, names: Iterable[str] | None = None) -> dict[str, Dealt]:
        """What these hospitals deal; by default all that are asked."""
        chosen = terms.sites if names is None else names
        return {name: self.site(name).share(terms, terms.asker) for name in chosen}

    def open(
        self, terms: Terms, receiver: str, dealt: Mapping[str, Dealt], chosen: Iterable[str]
    ) -> list[int]:
        """The sum that a hospital shows for the set `chosen`."""
        boxes = given(dealt, receiver, chosen)
        return self.site(receiver).open(terms, terms.asker, boxes)

    def own_sum(
        self, terms: Terms, friend: str, dealt: Mapping[str, Dealt], chosen: Iterable[str]
    ) -> list[int]:
        """The sum for any set that a hospital which works with the calibrator computes itself."""
        keys = self.hospitals[friend].keys
        pieces = [
            open_box(terms, dealer, friend, dealt[dealer].boxes[friend], self.members, keys)
            for dealer in chosen
        ]
        return [sum(column) % PRIME for column in zip(*pieces, strict=True)]


def given(dealt: Mapping[str, Dealt], receiver: str, chosen: Iterable[str]) -> Boxes:
    """The boxes for one receiver, of the set that it is told of."""
    return {dealer: dealt[dealer].boxes[receiver] for dealer in chosen}


def total(terms: Terms, sums: Mapping[str, Sequence[int]]) -> list[int]:
    """What sums of the sites give when they are put together, in rows; they must fit."""
    found = combine({terms.point(name): row for name, row in sums.items()}, terms.threshold)
    assert found is not None
    return [value // GRID for value in found.values]


def rows_of(names: Iterable[str]) -> int:
    """How many rows these hospitals have together."""
    return sum(2 ** int(name.removeprefix("h")) for name in names)


def federation(
    count: int,
    *,
    folder: Path | None = None,
    rules: SecureRules | None = None,
    policy: privcal.Policy | None = None,
    first: privcal.Scores | None = None,
) -> Federation:
    """Hospitals h0, h1, …; with `folder` their ledgers are files there, each with marks of its own.

    `first` are the rows of h0, if they are others than usual.
    """
    policy = policy or privcal.Policy(epsilon=1000.0)
    hospitals = {}
    for i in range(count):
        name, scores = f"h{i}", rows(2**i)
        ledger = Ledger.in_memory(policy, name=name)
        if folder is not None:
            own = folder / name
            own.mkdir()
            ledger = Ledger.create(
                own / "ledger.db", policy, unit="row", name=name, marks=own / "marks.db"
            )
        source = privcal.Source(scores if i or first is None else first, ledger=ledger, name=name)
        hospitals[name] = Hospital(name, source, local_keys(ledger))
    return Federation(hospitals, rules or SecureRules(colluding=1))


def _threshold(sites: int, colluding: int) -> int:
    from privcal.secure import terms  # by its name: tests put a weaker one in its place

    return terms.threshold(sites, colluding)


# --- what a view tells ------------------------------------------------------------------------


def known_sums(
    terms: Terms,
    told: Mapping[str, Iterable[str]],
    colluding: Iterable[str],
    dealers: Iterable[str] | None = None,
) -> list[dict[str, int]]:
    """All that a view tells of honest answers: a basis of the combinations that it determines.

    `told` is the set that each honest site opened, `dealers` whoever dealt, by default the sites. The view of the coalition is linear in the honest
    polynomials' coefficients: its own points of each, and Σ f_i(j) over i of U(j) for each honest j.
    What it tells of the constant terms, whatever the other coefficients are, are the vectors of its
    row space that are zero at all other coefficients: found by eliminating those first.
    """
    bad = set(colluding)
    honest = [name for name in dealers or terms.sites if name not in bad]
    degrees = range(1, terms.threshold)
    columns = [(name, k) for name in honest for k in degrees] + [(name, 0) for name in honest]
    view = [
        {(i, k): pow(terms.point(c), k, PRIME) for k in (0, *degrees)} for i in honest for c in bad
    ]
    for j, chosen in told.items():
        powers = {k: pow(terms.point(j), k, PRIME) for k in (0, *degrees)}
        view.append({(i, k): powers[k] for i in chosen if i not in bad for k in powers})
    matrix = [[row.get(column, 0) for column in columns] for row in view]
    reduced = _reduced(matrix)
    hidden = len(honest) * len(degrees)
    return [
        {name: value for name, value in zip(honest, row[hidden:], strict=True) if value}
        for row in reduced
        if not any(row[:hidden]) and any(row)
    ]


def _reduced(matrix: list[list[int]]) -> list[list[int]]:
    """The reduced row echelon form modulo the prime."""
    rows = [list(row) for row in matrix]
    done = 0
    for column in range(len(rows[0])):
        pivot = next((r for r in range(done, len(rows)) if rows[r][column]), None)
        if pivot is None:
            continue
        rows[done], rows[pivot] = rows[pivot], rows[done]
        inverse = pow(rows[done][column], -1, PRIME)
        rows[done] = [value * inverse % PRIME for value in rows[done]]
        for r in range(len(rows)):
            if r != done and rows[r][column]:
                factor = rows[r][column]
                rows[r] = [
                    (a - factor * b) % PRIME for a, b in zip(rows[r], rows[done], strict=True)
                ]
        done += 1
        if done == len(rows):
            break
    return rows[:done]
