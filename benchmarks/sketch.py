"""The sketch: how fast, how good against private and exact Acc-T, how honest its bands are.

The prior's numbers were chosen on the shifts of `CHOSEN_ON` only (see docs/sketch.md); what is
reported as held out is all the others. `PRIVCAL_TINY_IMAGENET` may name the parts of a
many-class archive, separated by colons.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks import report
from benchmarks.paired import take_turns
from privcal import Scores, study
from privcal.kernel import confidence, log_odds
from privcal.metrics import ece
from privcal.queries import GRID
from privcal.sketch import SketchReader, evaluate_privately
from privcal.study.archive import Archive, read_archive

PUBLIC = 2000
CHOSEN_ON = {
    "CIFAR-10-C": {
        *("brightness", "defocus_blur", "fog", "gaussian_noise"),
        *("impulse_noise", "motion_blur", "shot_noise", "zoom_blur"),
    },
    "Tiny-ImageNet-C": {
        *("contrast", "elastic_transform", "frost", "glass_blur"),
        *("jpeg_compression", "pixelate", "snow"),
    },
}
COMPARED = ["uncalibrated", "acc-t", "sketch"]
WITH = f"sketch(public={PUBLIC})"
EPSILONS = (0.2, 0.5, 1.0, 2.0)
SOURCES, SAMPLES = 50, 30


def run() -> None:
    archives = {"CIFAR-10-C": ()}
    if parts := os.environ.get("PRIVCAL_TINY_IMAGENET"):
        archives["Tiny-ImageNet-C"] = tuple(parts.split(":"))
    else:
        report.note("Tiny-ImageNet-C is skipped: PRIVCAL_TINY_IMAGENET names no archive")
    _speed()
    for name, files in archives.items():
        _quality(name, files)
        _scaled(name, files)
        _honesty(name, read_archive(files))


def _speed() -> None:
    began = time.perf_counter()
    found = study.run(
        methods=["sketch"], public_rows=PUBLIC, shifts=["fog", "snow", "frost", "contrast"]
    )
    each = (time.perf_counter() - began) / (500 * len(found)) * 1e3
    archive = read_archive()
    public = archive.scores("clean").take(slice(0, PUBLIC))
    reader = SketchReader.of(public)
    averages = _sketches(archive.scores("fog"), reader, 1.0, 1, np.random.default_rng(0))[0]
    seconds = take_turns(
        {
            "from averages to map": lambda: reader.read(averages, SOURCES, 2 / SOURCES).maps(1.0),
            "the same, public rows read anew": lambda: (
                SketchReader.of(public).read(averages, SOURCES, 2 / SOURCES).maps(1.0)
            ),
        },
        11,
    )
    rows = [(name, f"{statistics.median(s) * 1e3:.1f} ms") for name, s in seconds.items()]
    report.table(
        "sketch: speed",
        ("what", "time"),
        [("a run of a study, measured and all", f"{each:.3f} ms"), *rows],
    )
    report.at_most("a run of a study", each, 0.1, " ms")
    report.at_most(
        "a single fit", 1e3 * max(statistics.median(s) for s in seconds.values()), 20, " ms"
    )


def _quality(name: str, files: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "study"
        found = study.run(files, methods=COMPARED, public_rows=PUBLIC, trials=200, out=out)
        exact = pl.read_parquet(out / "exact.parquet").filter(pl.col("method") == "acc-t")
    chosen = CHOSEN_ON[name]
    for which, shifts in (
        ("held out", sorted(set(found["shift"]) - chosen - {"clean"})),
        ("chosen on", sorted(chosen)),
    ):
        part = found.filter(pl.col("shift").is_in(shifts))
        truth = exact.filter(pl.col("shift").is_in(shifts))
        of = {m: part.filter(pl.col("method") == m) for m in [*COMPARED, WITH]}
        median = {m: float(np.median(t["ece_mean"].to_numpy())) for m, t in of.items()}
        brier = {m: t["brier_mean"].to_numpy().mean() for m, t in of.items()}
        best, best_brier = (
            float(np.median(truth["ece_mean"].to_numpy())),
            truth["brier_mean"].to_numpy().mean(),
        )
        report.table(
            f"sketch: {name}, {len(shifts)} shifts {which}, cifar grid, 200 trials",
            ("method", "median ECE", "mean ECE", "Brier", "AURC"),
            [
                *(
                    (
                        m,
                        f"{median[m]:.4f}",
                        f"{t['ece_mean'].mean():.4f}",
                        f"{brier[m]:.4f}",
                        f"{t['aurc_mean'].mean():.4f}",
                    )
                    for m, t in of.items()
                ),
                (
                    "acc-t, exact, no privacy",
                    f"{best:.4f}",
                    f"{truth['ece_mean'].mean():.4f}",
                    f"{best_brier:.4f}",
                    f"{truth['aurc_mean'].mean():.4f}",
                ),
            ],
        )
        report.at_most(
            "public: median ECE over private Acc-T's", median[WITH] / median["acc-t"], 0.45, "x"
        )
        report.at_most("public: median ECE over exact Acc-T's", median[WITH] / best, 1.1, "x")
        report.at_most("public: Brier above exact Acc-T's", brier[WITH] - best_brier, 0.002, "")
        report.at_most(
            "alone: median ECE over private Acc-T's", median["sketch"] / median["acc-t"], 0.55, "x"
        )
    cells = found.pivot(
        on="method", index=["shift", "sweep", "sources", "samples", "epsilon"], values="ece_mean"
    )
    for method in (WITH, "sketch"):
        for other, limit in (("uncalibrated", 0.005), ("acc-t", 0.01)):
            worst = cells.with_columns(excess=pl.col(method) - pl.col(other)).sort("excess")[-1]
            where = ", ".join(str(worst[c][0]) for c in ("shift", "sources", "samples", "epsilon"))
            over = int((cells[method] - cells[other] > limit).sum())
            report.at_most(
                f"{method}: worst of {len(cells)} cells above {other} ({where}; {over} over)",
                worst["excess"][0],
                limit,
                "",
            )


def _scaled(name: str, files: Sequence[str]) -> None:
    """All logits (private, test and public) times 0.4 or 2.5, on three held-out shifts."""
    archive = read_archive(files)
    held = [s for s in archive.shifts if s not in CHOSEN_ON[name] | {"clean"}][:3]
    rows = []
    medians: dict[str, list[float]] = {}
    for scale in (1.0, 0.4, 2.5):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "scaled.npz"
            logits = {s: scale * archive.scores(s).outputs.array for s in [*held, "clean"]}
            np.savez(file, labels=archive.scores("clean").labels, **logits)
            found = study.run([file], methods=COMPARED, public_rows=PUBLIC, trials=100, shifts=held)
        for method in [*COMPARED, WITH]:
            value = float(
                np.median(found.filter(pl.col("method") == method)["ece_mean"].to_numpy())
            )
            medians.setdefault(method, []).append(value)
    for method, values in medians.items():
        rows.append((method, *(f"{v:.4f}" for v in values)))
    report.table(
        f"sketch: {name}, median ECE of {len(held)} held-out shifts, all logits scaled",
        ("method", "x 1", "x 0.4", "x 2.5"),
        rows,
    )
    one, *others = medians[WITH]
    report.at_most("public: change under scaling", max(abs(v - one) for v in others), 0.005, "")


def _honesty(name: str, archive: Archive) -> None:
    """Do 95 % bands cover the truth, and is the ECE foretold the ECE found? By ε, held out."""
    rng = np.random.default_rng(0)
    clean = archive.scores("clean")
    aside = rng.permutation(len(clean))
    public = clean.take(aside[:PUBLIC])
    held = [s for s in archive.shifts if s not in CHOSEN_ON[name] | {"clean"}]
    hidden = {shift: archive.scores(shift).take(np.sort(aside[PUBLIC:])) for shift in held}
    rows = []
    for label, reader in (("public", SketchReader.of(public)), ("alone", SketchReader.of())):
        for epsilon in EPSILONS:
            covered, accuracy, before, told, found = [], [], [], [], []
            for scores in hidden.values():
                averages, test = _sketches(scores, reader, epsilon, 12, rng)
                noise = 2 / (epsilon**2 * SOURCES)
                posterior = reader.read(averages, SOURCES, noise)
                s, p, error = _truth(scores, reader)
                for run, kept in enumerate(test):
                    said = evaluate_privately(posterior, reader, run=run)
                    band = said.band
                    middle, low, high = (
                        np.interp(s, band.score, v) for v in (band.accuracy, band.low, band.high)
                    )
                    # The truth is itself known to a standard error only.
                    half = np.where(p > middle, high - middle, middle - low)
                    covered.append(np.abs(p - middle) <= np.hypot(half, 1.96 * error))
                    accuracy.append(
                        said.accuracy.low <= scores.correct.mean() <= said.accuracy.high
                    )
                    c = posterior.maps(reader.temperature)[run].confidence(kept)
                    told.append(said.ece_after.value)
                    found.append(ece(c, kept.correct))
                    own = confidence(kept.outputs, 1.0)
                    before.append(abs(said.ece_before.value - ece(own, kept.correct)))
            rows.append(
                (
                    label,
                    f"{epsilon:g}",
                    f"{np.mean(covered):.1%}",
                    f"{np.mean(accuracy):.1%}",
                    f"{np.mean(before):.3f}",
                    f"{np.mean(told):.3f}",
                    f"{np.mean(found):.3f}",
                )
            )
    report.table(
        f"sketch: {name}, private evaluation on {len(held)} held-out shifts, "
        f"{SOURCES} sources of {SAMPLES} rows",
        (
            "sketch",
            "ε",
            "band covers",
            "accuracy covers",
            "|ECE before − true|",
            "ECE after, told",
            "found",
        ),
        rows,
    )


def _sketches(
    scores: Scores, reader: SketchReader, epsilon: float, runs: int, rng: np.random.Generator
) -> tuple[np.ndarray, list[Scores]]:
    """Average noisy answers of simulated sources, and the rows nobody asked about."""
    query = reader.query
    each = query.contributions(scores)
    averages, rest = [], []
    for _ in range(runs):
        order = rng.permutation(len(scores))
        sums = each.take(order[: SOURCES * SAMPLES]).sum(query.length) / GRID
        noise = rng.laplace(scale=1 / epsilon, size=(SOURCES, query.length)).sum(axis=0)
        averages.append((sums + noise) / SOURCES)
        rest.append(scores.take(np.sort(order[SOURCES * SAMPLES :])))
    return np.array(averages), rest


def _truth(scores: Scores, reader: SketchReader) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean score, accuracy and its standard error of twenty equal parts of the rows."""
    s = log_odds(scores.outputs, reader.temperature)
    parts = np.array_split(np.argsort(s), 20)
    accuracy = np.array([scores.correct[part].mean() for part in parts])
    count = np.array([len(part) for part in parts])
    error = np.sqrt(np.maximum(accuracy * (1 - accuracy), 1 / count) / count)
    return np.array([s[part].mean() for part in parts]), accuracy, error
