"""What careless owners, odd hospitals and clever calibrators bring about between the parts.

Each part keeps its promise by itself. Here they are put together in ways that nobody meant: settings
changed between two messages, keys and ledgers from different backups, rules that cannot be met.
"""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import privcal

pytest.importorskip("cryptography", reason="secure sums need cryptography: privcal[secure]")


from privcal.calibration.methods.base import History
from privcal.data.ledger import Ledger
from privcal.secure.panel import Secure, SecurePanel
from privcal.secure.participant import Dealt, read_dealt
from privcal.secure.terms import Terms, threshold
from privcal.transport.calibrator.secure import SecureSites
from privcal.transport.content import Reply
from privcal.transport.keys import Keys
from privcal.transport.site import setup, worker
from privcal.transport.site.settings import LEDGER, SETTINGS
from privcal.trusted.policy import Policy, SecureRules
from privcal.trusted.queries import GRID, CellHistogram
from privcal.trusted.question import Question
from tests.support import letters
from tests.support.coalition import federation, given
from tests.support.odd_way import OddWay, gone, make_sources, only, total_of

ANN = letters.ANN
NAMES = tuple(f"site-{n}" for n in range(1, 6))


class Sites:
    """Folders of sites with settings, keys, ledgers and a roster; asked without a mailbox."""

    def __init__(self, made: letters.Federation) -> None:
        self.made, self.folder = made, made.folder

    def terms(self, campaign: str, model: str | None = None) -> Terms:
        asked = Question.of(CellHistogram(1), 1.0, campaign, model=model)
        t, digest = threshold(len(NAMES), 1), self.made.roster.members.digest
        return Terms(asked, ANN, NAMES, 1, t, 10, 1, digest)

    def ask(self, name: str, kind: str, terms: Terms, boxes: Any = None) -> Reply:
        facts = {"campaign": terms.question.campaign, "terms": terms, "boxes": boxes or {}}
        request = self.made.asker().request(kind, name, **facts)
        return worker.safely(self.folder / name, ANN, request)

    def share(self, terms: Terms) -> dict[str, Dealt]:
        return {n: read_dealt(self.ask(n, "share", terms).dealt, terms) for n in NAMES}

    def open(
        self, name: str, terms: Terms, dealt: dict[str, Dealt], chosen: Iterable[str]
    ) -> Reply:
        return self.ask(name, "open", terms, {d: dealt[d].boxes[name] for d in chosen})


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> letters.Federation:
    folder = tmp_path_factory.mktemp("base")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVCAL_MARKS", str(folder / "marks.db"))
        policy = Policy(epsilon=100.0, secure=SecureRules(colluding=1))
        return letters.federation(folder, 5, policy=policy, start=False)


@pytest.fixture
def sites(
    base: letters.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Sites]:
    """As they were set up, in the same place: a ledger knows where it is."""
    monkeypatch.setenv("PRIVCAL_MARKS", str(base.folder / "marks.db"))
    shutil.copytree(base.folder, tmp_path / "kept", symlinks=True)
    yield Sites(base)
    shutil.rmtree(base.folder)
    shutil.move(tmp_path / "kept", base.folder)


def more_rows(sites: Sites) -> Path:
    return letters.write_rows(sites.folder / "more.npz", 7)


# --- settings that change between two openings ------------------------------------------------


def test_a_site_that_answers_about_another_model_from_new_data_opens_no_second_set(
    sites: Sites,
) -> None:
    """It had one ledger for whichever model is asked about; what that opened must stay opened."""
    terms = sites.terms("spring", model="new")
    dealt = sites.share(terms)
    assert sites.open("site-1", terms, dealt, NAMES).sums is not None
    path = sites.folder / "site-1" / SETTINGS
    path.write_text(path.read_text() + 'model = "old"\n')
    rows = more_rows(sites)
    policy = Policy(epsilon=100.0, secure=SecureRules(colluding=1))
    setup.add(sites.folder / "site-1", rows, policy, model="new")
    assert sites.open("site-1", terms, dealt, NAMES[:4]).refused == "opened"
    assert sites.open("site-1", terms, dealt, NAMES).sums is not None


