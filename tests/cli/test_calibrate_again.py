"""The same command once more is free; nothing is paid for twice, replaced or lost unless it is said."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privcal
from privcal.calibration.campaign import ANSWERS, PLAN
from tests.cli.test_cli import ACC_T
from tests.support.builders import COMMAND, NEW, a_clinic, interrupted, python, some_clinics

SAID = "asked this already: its answers are read again, free of charge"


@pytest.fixture
def clinics(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Twelve sources with a budget for three runs, in the folder that commands run in."""
    monkeypatch.chdir(tmp_path)
    names = [path.name for path in some_clinics(tmp_path, 12, name="clinic-{:02}.npz")]
    run.ok("ledger", "create", *names, "--per-row", "--epsilon", 3)
    return names


def spent(clinics: list[str]) -> set[float]:
    return {privcal.Ledger(f"{clinic}.ledger").spent.nano / 1e9 for clinic in clinics}


def the_map(path: str = "map.json") -> dict[str, Any]:
    document: dict[str, Any] = json.loads(Path(path).read_text())
    del document["provenance"]["created"]
    return document


def listed() -> list[str]:
    ours = {"map", "b", "m", "page", "sketch"}
    return sorted(p.name for p in Path().iterdir() if re.split(r"[.-]", p.name)[0] in ours)


OUT = ("--out", "map.json", "--sketch", "sketch.json")


@pytest.mark.parametrize("method", [(), ACC_T, ("--aggregation", "secure,alone=1")])
def test_the_same_command_again_is_free_and_gives_the_same(
    run: Any, clinics: list[str], method: tuple[str, ...]
) -> None:
    out = OUT[:2] if method == ACC_T else OUT
    stdout, _ = run.ok("calibrate", *clinics, *method, *out, "--html", "page.html")
    assert "each charged epsilon 1" in stdout
    [name] = re.findall(r"This is campaign (\w+): the same command reads its answers again", stdout)
    files = {path: Path(path).read_text() for path in out[1::2]}
    before = the_map()
    for order in (clinics, clinics[::-1]):
        stdout, stderr = run.ok("calibrate", *order, *method, *out, "--html", "page.html")
        assert f"campaign {name} {SAID}" in stderr
        assert "from 12 of 12 sources, read again free of charge (it cost each" in stdout
        assert "each charged" not in stdout
        assert the_map() == before
        assert all(Path(path).read_text() == files[path] for path in out[3::2])
    code, stdout, _ = run("calibrate", *clinics, *method, *out, "--json")
    told = json.loads(stdout)
    assert (code, told["free"], told["campaign"]) == (0, True, name)
    assert spent(clinics) == {1.0}
    wanted = ["map.json", "map.json.campaign", "page.html", *out[3::2]]
    assert listed() == wanted


def test_asked_anew_it_is_paid_again_and_what_was_there_is_kept(
    run: Any, clinics: list[str]
) -> None:
    run("calibrate", *clinics, *OUT, "--campaign", "spring")
    first, sketch = the_map(), Path("sketch.json").read_text()
    stdout, stderr = run.ok("calibrate", *clinics, *OUT, "--again")
    assert "each charged epsilon 1" in stdout
    assert (
        "the map that was there, which cost epsilon 1 at each source, is now map-spring" in stderr
    )
    assert "the sketch that was there, which cost epsilon 1 at each source, is now sk" in stderr
    assert the_map("map-spring.json") == first
    assert Path("sketch-spring.json").read_text() == sketch
    assert the_map() != first
    assert spent(clinics) == {2.0}
    # What was kept is a result like any other: it can be read again where it is now.
    kept = ("--out", "map-spring.json", "--sketch", "sketch-spring.json")
    assert f"campaign spring {SAID}" in run.ok("calibrate", *clinics, *kept)[1]
    assert (the_map("map-spring.json"), Path("sketch-spring.json").read_text()) == (first, sketch)
    run.ok("calibrate", *clinics, *OUT)
    assert spent(clinics) == {2.0}


