"""A federation's campaigns, from command to map, over every kind of mailbox; and the demo.

Sites, carriers and servers are real processes on this machine, with the delay that sites have by
default. Name a clone of da6e529 in PRIVCAL_BESIDE, the last version with a network of its own, and
its campaigns take turns with these.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.paired import ratio, take_turns

SITES, ROUNDS = (4, 24), 3
TARGETS = {"folder": 1.0, "sftp": 1.5}
"""The most that a campaign may take, by its mailbox, as a ratio to one of da6e529."""
SECURE_TARGET = 1.2
"""The same of secure sums to an ordinary campaign, over the ratio of their trips."""

_OTHER = """
import sys
from pathlib import Path
from benchmarks.federation import _make
from privcal.federation.one_machine import processes
kits = Path(sys.argv[1])
_make(kits, int(sys.argv[2]), 2.0)
processes.up(kits, timeout=300.0)
try:
    print("up", flush=True)
    sys.stdin.read()
finally:
    processes.down(kits)
"""
"""Runs in the other version's clone: its sites are up until its input ends."""


def run() -> None:
    if find_spec("cryptography") is None:
        report.note("skipped: cryptography is not installed (pip install 'privcal[secure]')")
        return
    for part in (_campaigns, _demo):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["PRIVCAL_MARKS"] = str(Path(folder, "marks.db"))  # not the owner's own
            part(Path(folder))


def _campaigns(folder: Path) -> None:
    from privcal.transport import demo

    rows, verdicts = [], []
    ways = {"folder": _at_folder}
    ways |= {"sftp": _over_sftp} if find_spec("paramiko") and find_spec("fsspec") else {}
    ways |= {"flare": _over_flare} if find_spec("nvflare") else {}
    for count in SITES:
        where = folder / str(count)
        names = made(where, count)
        with _other(folder / f"other-{count}", count) as other:
            for way, opened in ways.items():
                if way == "flare" and count > 4:  # so many clients need more machines than one
                    continue
                said: dict[str, str] = {}
                with opened(where, names) as mailbox:
                    me = ["federation", "calibrate", "--as", str(where / "calibrator")]
                    asking = [*me, "--mailbox", mailbox, "--model", demo.MODEL]
                    secure = [*asking, "--aggregation", "secure"]
                    runs = {way: partial(_ask, said, way, asking)} | other
                    runs[f"{way}, secure"] = partial(_ask, said, f"{way}, secure", secure)
                    take_turns(runs, 1)  # in the first one the sites' children start
                    seconds = take_turns(runs, 1 if way == "flare" else ROUNDS)
                for name, times in seconds.items():
                    beside = f"{ratio(times, seconds['cells']):.2f}" if other else "-"
                    looks = re.search("a look every ([^,]+)", said.get(name, ""))
                    each = f"2 s, {looks[1]}" if looks else "-"
                    trips, median = _trips(said.get(name, "0 trips")), statistics.median(times)
                    trip = f"{median / trips:.1f} s" if trips else "-"
                    rows.append(
                        (str(count), name, each, str(trips), f"{median:.1f} s", trip, beside)
                    )
                if other and way in TARGETS:
                    most = ratio(seconds[way], seconds["cells"])
                    verdicts.append((f"{way} / cells, {count} sites", most, TARGETS[way]))
                longer = _trips(said[f"{way}, secure"]) / _trips(said[way])
                most = ratio(seconds[f"{way}, secure"], seconds[way]) / longer
                if way in TARGETS:
                    what = f"{way}: secure / each, over the ratio of trips, {count} sites"
                    verdicts.append((what, most, SECURE_TARGET))
    report.table(
        f"federation: one campaign (sketch), from command to map, {ROUNDS} rounds that take turns",
        ("sites", "over", "looks of site and asker", "trips", "median", "a trip", "/ cells"),
        rows,
    )
    for what, most, target in verdicts:
        report.at_most(what, most, target, "×")


def made(folder: Path, count: int) -> list[str]:
    """The names of so many sites of a new federation in a folder."""
    from privcal.transport import demo

    names = [f"hospital-{n}" for n in range(1, count + 1)]
    demo.make(folder, sites=names)
    return names


