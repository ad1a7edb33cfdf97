"""Many ledgers at once: a line for each, for `privcal ledger show FOLDER`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from privcal.cli.console import plural, show, table
from privcal.data.ledger import Ledger
from privcal.data.opening import ledger_path, notes_of
from privcal.data.place import Data
from privcal.data.tables import ENDINGS, outputs_file
from privcal.report.explain import budget_of
from privcal.trusted.errors import InputError, Refused


def ledgers_in(file: Path) -> list[Path]:
    """The ledgers in a folder, or of a table that is split into sources; [] for anything else."""
    if file.suffix.lower() in ENDINGS and file.is_file():
        split = (note for note in notes_of(Data.at(file)) if note.split is not None)
        folder = next((ledger_path(note).parent for note in split), None)
        return [] if folder is None else sorted(folder.glob("*.ledger"))
    if not file.is_dir():
        return []
    with contextlib.suppress(InputError):
        outputs_file(file)
        return []  # the arrays of one source
    return sorted(file.glob("*.ledger"))


def show_ledgers(where: Path, files: Sequence[Path], as_json: bool) -> None:
    """Of each ledger: whom it protects, what is spent, what remains, and whether it would answer."""
    facts = [_facts(file) for file in files]
    columns = ("source", "protects", "requests", "last", "ε spent", "remains", "of", "")
    listed = table(columns, ("source", "protects", "last", ""), title=str(where))
    for one in facts:
        remains = "each person's own" if one["remains"] is None else f"{one['remains']:g}"
        listed.add_row(
            one["name"],
            one["unit"],
            f"{one['requests']:,}",
            one["last"][:10],
            f"{one['spent']:g}",
            remains,
            f"{one['total']:g}",
            one["state"],
        )
    refusing = sum(one["state"] != "" for one in facts)
    said = f"{plural(len(facts), 'ledger')}; privcal ledger show LEDGER tells all about one"
    if refusing:
        said += f"; {refusing} would not answer"
    show(as_json, {"folder": str(where), "ledgers": facts}, listed, said)


def _facts(file: Path) -> dict[str, Any]:
    ledger = Ledger(file)
    try:
        fixed, policy = ledger.facts, ledger.policy
        charges = [entry for entry in ledger.entries() if entry.asked]
    except Refused as refused:
        raise InputError(f"{file} is not a ledger, or is damaged ({refused.__cause__})") from None
    left = policy.cap - ledger.spent
    state = "" if ledger.in_step else "reconcile it"
    common = policy.budget == "population"
    if not state and common and min(left.nano, left.alone) < policy.nano_minimum:
        state = "used up"
    return {
        "file": str(file),
        "id": fixed.id,
        "name": fixed.name,
        "unit": fixed.unit,
        "requests": len(charges),
        "last": charges[-1].time if charges else "",
        **budget_of(ledger),
        "waiting": len(ledger.waiting()),
        "state": state,
    }
