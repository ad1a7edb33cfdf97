"""`privcal site block`: a telephone call is enough to keep a party out, at once."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="needs cryptography: pip install privcal[secure]")

from privcal.trusted.errors import Refused
from tests.conftest import Run
from tests.support.parties import ANN, Parties


def test_an_owner_blocks_a_party_and_lets_it_in_again(run: Run, tmp_path: Path) -> None:
    parties = Parties(tmp_path / "parties")
    site, running = parties.where / "site-1", parties.standing("site-1")
    assert "there is no 'ann@lab.org' in the roster" in run.fails("site", "block", site, ANN)
    parties.accept("site-1")
    assert running.sender(parties.keys(ANN).id).name == ANN
    assert run.json("site", "block", site, ANN) == {"blocked": [ANN]}
    with pytest.raises(Refused, match="revoked"):
        running.sender(parties.keys(ANN).id)
    assert "blocked here" in run.ok("roster", "show", site)[0]
    assert run.json("roster", "show", site)["blocked"] == [ANN]
    assert run.json("site", "unblock", site, ANN) == {"blocked": []}
    assert running.sender(parties.keys(ANN).id).name == ANN
    assert "is not blocked" in run.fails("site", "unblock", site, ANN)
