"""Whatever is sent to a site: an answer to a good question of a calibrator, or a fixed code."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import privcal
from privcal.errors import REFUSALS, InputError, Refused
from privcal.privacy import opening
from privcal.privacy.ledger import Ledger
from privcal.privacy.policy import Policy
from privcal.queries import FAMILY, BinnedGap, Gap, Hats

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")

from privcal.federation import executor, site
from privcal.federation.messages import (
    MAX_MESSAGE,
    MAX_REPLY,
    Reply,
    Signer,
    open_message,
    read_question,
    read_reply,
)
from tests import federation_parts as parts
from tests.federation_parts import ANN, BOB, MODEL, message, question, signer

ID = "0123456789abcdef" * 2


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parts.make_kits(tmp_path_factory.mktemp("federation") / "kits", sites=1)


@pytest.fixture(scope="module")
def place(kits: Path) -> site.Site:
    """A site of 60 rows."""
    data = parts.write_rows(kits / "site-1" / "data" / "scores.npz", 60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVCAL_MARKS", str(kits / "marks.db"))
        return site.init(kits / "site-1", data, Policy(10.0, model=MODEL), delay=0.1)


@pytest.fixture(autouse=True)
def _marks_of_their_own(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in conftest, but for all tests here: one site outlives each of them."""
    monkeypatch.setenv("PRIVCAL_MARKS", str(kits / "marks.db"))


