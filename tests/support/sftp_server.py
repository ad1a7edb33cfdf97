"""A real SFTP server on a loopback port, which can be told to misbehave.

`python -m tests.support.sftp_server FOLDER WAY` prints its port and its host key's line.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import paramiko

USER, PASSWORD = "ann", "a word"


class _Login(paramiko.ServerInterface):
    def check_auth_password(self, username, password):
        good = (username, password) == (USER, PASSWORD)
        return paramiko.AUTH_SUCCESSFUL if good else paramiko.AUTH_FAILED

    def check_channel_request(self, kind, chanid):
        return paramiko.OPEN_SUCCEEDED

    def get_allowed_auths(self, username):
        return "password"


class _Handle(paramiko.SFTPHandle):
    way = ""

    def stat(self):
        facts = paramiko.SFTPAttributes.from_stat(os.fstat(self.readfile.fileno()))
        if self.way == "sizes":
            facts.st_size = 3
        return facts

    def read(self, offset, length):
        if self.way == "slow":
            time.sleep(1)
            length = 1
        return super().read(offset, length)

    def write(self, offset, data):
        return paramiko.SFTP_FAILURE if self.way == "full" else super().write(offset, data)


class _Files(paramiko.SFTPServerInterface):
    root, way = "", ""

    def _real(self, path):
        return self.root + self.canonicalize(path)

    def list_folder(self, path):
        try:
            names = os.listdir(self._real(path))
            found = []
            for name in names:
                attributes = paramiko.SFTPAttributes.from_stat(
                    os.lstat(f"{self._real(path)}/{name}")
                )
                attributes.filename = name
                found.append(attributes)
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno)
        if self.way == "names":
            for name in (
                "../../secret",
                "/etc/passwd",
                "a\nb",
                "*",
                "[a]",
                "?",
                "",
                ".",
                "..",
                "é",
            ):
                odd = paramiko.SFTPAttributes()
                odd.filename = name
                found.append(odd)
        return found

    def stat(self, path):
        try:
            facts = paramiko.SFTPAttributes.from_stat(os.stat(self._real(path)))
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno)
        if self.way == "sizes":
            facts.st_size = 3
        return facts

    lstat = stat

    def open(self, path, flags, attr):
        if self.way == "read-only" and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return paramiko.SFTP_PERMISSION_DENIED
        if self.way == "own" and flags & os.O_CREAT and "/" + "a" * 32 + "/" not in path:
            return paramiko.SFTP_PERMISSION_DENIED
        try:
            file = os.fdopen(os.open(self._real(path), flags, 0o644), "wb" if flags & 3 else "rb")
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno)
        handle = _Handle(flags)
        handle.way, handle.filename, handle.readfile, handle.writefile = self.way, path, file, file
        return handle

    def mkdir(self, path, attr):
        if self.way in ("read-only", "own"):
            return paramiko.SFTP_PERMISSION_DENIED
        return self._done(os.mkdir, path)

    def remove(self, path):
        return self._done(os.unlink, path)

    def _done(self, act, path):
        try:
            act(self._real(path))
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno)
        return paramiko.SFTP_OK


def _endless(self):
    """16 more names, for ever."""
    found = []
    for _ in range(16):
        attributes = paramiko.SFTPAttributes()
        attributes.filename = f"{'b' * 32}-{os.urandom(32).hex()}"
        found.append(attributes)
    return found


def serve(root: str, way: str) -> None:
    """Serve a folder to all who know the word, until killed."""
    key = paramiko.ECDSAKey.generate()
    _Files.root, _Files.way = root, way
    if way == "endless":
        paramiko.SFTPHandle._get_next_files = _endless
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    print(port, f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}", sep="\n", flush=True)
    while True:
        line, _ = listening.accept()
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport = paramiko.Transport(line)
        transport.add_server_key(key)
        transport.set_subsystem_handler("sftp", paramiko.SFTPServer, _Files)
        threading.Thread(target=transport.start_server, kwargs={"server": _Login()}).start()


def freeze(process: subprocess.Popen[str]) -> None:
    """Stop a process, and come back when it stands still."""
    process.send_signal(signal.SIGSTOP)
    tasks = Path(f"/proc/{process.pid}/task")
    while any(") T" not in (one / "stat").read_text() for one in tasks.iterdir()):
        time.sleep(0.01)


class Server:
    """One such server in a process of its own."""

    def __init__(self, folder: Path, way: str = "") -> None:
        self.files = folder / "served"
        (self.files / "box").mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.support.sftp_server", str(self.files), way]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.write_text(self.process.stdout.readline())
        self.url = f"sftp://{USER}@127.0.0.1:{self.port}/box"
        self.options = {"password": PASSWORD, "known_hosts": str(self.known_hosts)}

    def freeze(self) -> None:
        freeze(self.process)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


if __name__ == "__main__":
    serve(*sys.argv[1:])
