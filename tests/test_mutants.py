"""Every promise has a test, and every such test a mutant that it must notice (`make prove`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from privcal.trusted.queries import GRID
from tests.mutants.__main__ import judged, read
from tests.mutants.catalogue import NEEDED, BadMutant, Mutant, mutants, promises

MUTANTS = mutants()


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_what_a_mutant_changes_is_there_exactly_once_and_so_is_its_test(mutant: Mutant) -> None:
    mutant.check_test()
    mutant.applied()


@pytest.mark.parametrize(("page", "needed"), NEEDED.items())
def test_every_promise_has_mutants_that_one_of_its_tests_must_notice(
    page: str, needed: int
) -> None:
    rows = promises(page)
    assert len(rows) > 10
    bare = []
    for words, tests in rows:
        assert tests, f"{page}: {words} names no test"
        found = sum(mutant.test.partition("[")[0] in tests for mutant in MUTANTS)
        if found < needed:
            bare.append(f"{words}: {found} of {needed}")
    assert not bare, f"{page}, rows without mutants in tests/mutants:\n" + "\n".join(bare)


def mutant(function: str, old: str, new: str = "", test: str = "") -> Mutant:
    return Mutant("here", 1, function, old, new, "a promise", test)


@pytest.mark.parametrize(
    ("function", "old", "says"),
    [
        (
            "privcal.trusted.source.Source.answered",
            "x",
            "there is no privcal.trusted.source.Source.answered",
        ),
        ("somebody.else", "x", "there is no module"),
        ("privcal.trusted.source.Source.answer", "no such text", "0 times"),
        ("privcal.trusted.source.Source.answer", "asked", "times, not once"),
        ("privcal.trusted.source.Source.answer", "self.ledger.store(", "is not Python"),
    ],
)
def test_a_mutant_that_cannot_be_applied_is_an_error(function: str, old: str, says: str) -> None:
    with pytest.raises(BadMutant, match=says):
        mutant(function, old).applied()


def test_methods_properties_classes_and_names_of_a_module_are_found() -> None:
    for function, old in [
        ("privcal.trusted.source.Source.name", "@property\n    def name"),
        ("privcal.trusted.source.Answer", "@dataclass(frozen=True)"),
        ("privcal.trusted.queries.GRID", "1 << 20"),
        ("privcal.lab.audit.run.ALARM", "1e-9"),
    ]:
        _, text = mutant(function, old, old + " ").applied()
        assert old + " " in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("new", "result"),
    [
        ("1 << 19", "caught"),
        ("2**20", "NOT NOTICED"),
        ("1 << twenty", "error: the test was not run"),
    ],
)
def test_a_mutant_is_caught_by_a_test_that_fails_and_by_nothing_else(new: str, result: str) -> None:
    test = "tests/test_mutants.py::test_the_grid_that_a_mutant_changes"
    assert judged(mutant("privcal.trusted.queries.GRID", "1 << 20", new, test)) == result


def test_the_grid_that_a_mutant_changes() -> None:
    assert GRID == 1 << 20


REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="one[x]"/>
<testcase classname="tests.a" name="one[y]"><failure message="assert 1 == 2">…</failure></testcase>
<testcase classname="tests.a" name="two"><skipped message="no torch"/></testcase>
<testcase classname="tests.a" name="three"><failure message="NameError: x">…</failure></testcase>
<testcase classname="tests.a" name="four"><error message="failed on setup">…</error></testcase>
<testcase classname="tests.a" name="five[a]"><skipped message="no torch"/></testcase>
<testcase classname="tests.a" name="five[b@c]@a group"/>
</testsuite></testsuites>"""


def test_only_a_failure_of_the_test_itself_counts(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    names = ["one", "one[x]", "two", "three", "four", "five", "six"]
    found = read(report, [f"tests/a.py::{name}" for name in names])
    assert found == {
        "tests/a.py::one": "failed",
        "tests/a.py::one[x]": "passed",
        "tests/a.py::two": "skipped: no torch",
        "tests/a.py::three": "error: NameError: x",
        "tests/a.py::four": "error: failed on setup",
        "tests/a.py::five": "passed",
    }
