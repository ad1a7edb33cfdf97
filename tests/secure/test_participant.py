"""A site agrees to terms, is charged, deals; checks for nothing; opens one set for each question."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography", reason="secure sums need cryptography: privcal[secure]")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, MLKEM768X25519PrivateKey, Suite

from privcal import InputError, Policy, Question, Refused, Source
from privcal.data.ledger import Ledger
from privcal.secure import canonical, participant
from privcal.secure.canonical import to_base64
from privcal.secure.keys import SealingKey, local_keys, member
from privcal.secure.participant import Dealt, Participant, read_dealt, share_noisy_sums
from privcal.secure.sharing import PRIME, combine
from privcal.secure.terms import Member, Members, Terms
from privcal.trusted.policy import SecureRules
from privcal.trusted.queries import GRID, CellHistogram, Gap
from tests.support.builders import forged, outcome, random_scores
from tests.support.hospitals import RULES, Hospitals, about, boxes_for, hospitals

Ask = Callable[[Participant, Terms], Any]
"""Each of the things that may be asked of a site."""

ASKS: dict[str, Ask] = {
    "share": lambda site, terms: site.share(terms, "acme"),
    "check": lambda site, terms: site.check(terms, "acme", {}),
    "open": lambda site, terms: site.open(terms, "acme", {}),
}


def codes(site: Participant, terms: Terms) -> set[str]:
    """The codes with which whatever may be asked on these terms is refused."""
    offer = site.offer(terms, [terms.question], "acme")
    return {str(offer), *(outcome(partial(ask, site, terms)) for ask in ASKS.values())}


def exact(sites: Hospitals, terms: Terms) -> list[int]:
    query = terms.question.query
    return [int(v) for v in sum(sites.sites[n].source._exact(query) for n in terms.sites)]


# --- the whole of it ------------------------------------------------------------------------


def test_without_noise_the_sums_open_to_the_exact_total(no_noise: None) -> None:
    sites = hospitals(6)
    terms = sites.terms()
    dealt = sites.share(terms)
    for name, site in sites.sites.items():
        assert site.check(terms, "acme", boxes_for(name, dealt)) == ()
    sums = sites.open(terms, dealt)
    assert all(0 <= value < PRIME for numbers in sums.values() for value in numbers)
    opened = combine(sums, terms.threshold)
    assert opened is not None
    assert opened.values == exact(sites, terms)
    assert not opened.wrong


def test_boxes_decrypted_by_hand_hold_shares_of_the_exact_total(no_noise: None) -> None:
    """With nothing of ours but the keys: the library's HPKE, JSON, and Lagrange's formula."""
    sites = hospitals(5)
    terms = sites.terms()
    digest = hashlib.sha256(terms.text.encode()).hexdigest()
    dealt = {name: json.loads(each.text()) for name, each in sites.share(terms).items()}
    suite = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
    prime, total = 2**127 - 1, [0] * 6
    for point, receiver in enumerate(sorted(sites.sites), 1):
        raw = sites.keys[receiver].sealing._raw
        key = MLKEM768X25519PrivateKey(
            MLKEM768PrivateKey.from_seed_bytes(raw[:64]),
            X25519PrivateKey.from_private_bytes(raw[64:]),
        )
        weight = 1
        for other in range(1, 6):
            if other != point:
                weight = weight * other * pow(other - point, -1, prime) % prime
        for dealer, facts in dealt.items():
            box, signature = facts["boxes"][receiver]
            info = f'["privcal share 1","{digest}","{dealer}","{receiver}"]'
            signed = f'["privcal signed share 1","{digest}","{dealer}","{receiver}","{box}"]'
            public = base64.b64decode(sites.keys[dealer].public)
            Ed25519PublicKey.from_public_bytes(public).verify(
                base64.b64decode(signature), signed.encode()
            )
            plain = suite.decrypt(base64.b64decode(box), key, info=info.encode())
            assert len(plain) == 6 * 16
            for k in range(6):
                share = int.from_bytes(plain[16 * k : 16 * k + 16], "big")
                total[k] = (total[k] + weight * share) % prime
    assert total == exact(sites, terms)


def test_one_site_less_than_the_threshold_opens_nothing(no_noise: None) -> None:
    sites = hospitals(6)
    terms = sites.terms()
    sums = sites.open(terms, sites.share(terms))
    few = dict(list(sums.items())[: terms.threshold - 1])
    assert combine(few, terms.threshold) is None
    guessed = combine(few, terms.threshold - 1)
    assert guessed is None or guessed.values != exact(sites, terms)


# --- what it costs, and what is drawn -------------------------------------------------------


def test_both_totals_are_charged_before_the_rows_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sites = hospitals(4)
    terms, site = sites.terms(), sites.sites["h00"]
    seen: list[tuple[int, int]] = []
    real = Source._exact

    def look(self: Source, *args: Any) -> Any:
        seen.append((self.ledger.nano_spent, self.ledger.nano_alone))
        return real(self, *args)

    monkeypatch.setattr(Source, "_exact", look)
    site.share(terms, "acme")
    assert seen == [(500_000_000, 5_000_000_000)]


def test_the_same_terms_again_are_the_same_bytes_and_nothing_is_drawn_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sites = hospitals(4)
    terms, site = sites.terms(), sites.sites["h00"]
    first = site.share(terms, "acme")
    monkeypatch.setattr(participant, "add_noise_share", None)
    monkeypatch.setattr(Source, "_exact", None)
    assert site.share(terms, "acme").text() == first.text()
    assert sites.spent == terms.question.nano_epsilon


def test_two_terms_under_one_key_are_a_conflict() -> None:
    sites = hospitals(6)
    site, terms = sites.sites["h00"], sites.terms()
    site.share(terms, "acme")
    for other in (
        sites.terms(needed=6),
        sites.terms(colluding=2),
        sites.terms(alone=9),
        sites.terms(rows_per_person=2),
        sites.terms(sites=("h00", "h01", "h02", "h03")),
        sites.terms(about(epsilon=0.4)),
        sites.terms(about(CellHistogram(bins=4))),
    ):
        assert outcome(lambda other=other: site.share(other, "acme")) == "id_conflict"  # type: ignore[misc]
    assert sites.spent == terms.question.nano_epsilon
    assert outcome(lambda: site.source.answer(terms.question, "acme")) == "id_conflict"


def test_an_ordinary_question_under_the_same_key_is_a_conflict_too() -> None:
    sites = hospitals(4)
    site, terms = sites.sites["h00"], sites.terms()
    site.source.answer(terms.question, "acme")
    assert outcome(lambda: site.share(terms, "acme")) == "id_conflict"


def test_another_asker_asks_something_else() -> None:
    sites = hospitals(4)
    site = sites.sites["h00"]
    site.share(sites.terms(), "acme")
    site.share(sites.terms(asker="zeta"), "zeta")
    assert sites.spent == 2 * about().nano_epsilon


def test_the_noise_goes_by_the_terms_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites where one row of a person counts, and five: all draw shares of one noise."""
    asked: list[tuple[Any, ...]] = []
    real = participant.add_noise_share

    def spied(total: Any, *law: int) -> list[int]:
        asked.append(law)
        return real(total, *law)

    monkeypatch.setattr(participant, "add_noise_share", spied)
    for rows_per_person in (1, 5):
        policy = Policy(epsilon=2.0, rows_per_person=rows_per_person, secure=RULES)
        rows = [
            random_scores(20, seed=k, person=[f"p{i % 7}" for i in range(20)]) for k in range(4)
        ]
        sites = hospitals(4, scores=rows, policy=policy)
        sites.share(sites.terms(about(Gap(1.5)), rows_per_person=5, alone=7))
    assert asked == [(5 * GRID, 500_000_000, 3, 7)] * 8


