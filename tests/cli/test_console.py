"""What is printed: words as they are, and nothing that a terminal would obey."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import privcal
from privcal.cli.console import note, say, table
from tests.support.builders import edit, random_scores
from tests.trusted.test_book_forged import rehash

OBEYED = "up\x1b[1A\x1b[2K\x9b31m or \u202eturned"


@pytest.mark.parametrize("text", [OBEYED, f"[bold]{OBEYED}[/bold]"])
def test_nothing_in_a_text_moves_the_cursor_or_turns_the_writing(text: str, capsys: Any) -> None:
    listed = table(("name",), ("name",), title=text)
    listed.add_row(text)
    note(text)
    say(False, text, listed)
    out, err = capsys.readouterr()
    shown = text.translate(dict.fromkeys(map(ord, "\x1b\x9b\u202e"), "\ufffd"))
    assert err == shown + "\n"
    assert shown in out
    assert not set(out) & set("\x1b\x9b\u202e")


def test_words_of_every_language_and_lines_are_printed_as_they_are(capsys: Any) -> None:
    text = "Universitätsklinikum Zürich\u00a0– 東京, ε ≤ 1:\nنعم"
    note(text)
    assert capsys.readouterr().err == text + "\n"


@pytest.mark.parametrize(
    "forgery",
    [
        "UPDATE entry SET asker = ? WHERE asker IS NOT NULL",
        "UPDATE entry SET campaign = ? WHERE campaign IS NOT NULL",
        "UPDATE ledger SET name = ?",
        "UPDATE ledger SET marks = ?",
    ],
)
def test_a_forged_ledger_cannot_overwrite_the_warning_about_it(
    forgery: str, run: Any, tmp_path: Path
) -> None:
    path = tmp_path / "ward.db"
    privcal.Ledger.create(path, privcal.Policy(), unit="row")
    source = privcal.Source(random_scores(30), ledger=path)
    source.answer(privcal.Question.of(privcal.queries.Gap(), 0.1, "c"), "ann")
    edit(path, forgery, OBEYED)
    rehash(path)
    for command in (("show", path), ("show", path, "--json"), ("waiting", path)):
        out, err = run.ok("ledger", *command)
        assert not set(out + err) & set("\x1b\x9b\u202e")
