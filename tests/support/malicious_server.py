"""A server whose operator is the attacker: FLARE's own, without any of privcal's, and a plan.

It has the server's certificate and key, so every site connects to it. Then it says to each what a server can say, writes down what it heard, and goes on running until it is killed.

    python -m tests.support.malicious_server KITS FOLDER SECONDS

FOLDER is its own, with the archives `good.zip` and `evil.zip` for a race of so many seconds, whose
`marker` must not appear there; `heard.json` does, when it has said everything.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import shutil
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from nvflare.private.defs import CellMessageHeaderKeys, RequestHeader, new_cell_message
from nvflare.private.fed.app.server import server_train
from nvflare.private.fed.server.fed_server import FederatedServer

from tests.support.attacker import (
    NET,
    NET_TOPICS,
    NOTHING,
    SECONDS,
    Heard,
    command,
    race,
)

HEARD = "heard.json"
MARKER = "marker"
_COMMON = "nvflare.app_common"
_RESOURCES = {
    "format_version": 2,
    "servers": [{"admin_storage": "transfer", "max_num_clients": 100, "heart_beat_timeout": 600}],
    "snapshot_persistor": {
        "path": f"{_COMMON}.state_persistors.storage_state_persistor.StorageStatePersistor",
        "args": {
            "uri_root": "/",
            "storage": {
                "path": f"{_COMMON}.storages.filesystem_storage.FilesystemStorage",
                "args": {"root_dir": "SNAPSHOTS", "uri_root": "/"},
            },
        },
    },
    "components": [
        {
            "id": "job_scheduler",
            "path": f"{_COMMON}.job_schedulers.job_scheduler.DefaultJobScheduler",
            "args": {"max_jobs": 4},
        },
        {
            "id": "job_manager",
            "path": "nvflare.apis.impl.job_def_manager.SimpleJobDefManager",
            "args": {"uri_root": "JOBS", "job_store_id": "job_store"},
        },
        {"id": "job_store", "path": f"{_COMMON}.storages.filesystem_storage.FilesystemStorage"},
        {
            "id": "process_launcher",
            "path": f"{_COMMON}.job_launcher.server_process_launcher.ServerProcessJobLauncher",
        },
    ],
}


def main(kits: Path, folder: Path, seconds: float) -> None:
    project = json.loads((kits / "federation.json").read_text("utf-8"))
    shutil.copytree(kits / project["server"]["host"] / "startup", folder / "startup")
    (folder / "local").mkdir()
    (folder / "jobs").mkdir()
    (folder / "snapshots").mkdir()
    text = json.dumps(_RESOURCES)
    text = text.replace("SNAPSHOTS", str(folder / "snapshots")).replace(
        "JOBS", str(folder / "jobs")
    )
    (folder / "local" / "resources.json").write_text(text)
    rights = {"format_version": "1.0", "permissions": {"lead": "any"}}
    (folder / "local" / "authorization.json").write_text(json.dumps(rights))
    logs = {
        "version": 1,
        "handlers": {"console": {"class": "logging.StreamHandler"}},
        "root": {"level": "INFO", "handlers": ["console"]},
    }
    (folder / "local" / "log_config.json").write_text(json.dumps(logs))
    sites = [site["name"] for site in project["sites"]]
    _lie_in_heartbeats()
    threading.Thread(target=_attack, args=(folder, sites, seconds), daemon=True).start()
    os.chdir(folder)
    sys.argv = [
        *("server_train", "-m", str(folder), "-s", "fed_server.json"),
        *("--set", "secure_train=true", "org=server", "config_folder=config"),
    ]
    args = server_train.parse_arguments()
    server_train.mpm.run(main_func=server_train.main, run_dir=args.workspace, args=args)


_servers: list[FederatedServer] = []


def _lie_in_heartbeats() -> None:
    """Every heartbeat's reply asks to abort "jobs" whose names are those of folders."""
    honest = FederatedServer.client_heartbeat
    registering = FederatedServer._register_cellnet_cbs

    def heartbeat(self: FederatedServer, request: Any) -> Any:
        reply = honest(self, request)
        reply.set_header(CellMessageHeaderKeys.ABORT_JOBS, ["local", "../..", str(uuid.uuid4())])
        return reply

    def register(self: FederatedServer) -> None:
        registering(self)
        _servers.append(self)

    FederatedServer.client_heartbeat = heartbeat
    FederatedServer._register_cellnet_cbs = register


