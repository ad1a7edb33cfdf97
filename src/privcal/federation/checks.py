"""Is a kit, or a site's folder, closed? One finding for each rule, in plain words.

What is looked at is what FLARE would use: a file where it is there, else its default, else what
FLARE does without. Only the closed kit's own values pass; a rule does not guess whether some
other value might be safe too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privcal.errors import InputError
from privcal.federation.hardening import (
    RIGHTS,
    SERVER_AUTHORIZATION,
    SERVER_RESOURCES,
    SITE_AUTHORIZATION,
    SITE_RESOURCES,
)
from privcal.federation.names import JOB_GUARD, SITE_GUARD

_STARTUP = {"fed_client.json": "site", "fed_server.json": "server", "fed_admin.json": "calibrator"}
_AGAIN = "take the file from a fresh `privcal federation init`"


@dataclass(frozen=True)
class Finding:
    rule: str
    ok: bool
    sentence: str
    remedy: str = ""


def closed(findings: list[Finding]) -> bool:
    return all(finding.ok for finding in findings)


def check(folder: Path) -> list[Finding]:
    """Everything that is looked at in a participant's folder, what is open and what is not."""
    kit = _Kit(folder)
    return [_find(rule, kit) for rule in _RULES[kit.kind]]


class _Kit:
    """A participant's folder, as FLARE reads it."""

    def __init__(self, folder: Path) -> None:
        found = [kind for name, kind in _STARTUP.items() if (folder / "startup" / name).is_file()]
        if len(found) != 1:
            raise InputError(
                f"{folder} is not a participant's folder: startup/ must hold one of "
                f"{', '.join(_STARTUP)}"
            )
        self.folder = folder
        self.kind = found[0]
        self.startup_name = next(n for n, kind in _STARTUP.items() if kind == self.kind)
        self.startup = _read(folder / "startup" / self.startup_name)
        self.resources = self._effective("resources.json")
        self.authorization = self._effective("authorization.json")
        server = self.kind == "server"
        self.closed_resources = SERVER_RESOURCES if server else SITE_RESOURCES
        self.closed_authorization = SERVER_AUTHORIZATION if server else SITE_AUTHORIZATION

    def _effective(self, name: str) -> dict[str, Any] | None:
        for path in (self.folder / "local" / name, self.folder / "local" / f"{name}.default"):
            if path.exists():
                return _read(path)
        return None

    @property
    def components(self) -> list[Any]:
        """Those of the start-up file too: FLARE merges the two."""
        found: list[Any] = []
        for part in (self.startup, self.resources):
            some = (part or {}).get("components", [])
            found += some if isinstance(some, list) else [some]
        return found

    @property
    def roles(self) -> dict[str, Any]:
        table = (self.authorization or {}).get("permissions")
        return table if isinstance(table, dict) else {}


