"""How a method looks in every figure: its colour, marker and dashes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from privcal import methods
from privcal.simulate.aggregation import EACH
from privcal.simulate.variants import Variant
from privcal.study.grids import OWN_FITS


@dataclass(frozen=True)
class Style:
    colour: str
    marker: str
    dashes: str | tuple[int, tuple[int, ...]] = "-"
    look: int = 0
    """The same on a page, whose style sheet has a colour for light and one for dark."""
    dotted: bool = False
    """Whether it is dotted on a page, where secure sums are beside others."""

    @property
    def line(self) -> dict[str, Any]:
        """For `axis.plot`."""
        return {"color": self.colour, "marker": self.marker, "linestyle": self.dashes}

    @property
    def on_page(self) -> dict[str, Any]:
        """For a `Series`."""
        plain = DOTTED if self.dotted else "-"
        return {"look": self.look, "dashed": self.dashes != plain, "dotted": self.dotted}


DOTTED, DASH_DOTTED = (0, (1, 1)), (0, (4, 1, 1, 1))

# Okabe and Ito's colours, told apart by colour-blind readers too. Acc-T is red in the paper;
# the two that ask nothing are grey and black and dashed.
FIXED = {
    "uncalibrated": Style("#7a7a7a", "x", "--", look=0),
    "one-source-ece": Style("#000000", "o", "--", look=5),
    "histogram-binning": Style("#56B4E9", "s", look=6),
    "ece-t": Style("#009E73", "^", look=3),
    "nll-t": Style("#0072B2", "v", look=1),
    "acc-t": Style("#D55E00", "D", look=2),
    # Ours, beside the paper's.
    "one-source": Style("#8A6D3B", "o", "--", look=9),
    "one-source-nll": Style("#E69F00", "<", look=7),
    "one-hot-binning": Style("#CC79A7", ">", look=8),
    "sketch": Style("#882255", "*", look=4),
    "prior": Style("#9B2D3F", "", DOTTED, look=12),  # the sketch's, before any answer
}
COLOURS = ("#999933", "#332288", "#44AA99", "#AA4499", "#661100")
MARKERS = ("<", ">", "*", "P", "d", "X", "p")
DASHES: tuple[str | tuple[int, tuple[int, ...]], ...] = ("-", DASH_DOTTED, DOTTED)


def styles(variants: Sequence[Variant]) -> dict[Variant, Style]:
    """A style for each method: the paper's and some of ours have theirs, others get one by their
    index, and a method with public rows is dashed in its own colour, one with secure sums dotted.

    The index is that in the list of all methods, so that a study of some of them looks the same
    as one of all; methods that are in the results but not installed here come after.
    """
    plain = [v.method if v.public_rows else str(replace(v, aggregation=EACH)) for v in variants]
    rest = dict.fromkeys(n for n in (*OWN_FITS, *methods.names(), *plain) if n not in FIXED)
    looks = dict(FIXED)
    for index, name in enumerate(rest):
        looks[name] = Style(
            COLOURS[index % len(COLOURS)],
            MARKERS[index % len(MARKERS)],
            DASHES[index // len(COLOURS) % len(DASHES)],
            10 + index % 6,  # those that the style sheet has left
        )
    return {v: _beside(looks[name], v) for v, name in zip(variants, plain, strict=True)}


def _beside(look: Style, variant: Variant) -> Style:
    """The look of a method, told apart from the same one without public rows or secure sums."""
    public = bool(variant.public_rows)
    if variant.aggregation != EACH:
        return replace(look, dashes=DASH_DOTTED if public else DOTTED, dotted=True)
    return replace(look, dashes="--") if public else look
