"""What runs at a hospital is in the tree: each party's processes import its folder and `shared`.

Looked at twice: in the text of every module, imports inside functions included, and in real
processes, by what they have loaded.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import privcal.transport.federation

ROOT = "privcal.transport.federation"
FOLDER = Path(privcal.transport.federation.__file__).parent
MAY_IMPORT: dict[str, set[str]] = {
    "shared": set(),
    "site": {"shared"},
    "server": {"shared"},
    "calibrator": {"shared"},
    "authority": {"shared"},
    "inspection": {"shared", "site"},  # it looks at a site's settings and ledgers
    "one_machine": {"shared", "site", "calibrator", "authority"},
}
WITH_DATA = ("site.worker", "site.ahead")
"""Those that read rows, and have no network."""
PROCESSES = (*WITH_DATA, "site.service", "site.cell", "server", "calibrator.panel")


def modules() -> dict[str, Path]:
    names = {}
    for path in FOLDER.rglob("*.py"):
        parts = path.relative_to(FOLDER).with_suffix("").parts
        names[".".join((ROOT, *parts)).removesuffix(".__init__")] = path
    return names


MODULES = modules()


def party(module: str) -> str:
    """The first name behind `privcal.transport.federation`; empty for the package itself."""
    return module.removeprefix(ROOT).lstrip(".").split(".")[0]


def imports(module: str) -> set[str]:
    """The modules of the federation that the text of one names, wherever in it."""
    names: set[str] = set()
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(MODULES[module].read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1]
            start = ".".join(base) if node.level else ""
            origin = ".".join(filter(None, (start, node.module)))
            names |= {origin, *(f"{origin}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call) and "import" in ast.unparse(node.func):
            names |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    return names & set(MODULES)


def reached(module: str) -> set[str]:
    """All modules of the federation that come with one, through whatever others."""
    seen: set[str] = set()
    todo = {module}
    while todo:
        name = todo.pop()
        seen.add(name)
        todo |= imports(name) - seen
    return seen


def test_every_module_belongs_to_a_party() -> None:
    assert {party(name) for name in MODULES} - {""} == set(MAY_IMPORT)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_only_its_own_party_and_what_that_may(module: str) -> None:
    own = party(module)
    allowed = {own, ""} | MAY_IMPORT.get(own, set())
    assert {name for name in imports(module) if party(name) not in allowed} == set()


@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_reaches_nothing_of_another_party(process: str) -> None:
    names = reached(f"{ROOT}.{process}")
    assert {party(name) for name in names} - {""} == {party(f"{ROOT}.{process}"), "shared"}


def loaded(*names: str) -> set[str]:
    """What a process of its own has loaded after importing these modules."""
    code = f"import {', '.join(f'{ROOT}.{name}' for name in names)}, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("own", "names"),
    [
        ("site", ("site.service", "site.cell")),
        *(("site", (name,)) for name in WITH_DATA),
        ("server", ("server",)),
        ("calibrator", ("calibrator.panel",)),
    ],
)
def test_a_running_process_has_loaded_nothing_of_another_party(
    own: str, names: tuple[str, ...]
) -> None:
    pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")
    found = loaded(*names)
    ours = {name for name in found if name.startswith(f"{ROOT}.")}
    assert {party(name) for name in ours} == {own, "shared"}
    network = {"nvflare", "aiohttp", "grpc"} & found
    assert network == set() if names[0] in WITH_DATA else "nvflare" in network


def test_the_process_that_has_the_network_does_not_load_the_one_that_reads_rows() -> None:
    pytest.importorskip(
        "cryptography", reason="needs cryptography: pip install privcal[federation]"
    )
    with_data = {f"{ROOT}.{name}" for name in WITH_DATA}
    assert not {*with_data, "onnx", "onnxruntime"} & loaded("site.service")
