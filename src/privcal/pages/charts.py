"""What a picture shows, as plain values: `drawing` and `draw.js` draw it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["line", "points", "bars", "level", "guide", "ring"]


@dataclass(frozen=True)
class Axis:
    """What is along an axis."""

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None
    """Its ends; by default those of the values. What lies beyond is cut off."""
    digits: int | None = None
    """After the point, where values are said; by default four digits in all."""
    names: tuple[str, ...] | None = None
    """For values that are no numbers: the names of 0, 1, 2, …"""


@dataclass(frozen=True)
class Series:
    """One method, one curve, one row of bars.

    Kinds: `line` with a band from `low` to `high`; `points` with a whisker each; `bars`; `level`,
    one value that holds everywhere; `guide`, a line to compare with, of which no values are said;
    `ring`, around a point to look at.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    low: tuple[float | None, ...] | None = None
    high: tuple[float | None, ...] | None = None
    kind: Kind = "line"
    look: int = 0
    """Its colour and its mark."""
    dashed: bool = False
    dotted: bool = False
    strong: bool = False
    """Drawn thicker: what the page is about."""
    marked: bool = True
    """With a mark at every value; without for smooth curves of many."""


@dataclass(frozen=True)
class Chart:
    title: str
    about: str
    """What it shows, in a sentence, for those who do not see it and those who do."""
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    height: int = 320
    legend: bool = True
    values: bool = True
    """Whether all values stand below it as a table."""
