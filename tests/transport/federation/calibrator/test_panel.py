"""The calibrator's side of a federation: its record of a campaign, and what it makes of replies."""

from __future__ import annotations

import json
import math
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import privcal
from privcal.calibration.campaign import (
    ANSWERS,
    PLAN,
    Campaign,
    Recorded,
    Unusable,
    campaign_folder,
    open_campaign,
)
from privcal.calibration.loop import SourceDropped
from privcal.data.ledger import Ledger
from privcal.data.panels import LocalPanel
from privcal.data.plausible import MAX_SITE_ROWS
from privcal.secure.local import LocalWay
from privcal.secure.panel import Secure, SecurePanel
from privcal.trusted.errors import CalibrationError, InputError, Refused
from privcal.trusted.queries import GRID, Gap
from privcal.trusted.question import Question
from privcal.trusted.source import Answer
from tests.support.builders import random_scores

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message

from privcal.transport.federation.calibrator.link import Link
from privcal.transport.federation.calibrator.panel import SEND_TIMEOUT, Sites
from privcal.transport.federation.calibrator.roster import gather, pin
from privcal.transport.federation.shared.messages import MAX_LIFETIME, open_message, seal_reply
from privcal.transport.federation.shared.requests import LIFETIME, Reply
from privcal.transport.federation.shared.roster import Roster
from privcal.transport.federation.site.keys import SiteKeys, rotate
from privcal.transport.federation.site.roster import own_card
from tests.support import federation_parts as parts
from tests.support.federation_parts import ANN, MODEL, SERVER, question


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parts.make_kits(tmp_path_factory.mktemp("federation") / "kits", sites=1)


# --- the record of a campaign -------------------------------------------------------------


class Flaky:
    """Sources in this process as a panel, some of which fail where they are told to."""

    def __init__(self, sources: dict[str, privcal.Source], **fail: int) -> None:
        self._local = LocalPanel(list(sources.values()), "ann")
        self.names: Sequence[str] = list(sources)
        self.asker, self.rows_per_person = "ann", 1
        self.sources, self.rows_per_source = len(sources), self._local.rows_per_source
        self.fail, self.asked, self.crash = fail, 0, math.inf

    def release(self) -> None: ...

    def refusals(self, questions: Sequence[Question]) -> dict[str, str]:
        return {}

    def ask(
        self, names: Sequence[str], asked: Question
    ) -> Iterator[tuple[str, Answer | Exception]]:
        if self.asked >= self.crash:
            raise CalibrationError("the server is gone", ())
        for name, answer in self._local.ask(names, asked):
            late = self.fail.get(name) == self.asked
            yield name, (Unusable("late") if late else answer)
        self.asked += 1


@pytest.fixture
def sources() -> dict[str, privcal.Source]:
    return {
        f"s{n}": privcal.Source(
            random_scores(40, seed=n), privcal.Policy(epsilon=5.0), name=f"s{n}", ledger=None
        )
        for n in range(4)
    }


def calibrate(panel: Any) -> privcal.Result:
    return privcal.calibrate(panel, "acc-t", 1.0, campaign="c", model=None, iterations=5)


@pytest.mark.filterwarnings("ignore::privcal.calibration.loop.SourceDropped")
@pytest.mark.parametrize("crash", range(1, 6))
@pytest.mark.parametrize("left", [None, 0, 2, 4])
@pytest.mark.parametrize("now", ["all", "one more", "one away"])
def test_a_resumed_campaign_asks_the_same_questions_whoever_is_there_now(
    tmp_path: Path, sources: dict[str, privcal.Source], crash: int, left: int | None, now: str
) -> None:
    panel = Flaky(sources, **({} if left is None else {"s3": left}))
    panel.crash = crash
    campaign = Campaign.start(tmp_path, {})
    with pytest.raises(CalibrationError):
        calibrate(Recorded(panel, campaign))
    if now == "one more":
        sources["new"] = privcal.Source(
            random_scores(40), privcal.Policy(epsilon=5.0), name="new", ledger=None
        )
    again = Flaky(sources)
    if now == "one away":
        again.names = [name for name in again.names if name != "s2"]
    result = calibrate(Recorded(again, Campaign.resume(tmp_path)))
    assert "id_conflict" not in result.dropped.values()
    expected = set()
    if left is not None and left < crash - 1:
        expected |= {"s3"}  # asked on without it
    if now == "one away":
        expected |= {"s2"}
    assert {n for n in result.dropped if n != "s3" or left != crash - 1} >= expected
    assert set(result.dropped) <= expected | {"s3"}
    for name in sources:
        if name not in ("s2", "s3", "new"):
            assert sources[name].spent == 1.0, "exactly once"
    if now == "one away" and crash == 5:
        return  # it left at the last question, where it can still come back
    third = calibrate(Recorded(Flaky(sources), Campaign.resume(tmp_path)))
    assert third.rounds == result.rounds
    assert third.dropped == result.dropped


