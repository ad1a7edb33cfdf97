"""One direction through a few rooms: a module imports from its own room and from those before it.

`python -m tests.test_layers` draws the rooms anew in CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE, CONTRIBUTING = ROOT / "src" / "privcal", ROOT / "CONTRIBUTING.md"
ROOMS = ("trusted", "data", "secure", "calibration", "transport", "planning", "adapters", "lab",
         "report", "cli")  # fmt: skip
OURS = {
    ".".join(p.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): p
    for p in PACKAGE.rglob("*.py")
}
MODULES = {name: path for name, path in OURS.items() if name.split(".")[0] in ROOMS}
RANK = {name: ROOMS.index(name.split(".")[0]) for name in MODULES}


@cache
def imported(module: str) -> frozenset[str]:
    """All that a module imports, anywhere in its file; of ours without "privcal."."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: imports are absolute"
            full = {f"{node.module}.{alias.name}".removeprefix("privcal.") for alias in node.names}
            names |= {n if n in OURS else node.module.removeprefix("privcal.") for n in full}
        elif isinstance(node, ast.Import):
            names |= {alias.name.removeprefix("privcal.") for alias in node.names}
    return frozenset(names - {module})


def test_a_module_imports_from_its_own_room_and_from_those_before_it() -> None:
    for module in MODULES:
        for other in imported(module) & set(MODULES):
            assert RANK[other] <= RANK[module], f"{module} imports {other}, which comes later"


def test_the_trusted_room_imports_numpy_opendp_and_the_standard_library() -> None:
    for module in MODULES:
        if ROOMS[RANK[module]] == "trusted":
            foreign = {name.split(".")[0] for name in imported(module)} - {"trusted"}
            assert foreign <= {"numpy", "opendp", *sys.stdlib_module_names}, module


def test_no_modules_import_each_other_in_a_circle() -> None:
    left = {module: imported(module) & set(MODULES) for module in MODULES}
    while free := [module for module, needs in left.items() if not needs & set(left)]:
        for module in free:
            del left[module]
    assert not left


def test_no_two_modules_differ_by_an_s_and_no_function_has_a_rooms_name() -> None:
    assert not {name for name in MODULES if f"{name}s" in MODULES}
    text = "".join(path.read_text("utf-8") for path in OURS.values())
    assert not set(ROOMS) & set(re.findall(r"^def (\w+)", text, re.MULTILINE))


def redrawn(page: str) -> str:
    """A page with the rooms of today, between the two marks."""
    block = "<!-- layers -->\n```\n{}\n```\n<!-- /layers -->"
    return re.sub(block.format(".*?"), block.format(" → ".join(ROOMS)), page, flags=re.DOTALL)


def test_contributing_draws_the_rooms_as_they_are() -> None:
    page = CONTRIBUTING.read_text("utf-8")
    assert redrawn(page) == page, "draw them anew with: python -m tests.test_layers"


if __name__ == "__main__":
    CONTRIBUTING.write_text(redrawn(CONTRIBUTING.read_text("utf-8")), "utf-8")
