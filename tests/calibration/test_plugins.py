"""A method with a map of its own, from another package, is everywhere: CONTRIBUTING's example.

The package is a real distribution: a folder with a module and a `dist-info`, on the path.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path

import polars as pl
import pytest

from tests.support.builders import COMMAND, a_clinic, an_archive, python

CONTRIBUTING = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text("utf-8")
SECTION = re.split(r"^## ", CONTRIBUTING, flags=re.MULTILINE)
[METHOD] = [text for text in SECTION if text.startswith("A method\n")]
[EXAMPLE] = re.findall(r"```python\n(.*?)```", METHOD, re.DOTALL)
[PROJECT] = re.findall(r"```toml\n(.*?)```", METHOD, re.DOTALL)


def install(folder: Path, package: str, code: str, project: str = PROJECT) -> Path:
    """A distribution as pip would leave it: the module, and what its entry points are."""
    [(group, entries)] = tomllib.loads(project)["project"]["entry-points"].items()
    for module in entries.values():
        file = folder.joinpath(*module.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code, "utf-8")
    about = folder / f"{package}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {module}" for name, module in entries.items()]
    (about / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    return folder


def python_with(
    path: Path | None, folder: Path, code: str, *args: object
) -> subprocess.CompletedProcess[str]:
    """Python in `folder`, with the packages in `path` beside ours."""
    import privcal

    found = [str(Path(privcal.__file__).parent.parent), *([] if path is None else [str(path)])]
    return python(code, *args, folder=folder, PYTHONPATH=os.pathsep.join(found), COLUMNS="200")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("site"), "my_package", EXAMPLE)


@pytest.fixture(scope="module")
def work(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with scores, an archive, and the map that the command wrote of them."""
    folder = tmp_path_factory.mktemp("work")
    a_clinic(folder / "clinic.npz", 300, seed=3)
    an_archive(folder / "tiny.npz", clean=1, fog=2)
    (folder / "grid.toml").write_text("[sources]\nvalues = [2, 4]\nsamples = 5\nepsilon = 1.0\n")
    new = ("--new-ledger", "--per-row", "--epsilon", 1, "--out", "map.json", "--json")
    said = command(folder, site, "calibrate", "clinic.npz", "--method", "constant", *new)
    assert json.loads(said)["map"]["kind"] == "constant"
    assert json.loads(said)["spent"] == {"clinic": 1.0}
    return folder


def command(folder: Path, site: Path, *args: object) -> str:
    done = python_with(site, folder, COMMAND, *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_is_short_and_touches_nothing_private() -> None:
    assert len([line for line in EXAMPLE.splitlines() if line.strip()]) <= 25
    assert not re.search(r"\b_(?!_)|\._", EXAMPLE)


def test_its_map_is_read_applied_and_evaluated(site: Path, work: Path) -> None:
    value = json.loads((work / "map.json").read_text())["value"]
    assert 0.5 < value < 1
    load = "import privcal; print(privcal.load_map('map.json').value)"  # no method is named here
    assert float(python_with(site, work, load).stdout) == value
    command(work, site, "apply", "map.json", "clinic.npz", "--out", "applied.parquet")
    assert pl.read_parquet(work / "applied.parquet")["confidence"].unique().to_list() == [value]
    said = command(work, site, "evaluate", "clinic.npz", "--map", "map.json", "--json")
    assert json.loads(said)["after"]["mean_confidence"] == pytest.approx(value)


def test_a_map_of_a_package_that_is_not_installed_is_told_so(work: Path) -> None:
    done = python_with(None, work, COMMAND, "apply", "map.json", "clinic.npz", "--out", "x.parquet")
    assert done.returncode == 2
    assert "unknown kind 'constant'" in done.stderr
    assert "may not be installed" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_it_is_in_a_study_whatever_the_process(site: Path, work: Path) -> None:
    """Two shifts on two processes, which are started afresh and find the method by themselves."""
    options = ("--grid", "grid.toml", "--trials", 4, "--jobs", 2, "--methods", "constant,acc-t")
    command(work, site, "study", "run", "tiny.npz", *options, "--out", "study")
    frame = pl.read_parquet(work / "study" / "results.parquet")
    assert set(frame["method"]) == {"constant", "acc-t"}
    assert frame.filter(frame["method"] == "constant")["ece_mean"].is_between(0, 1).all()


def test_it_is_in_a_plan(site: Path, work: Path) -> None:
    setting = ("--sources", 4, "--samples", 10, "--epsilon", 1, "--trials", 10)
    said = json.loads(command(work, site, "advise", "--archive", "tiny.npz", *setting, "--json"))
    assert "constant" in json.dumps(said["point"])


def test_it_is_in_the_demo(site: Path, work: Path) -> None:
    setting = ("--sources", 4, "--samples", 10, "--epsilon", 5, "--out", "demo")
    said = command(work, site, "demo", *setting)
    assert re.search(r"^ ?constant +constant +0\.", said, re.MULTILINE)
    assert (work / "demo" / "maps" / "constant.json").exists()


def test_the_package_is_not_imported_before_it_is_needed(site: Path, work: Path) -> None:
    code = "import sys, privcal; print('my_package.constant' in sys.modules); privcal.methods.{}"
    for use, loaded in (("names()", True), ("make('constant')", True), ("make('acc-t')", False)):
        ask = code.format(use) + "; print('my_package.constant' in sys.modules)"
        assert python_with(site, work, ask).stdout.split() == ["False", str(loaded)]


BROKEN = {
    "raises": "raise RuntimeError('out of order\\nand of luck')",
    "exits": "raise SystemExit(3)",
    "lacks": "import no_such_module",
    "is no Python": "def",
    "takes a name that is taken": EXAMPLE.replace('"constant"', '"acc-t"'),
    "is no method": EXAMPLE.replace("(methods.Method)", ""),
    "has a field that no file holds": EXAMPLE.replace("value: float", "value: np.ndarray"),
}


@pytest.mark.parametrize("code", BROKEN.values(), ids=BROKEN)
def test_a_broken_package_is_one_warning_and_the_others_work(code: str, tmp_path: Path) -> None:
    site = install(tmp_path / "site", "my_package", EXAMPLE)
    other = PROJECT.replace("my_package.constant", "broken.bad").replace("constant =", "bad =")
    install(site, "broken", code, other)
    names = (
        "import privcal; [privcal.methods.names() for _ in 'ab']; print(privcal.methods.names())"
    )
    done = python_with(site, tmp_path, names)
    assert done.returncode == 0, done.stderr
    assert "'constant'" in done.stdout
    assert "'acc-t'" in done.stdout
    assert done.stderr.count("Warning") == 1
    [line] = [line for line in done.stderr.splitlines() if "Warning" in line]
    assert "the method 'bad' of package broken is left out" in line
    assert ("out of order" in line) == ("of luck" in line)
