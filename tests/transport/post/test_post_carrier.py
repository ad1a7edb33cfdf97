"""The example of a carrier brings letters to a site, and does not import privcal."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="letters need cryptography: privcal[secure]")

from tests.support.letters import question
from tests.support.listening import listening

EXAMPLE = Path(__file__).parents[3] / "examples" / "carrier.py"


def test_the_example_carries_a_letter_and_its_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(tmp_path, monkeypatch) as (found, path):
        ann = found.asker()
        letters = []
        for request in (ann.request("about", "site-1"), ann.request("ask", "site-1", question())):
            letters.append((request, ann.put("site-1", request)))
        found.box.put(ann.keys.id, f"{found.id('site-1')}-{'0' * 64}", b"strange")
        for _ in range(2):  # the same bytes again
            command = [sys.executable, "-I", str(EXAMPLE), str(found.mailbox), str(path)]
            told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
            assert told.stdout == "replies: 2\n"
        for request, letter in letters:
            [reply] = ann.replies("site-1", request, letter)
            assert reply.refused is None


def test_the_example_is_short_and_needs_the_standard_library_alone() -> None:
    text = EXAMPLE.read_text("utf-8")
    code = [line for line in text.split('"""', 2)[2].splitlines() if line.strip()]
    assert len(code) <= 32
    assert set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)) <= sys.stdlib_module_names
