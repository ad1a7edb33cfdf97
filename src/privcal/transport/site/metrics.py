"""What whatever watches a machine may know of a site, as OpenMetrics text.

It is made of the last words of the site's process and of its ledgers' budgets. Nothing in it
depends on rows but through what was charged for them, which every asker decides.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from privcal.data.ledger import Ledger
from privcal.transport.site.health import last_status
from privcal.transport.site.settings import Site
from privcal.trusted.epsilon import from_nano
from privcal.trusted.errors import InputError, Refused

Sample = tuple[Mapping[str, str], float]


def text(folder: Path) -> str:
    """The metrics of the site in `folder`; few where it does not run."""
    facts = last_status(folder)
    lines: list[str] = []
    for name, kind, help, samples in _metrics(folder, facts):
        lines += [f"# TYPE privcal_{name} {kind}", f"# HELP privcal_{name} {help}"]
        total = "_total" if kind == "counter" else ""
        for labels, value in samples:
            said = ",".join(f"{label}={json.dumps(value)}" for label, value in labels.items())
            lines.append(f"privcal_{name}{total}{'{' + said + '}' if said else ''} {value:.15g}")
    return "\n".join([*lines, "# EOF", ""])


def _metrics(folder: Path, facts: dict[str, Any]) -> Iterator[tuple[str, str, str, list[Sample]]]:
    now = time.time()
    yield "up", "gauge", "Whether the site runs.", [({}, bool(facts))]
    if facts:
        last, looks = facts.get("last_letter"), facts.get("looks") or {}
        since: list[Sample] = [] if last is None else [({}, now - last)]
        yield "last_letter_seconds", "gauge", "Age of the last letter.", since
        ages: list[Sample] = [({"carrier": where}, now - when) for where, when in looks.items()]
        yield "last_look_seconds", "gauge", "Age of the last look, by carrier.", ages
        yield "queue", "gauge", "Letters that wait.", [({}, facts.get("queue") or 0)]
        yield "refused", "counter", "Letters refused, by code.", _by("code", facts, "refused")
        yield "dropped", "counter", "Letters without a reply.", _by("why", facts, "unheard")
        skew = _by("asker", facts, "clocks")
        yield "clock_ahead_seconds", "gauge", "How far an asker's clock is ahead.", skew
    left: list[Sample] = []
    with suppress(InputError):
        for population in Site.load(folder).populations:
            with suppress(Refused):  # health tells why
                ledger = Ledger(population.ledger)
                rest = from_nano((ledger.policy.cap - ledger.spent).nano)
                left.append(({"ledger": population.ledger.name}, rest))
    yield "epsilon_left", "gauge", "Budget that is left.", left


def _by(label: str, facts: dict[str, Any], name: str) -> list[Sample]:
    return [({label: key}, value) for key, value in sorted((facts.get(name) or {}).items())]
