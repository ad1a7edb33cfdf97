"""What runs at a calibrator's: one process, a command that asks the sites and makes the map.

It has a calibrator's certificate, the keys that its own requests' replies are sealed for, and a
record of the campaign on disk. It has no rows, and changes nothing at a site but its ledger.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from privcal.campaign import Campaign, Recorded
from privcal.panels import Panel


@contextmanager
def distant(kit: Path, campaign: Campaign, **settings: Any) -> Iterator[Panel]:
    """The sites behind a calibrator's kit, while it is connected, with a record on disk."""
    from privcal.federation.calibrator.panel import Sites

    with Sites(kit, **settings) as sites:
        yield Recorded(sites, campaign)
