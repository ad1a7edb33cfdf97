"""What stands in for a site behind a local socket: it answers letters, or does whatever a test says."""

from __future__ import annotations

import json
import socketserver
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from privcal.secure.canonical import to_base64
from privcal.transport.letter import Letter

FEDERATION, ANN = "fe" * 16, "aa" * 16


def letter(sender: str, reader: str, text: str = "", size: int = 0) -> Letter:
    """A well-formed letter that nobody sealed or signed."""
    return Letter(sender, reader, to_base64(text.encode() + bytes(size)), to_base64(b"signed"))


class Playing:
    """A site with this ID; `answers` makes what goes back, "" for silence."""

    def __init__(
        self, path: Path, id: str, answers: Callable[[bytes], bytes | None] | None = None
    ) -> None:
        self.id, self.taken, self.answers = id, list[bytes](), answers or self.reply
        self.raw: bytes | None = None
        """What goes out in place of every frame, if anything."""
        site = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with suppress(OSError):  # a client that was killed
                    self.answer_all()

            def answer_all(self) -> None:
                while len(head := self.rfile.read(4)) == 4:
                    (length,) = struct.unpack(">I", head)
                    back = site.said(self.rfile.read(length))
                    if site.raw is not None:
                        self.wfile.write(site.raw)
                        return
                    self.wfile.write(struct.pack(">I", len(back)) + back)

        path.unlink(missing_ok=True)
        self._server = socketserver.ThreadingUnixStreamServer(str(path), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()

    def said(self, content: bytes) -> bytes:
        if not content:
            who = {"id": self.id, "federation": FEDERATION, "writers": [ANN], "expired": []}
            return json.dumps({"privcal": 4, **who}).encode()
        self.taken.append(content)
        return self.answers(content) or b""

    def reply(self, content: bytes) -> bytes | None:
        """A letter back for each that is for this site; nothing for anything else."""
        try:
            asking = Letter.read(content)
        except ValueError:
            return None
        if asking.reader != self.id:
            return None
        return letter(self.id, asking.sender, f"to {asking.digest}").content

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
