"""Start-up kits: one folder for each participant, provisioned by FLARE's own tool, then closed."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from nvflare.lighter.constants import CtxKey
from nvflare.lighter.impl.static_file import StaticFileBuilder
from nvflare.lighter.impl.workspace import WorkspaceBuilder
from nvflare.lighter.provision import prepare_project
from nvflare.lighter.provisioner import Provisioner
from nvflare.lighter.spec import Builder

from privcal.data.files import read_json, replacing, write_document
from privcal.transport.federation.authority.authority import Authority, Credentials
from privcal.transport.federation.authority.project import Member, Project
from privcal.transport.federation.shared.kit import (
    CALIBRATOR_ROLE,
    CREDENTIALS,
    ROOT,
    Kind,
    contents,
    kind_of,
)
from privcal.transport.federation.shared.revocations import REVOKED
from privcal.trusted.errors import InputError

FEDERATION = "federation.json"
CA = "ca"
_ABOUT_THE_CA = """\
cert.json holds the private key of this federation's certificate authority.

Whoever has it can make a certificate for anyone: a second server, a calibrator whom every site
believes. It is needed again only to add, renew or revoke somebody (privcal federation add, renew,
revoke; with --ca, wherever this folder is by then). Keep the folder offline, with someone who is
neither the server's operator nor a calibrator. Never send it along with a kit.

register.json says what was signed and what was revoked. It must not be lost, nor brought back from
an older copy: participants refuse a list of revocations with a smaller number than the one they have.
"""
_NEXT: dict[Kind, str] = {
    "site": """\
1. privcal federation check {kit}
2. privcal site init {kit} --data scores.parquet --person patient_id --epsilon 2
3. privcal site run {kit}        (or the unit or image in deploy/)
4. privcal site roster accept {kit} roster.json, when the calibrator has sent it; compare its digest
""",
    "server": """\
1. privcal federation check {kit}
2. privcal federation serve {kit}        (or the unit or image in deploy/)
""",
    "calibrator": """\
1. privcal federation check {kit}
2. privcal federation roster {kit}, when the sites run; compare its digest with their owners
3. privcal calibrate --federation {kit} --model v3 --epsilon 1 --out map.json
""",
}
_README = """\
The start-up kit of {name}, {kind}. Whoever has this folder is {name}: keep it private.

