"""Running a study: what is left to do at every shift, and doing it."""

from __future__ import annotations

import math
import multiprocessing
import os
import queue
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from privcal.data.scores import Scores
from privcal.lab.study.exact import exact_fits, search_first_source
from privcal.lab.study.grids import (
    FACTORS,
    HETEROGENEOUS,
    OWN_FITS,
    Setting,
    aggregated,
    make,
    most_rows,
    read_grid,
    variants,
)
from privcal.lab.study.paper import grid_for
from privcal.lab.study.store import COLUMNS, Config, Done, StudyFolder, in_order
from privcal.planning.simulate import answers
from privcal.planning.simulate.archive import CLEAN, Archive, read_archive
from privcal.planning.simulate.measure import Measured, Tables, measure
from privcal.planning.simulate.splits import (
    MIXED,
    Split,
    Splits,
    measure_tabulated,
    mixed,
    sequence,
    stream,
)
from privcal.planning.simulate.variants import EACH, PUBLIC, Variant, noise_law
from privcal.trusted.checks import known, whole
from privcal.trusted.errors import InputError
from privcal.trusted.scores import IntArray
from privcal.trusted.threads import default_threads

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class ShiftTask:
    """All that is left to do at one shift."""

    archive: Archive
    shift: str
    left: list[Variant]
    exact: bool
    settings: list[Setting]
    trials: int
    seed: int
    public_rows: int
    keep_trials: bool


def run(
    archives: Sequence[str | Path] | Archive = (),
    *,
    grid: str | None = None,
    methods: Sequence[str] | None = None,
    shifts: Sequence[str] | None = None,
    trials: int = 500,
    seed: int = 0,
    public_rows: int = 0,
    aggregation: str = EACH,
    jobs: int | None = None,
    out: str | Path | None = None,
    keep_trials: bool = False,
    progress: Callable[[Done | None, int, int], None] | None = None,
) -> pl.DataFrame:
    """Run a study and return its results, one row for each shift, setting and method.

    Parameters
    ----------
    archives
        Logit archives (parts of one), or one that is open; by default the bundled CIFAR-10-C.
    grid
        `cifar`, `imagenet`, `factors`, `heterogeneous` (sources that are not alike, see
        `privcal.planning.simulate.splits`), or a TOML file (see `privcal.lab.study.grids.read_grid`). By
        default the paper's for the data set, or the one of its two that suits the rows (see
        `privcal.lab.study.paper.grid_for`).
    methods, shifts
        Some of them; by default all. A method may have options, as `acc-t(bounds=0.5,6)`; what
        they do not say is as in the paper.
    trials
        Random splits for each setting.
    public_rows
        So many rows of `clean` are set aside, the same for all shifts: never private, never
        tested on. Methods with an option `public` run without them and, once more, with them.
    aggregation
        `each`: every source adds its own noise. `secure`: only sums over all sources are opened,
        with the noise of such a sum under the usual terms (see `privcal.planning.simulate.variants`).
        `both`: the one beside the other, where methods with secure sums are called as
        `sketch(aggregation=secure)`.
    jobs
        Processes; by default one for each core. The numbers do not depend on it. A script that
        calls this with more than one does so under `if __name__ == "__main__":`.
    out
        A folder: results are written there as they finish, and a study that was interrupted
        goes on where it stopped. A folder of another study is refused.
    keep_trials
        Also write every trial's values (`trials.parquet`).
    progress
        Called with what finished, and how many runs of how many are done.
    """
    check_script()
    archive = archives if isinstance(archives, Archive) else read_archive(archives)
    if grid is None:
        grid, _ = grid_for(archive)
    everywhere = _shifts(archive, grid)
    for shift in shifts or ():
        known("shift", shift, everywhere)
    whole("trials", trials, 1)
    whole("seed", seed, 0)
    if jobs is not None:
        whole("jobs", jobs, 1)
    settings = read_grid(grid)
    _check_rows(public_rows, archive, grid, settings)
    chosen = aggregated(variants(grid, methods, public_rows), aggregation, grid, settings)
    config = Config(
        archive.dataset,
        archive.severity,
        archive.rows,
        archive.classes,
        archive.corrupted,
        archive.frost,
        archive.digest,
        Path(grid).stem,
        settings,
        chosen,
        [s for s in everywhere if shifts is None or s in shifts],
        trials,
        seed,
        public_rows,
    )
    folder = None if out is None else StudyFolder(Path(out), config, keep_trials)

    def left(shift: str, variant: Variant | None) -> bool:
        return folder is None or not folder.finished(shift, variant)

    tasks = []
    for shift in config.shifts:
        todo = [variant for variant in chosen if left(shift, variant)]
        exact = grid != FACTORS and left(shift, None)
        if todo or exact:
            tasks.append(
                ShiftTask(
                    archive, shift, todo, exact, settings, trials, seed, public_rows, keep_trials
                )
            )
    per_piece = len(settings) * trials
    total = per_piece * len(chosen) * len(config.shifts)
    done = total - per_piece * sum(len(task.left) for task in tasks)
    if progress:
        progress(None, done, total)
    rows: list[dict[str, Any]] = []
    for piece in work(do_shift, tasks, min(jobs or default_threads(), len(tasks) or 1)):
        done += piece.runs
        if folder is not None:
            folder.add(piece)
        elif piece.variant is not None:
            rows.extend(piece.rows)
        if progress:
            progress(piece, done, total)
    return in_order(rows, config).select(COLUMNS) if folder is None else folder.collect()


