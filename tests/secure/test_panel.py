"""The calibrator's side of secure sums: what it does with what sites send, whatever that is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cryptography", reason="secure sums need cryptography: privcal[secure]")

import privcal
from privcal import InputError, Refused, Source
from privcal.calibration.campaign import Campaign
from privcal.calibration.sketch.answers import SketchTotal
from privcal.secure.local import LocalWay
from privcal.secure.panel import Secure, SecurePanel
from privcal.secure.round import Total
from privcal.secure.sharing import PRIME
from privcal.secure.summing import Memory, Step, Unfinished, settle
from privcal.secure.terms import Terms
from privcal.trusted.policy import SecureRules
from privcal.trusted.queries import GRID, Gap
from privcal.trusted.question import Question
from tests.support.builders import a_source, random_scores
from tests.support.odd_way import (
    GONE,
    QUESTION,
    OddWay,
    fails,
    gone,
    make_sources,
    only,
    panel,
    total_of,
)


def exact(sources: list[Source], names: tuple[str, ...], question: Question = QUESTION) -> Any:
    """What these sources' answers add up to, added up here."""
    sums = [source._exact(question.query) for source in sources if source.name in names]
    return np.sum(sums, axis=0) / GRID


def ask(asked: SecurePanel, question: Question = QUESTION) -> tuple[Total, list[Step]]:
    steps: list[Step] = []
    return total_of(asked, question, tell=steps.append), steps


def left(steps: list[Step]) -> dict[str, str]:
    return {step.name: step.left.code for step in steps if step.left is not None}  # type: ignore[attr-defined]


def charged(steps: list[Step]) -> list[str]:
    return sorted(step.name for step in steps if step.charged)


def spent(sources: list[Source]) -> set[float]:
    return {source.spent for source in sources}


# --- an ordinary sum -----------------------------------------------------------------------------


def test_the_total_is_the_sum_of_all_answers(no_noise: None) -> None:
    sources = make_sources(5)
    total, steps = ask(panel(LocalWay(sources)))
    assert total.sources == tuple(source.name for source in sources)
    assert np.array_equal(total.parts[0].values, exact(sources, total.sources))
    assert np.array_equal(total.average, exact(sources, total.sources) / 5)
    assert charged(steps) == sorted(total.sources)
    assert total.ledgers == {source.name: source.ledger.id for source in sources}
    assert spent(sources) == {0.5}


def test_its_stages_are_told_in_order_and_count_up_to_everybody() -> None:
    _, steps = ask(panel(LocalWay(make_sources(4))))
    assert [step.stage for step in steps] == ["share"] * 4 + ["check"] * 4 + ["open"] * 4
    assert [step.done for step in steps] == [1, 2, 3, 4] * 3


def test_its_noise_is_what_the_terms_say() -> None:
    total, _ = ask(panel(LocalWay(make_sources(10)), colluding=3, needed=9, alone=5))
    assert (total.noise.honest, total.noise.alone) == (6, 5)
    assert total.variance == pytest.approx(2 * 4 * (1 / 6 + 1 / 25) / 10)


def test_names_with_spaces_and_other_letters_will_do(no_noise: None) -> None:
    names = ["St. Mary's, ward 3", "Zürich", "東京", "a|b"]
    sources = [a_source(9, i, name=name) for i, name in enumerate(names)]
    total, _ = ask(panel(LocalWay(sources)))
    assert set(total.sources) == set(names)


# --- who fails -------------------------------------------------------------------------------------


def test_who_does_not_share_is_left_out_and_the_sum_is_of_the_others(no_noise: None) -> None:
    sources = make_sources(10)
    way = OddWay(sources, share=only("s03", then=gone))
    total, steps = ask(panel(way))
    assert "s03" not in total.sources
    assert len(total.sources) == 9
    assert np.array_equal(total.parts[0].values, exact(sources, total.sources))
    assert left(steps) == {"s03": "absent"}
    assert "s03" in charged(steps)  # it may have been


def test_who_refuses_to_share_is_not_charged_and_can_open_all_the_same() -> None:
    way = OddWay(make_sources(10), share=only("s03", then=fails("over_budget")))
    total, steps = ask(panel(way))
    assert left(steps) == {"s03": "over_budget"}
    assert "s03" not in charged(steps)
    assert "s03" in way.sent[-1][1]
    assert way.sent[-1][0] == "open"
    assert "s03" not in total.sources