@pytest.mark.filterwarnings("ignore::privcal.calibration.loop.SourceDropped")
def test_a_resumed_sketch_is_as_fine_as_it_was_whatever_owners_tell_now(
    tmp_path: Path, sources: dict[str, privcal.Source]
) -> None:
    public = random_scores(300, seed=9)

    def take(panel: Any) -> privcal.Result:
        return privcal.calibrate(panel, "sketch", 0.2, campaign="c", public=public)

    panel = Flaky(sources)
    assert panel.rows_per_source is None
    panel.fail = {"s3": 0}  # s3 is late at the one question, and may still come
    first = take(Recorded(panel, Campaign.start(tmp_path, {})))
    assert len(first.rounds[0].query.knots) == 2
    for source in sources.values():
        Ledger.of(source.ledger).set_policy(privcal.Policy(epsilon=5.0, rows=10_000))
    new = privcal.Source(random_scores(40), privcal.Policy(rows=10_000), name="new", ledger=None)
    now = Flaky({**sources, "new": new})
    assert now.rows_per_source == 10_000
    again = take(Recorded(now, Campaign.resume(tmp_path)))
    assert again.rounds[0].query == first.rounds[0].query
    assert again.dropped == {}
    assert all(source.spent == 0.2 for source in sources.values())
    fine = privcal.calibrate(now, "sketch", 0.2, campaign="another", public=public)
    assert len(fine.rounds[0].query.knots) == 7  # a new one is as fine as pays now


@pytest.mark.parametrize("facts", [None, [], {}, {"sources": 0, "rows_per_source": None},
                                   {"sources": 2, "rows_per_source": "many"}])  # fmt: skip
def test_a_record_with_damaged_facts_is_told(
    tmp_path: Path, sources: dict[str, privcal.Source], facts: Any
) -> None:
    campaign = Campaign.start(tmp_path, {"decided": facts})
    with pytest.raises(InputError, match="is not a record of a campaign"):
        Recorded(Flaky(sources), campaign)


def test_a_finished_campaign_resumed_asks_nobody(
    tmp_path: Path, sources: dict[str, privcal.Source]
) -> None:
    first = calibrate(Recorded(Flaky(sources), Campaign.start(tmp_path, {})))
    silent = Flaky(sources)
    silent.crash = 0
    again = calibrate(Recorded(silent, Campaign.resume(tmp_path)))
    assert again.rounds == first.rounds


def test_a_site_that_was_late_last_is_asked_again_when_resumed(tmp_path: Path) -> None:
    rows = {
        "s": privcal.Source(random_scores(40), privcal.Policy(epsilon=5.0), name="s", ledger=None)
    }
    with pytest.warns(SourceDropped), pytest.raises(CalibrationError):
        calibrate(Recorded(Flaky(rows, s=2), Campaign.start(tmp_path, {})))
    result = calibrate(Recorded(Flaky(rows), Campaign.resume(tmp_path)))
    assert result.dropped == {}
    assert rows["s"].spent == 1.0, "what came too late was paid for, and came again"


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_torn_last_line_is_asked_for_again_and_takes_no_other_with_it(
    tmp_path: Path, sources: dict[str, privcal.Source], cut: int
) -> None:
    panel = Flaky(sources)
    panel.crash = 2
    with pytest.raises(CalibrationError):
        calibrate(Recorded(panel, Campaign.start(tmp_path, {})))
    path = tmp_path / ANSWERS
    whole = path.read_bytes()
    answers = [line for line in whole.splitlines(keepends=True) if b"values" in line]
    torn = b"".join(whole.splitlines(keepends=True)[: whole.count(b"\n") - 1])[:-cut]
    path.write_bytes(torn)
    panel = Flaky(sources)
    panel.crash = 2
    with pytest.raises(CalibrationError):
        calibrate(Recorded(panel, Campaign.resume(tmp_path)))
    result = calibrate(Recorded(Flaky(sources), Campaign.resume(tmp_path)))
    assert result.dropped == {}
    assert {source.spent for source in sources.values()} == {1.0}
    kept = [line for line in path.read_bytes().splitlines(keepends=True) if b"values" in line]
    assert set(answers) <= set(kept), "the same answers again"
    for line in path.read_bytes().splitlines():
        if line and line != torn.splitlines()[-1]:
            json.loads(line)


def test_rubbish_in_a_record_is_not_an_answer(tmp_path: Path) -> None:
    campaign = Campaign.start(tmp_path, {})
    text = '\n[]\n1\n{}\n{"question": 1}\n{"question": "q", "site": [], "values": [1]}\n{"site": "s"}\nnull\n'
    (tmp_path / ANSWERS).write_text(text)
    campaign = Campaign.resume(tmp_path)
    assert campaign.kept("s", question()) is None
    assert not campaign.sites_settled


