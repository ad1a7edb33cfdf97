"""The network of a federation: cells of NVIDIA FLARE, with every door shut but one.

A site, the server and a calibrator each have one cell: a named end of connections with mutual TLS,
where FLARE itself holds a site's name to the one in its certificate. FLARE's applications are not
run, neither a site's nor a server's: no jobs, no commands, no streams, no introspection. And what
a cell would do by itself with a message (decode objects, open further connections, take commands)
it does not get to do: each message passes a gate first, which looks at its headers (a msgpack
table, which FLARE has read), knows three kinds and drops whatever else there is, before a byte of
its payload is decoded. At the server's door, besides, nobody comes in who is revoked, or under the
name of another calibrator's cell.

| at | passes |
|---|---|
| a site | a calibrator's request, from the server |
| the server | a request from a calibrator to a site, and a site's reply; for itself a calibrator's question who is connected |
| a calibrator | replies to what it asked |
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.identity import ADMIN_LISTENER_KEY
from nvflare.fuel.f3.drivers import aio_http_driver
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.constants import HandshakeKeys
from nvflare.fuel.utils.admin_name_utils import is_valid_admin_client_name, new_admin_client_name

from privcal.errors import InputError
from privcal.federation.authority.project import SITE
from privcal.federation.shared.certificates import fingerprint

CHANNEL = "privcal"
TOPICS = ("sites", "card", "ask")
SERVER: str = FQCN.ROOT_SERVER
MAX_BYTES = 1 << 20
"""Of a message: the longest plan and the longest reply are far shorter."""
_MAX_FRAME = 2 * MAX_BYTES
"""Of what a message travels in. FLARE's server takes 2 GiB, packed even smaller, from anybody with
a certificate, and has it in memory several times before it looks who that is."""

_Head = MessageHeaderKey
# What FLARE needs to carry a message and to bring its reply back. Any other header is taken off:
# it could say how to decode the payload, or where else to connect.
_KEPT = {
    MessageType.REQ: (_Head.REQ_ID, _Head.REPLY_EXPECTED),
    MessageType.REPLY: (_Head.REQ_ID, _Head.RETURN_CODE),
    MessageType.RETURN: (_Head.REQ_ID, _Head.RETURN_CODE, _Head.ORIGINAL_HEADERS),
}
_PEER_KEY = "privcal_peer_key"
"""Among what FLARE knows of a connection: the key in the certificate at its other end."""
_ALWAYS = (_Head.MSG_TYPE, _Head.CHANNEL, _Head.TOPIC, _Head.ORIGIN, _Head.DESTINATION)

Passes = Callable[[str, str, Message], bool]
"""Whether a message passes: by the peer's cell, the name in its certificate, and its headers."""


def gated(cell: CoreCell, passes: Passes) -> CoreCell:
    """The cell, taking only what passes. To be called before it is started."""
    process = cell.process_message

    def gate(endpoint: Any, connection: Any, app_id: int, message: Message) -> None:
        known = _known(message)
        if known is None:
            return
        peer = connection.get_conn_properties().get(DriverParams.PEER_CN.value, "")
        if passes(endpoint.name, str(peer), known):
            process(endpoint, connection, app_id, known)

    cell.process_message = gate  # FLARE hands every message to this name
    return cell


def _known(message: Message) -> Message | None:
    """The message with the headers that are known; None if it is of no kind that is."""
    if not isinstance(message.headers, dict):  # from outside they may be anything
        return None
    kind = message.get_header(_Head.MSG_TYPE)
    if not isinstance(kind, str) or kind not in _KEPT:
        return None
    headers = {key: message.get_header(key) for key in (*_ALWAYS, *_KEPT[kind])}
    if kind == MessageType.RETURN:  # the server says that it could not forward a request
        original = headers[_Head.ORIGINAL_HEADERS]
        target = original.get(_Head.DESTINATION) if isinstance(original, dict) else None
        headers[_Head.ORIGINAL_HEADERS] = {_Head.DESTINATION: target}
        headers[_Head.CHANNEL], headers[_Head.TOPIC] = CHANNEL, TOPICS[-1]
    elif headers[_Head.CHANNEL] != CHANNEL or headers[_Head.TOPIC] not in TOPICS:
        return None
    for key in (_Head.ORIGIN, _Head.DESTINATION):
        if not isinstance(headers[key], str):
            return None
    payload = b"" if kind == MessageType.RETURN else message.payload or b""
    if not isinstance(payload, (bytes, bytearray, memoryview)) or len(payload) > MAX_BYTES:
        return None
    # With this mark FLARE neither offers nor opens a direct connection between two participants.
    headers[_Head.SERVER_TRANSIT_REQUIRED] = True
    return Message({k: v for k, v in headers.items() if v is not None}, bytes(payload))


