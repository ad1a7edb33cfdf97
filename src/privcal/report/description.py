"""What a campaign will ask, for approval before anything is asked.

Its digest is the one that a letter, the owner's terminal and the approval in the ledger show
(`privcal.trusted.approvals.digest`): of who asks, in which campaign, about which model, and of each
question with its ε. What the asker says beside that, such as the purpose, no source can check.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from privcal.calibration.methods.base import Method, plan
from privcal.data.scores import Scores, content_digest
from privcal.data.wording import as_odds, asks, plural
from privcal.secure.panel import Secure, expected
from privcal.secure.round import NoiseLaw
from privcal.trusted import approvals
from privcal.trusted.epsilon import from_nano
from privcal.trusted.errors import InputError
from privcal.trusted.noise import noise_scale
from privcal.trusted.queries import GRID, Query
from privcal.trusted.question import UNSIGNED, Question

FORMAT = "privcal-description"
VERSION = 2

ASKER = "a calibrator"
"""Who asks, where nobody is named."""


@dataclass(frozen=True)
class Questions:
    """The questions of one kind and cost that a campaign asks each source."""

    query: Query
    """One of them: where a later one looks may depend on the answers before."""
    times: int
    nano_epsilon: int
    """Of each."""

    def facts(self, rows_per_person: int) -> dict[str, Any]:
        """What is fixed beforehand: not where it looks."""
        return {
            "kind": self.query.kind,
            "times": self.times,
            "numbers": self.query.length,
            "nano_epsilon": self.nano_epsilon,
            "bound": rows_per_person * self.query.bound,
        }

    def noise(self, rows_per_person: int) -> float:
        """The standard deviation of the noise in each number that leaves."""
        scale = noise_scale(rows_per_person * self.query.bound, self.nano_epsilon)
        return math.sqrt(2) * scale / GRID


@dataclass(frozen=True)
class Description:
    """What a campaign will ask of each source.

    `method` and `options` are None where only the questions themselves are known.
    """

    asker: str
    """As a ledger records them; without the mark of those who did not sign, where that is not known."""
    plan: tuple[Question, ...]
    """Every question of the campaign."""
    rows_per_person: int = 1
    method: str | None = None
    options: dict[str, Any] | None = None
    sources: int | None = None
    """About how many are asked, where that is known."""
    public: dict[str, Any] | None = None
    """The calibrator's own rows: how many, and their digest."""
    purpose: str | None = None
    contact: str | None = None
    class_names: Sequence[str] | None = None
    """What the asker calls the classes; no part of the digest."""
    secure: dict[str, int] | None = None
    """Where the answers go into secure sums: `colluding`, `honest`, `alone` and `groups` of their terms."""

    @property
    def campaign(self) -> str:
        return self.plan[0].campaign

    @property
    def model(self) -> str | None:
        return self.plan[0].model

    @property
    def asked(self) -> tuple[Questions, ...]:
        """The questions by kind and cost."""
        return asked_of([(question.query, question.nano_epsilon) for question in self.plan])

    @property
    def nano_epsilon(self) -> int:
        """What a source is charged in all."""
        return sum(asked.times * asked.nano_epsilon for asked in self.asked)

    @property
    def epsilon(self) -> float:
        return from_nano(self.nano_epsilon)

    @property
    def digest(self) -> str:
        """What owners and asker compare, in groups of four."""
        alone = None if self.secure is None else self.secure["alone"]
        return approvals.digest(self.asker, self.plan, alone)

    def to_dict(self) -> dict[str, Any]:
        """All that is told, as `--json` prints it."""
        texts = ("method", "options", "sources", "public", "model", "asker", "campaign")
        own = {name: getattr(self, name) for name in (*texts, "purpose", "contact", "secure")}
        return {
            "format": FORMAT,
            "version": VERSION,
            **{name: value for name, value in own.items() if value is not None},
            "rows_per_person": self.rows_per_person,
            "nano_epsilon": self.nano_epsilon,
            "questions": [asked.facts(self.rows_per_person) for asked in self.asked],
            "digest": self.digest,
        }

    # --- in words ----------------------------------------------------------------------------

    def leaves(self) -> list[str]:
        """What leaves each source, a sentence for each kind of question."""
        said = []
        for asked in self.asked:
            count = "Once" if asked.times == 1 else f"{asked.times} times"
            noise = asked.noise(self.rows_per_person)
            if self.secure is not None:
                said.append(
                    f"{count}: {asks(asked.query, self.class_names)}. That is {plural(asked.query.length, 'number')}, each with random "
                    "noise added at the source, cut into pieces of which one alone is a random number, and "
                    f"sealed, a piece for each source; only the total over all sources is ever opened, for "
                    f"ε = {from_nano(asked.nano_epsilon):g}."
                )
                continue
            said.append(
                f"{count}: {asks(asked.query, self.class_names)}. That is {plural(asked.query.length, 'number')}, each with random noise of "
                f"standard deviation {noise:.3g} added at the source, for ε = "
                f"{from_nano(asked.nano_epsilon):g}."
            )
        if sum(asked.times for asked in self.asked) > 1:
            said.append(
                "Where a later question looks (its temperature) depends on the answers before it; how "
                "many there are, of what kind and at what cost does not."
            )
        return said

    def stays(self) -> str:
        return (
            "No row, no label, no score, no person id and no exact number of rows leaves a source, "
            "nor anything computed from rows without noise."
        )

    def acceptable(self) -> list[str]:
        """Why an owner may say yes."""
        if self.secure is not None:
            return self._acceptable_together(**self.secure)
        return [
            "The noise is added on the owner's own machine, before anything leaves it; nobody else has "
            "to be trusted, not even whoever asks.",
            f"How well it hides any one person: {as_odds(self.epsilon)}. That holds against "
            "anybody, with any other knowledge, for everything that can ever be made of the answers.",
            *self._protected(),
        ]

    def _acceptable_together(self, colluding: int, alone: int, **_: int) -> list[str]:
        return [
            "The noise is added on the owner's own machine, before anything leaves it; the noise of "
            "all honest sources together hides each of them in the total.",
            f"How well that hides any one person from whoever asks, the carrier and up to {colluding} of the "
            f"other sources, all working together: {as_odds(self.epsilon)}. It rests on the sealing, and on "
            "all other sources: that each adds its noise, keeps its keys, and opens one total for each "
            "question and no other.",
            f"If more of them work together, or any of that fails: {as_odds(alone * self.epsilon)}; that "
            "rests on nothing but the source's own machine.",
            *self._protected(),
        ]

    def _protected(self) -> list[str]:
        return [
            f"Where the source has person ids, one person with all their rows is protected, of which at "
            f"most {self.rows_per_person} {'counts' if self.rows_per_person == 1 else 'count'}; without "
            "them, one row is.",
            "The source keeps a ledger of its own: it is charged before the noise is drawn, the same "
            "question is answered once, and no more than the owner's policy allows is ever answered.",
        ]

    def costs(self) -> list[str]:
        """What it costs each source."""
        alone = (
            []
            if self.secure is None
            else [
                f"Against all others together ε = {self.secure['alone'] * self.epsilon:g}, which the ledger adds up "
                "beside it."
            ]
        )
        return [
            f"ε = {self.epsilon:g} of each source's budget, whether or not the result is used.",
            *alone,
            "It adds up with whatever else was answered about the same people, here and at other "
            "sources: somebody in the data of k sources is exposed to k times as much.",
        ]

    @property
    def askers(self) -> list[str]:
        """The names under which a ledger may hear of the asker."""
        either = self.secure is None and not self.asker.endswith(UNSIGNED)
        return [self.asker, self.asker + UNSIGNED] if either else [self.asker]

    def policy(self) -> str:
        """A policy (TOML) that allows this and nothing else."""
        kinds = sorted({asked.query.kind for asked in self.asked})
        lines = [
            f"epsilon = {self.epsilon:.9f}".rstrip("0").rstrip("."),
            f"queries = {json.dumps(kinds)}",
            f"rows_per_person = {self.rows_per_person}",
        ]
        lines.append(f"askers = {json.dumps(self.askers)}")
        if self.model is not None:
            lines.append(f"model = {json.dumps(self.model)}")
        lines.append("approve = true")
        if self.secure is not None:
            lines += ["", "[secure]", "required = true"]
            lines += [f"{name} = {self.secure[name]}" for name in ("colluding", "alone")]
        return "\n".join(lines)


