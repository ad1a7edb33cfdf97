"""The mutants as data, and the promises that need them."""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
SOURCE = ROOT / "src"

NEEDED = {"README.md": 2, "docs/promises.md": 1, "docs/security.md": 1}
"""The pages with a table of promises, and how many mutants each row needs."""


class BadMutant(Exception):
    """A mutant that cannot be applied, and why."""


@dataclass(frozen=True)
class Mutant:
    """One change of the source that a test must notice."""

    topic: str
    """The name of its file."""
    number: int
    """Its place there, from 1."""
    function: str
    old: str
    new: str
    promise: str
    test: str

    def __str__(self) -> str:
        return f"{self.topic} {self.number} ({self.function})"

    def says(self, words: str) -> bool:
        """Whether it has these words somewhere."""
        return any(words in text for text in (self.function, self.test, self.promise))

    def applied(self) -> tuple[Path, str]:
        """The file that it changes, from the source's folder on, and the new text of that file."""
        file, place = self._file()
        text = file.read_text("utf-8")
        spans = _spans(text, place)
        if not spans:
            raise BadMutant(f"there is no {self.function}")
        found = [start for first, last in spans for start in _all(text, self.old, first, last)]
        if len(found) != 1:
            raise BadMutant(f"{self.function} has the old text {len(found)} times, not once")
        changed = text[: found[0]] + self.new + text[found[0] + len(self.old) :]
        try:
            compile(changed, str(file), "exec")
        except SyntaxError as error:
            raise BadMutant(f"changed so, {self.function} is not Python: {error}") from None
        return file.relative_to(SOURCE), changed

    def check_test(self) -> None:
        """Raise unless the test that it names is there."""
        file, _, name = self.test.partition("::")
        if not (ROOT / file).is_file() or name.partition("[")[0] not in _tests(ROOT / file):
            raise BadMutant(f"there is no test {self.test}")

    def _file(self) -> tuple[Path, list[str]]:
        """The module that its function is in, and the names from there on."""
        parts = self.function.split(".")
        for end in range(len(parts) - 1, 0, -1):
            base = SOURCE.joinpath(*parts[:end])
            for file in (base.with_suffix(".py"), base / "__init__.py"):
                if file.is_file():
                    return file, parts[end:]
        raise BadMutant(f"there is no module of {self.function}")


def mutants() -> list[Mutant]:
    """All mutants, file by file."""
    return [
        Mutant(file.stem, number, **entry)
        for file in sorted(HERE.glob("*.toml"))
        for number, entry in enumerate(tomllib.loads(file.read_text("utf-8"))["mutant"], 1)
    ]


def promises(page: str) -> list[tuple[str, frozenset[str]]]:
    """Each row of a page's table of promises: its words, and the tests that it names."""
    rows, inside = [], False
    for line in (ROOT / page).read_text("utf-8").splitlines():
        inside = line.startswith("| promise |") or (inside and line.startswith("|"))
        if inside and not line.startswith(("| promise |", "|--")):
            named = re.findall(r"`(tests/[\w/]+\.py::\w+)`", line)
            rows.append((line.split("|")[1].strip(), frozenset(named)))
    return rows


def _spans(text: str, names: list[str]) -> list[tuple[int, int]]:
    """From where to where the text has what is named, for each time that it is defined."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    nodes: list[ast.AST] = [ast.parse(text)]
    for name in names:
        nodes = [
            inner for node in nodes for inner in getattr(node, "body", []) if name in _named(inner)
        ]
    spans = []
    for node in nodes:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        spans.append((starts[first - 1], starts[node.end_lineno]))
    return spans


def _named(node: ast.AST) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
    return {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}


def _all(text: str, old: str, first: int, last: int) -> list[int]:
    found, at = [], text.find(old, first, last)
    while at >= 0:
        found.append(at)
        at = text.find(old, at + 1, last)
    return found


@lru_cache
def _tests(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text("utf-8"))
    return frozenset(n.name for n in tree.body if isinstance(n, ast.FunctionDef))
