"""`privcal refine`, and what every other command does with the map that stays at home."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

import privcal
from privcal import InputError
from tests.support.builders import a_file, a_source, save, some_clinics
from tests.support.curves import drawn_rows, shared_map

PACKAGE = Path(privcal.__file__).parent


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    shared_map().save(tmp_path / "map.json")
    return tmp_path / "map.json"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return save(tmp_path / "own.npz", drawn_rows(60, -1.5))


def test_refine_writes_what_the_function_gives(
    run: Any, shared: Path, own: Path, tmp_path: Path
) -> None:
    out = tmp_path / "own-map.json"
    stdout, _ = run.ok("refine", shared, own, "--out", out, "--json")
    expected = privcal.refine(shared_map(), drawn_rows(60, -1.5))
    assert privcal.load_map(out) == expected
    alike = expected.provenance["like_the_others"]
    assert json.loads(stdout) == {
        "out": str(out), "rows": 60, "like_the_others": alike, "private": False,
        "stays_at_home": True,
    }  # fmt: skip
    code, stdout, _ = run("refine", shared, own, "--out", out)
    assert (code, f"60 own rows; map written to {out}" in stdout) == (0, True)
    assert f"like those of the other sources: {100 * alike:.0f} %." in stdout
    assert "use it here" in stdout


def test_few_rows_are_refused_and_whatever_was_there_stays(
    run: Any, shared: Path, tmp_path: Path
) -> None:
    few = save(tmp_path / "few.npz", drawn_rows(29, 0.0))
    out = a_file(tmp_path / "own-map.json", "older")
    code, _, stderr = run("refine", shared, few, "--out", out)
    assert (code, out.read_text()) == (2, "older")
    assert "29 own rows are too few" in stderr
    assert "--force" in stderr
    run.ok("refine", shared, few, "--out", out, "--force")
    assert privcal.load_map(out).provenance["rows"] == 29


def test_bad_input_gets_one_sentence_and_loses_nothing(
    run: Any, shared: Path, own: Path, tmp_path: Path
) -> None:
    temperature, broken = tmp_path / "t.json", tmp_path / "broken.json"
    privcal.TemperatureMap(1.5).save(temperature)
    broken.write_text(shared.read_text()[:200])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    out = tmp_path / "out.json"
    for args, said in {
        (temperature, own, "--out", out): "does not say how it is uncertain",
        (broken, own, "--out", out): "cut short",
        (own, own, "--out", out): "is not a map",
        (shared, shared, "--out", out): "unknown ending",
        (shared, tmp_path / "none.npz", "--out", out): "none.npz",
        (shared, own, "--out", shared): "is an input",
        (shared, own, "--out", own): "is an input",
        (shared, own, "--out", tmp_path / "no" / "out.json"): "folder is missing",
    }.items():
        code, stdout, stderr = run("refine", *args)
        assert (code, stdout, stderr.count("\n")) == (2, "", 1), stderr
        assert said in stderr
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


# --- trying to get it out ----------------------------------------------------------------------


@pytest.fixture
def kept(run: Any, shared: Path, own: Path, tmp_path: Path) -> Path:
    """A refined map, in a folder of its own."""
    (tmp_path / "home").mkdir()
    out = tmp_path / "home" / "own-map.json"
    run.ok("refine", shared, own, "--out", out)
    return out


def digits(kept: Path) -> set[str]:
    """The numbers of the refined curve as text: what must not be seen anywhere else."""
    return {f"{value!r}"[:10] for value in privcal.load_map(kept).log_odds}  # type: ignore[attr-defined]


def everything(folder: Path, *besides: Path) -> str:
    files = [f for f in folder.rglob("*") if f.is_file() and f not in besides]
    return "".join(f.read_bytes().decode("latin-1") for f in files)


@pytest.mark.slow
def test_no_command_takes_a_refined_map_for_something_to_send_merge_or_publish(
    run: Any, kept: Path, shared: Path, own: Path, tmp_path: Path
) -> None:
    clinics = some_clinics(tmp_path, 2)
    sketch, made = tmp_path / "sketch.json", tmp_path / "made.json"
    new = ("--new-ledger", "--per-row", "--method", "sketch")
    took = run("calibrate", *clinics, *new, "--sketch", sketch, "--out", made)
    assert took[0] == 0, took[2]
    out = tmp_path / "out"
    for args in (
        ("sketch", "merge", kept, "--out", out),
        ("sketch", "merge", sketch, kept, "--out", out),
        ("sketch", "show", kept),
        ("sketch", "fit", kept, "--out", out),
        ("sketch", "fit", sketch, "--public", kept, "--out", out),
        ("evaluate", sketch, "--private", "--map", kept),
        ("evaluate", sketch, "--private", "--map", kept, "--plot", f"{out}.png", "--json"),
        ("evaluate", kept, "--private"),
        ("evaluate", kept, "--map", shared),
        ("calibrate", kept, *new, "--out", out),
        ("calibrate", *clinics, "--public", kept, "--method", "sketch", "--out", out),
        ("calibrate", *clinics, "--policy", kept, "--out", out),
        (*("federation", "calibrate", "--as", kept, "--mailbox", kept.parent), "--model", "m", "--out", out),
        ("refine", kept, own, "--out", out),
        ("refine", kept, own, "--out", out, "--force"),
        ("refine", shared, kept, "--out", out),
        ("apply", shared, kept, "--out", f"{out}.npz"),
        ("fit", kept, "--out", out),
        ("ledger", "create", kept, "--per-row"),
        ("source", "check", kept),
        ("data", "pack", kept, "--dataset", "d", "--out", f"{out}.npz"),
        ("data", "pack", own, "--labels", kept, "--dataset", "d", "--out", f"{out}.npz"),
        ("data", "check", kept),
        ("study", "run", kept, "--out", out),
        ("study", "run", "--grid", kept, "--out", out),
        ("study", "report", kept.parent),
        ("study", "table", kept),
        ("advise", "--sources", 9, "--samples", 9, "--public", kept),
        ("advise", "--sources", 9, "--samples", 9, "--archive", kept),
        ("audit", kept),
        ("site", "add", kept.parent, "--data", kept, "--per-row", "--model", "v3"),
        ("site", "init", kept.parent, "--data", kept, "--per-row"),
        ("federation", "check", "--as", kept.parent, "--mailbox", kept.parent),
        ("roster", "show", kept),
    ):  # fmt: skip
        code, stdout, stderr = run(*args)
        assert code in (1, 2), args
        seen = stdout + stderr + everything(tmp_path, kept)
        assert not [number for number in digits(kept) if number in seen], args
    for args in (("--private", "--map", kept), ("--private", "--map", kept, "--json")):
        stderr = run.fails("evaluate", sketch, *args)
        assert "exact rows (private: false) and stays where they are" in stderr


def test_a_refined_map_is_used_and_measured_at_home(
    run: Any, kept: Path, own: Path, tmp_path: Path
) -> None:
    out = tmp_path / "calibrated.csv"
    assert "stays here" in run.ok("apply", kept, own, "--out", out)[1]
    stdout, _ = run.ok("evaluate", own, "--map", kept, "--json")
    assert json.loads(stdout)["after"]["nll"] < json.loads(stdout)["before"]["nll"]
    assert not [number for number in digits(kept) if number in stdout]


def test_a_sketch_does_not_judge_a_refined_map_in_python_either() -> None:
    source = a_source(60, epsilon=1)
    result = privcal.calibrate([source], "sketch", epsilon=1.0)
    assert result.sketch is not None
    assert isinstance(result.map, privcal.CurveMap)
    marked = privcal.CurveMap(
        result.map.temperature, result.map.scores, result.map.log_odds, private=False
    )
    for judge in (result.sketch.evaluate, lambda map: result.sketch.fit().evaluate(map)):
        with pytest.raises(InputError, match="stays where they are: it must not be judged"):
            judge(map=marked)


def test_every_command_that_reads_maps_is_known_to_respect_those_that_stay_at_home() -> None:
    """A new reader of maps decides what it does with one from exact rows, and comes into this list."""
    readers = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "load_map"
    }
    assert readers == {
        "cli/apply.py", "cli/evaluate.py", "cli/onnx.py", "cli/refine.py", "cli/thresholds.py",
        "adapters/sklearn.py",
    }  # fmt: skip
