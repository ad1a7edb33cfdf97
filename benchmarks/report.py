"""How results are printed: one table for each benchmark, the target beside each number."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from privcal.trusted.threads import default_threads

console = Console(highlight=False)
if not console.is_terminal:
    console = Console(highlight=False, width=120)  # a log has no width of its own


def machine() -> str:
    cores = f"{default_threads()} of {os.cpu_count()} cores usable"
    packages = ("numpy", "scipy", "scikit-learn", "torch", "opendp")
    return "\n".join(
        [
            f"{cores}, {_cpu()}, {platform.system()}, Python {platform.python_version()}",
            ", ".join(f"{name} {_version(name)}" for name in packages),
            "contestants take turns; ratios are medians over pairs of neighbouring runs",
        ]
    )


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    first, *others = columns
    console.print(f"[bold]{title}[/bold]")  # not the table's own title, which wraps at its width
    printed = Table(box=box.SIMPLE)
    printed.add_column(first)
    for name in others:
        printed.add_column(name, justify="right")
    for row in rows:
        printed.add_row(*row)
    console.print(printed)


def note(text: str) -> None:
    console.print(f"  {text}")


def at_least(what: str, value: float, target: float, unit: str) -> None:
    _verdict(what, value, target, unit, "at least", target - value)


def at_most(what: str, value: float, target: float, unit: str) -> None:
    _verdict(what, value, target, unit, "at most", value - target)


def duration(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _verdict(what: str, value: float, target: float, unit: str, limit: str, excess: float) -> None:
    verdict = "target met" if excess <= 0 else f"target missed by {excess:.3g}{unit}"
    note(f"{what}: {value:.3g}{unit}, target {limit} {target:g}{unit}: {verdict}")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    return next((s.split(":", 1)[1].strip() for s in lines if s.startswith("model name")), "")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
