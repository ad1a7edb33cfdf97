"""The result of an audit of the noise."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

CONFIDENCE = 0.99
"""The confidence of each lower bound by itself."""

ALARM = 1e-9
"""The p-value below which a promise counts as broken."""

MEANING = (
    "A lower bound is what was seen of ε: it can show that a promise is broken, never that it is "
    "kept. It stays below the claim for lack of draws."
)


@dataclass(frozen=True)
class Promise:
    """One promise, and how well two neighbouring data sets could be told apart in spite of it."""

    name: str
    """The kind of query, the method, or the harder pair that was audited."""
    what: str
    """What was asked, in words."""
    epsilon: float
    """The ε that is claimed."""
    measured: float
    """The lower bound on ε that was seen, at `CONFIDENCE`."""
    guesses: int
    """The number of guesses in the games that were scored."""
    right: int
    """The number of them that were right."""
    p_value: float
    """The probability, at most, of so many right guesses if the promise holds."""

    @property
    def ratio(self) -> float:
        """The share of the claimed ε that was seen."""
        return self.measured / self.epsilon

    @property
    def exceeds(self) -> bool:
        """Whether the promise was seen broken."""
        return self.p_value < ALARM

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "exceeds": self.exceeds}


@dataclass(frozen=True)
class Audit:
    """All promises that were audited."""

    rows: tuple[Promise, ...]
    """One for each thing audited and each ε claimed of it."""
    draws: int
    """Games for each row; a rule is learnt from a quarter of them and scored on the rest."""

    @property
    def ok(self) -> bool:
        """Whether no promise was seen broken."""
        return not any(row.exceeds for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "draws": self.draws,
            "confidence": CONFIDENCE,
            "alarm": ALARM,
            "meaning": MEANING,
            "rows": [row.to_dict() for row in self.rows],
        }
