"""The participants of a federation: one small TOML file."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from privcal.data.files import read_toml
from privcal.transport.federation.shared.kit import SITE_NAME, Kind
from privcal.trusted.checks import whole
from privcal.trusted.errors import InputError

# NVIDIA FLARE's own patterns, anchored, as `SITE_NAME` is.
_ORG = re.compile(r"[A-Za-z0-9_]{1,63}")
_HOST = re.compile(
    r"(?=.{1,63}\Z)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"
)
_EMAIL = re.compile(
    r"(?=.{1,63}\Z)[A-Za-z0-9_%+-][A-Za-z0-9._%+-]*@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}"
)
_SITE_KIND, _EMAIL_KIND = "letters, digits, - and _", "an e-mail address"
# Names with a meaning of their own.
_TAKEN = {"ca", "server", "calibrator", "federation.json", "processes.json", "revoked.json"}
# A stolen key that nobody noticed is good for two years; the authority's own end means new kits for
# everybody, so it is far away.
DAYS, AUTHORITY_DAYS, MAX_DAYS = 730, 3650, 7300


@dataclass(frozen=True)
class Member:
    """A participant: the server by its host, a calibrator by an e-mail address."""

    name: str
    org: str


@dataclass(frozen=True)
class Project:
    """The participants, the server's port, and how long certificates are good."""

    name: str
    server: Member
    port: int
    sites: tuple[Member, ...]
    calibrators: tuple[Member, ...]
    days: int = DAYS
    """How long a participant's certificate is good."""
    authority_days: int = AUTHORITY_DAYS

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for _, member in self.everyone:
            if (low := member.name.lower()) in seen:
                raise InputError(f"{member.name} is there twice; each needs a name of its own")
            if low in _TAKEN:
                raise InputError(f"nobody can be called {member.name}: choose another name")
            seen.add(low)

    @property
    def everyone(self) -> list[tuple[Kind, Member]]:
        members: list[tuple[Kind, Member]] = [("server", self.server)]
        members += [("site", member) for member in self.sites]
        return members + [("calibrator", member) for member in self.calibrators]

    def find(self, name: str) -> tuple[Kind, Member]:
        for kind, member in self.everyone:
            if member.name == name:
                return kind, member
        known = ", ".join(member.name for _, member in self.everyone)
        raise InputError(f"there is no {name!r} in this federation; there are {known}")

    def with_site(self, name: str, org: str) -> Project:
        new = _member({"name": name, "org": org}, "the new site", SITE_NAME, _SITE_KIND)
        return replace(self, sites=(*self.sites, new))

    def with_calibrator(self, name: str, org: str) -> Project:
        new = _member({"name": name, "org": org}, "the new calibrator", _EMAIL, _EMAIL_KIND)
        return replace(self, calibrators=(*self.calibrators, new))

    @classmethod
    def load(cls, path: Path) -> Project:
        document = read_toml(path, "project")
        try:
            return cls.from_dict(document)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "server": {"host": self.server.name, "org": self.server.org, "port": self.port},
            "sites": [{"name": m.name, "org": m.org} for m in self.sites],
            "calibrators": [{"name": m.name, "org": m.org} for m in self.calibrators],
            "certificates": {"days": self.days, "authority_days": self.authority_days},
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Project:
        _only(document, "the file", {"name", "server", "sites", "calibrators", "certificates"})
        server = document.get("server")
        if not isinstance(server, dict):
            raise InputError("[server] is missing; say its host and port")
        _only(server, "[server]", {"host", "port", "org"})
        days, authority_days = _days(document.get("certificates", {}))
        return cls(
            name=_text(document, "name", "the file", SITE_NAME, _SITE_KIND),
            server=Member(
                _text(server, "host", "[server]", _HOST, "a host name, such as fl.example.org"),
                _text({"org": "server"} | server, "org", "[server]", _ORG, "letters, digits and _"),
            ),
            port=whole("port of [server]", server.get("port"), 1024, 65535),
            sites=_members(document, "sites", SITE_NAME, _SITE_KIND),
            calibrators=_members(document, "calibrators", _EMAIL, _EMAIL_KIND),
            days=days,
            authority_days=authority_days,
        )


def _days(table: Any) -> tuple[int, int]:
    where = "[certificates]"
    if not isinstance(table, dict):
        raise InputError(f"{where} must be a table with days and authority_days")
    _only(table, where, {"days", "authority_days"})
    values = {"days": DAYS, "authority_days": AUTHORITY_DAYS} | table
    for key, value in values.items():
        whole(f"{key} of {where}", value, 1, MAX_DAYS)
    if values["days"] > values["authority_days"]:
        raise InputError(f"days of {where} must not be more than authority_days")
    return values["days"], values["authority_days"]


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
        members.append(_member(row, where, pattern, kind))
    return tuple(members)


def _member(row: dict[str, Any], where: str, pattern: re.Pattern[str], kind: str) -> Member:
    return Member(
        _text(row, "name", where, pattern, kind),
        _text(row, "org", where, _ORG, "letters, digits and _"),
    )


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