def test_a_site_refuses_terms_with_fewer_rows_of_a_person_than_count_there() -> None:
    rows = [random_scores(20, seed=k, person=[f"p{i % 7}" for i in range(20)]) for k in range(4)]
    policy = Policy(epsilon=2.0, rows_per_person=5, secure=RULES)
    sites = hospitals(4, scores=rows, policy=policy)
    for fewer in (1, 4):
        assert codes(sites.sites["h00"], sites.terms(rows_per_person=fewer)) == {"terms"}
    assert sites.spent == 0
    sites.share(sites.terms(rows_per_person=6))


def test_the_noise_that_leaves_is_as_large_as_the_terms_say() -> None:
    """A site of which one row counts, on terms with five: 4,000 draws, and half the noise shows."""
    sites = hospitals(4, policy=Policy(epsilon=100.0, secure=RULES))
    site = sites.sites["h00"].source
    drawn: list[int] = []
    for number in range(20):
        question = Question.of(CellHistogram(bins=100), 1.0, f"run {number}")
        terms = sites.terms(question, rows_per_person=5)
        truth = site._exact(question.query)

        def keep(values: list[int], truth: Any = truth) -> str:
            drawn.extend(v - int(t) for v, t in zip(values, truth, strict=True))
            return "dealt"

        share_noisy_sums(site, terms, "acme", keep)
    scale = 5 * GRID
    wanted = 2 * scale**2 * (1 / terms.honest + 1 / terms.alone**2)
    # The excess kurtosis of a third of a Laplace variable is 9: 5 % of the variance, as deviation.
    assert 0.75 < float(np.mean(np.square(np.array(drawn, float)))) / wanted < 1.3


def test_what_fails_after_the_charge_is_lost_and_never_drawn_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sites = hospitals(4)
    terms, site = sites.terms(), sites.sites["h00"]

    def broken(values: list[int], *_: Any) -> Any:
        raise RuntimeError(f"no room for {values}")

    with monkeypatch.context() as patch:
        patch.setattr("privcal.secure.participant.split", broken)
        with pytest.raises(Refused) as refused:
            site.share(terms, "acme")
    assert refused.value.code == "unavailable"
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None
    assert outcome(lambda: site.share(terms, "acme")) == "lost"
    assert sites.spent == terms.question.nano_epsilon


