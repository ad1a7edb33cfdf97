"""`privcal ledger show`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from privcal.cli.console import note, show
from privcal.cli.ledger_folder import ledgers_in, show_ledgers
from privcal.cli.options import Json, LedgerFile, PageOut, check_page
from privcal.data.files import check_outputs
from privcal.data.ledger import Entry, Ledger
from privcal.data.opening import ledger_of
from privcal.data.place import Data
from privcal.report import pages
from privcal.report.explain import balance, budget_of, flat, promise, written_off_in_words
from privcal.report.owner_pages import ledger_page
from privcal.trusted.accounts import person_hash
from privcal.trusted.epsilon import from_nano
from privcal.trusted.errors import InputError


def show_ledger(
    file: LedgerFile,
    html: PageOut = None,
    as_json: Json = False,
) -> None:
    """What left, when, to whom, at what cost, and what remains.

    Of a folder of ledgers, or of a table that is split into sources: a line for each.

    Examples:

    `privcal ledger show hospital.npz.ledger`

    `privcal ledger show hospital.npz.ledger --html ledger.html`

    `privcal ledger show icu.csv`
    """
    check_page(html)
    check_outputs([html], [file])
    if several := ledgers_in(file):
        if html is not None:
            raise InputError(f"{file} has several ledgers, and a page is of one: name it")
        show_ledgers(file, several, as_json)
        return
    ledger = ledger_of(file)
    if html is not None:
        pages.save(html, ledger_page(ledger))
    entries = [entry for entry in ledger.entries() if entry.kind != "persons"]
    facts, persons, behind = facts_of(ledger), _persons(ledger), ledger.nano_behind()
    reserved, waiting = ledger.reserved(), len(ledger.waiting())
    lines = promise(ledger.policy, ledger.unit)
    if persons is None:
        lines += balance(facts)
    else:
        lines.append(
            f"{persons['left']:,} of {persons['all']:,} persons can still be asked about "
            "(this number is for you: it never leaves)"
        )
    lines += [
        f"reserved now: epsilon {from_nano(r.nano):g} for campaign {r.campaign} of {r.asker}"
        for r in reserved
    ]
    if waiting:
        lines.append(f"waiting for your approval: {waiting} (privcal ledger waiting {file})")
    warn_of_its_mark(ledger)
    document = {
        **facts,
        "persons": persons,
        "behind": None if behind is None else from_nano(behind),
        "in_step": ledger.in_step,
        "reserved": [
            {
                "asker": r.asker,
                "campaign": r.campaign,
                "epsilon": from_nano(r.nano),
                "alone": from_nano(r.alone),
            }
            for r in reserved
        ],
        "waiting": waiting,
        "entries": [_document(entry) for entry in entries],
    }
    if html is not None:
        lines.append(f"page: {html}")
    show(as_json, document, _table(str(ledger.path), entries), *lines)


def warn_of_its_mark(ledger: Ledger) -> None:
    """Tell the owner of a ledger that is not what its mark says: it would not answer."""
    if trouble := ledger.trouble:
        note(f"warning: {trouble}")


def _table(title: str, entries: Sequence[Entry]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD)
    for column in ("time (UTC)", "asker and request", "what", "ε", ""):
        table.add_column(
            column,
            justify="right" if column == "ε" else "left",
            no_wrap=column == "time (UTC)",
            overflow="fold",
        )
    for entry in entries:
        table.add_row(
            entry.time[:16].replace("T", " "),
            f"{entry.about.asker} {entry.about}" if entry.about else "(owner)",
            _readable(entry),
            f"{entry.epsilon:.6g}" if entry.epsilon else "",
            "" if entry.answered or not entry.key else "lost",
        )
    return table


def _document(entry: Entry) -> dict[str, Any]:
    return {
        "time": entry.time,
        "kind": entry.kind,
        "asker": entry.about.asker if entry.about else None,
        "request_id": str(entry.about) if entry.about else None,
        "what": entry.what,
        "epsilon": entry.epsilon,
        "alone": entry.alone,
        "answered": entry.answered,
    }


def _readable(entry: Entry) -> str:
    """What an entry is about, as a person would say it; one that privcal did not write, as it is."""
    try:
        return _in_words(entry)
    except (ValueError, TypeError, LookupError, InputError):
        return entry.what


def _in_words(entry: Entry) -> str:
    if entry.asked:
        facts = entry.query
        parts = [facts.pop("kind")]
        if "temperature" in facts:
            parts.append(f"T={facts.pop('temperature'):.4g}")
        for name, value in sorted(facts.items()):
            values = value if isinstance(value, list) else [value]
            parts.append(f"{name}=" + ",".join(f"{v:g}" for v in values))
        if entry.kind == "share":
            parts.append(f"in a secure sum ({entry.alone:.6g} alone)")
        return " ".join(parts)
    if entry.kind == "opening":
        return "a secure sum was opened"
    if entry.kind == "policy":
        rules = flat(json.loads(entry.what))
        return "policy: " + ", ".join(f"{name} {value}" for name, value in rules.items())
    if entry.kind == "approved":
        facts = json.loads(entry.what)
        return (
            f"approved: campaign {facts['campaign']} of {facts['asker']}, "
            f"{', '.join(facts['kinds'])} about {facts['model'] or 'no named model'}, "
            f"epsilon {from_nano(facts['nano']):g}"
            + (f", in secure sums ({facts['alone']} times alone)" if facts.get("alone") else "")
        )
    if entry.kind == "written off":
        return written_off_in_words(entry)
    if entry.kind == "data":
        return f"data: {Data.noted(json.loads(entry.what))}"
    return entry.what


def facts_of(ledger: Ledger) -> dict[str, Any]:
    """A ledger for --json: what it is, its rules, and what is spent."""
    fixed = ledger.facts
    return {
        "file": str(ledger.path),
        "id": fixed.id,
        "name": fixed.name,
        "unit": fixed.unit,
        "policy": ledger.policy.to_dict(),
        "data": [str(Data.noted(note)) for note in ledger.notes()],
        **budget_of(ledger),
    }


def _persons(ledger: Ledger) -> dict[str, int] | None:
    """How many persons, in the data or ever asked about, have budget left; for the owner alone."""
    policy = ledger.policy
    if policy.budget != "person":
        return None
    facts, secret = ledger.facts, ledger.secret
    known = {who: spent for spent, persons in ledger.persons() for who in persons}
    for data in map(Data.noted, ledger.notes()):
        try:
            scores = data.read()
        except InputError:
            continue
        for who in set([] if scores.person is None else scores.person) - {""}:
            known.setdefault(person_hash(facts.person(who), secret), ledger.nano_written_off)
    return {"left": sum(spent < policy.nano_total for spent in known.values()), "all": len(known)}
