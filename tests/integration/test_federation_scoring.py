"""A running federation with a site that scores its own table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")
pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install privcal[onnx]")
pytest.importorskip("onnx")

import privcal
from privcal.data.ledger import Ledger
from privcal.data.scoring import Setup, model_name
from privcal.transport.federation.calibrator.panel import Sites
from privcal.transport.federation.site import settings as site
from privcal.transport.federation.site import setup
from tests.data.scoring.test_model import PLAIN
from tests.integration.test_federation_accidents import answers
from tests.support import scoring_parts as scoring
from tests.support.federation_parts import ANN, question
from tests.support.federation_processes import Federation

pytestmark = [pytest.mark.xdist_group("federation"), pytest.mark.usefixtures("marks_of_the_sites")]

NAME = "site-2"


def test_a_site_scores_its_table_for_the_campaigns_that_name_its_model(
    federation: Federation, tmp_path: Path
) -> None:
    model = scoring.save(tmp_path / "model.onnx", scoring.net(PLAIN))
    table = tmp_path / "visits.parquet"
    scoring.frame(scoring.numbers(40), np.arange(40) % 3).write_parquet(table)
    settings = federation.site(NAME) / "local" / site.SETTINGS
    before = settings.read_text()
    how = site.Scoring(model, Setup("y", None, scoring.FEATURES))
    made = setup.add(federation.site(NAME), table, privcal.Policy(5.0), person="pid", scoring=how)
    ledger, name = Ledger(made.populations[-1].ledger), model_name(model)
    try:
        with Sites(federation.kits / ANN, timeout=60) as panel:
            [first] = answers(panel, question("scored", 0, model=name), [NAME]).values()
            assert isinstance(first, tuple)
            other = question("scored", 1, model=f"sha256:{'0' * 64}")
            assert answers(panel, other, [NAME]) == {NAME: "model"}
            scoring.frame(scoring.numbers(25, 1), np.arange(25) % 3).write_parquet(table)
            [second] = answers(panel, question("scored", 2, model=name), [NAME]).values()
            assert isinstance(second, tuple)
            assert ledger.nano_spent == 2 * question("scored").nano_epsilon
            model.write_bytes(model.read_bytes() + b"\x00")
            again = answers(panel, question("scored", 3, model=name), [NAME])
            assert again == {NAME: "unavailable"}
        assert ledger.nano_spent == 2 * question("scored").nano_epsilon
    finally:
        settings.write_text(before)