def test_rows_that_cannot_be_read_are_unavailable_after_the_charge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sites = hospitals(4)
    terms, site = sites.terms(), sites.sites["h00"]
    monkeypatch.setattr(Source, "_exact", lambda *_: 1 / 0)
    assert outcome(lambda: site.share(terms, "acme")) == "unavailable"
    assert sites.spent == terms.question.nano_epsilon


def test_nothing_plain_is_stored_or_logged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    plain: list[int] = []

    real = participant.split

    def spied(values: list[int], *more: int) -> list[list[int]]:
        rows = real(values, *more)
        plain.extend([*values, *(v for row in rows for v in row)])
        return rows

    monkeypatch.setattr(participant, "split", spied)
    sites = hospitals(4, folder=tmp_path)
    site, terms = sites.sites["h00"], sites.terms()
    dealt = site.share(terms, "acme")
    stored = (tmp_path / "h00.db").read_bytes()
    texts = [dealt.text(), repr(dealt), repr(site), caplog.text, stored.decode("latin-1")]
    for value in plain:
        if abs(value) > 10**6:
            binary = (value % PRIME).to_bytes(16, "big")
            assert not any(str(value) in text for text in texts)
            assert binary not in stored
            assert to_base64(binary)[:20] not in texts[0]


def test_rows_beyond_the_declared_number_are_cut_off_before_the_noise(no_noise: None) -> None:
    sites = hospitals(4)
    source = sites.sites["h00"].source
    source.max_rows = 2
    seen: list[int] = []
    share_noisy_sums(source, sites.terms(), "acme", lambda values: seen.extend(values) or "dealt")  # type: ignore[func-returns-value]
    whole = random_scores(20, seed=0)
    counts = CellHistogram(bins=3).contributions(whole).sum(6)
    assert seen == [min(int(count), 2 * GRID) for count in counts]
    assert max(counts) > 2 * GRID


def test_whoever_has_used_up_their_own_budget_counts_no_more(no_noise: None) -> None:
    person = [f"p{row}" for row in range(20)]
    policy = Policy(epsilon=0.8, budget="person", secure=RULES)
    rows = [random_scores(20, seed=k, person=person) for k in range(4)]
    sites = hospitals(4, scores=rows, policy=policy)
    source = sites.sites["h00"].source
    seen: list[list[int]] = []
    for campaign in ("spring", "autumn"):
        terms = sites.terms(about(campaign=campaign))
        share_noisy_sums(source, terms, "acme", lambda values: seen.append(values) or "dealt")  # type: ignore[func-returns-value]
    assert sum(seen[0]) == 20 * GRID
    assert sum(seen[1]) == 0


def test_what_was_dealt_of_one_model_is_not_given_for_another() -> None:
    rows = [random_scores(20, seed=k, model="v1") for k in range(4)]
    sites = hospitals(4, scores=rows)
    site, terms = sites.sites["h00"], sites.terms()  # about whichever model there is
    site.share(terms, "acme")
    other = Source(random_scores(20, model="v2"), ledger=site.source.ledger)
    again = Participant("h00", other, sites.keys["h00"], sites.members, None)
    assert outcome(lambda: again.share(terms, "acme")) == "id_conflict"


# --- terms ----------------------------------------------------------------------------------


def off_by_one(terms: Terms, **wrong: object) -> Terms:
    copy = object.__new__(Terms)
    vars(copy).update({f.name: getattr(terms, f.name) for f in fields(Terms)} | wrong)
    return copy


@pytest.mark.parametrize(
    "wrong",
    [
        {"threshold": 3},
        {"threshold": 5},
        {"honest": 2},
        {"honest": 4},
        {"version": 2},
        {"needed": 3},
        {"needed": 6},
        {"needed": 5},
        {"colluding": 2},
        {"sites": ("h01", "h00", "h02", "h03", "h04")},
        {"sites": ("h00", "h00", "h01", "h02", "h03")},
        {"sites": ["h00", "h01", 2, "h03", "h04"]},
        {"sites": "h00"},
        {"alone": 0},
        {"alone": 1.5},
        {"rows_per_person": 0},
        {"groups": 2},
        {"groups": 1.0},
        {"groups": True},
        {"group": 1},
        {"threshold": 4.0},
        {"honest": True},
        {"question": forged(about(), nano_epsilon=0)},
        {"question": forged(about(), campaign="a/b")},
        {"asker": "zeta"},
        {"asker": ""},
    ],
    ids=str,
)
def test_terms_that_contradict_themselves_are_malformed(wrong: dict[str, object]) -> None:
    sites = hospitals(5)
    terms = off_by_one(sites.terms(), **wrong)
    assert codes(sites.sites["h00"], terms) == {"bad_request"}
    assert sites.spent == 0


@pytest.mark.parametrize("thing", [None, 3, "terms", {}, about()])
def test_what_are_no_terms_at_all_is_malformed(thing: Any) -> None:
    site = hospitals(3).sites["h00"]
    assert {outcome(lambda ask=ask: ask(site, thing)) for ask in ASKS.values()} == {"bad_request"}  # type: ignore[misc]


