"""Small finished studies, made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from privcal.lab.study.grids import GRIDS, Setting
from privcal.lab.study.paper import METHODS, reported
from privcal.lab.study.results import Results
from privcal.lab.study.store import VERSION
from privcal.planning.simulate.variants import Variant
from tests.support.builders import an_archive

SETTINGS = [
    Setting("sources", 10, 10, 1.0),
    Setting("sources", 20, 10, 1.0),
    Setting("samples", 50, 5, 1.0),
    Setting("samples", 50, 10, 1.0),
    Setting("epsilon", 50, 30, 0.2),
    Setting("epsilon", 50, 30, 2.0),
]
FACTOR_SETTINGS = [
    Setting("sources", 10, 10, 1.0),
    Setting("sources", 250, 10, 1.0),
    Setting("epsilon", 50, 30, 0.2),
    Setting("epsilon", 50, 30, 1.0),
    Setting("epsilon", 50, 30, 2.0),
    Setting("epsilon", 50, 30, float("inf")),
]
VARIANTS = [
    *(Variant(m, (("iterations", k),)) for m in ("acc-t", "nll-t", "ece-t") for k in (1, 5, 10)),
    *(Variant(m, (("bins", b),)) for m in ("ece-t", "histogram-binning") for b in (5, 15, 60)),
    *(Variant("nll-t", (("clip", c),)) for c in (5.0, 10.0, 20.0)),
    Variant("ece-t", (("search", "golden"),)),
    Variant("ece-t", (("search", "grid"),)),
    Variant("uncalibrated"),
]
SHIFTS = ["brightness", "motion_blur", "fog", "clean"]
PAPERS_SHIFTS = [
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur"),
    *("motion_blur", "zoom_blur", "snow", "frost", "fog", "brightness", "contrast"),
    *("elastic_transform", "pixelate", "jpeg_compression", "clean"),
]
THE_PAPERS_ARCHIVE: dict[str, Any] = {
    "rows": 10_000,
    "classes": 10,
    "corrupted": None,
    "frost": None,
}
THE_PAPERS: dict[str, Any] = {"shifts": PAPERS_SHIFTS, "settings": GRIDS["cifar"]}
"""What `make_study` takes to make a study with the paper's shifts and settings."""

Ece = Callable[[str, str, Setting], float]


def make_study(
    folder: Path,
    ece: Ece,
    methods: Sequence[Variant | str] = METHODS,
    shifts: Sequence[str] = SHIFTS,
    settings: Sequence[Setting] = SETTINGS,
    exact: dict[str, float] | None = None,
    grid: str = "cifar",
    se: float = 0.001,
    archive: dict[str, Any] | None = None,
    **more: Any,
) -> Path:
    """Write a study whose ECE is what `ece` says, and whose Brier is half of 1 - ECE, its AURC a third.

    `archive`: what differs from the paper's CIFAR-10 in the archive it ran on.
    """
    names = [str(method) for method in methods]
    common = {"dataset": "CIFAR-10-C", "severity": 5} | more
    config = {
        "version": VERSION,
        **common,
        "digest": "0",
        "grid": grid,
        "settings": [asdict(s) for s in settings],
        "methods": names,
        "shifts": list(shifts),
        "trials": 500,
        "seed": 0,
        "public_rows": 0,
        "keep_trials": False,
        **(THE_PAPERS_ARCHIVE | (archive or {})),
    }
    rows = [
        {
            **common,
            "shift": shift,
            **asdict(setting),
            "method": method,
            "trials": 500,
            "ece_mean": ece(shift, method, setting),
            "ece_se": se,
            "brier_mean": (1 - ece(shift, method, setting)) / 2,
            "aurc_mean": ece(shift, method, setting) / 3,
            "brier_se": se,
            "aurc_se": se,
        }
        for shift in shifts
        for method in names
        for setting in settings
    ]
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(json.dumps(config))
    pl.DataFrame(rows).write_parquet(folder / "results.parquet")
    if exact is not None:
        pl.DataFrame(
            [
                {
                    **common,
                    "shift": shift,
                    "method": method,
                    "halves": 3,
                    "accuracy": 0.75,
                    "ece_mean": value,
                    "ece_se": se,
                    "brier_mean": 0.15,
                    "aurc_mean": 0.05,
                }
                for shift in shifts
                for method, value in exact.items()
            ]
        ).write_parquet(folder / "exact.parquet")
    return folder


EXACT = {"base": 0.2, "nll-t": 0.03, "acc-t": 0.031, "ece-t": 0.03}


def as_the_paper_says(shift: str, method: str, setting: Setting) -> float:
    """Every claim about the methods holds: more helps, and so on."""
    if method == "uncalibrated":
        return 0.3
    if method.startswith("one-source"):
        return 0.10
    base = {"acc-t": 0.05, "ece-t": 0.052, "nll-t": 0.06, "histogram-binning": 0.07}
    amount = setting.sources * setting.samples * setting.epsilon
    return base.get(method, 0.08) + 10 / (amount + 100)


def factors_as_the_paper_says(shift: str, label: str, setting: Setting) -> float:
    """Every direction of the table of factors holds."""
    value = 0.05 + 0.02 / min(setting.epsilon, 10) + 1 / setting.private_rows
    sign = -1 if setting.epsilon == float("inf") else 1
    for option, step in (("iterations=", 0.001), ("bins=", 0.0005), ("clip=", 0.001)):
        if option in label:
            value += sign * step * float(label.split(option)[1].rstrip(")"))
    return value + (0.02 if "grid" in label else 0.0)


@pytest.fixture(scope="module")
def few_will_do() -> Iterator[None]:
    """As if the paper had had a study's few shifts and settings; `test_match` has the rule itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("privcal.lab.study.results.match_study", lambda data, *study: data)
        yield


def tiny_archive(folder: Path) -> Path:
    """An archive of 300 rows under three shifts, each too confident or too humble by a factor."""
    about = {"dataset": "tiny"}
    return an_archive(folder / "tiny.npz", about=about, clean=1.0, fog=1.7, snow=0.6)


def set_beside_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's figures beside a made-up study, whatever its settings."""
    theirs = property(lambda results: reported(results.dataset))
    monkeypatch.setattr(Results, "reported", theirs)
