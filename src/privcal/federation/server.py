"""The server of a federation: it carries messages between calibrators and sites, and reads none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from privcal.errors import InputError
from privcal.federation import revocations
from privcal.federation.foreground import foreground

READY = "the server is up"


def run(folder: Path) -> None:
    """Be the server, in the foreground, until stopped."""
    from privcal.federation.cells import server_cell

    folder = folder.resolve()

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


if __name__ == "__main__":
    run(Path(sys.argv[1]))
    os._exit(0)  # FLARE's threads do not all end with its cell
