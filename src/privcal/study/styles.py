"""How a method looks in every figure: its colour, marker and dashes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from privcal import methods
from privcal.study.paper import METHODS
from privcal.study.run import ONE_SOURCE


@dataclass(frozen=True)
class Style:
    colour: str
    marker: str
    dashes: str | tuple[int, tuple[int, ...]] = "-"

    @property
    def line(self) -> dict[str, Any]:
        """For `axis.plot`."""
        return {"color": self.colour, "marker": self.marker, "linestyle": self.dashes}


# Okabe and Ito's colours, told apart by colour-blind readers too. Acc-T is red in the paper;
# the two that ask nothing are grey and black and dashed.
FIXED = {
    "uncalibrated": Style("#7a7a7a", "x", "--"),
    "one-source": Style("#000000", "o", "--"),
    "histogram-binning": Style("#56B4E9", "s"),
    "ece-t": Style("#009E73", "^"),
    "nll-t": Style("#0072B2", "v"),
    "acc-t": Style("#D55E00", "D"),
}
COLOURS = ("#E69F00", "#CC79A7", "#882255", "#999933", "#332288")
MARKERS = ("<", ">", "*", "P", "d", "X", "p")
DASHES: tuple[str | tuple[int, tuple[int, ...]], ...] = ("-", (0, (4, 1, 1, 1)), (0, (1, 1)))


def styles(names: Sequence[str]) -> dict[str, Style]:
    """A style for each method: the paper's have theirs, others get one by their place.

    The place is that in the list of all methods, so that a study of some of them looks the same
    as one of all; methods that are in the results but not installed here come after.
    """
    installed = [n for n in (*ONE_SOURCE, *methods.names()) if n not in METHODS]
    rest = dict.fromkeys([*installed, *(n for n in names if n not in METHODS)])
    found = dict(FIXED)
    for place, name in enumerate(rest):
        found[name] = Style(
            COLOURS[place % len(COLOURS)],
            MARKERS[place % len(MARKERS)],
            DASHES[place // len(COLOURS) % len(DASHES)],
        )
    return {name: found[name] for name in names}