@pytest.fixture(scope="module")
def app(kits: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(parts.job_of(kits, "site-1", tmp_path_factory.mktemp("app")))


@pytest.fixture(scope="module")
def ann(kits: Path) -> Signer:
    return signer(kits)


GOOD = parts.facts_of(question("never"))


def changed(**facts: Any) -> str:
    return json.dumps({**GOOD, **facts})


def asking(**query: Any) -> str:
    return changed(query=query)


def without(name: str) -> str:
    return json.dumps({k: v for k, v in GOOD.items() if k != name})


NUMBERS = {
    "NaN": float("nan"), "infinity": float("inf"), "-infinity": float("-inf"), "zero": 0, "-0.0": -0.0,
    "negative": -1.5, "huge": 1e300, "huge int": 10**400, "tiny": 5e-324, "true": True, "text": "1.5",
    "null": None, "list": [1.5], "object": {"a": 1},
}  # fmt: skip
WHOLE = {
    "NaN": float("nan"), "infinity": float("inf"), "negative": -1, "fraction": 1.5, "whole float": 1.0,
    "true": True, "text": "1", "null": None, "2**53": 2**53, "10**30": 10**30, "list": [1], "object": {},
}  # fmt: skip
WITH_TEMPERATURE = [k for k, cls in FAMILY.items() if "temperature" in cls.__dataclass_fields__]
WITH_BINS = [k for k, cls in FAMILY.items() if "bins" in cls.__dataclass_fields__]
DEEP = "[" * 3000 + "]" * 3000

SIGNED: dict[str, str] = {
    **{f"{k} at {n}": asking(kind=k, temperature=v) for k in WITH_TEMPERATURE for n, v in NUMBERS.items()},
    **{f"{k} of bins {n}": asking(kind=k, bins=v) for k in WITH_BINS for n, v in WHOLE.items() if n != "true"},
    **{f"{k} of {n} bins": asking(kind=k, bins=n) for k in WITH_BINS for n in (0, 10**6)},
    **{f"nll clipped at {n}": asking(kind="nll", clip=v) for n, v in NUMBERS.items() if n != "tiny"},
    **{f"round {n}": changed(round=v) for n, v in WHOLE.items()},
    **{f"index {n}": changed(index=v) for n, v in WHOLE.items()},
    **{f"epsilon {n}": changed(nano_epsilon=v) for n, v in WHOLE.items()},
    **{f"without {name}": without(name) for name in GOOD},
    **{f"kind {kind!r}": asking(kind=kind) for kind in ("", "GAP", "sum", "__class__", "rows", "gap ", None, 1, ["gap"], {})},
    **{f"query {q!r}": changed(query=q) for q in (None, [], "gap", 1, {}, [["kind", "gap"]])},
    **{f"campaign {c!r}": changed(campaign=c) for c in ("", "a/b", "a\nb", "x" * 201, None, 1, [], "\x00", "../..")},
    **{f"model {m!r}": changed(model=m) for m in (1, [], {}, True)},
    "epsilon zero": changed(nano_epsilon=0),
    "round 2**31": changed(round=2**31),
    "index 2**31": changed(index=2**31),
    "an epsilon beside": changed(epsilon=100),
    "a policy beside": changed(policy={"epsilon": 100}),
    "a sensitivity": asking(kind="gap", temperature=1.5, sensitivity=0),
    "a path": asking(kind="gap", temperature=1.5, data="/etc/passwd"),
    "a person": asking(kind="gap", person="p1"),
    "one knot": asking(kind="hats", knots=[1.0]),
    "no knots": asking(kind="hats", knots=[]),
    "33 knots": asking(kind="hats", knots=list(range(33))),
    "5000 knots": asking(kind="hats", knots=list(range(5000))),
    "knots that fall": asking(kind="hats", knots=[2.0, 1.0]),
    "knots too near": asking(kind="hats", knots=[1.0, 1.001]),
    "knots of NaN": asking(kind="hats", knots=[0.0, float("nan")]),
    "knots of text": asking(kind="hats", knots=["a", "b"]),
    "knots that are a text": asking(kind="hats", knots="0123"),
    "knots too far": asking(kind="hats", knots=[0.0, 1e9]),
    "nested knots": asking(kind="hats", knots=[[0.0], [1.0]]),
    "deep knots": '{"query":{"kind":"hats","knots":' + DEEP + "}}",
    "deep": DEEP,
    "nothing": "",
    "no JSON": "{",
    "a list": "[]",
    "a number": "1",
    "null": "null",
    "many digits": changed(round=0).replace('"round": 0', '"round": ' + "9" * 5000),
}  # fmt: skip


def refused(place: site.Site, sent: Any, app: str) -> str:
    before = Ledger(place.ledger).entries()
    with pytest.raises(Refused) as refusal:
        executor.answer(place, sent, app)
    assert Ledger(place.ledger).entries() == before
    return refusal.value.code


def test_there_are_at_least_200_malformed_questions() -> None:
    assert len(SIGNED) >= 200


@pytest.mark.parametrize("name", SIGNED)
def test_a_malformed_question_is_refused_though_well_signed(
    place: site.Site, app: str, ann: Signer, name: str
) -> None:
    assert refused(place, message(ann, SIGNED[name]), app) == "bad_request"


def test_the_good_question_that_these_were_made_from_is_answered(
    place: site.Site, app: str, ann: Signer
) -> None:
    asked = question("answered")
    reply = executor.answer(place, ann.sign(asked), app)
    assert len(reply.values) == 1
    assert executor.answer(place, ann.sign(asked), app) == reply  # again, and free
    assert Ledger(place.ledger).nano_spent == asked.nano_epsilon


# --- messages that are not what a calibrator signed ---------------------------------------

SENT: dict[str, Callable[[str], Any]] = {
    "nothing": lambda good: None,
    "bytes": lambda good: good.encode(),
    "a dict": lambda good: json.loads(good),
    "a number": lambda good: 5,
    "an empty text": lambda good: "",
    "no JSON": lambda good: good[:-1],
    "a list": lambda good: f"[{good}]",
    "deep": lambda good: "[" * 16000 + "]" * 16000,
    "too long": lambda good: good + " " * MAX_MESSAGE,
    "without a signature": lambda good: drop(good, "signature"),
    "without a certificate": lambda good: drop(good, "certificate"),
    "without a question": lambda good: drop(good, "question"),
    "an empty signature": lambda good: put(good, signature=""),
    "a signature that is no text": lambda good: put(good, signature=[1]),
    "a signature of zeros": lambda good: put(good, signature="AAAA" * 86),
    "a certificate that is none": lambda good: put(good, certificate="x"),
    "a certificate that is no text": lambda good: put(good, certificate=None),
    "a certificate beyond ASCII": lambda good: put(good, certificate="é"),
    "a question that is no text": lambda good: put(good, question=GOOD),
    "a smaller epsilon after signing": lambda good: alter(good, "500000000", "400000000"),
    "a larger epsilon after signing": lambda good: alter(good, "500000000", "900000000"),
    "another temperature after signing": lambda good: alter(good, "1.5", "1.6"),
    "a space after signing": lambda good: alter(good, ",", ", "),
    "another campaign after signing": lambda good: alter(good, "never", "again"),
}


def drop(good: str, name: str) -> str:
    return json.dumps({k: v for k, v in json.loads(good).items() if k != name})


def put(good: str, **values: Any) -> str:
    return json.dumps({**json.loads(good), **values})


def alter(good: str, old: str, new: str) -> str:
    text = json.loads(good)["question"]
    assert old in text
    return put(good, question=text.replace(old, new))


@pytest.mark.parametrize("name", SENT)
def test_a_message_that_was_tampered_with_is_refused(
    place: site.Site, app: str, ann: Signer, name: str
) -> None:
    assert refused(place, SENT[name](ann.sign(question("never"))), app) == "bad_request"


def test_another_ones_signature_or_certificate_is_refused(
    place: site.Site, app: str, ann: Signer, kits: Path
) -> None:
    bob = signer(kits, BOB)
    good = ann.sign(question("never"))
    assert refused(place, put(good, certificate=bob.certificate), app) == "bad_request"
    signature = json.loads(bob.sign(question("never")))["signature"]
    assert refused(place, put(good, signature=signature), app) == "bad_request"


@pytest.mark.parametrize("who", ["site-1", "localhost"])
def test_a_good_certificate_of_someone_who_is_no_calibrator_is_refused(
    place: site.Site, app: str, kits: Path, who: str
) -> None:
    """A site, or the server, asks another site in its own name."""
    from nvflare.lighter.utils import load_private_key_file

    [path] = (kits / who / "startup").glob("*.key")
    key = load_private_key_file(str(path))
    fake = Signer(who, path.with_suffix(".crt").read_text(), key)
    assert refused(place, fake.sign(question("never")), app) == "bad_request"


@pytest.mark.parametrize(
    ("signed", "role", "days"),
    [
        ("self", "lead", 360),
        ("elsewhere", "lead", 360),
        ("here", "member", 360),
        ("here", "lead", -1),
    ],
)
def test_a_certificate_that_is_self_made_foreign_or_expired_is_refused(
    place: site.Site, app: str, kits: Path, tmp_path: Path, signed: str, role: str, days: int
) -> None:
    if signed == "elsewhere":
        parts.make_kits(tmp_path / "kits", 1)
    folder = tmp_path / "kits" if signed == "elsewhere" else kits
    authority = None if signed == "self" else json.loads((folder / "ca" / "cert.json").read_text())
    pem, key = parts.certificate(ANN, role, authority=authority, days=days)
    assert refused(place, Signer(ANN, pem, key).sign(question("never")), app) == "bad_request"


def test_such_a_certificate_made_by_the_authority_would_do(kits: Path) -> None:
    """The control: what was wrong above is the issuer, the role, the date."""
    authority = json.loads((kits / "ca" / "cert.json").read_text())
    pem, key = parts.certificate("eve@lab.org", authority=authority)
    root = str(kits / "site-1" / "startup" / "rootCA.pem")
    asked = question("made")
    assert open_message(Signer("eve@lab.org", pem, key).sign(asked), root) == ("eve@lab.org", asked)


def test_a_question_in_somebody_elses_job_is_refused(
    place: site.Site, kits: Path, tmp_path: Path, ann: Signer, app: str
) -> None:
    bobs = str(parts.job_of(kits, "site-1", tmp_path, BOB))
    assert refused(place, ann.sign(question("never")), bobs) == "asker"
    assert refused(place, signer(kits, BOB).sign(question("never")), app) == "asker"
    assert refused(place, ann.sign(question("never")), str(tmp_path / "nowhere")) == "asker"


def test_a_signed_question_never_reaches_the_data_unless_all_is_well(
    place: site.Site, app: str, ann: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.Site, "source", lambda self: pytest.fail("the data were opened"))
    refused(place, message(ann, SIGNED["gap at NaN"]), app)
    refused(place, ann.sign(question("never")), "/nowhere")


# --- round trips --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        question(),
        question("a campaign with é and ☃", 7, BinnedGap(0.3, 30), 1e-9, index=3, model=None),
        question("h", 2**31 - 1, Hats(2.0, (-1.0, 0.1, 99.0)), 1e6),
        *(question(kind, query=cls()) for kind, cls in FAMILY.items()),
    ],
)
def test_a_question_comes_through_unchanged(asked: Any, kits: Path) -> None:
    assert read_question(asked.text()) == asked
    root = str(kits / "site-1" / "startup" / "rootCA.pem")
    assert open_message(signer(kits).sign(asked), root) == (ANN, asked)


