"""What a kit holds when it is closed: who somebody is and where the server is, and nothing to run.

FLARE's provisioner makes kits for FLARE's own client and server, which take jobs and commands:
start scripts, rights, components, settings for logs. None of that is used here, and what is not
there cannot be opened by changing it, nor started by mistake.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

KINDS = {"fed_client.json": "site", "fed_server.json": "server", "fed_admin.json": "calibrator"}
STARTUP = {
    "site": {"fed_client.json", "client.crt", "client.key", "rootCA.pem"},
    "server": {"fed_server.json", "server.crt", "server.key", "rootCA.pem"},
    "calibrator": {"fed_admin.json", "client.crt", "client.key", "rootCA.pem"},
}
_NEXT = {
    "site": """\
1. privcal federation check {kit}
2. privcal site init {kit} --data scores.parquet --person patient_id --epsilon 2
3. privcal site run {kit}        (or the unit or image in deploy/)
4. privcal site roster accept {kit} roster.json, when the calibrator has sent it; compare its digest
""",
    "server": """\
1. privcal federation check {kit}
2. privcal federation serve {kit}        (or the unit or image in deploy/)
""",
    "calibrator": """\
1. privcal federation check {kit}
2. privcal federation roster {kit}, when the sites run; compare its digest with their owners
3. privcal calibrate --federation {kit} --model v3 --epsilon 1 --out map.json
""",
}
_README = """\
The start-up kit of {name}, {kind}. Whoever has this folder is {name}: keep it private.

{next}"""


def close_kit(kit: Path) -> None:
    """Leave in a kit what its kind needs, its owner's alone."""
    [kind] = [kind for name, kind in KINDS.items() if (kit / "startup" / name).is_file()]
    for path in kit.iterdir():
        if path.name != "startup":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in (kit / "startup").iterdir():
        if path.name not in STARTUP[kind]:
            path.unlink()
    (kit / "local").mkdir()
    what = {"site": "a site", "server": "the server", "calibrator": "a calibrator"}[kind]
    steps = _NEXT[kind].format(kit=kit.name)
    (kit / "README.txt").write_text(_README.format(name=kit.name, kind=what, next=steps), "utf-8")
    close_folders(kit)


def close_folders(kit: Path) -> None:
    """A kit is its owner's alone: keys, and what decides over them."""
    for path in (kit, *kit.rglob("*")):
        os.chmod(path, 0o700 if path.is_dir() else 0o600)


def write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