def test_a_site_whose_owner_swaps_two_ledgers_opens_no_second_set(sites: Sites) -> None:
    path = sites.folder / "site-1" / SETTINGS
    path.write_text(path.read_text() + 'model = "old"\n')
    rows = more_rows(sites)
    policy = Policy(epsilon=100.0, secure=SecureRules(colluding=1))
    setup.add(sites.folder / "site-1", rows, policy, model="new")
    terms = sites.terms("spring", model="new")
    dealt = sites.share(terms)
    assert sites.open("site-1", terms, dealt, NAMES).sums is not None
    text = path.read_text()
    path.write_text(text.replace('"old"', '"x"').replace('"new"', '"old"').replace('"x"', '"new"'))
    assert sites.open("site-1", terms, dealt, NAMES[:4]).refused == "opened"


# --- keys from another backup than the ledger ---------------------------------------------------


def test_a_key_from_a_backup_of_before_it_was_used_opens_nothing_after_a_restore(
    sites: Sites, tmp_path: Path
) -> None:
    """The whole folder of a site comes back from a copy that was made when it had been set up."""
    folder = sites.folder / "site-1"
    shutil.copytree(folder, tmp_path / "backup", symlinks=True)
    terms = sites.terms("spring")
    dealt = sites.share(terms)
    assert sites.open("site-1", terms, dealt, NAMES).sums is not None
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder, symlinks=True)
    Ledger(folder / LEDGER).reconcile()  # before anybody asks it again
    assert sites.open("site-1", terms, dealt, NAMES[:4]).refused == "roster"
    assert Keys.load(folder).lost


# --- hospitals that want what nobody can give ---------------------------------------------------


def told(sites: Sites, **odd: Any) -> tuple[SecureSites, list[str]]:
    """The way of a calibrator to whom site-3 says something odd of what it wants."""
    roster, warned = sites.made.roster, list[str]()
    usual: dict[str, Any] = {"rules": SecureRules(1), "rows_per_person": 1}
    replies = {name: Reply(accepted=True, **usual) for name in NAMES}
    replies["site-3"] = replace(replies["site-3"], **odd)
    exchange = SimpleNamespace(warn=warned.append, stamps=dict.fromkeys(NAMES, roster.stamp))
    known = {"names": NAMES, "asker": ANN, "members": roster.members, "max_rows": 1000}
    more = {"told": replies, "exchange": exchange, "begun": False, "rows_per_source": None}
    way: Any = SimpleNamespace(**known, **more, away=0)
    return SecureSites(way), warned


@pytest.mark.parametrize("wanted", [{"colluding": 4}, {"colluding": 10**9}, {"min_honest": 5}])
def test_a_hospital_that_wants_more_others_than_there_are_stops_nobody_else(
    sites: Sites, wanted: dict[str, int]
) -> None:
    way, warned = told(sites, rules=SecureRules(**{"colluding": 1, **wanted}))
    assert list(way.names) == ["site-1", "site-2", "site-4", "site-5"]
    assert SecurePanel(way, Secure()).noise.honest == 3
    [text] = warned
    assert text.startswith("not asked: site-3 (")


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"rows_per_person": 1000}, "1000 rows of a person count (mostly 1)"),
        ({"colluding": 3}, "3 hospitals may collude (mostly 1)"),
        ({"alone": 1}, "1 times epsilon is all that the others may learn together (mostly 10)"),
    ],
)
def test_a_hospital_that_makes_the_noise_of_all_larger_is_named(
    sites: Sites, odd: dict[str, int], said: str
) -> None:
    if "rows_per_person" not in odd:
        way, warned = told(sites, rules=SecureRules(**{"colluding": 1, **odd}))
    else:
        way, warned = told(sites, **odd)
    [text] = warned
    assert text.startswith(
        f"because of site-3 the noise of the whole sum is larger: {said}; --without"
    )
    panel, usual = (SecurePanel(each, Secure()).noise for each in (way, told(sites)[0]))
    assert panel.variance(10**9, 5) > usual.variance(10**9, 5)


