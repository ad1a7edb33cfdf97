"""`privcal federation`: the demo, the check, and the command that asks, over a folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import privcal
from privcal.calibration.campaign import LETTERS, campaign_folder
from privcal.transport import demo as example
from privcal.transport.standing import Standing
from tests.support.asking import Puppet, answering
from tests.support.builders import a_file
from tests.support.letters import ANN, MODEL, Federation, InProcess, federation, rules
from tests.support.secure_sums import policy


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    folder = tmp_path_factory.mktemp("base")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVCAL_MARKS", str(folder / "marks.db"))
        wanted = policy(rules(), epsilon=20.0)
        return federation(folder, 4, policy=wanted, start=False, monkeypatch=patch)


@pytest.fixture
def made(base: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Federation]:
    """Four sites that answer; as they were set up, in the same place."""
    monkeypatch.setattr("privcal.transport.site.service.Child", InProcess)
    monkeypatch.setenv("PRIVCAL_MARKS", str(base.folder / "marks.db"))
    shutil.copytree(base.folder, tmp_path / "kept", symlinks=True)
    base.start()
    with answering(base):
        yield base
    base.stop()
    shutil.rmtree(base.folder)
    shutil.move(tmp_path / "kept", base.folder)


def asks(made: Federation, out: Path, *more: object) -> tuple[object, ...]:
    who = ("--as", made.at(ANN), "--mailbox", made.mailbox, "--model", MODEL)
    return ("federation", "calibrate", *who, "--every", 0.05, "--out", out, *more)


def spent(made: Federation) -> list[int]:
    return [made.ledger(name).nano_spent for name in made.sites]


# --- calibrate ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "trips"), [("each", 3), ("secure", 5)])
def test_a_map_is_made_of_what_the_sites_answer_and_read_again_for_nothing(
    made: Federation, run: Any, tmp_path: Path, how: str, trips: int
) -> None:
    out = tmp_path / "map.json"
    command = asks(made, out, "--aggregation", how, "--html", tmp_path / "page.html", "--json")
    stdout, told = run.ok(*command)
    said = json.loads(stdout)
    assert set(said["spent"]) == set(made.sites)
    assert privcal.load_map(out).provenance["campaign"] == said["campaign"]
    assert "a look every 0.05 s, and 120 s for each round" in told
    assert f"{trips} trips" in told
    assert spent(made) == [10**9] * 4
    assert not (campaign_folder(out) / LETTERS).exists(), "the keys are gone"
    letters = len(Puppet(made, "site-1").letters())
    stdout, told = run.ok(*command)
    assert json.loads(stdout)["free"]
    assert "trip" not in told
    assert len(Puppet(made, "site-1").letters()) == letters
    assert spent(made) == [10**9] * 4


def test_who_is_not_there_is_named_and_the_same_command_goes_on(
    made: Federation, run: Any, tmp_path: Path
) -> None:
    made.stop("site-2")
    out = tmp_path / "map.json"
    code, _, told = run(*asks(made, out, "--wait", 3, "--min-sites", 4))
    assert code == 1
    assert "site-2 does not reply, and is not asked" in told
    assert spent(made) == [0, 0, 0, 0]
    made.start("site-2")
    run.ok(*asks(made, out, "--min-sites", 4))
    assert spent(made) == [10**9] * 4


def test_a_run_that_failed_before_it_asked_leaves_no_record(
    made: Federation, run: Any, tmp_path: Path
) -> None:
    made.stop()
    for more in ((), ("--again",)):
        told = run.fails(*asks(made, tmp_path / "m.json", "--wait", 1, *more), code=1)
        assert "no site of the roster replied" in told
        assert list(tmp_path.glob("m.json*")) == []


def test_of_a_campaign_that_is_finished_no_site_can_be_left_out(
    made: Federation, run: Any, tmp_path: Path
) -> None:
    out = tmp_path / "map.json"
    run.ok(*asks(made, out))
    told = run.fails(*asks(made, out, "--without", "site-2"))
    assert "has the answer of site-2" in told


def test_a_campaign_is_not_begun_over_another_by_other_options(
    made: Federation, run: Any, tmp_path: Path
) -> None:
    out = tmp_path / "map.json"
    run.ok(*asks(made, out))
    assert "was begun with" in run.fails(*asks(made, out, "--epsilon", 2))
    assert "--aggregation each" in run.fails(*asks(made, out, "--aggregation", "secure,needed=4"))
    run.ok(*asks(made, out, "--again"))
    assert spent(made) == [2 * 10**9] * 4


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--epsilon", "0"), "epsilon must be above 0"),
        (("--method", "nothing"), "nothing"),
        (("--campaign", "a/b"), "slash"),
        (("--aggregation", "secure", "--rows-per-person", 2), "leave out --rows-per-person"),
        (("--aggregation", "all"), "--aggregation must be one of"),
        (("--without", "site-9"), "site-9 is not a site of the roster"),
        (("--mailbox", "/no/such/folder"), "there is no folder"),
        (("--method", "acc-t", "--sketch", "s.json"), "--sketch is for methods like sketch"),
    ],
)
def test_arguments_are_checked_before_anything_is_sent(
    made: Federation, run: Any, tmp_path: Path, arguments: tuple[object, ...], says: str
) -> None:
    assert says in run.fails(*asks(made, tmp_path / "map.json", *arguments))
    assert list(tmp_path.glob("map.json*")) == []
    assert list(made.box.list(made.id(ANN))) == []


def test_sites_and_strangers_cannot_ask(made: Federation, run: Any, tmp_path: Path) -> None:
    who = ("--mailbox", made.mailbox, "--model", MODEL, "--out", tmp_path / "m.json")
    told = run.fails("federation", "calibrate", "--as", made.at("site-1"), *who)
    assert "who is no calibrator in roster 1" in told
    assert "cannot read the keys" in run.fails("federation", "calibrate", "--as", tmp_path, *who)


def test_the_command_has_at_most_twenty_options(run: Any) -> None:
    text, _ = run.ok("federation", "calibrate", "--help")
    options = {word for line in text.splitlines() for word in line.split()[:1] if word[:2] == "--"}
    assert 10 < len(options - {"--help"}) <= 20


# --- check --------------------------------------------------------------------------------------


def look(made: Federation, run: Any, *more: object) -> tuple[int, Any]:
    who = ("--as", made.at(ANN), "--mailbox", made.mailbox)
    code, stdout, _ = run("federation", "check", *who, *more, "--json")
    said = json.loads(stdout)
    return code, said


def test_a_calibrator_who_can_ask_is_told_so_and_nothing_is_left_or_charged(
    made: Federation, run: Any, tmp_path: Path
) -> None:
    code, said = look(made, run)
    assert (code, said["well"]) == (0, True)
    assert {one["what"] for one in said["findings"]} == {"keys", "roster", "mailbox"}
    assert set(said["last_letters"].values()) == {None}
    assert list(made.box.list(made.id(ANN))) == []
    assert spent(made) == [0, 0, 0, 0]
    run.ok(*asks(made, tmp_path / "m.json"))
    assert None not in look(made, run)[1]["last_letters"].values()
    text, _ = run.ok("federation", "check", "--as", made.at(ANN), "--mailbox", made.mailbox)
    assert "ready to ask" in text
    assert Standing(made.at(ANN)).roster.digest in " ".join(text.split())


def test_what_keeps_a_calibrator_from_asking_is_said(
    made: Federation, run: Any, tmp_path: Path
) -> None:
    def wrong(*more: object) -> list[str]:
        code, said = look(made, run, *more)
        assert code == 1
        return [one["what"] for one in said["findings"] if not one["well"]]

    assert wrong("--mailbox", tmp_path / "nowhere") == ["mailbox"]
    assert wrong("--mailbox", a_file(tmp_path / "file", "x")) == ["mailbox"]
    (made.at(ANN) / "keys" / "privcal.key").chmod(0o644)
    assert "keys" in wrong()
    (made.at(ANN) / "keys" / "privcal.key").chmod(0o600)
    assert "keys" in wrong("--as", made.at("site-1"))
    shutil.rmtree(made.at(ANN) / "rosters")
    assert wrong() == ["roster", "mailbox"]


# --- demo ---------------------------------------------------------------------------------------


def alive(folder: Path) -> list[str]:
    """The command lines of processes that know of this folder, but for this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words and int(path.parent.name) != os.getpid():
            found.append(words)
    return found


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A demo whose sites hold their answers for a tenth of a second."""
    from privcal.transport.site import setup

    init = setup.init
    monkeypatch.setattr(setup, "init", lambda *given, **more: init(*given, **more, delay=0.1))
    monkeypatch.setenv("PRIVCAL_MARKS", str(tmp_path / "marks.db"))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at the table of processes")
def test_the_demo_calibrates_and_leaves_no_process(run: Any, tmp_path: Path, quick: None) -> None:
    folder = tmp_path / "demo"
    stdout, told = run.ok("federation", "demo", "--dir", folder, "--json")
    assert len(json.loads(stdout)["spent"]) == len(example.SITES)
    assert "4 hospitals" in told
    assert "3 trips" in told
    assert "privcal site run" in told
    assert privcal.load_map(folder / "map.json").private
    assert alive(folder) == []
    assert "exists already" in run.fails("federation", "demo", "--dir", folder)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at the table of processes")
def test_ctrl_c_ends_the_demo_and_all_its_processes(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    command = [sys.executable, "-m", "privcal", "federation", "demo", "--dir", str(folder)]
    env = {**os.environ, "PRIVCAL_MARKS": str(tmp_path / "marks.db")}
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        end = time.monotonic() + 60
        while "hospitals in" not in (line := process.stderr.readline()):
            assert line, "it ended"
            assert time.monotonic() < end
        assert len(alive(folder)) >= 1 + len(example.SITES)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 1
    finally:
        process.kill()
        process.wait()
    assert alive(folder) == []


def test_a_demo_that_cannot_be_made_leaves_nothing(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVCAL_MARKS", str(tmp_path / "marks.db"))
    monkeypatch.setattr(example, "cifar10c", lambda shift: 1 / 0)
    assert run("federation", "demo", "--dir", tmp_path / "demo")[0] == 1
    assert not (tmp_path / "demo").exists()
