"""A calibrator's record of a campaign: what it asks again, and what it never asks again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
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
from privcal.secure.panel import Secure, SecurePanel
from privcal.trusted.errors import CalibrationError, InputError
from privcal.trusted.queries import GRID, Gap
from privcal.trusted.question import Question
from privcal.trusted.source import Answer
from tests.support.builders import random_scores

pytest.importorskip("cryptography", reason="secure sums need cryptography: privcal[secure]")

from privcal.secure.local import LocalWay

MODEL = "resnet50-v3"


def question(campaign: str = "c") -> Question:
    return Question.of(Gap(1.5), 0.5, campaign, model=MODEL)


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
