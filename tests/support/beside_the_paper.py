"""The paper's figures beside a made-up study, whatever its settings."""

import pytest

from privcal.study.paper.reported import Reported, reported
from privcal.study.results import Results


def set_beside_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    def theirs(results: Results) -> Reported | None:
        return reported(results.dataset)

    monkeypatch.setattr(Results, "reported", property(theirs))
