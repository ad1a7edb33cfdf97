"""Scores where data are: a table's rows, each run alone through an ONNX model. Needs the extra `onnx`."""

from privcal.data.scoring.model import Model, Setup, model_name

__all__ = ["Model", "Setup", "model_name"]
