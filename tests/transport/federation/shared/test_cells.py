"""What passes the gate of a cell: the table of `privcal.transport.federation.shared.cells`, and nothing else.

The cells are FLARE's own, made from real kits and not started: a message is handed to them as
FLARE's connections would, with the peer's name and the name in its certificate. "It passes" means
that FLARE's own code gets to see it.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privcal.trusted.errors import InputError

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")

import nvflare
from nvflare.fuel.f3.cellnet.core_cell import CoreCell, _Waiter
from nvflare.fuel.f3.cellnet.defs import (
    CellChannel,
    CellChannelTopic,
    Encoding,
    MessageHeaderKey,
    MessageType,
    ReturnCode,
)
from nvflare.fuel.f3.cellnet.net_agent import NetAgent
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.stats_pool import StatsPoolManager
from nvflare.fuel.utils import fobs

from privcal.transport.federation import server
from privcal.transport.federation.calibrator.link import ask, calibrator_cell
from privcal.transport.federation.server import is_calibrator_cell, server_cell
from privcal.transport.federation.shared import cells, revocations
from privcal.transport.federation.shared.cells import CHANNEL, MAX_BYTES, TOPICS
from privcal.transport.federation.shared.kit import STARTUP_FILE, Kind, Startup
from privcal.transport.federation.site.cell import site_cell
from tests.support import federation_parts as parts
from tests.support.federation_parts import ANN

Head = MessageHeaderKey
ADMIN, ANOTHER = (f"_admin_{digit * 8}-0000-4000-8000-000000000000" for digit in "12")
KINDS = (MessageType.REQ, MessageType.REPLY, MessageType.RETURN)


class Connection:
    """What a cell sees of a connection: the name in the certificate at the other end."""

    def __init__(self, name: str | None) -> None:
        self.name = name

    def get_conn_properties(self) -> dict[str, Any]:
        return {} if self.name is None else {DriverParams.PEER_CN.value: self.name}

    def close(self) -> None: ...


@dataclass(frozen=True)
class Sender:
    cell: str
    """As it calls itself when it connects."""
    certificate: str | None


SENDERS = {
    "the server": Sender("server", "localhost"),
    "the site": Sender("site-1", "site-1"),
    "another site": Sender("site-2", "site-2"),
    "a calibrator": Sender(ADMIN, ANN),
    "a site that calls itself a calibrator": Sender(ADMIN, "site-2"),
    "a calibrator that calls itself a site": Sender("site-1", ANN),
    "a calibrator by name": Sender(ANN, ANN),
    "a site's child": Sender("site-1.job", "site-1"),
    "a site that calls itself the server": Sender("server", "site-2"),
    "nobody": Sender("", ""),
    "a stranger without a certificate": Sender(ADMIN, None),
    "a stranger": Sender("stranger", "N/A"),
}
PLACES = (
    "server", "site-1", "site-2", ADMIN, ANOTHER, "site-1.job", "server.job", ANN, "", ".", "*",
    "Server", "sitе-1", "site-1\n", "../site-1",
)  # fmt: skip


@dataclass
class Party:
    cell: CoreCell
    reached: list[Message] = field(default_factory=list)
    """What FLARE's own code got to see."""

    @property
    def name(self) -> str:
        return str(self.cell.my_info.fqcn)

    def get(self, sender: Sender, message: Message) -> Message | None:
        """What of a message passes."""
        self.reached.clear()
        self.cell.process_message(
            Endpoint(sender.cell), Connection(sender.certificate), CoreCell.APP_ID, message
        )
        assert len(self.reached) <= 1
        return self.reached[0] if self.reached else None


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parts.make_kits(tmp_path_factory.mktemp("federation") / "kits", sites=2)


def forget() -> None:
    """FLARE has one cell of a name in a process, and hands messages over within; so have
    participants, but here all are in one."""
    CoreCell.ALL_CELLS.clear()
    StatsPoolManager.pools.clear()


@pytest.fixture(autouse=True)
def _a_process_of_their_own() -> Iterator[None]:
    forget()
    yield
    forget()


def make(kits: Path, party: str) -> CoreCell:
    forget()
    if party == "site":
        return site_cell(kits / "site-1", lambda topic, message: b"reply")
    if party == "server":
        return server_cell(kits / "localhost")
    return calibrator_cell(kits / ANN)


@pytest.fixture(scope="module")
def parties(kits: Path) -> dict[str, Party]:
    made = {}
    for name in ("site", "server", "calibrator"):
        made[name] = party = Party(make(kits, name))
        party.cell._process_received_msg = (  # in place of all that FLARE would do
            lambda endpoint, connection, message, party=party: party.reached.append(message)
        )
    return made


