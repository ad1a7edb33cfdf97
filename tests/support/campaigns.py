"""A whole campaign over a federation in a folder, and what must hold whatever carries its letters.

`calibrated` is what the calibrator's command does: the same call goes on where an earlier one
ended. `check_all` holds the ledgers, the mailbox and the record to each other.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import privcal
from privcal.calibration.campaign import ANSWERS, Campaign, Recorded
from privcal.secure.panel import Secure, SecurePanel
from privcal.transport.calibrator.exchange import Exchange
from privcal.transport.calibrator.letterbook import Letterbook
from privcal.transport.calibrator.panel import Sites
from privcal.transport.calibrator.secure import SecureSites
from privcal.transport.mailbox import Box
from privcal.transport.standing import Standing
from privcal.trusted.policy import Policy
from privcal.trusted.queries import GRID
from tests.support.letters import ANN, MODEL, Federation, nano, rules

EPSILON = 1.0
QUESTIONS = 3
"""Of acc-t with two iterations: two in its first round, one in the next."""
WAIT, EVERY = 30.0, 0.02


def policy(**more: Any) -> Policy:
    """That of sites which answer alone and in secure sums."""
    return Policy(**{"epsilon": 10.0, "model": MODEL, "secure": rules(), **more})


@contextmanager
def looking(fed: Federation, *names: str) -> Iterator[None]:
    """Meanwhile these sites, or all that run, look again and again; what storage does ends no site."""
    stopped = threading.Event()

    def look(name: str) -> None:
        while not stopped.wait(EVERY):
            running = fed.running.get(name)
            if running is not None:
                try:
                    running[1].look(stopped)
                except BaseException:  # storage that fails, a site that a test just killed
                    continue

    threads = [
        threading.Thread(target=look, args=(name,), daemon=True) for name in names or fed.sites
    ]
    for one in threads:
        one.start()
    try:
        yield
    finally:
        stopped.set()
        for one in threads:
            one.join(10)


def exchange(fed: Federation, box: Box, record: Path, name: str = ANN, **settings: Any) -> Exchange:
    """A calibrator's letters, kept in a campaign's record."""
    settings = {"wait": WAIT, "every": EVERY, **settings}
    return Exchange(Standing(fed.at(name)), box, Letterbook(record), **settings)


def calibrated(
    fed: Federation,
    box: Box,
    record: Path,
    *,
    name: str = ANN,
    secure: Secure | None = None,
    campaign: str = "c",
    **settings: Any,
) -> privcal.Result:
    """The map of a campaign, which begins, or goes on, with the record in this folder."""
    there = Campaign.began(record)  # one that asked nobody begins anew
    kept = Campaign.resume(record) if there else Campaign.start(record, {})
    letters = exchange(fed, box, record, name, silent=kept.finished, **settings)
    sites = Sites(letters, begun=Campaign.began(record))
    panel: Any
    if secure is None:
        panel = Recorded(sites, kept)
    else:
        panel = SecurePanel(SecureSites(sites), secure, kept)
    made = privcal.calibrate(panel, "acc-t", EPSILON, campaign=campaign, model=MODEL, iterations=2)
    kept.finish()
    return made


def rows(fed: Federation, name: str) -> list[sqlite3.Row]:
    """The entries in a site's ledger as they are on disk."""
    with closing(sqlite3.connect(fed.ledger(name).path)) as db:
        db.row_factory = sqlite3.Row
        return db.execute("SELECT * FROM entry ORDER BY seq").fetchall()


def charges(fed: Federation, name: str) -> dict[tuple[Any, ...], sqlite3.Row]:
    """What a site charged, by the questions' names; AssertionError where one was charged twice."""
    found: dict[tuple[Any, ...], sqlite3.Row] = {}
    for row in rows(fed, name):
        if row["kind"] in ("charge", "share"):
            key = row["asker"], row["campaign"], row["round"], row["place"]
            assert key not in found, f"{name} charged {key} twice"
            found[key] = row
    return found


def openings(fed: Federation, name: str) -> dict[str, str]:
    """The set that a site opened, by the question; AssertionError where there are two of one."""
    found: dict[str, str] = {}
    for row in rows(fed, name):
        if row["kind"] == "opening":
            assert row["what"] not in found, f"{name} opened {row['what']} twice"
            found[row["what"]] = row["digest"]
    return found


def check_ledgers(fed: Federation, most: float = EPSILON) -> None:
    """Nobody was charged twice, or for more than a campaign's ε; and no sum was opened twice."""
    opened: dict[str, set[str]] = {}
    for name in fed.sites:
        ledger, charged = fed.ledger(name), charges(fed, name)
        assert ledger.nano_spent == sum(row["epsilon"] for row in charged.values())
        assert ledger.nano_spent <= nano(most)
        assert ledger.in_step
        for _ in ledger.export():
            pass  # raises where the chain is broken
        for what, digest in openings(fed, name).items():
            opened.setdefault(what, set()).add(digest)
    assert all(len(sets) == 1 for sets in opened.values()), "two sets of one sum were opened"


def check_record(fed: Federation, record: Path, asker: str = ANN) -> None:
    """What the calibrator has on record is what ledgers gave, of questions that it asked."""
    lines = [json.loads(line) for line in (record / ANSWERS).read_text().splitlines() if line]
    asked = {line["question"] for line in lines}
    names = {
        (asker, q["campaign"], q["round"], q["index"]): q["nano_epsilon"]
        for q in map(json.loads, asked)
    }
    for name in fed.sites:
        for key, row in charges(fed, name).items():
            if key[0] == asker:
                assert row["epsilon"] == names[key], "charged for what nobody asked"
    for line in lines:
        if "values" in line:
            q = json.loads(line["question"])
            row = charges(fed, line["site"])[asker, q["campaign"], q["round"], q["index"]]
            given = [round(value * GRID) for value in line["values"]]
            assert given == json.loads(row["answer"]), "not the answer that was paid for"


def check_all(fed: Federation, record: Path, most: float = EPSILON) -> None:
    """Ledgers, record, and no site that stopped for what was only storage's doing."""
    check_ledgers(fed, most)
    check_record(fed, record)
    for name, (site, _) in fed.running.items():
        assert site.stopped == "", f"{name}: {site.stopped}"


def quiet(fed: Federation) -> None:
    """Look once more, and wait until no site has a letter in hand; one with which it was killed is over."""
    for _, carrier in list(fed.running.values()):
        with suppress(BaseException):
            carrier.look()  # the last letters of a run ask for no reply, and may still lie there
            carrier.wait()
