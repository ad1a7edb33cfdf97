"""One direction: a module imports only from those before it.

`python -m tests.test_layers` draws the order anew in CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import re
import textwrap
from functools import cache
from pathlib import Path

import pytest

import privcal

PACKAGE = Path(privcal.__file__).parent
CONTRIBUTING = Path(__file__).parent.parent / "CONTRIBUTING.md"
ROOT = "privcal"

# Names in one row do not import each other. A package stands for all of its modules that have no
# row of their own. Whatever comes after `privcal` is not imported by `import privcal`.
ORDER = [
    ["errors", "version", "plugins", "wording"],
    ["checks"],
    ["crypto"],
    ["files", "scores", "lines", "columns", "threads", "compiled", "binomial"],
    ["tables"],
    ["documents", "readers", "kernel", "pages"],
    ["metrics", "notebook"],
    ["queries", "fit"],
    ["privacy.epsilon"],
    ["question"],
    ["privacy"],
    ["secure.terms"],
    ["source"],
    ["sources", "privacy.explain", "registry", "totals"],
    ["maps"],
    ["sketch", "thresholds"],
    ["refinement"],
    ["methods"],
    ["plausible", "default"],
    ["panels"],
    ["secure"],
    ["calibrate"],
    ["campaign", "description"],
    ["risks"],
    ["datasets", "images", "evaluation", "application"],
    ["simulate"],
    ["plots"],
    ["study"],
    ["advise", "audit"],
    ["displays"],
    [ROOT],
    ["demo", "corruptions", "onnx", "sklearn", "torch"],
    ["rehearsal"],
    ["training", "scoring"],
    ["federation"],
    ["mail"],
    ["cli"],
    ["__main__"],
]
# The order inside a package: its modules, by their names in it; OTHERS are all that no row names,
# and do not import each other either. Its `__init__` is the last unless a row says otherwise. A
# package that is not here has no order inside, but no circle either.
OTHERS = "the others"
INSIDE = {
    "privacy": [
        ["marks", "accounts", "reservations", "laws", "sharing"],
        ["mechanism", "policy", "approvals"],
        ["chain", "shares"],
        ["charging"],
        ["ledger"],
        ["opening"],
    ],
    "sketch": [
        ["answers", "prior"],
        ["model"],
        ["reader"],
        ["evaluation", "offsets"],
        ["risk"],
        ["sketch"],
    ],
    "methods": [["options"], ["base"], ["search"], [OTHERS]],
    "images": [
        ["names", "pickles", "sets"],
        ["image_files"],
        [OTHERS],
        ["packages", "corrupted"],
        ["fetch"],
    ],
    "audit": [["bound", "pairs", "removals", "result"], ["games", "figure"], ["run"]],
    "corruptions": [
        ["table", "random", "filters"],
        [OTHERS],
        ["frost"],
        ["__init__"],
        ["sheet"],
    ],
    "pages": [["html", "scales", "charts"], ["tables", "shell"], ["drawing"], ["figures"]],
    "simulate": [
        ["aggregation"],
        ["answers", "archive", "measure", "streams", "variants"],
        ["population", "ranks", "unlike"],
        ["bins", "curves", "temperatures"],
        ["splits"],
        ["first_source"],
    ],
    "study": [
        ["exact", "grids", "table", "workers", "paper.reported", "paper.theory"],
        ["paper.match"],
        ["results"],
        ["store", "paper.claim", "show.styles", "show.tables", "show.render"],
        ["run", "paper.factors", "paper.overall", "paper.ranking", "paper.without_privacy"],
        ["paper.sweeps", "show.figures"],
        ["paper.claims"],
        ["show.explorer", "show.page_table", "show.factor_charts"],
        ["show.papers_part"],
        ["show.report"],
        [OTHERS],
    ],
    "advise": [
        ["grid", "turnover", "page"],
        ["plan"],
        ["choose", "expect"],
        ["sentences"],
        ["around", "campaigns"],
        ["planner"],
    ],
    "displays": [
        ["diagram"],
        ["reliability", "risk", "plan", "study"],
        ["estimates"],
        ["parts"],
        ["sketch_page", "evaluation_page", "ledger_page", "description_page"],
        ["calibration_page"],
    ],
    "scoring": [["cells", "model"], ["setup"], ["tables"], ["run"], ["rows"]],
    "training": [
        ["recipe", "networks", "batches", "devices", "safetensors"],
        ["checkpoint"],
        ["pretrained"],
        ["logits"],
        ["train"],
    ],
    "federation": [
        ["shared"],
        ["authority", "server", "site", "calibrator"],
        ["inspection", "one_machine"],
    ],
    "onnx": [["outputs", "graph"], ["files"]],
    "mail": [["letters"], [OTHERS], ["watch"]],
    "cli": [
        ["console", "options", "systems", "later"],
        ["exits"],
        ["sketch_report", "ledger_folder", "source_queries"],
        [OTHERS],
        ["ledger", "federation", "site", "data_logits", "calibrate_answers", "rehearse"],
        ["calibrate", "source_answer"],
        ["campaign", "campaign_describe"],
        ["app"],
    ],
}
METHODS_KNOW = {
    "privacy.laws",
    "checks", "errors", "scores", "kernel", "queries", "maps", "privacy.epsilon", "totals",
    "sketch.offsets", "sketch.prior", "sketch.reader", "sketch.sketch", "plugins",
}  # fmt: skip

FILES = {
    ".".join([ROOT, *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(
        ".__init__"
    ): path
    for path in PACKAGE.rglob("*.py")
}
MODULES = {name.removeprefix(f"{ROOT}."): path for name, path in FILES.items()}
"""The files of all modules, by their names without "privcal."; only the root is `privcal`."""


@cache
def imports(module: str) -> frozenset[str]:
    """The modules that one imports, anywhere in its file; asking for the version is free."""
    tree = ast.parse(MODULES[module].read_text("utf-8"))
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    if ROOT in names:  # whatever is taken from it counts, as in `from privcal import ...`
        used = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
        roots = {n.attr for n in used if isinstance(n.value, ast.Name) and n.value.id == ROOT}
        names = names - {ROOT} | {f"{ROOT}.{name}" for name in roots}
    ours = {n for n in names if n.startswith(f"{ROOT}.")} - {f"{ROOT}.__version__"}
    modules = {n if n in FILES else n.rpartition(".")[0] for n in ours}
    return frozenset(n.removeprefix(f"{ROOT}.") for n in modules) - {module}


def row(name: str, rows: list[list[str]]) -> tuple[int, str]:
    """The row of a name, or of the longest beginning of it that has one, and that beginning."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        beginning = ".".join(parts[:length])
        for number, names in enumerate(rows):
            if beginning in names:
                return number, beginning
    if name == "__init__":
        return len(rows), name
    for number, names in enumerate(rows):
        if OTHERS in names:
            return number, name
    raise LookupError(f"{name} has no row yet in tests/test_layers.py")


