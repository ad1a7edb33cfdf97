"""Attacks on the sites of a running federation: messages, strangers, and what may leak."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import shutil
import socket
import ssl
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from privcal.trusted.epsilon import NANO
from privcal.trusted.errors import CalibrationError, InputError
from privcal.trusted.queries import BinnedGap, Gap
from privcal.trusted.source import Answer

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")

import aiohttp
import msgpack
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

from privcal.transport.federation.calibrator.link import Link
from privcal.transport.federation.calibrator.panel import Sites
from privcal.transport.federation.one_machine import processes
from privcal.transport.federation.shared.cells import MAX_BYTES
from privcal.transport.federation.shared.messages import open_reply
from privcal.transport.federation.shared.requests import Request
from privcal.transport.federation.shared.roster import stored_roster
from privcal.transport.federation.site import settings as site
from privcal.transport.federation.site.log import LOG
from tests.support import federation_parts as parts
from tests.support.federation_parts import ANN, BOB, SERVER, message, question, signer
from tests.support.federation_processes import CANARY, NAMES, Federation, until

pytestmark = [pytest.mark.xdist_group("federation"), pytest.mark.usefixtures("marks_of_the_sites")]

ENDED = (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)


@pytest.fixture(scope="module")
def panel(federation: Federation) -> Iterator[Sites]:
    """Ann's connection to the sites, for tests that harm no process."""
    with Sites(federation.kits / ANN, timeout=60) as sites:
        assert list(sites.names) == list(NAMES)
        yield sites


def send(panel: Sites, sent: str, *names: str, timeout: float = 60.0) -> dict[str, str]:
    """A message of any kind over Ann's connection, past all checks at the calibrator's."""
    messages = {name: sent.encode() for name in names or NAMES}
    replies = dict(panel._link.ask_all("ask", messages, timeout))
    assert None not in replies.values()
    return replies  # type: ignore[return-value]


def code(reply: str) -> str:
    """The code of a refusal that is not sealed, and not a character more."""
    facts = json.loads(reply)
    assert set(facts) == {"privcal", "refused", "signature"}
    return str(facts["refused"])


def ask(panel: Sites, name: str, *args: Any, **more: Any) -> Any:
    """One site's answer: its values, or the code of its refusal."""
    [(_, answer)] = panel.ask([name], question(*args, **more))
    return list(answer.values) if isinstance(answer, Answer) else answer.code  # type: ignore[attr-defined]


# --- messages -----------------------------------------------------------------------------


def wire_messages(kits: Path) -> dict[str, tuple[str, str]]:
    """Some of those in tests/transport/federation/shared/test_messages.py, over the wire, and the codes they get."""
    ann = signer(kits)
    good = parts.request(question("never"), sites=NAMES)
    facts = json.loads(good.text())

    def asked(**more: Any) -> str:
        questions = [{**facts["questions"][0], **more}]
        return message(ann, parts.spelt({**facts, "questions": questions}))

    other, key = parts.certificate(ANN)
    whole = json.loads(ann.sign(good))
    louder = whole["request"].replace("500000000", "900000000")
    sites = (kits / "site-2" / "startup" / "client.crt").read_text()
    return {
        "NaN": (asked(query={"kind": "gap", "temperature": float("nan")}), "bad_request"),
        "negative": (asked(query={"kind": "gap", "temperature": -1}), "bad_request"),
        "huge": (asked(query={"kind": "gap", "temperature": 1e300}), "bad_request"),
        "kind": (asked(query={"kind": "rows"}), "bad_request"),
        "bins": (asked(query={"kind": "histogram", "bins": 10**9}), "bad_request"),
        "types": (asked(nano_epsilon="1", round=[]), "bad_request"),
        "free": (asked(nano_epsilon=0), "bad_request"),
        "deep": (message(ann, "[" * 9000), "bad_request"),
        "no JSON": ("{", "bad_request"),
        "altered": (parts.spelt({**whole, "request": louder}), "bad_request"),
        "unsigned": (parts.spelt({**whole, "signature": ""}), "bad_request"),
        "site's": (parts.spelt({**whole, "certificate": sites}), "bad_request"),
        "self-signed": (message(type(ann)(ANN, other, key), whole["request"]), "bad_request"),
        "version": (parts.spelt({**whole, "privcal": 2}), "version"),
        "elsewhere": (ann.sign(parts.request(question("never"), sites=("site-9",))), "addressee"),
    }


