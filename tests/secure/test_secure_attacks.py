"""What a calibrator, the carrier and colluding hospitals try in secure sums, and what they get.

Every attack is tried twice: on the software as it is, and on a copy from which the one check that
stops it was taken away. There it must succeed, or the test would prove nothing. Noise is off where
a leak is to be seen as the exact number of a hospital's rows.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import privcal

pytest.importorskip("cryptography", reason="secure sums need cryptography: privcal[secure]")

from privcal.calibration.campaign import Campaign
from privcal.data.ledger import Ledger
from privcal.secure import boxes as boxes_module
from privcal.secure import canonical, participant, sharing
from privcal.secure import terms as terms_module
from privcal.secure.boxes import Box, deal_box
from privcal.secure.keys import local_keys, member
from privcal.secure.shares import add_noise_share
from privcal.secure.sharing import PRIME
from privcal.secure.terms import Members, Terms
from privcal.trusted.errors import InputError
from privcal.trusted.policy import SecureRules
from privcal.trusted.queries import GRID, Gap, Nll
from privcal.trusted.question import Question
from tests.support.builders import outcome, some_clinics
from tests.support.coalition import (
    EVE,
    Federation,
    federation,
    given,
    known_sums,
    no_noise,
    question,
    rows,
    rows_of,
    total,
)
from tests.support.pages import ROOT

VICTIM, FRIEND = "h0", "h4"
"""Whom the coalition is after, and the hospital that works with it."""


@pytest.fixture
def five(monkeypatch: pytest.MonkeyPatch) -> Federation:
    """Five hospitals, one of which may collude: four sums open a total of four or more."""
    no_noise(monkeypatch)
    return federation(5)


# --- different sets told to different sites -------------------------------------------------


def assignments(terms: Terms) -> Iterator[dict[str, tuple[str, ...]]]:
    """Every way to tell each honest site a set that it would open."""
    sizes = range(terms.needed, len(terms.sites) + 1)
    sets = [s for size in sizes for s in itertools.combinations(terms.sites, size)]
    honest = [name for name in terms.sites if name != FRIEND]
    for told in itertools.product(sets, repeat=len(honest)):
        yield dict(zip(honest, told, strict=True))


def test_whatever_sets_are_told_to_whom_at_most_one_sum_of_honest_answers_opens(
    five: Federation,
) -> None:
    """All 1,296 ways to tell four honest sites a set, looked at by linear algebra."""
    terms = five.terms()
    opened = 0
    for told in assignments(terms):
        sums = known_sums(terms, told, [FRIEND])
        assert len(sums) <= 1
        for weights in sums:  # a plain sum, over honest sites that make the noise of one
            assert len(set(weights.values())) == 1
            assert len(weights) >= terms.honest
            opened += 1
    assert opened  # as when all are told the same


def test_with_a_threshold_of_a_majority_two_sets_do_open(
    five: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terms_module, "threshold", lambda sites, colluding: 3)
    weaker = five.terms()
    assert (weaker.threshold, weaker.needed) == (3, 3)
    assert any(len(known_sums(weaker, told, [FRIEND])) > 1 for told in assignments(weaker))


def test_what_really_opens_is_one_total_and_no_other_combination_is_a_number_of_rows(
    five: Federation,
) -> None:
    """By trying: the sums that sites show, and the friend's own for every set, put together."""
    every, honest = tuple(five.names), [name for name in five.names if name != FRIEND]
    plain = {rows_of(s) for size in range(1, 6) for s in itertools.combinations(every, size)}
    for absent, strayed in itertools.product([VICTIM, "h1"], [None, VICTIM, "h1", "h2"]):
        agreed = tuple(name for name in every if name != absent)
        terms = five.terms()
        dealt = five.share(terms)
        sums = [(j, five.open(terms, j, dealt, every if j == strayed else agreed)) for j in honest]
        sums += [(FRIEND, five.own_sum(terms, FRIEND, dealt, chosen)) for chosen in (every, agreed)]
        readings = {
            total(terms, dict(some))[1]
            for some in itertools.combinations(sums, terms.threshold)
            if len(dict(some)) == terms.threshold
        }
        assert readings & plain == {rows_of(agreed)}


def test_one_sum_fewer_than_the_threshold_gives_no_number_of_rows(five: Federation) -> None:
    """What sites really deal is of the full degree: fewer, taken for enough, are a random number."""
    terms = five.terms()
    dealt = five.share(terms)
    sums = {terms.point(j): five.open(terms, j, dealt, five.names) for j in five.names}
    for some in itertools.combinations(sums.items(), terms.threshold - 1):
        guessed = sharing.combine(dict(some), terms.threshold - 1)
        assert guessed is not None
        assert min(map(abs, guessed.values)) > 2**64
    enough = sharing.combine(sums, terms.threshold)
    assert enough is not None
    assert enough.values == [0, rows_of(five.names) * GRID]


def test_beyond_colluding_two_sets_do_open_and_the_own_noise_is_what_is_left(
    five: Federation,
) -> None:
    """2T − n = 3 friends of five: two honest sites are told two sets, and the difference is one's."""
    terms = five.terms()
    friends = ["h2", "h3", "h4"]
    assert len(friends) == 2 * terms.threshold - len(terms.sites)
    dealt = five.share(terms)
    without = [name for name in five.names if name != VICTIM]
    totals = []
    for honest, chosen in ((VICTIM, five.names), ("h1", without)):
        sums = {j: five.own_sum(terms, j, dealt, chosen) for j in friends}
        totals.append(total(terms, {**sums, honest: five.open(terms, honest, dealt, chosen)})[1])
    assert totals[0] - totals[1] == rows_of([VICTIM])


