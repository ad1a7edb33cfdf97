"""A letter is opened by its reader alone, and only as its writer sealed it; else it costs one check of a signature."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privcal.trusted.errors import InputError

pytest.importorskip("cryptography", reason="needs cryptography: pip install privcal[secure]")

from privcal.secure import canonical
from privcal.secure.keys import SealingKey
from privcal.transport import letter as module
from privcal.transport.content import Reply, Request
from privcal.transport.keys import rotate
from privcal.transport.letter import MAX_LETTER, Letter, digest, id_of
from privcal.transport.replied import Replied
from tests.support.parties import ANN, BOB, SEAL, Parties, spelt

CANNOT_OPEN = "it was sealed for another key or between other parties"


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    return Parties(tmp_path_factory.mktemp("letters") / "parties")


@pytest.fixture(scope="module")
def good(parties: Parties) -> Letter:
    return parties.letter(parties.request().text)


def test_a_letter_comes_through_unchanged(parties: Parties, good: Letter) -> None:
    read = Letter.read(good.content)
    assert read == good
    read.check(parties.keys(ANN).public)
    assert read.open(parties.keys("site-1").sealing) == parties.request().text
    assert (read.sender, read.reader) == (parties.keys(ANN).id, parties.keys("site-1").id)


def test_its_name_says_whose_it_is_and_what_is_in_it(parties: Parties, good: Letter) -> None:
    assert good.name == f"{parties.keys('site-1').id}-{digest(good.content)}"
    again = parties.letter(parties.request().text)
    assert again.name != good.name, "sealed anew, it is another file"


def test_who_carries_it_sees_ids_and_a_length_and_nothing_else(good: Letter) -> None:
    text = good.content.decode()
    assert set(json.loads(text)) == {"privcal", "from", "to", "sealed", "signature"}
    for word in (ANN, "site-1", "gap", "resnet", "ask"):
        assert word not in text
        assert word.encode() not in base64.b64decode(good.sealed)


def test_an_id_is_of_the_signing_key_alone(parties: Parties) -> None:
    ids = {parties.keys(name).id for name in parties}
    assert len(ids) == 5
    assert all(len(one) == 32 for one in ids)
    with pytest.raises(InputError, match="base64 of the right length"):
        id_of("AAAA")


# --- strangers, members, and other readers --------------------------------------------------


def test_nobody_else_opens_it(parties: Parties, good: Letter) -> None:
    for name in parties.all_but("site-1"):
        with pytest.raises(ValueError, match=CANNOT_OPEN):
            good.open(parties.keys(name).sealing)
    with pytest.raises(ValueError, match=CANNOT_OPEN):
        good.open(SEAL)
    with pytest.raises(ValueError, match=CANNOT_OPEN):
        good.open()


def test_a_letter_in_anothers_name_is_dropped_before_it_is_opened(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a stranger, by another calibrator, and by a site: each with their own good keys."""
    monkeypatch.setattr(SealingKey, "open", lambda *_: pytest.fail("it was opened"))
    ann = parties.keys(ANN)
    for name in parties.all_but(ANN):
        forged = replace(parties.letter("x", by=name), sender=ann.id)
        with pytest.raises(ValueError, match="signature is not right"):
            Letter.read(forged.content).check(ann.public)
        with pytest.raises(ValueError, match="signed by another party"):
            Letter.read(forged.content).check(parties.keys(name).public)


def test_a_letter_that_a_member_stripped_and_signed_as_its_own_does_not_open(
    parties: Parties, good: Letter
) -> None:
    """Bob cannot have Ann's questions answered to himself: the seal is bound to who wrote it."""
    bob = parties.keys(BOB)
    signature = bob.sign(module._signed(bob.id, good.reader, good.sealed))
    stolen = Letter.read(replace(good, sender=bob.id, signature=signature).content)
    stolen.check(bob.public)
    with pytest.raises(ValueError, match=CANNOT_OPEN):
        stolen.open(parties.keys("site-1").sealing)


def test_a_seal_for_one_reader_does_not_open_under_anothers_id(
    parties: Parties, good: Letter
) -> None:
    """Nor where its writer signed that, or both readers have the key."""
    ann, two = parties.keys(ANN), parties.keys("site-2")
    signature = ann.sign(module._signed(ann.id, two.id, good.sealed))
    other = Letter.read(replace(good, reader=two.id, signature=signature).content)
    other.check(ann.public)
    for name in ("site-1", "site-2"):
        with pytest.raises(ValueError, match=CANNOT_OPEN):
            other.open(parties.keys(name).sealing)