def test_one_who_wants_less_than_others_is_not_named(sites: Sites) -> None:
    assert told(sites)[1] == []
    assert told(sites, rules=SecureRules(0, alone=20))[1] == []


# --- the noise that is in a total, and the noise that is told -------------------------------------


@pytest.mark.parametrize("rows_per_person", [1, 3])
def test_the_variance_that_is_told_is_that_of_the_noise_in_the_total(rows_per_person: int) -> None:
    """End to end, with one site absent: 500 numbers, so within a tenth or so of it."""
    rng = np.random.default_rng(0)
    sources = []
    for i in range(6):
        person = {} if rows_per_person == 1 else {"person": [f"p{j // 4}" for j in range(30)]}
        logits, labels = rng.normal(size=(30, 3)), rng.integers(0, 3, 30)
        scores = privcal.Scores(logits=logits, labels=labels, **person)
        policy = Policy(epsilon=1e5, rows_per_person=rows_per_person)
        sources.append(privcal.Source(scores, policy, name=f"s{i:02d}", ledger=None))
    noise = []
    for run in range(5):
        panel = SecurePanel(OddWay(sources, share=only("s03", then=gone)), Secure(alone=2))
        asked = Question.of(CellHistogram(50), 0.5, f"campaign {run}")
        assert panel.refusals([asked]) == {}
        total = total_of(panel, asked)
        assert len(total.sources) == 5
        exact = sum(s._exact(asked.query) for s in sources if s.name in total.sources) / GRID
        noise.append((total.average - exact / 5) / math.sqrt(total.variance))
    assert np.mean(np.square(noise)) == pytest.approx(1.0, abs=0.45)


