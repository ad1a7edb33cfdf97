"""What a calibration would do, on rows that one may look at, and the truth beside it: the demonstration, and rehearsals.

The exact, non-private fit stands beside each private result: the price of privacy is the number people
want. A real calibration never computes it.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from privcal.calibration import methods, metrics
from privcal.calibration.evaluation import Evaluation, evaluate
from privcal.calibration.fit import Objective, fit_local, fit_temperature
from privcal.calibration.loop import Progress, Result, SourceDropped, calibrate
from privcal.calibration.maps import Map, TemperatureMap
from privcal.calibration.methods.base import Method, plan
from privcal.data import opening
from privcal.data.datasets import cifar10c
from privcal.data.ledger import Ledger
from privcal.data.place import Data
from privcal.data.scores import Scores
from privcal.planning.simulate.answers import exactly
from privcal.report.diagram import ReliabilityDisplay, together
from privcal.report.plots import save_figure
from privcal.trusted.checks import whole
from privcal.trusted.epsilon import from_nano, to_nano
from privcal.trusted.errors import InputError
from privcal.trusted.policy import Policy
from privcal.trusted.source import Source

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


def run_demo(
    shift: str,
    sources: int,
    samples: int,
    epsilon: float,
    seed: int,
    out: Path,
    progress: Callable[[str, Progress | None], None],
) -> tuple[list[Row], int]:
    """Split the bundled scores, run every method, and write maps, ledgers and a picture to `out`.

    Returns a row for each method, and how many rows were measured on. `progress` is called with the
    method's name, and with each answer that came in.
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
    rows: list[Row] = []
    for name in names:
        progress(name, None)
        if name == "one-source":
            fit = fit_local(scores.take(private[:samples]))
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
    panels = {row.method: row.after for row in rows}
    exact = next((row.exact for row in rows if row.method == "acc-t"), None)
    if exact is not None:
        panels["acc-t, exact fit (no privacy)"] = exact
    figure = together(
        [(name, ReliabilityDisplay.from_evaluation(after)) for name, after in panels.items()],
        f"CIFAR-10-C {shift.replace('_', ' ')}: {sources} sources of {samples} rows, "
        f"ε = {epsilon:g} at each; measured on {len(test):,} unseen rows",
        columns=5,
    )
    save_figure(out / "reliability.png", figure)
    return rows, len(test)


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


# --- A rehearsal: its ledgers are in memory, and nothing durable is touched -----------------------
# Because the rows may be looked at, the error of every method is measured, which a real calibration
# never does. Rows that a ledger on this machine is known to be for are refused: they are private.

REHEARSAL = "REHEARSAL"
DRAWS = 5
"""How often every method runs: a single draw of the noise says little."""


@dataclass(frozen=True)
class Error:
    """How wrong a confidence (of an event, a risk) is on the rows, exactly."""

    ece: float
    brier: float


@dataclass(frozen=True)
class Rehearsed:
    """One method: what it would cost each source, and how wrong its maps are."""

    method: str
    epsilon: float
    questions: int
    numbers: int
    """How many numbers would leave each source."""
    errors: tuple[Error, ...]
    """Of the map of each draw of the noise."""
    exact: Error | None
    """With the same rows and no noise."""

    @property
    def mean(self) -> Error:
        return Error(
            float(np.mean([e.ece for e in self.errors])),
            float(np.mean([e.brier for e in self.errors])),
        )


@dataclass(frozen=True)
class Rehearsal:
    """How a calibration would go, and what is true of the rows."""

    result: Result
    """Of the method that was asked for, with the first draw of the noise."""
    before: Error
    """With nothing done."""
    methods: tuple[Rehearsed, ...]
    refused: dict[str, str]
    """Methods that cannot run at this setting, and why."""
    rows: int
    unit: str


