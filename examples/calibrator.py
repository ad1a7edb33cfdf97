"""A calibrator: open sources, ask them, save the map, and use it.

Run it with `python examples/calibrator.py`; twelve clinics get 100 bundled rows each.
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import privcal
from privcal.datasets import cifar10c


def main(folder: Path) -> None:
    scores = cifar10c("motion_blur")
    rows = np.random.default_rng(0).permutation(len(scores))
    for clinic, part in enumerate(np.split(rows[:1200], 12)):
        logits, labels = scores.outputs.array[part], scores.labels[part]
        np.savez(folder / f"clinic-{clinic}.npz", logits=logits, labels=labels)

    # A clinic's owner makes its ledger (examples/owner.py); new_ledgers=True is for trying out.
    clinics = sorted(folder.glob("clinic-*.npz"))
    sources = privcal.open_sources(clinics, new_ledgers=True, per_row=True)
    result = privcal.calibrate(sources, "sketch", epsilon=1.0, min_sources=10, campaign="winter")
    result.map.save(folder / "map.json")  # ships with the model
    print(f"{result.map.describe()}; each of {len(sources)} clinics spent {result.spent[0]:g}")

    # Later, wherever the model runs:
    map = privcal.load_map(folder / "map.json")
    new = scores.take(rows[1200:])
    for name, confidence in (
        ("before", privcal.TemperatureMap(1.0).confidence(new)),
        ("after", map.confidence(new)),
    ):
        print(f"{name}: confident {confidence.mean():.3f}, correct {new.correct.mean():.3f}")


if __name__ == "__main__":
    with TemporaryDirectory() as made:
        os.environ["PRIVCAL_MARKS"] = f"{made}/marks.db"  # real ledgers have theirs elsewhere
        main(Path(made))
