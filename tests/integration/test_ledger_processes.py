"""The ledger under real processes: killed at every step, and many at once."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import privcal
from privcal.calibration.campaign import Campaign
from privcal.trusted.epsilon import NANO
from privcal.trusted.queries import Gap
from privcal.trusted.question import Question
from tests.support.builders import a_clinic, outcome, random_scores

PACKAGE = str(Path(privcal.__file__).parent)


def source(path: Path) -> privcal.Source:
    return privcal.Source(random_scores(30), privcal.Policy(epsilon=1.0), ledger=path)


def in_child(work: Callable[[int], None]) -> tuple[int, bytes]:
    """Fork, run `work(fd)`, return how the child ended and what it wrote."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            work(write)
            os._exit(0)
        except BaseException:
            os._exit(3)
    os.close(write)
    said = b""
    while part := os.read(read, 65536):
        said += part
    os.close(read)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), said


def cases(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, Path]]:
    """1, 2, … and for each a new ledger's path, alone in a folder with its marks."""
    for step in range(1, 200):
        case = folder / str(step)
        case.mkdir()
        monkeypatch.setenv("PRIVCAL_MARKS", str(case / "marks.db"))
        yield step, case / "ledger.db"
    pytest.fail("it never came to its end")


def die_at(step: int, path: Path, work: Callable[[], Any]) -> Any:
    """Do it, but SIGKILL this process as soon as a line of our code finds the `step`-th state on disk.

    From one change of the files to the next all lines are alike to whoever comes after: so with a
    death in every state a death at every line has been tried.
    """
    steps, last = 0, None

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal steps, last
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            # But for the shared memory of SQLite, which dies with the last process.
            files = sorted(file for file in path.parent.iterdir() if file.suffix != ".db-shm")
            now = [(file.name, file.read_bytes()) for file in files]
            if now != last:
                steps, last = steps + 1, now
            if steps == step:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    try:
        return work()
    finally:
        sys.settrace(None)


def answer_and_die_at(
    step: int, path: Path, fd: int, make: Callable[[], privcal.Source] | None = None
) -> None:
    asked = source(path) if make is None else make()
    said = die_at(step, path, lambda: asked.answer(Question.of(Gap(), 0.25, "r")))
    os.write(fd, json.dumps(said.values.tolist()).encode())


