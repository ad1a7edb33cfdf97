"""The end of a site's one connection: it takes calibrators' requests, from the server alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType, ReturnCode
from nvflare.fuel.f3.message import Message

from privcal.transport.federation.shared.cells import CHANNEL, SERVER, make_cell
from privcal.transport.federation.shared.kit import Startup


def site_cell(folder: Path, answer: Callable[[str, bytes], bytes]) -> CoreCell:
    """A site's cell; `answer` gets the topic and the bytes of each request, and returns a reply's."""
    startup = Startup.read(folder, "site")

    def passes(peer: str, _: str, message: Message) -> bool:
        request = message.get_header(MessageHeaderKey.MSG_TYPE) == MessageType.REQ
        to_us = message.get_header(MessageHeaderKey.DESTINATION) == startup.name
        to_a_site = message.get_header(MessageHeaderKey.TOPIC) != "sites"  # which is the server's
        return request and to_us and to_a_site and peer == SERVER

    def reply(message: Message) -> Message:
        content = answer(message.get_header(MessageHeaderKey.TOPIC), message.payload)
        return Message({MessageHeaderKey.RETURN_CODE: ReturnCode.OK}, content)

    cell = make_cell(startup.name, startup, passes)
    cell.register_request_cb(CHANNEL, "*", reply)
    return cell
