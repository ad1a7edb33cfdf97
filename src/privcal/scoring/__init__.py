"""Scores where data are: a table's rows, each run alone through an ONNX model. Needs the extra `onnx`."""

from privcal.scoring.model import Model, model_name
from privcal.scoring.setup import Setup

__all__ = ["Model", "Setup", "model_name"]