def test_a_campaign_is_not_begun_over_another_nor_resumed_as_another(tmp_path: Path) -> None:
    out = tmp_path / "map.json"
    plan = {"method": "acc-t", "epsilon": 1.0, "model": MODEL, "options": {}}
    with pytest.raises(InputError, match="holds no campaign to resume"):
        Campaign.resume(campaign_folder(out))
    begun = open_campaign(out, plan, False, "trial")
    assert begun.plan["campaign"] == "trial"
    # Nobody was asked yet (the server could not be reached, say): it may begin again.
    begun = open_campaign(out, plan, False, "trial")
    begun.keep("s", question(), Answer((GRID,), question(), "id"))
    with pytest.raises(InputError, match="holds a campaign already"):
        Campaign.start(campaign_folder(out), plan)
    assert open_campaign(out, plan, False, None).plan == begun.plan
    assert open_campaign(out, plan, False, "trial").plan == begun.plan
    assert open_campaign(out, plan, True, None).plan == begun.plan  # it was interrupted
    with pytest.raises(InputError, match="begun with campaign 'trial'"):
        open_campaign(out, plan, False, "other")
    for part, value, said in (
        ("epsilon", 2.0, "epsilon"),
        ("method", "nll-t", "method"),
        ("model", "v4", "model"),
        ("options", {"bins": 3}, "no bins, not bins 3"),
    ):
        with pytest.raises(InputError, match=f"begun with {said}.* with --again"):
            open_campaign(out, {**plan, part: value}, False, None)
    (campaign_folder(out) / PLAN).write_text("{")
    with pytest.raises(InputError, match="is not a record of a campaign"):
        open_campaign(out, plan, False, None)


def test_asked_anew_the_record_that_was_there_is_kept_until_it_is_needed_again(
    tmp_path: Path,
) -> None:
    out, plan = tmp_path / "map.json", {"epsilon": 1.0}
    first = open_campaign(out, plan, False, "trial")
    first.keep("s", question(), Answer((GRID,), question(), "id"))
    first.finish()
    anew = open_campaign(out, plan, True, None)
    assert anew.plan["campaign"] != "trial"
    kept = tmp_path / "map-trial.json.campaign"
    assert Campaign.resume(kept).plan == first.plan
    anew.remove()  # nobody could pay
    assert not kept.exists()
    assert open_campaign(out, plan, False, None).plan == first.plan


@pytest.mark.filterwarnings("ignore::privcal.calibration.loop.SourceDropped")
@pytest.mark.parametrize("secure", [False, True])
def test_a_campaign_that_goes_on_counts_who_refused_when_it_began(
    tmp_path: Path, secure: bool
) -> None:
    """Three of four answered; who did not, and why, is known when it is read again."""
    sources = [
        privcal.Source(
            random_scores(40, seed=n),
            privcal.Policy(0.5 if n == 3 else 9.0),
            name=f"s{n}",
            ledger=None,
        )
        for n in range(4)
    ]

    def once(campaign: Campaign) -> privcal.Result:
        local = LocalPanel(sources, "ann")
        panel = SecurePanel(LocalWay(local), Secure(alone=1), campaign) if secure else None
        return calibrate(panel or Recorded(local, campaign))

    first = once(Campaign.start(tmp_path, {}))
    again = once(Campaign.resume(tmp_path))
    for result in (first, again):
        assert (result.answered, len(result.spent)) == (3, 4)
        assert result.map.provenance["answered"] == [3] * len(result.rounds)
        assert list(result.dropped) == ["s3"]
    assert again.dropped == first.dropped
    assert again.map.to_dict()["temperature"] == first.map.to_dict()["temperature"]


@pytest.mark.filterwarnings("ignore::privcal.calibration.loop.SourceDropped")
def test_a_finished_campaign_asks_nobody_who_could_answer_now(
    tmp_path: Path, sources: dict[str, privcal.Source]
) -> None:
    def take(panel: Any) -> privcal.Result:
        return privcal.calibrate(panel, "sketch", 0.2, campaign="c")

    campaign = Campaign.start(tmp_path, {})
    first = take(Recorded(Flaky(sources, s3=0), campaign))
    campaign.finish()
    sources["new"] = privcal.Source(random_scores(40), name="new", ledger=None)
    paid = sources["s3"].spent
    again = take(Recorded(Flaky(sources), Campaign.resume(tmp_path)))
    assert again.dropped == first.dropped == {"s3": "late"}
    assert (sources["s3"].spent, sources["new"].spent) == (paid, 0)


# --- what sites say, over a link ----------------------------------------------------------

Said = Callable[[str, str], str | None]
"""What a site says to a message on a topic."""