@pytest.mark.parametrize(
    ("rules", "terms", "agreed"),
    [
        (SecureRules(1), {}, True),
        (SecureRules(2), {"colluding": 2}, True),
        (SecureRules(2), {"colluding": 1}, False),
        (SecureRules(1), {"colluding": 2}, True),
        (SecureRules(1, min_honest=5), {"needed": 6}, True),
        (SecureRules(1, min_honest=6), {"needed": 6}, False),
        (SecureRules(1, alone=10), {"alone": 10}, True),
        (SecureRules(1, alone=10), {"alone": 11}, False),
        (SecureRules(1, alone=9), {"alone": 10}, False),
        (None, {}, False),
    ],
)
def test_an_owners_rules_hold_to_the_last_one(
    rules: SecureRules | None, terms: dict[str, Any], agreed: bool
) -> None:
    sites = hospitals(6, policy=Policy(epsilon=2.0, secure=rules))
    asked = sites.terms(**terms)
    site = sites.sites["h00"]
    if agreed:
        assert site.offer(asked, [asked.question], "acme") is None
        site.share(asked, "acme")
    else:
        assert codes(site, asked) == {"terms"}
        assert sites.spent == 0


def test_a_small_epsilon_lets_no_larger_share_alone() -> None:
    """The floor is a ratio: with alone = 10, an ε of 0.01 never loses more than 0.1 to all others."""
    sites = hospitals(4)
    for alone in (11, 100, 1000):
        assert codes(sites.sites["h00"], sites.terms(about(epsilon=0.01), alone=alone)) == {"terms"}
    assert sites.spent == 0


def test_rules_that_a_participant_is_given_narrow_those_of_the_policy() -> None:
    sites = hospitals(6)
    old = sites.sites["h00"]
    for rules, wanted in (
        (SecureRules(2), "terms"),
        (SecureRules(0, alone=5), "terms"),
        (SecureRules(0, roster="another"), "roster"),
    ):
        site = Participant("h00", old.source, sites.keys["h00"], sites.members, rules)
        assert codes(site, sites.terms()) == {wanted}
    assert sites.spent == 0


def test_rules_given_are_enough_where_the_policy_says_nothing() -> None:
    sites = hospitals(6, policy=Policy(epsilon=2.0))
    source, keys = sites.sites["h00"].source, sites.keys["h00"]
    site = Participant("h00", source, keys, sites.members, SecureRules(1))
    assert site.offer(sites.terms(), [about()], "acme") is None
    site.share(sites.terms(), "acme")


def test_rules_given_let_nobody_learn_more_than_the_total_of_an_owner_who_says_nothing(
    tmp_path: Path,
) -> None:
    sites = hospitals(4, folder=tmp_path)
    site, terms = sites.sites["h00"], sites.terms()
    Ledger.of(site.source.ledger).set_policy(Policy(epsilon=2.0))
    given = Participant("h00", site.source, sites.keys["h00"], sites.members, SecureRules(1))
    assert given.offer(terms, [terms.question], "acme") == "over_budget"  # 10 times 0.5
    assert outcome(lambda: given.share(terms, "acme")) == "over_budget"
    given.share(replace(terms, question=about(epsilon=0.2)), "acme")
    assert site.source.ledger.nano_alone == 2_000_000_000


def test_an_owner_who_changes_the_rules_is_heard_at_once() -> None:
    sites = hospitals(6)
    site, terms = sites.sites["h00"], sites.terms()
    dealt = sites.share(terms)
    Ledger.of(site.source.ledger).set_policy(Policy(epsilon=2.0, secure=SecureRules(2)))
    assert outcome(lambda: site.open(terms, "acme", boxes_for("h00", dealt))) == "terms"


def test_another_roster_is_refused() -> None:
    sites = hospitals(4)
    site = sites.sites["h00"]
    assert codes(site, sites.terms(roster="0000 0000")) == {"roster"}
    pinned = Policy(epsilon=2.0, secure=replace(RULES, roster="0000 0000"))
    Ledger.of(site.source.ledger).set_policy(pinned)
    assert codes(site, sites.terms()) == {"roster"}
    Ledger.of(site.source.ledger).set_policy(
        Policy(epsilon=2.0, secure=replace(RULES, roster=sites.members.digest))
    )
    site.share(sites.terms(), "acme")


@pytest.mark.parametrize("names", [("h00", "h01", "h02", "x"), ("h01", "h02", "h03")])
def test_sites_are_of_the_roster_and_this_one_among_them(names: tuple[str, ...]) -> None:
    sites = hospitals(4)
    assert codes(sites.sites["h00"], sites.terms(sites=names)) == {"roster"}
    assert sites.spent == 0


def test_a_site_whose_keys_the_roster_does_not_have_refuses() -> None:
    other = member(local_keys(Ledger.in_memory()))
    sites = hospitals(4, members={"h00": other})
    assert codes(sites.sites["h00"], sites.terms()) == {"roster"}
    assert sites.spent == 0


