"""Maps as ONNX files, under its public name."""

from privcal.adapters.onnx import *  # noqa: F403
from privcal.adapters.onnx import __all__ as __all__
