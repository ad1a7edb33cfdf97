"""The Markdown pages of the project, and the code blocks on them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
WHERE = (
    "*.md",
    "docs/*.md",
    "docs/roles/*.md",
    "docs/tutorials/*.md",
    "deploy/*.md",
    "examples/*.md",
)
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for pattern in WHERE
    for path in sorted(ROOT.glob(pattern))
}

SAID = re.compile(r"<!-- (?:not run: \S.*|run by `tests/\S+`) -->")
NO_SHELL = re.compile(r"<!-- shell blocks here are not run: \S.* -->")


@dataclass(frozen=True)
class Block:
    """A fenced code block."""

    page: str
    line: int
    """Where its fence is."""
    language: str
    code: str
    marked: bool
    """Whether the page says, before it, why it is not run here, or what else runs it."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str, text: str) -> list[Block]:
    """All fenced blocks of a page, in their order."""
    found, lines = [], text.splitlines()
    no_shell = any(NO_SHELL.fullmatch(line) for line in lines)
    start = None
    for number, line in enumerate(lines):
        if not line.lstrip().startswith("```"):
            continue
        if start is None:
            start = number
            continue
        before = next((above for above in reversed(lines[:start]) if above.strip()), "")
        language = lines[start].strip().strip("`")
        if before == "<!-- layers -->":  # drawn by tests/test_layers.py
            language = "text"
        marked = bool(SAID.fullmatch(before.strip())) or (no_shell and language == "sh")
        code = "\n".join(lines[start + 1 : number]) + "\n"
        found.append(Block(page, start + 1, language, code, marked))
        start = None
    assert start is None, f"{page}: the block of line {start} has no end"
    return found


BLOCKS = [block for page, text in PAGES.items() for block in blocks(page, text)]
