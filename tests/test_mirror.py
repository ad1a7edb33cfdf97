"""Tests lie where one looks for them: `tests/` has the rooms of `src/privcal`, and a module's test has its name.

Tests of privcal/secure/shares.py are in tests/secure/test_shares.py, and in test_shares_<topic>.py
where they are many. A package below a room may have tests about all of its modules, which have its
own name (tests/lab/audit/test_audit.py); so may the command line, which is tried as a whole.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import privcal
from tests.test_layers import ROOMS

SOURCE = Path(privcal.__file__).parent
TESTS = Path(__file__).parent

WHOLE = {
    *("test_deploy", "test_docs", "test_documentation", "test_examples", "test_examples_mlflow"),
    *("test_examples_small", "test_fixtures", "test_habits", "test_layers", "test_mirror", "test_mutants"),
    *("test_names", "test_recorded", "test_reference", "test_trusted_room", "test_tutorials", "test_wheel"),
}  # fmt: skip
"""Tests of the project as a whole. Those that run real processes are in tests/integration."""

ELSEWHERE = {
    "calibration/binomial": "report/test_diagram",
    "calibration/evaluation": "cli/test_cli",
    "calibration/kernel": "trusted/test_kernel",
    "data/columns": "data/test_readers_accepted",
    "data/ids": "data/test_readers",
    "data/lines": "data/test_readers",
    "data/malformed": "data/test_scores",
    "data/panels": "calibration/test_loop",
    "data/place": "data/test_sources",
    "data/tables": "data/test_readers_accepted",
    "data/wording": "cli/test_cli",
    "report/audit_figure": "cli/test_cli",
    "report/explain": "data/test_readers_confidence",
    "report/owner_pages": "report/test_result_pages_in_a_browser",
    "report/plots": "cli/test_cli",
    "report/rehearsal": "cli/test_rehearse",
    "secure/local": "secure/test_panel",
    "secure/terms": "secure/test_participant",
    "secure/canonical": "secure/test_boxes",
    "transport/site/settings": "transport/site/test_setup",
    "transport/calibrator/inspection": "cli/test_federation",
    "transport/demo": "cli/test_federation",
    "transport/replied": "transport/test_content",
    "trusted/chain": "trusted/test_book_forged",
    "trusted/charging": "trusted/test_reservations",
    "trusted/errors": "test_docs",
    "trusted/marks": "trusted/test_book",
    "trusted/threads": "trusted/test_kernel",
}
"""Modules without a test file of their own name, and where their tests are."""


def subject(test: Path) -> Path | None:
    """What a test file is named for, without ".py": a module or package of its folder, or that folder."""
    folder = SOURCE / test.parent.relative_to(TESTS)
    words = test.stem.removeprefix("test_").split("_")
    for name in ("_".join(words[:end]) for end in range(len(words), 0, -1)):
        if (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file():
            return folder / name
        if name == folder.name and folder != SOURCE:
            return folder
    return None


FILES = [
    path
    for path in sorted(TESTS.rglob("test_*.py"))
    if path.relative_to(TESTS).parts[0] not in ("fixtures", "integration")
    and not (path.parent == TESTS and path.stem in WHOLE)
]
MODULES = [
    module.relative_to(SOURCE).with_suffix("").as_posix()
    for room in ROOMS
    for module in sorted((SOURCE / room).rglob("*.py"))
    if module.name != "__init__.py"
]
NAMED = {subject(path) for path in FILES}
PACKAGES = {path.parent for path in FILES if re.match(f"test_{path.parent.name}(_|$)", path.stem)}
"""Folders with tests of their package as a whole."""


def has_its_own(module: str) -> bool:
    """Whether there are tests of a module's own name, or of its package, if that may have some."""
    package = (TESTS / module).parent
    whole = package.parent != TESTS or package.name == "cli"
    return SOURCE / module in NAMED or (whole and package in PACKAGES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(TESTS).as_posix())
def test_a_test_file_lies_where_what_it_tests_does_and_begins_with_its_name(path: Path) -> None:
    assert subject(path), "name it after a module or package of the same folder of src/privcal"


def test_every_test_of_the_whole_project_is_there() -> None:
    assert {path.stem for path in TESTS.glob("test_*.py")} >= WHOLE


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_tests_where_one_looks_for_them_or_where_this_file_says(module: str) -> None:
    elsewhere = ELSEWHERE.get(module)
    assert has_its_own(module) != bool(elsewhere), "tests of its own name, or a line of ELSEWHERE"
    assert elsewhere is None or (TESTS / f"{elsewhere}.py").is_file()


def test_nothing_is_said_of_modules_that_are_gone() -> None:
    assert set(MODULES) >= ELSEWHERE.keys()
