"""The three short examples run, and show what they say they show."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def output(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """What the example that a test names prints, run as a script in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [request.param])
    runpy.run_path(str(EXAMPLES / request.param), run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.parametrize("output", ["owner.py"], indirect=True)
def test_an_owner_sees_what_was_asked_and_what_it_cost(output: str) -> None:
    assert "ann was answered" in output
    assert "bob was refused: asker" in output
    assert '"kind":"gap"' in output
    assert output.endswith("spent 0.5 of 2\n")


@pytest.mark.parametrize("output", ["calibrator.py"], indirect=True)
def test_a_calibrator_ends_with_a_confidence_nearer_to_what_is_correct(output: str) -> None:
    assert "each of 12 clinics spent 1\n" in output
    lines = [line for line in output.splitlines() if line.startswith(("before", "after"))]
    before, after = ([float(w.strip(",")) for w in line.split()[2::2]] for line in lines)
    assert abs(after[0] - after[1]) < abs(before[0] - before[1])


@pytest.mark.parametrize("output", ["evaluation.py"], indirect=True)
def test_an_evaluation_prints_its_measures_and_draws_them(output: str, tmp_path: Path) -> None:
    [ece] = [line.split() for line in output.splitlines() if line.startswith("ece ")]
    assert float(ece[3]) < float(ece[1])
    assert (tmp_path / "reliability.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["owner.py", "calibrator.py", "evaluation.py"])
def test_an_example_fits_on_a_screen_and_the_readme_leads_to_it(name: str) -> None:
    assert len((EXAMPLES / name).read_text("utf-8").splitlines()) <= 48
    assert f"(examples/{name})" in (EXAMPLES.parent / "README.md").read_text("utf-8")
