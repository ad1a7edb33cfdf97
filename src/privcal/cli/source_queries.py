"""Which query belongs to which method: what a policy must allow for it."""

from __future__ import annotations

from privcal import methods
from privcal.methods.base import plan
from privcal.privacy.epsilon import NANO
from privcal.queries import Query

SOURCES = 30
"""How finely a sketch asks depends on how many sources there are; so many are taken here."""

BY_OPTION = {
    "event-hats": "sketch --event",
    "class-hats": "sketch, class_offsets",
    "offset-hats": "sketch, class_offsets",
}
"""Kinds that a method asks only where it is told to."""


def asked_by() -> dict[str, tuple[str, Query | None]]:
    """By the kind of a query: the methods that ask it, and what they ask unless told otherwise."""
    found: dict[str, tuple[str, Query | None]] = {
        kind: (name, None) for kind, name in BY_OPTION.items()
    }
    for name in methods.names():
        if name == "one-source":  # asks nobody
            continue
        for _, _, ask in plan(methods.make(name), NANO, sources=SOURCES):
            query = ask.for_run(0)
            before, _ = found.get(query.kind, ("", None))
            names = dict.fromkeys([*filter(None, before.split(", ")), name])
            found[query.kind] = (", ".join(names), query)
    return found
