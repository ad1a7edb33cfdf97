"""The calibrator's side of each algorithm: what to ask next, what map to return.

A method is one file here, or a module of another package (see `privcal.calibration.plugins`), with
`@register("name")` above a class derived from `Method`; every module of this package is imported,
so nothing else needs to be touched.
"""

import importlib
import pkgutil

from privcal.calibration.methods.base import (
    Ask,
    Batch,
    History,
    Method,
    Plan,
    Rounds,
    drive,
    find,
    make,
    names,
    parse_options,
    plan,
    register,
)

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Ask",
    "Batch",
    "History",
    "Method",
    "Plan",
    "Rounds",
    "drive",
    "find",
    "make",
    "names",
    "parse_options",
    "plan",
    "register",
]
