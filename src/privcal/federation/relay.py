"""What runs on the server: it carries messages between the calibrator and the sites.

It reads none of them and computes nothing. Questions come from the calibrator as commands to the
running job; replies are kept until the calibrator fetches them.
"""

from __future__ import annotations

import queue
import time
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from privcal.federation.messages import MAX_MESSAGE, MAX_REPLY
from privcal.federation.names import TASK

IDLE = 3600.0
"""Seconds without a word from the calibrator after which the job ends."""


class Relay(Controller):  # type: ignore[misc]
    def start_controller(self, fl_ctx: FLContext) -> None:
        self._asked: queue.Queue[tuple[int, str, list[str], int]] = queue.Queue()
        self._kept: dict[int, dict[str, str]] = {}
        self._over = False
        self._heard = time.monotonic()
        engine = fl_ctx.get_engine()
        for name in ("sites", "ask", "replies", "end"):
            engine.register_app_command(f"privcal.{name}", getattr(self, f"_{name}"))

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        while not (self._over or abort_signal.triggered):
            if time.monotonic() - self._heard > IDLE:
                return
            try:
                ticket, message, sites, timeout = self._asked.get(timeout=0.1)
            except queue.Empty:
                continue
            data = Shareable()
            data["message"] = message
            task = Task(
                TASK,
                data,
                timeout=timeout,
                result_received_cb=self._received,
                props={"ticket": ticket},
            )
            self.broadcast(task, fl_ctx, targets=sites, min_responses=len(sites))

    def stop_controller(self, fl_ctx: FLContext) -> None:
        self._over = True

    def process_result_of_unknown_task(
        self,
        client: Client,
        task_name: str,
        client_task_id: str,
        result: Shareable,
        fl_ctx: FLContext,
    ) -> None:
        """Too late: the calibrator has gone on without it."""

    def _received(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        result = client_task.result
        reply = result.get("reply") if isinstance(result, Shareable) else None
        if result is None or result.get_return_code() != ReturnCode.OK:
            reply = None
        if not isinstance(reply, str) or len(reply) > MAX_REPLY:
            reply = ""
        replies = self._kept.setdefault(client_task.task.props["ticket"], {})
        replies.setdefault(client_task.client.name, reply)
        client_task.result = None

    # --- commands of the calibrator -------------------------------------------------------

    def _sites(self, topic: str, data: Any, fl_ctx: FLContext) -> dict[str, Any]:
        self._heard = time.monotonic()
        return {"sites": sorted(c.name for c in fl_ctx.get_engine().get_clients())}

    def _ask(self, topic: str, data: Any, fl_ctx: FLContext) -> dict[str, Any]:
        self._heard = time.monotonic()
        message, sites = data["message"], data["sites"]
        if not isinstance(message, str) or len(message) > MAX_MESSAGE:
            return {"error": "a message must be a text that is not too long"}
        ticket = len(self._kept)
        self._kept[ticket] = {}
        self._asked.put((ticket, message, [str(s) for s in sites], int(data["timeout"])))
        return {"ticket": ticket}

    def _replies(self, topic: str, data: Any, fl_ctx: FLContext) -> dict[str, Any]:
        self._heard = time.monotonic()
        return {"replies": dict(self._kept.get(data["ticket"], {}))}

    def _end(self, topic: str, data: Any, fl_ctx: FLContext) -> dict[str, Any]:
        self._over = True
        return {"ended": True}
