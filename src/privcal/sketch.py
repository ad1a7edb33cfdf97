"""The sketch, under its public name."""

from privcal.calibration.sketch import *  # noqa: F403
from privcal.calibration.sketch import __all__ as __all__