def _attack(folder: Path, sites: list[str], seconds: float) -> None:
    while not _servers or not set(sites) <= set(_servers[0].cell.core_cell.agents):
        time.sleep(0.2)
    cell = _servers[0].cell

    def send(site: str, channel: str, topic: str, payload: Any, timeout: float = SECONDS) -> Heard:
        try:
            reply = cell.core_cell.send_request(
                channel, topic, site, new_cell_message({}, payload), timeout, optional=True
            )
        except Exception as error:
            return Heard(f"not sent ({type(error).__name__})", None)
        if reply is None:
            return NOTHING
        code = str(reply.get_header(MessageHeaderKey.RETURN_CODE))
        return Heard(code, reply.payload or reply.get_header(MessageHeaderKey.ERROR))

    def say(site: str, request: tuple[str, dict[str, Any], Any], timeout: float) -> Heard:
        return send(site, CellChannel.CLIENT_MAIN, request[0], command(*request), timeout)

    plan: list[tuple[str, str, Any]] = [
        *((CellChannel.CLIENT_MAIN, t, command(t, None, body)) for t, body in COMMANDS.items()),
        *((NET, topic, {"mode": "count", "pool": "msg_travel"}) for topic in NET_TOPICS),
        *(
            (CellChannel.CLIENT_MAIN, t, command(t, {RequestHeader.JOB_ID: str(uuid.uuid4())}))
            for t in ("train.delete_run", "train.abort", "train.abort_task")
        ),
        (CellChannel.AUX_COMMUNICATION, "fed.event", Shareable()),
        *((channel, "x", odd) for channel in CHANNELS for odd in ODD),
    ]
    heard: dict[str, dict[str, str]] = {site: {} for site in sites}

    def say_all(plan: list[tuple[str, str, Any]]) -> None:
        with concurrent.futures.ThreadPoolExecutor(len(sites) * len(plan)) as at_once:
            waiting = [
                (site, f"{n} {asked[0]} {asked[1]}", at_once.submit(send, site, *asked))
                for site in sites
                for n, asked in enumerate(plan)
            ]
            for site, what, reply in waiting:
                heard[site][what] = reply.result().text

    say_all(plan)
    good, evil = (folder / "good.zip").read_bytes(), (folder / "evil.zip").read_bytes()
    replies = race(say, sites[0], good, evil, folder / MARKER, seconds=seconds)
    heard[sites[0]]["race"] = " | ".join(reply.text for reply in replies)
    # Last: whoever obeys is gone.
    say_all([(NET, "change_root", "http://localhost:1"), (NET, "stop_cell", None)])
    (folder / f"{HEARD}.part").write_text(json.dumps(heard))
    (folder / f"{HEARD}.part").rename(folder / HEARD)


COMMANDS: dict[str, Any] = {
    "sys.shell": "cat local/privcal.toml",
    "sys.info": "",
    "sys.report_env": "",
    "sys.report_version": "",
    "sys.configure_site_log": "DEBUG",
    "resource_manager.report_resources": "",
    "train.check_status": "",
    "train.get_scopes": "",
    "info.show_stats": "",
    "info.show_errors": "",
    "comp_caller.call": "",
    "control.do_command": "",
    "train.shutdown": "",
    "train.restart": "",
}
CHANNELS = ("privcal", CellChannel.CLIENT_MAIN, CellChannel.CLIENT_COMMAND, "task", "nobody's")
ODD: tuple[Any, ...] = (
    None,
    b"",
    b"{",
    "text",
    {"a": [1, 2.5, None]},
    Shareable(),
    {1, 2},
    (1, 2),
    b"\0" * 3_000_000,
    [[]] * 1000,
)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), float(sys.argv[3]))