def test_malformed_late_and_stray_messages_get_a_code_and_cost_nothing(
    federation: Federation, panel: Sites
) -> None:
    before = federation.spent()
    for name, (sent, refused) in wire_messages(federation.kits).items():
        assert {code(reply) for reply in send(panel, sent).values()} == {refused}, name
    late = parts.request(question("never"), sites=NAMES, issued=1_700_000_000)
    sent = signer(federation.kits).sign(late)
    for name, reply in send(panel, sent).items():
        assert open_reply(reply, sent, panel._card(name), parts.SEAL, late).refused == "expired"
    assert federation.spent() == before


def test_a_message_too_long_is_not_carried(panel: Sites) -> None:
    replies = panel._link.ask_all("ask", {"site-1": b"x" * (MAX_BYTES + 1)}, 2.0)
    assert dict(replies) == {"site-1": None}


def by_hand(federation: Federation, name: str, *frames: bytes) -> Any:
    """What becomes of a connection with a participant's certificate that sends these frames."""

    async def talk() -> Any:
        startup = federation.kits / name / "startup"
        context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
        context.check_hostname = False
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
        port = json.loads((federation.kits / "federation.json").read_text())["server"]["port"]
        url = f"wss://localhost:{port}/f3"
        async with aiohttp.ClientSession() as session, session.ws_connect(url, ssl=context) as end:
            with contextlib.suppress(ConnectionError):
                for frame in frames:
                    await end.send_bytes(frame)
            while (heard := await end.receive(timeout=60.0)).type == aiohttp.WSMsgType.BINARY:
                pass
            return heard.type

    return asyncio.run(talk())


def test_a_frame_longer_than_any_message_ends_its_connection(federation: Federation) -> None:
    """FLARE takes 2 GiB into memory, several times, before it looks who sends it."""
    assert by_hand(federation, "site-4", b"x" * (8 * MAX_BYTES)) in ENDED


def test_a_hospital_cannot_push_a_calibrator_out_under_its_cells_name(
    federation: Federation, panel: Sites
) -> None:
    own = str(panel._link._cell.my_info.fqcn)
    said = msgpack.packb({HandshakeKeys.ENDPOINT_NAME: own})
    prefix, hello = bytearray(PREFIX_LEN), Prefix(PREFIX_LEN + len(said), type=Types.HELLO)
    hello.to_buffer(prefix, 0)
    before = panel._link._cell.agents["server"].endpoint
    assert by_hand(federation, "site-4", bytes(prefix) + said) in ENDED
    assert panel._link._cell.agents["server"].endpoint is before, "it never lost its connection"
    assert panel._link.sites() == list(NAMES)


def test_a_reply_to_another_calibrators_question_is_of_no_use(
    federation: Federation, panel: Sites
) -> None:
    """Ann got hold of a question of Bob's, and asks it over her own connection."""
    request, key = Request.make("question", "bobs", [question("bobs")], NAMES)
    sent = signer(federation.kits, BOB).sign(request)
    [(_, reply)] = send(panel, sent, "site-1").items()
    values = federation.ledger("site-1").entries()[-1]
    assert values.key is not None
    assert values.key.asker == BOB, "it is charged to whoever signed it"
    card = stored_roster(federation.kits / ANN).card("site-1")
    assert card is not None
    with pytest.raises(ValueError, match="sealed for another key"):
        open_reply(reply, sent, card, parts.SEAL, request)
    assert open_reply(reply, sent, card, key, request).values


def test_a_policy_rules_at_each_site(federation: Federation, panel: Sites) -> None:
    before = federation.spent()
    with federation.policy("site-1", queries=("gap",)):
        assert ask(panel, "site-1", "binned", query=BinnedGap(1.0, 15)) == "query"
    with federation.policy("site-2", epsilon_per_request=0.25):
        assert ask(panel, "site-2", "dear", epsilon=0.250000001) == "over_request_limit"
    with federation.policy("site-3", askers=(BOB,)):
        assert ask(panel, "site-3", "whose") == "asker"
    assert ask(panel, "site-4", "model", model="another") == "model"
    assert federation.spent() == before


def test_no_more_rounds_than_the_budget_allows(federation: Federation, panel: Sites) -> None:
    spent = federation.ledger("site-2").nano_spent
    with federation.policy("site-2", epsilon=(spent + NANO) / NANO):
        said = [ask(panel, "site-2", "rounds", n, epsilon=0.4) for n in range(4)]
    assert [isinstance(answer, list) for answer in said] == [True, True, False, False]
    assert said[2:] == ["over_budget"] * 2
    assert federation.ledger("site-2").nano_spent == spent + parts.round_nano(0.8)