def test_with_fewer_answers_than_needed_nothing_is_opened() -> None:
    way = OddWay(make_sources(10), share=only("s03", "s04", then=gone))
    with pytest.raises(
        Unfinished, match="only 8 of 10 sources answered, fewer than the 9 needed"
    ) as e:
        ask(panel(way))
    assert e.value.again
    assert [stage for stage, _ in way.sent] == ["share"]


@pytest.mark.parametrize("stage", ["check", "open"])
def test_who_fails_later_has_its_answer_in_the_sum(no_noise: None, stage: str) -> None:
    sources = make_sources(10)  # T = 8 of 10
    failing: Any = {stage: only("s00", "s09", then=fails("busy"))}
    total, steps = ask(panel(OddWay(sources, **failing)))
    assert len(total.sources) == 10
    assert left(steps) == {}
    assert np.array_equal(total.parts[0].values, exact(sources, total.sources))


@pytest.mark.parametrize(("stage", "words"), [("check", "can open"), ("open", "opened their part")])
def test_if_too_few_are_left_to_open_it_that_is_said(stage: str, words: str) -> None:
    failing: Any = {stage: only("s00", "s01", "s02", then=gone)}
    with pytest.raises(Unfinished, match=words) as e:
        ask(panel(OddWay(make_sources(10), **failing)))
    assert e.value.again


def test_replies_that_come_twice_or_from_strangers_change_nothing(no_noise: None) -> None:
    sources = make_sources(5)

    class Repeating(OddWay):
        def _changed(self, stage: str, terms: Terms, names: Any, replies: Any) -> Any:
            kept = list(super()._changed(stage, terms, names, replies))
            wrong = [[1]] if stage == "open" else [kept[0][1]]
            return iter([*kept, *((name, wrong[0]) for name, _ in kept), ("stranger", kept[0][1])])

    total, steps = ask(panel(Repeating(sources)))
    assert np.array_equal(total.parts[0].values, exact(sources, total.sources))
    assert total.left_out == ()
    assert len(steps) == 15


# --- who deals falsely -----------------------------------------------------------------------------

GARBAGE: dict[str, Callable[[Any], Any]] = {
    "no boxes": lambda dealt: replace(dealt, boxes={}),
    "one missing": lambda dealt: replace(
        dealt, boxes={k: v for k, v in dealt.boxes.items() if k != "s00"}
    ),
    "one too many": lambda dealt: replace(dealt, boxes={**dealt.boxes, "x": dealt.boxes["s00"]}),
    "boxes exchanged": lambda dealt: replace(
        dealt, boxes={**dealt.boxes, "s00": dealt.boxes["s01"], "s01": dealt.boxes["s00"]}
    ),
    "one badly signed": lambda dealt: replace(
        dealt, boxes={**dealt.boxes, "s00": (dealt.boxes["s00"][0], dealt.boxes["s01"][1])}
    ),
    "no text": lambda dealt: replace(dealt, boxes=dict.fromkeys(dealt.boxes, (b"", None))),
    "no pair": lambda dealt: replace(dealt, boxes=dict.fromkeys(dealt.boxes, "")),
    "no mapping": lambda dealt: replace(dealt, boxes=7),
    "nothing": lambda dealt: None,
}


@pytest.mark.parametrize("what", GARBAGE)
def test_a_dealer_of_garbage_is_left_out_at_once(no_noise: None, what: str) -> None:
    sources = make_sources(10)
    change = only("s05", then=lambda terms, name, dealt: GARBAGE[what](dealt))
    total, steps = ask(panel(OddWay(sources, share=change)))
    assert left(steps) == {"s05": "boxes"}
    assert "s05" in charged(steps)
    assert np.array_equal(total.parts[0].values, exact(sources, total.sources))


def dealing(dealer: str, to: dict[str, Callable[[Any], Any]]) -> Any:
    """A change by which a dealer gives each of these receivers another box than the right one."""

    def change(terms: Terms, name: str, dealt: Any) -> Any:
        boxes = {**dealt.boxes, **{receiver: make(terms) for receiver, make in to.items()}}
        return replace(dealt, boxes=boxes)

    return only(dealer, then=change)