def _shifts(archive: Archive, grid: str) -> list[str]:
    """Those of the archive; where sources are not alike, also one in which shifts are mixed."""
    if grid != HETEROGENEOUS:
        return archive.shifts
    if MIXED in archive.shifts:
        raise InputError(f"a shift of the archive is called {MIXED!r}, as is one of this grid")
    return [*archive.shifts, MIXED]


def _check_rows(public_rows: int, archive: Archive, grid: str, settings: Sequence[Setting]) -> None:
    if whole("public rows", public_rows, 0) and CLEAN not in archive.where:
        raise InputError(f"public rows are taken from the shift {CLEAN!r}, and there is none")
    private = most_rows(settings)
    if public_rows + private >= archive.rows:
        public = f"{public_rows:,} public rows and " if public_rows else ""
        raise InputError(
            f"{public}the {private:,} private rows of grid {grid} leave none of the "
            f"{archive.rows:,} of {archive.dataset} to test on; give a smaller grid (a TOML file)"
        )


# --- one shift ---------------------------------------------------------------------------


def do_shift(task: ShiftTask) -> Iterator[Done]:
    """The pieces of one shift, as they finish."""
    archive, shift, settings, trials = task.archive, task.shift, task.settings, task.trials
    scores, groups = _rows(task)
    common = {"dataset": archive.dataset, "shift": shift, "severity": archive.severity}
    if task.exact:
        fits = exact_fits(scores, stream(task.seed, shift, "halves"))
        yield Done(shift, None, [{**common, **fit} for fit in fits], 0)
    splits = _splits(task, scores, groups)
    for variant in task.left:
        if variant.method in OWN_FITS:
            measured = _own_fits(splits, OWN_FITS[variant.method])
        else:
            measured = _run(task, variant, splits)
        rows = []
        for setting in settings:
            row = {
                **common,
                **asdict(setting),
                "method": str(variant),
                "trials": trials,
                **measured[setting].summary(),
            }
            if task.keep_trials:
                row |= {name: v.tolist() for name, v in measured[setting]._asdict().items()}
            rows.append(row)
        yield Done(shift, variant, rows, len(settings) * trials)


def _run(
    task: ShiftTask, variant: Variant, splits: dict[Setting, Split]
) -> dict[Setting, Measured]:
    """One method at all settings."""
    public = {}
    if variant.public_rows:
        public[PUBLIC] = _public(task.archive, task.public_rows, task.seed)[1]
    method = make(variant, **public)
    measured = {}
    for setting, split in splits.items():
        rng = stream(task.seed, task.shift, variant, *_key(setting))
        maps = answers.run(
            method,
            split,
            setting.sources,
            setting.epsilon,
            rng,
            noise_law(variant.aggregation, setting.sources),
            rows_per_source=setting.samples,
        )
        measured[setting] = measure(maps, split)
    return measured


def _rows(task: ShiftTask) -> tuple[Scores, IntArray]:
    """The shift's scores, less the rows set aside, and each row's group (see `unlike`)."""
    if task.shift == MIXED and MIXED not in task.archive.where:
        scores, groups = mixed(task.archive, stream(task.seed, MIXED))
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
    rng = stream(seed, PUBLIC)
    aside = np.sort(rng.permutation(len(scores))[:rows])
    return aside, scores.take(aside)


