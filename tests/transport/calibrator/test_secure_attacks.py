"""A malicious calibrator with good keys, against the sites of a federation in secure sums."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="secure sums need cryptography: privcal[secure]")

from privcal.secure.keys import seal
from privcal.secure.sharing import combine
from privcal.secure.terms import Terms
from privcal.transport.calibrator.secure import SecureSites
from tests.support import asking
from tests.support.letters import BOB, Federation, InProcess, federation, rules
from tests.support.secure_sums import agreed, boxes_of, codes, opened, policy, shared

NAMES = tuple(f"site-{n}" for n in range(1, 6))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Five sites that answer; each test has campaigns of its own."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVCAL_MARKS", str(folder / "marks.db"))
        patch.setattr("privcal.transport.site.service.Child", InProcess)
        found = federation(folder, 5, policy=policy(rules()))
        with asking.answering(found):
            yield found
        found.stop()


@pytest.fixture(autouse=True)
def _marks(made: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVCAL_MARKS", str(made.folder / "marks.db"))


@pytest.fixture(scope="module")
def way(made: Federation) -> SecureSites:
    return SecureSites(asking.sites(made))


@pytest.fixture(scope="module")
def bobs(made: Federation) -> SecureSites:
    return SecureSites(asking.sites(made, BOB))


def spent(made: Federation) -> dict[str, tuple[int, int]]:
    return {n: (made.ledger(n).nano_spent, made.ledger(n).nano_alone) for n in NAMES}


@contextmanager
def owner_wants(made: Federation, name: str, **more: Any) -> Iterator[None]:
    """Meanwhile a site has other rules."""
    made.ledger(name).set_policy(policy(**{"secure": rules(), **more}))
    try:
        yield
    finally:
        made.ledger(name).set_policy(policy(rules()))


def open_at(way: SecureSites, terms: Terms, dealt: Any, site: str, dealers: Any = NAMES) -> Any:
    return codes(way.open(terms, boxes_of(dealt, [site], dealers)))[site]


def test_different_sets_told_to_different_sites_open_neither(
    made: Federation, way: SecureSites
) -> None:
    """No four of the parts fit: whatever is made of them is not the sum of either set."""
    terms = agreed(way, NAMES, "different sets")
    dealt = shared(way, terms)
    first, second = NAMES[:4], NAMES[1:]
    sums = {n: open_at(way, terms, dealt, n, first) for n in ("site-1", "site-2", "site-3")}
    sums |= {n: open_at(way, terms, dealt, n, second) for n in ("site-4", "site-5")}
    assert all(isinstance(row, tuple) for row in sums.values())
    points = {terms.point(name): row for name, row in sums.items()}
    assert combine(points, terms.threshold) is None
    for four in itertools.combinations(points, 4):
        found = combine({point: points[point] for point in four}, terms.threshold)
        assert found is None or all(abs(value) > 2**80 for value in found.values)
    for name in ("site-1", "site-2", "site-3"):
        assert open_at(way, terms, dealt, name, second) == "opened"
    for name in ("site-4", "site-5"):
        assert open_at(way, terms, dealt, name, first) == "opened"


def test_a_set_and_then_the_same_without_one_is_refused(made: Federation, way: SecureSites) -> None:
    terms = agreed(way, NAMES, "without one")
    dealt = shared(way, terms)
    total = opened(terms, codes(way.open(terms, boxes_of(dealt, NAMES))))
    for victim in NAMES:
        rest = tuple(name for name in NAMES if name != victim)
        assert set(codes(way.open(terms, boxes_of(dealt, NAMES, rest))).values()) == {"opened"}
    assert opened(terms, codes(way.open(terms, boxes_of(dealt, NAMES)))) == total


def test_fewer_than_are_needed_are_never_opened(way: SecureSites) -> None:
    terms = agreed(way, NAMES, "few")
    dealt = shared(way, terms)
    for dealers in (NAMES[:1], NAMES[:3]):
        assert open_at(way, terms, dealt, "site-1", dealers) == "terms"


def test_terms_that_promise_less_than_an_owner_wants_are_refused_and_cost_nothing(
    made: Federation, way: SecureSites
) -> None:
    before = spent(made)
    weak: dict[str, tuple[dict[str, Any], str]] = {
        "nobody colludes": ({"colluding": 0}, "terms"),
        "more seen by all others": ({"alone": 11}, "terms"),
        "another roster": ({"roster": " ".join(["0a1b"] * 12)}, "roster"),
    }
    for what, (facts, wanted) in weak.items():
        terms = agreed(way, NAMES, f"weak, {what}", **facts)
        assert set(codes(way.share(terms, NAMES)).values()) == {wanted}, what
    terms = replace(agreed(way, NAMES, "weak, another asker"), asker=BOB)
    assert set(codes(way.share(terms, NAMES)).values()) == {"bad_request"}
    with owner_wants(made, "site-1", secure=rules(min_honest=4)):
        terms = agreed(way, NAMES, "weak, honest")
        assert codes(way.share(terms, ["site-1"])) == {"site-1": "terms"}
    assert spent(made) == before


def test_an_invented_site_is_not_summed_with(way: SecureSites) -> None:
    terms = agreed(way, (*NAMES, "site-6"), "invented")
    assert set(codes(way.share(terms, NAMES)).values()) == {"roster"}


def test_one_question_on_two_terms_is_refused_by_whoever_dealt_on_the_first(
    made: Federation, way: SecureSites
) -> None:
    terms = agreed(way, NAMES, "two terms")
    shared(way, terms)
    before = spent(made)
    for other in (replace(terms, alone=9), agreed(way, NAMES, "two terms", needed=5)):
        assert set(codes(way.share(other, NAMES)).values()) == {"id_conflict"}
    sites = way._sites.ask(NAMES, terms.question)  # the same in an ordinary question
    assert set(codes(sites).values()) == {"id_conflict"}
    assert spent(made) == before


def test_boxes_that_were_dealt_for_something_else_do_not_open(way: SecureSites) -> None:
    terms, other = agreed(way, NAMES, "boxes"), agreed(way, NAMES, "other boxes")
    dealt, elsewhere = shared(way, terms), shared(way, other)
    good = boxes_of(dealt, ["site-1"])["site-1"]
    sealed, signature = good["site-2"]
    invented = seal(way.members.by_name["site-1"].sealing, bytes(16), b"privcal share 1")
    bad = {
        "of another question": elsewhere["site-2"].boxes["site-1"],
        "for another site": dealt["site-2"].boxes["site-3"],
        "of another dealer": dealt["site-3"].boxes["site-1"],
        "under another's signature": (sealed, good["site-3"][1]),
        "altered": (f"{sealed[:-8]}AAAAAAA=", signature),
        "of the calibrator's own": (base64.b64encode(invented).decode(), signature),
        "empty": ("", ""),
    }
    for what, box in bad.items():
        boxes = {"site-1": {**good, "site-2": box}}
        assert codes(way.check(terms, boxes)) == {"site-1": ("site-2",)}, what
        assert codes(way.open(terms, boxes)) == {"site-1": "bad_request"}, what
    assert isinstance(open_at(way, terms, dealt, "site-1"), tuple), "and the good ones do"


def test_another_calibrator_opens_nothing_that_was_dealt_for_the_first(
    made: Federation, way: SecureSites, bobs: SecureSites
) -> None:
    terms = agreed(way, NAMES, "ann's")
    dealt = shared(way, terms)
    boxes = boxes_of(dealt, NAMES)
    assert set(codes(bobs.open(terms, boxes)).values()) == {"bad_request"}, "in ann's name"
    assert set(codes(bobs.check(terms, boxes)).values()) == {"bad_request"}
    assert set(codes(bobs.share(terms, NAMES)).values()) == {"bad_request"}
    own = replace(terms, asker=BOB)
    assert codes(bobs.check(own, boxes)) == dict.fromkeys(NAMES, NAMES), "in his own"
    assert set(codes(bobs.open(own, boxes)).values()) == {"bad_request"}