{next}"""
_TYPES: dict[Kind, dict[str, Any]] = {
    "server": {"type": "server"},
    "site": {"type": "client"},
    "calibrator": {"type": "admin", "role": CALIBRATOR_ROLE},
}
_log = logging.getLogger(__name__)


def init(project: Path, out: Path) -> list[Path]:
    """Provision what a project file describes; the participants' folders, the server's first."""
    return provision(Project.load(project), out)


def provision(project: Project, out: Path) -> list[Path]:
    """Kits for everybody in a project, and the authority that made them."""
    _new_folder(out, "kits are made")
    authority = Authority.create(project.name, project.authority_days)
    made = _make(project, project.everyone, authority, out)
    ca = out / CA
    ca.mkdir(mode=0o700)
    authority.save(ca)
    (ca / "README.txt").write_text(_ABOUT_THE_CA, "utf-8")
    close_folders(ca)
    write_document(out / FEDERATION, project.to_dict())
    return made


def add(
    kits: Path,
    *,
    site: str | None = None,
    calibrator: str | None = None,
    org: str,
    ca: Path | None = None,
) -> Path:
    """A kit for a site or a calibrator who joins later; all others stay as they are."""
    before = load(kits)
    if (site is None) == (calibrator is None):
        raise InputError("say either a site or a calibrator to add")
    if site is not None:
        after, new = before.with_site(site, org), site
    else:
        after, new = before.with_calibrator(str(calibrator), org), str(calibrator)
    if (kits / new).exists():
        raise InputError(f"{kits / new} is there already; remove it, or choose another name")
    ca, authority = _authority(kits, before, ca)
    [made] = _make(after, [after.find(new)], authority, kits)
    try:
        authority.save(ca)
        write_document(kits / FEDERATION, after.to_dict())
    except BaseException:
        shutil.rmtree(made)
        raise
    return made


def renew(kits: Path, name: str, out: Path, ca: Path | None = None) -> datetime:
    """A new key and certificate for a participant, as files for its `startup/`; until when.

    The old ones stay good until they run out or are revoked.
    """
    project = load(kits)
    kind, member = project.find(name)
    ca, authority = _authority(kits, project, ca)
    _new_folder(out, "a renewed certificate is put")
    credentials = authority.issue(kind, member, project.days)
    authority.save(ca)
    _write_credentials(out, kind, credentials)
    close_folders(out)
    return credentials.until


def revoke(kits: Path, name: str, *, old_keys: bool = False, ca: Path | None = None) -> Path:
    """The list of all that is revoked, now with a name, or with its keys but the newest."""
    project = load(kits)
    kind, _ = project.find(name)
    ca, authority = _authority(kits, project, ca)
    if old_keys:
        authority.revoke_old_keys(name)
    elif kind == "server":
        raise InputError(
            f"{name} is the server, and no federation goes on without: renew its key and revoke "
            "the old one with --old-keys, or make a new federation"
        )
    else:
        authority.revoke_name(name)
    authority.save(ca)
    with replacing(kits / REVOKED) as part:
        part.write_text(authority.revocations(), "utf-8")
    return kits / REVOKED


def load(kits: Path) -> Project:
    """The participants of a folder of kits that `init` made."""
    try:
        return Project.from_dict(read_json(kits / FEDERATION, "list of participants"))
    except InputError as error:
        raise InputError(
            f"{kits} is not a folder of kits: {FEDERATION} is missing or damaged; "
            "make one with `privcal federation init`"
        ) from error


def _authority(kits: Path, project: Project, ca: Path | None) -> tuple[Path, Authority]:
    ca = kits / CA if ca is None else ca
    authority = Authority.load(ca)
    for _, member in project.everyone:  # those that were not moved away
        root = kits / member.name / "startup" / ROOT
        if root.is_file() and root.read_bytes() != authority.pem:
            raise InputError(f"{ca} is the authority of another federation than {kits}")
    return ca, authority


def _new_folder(out: Path, what: str) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is there already; {what} into a new or an empty folder")
    out.mkdir(mode=0o700, parents=True, exist_ok=True)


def _make(
    project: Project, members: Sequence[tuple[Kind, Member]], authority: Authority, out: Path
) -> list[Path]:
    # Next to the result, so that no key ever lies in a folder that others share.
    with tempfile.TemporaryDirectory(dir=out, prefix=".making-") as making:
        made = _run_provisioner(project, members, authority, Path(making))
        for _, member in members:
            close_kit(made / member.name)
            shutil.move(made / member.name, out / member.name)
    return [out / member.name for _, member in members]


def close_kit(kit: Path) -> None:
    """Leave in a kit of FLARE's what its kind needs, its owner's alone.

    FLARE's provisioner makes kits for its own client and server, which take jobs and commands:
    start scripts, rights, components, settings for logs. None of that is used here, and what is
    not there cannot be opened by changing it, nor started by mistake.
    """
    kind = kind_of(kit)
    for path in kit.iterdir():
        if path.name != "startup":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in (kit / "startup").iterdir():
        if path.name not in contents(kind):
            path.unlink()
    (kit / "local").mkdir()
    what = {"site": "a site", "server": "the server", "calibrator": "a calibrator"}[kind]
    steps = _NEXT[kind].format(kit=kit.name)
    (kit / "README.txt").write_text(_README.format(name=kit.name, kind=what, next=steps), "utf-8")
    close_folders(kit)


def close_folders(kit: Path) -> None:
    """Close a folder to all but its owner: it has keys, and what decides over them."""
    for path in (kit, *kit.rglob("*")):
        os.chmod(path, 0o700 if path.is_dir() else 0o600)


def _run_provisioner(
    project: Project, members: Sequence[tuple[Kind, Member]], authority: Authority, folder: Path
) -> Path:
    server: tuple[Kind, Member] = ("server", project.server)
    document = {
        "api_version": 3,
        "name": project.name,
        "description": "privcal",
        "participants": [
            {"name": m.name, "org": m.org, **_TYPES[kind]}
            | ({"fed_learn_port": project.port} if kind == "server" else {})
            # FLARE makes nothing without a server, whose address every kit holds.
            for kind, m in (server, *(member for member in members if member != server))
        ],
    }
    builders = [
        WorkspaceBuilder(template_file=["master_template.yml"]),
        StaticFileBuilder(config_folder="config"),
        _Certificates(members, authority, project.days),
    ]
    output = io.StringIO()  # it prints to both, even with a logger
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        context = Provisioner(str(folder), builders).provision(
            prepare_project(document), logger=_log
        )
    if context.get(CtxKey.BUILD_ERROR):
        raise InputError(
            f"FLARE could not make the kits: {output.getvalue().strip().splitlines()[-1]}"
        )
    return Path(context[CtxKey.CURRENT_PROD_DIR])


class _Certificates(Builder):  # type: ignore[misc]  # FLARE has no types
    """In place of FLARE's own, whose certificates all live for 360 days, the authority's too."""

    def __init__(
        self, members: Sequence[tuple[Kind, Member]], authority: Authority, days: int
    ) -> None:
        self._members, self._authority, self._days = members, authority, days

    def build(self, project: Any, ctx: Any) -> None:
        folders = {p.name: Path(ctx.get_kit_dir(p)) for p in project.get_all_participants()}
        for kind, member in self._members:
            credentials = self._authority.issue(kind, member, self._days)
            _write_credentials(folders[member.name], kind, credentials)
            (folders[member.name] / ROOT).write_bytes(self._authority.pem)


def _write_credentials(folder: Path, kind: Kind, credentials: Credentials) -> None:
    name = CREDENTIALS[kind]
    (folder / f"{name}.crt").write_bytes(credentials.certificate)
    key = folder / f"{name}.key"
    key.touch(mode=0o600)
    key.write_bytes(credentials.key)