def unopenable(way: OddWay, dealer: str, receiver: str) -> Callable[[Terms], Any]:
    """A box that is signed and of the right length, and sealed about something else."""

    def box(terms: Terms) -> Any:
        other = way.box(replace(terms, asker="x"), dealer, receiver, [0] * 6)[0]
        from privcal.secure.boxes import SIGNED, _context

        signed = _context(SIGNED, terms, dealer, receiver, other)
        return other, way.keys(dealer).sign(signed)

    return box


def test_a_dealer_whose_boxes_two_others_cannot_open_is_left_out(no_noise: None) -> None:
    sources = make_sources(10)
    way = OddWay(sources)
    bad = {name: unopenable(way, "s05", name) for name in ("s01", "s02")}
    way.changes["share"] = dealing("s05", bad)
    total, steps = ask(panel(way))
    assert left(steps) == {"s05": "boxes"}
    assert len(total.sources) == 9
    assert {"s01", "s02"} <= set(way.sent[-1][1])
    assert np.array_equal(total.parts[0].values, exact(sources, total.sources))


def test_a_single_bad_box_keeps_one_from_opening_and_no_answer_out(no_noise: None) -> None:
    sources = make_sources(10)
    way = OddWay(sources)
    way.changes["share"] = dealing("s05", {"s01": unopenable(way, "s05", "s01")})
    total, _ = ask(panel(way))
    assert len(total.sources) == 10
    assert "s01" not in way.sent[-1][1]
    assert np.array_equal(total.parts[0].values, exact(sources, total.sources))


def test_a_liar_that_complains_about_everybody_throws_nobody_out(no_noise: None) -> None:
    sources = make_sources(10)
    everybody = tuple(f"s{i:02d}" for i in range(10))
    way = OddWay(sources, check=only("s07", then=lambda *_: everybody))
    total, _ = ask(panel(way))
    assert len(total.sources) == 10
    assert "s07" not in way.sent[-1][1]


@pytest.mark.parametrize("reply", [None, 7, "s01", [1, 2], {"s01": 1}, [["s01"]]])
def test_a_complaint_that_is_none_leaves_its_receiver_out(reply: Any) -> None:
    way = OddWay(make_sources(10), check=only("s07", then=lambda *_: reply))
    total, _ = ask(panel(way))
    assert len(total.sources) == 10
    assert "s07" not in way.sent[-1][1]


def test_a_false_share_for_one_is_corrected_and_blames_nobody(no_noise: None) -> None:
    sources = make_sources(10)
    way = OddWay(sources)
    false = {"s01": lambda terms: way.box(terms, "s05", "s01", [12345] * 6)}
    way.changes["share"] = dealing("s05", false)
    total, steps = ask(panel(way))
    assert total.left_out == ("s01",)  # though s05 did it
    assert left(steps) == {}
    assert len(total.sources) == 10
    assert np.array_equal(total.parts[0].values, exact(sources, total.sources))


def test_a_dealer_that_is_inconsistent_for_many_ends_the_sum() -> None:
    way = OddWay(make_sources(10))
    false = {
        f"s{i:02d}": lambda terms, i=i: way.box(terms, "s05", f"s{i:02d}", [i + 1] * 6)
        for i in (0, 1, 2, 3)
    }
    way.changes["share"] = dealing("s05", false)
    with pytest.raises(Unfinished, match="do not fit each other") as e:
        ask(panel(way))
    assert not e.value.again


# --- who opens falsely -----------------------------------------------------------------------------


def test_a_wrong_sum_is_corrected_and_named(no_noise: None) -> None:
    sources = make_sources(10)
    wrong = only("s02", then=lambda terms, name, sums: [(n + 1) % PRIME for n in sums])
    total, _ = ask(panel(OddWay(sources, open=wrong)))
    assert total.left_out == ("s02",)
    assert np.array_equal(total.parts[0].values, exact(sources, total.sources))


@pytest.mark.parametrize(
    "sums", [None, [], [1], [1] * 7, "123456", [1.0] * 6, [True] * 6, [PRIME] * 6, [-1] * 6, 3]
)
def test_a_sum_that_is_none_is_not_used(no_noise: None, sums: Any) -> None:
    sources = make_sources(10)
    total, _ = ask(panel(OddWay(sources, open=only("s02", "s08", then=lambda *_: sums))))
    assert total.left_out == ("s02", "s08")
    assert np.array_equal(total.parts[0].values, exact(sources, total.sources))


