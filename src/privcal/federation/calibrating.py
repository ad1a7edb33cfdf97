"""`privcal calibrate --federation`: the sites of a federation as a panel, with a record on disk."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from privcal.calibrate import Panel
from privcal.errors import InputError
from privcal.federation.campaign import Campaign, Recorded


def campaign_folder(out: Path) -> Path:
    """Where the record of the campaign that writes `out` is kept."""
    return out.with_name(out.name + ".campaign")


def open_campaign(out: Path, plan: dict[str, Any], resume: bool, name: str | None) -> Campaign:
    """A new campaign, or the one that was begun for `out`, if it asks the same."""
    folder = campaign_folder(out)
    if not resume:
        return Campaign.start(folder, {**plan, "campaign": name or secrets.token_hex(8)})
    campaign = Campaign.resume(folder)
    for part, value in plan.items():
        if campaign.plan.get(part) != value:
            raise InputError(
                f"the campaign in {folder} was begun with {part} {campaign.plan.get(part)!r}, "
                f"not {value!r}; resume it with the same"
            )
    if name not in (None, campaign.plan["campaign"]):
        raise InputError(f"the campaign in {folder} is called {campaign.plan['campaign']!r}")
    return campaign


@contextmanager
def distant(kit: Path, campaign: Campaign, **settings: Any) -> Iterator[Panel]:
    """The sites behind a calibrator's kit, while a job of ours runs at them."""
    from privcal.federation.panel import Sites

    with Sites(kit, **settings) as sites:
        yield Recorded(sites, campaign)
