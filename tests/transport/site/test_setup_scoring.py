"""A site that scores its own table: with the model it was set up for, and no other."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

pytest.importorskip("cryptography", reason="needs cryptography: pip install privcal[secure]")
pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install privcal[onnx]")
pytest.importorskip("onnx")

import privcal
from privcal.data.ledger import Ledger
from privcal.data.opening import SameRows
from privcal.data.scoring import Setup, model_name, rows
from privcal.transport.site import settings as site
from privcal.transport.site import setup
from privcal.trusted.errors import InputError, Refused
from privcal.trusted.queries import CellHistogram
from privcal.trusted.question import Question
from tests.data.scoring.test_model import MALICIOUS, PLAIN
from tests.support import scoring_parts as scoring
from tests.support.parties import ANN

SETUP = Setup("y", None, scoring.FEATURES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "site").mkdir()
    return tmp_path / "site"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return scoring.save(tmp_path / "model.onnx", scoring.net(PLAIN))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "visits.parquet", 30)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers without noise, to see which rows they are of."""
    monkeypatch.setattr("privcal.trusted.source.add_noise", lambda total, *_: total.tolist())


def write(path: Path, rows: int, seed: int = 0) -> Path:
    scoring.frame(scoring.numbers(rows, seed), np.arange(rows) % 3).write_parquet(path)
    return path


def init(folder: Path, model: Path, table: Path, **more: Any) -> site.Site:
    facts = {"policy": privcal.Policy(5.0), "person": "pid", "delay": 0.1, **more}
    return setup.init(folder, table, scoring=site.Scoring(model, SETUP), **facts)


def count(folder: Path, campaign: str, **more: Any) -> float:
    """The rows that an answer counts."""
    made = site.Site.load(folder)
    asked = Question.of(CellHistogram(), 0.5, campaign, **more)
    source = made.population(asked.model).source(made.name)
    return float(source.answer(asked, ANN).values.sum())


def kept_scores(folder: Path, model: Path) -> Path:
    return folder / "scores" / model_name(model).removeprefix("sha256:")


def spent(folder: Path) -> int:
    return Ledger(folder / site.LEDGER).nano_spent


