"""Start-up kits: one folder for each participant, provisioned by FLARE's own tool, then closed."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import shutil
import tempfile
from pathlib import Path

from nvflare.lighter.constants import CtxKey
from nvflare.lighter.impl.cert import CertBuilder
from nvflare.lighter.impl.signature import SignatureBuilder
from nvflare.lighter.impl.static_file import StaticFileBuilder
from nvflare.lighter.impl.workspace import WorkspaceBuilder
from nvflare.lighter.provision import prepare_project
from nvflare.lighter.provisioner import Provisioner

from privcal.errors import InputError
from privcal.federation.hardening import close_folders, close_server, close_site, write_json
from privcal.federation.names import CALIBRATOR_ROLE
from privcal.federation.project import Project

FEDERATION = "federation.json"
_ABOUT_THE_CA = """\
cert.json holds the private key of this federation's certificate authority.

Whoever has it can make a certificate for anyone: a second server, a calibrator whom every site
believes. It is needed once more only if someone joins later. Keep it offline, with someone who
is neither the server's operator nor a calibrator; or delete it, and provision anew when needed.
Never send this folder along with a kit.
"""
_log = logging.getLogger(__name__)


def init(project: Path, out: Path) -> list[Path]:
    """Provision what a project file describes; the participants' folders, the server's first."""
    return provision(Project.load(project), out)


def provision(project: Project, out: Path) -> list[Path]:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is there already; kits are made into a new or an empty folder")
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Next to the result, so that no key ever lies in a folder that others share.
    with tempfile.TemporaryDirectory(dir=out, prefix=".making-") as making:
        made, state = _run_provisioner(project, Path(making))
        names = [m.name for m in (project.server, *project.sites, *project.calibrators)]
        for name in names:
            shutil.move(made / name, out / name)
        authority = out / "ca"
        authority.mkdir(mode=0o700)
        shutil.move(state / "cert.json", authority / "cert.json")
    (authority / "README.txt").write_text(_ABOUT_THE_CA, "utf-8")
    close_folders(authority)
    close_server(out / project.server.name)
    for site in project.sites:
        close_site(out / site.name)
    for calibrator in project.calibrators:
        close_folders(out / calibrator.name)
    write_json(out / FEDERATION, project.to_dict())
    return [out / name for name in names]


def _run_provisioner(project: Project, folder: Path) -> tuple[Path, Path]:
    document = {
        "api_version": 3,
        "name": project.name,
        "description": "privcal",
        "participants": [
            {
                "name": project.server.name,
                "type": "server",
                "org": project.server.org,
                "fed_learn_port": project.port,
            },
            *({"name": m.name, "type": "client", "org": m.org} for m in project.sites),
            *(
                {"name": m.name, "type": "admin", "org": m.org, "role": CALIBRATOR_ROLE}
                for m in project.calibrators
            ),
        ],
    }
    builders = [
        WorkspaceBuilder(template_file=["master_template.yml"]),
        StaticFileBuilder(config_folder="config", require_signed_jobs=True),
        CertBuilder(),
        SignatureBuilder(),
    ]
    said = io.StringIO()  # it prints to both, even with a logger
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        context = Provisioner(str(folder), builders).provision(
            prepare_project(document), logger=_log
        )
    if context.get(CtxKey.BUILD_ERROR):
        raise InputError(
            f"FLARE could not make the kits: {said.getvalue().strip().splitlines()[-1]}"
        )
    return Path(context[CtxKey.CURRENT_PROD_DIR]), folder / project.name / "state"


def load(kits: Path) -> Project:
    """Who is in a folder of kits that `init` made."""
    try:
        return Project.from_dict(json.loads((kits / FEDERATION).read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{kits} is not a folder of kits: {FEDERATION} is missing or damaged; "
            "make one with `privcal federation init`"
        ) from error