def _ask(said: dict[str, str], name: str, words: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = ["--method", "sketch", "--epsilon", "0.1", "--out", f"{folder}/map.json"]
        command = [sys.executable, "-m", "privcal", *words, *out]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr}")
        said[name] = done.stderr


def _trips(said: str) -> int:
    return int(re.findall(r"(\d+) trips?\b", said)[-1])


@contextmanager
def _running(folder: Path, commands: Sequence[Sequence[object]], up: str) -> Iterator[None]:
    """Meanwhile these commands of privcal run, and each has said that it is up."""
    with ExitStack() as stack:
        outputs = []
        for words in commands:
            output = stack.enter_context(tempfile.NamedTemporaryFile(dir=folder))
            command = [sys.executable, "-P", "-m", "privcal", *map(str, words)]
            process = subprocess.Popen(command, stdout=output, stderr=output)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            outputs.append((process, Path(output.name)))
        for process, path in outputs:
            while up not in (text := path.read_text()):
                if process.poll() is not None:
                    raise RuntimeError(text)
                time.sleep(0.05)
        yield


@contextmanager
def _at_folder(folder: Path, names: Sequence[str]) -> Iterator[str]:
    box = folder / "mailbox"
    run = [("site", "run", folder / name, "--folder", box) for name in names]
    with _running(folder, run, "looks into"):
        yield str(box)


def _at_sockets(folder: Path, names: Sequence[str]) -> Any:
    run = [("site", "run", folder / n, "--socket", folder / f"{n}.sock") for n in names]
    return _running(folder, run, "listens")


@contextmanager
def _over_sftp(folder: Path, names: Sequence[str]) -> Iterator[str]:
    from tests.support.sftp_server import Server

    with ExitStack() as stack:
        server = Server(folder)
        stack.callback(server.end)
        words = folder / "calibrator" / "credentials.toml"
        words.touch(mode=0o600)
        words.write_text("".join(f'{k} = "{v}"\n' for k, v in server.options.items()))
        post = ["post", server.url, "--credentials", words, "--socket"]
        stack.enter_context(_at_sockets(folder, names))
        posts = [[*post, folder / f"{name}.sock"] for name in names]
        stack.enter_context(_running(folder, posts, "carrying between"))
        yield server.url


@contextmanager
def _over_flare(folder: Path, names: Sequence[str]) -> Iterator[str]:
    from tests.support.flare import running

    with _at_sockets(folder, names), running(folder, names) as flare:
        yield f"flare:{flare.admin}"


@contextmanager
def _other(folder: Path, count: int) -> Iterator[dict[str, Callable[[], Any]]]:
    """A campaign of the other version, whose sites are up meanwhile; nothing where there is none."""
    if not (clone := os.environ.get("PRIVCAL_BESIDE")):
        yield {}
        return
    folder.mkdir()
    kits, env = folder / "kits", {**os.environ, "PYTHONPATH": f"{clone}/src"}
    started = partial(subprocess.Popen, cwd=clone, env=env, text=True)
    command = [sys.executable, "-c", _OTHER, str(kits), str(count)]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sites:

        def ask() -> None:
            kit, out = str(kits / "calibrator@demo.org"), str(folder / f"{time.time()}.json")
            asking = ["calibrate", "--federation", kit, "--model", "m", "--method", "sketch"]
            words = [sys.executable, "-m", "privcal", *asking, "--epsilon", "0.1", "--out", out]
            subprocess.run(words, cwd=clone, env=env, check=True, capture_output=True)

        assert sites.stdout is not None
        assert sites.stdout.readline() == "up\n"
        yield {"cells": ask}
        sites.communicate()


def _demo(folder: Path) -> None:
    rows = []
    for number in range(ROUNDS):
        began = time.perf_counter()
        words = ["federation", "demo", "--dir", str(folder / f"{number}")]
        done = subprocess.run(
            [sys.executable, "-m", "privcal", *words], capture_output=True, text=True, check=True
        )
        up, end = re.findall(r"after ([\d.]+) s", done.stderr)
        rows.append((f"{up} s", f"{end} s", f"{time.perf_counter() - began:.1f} s"))
    report.table("federation demo", ("up", "end", "the command"), rows)
