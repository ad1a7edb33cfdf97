"""Running a study: shifts over processes, results to disk as they finish, resumable."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import queue
import signal
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privcal import methods
from privcal.errors import InputError
from privcal.files import replacing
from privcal.fit import Objective, fit_temperature
from privcal.kernel import confidence
from privcal.metrics import aurc, brier, ece
from privcal.scores import IntArray, Scores
from privcal.study.archive import Archive, read_archive
from privcal.study.grids import FACTORS, HETEROGENEOUS, Setting, read_grid
from privcal.study.measured import Measured
from privcal.study.simulator import Simulator
from privcal.study.skew import MIXED, mixed
from privcal.study.tabulated import BINS, Tables
from privcal.threads import default_threads

if TYPE_CHECKING:
    import polars as pl

COLUMNS = (
    "dataset",
    "shift",
    "severity",
    "sweep",
    "sources",
    "samples",
    "epsilon",
    "method",
    "trials",
    "ece_mean",
    "ece_se",
    "brier_mean",
    "aurc_mean",
    "brier_se",
    "aurc_se",
    "skew",
)
ONE_SOURCE = {"one-source": "accuracy", "one-source-nll": "nll"}
"""The owner's own exact fit has no questions to simulate; it is measured by both objectives."""

EXACT: dict[str, Objective | None] = {
    "base": None,
    "nll-t": "nll",
    "acc-t": "accuracy",
    "ece-t": "ece",
}
HALVES = 3
PUBLIC = "public"
"""The option through which a method is given public rows."""
CLEAN = "clean"
VERSION = 2


@dataclass(frozen=True)
class Variant:
    """A method with its options, under the name that tables and figures give it."""

    method: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        inner = ", ".join(
            f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in self.options
        )
        return f"{self.method}({inner})" if inner else self.method


@dataclass(frozen=True)
class Config:
    """Everything that decides the numbers of a study."""

    dataset: str
    severity: int | None
    digest: str
    grid: str
    settings: list[Setting]
    methods: list[str]
    shifts: list[str]
    trials: int
    seed: int
    public_rows: int

    def to_dict(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}


@dataclass(frozen=True)
class Done:
    """A piece of a study that finished: one method (or the exact fits) at one shift."""

    shift: str
    label: str
    rows: list[dict[str, Any]]
    runs: int


@dataclass(frozen=True)
class Task:
    """All that is left to do at one shift."""

    archive: Archive
    shift: str
    chosen: list[Variant]
    exact: bool
    settings: list[Setting]
    trials: int
    seed: int
    public_rows: int
    keep_trials: bool


def variants(grid: str, names: Sequence[str] | None, public_rows: int = 0) -> list[Variant]:
    """What a study runs: the methods named, or all of them; for `factors`, its variants.

    With public rows, a method that has a use for them runs without them and with them.
    """
    if grid == "factors":
        found = [Variant(name, tuple(options.items())) for name, options in FACTORS]
        found += [Variant(name) for name in ("uncalibrated", *ONE_SOURCE)]
        return [v for v in found if names is None or v.method in names]
    known = [*methods.names(), *(n for n in ONE_SOURCE if n not in methods.names())]
    for name in names or ():
        if name not in known:
            raise InputError(f"there is no method {name!r}; there are {', '.join(known)}")
    ordered = sorted(known, key=lambda n: known.index(n) if n != "one-source-nll" else 1.5)
    found = []
    for name in ordered:
        if names is None or name in names:
            found.append(Variant(name))
            if public_rows and _takes_public(name):
                found.append(Variant(name, ((PUBLIC, public_rows),)))
    return found


def _takes_public(name: str) -> bool:
    return name in methods.names() and methods.find(name).takes_public


