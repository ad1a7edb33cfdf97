"""Recalibration from real hospitals under privacy: the worked example of docs/hospitals.md.

    python examples/hospitals.py --icu icu_apache.csv --heart heart/ --out results/

The data are public, and only therefore is everything below allowed to look at test outcomes and
at exact fits. docs/hospitals.md says where to get them.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import typer
from matplotlib.figure import Figure

import privcal
from privcal.calibration.evaluation import evaluate
from privcal.calibration.fit import Objective, fit_local
from privcal.calibration.loop import AGGREGATIONS
from privcal.calibration.methods.base import Ask, Method
from privcal.calibration.methods.search import TemperatureSearch
from privcal.cli.console import note, progress_bar
from privcal.data.readers import read_sources
from privcal.data.scores import Scores
from privcal.maps import LEFT_ALONE, Map, RiskMap, TemperatureMap
from privcal.planning.simulate import answers
from privcal.planning.simulate.answers import exactly, prior_map
from privcal.planning.simulate.variants import Variant, noise_law
from privcal.report.plots import save_figure
from privcal.report.study.figures import styles
from privcal.secure.terms import FEWEST, usual_colluding
from privcal.sketch import SketchReader
from privcal.trusted.checks import known
from privcal.trusted.errors import InputError
from privcal.trusted.scores import FloatArray, IntArray

EPSILONS = {"each": (0.5, 1.0, 2.0, 4.0), "secure": (0.1, 0.25, 0.5, 1.0)}
"""Those that are tried where each source adds its own noise, and with secure sums."""

EXACT, NOTHING = math.inf, 0.0
"""Stand in for ε: a fit without noise, and one that asks nobody."""

BESIDE = "for comparison"
"""The setting of what does not depend on who is asked."""

ASKS = [name for name in privcal.methods.names() if name not in ("uncalibrated", "one-source")]
OBJECTIVES: dict[str, Objective] = {"acc-t": "accuracy", "nll-t": "nll", "ece-t": "ece"}
NO_SIGNAL = 1e-3
"""An ε so small that there is nothing but noise: a search over temperatures from 0.5 to 3 ends
somewhere, and that may happen to be a good place."""

GROUPS = 8
"""Calibration curves: eighths of the test patients, by the model's own risk."""

EVENT = 1
"""The class whose risk a clinician wants to know: death, disease."""

RISK, ALONE, BOTH = "sketch, risk", "sketch, leave alone", "sketch, risk, leave alone"
VARIANTS: dict[str, dict[str, Any]] = {
    ALONE: {"leave_alone": True},
    RISK: {"event": EVENT},
    BOTH: {"event": EVENT, "leave_alone": True},
}
"""The sketch, asked otherwise."""

FEW_ROWS = 30
"""Own rows with which a hospital refines the shared map, beside all that it has."""

OPEN = 10
"""Hospitals whose rows the calibrator may look at, in the setting that has some."""

CLINIC = 10
"""Rows of a clinic, where the heart hospitals' rows are dealt to many."""

HEART = ("hungarian", "switzerland", "va")
NUMBERS = ("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak", "ca")
CATEGORIES = ("cp", "restecg", "slope", "thal")
FIELDS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach"),
    *("exang", "oldpeak", "slope", "ca", "thal", "target"),
)
NEVER_ZERO = ("trestbps", "chol")
"""A pressure or a cholesterol of 0 was not measured; Switzerland wrote all its missing ones so."""


# --- what is measured ----------------------------------------------------------------------


@dataclass
class Record:
    """Every run's measures, its calibration curve, and what a sketch of a risk itself estimated."""

    advance: Callable[[], None]
    aggregation: str = "each"
    runs: list[dict[str, Any]] = field(default_factory=list)
    curves: list[dict[str, Any]] = field(default_factory=list)
    estimates: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self,
        split: int,
        setting: str,
        method: str,
        epsilon: float,
        map: Map,
        test: dict[str, Scores],
    ) -> None:
        for where, scores in test.items():
            key = {
                "split": split,
                "setting": setting,
                "method": method,
                "epsilon": epsilon,
                "where": where,
            }
            risk = map.predict_proba(scores)[:, 1]
            self.runs.append({**key, **measures(map, scores, risk)})
            if where == "all":
                self.curves += [{**key, **point} for point in curve(scores, risk)]

    def ask(
        self,
        split: int,
        setting: str,
        sources: dict[str, Scores],
        test: dict[str, Scores],
        *,
        rows_per_person: int = 1,
        methods: Sequence[str] = ASKS,
        label: str = "",
        **options: Any,
    ) -> dict[float, Map]:
        """Every method at every ε, each in a world of its own: nobody was asked before.

        Returns the last method's maps.
        """
        maps = {}
        for method in methods:
            for epsilon in EPSILONS[self.aggregation]:
                if self.aggregation == "secure":
                    if len(sources) >= FEWEST:
                        made = privcal.methods.make(method, **options)
                        maps[epsilon] = in_secure_sums(made, sources, epsilon, rows_per_person)
                        self.add(split, setting, label or method, epsilon, maps[epsilon], test)
                    self.advance()
                    continue
                policy = privcal.Policy(epsilon=epsilon, rows_per_person=rows_per_person)
                asked = [privcal.Source(s, policy, name=n, ledger=None) for n, s in sources.items()]
                result = privcal.calibrate(asked, method, epsilon, **options)
                maps[epsilon] = result.map
                self.add(split, setting, label or method, epsilon, result.map, test)
                if label == RISK:
                    assert result.sketch is not None
                    found = result.sketch.evaluate().estimates()
                    truth = risk_measures(
                        together(list(map(counted, sources.values()))), result.map
                    )
                    key = {"split": split, "setting": setting, "epsilon": epsilon}
                    self.estimates += [
                        {**key, "measure": name, **asdict(estimate), "truth": truth[name]}
                        for name, estimate in found.items()
                    ]
                self.advance()
        return maps