def test_a_group_is_what_the_roster_makes_it() -> None:
    sites = hospitals(12)
    groups = sites.members.grouped(3)
    mine = groups["h00"]
    together = [name for name, group in groups.items() if group == mine]
    site = sites.sites["h00"]
    elsewhere = next(name for name, group in groups.items() if group != mine)
    swapped = [elsewhere, "h00", *(name for name in together if name != "h00")][: len(together)]
    assert codes(site, sites.terms(sites=swapped, groups=3, group=mine)) == {"terms"}
    assert codes(site, sites.terms(sites=together, groups=3, group=(mine + 1) % 3)) == {"terms"}
    assert sites.spent == 0
    site.share(sites.terms(sites=together, groups=3, group=mine), "acme")


def test_the_policy_is_asked_as_for_any_question() -> None:
    rules = {"epsilon": 2.0, "secure": RULES}
    for more, wanted in (
        ({"askers": ("zeta",)}, "asker"),
        ({"queries": ("nll",)}, "query"),
        ({"epsilon_per_request": 0.4}, "over_request_limit"),
        ({"minimum_epsilon": 0.6}, "under_minimum"),
    ):
        sites = hospitals(4, policy=Policy(**rules, **more))  # type: ignore[arg-type]
        assert codes(sites.sites["h00"], sites.terms()) == {wanted}
        assert sites.spent == 0


def test_scores_that_lack_what_is_asked_refuse_before_the_charge() -> None:
    from privcal.trusted.queries import EventHats

    sites = hospitals(4)
    question = about(EventHats(knots=(-2.0, 0.0, 2.0), event=7))
    terms = sites.terms(question)
    assert outcome(lambda: sites.sites["h00"].share(terms, "acme")) == "model"
    assert sites.spent == 0


def test_nothing_ordinary_leaves_where_the_policy_wants_secure_sums() -> None:
    policy = Policy(epsilon=2.0, secure=replace(RULES, required=True))
    sites = hospitals(4, policy=policy)
    source = sites.sites["h00"].source
    assert outcome(lambda: source.answer(about(), "acme")) == "not_secure"
    assert source.offer([about()], "acme") == "not_secure"
    assert sites.spent == 0
    sites.share(sites.terms())


def test_an_offer_is_refused_where_either_total_would_not_do() -> None:
    for policy in (
        Policy(epsilon=0.4, epsilon_per_request=0.5, secure=RULES),
        Policy(epsilon=2.0, secure=replace(RULES, epsilon_alone=4.9)),
    ):
        sites = hospitals(4, policy=policy)
        terms, site = sites.terms(), sites.sites["h00"]
        refused = site.offer(terms, [terms.question], "acme")
        assert refused in ("over_budget", "over_request_limit")
        assert outcome(lambda site=site, terms=terms: site.share(terms, "acme")) == refused  # type: ignore[misc]
        assert sites.spent == 0


# --- keys -----------------------------------------------------------------------------------


def bad_keys() -> dict[str, Member]:
    good = member(local_keys(Ledger.in_memory()))
    suite, _, public = good.sealing.partition(":")
    low = base64.b64decode(public)[:-32] + bytes(32)
    one = bytes([1]) + bytes(31)
    return {
        "sealing zero": replace(good, sealing=f"{suite}:{to_base64(low)}"),
        "sealing x25519 zero": replace(good, sealing=f"x25519:{to_base64(bytes(32))}"),
        "sealing of low order": replace(good, sealing=f"x25519:{to_base64(one)}"),
        "sealing not base64": replace(good, sealing="x25519:!"),
        "sealing of no suite": replace(good, sealing="rot13:aaaa"),
        "sealing empty": replace(good, sealing=""),
        "sealing broken ml-kem": replace(
            good, sealing=f"{suite}:{to_base64(bytes([255]) * 1184 + low[:32])}"
        ),
        "signing of low order": replace(good, signing=to_base64(one)),
        "signing empty": replace(good, signing=""),
    }


@pytest.mark.parametrize("bad", bad_keys().values(), ids=bad_keys())
def test_a_key_that_nothing_can_be_sealed_for_costs_nothing(bad: Member) -> None:
    sites = hospitals(5, members={"h03": bad})
    site, terms = sites.sites["h00"], sites.terms()
    for _ in range(2):  # what was found out once is remembered
        assert codes(site, terms) == {"roster"}
    assert sites.spent == 0
    site.share(sites.terms(sites=("h00", "h01", "h02", "h04")), "acme")  # the others can go on


def test_keys_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:

    tried: list[str] = []
    real = participant.check_public_key
    monkeypatch.setattr(
        participant, "check_public_key", lambda public: (tried.append(public), real(public))
    )
    sites = hospitals(4)
    site = sites.sites["h00"]
    for campaign in ("spring", "autumn"):
        site.share(sites.terms(about(campaign=campaign)), "acme")
    assert sorted(tried) == sorted(m.sealing for m in sites.members.by_name.values())


