"""Attacks on the sites of a running federation: jobs, messages, strangers, and what may leak."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import socket
import ssl
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from privcal.privacy.epsilon import NANO
from privcal.queries import BinnedGap, Gap
from privcal.source import Answer

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")

from privcal.federation import processes, site
from privcal.federation.executor import ERRORS
from privcal.federation.names import SITE_EXECUTOR
from privcal.federation.panel import Sites, job_folder
from privcal.federation.project import Member
from tests import federation_parts as parts
from tests.federation_parts import ANN, BOB, SERVER, message, question, signer
from tests.integration.federation import CANARY, NAMES, Federation, until

pytestmark = [pytest.mark.xdist_group("federation"), pytest.mark.usefixtures("marks_of_the_sites")]


@pytest.fixture(scope="module")
def job(federation: Federation) -> Iterator[Sites]:
    """A job of Ann's that runs, for tests that harm no process."""
    with Sites(federation.kits / ANN, timeout=60) as sites:
        assert list(sites.names) == list(NAMES)
        yield sites


def send(job: Sites, sent: str, *names: str, timeout: int = 60) -> dict[str, str]:
    """A message of any kind through a running job, past all checks at the calibrator's."""
    names = names or NAMES
    data = {"message": sent, "sites": list(names), "timeout": timeout}
    ticket = job._command("ask", data)["ticket"]
    replies: dict[str, str] = {}

    def all_there() -> bool:
        replies.update(job._command("replies", {"ticket": ticket})["replies"])
        return set(replies) == set(names)

    until(all_there, f"replies of {names}", timeout)
    return replies


def codes(replies: dict[str, str]) -> set[str]:
    """The refusal codes, and not a character more."""
    return {json.loads(text)["refused"] for text in replies.values() if len(json.loads(text)) == 1}


def ask(job: Sites, name: str, *args: Any, **more: Any) -> Any:
    """One site's answer: its values, or the code of its refusal."""
    [(_, answer)] = job.ask([name], question(*args, **more))
    return list(answer.values) if isinstance(answer, Answer) else answer.code  # type: ignore[attr-defined]


# --- jobs ---------------------------------------------------------------------------------

EVIL = """
from pathlib import Path
Path({marker!r}).write_text("imported")
from nvflare.apis.executor import Executor
class Evil(Executor):
    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        return shareable
"""
OTHER_CLASS = "nvflare.app_common.np.np_trainer.NPTrainer"


def evil_jobs(folder: Path, marker: Path) -> dict[str, Path]:
    """Jobs that are ours on the server, and something else at the sites."""

    def make(name: str, change: Callable[[dict[str, Any]], Any], **files: str) -> Path:
        job = job_folder(folder / name)
        shutil.copytree(job / "app", job / "at_sites")
        config = job / "at_sites" / "config" / "config_fed_client.json"
        document = json.loads(config.read_text())
        change(document)
        config.write_text(json.dumps(document))
        for path, text in files.items():
            place = (
                job
                / "at_sites"
                / path.replace("__", "/").replace("_py", ".py").replace("_toml", ".toml")
            )
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        meta = json.loads((job / "meta.json").read_text())
        meta["deploy_map"] = {"app": ["server"], "at_sites": list(NAMES)}
        meta["name"] = name
        (job / "meta.json").write_text(json.dumps(meta))
        return job

    def executor(**parts: Any) -> Callable[[dict[str, Any]], Any]:
        return lambda document: document["executors"][0].update(executor=parts)

    def more(**keys: Any) -> Callable[[dict[str, Any]], Any]:
        return lambda document: document.update(keys)

    code = EVIL.format(marker=str(marker))
    writer = {"path": "builtins.open", "args": {"file": str(marker), "mode": "w"}}
    return {
        "code": make("code", executor(path="evil.Evil", args={}), custom__evil_py=code),
        "code-beside": make("code-beside", more(), custom__evil_py=code, custom____init___py=code),
        "other-class": make("other-class", executor(path=OTHER_CLASS, args={})),
        "arguments": make(
            "arguments", executor(path=SITE_EXECUTOR, args={"data": "/etc/passwd", "epsilon": 1e6})
        ),
        "policy": make("policy", more(), config__privcal_toml="[policy]\nepsilon = 1e6\n"),
        "component": make("component", more(components=[{"id": "x", **writer}])),
        "filter": make("filter", more(task_result_filters=[{"tasks": ["*"], "filters": [writer]}])),
    }


