"""The maps, under their public name."""

from privcal.calibration.maps import *  # noqa: F403
