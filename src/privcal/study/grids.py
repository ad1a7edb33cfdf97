"""What a study varies: the paper's three sweeps, its table of factors, how unlike sources are, or
a user's own grid."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privcal.errors import InputError
from privcal.privacy.epsilon import to_nano

PLAIN = ("sources", "samples", "epsilon")
SWEEPS = (*PLAIN, "skew")


@dataclass(frozen=True)
class Setting:
    """One point of a grid: how many sources, rows at each, and the ε of a run.

    ε may be infinite: the same method, without noise (in the study of factors). With a finite
    `skew` sources are not alike, and have `samples` rows on average (see `privcal.study.skew`).
    """

    sweep: str
    sources: int
    samples: int
    epsilon: float
    skew: float = math.inf

    @property
    def private_rows(self) -> int:
        return self.sources * self.samples


def _steps(first: float, last: float, step: float) -> list[float]:
    return [round(first + i * step, 10) for i in range(round((last - first) / step) + 1)]


def _sweep(name: str, values: Sequence[float], **fixed: float) -> list[Setting]:
    found = []
    for value in values:
        point = {**fixed, name: value}
        found.append(
            Setting(
                name,
                int(point["sources"]),
                int(point["samples"]),
                float(point["epsilon"]),
                float(point.get("skew", math.inf)),
            )
        )
    return found


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
    "factors": [
        *_sweep("sources", [10, 50, 250], samples=10, epsilon=1.0),
        *_sweep("epsilon", [0.2, 1.0, 2.0, float("inf")], sources=50, samples=30),
    ],
    HETEROGENEOUS: _sweep("skew", [0.1, 0.3, 1, 3, 10, 100], sources=50, samples=30, epsilon=1.0),
}

FACTORS: list[tuple[str, dict[str, Any]]] = [
    *((name, {"iterations": k}) for name in ("acc-t", "nll-t", "ece-t") for k in range(1, 11)),
    *(
        (name, {"bins": bins})
        for name in ("ece-t", "histogram-binning", "one-hot-binning")
        for bins in (5, 10, 15, 30, 60)
    ),
    *(("nll-t", {"clip": clip}) for clip in (5.0, 10.0, 20.0)),
    *(("ece-t", {"search": search}) for search in ("golden", "grid")),
]
"""The variants that `--grid factors` runs: method, and the option it varies."""


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
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"grid {path} is not valid TOML: {error}") from None
    settings: list[Setting] = []
    for sweep, table in document.items():
        wanted = {"values", *PLAIN} - {sweep}
        if sweep not in SWEEPS or not isinstance(table, dict) or set(table) != wanted:
            raise InputError(
                f"grid {path}: [{sweep}] must be one of [sources], [samples], [epsilon], [skew], with "
                f"values and the others of {', '.join(PLAIN)}"
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
        value = setting[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(
                f"grid {path}: {name} must be a whole number of at least 1, not {value!r}"
            )
    to_nano(setting["epsilon"], f"grid {path}: epsilon")
    skew = setting.get("skew", math.inf)
    if isinstance(skew, bool) or not isinstance(skew, (int, float)) or not skew > 0:
        raise InputError(f"grid {path}: skew must be a number above 0, not {skew!r}")
    return Setting(
        sweep, setting["sources"], setting["samples"], float(setting["epsilon"]), float(skew)
    )
