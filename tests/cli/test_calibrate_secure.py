"""`privcal calibrate --aggregation secure`, as a person uses it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="secure sums need cryptography: privcal[secure]")

import privcal
from tests.conftest import random_scores

NEW = ("--new-ledger", "--per-row")
SECURE = ("--aggregation", "secure")


@pytest.fixture
def clinics(tmp_path: Path) -> list[Path]:
    """Five, with names as people give them: of five, one may fail."""
    found = []
    for number in range(5):
        scores = random_scores(40, seed=number)
        found.append(tmp_path / f"clinic {number}, west.npz")
        np.savez(found[-1], logits=scores.outputs.array, labels=scores.labels)
    return found


def spent(clinics: list[Path]) -> list[int]:
    return [privcal.Ledger(f"{clinic}.ledger").nano_spent for clinic in clinics]


def create(run: Any, clinics: list[Path], rules: str = "[secure]\ncolluding = 1\n") -> None:
    policy = clinics[0].with_name("policy.toml")
    policy.write_text(rules)
    for clinic in clinics:
        assert run("ledger", "create", clinic, "--per-row", "--policy", policy)[0] == 0


def test_it_writes_a_map_and_says_what_is_promised(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    create(run, clinics)
    sketch = ("--sketch", tmp_path / "sketch.json", "--html", tmp_path / "page.html")
    code, stdout, _ = run("calibrate", *clinics, *SECURE, *sketch, "--out", tmp_path / "m.json")
    assert code == 0
    assert "from 5 of 5 sources, each charged epsilon 1" in stdout
    said = " ".join(stdout.split())
    assert "up to 1 of the sources working together that is epsilon 1" in said
    assert "against all others together at most 10" in said
    assert "has their rows" in said
    assert privcal.load_map(tmp_path / "m.json").provenance["aggregation"] == "secure"
    assert len(privcal.Sketch.load(tmp_path / "sketch.json").totals) == 1
    assert (tmp_path / "page.html").exists()
    assert not (tmp_path / "m.json.campaign").exists()
    assert spent(clinics) == [10**9] * 5


def test_programs_get_the_totals(run: Any, clinics: list[Path], tmp_path: Path) -> None:
    create(run, clinics)
    asked = ("--method", "acc-t", "--alone", 4, "--colluding", 1, "--needed", 5, "--json")
    code, stdout, _ = run("calibrate", *clinics, *SECURE, *asked, "--out", tmp_path / "m.json")
    assert code == 0
    said = json.loads(stdout)
    assert said["epsilon_alone"] == 4.0
    assert set(said["spent"].values()) == {1.0}
    for asked_ in said["rounds"]:
        assert asked_["answers"] == {}
        total = asked_["total"]
        assert (total["honest"], total["alone"], total["left_out"]) == (4, 4, [])
        [part] = total["parts"]
        assert len(part["sources"]) == 5
        assert np.allclose(np.array(part["values"]) / 5, total["average"])


def test_new_ledgers_need_a_policy_that_lets_others_learn_more(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    args = (
        "calibrate",
        *clinics,
        "--new-ledger",
        "--per-row",
        *SECURE,
        "--out",
        tmp_path / "m.json",
    )
    before = sorted(tmp_path.iterdir())
    code, _, stderr = run(*args)
    assert code == 2
    assert "give --policy a file with [secure]" in stderr
    assert sorted(tmp_path.iterdir()) == before
    assert run(*args, "--alone", 1)[0] == 0  # then they learn no more


def test_without_secure_in_the_policy_others_learn_no_more_than_the_total(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    create(run, clinics, "epsilon = 2.0\n")
    args = ("calibrate", *clinics, *SECURE, "--out", tmp_path / "m.json")
    code, _, stderr = run(*args)
    assert code == 1
    assert "where a policy has no [secure]" in stderr
    assert run(*args, "--alone", 2)[0] == 0


def test_of_answers_there_is_no_total(run: Any, clinics: list[Path], tmp_path: Path) -> None:
    code, stdout, _ = run("calibrate", *clinics, *NEW, "--out", tmp_path / "m.json", "--json")
    assert code == 0
    said = json.loads(stdout)
    assert said["epsilon_alone"] is None
    assert {asked["total"] for asked in said["rounds"]} == {None}


def test_asked_again_under_its_name_it_is_the_same_and_free(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    create(run, clinics)
    args = ("calibrate", *clinics, *SECURE, "--campaign", "spring", "--json")
    _, first, _ = run(*args, "--out", tmp_path / "a.json")
    code, again, _ = run(*args, "--out", tmp_path / "b.json")
    assert code == 0
    assert json.loads(first)["rounds"] == json.loads(again)["rounds"]
    assert spent(clinics) == [10**9] * 5


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--colluding", 2), "are for --aggregation secure"),
        (("--groups", 3), "are for --aggregation secure"),
        (("--aggregation", "both"), "--aggregation must be one of each, secure"),
        ((*SECURE, "--rehearse"), "a rehearsal asks each source by itself"),
        ((*SECURE, "--answers"), "answers by mail come from one source each"),
        ((*SECURE, "--groups", 3), "groups are for 60 sources and more"),
        ((*SECURE, "--groups", 2), "groups must be one of 1, 3, 5, 7, 9"),
        ((*SECURE, "--needed", 2), "4 to 5 can be needed, not 2"),
        ((*SECURE, "--colluding", 4), "needs at least 6 sources, and there are 5"),
        ((*SECURE, "--alone", 0), "alone must be a whole number from 1"),
    ],
)
def test_what_cannot_be_asked_is_said_for_nothing(
    run: Any, clinics: list[Path], tmp_path: Path, more: tuple[object, ...], words: str
) -> None:
    create(run, clinics)
    before = sorted(tmp_path.iterdir())
    code, _, stderr = run("calibrate", *clinics, *more, "--out", tmp_path / "m.json")
    assert code == 2
    assert words in " ".join(stderr.split())
    assert sorted(tmp_path.iterdir()) == before
    assert spent(clinics) == [0] * 5


def test_an_interrupted_run_goes_on_only_as_it_was_begun(
    run: Any, clinics: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(run, clinics)
    out = ("--out", tmp_path / "m.json")
    with monkeypatch.context() as disk:
        disk.setattr(privcal.maps.Map, "save", lambda self, path: 1 / 0)
        run("calibrate", *clinics, *SECURE, *out)
    for more in (
        (),
        (*SECURE, "--alone", 5),
        (*SECURE, "--needed", 5),
        (*SECURE, "--colluding", 2),
    ):
        code, _, stderr = run("calibrate", *clinics, *out, *more)
        assert code == 2
        assert "was begun with --aggregation secure" in stderr
        assert "None" not in stderr
    code, _, stderr = run("calibrate", *clinics, *SECURE, *out)
    assert code == 0, stderr
    assert "going on with campaign" in stderr
    assert spent(clinics) == [10**9] * 5


KILLED = """
import os, signal
from privcal.campaign import Campaign
from privcal.cli.app import main
from privcal.secure.participant import Participant