def run(
    archives: Sequence[str | Path] = (),
    *,
    grid: str = "cifar",
    methods: Sequence[str] | None = None,
    shifts: Sequence[str] | None = None,
    trials: int = 500,
    seed: int = 0,
    public_rows: int = 0,
    jobs: int | None = None,
    out: str | Path | None = None,
    keep_trials: bool = False,
    progress: Callable[[Done | None, int, int], None] | None = None,
) -> pl.DataFrame:
    """Run a study and return its results, one row for each shift, setting and method.

    Parameters
    ----------
    archives
        Logit archives (parts of one); by default the bundled CIFAR-10-C.
    grid
        `cifar`, `imagenet`, `factors`, `heterogeneous` (sources that are not alike, see
        `privcal.study.skew`), or a TOML file (see `privcal.study.grids.read_grid`).
    methods, shifts
        Some of them; by default all.
    trials
        Random splits for each setting.
    public_rows
        So many rows of `clean` are set aside, the same for all shifts: never private, never
        tested on. Methods with an option `public` run without them and, once more, with them.
    jobs
        Processes; by default one for each core. The numbers do not depend on it.
    out
        A folder: results are written there as they finish, and a study that was interrupted
        goes on where it stopped. A folder of another study is refused.
    keep_trials
        Also write every trial's values (`trials.parquet`).
    progress
        Called with what finished, and how many runs of how many are done.
    """
    import polars as pl

    archive = read_archive(archives)
    everywhere = _shifts(archive, grid)
    for shift in shifts or ():
        if shift not in everywhere:
            raise InputError(f"there is no shift {shift!r}; there are {', '.join(everywhere)}")
    if isinstance(trials, bool) or not isinstance(trials, int) or trials < 1:
        raise InputError(f"trials must be a whole number of at least 1, not {trials!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed must be a whole number of at least 0, not {seed!r}")
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs must be at least 1, not {jobs}")
    settings = read_grid(grid)
    _check_public(public_rows, archive, settings)
    chosen = variants(grid, methods, public_rows)
    config = Config(
        archive.dataset,
        archive.severity,
        archive.digest,
        Path(grid).stem,
        settings,
        [v.label for v in chosen],
        [s for s in everywhere if shifts is None or s in shifts],
        trials,
        seed,
        public_rows,
    )
    folder = None if out is None else _Folder(Path(out), config, keep_trials)
    finished = set() if folder is None else folder.finished()
    tasks = []
    for shift in config.shifts:
        left = [v for v in chosen if (shift, v.label) not in finished]
        exact = grid != "factors" and (shift, "exact") not in finished
        if left or exact:
            tasks.append(
                Task(archive, shift, left, exact, settings, trials, seed, public_rows, keep_trials)
            )
    per_piece = len(settings) * trials
    total = per_piece * len(chosen) * len(config.shifts)
    done = total - per_piece * sum(len(task.chosen) for task in tasks)
    if progress:
        progress(None, done, total)
    rows: list[dict[str, Any]] = []
    for piece in _work(tasks, min(jobs or default_threads(), len(tasks) or 1)):
        done += piece.runs
        if folder is not None:
            folder.add(piece)
        elif piece.label != "exact":
            rows.extend(piece.rows)
        if progress:
            progress(piece, done, total)
    if folder is not None:
        return folder.collect()
    frame = pl.DataFrame(rows, infer_schema_length=None)
    return _sorted(frame, config).select(COLUMNS)


def _shifts(archive: Archive, grid: str) -> list[str]:
    """Those of the archive; where sources are not alike, also one in which shifts are mixed."""
    if grid != HETEROGENEOUS:
        return archive.shifts
    if MIXED in archive.shifts:
        raise InputError(f"a shift of the archive is called {MIXED!r}, as is one of this grid")
    return [*archive.shifts, MIXED]


def _check_public(public_rows: int, archive: Archive, settings: Sequence[Setting]) -> None:
    if isinstance(public_rows, bool) or not isinstance(public_rows, int) or public_rows < 0:
        raise InputError(f"public rows must be a whole number of at least 0, not {public_rows!r}")
    if public_rows == 0:
        return
    if CLEAN not in archive.where:
        raise InputError(f"public rows are taken from the shift {CLEAN!r}, and there is none")
    rows, private = len(archive.scores(CLEAN)), max(s.private_rows for s in settings)
    if public_rows + private >= rows:
        raise InputError(
            f"{public_rows:,} public rows and the grid's {private:,} private ones leave none of "
            f"{rows:,} to test on"
        )


# --- one shift ---------------------------------------------------------------------------


def _shift(task: Task) -> Iterator[Done]:
    archive, shift, settings, trials = task.archive, task.shift, task.settings, task.trials
    scores, groups = _rows(task)
    common = {"dataset": archive.dataset, "shift": shift, "severity": archive.severity}
    if task.exact:
        yield Done(shift, "exact", _exact(scores, common, _seed(task.seed, shift, "halves")), 0)
    simulators = _simulators(task, scores, groups)
    for variant in task.chosen:
        if variant.method in ONE_SOURCE:
            measured = _one_source(simulators, ONE_SOURCE[variant.method])
        else:
            options = dict(variant.options)
            if PUBLIC in options:
                options[PUBLIC] = _public(archive, task.public_rows, task.seed)[1]
            method = methods.make(variant.method, **options)
            measured = {
                setting: simulators[setting].run(
                    method, setting, _seed(task.seed, shift, variant.label, *_key(setting))
                )
                for setting in settings
            }
        rows = []
        for setting in settings:
            row = {
                **common,
                **asdict(setting),
                "method": variant.label,
                "trials": trials,
                **measured[setting].summary(),
            }
            if task.keep_trials:
                row |= {name: v.tolist() for name, v in measured[setting]._asdict().items()}
            rows.append(row)
        yield Done(shift, variant.label, rows, len(settings) * trials)


