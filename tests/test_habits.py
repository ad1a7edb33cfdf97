"""What surrounds the code agrees with it: formats, walks, versions, hooks, stages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import privcal

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "privcal"


def text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def constants() -> dict[str, object]:
    """Each FORMAT, VERSION and APPLICATION_ID that a module of ours writes down, by its full name."""
    found: dict[str, object] = {}
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(
                node.value, ast.Constant
            ):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for name in (t.id for t in targets if isinstance(t, ast.Name)):
                    if re.fullmatch(r"_?([A-Z]+_)*(FORMAT|VERSION|APPLICATION_ID)", name):
                        found[f"{module.removesuffix('.__init__')}.{name}"] = node.value.value
    return found


def test_every_formats_version_is_on_the_page_of_formats_with_its_value() -> None:
    written = dict(re.findall(r"`(privcal\.[\w.]+)` = `([^`]+)`", text("docs/formats.md")))
    known = {name: f'"{v}"' if isinstance(v, str) else str(v) for name, v in constants().items()}
    assert len(known) > 8
    assert written == known


def walks() -> dict[str, list[str]]:
    """The modules that each walk of CONTRIBUTING stops at, in their order."""
    page = text("CONTRIBUTING.md").partition("\n## Three walks\n")[2].partition("\n## ")[0]
    parts = re.split(r"^\*\*(\w)\. ", page, flags=re.MULTILINE)
    return {
        letter: re.findall(r"^\| `([\w.]+)` \|", walk, flags=re.MULTILINE)
        for letter, walk in zip(parts[1::2], parts[2::2], strict=True)
    }


@pytest.mark.parametrize("letter", ["A", "B", "C"])
def test_a_walk_stops_at_modules_that_exist_and_at_each_once(letter: str) -> None:
    stops = walks()[letter]
    assert len(stops) > 5
    assert len(set(stops)) == len(stops)
    for stop in stops:
        path = PACKAGE.joinpath(*stop.split("."))
        assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file(), stop


def test_one_version_is_said_everywhere() -> None:
    [cited] = re.findall(r"^version: (\S+)$", text("CITATION.cff"), flags=re.MULTILINE)
    [newest, *_] = re.findall(r"^## (\S+)", text("CHANGELOG.md"), flags=re.MULTILINE)
    assert {cited, newest} == {privcal.__version__}
    [step] = re.findall(
        r"^4\. \*\*Version\.\*\* (.*?)\. ", text("RELEASING.md"), flags=re.MULTILINE
    )
    for file in re.findall(r"`(.*?)`", step):
        assert privcal.__version__ in text(file), f"RELEASING.md: {file} has no version"


def commands(target: str) -> list[str]:
    """The lines of a target of the Makefile."""
    [recipe] = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", text("Makefile"), flags=re.MULTILINE)
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe.splitlines()]


def test_the_hooks_before_a_commit_run_what_make_runs() -> None:
    hooks = re.findall(r"^ *entry: (.*)$", text(".pre-commit-config.yaml"), flags=re.MULTILINE)
    assert hooks == [*commands("lint"), *commands("types")]


def test_make_help_tells_of_every_target() -> None:
    [phony] = re.findall(r"^\.PHONY: (.*)$", text("Makefile"), flags=re.MULTILINE)
    told = re.findall(r"^([a-z]+):.*## \S", text("Makefile"), flags=re.MULTILINE)
    assert sorted(told) == sorted(phony.split())


def test_ci_runs_what_is_fast_first_and_then_everything() -> None:
    steps = [line for line in text(".ci/run").splitlines() if line.startswith("make ")]
    assert [step.split()[-1] for step in steps] == ["quick", "test", "prove"]
    assert not {"federation", "train"} & set(steps[0].split())


@pytest.mark.xdist_group("kept together")
def test_tests_of_a_group_are_kept_together(request: pytest.FixtureRequest) -> None:
    """Groups are told by the name of a test, and where that does not work nothing says so: a whole
    federation would be started for each worker."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("groups are for workers: -n 2 --dist loadgroup")
    assert request.node.nodeid.endswith("@kept together")
