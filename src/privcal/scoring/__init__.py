"""Scores where data are: a table's rows, each run alone through an ONNX model. Needs the extra `onnx`."""

from privcal.scoring.model import Model, model_name
from privcal.scoring.run import score_table, scored

__all__ = ["Model", "model_name", "score_table", "scored"]
