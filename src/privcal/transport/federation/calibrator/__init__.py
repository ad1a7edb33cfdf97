"""What runs at a calibrator's: one process, a command that asks the sites and makes the map.

It has a calibrator's certificate, the keys that its own requests' replies are sealed for, and a
record of the campaign on disk. It has no rows, and changes nothing at a site but its ledger.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from privcal.calibration.campaign import Campaign, Recorded
from privcal.data.panels import Panel
from privcal.secure.panel import Secure, SecurePanel


@contextmanager
def distant(
    kit: Path, campaign: Campaign, secure: Secure | None = None, **settings: Any
) -> Iterator[Panel | SecurePanel]:
    """The sites behind a calibrator's kit, while it is connected, with a record on disk.

    With `secure` they answer in secure sums.
    """
    from privcal.transport.federation.calibrator.panel import Sites

    with Sites(kit, **settings) as sites:
        if secure is None:
            yield Recorded(sites, campaign)
        else:
            from privcal.transport.federation.calibrator.secure import SecureSites

            yield SecurePanel(SecureSites(sites, settings["warn"]), secure, campaign)