def test_the_longest_question_is_far_below_the_limit(ann: Signer) -> None:
    longest = question(
        "☃" * 200, query=Hats(1 / 3, tuple(k + 1 / 3 for k in range(32))), model="m" * 200
    )
    assert len(ann.sign(longest)) < MAX_MESSAGE / 4


def test_a_signer_needs_a_key_and_a_certificate(kits: Path, tmp_path: Path) -> None:
    assert signer(kits, BOB).name == BOB
    with pytest.raises(InputError, match="holds no readable key"):
        Signer.of_kit(tmp_path)
    (tmp_path / "client.crt").write_text("no certificate")
    (tmp_path / "client.key").write_text("no key")
    with pytest.raises(InputError, match="holds no readable key"):
        Signer.of_kit(tmp_path)


# --- replies ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply",
    [Reply((1, -(2**61)), 1, None, ID), Reply((0, 0), 3, 900, ID), Reply(refused="over_budget")],
)
def test_a_reply_comes_through_unchanged(reply: Reply) -> None:
    assert read_reply(reply.text(), 2) == reply


@pytest.mark.parametrize("code", REFUSALS)
def test_a_refusal_is_a_code_and_nothing_else(code: str) -> None:
    assert json.loads(Reply(refused=code).text()) == {"refused": code}