class FakeLink:
    """Instead of a connection: sites that say what they like, and what was sent to them."""

    def __init__(self, **sites: Said) -> None:
        self.said = {name.replace("_", "-"): said for name, said in sites.items()}
        self.sent: list[tuple[str, str, str]] = []
        self.opened = self.closed = 0
        self.timeouts: list[float] = []

    def __call__(self, kit: Path) -> FakeLink:
        return self

    def open(self) -> None:
        self.opened += 1

    def close(self) -> None:
        self.closed += 1

    def sites(self) -> list[str]:
        return sorted(self.said)

    def ask_all(
        self, topic: str, messages: dict[str, bytes], timeout: float
    ) -> Iterator[tuple[str, str | None]]:
        self.timeouts.append(timeout)
        for name, message in messages.items():
            self.sent.append((topic, name, message.decode()))
            said = self.said.get(name)
            yield name, None if said is None else said(topic, message.decode())

    def kinds(self) -> list[tuple[str, str]]:
        """Each request that was sent: its kind, and to whom."""
        asked = [(name, text) for topic, name, text in self.sent if topic == "ask"]
        return [(json.loads(json.loads(text)["request"])["kind"], name) for name, text in asked]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kits of three sites with keys, in the roster of a calibrator."""
    kits = parts.make_kits(tmp_path_factory.mktemp("lab") / "kits", sites=3)
    for n in (1, 2, 3):
        SiteKeys.make(kits / f"site-{n}")
    pin(kits / ANN, [own_card(kits / f"site-{n}") for n in (1, 2, 3)])
    return kits


def honest(kits: Path, name: str, reply: Reply | None = None, **other: Reply) -> Said:
    """A site that shows its card and gives this reply; `other` by the kind of request."""
    keys, card = SiteKeys.load(kits / name), own_card(kits / name).text

    def said(topic: str, message: str) -> str | None:
        if topic == "card":
            return card
        opened = open_message(message, kits / name / "startup" / "rootCA.pem", site=name)
        given = other.get(opened.request.kind, reply)
        if given is None:
            given = Reply(accepted=True) if opened.request.length == 0 else answer(GRID)
        return seal_reply(given, opened, keys, name)

    return said


def answer(*values: int, **more: Any) -> Reply:
    return Reply(values, **{"ledger": "0" * 32, **more})


def linked(monkeypatch: pytest.MonkeyPatch, kits: Path, link: FakeLink, **settings: Any) -> Sites:
    monkeypatch.setattr("privcal.transport.federation.calibrator.panel.Link", link)
    return Sites(kits / ANN, **settings)


def test_sites_are_asked_once_what_their_owners_tell_and_one_that_lies_changes_little(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = FakeLink(
        site_1=honest(lab, "site-1", about=Reply(accepted=True, rows=12)),
        site_2=honest(lab, "site-2", about=Reply(accepted=True, rows=2**31 - 1)),
        site_3=honest(lab, "site-3", about=Reply(accepted=True, rows=20)),
    )
    with linked(monkeypatch, lab, link) as sites:
        assert link.kinds() == []  # not before somebody wants to know
        assert (sites.sources, sites.rows_per_source, sites.rows_per_source) == (3, 20.0, 20.0)
        assert [kind for kind, _ in link.kinds()] == ["about"] * 3
    silent = FakeLink(
        site_1=honest(lab, "site-1"), site_2=honest(lab, "site-2", Reply(refused="bad_request"))
    )
    with linked(monkeypatch, lab, silent) as sites:
        assert sites.rows_per_source is None


def test_a_panel_needs_a_calibrators_kit(kits: Path) -> None:
    for name in (SERVER, "site-1", "nobody"):
        with pytest.raises(InputError, match="is not a calibrator's start-up kit"):
            Sites(kits / name)


def test_nobody_is_asked_without_a_roster(kits: Path) -> None:
    """Whose keys a reply is signed with is known before anything is paid for it."""
    with pytest.raises(InputError, match=r"has no roster yet: run privcal federation roster"):
        Sites(kits / ANN)


def test_the_sites_of_the_roster_that_are_connected_are_the_panel(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = FakeLink(
        site_3=honest(lab, "site-3"), site_1=honest(lab, "site-1"), stranger=lambda *_: "{}"
    )
    with linked(monkeypatch, lab, link) as sites:
        assert sites.names == ["site-1", "site-3"]
        assert sites.asker == ANN
        assert (link.opened, link.closed) == (1, 0)
    assert link.closed == 1
    assert {name for _, name, _ in link.sent} == {"site-1", "site-2", "site-3"}


def test_whoever_is_to_be_left_out_gets_no_message(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = FakeLink(**{f"site_{n}": honest(lab, f"site-{n}") for n in (1, 2, 3)})
    with linked(monkeypatch, lab, link, without=["site-2"]) as sites:
        assert sites.names == ["site-1", "site-3"]
    assert {name for _, name, _ in link.sent} == {"site-1", "site-3"}
    with pytest.raises(InputError, match="site-9 is not on the roster"):
        linked(monkeypatch, lab, link, without=["site-9"])


def test_a_site_with_other_keys_than_the_roster_says_is_not_asked_and_that_is_said(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another site's card, a card of new keys, or none that can be read."""
    for shown in (own_card(lab / "site-2").text, "{}", "nonsense", "\0"):
        warned: list[str] = []
        link = FakeLink(
            site_1=lambda *_, shown=shown: shown,
            site_2=honest(lab, "site-2"),
            site_3=honest(lab, "site-3"),
        )
        with linked(monkeypatch, lab, link, warn=warned.append) as sites:
            assert sites.names == ["site-2", "site-3"]
        assert len(warned) == 1
        assert "site-1 has other keys than your roster says, and is not asked" in warned[0]