def test_killed_at_every_step_a_source_never_pays_twice_nor_draws_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = set()
    for step, path in cases(tmp_path, monkeypatch):
        privcal.Ledger.create(path, unit="row")
        code, said = in_child(lambda fd, step=step, path=path: answer_and_die_at(step, path, fd))
        assert code in (0, -signal.SIGKILL)
        spent = privcal.Ledger(path).nano_spent
        assert spent in (0, NANO // 4)
        try:
            retried = source(path).answer(Question.of(Gap(), 0.25, "r")).values.tolist()
        except privcal.Refused as refused:
            # Charged, and the answer never left: that budget is gone, and nothing is redrawn.
            if refused.code != "lost" or spent != NANO // 4:
                raise
            outcomes.add("lost")
        else:
            outcomes.add("fresh" if spent == 0 else "stored")
            if said:
                assert json.loads(said) == retried
        assert privcal.Ledger(path).nano_spent == NANO // 4
        if code == 0:
            assert said
            break
    assert outcomes == {"fresh", "lost", "stored"}


def test_killed_at_any_step_a_person_is_never_refunded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The accounts of persons: charged before noise is drawn, once, and for good."""
    policy = privcal.Policy(epsilon=1.0, budget="person")
    rows = random_scores(6, person=["ann", "ann", "bob", "cid", "cid", "cid"])

    def answer(step: int, path: Path, fd: int) -> None:
        answer_and_die_at(step, path, fd, lambda: privcal.Source(rows, ledger=path))

    outcomes = set()
    for step, path in cases(tmp_path, monkeypatch):
        privcal.Ledger.create(path, policy, unit="person")
        code, said = in_child(lambda fd, step=step, path=path: answer(step, path, fd))
        ledger = privcal.Ledger(path)
        charged = {spent for spent, _ in ledger.persons()}
        stored = any(entry.answered for entry in ledger.entries())
        assert charged in (set(), {NANO // 4})
        assert charged or not stored
        assert stored or not said
        try:
            privcal.Source(rows, ledger=path).answer(Question.of(Gap(), 0.25, "r"))
        except privcal.Refused as refused:
            if refused.code != "lost":
                raise
            assert {spent for spent, _ in ledger.persons()} == charged  # neither more nor less
        else:
            assert {spent for spent, _ in ledger.persons()} == {NANO // 4}
        outcomes.add((bool(charged), stored))
        if code == 0:
            break
    assert outcomes == {(False, False), (True, False), (True, True)}


def ask_a_copy(task: tuple[Path, int]) -> int:
    """Ask a copy ten times for a tenth of the budget, as fast as it goes."""
    path, worker = task
    granted = 0
    for i in range(10):
        try:
            source(path).answer(Question.of(Gap(), 0.1, f"copy{worker}", index=i))
            granted += 1
        except privcal.Refused as refused:
            if refused.code not in ("ledger_rolled_back", "over_budget"):
                raise
    return granted


def test_copies_of_a_ledger_asked_at_the_same_moment_spend_one_budget(tmp_path: Path) -> None:
    for attempt in range(4):
        first = tmp_path / f"{attempt}.db"
        privcal.Ledger.create(first, unit="row")
        copies = [first, *(tmp_path / f"{attempt}-{n}.db" for n in range(3))]
        for copy in copies[1:]:
            shutil.copy(first, copy)
        with multiprocessing.get_context("fork").Pool(4) as pool:
            granted = pool.map(ask_a_copy, [(c, n) for n, c in enumerate(copies)], chunksize=1)
        assert sum(granted) <= 10, granted
        assert max(granted) > 0


def ask_ten_times(task: tuple[Path, int]) -> int:
    path, worker = task
    granted = 0
    for i in range(10):
        try:
            source(path).answer(Question.of(Gap(), 0.05, f"w{worker}", index=i))
            granted += 1
        except privcal.Refused as refused:
            if refused.code != "over_budget":
                raise
    return granted


def test_sixteen_processes_asking_for_too_much_get_exactly_the_cap(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    privcal.Ledger.create(path, unit="row")
    with multiprocessing.get_context("fork").Pool(16) as pool:
        granted = sum(pool.map(ask_ten_times, [(path, w) for w in range(16)], chunksize=1))
    assert granted == 20  # of 160, at 0.05 each, from a total of 1
    assert privcal.Ledger(path).nano_spent == NANO
    assert len(privcal.Ledger(path).entries()) == 21  # the policy, and these


def ask_the_same(path: Path) -> str:
    try:
        return repr(source(path).answer(Question.of(Gap(), 0.25, "same")).values.tolist())
    except privcal.Refused as refused:
        return refused.code


def test_sixteen_processes_asking_the_same_get_one_noise_for_one_charge(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    privcal.Ledger.create(path, unit="row")
    with multiprocessing.get_context("fork").Pool(16) as pool:
        said = pool.map(ask_the_same, [path] * 64, chunksize=1)
    answers = set(said) - {"lost"}  # asked again while the first was still being drawn
    assert len(answers) == 1
    assert said.count("lost") < 64
    assert privcal.Ledger(path).nano_spent == NANO // 4


@pytest.mark.parametrize("outs", [("m.json", "m.json"), ("a.json", "b.json")])
def test_two_runs_at_once_do_not_use_a_budget_up_for_nothing(
    tmp_path: Path, outs: tuple[str, str]
) -> None:
    """Someone in a hurry, in two terminals: one gets the map, the other a sentence, for nothing."""
    files = []
    for name in "abcdef":
        files.append(a_clinic(tmp_path / f"{name}.npz", 30, seed=ord(name)))
        privcal.create_ledgers(files[-1], per_row=True)
    command = [sys.executable, "-c", "from privcal.cli.app import main; main()", "calibrate"]
    runs = [
        subprocess.Popen(
            [*command, *map(str, files), "--out", str(tmp_path / out)],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for out in outs
    ]
    said = [run.communicate(timeout=120)[1] for run in runs]
    codes = sorted(run.returncode for run in runs)
    assert {privcal.Ledger(f"{file}.ledger").nano_spent for file in files} == {NANO}, said
    text = said[0] + said[1]  # at once, or one after the other
    if "read again, free of charge" in text:
        assert codes == [0, 0], said
    else:
        assert codes == [0, 1], said
        assert "another run is writing" in text or "reserved" in text or "over_budget" in text
    assert [privcal.load_map(p).private for p in tmp_path.glob("?.json")] == [True]


def test_the_record_of_a_campaign_is_one_runs_until_its_process_ends(tmp_path: Path) -> None:
    folder = tmp_path / "m.json.campaign"

    def hold(fd: int) -> None:
        Campaign.start(folder, {"campaign": "c"})
        os.write(fd, b"held")
        signal.pause()

    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        hold(write)
    assert os.read(read, 4) == b"held"
    for take in (lambda: Campaign.start(folder, {}), lambda: Campaign.resume(folder)):
        with pytest.raises(privcal.CalibrationError, match="another run is writing"):
            take()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert Campaign.resume(folder).plan == {"campaign": "c"}
    os.close(read)
    os.close(write)


def test_two_runs_whose_sum_fits_may_run_side_by_side(tmp_path: Path) -> None:
    a_clinic(tmp_path / "a.npz", 30)
    privcal.create_ledgers(tmp_path / "a.npz", per_row=True)
    command = [sys.executable, "-c", "from privcal.cli.app import main; main()", "calibrate"]
    runs = [
        subprocess.Popen(
            [*command, str(tmp_path / "a.npz"), "--epsilon", "0.5", "--out", str(tmp_path / out)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for out in ("one.json", "two.json")
    ]
    said = [run.communicate(timeout=120)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    assert privcal.Ledger(tmp_path / "a.npz.ledger").nano_spent == NANO


def calibrate_when_all_have_offered(path: Path, number: int, barrier: Any, said: Any) -> None:
    class Slow(privcal.Source):
        def offer(self, *args: Any, **more: Any) -> str | None:
            code = super().offer(*args, **more)
            barrier.wait(60)
            return code

    try:
        one = Slow(random_scores(30), ledger=path)
        privcal.calibrate([one], "acc-t", 0.4, campaign=f"c{number}")
        said.put("map")
    except privcal.CalibrationError as stopped:
        said.put("reserved" if "reserved" in str(stopped) else str(stopped))


@pytest.mark.filterwarnings("ignore::privcal.calibration.loop.SourceDropped")
def test_four_processes_with_budget_for_two_get_two_maps_and_spend_nothing_else(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shared.db"
    privcal.Ledger.create(path, unit="row")
    fork = multiprocessing.get_context("fork")
    barrier, said = fork.Barrier(4), fork.SimpleQueue()
    runs = [
        fork.Process(target=calibrate_when_all_have_offered, args=(path, n, barrier, said))
        for n in range(4)
    ]
    for run in runs:
        run.start()
    heard = sorted(said.get() for _ in runs)
    for run in runs:
        run.join()
    assert heard == ["map", "map", "reserved", "reserved"]
    assert privcal.Ledger(path).nano_spent == 8 * NANO // 10
    assert privcal.Ledger(path).reserved() == []


def test_killed_between_reserving_and_the_first_charge_a_campaign_goes_on_and_others_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "killed.db"
    privcal.Ledger.create(path, unit="row")

    def run(fd: int) -> None:
        monkeypatch.setattr(
            privcal.Source, "answer", lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        )
        privcal.calibrate([source(path)], "acc-t", 0.8, campaign="killed")

    assert in_child(run)[0] == -signal.SIGKILL
    ledger = privcal.Ledger(path)
    assert ledger.nano_spent == 0
    assert [(one.campaign, one.nano) for one in ledger.reserved()] == [("killed", 8 * NANO // 10)]
    assert outcome(lambda: source(path).answer(Question.of(Gap(), 0.3, "other"))) == "reserved"
    privcal.calibrate([source(path)], "acc-t", 0.8, campaign="killed")
    assert (ledger.nano_spent, ledger.reserved()) == (8 * NANO // 10, [])


def test_killed_at_any_step_of_an_offer_a_source_has_reserved_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [Question.of(Gap(1 + i / 10), 0.2, "c", index=i) for i in range(4)]
    whole = [("c", 8 * NANO // 10)]
    outcomes = set()
    for step, path in cases(tmp_path, monkeypatch):
        privcal.Ledger.create(path, unit="row")

        def offer(fd: int, step: int = step, path: Path = path) -> None:
            die_at(step, path, lambda: source(path).offer(asked))
            os.write(fd, b"reserved")

        code, said = in_child(offer)
        ledger = privcal.Ledger(path)
        reserved = [(one.campaign, one.nano) for one in ledger.reserved()]
        assert reserved in ([], whole)
        assert reserved == whole or not said
        assert ledger.nano_spent == 0
        assert source(path).offer(asked) is None
        outcomes.add(bool(reserved))
        if code == 0:
            break
    assert outcomes == {False, True}
