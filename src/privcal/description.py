"""What a campaign will ask, for approval before anything is asked.

The facts are plain values. Their digest is the SHA-256 of one spelling of them, so owners who hold
the same digest hold the same facts, on whatever machine: whole numbers for ε and bounds, sentences in
one form of Unicode with single spaces, no paths, no times, no fitted number. Names are as they are: two
that look alike are two askers, models or campaigns to a ledger.
"""

from __future__ import annotations

import hashlib
import json
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from privcal.methods.base import Method, plan
from privcal.privacy.epsilon import as_odds, from_nano
from privcal.privacy.laws import NoiseLaw
from privcal.privacy.mechanism import noise_scale
from privcal.queries import GRID, Query
from privcal.scores import Scores
from privcal.secure.panel import Secure, expected
from privcal.wording import plural

FORMAT = "privcal-description"
VERSION = 1


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

    asked: tuple[Questions, ...]
    rows_per_person: int = 1
    method: str | None = None
    options: dict[str, Any] | None = None
    sources: int | None = None
    """About how many are asked, where that is known."""
    public: dict[str, Any] | None = None
    """The calibrator's own rows: how many, and their digest."""
    model: str | None = None
    asker: str | None = None
    campaign: str | None = None
    purpose: str | None = None
    contact: str | None = None
    question: str | None = None
    """The digest of the file that asks, where there is one already."""
    secure: dict[str, int] | None = None
    """Where the answers go into secure sums: `colluding`, `honest`, `alone` and `groups` of their terms."""
    questions: str | None = None
    """The digest of its questions, as its asker and `ledger waiting` show it: no fact of its own."""

    @property
    def nano_epsilon(self) -> int:
        """What a source is charged in all."""
        return sum(asked.times * asked.nano_epsilon for asked in self.asked)

    @property
    def epsilon(self) -> float:
        return from_nano(self.nano_epsilon)

    def facts(self) -> dict[str, Any]:
        """Everything that the digest is of."""
        texts = ("method", "options", "sources", "public", "model", "asker", "campaign")
        own = {
            name: getattr(self, name)
            for name in (*texts, "purpose", "contact", "question", "secure")
        }
        known = {name: value for name, value in own.items() if value is not None}
        exact = {name: known[name] for name in ("model", "asker", "campaign") if name in known}
        return {
            "format": FORMAT,
            "version": VERSION,
            **_plain(known),
            **exact,
            "rows_per_person": self.rows_per_person,
            "nano_epsilon": self.nano_epsilon,
            "questions": [asked.facts(self.rows_per_person) for asked in self.asked],
        }

    @property
    def digest(self) -> str:
        """SHA-256 of the facts, as 64 hexadecimal digits."""
        text = json.dumps(self.facts(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    @property
    def spoken(self) -> str:
        """The digest in groups of four, to be read out."""
        return " ".join(self.digest[i : i + 4] for i in range(0, 64, 4))

    def to_dict(self) -> dict[str, Any]:
        """The facts with their digest, as `--json` prints them."""
        return {**self.facts(), "digest": self.digest}

    # --- in words ----------------------------------------------------------------------------

    def leaves(self) -> list[str]:
        """What leaves each source, a sentence for each kind of question."""
        said = []
        for asked in self.asked:
            count = "Once" if asked.times == 1 else f"{asked.times} times"
            noise = asked.noise(self.rows_per_person)
            if self.secure is not None:
                said.append(
                    f"{count}: {asked.query.describe()}. That is {plural(asked.query.length, 'number')}, each with random "
                    "noise added at the source, cut into pieces of which one alone is a random number, and "
                    f"sealed, a piece for each source; only the total over all sources is ever opened, for "
                    f"ε = {from_nano(asked.nano_epsilon):g}."
                )
                continue
            said.append(
                f"{count}: {asked.query.describe()}. That is {plural(asked.query.length, 'number')}, each with random noise of "
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
            f"How well that hides any one person from whoever asks, the server and up to {colluding} of the "
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

    def policy(self) -> str:
        """A policy (TOML) that allows this and nothing else."""
        kinds = sorted({asked.query.kind for asked in self.asked})
        lines = [
            f"epsilon = {self.epsilon:.9f}".rstrip("0").rstrip("."),
            f"queries = {json.dumps(kinds)}",
            f"rows_per_person = {self.rows_per_person}",
        ]
        if self.asker is not None:
            lines.append(f"askers = [{_toml(self.asker)}]")
        if self.model is not None:
            lines.append(f"model = {_toml(self.model)}")
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
    **more: str | None,
) -> Description:
    """What a run of `method` will ask; `more` are model, asker, campaign, purpose and contact.

    With `aggregation` the answers go into secure sums.
    """
    law, secure = NoiseLaw(rows_per_person), None
    if aggregation is not None:
        colluding, law = expected(aggregation, sources, rows_per_person)
        told = {"honest": law.honest, "alone": law.alone, "groups": law.groups}
        secure = {"colluding": colluding, **{k: v for k, v in told.items() if v is not None}}
    planned = plan(method, nano_epsilon, law, sources, rows_per_source)
    public = getattr(method, "public", None)
    return Description(
        asked=asked_of([(ask.query, ask.nano_epsilon) for _, _, ask in planned]),
        rows_per_person=rows_per_person,
        method=method.name,
        options=options_of(method),
        sources=sources,
        public=None if public is None else public_facts(public),
        secure=secure,
        **more,
    )


def options_of(method: Method) -> dict[str, Any]:
    """All options, given or not, so that whoever writes out a default describes the same."""
    values = {f.name: getattr(method, f.name) for f in fields(method) if f.name != "public"}
    return {name: value for name, value in values.items() if value not in (None, False)}


def public_facts(public: Scores) -> dict[str, Any]:
    """By what public rows are known; they get no privacy, so their digest may be told."""
    return {"rows": len(public), "sha256": public.content_digest()}


def _plain(value: Any) -> Any:
    """A value as it is spelt, the same on every machine."""
    if isinstance(value, str):
        return " ".join(unicodedata.normalize("NFC", value).split())
    if isinstance(value, dict):
        return {str(name): _plain(v) for name, v in value.items()}
    if isinstance(value, (list, tuple)) or hasattr(value, "tolist"):
        return [_plain(v) for v in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value)


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=True)


def asked_of(queries: Sequence[tuple[Query, int]]) -> tuple[Questions, ...]:
    """Questions (query, nano-ε) put together where they differ in nothing but the temperature."""
    found: dict[tuple[str, int], list[Any]] = {}
    for query, nano in queries:
        alike = query.at(1.0) if hasattr(query, "temperature") else query
        found.setdefault((alike.canonical(), nano), [query, 0])[1] += 1
    return tuple(Questions(query, times, nano) for (_, nano), (query, times) in found.items())
