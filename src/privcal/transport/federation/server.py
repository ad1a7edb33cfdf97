"""What runs at the server: one process that carries messages, with a certificate and no data.

It forwards a calibrator's request to a site and the site's reply back, and tells calibrators who is
connected. It has no key that opens a reply, takes no command, and keeps nothing. At its door nobody
comes in who is revoked, or under the name of another calibrator's cell.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography import x509
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.identity import ADMIN_LISTENER_KEY
from nvflare.fuel.f3.drivers import aio_http_driver
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.constants import HandshakeKeys
from nvflare.fuel.utils.admin_name_utils import is_valid_admin_client_name

from privcal.transport.federation.shared import revocations
from privcal.transport.federation.shared.cells import CHANNEL, MAX_BYTES, SERVER, make_cell
from privcal.transport.federation.shared.certificates import fingerprint
from privcal.transport.federation.shared.kit import SITE_NAME, Startup
from privcal.transport.federation.shared.process import READY, main, run_until_stopped
from privcal.trusted.errors import InputError

MAX_FRAME = 2 * MAX_BYTES
"""The size of what a message travels in. FLARE's server takes 2 GiB, packed even smaller, from
anybody with a certificate, and has it in memory several times before it looks who that is."""

_PEER_KEY = "privcal_peer_key"
"""A property of a connection beside FLARE's own: the key in the certificate at its other end."""

MayConnect = Callable[[str, str], bool]
"""Whether somebody may take part: by the name and the key in their certificate."""


def run(folder: Path) -> None:
    """Be the server, in the foreground, until stopped."""
    folder = folder.resolve()
    _check_port(Startup.read(folder, "server").url)
    printed: set[str] = set()

    def may_connect(name: str, key: str) -> bool:
        try:
            return not revocations.load(folder).refuses(name, key)
        except InputError as error:  # nobody can be told from the revoked; printed once
            if str(error) not in printed:
                print(error, flush=True)
            printed.add(str(error))
            return False

    run_until_stopped(server_cell(folder, may_connect), lambda: print(READY["server"], flush=True))


def _check_port(url: str) -> None:
    """InputError where the port is taken: FLARE would try for ever, and the server seem to be up."""
    address = urlsplit(_listening(url))
    host = "" if address.hostname == "0" else str(address.hostname)
    with socket.socket() as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((host, int(address.port or 0)))
        except OSError as error:
            raise InputError(
                f"the server cannot listen on port {address.port}: {error.strerror}; stop what "
                "uses it"
            ) from None


def _listening(url: str) -> str:
    """The address to listen on: all of the machine's, or its loopback where it is "localhost"."""
    address = urlsplit(url)
    host = "127.0.0.1" if address.hostname == "localhost" else "0"
    # FLARE lets calibrators in at listeners with this word only.
    return f"{address.scheme}://{host}:{address.port}?{ADMIN_LISTENER_KEY}=true"


def server_cell(folder: Path, may_connect: MayConnect = lambda name, key: True) -> CoreCell:
    """The server's cell, behind its gate and its door."""
    startup = Startup.read(folder, "server")
    aio_http_driver.MAX_FRAME_SIZE = MAX_FRAME  # at the other ends it is 4 MiB

    def passes(peer: str, name: str, message: Message) -> bool:
        # `peer` has been held to `name`, the certificate's, by FLARE, or here if a calibrator's.
        to = message.get_header(MessageHeaderKey.DESTINATION)
        if message.get_header(MessageHeaderKey.ORIGIN) != peer or not may_stay(peer, name):
            return False
        if message.get_header(MessageHeaderKey.MSG_TYPE) == MessageType.REQ:
            for_server = message.get_header(MessageHeaderKey.TOPIC) == "sites"
            allowed = to == SERVER if for_server else to != SERVER and _is_site_cell(to)
            return is_calibrator_cell(peer) and "@" in name and allowed
        if message.get_header(MessageHeaderKey.MSG_TYPE) == MessageType.REPLY:
            return peer == name and _is_site_cell(name) and is_calibrator_cell(to)
        return False

    def connected_sites(_: Message) -> Message:
        names = sorted(name for name in cell.agents if _is_site_cell(name) and may_stay(name, name))
        return Message({MessageHeaderKey.RETURN_CODE: ReturnCode.OK}, "\n".join(names).encode())

    def may_stay(peer: str, name: str) -> bool:
        """Whether somebody who was let in may stay: they may have been revoked since."""
        known = cell.communicator.conn_manager.sfm_endpoints.get(peer)
        return may_connect(name, known.endpoint.conn_props.get(_PEER_KEY, "") if known else "")

    cell = make_cell(SERVER, replace(startup, url=_listening(startup.url)), passes)
    cell.register_request_cb(CHANNEL, "sites", connected_sites)
    _watch_the_door(cell, may_connect)
    return cell


def _watch_the_door(cell: CoreCell, may_connect: MayConnect) -> None:
    """Let nobody in who is revoked, nor under the name of a calibrator's cell that is another's.

    A newcomer under a name pushes out whoever had it, and every site that is asked sees the name of
    the calibrator's cell. FLARE lets any certificate have such a name, and any connection ever more
    names, each with whatever it says of itself, which it never forgets.
    """
    manager = cell.communicator.conn_manager
    enter = manager.update_endpoint

    def door(connection: Any, handshake: dict[str, Any]) -> None:
        properties = connection.conn.get_conn_properties()
        name, key = str(properties.get(DriverParams.PEER_CN.value, "")), _key(connection.conn)
        properties[_PEER_KEY] = key
        wanted = FQCN.normalize(str(handshake.get(HandshakeKeys.ENDPOINT_NAME)))
        known = manager.sfm_endpoints.get(wanted)
        owner = known.endpoint.conn_props.get(DriverParams.PEER_CN.value) if known else name
        # A site's name FLARE holds to its certificate.
        own = "@" in name and owner == name if is_calibrator_cell(wanted) else _is_site_cell(wanted)
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


def is_calibrator_cell(name: str) -> bool:
    """Whether a cell's name is a calibrator's: FLARE keeps such names apart from all others."""
    return bool(is_valid_admin_client_name(name))


def _is_site_cell(name: str) -> bool:
    return bool(SITE_NAME.fullmatch(name))


if __name__ == "__main__":
    main(run)