def measures(map: Map, scores: Scores, risk: FloatArray) -> dict[str, float]:
    found = evaluate(scores, map)
    odds = log_odds(risk)
    return {
        "rows": found.rows,
        "ece": found.ece,
        "ece_equal_mass": found.ece_equal_mass,
        "ece_debiased": found.ece_debiased,
        "brier": found.brier,
        "aurc": found.aurc,
        "confidence": found.mean_confidence,
        "accuracy": found.accuracy,
        "confidence_gap": found.mean_confidence - found.accuracy,
        "risk": float(risk.mean()),
        "outcome": float(scores.labels.mean()),
        "risk_gap": float(risk.mean() - scores.labels.mean()),
        "risk_ece": privcal.ece(risk, scores.labels == EVENT),
        "observed_expected": float(scores.labels.mean() / risk.mean()),
        "intercept": recalibration(odds, scores.labels, free_slope=False)[0],
        "slope": recalibration(odds, scores.labels)[1],
        "drowned": float(map.informative is False),
        "left_alone": float(LEFT_ALONE in map.provenance.get("note", "")),
    }


def counted(scores: Scores, rows: int = 1) -> Scores:
    """So many rows of each person, as a source counts them; which ones it draws, it alone knows."""
    if scores.person is None:
        return scores
    before = (
        pl.Series(scores.person).to_frame("person").select(pl.int_range(pl.len()).over("person"))
    )
    return scores.take(np.flatnonzero(before.to_series().to_numpy() < rows))


def in_secure_sums(
    method: Method, sources: dict[str, Scores], epsilon: float, rows_per_person: int
) -> Map:
    """The map from secure sums, by the law of their noise: nobody is asked.

    The protocol itself takes ten seconds of CPU time for 87 hospitals, and there are thousands of runs
    here; `durable` goes through it once.
    """
    law = noise_law("secure", len(sources))
    rows = Rows(together([counted(scores, rows_per_person) for scores in sources.values()]))
    noise = replace(law, rows_per_person=rows_per_person)
    return answers.run(method, rows, len(sources), epsilon, np.random.default_rng(), noise)[0]


@dataclass(frozen=True)
class Rows:
    """The rows of all sources together, in a single trial."""

    scores: Scores
    trials = 1

    def sums(self, ask: Ask) -> FloatArray:
        query = ask.for_run(0)
        return query.contributions(self.scores).sum(query.length)[None, :].astype(np.float64)


def risk_measures(scores: Scores, map: Map) -> dict[str, float]:
    """On these rows, exactly, what a sketch of a risk estimates of the rows it has not seen."""
    found = {"prevalence": float((scores.labels == EVENT).mean())}
    before = TemperatureMap(1.0).predict_proba(scores)[:, EVENT]
    for when, risk in (("before", before), ("after", map.predict_proba(scores)[:, EVENT])):
        odds = log_odds(risk)
        found |= {
            f"risk_{when}": float(risk.mean()),
            f"observed_expected_{when}": found["prevalence"] / float(risk.mean()),
            f"intercept_{when}": recalibration(odds, scores.labels, free_slope=False)[0],
            f"slope_{when}": recalibration(odds, scores.labels)[1],
            f"brier_{when}": float(np.mean((risk - scores.labels) ** 2)),
        }
    return found | {"auroc": auroc(before, scores.labels)}


def log_odds(p: FloatArray) -> FloatArray:
    p = np.clip(p, 1e-9, 1 - 1e-9)
    return np.asarray(np.log(p / (1 - p)))


def recalibration(
    odds: FloatArray, labels: IntArray, free_slope: bool = True
) -> tuple[float, float]:
    """Intercept and slope of the outcome on a risk's log-odds: 0 and 1 where it is right.

    Without a free slope, the intercept is what the log-odds lack on the whole.
    """
    x = np.column_stack([np.ones(len(odds)), odds])
    weights = np.array([0.0, 1.0])
    free = np.array([True, free_slope])
    for _ in range(50):  # Newton's steps
        p = 1 / (1 + np.exp(-x @ weights))
        curvature = (x * (p * (1 - p))[:, None]).T @ x + 1e-9 * np.eye(2)
        step = np.linalg.solve(curvature[free][:, free], (x.T @ (labels - p))[free])
        weights[free] += step / max(1.0, np.abs(step).max())
        if np.abs(step).max() < 1e-8:
            break
    return float(weights[0]), float(weights[1])


def logistic(scores: Scores) -> RiskMap:
    """What a statistician would do with these rows, without privacy: intercept and slope."""
    odds = log_odds(TemperatureMap(1.0).predict_proba(scores)[:, EVENT])
    intercept, slope = recalibration(odds, scores.labels)
    ends = (-10.0, 10.0)
    line = tuple(intercept + max(slope, 1e-3) * end for end in ends)
    return RiskMap(1.0, ends, line, event=EVENT, private=False)


def auroc(risk: FloatArray, labels: IntArray) -> float:
    """How often a patient with the event has a higher risk than one without; ties count half."""
    yes, no = risk[labels == EVENT], np.sort(risk[labels != EVENT])
    below = (np.searchsorted(no, yes) + np.searchsorted(no, yes, side="right")) / 2
    return float(below.mean() / len(no))


