"""Files that an older privcal made still open, say what they said, and can be gone on with.

`tests/fixtures/make.py` made them, and wrote down what they hold. They are never made anew.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privcal
from privcal.calibration.campaign import Campaign, Recorded
from privcal.calibration.sketch import merge
from privcal.data.panels import LocalPanel
from privcal.data.scores import content_digest
from privcal.lab.study import store
from privcal.trusted.epsilon import NANO
from privcal.trusted.queries import Gap, parse
from privcal.trusted.question import Question
from tests.conftest import Run
from tests.support.builders import a_source, outcome, random_scores, save

FIXTURES = Path(__file__).parent / "fixtures"
VERSIONS = sorted(path.parent.name for path in FIXTURES.glob("*/expected.json"))
EXPECTED = {v: json.loads((FIXTURES / v / "expected.json").read_text("utf-8")) for v in VERSIONS}
FACTS = "id", "secret", "name", "unit", "marks", "created"


def each(part: str) -> pytest.MarkDecorator:
    """The test runs for every file of this part, of every version."""
    listed = [(v, name) for v in VERSIONS for name in EXPECTED[v][part]]
    return pytest.mark.parametrize(
        ("version", "name"), listed, ids=["-".join(one) for one in listed]
    )


every_version = pytest.mark.parametrize("version", VERSIONS)


class Home:
    """A copy of a version's files in a folder of the test's own, with their paths changed to it."""

    def __init__(self, version: str, folder: Path) -> None:
        self.expected, self.folder = EXPECTED[version], folder
        shutil.copytree(FIXTURES / version, folder)
        before = self.expected["home"]
        for path in (p for p in folder.rglob("*") if p.suffix in (".json", ".jsonl")):
            path.write_text(path.read_text("utf-8").replace(before, str(folder)), "utf-8")
        for path in (folder / "ledgers").glob("*.gz"):
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()
        self.marks = folder / "ledgers" / "marks.db"
        with closing(sqlite3.connect(self.marks)) as db, db:
            for table in ("place", "data"):
                db.execute(f"UPDATE {table} SET path = replace(path, ?, ?)", (before, str(folder)))
        for path in (folder / "ledgers").glob("*.ledger"):
            with closing(sqlite3.connect(path)) as db, db:
                facts = [*db.execute(f"SELECT {', '.join(FACTS)} FROM ledger").fetchone()]
                facts[FACTS.index("marks")] = str(self.marks)
                stamp = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
                db.execute("UPDATE ledger SET marks = ?, hash = ?", (str(self.marks), stamp))

    def ledger(self, name: str) -> privcal.Ledger:
        return privcal.Ledger(self.folder / "ledgers" / name)


@pytest.fixture
def home(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    home = Home(version, tmp_path / "home")
    monkeypatch.setenv("PRIVCAL_MARKS", str(home.marks))
    return home


# --- rows -------------------------------------------------------------------------------------


@each("rows")
def test_rows_are_read_as_they_were(home: Home, name: str) -> None:
    facts = home.expected["rows"][name]
    scores = privcal.read_scores(home.folder / "rows" / name, person=facts["person"])
    assert (len(scores), scores.classes, scores.model) == (
        facts["rows"],
        facts["classes"],
        facts["model"],
    )
    assert scores.labels.tolist() == facts["labels"]
    assert (None if scores.person is None else list(scores.person)) == facts["persons"]
    assert scores.outputs.array[0].tolist() == facts["first"]
    assert content_digest(scores) == facts["digest"]


# --- ledgers ----------------------------------------------------------------------------------


@each("ledgers")
def test_a_ledger_says_what_it_said(home: Home, name: str) -> None:
    facts, ledger = home.expected["ledgers"][name], home.ledger(name)
    known = ledger.facts
    assert (ledger.id, known.name, ledger.unit) == (facts["id"], facts["name"], facts["unit"])
    policy = ledger.policy.to_dict()
    assert {setting: policy.get(setting) for setting in facts["policy"]} == {
        k: list(v) if isinstance(v, tuple) else v for k, v in facts["policy"].items()
    }
    assert [ledger.spent.nano, ledger.spent.alone] == facts["spent"]
    assert ledger.nano_written_off == facts["written_off"]
    assert ledger.generation == facts["generation"]
    assert [entry.kind for entry in ledger.entries()] == facts["kinds"]
    assert list(ledger.export())[-1].items() >= facts["head"].items()
    assert [[nano, len(who)] for nano, who in ledger.persons()] == facts["persons"]
    assert [proposal.campaign for proposal, _ in ledger.waiting()] == facts["waiting"]
    assert ledger.nano_behind() == 0
    assert ledger.in_step


@each("ledgers")
def test_what_was_answered_is_answered_again_free_of_charge(home: Home, name: str) -> None:
    facts, ledger = home.expected["ledgers"][name], home.ledger(name)
    policy = ledger.policy
    for kind, asker, campaign, round, index, what, nano, digest, answer in facts["stored"]:
        if kind == "opening":
            asker, campaign, round, index = json.loads(what)
            asked = Question(campaign, round, index, 1, Gap())  # by its key alone
            assert ledger.opening(asked, asker) == digest
            assert ledger.open_once(asked, asker, digest, list) == json.loads(answer)
            continue
        query, alone = json.loads(what), None
        if kind == "share":
            query, alone = query["query"], query["alone"]
        asked = Question(campaign, round, index, nano, parse(query), "resnet50-v3")
        if alone is None:
            assert ledger.charge(asked, asker, policy) == json.loads(answer)
        else:
            again = ledger.charge_share(asked, asker, policy, digest, alone * nano)
            assert again is not None
            assert hashlib.sha256(again.encode()).hexdigest() == answer
    assert [ledger.spent.nano, ledger.spent.alone] == facts["spent"]


@each("ledgers")
def test_a_ledger_goes_on_and_a_copy_from_before_is_refused(home: Home, name: str) -> None:
    ledger = home.ledger(name)
    assert ledger.path is not None
    policy = privcal.Policy.of({**ledger.policy.to_dict(), "approve": False}, "here")
    before = shutil.copy(ledger.path, home.folder / "copy")
    spent, asked = ledger.nano_spent, Question.of(Gap(), 0.1, "new", model="resnet50-v3")
    ledger.set_policy(policy)
    scores = random_scores(20, classes=3)
    if ledger.unit == "person":
        persons = [f"p{n}" for n in range(20)]
        scores = random_scores(20, classes=3, person=persons)
    source = privcal.Source(scores, ledger=ledger.path)
    answer = source.answer(asked, "acme")
    assert source.answer(asked, "acme").values.tolist() == answer.values.tolist()
    assert ledger.nano_spent >= spent + (0 if policy.budget == "person" else NANO // 10)
    assert ledger.in_step
    shutil.copy(before, ledger.path)
    assert outcome(source.answer, Question.of(Gap(), 0.1, "newer"), "acme") == "ledger_rolled_back"
    assert ledger.reconcile() >= NANO // 10
    ledger.set_policy(policy)
    assert source.answer(Question.of(Gap(), 0.1, "newer"), "acme")


def test_an_approval_that_recorded_no_questions_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    home = Home("da6e529", tmp_path / "home")
    monkeypatch.setenv("PRIVCAL_MARKS", str(home.marks))
    ledger = home.ledger("approving.ledger")
    path, scores = ledger.path, random_scores(20, classes=3)
    source = privcal.Source(scores, ledger=path)
    asked = [
        Question.of(Gap(1 + n / 10), 0.25, "fresh", round=n, model="resnet50-v3") for n in (0, 1)
    ]
    assert outcome(source.answer, asked[1], "acme") == "awaiting_approval"
    assert source.offer(asked, "acme") == "awaiting_approval"
    told = run("ledger", "waiting", path)[1]
    assert "(or an older privcal did not record the questions): compare the digest again" in told
    run.ok("ledger", "approve", path, "fresh", "--yes")
    for question in asked:
        source.answer(question, "acme")
    code, _, err = run("ledger", "approve", path, "waits", "--yes")  # it waits since then
    assert (code, "let 'acme' ask once more" in err) == (2, True)


@every_version
def test_an_owner_shows_exports_and_moves_a_ledger_with_its_data(home: Home, run: Run) -> None:
    data = home.folder / "ledgers" / "rows.csv"
    facts = home.expected["ledgers"]["rows.csv.ledger"]
    run.ok("ledger", "attach", f"{data}.ledger", data)  # it is somewhere else now
    text, _ = run.ok("ledger", "show", data, "--json")
    assert json.loads(text)["spent"] * NANO == facts["spent"][0]
    text, _ = run.ok("ledger", "export", data)
    assert len(text.splitlines()) == len(facts["kinds"]) + 2  # attached anew, and the head
    run.ok("calibrate", data, "--out", home.folder / "map.json", "--model", "resnet50-v3")
    assert home.ledger("rows.csv.ledger").nano_spent == facts["spent"][0] + NANO


# --- maps and sketches ------------------------------------------------------------------------


@each("maps")
def test_a_map_gives_the_confidence_that_it_gave(home: Home, name: str) -> None:
    facts, logits = home.expected["maps"][name], home.expected["logits"]
    map = privcal.load_map(home.folder / "maps" / name)
    for part in ("kind", "private", "classes", "model", "stays_at_home"):
        assert getattr(map, part) == facts[part], part
    assert map.provenance.items() >= facts["provenance"].items()
    assert map.predict(logits).tolist() == facts["predicted"]
    for given, part in ((map.confidence, "confidence"), (map.predict_proba, "probabilities")):
        np.testing.assert_allclose(given(logits), facts[part], rtol=1e-12)
    again = home.folder / "again.json"
    map.save(again)
    assert privcal.load_map(again) == map


@each("sketches")
def test_a_sketch_is_read_as_it_was(home: Home, name: str) -> None:
    facts = home.expected["sketches"][name]
    sketch = privcal.Sketch.load(home.folder / "sketches" / name)
    assert sketch.query == parse(facts["query"])
    assert (sketch.count, sketch.nano_spent, sketch.alone) == (
        facts["count"],
        facts["nano_spent"],
        facts["alone"],
    )
    np.testing.assert_allclose(sketch.average, facts["average"], rtol=1e-12)
    public = home.folder / "rows" / "public.npz"
    more = {"public": privcal.read_scores(public, model="resnet50-v3")} if facts["public"] else {}
    np.testing.assert_allclose(sketch.fit(**more).map.log_odds, facts["log_odds"], rtol=1e-6)
    found = {n: e.value for n, e in sketch.evaluate(**more).estimates().items()}
    for measure, value in facts["estimates"].items():
        # Of 2,000 draws, and which they are depends on the signs that LAPACK gives to eigenvectors.
        assert found[measure] == pytest.approx(value, rel=0.05, abs=0.03), measure
    with pytest.raises(privcal.InputError, match="already merged"):  # an answer is known again
        merge(sketch, sketch)
    again = home.folder / "again.json"
    sketch.save(again)
    assert json.loads(again.read_text("utf-8"))["version"] == facts["version"]


# --- campaigns, letters, a study --------------------------------------------------------------


@every_version
def test_a_run_that_was_interrupted_is_finished_by_its_record(home: Home) -> None:
    facts = home.expected["campaign"]
    record = Campaign.resume(home.folder / "campaign" / "map.json.campaign")
    assert record.plan == facts["plan"]
    kept = [line for line in facts["lines"] if "values" in line]
    assert record.sites == [f"site-{n}" for n in (1, 2, 3)]
    asked: list[int] = []

    class Noting(LocalPanel):
        def ask(self, names: Any, question: Question) -> Any:
            asked.append(question.round)
            return super().ask(names, question)

    sources = [a_source(random_scores(60, classes=3, seed=n), name=f"site-{n}") for n in (1, 2, 3)]
    found = privcal.calibrate(
        Recorded(Noting(sources, "ann@lab.org"), record),
        *("acc-t", 1.0),
        campaign="spring",
        model="resnet50-v3",
        iterations=4,
    )
    assert asked == [2, 3]
    by_question = {one.question.text(): one.answers for one in found.rounds}
    for line in kept:
        assert list(by_question[line["question"]][line["site"]]) == line["values"]


@every_version
def test_a_campaign_by_mail_goes_on_where_it_was(
    home: Home, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, facts = home.folder / "letters", home.expected["letters"]
    monkeypatch.chdir(folder)
    for name in ("question", "search"):
        out = home.folder / f"{name}-map.json"
        answers = [f"{name}-from-{n}.json" for n in (1, 2)]
        given = [
            json.loads((folder / a).read_text("utf-8"))["answers"][0]["values"] for a in answers
        ]
        assert given == facts[name]["answers"]
        second = (folder / "search-2.json").read_text("utf-8")
        asked = ("--question", f"{name}.json", "--out", out)
        run.ok("calibrate", "--answers", *answers, *asked)
        if name == "question":
            assert privcal.load_map(out).provenance["sources"] == 2
        else:  # its second question is written again, the very same
            assert not out.exists()
            assert (folder / "search-2.json").read_text("utf-8") == second


@every_version
def test_a_letter_is_answered_by_an_owner_of_today(
    home: Home, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home.folder / "letters"
    monkeypatch.chdir(folder)
    save(Path("mine.npz"), random_scores(40, classes=3))
    run.ok("ledger", "create", "mine.npz", "--per-row", "--epsilon", 5)
    for name in ("question", "search"):
        answer = ("source", "answer", "mine.npz", f"{name}.json", "--yes", "--out", "a.json")
        said = run.json(*answer)
        assert said["asker"] == "ann@lab.org (unsigned)"


@every_version
def test_a_signed_letter_of_an_earlier_version_gets_one_sentence(
    home: Home, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home.folder / "signed"
    monkeypatch.chdir(folder)
    save(Path("mine.npz"), random_scores(40, classes=3))
    for command in (
        ("source", "answer", "mine.npz", "question.json", "--yes", "--out", "a.json"),
        ("campaign", "describe", "question.json"),
    ):
        assert "signed: this privcal has signed letters in mailboxes alone" in run.fails(*command)
    assert not Path("a.json").exists()


@every_version
def test_a_study_is_read_as_it_was_and_is_finished(home: Home, run: Run) -> None:
    facts, folder = home.expected["study"], home.folder / "study"
    results = store.load(folder)
    assert (results.shifts, results.trials) == (facts["shifts"], facts["trials"])
    found = {str(v): results.cells(v, "ece_mean").tolist() for v in results.variants}
    assert found == facts["ece"]
    run.ok("study", "table", folder)
