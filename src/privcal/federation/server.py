"""The server of a federation: it carries messages between calibrators and sites, and reads none."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

from privcal.errors import InputError
from privcal.federation.shared import revocations
from privcal.federation.shared.foreground import foreground, main

READY = "the server is up"


def run(folder: Path) -> None:
    """Be the server, in the foreground, until stopped."""
    from privcal.federation.shared.cells import Startup, server_cell

    folder = folder.resolve()
    _free(Startup.read(folder, "fed_server.json").url)
    said: set[str] = set()

    def may_connect(name: str, key: str) -> bool:
        try:
            return not revocations.load(folder).refuses(name, key)
        except InputError as error:  # nobody can be told from the revoked: said once, not each time
            if str(error) not in said:
                print(error, flush=True)
            said.add(str(error))
            return False

    foreground(server_cell(folder, may_connect), lambda: print(READY, flush=True))


def _free(url: str) -> None:
    """FLARE would try for ever, and the server seem to be up."""
    place = urlsplit(url)
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("" if place.hostname == "0" else str(place.hostname), int(place.port or 0)))
        except OSError as error:
            raise InputError(
                f"the server cannot listen on port {place.port}: {error.strerror}; stop what uses it"
            ) from None


if __name__ == "__main__":
    main(run)