def test_more_wrong_sums_than_can_be_corrected_end_it() -> None:
    wrong = only("s02", "s03", then=lambda terms, name, sums: [(n + 1) % PRIME for n in sums])
    with pytest.raises(Unfinished, match="do not fit") as e:
        ask(panel(OddWay(make_sources(10), open=wrong)))
    assert not e.value.again


# --- complaints ------------------------------------------------------------------------------------

Complaints = st.dictionaries(
    st.sampled_from("abcdef"), st.frozensets(st.sampled_from("uvwxyz")), min_size=1
)


@given(Complaints)
def test_as_few_as_possible_are_left_out_and_as_few_answers(complaints: dict[str, Any]) -> None:
    settled = settle("uvwxyz", complaints, 0, 0)
    assert settled is not None
    dealers, openers = settled
    assert not any(complaints[receiver] & dealers for receiver in openers)
    gone = (6 - len(dealers) + len(complaints) - len(openers), 6 - len(dealers))

    def cost(without: tuple[str, ...]) -> tuple[int, int]:
        complain = sum(bool(bad - set(without)) for bad in complaints.values())
        return len(without) + complain, len(without)

    choices = (some for k in range(7) for some in combinations("uvwxyz", k))
    assert gone == min(map(cost, choices))


@given(st.sets(st.sampled_from("abcdef"), min_size=1), st.data())
def test_k_liars_cost_less_than_k_honest_answers(liars: set[str], data: st.DataObject) -> None:
    lies = {
        name: data.draw(st.frozensets(st.sampled_from("abcdef"))) if name in liars else frozenset()
        for name in "abcdef"
    }
    settled = settle("abcdef", lies, 0, 0)
    assert settled is not None
    assert 6 - len(settled[0]) < len(liars)


def test_where_answers_are_short_those_who_complain_are_left_out_instead() -> None:
    everybody: dict[str, set[str]] = {name: set() for name in "abcdefgh"}
    complaints = everybody | {"a": {"h"}, "b": {"h"}}
    assert settle("abcdefgh", complaints, 7, 6) == (frozenset("abcdefg"), frozenset("abcdefgh"))
    assert settle("abcdefgh", complaints, 8, 6) == (frozenset("abcdefgh"), frozenset("cdefgh"))
    assert settle("abcdefgh", complaints, 8, 7) is None


# --- a calibrator that is killed -------------------------------------------------------------------


class Killed(BaseException):
    """What ends the process, for a test."""


class DyingRecord:
    """A record that lets the process end before or after one of its writes."""

    def __init__(self, record: Any, write: str, after: bool) -> None:
        self._record, self._write, self._after = record, write, after

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._record, name)
        if name != self._write:
            return real

        def dying(*given: Any) -> Any:
            if self._after:
                real(*given)
            raise Killed

        return dying


def dying_way(sources: list[Source], stage: str, replies: int) -> OddWay:
    def change(terms: Terms, name: str, reply: Any) -> Any:
        way.count += 1  # type: ignore[attr-defined]
        if way.count > replies:  # type: ignore[attr-defined]
            raise Killed
        return reply

    way = OddWay(sources, **{stage: change})
    way.count = 0  # type: ignore[attr-defined]
    return way


def first_run(sources: list[Source], folder: Path, at: tuple[str, int]) -> None:
    """A run that is killed at a message's replies, or before or after a write of the record."""
    step, number = at
    record: Any = Campaign.start(folder, {"campaign": "spring"})
    way: LocalWay = LocalWay(sources)
    if step in ("share", "check", "open"):
        way = dying_way(sources, step, number)
    else:
        record = DyingRecord(record, step, bool(number))
    with pytest.raises(Killed):
        ask(panel(way, record))


STEPS = [
    *[(stage, number) for stage in ("share", "check", "open") for number in (0, 2, 4)],
    *[(write, after) for write in ("asks", "chooses", "keeps") for after in (0, 1)],
]


