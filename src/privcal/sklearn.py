"""The adapter for scikit-learn, under its public name."""

from privcal.adapters.sklearn import *  # noqa: F403
from privcal.adapters.sklearn import __all__ as __all__
