"""What a site runs beside FLARE, so that its doors stay shut whoever is at the other end.

FLARE checks rights at a site only if the server's message asks for it
(`nvflare/private/fed/client/admin.py`, header `require_authz`): a server that leaves the header
out may read any file with the `cat` command, whatever `authorization.json` says. So the rights are
not enough, and `SiteGuard` takes the commands themselves away. `JobGuard` lets in one shape of
job only: signed by a calibrator, no files but two configurations, no class but our executor.

Both are named in a site's own `local/resources.json`, and are built before the site connects, in
the site's process and in that of every job.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.apis.app_validation import AppValidator
from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE
from nvflare.lighter.utils import verify_folder_signature_and_get_signers
from nvflare.private.admin_defs import Message, error_reply
from nvflare.private.defs import RequestHeader
from nvflare.private.fed.client.admin_commands import AdminCommands
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.security.logging import SECURE_LOGGING_VAR_NAME, is_secure

from privcal.federation.names import CALIBRATOR_ROLE, SITE_EXECUTOR

# What a job needs, and nothing else: no shell, no report of the machine, no change of logs, no
# restart, no errors' texts. What a later FLARE adds is not in the list, and so is shut.
KEPT_REQUESTS = frozenset(
    {
        "CheckResourceProcessor",
        "CancelResourceProcessor",
        "DeployProcessor",
        "StartJobProcessor",
        "AbortAppProcessor",
        "AbortTaskProcessor",
        "ClientStatusProcessor",
        "NotifyJobStatusProcessor",
        "DeleteRunNumberProcessor",
    }
)
KEPT_COMMANDS = frozenset({"CheckStatusCommand", "AbortCommand", "AbortTaskCommand", "ByeCommand"})

_JOB = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # a UUID, as the server makes them
_CONFIGURATIONS = {"config/config_fed_client.json", "config/config_fed_server.json"}
_SIGNATURES = {NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE}


class SiteGuard:
    """Takes away commands that no job needs, and keeps exceptions' texts out of messages."""

    def __init__(self) -> None:
        os.environ[SECURE_LOGGING_VAR_NAME] = "true"  # read at each use, inherited by jobs
        # In place: FLARE hands these very lists to its agents, after its components are built.
        _keep(ClientRequestProcessors.request_processors, KEPT_REQUESTS)
        _keep(AdminCommands.commands, KEPT_COMMANDS)
        for handler in ClientRequestProcessors.request_processors:
            handler.process = _for_jobs_only(handler.process)
        if not is_secure():
            raise RuntimeError("this FLARE does not hide the texts of exceptions as it should")


def _keep(handlers: list[Any], names: frozenset[str]) -> None:
    handlers[:] = [handler for handler in handlers if type(handler).__name__ in names]
    if {type(handler).__name__ for handler in handlers} != names:
        raise RuntimeError("this version of FLARE has other commands than this site was closed for")


def _for_jobs_only(process: Callable[[Message, Any], Message]) -> Callable[[Message, Any], Message]:
    """A job's folder lies beside `local/`, `startup/` and perhaps the data, and FLARE takes any
    name for a job's: a server could have those removed, as the run of a job called "local"."""

    def checked(request: Message, context: Any) -> Message:
        job = request.get_header(RequestHeader.JOB_ID)
        if job is not None and not (isinstance(job, str) and _JOB.fullmatch(job)):
            return error_reply("this is not the name of a job")
        return process(request, context)

    return checked


class JobGuard(AppValidator):  # type: ignore[misc]  # FLARE has no types
    """Refuses an app unless it is the one kind of app that this site runs."""

    def validate(self, app_folder: str) -> tuple[str, dict[str, Any]]:
        folder = Path(app_folder)
        return (wrong_with_files(folder) or wrong_with_signers(folder)), {}


def wrong_with_files(folder: Path) -> str:
    """What is wrong with an app's files; nothing: an empty sentence."""
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            return "this site takes no links"
        if path.is_dir() and name != "config":
            return "this site takes no code and no folders with a job"
        if path.is_file() and name not in _CONFIGURATIONS and path.name not in _SIGNATURES:
            return "this site takes no files but a job's two configurations"
    try:
        config = json.loads((folder / "config" / "config_fed_client.json").read_text("utf-8"))
        return wrong_with_config(config)
    except (OSError, ValueError, RecursionError):
        return "the job's configuration for a site is missing or is not JSON"


def wrong_with_config(config: Any) -> str:
    if not isinstance(config, dict):
        return "the job's configuration is not an object"
    optional = {"components", "task_data_filters", "task_result_filters"}
    if (
        not {"format_version", "executors"}
        <= set(config)
        <= {"format_version", "executors"} | optional
    ):
        return "the job's configuration has keys that this site does not take"
    if any(config[key] != [] for key in optional & set(config)):
        return "this site takes no components and no filters from a job"
    executors = config["executors"]
    if not isinstance(executors, list) or len(executors) != 1 or not isinstance(executors[0], dict):
        return "this site takes exactly one executor"
    entry = executors[0]
    if set(entry) != {"tasks", "executor"} or not isinstance(entry["tasks"], list):
        return "an executor is its tasks and its class, for this site"
    if entry["executor"] not in ({"path": SITE_EXECUTOR}, {"path": SITE_EXECUTOR, "args": {}}):
        return f"this site runs {SITE_EXECUTOR} without arguments, and no other class"
    return ""


def wrong_with_signers(folder: Path) -> str:
    """FLARE asks who signed only where code comes along; a site wants a calibrator always."""
    root = folder.resolve().parent.parent / "startup" / "rootCA.pem"  # site / job / app
    who = signers(folder, root)
    if not who:
        return "the job is not signed by anyone whom this site's certificate authority knows"
    if any(role != CALIBRATOR_ROLE for _, _, role in who):
        return "the job is signed by someone who is not a calibrator"
    return "" if len(who) == 1 else "the job is signed by more than one person"


def signers(folder: Path, root_certificate: Path) -> list[tuple[str, str, str]]:
    """Name, organisation and role of those who signed all of a folder; nobody: an empty list."""
    verified, who = verify_folder_signature_and_get_signers(str(folder), str(root_certificate))
    return [(str(n), str(o), str(r)) for n, o, r in who] if verified else []
