"""The federation: real processes and real TLS for a few sites, the sites' own work for many.

Needs the `federation` extra. Sites hold their replies for 0.2 s here (2 s by default), so that what
is measured is the work and not the waiting; the delay comes on top of every question.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks import report
from benchmarks.paired import ratio
from privcal import Policy, calibrate
from privcal.data.datasets import cifar10c
from privcal.secure.terms import usual_colluding
from privcal.trusted.policy import SecureRules

DELAY = 0.2
ROWS = 60
SECURE_SITES, ROUNDS, SECURE_TARGET = (8, 24), 3, 1.5
"""A campaign in secure sums against one of today's: with how many sites, how often, and the most
that it may take, as a ratio."""


def run() -> None:
    if find_spec("nvflare") is None:
        report.note("skipped: FLARE is not installed (pip install 'privcal[federation]')")
        return
    rows = [_real(sites) for sites in (2, 4, 8)]
    report.table(
        f"federation: real processes over TLS, {DELAY} s delay at each site, Acc-T (6 questions)",
        (
            "sites",
            "up",
            "connected",
            "a question",
            "calibration",
            "per question",
            "memory of a site",
        ),
        rows,
    )
    _many()
    _secure()


def _real(count: int) -> tuple[str, ...]:
    from privcal.transport.federation.calibrator.panel import Sites
    from privcal.transport.federation.one_machine import processes

    with tempfile.TemporaryDirectory() as folder:
        kits = Path(folder) / "kits"
        _make(kits, count)
        began = time.perf_counter()
        processes.up(kits)
        up = time.perf_counter() - began
        try:
            began = time.perf_counter()
            with Sites(kits / "calibrator@demo.org") as sites:
                started = time.perf_counter() - began
                marks: list[float] = [time.perf_counter()]
                seen = -1

                def progress(step: object) -> None:
                    nonlocal seen
                    asked = step.asked  # type: ignore[attr-defined]
                    if asked != seen:
                        seen = asked
                    if step.answered == step.sources:  # type: ignore[attr-defined]
                        marks.append(time.perf_counter())

                calibrate(sites, "acc-t", 1.0, model="m", progress=progress)
                each = statistics.median(np.diff(marks)) - DELAY
                whole = marks[-1] - marks[0]
                size = sites.travelled / 6 / count
                memory = _memory(kits / "hospital-1")
        finally:
            processes.down(kits)
    return (
        str(count),
        f"{up:.1f} s",
        f"{started:.1f} s",
        f"{each:.2f} s + delay",
        f"{whole:.1f} s",
        f"{size:,.0f} bytes a site",
        f"{memory:.0f} MB",
    )


def _make(kits: Path, count: int, delay: float = DELAY) -> None:
    from privcal.transport.federation.authority import kits as provisioning
    from privcal.transport.federation.authority.project import Member, Project
    from privcal.transport.federation.one_machine import demo
    from privcal.transport.federation.site import setup

    # Not the owner's own, and not those of the last federation: its files are gone, and the system
    # gives their numbers to new ones, which would be taken for them.
    os.environ["PRIVCAL_MARKS"] = str(kits.parent / "marks.db")
    project = Project(
        name="bench",
        server=Member("localhost", "server"),
        port=demo.free_port(),
        sites=tuple(Member(f"hospital-{n}", f"org_{n}") for n in range(1, count + 1)),
        calibrators=(Member("calibrator@demo.org", "calibrator"),),
    )
    provisioning.provision(project, kits)
    scores = cifar10c("motion_blur")
    rows = np.random.default_rng(0).permutation(len(scores))
    for n, member in enumerate(project.sites):
        data = kits / f"{member.name}.npz"
        mine = scores.take(rows[n * ROWS : (n + 1) * ROWS])
        np.savez(data, logits=mine.outputs.array, labels=mine.labels)
        rules = SecureRules(colluding=usual_colluding(count))
        policy = Policy(1000.0, model="m", secure=rules)
        setup.init(kits / member.name, data, policy, delay=delay)
    demo.exchange_keys(kits, project)


def _memory(site: Path) -> float:
    """Megabytes of a site's processes: the one with the network and the one with the data."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            if str(site) in (status.parent / "cmdline").read_text():
                lines = status.read_text().splitlines()
                total += next(int(s.split()[1]) for s in lines if s.startswith("VmRSS"))
        except (OSError, StopIteration):
            continue
    return total / 1024


