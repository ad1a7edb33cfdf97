"""`privcal keys`: what an owner sees of keys, and never a private half of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="needs cryptography: pip install privcal[secure]")

import privcal
from privcal.data.ledger import Ledger
from privcal.transport.keys import Keys
from privcal.transport.roster import Card
from privcal.transport.site import setup
from privcal.transport.site.settings import LEDGER
from tests.conftest import Run
from tests.support.parties import write_rows


def test_keys_are_made_with_a_card_to_send(run: Run, tmp_path: Path) -> None:
    told = run.json(
        "keys", "make", tmp_path / "me", "--name", "ann@lab.org", "--role", "calibrator"
    )
    keys = Keys.load(tmp_path / "me")
    card = tmp_path / "me" / "card.json"
    assert told == {"name": "ann@lab.org", "role": "calibrator", "id": keys.id, "card": str(card)}
    assert Card.load(card) == keys.card
    assert "there already" in run.fails("keys", "make", tmp_path / "me", "--name", "x")
    out, _ = run.ok("keys", "card", tmp_path / "me", "--out", tmp_path / "sent.json")
    assert f"calibrator ann@lab.org, ID {keys.id}" in out
    assert Card.load(tmp_path / "sent.json") == keys.card


@pytest.mark.parametrize("more", [(), ("--now",), ("--signing",), ("--signing", "--now")])
def test_keys_are_rotated_and_the_new_card_is_written(
    run: Run, tmp_path: Path, more: tuple[str, ...]
) -> None:
    run.ok("keys", "make", tmp_path / "h1", "--name", "hospital-1")
    old = Keys.load(tmp_path / "h1")
    told = run.json("keys", "rotate", tmp_path / "h1", *more)
    new = Keys.load(tmp_path / "h1")
    assert Card.load(told["card"]) == new.card
    assert new.sealing_public != old.sealing_public
    assert (new.id == old.id) == ("--signing" not in more)
    assert (new.old is not None) == (more == ())


def test_a_sites_new_key_goes_with_its_ledger_from_the_beginning(run: Run, tmp_path: Path) -> None:
    setup.init(tmp_path / "site", write_rows(tmp_path / "rows.npz", 30), privcal.Policy())
    Ledger(tmp_path / "site" / LEDGER).reconcile()
    for more in ((), ("--now",)):
        run.ok("keys", "rotate", tmp_path / "site", *more)
        keys = Keys.load(tmp_path / "site")
    assert keys.ledgers == (Ledger(tmp_path / "site" / LEDGER).generation,)
    assert not keys.lost


def test_keys_are_destroyed(run: Run, tmp_path: Path) -> None:
    run.ok("keys", "make", tmp_path / "h1", "--name", "hospital-1")
    run.ok("keys", "destroy", tmp_path / "h1")
    assert list((tmp_path / "h1" / "keys").iterdir()) == []
    assert "has no keys" in run.fails("keys", "destroy", tmp_path / "h1")
    assert "cannot read the keys" in run.fails("keys", "card", tmp_path / "h1")


def test_no_private_key_is_ever_printed(run: Run, tmp_path: Path) -> None:
    made = run("keys", "make", tmp_path / "h1", "--name", "hospital-1")
    secrets = json.loads((tmp_path / "h1" / "keys" / "privcal.key").read_text())
    for _, out, err in (
        made,
        run("keys", "card", tmp_path / "h1"),
        run("keys", "rotate", tmp_path / "h1"),
    ):
        assert secrets["signing"][:20] not in out + err
        assert secrets["sealing"][16:40] not in out + err


def test_an_old_kit_gets_one_sentence(run: Run, tmp_path: Path) -> None:
    (tmp_path / "kit" / "startup").mkdir(parents=True)
    for words in (("make", tmp_path / "kit", "--name", "x"), ("rotate", tmp_path / "kit")):
        said = run.fails("keys", *words)
        assert said.count("\n") == 1
        assert "start-up kit of an older privcal" in said
