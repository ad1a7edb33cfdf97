"""Signed questions by mail, and a site that answers a folder: what others who write there can do."""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from privcal.data.ledger import Ledger
from privcal.trusted.errors import InputError, Refused
from privcal.trusted.policy import Policy

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")

from privcal.transport.federation.calibrator.roster import pin
from privcal.transport.federation.shared.messages import MAX_LIFETIME, open_message
from privcal.transport.federation.shared.requests import MAX_LIFETIME_BY_MAIL
from privcal.transport.federation.site import service, setup, worker
from privcal.transport.federation.site import settings as site_settings
from privcal.transport.federation.site.keys import SiteKeys
from privcal.transport.federation.site.roster import own_card
from privcal.transport.federation.site.service import Service
from privcal.transport.mail import signed, watch
from privcal.transport.mail.letters import MAX_FILE, Given
from privcal.transport.mail.watch import ANSWERS, Watch, read_plain
from tests.support import federation_parts as parts
from tests.support.federation_parts import ANN, BOB, MODEL
from tests.support.owners import Run, changed, document, on_page

SITES = ("site-1", "site-2", "site-3")
ROOT = "startup/rootCA.pem"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kits with the sites' keys and the calibrators' rosters, and rows; the sites are not set up."""
    folder = tmp_path_factory.mktemp("federation")
    kits = parts.make_kits(folder / "kits", sites=3)
    for number, name in enumerate(SITES):
        parts.write_rows(folder / f"{name}.npz", 40, seed=number)
        SiteKeys.make(kits / name)
    for calibrator in (ANN, BOB):
        pin(kits / calibrator, [own_card(kits / name) for name in SITES])
    return folder


class InProcess:
    """Instead of the child: what it does, without its process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def ask(self, opened: Any) -> Any:
        return worker.safely(self.folder, opened.asker, opened.request)

    def wake(self) -> None: ...

    def stop(self) -> None: ...


class World:
    """Two calibrators and three sites, which share a folder and nothing else."""

    def __init__(self, folder: Path, run: Run) -> None:
        self.kits, self.run = folder / "kits", run
        self.shared = folder / "shared"
        self.shared.mkdir()
        self.told: list[str] = []

    @property
    def question(self) -> Path:
        return self.shared / "question.json"

    @property
    def answers(self) -> Path:
        return self.shared / ANSWERS

    def new(self, *more: object, by: str = ANN, out: Path | None = None) -> dict[str, Any]:
        args = ("--kit", self.kits / by, "--model", MODEL, "--json", *more)
        code, text, err = self.run("campaign", "new", *args, "--out", out or self.question)
        assert code == 0, err
        return dict(json.loads(text))

    def set_up(self, site: str) -> None:
        """Give a site its ledger and settings, unless it has them."""
        if not self.ledger(site).exists:
            data = self.kits.parent / f"{site}.npz"
            setup.init(self.kits / site, data, Policy(3.0, askers=(ANN, BOB)), delay=0.1)

    def look(self, site: str = "site-1") -> int:
        """One look of a site at the folder."""
        self.set_up(site)
        self.told.clear()
        watched = Watch(self.kits / site, self.shared, self.told.append)
        try:
            return watched.look()
        finally:
            watched.close()

    def calibrate(self, *more: object) -> tuple[int, str, str]:
        out = self.shared.parent / "map.json"
        args = ("--answers", self.answers, "--question", self.question, "--out", out, "--json")
        return self.run("calibrate", *args, *more)

    def ledger(self, site: str = "site-1") -> Ledger:
        return Ledger(self.kits / site / "local" / site_settings.LEDGER)

    def spent(self, site: str = "site-1") -> float:
        return self.ledger(site).nano_spent / 10**9


