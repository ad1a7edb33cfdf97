"""Class offsets: what they do to Brier score and ECE, beside the plain sketch with public rows.

The bundled archive, and those that `PRIVCAL_ARCHIVES` names: separated by spaces, the parts of one
joined by colons. All shifts, clean rows included, at settings where offsets are offered.
"""

from __future__ import annotations

import os

import numpy as np

from benchmarks import report
from privcal.calibration import methods
from privcal.calibration.sketch.prior import resolution
from privcal.planning.simulate import answers
from privcal.planning.simulate.archive import Archive, read_archive
from privcal.planning.simulate.measure import measure
from privcal.planning.simulate.splits import Splits, sequence, stream
from privcal.secure.round import NoiseLaw
from privcal.trusted.epsilon import to_nano

PUBLIC = 2000
SETTINGS = ((250, 10, 1.0), (50, 30, 1.0), (50, 90, 1.0))
TRIALS = int(os.environ.get("PRIVCAL_TRIALS", 20))


def run() -> None:
    named = os.environ.get("PRIVCAL_ARCHIVES", "").split()
    changes = []
    for files in ((), *(tuple(one.split(":")) for one in named)):
        changes += _compare(read_archive(files))
    ece, brier = np.mean(changes, axis=0)
    report.at_most("ECE against the plain sketch, all settings", ece, 0.006, "")
    report.at_most("Brier score, in per cent of the plain sketch's", 100 * brier, -8.0, " %")


def _compare(archive: Archive) -> list[tuple[float, float]]:
    """The change of ECE, and of the Brier score as a share, at each setting."""
    clean = archive.scores("clean")
    aside = np.sort(stream(0, "public").permutation(len(clean))[:PUBLIC])
    public, rest = clean.take(aside), np.setdiff1d(np.arange(len(clean)), aside)
    made = [
        methods.make("sketch", public=public, class_offsets=offsets) for offsets in (False, True)
    ]
    found = np.empty((len(archive.shifts), len(SETTINGS), 2, 2))
    for i, shift in enumerate(archive.shifts):
        prefixes = [sources * samples for sources, samples, _ in SETTINGS]
        seed = sequence(0, shift, "splits")
        splits = Splits.alike(archive.scores(shift).take(rest), prefixes, TRIALS, seed)
        for j, (sources, samples, epsilon) in enumerate(SETTINGS):
            split = splits.at(sources * samples)
            for k, method in enumerate(made):
                rng = stream(0, shift, repr((j, k)))
                maps = answers.run(method, split, sources, epsilon, rng, rows_per_source=samples)
                measured = measure(maps, split)
                found[i, j, k] = measured.ece.mean(), measured.brier.mean()
    mean = found.mean(axis=0)
    change = mean[:, 1, 0] - mean[:, 0, 0], mean[:, 1, 1] / mean[:, 0, 1] - 1
    report.table(
        f"class offsets: {archive.dataset}, {len(archive.shifts)} shifts, {TRIALS} trials",
        ("sources × rows, ε", "R", "ECE plain", "offsets", "", "Brier plain", "offsets", ""),
        [
            (
                f"{d} × {n}, {e:g}",
                f"{resolution(n, NoiseLaw().variance(to_nano(e), d)):.0f}",
                *(f"{mean[j, k, 0]:.4f}" for k in (0, 1)),
                f"{change[0][j]:+.4f}",
                *(f"{mean[j, k, 1]:.4f}" for k in (0, 1)),
                f"{100 * change[1][j]:+.1f} %",
            )
            for j, (d, n, e) in enumerate(SETTINGS)
        ],
    )
    for name, column in (("ECE", 0), ("Brier score", 1)):
        worse = (found[:, :, 1, column] - found[:, :, 0, column]).max(axis=1)
        at = int(worse.argmax())
        report.note(
            f"{name}: most above the plain sketch under {archive.shifts[at]}: {worse[at]:+.4f}"
        )
    return list(zip(*change, strict=True))
