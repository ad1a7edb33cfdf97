"""Running a study: what is left to do at every shift, and doing it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privcal.checks import known, whole
from privcal.errors import InputError
from privcal.scores import IntArray, Scores
from privcal.simulate import answers
from privcal.simulate.aggregation import EACH, noise_law
from privcal.simulate.archive import CLEAN, Archive, read_archive
from privcal.simulate.first_source import search_first_source
from privcal.simulate.measure import Measured, measure
from privcal.simulate.splits import Split, Splits, measure_tabulated
from privcal.simulate.streams import sequence, stream
from privcal.simulate.temperatures import Tables
from privcal.simulate.unlike import MIXED, mixed
from privcal.simulate.variants import PUBLIC, Variant
from privcal.study.exact import exact_fits
from privcal.study.grids import (
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
from privcal.study.paper.match import grid_for
from privcal.study.store import COLUMNS, Config, Done, StudyFolder, in_order
from privcal.study.workers import check_script, work
from privcal.threads import default_threads

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
        `privcal.simulate.unlike`), or a TOML file (see `privcal.study.grids.read_grid`). By
        default the paper's for the data set, or the one of its two that suits the rows (see
        `privcal.study.paper.match.grid_for`).
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
        with the noise of such a sum under the usual terms (see `privcal.simulate.aggregation`).
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
