"""A participant's start-up kit: whose it is, what lies in `startup/`, and where the server is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from privcal.checks import whole
from privcal.documents import read_json
from privcal.errors import InputError

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
            facts = _READERS[kind](document)
            if not all(isinstance(value, str) for value in facts.values()):
                raise TypeError("not a text")
        except (ValueError, LookupError, TypeError, AttributeError):
            raise InputError(f"{path} is damaged; ask for a fresh kit") from None
        files = {name: str(path.parent / facts[name]) for name in ("key", "certificate", "root")}
        return cls(kit, **{**facts, **files})


def _site(document: dict[str, Any]) -> dict[str, Any]:
    client, server = document["client"], document["servers"][0]
    return {
        "name": client["fqsn"],
        "url": f"{server['service']['scheme']}://{server['service']['target']}",
        "server": server["identity"],
        "key": client["ssl_private_key"],
        "certificate": client["ssl_cert"],
        "root": client["ssl_root_cert"],
    }


def _server(document: dict[str, Any]) -> dict[str, Any]:
    server = document["servers"][0]
    host, port = server["service"]["target"].split(":")
    return {
        "name": host,
        "url": f"{server['service']['scheme']}://{host}:{whole('port', int(port), 1, 65535)}",
        "server": host,
        "key": server["ssl_private_key"],
        "certificate": server["ssl_cert"],
        "root": server["ssl_root_cert"],
    }


def _calibrator(document: dict[str, Any]) -> dict[str, Any]:
    admin = document["admin"]
    return {
        "name": admin["username"],
        "url": f"{admin['scheme']}://{admin['host']}:{admin['port']}",
        "server": admin["server_identity"],
        "key": admin["client_key"],
        "certificate": admin["client_cert"],
        "root": admin["ca_cert"],
    }


_READERS: dict[Kind, Callable[[Any], dict[str, Any]]] = {
    "site": _site,
    "server": _server,
    "calibrator": _calibrator,
}