@pytest.fixture
def world(made: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(service, "Child", InProcess)
    shutil.copytree(made, tmp_path, symlinks=True, dirs_exist_ok=True)
    world = World(tmp_path, run)
    world.set_up("site-1")
    return world


# --- all goes well ------------------------------------------------------------------------


def test_sites_answer_what_appears_in_a_folder_and_the_map_is_made_of_it(world: World) -> None:
    world.new("--epsilon", 1)
    assert [world.look(site) for site in SITES] == [1, 1, 1]
    code, out, err = world.calibrate()
    assert code == 0, err
    assert json.loads(out)["spent"] == dict.fromkeys(SITES, 1.0)
    assert [world.spent(site) for site in SITES] == [1.0] * 3
    assert [entry.key.asker for entry in world.ledger().entries() if entry.key] == [ANN]


def test_a_search_goes_on_in_the_same_folder_round_by_round(world: World) -> None:
    begun = world.new("--method", "acc-t", "--option", "iterations=2")
    for round in range(begun["rounds"]):
        assert [world.look(site) for site in SITES] == [round + 1] * 3
        code, out, err = world.calibrate()
        assert code == 0, err
    assert json.loads(out)["map"]["kind"] == "temperature"
    assert [world.spent(site) for site in SITES] == [1.0] * 3


def test_an_answer_is_sealed_and_only_the_calibrators_account_can_open_it(world: World) -> None:
    world.new()
    world.look()
    [file] = world.answers.iterdir()
    answer = document(file)
    assert set(answer) == {"format", "version", "campaign", "question", "site", "replies"}
    stored = [e for e in world.ledger().entries() if e.key]
    assert len(stored) == 1
    assert world.ledger().id not in file.read_text()
    record = Path(f"{world.question}.campaign")
    [key] = record.glob("*.key")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(record.stat().st_mode) == 0o700


def test_who_has_not_answered_is_said(world: World) -> None:
    world.new()
    world.look("site-2")
    code, _, err = world.calibrate()
    assert code == 0
    assert "no answer yet from site-1, site-3" in err


def test_only_the_sites_that_are_named_are_asked(world: World) -> None:
    world.new("--site", "site-2")
    assert [world.look(site) for site in SITES] == [0, 1, 0]
    assert world.spent("site-1") == 0


def test_an_owner_answers_a_signed_question_by_hand_with_the_kit(
    world: World, tmp_path: Path
) -> None:
    world.new()
    world.answers.mkdir()
    args = ("source", "answer", tmp_path / "site-1.npz", world.question, "--yes", "--out")
    out = world.answers / "mine.json"
    code, _, err = world.run(*args, out)
    assert (code, "--kit" in err) == (2, True)
    code, text, err = world.run(*args, out, "--kit", world.kits / "site-1")
    assert code == 0, err
    assert f"It is signed by {ANN}" in text
    assert world.look("site-1") == 1  # the same answer, from the same ledger
    assert world.spent("site-1") == 1.0
    assert json.loads(world.calibrate()[1])["spent"] == {"site-1": 1.0}


def test_after_a_restart_the_same_answer_is_written_again_and_costs_nothing(world: World) -> None:
    world.new()
    watched = Watch(world.kits / "site-1", world.shared, world.told.append)
    assert (watched.look(), watched.look()) == (1, 0)
    first = world.calibrate()[1]
    shutil.rmtree(world.answers)
    assert world.look() == 1
    assert world.spent() == 1.0
    told = [json.loads(text)["rounds"] for text in (first, world.calibrate()[1])]
    assert told[0] == told[1]


def test_a_question_that_waits_for_approval_is_answered_once_it_has_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.ledger().set_policy(Policy(3.0, approve=True))
    world.new("--campaign", "spring")
    watched = Watch(world.kits / "site-1", world.shared, world.told.append)
    watched.look()
    assert "awaiting_approval" in world.told[-1]
    code, _, err = world.calibrate()
    assert (code, "awaiting_approval" in err) == (1, True)  # the calibrator is told, sealed
    assert world.run("site", "approve", world.kits / "site-1", "spring", "--yes")[0] == 0
    assert watched.look() == 0  # not yet
    now = time.monotonic()
    monkeypatch.setattr(watch.time, "monotonic", lambda: now + watch.AGAIN + 1)
    assert watched.look() == 1
    assert json.loads(world.calibrate()[1])["spent"] == {"site-1": 1.0}


def test_the_policy_of_an_approval_page_lets_in_what_the_calibrator_signed(
    world: World, tmp_path: Path
) -> None:
    about = ("--campaign", "spring", "--epsilon", 0.5)
    more = ("--asker", ANN, "--model", MODEL, "--sources", len(SITES))
    code, said, err = world.run(
        "campaign", "describe", *about, *more, "--html", tmp_path / "page.html"
    )
    assert code == 0, err
    digest, policy = on_page(tmp_path / "page.html")
    world.ledger().set_policy(Policy.of(tomllib.loads(policy), "the page"))
    assert (digest in said, world.new(*about)["digest"]) == (True, digest)
    world.look()
    assert "awaiting_approval" in world.told[-1]
    [(waits, _)] = world.ledger().waiting()
    assert waits.digest == digest
    world.ledger().approve(waits)
    world.look()
    assert "is answered" in world.told[-1]
    assert world.spent() == 0.5


# --- others write questions ---------------------------------------------------------------


def edited(world: World, change: Any) -> None:
    """The question with the text of its requests changed, signatures and all else as they were."""
    texts = []
    for text in document(world.question)["messages"]:
        message = json.loads(text)
        request = json.loads(message["request"])
        change(request)
        texts.append(parts.spelt({**message, "request": parts.spelt(request)}))
    changed(world.question, world.question, messages=texts)


def more_epsilon(request: dict[str, Any]) -> None:
    for question in request["questions"]:
        question["nano_epsilon"] *= 2


def another_query(request: dict[str, Any]) -> None:
    for question in request["questions"]:
        question["query"] = {"kind": "gap", "temperature": 1.5}


def another_site(request: dict[str, Any]) -> None:
    request["sites"] = ["site-1"]


def longer(request: dict[str, Any]) -> None:
    request["lifetime"] += 1


@pytest.mark.parametrize("change", [more_epsilon, another_query, another_site, longer])
def test_a_signed_question_that_was_changed_is_not_answered(world: World, change: Any) -> None:
    world.new()
    edited(world, change)
    assert world.look() == 0
    assert "bad_request" in world.told[0]
    assert world.spent() == 0
    assert not world.answers.exists()


def test_a_question_to_one_site_is_not_answered_by_another(world: World) -> None:
    world.new("--site", "site-2")
    assert world.look("site-1") == 0
    assert "addressee" in world.told[0]


def test_a_question_holds_as_long_as_it_says_and_no_longer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = 24 * 3600
    now = time.time()
    monkeypatch.setattr(signed.time, "time", lambda: now - 30 * day - 10)
    world.new("--days", 30)
    world.new("--days", 31, out=world.shared / "longer.json")
    monkeypatch.setattr(signed.time, "time", lambda: now)
    assert world.look() == 1
    assert any("question.json" in text and "expired" in text for text in world.told)


def test_what_is_signed_for_mail_does_not_pass_over_the_network(world: World) -> None:
    """There a message holds an hour at most, whoever signed it for longer."""
    world.new("--days", 1)
    [_, text] = document(world.question)["messages"]
    with pytest.raises(Refused, match="bad_request"):
        open_message(text, world.kits / "site-1" / ROOT, site="site-1")
    reply = Service(world.kits / "site-1").answer("ask", text.encode())
    assert b"bad_request" in reply
    assert world.spent() == 0


def test_nobody_asks_for_longer_than_ninety_days(world: World) -> None:
    by, asked = parts.signer(world.kits), parts.question()
    with pytest.raises(InputError, match="lifetime"):
        by.sign(parts.request(asked, lifetime=MAX_LIFETIME_BY_MAIL + 1))
    by.sign(parts.request(asked, lifetime=MAX_LIFETIME + 1))


def test_another_question_under_the_same_name_is_refused(world: World) -> None:
    world.new("--campaign", "spring", "--epsilon", 0.5)
    world.look()
    world.new("--campaign", "spring", "--epsilon", 1, out=world.shared / "second.json")
    world.look()
    assert any("second.json" in text and "id_conflict" in text for text in world.told)
    assert world.spent() == 0.5


def test_messages_of_two_letters_do_not_make_one(world: World) -> None:
    """An owner approved, or a policy allows, one campaign: its offer carries no other question."""
    world.new("--campaign", "small", "--epsilon", 0.1)
    world.new("--campaign", "large", "--epsilon", 2, out=world.shared / "large.json")
    offer = document(world.question)["messages"][0]
    question = document(world.shared / "large.json")["messages"][1]
    for path in (world.question, world.shared / "large.json"):
        path.rename(world.shared.parent / path.name)
    for messages_ in ([offer, question], [question, offer], [question], [offer], [], "x", [1, 2]):
        file = world.shared / "mixed.json"
        changed(world.shared.parent / "question.json", file, messages=messages_)
        assert world.look() == 0
    assert world.spent() == 0


def test_an_offer_of_less_than_is_asked_is_no_letter(world: World) -> None:
    """A calibrator may sign what it likes; the owner sees, and approves, what is offered."""
    by, small, large = parts.signer(world.kits), parts.question(), parts.question(epsilon=2)
    texts = [by.sign(parts.request(small, kind="offer")), by.sign(parts.request(large))]
    letter = {"format": "privcal-question", "version": 1, "messages": texts}
    world.question.write_text(json.dumps(letter))
    assert world.look() == 0
    assert "plan" in world.told[0]
    assert world.spent() == 0


def test_an_asker_whom_the_policy_does_not_admit_gets_no_answer(world: World) -> None:
    world.ledger().set_policy(Policy(3.0, askers=(ANN,)))
    world.new(by=BOB)
    world.look()
    assert "asker" in world.told[0]
    assert world.spent() == 0


def test_a_site_or_a_stranger_cannot_ask(world: World) -> None:
    world.new()
    letter = document(world.question)
    certificate, key = parts.certificate(ANN)  # nobody vouches for it
    strangers = signed.Signer(ANN, certificate, key)
    site = signed.Signer.of_kit(world.kits / "site-2")
    for by in (strangers, site):
        texts = [
            parts.message(by, json.loads(message)["request"]) for message in letter["messages"]
        ]
        changed(world.question, world.question, messages=texts)
        assert world.look() == 0
        assert "bad_request" in world.told[0]
    assert world.spent() == 0


def test_who_is_revoked_gets_no_answer(world: World) -> None:
    world.new()
    revoke = ("federation", "revoke", world.kits, ANN)
    code, _, err = world.run(*revoke)
    assert code == 0, err
    listed = world.kits / "revoked.json"
    assert world.run("federation", "revocations", world.kits / "site-1", listed)[0] == 0
    world.look()
    assert "revoked" in world.told[0]
    assert world.spent() == 0


def test_an_unsigned_question_is_not_answered_unattended(world: World) -> None:
    assert world.run("campaign", "new", "--asker", ANN, "--out", world.question)[0] == 0
    assert world.look() == 0
    assert "not signed" in world.told[0]
    assert world.spent() == 0


# --- what else may lie in the folder ------------------------------------------------------


def test_a_link_to_a_file_of_the_sites_own_is_not_followed(world: World) -> None:
    world.new(out=world.shared.parent / "elsewhere.json")
    key = world.kits / "site-1" / "local" / "keys" / "site.key"
    (world.shared / "question.json").symlink_to(key)
    (world.shared / "good.json").symlink_to(world.shared.parent / "elsewhere.json")
    assert world.look() == 0
    assert world.told == []
    for name in ("question.json", "good.json"):
        with pytest.raises(OSError, match="symbolic link"):
            read_plain(world.shared / name)


def test_a_hard_link_to_a_secret_is_no_question_and_nothing_of_it_is_told(world: World) -> None:
    key = world.kits / "site-1" / "local" / "keys" / "site.key"
    os.link(key, world.shared / "question.json")
    assert world.look() == 0
    secret = json.loads(key.read_text())
    log = (world.kits / "site-1" / "local" / "privcal-errors.log").read_text()
    for text in (*world.told, log):
        assert secret["signing"] not in text
        assert secret["sealing"][:40] not in text


def test_a_pipe_a_folder_a_device_and_a_gigabyte_hold_nobody_up(world: World) -> None:
    os.mkfifo(world.shared / "pipe.json")
    (world.shared / "folder.json").mkdir()
    with (world.shared / "big.json").open("wb") as file:
        file.truncate(1 << 30)
    (world.shared / "deep.json").write_text("[" * 100_000)
    (world.shared / "..json").write_text("{}")
    (world.shared / "with\nline.json").write_text("{}")
    world.new()
    assert world.look() == 1
    assert sorted(text.split(" ")[0] for text in world.told) == [
        "big.json",
        "deep.json",
        "question.json",
    ]
    with pytest.raises(InputError, match="no plain file"):
        read_plain(world.shared / "pipe.json")
    with pytest.raises(InputError, match="longer"):
        read_plain(world.shared / "big.json")


def test_a_file_that_grows_while_it_is_read_is_cut(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = world.shared / "a.json"
    path.write_bytes(b" " * 3 * MAX_FILE)
    real = os.fstat
    monkeypatch.setattr(
        watch.os, "fstat", lambda file: os.stat_result((real(file).st_mode, *[0] * 9))
    )
    assert len(read_plain(path)) == MAX_FILE + 1


def test_a_question_that_is_still_being_copied_is_answered_when_it_is_whole(world: World) -> None:
    world.new(out=world.shared.parent / "whole.json")
    text = (world.shared.parent / "whole.json").read_bytes()
    watched = Watch(world.kits / "site-1", world.shared, world.told.append)
    world.question.write_bytes(text[: len(text) // 2])
    assert watched.look() == 0
    world.question.write_bytes(text)
    assert watched.look() == 1


def test_a_folder_that_is_gone_for_a_while_is_looked_at_again(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share that is not mounted just now: nothing ends, and the question is answered later."""
    world.new(out=tmp_path / "question.json")
    back = tmp_path / "back"
    back.mkdir()
    shutil.copy(tmp_path / "question.json", back)
    between = iter([world.shared.rmdir, lambda: back.rename(world.shared)])

    def wait(*_: object) -> bool:
        """Between two looks: the folder goes, then comes back with a question in it."""
        step = next(between, None)
        if step is not None:
            step()
        return step is None

    monkeypatch.setattr(watch.threading.Event, "wait", wait)
    site = world.kits / "site-1"
    written = watch.watch(site, world.shared, every=1, once=False, tell=world.told.append)
    assert written == 1
    assert "cannot be read" in world.told[0]


def test_answers_go_nowhere_else_where_their_folder_is_a_link(world: World, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    world.answers.symlink_to(tmp_path / "target")
    world.new()
    assert world.look() == 0
    assert list((tmp_path / "target").iterdir()) == []


def test_an_answer_replaces_a_link_of_its_name_and_not_what_it_leads_to(
    world: World, tmp_path: Path
) -> None:
    world.new()
    world.look()
    [file] = world.answers.iterdir()
    mine = tmp_path / "mine"
    mine.write_text("precious")
    file.unlink()
    file.symlink_to(mine)
    assert world.look() == 1
    assert mine.read_text() == "precious"
    assert not file.is_symlink()


# --- others write answers -----------------------------------------------------------------


def test_forged_and_exchanged_answers_are_not_used(world: World) -> None:
    world.new()
    for site in SITES:
        world.look(site)
    files = {document(file)["site"]: file for file in world.answers.iterdir()}
    # Another hospital's answer as that of site-1, beside its own; and one of nobody's.
    changed(files["site-2"], world.answers / "a-forged.json", site="site-1")
    changed(files["site-2"], world.answers / "b-forged.json", site="nobody")
    replies = document(files["site-1"])["replies"]
    changed(files["site-1"], files["site-1"], replies=document(files["site-3"])["replies"])
    code, out, err = world.calibrate()
    assert code == 0
    assert sorted(json.loads(out)["spent"]) == ["site-2", "site-3"]
    assert err.count("not used") == 3
    assert "no answer yet from site-1" in err
    # The true one counts, whatever lies beside it.
    changed(files["site-1"], files["site-1"], replies=replies)
    assert sorted(json.loads(world.calibrate()[1])["spent"]) == list(SITES)


def test_another_hospital_cannot_answer_in_a_sites_name_though_all_can_seal(world: World) -> None:
    world.new()
    letter = document(world.question)
    opened = signed.open_letter(letter, world.kits / "site-2" / ROOT, "site-1")
    length = opened[1].request.length
    lie = Given("site-1", "0" * 32, 1, ((0,) * length,))
    forged = signed.sealed_answer(letter, opened, lie, world.kits / "site-2", "site-1")
    world.answers.mkdir()
    (world.answers / "forged.json").write_text(json.dumps(forged))
    code, _, err = world.calibrate()
    assert code == 1
    assert "its signature is not right" in err


def test_an_answer_of_a_site_that_is_there_twice_counts_once(world: World) -> None:
    world.new()
    world.look()
    [file] = world.answers.iterdir()
    (world.answers / "conflict copy.json").write_bytes(file.read_bytes())
    world.look()  # sealed anew: other bytes, the same numbers
    assert json.loads(world.calibrate()[1])["spent"] == {"site-1": 1.0}


def test_two_sites_with_one_ledger_are_not_two_sources(world: World, tmp_path: Path) -> None:
    world.new()
    world.look("site-1")
    world.set_up("site-2")
    here, there = (world.kits / site / "local" for site in ("site-1", "site-2"))
    text = (there / "privcal.toml").read_text().replace("site-2.npz", "site-1.npz")
    text = text.replace('"privcal.ledger"', json.dumps(str(here / "privcal.ledger")))
    (there / "privcal.toml").write_text(text)
    assert world.look("site-2") == 1
    code, _, err = world.calibrate()
    assert (code, "one ledger" in err) == (2, True)


def test_what_else_lies_beside_the_answers_keeps_no_map_from_being_made(world: World) -> None:
    """Answers to earlier campaigns, notes of other programs, and whatever another hospital adds."""
    world.new(out=world.shared / "earlier.json")
    world.look()
    world.new()
    world.look()
    os.mkfifo(world.answers / "pipe.json")
    (world.answers / "notes.json").write_text("not JSON")
    (world.answers / "gone.json").symlink_to("nowhere")
    code, out, err = world.calibrate()
    assert code == 0, err
    assert json.loads(out)["spent"] == {"site-1": 1.0}
    assert err.count("not used") == 4


# --- sentences ----------------------------------------------------------------------------


def test_sentences_for_what_cannot_work(world: World, tmp_path: Path) -> None:
    kit, out = world.kits / ANN, world.question
    (tmp_path / "no.card").write_text("{}")
    for args, words in [
        (("campaign", "new", "--kit", kit, "--out", out), "names its model"),
        (("campaign", "new", "--kit", world.kits / "site-1", "--model", "m", "--out", out), "kit"),
        (
            ("campaign", "new", "--kit", kit, "--asker", "x", "--model", "m", "--out", out),
            "--asker",
        ),
        (("campaign", "new", "--kit", kit, "--site", "x", "--model", "m", "--out", out), "no site"),
        (("site", "watch", world.kits / "site-1", tmp_path / "none", "--once"), "no folder"),
        (("federation", "roster", kit, tmp_path / "no.card"), "not a site's card"),
    ]:
        code, _, err = world.run(*args)
        assert (code, words in err) == (2, True), err


def test_the_commands_of_a_site_are_told_in_json(world: World) -> None:
    world.new()
    code, out, _ = world.run(
        "site", "watch", world.kits / "site-1", world.shared, "--once", "--json"
    )
    assert code == 0
    assert json.loads(out)["written"] == 1


def test_a_calibrator_takes_cards_that_sites_sent_where_no_server_tells_of_them(
    world: World, tmp_path: Path
) -> None:
    card, kit = tmp_path / "site-1.card", world.kits / ANN
    assert world.run("site", "card", world.kits / "site-1", "--out", card)[0] == 0
    (kit / "roster.json").unlink()
    code, out, _ = world.run("federation", "roster", kit, card, "--json")
    assert code == 0
    assert json.loads(out)["new"] == ["site-1"]
    card.write_text(card.read_text().replace("site-1", "site-2"))
    code, _, err = world.run("federation", "roster", kit, card)
    assert (code, "not signed with the key" in err) == (2, True)
