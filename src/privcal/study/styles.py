"""How a method looks in every figure: its colour, marker and dashes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from privcal import methods
from privcal.study.results import read_label
from privcal.study.run import ONE_SOURCE, PUBLIC


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
    # Ours, beside the paper's.
    "one-source-nll": Style("#E69F00", "<"),
    "one-hot-binning": Style("#CC79A7", ">"),
    "sketch": Style("#882255", "*"),
}
COLOURS = ("#999933", "#332288", "#44AA99", "#AA4499", "#661100")
MARKERS = ("<", ">", "*", "P", "d", "X", "p")
DASHES: tuple[str | tuple[int, tuple[int, ...]], ...] = ("-", (0, (4, 1, 1, 1)), (0, (1, 1)))


def styles(names: Sequence[str]) -> dict[str, Style]:
    """A style for each method: the paper's and some of ours have theirs, others get one by their
    place, and a method with public rows is dashed in its own colour.

    The place is that in the list of all methods, so that a study of some of them looks the same
    as one of all; methods that are in the results but not installed here come after.
    """
    public = {n: read_label(n).method for n in names if PUBLIC in read_label(n).options}
    plain = [public.get(n, n) for n in names]
    rest = dict.fromkeys(n for n in (*ONE_SOURCE, *methods.names(), *plain) if n not in FIXED)
    found = dict(FIXED)
    for place, name in enumerate(rest):
        found[name] = Style(
            COLOURS[place % len(COLOURS)],
            MARKERS[place % len(MARKERS)],
            DASHES[place // len(COLOURS) % len(DASHES)],
        )
    found |= {n: replace(found[method], dashes="--") for n, method in public.items()}
    return {name: found[name] for name in names}
