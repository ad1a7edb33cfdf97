"""Secure sums over a federation in one process: what sites agree to, what they open, what it costs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import privcal
from privcal.data import opening
from privcal.data.ledger import Ledger
from privcal.data.place import Data
from privcal.trusted.errors import CalibrationError

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")

from privcal.secure.panel import SecurePanel
from privcal.transport.federation import inspection
from privcal.transport.federation.calibrator import panel as calibrator_panel
from privcal.transport.federation.calibrator.panel import Sites
from privcal.transport.federation.calibrator.secure import SecureSites
from privcal.transport.federation.shared.messages import Opened
from privcal.transport.federation.shared.requests import Reply
from privcal.transport.federation.shared.roster import stored_roster
from privcal.transport.federation.site import health, keys, service, setup, worker
from privcal.transport.federation.site import settings as site
from privcal.transport.federation.site.keys import SiteKeys
from privcal.transport.federation.site.log import LOG
from privcal.transport.federation.site.service import Service
from privcal.transport.federation.site.sums import members
from tests.support import federation_parts as parts
from tests.support import secure_sums as sums
from tests.support.federation_parts import ANN, MODEL, question
from tests.support.secure_sums import (
    agreed,
    boxes_of,
    codes,
    exact,
    exchange_rosters,
    ledger_of,
    opened,
    policy,
    rules,
    shared,
    summed,
)

NAMES = tuple(f"site-{n}" for n in range(1, 6))


class InProcess:
    """Instead of the child: what it does, without its process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def ask(self, opened: Opened) -> Reply:
        return worker.safely(self.folder, opened.asker, opened.request)

    def wake(self) -> None: ...

    def stop(self) -> None: ...


class Direct:
    """Instead of a network: messages go straight to the sites; what was sent is kept."""

    def __init__(self, services: dict[str, Service]) -> None:
        self.services, self.gone = services, set[str]()
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, kit: Path) -> Direct:
        return self

    def open(self) -> None: ...

    def close(self) -> None: ...

    def ask_all(
        self, topic: str, messages: dict[str, bytes], timeout: float
    ) -> Iterator[tuple[str, str | None]]:
        for name, message in messages.items():
            if topic == "ask":
                self.sent.append((name, json.loads(json.loads(message)["request"])))
            if name in self.gone:
                yield name, None
            else:
                yield name, self.services[name].answer(topic, message).decode()


