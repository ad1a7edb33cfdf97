"""The address of a mailbox that lies elsewhere, and the file of credentials for it.

A URL is seen by all who see a list of processes, a log or an error, so no secret may be in it.
"""

from __future__ import annotations

import os
import re
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from privcal.trusted.errors import InputError

PROTOCOLS: dict[str, tuple[str, frozenset[str]]] = {
    "sftp": (
        "paramiko",
        frozenset({"username", "password", "key_filename", "passphrase", "known_hosts"}),
    ),
    "s3": ("s3fs", frozenset({"key", "secret", "token", "profile", "endpoint_url", "region"})),
    "https": ("webdav4", frozenset({"username", "password"})),
    "smb": ("smbprotocol", frozenset({"username", "password"})),
    "abfs": ("adlfs", frozenset({"account_name", "account_key", "sas_token", "connection_string"})),
}
"""Each protocol with the package that it needs beside fsspec, and what its credentials may say."""


def is_remote(where: str) -> bool:
    """Whether this is a URL, and not the path of a folder."""
    return "://" in where


def read_url(where: str) -> str:
    """The URL, if a mailbox can be there; InputError without repeating a secret in it."""
    shown = re.sub("//[^/]*@", "//…@", where)
    try:
        url, protocol = urlsplit(where), where.partition("://")[0]
        parts = url.hostname, url.password, url.port
    except ValueError:
        raise InputError(f"{shown} is not a URL") from None
    if parts[1] is not None:
        raise InputError(
            f"{shown} has a password in it, which lists of processes and logs would show: put it into "
            "a file of your own, and name that with --credentials"
        )
    if protocol not in PROTOCOLS:
        raise InputError(
            f"{shown}: a mailbox is a folder, or a URL that begins with one of {', '.join(PROTOCOLS)}"
        )
    if "@" in url.netloc and protocol not in ("sftp", "smb"):
        raise InputError(f"{shown}: a URL of {protocol} names no account")
    odd = re.search(r"[?#*\[\]\\\s\x00-\x1f\x7f]|::|/\.\.?(/|$)", where)
    if odd or not parts[0]:
        raise InputError(
            f"{shown} must name a host or bucket and a path, without ?, #, *, [, :: or spaces"
        )
    missing = [name for name in ("fsspec", PROTOCOLS[protocol][0]) if find_spec(name) is None]
    if missing:
        extra = "'privcal[mailbox]'" if protocol in ("sftp", "s3") else " ".join(missing)
        raise InputError(
            f"a mailbox over {protocol} needs {' and '.join(missing)}: pip install {extra}"
        )
    return where


def read_credentials(path: Path, url: str) -> dict[str, Any]:
    """What a file of credentials (TOML) says for the server of this URL."""
    protocol = url.partition("://")[0]
    try:
        with path.open("rb") as file:
            if os.name == "posix" and os.fstat(file.fileno()).st_mode & 0o077:
                raise InputError(
                    f"{path} is open to other accounts: close it with chmod go= {path}"
                )
            facts = tomllib.loads(file.read(65_536).decode("utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the credentials {path}: {error.strerror}") from None
    except (
        UnicodeDecodeError,
        tomllib.TOMLDecodeError,
    ):  # without its cause, which quotes the file
        raise InputError(f"the credentials {path} are not TOML") from None
    known = PROTOCOLS[protocol][1]
    if not set(facts) <= known or not all(isinstance(value, str) for value in facts.values()):
        raise InputError(
            f"the credentials {path} must be texts, for {protocol} named {', '.join(sorted(known))}"
        )
    return facts
