"""A table is scored before anybody asks, and questions about it are answered over a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="needs cryptography: pip install privcal[secure]")
pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install privcal[onnx]")
pytest.importorskip("onnx")

from privcal.data.ledger import Ledger
from privcal.data.scoring import model_name
from privcal.transport.site import ahead, child, setup
from privcal.transport.site import settings as site
from privcal.transport.site.log import LOG
from privcal.trusted.policy import Policy
from tests.data.scoring.test_model import PLAIN
from tests.support import scoring_parts as scoring
from tests.support.letters import ANN, federation, question
from tests.transport.site.test_service import until
from tests.transport.site.test_setup_scoring import SETUP, init, kept_scores, spent, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "site").mkdir()
    return tmp_path / "site"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return scoring.save(tmp_path / "model.onnx", scoring.net(PLAIN))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "visits.parquet", 30)


def test_a_table_is_scored_when_it_changes_before_anybody_asks(
    folder: Path, model: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init(folder, model, table)
    seen: ahead.Stamps = {}
    ahead.look(folder, seen)
    write(table, 17)
    ahead.look(folder, seen)

    def never(*_: Any) -> None:
        pytest.fail("scored in a question's time")

    monkeypatch.setattr("privcal.data.scoring.rows.ScoredRows._score", never)
    [population] = site.Site.load(folder).populations
    assert len(population.source("site").scores) == 17
    assert spent(folder) == 0


def test_a_table_that_cannot_be_scored_is_logged_once(
    folder: Path, model: Path, table: Path
) -> None:
    init(folder, model, table)
    table.write_bytes(b"not a table")
    seen: ahead.Stamps = {}
    for _ in range(3):
        ahead.look(folder, seen)
    assert (folder / LOG).read_text().count("visits.parquet cannot be scored") == 1
    write(table, 9)
    ahead.look(folder, seen)
    [population] = site.Site.load(folder).populations
    assert len(population.source("site").scores) == 9


def test_the_process_that_scores_ahead_ends_with_the_site(
    folder: Path, model: Path, table: Path
) -> None:
    init(folder, model, table)
    kept = kept_scores(folder, model)
    before = {path.name for path in kept.iterdir()}
    write(table, 23)
    process = child._with_data("ahead", folder)
    try:
        assert until(lambda: bool({p.name for p in kept.iterdir() if p.name[0] != "."} - before))
        assert process.stdin is not None
        process.stdin.close()  # as when the site is killed
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()


def test_a_site_scores_its_table_for_the_campaigns_that_name_its_model(
    tmp_path: Path, model: Path, table: Path
) -> None:
    """Over a folder, with the real child."""
    fed = federation(tmp_path / "fed", sites=1)
    ann, name = fed.asker(ANN), model_name(model)
    how = site.Scoring(model, SETUP)
    made = setup.add(fed.at("site-1"), table, Policy(5.0), person="pid", scoring=how)
    ledger = Ledger(made.populations[-1].ledger)

    def asked(campaign: str, model: str) -> str | None:
        request = ann.request("ask", "site-1", question(campaign, model=model))
        letter = ann.put("site-1", request)
        fed.round()
        [reply] = ann.replies("site-1", request, letter)
        return reply.refused

    try:
        assert asked("a", name) is None
        assert asked("b", f"sha256:{'0' * 64}") == "model"
        write(table, 50, seed=8)
        assert asked("c", name) is None
        assert ledger.nano_spent == 2 * question().nano_epsilon
        assert len(list(kept_scores(fed.at("site-1"), model).iterdir())) == 1
        model.write_bytes(model.read_bytes() + b"\x00")
        assert asked("d", name) == "unavailable"
        assert ledger.nano_spent == 2 * question().nano_epsilon
    finally:
        fed.stop()
