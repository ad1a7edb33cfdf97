"""The audit, under its public name."""

from privcal.lab.audit import *  # noqa: F403
from privcal.lab.audit import __all__ as __all__
