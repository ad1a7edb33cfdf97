"""The owner's log, whatever a sender wrote."""

from __future__ import annotations

from pathlib import Path

from privcal.transport.site.log import LOG, line, write
from privcal.trusted.errors import InputError


def test_a_line_of_the_log_is_one_line_whatever_a_sender_wrote(tmp_path: Path) -> None:
    write(tmp_path, line(InputError("no name:\n2026-01-01 all is well\x1b[2J" + "x" * 10_000)))
    [written] = (tmp_path / LOG).read_text().splitlines()
    assert "no name: 2026-01-01 all is well [2J" in written
    assert len(written) < 1100
