"""The documents tell the truth."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import privcal
from privcal.errors import REFUSALS
from privcal.queries import FAMILY

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize(("page", "least"), [("README.md", 15), ("docs/security.md", 12)])
def test_every_promise_names_a_test_that_exists(page: str, least: int) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / page).read_text("utf-8"))
    assert len(named) > least
    for file, test in named:
        tree = ast.parse((ROOT / file).read_text("utf-8"))
        assert test in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, test


def test_the_readmes_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [code] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    assert privcal.load_map("map.json").private


def test_the_readmes_policy_is_a_policy(tmp_path: Path) -> None:
    [text] = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    (tmp_path / "p.toml").write_text(text)
    assert privcal.Policy.load(tmp_path / "p.toml").askers == ("acme",)


def test_methods_queries_and_refusals_are_all_documented() -> None:
    privacy = (ROOT / "docs" / "privacy.md").read_text("utf-8")
    assert all(f"`{name}`" in README for name in privcal.methods.names())
    assert all(f"`{kind}`" in privacy for kind in FAMILY)
    assert all(f"`{code}`" in privacy for code in REFUSALS)
