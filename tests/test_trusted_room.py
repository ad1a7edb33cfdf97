"""How much an auditor has to read: what a source loads, what a site's data process loads, and the guide.

`python -m tests.test_trusted_room` writes today's numbers of lines into trusted/READING.md.
"""

from __future__ import annotations

import ast
import re
import tokenize
from pathlib import Path

import pytest

import privcal
from tests.support.builders import python

PACKAGE = Path(privcal.__file__).parent
GUIDE = PACKAGE / "trusted" / "READING.md"
MOST = {"privcal.trusted.source": 2_500, "privcal.transport.site.worker": 4_800}
"""The most lines of code that importing these may load. They may only be lowered."""
OUTSIDE = ("data/lines.py", "data/scores.py", "data/scoring/model.py", "data/ledger.py", "secure/shares.py",
           "secure/sharing.py", "secure/terms.py", "secure/participant.py")  # fmt: skip
"""Modules outside of the room on which a promise rests too: one row read or scored alone, secure sums."""


def code_lines(path: Path) -> int:
    """The lines of a file that are code: no imports, docstrings, comments or blank lines."""
    text = path.read_text("utf-8")
    code = {n for n, line in enumerate(text.splitlines(), 1) if line.strip()}
    for node in ast.walk(ast.parse(text)):
        value = getattr(node, "value", None)
        words = isinstance(node, ast.Expr) and isinstance(getattr(value, "value", None), str)
        if words or isinstance(node, (ast.Import, ast.ImportFrom)):
            code -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip():
                code.discard(token.start[0])
    return len(code)


def loaded(module: str) -> list[Path]:
    """The files of ours that importing a module loads, in a process of its own."""
    ours = "[m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'privcal']"
    told = python(f"import sys, {module}; print(*{ours}, sep='\\n')")
    assert told.returncode == 0, told.stderr
    return [Path(line) for line in told.stdout.split("\n") if line]


@pytest.mark.parametrize("module", MOST)
def test_what_an_auditor_must_believe_does_not_grow(module: str) -> None:
    if "site" in module:
        pytest.importorskip("cryptography", reason="a site needs cryptography: privcal[secure]")
    lines = sum(map(code_lines, loaded(module)))
    print(f"{module}: {lines:,} lines of code")
    assert lines <= MOST[module]


def table() -> str:
    """The modules in the order in which the guide names them, with their lines of code."""
    named = re.findall(r"^\d+\. `([a-z_]+)`", GUIDE.read_text("utf-8"), re.MULTILINE)
    paths = [f"trusted/{name}.py" for name in named]
    rows = [f"| `{path}` | {code_lines(PACKAGE / path):,} |" for path in (*paths, *OUTSIDE)]
    return "\n".join(["| module | lines of code |", "|---|---:|", *rows])


def redrawn(page: str) -> str:
    """The guide with today's numbers."""
    marks = "<!-- lines -->\n{}\n<!-- /lines -->"
    return re.sub(marks.format(".*?"), marks.format(table()), page, flags=re.DOTALL)


def test_the_guide_names_every_module_of_the_room_once_with_its_lines() -> None:
    page = GUIDE.read_text("utf-8")
    named = re.findall(r"^\d+\. `([a-z_]+)`", page, re.MULTILINE)
    there = {path.stem for path in (PACKAGE / "trusted").glob("*.py")} - {"__init__"}
    assert (len(named), set(named)) == (len(there), there)
    assert redrawn(page) == page, "write today's numbers with: python -m tests.test_trusted_room"


def test_every_test_that_the_guide_names_exists() -> None:
    root = Path(__file__).parent.parent
    cited = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", GUIDE.read_text("utf-8"))
    assert cited
    for file, test in cited:
        assert f"def {test}(" in (root / file).read_text("utf-8"), f"{file}::{test}"


if __name__ == "__main__":
    GUIDE.write_text(redrawn(GUIDE.read_text("utf-8")), "utf-8")
