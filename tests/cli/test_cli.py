"""The command line, as a person uses it."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import privcal
from privcal.cli.options import words
from privcal.question import Question
from tests.conftest import random_scores


def save(path: Path, rows: int = 40, seed: int = 0, **more: object) -> Path:
    scores = random_scores(rows, seed=seed)
    np.savez(path, logits=scores.outputs.array, labels=scores.labels, **more)
    return path


NEW = ("--new-ledger", "--per-row")
ACC_T = ("--method", "acc-t")


@pytest.fixture
def clinics(tmp_path: Path) -> list[Path]:
    return [save(tmp_path / f"clinic-{i}.npz", seed=i) for i in range(3)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    p = rng.random(60).round(3)
    frame = pl.DataFrame(
        {
            "hospital": [f"H/{i % 4}" for i in range(60)],
            "person": [f"p{i // 2}" for i in range(60)],
            "probability": p,
            "label": (rng.random(60) < p).astype(int),
        }
    )
    frame.write_csv(tmp_path / "icu.csv")
    return tmp_path / "icu.csv"


def test_the_demo_runs_every_method_and_writes_what_it_says(run: Any, tmp_path: Path) -> None:
    out = tmp_path / "demo"
    code, stdout, _ = run("demo", "--sources", 4, "--samples", 20, "--out", out, "--json")
    assert code == 0
    said = json.loads(stdout)
    assert [m["method"] for m in said["methods"]] == privcal.methods.names()
    before = {m["before"]["ece"] for m in said["methods"]}
    assert len(before) == 1
    assert before.pop() > 0.15  # motion blur makes this network overconfident
    for method in said["methods"]:
        assert method["epsilon_spent"] == (method["method"] not in ("uncalibrated", "one-source"))
        assert (method["temperature"] is None) == (
            "binning" in method["method"] or method["method"] == "sketch"
        )
        assert privcal.load_map(out / "maps" / f"{method['method']}.json")
    assert (out / "reliability.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((out / "ledgers").glob("source-*.db"))) == 4
    code, stdout, stderr = run("ledger", "show", out / "ledgers" / "source-1.db", "--json")
    assert json.loads(stdout)["spent"] == len(privcal.methods.names()) - 2
    assert "warning" not in stderr


@pytest.mark.slow
def test_the_demo_replaces_only_what_a_demo_wrote(run: Any, tmp_path: Path) -> None:
    args = ("demo", "--sources", 2, "--samples", 5, "--out")
    assert run(*args, tmp_path / "new")[0] == 0
    assert run(*args, tmp_path / "new")[0] == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    code, _, stderr = run(*args, tmp_path / "mine")
    assert (code, "not from an earlier demo" in stderr) == (2, True)
    assert (tmp_path / "mine" / "thesis.tex").exists()


@pytest.mark.slow
def test_two_demos_with_one_seed_differ_in_their_noise_alone(run: Any, tmp_path: Path) -> None:
    said = []
    for name in ("a", "b"):
        run("demo", "--sources", 3, "--samples", 10, "--seed", 7, "--out", tmp_path / name)
        values = json.loads((tmp_path / name / "maps" / "histogram-binning.json").read_text())[
            "values"
        ]
        one = json.loads((tmp_path / name / "maps" / "one-source.json").read_text())["temperature"]
        said.append((values, one))
    assert said[0][0] != said[1][0]
    assert said[0][1] == said[1][1]


def test_calibrate_makes_a_map_and_durable_ledgers_beside_the_data(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    args = ("calibrate", *clinics, *ACC_T, "--out", tmp_path / "map.json", "--json")
    code, _, stderr = run(*args)
    assert (code, "has no ledger; its owner makes one" in stderr) == (2, True)
    assert "with --person COLUMN or --per-row" in stderr
    code, stdout, stderr = run(*args, *NEW)
    assert code == 0
    said = json.loads(stdout)
    assert said["spent"] == {c.stem: 1.0 for c in clinics}
    assert len(said["rounds"]) == 5
    assert "3 ledgers, each with a total of epsilon 1, protecting each row" in stderr
    assert privcal.load_map(tmp_path / "map.json").to_dict() == said["map"]
    for clinic in clinics:
        assert privcal.Ledger(f"{clinic}.ledger").nano_spent == 10**9


def test_a_comma_in_brackets_is_a_words_own() -> None:
    assert words("acc-t(bounds=0.5,6, iterations=4), nll-t,,sketch") == [
        "acc-t(bounds=0.5,6, iterations=4)",
        "nll-t",
        "sketch",
    ]


@pytest.mark.parametrize(("over", "at_end"), [(1.0, False), (12.0, True)])
def test_calibrate_says_when_its_answer_lies_at_the_end_of_the_range(
    run: Any, tmp_path: Path, over: float, at_end: bool
) -> None:
    """To people and in JSON, in one sentence, with the option and the price; else not a word."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(3000, 3))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (p.cumsum(axis=1) < rng.random((3000, 1))).sum(axis=1)
    np.savez(tmp_path / "a.npz", logits=over * logits, labels=labels)
    policy = tmp_path / "policy.toml"
    policy.write_text("epsilon = 100.0\n")
    args = ("calibrate", tmp_path / "a.npz", *NEW, "--policy", policy, "--epsilon", 100)
    args = (*args, *ACC_T, "--campaign", "c", "--out")
    code, told, stderr = run(*args, tmp_path / "map.json")
    assert code == 0, stderr
    told = " ".join(told.split())
    sentence = (
        "The search never left the upper end of its range, T from 0.5 to 6, so the best temperature "
        "may lie above it; to look there, start another campaign with a wider range, such as the "
        "option bounds=0.5,12, which costs its epsilon again."
    )
    assert (sentence in told) == at_end
    assert ("at the upper end of the range searched, from 1 of 1 source" in told) == at_end
    assert ("range" in told) == at_end
    _, stdout, _ = run(*args, tmp_path / "again.json", "--json")
    note = json.loads(stdout)["note"]
    assert note == (f"t{sentence[1:-1]}" if at_end else None)


