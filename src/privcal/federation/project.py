"""Who takes part in a federation: one small TOML file."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privcal.errors import InputError

# NVIDIA FLARE's own patterns, anchored: a name becomes a folder and a certificate's subject.
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_ORG = re.compile(r"[A-Za-z0-9_]{1,63}")
_HOST = re.compile(
    r"(?=.{1,63}\Z)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"
)
_EMAIL = re.compile(
    r"(?=.{1,63}\Z)[A-Za-z0-9_%+-][A-Za-z0-9._%+-]*@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}"
)
_TAKEN = {"ca", "server", "federation.json", "processes.json"}  # names with a meaning of their own


@dataclass(frozen=True)
class Member:
    name: str
    org: str


@dataclass(frozen=True)
class Project:
    name: str
    server: Member
    port: int
    sites: tuple[Member, ...]
    calibrators: tuple[Member, ...]

    def __post_init__(self) -> None:
        everyone = [self.server, *self.sites, *self.calibrators]
        seen: set[str] = set()
        for member in everyone:
            if (low := member.name.lower()) in seen:
                raise InputError(f"{member.name} is there twice; each needs a name of its own")
            if low in _TAKEN:
                raise InputError(f"nobody can be called {member.name}: choose another name")
            seen.add(low)

    @classmethod
    def load(cls, path: Path) -> Project:
        try:
            document = tomllib.loads(path.read_text("utf-8"))
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path} is not TOML: {error}") from None
        try:
            return _project(document)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "server": {"host": self.server.name, "org": self.server.org, "port": self.port},
            "sites": [{"name": m.name, "org": m.org} for m in self.sites],
            "calibrators": [{"name": m.name, "org": m.org} for m in self.calibrators],
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Project:
        return _project(document)


def _project(document: dict[str, Any]) -> Project:
    _only(document, "the file", {"name", "server", "sites", "calibrators"})
    server = document.get("server")
    if not isinstance(server, dict):
        raise InputError("[server] is missing; say its host and port")
    _only(server, "[server]", {"host", "port", "org"})
    port = server.get("port")
    if not isinstance(port, int) or isinstance(port, bool) or not 1024 <= port <= 65535:
        raise InputError("port of [server] must be a number from 1024 to 65535")
    return Project(
        name=_text(document, "name", "the file", _SITE, "letters, digits, - and _"),
        server=Member(
            _text(server, "host", "[server]", _HOST, "a host name, such as fl.example.org"),
            _text({"org": "server"} | server, "org", "[server]", _ORG, "letters, digits and _"),
        ),
        port=port,
        sites=_members(document, "sites", _SITE, "letters, digits, - and _"),
        calibrators=_members(document, "calibrators", _EMAIL, "an e-mail address"),
    )


def _members(
    document: dict[str, Any], key: str, pattern: re.Pattern[str], kind: str
) -> tuple[Member, ...]:
    rows = document.get(key)
    if not isinstance(rows, list) or not rows:
        raise InputError(f"at least one [[{key}]] is needed, with name and org")
    members = []
    for number, row in enumerate(rows, start=1):
        where = f"[[{key}]] number {number}"
        if not isinstance(row, dict):
            raise InputError(f"{where} must be a table with name and org")
        _only(row, where, {"name", "org"})
        members.append(
            Member(
                _text(row, "name", where, pattern, kind),
                _text(row, "org", where, _ORG, "letters, digits and _"),
            )
        )
    return tuple(members)


def _text(table: dict[str, Any], key: str, where: str, pattern: re.Pattern[str], kind: str) -> str:
    value = table.get(key)
    if value is None:
        raise InputError(f"{key} of {where} is missing")
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise InputError(f"{key} of {where} must be {kind}, not {value!r}")
    return value


def _only(table: dict[str, Any], where: str, known: set[str]) -> None:
    if unknown := sorted(set(table) - known):
        raise InputError(
            f"{where} has an unknown key {unknown[0]!r}; known: {', '.join(sorted(known))}"
        )
