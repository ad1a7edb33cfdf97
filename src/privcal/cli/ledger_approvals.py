"""`privcal ledger waiting`, `approve` and `release`: campaigns that need their owner's word."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from privcal.cli.console import note, plural, say, show
from privcal.cli.options import Json, LedgerFile, Whose, Yes
from privcal.data.ledger import Ledger
from privcal.data.opening import ledger_of
from privcal.trusted.approvals import Proposal
from privcal.trusted.chain import APPROVED
from privcal.trusted.epsilon import Cost, from_nano
from privcal.trusted.errors import InputError

AGAIN = (
    "You approved this campaign before, but not what it asks now (or an older privcal did not record "
    "the questions): compare the digest again."
)


def waiting(file: LedgerFile, as_json: Json = False) -> None:
    """The campaigns that wait for your approval: who asks what, for how much.

    Only where the policy says `approve = true`. The digest is the one on the page for approval and in
    the letter; the asker can read you theirs.

    Example: `privcal ledger waiting hospital.npz.ledger`
    """
    ledger = ledger_of(file)
    campaigns = ledger.waiting()
    lines = [line for terms, since in campaigns for line in (*_asks(ledger, terms, since), "")]
    lines.append(
        f"approve one with: privcal ledger approve {file} CAMPAIGN"
        if campaigns
        else "no campaign waits for approval"
    )
    document = {"file": str(file), "waiting": [_terms(terms, since) for terms, since in campaigns]}
    show(as_json, document, *lines)


def approve(
    file: LedgerFile,
    campaign: Annotated[str, typer.Argument(help="The campaign, as `ledger waiting` names it.")],
    asker: Whose = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Let a campaign ask what it waits to ask, and no more: recorded in the ledger.

    Example: `privcal ledger approve hospital.npz.ledger spring-2026`
    """
    approved = approve_campaign(ledger_of(file), campaign, asker, yes, as_json)
    show(as_json, {"file": str(file), "approved": approved})
    if not approved:
        raise typer.Exit(1)


def release(
    file: LedgerFile,
    campaign: Annotated[str, typer.Argument(help="The campaign, as `ledger show` names it.")],
    asker: Whose = None,
    as_json: Json = False,
) -> None:
    """Give back the budget that a campaign has reserved and not used, before its reservation ends.

    The campaign may still ask, if there is enough left for it then.

    Example: `privcal ledger release hospital.npz.ledger spring-2026`
    """
    ledger = ledger_of(file)
    held = [
        each
        for each in ledger.reserved()
        if each.campaign == campaign and asker in (None, each.asker)
    ]
    if not held:
        raise InputError(f"no campaign {campaign!r} has reserved anything in {file}")
    for each in held:
        ledger.release(each.campaign, each.asker)
    show(as_json, {"file": str(file), "released": len(held)}, "released; nothing was charged")


def approve_campaign(
    ledger: Ledger, campaign: str, asker: str | None, yes: bool, as_json: bool
) -> bool:
    """Show the owner what a waiting campaign asks, and record the approval; False if they say no.

    With `yes` nobody is asked; otherwise there must be somebody at a terminal.
    """
    matching = [
        (terms, since)
        for terms, since in ledger.waiting()
        if terms.campaign == campaign and asker in (None, terms.asker)
    ]
    if not matching:
        whose = "" if asker is None else f" of {asker!r}"
        raise InputError(
            f"no campaign {campaign!r}{whose} waits for approval; privcal ledger waiting lists those "
            "that do"
        )
    if len(matching) > 1:
        names = ", ".join(terms.asker for terms, _ in matching)
        raise InputError(f"{names} all have a campaign {campaign!r}: say whose with --asker")
    [(terms, since)] = matching
    asks = _asks(ledger, terms, since)
    say(as_json, *asks)
    if as_json and not yes:  # whoever is asked must see what
        note("\n".join(asks))
    if not yes:
        if not sys.stdin.isatty():
            raise InputError("there is nobody to ask here; say --yes to approve it")
        if not typer.confirm("Approve it?", err=True):
            say(as_json, "not approved; it goes on waiting")
            return False
    ledger.approve(terms)  # what was shown: if it asks for something else by now, an error
    say(as_json, "approved")
    return True


def _asks(ledger: Ledger, terms: Proposal, since: str) -> list[str]:
    """What a campaign wants, for its owner to read."""
    approved = [Proposal.of(each.what) for each in ledger.entries() if each.kind == APPROVED]
    again = any((old.asker, old.campaign) == (terms.asker, terms.campaign) for old in approved)
    model = "a model that it does not name" if terms.model is None else f"model {terms.model}"
    return [
        f"Campaign {terms.campaign} of {terms.asker}, waiting since {since}",
        f"asks {plural(terms.requests, 'question')} ({', '.join(terms.kinds)}) about {model},",
        f"for epsilon {from_nano(terms.nano):g} in all"
        + ("." if terms.alone is None else ", in secure sums: against everybody else together"),
        *([] if terms.alone is None else [f"at most epsilon {_alone(terms):g}."]),
        f"Digest (the asker and the approval page show the same one): {terms.digest}",
        *([AGAIN] if again else []),
    ]


def _alone(terms: Proposal) -> float:
    """What a campaign may cost against everybody else together."""
    return from_nano(Cost.of(terms.nano, terms.alone).alone)


def _terms(terms: Proposal, since: str) -> dict[str, Any]:
    return {
        "asker": terms.asker,
        "campaign": terms.campaign,
        "model": terms.model,
        "queries": list(terms.kinds),
        "requests": terms.requests,
        "epsilon": from_nano(terms.nano),
        "secure": terms.alone is not None,
        "alone": _alone(terms),
        "digest": terms.digest,
        "since": since,
    }
