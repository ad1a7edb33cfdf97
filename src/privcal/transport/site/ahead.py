"""Scoring ahead: the process at a site that scores its table when that changes, before anybody asks.

Like the one that answers it has the data and no network, and nobody outside can make it do anything.
Without it the first question after a change would wait until all rows are scored, and by how many
delays the reply is late would tell of their number.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path

from privcal.transport.site import log
from privcal.transport.site.settings import Population, Site
from privcal.trusted.errors import InputError, Refused

PAUSE = 10.0
"""Seconds between two looks at the tables."""

Stamps = dict[Population, list[tuple[int, int, int]]]


def look(folder: Path, seen: Stamps) -> None:
    """Score the tables that are not as they were when they were last looked at."""
    for population in _scored(folder):
        stamps = _stamps(population)
        if seen.get(population) == stamps:
            continue
        seen[population] = stamps  # what fails is told once, not at every look
        try:
            population.make_scores()
        except (InputError, Refused, OSError) as error:
            log.write(folder, f"{population.data.name} cannot be scored: {log.line(error)}")


def _scored(folder: Path) -> list[Population]:
    """Those whose tables the site scores itself; none while its owner is changing the settings."""
    try:
        return [p for p in Site.load(folder).populations if p.scoring is not None]
    except InputError:
        return []


def _stamps(population: Population) -> list[tuple[int, int, int]]:
    """What changes when the table or the model does, without reading them."""
    assert population.scoring is not None
    stamps = []
    for path in (population.data, population.scoring.model_file):
        with contextlib.suppress(OSError):
            facts = path.stat()
            stamps.append((facts.st_ino, facts.st_size, facts.st_mtime_ns))
    return stamps


def _pauses() -> Iterator[None]:
    """A pause after each look, until whoever started this process is gone."""
    while True:
        yield
        if select.select([sys.stdin], [], [], PAUSE)[0]:
            return


def main(folder: Path) -> None:
    """Look at the tables now and then, as long as standard input is open."""
    with contextlib.suppress(OSError):
        os.nice(19)  # whoever asks goes first
    seen: Stamps = {}
    for _ in _pauses():
        look(folder, seen)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
