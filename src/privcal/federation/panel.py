"""The calibrator's way to the sites: a FLARE job that carries signed questions to them."""

from __future__ import annotations

import contextlib
import io
import json
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privcal.calibrate import Question
from privcal.campaign import Unusable
from privcal.errors import CalibrationError, InputError, Refused
from privcal.federation.messages import Signer, read_reply
from privcal.federation.names import RELAY, SITE_EXECUTOR, TASK
from privcal.privacy.epsilon import NANO
from privcal.privacy.ledger import Key
from privcal.queries import GRID
from privcal.source import Answer

TIMEOUT = 120
"""Seconds a site has for one reply. A reply that comes later is paid for all the same: the next
attempt at the same campaign gets it."""

BEYOND = 1e-9
"""An honest answer is taken for a lie with at most this probability."""

_POLL, _PATIENCE = 0.1, 10.0
"""Seconds between two looks for replies, and until the server is given up."""


class Sites:
    """The sites of a federation, as a panel; a context manager, because a job runs meanwhile."""

    rows_per_person: int

    def __init__(
        self,
        kit: str | Path,
        *,
        rows_per_person: int = 1,
        max_rows: int | None = None,
        timeout: int = TIMEOUT,
        wait: float = 60.0,
    ) -> None:
        self.kit = Path(kit)
        if not (self.kit / "startup" / "fed_admin.json").is_file():
            raise InputError(f"{kit} is not a calibrator's start-up kit")
        self._signer = Signer.of_kit(self.kit / "startup")
        self.asker = self._signer.name
        self.rows_per_person, self.max_rows = rows_per_person, max_rows
        self._timeout, self._wait = timeout, wait
        self.names: Sequence[str] = ()
        self.travelled = 0
        """Characters of questions and replies so far."""
        self._session: Any = None
        self._job = ""

    def __enter__(self) -> Sites:
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        try:
            with contextlib.redirect_stdout(io.StringIO()):
                self._session = new_secure_session(self.asker, str(self.kit), timeout=10.0)
        except Exception as error:
            raise CalibrationError(
                f"the federation's server cannot be reached with {self.kit} ({error})", ()
            ) from None
        try:
            with tempfile.TemporaryDirectory() as folder:
                self._job = self._session.submit_job(str(job_folder(Path(folder))))
            self.names = self._sites()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *problem: object) -> None:
        with contextlib.suppress(Exception):
            self._command("end", {})
        with contextlib.suppress(Exception):
            self._session.close()

    def _sites(self) -> list[str]:
        """The sites that run the job, once it runs and their number is settled."""
        deadline = time.monotonic() + self._wait
        seen: list[str] = []
        while time.monotonic() < deadline:
            time.sleep(0.5)
            try:
                found = [str(name) for name in self._command("sites", {})["sites"]]
            except Exception:
                status = str(self._session.get_job_status(self._job))
                if status.startswith(("FINISHED", "ABORTED", "ABANDONED", "FAILED")):
                    raise InputError(
                        f"the job that asks the sites did not run ({status})"
                    ) from None
                continue
            if found and found == seen:
                return found
            seen = found
        raise CalibrationError("no site of the federation took the job", ())

    def hold(self) -> None:
        """Distant sites answer whoever may ask."""

    def release(self) -> None:
        """Nothing is held."""

    def refusals(self, questions: Sequence[Question]) -> dict[str, str]:
        """Nothing is known of distant sites before they are asked."""
        return {}

    def ask(
        self, names: Sequence[str], question: Question
    ) -> Iterator[tuple[str, Answer | Exception]]:
        message = self._signer.sign(question)
        self.travelled += len(message) * len(names)
        request = {"message": message, "sites": list(names), "timeout": self._timeout}
        ticket = self._insist("ask", request)["ticket"]
        left = list(names)
        deadline = time.monotonic() + self._timeout + 5
        while left and time.monotonic() < deadline:
            time.sleep(_POLL)
            replies = self._insist("replies", {"ticket": ticket})["replies"]
            for name in [n for n in left if n in replies]:
                left.remove(name)
                self.travelled += len(replies[name])
                yield name, self._answer(replies[name], question)
        for name in left:
            yield name, Unusable("late")

    def _answer(self, text: str, question: Question) -> Answer | Exception:
        """A reply is never trusted: whatever is odd about it, it is not used, with a reason."""
        if not text:
            return Unusable("failed")
        try:
            reply = read_reply(text, question.query.length)
        except ValueError as error:
            return Unusable(str(error))
        if reply.refused:
            return Refused(reply.refused)
        if reply.rows_per_person != self.rows_per_person:
            return Unusable(f"counts {reply.rows_per_person} rows of a person")
        bounds = [n for n in (reply.max_rows, self.max_rows) if n is not None]
        if bounds and beyond(reply.values, min(bounds), reply.rows_per_person, question):
            return Unusable("beyond what its rows and the noise can give")
        key = Key.parse(self.asker, question.request_id)
        return Answer(
            np.array(reply.values, np.float64) / GRID, question.nano_epsilon, key, reply.ledger
        )

    def _insist(self, name: str, data: dict[str, Any]) -> dict[str, Any]:
        """A command that must not fail for long. (Asking twice costs no site anything.)"""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return self._command(name, data)
            except Exception as error:
                if time.monotonic() > deadline:
                    raise CalibrationError(
                        f"the federation's server does not answer any more ({error})", ()
                    ) from None
            time.sleep(_POLL)

    def _command(self, name: str, data: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self._session.do_app_command(self._job, f"privcal.{name}", data)
        return found


def beyond(values: Sequence[int], max_rows: int, rows_per_person: int, question: Question) -> bool:
    """Whether no honest site of so many rows answers this, but with probability `BEYOND`.

    The exact sums of n rows are at most n bounds in L1. Each number's noise is at most t with
    probability above 1 − 2 exp(−tε/Δ), so for k numbers t = Δ/ε · log(2k / BEYOND) is exceeded
    by any of them with probability below `BEYOND`.
    """
    bound = question.query.bound
    scale = rows_per_person * bound * NANO / question.nano_epsilon
    noise = scale * math.log(2 * len(values) / BEYOND)
    return sum(max(0.0, abs(v) - noise) for v in values) > max_rows * bound


def job_folder(folder: Path) -> Path:
    """The job: our relay on the server, our executor at the sites, and nothing else.

    It is written by hand because FLARE's own job builder copies source code into a job, which
    these sites refuse.
    """
    job = folder / "privcal-campaign"
    config = job / "app" / "config"
    config.mkdir(parents=True)
    files = {
        job / "meta.json": {
            "name": "privcal-campaign",
            "resource_spec": {},
            "min_clients": 1,
            "deploy_map": {"app": ["@ALL"]},
        },
        config / "config_fed_server.json": {
            "format_version": 2,
            "server": {"task_request_interval": 0.2},
            "workflows": [{"id": "relay", "path": RELAY, "args": {}}],
            "components": [],
        },
        config / "config_fed_client.json": {
            "format_version": 2,
            "executors": [{"tasks": [TASK], "executor": {"path": SITE_EXECUTOR, "args": {}}}],
            "components": [],
        },
    }
    for path, content in files.items():
        path.write_text(json.dumps(content, indent=2), encoding="utf-8")
    return job
