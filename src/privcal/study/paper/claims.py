"""Every claim of the paper about its methods, checked with the statistic that its sentence means."""

from __future__ import annotations

from privcal.study.paper.claim import Claim
from privcal.study.paper.factors import factor_claims
from privcal.study.paper.overall import overall_claims
from privcal.study.paper.sweeps import sweep_claims
from privcal.study.paper.without_privacy import without_privacy_claims
from privcal.study.results import Results


def claims_of(main: Results | None, factors: Results | None = None) -> dict[str, list[Claim]]:
    """The claims by topic; without a main study, those that a study of factors can tell."""
    topics = {}
    if main is not None:
        topics = {
            "Acc-T against the other methods": overall_claims(main),
            "Sources, samples and ε": sweep_claims(main, factors),
            "Without privacy, and the range of T": without_privacy_claims(main, factors),
        }
    return {**topics, "What helps and what hurts": factor_claims(factors)}
