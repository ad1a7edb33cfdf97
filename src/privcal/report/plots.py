"""What all pictures have in common: their colours and their files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from privcal.data.files import replacing
from privcal.trusted.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours: colour-blind readers can tell them apart too.
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#6b6b6b"

PICTURES = (".png", ".svg", ".pdf")


def check_picture(path: Path | None) -> None:
    """Raise InputError unless the name ends like a picture."""
    if path is not None and path.suffix.lower() not in PICTURES:
        raise InputError(f"{path}: a picture must end in .png, .svg or .pdf")


def save_figure(path: str | Path, figure: Figure, dpi: int = 150) -> None:
    """Write a figure as PNG, SVG or PDF, by the ending of `path`, as a whole or not at all."""
    with replacing(path) as part:
        figure.savefig(part, dpi=dpi)
