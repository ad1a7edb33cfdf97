"""Shared maps that say how they are uncertain, made by hand."""

from __future__ import annotations

import numpy as np

from privcal import CurveMap, Scores
from privcal.trusted.scores import FloatArray


def shared_map(points: int = 17, spread: float = 0.4) -> CurveMap:
    """A curve through scores from −4 to 8, flat at the ends, uncertain in level, slope and a bend."""
    s = np.linspace(-4, 8, points)
    inner = np.clip(s, *s[[1, -2]])
    directions = spread * np.stack([np.ones(points), inner / 4, np.sin(inner)])
    return CurveMap(
        1.0,
        tuple(s.tolist()),
        tuple((0.6 * inner - 0.4 + 1e-3 * s).tolist()),
        tuple(map(tuple, directions.tolist())),
        provenance={"method": "sketch", "epsilon_per_source": 1.0},
    )


def rows_at(s: FloatArray, right: FloatArray) -> Scores:
    """Rows of two classes whose score at temperature 1 is |s|, predicted rightly or not."""
    logits = np.stack([np.abs(s), np.zeros(len(s))], axis=1)
    return Scores(logits=logits, labels=1 - np.asarray(right, int))


def drawn_rows(rows: int, level: float, seed: int = 0) -> Scores:
    """Rows that are right with log-odds 0.6 s + level."""
    rng = np.random.default_rng(seed)
    s = rng.gamma(2.0, 1.5, rows)
    return rows_at(s, rng.random(rows) < 1 / (1 + np.exp(-(0.6 * s + level))))