def test_a_letter_that_its_reader_passes_on_is_neither_signed_nor_sealed_for_another(
    parties: Parties, good: Letter
) -> None:
    """Site-1 sends on what it got, as Ann's letter to site-2; and seals the same text anew."""
    ann, two = parties.keys(ANN), parties.keys("site-2")
    with pytest.raises(ValueError, match="signature is not right"):
        replace(good, reader=two.id).check(ann.public)
    text = good.open(parties.keys("site-1").sealing)
    anew = replace(parties.letter(text, by="site-1", to="site-2"), sender=ann.id)
    with pytest.raises(ValueError, match="signature is not right"):
        anew.check(ann.public)
    inside = Request.read(parties.letter(text, by="site-1", to="site-2").open(two.sealing))
    assert (inside.sender, inside.reader) != (parties.keys("site-1").id, two.id), (
        "inner is not outer"
    )


def test_its_own_letter_that_comes_back_to_a_party_does_not_open(parties: Parties) -> None:
    """A carrier turns sender and reader round, or only brings it back."""
    site = parties.keys("site-1")
    own = parties.letter("x", by="site-1", to=ANN)
    for back in (own, replace(own, sender=own.reader, reader=own.sender)):
        with pytest.raises(ValueError, match=CANNOT_OPEN):
            back.open(site.sealing)
    to_itself = parties.letter("x", by="site-1", to="site-1")
    assert to_itself.sender == to_itself.reader, "which a site sees before it opens anything"


@pytest.mark.parametrize("part", ["sender", "reader", "sealed", "signature"])
def test_no_part_of_the_outside_can_be_another_letters(
    parties: Parties, good: Letter, part: str
) -> None:
    other = parties.letter("another text", by=BOB, to="site-2")
    mixed = Letter.read(replace(good, **{part: getattr(other, part)}).content)
    for name in (ANN, BOB):
        with pytest.raises(ValueError, match=r"signature is not right|another party"):
            mixed.check(parties.keys(name).public)


def test_a_letter_of_another_version_is_not_opened(parties: Parties, good: Letter) -> None:
    for version in (3, 5, 4.0, True, "4", None):
        with pytest.raises(InputError, match="not of version 4"):
            Letter.read(spelt({**json.loads(good.content), "privcal": version}).encode())


def test_what_is_signed_for_another_purpose_is_no_letter(parties: Parties, good: Letter) -> None:
    """A card, a roster, a box and a letter of another version: each begins with words of its own."""
    ann = parties.keys(ANN)
    bare = canonical.write([good.sender, good.reader, good.sealed])
    for text in (bare, good.sealed, module._signed(good.sender, good.reader, good.sealed)[:-1]):
        with pytest.raises(ValueError, match="signature is not right"):
            replace(good, signature=ann.sign(text)).check(ann.public)
    assert module._signed("a", "b", "c") == canonical.write(["privcal letter 4", "a", "b", "c"])


def test_nobody_but_its_writer_can_make_a_second_file_of_a_letter(
    parties: Parties, good: Letter
) -> None:
    """Else a carrier could have one question answered under as many names as it likes."""
    raw = base64.b64decode(good.signature)
    order = 2**252 + 27742317777372353535851937790883648493
    other = int.from_bytes(raw[32:], "little") + order  # as good a solution, were it reduced
    malleated = base64.b64encode(raw[:32] + other.to_bytes(32, "little")).decode()
    with pytest.raises(ValueError, match="signature is not right"):
        replace(good, signature=malleated).check(parties.keys(ANN).public)
    for spelling in (good.signature + "\n", good.signature.rstrip("="), f" {good.signature}"):
        with pytest.raises(ValueError, match="signature is not right"):
            replace(good, signature=spelling).check(parties.keys(ANN).public)


# --- rotated keys ---------------------------------------------------------------------------


def test_a_letter_for_a_rotated_sealing_key_opens_for_90_days(tmp_path: Path) -> None:
    parties = Parties(tmp_path / "parties")
    sent = parties.letter("x")
    keys, now = rotate(tmp_path / "parties" / "site-1"), time.time()
    assert sent.open(*keys.openers(now)) == "x"
    assert parties.letter("y").open(*keys.openers(now)) == "y"
    with pytest.raises(ValueError, match=CANNOT_OPEN):
        sent.open(*keys.openers(now + 91 * 24 * 3600))
    destroyed = rotate(tmp_path / "parties" / "site-1", now=True)
    with pytest.raises(ValueError, match=CANNOT_OPEN):
        sent.open(*destroyed.openers(now))


