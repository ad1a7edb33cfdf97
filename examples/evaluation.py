"""An evaluation: scores before and after a map, in numbers and as a reliability diagram.

Run it with `python examples/evaluation.py [reliability.png]`, on data that one may look at.
"""

import sys

import numpy as np

import privcal
from privcal.datasets import cifar10c


def main(picture: str) -> None:
    scores = cifar10c("motion_blur")  # or privcal.read_scores("mine.parquet")
    rows = np.random.default_rng(0).permutation(len(scores))
    mine, test = scores.take(rows[:2000]), scores.take(rows[2000:])

    # An exact fit on rows of one's own; a map from private sources is measured the same way.
    map = privcal.TemperatureMap(privcal.fit_temperature(mine, objective="nll").temperature)
    before, after = privcal.evaluate(test), privcal.evaluate(test, map)
    print(f"{map.describe()}, measured on {before.rows:,} rows")
    for name in ("accuracy", "mean_confidence", "ece", "brier", "aurc", "nll"):
        print(f"{name:15} {getattr(before, name):.3f} → {getattr(after, name):.3f}")

    # A single metric is a function of two arrays, from wherever they come.
    again = privcal.ece(map.confidence(test), test.correct, bins=15)
    assert abs(again - after.ece) < 1e-9
    display = privcal.ReliabilityDisplay.from_evaluation(after)
    display.plot(name="motion blur, after the map").figure_.savefig(picture)
    print(f"wrote {picture}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "reliability.png")
