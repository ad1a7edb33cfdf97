"""A participant's start-up kit: whose it is, what lies in `startup/`, and where the server is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from privcal.data.files import read_json
from privcal.trusted.checks import whole
from privcal.trusted.errors import InputError

Kind = Literal["site", "server", "calibrator"]

STARTUP_FILE: dict[Kind, str] = {
    "site": "fed_client.json",
    "server": "fed_server.json",
    "calibrator": "fed_admin.json",
}
"""The file in `startup/` by which a kit is known; the names are FLARE's."""

CREDENTIALS: dict[Kind, str] = {"site": "client", "server": "server", "calibrator": "client"}
"""The name of the certificate (.crt) and of its key (.key)."""

ROOT = "rootCA.pem"

SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
"""FLARE's own pattern, anchored: a name becomes a folder and a certificate's subject."""

MAX_SITES = 1000
"""The most sites of a federation."""

CALIBRATOR_ROLE = "lead"
"""FLARE's word, in a certificate, for those who may ask."""


def contents(kind: Kind) -> set[str]:
    """The names of all files in `startup/`."""
    name = CREDENTIALS[kind]
    return {STARTUP_FILE[kind], f"{name}.crt", f"{name}.key", ROOT}


def kind_of(folder: Path) -> Kind:
    """Whether a folder is a site's, the server's or a calibrator's."""
    kinds = [kind for kind, file in STARTUP_FILE.items() if (folder / "startup" / file).is_file()]
    if len(kinds) != 1:
        raise InputError(
            f"{folder} is not a participant's folder: startup/ must hold one of "
            f"{', '.join(STARTUP_FILE.values())}"
        )
    return kinds[0]


def is_calibrator(folder: str | Path) -> bool:
    return (Path(folder) / "startup" / STARTUP_FILE["calibrator"]).is_file()


@dataclass(frozen=True)
class Startup:
    """The start-up file of a kit."""

    kit: Path
    name: str
    """The participant's name, as in its certificate."""
    url: str
    """The server's address."""
    server: str
    """The name in the server's certificate."""
    key: str
    certificate: str
    root: str
    """Paths of the private key, its certificate and the authority's certificate."""

    @classmethod
    def read(cls, kit: Path, kind: Kind) -> Startup:
        path = kit / "startup" / STARTUP_FILE[kind]
        if not path.is_file():
            raise InputError(f"{kit} is not a {kind}'s start-up kit: there is no {path}")
        document = read_json(path, "start-up file")
        try:
            name, url, server, *files = _READERS[kind](document)
            paths = [str(path.parent / file) for file in files]
            if not all(isinstance(text, str) for text in (name, url, server)):
                raise TypeError("not a text")
        except (ValueError, LookupError, TypeError, AttributeError):
            raise InputError(f"{path} is damaged; ask for a fresh kit") from None
        return cls(kit, name, url, server, *paths)


_Facts = tuple[str, str, str, str, str, str]
"""The fields of a start-up file, from its `name` on, in order."""


def _site(document: Any) -> _Facts:
    own, server = document["client"], document["servers"][0]
    url = f"{server['service']['scheme']}://{server['service']['target']}"
    files = own["ssl_private_key"], own["ssl_cert"], own["ssl_root_cert"]
    return own["fqsn"], url, server["identity"], *files


def _server(document: Any) -> _Facts:
    own = document["servers"][0]
    host, port = own["service"]["target"].split(":")
    url = f"{own['service']['scheme']}://{host}:{whole('port', int(port), 1, 65535)}"
    return host, url, host, own["ssl_private_key"], own["ssl_cert"], own["ssl_root_cert"]


def _calibrator(document: Any) -> _Facts:
    own = document["admin"]
    url = f"{own['scheme']}://{own['host']}:{own['port']}"
    files = own["client_key"], own["client_cert"], own["ca_cert"]
    return own["username"], url, own["server_identity"], *files


_READERS: dict[Kind, Callable[[Any], _Facts]] = {
    "site": _site,
    "server": _server,
    "calibrator": _calibrator,
}
