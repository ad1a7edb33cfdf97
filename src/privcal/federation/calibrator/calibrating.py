"""`privcal calibrate --federation`: the sites of a federation as a panel, with a record on disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from privcal.calibrate import Panel
from privcal.campaign import Campaign, Recorded


@contextmanager
def distant(kit: Path, campaign: Campaign, **settings: Any) -> Iterator[Panel]:
    """The sites behind a calibrator's kit, while it is connected."""
    from privcal.federation.calibrator.panel import Sites

    with Sites(kit, **settings) as sites:
        yield Recorded(sites, campaign)
