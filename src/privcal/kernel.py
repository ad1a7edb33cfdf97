"""Confidence at a temperature, row by row, for rows that one may look at."""

from privcal.calibration.kernel import FAST

confidence, nll, log_odds, moments = FAST.confidence, FAST.nll, FAST.log_odds, FAST.moments
