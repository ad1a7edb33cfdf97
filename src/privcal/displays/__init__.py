"""Displays: a value that knows the numbers behind a picture, and draws it where one likes."""

from privcal.displays.reliability import ReliabilityDisplay
from privcal.displays.risk import RiskDisplay

__all__ = ["ReliabilityDisplay", "RiskDisplay"]
