"""A campaign by mail that nobody signed: what owners see, what leaves, what the calibrator believes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import privcal
from privcal.data.ledger import Ledger
from tests.support.builders import random_scores
from tests.support.owners import Owner, Run, changed, document, make_owners, on_page


class Lab:
    """The calibrator: a folder, and the command line in it."""

    def __init__(self, folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.answers = folder / "answers"
        self.answers.mkdir(parents=True)
        self._run, self._patch = run, monkeypatch

    @property
    def question(self) -> Path:
        return self.folder / "question.json"

    def run(self, *args: object) -> tuple[int, str, str]:
        self._patch.setenv("PRIVCAL_MARKS", str(self.folder / "marks.db"))
        self._patch.chdir(self.folder)
        return self._run(*args)

    def new(self, *more: object) -> dict[str, Any]:
        args = ("campaign", "new", "--asker", "ann", "--out", "question.json", "--json", *more)
        code, out, err = self.run(*args)
        assert code == 0, err
        return dict(json.loads(out))

    def calibrate(self, *more: object) -> tuple[int, str, str]:
        return self.run("calibrate", "--answers", "answers", "--out", "map.json", "--json", *more)

    def collect(self, owners: list[Owner], question: str = "question.json") -> None:
        for number, owner in enumerate(owners):
            out = self.answers / f"{Path(question).stem}-{number}.json"
            code, _, err = owner.answer(self.folder / question, out)
            assert code == 0, err


@pytest.fixture
def lab(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path / "lab", run, monkeypatch)


@pytest.fixture
def owners(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> list[Owner]:
    return make_owners(tmp_path, run, monkeypatch, count=3)


def said(answer: tuple[int, str, str]) -> dict[str, Any]:
    code, out, err = answer
    assert code == 0, err
    return dict(json.loads(out))


# --- all goes well ------------------------------------------------------------------------


def test_one_question_goes_out_and_its_answers_make_the_map(lab: Lab, owners: list[Owner]) -> None:
    lab.new("--epsilon", 1)
    lab.collect(owners)
    result = said(lab.calibrate("--sketch", "sketch.json"))
    assert set(result["spent"].values()) == {1.0}
    assert len(result["spent"]) == 3  # though all call their file data.npz
    assert result["dropped"] == {}
    assert privcal.load_map(lab.folder / "map.json").provenance["sources"] == 3
    assert [owner.spent for owner in owners] == [1.0] * 3
    assert len(privcal.Sketch.load(lab.folder / "sketch.json").nano_spent) == 3


def test_an_answer_holds_noisy_numbers_a_name_and_an_id_and_nothing_else(
    lab: Lab, owners: list[Owner]
) -> None:
    lab.new("--epsilon", 1)
    lab.collect(owners[:1])
    answer = document(lab.answers / "question-0.json")
    assert set(answer) == {"format", "version", "campaign", "question", "answers"}
    [one] = answer["answers"]
    assert set(one) == {"source", "ledger", "rows_per_person", "values"}
    assert (one["source"], one["ledger"]) == ("data", owners[0].ledger.id)
    [asked] = document(lab.question)["questions"]
    assert [len(values) for values in one["values"]] == [2 * len(asked["query"]["knots"])]
    assert str(owners[0].folder) not in json.dumps(answer)


@pytest.mark.parametrize(
    ("method", "options"),
    [("sketch", ()), ("acc-t", ("--option", "iterations=2")), ("histogram-binning", ())],
)
def test_it_asks_what_a_calibration_on_one_machine_asks_and_makes_the_same_map(
    lab: Lab, owners: list[Owner], method: str, options: tuple[str, ...]
) -> None:
    begun = lab.new("--method", method, "--sources", 3, *options)
    for round in range(begun["rounds"]):
        lab.collect(owners, "question.json" if round == 0 else f"question-{round + 1}.json")
        answer = said(lab.calibrate())
        assert (answer["map"] is None) == (round + 1 < begun["rounds"])
    spent = [owner.spent for owner in owners]
    # Each ledger gives the same answer again to the same question of the same campaign, free; had
    # any question been another one, it would be refused.
    again = privcal.calibrate(
        [owner.source() for owner in owners],
        privcal.methods.make(method, **({"iterations": 2} if options else {})),
        1.0,
        asker="ann (unsigned)",
        campaign=begun["campaign"],
    )
    assert not again.dropped
    assert [owner.spent for owner in owners] == spent == [1.0] * 3
    assert again.map == privcal.load_map(lab.folder / "map.json").with_provenance(
        **again.map.provenance
    )


def test_a_search_asks_round_by_round_one_letter_each(lab: Lab, owners: list[Owner]) -> None:
    begun = lab.new("--method", "acc-t", "--option", "iterations=3", "--sources", 3)
    asked = []
    for round in range(begun["rounds"]):
        name = "question.json" if round == 0 else f"question-{round + 1}.json"
        asked += document(lab.folder / name)["questions"]
        lab.collect(owners, name)
        lab.calibrate()
    assert len(asked) == 4  # K + 1
    assert sum(question["nano_epsilon"] for question in asked) == 10**9
    assert (lab.folder / "map.json").exists()


def test_the_same_question_again_gives_the_same_answer_free(
    lab: Lab, owners: list[Owner], tmp_path: Path
) -> None:
    lab.new("--epsilon", 1)
    lab.collect(owners[:1])
    code, out, _ = owners[0].answer(lab.question, tmp_path / "again.json")
    assert code == 0
    assert "costs nothing" in out
    assert document(tmp_path / "again.json") == document(lab.answers / "question-0.json")
    assert owners[0].spent == 1.0


def test_the_owner_sees_who_asks_what_and_what_it_costs_before_saying_yes(
    lab: Lab, owners: list[Owner], tmp_path: Path
) -> None:
    shown = lab.new("--epsilon", 0.5)["digest"]
    args = ("source", "answer", owners[0].data, lab.question, "--out", tmp_path / "a.json")
    code, out, err = owners[0].run(*args)
    assert code == 2
    assert "--yes" in err
    text = " ".join(out.split())
    assert shown in text  # the very digits that whoever asks was shown
    assert "ann (unsigned) asks data" in text
    assert "It is not signed" in text
    assert "epsilon 0.5 of the 3" in text
    assert "0 is spent, and 2.5 will remain" in text
    assert "at most 62 of 100" in text  # 1/(1 + exp(-0.5))
    assert owners[0].spent == 0
    assert (
        Ledger.of(owners[0].ledger).reserved() == []
    )  # nobody was there to say yes, so nothing is kept
    assert not (tmp_path / "a.json").exists()


def test_an_owner_who_says_no_is_not_charged_and_keeps_nothing_for_the_campaign(
    lab: Lab, owners: list[Owner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.new()
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    args = ("source", "answer", owners[0].data, lab.question, "--out", tmp_path / "a.json")
    code, out, _ = owners[0].run(*args)
    assert (code, "nothing was charged" in out) == (1, True)
    assert owners[0].spent == 0
    assert Ledger.of(owners[0].ledger).reserved() == []
    monkeypatch.setattr("typer.confirm", lambda *_, **__: True)
    assert owners[0].run(*args)[0] == 0
    assert owners[0].spent == 1.0


def test_options_of_a_method_and_public_rows_go_with_the_campaign(
    lab: Lab, owners: list[Owner]
) -> None:
    public = random_scores(80, seed=99)
    path = lab.folder / "clean.npz"
    np.savez(path, logits=public.outputs.array, labels=public.labels)
    lab.new("--public", path, "--unchanged", 0.2, "--rows-per-source", 40)
    lab.collect(owners)
    said(lab.calibrate())
    provenance = privcal.load_map(lab.folder / "map.json").provenance
    assert provenance["options"]["unchanged"] == 0.2
    assert provenance["options"]["public"] == "80 rows"


def test_a_table_of_several_sources_answers_for_each(lab: Lab, tmp_path: Path, run: Run) -> None:
    rng = np.random.default_rng(0)
    p = rng.random(60)
    labels = (rng.random(60) < p).astype(int)
    table = {"ward": [f"W{i % 3}" for i in range(60)], "probability": p, "label": labels}
    pl.DataFrame(table).write_csv(tmp_path / "icu.csv")
    split = ("--source-column", "ward")
    assert run("ledger", "create", tmp_path / "icu.csv", "--per-row", *split)[0] == 0
    marks = tmp_path / "elsewhere"  # those of the fixture, under which the ledgers were made
    lab.new("--event", 1)
    lab._patch.setenv("PRIVCAL_MARKS", str(marks / "marks.db"))
    out = lab.answers / "a.json"
    code, _, err = run(
        "source", "answer", tmp_path / "icu.csv", lab.question, "--out", out, "--yes", *split
    )
    assert code == 0, err
    assert [one["source"] for one in document(out)["answers"]] == ["W0", "W1", "W2"]
    assert len(said(lab.calibrate())["spent"]) == 3


# --- the owner's rules --------------------------------------------------------------------


def test_rules_for_an_asker_do_not_hold_for_whoever_uses_that_name(
    lab: Lab, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.toml").write_text('epsilon = 3\naskers = ["ann"]\n')
    [owner] = make_owners(tmp_path, run, monkeypatch, 1, 40, "--policy", tmp_path / "p.toml")
    lab.new()
    code, _, err = owner.answer(lab.question, tmp_path / "a.json")
    assert code == 1
    assert "asker" in err
    assert owner.spent == 0
    # An owner who wants that can say so.
    (tmp_path / "q.toml").write_text('askers = ["ann (unsigned)"]\n')
    assert owner.run("ledger", "policy", owner.data, "--policy", tmp_path / "q.toml")[0] == 0
    assert owner.answer(lab.question, tmp_path / "a.json")[0] == 0


@pytest.mark.parametrize("described", ["by its options", "by its letter"])
@pytest.mark.parametrize("method", ["sketch", "acc-t"])
def test_an_owner_goes_by_the_page_from_its_policy_to_the_answer(
    lab: Lab,
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    described: str,
    method: str,
) -> None:
    about = ("--method", method, "--epsilon", 0.5, "--sources", 1, "--campaign", "spring")
    model = () if method == "sketch" else ("--model", "v1")
    page = tmp_path / "page.html"
    if described == "by its options":
        told = lab.run("campaign", "describe", *about, *model, "--asker", "ann", "--html", page)
        new = lab.new(*about, *model)
    else:
        new = lab.new(*about, *model)
        told = lab.run("campaign", "describe", lab.question, "--html", page)
    assert told[0] == 0, told[2]
    digest, policy = on_page(page)
    assert (digest in told[1], new["digest"]) == (True, digest)

    rules = tmp_path / "policy.toml"
    rules.write_text(policy, "utf-8")
    [owner] = make_owners(tmp_path, run, monkeypatch, 1, 40, "--policy", rules)
    letters = ["question.json", "question-2.json", "question-3.json", "question-4.json"]
    code, _, err = owner.answer(lab.question, tmp_path / "a.json")
    assert (code, "awaiting_approval" in err) == (1, True)
    assert digest in owner.run("ledger", "waiting", owner.data)[1]
    code, said, err = owner.run("ledger", "approve", owner.data, "spring", "--yes")
    assert (code, digest in said) == (0, True)
    for letter in letters if method == "acc-t" else letters[:1]:
        code, said, err = owner.answer(lab.folder / letter, lab.answers / letter)
        assert code == 0, err
        assert digest in said  # at every round, though later questions look elsewhere
        assert lab.calibrate()[0] == 0
    assert owner.spent == 0.5


def test_a_letter_from_a_name_that_may_not_ask_is_refused_in_words_to_its_owner(
    lab: Lab, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.toml").write_text('epsilon = 3\naskers = ["ann", "bob"]\n')
    [owner] = make_owners(tmp_path, run, monkeypatch, 1, 40, "--policy", tmp_path / "p.toml")
    lab.new()
    code, _, err = owner.answer(lab.question, tmp_path / "a.json")
    assert code == 1
    assert "the letter is from 'ann (unsigned)', and your policy admits: ann, bob" in err
    source = owner.source()
    question = privcal.Question.of(privcal.queries.Gap(), 0.1, "spring")
    with pytest.raises(privcal.Refused) as refused:  # from afar the name of nobody else is heard
        source.answer(question, "eve")
    assert str(refused.value) == "asker: the policy does not let this asker ask"


def test_nobody_gets_another_campaigns_answers_by_its_name_alone(
    lab: Lab, owners: list[Owner], tmp_path: Path
) -> None:
    """What ann was given over a network, sealed for her, is not given to whoever says "ann"."""
    lab.new("--campaign", "spring", "--method", "histogram-binning")
    question = privcal.Question.of(privcal.queries.Histogram(), 1, "spring")
    theirs = owners[0].source().answer(question, "ann")
    assert owners[0].answer(lab.question, tmp_path / "a.json")[0] == 0
    [one] = document(tmp_path / "a.json")["answers"]
    assert one["values"] != [[round(v * 2**20) for v in theirs.values]]
    assert owners[0].spent == 2.0


def test_another_question_under_the_same_campaign_is_refused_free(
    lab: Lab, owners: list[Owner], tmp_path: Path
) -> None:
    lab.new("--campaign", "spring", "--epsilon", 0.5)
    lab.collect(owners[:1])
    code, _, err = lab.run(
        "campaign",
        "new",
        "--asker",
        "ann",
        "--campaign",
        "spring",
        "--epsilon",
        1,
        "--out",
        "b.json",
    )
    assert code == 0, err
    code, _, err = owners[0].answer(lab.folder / "b.json", tmp_path / "b.json")
    assert code == 1
    assert "id_conflict" in err
    assert owners[0].spent == 0.5


def test_a_campaign_that_the_budget_cannot_pay_to_its_end_is_refused_at_its_first_question(
    lab: Lab, owners: list[Owner], tmp_path: Path
) -> None:
    lab.new(
        "--method", "acc-t", "--epsilon", 4, "--sources", 3
    )  # its first letter alone could be paid
    code, _, err = owners[0].answer(lab.question, tmp_path / "a.json")
    assert code == 1
    assert "over_budget" in err
    assert owners[0].spent == 0


def test_an_owner_who_approves_campaigns_approves_this_one_once(
    lab: Lab, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.toml").write_text("epsilon = 3\napprove = true\n")
    owners = make_owners(tmp_path, run, monkeypatch, 1, 40, "--policy", tmp_path / "p.toml")
    lab.new("--method", "acc-t", "--option", "iterations=2", "--campaign", "spring", "--sources", 1)
    code, _, err = owners[0].answer(lab.question, tmp_path / "a.json")
    assert code == 1
    assert "awaiting_approval" in err
    assert owners[0].run("ledger", "approve", owners[0].data, "spring", "--yes")[0] == 0
    lab.collect(owners)
    assert said(lab.calibrate())["next"]
    lab.collect(owners, "question-2.json")
    assert owners[0].spent == 1.0


def test_a_later_question_costs_nobody_who_did_not_answer_the_first(
    lab: Lab, owners: list[Owner], tmp_path: Path
) -> None:
    lab.new("--method", "acc-t", "--option", "iterations=2", "--sources", 2)
    lab.collect(owners[:2])
    said(lab.calibrate())
    code, _, err = owners[2].answer(lab.folder / "question-2.json", tmp_path / "late.json")
    assert code == 2
    assert "answered the one before" in err
    assert owners[2].spent == 0


# --- what the calibrator believes ---------------------------------------------------------


def test_a_question_that_was_changed_on_the_way_brings_no_answer_that_is_used(
    lab: Lab, owners: list[Owner]
) -> None:
    lab.new("--epsilon", 1)
    questions = document(lab.question)["questions"]
    questions[0]["nano_epsilon"] *= 2
    other = changed(lab.question, lab.folder / "other.json", questions=questions, plan=questions)
    assert owners[0].answer(other, lab.answers / "a.json")[0] == 0  # nobody signed it
    code, _, err = lab.calibrate()
    assert code == 2
    assert "changed on the way" in err


def test_a_question_whose_plan_tells_of_less_than_it_costs_is_no_question(
    lab: Lab, owners: list[Owner], tmp_path: Path
) -> None:
    lab.new("--epsilon", 1)
    questions = document(lab.question)["questions"]
    questions[0]["nano_epsilon"] *= 2
    other = changed(lab.question, tmp_path / "other.json", questions=questions)
    code, _, err = owners[0].answer(other, tmp_path / "a.json")
    assert code == 2
    assert "plan" in err
    assert owners[0].spent == 0


@pytest.mark.parametrize("asker", [None, 5, [], {}, "", "a\nb", "a" * 195])
def test_a_question_of_nobody_in_particular_is_no_question(
    lab: Lab, owners: list[Owner], tmp_path: Path, asker: Any
) -> None:
    lab.new("--epsilon", 1)
    other = changed(lab.question, tmp_path / "other.json", asker=asker)
    code, _, err = owners[0].answer(other, tmp_path / "a.json")
    assert (code, "asker must be" in err, owners[0].spent) == (2, True, 0)


def test_an_answer_that_came_twice_counts_once_and_one_ledger_has_one_answer(
    lab: Lab, owners: list[Owner]
) -> None:
    lab.new("--epsilon", 1)
    lab.collect(owners)
    first = lab.answers / "question-0.json"
    (lab.answers / "copy.json").write_bytes(first.read_bytes())
    assert len(said(lab.calibrate())["spent"]) == 3
    [one] = document(first)["answers"]
    copied = changed(first, lab.answers / "copy.json", answers=[{**one, "source": "west"}])
    code, _, err = lab.calibrate()
    assert (code, "one ledger" in err) == (2, True)
    values = [[v + 1 for v in one["values"][0]]]
    changed(first, copied, answers=[{**one, "values": values}])
    code, _, err = lab.calibrate()
    assert (code, "different answers" in err) == (2, True)


def test_answers_of_two_campaigns_are_not_mixed(lab: Lab, owners: list[Owner]) -> None:
    lab.new("--epsilon", 1)
    lab.collect(owners[:2])
    lab.run("campaign", "new", "--asker", "ann", "--out", "other.json")
    assert owners[2].answer(lab.folder / "other.json", lab.answers / "c.json")[0] == 0
    code, _, err = lab.calibrate()
    assert (code, "several campaigns" in err) == (2, True)
    code, _, err = lab.calibrate("--question", "question.json")
    assert (code, "another campaign" in err) == (2, True)


@pytest.mark.parametrize(
    "damage",
    [
        {"values": [[1, 2]]},
        {"values": [[0.5] * 12]},
        {"values": [[2**62] * 12]},
        {"values": "none"},
        {"ledger": "../../x"},
        {"source": ""},
        {"rows_per_person": 0},
        {"rows": 40},
    ],
)
def test_an_answer_with_odd_parts_is_refused_with_its_file(
    lab: Lab, owners: list[Owner], damage: dict[str, Any]
) -> None:
    lab.new("--epsilon", 1)
    lab.collect(owners[:1])
    file = lab.answers / "question-0.json"
    [one] = document(file)["answers"]
    changed(file, file, answers=[{**one, **damage}])
    code, _, err = lab.calibrate()
    assert code == 2
    assert "question-0.json" in err


def test_a_source_that_claims_more_than_its_rows_could_give_is_left_out(
    lab: Lab, owners: list[Owner]
) -> None:
    lab.new("--epsilon", 1)
    lab.collect(owners)
    file = lab.answers / "question-0.json"
    [one] = document(file)["answers"]
    changed(file, file, answers=[{**one, "values": [[2**40] * len(one["values"][0])]}])
    result = said(lab.calibrate("--max-rows", 1000))
    assert len(result["dropped"]) == 1
    assert next(iter(result["dropped"])).endswith(f"({one['ledger'][:8]})")


def test_the_next_question_waits_for_as_many_as_were_expected(
    lab: Lab, owners: list[Owner]
) -> None:
    lab.new("--method", "acc-t", "--sources", 3)
    lab.collect(owners[:2])
    code, _, err = lab.calibrate()
    assert code == 1
    assert "2 of 3 sources have answered" in err
    assert not (lab.folder / "question-2.json").exists()
    lab.collect(owners)
    assert said(lab.calibrate())["next"].endswith("question-2.json")


def test_who_comes_after_the_next_question_changes_nothing_of_it(
    lab: Lab, owners: list[Owner]
) -> None:
    """With class offsets: two rounds of one question each, so one answer would change the second."""
    public = random_scores(400, seed=99)
    np.savez(lab.folder / "clean.npz", logits=public.outputs.array, labels=public.labels)
    options = ("--public", "clean.npz", "--option", "class_offsets=true", "--sources", 3)
    options += ("--rows-per-source", 500)  # a guess: it asks as finely as that pays
    begun = lab.new(*options)
    assert begun["rounds"] == 2
    lab.collect(owners[:2])
    assert said(lab.calibrate("--min-sources", 2))["sources"]
    second = (lab.folder / "question-2.json").read_bytes()
    lab.collect(owners)  # the third is late
    assert len(said(lab.calibrate())["sources"]) == 2
    assert (lab.folder / "question-2.json").read_bytes() == second
    lab.collect(owners[:2], "question-2.json")
    assert len(said(lab.calibrate())["spent"]) == 2


def test_a_second_answer_to_a_one_round_campaign_makes_a_new_map(
    lab: Lab, owners: list[Owner]
) -> None:
    lab.new("--epsilon", 1)
    lab.collect(owners[:1])
    assert len(said(lab.calibrate())["spent"]) == 1
    lab.collect(owners)
    assert len(said(lab.calibrate())["spent"]) == 3


def test_fewer_answers_than_required_make_no_map(lab: Lab, owners: list[Owner]) -> None:
    lab.new("--epsilon", 1)
    lab.collect(owners[:2])
    code, _, err = lab.calibrate("--min-sources", 3)
    assert code == 1
    assert "2 sources have answered so far" in err
    assert not (lab.folder / "map.json").exists()


def test_sentences_for_what_cannot_work(lab: Lab, owners: list[Owner], tmp_path: Path) -> None:
    lab.new("--epsilon", 1)
    lab.collect(owners[:1])
    for args, words in [
        (("campaign", "new", "--out", "question.json"), "asked already"),
        (("campaign", "new", "--method", "uncalibrated", "--out", "u.json"), "asks nothing"),
        (("campaign", "new", "--method", "acc-t", "--out", "u.json"), "say with --sources"),
        (("calibrate", "--answers", "--out", "m.json"), "there are no answers"),
        (
            ("calibrate", "--answers", "answers", "--method", "acc-t", "--out", "m"),
            "--method was said",
        ),
        (("calibrate", "--answers", "question.json", "--out", "m.json"), "no privcal-answer file"),
        (("calibrate", "--question", "q.json", "x.npz", "--out", "m.json"), "is for --answers"),
        (("calibrate", "--answers", "answers", "--out", "answers/question-0.json"), "is an input"),
    ]:
        code, _, err = lab.run(*args)
        assert (code, words in err) == (2, True), err
    assert not list(lab.folder.glob("u.json*"))
    lab.folder.joinpath("question.json.campaign").rename(tmp_path / "moved")
    code, _, err = lab.calibrate()
    assert (code, "--question" in err) == (2, True)


def test_a_map_is_not_written_over_the_question(lab: Lab, owners: list[Owner]) -> None:
    lab.new()
    lab.collect(owners)
    before = lab.question.read_bytes()
    code, _, err = lab.run("calibrate", "--answers", "answers", "--out", lab.question)
    assert (code, "question.json" in err) == (2, True)
    assert lab.question.read_bytes() == before


def test_a_question_of_a_gigabyte_is_refused_unread(owners: list[Owner], tmp_path: Path) -> None:
    with (tmp_path / "big.json").open("wb") as file:
        file.truncate(1 << 30)
    code, _, err = owners[0].answer(tmp_path / "big.json", tmp_path / "a.json")
    assert (code, "longer than 4 MiB" in err) == (2, True)


def test_a_map_of_another_campaign_is_kept_as_it_was_paid_for(
    lab: Lab, owners: list[Owner]
) -> None:
    lab.new("--campaign", "spring")
    lab.collect(owners)
    older = privcal.TemperatureMap(2.0, provenance={"campaign": "winter", "epsilon_per_source": 1})
    older.save(lab.folder / "map.json")
    for _ in range(2):  # the second time, what is there is this campaign's own
        code, _, err = lab.calibrate()
        assert code == 0, err
        assert privcal.load_map(lab.folder / "map.json").provenance["campaign"] == "spring"
        assert [path.name for path in lab.folder.glob("map-*.json")] == ["map-winter.json"]
    assert privcal.load_map(lab.folder / "map-winter.json") == older