@dataclass(frozen=True)
class Startup:
    """What a kit's `startup/` folder says about its network: where the server is, and whose kit."""

    folder: Path
    name: str
    """The participant's, as in its certificate."""
    url: str
    identity: str
    """The name in the server's certificate."""
    files: tuple[str, str, str]
    """Private key, certificate and root certificate."""

    @classmethod
    def read(cls, kit: Path, file: str) -> Startup:
        """From the file of that name in a kit; it decides whose kit that is."""
        path = kit / "startup" / file
        try:
            document = json.loads(path.read_text("utf-8"))
            found = _READERS[file](document)
            key, certificate, root = (str(path.parent / name) for name in found.pop("files"))
            if not all(isinstance(value, str) for value in found.values()):
                raise ValueError
        except OSError as error:
            raise InputError(f"{kit} is not such a kit: {path}: {error.strerror}") from None
        except (ValueError, LookupError, TypeError, AttributeError):
            raise InputError(f"{path} is damaged; ask for a fresh kit") from None
        return cls(kit, files=(key, certificate, root), **found)


def _of_site(document: dict[str, Any]) -> dict[str, Any]:
    client, server = document["client"], document["servers"][0]
    return {
        "name": client["fqsn"],
        "url": f"{server['service']['scheme']}://{server['service']['target']}",
        "identity": server["identity"],
        "files": [client[key] for key in ("ssl_private_key", "ssl_cert", "ssl_root_cert")],
    }


def _of_server(document: dict[str, Any]) -> dict[str, Any]:
    server = document["servers"][0]
    host, port = server["service"]["target"].split(":")
    where = "127.0.0.1" if host == "localhost" else "0"  # on all of the machine's addresses
    return {
        "name": host,
        # FLARE lets calibrators in at listeners with this word only.
        "url": f"{server['service']['scheme']}://{where}:{port}?{ADMIN_LISTENER_KEY}=true",
        "identity": host,
        "files": [server[key] for key in ("ssl_private_key", "ssl_cert", "ssl_root_cert")],
    }


def _of_calibrator(document: dict[str, Any]) -> dict[str, Any]:
    admin = document["admin"]
    return {
        "name": admin["username"],
        "url": f"{admin['scheme']}://{admin['host']}:{admin['port']}",
        "identity": admin["server_identity"],
        "files": [admin[key] for key in ("client_key", "client_cert", "ca_cert")],
    }


_READERS = {
    "fed_client.json": _of_site,
    "fed_server.json": _of_server,
    "fed_admin.json": _of_calibrator,
}


def _cell(name: str, startup: Startup) -> CoreCell:
    key, certificate, root = startup.files
    ends = (DriverParams.SERVER_KEY, DriverParams.SERVER_CERT)
    if name != SERVER:
        ends = (DriverParams.CLIENT_KEY, DriverParams.CLIENT_CERT)
    try:
        return CoreCell(
            fqcn=name,
            root_url=startup.url,
            secure=True,
            credentials={
                DriverParams.CA_CERT.value: root,
                ends[0].value: key,
                ends[1].value: certificate,
                DriverParams.CONNECTION_SECURITY.value: "mtls",  # whatever a file says
            },
            create_internal_listener=False,
            auth_identity_map={} if name == SERVER else {SERVER: startup.identity},
        )
    except Exception as error:  # FLARE has many, and all mean this
        raise InputError(
            f"the key and certificates in {startup.folder / 'startup'} cannot be used: {error}"
        ) from None


# --- the three cells ---------------------------------------------------------------------


def site_cell(folder: Path, answer: Callable[[str, bytes], bytes]) -> CoreCell:
    """A site's cell; `answer` gets the topic and the bytes of each request, and returns a reply's."""
    startup = Startup.read(folder, "fed_client.json")

    def passes(peer: str, _: str, message: Message) -> bool:
        request = message.get_header(_Head.MSG_TYPE) == MessageType.REQ
        here = message.get_header(_Head.DESTINATION) == startup.name
        ours = message.get_header(_Head.TOPIC) != "sites"  # which is the server's
        return request and here and ours and peer == SERVER

    def called(message: Message) -> Message:
        reply = answer(message.get_header(_Head.TOPIC), message.payload)
        return Message({_Head.RETURN_CODE: ReturnCode.OK}, reply)

    cell = gated(_cell(startup.name, startup), passes)
    cell.register_request_cb(CHANNEL, "*", called)
    return cell


MayConnect = Callable[[str, str], bool]
"""Whether somebody may take part: by the name and the key in their certificate."""