# --- files that are no letters --------------------------------------------------------------

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda content: b"",
    "a part of it": lambda content: content[:-1],
    "a line break after it": lambda content: content + b"\n",
    "other spaces": lambda content: json.dumps(json.loads(content)).encode(),
    "another order": lambda content: json.dumps(
        dict(reversed(json.loads(content).items())), separators=(",", ":")
    ).encode(),
    "a part twice": lambda content: content.replace(b'{"from"', b'{"from":"","from"'),
    "an escape": lambda content: content.replace(b'"sealed"', b'"\\u0073ealed"'),
    "a part beside": lambda content: spelt({**json.loads(content), "kind": "ask"}).encode(),
    "no signature": lambda content: put(content, "signature"),
    "no reader": lambda content: put(content, "to"),
    "a list": lambda content: b"[" + content + b"]",
    "deep": lambda content: b"[" * 100_000,
    "many digits": lambda content: content.replace(b":4,", b":" + b"4" * 5000 + b","),
    "not ASCII": lambda content: content[:-1] + "é".encode() + b"}",
    "not UTF-8": lambda content: content + b"\xff",
    "a signature that is a number": lambda content: put(content, "signature", 7),
    "a seal that is a list": lambda content: put(content, "sealed", []),
    "a name for an ID": lambda content: put(content, "from", "site-1"),
    "a long ID": lambda content: put(content, "to", "a" * 33),
    "a loud ID": lambda content: put(content, "to", json.loads(content)["to"].upper()),
    "an ID with a line break": lambda content: put(content, "to", "a" * 31 + "\n"),
    "too long": lambda content: put(content, "sealed", "A" * MAX_LETTER),
}


def put(content: bytes, name: str, value: Any = None) -> bytes:
    facts = {**json.loads(content), name: value}
    return spelt({k: v for k, v in facts.items() if v is not None}).encode()


@pytest.mark.parametrize("name", DAMAGE)
def test_a_file_that_is_no_letter_gets_one_sentence(good: Letter, name: str) -> None:
    with pytest.raises(InputError, match=r"^(its?|an ID) [^\n]+$"):
        Letter.read(DAMAGE[name](good.content))


def test_a_letter_that_nobody_would_read_is_not_written(parties: Parties) -> None:
    with pytest.raises(InputError, match="longer than 2 MiB"):
        parties.letter("x" * MAX_LETTER)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_change_of_any_place_of_a_letter_is_noticed_by_its_signature(
    parties: Parties, good: Letter, data: st.DataObject
) -> None:
    content = good.content
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, min(len(content), start + 20)))
    sent = content[:start] + data.draw(st.binary(max_size=20)) + content[end:]
    if sent != content:
        with pytest.raises(ValueError, match=r"^(it|an ID)"):
            Letter.read(sent).check(parties.keys(ANN).public)


@settings(max_examples=100, deadline=None)
@given(content=st.binary() | st.text().map(str.encode))
def test_anything_else_is_no_letter(content: bytes) -> None:
    with pytest.raises(InputError):
        Letter.read(content)


def test_a_reply_goes_to_the_round_that_asked_and_to_no_other(parties: Parties) -> None:
    asked = parties.request("about")
    text = Replied.to(asked, "0" * 64, parties.roster.stamp, Reply(accepted=True)).text
    site = parties.keys("site-1")
    sent = Letter.write(text, site, asked.sender, asked.reply_key)
    sent.check(site.public)
    assert sent.open(SEAL) == text
    for key in (SealingKey.make(), parties.keys(ANN).sealing, parties.keys(BOB).sealing):
        with pytest.raises(ValueError, match=CANNOT_OPEN):
            sent.open(key)


def test_replies_swapped_between_two_sites_are_not_used(parties: Parties) -> None:
    """A carrier puts one site's reply under the other's name; and a site signs what another sealed."""
    asked = parties.request("about")
    text = Replied.to(asked, "0" * 64, parties.roster.stamp, Reply(accepted=True)).text
    one, two = parties.keys("site-1"), parties.keys("site-2")
    sent = Letter.write(text, one, asked.sender, asked.reply_key)
    with pytest.raises(ValueError, match="signature is not right"):
        replace(sent, sender=two.id).check(two.public)
    signature = two.sign(module._signed(two.id, sent.reader, sent.sealed))
    stolen = replace(sent, sender=two.id, signature=signature)
    stolen.check(two.public)
    with pytest.raises(ValueError, match=CANNOT_OPEN):
        stolen.open(SEAL)


def test_a_reply_to_an_earlier_letter_names_that_one(parties: Parties, good: Letter) -> None:
    """Though both were sealed for one key: whoever reads it holds `about` against its own letter."""
    asked = parties.request("about")
    text = Replied.to(asked, good.digest, parties.roster.stamp, Reply(accepted=True)).text
    later = parties.letter(asked.text)
    assert Replied.read(text).about == good.digest != later.digest
