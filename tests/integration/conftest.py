"""A running federation, for the tests that attack it and those that kill its processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One for all files: to start it takes longer than most tests. A site reads its settings anew
    for every question, so a test can change them; whoever kills a process starts it again."""
    from tests.support.federation_processes import running  # needs FLARE, which the files check for

    with running(tmp_path_factory.mktemp("federation")) as made:
        yield made


@pytest.fixture(scope="session")
def secure_federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The same with five sites that take part in secure sums: one of them may fail."""
    from tests.support import secure_sums
    from tests.support.federation_processes import running

    names = tuple(f"site-{n}" for n in range(1, 6))
    rules = secure_sums.policy(secure_sums.rules())
    with running(tmp_path_factory.mktemp("secure"), names=names, policy=rules) as made:
        yield made


@pytest.fixture
def marks_of_the_sites(federation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of the marks that each test has of its own."""
    monkeypatch.setenv("PRIVCAL_MARKS", str(federation.marks))
