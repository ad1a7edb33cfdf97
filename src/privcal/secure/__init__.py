"""Secure sums: the total of many sources' answers, of which nobody sees a part.

Two messages, and one between them that is free: SHARE, CHECK, OPEN. In SHARE each site charges its
ledger, adds its share of the noise, cuts the result into Shamir shares and seals one for each site
that is asked. In CHECK the sites say whose boxes they cannot open. In OPEN each adds up the shares
of one agreed set, and shows the one sum, once for each question.
"""

from __future__ import annotations

from importlib.util import find_spec

from privcal.trusted.errors import InputError


def need_cryptography() -> None:
    """An InputError where the package is missing with which letters and shares are sealed and signed."""
    if find_spec("cryptography") is None:
        raise InputError(
            "letters and secure sums need one more package: pip install 'privcal[secure]'"
        )