def message(kind: Any, sender: str, to: str, channel: Any = CHANNEL, topic: Any = "ask") -> Message:
    headers = {
        Head.MSG_TYPE: kind,
        Head.CHANNEL: channel,
        Head.TOPIC: topic,
        Head.ORIGIN: sender,
        Head.DESTINATION: to,
        Head.REQ_ID: "1",
        Head.REPLY_EXPECTED: True,
    }
    return Message(headers, b"payload")


def in_the_table(
    party: Party, sender: Sender, kind: Any, channel: Any, topic: Any, origin: str, to: str
) -> bool:
    """The docstring of the module, word for word."""
    ours = channel == "privcal" and topic in ("sites", "card", "ask")
    if party.name == "site-1":
        # a calibrator's request, from the server
        request = ours and kind == "req" and topic != "sites"
        return request and sender.cell == "server" and to == "site-1"
    if party.name == "server":
        to_calibrator = to in (ADMIN, ANOTHER)
        if not ours or origin != sender.cell:
            return False
        if kind == "req" and sender == SENDERS["a calibrator"]:
            # a request from a calibrator to a site; for itself, who is connected
            return to == "server" if topic == "sites" else to in ("site-1", "site-2", "Server")
        # a site's reply
        site = sender in (SENDERS["the site"], SENDERS["another site"])
        return kind == "reply" and site and to_calibrator
    # replies to what it asked; that a request could not be forwarded is one too
    answer = (kind == "reply" and ours) or kind == "return"
    return answer and sender.cell == "server" and to == party.name


# --- every channel that FLARE has ---------------------------------------------------------

MODULES = (
    "nvflare.fuel.f3.cellnet.defs",
    "nvflare.fuel.f3.cellnet.core_cell",
    "nvflare.fuel.f3.cellnet.net_agent",
    "nvflare.fuel.f3.streaming.stream_const",
    "nvflare.fuel.f3.streaming.download_service",
    "nvflare.private.defs",
    "nvflare.apis.fl_constant",
    "nvflare.client.cell.defs",
    "nvflare.client.ipc.defs",
    "nvflare.app_common.widgets.metric_relay",
    "nvflare.app_opt.job_launcher.workspace_cell_transfer",
    "nvflare.app_opt.confidential_computing.cc_manager",
    "nvflare.edge.constants",
)


def flares_names() -> dict[str, set[str]]:
    """Constants of FLARE that name channels or topics, and their values."""
    found: dict[str, set[str]] = {}

    def note(name: str, value: Any) -> None:
        if isinstance(value, str):
            found.setdefault(name, set()).add(value)

    for place in MODULES:
        for name, thing in vars(importlib.import_module(place)).items():
            if re.search("CHANNEL|TOPIC", name):
                note(name, thing)
            if isinstance(thing, type) and re.search("Channel|Topic|CommandNames", name):
                for inner, value in vars(thing).items():
                    if not inner.startswith("__"):
                        note(inner, value)
    return found


NAMES = flares_names()
THEIRS = sorted(set().union(*NAMES.values()) | {"*", "", "privcal.", "Privcal"})


def test_the_list_of_channels_has_every_one_that_flare_registers() -> None:
    """So that what a later version adds is in these tests, or is missed here."""
    registered = set()
    for path in Path(nvflare.__file__).parent.rglob("*.py"):
        text = path.read_text("utf-8")
        for call in re.finditer(r"register_request_cb\(\s*(?:channel=)?([\w.]+)", text):
            registered.add(call[1].split(".")[-1])
    registered -= {"self", "channel", "TEST_CHANNEL"}  # a definition, and a tool of FLARE's tests
    assert registered
    assert registered <= set(NAMES), registered - set(NAMES)
    assert {CellChannel.CELLNET, CellChannel.CLIENT_MAIN, "_net_manager"} <= set(THEIRS)
    assert {"process_info", "bulk", CellChannelTopic.Bye, "sys.shell", "key_exchange"} <= set(
        THEIRS
    )
    assert {CellChannel.AUX_COMMUNICATION, "train.deploy"} <= set(THEIRS)
    assert len(THEIRS) > 100


@pytest.mark.parametrize("name", ["site", "server", "calibrator"])
def test_nothing_of_flares_own_passes(parties: dict[str, Party], name: str) -> None:
    """Every channel with every topic, from everybody; but a RETURN, which has no channel."""
    party = parties[name]
    for sender in SENDERS.values():
        for kind in (MessageType.REQ, MessageType.REPLY):
            for channel in (*THEIRS, CHANNEL):
                for topic in THEIRS if channel == CHANNEL else (*THEIRS, *TOPICS):
                    sent = message(kind, sender.cell, party.name, channel, topic)
                    assert party.get(sender, sent) is None, (sender, kind, channel, topic)


