"""The server's jobs and snapshots, below its own workspace.

FLARE wants absolute paths and offers folders in /tmp, which any user of the machine may make
first. A kit does not know where it will lie, but FLARE enters the workspace before it builds its
components, in the server's process and in that of every job.
"""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.impl.job_def_manager import SimpleJobDefManager
from nvflare.app_common.storages.filesystem_storage import FilesystemStorage


class WorkspaceJobs(SimpleJobDefManager):  # type: ignore[misc]  # FLARE has no types
    def __init__(self) -> None:
        super().__init__(uri_root=_own("jobs"))


class WorkspaceSnapshots(FilesystemStorage):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(root_dir=_own("snapshots"), uri_root="/")


def _own(name: str) -> str:
    if not Path("startup", "fed_server.json").is_file():
        raise RuntimeError("the server's storage must be opened from its workspace")
    folder = Path.cwd() / "storage" / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return str(folder)