REASONS = {
    "code": "no code",
    "code-beside": "no code",
    "other-class": "no other class",
    "arguments": "without arguments",
    "policy": "no files but",
    "component": "no components",
    "filter": "no filters",
}


def test_jobs_with_code_other_classes_or_arguments_do_not_run(
    federation: Federation, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    before = federation.spent()
    with session_of(federation.kits / ANN) as session:
        jobs = evil_jobs(tmp_path, marker)
        submitted = {name: session.submit_job(str(folder)) for name, folder in jobs.items()}
        for name, job in submitted.items():
            until(lambda job=job: "FINISHED" in str(session.get_job_status(job)), "its end")  # type: ignore[misc]
            said = session.get_job_meta(job)["job_deploy_detail"]
            assert "server: OK" in said, "not the server refuses, but the sites do"
            for place in NAMES:
                [reason] = [line for line in said if line.startswith(f"{place}:")]
                assert REASONS[name] in reason
                assert not list((federation.site(place) / job).rglob("app_*"))
    assert not marker.exists()
    assert federation.spent() == before


@contextlib.contextmanager
def session_of(kit: Path, name: str = ANN) -> Iterator[Any]:
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    session = new_secure_session(name, str(kit), timeout=5.0)
    try:
        yield session
    finally:
        session.close()


# --- messages -----------------------------------------------------------------------------


def wire_messages(kits: Path) -> dict[str, str]:
    """A dozen of those in tests/test_federation_messages.py, over the wire."""
    ann, good = signer(kits), parts.facts_of(question("never"))

    def asked(**facts: Any) -> str:
        return message(ann, json.dumps({**good, **facts}))

    other, key = parts.certificate(ANN)
    whole = json.loads(ann.sign(question("never")))
    louder = whole["question"].replace("500000000", "900000000")
    site_key = (kits / "site-2" / "startup" / "client.crt").read_text()
    return {
        "NaN": asked(query={"kind": "gap", "temperature": float("nan")}),
        "negative": asked(query={"kind": "gap", "temperature": -1}),
        "huge": asked(query={"kind": "gap", "temperature": 1e300}),
        "kind": asked(query={"kind": "rows"}),
        "bins": asked(query={"kind": "histogram", "bins": 10**9}),
        "types": asked(nano_epsilon="1", round=[]),
        "free": asked(nano_epsilon=0),
        "deep": message(ann, "[" * 9000),
        "no JSON": "{",
        "altered": json.dumps({**whole, "question": louder}),
        "unsigned": json.dumps({**whole, "signature": ""}),
        "site's": json.dumps({**whole, "certificate": site_key}),
        "self-signed": message(type(ann)(ANN, other, key), whole["question"]),
    }


def test_malformed_questions_get_a_code_and_cost_nothing(
    federation: Federation, job: Sites
) -> None:
    before = federation.spent()
    for name, sent in wire_messages(federation.kits).items():
        replies = send(job, sent)
        assert set(replies.values()) == {'{"refused": "bad_request"}'}, name
    assert federation.spent() == before


def test_a_message_too_long_is_not_carried(job: Sites) -> None:
    said = job._command("ask", {"message": "x" * 40_000, "sites": list(NAMES), "timeout": 5})
    assert "ticket" not in said


def test_a_question_of_another_calibrator_in_this_job_is_refused(
    federation: Federation, job: Sites
) -> None:
    before = federation.spent()
    replies = send(job, signer(federation.kits, BOB).sign(question("bobs")))
    assert set(replies.values()) == {'{"refused": "asker"}'}
    assert federation.spent() == before


def test_a_calibrator_cannot_speak_to_the_job_of_another(
    federation: Federation, job: Sites
) -> None:
    with session_of(federation.kits / BOB, BOB) as session:
        for command in ("sites", "replies", "end"):
            with pytest.raises(Exception, match=r"(?i)authoriz|permi|not allowed"):
                session.do_app_command(job._job, f"privcal.{command}", {"ticket": 0})
        with pytest.raises(Exception, match=r"(?i)authoriz|permi|not allowed"):
            session.abort_job(job._job)
    assert job._command("sites", {})["sites"] == list(NAMES)


def test_a_policy_rules_at_each_site(federation: Federation, job: Sites) -> None:
    before = federation.spent()
    with federation.policy("site-1", queries=("gap",)):
        assert ask(job, "site-1", "binned", query=BinnedGap(1.0, 15)) == "query"
    with federation.policy("site-2", epsilon_per_request=0.25):
        assert ask(job, "site-2", "dear", epsilon=0.250000001) == "over_request_limit"
    with federation.policy("site-3", askers=(BOB,)):
        assert ask(job, "site-3", "whose") == "asker"
    assert ask(job, "site-4", "model", model="another") == "model"
    assert federation.spent() == before


def test_no_more_rounds_than_the_budget_allows(federation: Federation, job: Sites) -> None:
    spent = federation.ledger("site-2").nano_spent
    with federation.policy("site-2", epsilon=(spent + NANO) / NANO):
        said = [ask(job, "site-2", "rounds", n, epsilon=0.4) for n in range(4)]
    assert [isinstance(answer, list) for answer in said] == [True, True, False, False]
    assert said[2:] == ["over_budget"] * 2
    assert federation.ledger("site-2").nano_spent == spent + parts.round_nano(0.8)


def test_asking_again_is_free_and_another_question_under_that_name_is_refused(
    federation: Federation, job: Sites
) -> None:
    first = ask(job, "site-3", "again", epsilon=0.5)
    spent = federation.spent()
    assert isinstance(first, list)
    assert ask(job, "site-3", "again", epsilon=0.5) == first
    assert ask(job, "site-3", "again", epsilon=0.4) == "id_conflict"
    assert ask(job, "site-3", "again", query=Gap(2.0), epsilon=0.5) == "id_conflict"
    assert federation.spent() == spent


def test_a_ledger_restored_from_an_old_copy_is_noticed(
    federation: Federation, job: Sites, tmp_path: Path
) -> None:
    ledger = federation.site("site-4") / "local" / site.LEDGER
    shutil.copy(ledger, tmp_path / "old")
    assert isinstance(ask(job, "site-4", "newer", epsilon=0.5), list)
    shutil.copy(ledger, tmp_path / "new")
    shutil.copy(tmp_path / "old", ledger)
    assert ask(job, "site-4", "after the restore") == "ledger_rolled_back"
    ledger.unlink()
    assert ask(job, "site-4", "after the loss") == "ledger_missing"
    assert not ledger.exists()
    shutil.copy(tmp_path / "new", ledger)
    assert isinstance(ask(job, "site-4", "newest", epsilon=0.5), list)


# --- strangers ----------------------------------------------------------------------------


def self_made(federation: Federation, folder: Path, certified: str | None = None) -> Path:
    """Ann's kit with another certificate: made by nobody, or that of a site."""
    kit = Path(shutil.copytree(federation.kits / ANN, folder / ANN))
    if certified is not None:
        for name in ("client.crt", "client.key"):
            shutil.copy(federation.site(certified) / "startup" / name, kit / "startup" / name)
    else:
        pem, key = parts.certificate(ANN)
        (kit / "startup" / "client.crt").write_text(pem)
        (kit / "startup" / "client.key").write_bytes(parts.key_pem(key))
    return kit


@pytest.mark.parametrize("certified", [None, "site-2"])
def test_a_calibrator_without_a_valid_certificate_gets_no_session(
    federation: Federation, tmp_path: Path, certified: str | None
) -> None:
    kit = self_made(federation, tmp_path, certified)
    with pytest.raises(Exception, match=r"."), session_of(kit):
        pass


def handshake(federation: Federation, certificate: Path | None) -> bytes:
    """What the server sends after a TLS handshake with this certificate and an HTTP request."""
    startup = json.loads((federation.site("site-1") / "startup" / "fed_client.json").read_text())
    port = int(startup["servers"][0]["service"]["target"].split(":")[1])
    context = ssl.create_default_context(
        cafile=str(federation.site("site-1") / "startup" / "rootCA.pem")
    )
    context.check_hostname = False
    if certificate is not None:
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    with (
        socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
        context.wrap_socket(plain) as secured,
    ):
        secured.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return secured.recv(4096)


def test_whoever_has_no_valid_certificate_does_not_get_through_the_handshake(
    federation: Federation, tmp_path: Path
) -> None:
    pem, key = parts.certificate("site-1", "client")
    (tmp_path / "fake.crt").write_text(pem)
    (tmp_path / "fake.key").write_bytes(parts.key_pem(key))
    for certificate in (None, tmp_path / "fake.crt"):
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            assert handshake(federation, certificate) == b"", "it was let in"
    assert handshake(federation, federation.site("site-1") / "startup" / "client.crt")


def test_a_site_cannot_take_the_place_of_another(federation: Federation, tmp_path: Path) -> None:
    """Started with the certificate of site-2, a fake site-1 is not registered."""
    fake = Path(
        shutil.copytree(federation.site("site-1") / "startup", tmp_path / "site-1" / "startup")
    ).parent
    shutil.copytree(federation.site("site-1") / "local", fake / "local")
    for name in ("client.crt", "client.key"):
        shutil.copy(federation.site("site-2") / "startup" / name, fake / "startup" / name)
    log = federation.kits / SERVER / "log.txt"
    participant = processes._Participant(Member("site-1", "org_1"), fake, processes._SITE)
    _, process, _ = processes._start(participant)
    try:
        until(lambda: "as 'site-2' but claimed endpoint 'site-1'" in log.read_text(), "its refusal")
    finally:
        process.kill()
        process.wait()
    assert "Successfully registered" not in (fake / processes.OUTPUT).read_text()


# --- what nobody may learn ----------------------------------------------------------------


def everything_in(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Every file, and every file in every zip."""
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            yield path, path.name.encode() + b"\0" + content
            if zipfile.is_zipfile(io.BytesIO(content)):
                with zipfile.ZipFile(io.BytesIO(content)) as packed:
                    for name in packed.namelist():
                        yield path / name, name.encode() + b"\0" + packed.read(name)


def test_nothing_of_a_sites_files_people_or_errors_reaches_the_server_or_the_calibrator(
    federation: Federation, job: Sites, tmp_path: Path
) -> None:
    got = [send(job, signer(federation.kits).sign(question("canary", n))) for n in range(3)]
    broken = federation.site("site-1") / "data" / f"{CANARY}.csv"
    broken.write_text(f"label,probability,person\n{CANARY}-label,0.5,{CANARY}-person\n")
    before = federation.spent()["site-1"]
    with federation.settings("site-1", data=json.dumps(str(broken))):
        got.append(send(job, signer(federation.kits).sign(question("broken"))))
    assert got[-1]["site-1"] == '{"refused": "unavailable"}'
    assert federation.spent()["site-1"] == before
    with federation.settings("site-1", data=json.dumps(str(broken) + ".gone")):
        got.append(send(job, signer(federation.kits).sign(question("gone"))))
    assert got[-1]["site-1"] == '{"refused": "unavailable"}'
    noted = (federation.site("site-1") / "local" / ERRORS).read_text()
    assert f"{CANARY}-label" in noted or f"{CANARY}.csv" in noted, "its owner is told"
    assert CANARY not in json.dumps(got)
    for folder in (SERVER, ANN, BOB):
        for path, content in everything_in(federation.kits / folder):
            assert CANARY.encode() not in content, path
