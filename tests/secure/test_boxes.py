"""A box opens for its receiver, from its dealer, about its question; and for nothing else."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography", reason="secure sums need cryptography: privcal[secure]")

from privcal.data.ledger import Ledger
from privcal.secure import canonical
from privcal.secure.boxes import SEALED, SIGNED, Box, check_box, deal_box, open_box
from privcal.secure.canonical import from_base64, to_base64
from privcal.secure.keys import (
    CLASSICAL,
    HYBRID,
    Keys,
    LocalKeys,
    SealingKey,
    local_keys,
    member,
    seal,
)
from privcal.secure.sharing import PRIME, WIDTH
from privcal.secure.terms import Members, Terms
from privcal.trusted.queries import CellHistogram
from privcal.trusted.question import Question

NAMES = ("a", "b", "c", "d")
KEYS: dict[str, Keys] = {name: local_keys(Ledger.in_memory()) for name in NAMES}
MEMBERS = Members({name: member(keys) for name, keys in KEYS.items()})
QUESTION = Question.of(CellHistogram(bins=2), 0.5, "spring")  # four numbers
TERMS = Terms(QUESTION, "acme", NAMES, 1, 4, 10, 1, MEMBERS.digest)
NUMBERS = [0, 1, PRIME - 1, 2**64]


def deal(
    numbers: list[int] = NUMBERS,
    terms: Terms = TERMS,
    dealer: str = "a",
    receiver: str = "b",
    keys: Keys = KEYS["a"],
) -> Box:
    return deal_box(terms, dealer, receiver, numbers, MEMBERS, keys)


def opened(box: Any, terms: Terms = TERMS, dealer: str = "a", receiver: str = "b") -> list[int]:
    return open_box(terms, dealer, receiver, box, MEMBERS, KEYS[receiver])


def bad() -> Any:
    """What a bad box is: a ValueError that says something."""
    return pytest.raises(ValueError, match=r"\w")


def sealed_by_a_liar(plain: bytes, tag: str = SEALED, signed: str = SIGNED) -> Box:
    """A box from a to b that is signed as it should be, whatever is in it."""
    info = canonical.write([tag, TERMS.digest, "a", "b"]).encode()
    box = to_base64(seal(MEMBERS.by_name["b"].sealing, plain, info))
    return box, KEYS["a"].sign(canonical.write([signed, TERMS.digest, "a", "b", box]))


@given(st.lists(st.integers(0, PRIME - 1), min_size=4, max_size=4))
@settings(max_examples=20)
@example([0, 0, 0, 0])
@example([PRIME - 1] * 4)
def test_the_receiver_gets_the_numbers_that_were_dealt(numbers: list[int]) -> None:
    assert opened(deal(numbers)) == numbers


def test_two_boxes_with_the_same_numbers_have_nothing_in_common() -> None:
    one, other = from_base64(deal()[0]), from_base64(deal()[0])
    assert sum(x == y for x, y in zip(one, other, strict=True)) < len(one) / 10


OTHER = {
    "question": TERMS.about(replace(QUESTION, campaign="autumn")),
    "epsilon": TERMS.about(replace(QUESTION, nano_epsilon=QUESTION.nano_epsilon + 1)),
    "asker": replace(TERMS, asker="zeta"),
    "alone": replace(TERMS, alone=11),
    "rows of a person": replace(TERMS, rows_per_person=2),
    "roster": replace(TERMS, roster="0000"),
    "colluding": replace(TERMS, colluding=0, honest=0, threshold=0),
    "sites": replace(TERMS, sites=("a", "b", "c", "e")),
}


@pytest.mark.parametrize("terms", OTHER.values(), ids=OTHER)
def test_a_box_of_other_terms_does_not_open(terms: Terms) -> None:
    with bad():
        opened(deal(), terms)
    box = deal()[0]
    signed = KEYS["a"].sign(canonical.write([SIGNED, terms.digest, "a", "b", box]))
    with bad():  # not even where its dealer signs it anew
        opened((box, signed), terms)


def test_a_box_for_somebody_else_does_not_open() -> None:
    with bad():
        opened(deal(receiver="c"))
    box, _ = deal(receiver="c")
    resigned = KEYS["a"].sign(canonical.write([SIGNED, TERMS.digest, "a", "b", box]))
    with bad():
        opened((box, resigned))


def test_nobody_passes_off_anothers_box_as_their_own() -> None:
    box, _ = deal()  # from a to b; c signs it as its own
    stolen = KEYS["c"].sign(canonical.write([SIGNED, TERMS.digest, "c", "b", box]))
    with bad():
        opened((box, stolen), dealer="c")
    assert check_box(TERMS, "c", "b", (box, stolen), MEMBERS)  # only b can tell


def test_nobody_deals_in_anothers_name() -> None:
    forged = deal(keys=KEYS["c"])
    for check in (opened, lambda box: check_box(TERMS, "a", "b", box, MEMBERS)):
        with bad():
            check(forged)


def test_sender_and_receiver_cannot_be_swapped() -> None:
    with bad():
        open_box(TERMS, "b", "a", deal(), MEMBERS, KEYS["a"])


@pytest.mark.parametrize(("tag", "signed"), [(SIGNED, SIGNED), (SEALED, SEALED), ("x", SIGNED)])
def test_what_a_key_is_used_for_is_sealed_and_signed_too(tag: str, signed: str) -> None:
    with bad():
        opened(sealed_by_a_liar(bytes(4 * WIDTH), tag, signed))
    assert opened(sealed_by_a_liar(bytes(4 * WIDTH))) == [0] * 4


@given(st.data())
@settings(max_examples=60)
def test_a_box_with_one_letter_changed_is_bad(data: st.DataObject) -> None:
    box = list(deal())
    part = data.draw(st.integers(0, 1))
    place = data.draw(st.integers(0, len(box[part]) - 1))
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=- \n"
    letter = data.draw(st.sampled_from([c for c in letters if c != box[part][place]]))
    box[part] = box[part][:place] + letter + box[part][place + 1 :]
    with bad():
        opened(tuple(box))


def number(value: int) -> bytes:
    return value.to_bytes(WIDTH, "big")


@pytest.mark.parametrize(
    "plain",
    [
        b"",
        bytes(3 * WIDTH),
        bytes(5 * WIDTH),
        bytes(4 * WIDTH - 1),
        bytes(4 * WIDTH + 1),
        bytes(4 * (WIDTH - 1)),
        number(PRIME) + bytes(3 * WIDTH),
        bytes(3 * WIDTH) + number(PRIME + 1),
        bytes(WIDTH) + b"\xff" * WIDTH + bytes(2 * WIDTH),
    ],
)
def test_a_dealer_who_seals_something_else_than_the_numbers_is_noticed(plain: bytes) -> None:
    with bad():
        opened(sealed_by_a_liar(plain))


def test_a_box_has_one_spelling() -> None:
    box, signature = deal()
    decoded = from_base64(box)
    spellings: list[Callable[[bytes], str]] = [
        lambda data: base64.urlsafe_b64encode(data).decode() + "",
        lambda data: base64.b64encode(data).decode() + "\n",
        lambda data: base64.b64encode(data).decode().rstrip("="),
        lambda data: base64.b64encode(data).decode() + "====",
        lambda data: data.hex(),
    ]
    for spell in spellings:
        other, resigned = spell(decoded), spell(from_base64(signature))
        if other != box:  # signed as it should be: its spelling alone is wrong
            signed = KEYS["a"].sign(canonical.write([SIGNED, TERMS.digest, "a", "b", other]))
            with bad():
                opened((other, signed))
        if resigned != signature:
            with bad():
                opened((box, resigned))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=6,
)


@given(ANYTHING | st.tuples(ANYTHING, ANYTHING) | st.lists(ANYTHING, min_size=2, max_size=2))
@settings(max_examples=200)
@example(None)
@example({0: "x", 1: "y"})
@example("ab")
@example((deal()[0],))
@example((*deal(), "more"))
@example((deal()[0], None))
@example((None, deal()[1]))
def test_whatever_else_a_box_is_it_is_bad_and_nothing_worse(box: Any) -> None:
    with bad():
        opened(box)


def test_what_is_wrong_with_a_box_is_said_without_what_is_in_it() -> None:
    secret = 123456789123456789
    for box in (
        sealed_by_a_liar(number(PRIME) + number(secret) * 3),
        sealed_by_a_liar(number(secret) * 5),
        deal([secret] * 4, receiver="c"),
    ):
        with bad() as error:
            opened(box)
        seen: BaseException | None = error.value
        while seen is not None:
            assert str(secret) not in str(seen)
            assert number(secret).hex() not in str(seen)
            seen = seen.__cause__ or seen.__context__


@pytest.mark.parametrize("suite", [HYBRID, CLASSICAL])
def test_a_box_is_of_the_size_of_its_receivers_suite(suite: str) -> None:
    keys = LocalKeys(KEYS["b"]._signing, SealingKey.make(suite))  # type: ignore[attr-defined]
    members = Members({**MEMBERS.by_name, "b": member(keys)})
    box = deal_box(TERMS, "a", "b", NUMBERS, members, KEYS["a"])
    assert open_box(TERMS, "a", "b", box, members, keys) == NUMBERS
    other = Members({**MEMBERS.by_name, "b": member(KEYS["b"])})
    assert (len(check_box(TERMS, "a", "b", box, members)) == 4 * WIDTH + 1136) is (suite == HYBRID)
    if suite == CLASSICAL:
        with bad():
            check_box(TERMS, "a", "b", box, other)
