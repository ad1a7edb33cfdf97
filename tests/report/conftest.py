from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.browser import Browser


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with closing(Browser(tmp_path_factory.mktemp("browser"))) as opened:
        yield opened
