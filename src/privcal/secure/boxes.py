"""Boxes: one site's numbers for one other, sealed for it alone and signed by whoever dealt them.

What is sealed is bound (as the `info` of HPKE) to the terms, to who dealt it and for whom, and so is
the signature under it. So a box that was dealt for another question, or on other terms, by somebody
else or for somebody else, does not open; neither does one that was altered, and nobody can pass
off another's box as their own.

A reader takes one spelling only: so many numbers as the question has, each below the prime, in base64
without a spare bit. Whatever else it is, is a ValueError that says nothing of what was in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from privcal.secure import canonical
from privcal.secure.canonical import from_base64, to_base64
from privcal.secure.keys import OVERHEAD, Keys, check_signature, seal, suite_of
from privcal.secure.sharing import PRIME, WIDTH
from privcal.secure.terms import Members, Terms

Box = tuple[str, str]
"""Sealed numbers in base64, and the dealer's signature."""

SEALED, SIGNED = "privcal share 1", "privcal signed share 1"
"""What a box is for, in what is sealed and in what is signed: a key is used for other things too."""


def deal_box(
    terms: Terms, dealer: str, receiver: str, numbers: Sequence[int], members: Members, keys: Keys
) -> Box:
    """Numbers from 0 to PRIME − 1 in a box of `dealer`, who has `keys`, for `receiver`."""
    plain = b"".join([number.to_bytes(WIDTH, "big") for number in numbers])
    sealing = members.by_name[receiver].sealing
    box = to_base64(seal(sealing, plain, _context(SEALED, terms, dealer, receiver).encode("ascii")))
    return box, keys.sign(_context(SIGNED, terms, dealer, receiver, box))


def check_box(terms: Terms, dealer: str, receiver: str, box: Any, members: Members) -> bytes:
    """What is sealed in a box that `dealer` signed for `receiver`; else a ValueError.

    This much anybody can check. Whether it opens, the receiver alone can tell.
    """
    if type(box) not in (tuple, list) or len(box) != 2:
        raise ValueError("a box has two parts")
    suite = suite_of(members.by_name[receiver].sealing)
    sealed = from_base64(box[0], sealed_size(terms, suite))
    signing = members.by_name[dealer].signing
    check_signature(signing, _context(SIGNED, terms, dealer, receiver, box[0]), box[1])
    return sealed


def open_box(
    terms: Terms, dealer: str, receiver: str, box: Any, members: Members, keys: Keys
) -> list[int]:
    """The numbers that `dealer` dealt for `receiver`, who has `keys`; else a ValueError."""
    sealed = check_box(terms, dealer, receiver, box, members)
    context = _context(SEALED, terms, dealer, receiver)
    plain = keys.sealing.open(sealed, context.encode("ascii"))
    starts = range(0, len(plain), WIDTH)
    numbers = [int.from_bytes(plain[k : k + WIDTH], "big") for k in starts]
    if max(numbers) >= PRIME:
        raise ValueError("a number in it is too large")
    return numbers


def sealed_size(terms: Terms, suite: str) -> int:
    """How many bytes are sealed in a box for a key of this suite."""
    return OVERHEAD[suite] + WIDTH * terms.question.query.length


def _context(tag: str, terms: Terms, *more: str) -> str:
    return canonical.write([tag, terms.digest, *more])
