"""The methods, under its public name."""

from privcal.calibration.methods import *  # noqa: F403
from privcal.calibration.methods import __all__ as __all__
