"""What tests of studies share."""

from __future__ import annotations

import pytest

from privcal.study.paper.reported import Reported, reported
from privcal.study.results import Results


@pytest.fixture
def beside_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    """These made-up studies count as the paper's own, so that its figures stand beside them."""

    def theirs(results: Results) -> Reported | None:
        return reported(results.dataset)

    monkeypatch.setattr(Results, "reported", property(theirs))