def test_a_method_is_told_the_noise_of_the_newest_total(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the first total are needed for the next one, so that has less noise."""
    told_of: list[Any] = []

    class Noted(History):
        def __init__(self, *averages: Any, **facts: Any) -> None:
            super().__init__(*averages, **facts)
            told_of.append(self.noise)

    monkeypatch.setattr(import_module("privcal.calibration.loop"), "History", Noted)
    result = privcal.calibrate(make_sources(6), "acc-t", 1.0, aggregation=Secure(needed=5))
    # The last of each round.
    newest = {asked.question.round: asked.total for asked in result.rounds}
    assert told_of == [total.noise for total in newest.values() if total is not None]
    assert told_of[-1].honest == 4
    assert result.noise is not None
    assert result.noise.honest == 3


# --- one question under several descriptions --------------------------------------------------------


def code(act: Callable[[], object]) -> str:
    with pytest.raises(privcal.Refused) as refused:
        act()
    return refused.value.code


def test_a_question_about_no_model_and_about_the_one_at_hand_is_dealt_and_opened_once() -> None:
    """A ledger takes both for the same question; what is sealed for one of them opens no other."""
    hospitals = federation(5)
    for one in hospitals.hospitals.values():
        scores = one.source.scores
        named = privcal.Scores(logits=scores.outputs.array, labels=scores.labels, model="m")
        one.source = privcal.Source(named, ledger=one.ledger, name=one.name)
    asked = Question.of(CellHistogram(1), 0.5, "spring")
    open_one = hospitals.terms(asked)
    named_one = hospitals.terms(replace(asked, model="m"))
    dealt = hospitals.share(open_one)
    again = hospitals.share(named_one)
    assert again == dealt
    assert {one.ledger.nano_spent for one in hospitals.hospitals.values()} == {5 * 10**8}
    boxes = given(dealt, "h1", hospitals.names)
    assert set(hospitals.site("h1").check(named_one, "eve", boxes)) == set(hospitals.names)
    assert hospitals.open(open_one, "h1", dealt, hospitals.names)
    assert code(lambda: hospitals.open(named_one, "h1", dealt, hospitals.names[:4])) == "opened"


def test_two_hospitals_with_one_ledger_deal_once_and_open_once() -> None:
    """An owner runs two sites on the data of one: its people are charged, and dealt, once."""
    hospitals = federation(5)
    first, second = hospitals.hospitals["h0"], hospitals.hospitals["h1"]
    second.source = privcal.Source(second.source.scores, ledger=first.ledger, name="h1")
    terms = hospitals.terms()
    dealt = hospitals.share(terms)
    assert dealt["h1"] == dealt["h0"]  # whose boxes nobody takes for those of the second
    assert hospitals.site("h2").check(terms, "eve", given(dealt, "h2", hospitals.names)) == ("h1",)
    assert first.ledger.nano_spent == 5 * 10**8
    good = [name for name in hospitals.names if name != "h1"]
    assert hospitals.open(terms, "h0", dealt, good)
    fewer = given(dealt, "h1", hospitals.names)
    assert code(lambda: hospitals.site("h1").open(terms, "eve", fewer)) == "opened"


def test_nobody_is_charged_less_than_was_drawn_of_them_in_either_total() -> None:
    """Budgets of persons, with answers in and outside of secure sums, of changing prices."""
    draw = random.Random(1)
    fullest = [0.0, 0.0]
    for _ in range(60):
        rules = SecureRules(1, alone=10, epsilon_alone=draw.choice([None, 3.0, 8.0]))
        policy = Policy(epsilon=draw.choice([1.0, 2.0, 5.0]), budget="person", secure=rules)
        ledger = Ledger.in_memory(policy, unit="person")
        paid: dict[bytes, list[int]] = {}
        for number in range(12):
            asked = Question.of(CellHistogram(1), draw.choice([0.1, 0.3, 0.5]), f"c{number}")
            nano, alone = asked.nano_epsilon, draw.choice([None, 1, 2, 5, 10])
            try:
                if alone is None:
                    ledger.charge(asked, "eve", policy)
                else:
                    ledger.charge_share(asked, "eve", policy, "digest", alone * nano)
            except privcal.Refused:
                continue
            present = {bytes([i]) * 16 for i in draw.sample(range(4), draw.randint(1, 4))}
            for person in ledger.charge_persons(asked, "eve", present, policy):
                before = paid.get(person, [0, 0])
                paid[person] = [before[0] + nano, before[1] + nano * (alone or 1)]
        for spent in paid.values():
            shares = spent[0] / policy.nano_total, spent[1] / policy.nano_total_alone
            fullest = [max(pair) for pair in zip(fullest, shares, strict=True)]
    assert fullest == [1.0, 1.0]  # both were used up, and never more


def test_an_asker_with_a_little_of_the_budget_cannot_use_up_the_other_total() -> None:
    """A quarter of ε, at ten times its price against everybody else, would be all of that."""
    rules = SecureRules(1, alone=10, epsilon_alone=5.0)
    policy = Policy(epsilon=2.0, epsilon_by_asker={"eve": 0.5}, secure=rules)
    ledger = Ledger.in_memory(policy)

    def asked(epsilon: float) -> Question:
        return Question.of(CellHistogram(1), epsilon, f"for {epsilon}")

    def share(epsilon: float) -> str | None:
        question = asked(epsilon)
        return ledger.charge_share(question, "eve", policy, "d", 10 * question.nano_epsilon)

    assert ledger.reserve([asked(0.5)], "eve", policy, alone=10) == "over_budget"
    assert code(lambda: share(0.5)) == "over_budget"
    assert share(0.125) is None  # a quarter of 5
    assert code(lambda: share(0.01)) == "over_budget"
    assert code(lambda: ledger.charge(asked(0.02), "eve", policy)) == "over_budget"
    assert ledger.charge(asked(1.0), "ann", policy) is None
    usual = Policy(epsilon=2.0, epsilon_by_asker={"eve": 0.5}, secure=SecureRules(1, alone=10))
    other = Ledger.in_memory(usual)
    half = asked(0.5)
    assert other.charge_share(half, "eve", usual, "d", 10 * half.nano_epsilon) is None