def test_who_of_the_roster_is_not_there_or_has_no_keys_is_named(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    link = FakeLink(site_1=lambda *_: "", site_2=honest(lab, "site-2"))
    with linked(monkeypatch, lab, link, warn=warned.append) as sites:
        assert sites.names == ["site-2"]
    assert warned == [
        "site-1 shows no card: it may have no keys, and is not asked",
        "site-3 is not connected, and is not asked",
    ]


def test_a_connection_ends_whole_though_ctrl_c_comes_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cell that was half stopped kept the command for ever."""
    halves: list[str] = []
    main = threading.get_ident()

    class Slow:
        def stop(self) -> None:
            halves.append("first")
            signal.pthread_kill(main, signal.SIGINT)
            time.sleep(0.2)
            halves.append("second")

    link = Link(Path("kit"))
    monkeypatch.setattr(link, "_cell", Slow())
    # Python leaves the signal to whoever started it ignoring it, as shells do for background jobs.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            link.close()
    finally:
        signal.signal(signal.SIGINT, before)
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(5.0)
    assert halves == ["first", "second"]


def test_a_server_that_says_nothing_and_a_federation_without_sites_are_told(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Link(lab / ANN)
    monkeypatch.setattr(link, "ask_all", lambda *_: iter([("server", None)]))
    with pytest.raises(CalibrationError, match=r"does not say who is connected.*revoked"):
        link.sites()
    monkeypatch.setattr(link, "ask_all", lambda *_: iter([("server", "")]))
    assert link.sites() == []
    monkeypatch.setattr("privcal.transport.federation.calibrator.roster.Link", FakeLink())
    with pytest.raises(CalibrationError, match="no site is connected"):
        gather(lab / ANN)


def test_without_any_site_there_is_no_campaign_and_no_connection_left(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = FakeLink()
    with (
        pytest.raises(CalibrationError, match="no site of the roster can be asked"),
        linked(monkeypatch, lab, link),
    ):
        pytest.fail("there is nobody to ask")
    assert link.closed == 1


def test_a_reply_that_does_not_come_is_late_and_the_others_are_used(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = FakeLink(site_1=honest(lab, "site-1"), site_2=honest(lab, "site-2"))
    with linked(monkeypatch, lab, link, timeout=7) as sites:
        link.said["site-2"] = lambda *_: None
        got = dict(sites.ask(sites.names, question()))
    assert got["site-1"].values.tolist() == [1.0]  # type: ignore[union-attr]
    assert got["site-1"].question == question()  # type: ignore[union-attr]
    assert got["site-2"].code == "late"  # type: ignore[union-attr]
    assert isinstance(got["site-2"], Unusable)
    assert link.timeouts[-1] == 7


def test_an_offer_goes_to_every_site_before_a_question_and_tells_who_would_refuse(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = FakeLink(
        site_1=honest(lab, "site-1"),
        site_2=honest(lab, "site-2", offer=Reply(refused="over_budget")),
        site_3=honest(lab, "site-3", offer=Reply(refused="awaiting_approval")),
    )
    plan = [question("plan", n) for n in range(4)]
    with linked(monkeypatch, lab, link) as sites:
        assert sites.refusals([]) == {}
        assert link.kinds() == []
        assert sites.refusals(plan) == {"site-2": "over_budget", "site-3": "awaiting_approval"}
        assert link.kinds() == [("offer", f"site-{n}") for n in (1, 2, 3)]
        link.said["site-1"] = lambda *_: None
        link.said["site-2"] = lambda *_: "{"
        refused = sites.refusals(plan)
    assert refused["site-1"] == "late"
    assert refused["site-2"] == "its reply cannot be read"


def test_a_release_is_sent_for_the_campaign_that_was_offered_and_waits_for_nobody(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = FakeLink(site_1=honest(lab, "site-1"), site_2=honest(lab, "site-2"))
    with linked(monkeypatch, lab, link, timeout=100) as sites:
        sites.release()
        assert link.kinds() == [], "nothing was kept anywhere"
        sites.refusals([question("plan")])
        link.said["site-1"] = lambda *_: "no"
        link.said["site-2"] = lambda *_: None
        sites.release()
    assert link.kinds()[-2:] == [("release", "site-1"), ("release", "site-2")]
    sent = json.loads(json.loads(link.sent[-1][2])["request"])
    assert (sent["campaign"], sent["questions"]) == ("plan", [])
    assert link.timeouts[-1] == SEND_TIMEOUT


def test_a_request_names_its_sites_and_outlives_the_time_they_have(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = FakeLink(site_1=honest(lab, "site-1"), site_2=honest(lab, "site-2"))
    for timeout, lifetime in ((1, LIFETIME), (1000, 2000), (10**6, MAX_LIFETIME)):
        with linked(monkeypatch, lab, link, timeout=timeout) as sites:
            list(sites.ask(["site-2"], question()))
        sent = json.loads(json.loads(link.sent[-1][2])["request"])
        assert (sent["sites"], sent["lifetime"]) == (["site-2"], lifetime)


def test_a_reply_that_cannot_be_used_is_not_used_and_says_why(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = FakeLink(site_1=honest(lab, "site-1"), site_2=honest(lab, "site-2"))
    with linked(monkeypatch, lab, link) as sites:

        def said(what: Said) -> Any:
            link.said["site-1"] = what
            [(_, got)] = sites.ask(["site-1"], question())
            return got

        assert isinstance(said(honest(lab, "site-1")), Answer)
        refusal = said(honest(lab, "site-1", Reply(refused="over_budget")))
        assert isinstance(refusal, Refused)
        assert refusal.code == "over_budget"
        old: list[str] = []
        real = honest(lab, "site-1")
        said(lambda topic, text: old.append(real(topic, text) or "") or old[0])
        for what, why in (
            (lambda *_: "", "cannot be read"),
            (lambda *_: "{}", "another version"),
            (lambda *_: '{"privcal":1}', "another version"),
            (lambda *_: '{"privcal":3}', "other parts"),
            (lambda *_: "x" * 10**6, "too long"),
            (lambda *_: old[0], "signature is not right"),
            (lambda topic, text: signed_by_another(lab, text), "signature is not right"),
            (honest(lab, "site-1", answer(1, rows_per_person=2)), "counts 2 rows of a person"),
            (honest(lab, "site-1", answer(2**62)), "off the grid"),
            (honest(lab, "site-1", answer()), "not of the 1 numbers"),
            (honest(lab, "site-1", answer(1, ledger="x")), "has no id"),
            (honest(lab, "site-1", Reply(accepted=True)), "other parts"),
        ):
            got = said(what)
            assert isinstance(got, Unusable)
            assert why in got.code


def signed_by_another(kits: Path, message: str) -> str:
    """The reply of a server, or of a hospital, in a site's name."""
    opened = open_message(message, kits / "site-1" / "startup" / "rootCA.pem", site="site-1")
    return seal_reply(answer(GRID), opened, SiteKeys.load(kits / "site-2"), "site-1")


def test_a_reply_is_judged_by_the_smaller_of_two_declared_numbers_of_rows(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(ours: int, theirs: int | None) -> Any:
        reply = answer(200 * GRID, max_rows=theirs)
        link = FakeLink(site_1=honest(lab, "site-1", reply))
        with linked(monkeypatch, lab, link, max_rows=ours) as sites:
            [(_, got)] = sites.ask(["site-1"], question(query=Gap(1.0), epsilon=5.0))
        return got

    assert said(1000, None).values.tolist() == [200.0]
    assert isinstance(said(1000, 2000), Answer)
    assert isinstance(said(5 * MAX_SITE_ROWS, 1000), Answer)
    for ours, theirs in ((100, None), (MAX_SITE_ROWS, 100), (100, 1000), (1000, 100)):
        assert "beyond" in said(ours, theirs).code


def test_where_nobody_declares_a_number_of_rows_there_is_one_that_no_hospital_exceeds(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rows, used in ((MAX_SITE_ROWS, True), (2 * MAX_SITE_ROWS, False)):
        link = FakeLink(site_1=honest(lab, "site-1", answer(rows * GRID)))
        with linked(monkeypatch, lab, link) as sites:
            [(_, got)] = sites.ask(["site-1"], question(query=Gap(1.0), epsilon=5.0))
        assert isinstance(got, Answer) is used


def test_what_travelled_is_counted_both_ways(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = FakeLink(site_1=honest(lab, "site-1"), site_2=honest(lab, "site-2"))
    got: list[str] = []

    def heard(name: str) -> Said:
        real = honest(lab, name)

        def said(topic: str, text: str) -> str | None:
            reply = real(topic, text)
            got.append(reply or "")
            return reply

        return said

    with linked(monkeypatch, lab, link) as sites:
        link.said = {name: heard(name) for name in link.said}
        link.sent.clear()
        list(sites.ask(sites.names, question()))
        assert sites.travelled == sum(len(text) for _, _, text in link.sent) + sum(map(len, got))
    assert len(set(map(len, got))) == 1, "the replies of all sites are of one length"


def test_cards_are_gathered_from_whoever_is_connected(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = FakeLink(
        site_1=honest(lab, "site-1"), site_2=honest(lab, "site-2"), site_3=lambda *_: None
    )
    monkeypatch.setattr("privcal.transport.federation.calibrator.roster.Link", link)
    assert [card.site for card in gather(lab / ANN)] == ["site-1", "site-2"]
    link.said["site-2"] = honest(lab, "site-3")
    told: list[str] = []
    assert [card.site for card in gather(lab / ANN, told.append)] == ["site-1"]
    assert any("site-2 shows no card" in text and "site-3" in text for text in told)
    assert (link.opened, link.closed) == (2, 2)


# --- the link -----------------------------------------------------------------------------


class FakeCell:
    """A cell that is connected while it is told so."""

    def __init__(self) -> None:
        self.ready, self.started, self.stopped = True, False, False

    def send_request(self, *_: Any, **__: Any) -> Message:
        """For a thread that outlives its test: it has its reply, and ends."""
        return Message({MessageHeaderKey.RETURN_CODE: ReturnCode.OK}, b"")

    def start(self) -> None:
        self.started = True

    def stop(self) -> None:
        self.stopped = True

    def is_backbone_ready(self) -> bool:
        return self.ready


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> FakeCell:
    made = FakeCell()
    monkeypatch.setattr(
        "privcal.transport.federation.calibrator.link.calibrator_cell", lambda kit: made
    )
    monkeypatch.setattr("privcal.transport.federation.calibrator.link.GIVEN_UP", 0.05)
    monkeypatch.setattr("privcal.transport.federation.calibrator.link._POLL", 0.001)
    return made


def asked(monkeypatch: pytest.MonkeyPatch, said: Callable[[str, str, bytes], Any]) -> None:
    monkeypatch.setattr(
        "privcal.transport.federation.calibrator.link.ask",
        lambda cell, topic, site, message, _: said(topic, site, message),
    )


def test_replies_come_as_they_arrive(cell: FakeCell, monkeypatch: pytest.MonkeyPatch) -> None:
    last = threading.Event()

    def said(topic: str, site: str, message: bytes) -> bytes:
        if site == "a":
            last.wait(30)
        return f"{topic} {site} {message.decode()}".encode()

    asked(monkeypatch, said)
    link = Link(Path())
    link.open()
    replies = link.ask_all("ask", {"a": b"1", "b": b"2"}, 60.0)
    assert next(replies) == ("b", "ask b 2")
    last.set()
    assert list(replies) == [("a", "ask a 1")]
    link.close()
    assert cell.stopped


def test_a_request_that_got_lost_is_sent_again_the_very_same(
    cell: FakeCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the same at the site too, and costs nothing again."""
    monkeypatch.setattr(
        "privcal.transport.federation.calibrator.link.time.sleep", lambda seconds: None
    )
    sent: list[bytes] = []

    def said(topic: str, site: str, message: bytes) -> bytes | None:
        sent.append(message)
        return None if len(sent) < 3 else b"yes"

    asked(monkeypatch, said)
    link = Link(Path())
    link.open()
    assert list(link.ask_all("ask", {"a": b"1"}, 60.0)) == [("a", "yes")]
    assert sent == [b"1"] * 3


def test_who_is_not_connected_is_not_waited_for_when_only_its_card_is_wanted(
    cell: FakeCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    asked(monkeypatch, lambda topic, site, message: calls.append(site))
    link = Link(Path())
    link.open()
    assert list(link.ask_all("card", {"a": b""}, 10_000.0)) == [("a", None)]
    assert calls == ["a"]


def test_the_server_says_who_is_connected(cell: FakeCell, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(monkeypatch, lambda topic, site, _: f"site-1\n{topic} {site}\n{topic}-{site}".encode())
    link = Link(Path())
    link.open()
    assert link.sites() == ["site-1", "sites-server"], "and no name that no site can have"


def test_a_reply_that_is_no_text_is_one_that_cannot_be_read_and_nothing_worse(
    cell: FakeCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(monkeypatch, lambda *_: b"\xff\xfe")
    link = Link(Path())
    link.open()
    assert list(link.ask_all("ask", {"a": b""}, 60.0)) == [("a", "\ufffd\ufffd")]


def test_a_server_that_cannot_be_reached_is_said_and_nothing_is_left(cell: FakeCell) -> None:
    cell.ready = False
    with pytest.raises(CalibrationError, match="server cannot be reached with kits/me"):
        Link(Path("kits/me")).open()
    assert cell.stopped


def test_a_server_that_is_gone_ends_the_run(
    cell: FakeCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()
    asked(monkeypatch, lambda *_: never.wait(30) and None)
    link = Link(Path())
    link.open()
    cell.ready = False
    try:
        with pytest.raises(CalibrationError, match="does not answer any more"):
            list(link.ask_all("ask", {"a": b""}, 10_000.0))
    finally:
        never.set()


# --- commands -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("rows.npz",), "give none of these"),
        (("--asker", "me"), "give none of these"),
        (("--policy", "p.toml"), "give none of these"),
        (("--ledger-dir", "."), "give none of these"),
        (("--source-column", "x"), "give none of these"),
        (("--epsilon", "0"), "epsilon must be above 0"),
        (("--method", "nothing"), "nothing"),
        (("--campaign", "a/b"), "slash"),
    ],
)
def test_arguments_of_a_federated_calibration_are_checked_first(
    run: Any, kits: Path, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    out = tmp_path / "map.json"
    code, _, err = run(
        "calibrate", "--federation", kits / ANN, "--model", "m", "--out", out, *arguments
    )
    assert code == 2
    assert says in err
    assert list(tmp_path.glob("map.json*")) == []


def test_the_command_says_which_site_is_not_asked_because_of_its_keys(
    run: Any, lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = FakeLink(site_1=honest(lab, "site-2"))
    monkeypatch.setattr("privcal.transport.federation.calibrator.panel.Link", link)
    code, _, err = run(
        "calibrate", "--federation", lab / ANN, "--model", "m", "--out", tmp_path / "map.json"
    )
    assert code != 0
    assert "site-1 has other keys than your roster says" in err
    assert "no site of the roster can be asked" in err


def test_a_run_that_failed_before_it_asked_leaves_no_record(
    run: Any, lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privcal.transport.federation.calibrator.panel.Link", FakeLink())
    command = ("calibrate", "--federation", lab / ANN, "--model", "m", "--out", tmp_path / "m.json")
    for more in ((), ("--again",)):
        code, _, err = run(*command, *more)
        assert (code, "no site of the roster can be asked" in err) == (1, True)
        assert list(tmp_path.glob("m.json*")) == []


def test_the_roster_command_pins_what_was_gathered_and_shows_its_digest(
    run: Any, lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = Path(shutil.copytree(lab / ANN, tmp_path / ANN))
    (kit / "roster.json").unlink()
    link = FakeLink(site_1=honest(lab, "site-1"), site_2=honest(lab, "site-2"))
    monkeypatch.setattr("privcal.transport.federation.calibrator.roster.Link", link)
    code, out, _ = run("federation", "roster", kit, "--out", tmp_path / "r.json", "--json")
    assert code == 0
    told = json.loads(out)
    assert (told["sites"], told["new"]) == (["site-1", "site-2"], ["site-1", "site-2"])
    assert told["digest"] == Roster.load(tmp_path / "r.json").digest
    link.said["site-3"] = honest(lab, "site-3")
    _, out, _ = run("federation", "roster", kit, "--json")
    assert json.loads(out)["new"] == ["site-3"]
    other = tmp_path / "site-1"
    shutil.copytree(lab / "site-1", other)
    rotate(other)
    link.said["site-1"] = lambda *_: own_card(other).text
    code, _, err = run("federation", "roster", kit)
    assert (code, "site-1 came with other keys than before" in err) == (2, True)
    code, out, _ = run("federation", "roster", kit, "--new-keys", "site-1", "--json")
    assert (code, json.loads(out)["rekeyed"]) == (0, ["site-1"])


def test_a_federated_calibration_needs_a_model_a_kit_and_flare(
    run: Any, kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = ("calibrate", "--out", tmp_path / "map.json")
    code, _, err = run(*base, "--federation", kits / ANN)
    assert (code, "give --model" in err) == (2, True)
    code, _, err = run(*base, "--federation", tmp_path, "--model", "m")
    assert (code, "not a calibrator's start-up kit" in err) == (2, True)
    assert run(*base)[0] == 2
    for option in ("--max-rows=5", "--rows-per-person=2"):
        code, _, err = run(*base, "x.npz", option)
        assert (code, "are for --federation" in err) == (2, True)
    monkeypatch.setattr("privcal.transport.federation.find_spec", lambda name: None)
    code, _, err = run(*base, "--federation", kits / ANN, "--model", "m")
    assert (code, "pip install" in err) == (2, True)