def test_a_site_is_set_up_for_the_model_in_a_file_and_the_rows_in_a_table(
    folder: Path, model: Path, table: Path
) -> None:
    made = init(folder, model, table)
    assert made == site.Site.load(folder)
    [population] = made.populations
    assert population.model == model_name(model)
    assert population.scoring == site.Scoring(model.resolve(), SETUP)
    scores = population.source("site").scores
    assert (len(scores), scores.model) == (30, model_name(model))
    assert Ledger(population.ledger).unit == "person"
    kept = folder / "scores"
    for path in (kept, *kept.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


@pytest.mark.parametrize("kind", MALICIOUS)
def test_a_malicious_model_is_refused_before_there_is_a_ledger(
    folder: Path, table: Path, tmp_path: Path, kind: str
) -> None:
    bad = scoring.save(tmp_path / "bad.onnx", MALICIOUS[kind]())
    with pytest.raises(InputError, match=r"bad\.onnx: its (weights|operator)"):
        init(folder, bad, table)
    assert not (folder / site.SETTINGS).exists()
    assert not (folder / site.LEDGER).exists()


def test_a_table_that_cannot_be_scored_is_told_its_owner_with_the_row(
    folder: Path, model: Path, table: Path
) -> None:
    rows = pl.read_parquet(table)
    rows.with_columns(f2=pl.when(pl.int_range(30) == 4).then(None).otherwise("f2")).write_parquet(
        table
    )
    with pytest.raises(InputError, match=r"visits\.parquet: f2 of row 4 is missing"):
        init(folder, model, table)
    assert not (folder / site.LEDGER).exists()


def test_a_question_about_another_model_is_refused_before_a_charge(
    folder: Path, model: Path, table: Path
) -> None:
    init(folder, model, table)
    other = f"sha256:{'0' * 64}"
    with pytest.raises(Refused, match="model"):
        count(folder, "c", model=other)
    [population] = site.Site.load(folder).populations
    asked = Question.of(CellHistogram(), 0.5, "c", model=other)
    assert population.source("site").offer([asked], ANN) == "model"
    assert spent(folder) == 0


@pytest.mark.usefixtures("exact")
def test_a_table_that_changed_is_scored_anew_and_charged_to_the_same_ledger(
    folder: Path, model: Path, table: Path, tmp_path: Path
) -> None:
    init(folder, model, table)
    name = model_name(model)
    assert count(folder, "first", model=name) == 30
    write(table, 41, seed=3)  # in place
    assert count(folder, "second", model=name) == 41
    write(tmp_path / "next.parquet", 12, seed=4).replace(table)  # another file of that name
    assert count(folder, "third", model=name) == 12
    assert spent(folder) == 3 * 5 * 10**8
    kept = [path.suffix for path in kept_scores(folder, model).iterdir()]
    assert kept == [".parquet"], "older scores and copies are gone"


@pytest.mark.usefixtures("exact")
def test_scores_are_made_once_for_a_table_that_stays_as_it_is(
    folder: Path, model: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init(folder, model, table)

    def never(*_: Any) -> None:
        pytest.fail("scored again")

    monkeypatch.setattr("privcal.data.scoring.rows.ScoredRows._score", never)
    assert count(folder, "c") == 30


def test_older_scores_are_removed_and_what_others_work_on_is_left(
    folder: Path, model: Path, table: Path
) -> None:
    init(folder, model, table)
    kept = kept_scores(folder, model)
    for name in (".now.parquet", ".yesterday.parquet"):
        (kept / name).write_bytes(b"half done")
    (kept / ".scores-dead").mkdir()
    for name in (".yesterday.parquet", ".scores-dead"):
        os.utime(kept / name, (0, 0))
    write(table, 10)
    [population] = site.Site.load(folder).populations
    population.make_scores()
    assert {path.name for path in kept.iterdir() if path.name.startswith(".")} == {".now.parquet"}
    assert len(list(kept.iterdir())) == 2


def test_scores_that_another_process_tidied_away_are_made_again(
    folder: Path, model: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between looking for the file and reading it: the question was charged by then."""
    init(folder, model, table)
    read, times = rows.read_scores, []

    def tidied(path: Path, **more: Any) -> Any:
        times.append(path)
        if len(times) == 1:
            path.unlink()
        return read(path, **more)

    monkeypatch.setattr(rows, "read_scores", tidied)
    [population] = site.Site.load(folder).populations
    assert len(population.source("site").scores) == 30


@pytest.mark.usefixtures("exact")
def test_a_row_that_became_malformed_counts_as_zero_and_changes_no_other(
    folder: Path, model: Path, table: Path
) -> None:
    init(folder, model, table)
    rows = pl.read_parquet(table)
    for spoiled in (
        rows.with_columns(f2=pl.when(pl.int_range(30) == 4).then(None).otherwise("f2")),
        rows.with_columns(y=pl.when(pl.int_range(30) == 4).then(9).otherwise("y")),
        rows.with_columns(pid=pl.when(pl.int_range(30) == 4).then(None).otherwise("pid")),
    ):
        spoiled.write_parquet(table)
        campaign = str(hash(spoiled.write_json()))
        assert count(folder, campaign) == 29


def test_a_table_that_changes_while_it_is_scored_is_scored_as_it_was(
    folder: Path, model: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept under a digest is of the bytes that have it, or a later question would be
    answered from rows that the table does not hold."""
    init(folder, model, table)
    write(table, 20, seed=1)
    from privcal.data.scoring import run

    scored = run.scored

    def changing(*args: Any, **more: Any) -> Any:
        write(table, 25, seed=2)
        yield from scored(*args, **more)

    monkeypatch.setattr(run, "scored", changing)
    [population] = site.Site.load(folder).populations
    assert len(population.source("site").scores) == 20
    monkeypatch.setattr(run, "scored", scored)
    assert len(population.source("site").scores) == 25
    write(table, 20, seed=1)
    assert len(population.source("site").scores) == 20


def test_a_model_that_was_replaced_is_not_used_and_nothing_is_charged(
    folder: Path, model: Path, table: Path
) -> None:
    init(folder, model, table)
    name = model_name(model)
    scoring.save(model, scoring.net("u = MatMul(x, w) v = Neg(u) y = Softmax(v)"))
    with pytest.raises(Refused, match="unavailable") as refused:
        count(folder, "c", model=name)
    assert "is no longer the model sha256:" in str(refused.value.__cause__)
    with pytest.raises(Refused, match="model"):
        count(folder, "c", model=model_name(model))
    assert spent(folder) == 0
    model.unlink()
    with pytest.raises(Refused, match="unavailable"):
        count(folder, "d", model=name)


def test_people_who_have_a_ledger_keep_it_when_their_table_is_scored_at_a_site(
    folder: Path, model: Path, table: Path, tmp_path: Path
) -> None:
    found = scoring.scores(SETUP.open(model), table)
    found.write_parquet(tmp_path / "scores.parquet")
    [ledger] = privcal.create_ledgers(
        tmp_path / "scores.parquet", privcal.Policy(1.0), person="person"
    )
    with pytest.warns(SameRows, match="the same rows have the ledger"):
        init(another(tmp_path), model, table)
    other = write(tmp_path / "next.parquet", 35, seed=6)
    with pytest.raises(InputError, match="protects persons: say which column"):
        init(folder, model, other, policy=None, person=None, attach_to=ledger.path)
    with pytest.raises(InputError, match="with rules of its own"):
        init(folder, model, other, attach_to=ledger.path)
    with pytest.warns(UserWarning, match="30 of 35 ids in pid of .* are known"):
        made = init(folder, model, other, policy=None, attach_to=ledger.path)
    [population] = made.populations
    assert population.ledger == ledger.path
    population.source("site").answer(Question.of(CellHistogram(), 0.75, "c"), ANN)
    assert ledger.nano_spent == 75 * 10**7
    assert [Path(note["path"]).name for note in ledger.notes()] == [
        "scores.parquet",
        "next.parquet",
    ]


def another(tmp_path: Path) -> Path:
    return tmp_path / "first"


def test_scores_of_a_table_with_a_ledger_are_said_to_belong_there(
    run: Any, folder: Path, model: Path, table: Path
) -> None:
    columns = ("--label", "y", "--person", "pid", "--features", ",".join(scoring.FEATURES))
    out = table.with_name("scores.parquet")
    assert "ledger" not in run("score", model, table, *columns, "--out", out)[2]
    init(folder, model, table)
    write(table, 31)  # by their content nobody would know them any more
    code, _, err = run("score", model, table, *columns, "--out", out)
    advice = ("ledger", "attach", table, out, "--person", "person")
    assert (code, f"run privcal {' '.join(map(str, advice))}" in " ".join(err.split())) == (0, True)
    assert run(*advice)[0] == 0
    code, _, err = run("calibrate", out, "--rehearse")
    assert (code, "its rows are private" in err) == (2, True)


@pytest.mark.usefixtures("exact")
def test_a_second_model_scores_the_same_table_on_the_same_ledger(
    folder: Path, model: Path, table: Path, tmp_path: Path
) -> None:
    init(folder, model, table)
    second = scoring.save(tmp_path / "v2.onnx", scoring.net("v = MatMul(x, w) y = Softmax(v)"))
    with pytest.raises(InputError, match=r"has data for model 'sha256:.*already"):
        setup.add(folder, table, scoring=site.Scoring(model, SETUP))
    setup.add(folder, table, scoring=site.Scoring(second, SETUP))
    for number, file in enumerate((model, second, model)):
        assert count(folder, str(number), model=model_name(file)) == 30
    assert spent(folder) == 3 * 5 * 10**8
    assert len(list((folder / "scores").glob("*/*.parquet"))) == 2, "neither tidies the other"


def test_a_policy_for_another_model_is_told_when_the_site_is_set_up(
    folder: Path, model: Path, table: Path
) -> None:
    with pytest.raises(InputError, match="the policy is for the model v3"):
        init(folder, model, table, policy=privcal.Policy(model="v3"))


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('label = "y"', "", "scoring: label is missing"),
        ('label = "y"', 'label = "y"\nbatch = 64', "scoring has no 'batch'"),
        ("model_file =", "file =", "scoring needs a model_file"),
        ('model = "', 'max_rows = 9 # "', "needs the name of its model"),
        ("features = [", "features = 7 # [", "features must be a list"),
    ],
)
def test_settings_that_are_damaged_are_refused(
    folder: Path, model: Path, table: Path, old: str, new: str, sentence: str
) -> None:
    init(folder, model, table)
    path = folder / site.SETTINGS
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError, match=sentence):
        site.Site.load(folder)


