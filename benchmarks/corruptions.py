"""The corruptions of images, batched, against a package that takes them one at a time."""

from __future__ import annotations

import statistics
import warnings

import numpy as np

from benchmarks import report
from benchmarks.paired import ratio, take_turns

SIDE, OURS, THEIRS, ROUNDS = 64, 500, 8, 5


def run() -> None:
    try:
        import torch
        from imagecorruptions import corrupt as one_at_a_time
    except ImportError as error:  # the peer wants a setuptools older than 81 too
        report.note(f"the corruptions need torch and imagecorruptions, and are skipped: {error}")
        return
    from privcal.lab.corruptions import CORRUPTIONS, corrupt

    pixels = np.random.default_rng(0).integers(0, 256, (OURS, SIDE, SIDE, 3), np.uint8)
    images = torch.from_numpy(pixels)
    rows, times = [], []
    for name in CORRUPTIONS:

        def ours(name: str = name) -> None:
            corrupt(images, name, 5)

        def theirs(name: str = name) -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for image in pixels[:THEIRS]:
                    one_at_a_time(image, corruption_name=name, severity=5)

        ours()  # what is drawn or compiled once is not counted
        try:
            theirs()
        except (TypeError, AttributeError) as error:  # it is older than the libraries it calls
            rows.append((name, "", f"fails: {type(error).__name__}", ""))
            continue
        seconds = take_turns({"ours": ours, "theirs": theirs}, ROUNDS)
        faster = ratio(seconds["theirs"], seconds["ours"]) * OURS / THEIRS
        times.append(faster)
        fast, slow = (
            f"{count / statistics.median(seconds[who]):,.0f}/s"
            for who, count in (("ours", OURS), ("theirs", THEIRS))
        )
        rows.append((name, fast, slow, f"{faster:.1f}"))
    report.table(
        f"corruptions: {SIDE} x {SIDE} pixels, severity 5, {ROUNDS} rounds",
        ("corruption", "privcal, batches", "imagecorruptions", "times as fast"),
        rows,
    )
    report.note("the other package has constants of its own for images of this size")
    report.at_least("times as fast, median", statistics.median(times), 1, "x")