class Lab:
    """Five sites and a calibrator; a test changes what it likes."""

    def __init__(
        self, kits: Path, services: dict[str, Service], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.kits, self.warned = kits, list[str]()
        self.held: list[str] = []
        monkeypatch.setattr(service, "hold", lambda *_: self.held.append("held"))
        self.link = Direct(services)
        monkeypatch.setattr(calibrator_panel, "Link", self.link)

    @contextmanager
    def way(self, who: str = ANN) -> Iterator[SecureSites]:
        with Sites(self.kits / who, warn=self.warned.append) as sites:
            yield SecureSites(sites, self.warned.append)

    def ledger(self, name: str) -> Ledger:
        return ledger_of(self.kits, name)

    def spent(self) -> dict[str, tuple[int, int]]:
        return {n: (self.ledger(n).nano_spent, self.ledger(n).nano_alone) for n in NAMES}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVCAL_MARKS", str(folder / "marks.db"))
        kits = parts.make_kits(folder / "kits", sites=len(NAMES))
        sums.set_up(kits, NAMES)
    return folder


@pytest.fixture(scope="module")
def services(made: Path) -> dict[str, Service]:
    """They read what is theirs anew for every message, but for their cards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "Child", InProcess)
        return {name: Service(made / "kits" / name) for name in NAMES}


@pytest.fixture
def lab(
    made: Path, services: dict[str, Service], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lab]:
    """A copy of its own, in the same place: a ledger knows where it is."""
    kept = tmp_path / "kept"
    shutil.copytree(made, kept, symlinks=True)
    monkeypatch.setenv("PRIVCAL_MARKS", str(made / "marks.db"))
    yield Lab(made / "kits", services, monkeypatch)
    shutil.rmtree(made)
    shutil.move(kept, made)


# --- a whole sum ----------------------------------------------------------------------------


def test_the_total_is_the_sum_of_all_answers_and_each_is_charged_once(lab: Lab) -> None:
    with lab.way() as way:
        assert list(way.names) == list(NAMES)
        terms = agreed(way, NAMES, "whole")
        assert way.offer(terms, [terms.question]) == {}
        assert set(lab.spent().values()) == {(0, 0)}
        total = summed(way, terms)
        nano = terms.question.nano_epsilon
        assert set(lab.spent().values()) == {(nano, 10 * nano)}
        assert total == pytest.approx(exact(lab.kits, NAMES, terms.question), abs=0.01)
        assert summed(way, terms) == total, "the same bytes, and nothing is charged again"
        assert set(lab.spent().values()) == {(nano, 10 * nano)}


def test_sites_that_are_gone_after_they_dealt_are_in_the_total_all_the_same(lab: Lab) -> None:
    with lab.way() as way:
        terms = agreed(way, NAMES, "gone")
        dealt = shared(way, terms)
        lab.link.gone = {"site-5"}
        replies = codes(way.open(terms, boxes_of(dealt, NAMES)))
        assert replies.pop("site-5") == "late"
        total = opened(terms, replies)
        assert total == pytest.approx(exact(lab.kits, NAMES, terms.question), abs=0.01)


def test_a_site_that_did_not_deal_opens_as_well_as_any(lab: Lab) -> None:
    with lab.way() as way:
        terms = agreed(way, NAMES, "late")
        dealt = shared(way, terms, NAMES[:4])
        total = opened(terms, codes(way.open(terms, boxes_of(dealt, NAMES[1:]))))
        assert total == pytest.approx(exact(lab.kits, NAMES[:4], terms.question), abs=0.01)
        assert lab.spent()["site-5"] == (0, 0)


def test_each_site_gets_its_own_boxes_and_nobody_elses(lab: Lab) -> None:
    with lab.way() as way:
        terms = agreed(way, NAMES, "own")
        dealt = shared(way, terms)
        lab.link.sent.clear()
        boxes = boxes_of(dealt, NAMES)
        codes(way.check(terms, boxes))
        codes(way.open(terms, boxes))
    kinds = [(name, request["kind"]) for name, request in lab.link.sent]
    assert kinds == [(n, "check") for n in NAMES] + [(n, "open") for n in NAMES]
    for name, request in lab.link.sent:
        assert request["sites"] == [name]
        assert request["boxes"] == {d: list(dealt[d].boxes[name]) for d in NAMES}
    seals = {request["seal"] for _, request in lab.link.sent}
    assert len(seals) == 2, "one key for the replies to each of the two"


def test_who_shares_is_held_back_and_who_checks_or_opens_is_not(lab: Lab) -> None:
    with lab.way() as way:
        terms = agreed(way, NAMES, "held")
        lab.held.clear()
        dealt = shared(way, terms)
        assert len(lab.held) == len(NAMES)
        lab.held.clear()
        codes(way.check(terms, boxes_of(dealt, NAMES)))
        codes(way.open(terms, boxes_of(dealt, NAMES)))
        assert lab.held == []
        codes(way.share(terms, NAMES))
        assert len(lab.held) == len(NAMES), "also where it is all stored"


def test_who_shares_has_the_process_with_the_rows_to_itself_and_its_time_is_watched(
    lab: Lab,
) -> None:
    site_1 = lab.link.services["site-1"]
    with lab.way() as way:
        terms = agreed(way, NAMES, "in turn")
        site_1.slowest = 0.0
        dealt = shared(way, terms)
        assert site_1.slowest > 0
        site_1.slowest = 0.0
        codes(way.open(terms, boxes_of(dealt, ["site-1"])))
        assert site_1.slowest == 0


# --- what owners tell, and who is asked -----------------------------------------------------


def test_what_the_owners_want_is_what_all_of_them_accept(lab: Lab) -> None:
    lab.ledger("site-1").set_policy(policy(rules(colluding=2, epsilon_alone=5.0)))
    lab.ledger("site-2").set_policy(policy(rules(min_honest=3)))
    lab.ledger("site-3").set_policy(policy(rules(alone=7, required=True), rows=50))
    with lab.way() as way:
        assert way.rules == rules(colluding=2, min_honest=3, alone=7, required=True)
        assert way.rows_per_source == 50
        assert (way.rows_per_person, way.asker) == (1, ANN)
    colluding, alone = lab.warned
    assert colluding.startswith("because of site-1 the noise of the whole sum is larger: 2 hosp")
    assert alone.startswith("because of site-3 the noise of the whole sum is larger: 7 times")


def test_the_rows_of_a_person_that_the_noise_covers_are_the_most_that_count_anywhere(
    lab: Lab,
) -> None:
    for n, name in enumerate(NAMES[:2]):
        folder = lab.kits / name
        data = parts.write_rows(lab.kits.parent / f"people {name}.npz", 30, n, person="p")
        (folder / "local" / site.SETTINGS).unlink()
        (folder / "local" / site.LEDGER).unlink()
        setup.init(folder, data, policy(rules(), rows_per_person=2 + n), person="person", delay=0.1)
        keys.rotate(folder)  # those of the ledger that was there are destroyed
    exchange_rosters(lab.kits, NAMES)
    with lab.way() as way:
        assert way.rows_per_person == 3
        terms = agreed(way, NAMES, "people", rows_per_person=2)
        assert way.offer(terms, [terms.question]) == {"site-2": "terms"}
        summed(way, agreed(way, NAMES, "all people", rows_per_person=3))
    more = parts.write_rows(lab.kits.parent / "more people.npz", 30, 9, person="q")
    other = policy(rules(colluding=2), model="other", rows_per_person=7)
    setup.add(lab.kits / "site-1", more, other, model="other", person="person")
    with lab.way() as way:
        assert way.rows_per_person == 7, "whichever of a site's data are asked about"
        assert way.rules is not None
        assert way.rules.colluding == 2
        assert not SiteKeys.load(lab.kits / "site-1").lost
        summed(way, agreed(way, NAMES, "one more ledger", rows_per_person=7, colluding=2, needed=5))
        assert len(SiteKeys.load(lab.kits / "site-1").ledgers) == 2


def test_a_roster_is_read_anew_when_it_changed(lab: Lab) -> None:
    here = site.Site.load(lab.kits / "site-1")
    first = members(here)
    assert members(here) is first, "and only then"
    keys.rotate(lab.kits / "site-5")
    exchange_rosters(lab.kits, NAMES)
    assert members(here).digest == stored_roster(here.folder).digest != first.digest


def test_who_takes_no_part_is_said_once_for_each_reason_and_not_asked(lab: Lab) -> None:
    lab.ledger("site-1").set_policy(policy(None))
    lab.ledger("site-2").set_policy(policy(rules(), askers=("eve@lab.org",)))
    (lab.kits / "site-3" / "local" / "roster.json").unlink()
    with lab.way() as way:
        assert list(way.names) == ["site-4", "site-5"]
    silent, stranger, other = lab.warned
    assert silent.startswith("not asked: site-1 (")
    assert "or not in yours: the owner's policy says nothing" in silent
    assert stranger == "not asked: site-2 (asker: the policy does not let this asker ask)"
    assert other.startswith("not asked: site-3 (")
    assert "privcal site roster accept" in other


def test_a_site_that_is_not_there_is_absent_and_nobody_waits_for_it(lab: Lab) -> None:
    with lab.way() as way:
        terms = agreed(way, NAMES, "absent")
        dealt = shared(way, terms)
        way.names = NAMES[:4]
        assert way.offer(terms, [terms.question]) == {"site-5": "absent"}
        assert codes(way.share(terms, ["site-5"])) == {"site-5": "absent"}
        assert codes(way.check(terms, boxes_of(dealt, ["site-5"]))) == {"site-5": "absent"}
        assert codes(way.open(terms, boxes_of(dealt, ["site-5"]))) == {"site-5": "absent"}


def test_a_site_without_rules_for_secure_sums_refuses_them_whoever_asks(lab: Lab) -> None:
    with lab.way() as way:
        terms = agreed(way, NAMES, "norules")
        dealt = shared(way, terms, NAMES[:4])
        lab.ledger("site-5").set_policy(policy(None))
        assert way.offer(terms, [terms.question])["site-5"] == "terms"
        assert codes(way.share(terms, ["site-5"])) == {"site-5": "terms"}
        assert codes(way.check(terms, boxes_of(dealt, ["site-5"]))) == {"site-5": "terms"}
        assert codes(way.open(terms, boxes_of(dealt, ["site-5"]))) == {"site-5": "terms"}


def test_a_site_that_lets_nothing_leave_but_in_secure_sums_answers_no_question(lab: Lab) -> None:
    lab.ledger("site-1").set_policy(policy(rules(required=True)))
    with Sites(lab.kits / ANN) as sites:
        assert codes(sites.ask(["site-1"], question("plain", epsilon=1.0))) == {
            "site-1": "not_secure"
        }
        assert sites.refusals([question("plain", epsilon=1.0)]) == {"site-1": "not_secure"}
    assert lab.spent()["site-1"] == (0, 0)


def test_a_budget_that_is_full_refuses_the_offer_and_the_share(lab: Lab) -> None:
    lab.ledger("site-1").set_policy(policy(rules(epsilon_alone=sums.EPSILON * 15)))
    with lab.way() as way:
        first, second = (agreed(way, NAMES, c) for c in ("first", "second"))
        summed(way, first)
        assert way.offer(second, [second.question]) == {"site-1": "over_budget"}
        assert codes(way.share(second, ["site-1"])) == {"site-1": "over_budget"}
    nano = first.question.nano_epsilon
    assert lab.spent()["site-1"] == (nano, 10 * nano)


# --- keys, rosters and ledgers --------------------------------------------------------------


def test_a_roster_that_changed_between_share_and_open_is_refused(lab: Lab) -> None:
    with lab.way() as way:
        terms = agreed(way, NAMES, "changed")
        dealt = shared(way, terms)
        keys.rotate(lab.kits / "site-5")
        exchange_rosters(lab.kits, NAMES)
        replies = codes(way.open(terms, boxes_of(dealt, NAMES)))
        assert replies.pop("site-5") == "its signature is not right", "it has other keys now"
        assert replies == dict.fromkeys(NAMES[:4], "roster")
    with lab.way() as way:
        summed(way, agreed(way, NAMES, "changed anew"))


def test_a_campaign_that_a_new_roster_ends_says_what_it_cost(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between SHARE and OPEN a hospital makes new keys, and all owners accept the new roster."""
    check = SecureSites.check

    def meanwhile(way: SecureSites, *given: Any) -> Any:
        keys.rotate(lab.kits / "site-5")
        exchange_rosters(lab.kits, NAMES)
        return check(way, *given)

    monkeypatch.setattr(SecureSites, "check", meanwhile)
    with lab.way() as way, pytest.raises(CalibrationError) as ended:
        privcal.calibrate(SecurePanel(way), "histogram-binning", 2.0, campaign="c", model=MODEL)
    assert "nothing was opened" in str(ended.value)
    assert ended.value.spent == (2.0,) * len(NAMES)
    assert set(lab.spent().values()) == {(2 * 10**9, 20 * 10**9)}


def test_a_whole_calibration_asks_about_offers_shares_checks_and_opens(lab: Lab) -> None:
    with lab.way() as way:
        result = privcal.calibrate(
            SecurePanel(way), "histogram-binning", sums.EPSILON, campaign="c", model=MODEL
        )
    kinds = [request["kind"] for _, request in lab.link.sent]
    asked = ["about", "offer", "share", "check", "open", "release"]
    assert kinds == [kind for kind in asked for _ in NAMES]
    [total] = [asked.total for asked in result.rounds]
    assert total is not None
    assert total.sources == NAMES
    expected = exact(lab.kits, NAMES, total.question)
    assert total.average == pytest.approx([v / len(NAMES) for v in expected], abs=0.01)


def test_a_ledger_copied_back_from_between_share_and_open_is_noticed(
    lab: Lab, tmp_path: Path
) -> None:
    """The site has opened a set, and forgotten it; it must not open another."""
    path = lab.ledger("site-5").path
    assert path is not None
    with lab.way() as way:
        terms = agreed(way, NAMES, "restored")
        dealt = shared(way, terms)
        shutil.copy(path, tmp_path / "backup")
        first = codes(way.open(terms, boxes_of(dealt, NAMES)))
        shutil.copy(tmp_path / "backup", path)
        for dealers in (NAMES[:4], NAMES):
            boxes = boxes_of(dealt, ["site-5"], dealers)
            assert codes(way.open(terms, boxes)) == {"site-5": "ledger_rolled_back"}
        assert first["site-1"] == codes(way.open(terms, boxes_of(dealt, ["site-1"])))["site-1"]
        lab.ledger("site-5").reconcile()
        for dealers in (NAMES[:4], NAMES):
            boxes = boxes_of(dealt, ["site-5"], dealers)
            assert codes(way.check(terms, boxes)) == {"site-5": "roster"}
            assert codes(way.open(terms, boxes)) == {"site-5": "roster"}


def test_a_reconciled_site_refuses_until_it_has_new_keys_that_all_have(lab: Lab) -> None:
    folder = lab.kits / "site-5"
    with lab.way() as way:
        summed(way, agreed(way, NAMES, "before"))
        lab.ledger("site-5").reconcile()
        signs = {sign.what: sign for sign in health.look(folder)}
        assert not signs["keys"].well
        assert (signs["secure sums"].well, "keys rotate" in signs["secure sums"].sentence) == (
            False,
            True,
        )
        assert "own keys" in {found.rule for found in inspection.check(folder) if not found.ok}
        new = agreed(way, NAMES, "after")
        assert way.offer(new, [new.question]) == {"site-5": "roster"}
        assert SiteKeys.load(folder).lost
        assert "privcal site keys rotate" in (folder / "local" / LOG).read_text()
        [(_, answer)] = way._sites.ask(["site-5"], question("plain", epsilon=1.0))
        assert not isinstance(answer, Exception), "ordinary questions are as they were"
    keys.rotate(folder)
    with lab.way() as way:
        assert "site-5" not in way.names, "its keys are not those of the roster"
    exchange_rosters(lab.kits, NAMES)
    with lab.way() as way:
        summed(way, agreed(way, NAMES, "with new keys"))
    assert {sign.what: sign for sign in health.look(folder)}["keys"].well


def test_a_ledger_made_in_place_of_a_lost_one_opens_nothing_that_was_sealed_before(
    lab: Lab,
) -> None:
    folder = lab.kits / "site-5"
    path = lab.ledger("site-5").path
    assert path is not None
    with lab.way() as way:
        terms = agreed(way, NAMES, "lost")
        dealt = shared(way, terms)
        codes(way.open(terms, boxes_of(dealt, ["site-5"])))
        data = Data.at(site.Site.load(folder).populations[0].data)
        path.unlink()
        boxes = boxes_of(dealt, ["site-5"], NAMES[:4])
        assert codes(way.open(terms, boxes)) == {"site-5": "ledger_missing"}
        assert not SiteKeys.load(folder).lost, "a disk that is not mounted costs no keys"
        new = Ledger.create(path, policy(rules()), unit="row", name="site-5")
        opening.attach(new, data, data.read())
        assert codes(way.open(terms, boxes)) == {"site-5": "roster"}
    assert SiteKeys.load(folder).lost


def test_a_sealing_key_goes_when_the_process_starts_not_only_when_asked(lab: Lab) -> None:
    with lab.way() as way:
        summed(way, agreed(way, NAMES, "start"))
    worker._load(lab.kits / "site-5")
    assert not SiteKeys.load(lab.kits / "site-5").lost
    lab.ledger("site-5").reconcile()
    worker._load(lab.kits / "site-5")
    assert SiteKeys.load(lab.kits / "site-5").lost


# --- how a site is ----------------------------------------------------------------------------


def secure_sign(folder: Path) -> tuple[bool, str]:
    [sign] = [sign for sign in health.look(folder) if sign.what == "secure sums"]
    return sign.well, sign.sentence


def test_a_sites_health_says_what_keeps_it_from_secure_sums(lab: Lab) -> None:
    folder = lab.kits / "site-1"
    assert secure_sign(folder) == (True, "takes part, with 4 others on its roster")
    lab.ledger("site-1").set_policy(policy(rules(roster="another")))
    well, sentence = secure_sign(folder)
    assert not well
    assert "for another roster" in sentence
    lab.ledger("site-1").set_policy(policy(rules()))
    keys.rotate(folder)
    well, sentence = secure_sign(folder)
    assert not well
    assert "not this site's present keys" in sentence
    (folder / "local" / "roster.json").unlink()
    well, sentence = secure_sign(folder)
    assert not well
    assert "no roster yet" in sentence
    lab.ledger("site-1").set_policy(policy(None))
    assert all(sign.what != "secure sums" for sign in health.look(folder)), "it wants no part"


def test_only_a_site_that_takes_part_in_secure_sums_misses_its_sealing_key(lab: Lab) -> None:
    folder = lab.kits / "site-1"
    lab.ledger("site-1").reconcile()
    worker._load(folder)
    assert SiteKeys.load(folder).lost

    def well() -> tuple[bool, bool]:
        [sign] = [sign for sign in health.look(folder) if sign.what == "keys"]
        [finding] = [found for found in inspection.check(folder) if found.rule == "own keys"]
        return sign.well, inspection.closed([finding])

    assert well() == (False, False)
    lab.ledger("site-1").set_policy(policy(None))
    assert well() == (True, True)