def _rows(task: Task) -> tuple[Scores, IntArray]:
    """The shift's scores, less the rows set aside, and each row's group (see `skew`)."""
    if task.shift == MIXED and MIXED not in task.archive.where:
        scores, groups = mixed(task.archive, _seed(task.seed, MIXED))
    else:
        scores = task.archive.scores(task.shift)
        groups = scores.labels
    if not task.public_rows:
        return scores, groups
    aside, _ = _public(task.archive, task.public_rows, task.seed)
    rest = np.setdiff1d(np.arange(len(scores)), aside)
    return scores.take(rest), groups[rest]


@lru_cache(maxsize=1)  # once for each process
def _public(archive: Archive, rows: int, seed: int) -> tuple[IntArray, Scores]:
    """The rows that are set aside, and what is public of them: the unperturbed scores."""
    scores = archive.scores(CLEAN)
    rng = np.random.default_rng(_seed(seed, PUBLIC))
    aside = np.sort(rng.permutation(len(scores))[:rows])
    return aside, scores.take(aside)


def _simulators(task: Task, scores: Scores, groups: IntArray) -> dict[Setting, Simulator]:
    """One for all settings of like sources; sources that are not alike are drawn for each."""
    tables = Tables(scores)

    def make(settings: Sequence[Setting], *names: str) -> Simulator:
        seed = _seed(task.seed, task.shift, "splits", *names)
        return Simulator(scores, settings, task.trials, seed, groups, tables)

    alike = [s for s in task.settings if math.isinf(s.skew)]
    found = dict.fromkeys(alike, make(alike)) if alike else {}
    for setting in task.settings:
        if setting not in found:
            found[setting] = make([setting], *_key(setting))
    return found


def _key(setting: Setting) -> list[str]:
    """What tells a setting's random numbers from another's."""
    return [repr(v) for k, v in vars(setting).items() if k != "skew" or math.isfinite(v)]


def _one_source(simulators: dict[Setting, Simulator], objective: str) -> dict[Setting, Measured]:
    """ε plays no part, and neither do other sources, but for the rows left to test on."""
    found: dict[Setting, Measured] = {}
    for simulator in dict.fromkeys(simulators.values()):
        mine = [setting for setting in simulators if simulators[setting] is simulator]
        for samples in {setting.samples for setting in mine}:
            alike = [setting for setting in mine if setting.samples == samples]
            fitted = simulator.fit_first_source(samples, objective)
            found.update(zip(alike, simulator.measure_tabulated(fitted, alike), strict=True))
    return found


def _exact(
    scores: Scores, common: dict[str, Any], seed: np.random.SeedSequence
) -> list[dict[str, Any]]:
    """The no-privacy table: fitted to one half, measured on the other, over random halves.

    The paper does not say how it split; halves are our choice.
    """
    import warnings

    rng = np.random.default_rng(seed)
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in EXACT}
    for _ in range(HALVES):
        order = rng.permutation(len(scores))
        fitted, test = (scores.take(np.sort(half)) for half in np.array_split(order, 2))
        for name, objective in EXACT.items():
            temperature = 1.0
            if objective is not None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    temperature = fit_temperature(fitted, objective).temperature
            c, y = confidence(test.outputs, temperature), test.correct
            found[name].append((ece(c, y, BINS), brier(c, y), aurc(c, y)))
    return [
        {
            **common,
            "method": name,
            "halves": HALVES,
            "accuracy": float(scores.correct.mean()),
            **Measured(*np.array(values).T).summary(),
        }
        for name, values in found.items()
    ]


def _seed(seed: int, *names: object) -> np.random.SeedSequence:
    """A stream of its own for each name, whatever else runs and in whatever order."""
    key = tuple(zlib.crc32(str(name).encode()) for name in names)
    return np.random.SeedSequence(seed, spawn_key=key)


# --- processes ---------------------------------------------------------------------------


def _work(tasks: Sequence[Task], jobs: int) -> Iterator[Done]:
    """What the tasks yield, in whatever order it comes."""
    if jobs == 1:
        for task in tasks:
            yield from _shift(task)
        return
    context = multiprocessing.get_context("spawn")  # fork would copy other libraries' threads
    todo, results = context.Queue(), context.Queue()
    for task in tasks:
        todo.put(task)
    for _ in range(jobs):
        todo.put(None)
    with _workers(context, jobs, todo, results) as workers:
        left = len(tasks)
        while left:
            try:
                kind, content = results.get(timeout=1)
            except queue.Empty:
                if not all(w.is_alive() or w.exitcode == 0 for w in workers):
                    raise RuntimeError(
                        "a process of the study died; run it again to go on"
                    ) from None
                continue
            if kind == "piece":
                yield content
            elif kind == "error":
                raise content
            else:
                left -= 1


