"""Moto's S3 server in a process of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request

from tests.support.sftp_server import freeze

BUCKET = "mail"


class Server:
    """An empty bucket on a loopback port."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        at = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", f"{port}"]
        null = subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdout=null, stderr=null)
        for _ in range(300):
            try:
                request = urllib.request.Request(f"{at}/{BUCKET}", method="PUT")
                urllib.request.urlopen(request, timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        else:
            raise AssertionError("moto's server did not start")
        self.url = f"s3://{BUCKET}/box"
        self.options = {"key": "k", "secret": "s", "endpoint_url": at, "region": "us-east-1"}

    def freeze(self) -> None:
        freeze(self.process)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
