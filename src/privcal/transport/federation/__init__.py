"""The same calibration over a network: every source a site of its own, on its own machine.

The loop of `privcal.calibrate` runs at the calibrator. Its signed requests go over cells of NVIDIA
FLARE, through a server that reads none of them, to the sites, each of which answers in a child
process that has the data and no network. Each party has a folder, and its processes import nothing
but that and `shared`:

| party | code | process |
|---|---|---|
| a site (a hospital) | `site/` | `privcal site run`: `site.service` with the network, `site.worker` with the data |
| the server | `server.py` | `privcal federation serve` |
| a calibrator | `calibrator/` | `privcal calibrate --federation` |
| the authority's keeper | `authority/` | none: commands that make, renew and revoke kits |

`inspection` is `privcal federation check`, for anybody's folder; `one_machine` tries it all out.
"""

from __future__ import annotations

from importlib.util import find_spec

from privcal.trusted.errors import InputError


def need_flare() -> None:
    """InputError where NVIDIA FLARE is not installed."""
    if find_spec("nvflare") is None:
        raise InputError("a federation needs NVIDIA FLARE: pip install 'privcal[federation]'")