@pytest.mark.parametrize("at", STEPS, ids=lambda at: f"{at[0]}-{at[1]}")
def test_a_calibrator_that_was_killed_goes_on_to_the_total_free_of_charge(
    tmp_path: Path, at: tuple[str, int]
) -> None:
    sources = make_sources(5)
    first_run(sources, tmp_path / "record", at)
    resumed = panel(LocalWay(sources), Campaign.resume(tmp_path / "record"))
    total, steps = ask(resumed)
    assert len(total.sources) == 5
    assert charged(steps) == sorted(total.sources)
    assert spent(sources) == {0.5}
    again, _ = ask(panel(LocalWay(sources), Campaign.resume(tmp_path / "record")))
    assert again == total


def test_the_set_that_was_to_be_opened_stays_though_another_site_comes_back(tmp_path: Path) -> None:
    class Without(OddWay):
        def share(self, terms: Terms, names: Any) -> Any:
            return super().share(terms, [name for name in names if name != "s03"])

    sources = make_sources(10)
    record = Campaign.start(tmp_path / "record", {"campaign": "spring"})
    with pytest.raises(Unfinished):
        ask(panel(Without(sources, open=lambda *_: GONE), record))
    total, steps = ask(panel(LocalWay(sources), Campaign.resume(tmp_path / "record")))
    assert "s03" not in total.sources
    assert len(total.sources) == 9
    assert left(steps) == {"s03": "absent"}
    assert sources[3].spent == 0  # it is not charged for what cannot be used


def test_terms_on_record_stay_though_one_of_them_refuses_now(tmp_path: Path) -> None:
    sources = make_sources(10)
    first_run(sources, tmp_path / "record", ("asks", 1))
    for source in sources:
        source.release("spring")
    sources[9].answer(Question.of(Gap(), 1.8, "another"))
    resumed = panel(LocalWay(sources), Campaign.resume(tmp_path / "record"))  # refuses nobody
    total, steps = ask(resumed)
    assert left(steps) == {"s09": "over_budget"}
    assert len(total.sources) == 9
    assert total.noise.honest == 9 - 2  # of ten, as the terms were


def test_why_the_others_are_not_in_the_set_is_known_when_it_goes_on(tmp_path: Path) -> None:
    sources = make_sources(10)
    way = OddWay(sources, open=lambda *_: GONE)
    bad = {name: unopenable(way, "s05", name) for name in ("s01", "s02")}
    way.changes["share"] = dealing("s05", bad)
    with pytest.raises(Unfinished):
        ask(panel(way, Campaign.start(tmp_path / "record", {"campaign": "spring"})))
    total, steps = ask(panel(LocalWay(sources), Campaign.resume(tmp_path / "record")))
    assert left(steps) == {"s05": "boxes"}
    assert "s05" in charged(steps)
    assert len(total.sources) == 9


def test_a_set_of_which_one_is_away_waits_for_it(tmp_path: Path) -> None:
    sources = make_sources(5)
    record = Campaign.start(tmp_path / "record", {"campaign": "spring"})
    with pytest.raises(Unfinished):
        ask(panel(OddWay(sources, open=lambda *_: GONE), record))
    away = OddWay(sources, share=only("s02", then=gone))
    with pytest.raises(Unfinished, match="s02 cannot be asked for theirs just now") as e:
        ask(panel(away, Campaign.resume(tmp_path / "record")))
    assert e.value.again
    total, _ = ask(panel(LocalWay(sources), Campaign.resume(tmp_path / "record")))
    assert len(total.sources) == 5


