"""Secure sums over a running federation whose processes die, are slow, full, restored or replaced."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import privcal

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")

from privcal.transport.federation.calibrator.panel import Sites
from privcal.transport.federation.calibrator.secure import SecureSites
from privcal.transport.federation.one_machine import processes
from privcal.transport.federation.shared.roster import Roster, roster_path, stored_roster
from privcal.transport.federation.site import keys
from privcal.transport.federation.site import settings as site
from privcal.transport.federation.site.keys import SiteKeys
from tests.support.federation_parts import ANN, BOB, SERVER, round_nano
from tests.support.federation_processes import Federation, until
from tests.support.secure_sums import (
    EPSILON,
    agreed,
    boxes_of,
    codes,
    exact,
    exchange_rosters,
    opened,
    rules,
    shared,
    summed,
)

pytestmark = [pytest.mark.xdist_group("secure federation"), pytest.mark.slow]

NAMES = tuple(f"site-{n}" for n in range(1, 6))


@pytest.fixture(autouse=True)
def _marks(secure_federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVCAL_MARKS", str(secure_federation.marks))


@contextlib.contextmanager
def way_to(federation: Federation, who: str = ANN, timeout: int = 60) -> Iterator[SecureSites]:
    with Sites(federation.kits / who, timeout=timeout) as sites:
        way = SecureSites(sites)
        assert list(way.names) == list(NAMES)
        yield way


@contextlib.contextmanager
def stopped(federation: Federation, name: str) -> Iterator[None]:
    """While all processes of a site stand still."""
    pids = [pid for pid, _ in processes._processes([federation.kits.resolve() / name])]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def spent_since(federation: Federation, before: dict[str, int]) -> dict[str, int]:
    return {name: nano - before[name] for name, nano in federation.spent().items()}


# --- campaigns, as a calibrator runs them ---------------------------------------------------


def finished(running: Any, code: int = 0) -> str:
    out, said = running.communicate(timeout=240)
    assert running.returncode == code, said
    assert "Traceback" not in said
    return str(out + said)


def expected_temperature(federation: Federation, names: tuple[str, ...] = NAMES) -> float:
    """What the same search finds on the same rows, nearly without noise."""
    data = [site.Site.load(federation.site(name)).populations[0].data for name in names]
    sources = [
        privcal.Source(
            privcal.read_scores(file, person=None),
            privcal.Policy(epsilon=EPSILON),
            name=n,
            ledger=None,
        )
        for n, file in zip(names, data, strict=True)
    ]
    return float(privcal.calibrate(sources, "acc-t", epsilon=EPSILON).map.temperature)


def test_a_campaign_in_secure_sums_finds_what_it_should_and_charges_each_site_once(
    secure_federation: Federation, tmp_path: Path
) -> None:
    before, out = secure_federation.spent(), tmp_path / "map.json"
    finished(secure_federation.calibrate(out, "--aggregation", "secure", epsilon=EPSILON))
    found = privcal.load_map(out)
    assert found.temperature == pytest.approx(expected_temperature(secure_federation), abs=0.02)
    assert spent_since(secure_federation, before) == dict.fromkeys(NAMES, round_nano(EPSILON))


def test_a_site_that_is_not_wanted_whose_budget_is_full_or_that_is_slow_is_left_out(
    secure_federation: Federation, tmp_path: Path
) -> None:
    federation = secure_federation

    def without(name: str, *more: object) -> str:
        before, out = federation.spent(), tmp_path / f"without {name}.json"
        command = ("--aggregation", "secure", *more)
        said = finished(federation.calibrate(out, *command, epsilon=EPSILON))
        four = tuple(other for other in NAMES if other != name)
        found = privcal.load_map(out).temperature
        assert found == pytest.approx(expected_temperature(federation, four), abs=0.02)
        paid = {**dict.fromkeys(four, round_nano(EPSILON)), name: 0}
        assert spent_since(federation, before) == paid
        return said

    assert "not asked" not in without("site-3", "--without", "site-3")
    with federation.policy("site-4", secure=rules(epsilon_alone=9 * EPSILON)):
        assert "over_budget" in without("site-4"), "all others together might learn ten times ε"
    with federation.settings("site-5", delay="60.0"):
        assert "no word of what the owner wants" in without("site-5", "--site-timeout", 15)


def test_a_calibrator_killed_between_share_and_open_resumes_and_nobody_pays_twice(
    secure_federation: Federation, tmp_path: Path
) -> None:
    federation, out = secure_federation, tmp_path / "map.json"
    before = federation.spent()
    command = ("--aggregation", "secure", "--method", "histogram-binning")
    with contextlib.ExitStack() as slow:
        for name in NAMES:
            slow.enter_context(federation.settings(name, delay="8.0"))
        running = federation.calibrate(out, *command, epsilon=EPSILON)
        until(lambda: all(spent_since(federation, before).values()), "the charges")
        running.send_signal(signal.SIGKILL)
        running.communicate()
    assert not out.exists()
    finished(federation.calibrate(out, *command, epsilon=EPSILON))
    assert out.exists()
    assert spent_since(federation, before) == dict.fromkeys(NAMES, round_nano(EPSILON))


# --- processes that die ---------------------------------------------------------------------


def test_a_site_killed_after_share_and_one_killed_while_it_opens(
    secure_federation: Federation,
) -> None:
    federation = secure_federation
    with way_to(federation, timeout=20) as way:
        terms = agreed(way, NAMES, "killed")
        dealt = shared(way, terms)
        spent = federation.spent()
        federation.kill("site-5")
        replies = codes(way.open(terms, boxes_of(dealt, NAMES)))
        assert replies.pop("site-5") == "late"
        total = opened(terms, replies)
        assert total == pytest.approx(exact(federation.kits, NAMES, terms.question), abs=0.01)

        other = agreed(way, NAMES, "killed while it opens")
        federation.up("site-5")
        dealt_again = shared(way, other)
        boxes = boxes_of(dealt_again, ["site-5"])
        got: dict[str, Any] = {}
        with stopped(federation, "site-5"):  # the request comes, and nothing happens yet
            asking = threading.Thread(target=lambda: got.update(codes(way.open(other, boxes))))
            asking.start()
            asking.join(2.0)
            federation.kill("site-5")
        asking.join()
        assert got == {"site-5": "late"}
    federation.up("site-5")
    with way_to(federation) as way:
        again = codes(way.open(terms, boxes_of(dealt, ["site-5"])))
        assert opened(terms, {**replies, **again}) == total, "it opens what the others did"
        assert shared(way, terms)["site-5"] == dealt["site-5"], "and has its boxes as they were"
        replies = codes(way.open(other, boxes_of(dealt_again, NAMES)))
        assert opened(other, replies) == pytest.approx(
            exact(federation.kits, NAMES, other.question), abs=0.01
        )
    assert spent_since(federation, spent) == dict.fromkeys(NAMES, round_nano(EPSILON))


def test_a_site_that_is_late_at_share_is_paid_for_and_may_open_but_not_join(
    secure_federation: Federation,
) -> None:
    federation = secure_federation
    four, before = NAMES[:4], federation.spent()
    with way_to(federation, timeout=8) as way:
        terms = agreed(way, NAMES, "late")
        with stopped(federation, "site-5"):
            dealt: dict[str, Any] = dict(way.share(terms, NAMES))
            assert codes(iter([("site-5", dealt.pop("site-5"))])) == {"site-5": "late"}
            parts = codes(way.open(terms, boxes_of(dealt, four)))
        total = opened(terms, parts)
        assert total == pytest.approx(exact(federation.kits, four, terms.question), abs=0.01)
        dealt |= shared(way, terms, ["site-5"])
        assert set(codes(way.open(terms, boxes_of(dealt, four))).values()) == {"opened"}
        late = codes(way.open(terms, boxes_of(dealt, ["site-5"], four)))
        assert opened(terms, {**parts, **late}) == total
    assert spent_since(federation, before) == dict.fromkeys(NAMES, round_nano(EPSILON))


def test_a_server_restarted_between_share_and_open_carries_on(
    secure_federation: Federation,
) -> None:
    federation = secure_federation
    with way_to(federation) as way:
        terms = agreed(way, NAMES, "server")
        dealt = shared(way, terms)
        federation.kill(SERVER)
    federation.up()
    with way_to(federation) as way:
        total = opened(terms, codes(way.open(terms, boxes_of(dealt, NAMES))))
        assert total == pytest.approx(exact(federation.kits, NAMES, terms.question), abs=0.01)


# --- rosters and ledgers that change in between ---------------------------------------------


def test_a_site_with_another_roster_refuses_to_open_and_the_others_can(
    secure_federation: Federation,
) -> None:
    federation = secure_federation
    mine = stored_roster(federation.site("site-5"))
    with way_to(federation) as way:
        terms = agreed(way, NAMES, "roster")
        dealt = shared(way, terms)
        Roster(mine.cards[1:]).save(roster_path(federation.site("site-5")))
        try:
            replies = codes(way.open(terms, boxes_of(dealt, NAMES)))
        finally:
            mine.save(roster_path(federation.site("site-5")))
        assert replies.pop("site-5") == "roster"
        assert opened(terms, replies) == pytest.approx(
            exact(federation.kits, NAMES, terms.question), abs=0.01
        )


def test_a_ledger_restored_from_between_share_and_open_opens_no_second_set(
    secure_federation: Federation, tmp_path: Path
) -> None:
    """Noticed by its mark; and when its owner reconciled it, its key is gone, with all old boxes."""
    federation = secure_federation
    folder = federation.site("site-5")
    with way_to(federation) as way:
        terms = agreed(way, NAMES, "restored")
        dealt = shared(way, terms)
        path = federation.ledger("site-5").path
        assert path is not None
        federation.kill("site-5")
        shutil.copy(path, tmp_path / "backup")
        federation.up("site-5")
    with way_to(federation) as way:
        codes(way.open(terms, boxes_of(dealt, NAMES)))
        federation.kill("site-5")
        shutil.copy(tmp_path / "backup", path)
        for other in path.parent.glob(f"{path.name}-*"):
            other.unlink()
        federation.up("site-5")
        # Whoever comes now is told that it takes no part. This one knows it from before.
        second = boxes_of(dealt, ["site-5"], NAMES[1:])
        assert codes(way.open(terms, second)) == {"site-5": "ledger_rolled_back"}
        federation.ledger("site-5").reconcile()
        assert codes(way.check(terms, second)) == {"site-5": "roster"}
        assert codes(way.open(terms, second)) == {"site-5": "roster"}
        assert SiteKeys.load(folder).lost
    keys.rotate(folder)
    exchange_rosters(federation.kits, NAMES, (ANN, BOB))
    with way_to(federation) as way:
        assert codes(way.open(terms, second))["site-5"] == "roster", "it is of the old roster"
        summed(way, agreed(way, NAMES, "after the restore"))


def test_a_larger_message_than_any_question_has_gets_through(
    secure_federation: Federation,
) -> None:
    """A million characters each way, as 300 sites need them."""
    with way_to(secure_federation) as way:
        terms = agreed(way, NAMES, "large")
        dealt = shared(way, terms)
        boxes = boxes_of(dealt, ["site-1"])
        padded = {
            name: (sealed + "A" * 250_000, sign) for name, (sealed, sign) in boxes["site-1"].items()
        }
        assert codes(way.check(terms, {"site-1": padded})) == {"site-1": NAMES}
