"""What a study varies: the paper's three sweeps, its table of factors, how unlike sources are, or
a user's own grid; and the methods it runs there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from privcal.calibration import methods
from privcal.calibration.methods.base import Method
from privcal.calibration.methods.search import PAPERS_SEARCH, TemperatureSearch
from privcal.data.files import read_toml
from privcal.planning.simulate.variants import (
    EACH,
    ONE_SOURCE,
    ONE_SOURCE_ECE,
    UNCALIBRATED,
    Variant,
    aggregations,
    noise_law,
    takes_public,
    with_public,
)
from privcal.trusted.checks import known, whole
from privcal.trusted.epsilon import to_nano
from privcal.trusted.errors import InputError

PAPERS_SWEEPS = ("sources", "samples", "epsilon")
SWEEPS = (*PAPERS_SWEEPS, "skew")

OWN_FITS = {ONE_SOURCE: "accuracy", "one-source-nll": "nll", ONE_SOURCE_ECE: "ece"}
"""What one owner fits to its own rows: exactly by accuracy or NLL, and as the paper seems to do it."""


@dataclass(frozen=True)
class Setting:
    """One point of a grid: how many sources, rows at each, and the ε of a run.

    ε may be infinite: the same method, without noise (in the study of factors). With a finite
    `skew` sources are not alike, and have `samples` rows on average (see
    `privcal.planning.simulate.splits`).
    """

    sweep: str
    sources: int
    samples: int
    epsilon: float
    skew: float = math.inf

    @property
    def private_rows(self) -> int:
        return self.sources * self.samples


def most_rows(settings: Sequence[Setting]) -> int:
    """The private rows of the largest setting."""
    return max(setting.private_rows for setting in settings)


def _steps(first: float, last: float, step: float) -> list[float]:
    return [round(first + i * step, 10) for i in range(round((last - first) / step) + 1)]


def _sweep(name: str, values: Sequence[float], **fixed: float) -> list[Setting]:
    points = [{"skew": math.inf, **fixed, name: value} for value in values]
    return [
        Setting(name, int(p["sources"]), int(p["samples"]), float(p["epsilon"]), float(p["skew"]))
        for p in points
    ]


FACTORS = "factors"
HETEROGENEOUS = "heterogeneous"
GRIDS: dict[str, list[Setting]] = {
    "cifar": [
        *_sweep("sources", _steps(10, 250, 10), samples=10, epsilon=1.0),
        *_sweep("samples", _steps(5, 50, 5), sources=50, epsilon=1.0),
        *_sweep("epsilon", _steps(0.2, 2.0, 0.2), sources=50, samples=30),
    ],
    "imagenet": [
        *_sweep("sources", _steps(100, 2000, 100), samples=10, epsilon=1.0),
        *_sweep("samples", _steps(5, 100, 5), sources=100, epsilon=1.0),
        *_sweep("epsilon", _steps(0.2, 2.0, 0.2), sources=100, samples=50),
    ],
    # The paper's table of factors, at the setting its sweeps have in common; without noise too.
    FACTORS: [
        *_sweep("sources", [10, 50, 250], samples=10, epsilon=1.0),
        *_sweep("epsilon", [0.2, 1.0, 2.0, float("inf")], sources=50, samples=30),
    ],
    HETEROGENEOUS: _sweep("skew", [0.1, 0.3, 1, 3, 10, 100], sources=50, samples=30, epsilon=1.0),
}

FACTOR_VARIANTS = [
    *(
        Variant(name, (("iterations", k),))
        for name in ("acc-t", "nll-t", "ece-t")
        for k in range(1, 11)
    ),
    *(
        Variant(name, (("bins", bins),))
        for name in ("ece-t", "histogram-binning", "one-hot-binning")
        for bins in (5, 10, 15, 30, 60)
    ),
    *(Variant("nll-t", (("clip", clip),)) for clip in (5.0, 10.0, 20.0)),
    *(Variant("ece-t", (("search", search),)) for search in ("golden", "grid")),
    *(
        Variant(name, (("bounds", bounds),))
        for name in ("acc-t", "nll-t", "ece-t")
        for bounds in ((0.5, 3.0), (0.5, 4.0), (0.5, 6.0), (0.25, 8.0))
    ),
]
"""The methods that `--grid factors` runs, each with the option it varies."""


def make(variant: Variant, **more: Any) -> Method:
    """The method of a variant: what it does not say is as in the paper."""
    searches = issubclass(methods.find(variant.method), TemperatureSearch)
    usual = PAPERS_SEARCH if searches else {}
    return methods.make(variant.method, **{**usual, **dict(variant.options), **more})


def is_usual(variant: Variant) -> bool:
    """Whether its options are those that a study gives the method anyway, and each source answers
    by itself."""
    if variant.aggregation != EACH:
        return False
    if not variant.options:
        return True
    try:
        usual = make(Variant(variant.method))
    except InputError:
        return False
    return all(getattr(usual, name, None) == value for name, value in variant.options)


def variants(grid: str, names: Sequence[str] | None, public_rows: int = 0) -> list[Variant]:
    """What a study runs: the methods named, or all of them; for `factors`, its variants.

    A name may carry options, as `acc-t(bounds=0.5,6)`: such variants come last, as they were named.
    With public rows, a method that has a use for them runs without them and with them; one with
    options, with them where it says so: `sketch(class_offsets=true, public=2000)`.
    """
    if grid == FACTORS:
        every = [*FACTOR_VARIANTS, *(Variant(name) for name in (UNCALIBRATED, *OWN_FITS))]
        return [v for v in every if names is None or {v.method, str(v)} & set(names)]
    every_name = methods.names()
    after = every_name.index(ONE_SOURCE) if ONE_SOURCE in every_name else 0
    every_name[after : after + 1] = OWN_FITS
    named = [Variant(name) if name in every_name else Variant.read(name) for name in names or ()]
    for variant in named:
        known("method", variant.method, every_name)
    chosen = []
    for name in every_name if names is None else [n for n in every_name if n in names]:
        chosen.append(Variant(name))
        if public_rows and name not in OWN_FITS and takes_public(name):
            chosen.append(with_public(name, public_rows))
    with_options = [v for v in dict.fromkeys(named) if v.options or v.aggregation != EACH]
    for variant in with_options:
        if variant.public_rows not in (None, public_rows):
            raise InputError(
                f"{variant} takes {variant.public_rows:,} public rows, and the study sets aside "
                f"{public_rows:,}: give the same number to both"
            )
        if variant.public_rows is None:
            make(variant)  # whatever is wrong with its options is said now
    return chosen + with_options


def aggregated(
    chosen: Sequence[Variant], aggregation: str, grid: str, settings: Sequence[Setting]
) -> list[Variant]:
    """The variants with `each`, `secure` or `both` aggregations.

    Those that ask nobody have none, and one that is named with its own keeps that.
    """
    both = aggregations(aggregation)
    if grid == FACTORS and both != (EACH,):
        raise InputError("the grid factors is about the paper's own setting, without secure sums")
    found: dict[Variant, None] = {}
    for variant in chosen:
        asks = variant.method not in (UNCALIBRATED, *OWN_FITS)
        fixed = not asks or variant.aggregation != EACH
        found |= dict.fromkeys(
            [variant] if fixed else [replace(variant, aggregation=a) for a in both]
        )
    for summed in {variant.aggregation for variant in found}:
        for setting in settings:
            noise_law(summed, setting.sources)  # says where there are too few sources
    return list(found)


def read_grid(name: str) -> list[Setting]:
    """A grid by name, or from a TOML file of the form

        [sources]                # vary this …
        values = [10, 20, 50]
        samples = 10             # … with these two fixed
        epsilon = 1.0

    with one table for each sweep, called sources, samples, epsilon or skew (which takes all three
    others).
    """
    if name in GRIDS:
        return GRIDS[name]
    path = Path(name)
    if not path.is_file():
        raise InputError(
            f"there is no grid {name!r}; there are {', '.join(GRIDS)}, or give a TOML file"
        )
    settings: list[Setting] = []
    for sweep, table in read_toml(path, "grid").items():
        wanted = {"values", *PAPERS_SWEEPS} - {sweep}
        if sweep not in SWEEPS or not isinstance(table, dict) or set(table) != wanted:
            raise InputError(
                f"grid {path}: [{sweep}] must be one of [sources], [samples], [epsilon], [skew], with "
                f"values and the others of {', '.join(PAPERS_SWEEPS)}"
            )
        values = table.pop("values")
        if not isinstance(values, list) or not values:
            raise InputError(f"grid {path}: values of [{sweep}] must be a list of numbers")
        for setting in (dict(table) | {sweep: value} for value in values):
            settings.append(_checked(path, sweep, setting))
    if not settings:
        raise InputError(f"grid {path} is empty")
    return settings


def _checked(path: Path, sweep: str, setting: dict[str, Any]) -> Setting:
    for name in ("sources", "samples"):
        whole(f"grid {path}: {name}", setting[name], 1)
    to_nano(setting["epsilon"], f"grid {path}: epsilon")
    skew = setting.get("skew", math.inf)
    if isinstance(skew, bool) or not isinstance(skew, (int, float)) or not skew > 0:
        raise InputError(f"grid {path}: skew must be a number above 0, not {skew!r}")
    return Setting(
        sweep, setting["sources"], setting["samples"], float(setting["epsilon"]), float(skew)
    )
