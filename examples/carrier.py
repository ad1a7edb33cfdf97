"""Carry letters between a mailbox and a site's socket: the whole of what a carrier must do.

Run it with `python examples/carrier.py MAILBOX SOCKET`. It needs no privcal, no key and no data.
Where it says so, put your own network: the bytes go to the site's machine, and the reply comes back.
"""

import json
import socket
import sys
from hashlib import sha256
from pathlib import Path


def exchange(path: str, letter: bytes) -> bytes:
    """What the site at a socket replies: nothing to whatever is no letter for it."""
    with socket.socket(socket.AF_UNIX) as call:
        call.connect(path)
        with call.makefile("rwb") as line:
            line.write(len(letter).to_bytes(4, "big") + letter)
            line.flush()
            return line.read(int.from_bytes(line.read(4), "big"))


def carry(mailbox: Path, path: str) -> int:
    """Bring every letter to the site once, and leave its replies; how many there were."""
    site, replies = json.loads(exchange(path, b"")), 0
    folder = mailbox / site["federation"]
    for writer in site["writers"]:
        for file in (folder / writer).glob(f"{site['id']}-*"):
            reply = exchange(path, file.read_bytes())  # your network is here
            if reply:
                (folder / site["id"]).mkdir(exist_ok=True)
                name = f"{writer}-{sha256(reply).hexdigest()}"
                (folder / site["id"] / name).write_bytes(reply)
                replies += 1
    return replies


if __name__ == "__main__":
    print(f"replies: {carry(Path(sys.argv[1]), sys.argv[2])}")