def describe(
    method: Method,
    nano_epsilon: int,
    *,
    sources: int = 10,
    rows_per_person: int = 1,
    rows_per_source: float | None = None,
    aggregation: Secure | None = None,
    asker: str = ASKER,
    campaign: str | None = None,
    model: str | None = None,
    purpose: str | None = None,
    contact: str | None = None,
) -> Description:
    """What a run of `method` will ask, in a campaign of a random name where none is given.

    With `aggregation` the answers go into secure sums.
    """
    law, secure = NoiseLaw(rows_per_person), None
    if aggregation is not None:
        colluding, law = expected(aggregation, sources, rows_per_person)
        told = {"honest": law.honest, "alone": law.alone, "groups": law.groups}
        secure = {"colluding": colluding, **{k: v for k, v in told.items() if v is not None}}
    planned = plan(method, nano_epsilon, law, sources, rows_per_source)
    if not planned:
        raise InputError(f"{method.name} asks nothing, so there is nothing to describe")
    name = campaign or secrets.token_hex(8)
    public = getattr(method, "public", None)
    options = {option: value for option, value in method.options().items() if option != "public"}
    return Description(
        asker,
        tuple(
            Question(name, round, index, ask.nano_epsilon, ask.for_run(0), model)
            for round, index, ask in planned
        ),
        rows_per_person=rows_per_person,
        method=method.name,
        options=options,
        sources=sources,
        public=None if public is None else public_facts(public),
        purpose=purpose,
        contact=contact,
        secure=secure,
    )


def public_facts(public: Scores) -> dict[str, Any]:
    """By what public rows are known; they get no privacy, so their digest may be told."""
    return {"rows": len(public), "sha256": content_digest(public)}


def asked_of(queries: Sequence[tuple[Query, int]]) -> tuple[Questions, ...]:
    """Questions (query, nano-ε) put together where they differ in nothing but the temperature."""
    found: dict[tuple[str, int], list[Any]] = {}
    for query, nano in queries:
        alike = query.at(1.0) if hasattr(query, "temperature") else query
        found.setdefault((alike.canonical(), nano), [query, 0])[1] += 1
    return tuple(Questions(query, times, nano) for (_, nano), (query, times) in found.items())
