"""A federation to try things with: bundled data, one machine, real processes and certificates."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import numpy as np

from privcal.data.datasets import cifar10c
from privcal.transport.federation.authority.kits import provision
from privcal.transport.federation.authority.project import Member, Project
from privcal.transport.federation.calibrator.roster import pin
from privcal.transport.federation.site import setup
from privcal.transport.federation.site.roster import accept, own_card
from privcal.trusted.policy import Policy, SecureRules

SITES = 4
ROWS = 60
EPSILON = 10.0
SHIFT = "motion_blur"
MODEL = "cifar10-wrn28x10"
CALIBRATOR = "calibrator@demo.org"


def make(folder: Path, seed: int = 0) -> list[Path]:
    """Provision a federation and give each site rows of its own; the participants' folders."""
    project = Project(
        name="demo",
        server=Member("localhost", "server"),
        port=free_port(),
        sites=tuple(Member(f"hospital-{n}", f"hospital_{n}") for n in range(1, SITES + 1)),
        calibrators=(Member(CALIBRATOR, "calibrator"),),
    )
    made = provision(project, folder)
    try:
        scores = cifar10c(SHIFT)
        order = np.random.default_rng(seed).permutation(len(scores))[: SITES * ROWS]
        for member, rows in zip(project.sites, np.split(order, SITES), strict=True):
            data = folder / member.name / "data" / "scores.npz"
            data.parent.mkdir(mode=0o700)
            mine = scores.take(rows)
            np.savez_compressed(data, labels=mine.labels, logits=mine.outputs.array)
            data.chmod(0o600)
            rules = Policy(EPSILON, model=MODEL, secure=SecureRules(colluding=1))
            setup.init(folder / member.name, data, rules, warn=lambda text: None)  # bundled rows
        exchange_keys(folder, project)
    except BaseException:
        shutil.rmtree(folder)  # half a federation would look like a whole one
        raise
    return made


def exchange_keys(kits: Path, project: Project) -> None:
    """Give everybody everybody's keys, as if their owners had met."""
    sites = [kits / member.name for member in project.sites]
    for calibrator in project.calibrators:
        pin(kits / calibrator.name, [own_card(folder) for folder in sites])
        for folder in sites:
            accept(folder, kits / calibrator.name / "roster.json")


def free_port() -> int:
    """A port of this machine that nobody listens at just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