def replying(**facts: Any) -> str:
    return json.dumps({"values": [1, 2], "rows_per_person": 1, "ledger": ID, **facts})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "not a text"),
        (b"{}", "not a text"),
        ("x" * (MAX_REPLY + 1), "too long"),
        ("{", "cannot be read"),
        ("[" * 30000, "cannot be read"),
        ("[]", "cannot be read"),
        ("{}", "other parts"),
        ('{"values": [1, 2]}', "other parts"),
        (replying(rows=812), "other parts"),
        (replying(values=[1]), "the 2 numbers"),
        (replying(values=[1, 2, 3]), "the 2 numbers"),
        (replying(values=[]), "the 2 numbers"),
        (replying(values="12"), "the 2 numbers"),
        (replying(values={"0": 1, "1": 2}), "the 2 numbers"),
        (replying(values=[1, 0.5]), "off the grid"),
        (replying(values=[1, 2.0]), "off the grid"),
        (replying(values=[1, float("nan")]), "off the grid"),
        (replying(values=[1, float("inf")]), "off the grid"),
        (replying(values=[1, None]), "off the grid"),
        (replying(values=[1, True]), "off the grid"),
        (replying(values=[1, "2"]), "off the grid"),
        (replying(values=[1, 2**62]), "off the grid"),
        (replying(values=[1, 10**400]), "off the grid"),
        (replying(values=[1, [2]]), "off the grid"),
        ('{"values": [1, ' + "9" * 5000 + '], "rows_per_person": 1}', "cannot be read"),
        (replying(rows_per_person=0), "rows_per_person"),
        (replying(rows_per_person=1.0), "rows_per_person"),
        (replying(rows_per_person=None), "rows_per_person"),
        (replying(max_rows=0), "max_rows"),
        (replying(max_rows=2**31), "max_rows"),
        (replying(max_rows="many"), "max_rows"),
        (replying(ledger="John Smith"), "ledger has no id"),
        (replying(ledger=7), "ledger has no id"),
        ('{"refused": "because of John Smith"}', "unknown code"),
        ('{"refused": ["asker"]}', "unknown code"),
        ('{"refused": "asker", "why": "John Smith"}', "unknown code"),
        ('{"refused": null}', "unknown code"),
    ],
)
def test_a_reply_of_a_lying_site_is_not_used(text: Any, says: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        read_reply(text, 2)
    assert says in str(error.value)
    assert "Smith" not in str(error.value)


# --- when a reply leaves ------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds

    def strftime(self, form: str) -> str:
        return time.strftime(form)


@pytest.mark.parametrize("delay", [0.1, 0.7, 2.0, 600.0])
@pytest.mark.parametrize("took", [0.0, 1e-9, 0.05, 0.1, 0.3, 1.9999, 2.0, 2.0001, 5.6, 61.3])
def test_a_reply_leaves_at_a_multiple_of_the_delay(
    monkeypatch: pytest.MonkeyPatch, delay: float, took: float
) -> None:
    clock = Clock()
    monkeypatch.setattr(executor, "time", clock)
    arrived = clock.now
    clock.now += took
    executor.hold(arrived, delay)
    held = (clock.now - arrived) / delay
    assert held == pytest.approx(round(held), abs=1e-6)
    assert held > 0.999999
    assert took - 1e-9 <= clock.now - arrived <= took + delay + 1e-9


class Context:
    """As much of FLARE's context as an executor asks for."""

    def __init__(self, place: site.Site, app: str) -> None:
        self.local, self.app = str(place.folder / "local"), app

    def get_prop(self, name: str) -> Any:
        return self

    def get_site_config_dir(self) -> str:
        return self.local

    def get_app_dir(self, job: str) -> str:
        return self.app

    def get_job_id(self) -> str:
        return "job"


@pytest.mark.parametrize("rows", [1, 60, 9000])
@pytest.mark.parametrize("what", ["answer", "refusal", "failure"])
def test_when_a_reply_leaves_does_not_depend_on_the_rows(
    kits: Path,
    tmp_path: Path,
    app: str,
    ann: Signer,
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    what: str,
) -> None:
    """Reading takes a second for every 1,000 rows, by a clock of ours; a delay of 20 covers it."""
    folder = tmp_path / "site-1"
    (folder / "local").mkdir(parents=True)
    (folder / "startup").symlink_to(kits / "site-1" / "startup")
    data = parts.write_rows(tmp_path / "rows.npz", rows)
    place = site.init(folder, data, Policy(10.0, model=MODEL), delay=20.0)
    clock = Clock()
    monkeypatch.setattr(executor, "time", clock)
    real = opening.Data.read

    def slowly(data: opening.Data) -> Any:
        clock.now += rows / 1000
        if what == "failure":
            raise InputError("the row of John Smith is odd")
        return real(data)

    monkeypatch.setattr(opening.Data, "read", slowly)
    asked = question("timing", model="another" if what == "refusal" else MODEL)
    sent = executor.SiteExecutor().execute(
        "privcal", {"message": ann.sign(asked)}, Context(place, app), None
    )
    assert clock.now == pytest.approx(1020.0)
    assert set(sent) - {"__headers__"} == {"reply"}
    reply = read_reply(sent["reply"], 1)
    assert reply.refused == {"answer": None, "refusal": "model", "failure": "unavailable"}[what]
    assert "Smith" not in json.dumps(sent, default=str)
    noted = folder / "local" / executor.ERRORS
    assert ("John Smith" in noted.read_text()) if what == "failure" else True
    assert not noted.exists() or noted.stat().st_mode & 0o077 == 0


def test_an_executor_takes_no_arguments() -> None:
    with pytest.raises(TypeError):
        executor.SiteExecutor(epsilon=100.0)  # type: ignore[call-arg]


def test_a_policy_rules_whatever_is_signed(
    kits: Path, tmp_path: Path, app: str, ann: Signer
) -> None:
    folder = tmp_path / "site-1"
    (folder / "local").mkdir(parents=True)
    (folder / "startup").symlink_to(kits / "site-1" / "startup")
    data = parts.write_rows(tmp_path / "rows.npz", 20)
    rules = Policy(1.0, 0.6, ("gap",), 1, (ANN,), MODEL)
    made = site.init(folder, data, rules)

    def ask(*args: Any, **more: Any) -> str | None:
        try:
            return executor.answer(
                site.Site.load(folder), ann.sign(question(*args, **more)), app
            ).refused
        except Refused as refusal:
            return refusal.code

    assert ask("q", query=BinnedGap(1.0, 15)) == "query"
    assert ask("m", model="another") == "model"
    assert ask("l", epsilon=0.600000001) == "over_request_limit"
    assert ask("a", epsilon=0.6) is None
    assert ask("a", epsilon=0.6) is None
    assert ask("a", epsilon=0.5) == "id_conflict"
    assert ask("a", query=Gap(2.0), epsilon=0.6) == "id_conflict"
    assert ask("b", epsilon=0.400000001) == "over_budget"
    assert ask("b", epsilon=0.4) is None
    assert ask("c", epsilon=1e-9) == "over_budget"
    Ledger(made.ledger).set_policy(replace(rules, askers=(BOB,)))
    assert ask("a", epsilon=0.6) == "asker"
    assert Ledger(folder / "local" / site.LEDGER).nano_spent == 10**9


ODD_ROWS: dict[str, dict[str, Any]] = {
    "a logit that is not a number": {"logit": float("nan")},
    "an infinite logit": {"logit": float("inf")},
    "a label out of range": {"label": 10},
    "a label that is no whole number": {"label": 0.5},
    "a typo": {"logit": "0.5.1"},
    "an empty cell": {"logit": None},
    "text for a label": {"label": "malignant"},
    "a label beyond 64 bits": {"label": "99999999999999999999"},
    "a stray quotation mark": {"logit": '"0.5'},
    "a comma too many": {"logit": "0,5"},
}


@pytest.mark.parametrize("odd", ODD_ROWS)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_no_refusal_tells_whether_a_malformed_row_is_there(
    kits: Path, tmp_path: Path, app: str, ann: Signer, kits_bob: Signer, odd: str, kind: str
) -> None:
    """Neither to someone the policy does not admit, nor when the budget is used up, nor else."""
    folder = tmp_path / "site-1"
    (folder / "local").mkdir(parents=True)
    (folder / "startup").symlink_to(kits / "site-1" / "startup")
    lines = [[f"{(7 * i + j) % 5}.5" for j in range(10)] + [str(i % 10)] for i in range(20)]
    header = [f"logit_{j}" for j in range(10)] + ["label"]
    data = write_table(tmp_path / f"rows.{kind}", header, lines)
    rules = Policy(1.0, 0.6, None, 1, (ANN,), MODEL)
    made = site.init(folder, data, rules, delay=0.1, warn=lambda text: None)

    def said(by: Signer, campaign: str, **more: Any) -> str | None:
        app_of = app if by is ann else str(parts.job_of(kits, "site-1", tmp_path / campaign, BOB))
        try:
            sent = by.sign(question(campaign, **more))
            return executor.answer(site.Site.load(folder), sent, app_of).refused
        except Refused as refusal:
            return refusal.code

    def ask_all(name: str) -> list[str | None]:
        return [
            said(kits_bob, f"stranger-{name}"),
            said(ann, f"model-{name}", model="another"),
            said(ann, f"dear-{name}", epsilon=0.7),
            said(ann, f"good-{name}", epsilon=0.25),
            said(ann, f"over-{name}", epsilon=0.6),
        ]

    before = ask_all("before")
    assert before == ["asker", "model", "over_request_limit", None, None]
    row = list(lines[0])
    row[3] = ODD_ROWS[odd].get("logit", row[3])
    row[10] = ODD_ROWS[odd].get("label", row[10])
    write_table(data, header, [*lines[:10], row, *lines[10:]])
    with pytest.raises(InputError):
        privcal.read_scores(data)  # its owner is told
    ledger = Ledger(made.ledger)
    ledger.set_policy(replace(ledger.policy, epsilon=2.0))
    assert ask_all("after") == before
    ledger.set_policy(replace(ledger.policy, epsilon=1.0))
    assert said(ann, "used-up", epsilon=0.1) == "over_budget"


@pytest.fixture(scope="module")
def kits_bob(kits: Path) -> Signer:
    return signer(kits, BOB)


def write_table(path: Path, header: list[str], lines: list[list[Any]]) -> Path:
    """As CSV, or as Parquet of text."""
    if path.suffix == ".csv":
        text = [",".join("" if cell is None else str(cell) for cell in line) for line in lines]
        path.write_text("\n".join([",".join(header), *text]) + "\n")
    else:
        columns = zip(
            *([None if c is None else str(c) for c in line] for line in lines), strict=True
        )
        pl.DataFrame(dict(zip(header, map(list, columns), strict=True))).write_parquet(path)
    return path
