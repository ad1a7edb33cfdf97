"""The network of a federation: cells of NVIDIA FLARE, with every door shut but one.

A site, the server and a calibrator each have one cell: a named end of connections with mutual TLS,
where FLARE itself holds a site's name to the one in its certificate. FLARE's applications are not
run, neither a site's nor a server's: no jobs, no commands, no streams, no introspection. And what
a cell would do by itself with a message (decode objects, open further connections, take commands)
it does not get to do: each message passes a gate first, which looks at its headers (a msgpack
table, which FLARE has read), knows three kinds and drops all others, before a byte of the payload
is decoded. Which of these pass is a rule of each party: in `site.cell`, `server`, `calibrator.link`.

| at | passes |
|---|---|
| a site | a calibrator's request, from the server |
| the server | a request from a calibrator to a site, and a site's reply; for itself a calibrator's question who is connected |
| a calibrator | replies to what it asked |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.message import Message

from privcal.transport.federation.shared.kit import Startup
from privcal.trusted.errors import InputError

CHANNEL = "privcal"
TOPICS = ("sites", "card", "ask")
SERVER: str = FQCN.ROOT_SERVER
"""The name of every server's cell."""
MAX_BYTES = 1 << 21
"""The size of a message: as much as a request or a reply may have (`shared.messages`)."""

_Head = MessageHeaderKey
# What FLARE needs to carry a message and to bring its reply back. Any other header is taken off:
# it could say how to decode the payload, or where else to connect.
_KEPT_HEADERS = {
    MessageType.REQ: (_Head.REQ_ID, _Head.REPLY_EXPECTED),
    MessageType.REPLY: (_Head.REQ_ID, _Head.RETURN_CODE),
    MessageType.RETURN: (_Head.REQ_ID, _Head.RETURN_CODE, _Head.ORIGINAL_HEADERS),
}
_HEADERS = (_Head.MSG_TYPE, _Head.CHANNEL, _Head.TOPIC, _Head.ORIGIN, _Head.DESTINATION)

Passes = Callable[[str, str, Message], bool]
"""Whether a message passes: by the peer's cell, the name in its certificate, and its headers."""


def make_cell(name: str, startup: Startup, passes: Passes) -> CoreCell:
    """A participant's cell, not yet started, which takes only what passes."""
    cell = _ungated(name, startup)
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
    if not isinstance(kind, str) or kind not in _KEPT_HEADERS:
        return None
    headers = {key: message.get_header(key) for key in (*_HEADERS, *_KEPT_HEADERS[kind])}
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


def _ungated(name: str, startup: Startup) -> CoreCell:
    own = (DriverParams.SERVER_KEY, DriverParams.SERVER_CERT)
    if name != SERVER:
        own = (DriverParams.CLIENT_KEY, DriverParams.CLIENT_CERT)
    try:
        return CoreCell(
            fqcn=name,
            root_url=startup.url,
            secure=True,
            credentials={
                DriverParams.CA_CERT.value: startup.root,
                own[0].value: startup.key,
                own[1].value: startup.certificate,
                DriverParams.CONNECTION_SECURITY.value: "mtls",  # whatever a file says
            },
            create_internal_listener=False,
            auth_identity_map={} if name == SERVER else {SERVER: startup.server},
        )
    except Exception as error:  # FLARE has many, and all mean this
        raise InputError(
            f"the key and certificates in {startup.kit / 'startup'} cannot be used: {error}"
        ) from None