def _read(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


@dataclass(frozen=True)
class _Rule:
    name: str
    good: str  # the sentence where it holds
    remedy: str
    wrong: Callable[[_Kit], str]  # what is open; nothing: an empty sentence


def _find(rule: _Rule, kit: _Kit) -> Finding:
    wrong = rule.wrong(kit)
    return Finding(rule.name, not wrong, wrong or rule.good, rule.remedy if wrong else "")


# --- rights ------------------------------------------------------------------------------


def _no_authorization(kit: _Kit) -> str:
    if not (kit.folder / "local" / "authorization.json").is_file():
        return "local/authorization.json is missing; without it and its default FLARE allows everything"
    if not kit.roles:
        return "local/authorization.json cannot be read, or has no permissions"
    return ""


def _roles_without_tables(kit: _Kit) -> str:
    loose = [role for role, rights in kit.roles.items() if not isinstance(rights, dict)]
    if loose:
        return f"role {loose[0]} has {kit.roles[loose[0]]!r} for every right instead of a table of rights"
    known = kit.closed_authorization["permissions"]
    unknown = [role for role in kit.roles if role not in known]
    return f"there is a role {unknown[0]!r} which no participant needs" if unknown else ""


def _granted(kit: _Kit, right: str) -> list[str]:
    """Roles which have a right that the closed kit does not give."""
    closed_table = kit.closed_authorization["permissions"]
    granted = []
    for role, rights in kit.roles.items():
        value = rights if not isinstance(rights, dict) else rights.get(right, "none")
        if value not in ("none", closed_table.get(role, {}).get(right, "none")):
            granted.append(role)
    return granted


def _right(right: str, means: str) -> Callable[[_Kit], str]:
    def wrong(kit: _Kit) -> str:
        roles = _granted(kit, right)
        return f"{' and '.join(roles)} may {means}" if roles else ""

    return wrong


def _other_rights(kit: _Kit) -> str:
    for role, rights in kit.roles.items():
        for right in rights if isinstance(rights, dict) else ():
            if right not in RIGHTS:
                return f"{role} has a line for {right!r}, which overrules the line of its group"
    named = {"byoc", "shell_commands", "operate", "server-predeployed-flwr"}
    for right in RIGHTS:
        if right not in named and (roles := _granted(kit, right)):
            return f"{' and '.join(roles)} may {right}, more than a calibration needs"
    return ""


# --- resources ---------------------------------------------------------------------------


def _no_resources(kit: _Kit) -> str:
    if not (kit.folder / "local" / "resources.json").is_file():
        return "local/resources.json is missing; FLARE would fall back to its default"
    return "" if kit.resources is not None else "local/resources.json cannot be read"


def _classes(kit: _Kit) -> str:
    wanted = kit.closed_resources["class_allow_list"]
    allowed = (kit.resources or {}).get("class_allow_list")
    if allowed is None:
        return "there is no class_allow_list, so FLARE's own list of many classes holds"
    if not isinstance(allowed, list):
        return "class_allow_list is not a list"
    extra = [name for name in allowed if name not in wanted]
    if extra:
        return f"a job may build {extra[0]!r}; the only class a job needs is {wanted[0]}"
    return "" if allowed else f"{wanted[0]} is not allowed, so no calibration can run"


def _enforced(kit: _Kit) -> str:
    mode = (kit.resources or {}).get("class_list_enforcement_mode", "enforce")
    return (
        ""
        if mode == "enforce"
        else f"class_list_enforcement_mode is {mode!r}: classes are only warned about"
    )


def _guarded(kit: _Kit) -> str:
    first = kit.components[:1]
    if first == [{"id": "site_guard", "path": SITE_GUARD}]:
        return ""
    return (
        "the site's guard is not its first component: a server could use FLARE's shell commands, "
        "and texts of exceptions could be sent"
    )


def _jobs_guarded(kit: _Kit) -> str:
    if (kit.resources or {}).get("app_validator") == {
        "path": JOB_GUARD
    } and "app_validator" not in (kit.startup or {}):
        return ""
    return "jobs are not looked at before they are taken: code, filters or another signer could come along"


def _log_streaming(kit: _Kit) -> str:
    if (kit.resources or {}).get("allow_log_streaming") is not False:
        return "allow_log_streaming is not false: this site's logs may be sent to the server"
    for component in kit.components:
        if "streamer" in json.dumps(component).lower():
            return "a component streams this site's logs to the server"
    return ""


def _log_receiver(kit: _Kit) -> str:
    for component in kit.components:
        if "receiver" in json.dumps(component).lower():
            return "a component takes logs from sites and stores them"
    return ""


def _components(kit: _Kit) -> str:
    wanted = {part["id"]: part for part in kit.closed_resources["components"]}
    seen = []
    for component in kit.components:
        name = component.get("id") if isinstance(component, dict) else None
        if name not in wanted:
            return f"there is an unknown component {name!r}"
        if component != wanted[name]:
            return f"component {name} has another class or other arguments than in a fresh kit"
        seen.append(name)
    missing = [name for name in wanted if seen.count(name) != 1]
    return f"component {missing[0]} is missing or there twice" if missing else ""


def _keys(kit: _Kit) -> str:
    if extra := sorted(set(kit.resources or {}) - set(kit.closed_resources)):
        return (
            f"local/resources.json has a key {extra[0]!r}; FLARE sends unknown keys to the server"
        )
    block = (kit.resources or {}).get("client")
    if kit.kind == "site" and block != SITE_RESOURCES["client"]:
        return "client in local/resources.json says more than in a fresh kit; the server is sent it"
    return ""


def _gpus(kit: _Kit) -> str:
    for component in kit.components:
        if isinstance(component, dict) and component.get("id") == "resource_manager":
            arguments = component.get("args")
            number = arguments.get("num_of_gpus") if isinstance(arguments, dict) else None
            return "" if number == 0 else f"the site offers {number} GPUs; a calibration needs none"
    return "there is no resource manager"


def _storage(kit: _Kit) -> str:
    resources = kit.resources or {}
    if resources.get("snapshot_persistor") != SERVER_RESOURCES["snapshot_persistor"]:
        return "snapshots are not kept below the server's own folder"
    wanted = [c for c in SERVER_RESOURCES["components"] if c["id"] == "job_manager"]
    found = [c for c in kit.components if isinstance(c, dict) and c.get("id") == "job_manager"]
    return "" if found == wanted else "jobs are not kept below the server's own folder"


def _server_block(kit: _Kit) -> str:
    same = (kit.resources or {}).get("servers") == SERVER_RESOURCES["servers"]
    return "" if same else "servers in local/resources.json says something else than in a fresh kit"


# --- start-up files and folders ----------------------------------------------------------


def _signed(kit: _Kit) -> str:
    value = (kit.startup or {}).get("require_signed_jobs")
    return "" if value is True else f"require_signed_jobs in startup/{kit.startup_name} is not true"


def _mutual_tls(kit: _Kit) -> str:
    startup = kit.startup or {}
    blocks = {"site": startup.get("client"), "calibrator": startup.get("admin")}
    servers = startup.get("servers")
    if kit.kind == "server" and isinstance(servers, list) and len(servers) == 1:
        blocks["server"] = servers[0]
    block = blocks.get(kit.kind)
    if not isinstance(block, dict) or block.get("connection_security") != "mtls":
        return f"connection_security in startup/{kit.startup_name} is not mtls"
    if not (kit.folder / "startup" / "rootCA.pem").is_file():
        return "startup/rootCA.pem is missing, so no signature can be checked"
    return ""


def _startup_keys(kit: _Kit) -> str:
    if kit.startup is None:
        return f"startup/{kit.startup_name} cannot be read"
    known = {"format_version", "require_signed_jobs", "servers"} | (
        {"client"} - ({kit.kind} & {"server"})
    )
    if extra := sorted(set(kit.startup) - known):
        return f"startup/{kit.startup_name} has a key {extra[0]!r}, which overrules local/resources.json"
    client = kit.startup.get("client")
    usual = {
        "ssl_private_key",
        "ssl_cert",
        "ssl_root_cert",
        "fqsn",
        "is_leaf",
        "connection_security",
    }
    if isinstance(client, dict) and (extra := sorted(set(client) - usual)):
        return (
            f"client in startup/{kit.startup_name} has a key {extra[0]!r}, which the server is sent"
        )
    return ""


def _more_configuration(kit: _Kit) -> str:
    for place in ("startup", "local"):
        for pattern in ("*__resources.json", "*__p_resources.json", "*__j_resources.json"):
            for path in sorted((kit.folder / place).glob(pattern)):
                return f"{place}/{path.name} adds to the configuration"
    for name in ("job_resources.json", "comm_config.json", "privacy.json"):
        for place in ("startup", "local", "."):
            if (kit.folder / place / name).exists():
                return f"{name} in {place}/ adds to the configuration"
    return ""


def _code(kit: _Kit) -> str:
    if (kit.folder / "local" / "custom").exists():
        return "local/custom holds code which FLARE would load"
    for path in sorted(kit.folder.glob("*/app_*/custom")):
        return f"{path.relative_to(kit.folder)} holds code that came with a job"
    return ""


def _private(kit: _Kit) -> str:
    keys = sorted((kit.folder / "startup").glob("*.key"))
    if not keys:
        return "startup/ has no private key"
    for path in keys:
        if path.stat().st_mode & 0o077:
            return f"startup/{path.name} can be read by others on this machine"
    for path in _deciding(kit.folder):
        if path.stat().st_mode & 0o022:
            return f"{path.relative_to(kit.folder)} can be changed by others on this machine"
    return ""


def _deciding(folder: Path) -> Iterator[Path]:
    yield from (folder, folder / "startup")
    yield from (folder / "startup").iterdir()
    if (folder / "local").is_dir():
        yield folder / "local"
        yield from (folder / "local").glob("*.json*")


def _authority(kit: _Kit) -> str:
    for path in (kit.folder / "state", kit.folder / "ca", kit.folder / "cert.json"):
        if path.exists():
            return (
                f"{path.name} looks like the certificate authority's key, which belongs to no kit"
            )
    return ""


_RIGHTS = [
    _Rule("authorization", "rights are this folder's own", _AGAIN, _no_authorization),
    _Rule("roles", "every role has its own table of rights", "write a table for each role, as in a fresh kit", _roles_without_tables),
    _Rule("custom code", "nobody may bring code", 'set "byoc" to "none" for every role', _right("byoc", "bring code of their own and have it run here")),
    _Rule("shell", "nobody may use shell commands", 'set "shell_commands" to "none" for every role', _right("shell_commands", "read files here with shell commands")),
    _Rule("operate", "nobody may operate this participant from afar", 'set "operate" to "none" for every role', _right("operate", "restart, stop or question this participant from afar")),
    _Rule("flower", "nobody may run predeployed Flower apps", 'set "server-predeployed-flwr" to "none" for every role', _right("server-predeployed-flwr", "run predeployed Flower apps")),
    _Rule("other rights", "no more rights than a calibration needs", "use the rights of a fresh kit", _other_rights),
    _Rule("resources", "the configuration is this folder's own", _AGAIN, _no_resources),
    _Rule("classes", "a job can build one class of ours only", "set class_allow_list as in a fresh kit", _classes),
    _Rule("enforcement", "the list of classes is enforced", 'set class_list_enforcement_mode to "enforce"', _enforced),
]  # fmt: skip
_FILES = [
    _Rule("components", "all components are known", "use the components of a fresh kit", _components),
    _Rule("keys", "nothing more is told to the server", "remove the key", _keys),
    _Rule("signed jobs", "jobs must be signed", "set require_signed_jobs to true", _signed),
    _Rule("mutual TLS", "both ends of a connection show certificates", "set connection_security to mtls", _mutual_tls),
    _Rule("start-up file", "the start-up file says nothing more", "remove the key", _startup_keys),
    _Rule("more configuration", "no other file adds to the configuration", "remove the file", _more_configuration),
    _Rule("code", "no code lies here for FLARE to load", "remove the folder", _code),
]  # fmt: skip
_OWNER = [
    _Rule("private files", "keys and settings are the owner's alone", "chmod -R go-rwx the folder", _private),
    _Rule("authority", "the certificate authority's key is not here", "move it away, see ca/README.txt", _authority),
]  # fmt: skip
_RULES: dict[str, list[_Rule]] = {
    "site": [
        *_RIGHTS,
        _Rule("guard", "commands that no job needs are taken away, texts of exceptions are not sent", "use the components of a fresh kit, site_guard first", _guarded),
        _Rule("jobs", "only a calibrator's jobs of one shape are taken", "set app_validator as in a fresh kit", _jobs_guarded),
        _Rule("logs", "logs stay here", "set allow_log_streaming to false and remove the streamer", _log_streaming),
        _Rule("gpus", "no GPUs are offered", "set num_of_gpus to 0", _gpus),
        *_FILES,
        *_OWNER,
    ],
    "server": [
        *_RIGHTS,
        _Rule("logs", "sites' logs are not taken", "remove the receiver", _log_receiver),
        _Rule("storage", "jobs and snapshots are kept below the server's folder", "use the storage of a fresh kit", _storage),
        _Rule("server", "the server's settings are those of a fresh kit", "use the settings of a fresh kit", _server_block),
        *_FILES,
        *_OWNER,
    ],
    "calibrator": [
        _Rule("mutual TLS", "both ends of a connection show certificates", "set connection_security to mtls", _mutual_tls),
        *_OWNER,
    ],
}  # fmt: skip
