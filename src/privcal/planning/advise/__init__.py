"""The planner: what to expect before anybody is asked, and what a target would take."""

from privcal.planning.advise.plan import Plan
from privcal.planning.advise.planner import advise

__all__ = ["Plan", "advise"]
