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
from privcal.trusted.question import Question
from tests.support.builders import (
    NEW,
    a_clinic,
    a_file,
    a_table,
    interrupted,
    random_scores,
    some_clinics,
)

ACC_T = ("--method", "acc-t")


@pytest.fixture
def clinics(tmp_path: Path) -> list[Path]:
    return some_clinics(tmp_path, 3)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    p = rng.random(60).round(3)
    columns = {
        "hospital": [f"H/{i % 4}" for i in range(60)],
        "person": [f"p{i // 2}" for i in range(60)],
        "probability": p,
        "label": (rng.random(60) < p).astype(int),
    }
    return a_table(tmp_path / "icu.csv", columns)


def test_the_demo_runs_every_method_and_writes_what_it_says(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "demo"
    said = run.json("demo", "--sources", 4, "--samples", 20, "--out", out)
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
    shown = ("ledger", "show", out / "ledgers" / "source-1.db", "--json")
    stdout, stderr = run.ok(*shown)
    assert json.loads(stdout)["spent"] == len(privcal.methods.names()) - 2
    marks = out / "ledgers" / "marks.db"  # beside the ledgers, which nobody would do in earnest
    assert (
        "do not know this ledger, so its source refuses; if you keep its marks elsewhere" in stderr
    )
    monkeypatch.setenv("PRIVCAL_MARKS", str(marks))
    assert "warning" not in run.ok(*shown)[1]


@pytest.mark.slow
def test_the_demo_replaces_only_what_a_demo_wrote(run: Any, tmp_path: Path) -> None:
    args = ("demo", "--sources", 2, "--samples", 5, "--out")
    run.ok(*args, tmp_path / "new")
    run.ok(*args, tmp_path / "new")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    assert "not from an earlier demo" in run.fails(*args, tmp_path / "mine")
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
    stdout, stderr = run.ok(*args, *NEW)
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
    policy = a_file(tmp_path / "policy.toml", "epsilon = 100.0\n")
    args = ("calibrate", tmp_path / "a.npz", *NEW, "--policy", policy, "--epsilon", 100)
    args = (*args, *ACC_T, "--campaign", "c", "--out")
    told, _ = run.ok(*args, tmp_path / "map.json")
    told = " ".join(told.split())
    sentence = (
        "The search never left the upper end of its range, T from 0.5 to 6, so the best temperature "
        "may lie above it; to look there, start another campaign with a wider range, such as the "
        "option bounds=0.5,12, which costs its epsilon again."
    )
    assert (sentence in told) == at_end
    assert ("at the upper end of the range searched, from 1 of 1 source" in told) == at_end
    assert ("range" in told) == at_end
    note = run.json(*args, tmp_path / "again.json")["note"]
    assert note == (f"t{sentence[1:-1]}" if at_end else None)


def test_a_second_run_is_refused_by_the_ledgers_until_the_owner_raises_the_budget(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    run("calibrate", *clinics, *NEW, "--out", tmp_path / "map.json")
    stderr = run.fails("calibrate", *clinics, "--out", tmp_path / "second.json", code=1)
    assert "over_budget, not enough of the budget is left" in stderr
    assert not list(tmp_path.glob("second.json*"))
    for clinic in clinics:
        run.ok("ledger", "policy", f"{clinic}.ledger", "--epsilon", 2)
    run.ok("calibrate", *clinics, "--out", tmp_path / "second.json")


def test_a_map_that_was_paid_for_is_never_overwritten_by_another(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    out = ("--epsilon", 0.5, "--out", tmp_path / "map.json")
    run.ok("calibrate", *clinics, *NEW, "--campaign", "first", *out)
    first = (tmp_path / "map.json").read_text()
    code, _, stderr = run("calibrate", *clinics, "--campaign", "second", "--again", *out)
    assert (code, "cost epsilon 0.5 at each source, is now" in stderr) == (0, True)
    assert (tmp_path / "map-first.json").read_text() == first
    code, _, stderr = run("calibrate", *clinics, "--campaign", "second", *out)  # free, the same
    assert (code, "is now" in stderr) == (0, False)
    assert sorted(p.name for p in tmp_path.glob("map*.json")) == ["map-first.json", "map.json"]


def test_a_run_that_could_not_be_written_is_finished_without_paying_again(
    run: Any, clinics: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = a_file(tmp_path / "map.json", "older")

    def full(path: object, other: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as disk:
        disk.setattr("privcal.calibration.maps.Map.save", lambda self, path: full(path, path))
        code, _, stderr = run("calibrate", *clinics, *NEW, "--out", out)
    assert code == 1
    assert "No space left on device" in stderr
    assert "come back free with the same command" in stderr
    assert out.read_text() == "older"
    assert "going on with campaign" in run.ok("calibrate", *clinics, "--out", out)[1]
    assert privcal.load_map(out).private
    assert privcal.Ledger(f"{clinics[0]}.ledger").nano_spent == 10**9


@pytest.mark.slow
@pytest.mark.parametrize("call", [0, 1, 2, 4, 8, 11, 14])
def test_a_run_that_dies_in_any_answer_goes_on_without_paying_twice(
    call: int, run: Any, tmp_path: Path
) -> None:
    """Also where the source whose answer was lost had steered the search."""
    clinics = []
    for name, rows, sharpness in (("a", 20, 0.2), ("b", 20, 0.2), ("c", 400, 5.0)):
        clinics.append(a_clinic(tmp_path / f"{name}.npz", rows, seed=rows, times=sharpness))
        run("ledger", "create", clinics[-1], "--per-row")
    args = ["calibrate", *clinics, *ACC_T, "--out", tmp_path / "m.json"]
    child = interrupted(
        "privcal.trusted.source:add_noise", call, *args, how="raise KeyboardInterrupt"
    )
    assert child.returncode == 1
    assert "come back free with the same command" in child.stderr
    paid = [privcal.Ledger(f"{c}.ledger").nano_spent for c in clinics]
    _, stderr = run.ok(*args)
    lost = call % 3
    for place, clinic in enumerate(clinics):
        spent = privcal.Ledger(f"{clinic}.ledger").nano_spent
        assert spent == (paid[place] if place == lost else 10**9)
    assert f"left out: {'abc'[lost]} (lost" in stderr


def test_a_run_refused_at_once_leaves_nothing_behind(run: Any, tmp_path: Path) -> None:
    one, two = (a_clinic(tmp_path / f"week-{i}.npz", seed=i) for i in (1, 2))
    run("ledger", "create", one, "--per-row")
    run("ledger", "attach", one, two)
    before = sorted(tmp_path.iterdir())
    assert "share one ledger" in run.fails("calibrate", one, two, "--out", tmp_path / "m.json")
    code, _, stderr = run("calibrate", one, "--min-sources", 5, "--out", tmp_path / "m.json")
    assert (code, "nothing charged" in stderr) == (1, True)
    assert sorted(tmp_path.iterdir()) == before


def test_an_interrupted_run_is_not_forgotten_for_another(
    run: Any, clinics: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = ("--out", tmp_path / "m.json")
    with monkeypatch.context() as disk:
        disk.setattr("privcal.calibration.maps.Map.save", lambda self, path: 1 / 0)
        run("calibrate", *clinics, *NEW, *out)
    for more in (
        ("--campaign", "feb"),
        ("--epsilon", 0.5),
        ("--method", "nll-t"),
        ("--option", "hats=6"),
    ):
        assert "was begun with" in run.fails("calibrate", *clinics, *out, *more)
    assert run("calibrate", *clinics[:2], *out)[0] == 2  # other sources
    run.ok("calibrate", *clinics, *out)
    assert privcal.Ledger(f"{clinics[0]}.ledger").nano_spent == 10**9


def test_what_is_no_ledger_is_told_in_a_sentence(run: Any, tmp_path: Path) -> None:
    (tmp_path / "junk.ledger").write_text("not a database at all" * 100)
    assert "is not a ledger, or is damaged" in run.fails("ledger", "show", tmp_path / "junk.ledger")
    (tmp_path / "text.npz").write_text("hello")
    assert "pickle" not in run.fails("fit", tmp_path / "text.npz")


def test_marks_that_cannot_be_read_are_told(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = a_clinic(tmp_path / "h.npz")
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
    assert "is gone" in run.fails("calibrate", clinics[0], "--out", tmp_path / "again.json")
    assert not lost.exists()
    assert "epsilon 1 carried over" in run.ok("ledger", "create", clinics[0], "--per-row")[0]
    code, _, stderr = run("calibrate", clinics[0], "--out", tmp_path / "again.json")
    assert (code, "over_budget" in stderr) == (1, True)


def test_a_column_splits_a_table_into_sources(run: Any, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "map.json"
    split = ("calibrate", table, "--source-column", "hospital", "--out", out, "--json")
    stdout, _ = run.ok(*split, "--new-ledger", "--person", "person")
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
    run.ok("calibrate", *clinics, *args, *ACC_T, *NEW, "--out", out)
    assert len(list((tmp_path / "books").glob("clinic-*.npz.ledger"))) == 3
    other = ("--method", "nll-t", "--out", tmp_path / "other.json")
    assert "query" in run.fails("calibrate", *clinics, *args, *other, code=1)


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
    stderr = run.fails(*args, *ACC_T, "--option", "bins=3")
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
    run.ok("apply", tmp_path / "map.json", tmp_path / "new.npz", "--out", out, "--probabilities")
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
    said = run.json("evaluate", clinics[0], "--map", tmp_path / "map.json", "--plot", picture)
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
    np.savez(tmp_path / "perfect.npz", logits=2 * np.eye(3), labels=[0, 1, 2])
    _, stderr = run.ok("fit", tmp_path / "perfect.npz", "--objective", "accuracy")
    assert "lies below the bound 0.05" in stderr


def test_ledger_create_show_and_reconcile(run: Any, tmp_path: Path) -> None:
    data = a_clinic(tmp_path / "s.npz", rows=5)
    file = tmp_path / "s.npz.ledger"
    run.ok("ledger", "create", data, "--epsilon", 2, "--per-row")
    assert "already has the ledger" in run.fails("ledger", "create", data, "--per-row")
    source = privcal.Source(random_scores(5), privcal.Policy(epsilon=2), ledger=file)
    source.answer(Question.of(privcal.queries.Gap(1.5), 0.5, "spring", round=2), "acme")
    stdout, _ = run.ok("ledger", "show", file)
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
    assert run.json("ledger", "show", file)["remains"] == 1.25


def test_source_check_explains_what_can_leave(run: Any, table: Path, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(
        'epsilon = 0.5\nqueries = ["gap", "nll"]\nrows_per_person = 2\n'
    )
    said = run.json("source", "check", table, "--policy", tmp_path / "p.toml")
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
    stdout, _ = run.ok("calibrate", "--help")
    assert "privcal calibrate clinic-*.npz" in stdout


def test_names_are_shown_as_they_are(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "scores[final].ledger"
    privcal.Ledger.create(file, unit="row")
    source = privcal.Source(random_scores(5), None, ledger=file)
    for i, asker in enumerate(["eve[/x]", "ac[i]me", ":smile:"]):
        source.answer(Question.of(privcal.queries.Gap(), 0.1, "[bold]", index=i), asker)
    stdout, _ = run.ok("ledger", "show", file)
    for text in ("eve[/x]", "ac[i]me", ":smile:", "[bold]/0/0", "scores[final].ledger"):
        assert text in stdout


def test_files_of_one_name_in_several_folders_are_several_sources(run: Any, tmp_path: Path) -> None:
    files = []
    for name in ("h1", "h2"):
        (tmp_path / name).mkdir()
        files.append(a_clinic(tmp_path / name / "scores.npz"))
    out = tmp_path / "m.json"
    stdout, _ = run.ok("calibrate", *files, *NEW, "--out", out, "--method", "sketch",
                          "--sketch", tmp_path / "s.json", "--json")  # fmt: skip
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
    run.ok(*args, "--asker", "acme")


def test_the_same_file_gets_no_second_budget_by_being_asked_differently(
    run: Any, table: Path, tmp_path: Path
) -> None:
    new = ("--new-ledger", "--person", "person", "--out")
    out = (*new, tmp_path / "other.json")
    run.ok("calibrate", table, "--source-column", "hospital", *new, tmp_path / "m.json")
    (tmp_path / "link.csv").symlink_to(table)
    (tmp_path / "sub").mkdir()
    for args in (
        (table,),
        (table, "--source-column", "person"),
        (table, "--source-column", "hospital", "--ledger-dir", tmp_path / "books"),
        (tmp_path / "link.csv",),
        (tmp_path / "sub" / ".." / "icu.csv",),
    ):
        assert "already has" in run.fails("calibrate", *args, *out)
    assert not (tmp_path / "books").exists()
    # A table that grew by a hospital is no other table.
    with open(table, "a") as file:
        file.write("H/9,p99,0.5,1\n")
    more = ("--source-column", "hospital", "--min-sources", 1, "--json")
    stdout, stderr = run.ok("calibrate", table, *more, *out)
    assert "1 ledger with a total" in stderr
    assert len(json.loads(stdout)["dropped"]) == 4


def test_json_has_no_infinities(run: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", logits=[[1e308, -1e308], [0.0, 0.0]], labels=[1, 0])
    stdout, _ = run.ok("evaluate", tmp_path / "p.npz", "--json")

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is not JSON")

    assert json.loads(stdout, parse_constant=refuse)["before"]["nll"] is None


def test_a_large_or_odd_policy_is_explained_too(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "p.toml").write_text('epsilon = "1000"\nqueries = []\n')
    said = run.json("source", "check", clinics[0], "--policy", tmp_path / "p.toml")
    assert said["queries"] == []
    assert any("promises nothing" in line for line in said["summary"])


@pytest.mark.slow
def test_the_demo_runs_in_an_empty_folder_it_is_in(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for _ in range(2):
        run.ok("demo", "--sources", 2, "--samples", 5, "--out", ".")


GOOD = ("calibrate", "good.npz", *NEW)
PARTS = ("calibrate", "t.csv", *NEW, "--source-column", "label")
OUT = ("--out", "m.json")
BAD = {
    "no such file": ("fit", "none.npz"),
    "an empty file": ("fit", "empty.npz"),
    "a truncated file": ("fit", "cut.npz"),
    "NaN": ("fit", "nan.npz"),
    "labels out of range": ("fit", "labels.npz"),
    "lengths that differ": ("fit", "lengths.npz"),
    "no rows": ("fit", "norows.npz"),
    "an unknown ending": ("evaluate", "x.txt"),
    "answers as sources": ("calibrate", "map.json", *NEW, *OUT),
    "an unknown objective": ("fit", "good.npz", "--objective", "best"),
    "an unknown method": (*GOOD, "--method", "acct", *OUT),
    "one-source from afar": (*GOOD, "--method", "one-source", *OUT),
    "epsilon 0": (*GOOD, "--epsilon", "0", *OUT),
    "a negative epsilon": (*GOOD, "--epsilon", "-1", *OUT),
    "the same source twice": ("calibrate", *NEW, "good.npz", "good.npz", *OUT),
    "no folder for the map": (*GOOD, "--out", "none/m.json"),
    "no column": ("calibrate", "t.csv", *NEW, "--source-column", "ward", *OUT),
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
    "an output that is an input": (*GOOD, "--out", "good.npz"),
    "an applied output that is an input": ("apply", "map.json", "good.npz", "--out", "good.npz"),
    "a fit that is an input": ("fit", "good.npz", "--out", "good.npz"),
    "an output that is the list of sources": (
        *PARTS,
        "--source-list",
        "good.txt",
        "--out",
        "good.txt",
    ),
    "a campaign with a slash": (*GOOD, "--campaign", "a/b", *OUT),
    "a row limit without ids": (*GOOD, "--policy", "two.toml", *OUT),
    "no ledger yet": ("calibrate", "good.npz", *OUT),
    "a new ledger for whom": ("calibrate", "good.npz", "--new-ledger", *OUT),
    "both units": ("ledger", "create", "good.npz", "--per-row", "--person", "person"),
    "an unknown person column": ("ledger", "create", "t.csv", "--person", "patient"),
    "more than a new ledger holds": (*GOOD, "--epsilon", "2", "--out", "m"),
    "a missing list": (*PARTS, "--source-list", "x", *OUT),
    "a list without a column": ("calibrate", "t.csv", *NEW, "--source-list", "good.txt", *OUT),
    "an epsilon too small to split": ("demo", "--epsilon", "1e-9", "--out", "d"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_gets_one_sentence_and_exit_code_2(
    what: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good = a_clinic(tmp_path / "good.npz")
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
    stderr = run.fails(*BAD[what])
    assert "Traceback" not in stderr
    if what != "an unknown option":  # typer frames its usage errors
        assert stderr.startswith("error: ")
        assert stderr.count("\n") == 1
    left = [p for p in sorted(tmp_path.iterdir()) if p not in before and p.name != "elsewhere"]
    assert left == []


def test_no_output_takes_the_place_of_a_ledger(run: Any, tmp_path: Path) -> None:
    ward = a_clinic(tmp_path / "ward.npz")
    [ledger] = privcal.create_ledgers(ward, per_row=True)
    assert "ward.npz.ledger is an input" in run.fails("calibrate", ward, "--out", ledger.path)
    run.ok("ledger", "show", ward)


def test_json_goes_alone_to_standard_output(run: Any, clinics: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "m.json"
    commands: list[tuple[object, ...]] = [
        ("calibrate", *clinics, *NEW, "--out", out),
        ("fit", clinics[0]),
        ("evaluate", clinics[0]),
        ("apply", out, clinics[0], "--out", tmp_path / "o.csv"),
        ("ledger", "create", a_clinic(tmp_path / "new.npz", seed=9), "--per-row"),
        ("ledger", "show", tmp_path / "new.npz"),
        ("ledger", "policy", tmp_path / "new.npz", "--epsilon", 1),
        ("ledger", "attach", tmp_path / "new.npz", a_clinic(tmp_path / "later.npz", seed=8)),
        ("ledger", "reconcile", tmp_path / "new.npz.ledger"),
        ("source", "check", clinics[0]),
    ]
    for command in commands:
        said = run.json(*command)
        assert isinstance(said, dict)


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
    run.ok("ledger", "create", path, *said)
    out = tmp_path / "map.json"
    asked = ("calibrate", path, "--method", "sketch", "--epsilon", "0.5", "--out", out)
    stderr = run.fails(*asked, "--columns", "probability=died,label=risk")
    assert "leave --columns and --classes out" in stderr
    run.ok(*asked)
    assert "30 persons" in run("source", "check", path)[1]
    done = tmp_path / "done.csv"
    run.ok("apply", out, path, *said[:2], "--out", done)
    found = _columns(done)
    assert list(found) == ["died", "pid", "predicted", "correct", "confidence"]
    expected = privcal.load_map(out).confidence(probabilities=risk)
    assert found["confidence"] == pytest.approx(expected)
    measured = run.json("evaluate", done)["before"]
    scores = privcal.Scores(probabilities=risk, labels=died)
    assert measured["ece"] == pytest.approx(privcal.evaluate(scores, privcal.load_map(out)).ece)


@pytest.mark.parametrize("text", ["label", "label=", "=died", "label=a,label=b"])
def test_columns_are_pairs(run: Any, tmp_path: Path, text: str) -> None:
    (tmp_path / "x.csv").write_text("label,probability\n1,0.5\n")
    assert "--columns" in run.fails("evaluate", tmp_path / "x.csv", "--columns", text)


def test_logits_that_look_like_probabilities_are_remarked(run: Any, tmp_path: Path) -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(3), 40)
    np.savez(tmp_path / "x.npz", logits=p, labels=p.argmax(1))
    for command in (["evaluate"], ["fit"]):
        stderr = run.fails(*command, tmp_path / "x.npz")
        assert "as probabilities do: give them as probabilities=" in stderr
    _, stderr = run.ok("source", "check", tmp_path / "x.npz")  # a source reads them all the same
    assert "if they are probabilities, call them so" in stderr
    _, stderr = run.ok("ledger", "create", tmp_path / "x.npz", "--per-row")
    assert "if they are probabilities, call them so" in stderr


@pytest.mark.parametrize("command", ["fit", "evaluate"])
def test_exact_figures_of_rows_with_a_ledger_are_said_to_be(
    run: Any, tmp_path: Path, command: str
) -> None:
    data = a_clinic(tmp_path / "h.npz", seed=3)
    code, out, err = run(command, data, "--json")
    assert (code, err, json.loads(out)["has_ledger"]) == (0, "", False)
    run.ok("ledger", "create", data, "--per-row")
    for more in (("--json",), ()):
        code, out, err = run(command, data, *more)
        assert (code, "h.npz has a ledger, and these figures are exact" in err) == (0, True)
        assert not more or json.loads(out)["has_ledger"]
