"""One direction: a module imports only from those before it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import privcal

PACKAGE = Path(privcal.__file__).parent
ORDER = [
    ["errors"],
    ["checks"],
    ["files", "scores", "lines"],
    ["documents", "readers", "kernel"],
    ["metrics"],
    ["queries", "fit"],
    ["privacy.epsilon"],
    ["privacy.mechanism", "privacy.policy", "privacy.marks", "privacy.accounts"],
    ["privacy.reservations", "privacy.approvals"],
    ["privacy.ledger"],
    ["privacy.opening"],
    ["source"],
    ["sources", "privacy.explain"],
    ["maps"],
    ["sketch"],
    ["methods.base"],
    ["methods.search"],
    ["methods"],
    ["plausible"],
    ["calibrate"],
    ["campaign"],
    ["datasets", "evaluate"],
    ["simulate"],
    ["plots"],
    ["demo"],
    ["study"],
    ["corruptions"],
    ["training"],
    ["advise", "audit"],
    ["federation"],
    ["cli"],
]
# The packages in PACKAGES are one place each; only methods.base and
# .search are lower.
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
PACKAGES = (
    "datasets", "methods", "simulate", "sketch", "study", "corruptions", "training", "advise", "audit", "federation", "cli",
)  # fmt: skip
METHODS_KNOW = {
    "checks", "errors", "scores", "kernel", "queries", "maps", "privacy.epsilon", "sketch.noise",
    "sketch.reading",
}  # fmt: skip


MODULES = {
    ".".join(p.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
    for p in PACKAGE.rglob("*.py")
} - {"__init__", "privacy"}


def imports(module: str) -> set[str]:
    path = PACKAGE.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "privcal":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("privcal."):
            package = (node.module or "").removeprefix("privcal.")
            inner = {f"{package}.{alias.name}" for alias in node.names} & MODULES
            found |= inner or {package}
    return found - {"__version__", module}


def rank(module: str) -> int:
    return RANK[module] if module in RANK else RANK[module.split(".")[0]]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_only_from_those_before_it(module: str) -> None:
    whole = module not in RANK or module in PACKAGES
    package = module.split(".")[0] if whole else ""
    others = {name for name in imports(module) if name.split(".")[0] != package}
    assert not {name for name in others if rank(name) >= rank(module)}


def test_methods_do_not_know_where_sources_live() -> None:
    for path in (PACKAGE / "methods").glob("*.py"):
        known = imports(f"methods.{path.stem}" if path.stem != "__init__" else "methods")
        assert {n for n in known if not n.startswith("methods")} <= METHODS_KNOW
