"""What runs at a hospital is in the tree: a site's code imports none of a calibrator's, nor the reverse.

Looked at twice: in the text of every module, imports inside functions included, and in real
processes, by what they have loaded.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.test_layers import MODULES, imported

SITE, CALIBRATOR = "transport.site", "transport.calibrator"
PARTIES = (SITE, CALIBRATOR, "transport.mail")
WITH_DATA = ("transport.site.worker", "transport.site.ahead")
"""Those that read rows, and have no letters."""
SHARED = {"transport.site", "transport.site.settings"}
"""What every party's rosters (`standing`) know of a site: where its ledgers are."""
FOREIGN = {"nvflare", "fsspec", "aiohttp", "grpc", "paramiko", "asyncssh"}


def reached(module: str) -> set[str]:
    """All our modules that come with one, through whatever others."""
    seen: set[str] = set()
    todo = {module}
    while todo:
        name = todo.pop()
        seen.add(name)
        todo |= (imported(name) & MODULES.keys()) - seen
    return seen


@pytest.mark.parametrize("party", PARTIES)
def test_no_party_reaches_a_module_of_another(party: str) -> None:
    own = [name for name in MODULES if name.startswith(party)]
    assert own
    others = tuple(f"{other}." for other in PARTIES if other != party)
    found = {name for one in own for name in reached(one) if name.startswith(others)}
    assert found - SHARED == set()


@pytest.mark.parametrize(
    ("module", "not_loaded"),
    [
        *((name, CALIBRATOR) for name in WITH_DATA),
        ("transport.site.service", CALIBRATOR),
        ("transport.calibrator.panel", SITE),
    ],
)
def test_a_running_process_has_loaded_nothing_of_another_party(
    module: str, not_loaded: str
) -> None:
    pytest.importorskip("cryptography", reason="letters need cryptography: privcal[secure]")
    code = f"import privcal.{module}, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = set(done.stdout.split())
    assert f"privcal.{module}" in found
    ours = {name.removeprefix("privcal.") for name in found}
    assert not {name for name in ours if name.startswith(not_loaded)} - SHARED
    assert not FOREIGN & found


def test_the_process_with_the_letters_does_not_load_the_one_that_reads_rows() -> None:
    assert not {*WITH_DATA} & reached("transport.site.running")
