"""The study says what real sources would: same sums, same law of noise, same results."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import privcal
from privcal import methods, study
from privcal.maps import BinsMap, Map, TemperatureMap
from privcal.methods.base import Ask, Batch, Rounds
from privcal.privacy.epsilon import NANO
from privcal.privacy.mechanism import add_noise
from privcal.queries import GRID, BinnedGap, CellHistogram, Gap, Histogram, Nll
from privcal.source import Source
from privcal.study.archive import read_archive
from privcal.study.grids import GRIDS, Setting, read_grid
from privcal.study.run import ONE_SOURCE, variants
from privcal.study.simulator import Simulator, average_noise
from privcal.study.tabulated import TABULATED
from tests.conftest import random_scores

SMALL = Setting("sources", 6, 8, 1.0)
ALSO = Setting("samples", 4, 20, 2.0)


def simulator(
    rows: int = 400, trials: int = 7, settings: tuple[Setting, ...] = (SMALL, ALSO)
) -> Simulator:
    scores = random_scores(rows, seed=3)
    return Simulator(scores, settings, trials, np.random.SeedSequence(5))


@pytest.mark.parametrize("setting", [SMALL, ALSO])
@pytest.mark.parametrize(
    "query",
    [Gap(1.3), Nll(0.7, 3.0), BinnedGap(2.1, 15), Histogram(10), CellHistogram(10)],
    ids=repr,
)
def test_noise_free_sums_are_the_integers_that_sources_would_add_up(
    query: object, setting: Setting
) -> None:
    sim = simulator()
    temperatures = None
    if not isinstance(query, (Histogram, CellHistogram)):
        temperatures = np.where(np.arange(sim.trials) % 2, 1.3, query.temperature)
    found = sim.exact_sums(Ask(query, NANO, temperatures), setting)
    for trial in range(sim.trials):
        asked = query if temperatures is None else query.at(temperatures[trial])
        total = np.zeros(query.length, np.int64)
        for i in range(setting.sources):
            rows = sim.order[trial, i * setting.samples : (i + 1) * setting.samples]
            total += Source(sim.scores.take(rows), ledger=None)._exact(asked)
        assert found[trial].tolist() == total.tolist()


def test_trials_are_random_orders_without_repetition() -> None:
    sim = simulator(trials=50)
    assert all(len(set(order)) == len(order) for order in sim.order.tolist())
    counts = np.bincount(sim.order.ravel(), minlength=400)
    assert counts.std() < 2.2 * math.sqrt(50 * 0.2 * 0.8)  # 80 of 400 rows in each of 50 trials


def test_the_noise_has_the_law_of_real_sources_noise_averaged() -> None:
    sources, nano, n = 5, NANO // 3, 15_000
    noise = add_noise(np.zeros(sources * n, np.int64), Nll().bound, nano)
    real = np.reshape(noise, (n, sources)).mean(axis=1) / GRID
    drawn = average_noise(np.random.default_rng(1), sources, Ask(Nll(), nano), (n, 1))[:, 0]
    assert stats.ks_2samp(real, drawn).pvalue > 1e-6
    # Kurtosis 3 + 3/5: the two deviations agree to 5 standard errors, which is below 5 %.
    error = 5 * math.sqrt(2 * 2.6 / (4 * n))
    assert abs(math.log(real.std() / drawn.std())) < error < math.log(1.05)
    assert drawn.std() == pytest.approx(math.sqrt(2 / sources) * 30, rel=error)


def test_a_run_without_noise_is_exact() -> None:
    setting = Setting("epsilon", 6, 8, math.inf)
    sim = simulator(settings=(setting,))
    first = sim.run(methods.make("acc-t"), setting, np.random.SeedSequence(1))
    again = sim.run(methods.make("acc-t"), setting, np.random.SeedSequence(2))
    assert np.array_equal(first, again)


def by_hand(sim: Simulator, maps: list[Map], setting: Setting) -> tuple[list[float], list[float]]:
    ece, brier = [], []
    for trial, found in enumerate(maps):
        private = set(sim.order[trial, : setting.private_rows].tolist())
        test = sim.scores.take(np.array([i for i in range(len(sim.scores)) if i not in private]))
        c = found.confidence(test)
        ece.append(privcal.ece(c, test.correct))
        brier.append(privcal.brier(c, test.correct))
    return ece, brier


@pytest.mark.parametrize("setting", [SMALL, ALSO])
@pytest.mark.parametrize("kind", ["temperature", "bins", "other bins", "mixed"])
def test_measures_are_those_of_the_test_rows(setting: Setting, kind: str) -> None:
    sim = simulator()
    rng = np.random.default_rng(0)
    maps: list[Map] = [TemperatureMap(float(t)) for t in rng.choice([0.8, 1.7, 2.6], sim.trials)]
    if kind != "temperature":
        bins = 15 if kind == "bins" else 7
        maps = [
            BinsMap(tuple(None if v < 0.2 else float(v) for v in rng.random(bins))) for _ in maps
        ]
    if kind == "mixed":
        maps[0] = TemperatureMap(1.1)
    ece, brier, _ = sim.measure(maps, setting)
    expected = by_hand(sim, maps, setting)
    assert ece == pytest.approx(expected[0], abs=2e-6)  # the grid of 2^-20
    assert brier == pytest.approx(expected[1], abs=1e-6)


def test_interpolating_in_temperature_moves_ece_by_less_than_one_in_ten_thousand() -> None:
    scores = privcal.datasets.cifar10c("fog")
    setting = Setting("sources", 50, 30, 1.0)
    sim = Simulator(scores, [setting], 40, np.random.SeedSequence(0))
    temperatures = np.random.default_rng(1).uniform(0.5, 3.0, 40)
    [(ece, brier, _)] = sim.measure_tabulated(temperatures, [setting])
    expected = by_hand(sim, [TemperatureMap(t) for t in temperatures], setting)
    # In a trial, one row on the other side of a bin edge is worth up to 2/8500 = 2.4e-4.
    assert np.abs(ece - expected[0]).mean() < 1e-4
    assert abs((ece - expected[0]).mean()) < 5e-5
    assert np.abs(ece - expected[0]).max() < 2 * 2.4e-4
    assert np.abs(brier - expected[1]).max() < 1e-4


@pytest.mark.parametrize("query", [Gap(), Nll(), BinnedGap()])
def test_sums_at_many_temperatures_are_interpolated_closely(query: object) -> None:
    setting = Setting("sources", 5, 20, 1.0)
    sim = Simulator(random_scores(500, seed=3), [setting], 100, np.random.SeedSequence(0))
    temperatures = np.random.default_rng(1).uniform(0.5, 3.0, 100)
    many = sim.exact_sums(Ask(query, NANO, temperatures), setting)
    each = [
        sim.exact_sums(Ask(query, NANO, np.full(100, t)), setting)[i]
        for i, t in enumerate(temperatures)
    ]
    # Of 100 rows: a row at the very edge of a bin may fall on its other side.
    assert (
        np.abs(many - each).sum(axis=1).max()
        < (2.5 if isinstance(query, BinnedGap) else 0.01) * GRID
    )
    assert np.median(np.abs(many - each).sum(axis=1)) < 0.01 * GRID


@pytest.mark.parametrize("objective", ["accuracy", "nll"])
def test_the_first_sources_fit_is_the_owners_exact_fit(objective: str) -> None:
    sim = Simulator(random_scores(400, seed=3), [ALSO], 60, np.random.SeedSequence(5))
    found = sim.fit_first_source(ALSO.samples, objective)
    exact = [
        Source(sim.scores.take(sim.order[t, : ALSO.samples]), ledger=None)
        .fit_local(objective)
        .temperature
        for t in range(60)
    ]
    assert found == pytest.approx(exact, rel=2e-4)
    assert {0.5, 3.0} & set(np.round(found, 12))  # some lie at the bounds


@pytest.mark.parametrize("name", [n for n in methods.names() if n not in ONE_SOURCE])
def test_a_study_of_real_sources_agrees_within_its_standard_error(name: str) -> None:
    scores = random_scores(400, seed=3)
    setting = Setting("sources", 3, 30, 2.0)
    trials = 60
    sim = Simulator(scores, [setting], 400, np.random.SeedSequence(5))
    simulated = sim.run(methods.make(name), setting, np.random.SeedSequence(6)).ece
    real = []
    for trial in range(trials):
        rows = sim.order[trial]
        sources = [
            Source(scores.take(part), privcal.Policy(epsilon=2.0), ledger=None)
            for part in np.split(rows, setting.sources)
        ]
        found = privcal.calibrate(sources, name, 2.0).map
        test = scores.take(np.setdiff1d(np.arange(len(scores)), rows))
        real.append(privcal.ece(found.confidence(test), test.correct))
    error = math.hypot(
        np.std(real) / math.sqrt(trials), simulated.std() / math.sqrt(len(simulated))
    )
    assert abs(np.mean(real) - simulated.mean()) < 5 * error + 1e-9


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    scores = random_scores(300, seed=3)
    np.savez(
        tmp_path / "tiny.npz",
        labels=scores.labels,
        clean=scores.outputs.array,
        fog=scores.outputs.array * 1.7,
        snow=scores.outputs.array * 0.6,
        meta=json.dumps({"dataset": "tiny", "severity": 3}),
    )
    return tmp_path / "tiny.npz"


@pytest.fixture
def grid(tmp_path: Path) -> str:
    file = tmp_path / "own.toml"
    file.write_text(
        "[sources]\nvalues = [2, 4]\nsamples = 5\nepsilon = 1.0\n"
        "[epsilon]\nvalues = [0.5, 2.0]\nsources = 4\nsamples = 10\n"
    )
    return str(file)


def test_the_numbers_do_not_depend_on_processes_methods_or_order(archive: Path, grid: str) -> None:
    alone = study.run([archive], grid=grid, trials=20, jobs=1)
    together = study.run([archive], grid=grid, trials=20, jobs=3)
    assert alone.equals(together)
    some = study.run(
        [archive], grid=grid, trials=20, jobs=1, methods=["acc-t", "one-source"], shifts=["fog"]
    )
    picked = alone.filter(
        (alone["shift"] == "fog") & alone["method"].is_in(["acc-t", "one-source"])
    )
    assert some.equals(picked)
    other = study.run([archive], grid=grid, trials=20, jobs=1, seed=1)
    assert not other.equals(alone)


def test_results_have_the_columns_people_rely_on(archive: Path, grid: str) -> None:
    found = study.run([archive], grid=grid, trials=5, jobs=1)
    assert found.columns == [
        "dataset", "shift", "severity", "sweep", "sources", "samples", "epsilon",
        "method", "trials", "ece_mean", "ece_se", "brier_mean",
        "aurc_mean", "brier_se", "aurc_se", "skew",
    ]  # fmt: skip
    assert found["dataset"].unique().to_list() == ["tiny"]
    assert found["severity"].unique().to_list() == [3]
    assert len(found) == 3 * 4 * len(variants("cifar", None))
    assert found["ece_mean"].is_between(0, 1).all()


def test_an_interrupted_study_goes_on_where_it_stopped(
    archive: Path, grid: str, tmp_path: Path
) -> None:
    whole = study.run([archive], grid=grid, trials=10, jobs=1, out=tmp_path / "whole")
    seen: list[tuple[str, str]] = []

    def stop_early(piece: object, done: int, total: int) -> None:
        if piece is not None:
            seen.append((piece.shift, piece.label))
        if len(seen) == 9:
            raise KeyboardInterrupt

    out = tmp_path / "study"
    with pytest.raises(KeyboardInterrupt):
        study.run([archive], grid=grid, trials=10, jobs=1, out=out, progress=stop_early)
    first = set(seen)
    seen.clear()
    resumed = study.run(
        [archive], grid=grid, trials=10, jobs=2, out=out,
        progress=lambda piece, done, total: seen.append((piece.shift, piece.label)) if piece else None,
    )  # fmt: skip
    assert not first & set(seen)
    assert resumed.equals(whole)
    assert (out / "results.parquet").exists()
    assert (out / "exact.parquet").exists()


@pytest.mark.parametrize(
    ("change", "names"),
    [({"seed": 1}, "seed"), ({"trials": 6}, "trials"), ({"shifts": ["fog"]}, "shifts")],
)
def test_a_folder_of_another_study_is_refused(
    change: dict[str, object], names: str, archive: Path, grid: str, tmp_path: Path
) -> None:
    common: dict[str, object] = {
        "grid": grid,
        "trials": 5,
        "jobs": 1,
        "methods": ["acc-t"],
        "out": tmp_path / "s",
    }
    study.run([archive], **common)
    with pytest.raises(privcal.InputError, match=rf"holds another study \({names} differ\)"):
        study.run([archive], **(common | change))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(privcal.InputError, match="holds no study"):
        study.run([archive], **(common | {"out": tmp_path / "full"}))


def test_trials_are_kept_on_request(archive: Path, grid: str, tmp_path: Path) -> None:
    import polars as pl

    found = study.run(
        [archive],
        grid=grid,
        trials=6,
        jobs=1,
        methods=["acc-t"],
        out=tmp_path / "s",
        keep_trials=True,
    )
    kept = pl.read_parquet(tmp_path / "s" / "trials.parquet")
    assert len(kept) == 6 * len(found)
    means = kept.group_by("shift", "sweep", "sources", "epsilon", maintain_order=True).agg(
        pl.col("ece").mean()
    )
    assert means["ece"].to_list() == pytest.approx(found["ece_mean"].to_list())


def test_the_published_grids() -> None:
    cifar, imagenet = GRIDS["cifar"], GRIDS["imagenet"]
    assert [sum(s.sweep == w for s in cifar) for w in ("sources", "samples", "epsilon")] == [
        25,
        10,
        10,
    ]
    assert [sum(s.sweep == w for s in imagenet) for w in ("sources", "samples", "epsilon")] == [
        20,
        20,
        10,
    ]
    assert cifar[0] == Setting("sources", 10, 10, 1.0)
    assert cifar[24] == Setting("sources", 250, 10, 1.0)
    assert cifar[-1] == Setting("epsilon", 50, 30, 2.0)
    assert imagenet[39] == Setting("samples", 100, 100, 1.0)
    epsilons = [s.epsilon for s in cifar if s.sweep == "epsilon"]
    assert epsilons == [0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("[sources", "not valid TOML"),
        ("[people]\nvalues=[1]", "must be one of"),
        ("[sources]\nvalues=[1]\nsamples=2", "must be one of"),
        ("[sources]\nvalues=[]\nsamples=2\nepsilon=1", "list of numbers"),
        ("[sources]\nvalues=[0]\nsamples=2\nepsilon=1", "sources must be a whole number"),
        ("[epsilon]\nvalues=[0]\nsamples=2\nsources=1", "epsilon must be above 0"),
    ],
)
def test_a_wrong_grid_is_told_in_one_sentence(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    file.write_text(text)
    with pytest.raises(privcal.InputError, match=says) as error:
        read_grid(str(file))
    assert "\n" not in str(error.value)


def test_an_archive_may_come_in_parts(archive: Path, tmp_path: Path) -> None:
    labels = np.load(archive)["labels"]
    np.savez(tmp_path / "more.npz", labels=labels, rain=np.zeros((300, 5)))
    both = read_archive([archive, tmp_path / "more.npz"])
    assert both.shifts == ["fog", "rain", "snow", "clean"]
    assert (both.dataset, both.severity) == ("tiny", 3)
    (tmp_path / "night").mkdir()
    for part in ("a", "b"):
        np.savez(tmp_path / "night" / f"{part}.npz", labels=labels, **{part: np.zeros((300, 5))})
    assert read_archive(sorted((tmp_path / "night").iterdir())).dataset == "night"
    assert read_archive([tmp_path / "more.npz"]).dataset == "more"
    with pytest.raises(privcal.InputError, match=r"'clean' is in .*tiny\.npz and again in"):
        read_archive([archive, archive])
    np.savez(tmp_path / "other.npz", labels=labels[::-1], hail=np.zeros((300, 5)))
    with pytest.raises(privcal.InputError, match="has other labels"):
        read_archive([archive, tmp_path / "other.npz"])


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short"])
def test_a_damaged_archive_is_told_by_name(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(content)
    with pytest.raises(privcal.InputError, match=r"bad\.npz"):
        read_archive([tmp_path / "bad.npz"])


def test_bad_requests_are_told_before_any_work(archive: Path, grid: str) -> None:
    for wrong, says in (
        ({"methods": ["acct"]}, "no method 'acct'"),
        ({"shifts": ["rain"]}, "no shift 'rain'"),
        ({"grid": "none"}, "no grid 'none'"),
        ({"trials": 0}, "trials must be"),
        ({"seed": -1}, "seed must be"),
        ({"jobs": 0}, "jobs must be"),
        ({"grid": "cifar"}, "none would be left to test on"),
    ):
        with pytest.raises(privcal.InputError, match=says):
            study.run([archive], **({"grid": grid, "trials": 5, "jobs": 1} | wrong))


def test_a_strangers_method_is_in_the_study(archive: Path, grid: str) -> None:
    @methods.register("stranger")
    @dataclass(frozen=True)
    class Stranger(methods.Method):
        def run(self, batch: Batch) -> Rounds:
            [gap] = yield [Ask(Gap(), batch.nano_epsilon, np.ones(batch.runs))]
            return [TemperatureMap(t) for t in np.where(gap[:, 0] < 0, 2.0, 1.0)]

    try:
        found = study.run([archive], grid=grid, trials=5, jobs=1)
        assert found.filter(found["method"] == "stranger").height == 3 * 4
    finally:
        del methods.base._METHODS["stranger"]


def test_the_factors_vary_what_the_paper_names() -> None:
    labels = [v.label for v in variants("factors", None)]
    for name in ("acc-t(iterations=10)", "ece-t(bins=60)", "nll-t(clip=20)", "ece-t(search=grid)"):
        assert name in labels
    assert len(labels) == len(set(labels))


def test_temperatures_of_the_table_cover_the_search() -> None:
    assert (TABULATED[0], TABULATED[-1]) == (0.5, 3.0)
