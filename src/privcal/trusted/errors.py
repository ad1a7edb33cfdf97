"""The three kinds of errors."""

from __future__ import annotations

from collections.abc import Sequence


class InputError(ValueError):
    """A mistake in something given to privcal.

    The message is one sentence: what is wrong, where, and what to do. The command line prints it
    and ends with exit code 2.

    Examples
    --------
    >>> try:
    ...     privcal.ece([0.5, 1.5], [True, True])
    ... except privcal.InputError as error:
    ...     print(error)
    confidence of row 1 is 1.5, not in [0, 1]
    """


# A closed list: a code depends on the request, the policy and the ledger, and not on rows, except
# `unavailable` (and then `lost`), where an answer failed after its charge.
REFUSALS = {
    "bad_request": "the request is malformed or outside the limits of its query family",
    "asker": "the policy does not let this asker ask",
    "query": "the policy does not allow this kind of query",
    "model": "the scores come from another model than the request names, or lack what it asks for",
    "over_request_limit": "the policy allows less epsilon for one request",
    "under_minimum": "the policy wants more epsilon for one request: answers for less are all noise",
    "over_budget": "not enough of the budget is left",
    "reserved": "campaigns that are running have reserved what is left; a reservation ends two and a "
    "half minutes after its campaign's last question, or with its letter, after a week at the latest",
    "too_often": "the policy allows fewer requests within an hour; ask again later",
    "awaiting_approval": "the owner has not approved what this campaign asks (privcal ledger approve)",
    "id_conflict": "this campaign asked something else here before, or for another epsilon; a new one "
    "needs another name",
    "terms": "the policy does not allow a secure sum on these terms: it wants more honest hospitals, or less "
    "seen by all others together",
    "roster": "the secure sum goes by another roster than the owner accepted (privcal roster accept), or "
    "the site needs new keys (privcal site health tells its owner)",
    "not_secure": "the policy lets nothing leave but in secure sums",
    "opened": "another set of hospitals was opened for this question before; there is one for each",
    "lost": "this request was charged but its answer was lost; it is never drawn again",
    "ledger_missing": "the ledger is missing; only the owner can create one (privcal ledger create)",
    "ledger_rolled_back": "the ledger is not what its high-water mark says, or has none here; the owner "
    "must reconcile it (privcal ledger reconcile)",
    "revoked": "whoever signed this is no longer trusted here",
    "busy": "the source answers as many questions as it can just now",
    "unavailable": "the source cannot answer",
    "version": "the request is of another version of privcal; the older side must be updated",
    "addressee": "the request is not meant for this site",
    "expired": "the request is too old or from the future by this site's clock",
}


class Refused(RuntimeError):
    """A source's refusal to answer.

    It depends on the request, the policy and the ledger, never on rows. The reason behind an
    `unavailable` is chained as `__cause__` for the owner's own terminal; whoever carries a
    refusal to a distant asker must send the code alone.

    Parameters
    ----------
    code
        One of the keys of `privcal.trusted.errors.REFUSALS`; kept as an attribute.

    Examples
    --------
    >>> print(privcal.Refused("over_budget"))
    over_budget: not enough of the budget is left
    """

    def __init__(self, code: str) -> None:
        super().__init__(f"{code}: {REFUSALS[code]}")
        self.code = code

    def __reduce__(self) -> tuple[type[Refused], tuple[str]]:
        return (Refused, (self.code,))


class CalibrationError(RuntimeError):
    """The error of a calibration that could not finish.

    Parameters
    ----------
    message
        What happened, in one sentence.
    spent
        The ε that each source was charged all the same, in the order of the sources; kept as a
        tuple.

    Examples
    --------
    >>> error = privcal.CalibrationError("too few sources answered", [0.5, 0.0])
    >>> error.spent
    (0.5, 0.0)
    """

    def __init__(self, message: str, spent: Sequence[float]) -> None:
        super().__init__(message)
        self.spent = tuple(spent)