def test_two_members_cannot_have_a_key_in_common() -> None:
    sites = hospitals(4)
    one = sites.members.by_name["h01"]
    for twin in (one, replace(one, sealing=SealingKey.make().public), replace(one, signing="x")):
        members = Members({**sites.members.by_name, "h02": twin})
        with pytest.raises(InputError, match="key in common"):
            Participant("h00", sites.sites["h00"].source, sites.keys["h00"], members, None)


# --- check and open -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared() -> tuple[Hospitals, Terms, dict[str, Dealt]]:
    sites = hospitals(6)
    terms = sites.terms()
    return sites, terms, sites.share(terms)


def fresh(count: int = 6) -> tuple[Hospitals, Terms, dict[str, Dealt]]:
    sites = hospitals(count)
    terms = sites.terms()
    return sites, terms, sites.share(terms)


Shared = tuple[Hospitals, Terms, dict[str, Dealt]]


def test_check_names_the_dealers_whose_boxes_are_bad(shared: Shared) -> None:
    sites, terms, dealt = shared
    boxes = boxes_for("h00", dealt)
    bad: dict[str, Any] = {
        **boxes,
        "h01": boxes["h02"],
        "h03": dealt["h03"].boxes["h01"],
        "h04": None,
        "h05": (boxes["h05"][0], boxes["h01"][1]),
    }
    site = sites.sites["h00"]
    assert site.check(terms, "acme", bad) == ("h01", "h03", "h04", "h05")
    assert site.check(terms, "acme", {"h02": boxes["h02"]}) == ()
    assert site.check(terms, "acme", {"h02": boxes["h01"]}) == ("h02",)


def test_check_costs_nothing_and_leaves_no_trace(shared: Shared) -> None:
    sites, terms, dealt = shared
    site = sites.sites["h00"]
    before = len(Ledger.of(site.source.ledger).entries())
    site.check(terms, "acme", boxes_for("h00", dealt))
    assert len(Ledger.of(site.source.ledger).entries()) == before


@pytest.mark.parametrize("boxes", [{"x": None}, {"h00": None, "x": None}, [], None, {1: 2}, "h00"])
def test_boxes_of_strangers_are_malformed(shared: Shared, boxes: Any) -> None:
    sites, terms, _ = shared
    site = sites.sites["h00"]
    assert outcome(lambda: site.check(terms, "acme", boxes)) == "bad_request"
    assert outcome(lambda: site.open(terms, "acme", boxes)) == "bad_request"


def test_the_same_set_again_gives_the_same_numbers_and_another_is_refused() -> None:
    sites, terms, dealt = fresh()
    site, boxes = sites.sites["h00"], boxes_for("h00", dealt)
    first = site.open(terms, "acme", boxes)
    assert site.open(terms, "acme", dict(reversed(boxes.items()))) == first
    without = {name: box for name, box in boxes.items() if name != "h03"}
    assert len(without) >= terms.needed
    assert outcome(lambda: site.open(terms, "acme", without)) == "opened"
    assert site.open(terms, "acme", boxes) == first


def test_one_opening_for_each_question_on_whatever_terms() -> None:
    """Other terms under the same key are another set too: one opening, not one for each digest."""
    sites, terms, dealt = fresh()
    site = sites.sites["h00"]
    site.open(terms, "acme", boxes_for("h00", dealt))
    other = sites.terms(needed=6)
    names = [name for name in sites.sites if name != "h00"]
    elsewhere = hospitals(6)  # the others deal on other terms: their ledgers were rolled back
    again = {name: reborn(sites, name, elsewhere).share(other, "acme") for name in names}
    again["h00"] = reborn(sites, "h00", elsewhere).share(other, "acme")
    assert outcome(lambda: site.open(other, "acme", boxes_for("h00", again))) == "opened"


def reborn(sites: Hospitals, name: str, elsewhere: Hospitals) -> Participant:
    """A site with a ledger that remembers nothing, and the old keys."""
    source = elsewhere.sites[name].source
    return Participant(name, source, sites.keys[name], sites.members, None)


def test_a_site_that_did_not_share_opens_all_the_same() -> None:
    sites = hospitals(6)
    terms = sites.terms()
    dealt = {name: sites.sites[name].share(terms, "acme") for name in list(terms.sites)[1:]}
    opened = sites.open(terms, dealt)
    assert combine(opened, terms.threshold) is not None
    ledger = sites.sites["h00"].source.ledger
    assert ledger.nano_spent == 0 == ledger.nano_alone
    without = {k: v for k, v in boxes_for("h00", dealt).items() if k != "h05"}
    assert outcome(lambda: sites.sites["h00"].open(terms, "acme", without)) in ("terms", "opened")


def test_fewer_than_needed_are_not_opened() -> None:
    sites, terms, dealt = fresh()
    boxes = boxes_for("h00", dealt)
    few = dict(list(boxes.items())[: terms.needed - 1])
    site = sites.sites["h00"]
    assert outcome(lambda: site.open(terms, "acme", few)) == "terms"
    site.open(terms, "acme", dict(list(boxes.items())[: terms.needed]))


