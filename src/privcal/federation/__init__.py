"""The same calibration over a network: every source a site of its own, on its own machine.

The loop of `privcal.calibrate` runs at the calibrator (`panel`). Its signed requests (`messages`)
go over cells of NVIDIA FLARE (`cells`), through a server that reads none of them (`server`), to the
sites (`service`), each of which answers in a child process that has the data and no network
(`worker`). Who takes part is made by `kits` and `authority`; who has which keys is in the `roster`.
"""

from __future__ import annotations

from importlib.util import find_spec

from privcal.errors import InputError


def need_flare() -> None:
    """InputError where what a federation needs is not installed."""
    if find_spec("nvflare") is None:
        raise InputError("a federation needs NVIDIA FLARE: pip install privcal[federation]")
