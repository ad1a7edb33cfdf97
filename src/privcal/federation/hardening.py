"""What a closed kit says: the files of `local/`, as data, for writing and for checking."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from privcal.federation.names import (
    CALIBRATOR_ROLE,
    JOB_GUARD,
    JOBS,
    RELAY,
    SITE_EXECUTOR,
    SITE_GUARD,
    SNAPSHOTS,
)

ROLES = ("project_admin", "org_admin", "lead", "member")
RIGHTS = (
    "submit_job", "clone_job", "manage_job", "download_job", "view", "operate", "shell_commands",
    "byoc", "server-predeployed-flwr", "app_command",
)  # fmt: skip
# "n:submitter": only whoever submitted the job.
_AT_A_SITE = {"submit_job": "any", "manage_job": "n:submitter"}
_AT_THE_SERVER = {
    "submit_job": "any",
    "manage_job": "n:submitter",
    "download_job": "n:submitter",
    "view": "any",
    "app_command": "n:submitter",  # how a calibrator talks to the relay of their own job
}


def _policy(allowed: dict[str, str]) -> dict[str, Any]:
    nothing = dict.fromkeys(RIGHTS, "none")
    permissions = {role: dict(nothing) for role in ROLES}
    permissions[CALIBRATOR_ROLE].update(allowed)
    return {"format_version": "1.0", "permissions": permissions}


SITE_AUTHORIZATION = _policy(_AT_A_SITE)
SERVER_AUTHORIZATION = _policy(_AT_THE_SERVER)

_COMMON = "nvflare.app_common"
SITE_RESOURCES: dict[str, Any] = {
    "format_version": 2,
    "class_list_enforcement_mode": "enforce",
    "class_allow_list": [SITE_EXECUTOR],
    "allow_log_streaming": False,
    "app_validator": {"path": JOB_GUARD},
    "client": {"retry_timeout": 30, "compression": "Gzip"},
    "components": [
        {"id": "site_guard", "path": SITE_GUARD},  # first: before anything else is built
        {
            "id": "resource_manager",
            "path": f"{_COMMON}.resource_managers.gpu_resource_manager.GPUResourceManager",
            "args": {"num_of_gpus": 0, "mem_per_gpu_in_GiB": 0, "expiration_period": 300},
        },
        {
            "id": "resource_consumer",
            "path": f"{_COMMON}.resource_consumers.gpu_resource_consumer.GPUResourceConsumer",
            "args": {},
        },
        {
            "id": "process_launcher",
            "path": f"{_COMMON}.job_launcher.client_process_launcher.ClientProcessJobLauncher",
            "args": {},
        },
    ],
}
SERVER_RESOURCES: dict[str, Any] = {
    "format_version": 2,
    "class_list_enforcement_mode": "enforce",
    "class_allow_list": [RELAY],
    "servers": [
        {
            "admin_storage": "transfer",
            "max_num_clients": 100,
            "heart_beat_timeout": 600,
            "admin_timeout": 10.0,
        }
    ],
    "snapshot_persistor": {
        "path": f"{_COMMON}.state_persistors.storage_state_persistor.StorageStatePersistor",
        "args": {"uri_root": "/", "storage": {"path": SNAPSHOTS}},
    },
    "components": [
        {
            "id": "job_scheduler",
            "path": f"{_COMMON}.job_schedulers.job_scheduler.DefaultJobScheduler",
            "args": {"max_jobs": 4},
        },
        {"id": "job_manager", "path": JOBS},
        {"id": "job_store", "path": f"{_COMMON}.storages.filesystem_storage.FilesystemStorage"},
        {
            "id": "process_launcher",
            "path": f"{_COMMON}.job_launcher.server_process_launcher.ServerProcessJobLauncher",
            "args": {},
        },
    ],
}


def close_site(kit: Path) -> None:
    _close(kit, SITE_AUTHORIZATION, SITE_RESOURCES)


def close_server(kit: Path) -> None:
    _close(kit, SERVER_AUTHORIZATION, SERVER_RESOURCES)


def _close(kit: Path, authorization: dict[str, Any], resources: dict[str, Any]) -> None:
    local = kit / "local"
    # The defaults too: FLARE falls back to them in silence where the file is lost, and where
    # authorization.json and its default are both lost it allows everything.
    for end in ("", ".default"):
        write_json(local / f"authorization.json{end}", authorization)
        write_json(local / f"resources.json{end}", resources)
    (local / "privacy.json.sample").unlink(missing_ok=True)  # filters of another kind of work
    close_folders(kit)


def close_folders(kit: Path) -> None:
    """A kit is its owner's alone: keys, and what decides over them."""
    for path in (kit, *kit.rglob("*")):
        mode = path.stat().st_mode
        os.chmod(path, 0o700 if path.is_dir() or mode & 0o100 else 0o600)


def write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