@pytest.mark.parametrize("who", SENDERS)
@pytest.mark.parametrize("name", ["site", "server", "calibrator"])
def test_exactly_the_table_passes(parties: dict[str, Party], name: str, who: str) -> None:
    party, sender = parties[name], SENDERS[who]
    passed = 0
    for kind in (*KINDS, None, "", "REQ", "bye", 1, ["req"], {"req": 1}, b"req", True):
        for channel in (CHANNEL, CellChannel.CELLNET, "", None, [CHANNEL], CHANNEL.encode()):
            for topic in (*TOPICS, CellChannelTopic.Bye, "", None, ["ask"], "ASK", "*"):
                for origin in {sender.cell, "server", "site-2", ADMIN, ANN}:
                    for to in (*PLACES, party.name):
                        sent = message(kind, origin, to, channel, topic)
                        if kind == MessageType.RETURN:
                            sent.headers[Head.ORIGINAL_HEADERS] = {Head.DESTINATION: "site-1"}
                        passes = party.get(sender, sent) is not None
                        expected = in_the_table(party, sender, kind, channel, topic, origin, to)
                        assert passes == expected, (kind, channel, topic, origin, to)
                        passed += passes
    may = {
        "site": {"the server", "a site that calls itself the server"},  # that one FLARE refuses
        "server": {"a calibrator", "the site", "another site"},
        "calibrator": {"the server", "a site that calls itself the server"},
    }
    assert (passed > 0) == (who in may[name])


def test_flare_itself_holds_a_cells_name_to_its_certificate(parties: dict[str, Party]) -> None:
    """What the gate relies on: nobody else is called the server, or another site."""
    for name, cell, certificate, holds in (
        ("site", "server", "localhost", True),
        ("site", "server", "site-2", False),
        ("calibrator", "server", "localhost", True),
        ("calibrator", "server", "site-2", False),
        ("server", "site-1", "site-1", True),
        ("server", "site-1", "site-2", False),
        ("server", "site-1", ANN, False),
        ("server", "site-1", "", False),
        ("server", ADMIN, "site-2", True),  # here the gate does
        ("server", ADMIN, "", False),
    ):
        resolver = parties[name].cell.identity_resolver
        if holds:
            resolver.require_match(cell, certificate, "peer")
        else:
            with pytest.raises(ValueError, match="authenticated"):
                resolver.require_match(cell, certificate, "peer")


def test_a_revoked_name_gets_nothing_forwarded(kits: Path) -> None:
    revoked: set[str] = set()
    party = Party(server_cell(kits / "localhost", lambda name, key: name not in revoked))
    party.cell._process_received_msg = lambda *given: party.reached.append(given[2])
    ask = (SENDERS["a calibrator"], message(MessageType.REQ, ADMIN, "site-1"))
    reply = (SENDERS["the site"], message(MessageType.REPLY, "site-1", ADMIN))
    assert party.get(*ask)
    assert party.get(*reply)
    revoked |= {ANN, "site-1"}
    assert party.get(*ask) is None
    assert party.get(*reply) is None


class Comer:
    """Somebody who connects to the server and says who they are, as FLARE sees them."""

    def __init__(self, certificate: str, key: str = "") -> None:
        self.conn, self.sfm_endpoint, self.closed = self, None, False
        self.facts = {DriverParams.PEER_CN.value: certificate}
        self.connector = types.SimpleNamespace(params={}, mode=None)
        self.key = key

    def get_conn_properties(self) -> dict[str, Any]:
        return self.facts

    def get_name(self) -> str:
        return "connection"

    def close(self) -> None:
        self.closed = True


def test_nobody_takes_the_place_of_a_calibrators_cell(kits: Path) -> None:
    """A site sees the name of the cell that asks it, and a newcomer pushes out who had a name."""
    manager = server_cell(kits / "localhost").communicator.conn_manager
    asker, same_again = Comer(ANN), Comer(ANN)
    manager.update_endpoint(asker, {"endpoint_name": ADMIN})
    for other in (Comer("site-2"), Comer(parts.BOB), Comer("localhost"), Comer("")):
        for name in (ADMIN, f" {ADMIN} "):
            manager.update_endpoint(other, {"endpoint_name": name})
            assert other.closed
    assert not asker.closed
    assert manager.get_connections(ADMIN) == [asker]
    manager.update_endpoint(same_again, {"endpoint_name": ADMIN})
    assert manager.get_connections(ADMIN) == [same_again], "who lost the connection comes back"
    early = Comer("site-2")
    manager.update_endpoint(early, {"endpoint_name": ANOTHER})
    assert early.closed, "a hospital has no calibrator's cell at all"


