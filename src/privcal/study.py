"""The study, under its public name."""

from privcal.lab.study import *  # noqa: F403
from privcal.lab.study import __all__ as __all__
