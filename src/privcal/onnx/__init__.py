"""Maps as ONNX: a calibration that runs wherever a model does. Needs the extra `onnx`."""

from privcal.onnx.files import append, export, save
from privcal.onnx.outputs import ClassScores, find_scores, read_model, without_zipmaps

__all__ = [
    "ClassScores",
    "append",
    "export",
    "find_scores",
    "read_model",
    "save",
    "without_zipmaps",
]
