"""Made-up studies are small; the paper's figures stand beside them all the same where a test asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def few_will_do() -> Iterator[None]:
    """As if the paper had had a study's few shifts and settings. `test_match` has the rule itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("privcal.study.results.match_study", lambda data, *study: data)
        yield