def test_asking_again_is_free_and_another_question_under_that_name_is_refused(
    federation: Federation, panel: Sites
) -> None:
    first = ask(panel, "site-3", "again", epsilon=0.5)
    spent = federation.spent()
    assert isinstance(first, list)
    assert ask(panel, "site-3", "again", epsilon=0.5) == first
    assert ask(panel, "site-3", "again", epsilon=0.4) == "id_conflict"
    assert ask(panel, "site-3", "again", query=Gap(2.0), epsilon=0.5) == "id_conflict"
    assert federation.spent() == spent


def test_a_ledger_restored_from_an_old_copy_is_noticed(
    federation: Federation, panel: Sites, tmp_path: Path
) -> None:
    ledger = federation.site("site-4") / "local" / site.LEDGER
    shutil.copy(ledger, tmp_path / "old")
    assert isinstance(ask(panel, "site-4", "newer", epsilon=0.5), list)
    shutil.copy(ledger, tmp_path / "new")
    shutil.copy(tmp_path / "old", ledger)
    assert ask(panel, "site-4", "after the restore") == "ledger_rolled_back"
    ledger.unlink()
    assert ask(panel, "site-4", "after the loss") == "ledger_missing"
    assert not ledger.exists()
    shutil.copy(tmp_path / "new", ledger)
    assert isinstance(ask(panel, "site-4", "newest", epsilon=0.5), list)


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
def test_a_calibrator_without_a_calibrators_certificate_reaches_nobody(
    federation: Federation, tmp_path: Path, certified: str | None
) -> None:
    """Without one there is no connection; with a hospital's, the server ends it at once."""
    link = Link(self_made(federation, tmp_path, certified))
    if certified is None:
        with pytest.raises(InputError, match="cannot be used"):
            link.open()
        return
    try:
        with contextlib.suppress(CalibrationError):  # the server cannot be reached
            link.open()
            assert dict(link.ask_all("sites", {"server": b""}, 2.0)) == {"server": None}
            assert dict(link.ask_all("card", {"site-1": b""}, 2.0)) == {"site-1": None}
    finally:
        link.close()


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
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
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


def test_a_site_cannot_take_the_place_of_another(
    federation: Federation, panel: Sites, tmp_path: Path
) -> None:
    """Started with the certificate of site-2, a fake site-1 is not let in."""
    fake = Path(
        shutil.copytree(federation.site("site-1") / "startup", tmp_path / "site-1" / "startup")
    ).parent
    shutil.copytree(federation.site("site-1") / "local", fake / "local")
    for name in ("client.crt", "client.key"):
        shutil.copy(federation.site("site-2") / "startup" / name, fake / "startup" / name)
    log = federation.kits / SERVER / processes.OUTPUT
    participant = processes._Participant("site", fake)
    process = processes._start(participant).process
    assert process is not None
    try:
        until(lambda: "as 'site-2' but claimed endpoint 'site-1'" in log.read_text(), "its refusal")
    finally:
        process.kill()
        process.wait()
    assert isinstance(ask(panel, "site-1", "the real one"), list)


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
    federation: Federation, panel: Sites, tmp_path: Path
) -> None:
    got = [ask(panel, name, "canary", n) for n in range(3) for name in NAMES]
    broken = federation.site("site-1") / "data" / f"{CANARY}.csv"
    broken.write_text(f"label,probability,person\n{CANARY}-label,0.5,{CANARY}-person\n")
    before = federation.spent()["site-1"]
    with federation.settings("site-1", data=json.dumps(str(broken))):
        got.append(ask(panel, "site-1", "broken"))
    assert got[-1] == "unavailable"
    assert federation.spent()["site-1"] == before
    with federation.settings("site-1", data=json.dumps(str(broken) + ".gone")):
        got.append(ask(panel, "site-1", "gone"))
    assert got[-1] == "unavailable"
    noted = (federation.site("site-1") / "local" / LOG).read_text()
    assert f"{CANARY}-label" in noted or f"{CANARY}.csv" in noted, "its owner is told"
    assert CANARY not in json.dumps(got)
    for folder in (SERVER, ANN, BOB):
        for path, content in everything_in(federation.kits / folder):
            assert CANARY.encode() not in content, path
