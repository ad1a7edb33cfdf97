"""The demonstration: every method, through real sources with real ledgers, on bundled data.

The data are public, so the exact, non-private fit is shown beside each private result: the
price of privacy is the number people want. A real calibration never computes it.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from privcal import methods
from privcal.calibrate import Progress, calibrate
from privcal.checks import whole
from privcal.datasets import cifar10c
from privcal.displays.diagram import together
from privcal.displays.reliability import ReliabilityDisplay
from privcal.errors import InputError
from privcal.evaluation import Evaluation, evaluate
from privcal.fit import Objective, fit_temperature
from privcal.maps import Map, TemperatureMap
from privcal.methods.base import Method, plan
from privcal.plots import save_figure
from privcal.privacy.epsilon import from_nano, to_nano
from privcal.privacy.ledger import Ledger
from privcal.privacy.policy import Policy
from privcal.scores import Scores
from privcal.simulate.answers import exactly
from privcal.source import Source

_EXACT: dict[str, Objective] = {"acc-t": "accuracy", "nll-t": "nll", "ece-t": "ece"}
_MARK = "privcal-demo.txt"


@dataclass(frozen=True)
class Row:
    """One line of the demo's table: a private result and the exact fit beside it."""

    method: str
    map: Map
    spent: float
    """ε charged to each source."""
    before: Evaluation
    after: Evaluation
    exact: Evaluation | None


@dataclass(frozen=True)
class Demo:
    """The table, the folder of maps, ledgers and picture, and how many rows were measured on."""

    rows: list[Row]
    out: Path
    test_rows: int


def run_demo(
    shift: str,
    sources: int,
    samples: int,
    epsilon: float,
    seed: int,
    out: Path,
    progress: Callable[[str, Progress | None], None],
) -> Demo:
    """Split the bundled scores, run every registered method, write maps, ledgers and a picture.

    `progress` is called with the method's name, and with each answer that came in.
    """
    scores = cifar10c(shift)
    whole("sources", sources, 1)
    whole("samples", samples, 1)
    if sources * samples >= len(scores):
        raise InputError(
            f"{sources} sources of {samples} rows are more than the {len(scores):,} rows there are, "
            "less at least one to test on"
        )
    names = methods.names()
    asked = [
        ask.nano_epsilon
        for name in names
        if name != "one-source"  # asks nobody
        for _, _, ask in plan(methods.make(name), to_nano(epsilon))
    ]
    order = np.random.default_rng(seed).permutation(len(scores))
    private, test = order[: sources * samples], scores.take(order[sources * samples :])
    _prepare(out)
    width = len(str(sources))
    all_sources = [
        Source(
            scores.take(private[i * samples : (i + 1) * samples]),
            ledger=Ledger.create(
                out / "ledgers" / f"source-{i + 1:0{width}}.db",
                Policy(epsilon=from_nano(sum(asked))),
                unit="row",
                marks=out / "ledgers" / "marks.db",
            ),
        )
        for i in range(sources)
    ]
    pooled = scores.take(private)
    before = evaluate(test)
    rows = []
    for name in names:
        progress(name, None)
        if name == "one-source":
            fit = all_sources[0].fit_local()
            map: Map = TemperatureMap(fit.temperature, private=False).with_provenance(method=name)
            spent, exact = 0.0, None
        else:
            result = calibrate(
                all_sources,
                name,
                epsilon,
                seed=seed,
                asker="demo",
                campaign=name,
                model=scores.model,
                progress=lambda step, name=name: progress(name, step),  # type: ignore[misc]
            )
            map, spent = result.map, max(result.spent)
            without = without_noise(methods.make(name), pooled)
            exact = evaluate(test, without) if result.rounds else None
        map.save(out / "maps" / f"{name}.json")
        rows.append(Row(name, map, spent, before, evaluate(test, map), exact))
    figure = together(
        [(name, ReliabilityDisplay.from_evaluation(after)) for name, after in _panels(rows)],
        f"CIFAR-10-C {shift.replace('_', ' ')}: {sources} sources of {samples} rows, "
        f"ε = {epsilon:g} at each; measured on {len(test):,} unseen rows",
        columns=5,
    )
    save_figure(out / "reliability.png", figure)
    return Demo(rows, out, len(test))


def _panels(rows: Sequence[Row]) -> list[tuple[str, Evaluation]]:
    panels = [(row.method, row.after) for row in rows]
    best = next((row for row in rows if row.method == "acc-t" and row.exact), None)
    return (
        [*panels, ("acc-t, exact fit (no privacy)", best.exact)] if best and best.exact else panels
    )


def _prepare(out: Path) -> None:
    """An empty folder, or one that an earlier demo made: that one is replaced."""
    if out.exists():
        if not out.is_dir() or (any(out.iterdir()) and not (out / _MARK).exists()):
            raise InputError(f"{out} exists and is not from an earlier demo; choose another --out")
        for old in ("maps", "ledgers"):
            shutil.rmtree(out / old, ignore_errors=True)
        (out / "reliability.png").unlink(missing_ok=True)
    (out / "maps").mkdir(parents=True)
    (out / "ledgers").mkdir()
    (out / _MARK).write_text(
        "Written by `privcal demo`, and replaced when it runs again.\n\n"
        "reliability.png  confidence against accuracy, before and after\n"
        "maps/            one JSON file for each method\n"
        "ledgers/         what left each simulated source (privcal ledger show FILE)\n",
        encoding="utf-8",
    )


def without_noise(method: Method, pooled: Scores) -> Map:
    """The exact fit on all private rows together: what privacy costs is the difference to it."""
    if method.name in _EXACT:
        objective = _EXACT[method.name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return TemperatureMap(fit_temperature(pooled, objective).temperature, private=False)
    return exactly(method, pooled)