def check_open(named: Sequence[tuple[Data, Scores]], folder: Path | None = None) -> None:
    """Raise InputError where a ledger on this machine knows these rows, by file or by content."""
    for data, scores in named:
        known = opening.find(data, folder) is not None or opening.lost(data, folder)
        known = known or opening.known_as(scores) is not None
        if known or opening.private_as(data, folder) is not None:
            raise InputError(
                f"{data} has a ledger, so its rows are private, and a rehearsal shows exact figures: "
                "rehearse with data that everybody here may look at"
            )


def rehearse(
    named: Sequence[tuple[Data, Scores]],
    method: Method,
    epsilon: float,
    policy: Policy | None = None,
    *,
    min_sources: int | None = None,
    asker: str = "local",
    model: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Rehearsal:
    """Run `method`, and every other one beside it, and measure on the very rows that were asked.

    Whoever calls this may look at the rows: `check_open`. Without a `policy` the ledgers in memory
    hold just what the run costs.
    """
    rules = policy or Policy(epsilon=epsilon)
    rows = [scores for _, scores in named]
    event = getattr(method, "event", None)

    def once(tried: Method) -> Result:
        sources = [Source(scores, rules, ledger=None, name=data.name) for data, scores in named]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SourceDropped)  # the result says it
            more = {"min_sources": min_sources, "asker": asker, "model": model}
            return calibrate(sources, tried, epsilon, campaign=REHEARSAL.lower(), **more)  # type: ignore[arg-type]

    others, refused = _others(method)
    result = once(method)  # whatever is wrong with the run itself is said first
    found = []
    for number, tried in enumerate([method, *others]):
        if progress:
            progress(tried.name, number, 1 + len(others))
        try:
            first = result if tried is method else once(tried)
            results = [first, *(once(tried) for _ in range(DRAWS - 1) if first.rounds)]
        except (InputError, RuntimeError) as error:
            refused[tried.name] = str(error)
            continue
        found.append(
            Rehearsed(
                tried.name,
                max(first.spent),
                len(first.rounds),
                sum(asked.query.length for asked in first.rounds),
                tuple(error_of(rows, result.map, event) for result in results),
                _exact(tried, rows, event),
            )
        )
    before = error_of(rows, TemperatureMap(1.0), event)
    return Rehearsal(
        result,
        before,
        tuple(found),
        refused,
        sum(map(len, rows)),
        "row" if all(scores.person is None for scores in rows) else "person",
    )


def _others(method: Method) -> tuple[list[Method], dict[str, str]]:
    """The other methods that ask sources, with public rows where they have a use for them."""
    made, refused = [], {}
    public = getattr(method, "public", None)
    for name in methods.names():
        if name in (method.name, "uncalibrated", "one-source"):
            continue
        takes = public is not None and methods.find(name).takes_public
        try:
            made.append(methods.make(name, **({"public": public} if takes else {})))
        except InputError as error:
            refused[name] = str(error)
    return made, refused


def error_of(rows: Sequence[Scores], map: Map, event: int | None) -> Error:
    """How wrong a map is on all these rows: its confidence, or its risk of an event."""
    claimed = [
        map.confidence(logits=one) if event is None else map.predict_proba(logits=one)[:, event]
        for one in rows
    ]
    came = [(map.predict(logits=one) if event is None else event) == one.labels for one in rows]
    p, y = np.concatenate(claimed), np.concatenate(came)
    return Error(metrics.ece(p, y), metrics.brier(p, y))


def _exact(method: Method, rows: Sequence[Scores], event: int | None) -> Error | None:
    """The error without noise; None where the rows are not of one kind, or there are none."""
    kinds = {(scores.outputs.kind, scores.outputs.array.shape[1]) for scores in rows}
    if len(kinds) > 1 or not any(map(len, rows)):
        return None
    [(kind, _)] = kinds
    truth = "correct" if kind == "confidence" else "labels"
    given: dict[str, Any] = {
        kind: np.concatenate([scores.outputs.array for scores in rows]),
        truth: np.concatenate([getattr(scores, truth) for scores in rows]),
    }
    pooled = Scores(**given)
    return error_of(rows, without_noise(method, pooled), event)
