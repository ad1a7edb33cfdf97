"""A rehearsal looks at rows, touches nothing, says what it is, and is no way around a ledger."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privcal
from privcal.report.rehearsal import DRAWS
from tests.support.builders import a_clinic, some_clinics


@pytest.fixture
def clinics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Four files of scores that are too sure of themselves, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    return some_clinics(tmp_path, 4, rows=60, times=2)


def pooled(files: list[Path]) -> privcal.Scores:
    parts = [np.load(file) for file in files]
    return privcal.Scores(
        logits=np.concatenate([part["logits"] for part in parts]),
        labels=np.concatenate([part["labels"] for part in parts]),
    )


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rehearsed(run: Any, *args: object) -> dict[str, Any]:
    document: dict[str, Any] = run.json("calibrate", *args, "--rehearse")
    return document


def test_it_touches_nothing_and_every_output_says_what_it_is(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    before = everything(tmp_path)
    code, out, _ = run("calibrate", *clinics, "--rehearse", "--out", "map.json")
    assert (code, everything(tmp_path)) == (0, before)
    assert out.count("REHEARSAL") == 2  # the sentence, and the table that may be copied alone
    assert "no map was written" in out
    assert "REHEARSAL" in rehearsed(run, *clinics)
    assert everything(tmp_path) == before


def test_its_picture_says_what_it_is(run: Any, clinics: list[Path], tmp_path: Path) -> None:
    rehearsed(run, *clinics, "--plot", "picture.svg")
    drawn = (tmp_path / "picture.svg").read_text("utf-8")
    assert "REHEARSAL" in drawn


def test_it_measures_every_method_exactly_on_the_rows_that_it_asked(
    run: Any, clinics: list[Path]
) -> None:
    said = rehearsed(run, *clinics, "--epsilon", "2")
    own = privcal.evaluate(pooled(clinics))
    assert said["nothing_done"] == pytest.approx({"ece": own.ece, "brier": own.brier})
    assert said["measured_on"] == "the same 240 rows"
    asking = set(privcal.methods.names()) - {"uncalibrated", "one-source"}
    assert {tried["method"] for tried in said["methods"]} == asking
    for tried in said["methods"]:
        assert (tried["epsilon"], len(tried["errors"])) == (2.0, DRAWS)
        mean = np.mean([error["brier"] for error in tried["errors"]])
        assert tried["mean"]["brier"] == pytest.approx(mean)
    [acc] = [tried for tried in said["methods"] if tried["method"] == "acc-t"]
    fit = privcal.fit_temperature(pooled(clinics), "accuracy")
    exact = privcal.evaluate(pooled(clinics), privcal.TemperatureMap(fit.temperature))
    assert acc["exact"] == pytest.approx({"ece": exact.ece, "brier": exact.brier})


def test_the_noise_of_each_draw_is_its_own(run: Any, clinics: list[Path]) -> None:
    [chosen, *_] = rehearsed(run, *clinics, "--epsilon", "5")["methods"]
    assert len({error["brier"] for error in chosen["errors"]}) == DRAWS


def test_the_method_that_was_named_stands_first_with_its_options(
    run: Any, clinics: list[Path]
) -> None:
    said = rehearsed(run, *clinics, "--method", "acc-t", "--option", "iterations=1")
    [chosen, *others] = said["methods"]
    assert (chosen["method"], chosen["questions"]) == ("acc-t", 2)
    assert (said["why"], "acc-t" in {other["method"] for other in others}) == (None, False)


def test_of_an_event_it_measures_the_risk(run: Any, clinics: list[Path]) -> None:
    said = rehearsed(run, *clinics, "--event", "1")
    rows = pooled(clinics)
    logits = rows.outputs.array.astype(float)
    risk = np.exp(logits[:, 1]) / np.exp(logits).sum(axis=1)
    assert said["nothing_done"]["brier"] == pytest.approx(np.mean((risk - (rows.labels == 1)) ** 2))


def test_a_table_is_split_into_its_sources_and_persons_are_protected(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    rows = [f"{row % 3},p{row},{0.1 + row % 9 / 10:.1f},{row % 2}" for row in range(90)]
    (tmp_path / "icu.csv").write_text("\n".join(["ward,patient,probability,label", *rows]))
    said = rehearsed(run, "icu.csv", "--source-column", "ward", "--person", "patient")
    assert (said["sources"], said["unit"]) == (3, "person")


def test_a_run_that_could_not_be_is_refused_in_the_rehearsal_too(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "rules.toml").write_text('epsilon = 1\naskers = ["acme"]\n')
    code, _, err = run("calibrate", *clinics, "--rehearse", "--policy", "rules.toml")
    assert (code, "the policy does not let this asker ask" in err) == (1, True)
    code, _, err = run("calibrate", *clinics, "--rehearse", "--min-sources", 5)
    assert (code, "fewer than the 5 required" in err) == (1, True)


# --- no way around a ledger --------------------------------------------------------------


def refused(run: Any, *args: object) -> bool:
    err = run.fails("calibrate", *args, "--rehearse")
    return "its rows are private" in err or "is gone" in err


def test_rows_that_have_a_ledger_are_refused_as_file_copy_and_other_format(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    run.ok("ledger", "create", clinics[0], "--per-row")
    assert refused(run, *clinics)
    shutil.copy(clinics[0], tmp_path / "copy.npz")
    assert refused(run, "copy.npz")
    held = np.load(clinics[0])
    np.save(tmp_path / "logits.npy", held["logits"])
    np.save(tmp_path / "labels.npy", held["labels"])
    assert refused(run, tmp_path / "logits.npy")
    run.ok("calibrate", *clinics[1:], "--rehearse")


def test_rows_whose_ledger_is_elsewhere_or_lost_are_refused(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "ledgers").mkdir()
    made = ("--per-row", "--ledger-dir", tmp_path / "ledgers")
    run.ok("ledger", "create", clinics[0], *made)
    assert refused(run, clinics[0])
    for ledger in [*(tmp_path / "ledgers").iterdir(), *tmp_path.glob("*.ledger")]:
        ledger.unlink()
    assert refused(run, clinics[0])


def test_a_file_with_a_ledger_is_refused_whatever_rows_it_holds_now(
    run: Any, clinics: list[Path]
) -> None:
    run.ok("ledger", "create", clinics[0], "--per-row")
    a_clinic(clinics[0], 10, seed=9)
    assert refused(run, clinics[0])
    clinics[0].with_name(f"{clinics[0].name}.ledger").unlink()
    assert refused(run, clinics[0])


def test_a_part_of_a_table_that_has_a_ledger_is_refused(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    rows = [f"{row % 3},{0.1 + row % 9 / 10:.1f},{row % 2}" for row in range(30)]
    (tmp_path / "icu.csv").write_text("\n".join(["ward,probability,label", *rows]))
    run.ok("ledger", "create", "icu.csv", "--source-column", "ward", "--per-row")
    assert refused(run, "icu.csv", "--source-column", "ward")
    shutil.copy(tmp_path / "icu.csv", tmp_path / "copy.csv")
    assert refused(run, "copy.csv", "--source-column", "ward")


def test_reading_private_rows_in_another_way_does_not_make_them_public(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    rows = [f"{row % 3},{0.1 + row % 9 / 10:.1f},{row % 2}" for row in range(30)]
    for name, first in (("split", 0), ("whole", 5)):
        text = "\n".join(["ward,probability,label", *rows[first:]])
        (tmp_path / f"{name}.csv").write_text(text)
        (tmp_path / f"{name}-copy.csv").write_text(text)
        (tmp_path / f"{name}.tsv").write_text(text.replace(",", "\t"))
    (tmp_path / "some.txt").write_text("0\n1\n")
    (tmp_path / "rest.txt").write_text("2\n")
    by_ward = ("--source-column", "ward")
    some = ("--source-list", "some.txt", "--per-row")
    run.ok("ledger", "create", "split.csv", *by_ward, *some)
    run.ok("ledger", "create", "whole.csv", "--per-row")
    # People without a ledger of their own, in a file that has some.
    assert refused(run, "split.csv", *by_ward, "--source-list", "rest.txt")
    # Split otherwise than the ledgers are, in a copy and in another format.
    assert refused(run, "split-copy.csv")
    assert refused(run, "split.tsv")
    assert refused(run, "whole-copy.csv", *by_ward)
    assert refused(run, "whole.tsv", *by_ward)
    # As something else than the ledger says the columns are.
    assert refused(run, "whole-copy.csv", "--columns", "logit=probability")
    # As public rows, on which a map depends exactly, of somebody else's campaign.
    code, _, err = run("calibrate", *clinics, "--rehearse", "--public", "whole.tsv")
    assert (code, "would get no privacy" in err) == (2, True)
    code, _, err = run("campaign", "new", "--public", "whole-copy.csv", "--out", "question.json")
    assert (code, "would get no privacy" in err) == (2, True)
    run.ok("calibrate", *clinics, "--rehearse")


@pytest.mark.parametrize(
    "more", [["--new-ledger", "--per-row"], ["--sketch", "s.json"], ["--campaign", "a"]]
)
def test_what_would_last_is_not_part_of_a_rehearsal(
    run: Any, clinics: list[Path], more: list[str]
) -> None:
    assert "leave out --new-ledger" in run.fails("calibrate", *clinics, "--rehearse", *more)