@contextmanager
def _workers(context: Any, jobs: int, todo: Any, results: Any) -> Iterator[list[Any]]:
    workers = [
        context.Process(target=_worker, args=(todo, results), daemon=True) for _ in range(jobs)
    ]
    with _one_thread_each():
        for worker in workers:
            worker.start()
    try:
        yield workers
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes started here do linear algebra on one thread: they share the cores already.

    The library reads these when it is loaded, before any code of ours runs there.
    """
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _worker(todo: Any, results: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    os.environ["PRIVCAL_THREADS"] = "1"  # the processes share the cores already
    while (task := todo.get()) is not None:
        try:
            for piece in _shift(task):
                results.put(("piece", piece))
        except Exception as error:
            results.put(("error", error))
            return
        results.put(("done", None))


# --- the folder --------------------------------------------------------------------------


class _Folder:
    """A study's folder: `study.json` says what it is; `parts/` grows; the rest is collected."""

    def __init__(self, path: Path, config: Config, keep_trials: bool) -> None:
        self.path, self.config, self.keep_trials = path, config, keep_trials
        self.parts = path / "parts"
        said = path / "study.json"
        facts = {**config.to_dict(), "keep_trials": keep_trials}
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file; a study needs a folder")
        if said.exists():
            before = _json(said)
            if before != json.loads(json.dumps(facts)):
                changed = sorted(
                    k for k in facts if before.get(k) != json.loads(json.dumps(facts[k]))
                )
                raise InputError(
                    f"{path} holds another study ({', '.join(changed)} differ); choose another folder"
                )
        elif path.exists() and any(path.iterdir()):
            raise InputError(f"{path} is not empty and holds no study; choose another folder")
        self.parts.mkdir(parents=True, exist_ok=True)
        if not said.exists():
            with replacing(said) as part:
                part.write_text(json.dumps(facts, indent=2), encoding="utf-8")

    def _part(self, shift: str, label: str) -> Path:
        return (
            self.parts / f"{zlib.crc32(shift.encode()):08x}-{zlib.crc32(label.encode()):08x}.json"
        )

    def finished(self) -> set[tuple[str, str]]:
        labels = [*self.config.methods, "exact"]
        return {(s, m) for s in self.config.shifts for m in labels if self._part(s, m).exists()}

    def add(self, piece: Done) -> None:
        with replacing(self._part(piece.shift, piece.label)) as part:
            part.write_text(json.dumps(piece.rows), encoding="utf-8")

    def collect(self) -> pl.DataFrame:
        """All parts into `results.parquet`, `exact.parquet` and, if kept, `trials.parquet`."""
        import polars as pl

        rows: list[dict[str, Any]] = []
        exact: list[dict[str, Any]] = []
        for shift in self.config.shifts:
            for label in [*self.config.methods, "exact"]:
                file = self._part(shift, label)
                if file.exists():
                    (exact if label == "exact" else rows).extend(_json(file))
        frame = _sorted(pl.DataFrame(rows, infer_schema_length=None), self.config)
        tables = {"results": frame.select(COLUMNS)}
        if exact:
            tables["exact"] = pl.DataFrame(exact, infer_schema_length=None)
        if self.keep_trials:
            keep = (*COLUMNS[:8], "skew")
            tables["trials"] = (
                frame.with_columns(trial=pl.int_ranges(pl.col("trials")))
                .select(*keep, "trial", *Measured._fields)
                .explode("trial", *Measured._fields)
            )
        for name, table in tables.items():
            with replacing(self.path / f"{name}.parquet") as part:
                table.write_parquet(part)
        return tables["results"]


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except json.JSONDecodeError:
        raise InputError(f"{path} is damaged; delete it and run the study again") from None


def _sorted(frame: pl.DataFrame, config: Config) -> pl.DataFrame:
    """In the order of the configuration, however many processes there were."""
    import polars as pl

    order = {s: i for i, s in enumerate(config.shifts)}
    place = {m: i for i, m in enumerate(config.methods)}
    sweeps = {s: i for i, s in enumerate(dict.fromkeys(x.sweep for x in config.settings))}
    return frame.sort(
        pl.col("shift").replace_strict(order),
        pl.col("method").replace_strict(place),
        pl.col("sweep").replace_strict(sweeps),
        "sources",
        "samples",
        "epsilon",
        "skew",
    )