def curve(scores: Scores, risk: FloatArray) -> Iterator[dict[str, float]]:
    """Mean risk and outcome of the rows in each eighth of the model's own risk."""
    own = scores.outputs.array[:, -1]
    place = np.empty(len(own), np.int64)
    place[np.argsort(own, kind="stable")] = np.arange(len(own))
    for group in range(GROUPS):
        here = place * GROUPS // len(own) == group
        if here.any():
            yield {
                "group": group,
                "predicted": float(risk[here].mean()),
                "observed": float(scores.labels[here].mean()),
            }


def floor(scores: Scores, rng: np.random.Generator, draws: int = 50) -> float:
    """The ECE that a perfect confidence would show on so few rows, by chance alone."""
    own = TemperatureMap(1.0).confidence(scores)
    return float(np.mean([privcal.ece(own, rng.random(len(own)) < own) for _ in range(draws)]))


# --- maps that ask nobody, or ask without noise ----------------------------------------------


def exact(method: str, pooled: Scores, **options: Any) -> Map:
    """The same method on all rows together, without privacy: what is lost is the price of it."""
    made = privcal.methods.make(method, **options)
    if isinstance(made, TemperatureSearch):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the bounds are the private search's too
            fit = privcal.fit_temperature(pooled, OBJECTIVES[method], made.bounds)
        return TemperatureMap(fit.temperature, private=False)
    return exactly(made, pooled)


def usable(public: Scores) -> bool:
    """Too few public rows, or none predicted wrongly, and the sketch does without them."""
    try:
        SketchReader.of(public)
    except InputError:
        return False
    return True


def together(parts: Sequence[Scores]) -> Scores:
    people = [p.person for p in parts if p.person is not None]
    return Scores(
        probabilities=np.concatenate([p.outputs.array for p in parts]),
        labels=np.concatenate([p.labels for p in parts]),
        person=np.concatenate(people) if people else None,
    )


# --- 174 hospitals: APACHE's predictions of death in hospital --------------------------------


@dataclass(frozen=True)
class Icu:
    path: Path
    hospitals: dict[str, Scores]
    region: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> Icu:
        hospitals = read_sources(path, "hospital")
        for column in ("person", "region"):
            if column not in (there := pl.read_csv(path, n_rows=0).columns):
                raise InputError(f"{path} has no column {column!r}; it has {', '.join(there)}")
        if len(hospitals) < 4:
            raise InputError(f"{path} has {len(hospitals)} hospitals; at least 4 are needed")
        text = {"hospital": pl.String, "region": pl.String}
        table = pl.read_csv(path, columns=list(text), schema_overrides=text)
        region = zip(table["hospital"], table["region"].fill_null("not said"), strict=True)
        return cls(path, hospitals, dict(region))

    def facts(self) -> dict[str, int]:
        """What a data office counts first: who is there more than once, and where."""
        places: dict[str, list[str]] = {}
        for name, scores in self.hospitals.items():
            assert scores.person is not None
            for person in scores.person:
                places.setdefault(person, []).append(name)
        here = [where.count(name) for where in places.values() for name in set(where)]
        return {
            "hospitals": len(self.hospitals),
            "rows": sum(map(len, self.hospitals.values())),
            "persons": len(places),
            "persons_with_several_rows": sum(len(w) > 1 for w in places.values()),
            "persons_in_several_hospitals": sum(len(set(w)) > 1 for w in places.values()),
            "most_hospitals_of_a_person": max(len(set(w)) for w in places.values()),
            "most_rows_of_a_person_at_a_hospital": max(here),
            "rows_counted_at_1_per_person": len(here),
            "rows_counted_at_3_per_person": sum(min(n, 3) for n in here),
        }

    def run(self, splits: int, seed: int, record: Record) -> None:
        names = sorted(self.hospitals)
        for split in range(splits):
            rng = np.random.default_rng([seed, split])
            order = [names[i] for i in rng.permutation(len(names))]
            half = len(order) // 2
            mine = {name: self.hospitals[name] for name in order[:half]}
            test = {"all": together([self.hospitals[name] for name in order[half:]])}
            without_asking(record, split, mine, test, rng)
            record.ask(split, "hospitals", mine, test)
            variants(record, split, "hospitals", mine, test)
            options: dict[str, Any] = {"rows_per_person": 3, "methods": ["sketch"]}
            record.ask(split, "hospitals, 3 rows per person", mine, test, **options)
            opened, others = order[:OPEN], {n: mine[n] for n in order[OPEN:half]}
            public = together([self.hospitals[n] for n in opened])
            if others and usable(public):
                record.add(split, OPENED, "prior", NOTHING, prior_map(public), test)
                options = {"methods": ["sketch"], "public": public}
                record.ask(split, OPENED, others, test, **options)
            offices: dict[str, list[Scores]] = {}
            for name in order[:half]:
                offices.setdefault(self.region[name], []).append(mine[name])
            regional = {name: together(parts) for name, parts in offices.items()}
            record.ask(split, "regional offices", regional, test)
            variants(record, split, "regional offices", regional, test)


def variants(
    record: Record,
    split: int,
    setting: str,
    sources: dict[str, Scores],
    test: dict[str, Scores],
) -> dict[str, dict[float, Map]]:
    """The sketch, asked otherwise: the maps by label and ε."""
    return {
        label: record.ask(split, setting, sources, test, methods=["sketch"], label=label, **options)
        for label, options in VARIANTS.items()
    }


OPENED = f"hospitals, {OPEN} of them open"


