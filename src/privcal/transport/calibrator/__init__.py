"""What runs at a calibrator's: one process, a command that asks the sites and makes the map.

It has the calibrator's keys, the keys that the replies to its own letters are sealed for, and a
record of the campaign on disk. It has no rows, and changes nothing at a site but its ledger.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from privcal.calibration.campaign import Campaign, Recorded
from privcal.data.panels import Panel
from privcal.data.wording import plural
from privcal.secure.panel import Secure, SecurePanel


@contextmanager
def distant(
    folder: Path, mailbox: str, campaign: Campaign, secure: Secure | None = None, **settings: Any
) -> Iterator[Panel | SecurePanel]:
    """The sites of the roster in a calibrator's folder, over a mailbox, with a record on disk.

    With `secure` they answer in secure sums. At the end it is told how often letters were waited for.
    """
    from privcal.transport.calibrator.panel import Sites

    sites = Sites.of(folder, mailbox, campaign, **settings)
    try:
        if secure is None:
            yield Recorded(sites, campaign)
        else:
            from privcal.transport.calibrator.secure import SecureSites

            yield SecurePanel(SecureSites(sites), secure, campaign)
    finally:
        sites.exchange.box.close()
    if trips := sites.exchange.trips:
        sites.exchange.warn(plural(trips, "trip"))
