"""The one spelling that a ledger knows a person by."""

from __future__ import annotations

import hashlib
import unicodedata

from hypothesis import example, given
from hypothesis import strategies as st

from privcal.trusted.persons import folded


@given(st.text())
@example("\xc8\u0359")
def test_the_spelling_of_an_id_is_settled_by_itself(id: str) -> None:
    assert folded(folded(id)) == folded(id)
    assert bool(folded(id)) == bool(id)
    # A mark from after 2002 may be put in another order by this Python's tables: two spellings.
    old = "".join(c for c in id if unicodedata.ucd_3_2_0.category(c) != "Cn")
    for form in ("NFC", "NFD"):
        assert folded(unicodedata.ucd_3_2_0.normalize(form, old)) == folded(old)


def test_the_spelling_of_an_id_is_the_same_under_every_python() -> None:
    """What a Unicode of later years says must not give anybody a second account."""
    for late in ("\u1b05\u1b35", "a\u1ab0\u0323", "\u1e9eA"):  # composed, reordered, folded
        assert folded(late) == late[:-1] + late[-1].lower()
    digest = hashlib.sha256()
    for code in range(0x110000):
        digest.update(folded(f"x{chr(code)}Y").encode("utf-8", "surrogatepass") + b"\n")
    assert digest.hexdigest() == (
        "950073b1ef704aca61e9100f4f071e8661669cd05461ca4b2f05c742285723a5"
    )