def without_asking(
    record: Record,
    split: int,
    sources: dict[str, Scores],
    test: dict[str, Scores],
    rng: np.random.Generator,
) -> None:
    """The model as it is, the sketch's prior, a source's own fit, and exact fits on all rows."""
    record.add(split, BESIDE, "uncalibrated", NOTHING, TemperatureMap(1.0), test)
    record.runs[-len(test)]["floor"] = floor(test["all"], rng)
    record.add(split, BESIDE, "prior", NOTHING, prior_map(), test)
    own = fit_local(next(iter(sources.values())))
    record.add(split, BESIDE, "one-source", NOTHING, TemperatureMap(own.temperature), test)
    noise = privcal.Policy(minimum_epsilon=NO_SIGNAL / 10)  # by default refused: it is noise alone
    drowned = [privcal.Source(own, noise, name=name, ledger=None) for name, own in sources.items()]
    lucky = privcal.calibrate(drowned, "acc-t", NO_SIGNAL).map
    record.add(split, BESIDE, "acc-t on noise alone", NOTHING, lucky, test)
    pooled = together(list(sources.values()))
    for method in ASKS:
        record.add(split, BESIDE, method, EXACT, exact(method, pooled), test)
    for label, options in VARIANTS.items():
        record.add(split, BESIDE, label, EXACT, exact("sketch", pooled, **options), test)
    record.add(split, BESIDE, "intercept and slope", EXACT, logistic(pooled), test)


def durable(icu: Icu, out: Path, aggregation: str = "each") -> dict[str, Any]:
    """Once as it would be done: the command line, one ledger file for each hospital."""
    epsilon = {"each": 1.0, "secure": 0.5}[aggregation]
    with tempfile.TemporaryDirectory() as folder, marks_in(Path(folder)):
        ledgers = Path(folder) / "ledgers"
        ledgers.mkdir()
        data = shutil.copy(icu.path, folder)  # ledgers leave a link beside their data
        policy = Path(folder) / "policy.toml"
        rules = f"\n[secure]\ncolluding = {usual_colluding(len(icu.hospitals))}\n"
        policy.write_text(
            f"epsilon = {epsilon}\nrows_per_person = 1\n{rules * (aggregation == 'secure')}"
        )
        command = [
            *("calibrate", data, "--source-column", "hospital", "--policy", policy),
            *("--new-ledger", "--person", "person", "--ledger-dir", ledgers),
            *("--epsilon", epsilon, "--method", "sketch", "--event", EVENT),
            *("--leave-alone", "--aggregation", aggregation, "--json"),
            *("--sketch", out / "icu-sketch.json", "--out", out / "icu-map.json"),
        ]
        first = told(*command, "--campaign", "spring")
        opened = [privcal.Ledger(path) for path in ledgers.glob("*.ledger")]
        spent, alone = ([getattr(e, f"nano_{n}") for e in opened] for n in ("spent", "alone"))
        again = told(*command, "--campaign", "spring")
        replayed = [privcal.Ledger(path).nano_spent for path in ledgers.glob("*.ledger")]
        refused = told(*command, "--campaign", "summer", "--again", fails=True)
    return {
        "ledgers": len(spent),
        "epsilon_in_each_ledger": sorted({nano / 1e9 for nano in spent}),
        "against_everybody_else_together": sorted({nano / 1e9 for nano in alone}),
        "asked_again_under_the_same_name": {
            "epsilon_in_each_ledger": sorted({nano / 1e9 for nano in replayed}),
            "same_answers": again["rounds"] == first["rounds"],
        },
        "asked_again_under_another_name": refused["said"].partition(" (")[0],
        "estimated_privately": {
            k: v
            for k, v in first["evaluation"].items()
            if k in ("clear", "unchanged") or (isinstance(v, dict) and "value" in v)
        },
        "measured": risk_measures(
            together(list(map(counted, icu.hospitals.values()))),
            privcal.load_map(out / "icu-map.json"),
        ),
    }


@contextmanager
def marks_in(folder: Path) -> Iterator[None]:
    """High-water marks go where the ledgers go: to a folder that is thrown away."""
    before = os.environ.get("PRIVCAL_MARKS")
    os.environ["PRIVCAL_MARKS"] = str(folder / "marks.db")
    try:
        yield
    finally:
        if before is None:
            del os.environ["PRIVCAL_MARKS"]
        else:
            os.environ["PRIVCAL_MARKS"] = before


def told(*command: Any, fails: bool = False) -> dict[str, Any]:
    """What `privcal …` prints, in a process of its own."""
    start = [sys.executable, "-c", "from privcal.cli.app import main; main()"]
    done = subprocess.run([*start, *map(str, command)], capture_output=True, text=True, check=False)
    if (done.returncode != 0) != fails:
        raise InputError(f"privcal {command[0]} ended with {done.returncode}: {done.stderr}")
    return {"said": done.stderr.strip().splitlines()[-1]} if fails else json.loads(done.stdout)


# --- four hospitals: a small model of heart disease ------------------------------------------