OTHERS = {
    "another epsilon": ("--epsilon", 0.5),
    "another method": ACC_T,
    "another option": ("--option", "hats=6"),
    "one file more": ("more.npz",),
    "another event": ("--event", 1),
    "another campaign": ("--campaign", "autumn"),
    "another model": ("--model", "v4"),
    "secure sums": ("--aggregation", "secure"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_question_for_the_same_file_is_refused_before_anybody_pays(
    run: Any, clinics: list[str], other: str
) -> None:
    run("calibrate", *clinics, *OUT[:2])
    a_clinic(Path("more.npz"), seed=99)
    before, there = the_map(), sorted(Path().iterdir())
    new = NEW if other == "one file more" else ()
    stderr = run.fails("calibrate", *clinics, *OTHERS[other], *new, *OUT[:2])
    assert re.search("^error: campaign .* was begun with .*; choose another --out, or ask anew, and "
                     r"pay again, with --again$", stderr.strip())  # fmt: skip
    assert len(stderr) < 300
    assert (the_map(), sorted(Path().iterdir())) == (before, there)
    assert spent(clinics) == {1.0}


def test_fewer_files_or_other_names_are_other_sources(run: Any, clinics: list[str]) -> None:
    run("calibrate", *clinics, *OUT[:2])
    assert "other files: 12, not 11" in run.fails("calibrate", *clinics[1:], *OUT[:2])
    Path(clinics[0]).rename("renamed.npz")
    code, _, stderr = run("calibrate", "renamed.npz", *clinics[1:], *OUT[:2])
    assert (code, re.search(r"other files: not with \S*/renamed.npz", stderr) is None) == (2, False)
    assert spent(clinics[1:]) == {1.0}


def test_a_map_that_was_moved_away_or_edited_costs_nothing(run: Any, clinics: list[str]) -> None:
    run("calibrate", *clinics, *OUT[:2], "--campaign", "spring")
    first = the_map()
    Path("map.json").rename("elsewhere.json")
    code, _, stderr = run("calibrate", *clinics, *OUT[:2])
    assert (code, SAID in stderr, the_map()) == (0, True, first)
    edited = json.loads(Path("map.json").read_text())
    edited["provenance"] |= {"model": "mine", "campaign": "../a/b"}
    Path("map.json").write_text(json.dumps(edited))
    code, _, stderr = run("calibrate", *clinics, *OUT[:2])
    assert (code, SAID in stderr, the_map()) == (0, True, first)
    kept = "map-..%2Fa%2Fb.json"
    assert f"is now {kept}" in stderr
    assert json.loads(Path(kept).read_text()) == edited
    assert spent(clinics) == {1.0}


@pytest.mark.parametrize("other", [(), ("--epsilon", 0.5)])
def test_a_map_whose_record_is_gone_is_not_paid_for_again_without_a_word(
    run: Any, clinics: list[str], other: tuple[object, ...]
) -> None:
    """As all maps of local sources were that were made before records were kept."""
    run("calibrate", *clinics, *OUT, "--campaign", "spring")
    first = the_map()
    shutil.rmtree("map.json.campaign")
    stderr = run.fails("calibrate", *clinics, *other, *OUT)
    assert "is the map of campaign spring, which cost epsilon 1 at each source" in stderr
    assert "give --campaign spring to read the stored answers again, free of charge" in stderr
    code, stdout, _ = run("calibrate", *clinics, *OUT, "--campaign", "spring")
    assert (code, the_map(), spent(clinics)) == (0, first, {1.0})
    assert "read again free of charge" in stdout
    assert "sketch-spring.json" not in listed()


def test_a_campaign_by_its_name_is_free_under_another_name_of_the_map(
    run: Any, clinics: list[str]
) -> None:
    run("calibrate", *clinics, *OUT[:2], "--campaign", "spring")
    code, stdout, _ = run("calibrate", *clinics, "--campaign", "spring", "--out", "b.json")
    assert (code, "each charged" in stdout, spent(clinics)) == (0, False, {1.0})
    assert the_map("b.json") == the_map()


def test_what_is_no_result_of_a_campaign_is_replaced_as_ever(run: Any, clinics: list[str]) -> None:
    run.ok("fit", clinics[0], "--out", "map.json")
    run.ok("calibrate", *clinics, *OUT[:2])
    assert listed() == ["map.json", "map.json.campaign"]


def test_a_sketch_of_another_campaign_is_kept(run: Any, clinics: list[str]) -> None:
    run("calibrate", *clinics, *OUT, "--campaign", "spring")
    sketch = Path("sketch.json").read_text()
    code, _, stderr = run("calibrate", *clinics, "--out", "b.json", *OUT[2:])
    assert (code, "is now sketch-spring.json" in stderr) == (0, True)
    assert Path("sketch-spring.json").read_text() == sketch
    assert "say with --out" in run.fails("calibrate", *clinics, "--sketch", "sketch.json")
    assert spent(clinics) == {2.0}


def test_a_sketch_that_was_merged_is_not_replaced_by_a_part_of_it(
    run: Any, clinics: list[str]
) -> None:
    run("calibrate", *clinics, *OUT, "--campaign", "spring")
    more = ("--out", "b.json", "--sketch", "b-sketch.json", "--campaign", "summer")
    run("calibrate", *clinics, *more)
    run.ok("sketch", "merge", "sketch.json", "b-sketch.json", "--out", "both.json")
    Path("both.json").rename("sketch.json")
    merged = Path("sketch.json").read_text()
    run.ok("calibrate", *clinics, *OUT)
    assert Path("sketch-spring.json").read_text() == merged


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT"])
def test_a_run_asked_anew_that_was_interrupted_goes_on_and_is_paid_once(
    run: Any, clinics: list[str], how: str
) -> None:
    """With --again or without it; and the old result is still there."""
    args = ["calibrate", *clinics, *OUT, "--again"]
    assert python(COMMAND, *args, "--campaign", "spring").returncode == 0
    first = the_map()
    signalled = f"os.kill(os.getpid(), signal.{how})"
    done = interrupted("privcal.trusted.source:add_noise", 5, *args, how=signalled)
    assert done.returncode == (-signal.SIGKILL if how == "SIGKILL" else 1)
    if how == "SIGINT":
        assert "come back free with the same command (campaign" in done.stderr
        assert "interrupted; what was charged stays charged, and the same" in done.stderr
    assert the_map() == first
    assert "going on with campaign" in run.ok(*args)[1]
    assert the_map("map-spring.json") == first
    assert spent(clinics) <= {2.0}
    code, _, stderr = run(*args[:-1])
    assert (code, SAID in stderr, spent(clinics)) == (0, True, {2.0})


def test_interrupted_before_the_first_charge_it_says_that_nothing_was_charged(
    run: Any, clinics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("privcal.data.panels.LocalPanel.refusals", stop)
    code, _, stderr = run("calibrate", *clinics, *OUT)
    assert (code, stderr.splitlines()[-1]) == (1, "error: interrupted; nothing was charged")
    assert listed() == []
    monkeypatch.undo()


def test_asking_anew_where_nobody_can_pay_leaves_the_result_as_it_was(
    run: Any, clinics: list[str]
) -> None:
    out = (*OUT, "--epsilon", 2)
    run.ok("calibrate", *clinics, *out)
    before, there = the_map(), listed()
    code, _, stderr = run("calibrate", *clinics, *out, "--again")
    assert (code, "nobody was asked and nothing charged" in stderr) == (1, True)
    assert (the_map(), listed()) == (before, there)
    code, _, stderr = run("calibrate", *clinics, *out)
    assert (code, SAID in stderr, the_map()) == (0, True, before)


def poor(run: Any, clinics: list[str], count: int) -> None:
    for clinic in clinics[:count]:
        run.ok("ledger", "policy", f"{clinic}.ledger", "--epsilon", 0.5)


@pytest.mark.parametrize(("lost", "stops"), [(1, False), (2, True), (12, True)])
def test_a_run_that_would_lose_more_than_a_tenth_of_its_sources_stops_first(
    run: Any, clinics: list[str], lost: int, stops: bool
) -> None:
    poor(run, clinics, lost)
    code, _, stderr = run("calibrate", *clinics, *OUT)
    assert code == int(stops), stderr
    if not stops:
        return
    assert f"only {12 - lost} of 12 sources can answer, fewer than the 11 required" in stderr
    assert "nobody was asked and nothing charged" in stderr
    assert (f"to accept {12 - lost}, give --min-sources {12 - lost}" in stderr) == (lost < 12)
    assert spent(clinics) == {0.0}
    assert listed() == []
    if lost < 12:
        code, stdout, stderr = run("calibrate", *clinics, *OUT, "--min-sources", 10)
        assert (code, "from 10 of 12 sources" in stdout) == (0, True)
        told = "left out: clinic-00, clinic-01 (over_request_limit: the policy allows less epsilon for one request)"
        assert told in stderr
        # Read again it is as it was, although those who were poor could pay by now.
        for clinic in clinics[:2]:
            run("ledger", "policy", f"{clinic}.ledger", "--epsilon", 3)
        before = the_map()
        code, stdout, stderr = run("calibrate", *clinics, *OUT, "--min-sources", 10)
        assert (code, "from 10 of 12 sources" in stdout, told in stderr) == (0, True, True)
        assert (the_map(), spent(clinics[:2]), spent(clinics[2:])) == (before, {0.0}, {1.0})


def test_a_run_that_lost_them_on_its_way_writes_the_map_and_ends_with_1(
    run: Any, clinics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = privcal.Source.answer

    def failing(self: privcal.Source, *args: Any) -> Any:
        if self.name in ("clinic-00", "clinic-01"):
            raise privcal.Refused("unavailable")
        return ask(self, *args)

    monkeypatch.setattr(privcal.Source, "answer", failing)
    args = ("calibrate", *clinics, *OUT)
    for told in ("each charged epsilon 1", "read again free of charge"):
        code, stdout, stderr = run(*args)
        assert (code, told in stdout) == (1, True)
        assert "from 10 of 12 sources" in stdout
        assert stderr.splitlines()[-1] == (
            "error: only 10 of 12 sources answered everything; the map of these is written all the same; "
            "to accept 10, give --min-sources 10"
        )
        assert Path("map.json").exists()
    run.ok(*args, "--min-sources", 10)
    assert spent(clinics[2:]) == {1.0}


def test_thirty_that_are_left_out_for_one_reason_are_one_line(run: Any, clinics: list[str]) -> None:
    poor(run, clinics, 10)
    _, stderr = run.ok("calibrate", *clinics, *OUT, "--min-sources", 2)
    told = [line for line in stderr.splitlines() if line.startswith("left out")]
    reason = "over_request_limit: the policy allows less epsilon for one request"
    assert told == [f"left out: 10 sources, such as clinic-00 ({reason})"]


def test_a_record_of_the_version_before_goes_on(run: Any, clinics: list[str]) -> None:
    """It says neither that it is finished nor who refused; a map beside it says the one."""
    run("calibrate", *clinics, *OUT)
    plan = Path("map.json.campaign") / PLAN
    old = json.loads(plan.read_text())
    del old["finished"]
    plan.write_text(json.dumps(old))
    before = the_map()
    code, _, stderr = run("calibrate", *clinics, *OUT)
    assert (code, SAID in stderr, the_map()) == (0, True, before)
    assert spent(clinics) == {1.0}


def test_the_map_and_its_record_tell_no_more_of_the_sources_than_before(
    run: Any, clinics: list[str]
) -> None:
    """A map is shipped: no name, ledger or file of a source is in it. The record stays at home."""
    run("calibrate", *clinics, *OUT)
    text = Path("map.json").read_text()
    for clinic in clinics:
        assert Path(clinic).stem not in text
        assert privcal.Ledger(f"{clinic}.ledger").id not in text
    allowed = {"method", "options", "epsilon_per_source", "sources", "answered", "left_out",
               "campaign", "model", "classes", "class_names", "made_from", "created", "privcal"}  # fmt: skip
    assert json.loads(text)["provenance"].keys() <= allowed
    assert sorted(p.name for p in Path("map.json.campaign").iterdir()) == [ANSWERS, PLAN, "lock"]


def test_no_ledger_is_made_for_a_class_that_is_not_there(run: Any, tmp_path: Path) -> None:
    data = a_clinic(tmp_path / "a.npz")
    out = ("--out", tmp_path / "m.json")
    code, _, stderr = run("calibrate", data, *NEW, "--event", 7, *out)
    assert (code, "there is no class 7 to ask about" in stderr) == (2, True)
    assert [path.name for path in tmp_path.glob("?.*")] == ["a.npz"]
    np.savez(tmp_path / "c.npz", confidence=[0.5, 0.7], correct=[True, False])
    code, _, stderr = run("calibrate", tmp_path / "c.npz", *NEW, *ACC_T, *out)
    assert (code, "needs the outputs of all classes" in stderr) == (2, True)
    assert sorted(path.name for path in tmp_path.glob("?.*")) == ["a.npz", "c.npz"]