where = {{"share": Participant, "check": Participant, "open": Participant}}.get("{what}", Campaign)
do, calls = getattr(where, "{what}"), iter(range(100))

def killed(*args):
    if next(calls) == {call}:
        os.kill(os.getpid(), signal.SIGKILL)
    return do(*args)

setattr(where, "{what}", killed)
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "call"),
    [
        ("share", 3),
        ("check", 2),
        ("open", 0),
        ("open", 3),
        ("chooses", 0),
        ("keeps", 0),
    ],
)
def test_a_run_that_is_killed_goes_on_without_paying_twice(
    what: str, call: int, run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    create(run, clinics)
    args = ["calibrate", *map(str, clinics), *SECURE, "--out", str(tmp_path / "m.json")]
    command = [sys.executable, "-c", KILLED.format(what=what, call=call), *args]
    assert subprocess.run(command, capture_output=True, check=False).returncode == -9
    assert (tmp_path / "m.json.campaign").exists()
    code, stdout, stderr = run(*args)
    assert code == 0, stderr
    assert "from 5 of 5 sources" in stdout
    assert spent(clinics) == [10**9] * 5
    assert not (tmp_path / "m.json.campaign").exists()


INSIDE = """
import privcal.source
from privcal.cli.app import main

draw, calls = privcal.source.add_noise_share, iter(range(100))

def interrupted(*args):
    if next(calls) == 2:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
    return draw(*args)

privcal.source.add_noise_share = interrupted
main()
"""


@pytest.mark.slow
def test_a_source_that_is_killed_while_it_draws_is_lost_and_the_others_go_on(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    create(run, clinics)
    args = ["calibrate", *map(str, clinics), *SECURE, "--out", str(tmp_path / "m.json")]
    command = [sys.executable, "-c", INSIDE, *args]
    assert subprocess.run(command, capture_output=True, check=False).returncode == -9
    code, stdout, stderr = run(*args)
    assert code == 0, stderr
    assert "from 4 of 5 sources" in stdout
    assert "left out: clinic 2, west (lost" in stderr
    assert spent(clinics) == [10**9] * 5


def test_a_sum_that_cannot_be_finished_says_what_it_cost_and_what_to_do(
    run: Any, clinics: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(run, clinics)
    from privcal.secure.participant import Participant

    args = ("calibrate", *clinics, *SECURE, "--out", tmp_path / "m.json")
    with monkeypatch.context() as patch:
        patch.setattr(Participant, "open", lambda *_: 1 / 0)
        code, _, stderr = run(*args)
    assert code == 1
    said = " ".join(stderr.split())
    assert "only 0 of 5 sources opened their part of the sum, fewer than the 4 needed" in said
    assert "it cost epsilon 1 at 5 sources, and 10 times that against all others together" in said
    assert "come back free with the same command" in said
    code, stdout, _ = run(*args)
    assert code == 0
    assert "from 5 of 5 sources" in stdout
    assert spent(clinics) == [10**9] * 5


def test_a_sum_that_nobody_can_have_any_more_leaves_no_record_behind(
    run: Any, clinics: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(run, clinics)
    args = ("calibrate", *clinics, *SECURE, "--out", tmp_path / "m.json")
    with monkeypatch.context() as patch:
        patch.setattr("privcal.secure.summing.combine", lambda *_: None)
        code, _, stderr = run(*args)
    assert code == 1
    assert "a new one is charged anew" in " ".join(stderr.split())
    assert "come back free" not in stderr
    assert not (tmp_path / "m.json.campaign").exists()


def test_what_a_secure_campaign_will_ask_is_described_as_it_is(run: Any, tmp_path: Path) -> None:
    about = ("campaign", "describe", "--epsilon", 0.2, "--sources", 50, "--asker", "ann@lab.org")
    code, stdout, _ = run(*about, *SECURE, "--json")
    assert code == 0
    said = json.loads(stdout)
    assert said["secure"] == {"colluding": 10, "honest": 35, "alone": 10, "groups": 1}
    each = json.loads(run(*about, "--json")[1])
    assert "secure" not in each
    assert each["digest"] != said["digest"]
    other = json.loads(run(*about, *SECURE, "--alone", 5, "--json")[1])
    assert other["digest"] != said["digest"]
    code, stdout, _ = run(*about, *SECURE, "--html", tmp_path / "page.html")
    assert code == 0
    words = " ".join(stdout.split())
    assert "only the total over all sources is ever opened, for ε = 0.2" in words
    assert "the server and up to 10 of the other sources" in words
    assert "Against all others together ε = 2" in words
    assert "nobody else has to be trusted" not in words
    code, _, stderr = run(*about, "--alone", 5)
    assert (code, "are for --aggregation secure" in stderr) == (2, True)


def test_the_policy_of_a_description_allows_what_it_describes() -> None:
    import tomllib

    from privcal.description import describe
    from privcal.privacy.policy import Policy
    from privcal.secure.panel import Secure

    found = describe(privcal.methods.make("sketch"), 2 * 10**8, sources=50, aggregation=Secure())
    policy = Policy.of(tomllib.loads(found.policy()), "here")
    assert policy.secure is not None
    assert (policy.secure.colluding, policy.secure.alone) == (10, 10)
    assert policy.secure.required
    assert policy.nano_total_alone == 2 * 10**9