def test_on_record_is_no_number_before_the_total(tmp_path: Path) -> None:
    record = Campaign.start(tmp_path / "record", {"campaign": "spring"})
    with pytest.raises(Unfinished):
        ask(panel(OddWay(make_sources(5), open=lambda *_: GONE), record))
    lines = (tmp_path / "record" / "answers.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == 2
    assert '"terms"' in lines[0]
    assert '"chosen"' in lines[1]


# --- the terms -------------------------------------------------------------------------------------


def test_who_would_refuse_is_left_out_of_the_terms(no_noise: None) -> None:
    sources = make_sources(10)
    sources[9].answer(Question.of(Gap(), 1.8, "another"))
    asked = SecurePanel(LocalWay(sources))
    assert asked.refusals([QUESTION]) == {"s09": "over_budget"}
    total = total_of(asked, QUESTION, [name for name in asked.names if name != "s09"])
    assert len(total.sources) == 9
    assert total.noise.honest == 8 - 2  # of nine, one may fail; a fifth of ten may collude


def test_with_too_few_who_are_willing_nobody_is_asked() -> None:
    sources = [*make_sources(2), *make_sources(5, epsilon=0.1)[2:]]
    with pytest.raises(Unfinished, match=r"at least 3 sources, and there are 2.*nothing charged"):
        SecurePanel(LocalWay(sources)).refusals([QUESTION])
    assert spent(sources) == {0.0}


def test_a_source_without_a_ledger_is_left_out_of_the_terms(tmp_path: Path) -> None:
    lost = Source(random_scores(9), ledger=tmp_path / "none.ledger", name="lost")
    asked = SecurePanel(LocalWay([*make_sources(5), lost]))
    assert asked.refusals([QUESTION]) == {"lost": "ledger_missing"}
    assert "lost" in asked.names


def test_the_terms_are_what_the_owners_want() -> None:
    rules = [SecureRules(colluding=3), SecureRules(colluding=1, min_honest=6, alone=4)]
    sources = make_sources(10)[2:]
    sources += [a_source(9, i, name=f"strict {i}", secure=rules[i]) for i in range(2)]
    asked = SecurePanel(LocalWay(sources))
    assert (asked.colluding, asked.alone) == (3, 4)
    assert asked.refusals([QUESTION]) == {}
    with pytest.raises(InputError, match="colluding cannot be 2"):
        SecurePanel(LocalWay(sources), Secure(colluding=2))
    with pytest.raises(InputError, match="alone to be 4 at most, not 5"):
        SecurePanel(LocalWay(sources), Secure(alone=5))
    with pytest.raises(InputError, match="9 to 10 can be needed, not 8"):
        SecurePanel(LocalWay(sources), Secure(needed=8))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"colluding": 9},
            "with 9 sources that may .* needs at least 11 sources, and there are 10",
        ),
        ({"needed": 7}, "8 to 10 can be needed, not 7"),
        ({"needed": 11}, "8 to 10 can be needed, not 11"),
        ({"groups": 3}, "groups are for 60 sources and more, and there are 10"),
    ],
)
def test_what_cannot_be_is_said_before_anybody_is_asked(options: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        SecurePanel(LocalWay(make_sources(10)), Secure(**options))


def test_another_roster_in_between_ends_the_sum(tmp_path: Path) -> None:
    sources = make_sources(5)
    record = Campaign.start(tmp_path / "record", {"campaign": "spring"})
    with pytest.raises(Unfinished):
        ask(panel(OddWay(sources, open=lambda *_: GONE), record))
    others = [*sources, a_source(name="new")]
    resumed = SecurePanel(LocalWay(others), None, Campaign.resume(tmp_path / "record"))
    with pytest.raises(Unfinished, match="roster"):
        ask(resumed)
    assert spent(sources) == {0.5}


# --- the next question -----------------------------------------------------------------------------

NEXT = Question.of(Gap(1.5), 0.25, "spring", round=1)


def test_the_next_question_goes_to_exactly_those_of_the_first(no_noise: None) -> None:
    sources = make_sources(10)
    way = OddWay(sources, share=only("s03", then=gone))
    asked = SecurePanel(way)
    assert asked.refusals([QUESTION, NEXT]) == {}
    first, _ = ask(asked)
    way.changes.clear()
    second, _ = ask(asked, NEXT)
    assert second.sources == first.sources
    assert len(second.sources) == 9
    assert second.noise.honest == 9 - 2
    assert np.array_equal(second.parts[0].values, exact(sources, second.sources, NEXT))


def test_if_one_of_them_will_not_nobody_is_charged_for_it() -> None:
    sources = make_sources(5, epsilon=1.0, secure=SecureRules(colluding=1))
    asked = SecurePanel(LocalWay(sources))
    assert asked.refusals([QUESTION, NEXT]) == {}
    ask(asked)
    asked.release()
    question = Question.of(Gap(), 0.5, "another")
    sources[1].answer(question)  # and now its budget is spent
    with pytest.raises(
        Unfinished, match=r"s01 does not take part .over_budget.; nobody was asked it"
    ):
        ask(asked, NEXT)
    assert [source.spent for source in sources] == [0.5, 1.0, 0.5, 0.5, 0.5]


def test_if_one_fails_at_it_the_run_ends() -> None:
    way = OddWay(make_sources(10))
    asked = SecurePanel(way)
    asked.refusals([QUESTION, NEXT])
    ask(asked)
    way.changes["share"] = only("s01", then=gone)
    with pytest.raises(Unfinished, match="only 9 of 10 sources answered, fewer than the 10 needed"):
        ask(asked, NEXT)


# --- what is told of ledgers -----------------------------------------------------------------------


def test_a_ledger_that_two_sources_call_theirs_is_nobodys() -> None:
    sources = make_sources(5)
    other = sources[0].ledger.id
    lie = only("s03", then=lambda terms, name, dealt: replace(dealt, ledger=other))
    total, _ = ask(panel(OddWay(sources, share=lie)))
    assert set(total.ledgers) == {"s01", "s02", "s04"}


def test_two_liars_do_not_make_two_sources_look_like_one() -> None:
    """One calls another's ledger its own, so that neither has one, and the next one's is its name."""
    sources = make_sources(5)
    said = {"s03": sources[0].ledger.id, "s04": "s00"}

    def lie(terms: Terms, name: str, dealt: Any) -> Any:
        return replace(dealt, ledger=said.get(name, dealt.ledger))

    total, _ = ask(panel(OddWay(sources, share=lie)))
    assert len(SketchTotal.of(total, "acme").sources) == 5


# --- groups ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_groups_are_summed_apart_and_the_average_is_their_median(no_noise: None) -> None:
    sources = make_sources(60)
    way = LocalWay(sources)
    asked = panel(way, colluding=3, groups=3)
    total, _ = ask(asked)
    group = way.members.grouped(3)
    assert [len(part.sources) for part in total.parts] == [20, 20, 20]
    for number, part in enumerate(total.parts):
        assert {group[name] for name in part.sources} == {number}
        assert np.array_equal(part.values, exact(sources, part.sources))
    averages = [np.array(part.values) / 20 for part in total.parts]
    assert np.array_equal(total.average, np.median(averages, axis=0))
    assert total.noise.groups == 3
    assert total.noise.honest == 18 - 3


def test_a_group_too_small_for_its_terms_is_refused() -> None:
    sources = [a_source(2, name=f"s{i}") for i in range(60)]
    with pytest.raises(
        InputError, match="at least 21 sources in each of 3 groups, and there are 20"
    ):
        SecurePanel(LocalWay(sources), Secure(colluding=19, groups=3))


# --- a record in memory ----------------------------------------------------------------------------


def test_what_is_in_memory_is_not_asked_again() -> None:
    sources = make_sources(5)
    record = Memory()
    first, _ = ask(panel(LocalWay(sources), record))
    way = OddWay(sources)
    again, steps = ask(panel(way, record))
    assert again == first
    assert way.sent == []
    assert charged(steps) == sorted(first.sources)


def test_asked_again_by_another_the_same_total_comes_back_free() -> None:
    sources = make_sources(5)
    first, _ = ask(panel(LocalWay(sources)))
    again, _ = ask(panel(LocalWay(sources)))
    assert again == first
    assert spent(sources) == {0.5}


def test_another_set_is_never_opened() -> None:
    sources = make_sources(10)
    ask(panel(LocalWay(sources)))
    with pytest.raises(Unfinished, match="opened"):
        ask(panel(OddWay(sources, share=only("s03", then=gone))))


def test_other_terms_are_another_question_under_its_name() -> None:
    sources = make_sources(10)
    ask(panel(LocalWay(sources)))
    asked = SecurePanel(LocalWay(sources), Secure(colluding=3))
    asked.refusals([QUESTION])
    with pytest.raises(Unfinished, match="id_conflict"):
        ask(asked)
    assert spent(sources) == {0.5}


def test_only_sources_take_part() -> None:
    class Stranger:
        name = "stranger"

        def answer(self, question: Question, asker: str) -> Any:
            raise Refused("unavailable")

    with pytest.raises(InputError, match="stranger cannot take part in secure sums"):
        LocalWay([*make_sources(3), Stranger()])


def test_secure_is_what_calibrate_takes() -> None:
    assert privcal.calibrate(make_sources(3), "one-hot-binning", aggregation=Secure(needed=3)).noise