def test_a_second_run_is_refused_by_the_ledgers_until_the_owner_raises_the_budget(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    run("calibrate", *clinics, *NEW, "--out", tmp_path / "map.json")
    code, _, stderr = run("calibrate", *clinics, "--out", tmp_path / "second.json")
    assert code == 1
    assert "over_budget, not enough of the budget is left" in stderr
    assert not list(tmp_path.glob("second.json*"))
    for clinic in clinics:
        assert run("ledger", "policy", f"{clinic}.ledger", "--epsilon", 2)[0] == 0
    assert run("calibrate", *clinics, "--out", tmp_path / "second.json")[0] == 0


def test_a_map_that_was_paid_for_is_never_overwritten_by_another(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    out = ("--epsilon", 0.5, "--out", tmp_path / "map.json")
    assert run("calibrate", *clinics, *NEW, "--campaign", "first", *out)[0] == 0
    first = (tmp_path / "map.json").read_text()
    code, _, stderr = run("calibrate", *clinics, "--campaign", "second", *out)
    assert (code, "cost epsilon 0.5 at each source, is now" in stderr) == (0, True)
    assert (tmp_path / "map-first.json").read_text() == first
    code, _, stderr = run("calibrate", *clinics, "--campaign", "second", *out)  # free, the same
    assert (code, "is now" in stderr) == (0, False)
    assert sorted(p.name for p in tmp_path.glob("map*.json")) == ["map-first.json", "map.json"]


def test_a_run_that_could_not_be_written_is_finished_without_paying_again(
    run: Any, clinics: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "map.json"
    out.write_text("older")

    def full(path: object, other: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as disk:
        disk.setattr(privcal.maps.Map, "save", lambda self, path: full(path, path))
        code, _, stderr = run("calibrate", *clinics, *NEW, "--out", out)
    assert code == 1
    assert "No space left on device" in stderr
    assert "come back free with the same command" in stderr
    assert out.read_text() == "older"
    code, _, stderr = run("calibrate", *clinics, "--out", out)
    assert (code, "going on with campaign" in stderr) == (0, True)
    assert not list(tmp_path.glob("*.campaign"))
    assert privcal.load_map(out).private
    assert privcal.Ledger(f"{clinics[0]}.ledger").nano_spent == 10**9


INTERRUPTED = """
import privcal.source
from privcal.cli.app import main

draw, calls = privcal.source.add_noise, iter(range(100))

def interrupted(*args):
    if next(calls) == {call}:
        raise KeyboardInterrupt
    return draw(*args)

privcal.source.add_noise = interrupted
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("call", [0, 1, 2, 4, 8, 11, 14])
def test_a_run_that_dies_in_any_answer_goes_on_without_paying_twice(
    call: int, run: Any, tmp_path: Path
) -> None:
    """Also where the source whose answer was lost had steered the search."""
    clinics = []
    for name, rows, sharpness in (("a", 20, 0.2), ("b", 20, 0.2), ("c", 400, 5.0)):
        scores = random_scores(rows, seed=rows)
        logits = scores.outputs.array * sharpness
        clinics.append(tmp_path / f"{name}.npz")
        np.savez(clinics[-1], logits=logits, labels=scores.labels)
        run("ledger", "create", clinics[-1], "--per-row")
    args = ["calibrate", *map(str, clinics), *ACC_T, "--out", str(tmp_path / "m.json")]
    command = [sys.executable, "-c", INTERRUPTED.format(call=call), *args]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.returncode == 1
    assert "come back free with the same command" in child.stderr
    paid = [privcal.Ledger(f"{c}.ledger").nano_spent for c in clinics]
    code, _, stderr = run(*args)
    assert code == 0, stderr
    lost = call % 3
    for place, clinic in enumerate(clinics):
        spent = privcal.Ledger(f"{clinic}.ledger").nano_spent
        assert spent == (paid[place] if place == lost else 10**9)
    assert f"left out: {'abc'[lost]} (lost" in stderr
    assert not (tmp_path / "m.json.campaign").exists()


def test_a_run_refused_at_once_leaves_nothing_behind(run: Any, tmp_path: Path) -> None:
    one, two = (save(tmp_path / f"week-{i}.npz", seed=i) for i in (1, 2))
    run("ledger", "create", one, "--per-row")
    run("ledger", "attach", one, two)
    before = sorted(tmp_path.iterdir())
    code, _, stderr = run("calibrate", one, two, "--out", tmp_path / "m.json")
    assert (code, "share one ledger" in stderr) == (2, True)
    code, _, stderr = run("calibrate", one, "--min-sources", 5, "--out", tmp_path / "m.json")
    assert (code, "nothing charged" in stderr) == (1, True)
    assert sorted(tmp_path.iterdir()) == before


def test_an_interrupted_run_is_not_forgotten_for_another(
    run: Any, clinics: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = ("--out", tmp_path / "m.json")
    with monkeypatch.context() as disk:
        disk.setattr(privcal.maps.Map, "save", lambda self, path: 1 / 0)
        run("calibrate", *clinics, *NEW, *out)
    for more in (
        ("--campaign", "feb"),
        ("--epsilon", 0.5),
        ("--method", "nll-t"),
        ("--option", "hats=6"),
    ):
        code, _, stderr = run("calibrate", *clinics, *out, *more)
        assert (code, "was begun with" in stderr) == (2, True)
    assert run("calibrate", *clinics[:2], *out)[0] == 2  # other sources
    assert run("calibrate", *clinics, *out)[0] == 0
    assert privcal.Ledger(f"{clinics[0]}.ledger").nano_spent == 10**9


def test_what_is_no_ledger_is_told_in_a_sentence(run: Any, tmp_path: Path) -> None:
    (tmp_path / "junk.ledger").write_text("not a database at all" * 100)
    code, _, stderr = run("ledger", "show", tmp_path / "junk.ledger")
    assert (code, "is not a ledger, or is damaged" in stderr) == (2, True)
    (tmp_path / "text.npz").write_text("hello")
    code, _, stderr = run("fit", tmp_path / "text.npz")
    assert (code, "pickle" in stderr) == (2, False)


def test_marks_that_cannot_be_read_are_told(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = save(tmp_path / "h.npz")
    (tmp_path / "broken.db").write_bytes(b"no marks" * 1000)
    monkeypatch.setenv("PRIVCAL_MARKS", str(tmp_path / "broken.db"))
    code, _, stderr = run("ledger", "create", data, "--per-row")
    assert (code, "high-water marks" in stderr) == (2, True)
    assert "unexpected" not in stderr


def test_a_ledger_that_was_there_and_is_gone_is_not_made_anew(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    run("calibrate", *clinics, *NEW, "--out", tmp_path / "map.json")
    lost = Path(f"{clinics[0]}.ledger")
    lost.unlink()
    code, _, stderr = run("calibrate", clinics[0], "--out", tmp_path / "again.json")
    assert code == 2
    assert "is gone" in stderr
    assert not lost.exists()
    code, stdout, _ = run("ledger", "create", clinics[0], "--per-row")
    assert (code, "epsilon 1 carried over" in stdout) == (0, True)
    code, _, stderr = run("calibrate", clinics[0], "--out", tmp_path / "again.json")
    assert (code, "over_budget" in stderr) == (1, True)


def test_a_column_splits_a_table_into_sources(run: Any, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "map.json"
    split = ("calibrate", table, "--source-column", "hospital", "--out", out, "--json")
    code, stdout, _ = run(*split, "--new-ledger", "--person", "person")
    assert code == 0
    assert set(json.loads(stdout)["spent"]) == {f"H/{i}" for i in range(4)}
    assert sorted(p.name for p in (tmp_path / "icu.csv.ledgers").iterdir()) == [
        f"H%2F{i}.ledger" for i in range(4)
    ]


def test_ledgers_may_live_elsewhere_and_policies_rule(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "policy.toml").write_text('epsilon = 2\nqueries = ["gap"]\n')
    args = ("--policy", tmp_path / "policy.toml", "--ledger-dir", tmp_path / "books")
    out = tmp_path / "map.json"
    assert run("calibrate", *clinics, *args, *ACC_T, *NEW, "--out", out)[0] == 0
    assert len(list((tmp_path / "books").glob("clinic-*.npz.ledger"))) == 3
    other = ("--method", "nll-t", "--out", tmp_path / "other.json")
    code, _, stderr = run("calibrate", *clinics, *args, *other)
    assert code == 1
    assert "query" in stderr


def test_methods_take_their_options_from_the_command_line(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    args = ("calibrate", *clinics, *NEW, "--out", tmp_path / "m.json", "--json")
    texts = ("iterations=2", "bounds=1,1.5", "clip=4")
    options = [part for text in texts for part in ("--option", text)]
    code, stdout, _ = run(*args, *options, "--method", "nll-t")
    said = json.loads(stdout)
    assert code == 0
    assert len(said["rounds"]) == 3
    assert 1 <= said["map"]["temperature"] <= 1.5
    assert said["rounds"][0]["query"]["clip"] == 4
    code, _, stderr = run(*args, *ACC_T, "--option", "bins=3")
    assert code == 2
    assert "its options are iterations=4 bounds=0.5,6 search=golden spacing=log" in stderr
    code, _, stderr = run(*args, *ACC_T, "--option", "iterations=0")  # the method's own check
    assert (code, "iterations must be a whole number" in stderr) == (2, True)


def test_option_help_lists_the_options_of_every_method_and_needs_nothing_else(run: Any) -> None:
    code, stdout, stderr = run("calibrate", "--option", "help")
    assert (code, stderr) == (0, "")
    listed = dict(line.split(": ") for line in stdout.splitlines())
    assert list(listed) == privcal.methods.names()
    assert listed["acc-t"] == "iterations=4 bounds=0.5,6 search=golden spacing=log"
    assert listed["uncalibrated"] == "none"


@pytest.mark.parametrize("ending", ["parquet", "csv", "npz"])
def test_apply_writes_calibrated_confidences_without_needing_labels(
    run: Any, ending: str, tmp_path: Path
) -> None:
    logits = random_scores(12).outputs.array
    np.savez(tmp_path / "new.npz", logits=logits)
    map = privcal.TemperatureMap(2.0)
    map.save(tmp_path / "map.json")
    out = tmp_path / f"out.{ending}"
    code, _, _ = run(
        "apply", tmp_path / "map.json", tmp_path / "new.npz", "--out", out, "--probabilities"
    )
    assert code == 0
    found = dict(np.load(out)) if ending == "npz" else _columns(out)
    assert found["confidence"] == pytest.approx(map.confidence(logits))
    assert found["predicted"].tolist() == logits.argmax(axis=1).tolist()
    p = found.get("probabilities")
    if p is None:
        p = np.stack([found[f"probability_{j}"] for j in range(5)], axis=1)
    assert p == pytest.approx(map.predict_proba(logits))


def _columns(path: Path) -> dict[str, np.ndarray]:
    frame = pl.read_csv(path) if path.suffix == ".csv" else pl.read_parquet(path)
    return {name: frame[name].to_numpy() for name in frame.columns}


def test_evaluate_measures_before_and_after_and_draws(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    privcal.TemperatureMap(2.0).save(tmp_path / "map.json")
    picture = tmp_path / "r.svg"
    code, stdout, _ = run(
        "evaluate", clinics[0], "--map", tmp_path / "map.json", "--plot", picture, "--json"
    )
    assert code == 0
    said = json.loads(stdout)
    scores = privcal.read_scores(clinics[0])
    for when, temperature in (("before", 1.0), ("after", 2.0)):
        map = privcal.TemperatureMap(temperature)
        c, p = map.confidence(scores), map.predict_proba(scores)
        assert said[when] == pytest.approx(
            {
                "rows": 40,
                "accuracy": privcal.accuracy(scores.correct),
                "mean_confidence": privcal.mean_confidence(c),
                "ece": privcal.ece(c, scores.correct),
                "ece_equal_mass": privcal.equal_mass_ece(c, scores.correct),
                "ece_debiased": privcal.debiased_ece(c, scores.correct),
                "ece_classwise": privcal.classwise_ece(p, scores.labels),
                "mce": privcal.mce(c, scores.correct),
                "brier": privcal.brier(c, scores.correct),
                "brier_multiclass": privcal.brier_multiclass(p, scores.labels),
                "aurc": privcal.aurc(c, scores.correct),
                "nll": privcal.nll(p, scores.labels),
            }
        )
    assert "<svg" in picture.read_text()


def test_fit_gives_the_exact_temperature_and_says_when_it_is_out_of_bounds(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "m.json"
    code, stdout, _ = run("fit", clinics[0], "--objective", "accuracy", "--out", out, "--json")
    exact = privcal.fit_temperature(privcal.read_scores(clinics[0]), "accuracy").temperature
    assert code == 0
    assert json.loads(stdout)["temperature"] == exact
    assert not privcal.load_map(out).private
    np.savez(tmp_path / "perfect.npz", logits=np.eye(3), labels=[0, 1, 2])
    code, stdout, stderr = run("fit", tmp_path / "perfect.npz", "--objective", "accuracy")
    assert code == 0
    assert "lies below the bound 0.05" in stderr


def test_ledger_create_show_and_reconcile(run: Any, tmp_path: Path) -> None:
    data = save(tmp_path / "s.npz", rows=5)
    file = tmp_path / "s.npz.ledger"
    assert run("ledger", "create", data, "--epsilon", 2, "--per-row")[0] == 0
    code, _, stderr = run("ledger", "create", data, "--per-row")
    assert (code, "already has the ledger" in stderr) == (2, True)
    source = privcal.Source(random_scores(5), privcal.Policy(epsilon=2), ledger=file)
    source.answer(Question.of(privcal.queries.Gap(1.5), 0.5, "spring", round=2), "acme")
    code, stdout, _ = run("ledger", "show", file)
    assert code == 0
    assert all(
        word in stdout
        for word in (
            "acme spring/2/0",
            "gap T=1.5",
            "spent: 0.5",
            "1.5 remains of 2",
            "Protected: one row",
            "believed with 50 of 100 that you are in the data may come to believe it with at most 88",
        )
    )
    assert run("ledger", "show", data)[1].split("\n")[3:] == stdout.split("\n")[3:]
    copy = file.read_bytes()
    source.answer(Question.of(privcal.queries.Gap(1.5), 0.25, "spring", round=3), "acme")
    file.write_bytes(copy)
    assert "restored from an old copy" in run("ledger", "show", file)[2]
    _, stdout, stderr = run("ledger", "reconcile", file)
    assert "0.25 written off" in stdout
    assert "secure sums" not in stderr
    code, stdout, _ = run("ledger", "show", file, "--json")
    assert json.loads(stdout)["remains"] == 1.25


def test_source_check_explains_what_can_leave(run: Any, table: Path, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(
        'epsilon = 0.5\nqueries = ["gap", "nll"]\nrows_per_person = 2\n'
    )
    code, stdout, _ = run("source", "check", table, "--policy", tmp_path / "p.toml", "--json")
    assert code == 0
    said = json.loads(stdout)
    assert (
        "60 rows of 30 persons; of each person at most 2 rows count, 60 in all"
        in said["summary"][0]
    )
    assert [q["kind"] for q in said["queries"]] == ["gap", "nll"]
    assert [q["sensitivity"] for q in said["queries"]] == [2, 20]
    assert said["queries"][0]["noise"] == pytest.approx(np.sqrt(2) * 2 / 0.5)


def test_version_and_help(run: Any) -> None:
    said = run("--version")[1]
    assert said in {f"privcal {privcal.__version__} (kernel: {name})\n" for name in ("c", "numpy")}
    code, stdout, _ = run("calibrate", "--help")
    assert code == 0
    assert "privcal calibrate clinic-*.npz" in stdout


def test_names_are_shown_as_they_are(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "scores[final].ledger"
    privcal.Ledger.create(file, unit="row")
    source = privcal.Source(random_scores(5), None, ledger=file)
    for i, asker in enumerate(["eve[/x]", "ac[i]me", ":smile:"]):
        source.answer(Question.of(privcal.queries.Gap(), 0.1, "[bold]", index=i), asker)
    code, stdout, _ = run("ledger", "show", file)
    assert code == 0
    for text in ("eve[/x]", "ac[i]me", ":smile:", "[bold]/0/0", "scores[final].ledger"):
        assert text in stdout


def test_files_of_one_name_in_several_folders_are_several_sources(run: Any, tmp_path: Path) -> None:
    files = []
    for name in ("h1", "h2"):
        (tmp_path / name).mkdir()
        files.append(save(tmp_path / name / "scores.npz"))
    out = tmp_path / "m.json"
    code, stdout, _ = run("calibrate", *files, *NEW, "--out", out, "--method", "sketch",
                          "--sketch", tmp_path / "s.json", "--json")  # fmt: skip
    assert code == 0
    ids = [privcal.Ledger(f"{file}.ledger").id for file in files]
    assert set(json.loads(stdout)["spent"]) == {f"scores ({id[:8]})" for id in ids}
    for leaving in (stdout, (tmp_path / "s.json").read_text(), out.read_text()):
        assert "h1" not in leaving  # no path leaves


def test_the_asker_is_who_the_policy_names(run: Any, clinics: list[Path], tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('askers = ["acme"]')
    for clinic in clinics:
        run("ledger", "create", clinic, "--per-row", "--policy", tmp_path / "p.toml")
    args = ("calibrate", *clinics, "--out", tmp_path / "m.json")
    code, _, stderr = run(*args)
    assert (code, "asker" in stderr) == (1, True)
    assert "paid for" not in stderr
    assert run(*args, "--asker", "acme")[0] == 0


def test_the_same_file_gets_no_second_budget_by_being_asked_differently(
    run: Any, table: Path, tmp_path: Path
) -> None:
    out = ("--out", tmp_path / "m.json", "--new-ledger", "--person", "person")
    assert run("calibrate", table, "--source-column", "hospital", *out)[0] == 0
    (tmp_path / "link.csv").symlink_to(table)
    (tmp_path / "sub").mkdir()
    for args in (
        (table,),
        (table, "--source-column", "person"),
        (table, "--source-column", "hospital", "--ledger-dir", tmp_path / "books"),
        (tmp_path / "link.csv",),
        (tmp_path / "sub" / ".." / "icu.csv",),
    ):
        code, _, stderr = run("calibrate", *args, *out)
        assert code == 2, args
        assert "already has" in stderr
    assert not (tmp_path / "books").exists()
    # A table that grew by a hospital is no other table.
    with open(table, "a") as file:
        file.write("H/9,p99,0.5,1\n")
    code, stdout, stderr = run("calibrate", table, "--source-column", "hospital", *out, "--json")
    assert code == 0
    assert "1 ledger with a total" in stderr
    assert len(json.loads(stdout)["dropped"]) == 4


def test_json_has_no_infinities(run: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", logits=[[1e308, -1e308], [0.0, 0.0]], labels=[1, 0])
    code, stdout, _ = run("evaluate", tmp_path / "p.npz", "--json")
    assert code == 0

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is not JSON")

    assert json.loads(stdout, parse_constant=refuse)["before"]["nll"] is None


def test_a_large_or_odd_policy_is_explained_too(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "p.toml").write_text('epsilon = "1000"\nqueries = []\n')
    code, stdout, _ = run("source", "check", clinics[0], "--policy", tmp_path / "p.toml", "--json")
    assert code == 0
    said = json.loads(stdout)
    assert said["queries"] == []
    assert any("promises nothing" in line for line in said["summary"])


@pytest.mark.slow
def test_the_demo_runs_in_an_empty_folder_it_is_in(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for _ in range(2):
        assert run("demo", "--sources", 2, "--samples", 5, "--out", ".")[0] == 0


BAD = {
    "no such file": ("fit", "none.npz"),
    "an empty file": ("fit", "empty.npz"),
    "a truncated file": ("fit", "cut.npz"),
    "NaN": ("fit", "nan.npz"),
    "labels out of range": ("fit", "labels.npz"),
    "lengths that differ": ("fit", "lengths.npz"),
    "no rows": ("fit", "norows.npz"),
    "an unknown ending": ("evaluate", "x.txt"),
    "answers as sources": ("calibrate", "map.json", *NEW, "--out", "m.json"),
    "an unknown objective": ("fit", "good.npz", "--objective", "best"),
    "an unknown method": ("calibrate", "good.npz", *NEW, "--method", "acct", "--out", "m.json"),
    "one-source from afar": (
        "calibrate",
        "good.npz",
        *NEW,
        "--method",
        "one-source",
        "--out",
        "m.json",
    ),
    "epsilon 0": ("calibrate", "good.npz", *NEW, "--epsilon", "0", "--out", "m.json"),
    "a negative epsilon": ("calibrate", "good.npz", *NEW, "--epsilon", "-1", "--out", "m.json"),
    "the same source twice": ("calibrate", *NEW, "good.npz", "good.npz", "--out", "m.json"),
    "no folder for the map": ("calibrate", "good.npz", *NEW, "--out", "none/m.json"),
    "no column": ("calibrate", "t.csv", *NEW, "--source-column", "ward", "--out", "m.json"),
    "a broken map": ("apply", "broken.json", "good.npz", "--out", "o.csv"),
    "an unknown output": ("apply", "map.json", "good.npz", "--out", "o.xlsx"),
    "a picture of unknown kind": ("evaluate", "good.npz", "--plot", "p.doc"),
    "an unknown shift": ("demo", "--shift", "rain"),
    "too many sources": ("demo", "--sources", "10000"),
    "no sources": ("demo", "--sources", "0"),
    "no ledger": ("ledger", "show", "none.ledger"),
    "a wrong policy": ("source", "check", "good.npz", "--policy", "bad.toml"),
    "an unknown option": ("fit", "good.npz", "--speed", "1"),
    "bins out of range": ("evaluate", "good.npz", "--bins", "0"),
    "an output that is an input": ("calibrate", "good.npz", *NEW, "--out", "good.npz"),
    "an applied output that is an input": ("apply", "map.json", "good.npz", "--out", "good.npz"),
    "a fit that is an input": ("fit", "good.npz", "--out", "good.npz"),
    "an output that is the list of sources": (
        "calibrate",
        "t.csv",
        *NEW,
        "--source-column",
        "label",
        "--source-list",
        "good.txt",
        "--out",
        "good.txt",
    ),
    "a campaign with a slash": (
        "calibrate",
        "good.npz",
        *NEW,
        "--campaign",
        "a/b",
        "--out",
        "m.json",
    ),
    "a row limit without ids": (
        "calibrate",
        "good.npz",
        *NEW,
        "--policy",
        "two.toml",
        "--out",
        "m.json",
    ),
    "no ledger yet": ("calibrate", "good.npz", "--out", "m.json"),
    "a new ledger for whom": ("calibrate", "good.npz", "--new-ledger", "--out", "m.json"),
    "both units": ("ledger", "create", "good.npz", "--per-row", "--person", "person"),
    "an unknown person column": ("ledger", "create", "t.csv", "--person", "patient"),
    "more than a new ledger holds": ("calibrate", "good.npz", *NEW, "--epsilon", "2", "--out", "m"),
    "a missing list": (
        "calibrate",
        "t.csv",
        *NEW,
        "--source-column",
        "label",
        "--source-list",
        "x",
        "--out",
        "m.json",
    ),
    "a list without a column": (
        "calibrate",
        "t.csv",
        *NEW,
        "--source-list",
        "good.txt",
        "--out",
        "m.json",
    ),
    "an epsilon too small to split": ("demo", "--epsilon", "1e-9", "--out", "d"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_gets_one_sentence_and_exit_code_2(
    what: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good = save(tmp_path / "good.npz")
    Path("empty.npz").touch()
    Path("x.txt").touch()
    Path("cut.npz").write_bytes(good.read_bytes()[:300])
    Path("broken.json").write_text('{"format": "privcal-map", "ver')
    Path("bad.toml").write_text("epsilon = 'much'")
    Path("good.txt").write_text("A\nB\n")
    Path("two.toml").write_text("rows_per_person = 2")
    Path("t.csv").write_text("label,probability\n1,0.5\n")
    privcal.TemperatureMap(2.0).save("map.json")
    logits, labels = np.zeros((3, 2)), np.zeros(3, int)
    np.savez("nan.npz", logits=np.where(np.eye(3, 2) > 0, np.nan, 0), labels=labels)
    np.savez("labels.npz", logits=logits, labels=labels + 2)
    np.savez("lengths.npz", logits=logits, labels=labels[:2])
    np.savez("norows.npz", logits=logits[:0], labels=labels[:0])
    before = sorted(tmp_path.iterdir())
    code, stdout, stderr = run(*BAD[what])
    assert code == 2, (stdout, stderr)
    assert "Traceback" not in stderr
    if what != "an unknown option":  # typer frames its usage errors
        assert stderr.startswith("error: ")
        assert stderr.count("\n") == 1
    left = [p for p in sorted(tmp_path.iterdir()) if p not in before and p.name != "elsewhere"]
    assert left == []


def test_no_output_takes_the_place_of_a_ledger(run: Any, tmp_path: Path) -> None:
    ward = save(tmp_path / "ward.npz")
    [ledger] = privcal.create_ledgers(ward, per_row=True)
    code, _, stderr = run("calibrate", ward, "--out", ledger.path)
    assert (code, "ward.npz.ledger is an input" in stderr) == (2, True)
    assert run("ledger", "show", ward)[0] == 0


def test_json_goes_alone_to_standard_output(run: Any, clinics: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "m.json"
    commands: list[tuple[object, ...]] = [
        ("calibrate", *clinics, *NEW, "--out", out),
        ("fit", clinics[0]),
        ("evaluate", clinics[0]),
        ("apply", out, clinics[0], "--out", tmp_path / "o.csv"),
        ("ledger", "create", save(tmp_path / "new.npz", seed=9), "--per-row"),
        ("ledger", "show", tmp_path / "new.npz"),
        ("ledger", "policy", tmp_path / "new.npz", "--epsilon", 1),
        ("ledger", "attach", tmp_path / "new.npz", save(tmp_path / "later.npz", seed=8)),
        ("ledger", "reconcile", tmp_path / "new.npz.ledger"),
        ("source", "check", clinics[0]),
    ]
    for command in commands:
        code, stdout, _ = run(*command, "--json")
        assert code == 0, command
        assert isinstance(json.loads(stdout), dict)


@pytest.mark.slow
def test_an_interrupted_run_leaves_finished_work_usable(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from privcal.cli.app import main; main()",
        "demo",
        "--out",
        str(tmp_path / "d"),
    ]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    first = tmp_path / "d" / "maps" / "histogram-binning.json"
    deadline = time.monotonic() + 60
    while not first.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGINT)
    _, stderr = child.communicate(timeout=60)
    assert child.returncode == 1
    assert "interrupted" in stderr
    assert "Traceback" not in stderr
    assert privcal.load_map(first).private
    spent = {privcal.Ledger(p).nano_spent for p in (tmp_path / "d" / "ledgers").glob("source-*.db")}
    assert min(spent) >= 10**9


def test_the_core_imports_without_its_heavy_or_optional_parts() -> None:
    code = (
        "import sys, privcal; heavy = {'torch', 'nvflare', 'sklearn', 'scipy', 'polars', 'matplotlib',"
        " 'opendp', 'typer'}; print(sorted(heavy & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_columns_are_said_once_and_then_known(run: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    risk, died = rng.uniform(size=60), rng.integers(0, 2, 60)
    path = tmp_path / "visits.csv"
    pl.DataFrame({"risk": risk, "died": died, "pid": np.arange(60) // 2}).write_csv(path)
    said = ("--columns", "probability=risk,label=died", "--columns", "person=pid")
    code, _, stderr = run("ledger", "create", path, *said)
    assert code == 0, stderr
    out = tmp_path / "map.json"
    asked = ("calibrate", path, "--method", "sketch", "--epsilon", "0.5", "--out", out)
    code, _, stderr = run(*asked, "--columns", "probability=died,label=risk")
    assert code == 2
    assert "leave --columns and --classes out" in stderr
    assert run(*asked)[0] == 0
    assert "30 persons" in run("source", "check", path)[1]
    done = tmp_path / "done.csv"
    code, _, _ = run("apply", out, path, *said[:2], "--out", done)
    assert code == 0
    found = _columns(done)
    assert list(found) == ["died", "pid", "predicted", "correct", "confidence"]
    expected = privcal.load_map(out).confidence(probabilities=risk)
    assert found["confidence"] == pytest.approx(expected)
    measured = json.loads(run("evaluate", done, "--json")[1])["before"]
    scores = privcal.Scores(probabilities=risk, labels=died)
    assert measured["ece"] == pytest.approx(privcal.evaluate(scores, privcal.load_map(out)).ece)


@pytest.mark.parametrize("text", ["label", "label=", "=died", "label=a,label=b"])
def test_columns_are_pairs(run: Any, tmp_path: Path, text: str) -> None:
    (tmp_path / "x.csv").write_text("label,probability\n1,0.5\n")
    code, _, stderr = run("evaluate", tmp_path / "x.csv", "--columns", text)
    assert code == 2
    assert "--columns" in stderr


def test_logits_that_look_like_probabilities_are_remarked(run: Any, tmp_path: Path) -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(3), 40)
    np.savez(tmp_path / "x.npz", logits=p, labels=p.argmax(1))
    for command in (["evaluate"], ["source", "check"], ["fit"]):
        code, _, stderr = run(*command, tmp_path / "x.npz")
        assert code == 0
        assert "if they are probabilities, call them so" in stderr
    code, _, stderr = run("ledger", "create", tmp_path / "x.npz", "--per-row")
    assert "if they are probabilities, call them so" in stderr
