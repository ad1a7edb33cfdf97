"""The calibrator's side of each algorithm: what to ask next, what map to return.

A method is one file here with `@register("name")`; every module of this package is imported, so
nothing else needs to be touched. See `base.Method` for what it must do.
"""

import importlib
import pkgutil

from privcal.methods.base import (
    Ask,
    Batch,
    History,
    Method,
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
    "Rounds",
    "drive",
    "find",
    "make",
    "names",
    "parse_options",
    "plan",
    "register",
]