# --- by the owner's commands ---------------------------------------------------------------------


def test_the_commands_of_the_owner(run: Any, folder: Path, model: Path, table: Path) -> None:
    args = ("site", "init", folder, "--model-file", model, "--table", table, "--label", "y")
    features = ("--features", ",".join(scoring.FEATURES))
    code, out, err = run(*args, *features, "--person", "pid", "--epsilon", 2)
    assert code == 0, err
    assert f"model: {model_name(model)}" in out


@pytest.mark.parametrize(
    ("left_out", "more", "sentence"),
    [
        ("--table", (), "give the site's scores with --data; or --model-file, --table and --label"),
        ("--label", (), "say with --label which column holds the true classes"),
        (
            "",
            ("--data", "x.npz"),
            "give --data, or --model-file with --table and --label, not both",
        ),
        ("", ("--model", "v3"), "a model file has its digest as its name: leave --model out"),
    ],
)
def test_what_does_not_belong_together_is_one_sentence(
    run: Any, folder: Path, model: Path, table: Path, left_out: str, more: Any, sentence: str
) -> None:
    given = {"--model-file": model, "--table": table, "--label": "y", "--features": "f0,f1"}
    given.pop(left_out, None)
    args = [word for pair in given.items() for word in pair]
    code, _, err = run("site", "init", folder, *args, "--per-row", "--epsilon", 2, *more)
    assert (code, err.strip()) == (2, f"error: {sentence}")