def test_a_set_and_then_the_set_without_one_is_refused(
    five: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = five.terms()
    dealt = five.share(terms)
    without = [name for name in five.names if name != VICTIM]
    first = {j: five.open(terms, j, dealt, five.names) for j in five.names}
    for j in five.names:
        assert outcome(lambda j=j: five.open(terms, j, dealt, without)) == "opened"
        assert five.open(terms, j, dealt, five.names) == first[j]  # the same again is the same
    assert total(terms, first) == [0, rows_of(five.names)]

    monkeypatch.setattr(Ledger, "open_once", lambda *args: args[-1]())  # opens whatever it is asked
    second = {j: five.open(terms, j, dealt, without) for j in five.names}
    difference = total(terms, first)[1] - total(terms, second)[1]
    assert difference == rows_of([VICTIM])


def test_of_two_openings_at_the_same_moment_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hospitals = federation(5, folder=tmp_path)
    terms = hospitals.terms()
    dealt = hospitals.share(terms)
    answers: list[str] = []
    real, looked, waited = participant.open_box, threading.Barrier(8), threading.local()

    def together(*args: Any) -> list[int]:
        """All of them have seen that nothing was opened yet before the first opens a box."""
        if not getattr(waited, "once", False):
            waited.once = True
            looked.wait(60)
        return real(*args)

    monkeypatch.setattr(participant, "open_box", together)

    def opening(absent: str) -> None:
        chosen = [name for name in hospitals.names if name != absent]
        try:
            answers.append(str(hospitals.open(terms, "h2", dealt, chosen)))
        except privcal.Refused as refused:
            answers.append(refused.code)

    threads = [threading.Thread(target=opening, args=(name,)) for name in ("h0", "h1") * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(set(answers))[1:] == ["opened"]
    assert answers.count("opened") == 4
    kinds = [entry.kind for entry in Ledger.of(hospitals.hospitals["h2"].ledger).entries()]
    assert kinds.count("opening") == 1


# --- boxes: forged, replayed, copied --------------------------------------------------------


def forged(hospitals: Federation, terms: Terms, name: str, receiver: str) -> Box:
    """A box in the name of a hospital that the calibrator made: an answer of nothing at all.

    Anybody can seal for the receiver; the friend's key signs, for want of the right one.
    """
    nothing = [0] * terms.question.query.length
    keys = hospitals.hospitals[FRIEND].keys
    return deal_box(terms, name, receiver, nothing, hospitals.members, keys)


def test_nobody_answers_in_the_name_of_an_honest_hospital(
    five: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All boxes but the victim's are the calibrator's own: what opens would be the victim's answer."""
    terms = five.terms()
    dealt = five.share(terms)

    def attack(j: str) -> list[int]:
        boxes = {name: forged(five, terms, name, j) for name in five.names}
        boxes[VICTIM] = dealt[VICTIM].boxes[j]
        return five.site(j).open(terms, EVE, boxes)

    for j in five.names:
        assert outcome(lambda j=j: attack(j)) == "bad_request"
    mine = given(dealt, "h1", five.names) | {"h2": forged(five, terms, "h2", "h1")}
    assert five.site("h1").check(terms, EVE, mine) == ("h2",)

    monkeypatch.setattr(boxes_module, "check_signature", lambda *_: None)
    assert total(terms, {j: attack(j) for j in five.names}) == [0, rows_of([VICTIM])]


def test_a_box_is_not_passed_off_as_another_hospitals(
    five: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The friend hands in the victim's box as its own, signed by itself: it would count twice."""
    keys = five.hospitals[FRIEND].keys

    def attack() -> list[int]:
        terms = five.terms()
        dealt = five.share(terms)

        def copied(j: str) -> Box:
            sealed = dealt[VICTIM].boxes[j][0]
            signed = boxes_module._context(boxes_module.SIGNED, terms, FRIEND, j, sealed)
            return sealed, keys.sign(signed)

        sums = {}
        for j in five.names:
            boxes = {**given(dealt, j, five.names), FRIEND: copied(j)}
            assert five.site(j).check(terms, EVE, boxes) == ((FRIEND,) if bound else ())
            sums[j] = five.site(j).open(terms, EVE, boxes)
        return total(terms, sums)

    bound = True
    assert outcome(attack) == "bad_request"

    def loose(tag: str, terms: Terms, *more: str) -> str:  # who dealt it is not in what is sealed
        return canonical.write(
            [tag, terms.digest, *(more if tag == boxes_module.SIGNED else more[1:])]
        )

    monkeypatch.setattr(boxes_module, "_context", loose)
    bound = False
    others = [name for name in five.names if name not in (VICTIM, FRIEND)]
    assert attack() == [0, rows_of(others) + 2 * rows_of([VICTIM])]


def test_boxes_of_other_questions_terms_and_receivers_do_not_open(five: Federation) -> None:
    terms = five.terms()
    dealt = five.share(terms)
    others = [
        five.terms(),  # another campaign
        five.terms(replace(terms.question, campaign=terms.question.campaign, round=1)),
        five.terms(replace(terms.question, round=2), alone=9),
    ]
    for other in others:
        old = five.share(other)
        for mixed in ({VICTIM: old[VICTIM]}, {name: old[name] for name in five.names}):
            boxes = given({**dealt, **mixed}, "h1", five.names)
            assert set(five.site("h1").check(terms, EVE, boxes)) == set(mixed)
            assert outcome(lambda b=boxes: five.site("h1").open(terms, EVE, b)) == "bad_request"
    swapped = {**given(dealt, "h1", five.names), VICTIM: dealt[VICTIM].boxes["h2"]}
    assert outcome(lambda: five.site("h1").open(terms, EVE, swapped)) == "bad_request"


def test_a_replayed_question_is_the_stored_bytes_and_costs_nothing(five: Federation) -> None:
    terms = five.terms()
    first, again = five.share(terms), five.share(terms)
    assert first == again
    assert all(h.ledger.nano_spent == 5 * 10**8 for h in five.hospitals.values())


@pytest.mark.parametrize(
    "box",
    [
        None,
        (),
        ("",),
        ("", ""),
        ("A", "A"),
        ("AAAA", "AAAA", "AAAA"),
        {"0": "A", "1": "B"},
        ("é", "é"),
        (b"AAAA", b"AAAA"),
        (1, 2),
    ],
    ids=str,
)
def test_malformed_boxes_get_a_code_and_change_nothing(five: Federation, box: Any) -> None:
    terms = five.terms()
    dealt = five.share(terms)
    boxes: Any = {**given(dealt, "h1", five.names), "h2": box}
    assert five.site("h1").check(terms, EVE, boxes) == ("h2",)
    assert outcome(lambda: five.site("h1").open(terms, EVE, boxes)) == "bad_request"
    for odd in (None, [], "boxes", {"stranger": dealt["h2"].boxes["h1"]}, {1: 2}):
        assert outcome(lambda odd=odd: five.site("h1").open(terms, EVE, odd)) == "bad_request"
    assert five.open(terms, "h1", dealt, five.names)  # no attempt used up the one opening


def test_a_dealers_numbers_must_be_below_the_prime_and_as_many_as_asked(five: Federation) -> None:
    terms = five.terms()
    dealt = five.share(terms)
    keys = five.hospitals[FRIEND].keys
    for numbers in ([0, PRIME], [0, 2**128 - 1], [0], [0, 0, 0]):
        box = deal_box(terms, FRIEND, "h1", numbers, five.members, keys)
        boxes = {**given(dealt, "h1", five.names), FRIEND: box}
        assert five.site("h1").check(terms, EVE, boxes) == (FRIEND,)
        assert outcome(lambda b=boxes: five.site("h1").open(terms, EVE, b)) == "bad_request"


# --- terms ----------------------------------------------------------------------------------


def changed(terms: Terms, **parts: Any) -> Terms:
    """Terms with parts that no check has seen, as only other software sends them."""
    copy = object.__new__(Terms)
    vars(copy).update({k: v for k, v in vars(terms).items() if k not in ("text", "digest")})
    vars(copy).update(parts)
    return copy


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "fewer may collude": ({"colluding": 1}, "bad_request"),
    "a lower threshold": ({"threshold": 5}, "bad_request"),
    "a higher threshold": ({"threshold": 7}, "bad_request"),
    "less noise": ({"honest": 5}, "bad_request"),
    "more noise": ({"honest": 3}, "bad_request"),
    "fewer answers": ({"needed": 5, "honest": 3}, "bad_request"),
    "another version": ({"version": 2}, "bad_request"),
    "no version": ({"version": 0}, "bad_request"),
    "sites in another order": (
        {"sites": ("h1", "h0", "h2", "h3", "h4", "h5", "h6")},
        "bad_request",
    ),
    "a site twice": ({"sites": ("h0", "h0", "h2", "h3", "h4", "h5", "h6")}, "bad_request"),
    "true for one": ({"rows_per_person": True}, "bad_request"),
    "no rows of a person": ({"rows_per_person": 0}, "bad_request"),
    "no floor": ({"alone": 0}, "bad_request"),
    "a group that is none": ({"group": 1}, "bad_request"),
    "two groups": ({"groups": 2}, "bad_request"),
    "another asker": ({"asker": "ann"}, "bad_request"),
    "another roster": ({"roster": "0000 " * 11 + "0000"}, "roster"),
    "not a question": ({"question": None}, "bad_request"),
}


@pytest.fixture(scope="module")
def seven() -> Federation:
    """Seven hospitals, two of which may collude, with rules on everything."""
    rules = SecureRules(colluding=2, min_honest=4, alone=10)
    return federation(7, rules=rules)


def refusals(hospitals: Federation, terms: Any, name: str = "h1") -> set[str]:
    """The codes with which a site refuses all that these terms could be used for."""
    site = hospitals.site(name)
    good = hospitals.terms(colluding=2)
    codes = {
        outcome(lambda: site.share(terms, EVE)),
        outcome(lambda: site.check(terms, EVE, {})),
        outcome(lambda: site.open(terms, EVE, {})),
        str(site.offer(terms, [good.question], EVE)),
    }
    ledger = hospitals.hospitals[name].ledger
    assert (ledger.nano_spent, ledger.nano_alone) == (0, 0)
    return codes


@pytest.mark.parametrize("wrong", WRONG)
def test_terms_that_were_changed_are_refused_before_anything_is_charged(
    seven: Federation, wrong: str
) -> None:
    parts, expected = WRONG[wrong]
    terms = seven.terms(colluding=2)
    assert (terms.threshold, terms.needed, terms.honest) == (6, 6, 4)
    assert refusals(seven, changed(terms, **parts)) == {expected}


UNWANTED: dict[str, tuple[dict[str, Any], str]] = {
    "fewer may collude than the owner says": ({"colluding": 1}, "terms"),
    "nobody may collude": ({"colluding": 0}, "terms"),
    "fewer honest ones": ({"colluding": 3, "needed": 6}, "terms"),
    "more seen alone": ({"alone": 11}, "terms"),
    "groups that are not the roster's": ({"groups": 3}, "terms"),
    "sites that are not on the roster": ({"sites": [*(f"h{i}" for i in range(7)), "h9"]}, "roster"),
    "without this site": ({"sites": ["h0", *(f"h{i}" for i in range(2, 7))]}, "roster"),
}


@pytest.mark.parametrize("unwanted", UNWANTED)
def test_terms_that_the_owner_does_not_want_are_refused_before_anything_is_charged(
    seven: Federation, unwanted: str
) -> None:
    parts, expected = UNWANTED[unwanted]
    terms = seven.terms(**{"colluding": 2, **parts})
    assert refusals(seven, terms) == {expected}


def test_whom_the_policy_does_not_admit_gets_nothing_at_any_step() -> None:
    hospitals = federation(5, policy=privcal.Policy(epsilon=5.0, askers=("ann",)))
    assert refusals(hospitals, hospitals.terms()) == {"asker"}


def test_without_rules_of_its_owner_a_site_takes_part_in_nothing() -> None:
    hospitals = federation(5)
    hospitals.rules = None
    assert refusals(hospitals, hospitals.terms()) == {"terms"}


def sensitivities(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sensitivities for which sites draw noise from now on."""
    drawn: list[int] = []

    def noted(total: Any, sensitivity: int, *more: int) -> list[int]:
        drawn.append(sensitivity)
        return add_noise_share(total, sensitivity, *more)

    monkeypatch.setattr(participant, "add_noise_share", noted)
    return drawn


def test_a_site_where_more_rows_of_a_person_count_than_the_noise_covers_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = privcal.Policy(epsilon=10.0, rows_per_person=5)
    persons = privcal.Scores(logits=[[1.0, 0.0]] * 6, labels=[0] * 6, person=["ann"] * 6)
    hospitals = federation(5)
    ledger = Ledger.in_memory(policy, unit="person", name="h1")
    hospitals.hospitals["h1"].source = privcal.Source(persons, ledger=ledger, name="h1")
    for least in (1, 4):
        assert refusals(hospitals, hospitals.terms(rows_per_person=least)) == {"terms"}
    drawn = sensitivities(monkeypatch)
    hospitals.share(hospitals.terms(rows_per_person=5))
    assert drawn == [5 * GRID] * 5  # all sites draw shares of one noise, by the terms


def test_a_query_that_lies_about_its_bound_does_not_lessen_the_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Modest(Nll):
        bound = 1

    drawn = sensitivities(monkeypatch)
    hospitals = federation(5)
    asked = Question.of(Nll(), 0.5, "modest")
    object.__setattr__(asked, "query", Modest())
    hospitals.share(changed(hospitals.terms(question(query=Nll())), question=asked), ["h1"])
    assert drawn == [Nll().bound]


# --- whom to ask ----------------------------------------------------------------------------


def alone_with(five: Federation, victim: str, members: Members, terms: Terms) -> int:
    """The victim's rows, where everybody else who is asked works with the calibrator."""
    dealt = five.site(victim, members=members).share(terms, EVE)
    pieces = {
        j: [
            int(v)
            for v in boxes_module.open_box(
                terms, victim, j, dealt.boxes[j], members, five.hospitals[j].keys
            )
        ]
        for j in terms.sites
        if j != victim
    }
    return total(terms, pieces)[1]


def test_a_hospital_is_not_asked_alone_with_the_calibrators_friends(five: Federation) -> None:
    """`colluding` is a number over the whole roster, whoever is asked of it."""
    sites = [VICTIM, "h1", "h2"]
    terms = five.terms(sites=sites, colluding=0)
    assert terms.threshold == 3
    five.rules = SecureRules(colluding=2)
    assert outcome(lambda: five.site(VICTIM).share(terms, EVE)) == "terms"
    with pytest.raises(InputError, match="colluding"):
        five.terms(sites=sites, colluding=2)  # with two friends at least two others are honest

    five.rules = SecureRules(colluding=0)  # an owner who counts on nobody's colluding
    bigger = five.terms(sites=[VICTIM, "h1", "h2", "h3"], colluding=0)
    assert bigger.threshold == 3
    assert alone_with(five, VICTIM, five.members, bigger) == rows_of([VICTIM])


def test_hospitals_that_were_invented_are_on_no_roster_that_the_owner_accepted(
    five: Federation,
) -> None:
    """The calibrator, or the keeper of the authority, makes up four hospitals around the victim."""
    own = {n: five.hospitals[n].keys for n in five.names if n != VICTIM}
    invented = {f"clinic-{n}": keys for n, keys in own.items()}
    keys = {VICTIM: five.hospitals[VICTIM].keys, **invented}
    false = Members({n: member(k) for n, k in keys.items()})
    terms = five.terms(sites=list(keys), roster=false.digest)
    assert outcome(lambda: five.site(VICTIM).share(terms, EVE)) == "roster"
    renamed = five.terms(sites=list(keys))  # the right digest, and names that it does not have
    assert outcome(lambda: five.site(VICTIM).share(renamed, EVE)) == "roster"
    pinned = SecureRules(colluding=1, roster=five.members.digest)
    assert outcome(lambda: five.site(VICTIM, pinned, members=false).share(terms, EVE)) == "roster"

    for name, k in invented.items():  # an owner who accepts whatever roster comes
        five.hospitals[name] = replace(five.hospitals[FRIEND], name=name, keys=k)
    assert alone_with(five, VICTIM, false, terms) == rows_of([VICTIM])


def test_who_is_with_whom_in_a_group_is_not_for_the_calibrator_to_choose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hospitals = federation(12)
    group = hospitals.members.grouped(3)
    first = sorted(n for n in hospitals.names if group[n] == group[VICTIM])
    terms = hospitals.terms(sites=first, groups=3, group=group[VICTIM])
    assert hospitals.site(VICTIM).share(terms, EVE)
    friends = [n for n in hospitals.names if group[n] != group[VICTIM]][:3]
    for g in range(3):
        packed = hospitals.terms(sites=[VICTIM, *friends], groups=3, group=g)
        assert outcome(lambda p=packed: hospitals.site(VICTIM).share(p, EVE)) == "terms"

    # However many groups, whatever the campaign is called: the whole `colluding` counts in each.
    hospitals.rules = SecureRules(colluding=3)
    assert (
        outcome(
            lambda: hospitals.site(VICTIM).share(
                hospitals.terms(sites=first, groups=3, group=group[VICTIM]), EVE
            )
        )
        == "terms"
    )

    hospitals.rules = SecureRules(colluding=1)
    monkeypatch.setattr(Members, "grouped", lambda self, groups: dict.fromkeys(self.by_name, 0))
    packed = hospitals.terms(sites=[VICTIM, *friends], groups=3, group=0)
    assert hospitals.site(VICTIM).share(packed, EVE)


def test_nothing_that_a_calibrator_can_vary_changes_the_groups(seven: Federation) -> None:
    """Only the roster does, and every owner has accepted that."""
    assert seven.members.grouped(3) == Members(
        dict(reversed(list(seven.members.by_name.items())))
    ).grouped(3)
    for number in (3, 5, 7):
        sizes = list(seven.members.grouped(number).values())
        assert max(map(sizes.count, range(number))) - min(map(sizes.count, range(number))) <= 1


# --- names of questions, and who asks them ----------------------------------------------------


def test_two_questions_under_one_name_are_refused(five: Federation) -> None:
    asked = question("spring")
    terms = five.terms(asked)
    dealt = five.share(terms)
    others = [
        five.terms(question("spring", epsilon=0.25)),
        five.terms(question("spring", Gap())),
        five.terms(asked, alone=9),
        five.terms(asked, needed=5),
        five.terms(asked, sites=five.names[1:]),
    ]
    for other in others:
        assert outcome(lambda o=other: five.site("h1").share(o, EVE)) == "id_conflict"
    ordinary = five.hospitals["h1"].source
    assert outcome(lambda: ordinary.answer(asked, EVE)) == "id_conflict"
    assert ordinary.answer(question("summer"), EVE)
    assert (
        outcome(lambda: five.site("h1").share(five.terms(question("summer")), EVE)) == "id_conflict"
    )
    assert five.open(terms, "h1", dealt, five.names)


def test_half_of_the_hospitals_told_another_question_of_the_same_name_open_neither(
    five: Federation,
) -> None:
    """Honest sites deal in one of two, and each opens one of them: too few for a total of either."""
    one, other = five.terms(question("spring")), five.terms(question("spring", epsilon=0.25))
    dealt = {**five.share(one, ["h0", "h1"]), **five.share(other, ["h2", "h3"])}
    for j in five.names[:4]:
        for terms in (one, other):
            boxes = given(dealt, j, ["h0", "h1", "h2", "h3"])
            assert (
                outcome(lambda t=terms, b=boxes, j=j: five.site(j).open(t, EVE, b)) == "bad_request"
            )
            some = given(dealt, j, ["h0", "h1"])
            assert outcome(lambda t=terms, b=some, j=j: five.site(j).open(t, EVE, b)) == "terms"


def test_another_calibrator_does_not_open_what_was_dealt_for_the_first(
    five: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two calibrators who work together want a set each: their difference would be the victim."""
    without = [name for name in five.names if name != VICTIM]

    def attack() -> int:
        asked = question()
        terms = five.terms(asked)
        dealt = five.share(terms)
        eves = {j: five.open(terms, j, dealt, five.names) for j in five.names}
        anns = {}
        for j in five.names:
            boxes = given(dealt, j, without)
            assert outcome(lambda j=j, b=boxes: five.site(j).open(terms, "ann", b)) == "bad_request"
            anns[j] = five.site(j).open(five.terms(asked, asker="ann"), "ann", boxes)
        return total(terms, eves)[1] - total(terms, anns)[1]

    assert outcome(attack) == "bad_request"

    def nobodys(self: Terms) -> str:  # a digest in which the asker is not
        facts = canonical.read(self.text, 10**6)
        return hashlib.sha256(canonical.write({**facts, "asker": ""}).encode()).hexdigest()

    monkeypatch.setattr(Terms, "digest", property(nobodys))
    assert attack() == rows_of([VICTIM])


# --- ledgers: full, rolled back, reconciled ----------------------------------------------------


def snapshot(hospitals: Federation, name: str, marks: bool = False) -> Callable[[], None]:
    """A copy of a ledger as it is now, with or without its marks; calling it puts it back."""
    ledger = hospitals.hospitals[name].ledger
    assert ledger.path is not None
    files = [ledger.path, ledger.path.parent / "marks.db"][: 2 if marks else 1]
    for file in files:
        shutil.copy(file, f"{file}.copy")

    def restore() -> None:
        for file in files:
            shutil.copy(f"{file}.copy", file)

    return restore


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    no_noise(monkeypatch)
    return federation(5, folder=tmp_path)


def test_a_ledger_copied_between_sharing_and_opening_opens_no_second_set(
    on_disk: Federation,
) -> None:
    terms = on_disk.terms()
    dealt = on_disk.share(terms)
    restore = {j: snapshot(on_disk, j) for j in on_disk.names}
    without = [name for name in on_disk.names if name != VICTIM]
    for j in on_disk.names:
        on_disk.open(terms, j, dealt, on_disk.names)
        restore[j]()
        for chosen in (without, on_disk.names):
            assert (
                outcome(lambda j=j, c=chosen: on_disk.open(terms, j, dealt, c))
                == "ledger_rolled_back"
            )
        assert (
            outcome(lambda j=j: on_disk.site(j).share(on_disk.terms(), EVE)) == "ledger_rolled_back"
        )


def test_without_its_marks_a_ledger_opens_nothing(on_disk: Federation) -> None:
    terms = on_disk.terms()
    dealt = on_disk.share(terms)
    ledger = on_disk.hospitals["h1"].ledger
    assert ledger.path is not None
    (ledger.path.parent / "marks.db").unlink()
    assert outcome(lambda: on_disk.open(terms, "h1", dealt, on_disk.names)) == "ledger_rolled_back"


def test_one_site_restored_with_its_marks_counts_as_colluding_and_that_is_all(
    on_disk: Federation,
) -> None:
    """Nobody notices, it opens two sets; with all others honest there is still one total."""
    terms = on_disk.terms()
    dealt = on_disk.share(terms)
    without = [name for name in on_disk.names if name != VICTIM]
    restore = {j: snapshot(on_disk, j, marks=True) for j in on_disk.names}
    first = {j: on_disk.open(terms, j, dealt, on_disk.names) for j in on_disk.names}
    restore[FRIEND]()
    on_disk.open(terms, FRIEND, dealt, without)
    told = {j: on_disk.names for j in on_disk.names if j != FRIEND}
    assert len(known_sums(terms, told, [FRIEND])) == 1

    for j in on_disk.names:  # one provider restores all of them: two totals, and their difference
        restore[j]()
    second = {j: on_disk.open(terms, j, dealt, without) for j in on_disk.names}
    assert total(terms, first)[1] - total(terms, second)[1] == rows_of([VICTIM])


def test_a_reconciled_site_cannot_open_what_was_sealed_for_it_before(on_disk: Federation) -> None:
    terms = on_disk.terms()
    dealt = on_disk.share(terms)
    restore = snapshot(on_disk, "h1")
    on_disk.open(terms, "h1", dealt, on_disk.names)
    restore()
    hospital = on_disk.hospitals["h1"]
    old = hospital.keys
    Ledger.of(hospital.ledger).reconcile()
    without = [name for name in on_disk.names if name != VICTIM]
    boxes = given(dealt, "h1", without)

    fresh = local_keys(hospital.ledger)
    assert fresh.public != old.public
    assert fresh.sealing.public != old.sealing.public
    assert outcome(lambda: on_disk.site("h1", keys=fresh).open(terms, EVE, boxes)) == "roster"
    rejoined = Members({**on_disk.members.by_name, "h1": member(fresh)})
    again = on_disk.terms(terms.question, roster=rejoined.digest)
    site = on_disk.site("h1", keys=fresh, members=rejoined)
    assert set(site.check(again, EVE, boxes)) == set(boxes)

    # With the old keys it would: that is why they must go.
    assert on_disk.site("h1", keys=old).open(terms, EVE, boxes)


def test_what_a_restored_ledger_forgot_is_written_off_from_both_totals(on_disk: Federation) -> None:
    restore = snapshot(on_disk, "h1")
    on_disk.share(on_disk.terms(), ["h1"])
    ledger = on_disk.hospitals["h1"].ledger
    spent = (ledger.nano_spent, ledger.nano_alone)
    assert spent == (5 * 10**8, 5 * 10**9)
    restore()
    ledger.reconcile()
    assert (ledger.nano_spent, ledger.nano_alone) == spent


def test_a_site_that_deals_twice_under_one_digest_is_in_one_total_once(
    on_disk: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine restored as a whole before it shared: two dealings, both signed, both sealed."""
    terms = on_disk.terms()
    restore = snapshot(on_disk, VICTIM, marks=True)
    dealt = on_disk.share(terms)
    restore()
    monkeypatch.undo()  # the second one has noise of its own
    second = {**dealt, VICTIM: on_disk.site(VICTIM).share(terms, EVE)}
    assert second[VICTIM] != dealt[VICTIM]
    honest = [name for name in on_disk.names if name != FRIEND]
    for halves in itertools.product([False, True], repeat=4):
        versions = dict(zip(honest, halves, strict=True))
        told = {
            j: [n if n != VICTIM or not v else "again" for n in on_disk.names]
            for j, v in versions.items()
        }
        assert len(known_sums(terms, told, [FRIEND], dealers=(*on_disk.names, "again"))) <= 1
    on_disk.open(terms, "h1", dealt, on_disk.names)
    first = on_disk.open(terms, "h1", dealt, on_disk.names)
    assert on_disk.open(terms, "h1", second, on_disk.names) == first  # the set is what counts


def test_both_totals_have_a_cap_that_secure_sums_and_ordinary_questions_share() -> None:
    policy = privcal.Policy(epsilon=2.0, secure=SecureRules(colluding=1, epsilon_alone=11.0))
    hospitals = federation(5, policy=policy)
    h1 = hospitals.hospitals["h1"]
    hospitals.share(hospitals.terms(question(epsilon=1.0)), ["h1"])
    assert (h1.ledger.nano_spent, h1.ledger.nano_alone) == (10**9, 10**10)
    second = hospitals.terms(question(epsilon=0.5))
    assert (
        outcome(lambda: hospitals.site("h1").share(second, EVE)) == "over_budget"
    )  # alone: 15 of 11
    assert hospitals.site("h1").offer(second, [second.question], EVE) == "over_budget"
    assert h1.source.answer(question(epsilon=1.0), EVE)
    assert (h1.ledger.nano_spent, h1.ledger.nano_alone) == (2 * 10**9, 11 * 10**9)
    assert outcome(lambda: h1.source.answer(question(epsilon=0.001), EVE)) == "over_budget"


def test_shares_count_towards_what_may_be_asked_in_an_hour() -> None:
    hospitals = federation(5, policy=privcal.Policy(epsilon=100.0, requests_per_hour=2))
    for _ in range(2):
        hospitals.share(hospitals.terms(), ["h1"])
    assert outcome(lambda: hospitals.share(hospitals.terms(), ["h1"])) == "too_often"
    assert outcome(lambda: hospitals.hospitals["h1"].source.answer(question(), EVE)) == "too_often"


def test_an_opening_at_a_site_that_never_shared_is_recorded_and_free(five: Federation) -> None:
    terms = five.terms()
    dealers = [name for name in five.names if name != "h1"]
    dealt = five.share(terms, dealers)
    shown = five.open(terms, "h1", dealt, dealers)
    ledger = five.hospitals["h1"].ledger
    assert (ledger.nano_spent, ledger.nano_alone) == (0, 0)
    assert [entry.kind for entry in ledger.entries()] == ["policy", "opening"]
    later = {**dealt, **five.share(terms, ["h1"])}
    assert outcome(lambda: five.open(terms, "h1", later, five.names)) == "opened"
    assert five.open(terms, "h1", dealt, dealers) == shown


# --- ordinary questions, approvals --------------------------------------------------------------


def test_where_only_secure_sums_may_leave_an_ordinary_question_gets_nothing() -> None:
    rules = SecureRules(colluding=1, required=True)
    hospitals = federation(5, policy=privcal.Policy(epsilon=5.0, secure=rules))
    source = hospitals.hospitals["h1"].source
    assert outcome(lambda: source.answer(question(), EVE)) == "not_secure"
    assert source.offer([question()], EVE) == "not_secure"
    assert source.spent == 0
    assert hospitals.share(hospitals.terms(), ["h1"])


def test_what_was_approved_as_an_ordinary_campaign_is_not_approved_as_a_secure_one() -> None:
    """An ordinary question of ε costs ε against everybody; the same in a secure sum ten times that."""
    policy = privcal.Policy(epsilon=5.0, approve=True, secure=SecureRules(colluding=1))
    hospitals = federation(5, policy=policy)
    h1 = hospitals.hospitals["h1"]
    asked = question("spring")
    assert h1.source.offer([asked], EVE) == "awaiting_approval"
    [(proposal, _)] = Ledger.of(h1.ledger).waiting()
    Ledger.of(h1.ledger).approve(proposal)
    terms = hospitals.terms(asked)
    assert hospitals.site("h1").offer(terms, [asked], EVE) == "awaiting_approval"
    assert outcome(lambda: hospitals.site("h1").share(terms, EVE)) == "awaiting_approval"
    assert h1.ledger.nano_alone == 0

    other = question("autumn")
    secure = hospitals.terms(other, alone=5)
    assert hospitals.site("h1").offer(secure, [other], EVE) == "awaiting_approval"
    [proposal] = [p for p, _ in Ledger.of(h1.ledger).waiting() if p.campaign == "autumn"]
    Ledger.of(h1.ledger).approve(proposal)
    more = hospitals.terms(other, alone=10)
    assert outcome(lambda: hospitals.site("h1").share(more, EVE)) == "awaiting_approval"
    assert outcome(lambda: h1.source.answer(other, EVE)) == "awaiting_approval"
    assert hospitals.site("h1").share(secure, EVE)


# --- what refusals and checks tell ---------------------------------------------------------------


def battery(hospitals: Federation) -> list[object]:
    """What a site says to all kinds of boxes, good and bad, dealt by a friend of the calibrator."""
    terms = hospitals.terms(question("battery"))
    dealt = hospitals.share(terms)
    keys = hospitals.hospitals[FRIEND].keys
    site = hospitals.site(VICTIM)
    said: list[object] = []
    for numbers in ([0, 0], [PRIME - 1, 1], [PRIME, 0], [1], [GRID, GRID]):
        box = deal_box(terms, FRIEND, VICTIM, numbers, hospitals.members, keys)
        boxes = {**given(dealt, VICTIM, hospitals.names), FRIEND: box}
        said.append(site.check(terms, EVE, boxes))
        said.append(outcome(lambda b=boxes: site.open(terms, EVE, dict(list(b.items())[:3]))))
        swapped = {**boxes, "h1": dealt["h1"].boxes["h2"]}
        said.append(site.check(terms, EVE, swapped))
        said.append(outcome(lambda b=swapped: site.open(terms, EVE, b)))
    assert "answered" not in said
    return said


def test_neither_checks_nor_refusals_depend_on_rows_or_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Selective failure: whatever a coalition sends, what fails tells of nothing but what it sent."""
    said = [battery(federation(5, first=rows(count))) for count in (1, 400, 1, 400)]
    assert said[0] == said[1] == said[2] == said[3]

    good = boxes_module.open_box

    def telling(*args: Any) -> list[int]:  # a site that complains of shares it does not like
        numbers = good(*args)
        if numbers[0] % 2:
            raise ValueError
        return numbers

    monkeypatch.setattr(participant, "open_box", telling)
    many = [str(battery(federation(5))) for _ in range(4)]
    assert len(set(many)) > 1


def test_checking_is_free_and_leaves_no_trace(five: Federation) -> None:
    terms = five.terms()
    dealt = five.share(terms)
    ledger = five.hospitals["h1"].ledger
    before = list(ledger.export())
    boxes = given(dealt, "h1", five.names)
    for _ in range(3):
        assert five.site("h1").check(terms, EVE, boxes) == ()
    assert five.site("h1").check(terms, EVE, {}) == ()
    assert list(ledger.export()) == before


# --- sizes -----------------------------------------------------------------------------------------


def test_terms_have_limits_and_the_largest_are_good_ones() -> None:
    names = [f"h{i:04}" for i in range(1001)]
    usual: dict[str, Any] = {
        "question": question(), "asker": EVE, "alone": 1000, "rows_per_person": 1000, "roster": "r"
    }  # fmt: skip
    largest = Terms(**usual, sites=tuple(names[:1000]), colluding=0, needed=1000)
    assert (largest.threshold, largest.honest) == (667, 1000)
    assert len(largest.text) < participant.MAX_TERMS
    assert terms_module.read_terms(largest.text, participant.MAX_TERMS) == largest
    for sites, colluding, needed in [
        (names, 0, 1000),  # too many
        (names[:2], 0, 2),  # too few
        (names[:3], 2, 3),  # one honest one
        (names[:3], -1, 3),
        (names[:5], 1, 3),  # fewer than the threshold
        (names[:5], 1, 6),  # more than there are
    ]:
        with pytest.raises(InputError):
            Terms(**usual, sites=tuple(sites), colluding=colluding, needed=needed)


def test_the_table_for_the_person_who_signs_is_what_the_code_does() -> None:
    page = (ROOT / "docs/security.md").read_text("utf-8")
    rows = re.findall(r"^" + r"\| (\d+) " * 7 + r"\|$", page, re.M)
    assert len(rows) == 5
    for n, t, T, m, h, missing, two in (map(int, row) for row in rows):
        assert (t, T) == (terms_module.usual_colluding(n), terms_module.threshold(n, t))
        assert (m, h, missing) == (terms_module.usual_needed(n, t), m - t, n - m)
        assert two == 2 * T - n


def test_a_key_that_nothing_can_be_sealed_for_costs_nobody_anything(five: Federation) -> None:
    """A key of low order parses; sealing for it fails, which must be known before the charge."""
    zero = "x25519:" + "A" * 43 + "="
    bad = replace(five.members.by_name["h3"], sealing=zero)
    members = Members({**five.members.by_name, "h3": bad})
    terms = five.terms(roster=members.digest)
    assert outcome(lambda: five.site("h1", members=members).share(terms, EVE)) == "roster"
    assert five.hospitals["h1"].ledger.nano_spent == 0


# --- what is left lying about -----------------------------------------------------------------------


def test_no_plain_number_is_left_in_ledgers_logs_or_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer, its pieces and the polynomial stay in memory: noise off, to know what to look for."""
    no_noise(monkeypatch)
    hospitals = federation(5, folder=tmp_path, first=rows(4321))
    dealt_numbers: set[int] = set()
    real = sharing.split

    def split(values: list[int], threshold: int, points: int) -> list[list[int]]:
        pieces = real(values, threshold, points)
        dealt_numbers.update(v for v in values if v)
        dealt_numbers.update(v for row in pieces for v in row)
        return pieces

    monkeypatch.setattr(participant, "split", split)
    caplog.set_level(0)
    terms = hospitals.terms()
    dealt = hospitals.share(terms)
    seen = [repr(dealt), repr(hospitals.site(VICTIM)), *map(str, hospitals.hospitals.values())]
    for j in hospitals.names:
        hospitals.open(terms, j, dealt, hospitals.names)
    lost = hospitals.terms()

    def broken(*_: Any) -> list[list[int]]:
        raise ValueError(f"cannot cut {4321 * GRID}")

    monkeypatch.setattr(participant, "split", broken)
    with pytest.raises(privcal.Refused) as refused:
        hospitals.site(VICTIM).share(lost, EVE)
    error: BaseException | None = refused.value
    assert refused.value.code == "unavailable"
    while error is not None:
        seen.append(repr(error))
        error = error.__cause__
    seen += [record.getMessage() for record in caplog.records]

    def found(text: bytes) -> bool:
        spellings = {
            s for n in dealt_numbers
            for s in (str(n).encode(), n.to_bytes(16, "big"), n.to_bytes(16, "big").hex().encode())
        }  # fmt: skip
        return any(s in text for s in spellings)

    files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert len(dealt_numbers) > 25
    assert len(files) == 10
    assert not any(map(found, files))
    assert not any(found(text.encode()) for text in seen)
    assert found(f"x {4321 * GRID} y".encode())  # it would be found


def test_what_a_calibrator_keeps_of_a_secure_sum_holds_no_single_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    """Map, sketch, page and record of sources on one machine: totals alone, also with noise off."""
    answers: list[list[int]] = []

    def exact(total: Any, *_: int) -> list[int]:
        answers.append([int(v) for v in total])
        return answers[-1]

    monkeypatch.setattr(participant, "add_noise_share", exact)
    files = some_clinics(tmp_path, 6, rows=20)
    kept = tmp_path / "kept"
    kept.mkdir()
    monkeypatch.setattr(Campaign, "remove", lambda self: None)  # the record stays, to be looked at
    outputs = ("--out", kept / "map.json", "--sketch", kept / "s.json", "--html", kept / "p.html")
    (tmp_path / "policy.toml").write_text("[secure]\ncolluding = 1")
    asked = ("--method", "sketch", "--aggregation", "secure", "--new-ledger", "--per-row")
    asked = (*asked, "--policy", str(tmp_path / "policy.toml"))
    out, err = run.ok("calibrate", *files, *asked, *outputs)
    texts = [f.read_text("utf-8") for f in kept.rglob("*") if f.is_file()] + [out, err]
    assert len(texts) >= 6
    totals = {sum(column) / GRID for column in zip(*answers, strict=True)}
    single = {v / GRID for row in answers for v in row if v} - totals  # one alone is the total
    assert len(single) > 12
    told = {float(number) for text in texts for number in re.findall(r"\d+\.\d{4,}", text)}
    assert totals & told
    assert not single & told