def test_a_connection_has_one_name_and_leaves_nothing_else_behind(kits: Path) -> None:
    """15,000 names on one connection took 60 MB of the server's memory, for ever."""
    manager = server_cell(kits / "localhost").communicator.conn_manager
    site, asker = Comer("site-1"), Comer(ANN)
    for comer, first, more in (
        (site, "site-1", ("site-1", "site-1.job", "site-1.job.x")),
        (asker, ADMIN, (ANOTHER, ANN)),
    ):
        manager.update_endpoint(comer, {"endpoint_name": first, "more": "x" * 1000})
        assert not comer.closed
        for name in more:
            manager.update_endpoint(comer, {"endpoint_name": name})
        assert comer.closed
    child = Comer("site-2")
    manager.update_endpoint(child, {"endpoint_name": "site-2.job"})
    assert child.closed
    assert set(manager.sfm_endpoints) == {"site-1", ADMIN}
    assert "more" not in str(
        [known.endpoint.properties for known in manager.sfm_endpoints.values()]
    )


def test_whoever_has_a_revoked_name_or_key_does_not_come_in(
    kits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_key", lambda comer: comer.key)
    revoked = {"old", "site-2"}
    party = Party(server_cell(kits / "localhost", lambda *who: not revoked & set(who)))
    party.cell._process_received_msg = lambda *given: party.reached.append(given[2])
    manager = party.cell.communicator.conn_manager
    site, thief, out = Comer("site-1", "new"), Comer("site-1", "old"), Comer("site-2", "its")
    for comer in (site, thief, out):
        manager.update_endpoint(comer, {"endpoint_name": comer.facts[DriverParams.PEER_CN.value]})
    assert (site.closed, thief.closed, out.closed) == (False, True, True)
    assert manager.get_connections("site-1") == [site]
    reply = (SENDERS["the site"], message(MessageType.REPLY, "site-1", ADMIN))
    assert party.get(*reply)
    revoked.add("new")
    assert party.get(*reply) is None, "one that is connected is heard no more"


def test_a_server_with_a_damaged_list_of_who_is_revoked_forwards_nothing(
    kits: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made: list[CoreCell] = []
    monkeypatch.setattr(server, "run_until_stopped", lambda cell, started: made.append(cell))
    folder = copied(kits / "localhost", tmp_path)
    server.run(folder)
    party = Party(made[0])
    party.cell._process_received_msg = lambda *given: party.reached.append(given[2])
    ask = (SENDERS["a calibrator"], message(MessageType.REQ, ADMIN, "site-1"))
    assert party.get(*ask)
    (folder / "local" / revocations.REVOKED).write_text("{")
    party.reached.clear()
    party.get(*ask)
    party.get(*ask)
    assert party.reached == []
    assert capsys.readouterr().out.count("revoked.json") == 1, "told once, not for each message"


# --- headers and payloads -----------------------------------------------------------------

GOOD = {
    "site": (SENDERS["the server"], MessageType.REQ, ADMIN, "site-1"),
    "server": (SENDERS["a calibrator"], MessageType.REQ, ADMIN, "site-1"),
    "calibrator": (SENDERS["the server"], MessageType.REPLY, "site-1", None),
}
KEPT = {
    MessageType.REQ: {Head.REPLY_EXPECTED},
    MessageType.REPLY: {Head.RETURN_CODE},
    MessageType.RETURN: {Head.RETURN_CODE, Head.ORIGINAL_HEADERS},
}
ALWAYS = {
    Head.MSG_TYPE, Head.CHANNEL, Head.TOPIC, Head.ORIGIN, Head.DESTINATION, Head.REQ_ID,
    Head.SERVER_TRANSIT_REQUIRED,
}  # fmt: skip
ALL_HEADERS = sorted(value for name, value in vars(Head).items() if not name.startswith("__"))


def good(party: Party, name: str) -> tuple[Sender, Message]:
    sender, kind, origin, to = GOOD[name]
    return sender, message(kind, origin, to or party.name)


@pytest.mark.parametrize("name", GOOD)
def test_every_other_header_is_taken_off(parties: dict[str, Party], name: str) -> None:
    """How to decode, where else to connect, which way to go, what FLARE's programs believe."""
    party = parties[name]
    extra = {
        key: value
        for key, value in {
            **dict.fromkeys(ALL_HEADERS, "x"),
            Head.CONN_URL: "tcp://evil.example:1",
            Head.PAYLOAD_ENCODING: Encoding.FOBS,
            Head.ENCRYPTED: True,
            Head.SECURE: True,
            Head.PASS_THROUGH: True,
            Head.SERVER_TRANSIT_REQUIRED: False,
            Head.ROUTE: [("a", 0)],
            "__token__": "token",
            "client_name": "site-2",
        }.items()
        if key not in ALWAYS or key == Head.SERVER_TRANSIT_REQUIRED
    }
    sender, sent = good(party, name)
    kind = sent.headers[Head.MSG_TYPE]
    sent.headers = {**extra, **sent.headers}
    got = party.get(sender, sent)
    assert got is not None
    assert set(got.headers) <= ALWAYS | KEPT[kind]
    assert got.headers[Head.SERVER_TRANSIT_REQUIRED] is True
    assert (got.headers[Head.TOPIC], got.payload) == ("ask", b"payload")


def test_what_a_return_carries_is_where_the_request_was_to_go_and_no_more(
    parties: dict[str, Party],
) -> None:
    party = parties["calibrator"]
    sent = message(MessageType.RETURN, "server", party.name, CellChannel.CELLNET, "bulk")
    sent.headers[Head.ORIGINAL_HEADERS] = {
        Head.DESTINATION: "site-1",
        Head.CONN_URL: "tcp://evil.example:1",
        Head.CHANNEL: CellChannel.CELLNET,
    }
    got = party.get(SENDERS["the server"], sent)
    assert got is not None
    assert got.headers[Head.ORIGINAL_HEADERS] == {Head.DESTINATION: "site-1"}
    assert (got.headers[Head.CHANNEL], got.headers[Head.TOPIC]) == (CHANNEL, "ask")
    assert got.payload == b""
    for odd in (None, "x", 1, [], [1]):
        sent.headers[Head.ORIGINAL_HEADERS] = odd
        got = party.get(SENDERS["the server"], sent)
        assert got is not None
        assert got.headers[Head.ORIGINAL_HEADERS] == {Head.DESTINATION: None}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize(
    ("payload", "passes"),
    [
        (b"x", b"x"),
        (bytearray(b"x"), b"x"),
        (memoryview(b"x"), b"x"),
        (None, b""),
        (b"", b""),
        (b"x" * MAX_BYTES, b"x" * MAX_BYTES),
        (b"x" * (MAX_BYTES + 1), None),
        (memoryview(b"x" * (MAX_BYTES + 1)), None),
        ("x", None),
        (1, None),
        ([b"x"], None),
        ({"x": b"x"}, None),
        (object(), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_so_many_bytes_pass(
    parties: dict[str, Party], name: str, payload: Any, passes: bytes | None
) -> None:
    party = parties[name]
    sender, sent = good(party, name)
    sent.payload = payload
    got = party.get(sender, sent)
    assert (None if got is None else got.payload) == passes
    assert got is None or type(got.payload) is bytes


ODD: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.sampled_from([*KINDS, *TOPICS, CHANNEL, *PLACES, Encoding.FOBS, ReturnCode.OK]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=4,
)
LIKELY = {
    Head.MSG_TYPE: st.sampled_from(KINDS),
    Head.CHANNEL: st.sampled_from([CHANNEL, *THEIRS]),
    Head.TOPIC: st.sampled_from([*TOPICS, *THEIRS]),
    Head.ORIGIN: st.sampled_from(PLACES),
    Head.DESTINATION: st.sampled_from(PLACES),
}
MORE = {key: ODD for key in ALL_HEADERS if key not in LIKELY}
HEADERS = (
    st.fixed_dictionaries({key: known | ODD for key, known in LIKELY.items()}, optional=MORE)
    | st.fixed_dictionaries(LIKELY, optional=MORE)
    | st.dictionaries(st.sampled_from(ALL_HEADERS), ODD)
    | ODD
)


@pytest.mark.parametrize("name", GOOD)
@given(headers=HEADERS, payload=ODD, sender=st.sampled_from(list(SENDERS.values())))
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_comes_the_gate_neither_fails_nor_passes_anything_else(
    parties: dict[str, Party], name: str, headers: Any, payload: Any, sender: Sender
) -> None:
    party = parties[name]
    sent = Message(headers, payload)
    got = party.get(sender, sent)
    if got is None:
        return
    seen = got.headers
    assert in_the_table(
        party, sender, seen[Head.MSG_TYPE], seen[Head.CHANNEL], seen[Head.TOPIC],
        seen[Head.ORIGIN], seen[Head.DESTINATION],
    )  # fmt: skip
    assert set(seen) <= ALWAYS | KEPT[seen[Head.MSG_TYPE]]
    assert type(got.payload) is bytes
    if seen[Head.MSG_TYPE] != MessageType.RETURN:
        for key in (Head.MSG_TYPE, Head.CHANNEL, Head.TOPIC, Head.ORIGIN, Head.DESTINATION):
            assert seen[key] == headers[key]


# --- behind the gate: FLARE's own code, all of it -----------------------------------------


@pytest.fixture
def no_objects(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Whether FLARE came to decode an object: what it was."""
    seen: list[Any] = []

    def loads(data: Any, **more: Any) -> Any:
        seen.append(data)
        return {}

    for name in ("loads", "load_from_bytes"):
        monkeypatch.setattr(fobs, name, loads)
    return seen


class Whole:
    """A cell with all of FLARE behind it; what it sends is kept."""

    def __init__(self, cell: CoreCell) -> None:
        self.cell = cell
        self.sent: list[Message] = []
        cell._send_to_endpoint = self._send

    def _send(self, to_endpoint: Endpoint, message: Message) -> str:
        self.sent.append(message)
        return ""

    def take(self, sender: Sender, sent: Message) -> list[Message]:
        self.sent.clear()
        self.cell.process_message(
            Endpoint(sender.cell), Connection(sender.certificate), CoreCell.APP_ID, sent
        )
        return self.sent


def ungated(kits: Path, kind: str) -> CoreCell:
    """As FLARE would have it."""
    forget()
    if kind == "site":
        return cells._ungated("site-1", Startup.read(kits / "site-1", "site"))
    startup = Startup.read(kits / "localhost", "server")
    return cells._ungated("server", replace(startup, url=server._listening(startup.url)))


@pytest.mark.parametrize("kind", ["site", "server"])
def test_without_the_gate_flare_tells_about_the_process_and_with_it_it_does_not(
    kits: Path, kind: str
) -> None:
    sender = SENDERS["the server" if kind == "site" else "another site"]
    found = {}
    for gate, cell in (("none", ungated(kits, kind)), ("ours", make(kits, kind))):
        NetAgent(cell)
        for channel in (CellChannel.CLIENT_MAIN, CellChannel.AUX_COMMUNICATION):
            cell.register_request_cb(channel, "*", lambda _: Message({}, "done"))
        whole = Whole(cell)
        said = []
        for channel, topic in (
            ("_net_manager", "process_info"),
            ("_net_manager", "config_vars"),
            ("_net_manager", "stop_cell"),
            ("_net_manager", "echo"),
            (CellChannel.CLIENT_MAIN, "sys.shell"),
            (CellChannel.CLIENT_MAIN, "train.deploy"),
            (CellChannel.AUX_COMMUNICATION, "anything"),
            ("credential_manager", "key_exchange"),
        ):
            sent = message(MessageType.REQ, sender.cell, cell.my_info.fqcn, channel, topic)
            said += [reply.headers[Head.TOPIC] for reply in list(whole.take(sender, sent))]
        found[gate] = said
    assert {"process_info", "config_vars", "sys.shell", "train.deploy", "anything"} <= set(
        found["none"]
    )
    assert found["ours"] == []


def test_without_the_gate_flare_decodes_objects_and_with_it_it_does_not(
    kits: Path, no_objects: list[Any]
) -> None:
    sender = SENDERS["the server"]
    for channel in (CHANNEL, CellChannel.CELLNET):
        sent = message(MessageType.REQ, ADMIN, "site-1", channel)
        sent.headers[Head.PAYLOAD_ENCODING] = Encoding.FOBS
        plain = ungated(kits, "site")
        Whole(plain).take(sender, Message(dict(sent.headers), b"an object"))
        assert no_objects == [b"an object"]
        no_objects.clear()
        Whole(make(kits, "site")).take(sender, Message(dict(sent.headers), b"an object"))
        assert no_objects == []


def test_without_the_gate_flare_connects_where_it_is_told_and_with_it_it_does_not(
    kits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(CoreCell, "_add_adhoc_connector", lambda _, to, url: asked.append(url))
    for cell, went in ((ungated(kits, "site"), ["tcp://evil.example:1"]), (make(kits, "site"), [])):
        sent = message(MessageType.REQ, ADMIN, "site-1")
        sent.headers[Head.CONN_URL] = "tcp://evil.example:1"
        Whole(cell).take(SENDERS["the server"], sent)
        assert asked == went
        asked.clear()


def test_without_the_gate_a_site_sends_to_any_other_and_with_it_it_does_not(kits: Path) -> None:
    for cell, forwarded in ((ungated(kits, "server"), 1), (make(kits, "server"), 0)):
        cell._find_endpoint = lambda to, message: ("", Endpoint(to))
        whole = Whole(cell)
        for channel, topic in ((CellChannel.CLIENT_MAIN, "sys.shell"), (CHANNEL, "ask")):
            sent = message(MessageType.REQ, "site-2", "site-1", channel, topic)
            assert len(whole.take(SENDERS["another site"], sent)) == forwarded


def test_a_good_request_is_answered_by_the_site(kits: Path, no_objects: list[Any]) -> None:
    got: list[tuple[str, bytes]] = []

    def answer(topic: str, text: bytes) -> bytes:
        got.append((topic, text))
        return b"reply"

    whole = Whole(site_cell(kits / "site-1", answer))
    sent = message(MessageType.REQ, ADMIN, "site-1")
    sent.headers[Head.PAYLOAD_ENCODING] = Encoding.FOBS
    [reply] = whole.take(SENDERS["the server"], sent)
    assert got == [("ask", b"payload")]
    assert (reply.payload, reply.headers[Head.DESTINATION]) == (b"reply", ADMIN)
    assert reply.headers[Head.RETURN_CODE] == ReturnCode.OK
    assert Head.CONN_URL not in reply.headers
    assert no_objects == []


def test_the_server_tells_calibrators_who_is_connected_and_forwards_the_rest(
    kits: Path, no_objects: list[Any]
) -> None:
    cell = make(kits, "server")
    cell._find_endpoint = lambda to, message: ("", Endpoint(to))
    cell.agents.update(dict.fromkeys(("site-2", ADMIN, "site-1", "site-1.job")))
    whole = Whole(cell)
    [reply] = whole.take(
        SENDERS["a calibrator"], message(MessageType.REQ, ADMIN, "server", topic="sites")
    )
    assert reply.payload == b"site-1\nsite-2"
    sent = message(MessageType.REQ, ADMIN, "site-1")
    sent.headers[Head.PAYLOAD_ENCODING] = Encoding.FOBS
    [forwarded] = whole.take(SENDERS["a calibrator"], sent)
    assert (forwarded.payload, forwarded.headers[Head.DESTINATION]) == (b"payload", "site-1")
    assert Head.PAYLOAD_ENCODING not in forwarded.headers
    [back] = whole.take(SENDERS["the site"], message(MessageType.REPLY, "site-1", ADMIN))
    assert back.headers[Head.DESTINATION] == ADMIN
    assert no_objects == []


@pytest.mark.parametrize(
    ("origin", "number", "comes"),
    [
        ("site-1", "1", True),
        ("site-2", "1", False),
        ("site-1", "2", False),
        ("site-1", ["1"], True),
    ],
)
def test_a_calibrator_takes_replies_to_what_it_asked_from_whom_it_asked(
    kits: Path, origin: str, number: Any, comes: bool, no_objects: list[Any]
) -> None:
    cell = make(kits, "calibrator")
    waiter = _Waiter(targets=["site-1"])
    cell.waiters["1"] = waiter
    sent = message(MessageType.REPLY, origin, cell.my_info.fqcn)
    sent.headers[Head.REQ_ID] = number
    sent.headers[Head.PAYLOAD_ENCODING] = Encoding.FOBS
    Whole(cell).take(SENDERS["the server"], sent)
    assert bool(waiter.received_replies) is comes
    assert no_objects == []


def test_a_request_that_cannot_be_forwarded_is_known_to_have_failed(kits: Path) -> None:
    cell = make(kits, "calibrator")
    waiter = _Waiter(targets=["site-1"])
    cell.waiters["1"] = waiter
    sent = message(MessageType.RETURN, "server", cell.my_info.fqcn)
    sent.headers |= {
        Head.RETURN_CODE: ReturnCode.COMM_ERROR,
        Head.ORIGINAL_HEADERS: {Head.DESTINATION: "site-1"},
    }
    Whole(cell).take(SENDERS["the server"], sent)
    assert waiter.received_replies["site-1"].headers[Head.RETURN_CODE] == ReturnCode.COMM_ERROR


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Message({Head.RETURN_CODE: ReturnCode.OK}, b"yes"), b"yes"),
        (Message({Head.RETURN_CODE: ReturnCode.OK}, None), None),
        (Message({Head.RETURN_CODE: ReturnCode.OK}, "yes"), None),
        (Message({Head.RETURN_CODE: ReturnCode.TIMEOUT}, b"yes"), None),
        (Message({}, b"yes"), None),
    ],
)
def test_only_bytes_that_came_well_are_a_reply(reply: Message, said: bytes | None) -> None:
    class Cell:
        def send_request(self, *given: Any, **more: Any) -> Message:
            assert given[:3] == (CHANNEL, "ask", "site-1")
            assert given[3].payload == b"question"
            return reply

    assert ask(Cell(), "ask", "site-1", b"question", 1.0) == said


# --- the three cells, and what they are made from -----------------------------------------


@pytest.mark.parametrize("kind", ["site", "server", "calibrator"])
def test_a_cell_has_nothing_of_flares_applications(kits: Path, kind: str) -> None:
    registered = set(make(kits, kind).req_reg.reg)
    every_cell = {"cellnet.channel:bulk", "cellnet.channel:bye", "credential_manager:key_exchange"}
    ours = {"site": {"privcal:*"}, "server": {"privcal:sites"}, "calibrator": set()}
    assert registered == every_cell | ours[kind]


def test_all_speak_mutual_tls_and_have_no_listener_inside(kits: Path) -> None:
    for kind in ("site", "server", "calibrator"):
        cell = make(kits, kind)
        assert cell.secure
        assert cell.endpoint.conn_props[DriverParams.CONNECTION_SECURITY.value] == "mtls"
        assert (cell.int_listener, cell.ext_listeners) == (None, {})


def test_mutual_tls_is_used_whatever_the_start_up_file_says(kits: Path, tmp_path: Path) -> None:
    kit = copied(kits / "site-1", tmp_path)
    document = json.loads((kit / "startup" / "fed_client.json").read_text())
    document["client"]["connection_security"] = "clear"
    (kit / "startup" / "fed_client.json").write_text(json.dumps(document))
    cell = site_cell(kit, lambda *_: b"")
    assert cell.endpoint.conn_props[DriverParams.CONNECTION_SECURITY.value] == "mtls"


def test_each_run_of_a_calibrator_has_a_name_of_its_own(kits: Path) -> None:
    one, two = (make(kits, "calibrator").my_info.fqcn for _ in range(2))
    assert one != two
    assert is_calibrator_cell(one)
    for other in (
        "",
        "server",
        "site-1",
        ANN,
        "_admin_",
        "_admin_x",
        f"{one}.x",
        f"x{one}",
        one[:-1],
    ):
        assert not is_calibrator_cell(other)


def copied(kit: Path, to: Path) -> Path:
    return Path(shutil.copytree(kit, to / kit.name))


WHOSE: dict[str, Kind] = {"site-1": "site", "localhost": "server", ANN: "calibrator"}


@pytest.mark.parametrize("name", WHOSE)
def test_a_start_up_file_says_who_and_where(kits: Path, name: str) -> None:
    startup = Startup.read(kits / name, WHOSE[name])
    port = json.loads((kits / "federation.json").read_text())["server"]["port"]
    assert (startup.name, startup.server) == (name, "localhost")
    assert f":{port}" in startup.url
    files = [Path(path) for path in (startup.key, startup.certificate, startup.root)]
    assert [path.suffix for path in files] == [".key", ".crt", ".pem"]
    assert all(path.is_file() for path in files)


@pytest.mark.parametrize("name", WHOSE)
@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "1", '"x"', "{}", '{"client": 1, "servers": 1, "admin": 1}',
     '{"client": {}, "servers": [], "admin": {}}', '{"client": null, "servers": null, "admin": null}',
     '{"servers": [{"service": {"target": "a:b:c", "scheme": "tcp"}}]}', "\xff"],
)  # fmt: skip
def test_a_damaged_start_up_file_is_one_sentence(
    kits: Path, tmp_path: Path, name: str, text: str
) -> None:
    kit = copied(kits / name, tmp_path)
    (kit / "startup" / STARTUP_FILE[WHOSE[name]]).write_text(text, "latin-1")
    sentence = (
        "is damaged; ask for a fresh kit|is not a start-up file: it is not JSON, or is cut short"
    )
    with pytest.raises(InputError, match=rf"\A[^\n]* ({sentence})\Z"):
        Startup.read(kit, WHOSE[name])


@pytest.mark.parametrize("name", WHOSE)
def test_a_start_up_file_without_one_of_its_parts_or_with_another_type_is_damaged_or_read(
    kits: Path, tmp_path: Path, name: str
) -> None:
    """Never another exception than the one with a sentence."""
    kit = copied(kits / name, tmp_path)
    path = kit / "startup" / STARTUP_FILE[WHOSE[name]]
    whole = json.loads(path.read_text())

    def attempt(change: Callable[[], None]) -> None:
        change()
        path.write_text(json.dumps(whole))
        try:
            read = Startup.read(kit, WHOSE[name])
        except InputError:
            return
        assert all(isinstance(part, str) for part in (read.name, read.url, read.server))

    def each(table: Any) -> None:
        for key in list(table) if isinstance(table, dict) else range(len(table)):
            value = table[key]
            for odd in (None, 1, [], {}, "x"):
                attempt(lambda key=key, odd=odd: table.__setitem__(key, odd))  # type: ignore[misc]
            table[key] = value
            if isinstance(table, dict):
                attempt(lambda key=key: table.pop(key))  # type: ignore[misc]
                table[key] = value
            if isinstance(value, (dict, list)):
                each(value)

    each(whole)


def test_a_kit_of_another_kind_and_keys_that_cannot_be_used_are_one_sentence(
    kits: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="is not a site's start-up kit"):
        site_cell(kits / "localhost", lambda *_: b"")
    with pytest.raises(InputError, match="is not a server's start-up kit"):
        server_cell(tmp_path)
    for file in ("client.crt", "client.key", "rootCA.pem"):
        kit = copied(kits / "site-1", tmp_path / file)
        (kit / "startup" / file).write_text("nonsense")
        with pytest.raises(InputError, match=r"the key and certificates in .* cannot be used"):
            site_cell(kit, lambda *_: b"")
        (kit / "startup" / file).unlink()
        with pytest.raises(InputError, match="cannot be used"):
            site_cell(kit, lambda *_: b"")
