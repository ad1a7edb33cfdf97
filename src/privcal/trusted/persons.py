"""Whom a row is about: an id as text, and the one spelling that a ledger knows a person by."""

from __future__ import annotations

import re
import unicodedata
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

MISSING = {"", "nan", "na", "n/a", "none", "null", "<na>", "nat"}
"""What stands where an id is missing."""
_WHOLE = re.compile(r"-?[0-9]+\.0+")


def person_id(value: Any) -> str:
    """An id as text, a whole number as its decimal digits; "" if the value is no id.

    Blanks around an id, and the `.0` that programs write behind whole numbers once one of them is
    missing, do not make another person: two people taken for one is safe, one taken for two is not.
    """
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if isinstance(value, (float, np.floating)):
        number = float(value)
        # Beyond, two ids may be one number.
        return str(int(number)) if number.is_integer() and abs(number) < 2**53 else ""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return str(int(value))
    if isinstance(value, str) and value.strip().lower() not in MISSING:
        text = value.strip()
        return text.partition(".")[0] if _WHOLE.fullmatch(text) else text
    return ""


_INVISIBLE = re.compile(
    "[\0\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u202a-\u202e"
    "\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U00013438"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]"
)
"""NUL, and category Cf as it is in Unicode 14."""
_nfkc = partial(unicodedata.ucd_3_2_0.normalize, "NFKC")


def _long_known(character: str) -> bool:
    return unicodedata.ucd_3_2_0.category(character) != "Cn"


def folded(id: str) -> str:
    """The one spelling that a ledger knows a person by: that of `id`, a function of `id` alone.

    NUL and invisible characters (category Cf) are dropped, what looks alike is written alike (NFKC),
    case is folded, blanks are collapsed. An id of which nothing is left stays as it is.

    A ledger keeps hashes of the result for years, and tables of Unicode change from one Python to the
    next: a letter that gets a case would give everybody who is spelled with it a second account. So
    no result may depend on this Python's tables. What is normalised are stretches of characters that
    Unicode 3.2 knew, by its tables, which every Python carries unchanged (for names of domains); of
    such characters neither NFKC nor case folding changes any more, by Unicode's policy on stability.
    The invisible characters are a list. Characters that came after 2002 are left as they are: two
    spellings with them may still be two persons.
    """
    text = _INVISIBLE.sub("", id)
    if text.isascii():
        text = text.lower()
    else:
        stretches = (("".join(part), known) for known, part in groupby(text, _long_known))
        text = "".join(
            _nfkc(_nfkc(part).casefold()) if known else part for part, known in stretches
        )
    return person_id(" ".join(text.split())) or id
