"""The documents tell the truth."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import privcal
from privcal.trusted.errors import REFUSALS
from privcal.trusted.queries import FAMILY
from tests.support.pages import BLOCKS, PAGES, ROOT, Block, blocks

README = PAGES["README.md"]


@pytest.mark.parametrize(
    ("page", "least"), [("README.md", 7), ("docs/promises.md", 30), ("docs/security.md", 12)]
)
def test_every_promise_names_a_test_that_exists(page: str, least: int) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / page).read_text("utf-8"))
    assert len(named) > least
    for file, test in named:
        tree = ast.parse((ROOT / file).read_text("utf-8"))
        assert test in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, test


def test_every_file_of_ours_that_a_page_names_exists() -> None:
    for page, text in PAGES.items():
        for name in re.findall(r"`((?:tests|src|benchmarks|examples|docs)/[\w./]+)`", text):
            assert (ROOT / name).exists(), f"{page}: {name}"


def test_the_readme_is_short_and_shows_the_picture_first() -> None:
    assert len(README.splitlines()) < 300
    picture = README.index("](docs/before-after.png)")
    assert picture < README.index("\n## ")


# --- code blocks -------------------------------------------------------------------------

DATA = {"toml", "json", "text"}
"""Languages of blocks that are no program: the first two are parsed, `text` is what was printed."""


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_code_block_is_run_or_says_why_not(block: Block) -> None:
    known = block.language in {"python", "pycon", "sh", *DATA}
    assert known, f"{block}: {block.language!r}: say python, pycon, sh, toml, json or text"
    if block.language not in DATA and not is_run(block):
        assert block.marked, f"{block} is not run: put <!-- not run: why --> before it"


def is_run(block: Block) -> bool:
    """By pytest as a doctest, by tests/test_tutorials.py, or below."""
    if ">>>" in block.code or block.page.startswith("docs/tutorials/"):
        return True
    return block.language == "python" and not block.marked


def test_a_block_without_a_mark_is_noticed() -> None:
    [said, silent] = blocks("p", "<!-- not run: slow -->\n```sh\na\n```\nx\n```sh\nb\n```\n")
    assert (said.marked, silent.marked) == (True, False)
    assert [b.marked for b in blocks("p", "<!-- not run: -->\n```sh\na\n```\n")] == [False]


def python_blocks() -> list[Any]:
    return [
        pytest.param(block, id=str(block))
        for block in BLOCKS
        if block.language == "python" and ">>>" not in block.code
    ]


@pytest.mark.parametrize("block", python_blocks())
def test_code_on_a_page_is_python_and_runs_unless_it_is_marked(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = compile(block.code, str(block), "exec")
    monkeypatch.chdir(tmp_path)
    if is_run(block) and not block.page.startswith("docs/tutorials/"):
        exec(program, {})
        assert ('save("map.json")' in block.code) == Path("map.json").exists()


def test_data_on_a_page_can_be_read() -> None:
    tables = [tomllib.loads(block.code) for block in BLOCKS if block.language == "toml"]
    assert len(tables) > 3


# --- commands ----------------------------------------------------------------------------


def named_commands(page: str) -> Iterator[list[str]]:
    """The words of every privcal command in a page's code, inline or in a block."""
    text = PAGES[page].replace("\\\n", " ")
    inline = re.findall(
        r"(?<!`)`(privcal (?!request )[^`]+)`(?!`)", re.sub(r"(?s)```.*?```", "", text)
    )
    shell = [
        line.strip().removeprefix("$ ")
        for block in blocks(page, text)
        if block.language in ("sh", "text")
        for line in block.code.splitlines()
    ]
    for command in inline + [line for line in shell if line.startswith("privcal ")]:
        yield shlex.split(command.replace("\n", " "), comments=True)[1:]


def strange(words: list[str]) -> list[str]:
    """What of the words of a command is no command or no option of ours."""
    from privcal.cli.app import app

    command: Any = typer.main.get_command(app)
    while (inner := getattr(command, "commands", None)) and words and words[0][0] != "-":
        if words[0] not in inner:
            return [words[0]]
        command, words = command.resolve_command(None, words)[1:]
    known = {name for p in command.params for name in (*p.opts, *p.secondary_opts)} | {"--help"}
    given = [word.partition("=")[0] for word in words if word.startswith("--")]
    return [option for option in given if option not in known]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_option_that_a_page_names_exists(page: str) -> None:
    unknown = {" ".join(words): strange(words) for words in named_commands(page)}
    assert not {command: words for command, words in unknown.items() if words}


def test_a_command_that_is_not_there_is_noticed() -> None:
    assert strange(["ledger", "shw", "x"]) == ["shw"]
    assert strange(["ledger", "show", "x", "--jsn"]) == ["--jsn"]
    assert strange(["ledger", "show", "x", "--json"]) == []
    assert strange(["--version"]) == []


# --- links -------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!\w+:)([^)\s]+)\)", PAGES[page]):
        file, _, anchor = target.partition("#")
        path = (ROOT / page).parent / file if file else ROOT / page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path.read_text("utf-8")), target


@pytest.mark.parametrize("page", PAGES)
def test_no_picture_comes_from_elsewhere(page: str) -> None:
    assert not re.findall(r"!\[[^\]]*\]\(\w+:|<img", PAGES[page])


def anchors(text: str) -> set[str]:
    """What GitHub makes of the headings of a page."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# --- words, methods, policy --------------------------------------------------------------


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


def test_the_policy_on_the_page_is_a_policy(tmp_path: Path) -> None:
    texts = re.findall(r"```toml\n(.*?)```", PAGES["docs/privacy.md"], re.DOTALL)
    (tmp_path / "p.toml").write_text(texts[0])
    assert privcal.Policy.load(tmp_path / "p.toml").askers == ("acme",)
    (tmp_path / "p.toml").write_text(texts[1])
    secure = privcal.Policy.load(tmp_path / "p.toml").secure
    assert secure is not None
    assert (secure.colluding, secure.required) == (10, True)


def test_methods_queries_and_refusals_are_all_documented() -> None:
    privacy, methods = PAGES["docs/privacy.md"], PAGES["docs/methods.md"]
    [given] = re.findall(r"(?s)## What each gives\n(.*?)\n\n\w", methods)
    assert all(f"`{name}`" in given for name in privcal.methods.names())
    assert all(f"`{kind}`" in privacy for kind in FAMILY)
    assert all(f"`{code}`" in privacy for code in REFUSALS)
