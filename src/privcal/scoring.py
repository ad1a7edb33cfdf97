"""Tables through an ONNX model, under its public name."""

from privcal.data.scoring import *  # noqa: F403
from privcal.data.scoring import __all__ as __all__
