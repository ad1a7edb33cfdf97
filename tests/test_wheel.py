"""What is released: both archives are built, have what they should, and run outside the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest

import privcal

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LIBRARY = "privcal/calibration/libcompiled.so"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("wheel"),  # built once
    pytest.mark.skipif(
        find_spec("hatchling") is None, reason="hatchling, which builds the wheel, is not installed"
    ),
]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source archive, built from this checkout as it is."""
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel], [source] = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, source


@pytest.fixture(scope="module")
def installed(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's modules and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    with ZipFile(archives[0]) as wheel:
        wheel.extractall(folder)
    return folder


def python(installed: Path, folder: Path, program: str, *args: str) -> str:
    """What a program prints that has the wheel, and the checkout nowhere: not as its folder either."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    environment |= {"PYTHONPATH": str(installed), "PRIVCAL_MARKS": str(folder / "marks.db")}
    command = [sys.executable, "-c", program, *args]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def privcal_command(installed: Path, folder: Path, *args: str) -> str:
    return python(installed, folder, "from privcal.cli.app import main; main()", *args)


def test_the_wheel_holds_the_package_and_nothing_else(archives: tuple[Path, Path]) -> None:
    here = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "privcal").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    } - {LIBRARY}
    with ZipFile(archives[0]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        [metadata] = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
        facts = Parser().parsestr(wheel.read(metadata).decode("utf-8"))
    assert names - {LIBRARY} == here
    assert {Path(name).suffix for name in names} >= {".npz", ".json", ".css", ".toml", ".typed"}
    assert facts["Version"] == privcal.__version__
    assert set(facts.get_all("Provides-Extra") or ()) == set(
        PROJECT["project"]["optional-dependencies"]
    )


def test_a_wheel_is_for_this_platform_if_and_only_if_the_kernel_is_compiled_in_it(
    archives: tuple[Path, Path],
) -> None:
    with ZipFile(archives[0]) as wheel:
        assert (LIBRARY in wheel.namelist()) is not archives[0].name.endswith("-py3-none-any.whl")


@pytest.mark.parametrize("compiler", ["", "no-such-compiler", "false"])
def test_without_a_compiler_the_wheel_is_for_every_platform_and_works(
    compiler: str, tmp_path: Path
) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    environment = os.environ | {"CC": compiler}
    done = subprocess.run(build, cwd=ROOT, check=True, capture_output=True, env=environment)
    [wheel] = tmp_path.glob("*-py3-none-any.whl")
    assert (done.stdout + done.stderr).split() == [str(wheel).encode()]  # not a word about it
    with ZipFile(wheel) as archive:
        assert LIBRARY not in archive.namelist()
        archive.extractall(tmp_path / "installed")
    said = privcal_command(tmp_path / "installed", tmp_path, "--version")
    assert said == f"privcal {privcal.__version__} (kernel: numpy)\n"


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler here")
def test_with_a_compiler_the_wheel_has_the_kernel_in_c(installed: Path, tmp_path: Path) -> None:
    said = privcal_command(installed, tmp_path, "--version")
    assert said == f"privcal {privcal.__version__} (kernel: c)\n"


def test_the_source_archive_has_what_is_promised(archives: tuple[Path, Path]) -> None:
    with tarfile.open(archives[1]) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    promised = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    for path in promised:
        assert any(name == path or name.startswith(f"{path}/") for name in names), path
    pages = (p for p in (ROOT / "docs").rglob("*") if p.is_file())
    ours = {p.relative_to(ROOT) for p in pages}
    assert {str(p) for p in ours if not set(p.parts) & {"_build", "made", "__pycache__"}} <= names
    assert not any(part.startswith((".venv", ".git/")) for part in names)
    loose = {p.name for p in ROOT.iterdir() if p.suffix in (".md", ".cff")} | {"Makefile"}
    assert loose <= names, "list it in pyproject.toml, so that a source archive can be tested"


def test_the_demo_runs_from_the_wheel_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    where = python(
        installed,
        tmp_path,
        "from importlib.util import find_spec; print(find_spec('privcal').origin)",
    )
    assert Path(where.strip()).is_relative_to(installed)
    small = ("--sources", "4", "--samples", "10", "--json")
    methods = json.loads(privcal_command(installed, tmp_path, "demo", *small))["methods"]
    assert {"acc-t", "sketch"} <= {method["method"] for method in methods}


def test_a_calibration_is_rehearsed_from_the_wheel_started_as_a_module(
    installed: Path, tmp_path: Path
) -> None:
    rows = [f"{row % 3},0.{row % 9},{row % 2}" for row in range(60)]
    (tmp_path / "icu.csv").write_text("\n".join(["ward,probability,label", *rows]))
    module = "from runpy import run_module; run_module('privcal', run_name='__main__')"
    split = ("calibrate", "icu.csv", "--source-column", "ward", "--rehearse", "--json")
    said = json.loads(python(installed, tmp_path, module, *split))
    assert said["REHEARSAL"]
    assert "sketch, because" in said["why"]  # from a table in the package
    assert [path.name for path in tmp_path.iterdir()] == ["icu.csv"]


def test_a_study_is_reported_from_the_wheel_with_the_paper_beside_it(
    installed: Path, tmp_path: Path
) -> None:
    (tmp_path / "grid.toml").write_text("[sources]\nvalues = [5]\nsamples = 10\nepsilon = 1.0\n")
    small = ("--methods", "acc-t", "--shifts", "fog", "--trials", "2", "--jobs", "1")
    out = ("--grid", "grid.toml", "--out", "study")
    privcal_command(installed, tmp_path, "study", "run", *small, *out)
    privcal_command(installed, tmp_path, "study", "report", "study")
    assert "<style>" in (tmp_path / "study" / "report.html").read_text("utf-8")