def server_cell(folder: Path, may_connect: MayConnect = lambda name, key: True) -> CoreCell:
    """The server's: it forwards, and tells calibrators who is connected."""
    startup = Startup.read(folder, "fed_server.json")
    aio_http_driver.MAX_FRAME_SIZE = _MAX_FRAME  # at the other ends it is 4 MiB

    def passes(peer: str, name: str, message: Message) -> bool:
        # `peer` has been held to `name`, the certificate's, by FLARE, or here if a calibrator's.
        to = message.get_header(_Head.DESTINATION)
        if message.get_header(_Head.ORIGIN) != peer or not still(peer, name):
            return False
        if message.get_header(_Head.MSG_TYPE) == MessageType.REQ:
            own = message.get_header(_Head.TOPIC) == "sites"
            whither = to == SERVER if own else to != SERVER and _is_sites(to)
            return is_calibrators(peer) and "@" in name and whither
        if message.get_header(_Head.MSG_TYPE) == MessageType.REPLY:
            return peer == name and _is_sites(name) and is_calibrators(to)
        return False

    def sites(_: Message) -> Message:
        names = sorted(name for name in cell.agents if _is_sites(name) and still(name, name))
        return Message({_Head.RETURN_CODE: ReturnCode.OK}, "\n".join(names).encode())

    def still(peer: str, name: str) -> bool:
        """Whether somebody who was let in may stay: they may have been revoked since."""
        known = cell.communicator.conn_manager.sfm_endpoints.get(peer)
        return may_connect(name, known.endpoint.conn_props.get(_PEER_KEY, "") if known else "")

    cell = gated(_cell(SERVER, startup), passes)
    cell.register_request_cb(CHANNEL, "sites", sites)
    _watch_the_door(cell, may_connect)
    return cell


def _watch_the_door(cell: CoreCell, may_connect: MayConnect) -> None:
    """Let nobody in who is revoked, nor under the name of a calibrator's cell that is another's.

    A newcomer under a name takes the place of whoever had it, and every site that is asked sees
    the name of the calibrator's cell. FLARE lets any certificate have such a name, and any
    connection ever more names, each with whatever it says of itself, which it never forgets.
    """
    manager = cell.communicator.conn_manager
    enter = manager.update_endpoint

    def door(connection: Any, said: dict[str, Any]) -> None:
        facts = connection.conn.get_conn_properties()
        name, key = str(facts.get(DriverParams.PEER_CN.value, "")), _key(connection.conn)
        facts[_PEER_KEY] = key
        wanted = FQCN.normalize(str(said.get(HandshakeKeys.ENDPOINT_NAME)))
        known = manager.sfm_endpoints.get(wanted)
        owner = known.endpoint.conn_props.get(DriverParams.PEER_CN.value) if known else name
        # A site's name FLARE holds to its certificate.
        own = "@" in name and owner == name if is_calibrators(wanted) else _is_sites(wanted)
        if own and connection.sfm_endpoint is None and may_connect(name, key):
            enter(connection, {HandshakeKeys.ENDPOINT_NAME: wanted})
        else:
            connection.conn.close()

    manager.update_endpoint = door  # FLARE calls this for whoever says who they are


def _key(connection: Any) -> str:
    """The fingerprint of the key in the certificate at the other end; empty if it is not shown."""
    with contextlib.suppress(AttributeError, ValueError, TypeError):
        shown = connection.websocket.get_extra_info("ssl_object").getpeercert(True)
        return fingerprint(x509.load_der_x509_certificate(shown).public_key())
    return ""


def calibrator_cell(folder: Path) -> CoreCell:
    """A calibrator's, for one run: it takes replies."""
    startup = Startup.read(folder, "fed_admin.json")
    # A name of its own for each run: two runs of one calibrator do not get each other's replies.
    name = new_admin_client_name()

    def passes(peer: str, _: str, message: Message) -> bool:
        return (
            peer == SERVER
            and message.get_header(_Head.DESTINATION) == name
            and message.get_header(_Head.MSG_TYPE) != MessageType.REQ
        )

    return gated(_cell(name, startup), passes)


def ask(cell: CoreCell, topic: str, site: str, message: bytes, timeout: float) -> bytes | None:
    """What a site replies to a calibrator's message; None if nothing comes, or there is no way."""
    reply = cell.send_request(CHANNEL, topic, site, Message({}, message), timeout, optional=True)
    came = reply.get_header(_Head.RETURN_CODE) == ReturnCode.OK
    return bytes(reply.payload) if came and isinstance(reply.payload, bytes) else None


def _is_sites(cell: str) -> bool:
    return bool(SITE.fullmatch(cell))


def is_calibrators(cell: str) -> bool:
    """A cell's name is a calibrator's: FLARE keeps such names apart from all others."""
    return bool(is_valid_admin_client_name(cell))
