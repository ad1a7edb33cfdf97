"""Is a participant's folder closed? One finding for each rule, in plain words.

What a site or the server takes from the network is fixed in code (`shared.cells`), and no file of a
kit can open it. This looks at what a folder can spoil: keys that others can read, things that would
start FLARE's own programs, certificates that run out, and at a site its keys, ledgers and their
marks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from privcal.transport.federation.shared import revocations
from privcal.transport.federation.shared.certificates import (
    expiry,
    fingerprint,
    mismatch,
    own_certificate,
)
from privcal.transport.federation.shared.kit import Startup, contents, kind_of
from privcal.transport.federation.site.health import ledger_trouble
from privcal.transport.federation.site.keys import LOST, SiteKeys
from privcal.transport.federation.site.settings import SETTINGS, Site
from privcal.trusted.errors import InputError, Refused

FLARE = "2.9."
"""The versions of FLARE whose handling of messages the gate was written and tested for."""


@dataclass(frozen=True)
class Finding:
    """The finding of one rule: a sentence, and what to do about it."""

    rule: str
    ok: bool
    sentence: str
    remedy: str = ""
    warn: bool = False
    """It holds, but not for long, or not yet."""


def closed(findings: list[Finding]) -> bool:
    """Whether nothing was found open; what soon will be does not count."""
    return all(finding.ok for finding in findings)


def check(folder: Path) -> list[Finding]:
    """Everything that is looked at in a participant's folder, what is open and what is not."""
    site = kind_of(folder) == "site"
    return [_find(rule, folder) for rule in _RULES if site or not rule.for_sites]


Look = Callable[[Path], str]
"""A look at a folder: a sentence that says what is open there; empty where nothing is."""


@dataclass(frozen=True)
class _Rule:
    name: str
    good: str  # the sentence where it holds
    remedy: str
    wrong: Look
    soon: Look  # what will be wrong
    for_sites: bool


_RULES: list[_Rule] = []


def _rule(
    name: str, good: str, remedy: str, soon: Look = lambda folder: "", for_sites: bool = False
) -> Callable[[Look], Look]:
    def register(wrong: Look) -> Look:
        _RULES.append(_Rule(name, good, remedy, wrong, soon, for_sites))
        return wrong

    return register


def _find(rule: _Rule, folder: Path) -> Finding:
    try:
        wrong = rule.wrong(folder)
        soon = "" if wrong else rule.soon(folder)
    except (InputError, Refused, OSError) as error:
        wrong, soon = str(error), ""
    trouble = wrong or soon
    remedy = rule.remedy if trouble else ""
    return Finding(rule.name, not wrong, trouble or rule.good, remedy, warn=bool(soon))


# --- every kit ---------------------------------------------------------------------------


@_rule(
    "start-up file",
    "the start-up file says who this is and where the server is",
    "take the file from a fresh kit",
)
def _startup(folder: Path) -> str:
    startup = Startup.read(folder, kind_of(folder))
    for path in (startup.key, startup.certificate, startup.root):
        if not Path(path).is_file():
            return f"startup/{Path(path).name} is missing"
    return ""


@_rule(
    "nothing to run",
    "nothing here starts FLARE's own programs, which take jobs and commands",
    "remove it; if the kit is of an earlier version, ask for a fresh one",
)
def _nothing_to_run(folder: Path) -> str:
    kind = kind_of(folder)
    for path in sorted((folder / "startup").iterdir()):
        if path.name not in contents(kind):
            return f"startup/{path.name} is no part of this kit"
    for name in ("resources.json", "authorization.json", "custom"):
        for path in sorted((folder / "local").glob(f"{name}*")):
            return f"local/{path.name} is for FLARE's own programs, which take jobs and commands"
    for path in sorted(folder.glob("*/app_*")):
        return f"{path.relative_to(folder)} came with a job, which this version does not take"
    return ""


@_rule(
    "FLARE",
    f"FLARE {FLARE}x carries the messages",
    f"install FLARE {FLARE}x (pip install 'privcal[federation]')",
)
def _flare(folder: Path) -> str:
    try:
        installed = version("nvflare")
    except PackageNotFoundError:
        return "FLARE is not installed here"
    if installed.startswith(FLARE):
        return ""
    return f"FLARE {installed} is installed, and this was tried with {FLARE}x"


@_rule("private files", "keys and settings are the owner's alone", "chmod -R go-rwx the folder")
def _private(folder: Path) -> str:
    keys = sorted((folder / "startup").glob("*.key"))
    if not keys:
        return "startup/ has no private key"
    for path in keys:
        if path.stat().st_mode & 0o077:
            return f"startup/{path.name} can be read by others on this machine"
    for path in _deciding(folder):
        if path.stat().st_mode & 0o022:
            return f"{path.relative_to(folder)} can be changed by others on this machine"
    return ""


def _deciding(folder: Path) -> Iterator[Path]:
    """The files that decide who somebody is and what they answer, and their folders."""
    yield from (folder, folder / "startup")
    yield from (folder / "startup").iterdir()
    if (folder / "local").is_dir():
        yield folder / "local"
        for pattern in ("*.json", "*.toml", "*.ledger"):
            yield from (folder / "local").glob(pattern)


@_rule(
    "authority",
    "the certificate authority's key is not here",
    "move it away, see ca/README.txt",
)
def _authority(folder: Path) -> str:
    for path in (folder / "state", folder / "ca", folder / "cert.json"):
        if path.exists():
            return (
                f"{path.name} looks like the certificate authority's key, which belongs to no kit"
            )
    return ""


_rule(
    "certificate",
    "the certificate is this federation's, and its key is here",
    "put the .crt and the .key that were made together into startup/",
)(mismatch)


@_rule(
    "dates",
    "the certificates are good for more than 30 days",
    "ask whoever keeps the certificate authority to renew it (privcal federation renew)",
    soon=lambda folder: expiry(folder).soon,
)
def _dates(folder: Path) -> str:
    return expiry(folder).expired


@_rule(
    "revocations",
    "the list of revocations is whole, or there is none",
    "install the newest list (privcal federation revocations); if it is you who are revoked, ask why",
)
def _revoked(folder: Path) -> str:
    key = fingerprint(own_certificate(folder).public_key())
    refused = revocations.load(folder).refuses("", key)
    return "this participant's own certificate is revoked" if refused else ""


# --- a site that was set up --------------------------------------------------------------


def _is_set_up(folder: Path) -> bool:
    return (folder / "local" / SETTINGS).exists()


@_rule(
    "settings",
    "the settings can be read, or there are none yet",
    "mend the file, as privcal site init wrote it",
    for_sites=True,
)
def _settings(folder: Path) -> str:
    if _is_set_up(folder):
        Site.load(folder)
    return ""


@_rule(
    "own keys",
    "the site's own keys are its owner's alone, or it is not set up yet",
    "run privcal site keys rotate, and tell the calibrators to take the new keys",
    for_sites=True,
)
def _keys(folder: Path) -> str:
    if not _is_set_up(folder):
        return ""
    SiteKeys.load(folder)
    return LOST if Site.load(folder).needs_new_keys else ""


@_rule(
    "ledgers",
    "each ledger is as its high-water mark says, or there is none yet",
    "start the site with the PRIVCAL_MARKS it was set up with, or run privcal ledger reconcile",
    for_sites=True,
)
def _ledgers(folder: Path) -> str:
    if not _is_set_up(folder):
        return ""
    ledgers = (ledger_trouble(population.ledger) for population in Site.load(folder).populations)
    return next(filter(None, ledgers), "")