def _splits(task: ShiftTask, scores: Scores, groups: IntArray) -> dict[Setting, Split]:
    """The same trials for all settings of like sources; others have trials of their own."""
    tables = Tables(scores)
    prefixes = [s.private_rows for s in task.settings if math.isinf(s.skew)]
    seed = sequence(task.seed, task.shift, "splits")
    alike = Splits.alike(tables, prefixes, task.trials, seed) if prefixes else None
    splits = {}
    for setting in task.settings:
        trials = alike
        if trials is None or math.isfinite(setting.skew):
            seed = sequence(task.seed, task.shift, "splits", *_key(setting))
            sources = setting.sources, setting.samples, setting.skew
            trials = Splits.unlike(tables, groups, *sources, task.trials, seed)
        splits[setting] = trials.at(setting.private_rows)
    return splits


def _key(setting: Setting) -> list[str]:
    """The names that tell a setting's random numbers from another's."""
    return [repr(v) for k, v in vars(setting).items() if k != "skew" or math.isfinite(v)]


def _own_fits(splits: dict[Setting, Split], objective: str) -> dict[Setting, Measured]:
    """ε plays no part, and neither do other sources, but for the rows left to test on."""
    measured: dict[Setting, Measured] = {}
    for trials in dict.fromkeys(split.of for split in splits.values()):
        mine = [setting for setting in splits if splits[setting].of is trials]
        for samples in {setting.samples for setting in mine}:
            alike = [setting for setting in mine if setting.samples == samples]
            if objective == "ece":
                maps = search_first_source(trials, samples)
                values = [measure(maps, splits[setting]) for setting in alike]
            else:
                fitted = trials.fit_first_source(samples, objective)
                values = measure_tabulated(fitted, [splits[setting] for setting in alike])
            measured.update(zip(alike, values, strict=True))
    return measured


# --- Tasks over processes, one thread each; their pieces come back in whatever order they finish ---

_IN_SCRIPT = 64
"""The exit code of a process that met the very call that started it."""

_Task = TypeVar("_Task")
_Piece = TypeVar("_Piece")


def check_script() -> None:
    """End a process that was started by a script which calls a study outside of any guard.

    Such a process runs the script again, comes to the call, and would start processes in turn.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(_IN_SCRIPT)


def work(
    do: Callable[[_Task], Iterator[_Piece]], tasks: Sequence[_Task], jobs: int
) -> Iterator[_Piece]:
    """What the tasks yield. `do` is a function of a module, so that a process can import it."""
    if jobs == 1:
        for task in tasks:
            yield from do(task)
        return
    context = multiprocessing.get_context("spawn")  # fork would copy other libraries' threads
    todo, results = context.Queue(), context.Queue()
    for task in tasks:
        todo.put(task)
    for _ in range(jobs):
        todo.put(None)
    with _workers(context, jobs, (do, todo, results)) as workers:
        left = len(tasks)
        while left:
            try:
                kind, content = results.get(timeout=1)
            except queue.Empty:
                if any(w.exitcode == _IN_SCRIPT for w in workers):
                    raise InputError(
                        "each process of a study runs the script that calls it: put the call under "
                        'if __name__ == "__main__": or say jobs=1'
                    ) from None
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
def _workers(context: Any, jobs: int, args: tuple[Any, ...]) -> Iterator[list[Any]]:
    workers = [context.Process(target=_worker, args=args, daemon=True) for _ in range(jobs)]
    with _environment():
        for worker in workers:
            worker.start()
    try:
        yield workers
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


_SETTINGS = {
    # Linear algebra on one thread: the processes share the cores already.
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    # Memory that was freed is used again, not given back and asked for anew with every array: that
    # takes longer than most of the arithmetic. (Bytes; the C library of Linux reads these.)
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}
"""What libraries read when they are loaded, before any code of ours runs in a process."""


@contextmanager
def _environment() -> Iterator[None]:
    """Processes started here have `_SETTINGS`."""
    before = {name: os.environ.get(name) for name in _SETTINGS}
    os.environ.update(_SETTINGS)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _worker(do: Callable[[Any], Iterator[Any]], todo: Any, results: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    os.environ["PRIVCAL_THREADS"] = "1"  # the processes share the cores already
    while (task := todo.get()) is not None:
        try:
            for piece in do(task):
                results.put(("piece", piece))
        except Exception as error:
            results.put(("error", error))
            return
        results.put(("done", None))