def place(module: str) -> tuple[tuple[int, ...], str]:
    """The rows of a module, to compare, and the name that it has in the last of them."""
    number, name = row(module, ORDER)
    if name not in INSIDE:
        return (number,), name
    inner, part = row(module[len(name) + 1 :] or "__init__", INSIDE[name])
    return (number, inner), f"{name}.{part}"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_only_from_those_before_it(module: str) -> None:
    numbers, name = place(module)
    for other in imports(module):
        theirs, unit = place(other)
        assert theirs < numbers or unit == name, f"{module} imports {other}, which comes later"


def test_no_modules_import_each_other_in_a_circle() -> None:
    left = {module: set(imports(module)) for module in MODULES}
    while free := [module for module, needs in left.items() if not needs & set(left)]:
        for module in free:
            del left[module]
    needed = set().union(*left.values())
    assert not {module for module in left if module in needed}


def test_every_row_is_about_something() -> None:
    listed = {name for names in ORDER for name in names}
    for package, rows in INSIDE.items():
        listed |= {f"{package}.{name}" for names in rows for name in names if name != OTHERS}
    assert not {name for name in listed if name.removesuffix(".__init__") not in MODULES}


def test_what_is_imported_is_seen_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd.py").write_text(
        "import numpy, privcal.maps\n"
        "import privcal\n"
        "from privcal.privacy import ledger\n"
        "from privcal.scores import Scores\n"
        "def later():\n"
        "    from privcal import queries, __version__\n"
        "    return privcal.ece, privcal.study.run, privcal.__version__\n"
    )
    monkeypatch.setitem(MODULES, "odd", tmp_path / "odd.py")
    assert imports("odd") == {ROOT, "maps", "privacy.ledger", "scores", "queries", "study"}


def test_methods_do_not_know_where_sources_live() -> None:
    for module in MODULES:
        if module.split(".")[0] == "methods":
            known = imports(module)
            assert {n for n in known if n.split(".")[0] != "methods"} <= METHODS_KNOW


# --- the drawing -------------------------------------------------------------------------


def drawing() -> str:
    """The order in text: the whole, then the inside of each package."""
    lines = [_drawn("", ORDER)]
    lines += [_drawn(f"{package}: ", rows) for package, rows in INSIDE.items()]
    return "\n".join(lines) + "\n"


def _drawn(title: str, rows: list[list[str]]) -> str:
    text = title + " → ".join(", ".join(names) for names in rows)
    return textwrap.fill(text, 98, subsequent_indent="  ", break_on_hyphens=False)


def redrawn(page: str) -> str:
    """A page with the drawing of today: it is the block between the two marks."""
    return re.sub(
        r"(<!-- layers -->\n```\n).*?(```\n<!-- /layers -->)",
        lambda found: found[1] + drawing() + found[2],
        page,
        flags=re.DOTALL,
    )


def test_contributing_draws_the_order_as_it_is() -> None:
    page = CONTRIBUTING.read_text("utf-8")
    assert drawing() in page, "draw it anew with: python -m tests.test_layers"


if __name__ == "__main__":
    CONTRIBUTING.write_text(redrawn(CONTRIBUTING.read_text("utf-8")), "utf-8")
