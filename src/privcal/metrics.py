"""The metrics, under its public name."""

from privcal.calibration.metrics import *  # noqa: F403
