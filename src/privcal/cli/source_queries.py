"""Which query belongs to which method: what a policy must allow for it."""

from __future__ import annotations

from privcal.calibration import methods
from privcal.calibration.methods.base import plan
from privcal.trusted.epsilon import NANO
from privcal.trusted.queries import Query

SOURCES = 30
"""How finely a sketch asks depends on how many sources there are; so many are taken here."""

OFFSETS = "sketch, class_offsets"
BY_OPTION = {"class-hats": OFFSETS, "offset-hats": OFFSETS}
"""Kinds that a method asks only where it is told to, and has public rows."""


def asked_by() -> dict[str, tuple[str, Query | None]]:
    """By the kind of a query: the methods that ask it, and an example where that says more."""
    found: dict[str, tuple[str, Query | None]] = {
        kind: (name, None) for kind, name in BY_OPTION.items()
    }
    asking = {name: methods.make(name) for name in methods.names() if name != "one-source"}
    asking["sketch --event"] = methods.make("sketch", event=1)
    for name, method in asking.items():
        for _, _, ask in plan(method, NANO, sources=SOURCES):
            query = ask.for_run(0)
            before, _ = found.get(query.kind, ("", None))
            names = dict.fromkeys([*filter(None, before.split(", ")), name])
            searched = (
                getattr(query, "temperature", 1.0) != 1.0
            )  # one of many that a search asks at
            found[query.kind] = (", ".join(names), None if searched else query)
    return found