def _many() -> None:
    """The sites' own work for 50 of them, in one process: signatures, ledgers, sums, noise, seals."""
    from privcal.transport.federation.shared.messages import Signer, open_message, seal_reply
    from privcal.transport.federation.shared.requests import Request
    from privcal.transport.federation.site.keys import SiteKeys
    from privcal.transport.federation.site.settings import Site
    from privcal.transport.federation.site.worker import reply_to
    from privcal.trusted.queries import Gap
    from privcal.trusted.question import Question

    with tempfile.TemporaryDirectory() as folder:
        kits = Path(folder) / "kits"
        _make(kits, 50)
        signer = Signer.of_kit(kits / "calibrator@demo.org")
        names = [f"hospital-{n}" for n in range(1, 51)]

        def answer(name: str, message: str) -> str:
            site, root = Site.load(kits / name), kits / name / "startup" / "rootCA.pem"
            opened = open_message(message, root, site=name)
            reply = reply_to(site, opened.asker, opened.request)
            assert reply.refused is None
            return seal_reply(reply, opened, SiteKeys.load(site.folder), name)

        seconds = []
        for index in range(3):
            asked = Question("bench", 0, index, 10**8, Gap(1.0 + index), "m")
            request, _ = Request.make("question", "bench", [asked], names)
            message = signer.sign(request)
            began = time.perf_counter()
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda name, m=message: answer(name, m), names))
            seconds.append(time.perf_counter() - began)
    report.table(
        "federation: the work of 50 sites for one question, in one process",
        ("what", "time"),
        [
            ("50 sites", report.duration(statistics.median(seconds))),
            ("each", report.duration(statistics.median(seconds) / 50)),
        ],
    )


def _secure() -> None:
    """A whole campaign in secure sums, from connecting to the map, against one where each answers.

    Both are the sketch: it asks once, after it has asked what owners tell and who would answer. With
    the delay that sites have by default.
    """
    from privcal.transport.federation.site.settings import DELAY as usual

    rows, verdicts = [], []
    for count in SECURE_SITES:
        seconds = _campaigns(count, usual)
        each, secure = (statistics.median(seconds[mode]) for mode in ("each", "secure"))
        times = ratio(seconds["secure"], seconds["each"])
        rows.append((str(count), f"{each:.1f} s", f"{secure:.1f} s", f"{times:.2f}"))
        verdicts.append((f"secure against each, {count} sites", times, SECURE_TARGET))
    report.table(
        f"federation: one campaign (sketch), {usual:g} s delay, {ROUNDS} rounds that take turns",
        ("sites", "each answers", "secure sums", "ratio"),
        rows,
    )
    for what, times, target in verdicts:
        report.at_most(what, times, target, "×")


def _campaigns(count: int, delay: float) -> dict[str, list[float]]:
    """Seconds of each campaign, by how answers are put together."""
    from privcal.secure.panel import SecurePanel
    from privcal.transport.federation.calibrator.panel import Sites
    from privcal.transport.federation.calibrator.secure import SecureSites
    from privcal.transport.federation.one_machine import processes

    seconds: dict[str, list[float]] = {"each": [], "secure": []}
    with tempfile.TemporaryDirectory() as folder:
        kits = Path(folder) / "kits"
        _make(kits, count, delay)
        processes.up(kits, timeout=300.0)
        try:
            for turn in range(ROUNDS + 1):
                for mode, times in seconds.items():
                    began = time.perf_counter()
                    with Sites(kits / "calibrator@demo.org") as sites:
                        panel = sites if mode == "each" else SecurePanel(SecureSites(sites))
                        calibrate(panel, "sketch", 1.0, model="m")
                    if turn:  # in the first one the sites' children start
                        times.append(time.perf_counter() - began)
        finally:
            processes.down(kits)
    return seconds
