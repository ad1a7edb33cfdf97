"""The documents tell the truth."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import privcal
from privcal.errors import REFUSALS
from privcal.queries import FAMILY

ROOT = Path(__file__).parent.parent
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for pattern in ("*.md", "docs/*.md", "deploy/*.md", "examples/*.md")
    for path in sorted(ROOT.glob(pattern))
}
README = PAGES["README.md"]


@pytest.mark.parametrize(("page", "least"), [("README.md", 15), ("docs/security.md", 12)])
def test_every_promise_names_a_test_that_exists(page: str, least: int) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / page).read_text("utf-8"))
    assert len(named) > least
    for file, test in named:
        tree = ast.parse((ROOT / file).read_text("utf-8"))
        assert test in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, test


def blocks(language: str) -> list[Any]:
    """The code blocks of every page, each with the name of its page."""
    return [
        pytest.param(code, id=f"{page}-{number}")
        for page, text in PAGES.items()
        for number, code in enumerate(re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL))
    ]


@pytest.mark.parametrize("code", blocks("python"))
def test_code_on_a_page_is_python_and_runs_where_it_is_complete(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = compile(code, "page", "exec")
    monkeypatch.chdir(tmp_path)
    if "import privcal" in code:  # others are fragments, or need data that are not here
        exec(program, {})
    assert ("map.json" in code) == Path("map.json").exists()


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!\w+:)([^)\s]+)\)", PAGES[page]):
        file, _, anchor = target.partition("#")
        path = (ROOT / page).parent / file if file else ROOT / page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path.read_text("utf-8")), target


def anchors(text: str) -> set[str]:
    """What GitHub makes of the headings of a page."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_words_name_classes_and_modules_that_exist() -> None:
    sources = {path: path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py")}
    classes = {
        name for text in sources.values() for name in re.findall(r"^class (\w+)", text, re.M)
    }
    modules = {".".join(path.relative_to(ROOT / "src").with_suffix("").parts) for path in sources}
    modules |= {name.removesuffix(".__init__") for name in modules}
    named = re.findall(r"`([A-Z]\w+|privcal\.[\w.]+)`", PAGES["docs/words.md"])
    assert len(named) > 30
    assert set(named) <= classes | modules


def test_no_word_is_explained_twice() -> None:
    words = re.findall(r"\*\*(.+?)\*\*", PAGES["docs/words.md"])
    assert len(words) == len(set(words))


def test_the_readmes_policy_is_a_policy(tmp_path: Path) -> None:
    [text] = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    (tmp_path / "p.toml").write_text(text)
    assert privcal.Policy.load(tmp_path / "p.toml").askers == ("acme",)


def test_methods_queries_and_refusals_are_all_documented() -> None:
    privacy = (ROOT / "docs" / "privacy.md").read_text("utf-8")
    assert all(f"`{name}`" in README for name in privcal.methods.names())
    assert all(f"`{kind}`" in privacy for kind in FAMILY)
    assert all(f"`{code}`" in privacy for code in REFUSALS)
