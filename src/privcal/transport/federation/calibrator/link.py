"""A calibrator's connection to the server: bytes to many sites, and back what each replies."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType, ReturnCode
from nvflare.fuel.f3.message import Message
from nvflare.fuel.utils.admin_name_utils import new_admin_client_name

from privcal.transport.federation.shared.cells import CHANNEL, SERVER, make_cell
from privcal.transport.federation.shared.kit import MAX_SITES, SITE_NAME, Startup
from privcal.trusted.errors import CalibrationError

RESEND = 30.0
"""Seconds after which a request is sent once more: what carried it may have died. At the site it
is the same request, and costs nothing again."""

GIVEN_UP = 10.0
"""Seconds without a connection after which the server is given up."""

STOP_TIMEOUT = 5.0
"""Seconds for the connection to end; what is left of it then ends with the process."""

_POLL = 0.05


class Link:
    """The connection, between `open` and `close`."""

    def __init__(self, kit: Path) -> None:
        self._kit = kit
        self._cell: Any = None

    def open(self) -> None:
        for library in ("nvflare", "asyncio", "aiohttp"):  # one sentence of ours says it better
            logging.getLogger(library).setLevel(logging.CRITICAL + 1)
        self._cell = calibrator_cell(self._kit)
        try:
            self._cell.start()
            if not self._connected(GIVEN_UP):
                raise CalibrationError(
                    f"the federation's server cannot be reached with {self._kit}", ()
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._cell is not None:
            # In a thread: Ctrl-C breaks off what the main one does, and a cell that is half stopped
            # keeps the process for ever.
            stopper = threading.Thread(target=self._cell.stop, daemon=True)
            stopper.start()
            stopper.join(STOP_TIMEOUT)

    def _connected(self, patience: float) -> bool:
        end = time.monotonic() + patience
        while not self._cell.is_backbone_ready():
            if time.monotonic() > end:
                return False
            time.sleep(_POLL)
        return True

    def sites(self) -> list[str]:
        """The sites that are connected now, as the server says."""
        [(_, text)] = self.ask_all("sites", {SERVER: b""}, 10.0)
        if text is None:
            raise CalibrationError(
                "the server does not say who is connected; it carries nothing for those who are "
                f"revoked, see privcal federation check {self._kit}",
                (),
            )
        return [name for name in text.split("\n") if SITE_NAME.fullmatch(name)][:MAX_SITES]

    def ask_all(
        self, topic: str, messages: dict[str, bytes], timeout: float
    ) -> Iterator[tuple[str, str | None]]:
        """Each site with its reply, in whatever order they come; None from who is not in time."""
        replies: SimpleQueue[tuple[str, str | None]] = SimpleQueue()
        end = time.monotonic() + timeout
        for name, message in messages.items():
            # Daemons: Ctrl-C does not wait for a site.
            threading.Thread(
                target=lambda *given: replies.put((given[1], self._ask(*given))),
                args=(topic, name, message, end),
                daemon=True,
            ).start()
        left = len(messages)
        while left:
            try:
                reply = replies.get(timeout=1.0)
            except Empty:
                if not self._connected(GIVEN_UP):
                    raise CalibrationError(
                        "the federation's server does not answer any more", ()
                    ) from None
                continue
            left -= 1
            yield reply

    def _ask(self, topic: str, site: str, message: bytes, end: float) -> str | None:
        while (left := end - time.monotonic()) > 0:
            reply = ask(self._cell, topic, site, message, min(left, RESEND))
            if reply is not None:
                return reply.decode("utf-8", "replace")
            if topic != "ask" and self._cell.is_backbone_ready():
                return None  # not connected just now
            time.sleep(min(left, 1.0))
        return None


def calibrator_cell(folder: Path) -> CoreCell:
    """A calibrator's cell, for one run: it takes replies alone."""
    startup = Startup.read(folder, "calibrator")
    # A name of its own for each run: two runs of one calibrator do not get each other's replies.
    name = new_admin_client_name()

    def passes(peer: str, _: str, message: Message) -> bool:
        return (
            peer == SERVER
            and message.get_header(MessageHeaderKey.DESTINATION) == name
            and message.get_header(MessageHeaderKey.MSG_TYPE) != MessageType.REQ
        )

    return make_cell(name, startup, passes)


def ask(cell: CoreCell, topic: str, site: str, message: bytes, timeout: float) -> bytes | None:
    """A site's reply to a message; None if nothing comes, or there is no way."""
    reply = cell.send_request(CHANNEL, topic, site, Message({}, message), timeout, optional=True)
    came = reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK
    return bytes(reply.payload) if came and isinstance(reply.payload, bytes) else None
