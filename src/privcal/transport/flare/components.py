"""The two components of a job that carries letters, which FLARE finds installed at every party.

The controller, at the server, asks each client for the ID of its site, gives it the letters for
that ID, and puts what comes back into the job's result, in the layout of a mailbox. The executor, at
a client, hands letters to the site behind a local socket. Neither has a key, and both are trusted
with nothing: a letter is sealed, and what a client says of its site decides only which sealed
letters it is given. Two clients that say one ID are both given them.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from privcal.data.files import write_document
from privcal.transport.flare.job import BOX, HELLO, MET, WAIT, letters_for
from privcal.transport.letter import ID, Letter
from privcal.transport.mailbox import FolderBox
from privcal.transport.wire import Caller

SOCKET = "PRIVCAL_SOCKET"
"""The variable of the client's environment that has the path of the site's socket. No job names a path."""
SAY = 5.0
"""Seconds for a site to say who it is."""
AT_ONCE = 8
"""Letters that an executor has at its site at one time."""


class LetterController(Controller):  # type: ignore[misc]  # FLARE has no types
    """The server's side: every site gets its letters once, and is waited for `wait` seconds."""

    def __init__(self, wait: float = WAIT) -> None:
        super().__init__()
        self._wait = float(wait)
        self._met: dict[str, str] = {}

    def start_controller(self, fl_ctx: FLContext) -> None:
        workspace = fl_ctx.get_engine().get_workspace()
        self._letters = Path(fl_ctx.get_prop(FLContextKey.APP_ROOT), BOX)
        self._result = Path(workspace.get_result_root(fl_ctx.get_job_id()))
        (self._result / BOX).mkdir(parents=True, exist_ok=True)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        for client in fl_ctx.get_engine().get_clients():
            self._met[client.name] = "silent"
            self._send("hello", client.name, Shareable(), HELLO, self._hello, fl_ctx)
        while self.get_num_standing_tasks() and not abort_signal.triggered:
            time.sleep(0.1)
        write_document(self._result / BOX / MET, self._met)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        self.cancel_all_tasks()

    def process_result_of_unknown_task(self, *args: Any, **more: Any) -> None:
        """Drop what comes too late: the site keeps its answer for the next job."""

    def _send(
        self, name: str, client: str, data: Shareable, wait: float, answered: Any, fl_ctx: FLContext
    ) -> None:
        task = Task(name, data, timeout=int(wait) + 1, result_received_cb=answered)
        self.send(task, fl_ctx, targets=[client])

    # FLARE calls both by keyword; an exception in one is logged, and the job goes on.

    def _hello(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        result, name = client_task.result, client_task.client.name
        ids = [result.get("id"), result.get("federation")]
        if not all(isinstance(value, str) and ID.fullmatch(value) for value in ids):
            self._met[name] = "no site"
            return
        self._met[name] = ids[0]
        letters = letters_for(self._letters, *reversed(ids))
        if letters:
            data = Shareable({"letters": letters, "wait": self._wait, "federation": ids[1]})
            self._send("letters", name, data, self._wait + 5, self._answers, fl_ctx)

    def _answers(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        task = client_task.task
        replies = client_task.result.get("replies")
        if not isinstance(replies, Mapping):
            return
        box = FolderBox(self._result / BOX, task.data["federation"])
        for asking in task.data["letters"]:
            # What a site says is put among the letters only if it is one, under its own name.
            with suppress(ValueError, TypeError, AttributeError):
                reply = Letter.read(replies[asking])
                box.put(reply.sender, reply.name, reply.content)


class LetterExecutor(Executor):  # type: ignore[misc]
    """A client's side: what it is given goes to the site's socket, and the site's answers back."""

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        told, replies = dict[str, str](), dict[str, bytes]()
        letters: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
        for letter in shareable.get("letters", {}).items():
            letters.put(letter)

        def tell() -> None:
            site = Caller(os.environ[SOCKET])
            told.update(id=site.id, federation=site.federation)
            while True:
                name, content = letters.get_nowait()
                with suppress(OSError):
                    replies[name] = site.take(content) or b""

        _together([tell] * min(AT_ONCE, max(1, letters.qsize())), shareable.get("wait", SAY))
        return Shareable({**told, "replies": {**replies}})  # late ones stay at the site


def _together(works: Sequence[Callable[[], None]], seconds: float) -> None:
    """Do all this at once, and go on after some seconds; what fails is left undone."""

    def do(work: Callable[[], None]) -> None:
        with suppress(OSError, KeyError, queue.Empty):
            work()

    # Daemons: a site that never answers keeps no job's process from ending.
    threads = [threading.Thread(target=do, args=(work,), daemon=True) for work in works]
    end = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
