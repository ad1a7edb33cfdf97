"""Keys of sources in one process: the same again for the same ledger, and for no other."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="secure sums need cryptography: privcal[secure]")

from privcal.data.ledger import Ledger
from privcal.secure.keys import (
    Keys,
    check_public_key,
    check_signature,
    check_signing,
    local_keys,
    member,
    seal,
)


def ledger_at(folder: Path, name: str = "ward.db") -> Ledger:
    return Ledger.create(folder / name, unit="row")


def test_a_ledger_that_is_opened_again_has_the_same_keys(tmp_path: Path) -> None:
    before = member(local_keys(ledger_at(tmp_path)))
    assert member(local_keys(Ledger(tmp_path / "ward.db"))) == before


def test_two_ledgers_have_no_key_in_common(tmp_path: Path) -> None:
    one = member(local_keys(ledger_at(tmp_path)))
    other = member(local_keys(ledger_at(tmp_path, "other.db")))
    assert one.signing != other.signing
    assert one.sealing != other.sealing


def test_a_ledger_that_was_reconciled_has_other_keys(tmp_path: Path) -> None:
    ledger = ledger_at(tmp_path)
    before = local_keys(ledger)
    sealed = seal(before.sealing.public, b"a share", b"")
    ledger.reconcile()  # nothing was behind: it may have forgotten an opening, which costs nothing
    after = local_keys(ledger)
    assert before.public != after.public
    with pytest.raises(ValueError, match="another key"):
        after.sealing.open(sealed, b"")
    ledger.reconcile()
    assert local_keys(ledger).public not in (before.public, after.public)


def test_the_keys_sign_and_open() -> None:
    keys: Keys = local_keys(Ledger.in_memory())
    public = member(keys)
    check_signing(public.signing)
    check_public_key(public.sealing)
    check_signature(public.signing, "a text", keys.sign("a text"))
    assert keys.sealing.open(seal(public.sealing, b"a share", b"about"), b"about") == b"a share"


def test_no_key_is_in_a_text_of_the_object() -> None:
    ledger = Ledger.in_memory()
    keys = local_keys(ledger)
    for text in (repr(keys), str(keys), repr(keys.sealing)):
        assert ledger.secret.hex() not in text
        assert keys.sealing.secret not in text
        assert keys.sealing._raw.hex() not in text


def test_the_parts_are_derived_apart_from_each_other_and_from_the_choice_of_rows() -> None:
    ledger = Ledger.in_memory()
    keys = local_keys(ledger)
    seed = keys._signing.private_bytes_raw()
    raw = keys.sealing._raw
    parts = [seed, raw[:32], raw[32:64], raw[64:], ledger.secret]
    assert len(raw) == 96
    assert len(set(parts)) == len(parts)


def test_the_keys_of_a_federations_site_fit(tmp_path: Path) -> None:
    site = pytest.importorskip("privcal.transport.keys")
    keys: Keys = site.Keys.make(tmp_path / "site", "site-1", "site")
    assert member(keys).sealing == keys.sealing.public
