"""A campaign for approval: what is told, and a digest of what is asked and of nothing else."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privcal
from privcal.calibration import methods
from privcal.report.description import Description, describe
from privcal.trusted.epsilon import to_nano
from privcal.trusted.queries import EventHats
from privcal.trusted.question import Question
from tests.support.builders import python

FACTS = {
    "model": "sepsis-v3", "asker": "ann@lab.org", "campaign": "winter",
    "purpose": "Correct the risk.", "contact": "Ann",
}  # fmt: skip


def described(method: str = "sketch", epsilon: float = 1.0, **more: Any) -> Description:
    names = ("sources", "rows_per_person", "rows_per_source", *FACTS)
    own = {name: more.pop(name) for name in names if name in more}
    return describe(methods.make(method, **more), to_nano(epsilon), **{**FACTS, **own})


# --- the digest ------------------------------------------------------------------------------


def test_the_digest_is_the_one_that_a_ledger_shows() -> None:
    found = described("acc-t")
    ledger = privcal.Ledger.in_memory(privcal.Policy(epsilon=1.0, approve=True))
    ledger.reserve(found.plan, "ann@lab.org", ledger.policy)
    [(waits, _)] = ledger.waiting()
    assert waits.digest == found.digest == found.to_dict()["digest"]


def test_whoever_writes_out_a_default_describes_the_same() -> None:
    assert described().digest == described(class_offsets=False).digest
    assert described("acc-t").digest == described("acc-t", iterations=4, bounds=(0.5, 6)).digest


def test_a_campaign_without_a_name_gets_one_that_is_told() -> None:
    one, other = described(campaign=None), described(campaign=None)
    assert one.campaign != other.campaign
    assert described(campaign=one.campaign).digest == one.digest


@pytest.mark.parametrize("name", ["model", "asker", "campaign"])
def test_names_that_a_ledger_tells_apart_have_other_digests(name: str) -> None:
    alike = ("Zo\u00eb Lee", "Zoe\u0308 Lee", "Zo\u00eb  Lee", " Zo\u00eb Lee")
    assert len({described(**{name: text}).digest for text in alike}) == len(alike)


def test_questions_that_differ_in_more_than_the_temperature_are_told_apart() -> None:
    events = EventHats(event=0), EventHats(2.0, event=0), EventHats(event=1)
    plan = tuple(Question("winter", 0, index, 5, query) for index, query in enumerate(events))
    told = Description("ann", plan).leaves()
    assert told[0].startswith("2 times")
    assert "class 0" in told[0]
    assert "class 1" in told[1]


CHANGES: dict[str, dict[str, Any]] = {
    "method": {"method": "acc-t"},
    "epsilon": {"epsilon": 1.000000001},
    "event": {"event": 1},
    "another event": {"event": 2},
    "finer": {"sources": 1000, "rows_per_source": 1000},
    **{name: {name: f"{FACTS[name]}x"} for name in ("model", "asker", "campaign")},
    "no model": {"model": None},
}


def test_whatever_else_is_asked_has_another_digest() -> None:
    digests = {name: described(**change).digest for name, change in CHANGES.items()}
    digests["nothing"] = described().digest
    assert len(set(digests.values())) == len(digests)


def test_what_only_the_asker_says_is_not_in_the_digest() -> None:
    """No source could check it, so nobody is told that it was compared."""
    for said in ({"purpose": "Other."}, {"contact": None}, {"unchanged": 0.3}, {"sources": 11}):
        assert described(**said).digest == described().digest, said


def test_public_rows_are_facts_whatever_file_they_are_in() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(300, 3)).astype(np.float32) * 2
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    first = described(public=privcal.Scores(logits=logits, labels=labels)).public
    again = described(public=privcal.Scores(logits=logits.astype(np.float64), labels=labels)).public
    labels[0] = (labels[0] + 1) % 3
    other = described(public=privcal.Scores(logits=logits, labels=labels)).public
    assert first == again != other


def test_another_process_in_another_place_finds_the_same_digest(tmp_path: Path) -> None:
    code = (
        "from privcal import methods\n"
        "from privcal.report.description import describe\n"
        "print(describe(methods.make('acc-t'), 10**9, model='für', campaign='c').digest)"
    )
    found = {
        python(code, folder=folder, PYTHONHASHSEED=seed, LC_ALL="C", TZ=zone).stdout
        for folder, seed, zone in ((tmp_path, "1", "UTC"), (Path("/"), "2", "Asia/Tokyo"))
    }
    assert found == {
        describe(methods.make("acc-t"), 10**9, model="für", campaign="c").digest + "\n"
    }


# --- what is told ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["sketch", "acc-t", "nll-t", "ece-t", "one-hot-binning"])
def test_what_is_told_is_what_a_source_is_then_asked_and_charged(method: str) -> None:
    found = described(method, epsilon=0.7, sources=1)
    rng = np.random.default_rng(0)
    scores = privcal.Scores(logits=rng.normal(size=(50, 3)), labels=rng.integers(0, 3, 50))
    policy = privcal.Policy(epsilon=0.7)
    source = privcal.Source(scores, ledger=privcal.Ledger.in_memory(policy), name="a")
    result = privcal.calibrate([source], method, epsilon=0.7)
    assert found.nano_epsilon == to_nano(0.7) == to_nano(result.spent[0])
    [asked] = found.asked
    assert asked.times == len(result.rounds)
    assert {a.query.kind for a in result.rounds} == {asked.query.kind}
    assert all(len(a.answers["a"]) == asked.query.length for a in result.rounds)


def test_the_noise_that_is_told_is_that_of_the_mechanism() -> None:
    [asked] = described("acc-t", epsilon=1.0).asked  # five questions of ε = 0.2, sensitivity 1
    assert asked.noise(1) == pytest.approx(np.sqrt(2) * 5, rel=1e-3)
    assert asked.noise(3) == pytest.approx(np.sqrt(2) * 15, rel=1e-3)
    assert "standard deviation 7.07" in " ".join(described("acc-t").leaves())


def test_the_policy_allows_this_and_no_more() -> None:
    rules = tomllib.loads(replace(described(), asker='a "b"\\c').policy())
    assert rules == {
        "epsilon": 1,
        "queries": ["hats"],
        "rows_per_person": 1,
        "askers": ['a "b"\\c', 'a "b"\\c (unsigned)'],
        "model": "sepsis-v3",
        "approve": True,
    }
    privcal.Policy(**{**rules, "askers": ("ann@lab.org",), "queries": tuple(rules["queries"])})
    assert tomllib.loads(described(epsilon=0.1).policy())["epsilon"] == 0.1


def test_an_epsilon_that_promises_nothing_says_so() -> None:
    assert "it promises nothing" in " ".join(described(epsilon=100).acceptable())


# --- the command -----------------------------------------------------------------------------


def test_describe_asks_nobody_and_tells_everything(run: Any, tmp_path: Path) -> None:
    given = ("--model", "m", "--asker", "ann@lab.org", "--epsilon", 0.5, "--purpose", "To see.")
    given += ("--sources", 10, "--campaign", "winter")
    stdout, _ = run.ok("campaign", "describe", *given)
    for part in ("What leaves each source", "Why that is acceptable", "What it costs", "To see."):
        assert part in stdout
    digest = run.json("campaign", "describe", *given)["digest"]
    assert digest == described(epsilon=0.5, model="m").digest
    assert digest in stdout
    run.ok("campaign", "describe", *given, "--html", tmp_path / "page.html")
    assert digest in (tmp_path / "page.html").read_text("utf-8")


def test_a_question_by_mail_is_described_as_it_asks(run: Any, tmp_path: Path) -> None:
    asked = tmp_path / "question.json"
    asker = ("--asker", "ann", "--model", "m")
    given = ("--method", "acc-t", "--sources", 3, "--epsilon", 0.5, *asker)
    new, _ = run.ok("campaign", "new", *given, "--out", asked, "--json")
    _, words, _ = run("campaign", "describe", asked)
    assert json.loads(new)["digest"] in words  # to be compared with what the asker was shown
    facts = run.json("campaign", "describe", asked, "--purpose", "To see.")
    assert facts["nano_epsilon"] == to_nano(0.5)
    assert facts["questions"] == described("acc-t", epsilon=0.5).to_dict()["questions"]
    assert (facts["model"], facts["asker"]) == ("m", "ann (unsigned)")  # as a ledger records it

    assert facts["digest"] == json.loads(new)["digest"]
    # The same file with other spaces is the same question; one with another campaign is not.
    document = json.loads(asked.read_text("utf-8"))
    asked.write_text(json.dumps(document, indent=7), "utf-8")
    said = run.json("campaign", "describe", asked, "--purpose", "To see.")
    assert said["digest"] == facts["digest"]
    text = json.dumps(document).replace(facts["campaign"], "another")
    asked.write_text(text, "utf-8")
    said = run.json("campaign", "describe", asked, "--purpose", "To see.")
    assert said["digest"] != facts["digest"]

    assert "leave --epsilon out" in run.fails("campaign", "describe", asked, "--epsilon", 0.1)
    asked.write_text("{}", "utf-8")
    assert "cannot be used as question" in run.fails("campaign", "describe", asked)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--epsilon", 0), "above 0"),
        (("--sources", 0), "--sources"),
        (("--method", "guess"), "guess"),
        (("--asker", "a\nb"), "asker"),
        (("--html", "page.txt"), "must end in .html"),
        (("--event", 1, "--option", "event=2"), "given twice"),
    ],
)
def test_what_cannot_be_described_is_said_in_a_sentence(
    run: Any, given: tuple[Any, ...], said: str
) -> None:
    many = () if "--sources" in given else ("--sources", 10)
    assert said in run.fails("campaign", "describe", *given, *many)