def test_one_bad_box_and_nothing_is_opened_or_recorded() -> None:
    sites, terms, dealt = fresh()
    site, boxes = sites.sites["h00"], boxes_for("h00", dealt)
    before = len(Ledger.of(site.source.ledger).entries())
    for bad in (None, boxes["h01"], (boxes["h05"][0], boxes["h01"][1])):
        assert (
            outcome(lambda bad=bad: site.open(terms, "acme", {**boxes, "h05": bad}))
            == "bad_request"
        )  # type: ignore[misc]
    assert len(Ledger.of(site.source.ledger).entries()) == before
    without = {name: box for name, box in boxes.items() if name != "h05"}
    site.open(terms, "acme", without)  # one set for each question: none was opened yet


def test_boxes_of_another_question_do_not_open() -> None:
    sites, terms, dealt = fresh()
    other = sites.terms(about(campaign="autumn"))
    assert sites.sites["h00"].check(other, "acme", boxes_for("h00", dealt)) == terms.sites


def test_what_was_shared_for_one_asker_opens_for_no_other() -> None:
    sites, terms, dealt = fresh()
    site, boxes = sites.sites["h00"], boxes_for("h00", dealt)
    assert outcome(lambda: site.open(terms, "zeta", boxes)) == "bad_request"
    assert outcome(lambda: site.open(replace(terms, asker="zeta"), "zeta", boxes)) == "bad_request"


def test_a_reconciled_ledger_opens_nothing_that_was_sealed_before(tmp_path: Path) -> None:
    sites = hospitals(4, folder=tmp_path)
    site, terms = sites.sites["h00"], sites.terms()
    dealt = site.share(terms, "acme")
    Ledger.of(site.source.ledger).reconcile()
    keys = local_keys(site.source.ledger)
    again = Participant("h00", site.source, keys, sites.members, None)
    assert outcome(lambda: again.check(terms, "acme", {"h00": dealt.boxes["h00"]})) == "roster"


def test_a_copy_from_between_share_and_open_is_noticed(tmp_path: Path) -> None:
    sites = hospitals(4, folder=tmp_path)
    site, terms = sites.sites["h00"], sites.terms()
    dealt = sites.share(terms)
    copy = (tmp_path / "h00.db").read_bytes()
    site.open(terms, "acme", boxes_for("h00", dealt))
    (tmp_path / "h00.db").write_bytes(copy)
    assert (
        outcome(lambda: site.open(terms, "acme", boxes_for("h00", dealt))) == "ledger_rolled_back"
    )


# --- at the same time -----------------------------------------------------------------------


