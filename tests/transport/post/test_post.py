"""Any mailbox is opened by its address, and what talks to servers is imported in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from privcal.transport.mailbox import FolderBox
from privcal.transport.post import open_box
from privcal.transport.post.remote import RemoteBox
from privcal.trusted.errors import InputError
from tests.support.builders import python
from tests.transport.post.conftest import FEDERATION, OTHER, OWN

NAME = f"{OTHER}-2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"


def test_a_path_is_a_folder(tmp_path: Path) -> None:
    box = open_box(str(tmp_path), FEDERATION)
    assert isinstance(box, FolderBox)
    box.put(OWN, NAME, b"x")
    assert (tmp_path / FEDERATION / OWN / NAME).read_bytes() == b"x"
    with pytest.raises(InputError, match="needs no credentials"):
        open_box(str(tmp_path), FEDERATION, tmp_path / "credentials")


def test_a_url_is_a_server_with_its_credentials(sftp: Callable, tmp_path: Path) -> None:
    server, path = sftp(), tmp_path / "credentials.toml"
    path.write_text("".join(f'{name} = "{value}"\n' for name, value in server.options.items()))
    path.chmod(0o600)
    box = open_box(server.url, FEDERATION, path)
    assert isinstance(box, RemoteBox)
    box.put(OWN, NAME, b"x")
    assert (server.files / "box" / FEDERATION / OWN / NAME).read_bytes() == b"x"


def test_no_process_but_its_own_imports_what_talks_to_servers(sftp: Callable) -> None:
    server = sftp()
    told = python(
        "import sys, json; from privcal.transport.post import open_box, remote, check\n"
        f"box = remote.RemoteBox(sys.argv[1], {FEDERATION!r}, json.loads(sys.argv[2]))\n"
        f"box.put({OWN!r}, {NAME!r}, b'x'); print(*box.list({OWN!r}))\n"
        "print({'fsspec', 'paramiko', 's3fs', 'botocore'} & set(sys.modules))",
        server.url,
        json.dumps(server.options),
    )
    assert told.stdout.split("\n")[:2] == [NAME, "set()"], told.stderr
