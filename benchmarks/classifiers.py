"""Ordinary scikit-learn classifiers, shifted: is a sketch as good as binning, and do its intervals hold?

The beds are those of the tests (`tests/support/classifiers.py`). The prior's numbers without public
rows were looked at here, beside the archives of `benchmarks/sketch.py`.
"""

from __future__ import annotations

import numpy as np

from benchmarks import report
from privcal import InputError
from tests.support.classifiers import DATA, MODELS, SHIFTS, bed, measure

RUNS = 12
EPSILONS = (0.5, 1.0, 4.0)
ESTIMATES = ("accuracy", "confidence_before", "ece_before", "ece_after")


def run() -> None:
    places = [(data, shift) for data in DATA for shift in SHIFTS]
    for public in (False, True):
        for epsilon in EPSILONS:
            rows = []
            for model in MODELS:
                found = []
                for seed, (data, shift) in enumerate(places):
                    try:
                        found.append(
                            measure(
                                bed(model, data, shift),
                                runs=RUNS,
                                epsilon=epsilon,
                                public=public,
                                seed=seed,
                            )
                        )
                    except InputError as error:  # too few public rows, or all of them right
                        report.note(f"{model}, {data}, {shift}: {error}")
                errors = {m: [f.ece[m] for f in found] for m in found[0].ece}
                above = np.subtract(errors["sketch"], errors["one-hot-binning"])
                covered = {e: np.mean([f.covered[e] for f in found]) for e in ESTIMATES}
                rows.append(
                    (
                        model,
                        *(f"{np.mean(values):.3f}" for values in errors.values()),
                        f"{above.max():+.3f}",
                        f"{(above > 0.01).sum()} of {len(above)}",
                        *(f"{share:.0%}" for share in covered.values()),
                    )
                )
            report.table(
                f"classifiers: 50 sources of 25 rows, ε {epsilon:g}, "
                f"{'with' if public else 'without'} public rows: mean ECE over "
                f"{len(places)} shifts of {len(DATA)} data sets; how often 95 % intervals hold",
                (
                    "model",
                    *errors,
                    "worst above binning",
                    "by > .01",
                    *(name.replace("_", " ") for name in ESTIMATES),
                ),
                rows,
            )