def at_once(count: int, ask: Callable[[int], Any]) -> list[Any]:
    """What so many threads get who ask at the same time: a value, or a code."""
    results: list[Any] = [None] * count
    barrier = threading.Barrier(count)

    def run(k: int) -> None:
        barrier.wait()
        try:
            results[k] = ask(k)
        except Refused as refused:
            results[k] = refused.code

    threads = [threading.Thread(target=run, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_threads_that_share_at_once_charge_once_and_get_one_text() -> None:
    sites = hospitals(4)
    terms, site = sites.terms(), sites.sites["h00"]
    got = at_once(6, lambda _: site.share(terms, "acme").text())
    texts = {each for each in got if each != "lost"}
    assert len(texts) == 1
    assert sites.spent == terms.question.nano_epsilon
    assert site.share(terms, "acme").text() in texts


def test_threads_that_open_different_sets_at_once_get_one() -> None:
    sites, terms, dealt = fresh()
    site, boxes = sites.sites["h00"], boxes_for("h00", dealt)
    sets = [{k: v for k, v in boxes.items() if k != left} for left in sorted(boxes)]
    got = at_once(len(sets), lambda k: site.open(terms, "acme", sets[k]))
    assert sorted(map(str, got)).count("opened") == len(sets) - 1


def in_a_fork(ask: Callable[[], Any]) -> Callable[[], str]:
    """A copy of this process begins to ask; what comes of it, a value or a code, is to be waited for."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, str(ask()).encode())
        except Refused as refused:
            os.write(write, refused.code.encode())
        finally:
            os._exit(0)
    os.close(write)

    def result() -> str:
        os.waitpid(child, 0)
        with os.fdopen(read, "rb") as pipe:
            return pipe.read().decode()

    return result


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


@forks
def test_a_forked_copy_in_memory_opens_nothing() -> None:
    sites, terms, dealt = fresh()
    site, boxes = sites.sites["h00"], boxes_for("h00", dealt)
    assert in_a_fork(lambda: site.open(terms, "acme", boxes))() == "unavailable"


@forks
def test_processes_that_open_different_sets_at_once_get_one(tmp_path: Path) -> None:
    sites = hospitals(6, folder=tmp_path)
    terms = sites.terms()
    site, boxes = sites.sites["h00"], boxes_for("h00", sites.share(terms))
    sets = [{k: v for k, v in boxes.items() if k != left} for left in ("h03", "h04", "h05")]
    asked = [in_a_fork(partial(site.open, terms, "acme", each)) for each in sets]
    got = [result() for result in asked]
    assert got.count("opened") == 2
    [shown] = {each for each in got if each != "opened"}
    again = [in_a_fork(partial(site.open, terms, "acme", each))() for each in sets]
    assert again == got
    assert shown.startswith("[")


# --- what is dealt, as text -----------------------------------------------------------------


def test_what_was_dealt_reads_as_it_was_written(shared: Shared) -> None:
    _, terms, dealt = shared
    for each in dealt.values():
        assert read_dealt(each.text(), terms) == each


def spoiled(facts: dict[str, Any], how: str) -> Any:
    boxes = {name: list(box) for name, box in facts["boxes"].items()}
    box, signature = boxes["h00"]
    other: dict[str, Any] = {
        "more parts": {**facts, "more": 1},
        "fewer parts": {k: v for k, v in facts.items() if k != "max_rows"},
        "no box of one": {**facts, "boxes": {k: v for k, v in boxes.items() if k != "h00"}},
        "a box for a stranger": {**facts, "boxes": {**boxes, "x": boxes["h00"]}},
        "boxes in a list": {**facts, "boxes": list(boxes.values())},
        "a box of one part": {**facts, "boxes": {**boxes, "h00": [box]}},
        "a box of three": {**facts, "boxes": {**boxes, "h00": [box, signature, ""]}},
        "a box that is none": {**facts, "boxes": {**boxes, "h00": None}},
        "a box too short": {**facts, "boxes": {**boxes, "h00": [box[4:], signature]}},
        "a box too long": {**facts, "boxes": {**boxes, "h00": ["AAAA" + box, signature]}},
        "no signature": {**facts, "boxes": {**boxes, "h00": [box, ""]}},
        "a long signature": {**facts, "boxes": {**boxes, "h00": [box, signature * 2]}},
        "a signature of numbers": {**facts, "boxes": {**boxes, "h00": [box, 5]}},
        "rows below one": {**facts, "max_rows": 0},
        "rows true": {**facts, "max_rows": True},
        "rows in parts": {**facts, "max_rows": 1.5},
        "a ledger of another kind": {**facts, "ledger": 5},
        "a ledger without a name": {**facts, "ledger": ""},
        "a ledger with a line": {**facts, "ledger": "a\nb"},
        "a list": [facts],
    }
    return other[how]


@pytest.mark.parametrize(
    "how",
    [
        "more parts", "fewer parts", "no box of one", "a box for a stranger", "boxes in a list",
        "a box of one part", "a box of three", "a box that is none", "a box too short",
        "a box too long", "no signature", "a long signature", "a signature of numbers",
        "rows below one", "rows true", "rows in parts", "a ledger of another kind",
        "a ledger without a name", "a ledger with a line", "a list",
    ],
)  # fmt: skip
def test_what_was_dealt_has_one_spelling(shared: Shared, how: str) -> None:
    _, terms, dealt = shared
    text = dealt["h00"].text()
    with pytest.raises(InputError):
        read_dealt(canonical.write(spoiled(json.loads(text), how)), terms)
    for other in (text + " ", " " + text, text.replace(":", ": ", 1), text * 2, text[:-1], None):
        with pytest.raises(InputError):
            read_dealt(other, terms)


def test_what_was_dealt_cannot_be_longer_than_boxes_are(shared: Shared) -> None:
    _, terms, dealt = shared
    long = replace(dealt["h00"], ledger="x" * 200)
    assert read_dealt(long.text(), terms) == long
    with pytest.raises(InputError):
        read_dealt("{" + " " * (len(long.text()) * 3) + "}", terms)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=6,
)
NAMED = st.dictionaries(st.sampled_from(["h00", "h01", "h02", "h03", "h04", "h05", "x"]), ANYTHING)


@given(ANYTHING | NAMED)
@settings(max_examples=150)
def test_whatever_is_sent_for_boxes_the_answer_is_a_fixed_code(shared: Shared, boxes: Any) -> None:
    sites, terms, _ = shared
    site = sites.sites["h00"]
    entries = len(Ledger.of(site.source.ledger).entries())
    with pytest.raises(Refused):
        site.open(terms, "acme", boxes)
    if isinstance(boxes, dict) and set(terms.sites) >= set(boxes):
        assert set(site.check(terms, "acme", boxes)) == set(boxes)
    else:
        assert outcome(lambda: site.check(terms, "acme", boxes)) == "bad_request"
    assert len(Ledger.of(site.source.ledger).entries()) == entries


@given(st.sampled_from([f.name for f in fields(Terms)]), ANYTHING)
@settings(max_examples=200)
def test_whatever_is_sent_for_terms_the_answer_is_a_fixed_code(
    shared: Shared, name: str, value: Any
) -> None:
    sites, terms, _ = shared
    site, spent = sites.sites["h00"], sites.spent
    wrong = off_by_one(terms, **{name: value})
    for ask in ASKS.values():
        try:
            ask(site, wrong)
        except Refused:
            pass
        else:
            assert wrong.text == terms.text or ask is ASKS["check"]
    assert sites.spent == spent
