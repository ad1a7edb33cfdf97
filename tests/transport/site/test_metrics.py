"""What whatever watches a machine may know of a site, and that it tells nothing of rows."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from privcal.transport.site.metrics import text
from privcal.transport.site.service import STATUS
from tests.support.letters import ANN, Federation, federation, write_rows

NAME = "site-1"


@pytest.fixture
def fed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    return federation(tmp_path, sites=1, monkeypatch=monkeypatch)


def samples(folder: Path) -> dict[str, float]:
    """Names with labels, and values; strict as to the format's lines."""
    *lines, end = text(folder).splitlines()
    assert end == "# EOF"
    found = {}
    for line in lines:
        if not line.startswith("# "):
            match = re.fullmatch(r'(\w+(?:\{\w+="[^"]*"(?:,\w+="[^"]*")*\})?) (-?[0-9.e+-]+)', line)
            assert match, line
            assert match[1] not in found
            found[match[1]] = float(match[2])
    return found


def test_a_site_that_runs_tells_its_budget_refusals_and_ages(fed: Federation) -> None:
    folder, ann = fed.at(NAME), fed.asker(ANN)
    assert ann.ask(NAME, "a", epsilon=0.5) is None
    assert ann.ask(NAME, "b", model="another") == "model"
    fed.site(NAME).take(b"x")
    fed.site(NAME).looked("/srv/box")
    fed.site(NAME).write_status()
    found = samples(folder)
    assert found["privcal_up"] == 1
    assert found['privcal_epsilon_left{ledger="privcal.ledger"}'] == 9.5
    assert found['privcal_refused_total{code="model"}'] == 1
    assert found['privcal_dropped_total{why="no letter"}'] == 1
    assert 0 <= found["privcal_last_letter_seconds"] < 60
    assert 0 <= found['privcal_last_look_seconds{carrier="/srv/box"}'] < 60
    assert abs(found['privcal_clock_ahead_seconds{asker="ann"}']) < 60
    assert found["privcal_queue"] == 0


def test_a_site_that_does_not_run_tells_its_budget_alone(fed: Federation) -> None:
    assert samples(fed.at(NAME)) == {
        "privcal_up": 0,
        'privcal_epsilon_left{ledger="privcal.ledger"}': 10.0,
    }
    (fed.at(NAME) / "privcal.ledger").unlink()
    assert samples(fed.at(NAME)) == {"privcal_up": 0}


def test_nothing_in_them_depends_on_rows(fed: Federation) -> None:
    folder, told = fed.at(NAME), []
    for rows in (1, 30, 2000):
        write_rows(folder.parent / "data" / f"{NAME}.npz", rows)
        assert fed.asker().ask(NAME, "a", epsilon=0.5) is None
        facts: dict[str, Any] = {"time": time.time(), "process": os.getpid(), "queue": 0}
        (folder / STATUS).write_text(json.dumps(facts))
        told.append(text(folder))
    assert told[0] == told[1] == told[2]


def test_the_command_prints_them(run: Any, fed: Federation) -> None:
    code, out, _ = run("site", "metrics", fed.at(NAME))
    assert code == 0
    assert out == text(fed.at(NAME))
