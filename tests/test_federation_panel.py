"""The calibrator's side of a federation, the relay, and a site's settings, without processes."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import privcal
from privcal.calibrate import Here, Question, SourceDropped
from privcal.campaign import (
    ANSWERS,
    PLAN,
    Campaign,
    Recorded,
    Unusable,
    campaign_folder,
    open_campaign,
)
from privcal.errors import CalibrationError, InputError, Refused
from privcal.privacy.epsilon import NANO
from privcal.privacy.ledger import Key, Ledger
from privcal.privacy.mechanism import add_noise
from privcal.queries import FAMILY, GRID, BinnedGap, CellHistogram, Gap, Hats, Nll
from privcal.source import Answer
from tests.conftest import random_scores

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")

from privcal.federation import site
from privcal.federation.guard import wrong_with_config, wrong_with_files
from privcal.federation.messages import Reply
from privcal.federation.panel import BEYOND, Sites, beyond, job_folder
from privcal.federation.relay import IDLE, Relay
from tests import federation_parts as parts
from tests.federation_parts import ANN, MODEL, SERVER, question


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parts.make_kits(tmp_path_factory.mktemp("federation") / "kits", sites=1)


# --- the record of a campaign -------------------------------------------------------------


class Flaky:
    """Sources in this process as a panel, some of which fail where they are told to."""

    def __init__(self, sources: dict[str, privcal.Source], **fail: int) -> None:
        self._here = Here(list(sources.values()), "ann")
        self.names: Sequence[str] = list(sources)
        self.asker, self.rows_per_person = "ann", 1
        self.fail, self.asked, self.crash = fail, 0, math.inf

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def refusals(self, questions: Sequence[Question]) -> dict[str, str]:
        return {}

    def ask(
        self, names: Sequence[str], asked: Question
    ) -> Iterator[tuple[str, Answer | Exception]]:
        if self.asked >= self.crash:
            raise CalibrationError("the server is gone", ())
        for name, answer in self._here.ask(names, asked):
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
    return privcal.calibrate(panel, "acc-t", 1.0, campaign="c", model=None)


@pytest.mark.filterwarnings("ignore::privcal.calibrate.SourceDropped")
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
    assert not campaign.begun


def test_a_campaign_is_not_begun_over_another_nor_resumed_as_another(tmp_path: Path) -> None:
    out = tmp_path / "map.json"
    plan = {"method": "acc-t", "epsilon": 1.0, "model": MODEL, "options": {}}
    with pytest.raises(InputError, match="holds no campaign to resume"):
        open_campaign(out, plan, True, None)
    begun = open_campaign(out, plan, False, "trial")
    assert begun.plan["campaign"] == "trial"
    # Nobody was asked yet (the server could not be reached, say): it may begin again.
    begun = open_campaign(out, plan, False, "trial")
    begun.keep("s", question(), Answer(np.ones(1), 1, Key("ann", "trial"), "id"))
    with pytest.raises(InputError, match="holds a campaign already"):
        open_campaign(out, plan, False, None)
    assert open_campaign(out, plan, True, None).plan == begun.plan
    assert open_campaign(out, plan, True, "trial").plan == begun.plan
    with pytest.raises(InputError, match="begun with campaign 'trial'"):
        open_campaign(out, plan, True, "other")
    for part, value in (
        ("epsilon", 2.0),
        ("method", "nll-t"),
        ("model", "v4"),
        ("options", {"bins": 3}),
    ):
        with pytest.raises(InputError, match=f"begun with {part} .* resume it with the same"):
            open_campaign(out, {**plan, part: value}, True, None)
    (campaign_folder(out) / PLAN).write_text("{")
    with pytest.raises(InputError, match="is damaged"):
        open_campaign(out, plan, True, None)


# --- answers that cannot be ---------------------------------------------------------------


def slow_beyond(values: Sequence[int], rows: int, per_person: int, asked: Question) -> bool:
    """The words of the docstring, one number after the other."""
    bound = math.ceil(asked.query.sensitivity * GRID)
    epsilon = asked.nano_epsilon / NANO
    allowed = per_person * bound / epsilon * (math.log(2 * len(values)) - math.log(BEYOND))
    excess = 0.0
    for value in values:
        if abs(value) > allowed:
            excess += abs(value) - allowed
    return excess > rows * bound


@pytest.mark.parametrize("query", [Gap(1.0), Nll(1.0, 10.0), BinnedGap(1.0, 15), Hats()])
def test_beyond_is_what_it_says(query: Any) -> None:
    rng = np.random.default_rng(0)
    verdicts = set()
    for _ in range(500):
        asked = question(query=query, epsilon=float(rng.choice([0.01, 0.5, 5.0])))
        rows, per_person = int(rng.integers(1, 200)), int(rng.integers(1, 4))
        scale = GRID * 10 ** rng.uniform(0, 5)
        values = [int(v) for v in rng.normal(0, scale, query.length)]
        verdict = beyond(values, rows, per_person, asked)
        assert verdict == slow_beyond(values, rows, per_person, asked)
        verdicts.add(verdict)
    assert verdicts == {True, False}


@pytest.mark.parametrize("kind", FAMILY)
@pytest.mark.parametrize("epsilon", [0.05, 1.0])
def test_an_honest_answer_is_never_taken_for_a_lie(kind: str, epsilon: float) -> None:
    """Even of rows that all add the most they can, to one number."""
    query = FAMILY[kind]()
    asked = question(query=query, epsilon=epsilon)
    most = np.zeros(query.length, np.int64)
    most[0] = 50 * query.bound
    for _ in range(500):
        noisy = add_noise(most, query.bound, asked.nano_epsilon)
        assert not beyond(noisy, 50, 1, asked)
    assert beyond([v + most[0] * (1 + round(40 / epsilon)) for v in noisy], 50, 1, asked)


def test_a_reply_is_judged_by_the_smaller_of_two_declared_numbers_of_rows(kits: Path) -> None:
    asked = question(query=Gap(1.0), epsilon=5.0)
    value = 200 * GRID

    def said(ours: int | None, theirs: int | None, per_person: int = 1) -> Any:
        reply = Reply((value,), per_person, theirs, "0" * 32).text()
        return Sites(kits / ANN, max_rows=ours)._answer(reply, asked)

    assert isinstance(said(None, None), Answer)
    assert isinstance(said(1000, None), Answer)
    assert isinstance(said(None, 1000), Answer)
    for ours, theirs in ((100, None), (None, 100), (100, 1000), (1000, 100)):
        assert "beyond" in said(ours, theirs).code
    assert said(None, None, 2).code == "counts 2 rows of a person"
    assert said(None, None).values.tolist() == [200.0]


def test_an_empty_reply_is_a_failure_and_a_refusal_is_one(kits: Path) -> None:
    sites = Sites(kits / ANN)
    assert sites._answer("", question()).code == "failed"  # type: ignore[union-attr]
    refusal = sites._answer('{"refused": "over_budget"}', question())
    assert isinstance(refusal, Refused)
    assert refusal.code == "over_budget"


class Carrier:
    """A session with a server that answers as it likes."""

    def __init__(self, *said: Any) -> None:
        self.said, self.sent = list(said), []

    def do_app_command(self, job: str, topic: str, data: Any) -> Any:
        self.sent.append((topic, data))
        said = self.said.pop(0) if len(self.said) > 1 else self.said[0]
        if isinstance(said, Exception):
            raise said
        return said


def carried(kits: Path, monkeypatch: pytest.MonkeyPatch, *said: Any, timeout: int = 0) -> Sites:
    sites = Sites(kits / ANN, timeout=timeout)
    sites._session, sites._job = Carrier(*said), "job"
    monkeypatch.setattr("privcal.federation.panel._POLL", 0.001)
    monkeypatch.setattr("privcal.federation.panel._PATIENCE", 0.05)
    return sites


def test_answers_come_as_they_arrive_and_a_command_that_fails_is_tried_again(
    kits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = Reply((GRID,), ledger="0" * 32).text(), '{"refused": "model"}'
    sites = carried(
        kits, monkeypatch, RuntimeError("busy"), {"ticket": 3}, {"replies": {"b": good}},
        {"replies": {"b": bad, "stranger": good}}, {"replies": {"a": bad, "b": good}}, timeout=5,
    )  # fmt: skip
    got = list(sites.ask(["a", "b"], question()))
    assert [name for name, _ in got] == ["b", "a"]
    assert got[0][1].values.tolist() == [1.0]  # type: ignore[union-attr]
    assert got[0][1].key == Key(ANN, "c", 0, 0)  # type: ignore[union-attr]
    assert got[1][1].code == "model"  # type: ignore[union-attr]
    assert sites.travelled > 2 * len(good)


def test_a_server_that_is_gone_ends_the_run(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = carried(kits, monkeypatch, ConnectionError("gone"))
    with pytest.raises(CalibrationError, match=r"does not answer any more \(gone\)"):
        list(sites.ask(["a"], question()))


def test_a_panel_needs_a_calibrators_kit(kits: Path) -> None:
    for name in (SERVER, "site-1", "nobody"):
        with pytest.raises(InputError, match="is not a calibrator's start-up kit"):
            Sites(kits / name)


# --- the job and its relay ----------------------------------------------------------------


def test_the_job_is_one_that_sites_take(tmp_path: Path) -> None:
    job = job_folder(tmp_path)
    assert wrong_with_files(job / "app") == ""
    config = json.loads((job / "app" / "config" / "config_fed_client.json").read_text())
    assert wrong_with_config(config) == ""
    names = {str(path.relative_to(job)) for path in job.rglob("*") if path.is_file()}
    assert names == {
        "meta.json",
        "app/config/config_fed_client.json",
        "app/config/config_fed_server.json",
    }


class Engine:
    def __init__(self) -> None:
        self.commands: dict[str, Any] = {}

    def register_app_command(self, topic: str, function: Any) -> None:
        self.commands[topic] = function

    def get_clients(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in ("b", "a")]


@pytest.fixture
def relay() -> Any:
    made, engine = Relay(), Engine()
    context = SimpleNamespace(get_engine=lambda: engine)
    made.start_controller(context)
    made.say = lambda name, data=None: engine.commands[f"privcal.{name}"](
        f"privcal.{name}", data, context
    )
    return made


def received(relay: Any, ticket: int, name: str, reply: Any, code: str = "OK") -> None:
    from nvflare.apis.shareable import Shareable

    result = Shareable()
    result["reply"] = reply
    result.set_return_code(code)
    task = SimpleNamespace(props={"ticket": ticket})
    relay._received(
        SimpleNamespace(task=task, client=SimpleNamespace(name=name), result=result), None
    )


def test_a_relay_keeps_the_first_reply_of_each_site(relay: Any) -> None:
    assert relay.say("sites") == {"sites": ["a", "b"]}
    asked = {"message": "m", "sites": ["a", "b"], "timeout": 5}
    assert [relay.say("ask", asked)["ticket"] for _ in range(2)] == [0, 1]
    received(relay, 0, "a", "first")
    received(relay, 0, "a", "second")
    received(relay, 1, "a", "other")
    assert relay.say("replies", {"ticket": 0}) == {"replies": {"a": "first"}}
    assert relay.say("replies", {"ticket": 1}) == {"replies": {"a": "other"}}
    assert relay.say("replies", {"ticket": 99}) == {"replies": {}}


@pytest.mark.parametrize(
    ("reply", "code"),
    [(None, "OK"), (5, "OK"), ("x" * 70_000, "OK"), ("fine", "EXECUTION_EXCEPTION")],
)
def test_a_relay_carries_no_oddities(relay: Any, reply: Any, code: str) -> None:
    relay.say("ask", {"message": "m", "sites": ["a"], "timeout": 5})
    received(relay, 0, "a", reply, code)
    assert relay.say("replies", {"ticket": 0}) == {"replies": {"a": ""}}


def test_a_relay_takes_no_message_that_is_too_long(relay: Any) -> None:
    for message in ("x" * 40_000, None, 5):
        assert "error" in relay.say("ask", {"message": message, "sites": ["a"], "timeout": 5})
    assert relay._asked.empty()


def test_a_relay_sends_what_it_was_given_and_ends_when_told_or_forgotten(
    relay: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(relay, "broadcast", lambda task, context, **more: sent.append((task, more)))
    relay.say("ask", {"message": "m", "sites": ["a"], "timeout": 5})
    running = SimpleNamespace(triggered=False)
    relay._heard = time.monotonic() - IDLE - 1
    relay.control_flow(running, None)
    assert sent == []
    relay.say("sites")
    monkeypatch.setattr(relay, "broadcast", lambda *a, **k: (sent.append((a, k)), relay.say("end")))
    relay.control_flow(running, None)
    [((task, _), more)] = sent
    assert dict(task.data)["message"] == "m"
    assert (task.timeout, more["targets"]) == (5, ["a"])
    relay._over = False
    relay.stop_controller(None)
    relay.control_flow(running, None)


# --- a site's settings --------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "site" / "local").mkdir(parents=True)
    return tmp_path / "site"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return parts.write_rows(tmp_path / "rows.npz", 30)


def test_a_site_is_set_up_once(folder: Path, rows: Path) -> None:
    rules = privcal.Policy(2.0, 0.5, None, 1, (ANN,), MODEL)
    made = site.init(folder, rows, rules, delay=1, max_rows=40)
    assert made == site.Site.load(folder)
    assert made.source().policy == rules
    assert (made.delay, made.max_rows) == (1.0, 40)
    assert (folder / "local" / site.SETTINGS).stat().st_mode & 0o077 == 0
    ledger = Ledger(made.ledger)
    assert (ledger.unit, ledger.facts.name) == ("row", "site")
    with pytest.raises(InputError, match="exists already"):
        site.init(folder, rows, rules)
    (folder / "local" / site.SETTINGS).unlink()
    with pytest.raises(InputError, match=r"privcal.ledger exists already"):
        site.init(folder, rows, rules)


def test_a_second_site_over_the_same_data_gets_no_second_budget(
    folder: Path, rows: Path, tmp_path: Path
) -> None:
    first = site.init(folder, rows, privcal.Policy(2.0))
    (tmp_path / "other" / "local").mkdir(parents=True)
    with pytest.raises(InputError, match="has the ledger"):
        site.init(tmp_path / "other", rows, privcal.Policy(2.0))
    second = site.init(tmp_path / "other", rows)
    assert second.ledger.resolve() == first.ledger.resolve()
    first.source().answer(Gap(), 1.5, "c")
    with pytest.raises(privcal.Refused, match="over_budget"):
        second.source().answer(Gap(), 1.0, "d")


def test_a_site_counts_no_more_rows_than_it_declares_also_when_its_file_grows(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privcal.source.add_noise", lambda total, *_: total.tolist())
    rows = parts.write_rows(tmp_path / "rows.npz", 60)
    made = site.init(folder, rows, privcal.Policy(2.0), max_rows=60)
    parts.write_rows(rows, 300)
    counts = made.source().answer(CellHistogram(), 1.0, "c").values
    assert counts.max() == 60  # of 300 rows far more than that are surely right


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"data": "nowhere.npz"}, "nowhere.npz"),
        ({"max_rows": 29}, "more rows than the 29 declared"),
        ({"max_rows": 0}, "max_rows must be"),
        ({"max_rows": 1.5}, "max_rows must be"),
        ({"delay": 0.01}, "delay must be from"),
        ({"delay": 601}, "delay must be from"),
        ({"delay": "2"}, "delay must be a number"),
        ({"delay": True}, "delay must be a number"),
        ({"delay": float("nan")}, "delay must be from"),
        ({"policy": None}, "has no ledger yet"),
        ({"policy": privcal.Policy(rows_per_person=2)}, "there are no person ids"),
        ({"policy": privcal.Policy(budget="person")}, "needs person ids"),
        ({"person": "patient"}, "has no array patient"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(
    folder: Path, rows: Path, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError) as error:
        site.init(folder, **{"data": rows, "policy": privcal.Policy(), **change})
    assert says in str(error.value)
    assert list((folder / "local").iterdir()) == []


def test_a_folder_that_is_no_sites_and_data_that_cannot_be_read(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="has no local/"):
        site.init(tmp_path / "elsewhere", tmp_path / "rows.npz")
    (tmp_path / "broken.npz").write_bytes(b"PK no")
    with pytest.raises(InputError, match=r"broken\.npz"):
        site.init(folder, tmp_path / "broken.npz", privcal.Policy())


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("delay = ", "dealy = ", "no setting 'dealy'"),
        ("delay = ", "policy = 3\ndelay = ", "no setting 'policy'"),
        ("data = ", "data = 5 #", "data must be a path"),
        ("ledger = ", "# ledger = ", "ledger must be a path"),
        ("delay = ", "delay ", "is not valid TOML"),
        ("delay = 2.0", "delay = 0", "delay must be from"),
        ("delay = 2.0", "max_rows = -1", "max_rows must be"),
    ],
)
def test_a_typo_in_the_settings_is_an_error_and_not_a_silence(
    folder: Path, rows: Path, old: str, new: str, says: str
) -> None:
    site.init(folder, rows, privcal.Policy())
    path = folder / "local" / site.SETTINGS
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as error:
        site.Site.load(folder)
    assert says in str(error.value)


def test_settings_that_are_gone_are_missed(folder: Path) -> None:
    with pytest.raises(InputError, match="run privcal site init first"):
        site.Site.load(folder)


# --- commands -----------------------------------------------------------------------------


def test_site_commands(run: Any, folder: Path, rows: Path) -> None:
    setup = ("site", "init", folder, "--data", rows, "--epsilon", 2, "--model", MODEL)
    code, _, err = run(*setup)
    assert (code, "--per-row" in err) == (2, True)
    setup = (*setup, "--per-row")
    code, out, _ = run(*setup, "--json")
    assert code == 0
    assert json.loads(out)["ledger"].endswith(site.LEDGER)
    code, _, err = run(*setup)
    assert code == 2
    assert "exists already" in err
    source = site.Site.load(folder).source()
    source.answer(Gap(1.5), 0.5, "c/0/0", ANN, MODEL)
    code, out, _ = run("site", "status", folder, "--json")
    told = json.loads(out)
    assert (code, told["spent"], told["total"]) == (0, 0.5, 2.0)
    assert told["campaigns"] == [{"asker": ANN, "campaign": "c", "questions": 1, "epsilon": 0.5}]
    code, out, _ = run("site", "status", folder)
    assert code == 0
    assert "ε 0.5 of 2 is spent; 1.5 remains" in out
    assert "Protected: one row" in out
    assert "you are in the data may come to believe it with at most 88 of 100" in out
    assert run("site", "status", folder.parent)[0] == 2
    assert run("site", "init", folder.parent, "--data", rows, "--epsilon", 1)[0] == 2
    assert run("site", "init", folder)[0] == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("rows.npz",), "give none of these"),
        (("--asker", "me"), "give none of these"),
        (("--policy", "p.toml"), "give none of these"),
        (("--ledger-dir", "."), "give none of these"),
        (("--source-column", "x"), "give none of these"),
        (("--resume",), "holds no campaign to resume"),
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


def test_a_federated_calibration_needs_a_model_a_kit_and_flare(
    run: Any, kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = ("calibrate", "--out", tmp_path / "map.json")
    code, _, err = run(*base, "--federation", kits / ANN)
    assert (code, "give --model" in err) == (2, True)
    code, _, err = run(*base, "--federation", tmp_path, "--model", "m")
    assert (code, "not a calibrator's start-up kit" in err) == (2, True)
    assert run(*base)[0] == 2
    for option in ("--resume", "--max-rows=5", "--rows-per-person=2"):
        code, _, err = run(*base, "x.npz", option)
        assert (code, "are for --federation" in err) == (2, True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = run(*base, "--federation", kits / ANN, "--model", "m")
    assert (code, "pip install" in err) == (2, True)
