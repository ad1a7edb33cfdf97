"""Names that kits and messages must agree on."""

from __future__ import annotations

CALIBRATOR_ROLE = "lead"  # FLARE's name, in a certificate, for those who may ask
