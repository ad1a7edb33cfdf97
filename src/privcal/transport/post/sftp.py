"""fsspec's SFTP with a server whose key is known: the library's own accepts every server."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko
from fsspec.implementations.sftp import SFTPFileSystem

SECONDS = 15.0
"""For each step of a connection."""


class UnknownHost(paramiko.MissingHostKeyPolicy):
    """Refuse a server without a line in the file of known hosts."""

    def __init__(self, known_hosts: Path) -> None:
        self._known = known_hosts

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        raise paramiko.SSHException(
            f"{hostname} has no key in {self._known}, so nobody knows whether it is that server: ask its "
            f"operator for its key's fingerprint, compare it with {key.fingerprint}, and add the key"
        )


class PinnedSFTP(SFTPFileSystem):
    """SFTP to a server whose key is in a file of known hosts, `~/.ssh/known_hosts` by default."""

    def __init__(self, host: str, known_hosts: str = "~/.ssh/known_hosts", **options: Any) -> None:
        self._known_hosts = Path(known_hosts).expanduser()
        if options.get("password"):
            options |= {"allow_agent": False, "look_for_keys": False}
        if "key_filename" in options:
            options["key_filename"] = os.path.expanduser(options["key_filename"])
        times = dict.fromkeys(("timeout", "banner_timeout", "auth_timeout"), SECONDS)
        super().__init__(host, host_key_policy=UnknownHost(self._known_hosts), **options, **times)

    def _connect(self) -> None:
        self.client = paramiko.SSHClient()
        if self._known_hosts.exists():
            self.client.load_system_host_keys(str(self._known_hosts))
        self.client.set_missing_host_key_policy(self.host_key_policy)
        self.client.connect(self.host, **self.ssh_kwargs)
        line = self.client.get_transport()
        line.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else 40 ms an order
        self.ftp = self.client.open_sftp()

    @property
    def alive(self) -> bool:
        """Whether the connection is still there."""
        line = self.client.get_transport()
        return line is not None and line.is_active()

    def names(self, path: str) -> Iterator[str]:
        """The names in a folder as they come, which need not end."""
        for entry in self.ftp.listdir_iter(path):
            yield entry.filename
