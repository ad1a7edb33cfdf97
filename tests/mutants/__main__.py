"""`make prove`: apply every mutant to a copy of the source, and see its test fail."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table

from privcal.trusted.threads import default_threads
from tests.mutants.catalogue import ROOT, SOURCE, BadMutant, Mutant, mutants

LIMIT = 180
"""Seconds for a mutant's test."""

CAUGHT = "caught"
BROKEN = ("ImportError", "ModuleNotFoundError", "NameError", "SyntaxError", "IndentationError")
"""What a mutant that was written wrongly fails with, rather than by its test."""


def main() -> int:
    """Run the mutants, and print a table of what became of each."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", metavar="TOPIC", help="see tests/mutants/__init__.py")
    only = parser.parse_args().only
    chosen = [mutant for mutant in mutants() if only in ("", mutant.topic)]
    chosen = chosen or [mutant for mutant in mutants() if mutant.says(only)]
    if not chosen:
        print(f"there is no mutant called {only!r}", file=sys.stderr)
        return 2
    cores, start = default_threads(), time.monotonic()
    print(f"{len(chosen)} mutants. First their tests without any of them …", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        sound = outcomes(sorted({m.test for m in chosen}), SOURCE, Path(folder), "-n", str(cores))
        fit = [mutant for mutant in chosen if sound.get(mutant.test) == "passed"]
        results = {m: f"without it: {sound.get(m.test, 'error')}" for m in chosen if m not in fit}
        with ThreadPoolExecutor(cores) as pool:
            for mutant, result in zip(fit, pool.map(judged, fit), strict=True):
                results[mutant] = result
                print(f"  {len(results)} of {len(chosen)}: {mutant}: {result}", flush=True)
    table = Table("", "promise", "test", "result", title="Promises broken on purpose")
    for mutant in chosen:
        where = f"{mutant.topic} {mutant.number}"
        style = None if results[mutant] == CAUGHT else "bold red"
        _, _, test = mutant.test.partition("::")
        table.add_row(where, mutant.promise, test, results[mutant], style=style)
    wide = None if sys.stdout.isatty() else 200
    Console(width=wide).print(table)
    missed = [mutant for mutant in chosen if results[mutant] != CAUGHT]
    seconds = time.monotonic() - start
    print(f"{len(chosen) - len(missed)} of {len(chosen)} were caught, in {seconds:.0f} s.")
    return 1 if missed else 0


def judged(mutant: Mutant) -> str:
    """`caught`, or why not, in words."""
    try:
        mutant.check_test()
        file, text = mutant.applied()
    except BadMutant as bad:
        return f"error: {bad}"
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(SOURCE, copy)  # with its compiled kernel, and with what Python compiled
        (copy / file).write_text(text, "utf-8")
        for compiled in (copy / file).parent.glob(f"__pycache__/{file.stem}.*.pyc"):
            compiled.unlink()  # it could be as long, and as old to the second
        try:
            found = outcomes([mutant.test], copy, Path(folder), "-x", limit=LIMIT)
        except subprocess.TimeoutExpired:
            return f"error: no end within {LIMIT} s"
    result = found.get(mutant.test, "error: the test was not run")
    return {"failed": CAUGHT, "passed": "NOT NOTICED"}.get(result, result)


def outcomes(
    tests: Sequence[str], source: Path, scratch: Path, *options: str, limit: float | None = None
) -> dict[str, str]:
    """What became of each test with this source: `passed`, `failed`, or something else in words."""
    report = scratch / "report.xml"
    environment = {
        **os.environ,
        "PYTHONPATH": str(source),  # for the processes that tests start, too
        "HYPOTHESIS_STORAGE_DIRECTORY": str(scratch / "hypothesis"),
        "PYTEST_ADDOPTS": "",
    }
    command = [sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider"]
    command += [f"--junitxml={report}", f"--basetemp={scratch / 'tmp'}", *tests]
    if "-n" in options:
        command += ["--dist", "loadgroup"]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=limit)
    if not report.exists():
        return dict.fromkeys(tests, f"error: pytest ended with {ran.returncode}")
    return read(report, tests)


def read(report: Path, tests: Sequence[str]) -> dict[str, str]:
    """The outcome of each test in a report of pytest's, over all its parameters."""
    seen: dict[str, list[str]] = {test: [] for test in tests}
    for case in ElementTree.parse(report).iter("testcase"):
        file = case.get("classname", "").replace(".", "/") + ".py"
        bare = re.sub(r"@[^\]]*$", "", case.get("name", ""))  # xdist adds the name of a group
        name = f"{file}::{bare}"
        for test in {name, name.partition("[")[0]} & seen.keys():
            seen[test].append(_outcome(case))
    return {test: _together(found) for test, found in seen.items() if found}


def _outcome(case: ElementTree.Element) -> str:
    for kind in ("error", "failure", "skipped"):
        if (part := case.find(kind)) is not None:
            said = part.get("message", "").partition("\n")[0][:100]
            if kind == "failure":
                return f"error: {said}" if said.startswith(BROKEN) else "failed"
            return f"{kind}: {said}"
    return "passed"


def _together(found: list[str]) -> str:
    """An error before a failure, that before a pass, and that before what was skipped."""
    return min(found, key=lambda one: next(i for i, k in enumerate(ORDER) if one.startswith(k)))


ORDER = ("error", "failed", "passed", "skipped")

if __name__ == "__main__":
    sys.exit(main())
