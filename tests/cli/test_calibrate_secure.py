"""`privcal calibrate --aggregation secure`, as a person uses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="secure sums need cryptography: privcal[secure]")

import privcal
from tests.support.builders import NEW, interrupted, some_clinics

SECURE = ("--aggregation", "secure")


@pytest.fixture
def clinics(tmp_path: Path) -> list[Path]:
    """Five, with names as people give them: of five, one may fail."""
    return some_clinics(tmp_path, 5, name="clinic {}, west.npz")


def spent(clinics: list[Path]) -> list[int]:
    return [privcal.Ledger(f"{clinic}.ledger").nano_spent for clinic in clinics]


def create(run: Any, clinics: list[Path], rules: str = "[secure]\ncolluding = 1\n") -> None:
    policy = clinics[0].with_name("policy.toml")
    policy.write_text(rules)
    for clinic in clinics:
        run.ok("ledger", "create", clinic, "--per-row", "--policy", policy)


def test_it_writes_a_map_and_says_what_is_promised(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    create(run, clinics)
    sketch = ("--sketch", tmp_path / "sketch.json", "--html", tmp_path / "page.html")
    stdout, _ = run.ok("calibrate", *clinics, *SECURE, *sketch, "--out", tmp_path / "m.json")
    assert "from 5 of 5 sources, each charged epsilon 1" in stdout
    said = " ".join(stdout.split())
    assert "up to 1 of the sources working together that is epsilon 1" in said
    assert "against all others together at most 10" in said
    assert "has their rows" in said
    assert privcal.load_map(tmp_path / "m.json").provenance["aggregation"] == "secure"
    assert len(privcal.Sketch.load(tmp_path / "sketch.json").totals) == 1
    assert (tmp_path / "page.html").exists()
    assert spent(clinics) == [10**9] * 5


def test_programs_get_the_totals(run: Any, clinics: list[Path], tmp_path: Path) -> None:
    create(run, clinics)
    asked = ("--method", "acc-t", "--aggregation", "secure,alone=4,colluding=1,needed=5", "--json")
    stdout, _ = run.ok("calibrate", *clinics, *SECURE, *asked, "--out", tmp_path / "m.json")
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
    args = ("calibrate", *clinics, *NEW, *SECURE, "--out", tmp_path / "m.json")
    before = sorted(tmp_path.iterdir())
    assert "give --policy a file with [secure]" in run.fails(*args)
    assert sorted(tmp_path.iterdir()) == before
    run.ok(*args, "--aggregation", "secure,alone=1")  # then they learn no more


def test_without_secure_in_the_policy_others_learn_no_more_than_the_total(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    create(run, clinics, "epsilon = 2.0\n")
    args = ("calibrate", *clinics, *SECURE, "--out", tmp_path / "m.json")
    assert "where a policy has no [secure]" in run.fails(*args, code=1)
    run.ok(*args, "--aggregation", "secure,alone=2")


def test_of_answers_there_is_no_total(run: Any, clinics: list[Path], tmp_path: Path) -> None:
    said = run.json("calibrate", *clinics, *NEW, "--out", tmp_path / "m.json")
    assert said["epsilon_alone"] is None
    assert {asked["total"] for asked in said["rounds"]} == {None}


def test_asked_again_under_its_name_it_is_the_same_and_free(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    create(run, clinics)
    args = ("calibrate", *clinics, *SECURE, "--campaign", "spring", "--json")
    _, first, _ = run(*args, "--out", tmp_path / "a.json")
    again, _ = run.ok(*args, "--out", tmp_path / "b.json")
    assert json.loads(first)["rounds"] == json.loads(again)["rounds"]
    assert spent(clinics) == [10**9] * 5


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--aggregation", "secure,x=2"), "--aggregation takes each, or secure with alone,"),
        (("--aggregation", "each,groups=3"), "--aggregation takes each, or secure with alone,"),
        (("--aggregation", "both"), "--aggregation must be one of each, secure"),
        ((*SECURE, "--rehearse"), "a rehearsal asks each source by itself"),
        ((*SECURE, "--answers"), "answers by mail come from one source each"),
        ((*SECURE, "--aggregation", "secure,groups=3"), "groups are for 60 sources and more"),
        ((*SECURE, "--aggregation", "secure,groups=2"), "groups must be one of 1, 3, 5, 7, 9"),
        ((*SECURE, "--aggregation", "secure,needed=2"), "4 to 5 can be needed, not 2"),
        (
            (*SECURE, "--aggregation", "secure,colluding=4"),
            "needs at least 6 sources, and there are 5",
        ),
        ((*SECURE, "--aggregation", "secure,alone=0"), "alone must be a whole number from 1"),
    ],
)
def test_what_cannot_be_asked_is_said_for_nothing(
    run: Any, clinics: list[Path], tmp_path: Path, more: tuple[object, ...], words: str
) -> None:
    create(run, clinics)
    before = sorted(tmp_path.iterdir())
    stderr = run.fails("calibrate", *clinics, *more, "--out", tmp_path / "m.json")
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
        (*SECURE, "--aggregation", "secure,alone=5"),
        (*SECURE, "--aggregation", "secure,needed=5"),
        (*SECURE, "--aggregation", "secure,colluding=2"),
    ):
        stderr = run.fails("calibrate", *clinics, *out, *more)
        assert "was begun with --aggregation secure" in stderr
        assert "None" not in stderr
    _, stderr = run.ok("calibrate", *clinics, *SECURE, *out)
    assert "going on with campaign" in stderr
    assert spent(clinics) == [10**9] * 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "call"),
    [("share", 3), ("check", 2), ("open", 0), ("open", 3), ("chooses", 0), ("keeps", 0)],
)
def test_a_run_that_is_killed_goes_on_without_paying_twice(
    what: str, call: int, run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    create(run, clinics)
    args = ["calibrate", *clinics, *SECURE, "--out", tmp_path / "m.json"]
    at_a_site = what in ("share", "check", "open")
    place = "secure.participant:Participant" if at_a_site else "calibration.campaign:Campaign"
    assert interrupted(f"privcal.{place}.{what}", call, *args).returncode == -9
    assert (tmp_path / "m.json.campaign").exists()
    stdout, _ = run.ok(*args)
    assert "from 5 of 5 sources" in stdout
    assert spent(clinics) == [10**9] * 5


@pytest.mark.slow
def test_a_source_that_is_killed_while_it_draws_is_lost_and_the_others_go_on(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    create(run, clinics)
    args = ["calibrate", *clinics, *SECURE, "--out", tmp_path / "m.json"]
    killed = interrupted("privcal.secure.participant:add_noise_share", 2, *args)
    assert killed.returncode == -9
    stdout, stderr = run.ok(*args)
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
    stdout, _ = run.ok(*args)
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
    said = run.json(*about, *SECURE)
    assert said["secure"] == {"colluding": 10, "honest": 35, "alone": 10, "groups": 1}
    each = run.json(*about)
    assert "secure" not in each
    assert each["digest"] != said["digest"]
    other = run.json(*about, *SECURE, "--aggregation", "secure,alone=5")
    assert other["digest"] != said["digest"]
    stdout, _ = run.ok(*about, *SECURE, "--html", tmp_path / "page.html")
    words = " ".join(stdout.split())
    assert "only the total over all sources is ever opened, for ε = 0.2" in words
    assert "the carrier and up to 10 of the other sources" in words
    assert "Against all others together ε = 2" in words
    assert "nobody else has to be trusted" not in words


def test_the_policy_of_a_description_allows_what_it_describes() -> None:
    import tomllib

    from privcal.report.description import describe
    from privcal.secure.panel import Secure
    from privcal.trusted.policy import Policy

    found = describe(privcal.methods.make("sketch"), 2 * 10**8, sources=50, aggregation=Secure())
    policy = Policy.of(tomllib.loads(found.policy()), "here")
    assert policy.secure is not None
    assert (policy.secure.colluding, policy.secure.alone) == (10, 10)
    assert policy.secure.required
    assert policy.nano_total_alone == 2 * 10**9