@dataclass(frozen=True)
class Heart:
    tables: dict[str, pl.DataFrame]

    @classmethod
    def read(cls, folder: Path) -> Heart:
        return cls({name: read_heart(folder, name) for name in ("cleveland", *HEART)})

    def run(self, splits: int, seed: int, record: Record) -> None:
        """Each time: another part of Cleveland trains, another half of each hospital tests."""
        for split in range(splits):
            rng = np.random.default_rng([seed, split])
            home = self.tables["cleveland"]
            order = rng.permutation(len(home))
            train, held_out = order[len(order) // 3 :], order[: len(order) // 3]
            model = Logistic.fit(home[train])
            public = model.scores(home[held_out])
            sources, test = {}, {}
            for name in HEART:
                scores = model.scores(self.tables[name])
                rows = rng.permutation(len(scores))
                sources[name] = scores.take(rows[: len(rows) // 2])
                test[name] = scores.take(rows[len(rows) // 2 :])
            test = {"all": together(list(test.values())), **test}
            without_asking(record, split, sources, test, rng)
            clinics = {
                f"{name} {i}": scores.take(rows)
                for name, scores in sources.items()
                for i, rows in enumerate(dealt(len(scores)))
            }
            for setting, asked in (("three hospitals", sources), ("clinics", clinics)):
                record.ask(split, setting, asked, test)
                shared = variants(record, split, setting, asked, test)[RISK]
                if asked is sources:
                    at_home(record, split, setting, shared, sources, test)
                if usable(public):
                    for name, options in (("sketch", {}), (RISK, VARIANTS[RISK])):
                        more = {"methods": ["sketch"], "public": public, **options}
                        record.ask(split, setting, asked, test, label=f"{name} + public", **more)
            if usable(public):
                record.add(split, BESIDE, "prior + public", NOTHING, prior_map(public), test)
                pooled = together(list(sources.values()))
                for name, options in (("sketch", {}), (RISK, VARIANTS[RISK])):
                    fitted = exact("sketch", pooled, public=public, **options)
                    record.add(split, BESIDE, f"{name} + public", EXACT, fitted, test)


def at_home(
    record: Record,
    split: int,
    setting: str,
    shared: dict[float, Map],
    sources: dict[str, Scores],
    test: dict[str, Scores],
) -> None:
    """Each hospital refines the shared map with its own rows, and tests it on its own others."""
    for name, own in sources.items():
        if len(own) < FEW_ROWS:
            continue
        there = {name: test[name]}
        for words, rows in (
            (f"{FEW_ROWS} own rows", own.take(np.arange(FEW_ROWS))),
            ("own rows", own),
        ):
            record.add(split, BESIDE, f"{words} alone", NOTHING, logistic(rows), there)
            for epsilon, map in shared.items():
                refined = privcal.refine(map, rows)
                record.add(split, setting, f"refined with {words}", epsilon, refined, there)


def dealt(rows: int) -> list[IntArray]:
    return np.array_split(np.arange(rows), max(1, round(rows / CLINIC)))


def read_heart(folder: Path, hospital: str) -> pl.DataFrame:
    """UCI's own file (no header, ? for missing) or one with a header and blanks."""
    path = folder / f"processed.{hospital}.data"
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    lines = path.read_text("utf-8").splitlines()
    named = bool(lines) and any(c.isalpha() for c in lines[0])
    try:
        table = pl.read_csv(
            path,
            has_header=named,
            new_columns=None if named else list(FIELDS),
            null_values=["?", ""],
            schema_overrides=dict.fromkeys(FIELDS, pl.Float64) if named else None,
            infer_schema_length=None,
        )
    except pl.exceptions.PolarsError as error:
        raise InputError(f"cannot read {path}: {str(error).splitlines()[0]}") from None
    for name in FIELDS:
        if name not in table.columns:
            raise InputError(f"{path} has no column {name!r}; it has {', '.join(table.columns)}")
    if table["target"].null_count():
        raise InputError(f"{path}: target of row {table['target'].is_null().arg_max()} is missing")
    measured = [pl.when(pl.col(n) != 0).then(pl.col(n)).alias(n) for n in NEVER_ZERO]
    return table.select(FIELDS).cast(pl.Float64).with_columns(measured)


@dataclass(frozen=True)
class Logistic:
    """Ridge logistic regression; what is missing becomes the training rows' median or mode."""

    fill: dict[str, float]
    levels: dict[str, list[float]]
    centre: FloatArray
    scale: FloatArray
    weights: FloatArray

    @classmethod
    def fit(cls, table: pl.DataFrame) -> Logistic:
        fill = {n: float(table[n].median() or 0.0) for n in NUMBERS}  # type: ignore[arg-type]
        fill |= {n: float(table[n].drop_nulls().mode().sort()[0]) for n in CATEGORIES}
        levels = {n: table[n].drop_nulls().unique().sort().to_list()[1:] for n in CATEGORIES}
        blank = cls(fill, levels, np.zeros(0), np.ones(0), np.zeros(0))
        x = blank._columns(table)
        centre, scale = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-9)
        x = np.column_stack([np.ones(len(x)), (x - centre) / scale])
        y = (table["target"] > 0).to_numpy().astype(float)
        ridge = np.diag([0.0, *np.ones(x.shape[1] - 1)])
        weights = np.zeros(x.shape[1])
        for _ in range(25):  # Newton's steps; they settle after about six
            p = 1 / (1 + np.exp(-x @ weights))
            curvature = (x * (p * (1 - p))[:, None]).T @ x + ridge
            weights += np.linalg.solve(curvature, x.T @ (y - p) - ridge @ weights)
        return cls(fill, levels, centre, scale, weights)

    def scores(self, table: pl.DataFrame) -> Scores:
        x = (self._columns(table) - self.centre) / self.scale
        p = 1 / (1 + np.exp(-(self.weights[0] + x @ self.weights[1:])))
        return Scores(probabilities=p, labels=(table["target"] > 0).to_numpy().astype(int))

    def _columns(self, table: pl.DataFrame) -> FloatArray:
        filled = table.with_columns(pl.col(n).fill_null(v) for n, v in self.fill.items())
        kinds = [(filled[n] == v).to_numpy() for n, vs in self.levels.items() for v in vs]
        return np.column_stack([*(filled[n].to_numpy() for n in NUMBERS), *kinds]).astype(float)


# --- tables and pictures --------------------------------------------------------------------

NAMES = {
    "ece": "ECE, 15 bins of equal width",
    "ece_equal_mass": "ECE, 15 bins of equal mass",
    "brier": "Brier score",
    "aurc": "AURC",
    "confidence_gap": "mean confidence − accuracy",
    "risk_gap": "mean predicted risk − outcome",
    "risk_ece": "ECE of the risk, 15 bins of equal width",
    "observed_expected": "observed / expected",
    "intercept": "calibration intercept",
    "slope": "calibration slope",
}
AT_A_HOSPITAL = ("ece", "brier", "risk_gap", "risk_ece")


def summary(runs: pl.DataFrame) -> pl.DataFrame:
    """Mean and 10th to 90th percentile over splits; how often better than leaving it alone."""
    before = runs.filter(pl.col("method") == "uncalibrated")
    runs = runs.join(
        before.select("split", "where", pl.col("ece", "brier").name.suffix("_before")),
        on=["split", "where"],
    )
    spread = [
        expression
        for name in NAMES
        for expression in (
            pl.col(name).mean(),
            pl.col(name).quantile(0.1, "linear").alias(f"{name}_low"),
            pl.col(name).quantile(0.9, "linear").alias(f"{name}_high"),
        )
    ]
    return runs.group_by("where", "setting", "method", "epsilon", maintain_order=True).agg(
        pl.len().alias("splits"),
        *spread,
        pl.col(
            *("confidence", "accuracy", "risk", "outcome"),
            *("ece_debiased", "drowned", "left_alone"),
        ).mean(),
        # A map that leaves everything as it is may differ in the last digit.
        *(
            (pl.col(name) < pl.col(f"{name}_before") - 1e-9).mean().alias(f"better_{name}")
            for name in ("ece", "brier")
        ),
    )


def markdown(found: pl.DataFrame, setting: str, measure: str, where: str = "all") -> str:
    """One table: a method in each row, an ε in each column."""
    here = found.filter((pl.col("where") == where) & pl.col("setting").is_in([BESIDE, setting]))
    if here.filter(pl.col("setting") == setting).is_empty():
        return ""
    asked = asked_at(here)
    epsilons = [NOTHING, *asked, EXACT]
    shown = ["asks nobody", *(f"ε = {e:g}" for e in asked), "no privacy"]
    lines = ["| method | " + " | ".join(shown) + " |", "|---" * (len(shown) + 1) + "|"]
    for method in here["method"].unique(maintain_order=True):
        rows = {r["epsilon"]: r for r in here.filter(pl.col("method") == method).to_dicts()}
        cells = [_cell(rows[e], measure) if e in rows else "" for e in epsilons]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def asked_at(found: pl.DataFrame) -> list[float]:
    """Every ε with which sources were asked."""
    return sorted(set(found["epsilon"]) - {NOTHING, EXACT})


def _cell(row: dict[str, Any], measure: str) -> str:
    if measure.startswith("better"):
        return f"{row[measure]:.0%}"
    return f"{row[measure]:.3f} ({row[measure + '_low']:.3f} to {row[measure + '_high']:.3f})"


def judged(estimates: pl.DataFrame) -> str:
    """How near the estimates of a sketch came to what its rows say exactly."""
    missed = (pl.col("value") - pl.col("truth")).abs()
    found = estimates.group_by("setting", "measure", "epsilon", maintain_order=True).agg(
        pl.col("truth", "value").mean(),
        missed.mean().alias("missed"),
        (pl.col("high") - pl.col("low")).mean().alias("width"),
        pl.col("truth").is_between(pl.col("low"), pl.col("high")).mean().alias("covered"),
        pl.len().alias("shown"),
    )
    lines = ["| | ε | measured | estimated | off by | width | covered | of |", "|---" * 8 + "|"]
    lines += [
        f"| {r['setting']}: {r['measure']} | {r['epsilon']:g} | {r['truth']:.3f} | {r['value']:.3f} "
        f"| {r['missed']:.3f} | {r['width']:.3f} | {r['covered']:.0%} | {r['shown']} |"
        for r in found.to_dicts()
    ]
    return "\n".join(lines)


def report(runs: pl.DataFrame, estimates: pl.DataFrame, title: str) -> str:
    found = summary(runs)
    parts = [f"# {title}"]
    chance = runs["floor"].drop_nulls().to_numpy()
    if len(chance):
        parts.append(f"A perfect confidence would show an ECE of {chance.mean():.4f} by chance.")
    wheres = found["where"].unique(maintain_order=True)
    for setting in found["setting"].unique(maintain_order=True):
        if setting == BESIDE:
            continue
        for where in wheres:
            for measure in NAMES if where == "all" else AT_A_HOSPITAL:
                table = markdown(found, setting, measure, where)
                parts += [f"## {setting}, {where}: {NAMES[measure]}", table]
        for measure, words in (("better_ece", "ECE"), ("better_brier", "Brier score")):
            table = markdown(found, setting, measure)
            parts += [f"## {setting}: splits with a lower {words} than left alone", table]
    if not estimates.is_empty():
        words = "## What a sketch of the risk says of itself, with 95 % intervals"
        parts += [words, judged(estimates)]
    return "\n\n".join(parts) + "\n"


@dataclass(frozen=True)
class Picture:
    title: str
    setting: str
    shown: tuple[tuple[str, float], ...]
    """Calibration curves: methods and their ε."""
    compared: tuple[tuple[str, str, str], ...]
    """The last panel: its label, setting and method."""
    measure: str
    """What the last panel shows of them."""
    risk: str
    root: bool
    """Whether small risks need room: axes by the square root."""

    def save(self, path: Path, runs: pl.DataFrame, curves: pl.DataFrame) -> None:
        figure = Figure(figsize=(13, 7.6), layout="constrained")
        figure.suptitle(self.title, fontsize=13)
        above, below = np.asarray(figure.subfigures(2, 1, height_ratios=(1, 1.15)))
        for axis, (method, epsilon) in zip(
            above.subplots(1, len(self.shown)), self.shown, strict=True
        ):
            self._curve(axis, curves, method, epsilon)
        found = summary(runs).filter(pl.col("where") == "all")
        both, third = below.subfigures(1, 2, width_ratios=(2, 1))
        (left, middle), right = both.subplots(1, 2), third.subplots()
        names = found.filter(pl.col("setting") == self.setting)["method"].unique(
            maintain_order=True
        )
        for axis, measure in ((left, "ece"), (middle, "brier")):
            for place, name in enumerate(names):
                self._line(axis, found, self.setting, name, measure, name, place, len(names))
            self._level(axis, found, measure)
            axis.set_title(f"{NAMES[measure]}: {self.setting}", fontsize=10)
        for place, (label, setting, method) in enumerate(self.compared):
            self._line(
                right, found, setting, method, self.measure, label, place, len(self.compared), False
            )
        self._level(right, found, self.measure)
        what = NAMES[self.measure].partition(",")[0]
        right.set_title(f"{what}: who holds the data, and what is asked", fontsize=10)
        for part, axis, columns in ((both, left, 5), (third, right, 2)):
            legend = {"loc": "outside lower center", "fontsize": 8, "frameon": False}
            part.legend(*axis.get_legend_handles_labels(), **legend, ncols=columns)
        save_figure(path, figure, dpi=90)

    def _curve(self, axis: Any, curves: pl.DataFrame, method: str, epsilon: float) -> None:
        after = curves.filter(
            pl.col("setting").is_in([BESIDE, self.setting])
            & (pl.col("method") == method)
            & (pl.col("epsilon") == epsilon)
        )
        before = curves.filter(pl.col("method") == "uncalibrated")
        axis.plot([0, 1], [0, 1], color="#bbbbbb", lw=1, ls=":")
        for table, colour, label in ((before, "#7a7a7a", "before"), (after, "#D55E00", "after")):
            of = table.group_by("group").agg(
                *(pl.col(n).mean() for n in ("predicted", "observed")),
                *(
                    pl.col(n).quantile(q, "linear").alias(f"{n}{q}")
                    for n in ("predicted", "observed")
                    for q in (0.1, 0.9)
                ),
            )
            of = of.sort("group")
            x, y = of["predicted"].to_numpy(), of["observed"].to_numpy()
            # The mean over splits need not lie between the percentiles: no negative bars.
            bars = {
                f"{at}err": np.maximum(
                    [value - of[f"{name}0.1"].to_numpy(), of[f"{name}0.9"].to_numpy() - value], 0
                )
                for at, name, value in (("x", "predicted", x), ("y", "observed", y))
            }
            axis.errorbar(x, y, **bars, color=colour, lw=1.3, elinewidth=0.7, marker="o", ms=3)
            axis.plot([], [], color=colour, marker="o", ms=3, label=label)
        if self.root:
            for scale in (axis.set_xscale, axis.set_yscale):
                scale("function", functions=(lambda v: np.sqrt(np.maximum(v, 0)), np.square))
            ticks, end = [0, 0.02, 0.1, 0.25, 0.5], 0.62
        else:
            ticks, end = [0, 0.25, 0.5, 0.75, 1], 1.0
        axis.set(xlim=(0, end), ylim=(0, end), xticks=ticks, yticks=ticks)
        for ticklabels in (axis.set_xticklabels, axis.set_yticklabels):
            ticklabels([f"{t:g}" for t in ticks], fontsize=8)
        if axis.get_subplotspec().is_first_col():
            axis.set_ylabel("outcome", fontsize=9)
            axis.legend(fontsize=8, frameon=False, loc="upper left")
        axis.set_xlabel(f"predicted {self.risk}", fontsize=9)
        suffix = (
            "no privacy" if epsilon == EXACT else f"ε = {epsilon:g}" if epsilon else "asks nobody"
        )
        axis.set_title(f"{method}, {suffix}", fontsize=9)

    def _line(
        self,
        axis: Any,
        found: pl.DataFrame,
        setting: str,
        method: str,
        measure: str,
        label: str,
        place: int,
        of: int,
        own: bool = True,
    ) -> None:
        row = found.filter(
            (pl.col("setting") == setting)
            & (pl.col("method") == method)
            & pl.col("epsilon").is_in(asked_at(found))
        ).sort("epsilon")
        if row.is_empty():
            return
        x = row["epsilon"].to_numpy() * 1.03 ** (place - (of - 1) / 2)  # side by side
        y = row[measure].to_numpy()
        bars = np.maximum(
            [y - row[f"{measure}_low"].to_numpy(), row[f"{measure}_high"].to_numpy() - y], 0
        )
        plain = method.removesuffix(" + public")
        look: dict[str, Any] = {"marker": "o"}
        if own:
            name, *asked = plain.split(", ")
            look = styles([Variant(name)])[Variant(name)].line
            look |= OTHERWISE.get(", ".join(asked), {})
        if plain != method:
            look["linestyle"] = "--"
        axis.errorbar(x, y, bars, **look, ms=5, lw=1.4, elinewidth=0.8, label=label)

    def _level(self, axis: Any, found: pl.DataFrame, measure: str) -> None:
        for method, epsilon, label, dashes in (
            ("uncalibrated", NOTHING, "left alone", "--"),
            ("nll-t", EXACT, "exact temperature, no privacy", ":"),
        ):
            [value] = found.filter(
                (pl.col("setting") == BESIDE)
                & (pl.col("method") == method)
                & (pl.col("epsilon") == epsilon)
            )[measure]
            axis.axhline(value, color="black", lw=1, ls=dashes, label=label)
        axis.set_xscale("log")
        axis.set_xticks(asked_at(found), [f"{e:g}" for e in asked_at(found)])
        axis.minorticks_off()
        axis.set_xlabel("ε at each source", fontsize=9)
        axis.set_ylim(bottom=0 if measure == "ece" else None)
        axis.grid(color="#6b6b6b", alpha=0.15, lw=0.6)
        axis.spines[["top", "right"]].set_visible(False)


OTHERWISE = {
    "leave alone": {"color": "#DDAA33", "marker": "P"},
    "risk": {"color": "#000000", "marker": "o"},
    "risk, leave alone": {"color": "#999933", "marker": "X"},
}
"""How the sketch's variants look."""

ICU_PICTURE = Picture(
    "Intensive care: mean over splits of the hospitals, bars from the 10th to the 90th percentile",
    "hospitals",
    (("acc-t", 1.0), ("sketch", 1.0), (ALONE, 1.0), (RISK, 1.0), ("intercept and slope", EXACT)),
    (
        ("sketch, 1 row per person", "hospitals", "sketch"),
        ("sketch, 3 rows per person", "hospitals, 3 rows per person", "sketch"),
        (f"sketch, {OPEN} hospitals open", OPENED, "sketch"),
        ("sketch, regional offices", "regional offices", "sketch"),
        ("acc-t, regional offices", "regional offices", "acc-t"),
    ),
    "ece",
    "death",
    True,
)
HEART_PICTURE = Picture(
    "Heart disease: mean over splits of the patients, bars from the 10th to the 90th percentile",
    "three hospitals",
    (
        ("acc-t", 1.0),
        ("sketch", 1.0),
        (RISK, 0.5),
        (RISK, 1.0),
        ("intercept and slope", EXACT),
    ),
    (
        ("sketch, three hospitals", "three hospitals", "sketch"),
        ("sketch, clinics", "clinics", "sketch"),
        ("sketch, risk, three hospitals", "three hospitals", RISK),
        ("sketch, risk, clinics", "clinics", RISK),
        ("sketch, risk + public, clinics", "clinics", f"{RISK} + public"),
    ),
    "brier",
    "disease",
    False,
)


# --- the command ----------------------------------------------------------------------------


def write(record: Record, name: str, title: str, picture: Picture, out: Path) -> None:
    runs = pl.DataFrame(record.runs, infer_schema_length=None)
    curves = pl.DataFrame(record.curves, infer_schema_length=None)
    runs.write_csv(out / f"{name}-runs.csv")
    curves.write_csv(out / f"{name}-curves.csv")
    summary(runs).write_csv(out / f"{name}-summary.csv")
    estimates = pl.DataFrame(record.estimates, infer_schema_length=None)
    if not estimates.is_empty():
        estimates.write_csv(out / f"{name}-estimates.csv")
    (out / f"{name}-tables.md").write_text(report(runs, estimates, title), "utf-8")
    picture.save(out / f"hospitals-{name}.png", runs, curves)


def hospitals(
    out: Annotated[Path, typer.Option(help="Folder for tables and pictures.")],
    icu: Annotated[
        Path | None,
        typer.Option(help="CSV: hospital, region, person, probability (of death), label."),
    ] = None,
    heart: Annotated[
        Path | None, typer.Option(help="Folder with UCI's processed.cleveland.data and so on.")
    ] = None,
    aggregation: Annotated[
        str,
        typer.Option(
            help="each: every hospital adds its own noise; secure: only sums over all are opened."
        ),
    ] = "each",
    splits: Annotated[int, typer.Option(min=1, help="Repetitions.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="For splits; noise is never seeded.")] = 0,
) -> None:
    """Recalibrate on real hospitals with every method, for several ε, and measure."""
    try:
        if icu is None and heart is None:
            raise InputError("give --icu, --heart or both")
        tried = len(EPSILONS[known("aggregation", aggregation, AGGREGATIONS)])
        # Whatever is wrong with the files is said before the long work.
        wards = None if icu is None else Icu.read(icu)
        clinics = None if heart is None else Heart.read(heart)
        out.mkdir(parents=True, exist_ok=True)
        with progress_bar() as bar:
            if wards is not None:
                each = tried * (2 * len(ASKS) + 2 * len(VARIANTS) + 2)
                task = bar.add_task("intensive care", total=splits * each)
                record = Record(lambda: bar.advance(task), aggregation)
                wards.run(splits, seed, record)
                write(record, "icu", "Intensive care", ICU_PICTURE, out)
                bar.update(task, description=f"{len(wards.hospitals)} ledger files", total=None)
                facts = {**wards.facts(), "durable": durable(wards, out, aggregation)}
                (out / "icu-facts.json").write_text(json.dumps(facts, indent=2) + "\n", "utf-8")
            if clinics is not None:
                each = tried * 2 * (len(ASKS) + len(VARIANTS) + 2)
                at = bar.add_task("heart disease", total=splits * each)
                record = Record(lambda: bar.advance(at), aggregation)
                clinics.run(splits, seed, record)
                write(record, "heart", "Heart disease", HEART_PICTURE, out)
    except InputError as error:
        note(f"error: {error}")
        raise typer.Exit(2) from None
    for file in sorted(out.iterdir()):
        print(file)


if __name__ == "__main__":
    typer.run(hospitals)
