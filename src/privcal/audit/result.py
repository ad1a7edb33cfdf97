"""What an audit of the noise says."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

CONFIDENCE = 0.99
"""Of each lower bound by itself."""

ALARM = 1e-9
"""A promise counts as broken only where so few sound mechanisms would look like this one."""

MEANING = (
    "A lower bound is what was seen of ε: it can show that a promise is broken, never that it is "
    "kept. It stays below the claim for lack of draws."
)


@dataclass(frozen=True)
class Row:
    """One promise, and how well two neighbouring data sets could be told apart in spite of it."""

    name: str
    what: str
    epsilon: float
    """Claimed."""
    measured: float
    """The lower bound on ε, at `CONFIDENCE`."""
    guesses: int
    """In the games that were scored."""
    right: int
    p_value: float
    """How likely so many right guesses are, at most, if the promise holds."""

    @property
    def ratio(self) -> float:
        return self.measured / self.epsilon

    @property
    def exceeds(self) -> bool:
        return self.p_value < ALARM

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "exceeds": self.exceeds}


@dataclass(frozen=True)
class Audit:
    """All promises that were looked at. `ok` says that none was seen broken."""

    rows: tuple[Row, ...]
    draws: int
    """Games for each row; a rule is learnt from a quarter of them and scored on the rest."""

    @property
    def ok(self) -> bool:
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
