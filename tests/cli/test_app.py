"""The table of contents: every command is there, is loaded when it runs, and completes in a shell."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from privcal.cli import later
from privcal.cli.app import app


def commands(group: Any = None, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command with the words that call it."""
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield " ".join((*words, name)), command


def privcal(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, started as a module."""
    return subprocess.run(
        [sys.executable, "-m", "privcal", *args],
        env={**os.environ, "COLUMNS": "80", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_commands_line_in_the_contents_is_the_first_of_its_docstring() -> None:
    for words, command in commands():
        called = later.function(inspect.unwrap(command.callback).path)  # type: ignore[attr-defined]
        first = (inspect.getdoc(called) or "").split("\n\n")[0]
        assert command.help == " ".join(first.split()), words


@pytest.mark.parametrize("words", [[], ["ledger"], ["keys"], ["federation"]])
def test_help_of_a_group_says_the_whole_line_of_each_command(words: list[str]) -> None:
    said = " ".join(privcal(*words, "--help").stdout.split())
    start = " ".join([*words, ""])
    lines = [
        c.help for name, c in commands() if name.startswith(start) and name.count(" ") == len(words)
    ]
    assert lines
    for line in lines:
        assert line in said


def test_a_flag_is_not_shown_as_if_it_took_a_value_and_no_example_is_broken() -> None:
    said = privcal("federation", "calibrate", "--help").stdout
    assert "<bool>" not in said
    assert "--aggregation secure --out map.json\n" in said
    assert max(map(len, said.partition("Options:")[2].splitlines())) <= 80


def test_a_command_that_does_not_exist_is_said_with_the_one_that_was_meant() -> None:
    done = privcal("calibrat")
    assert (done.returncode, "Did you mean 'calibrate'?" in done.stderr) == (2, True)


@pytest.mark.parametrize("args", ["--version", "--help", "ledger --help"])
def test_what_only_a_command_needs_is_not_imported_before(args: str) -> None:
    program = (
        "import sys; from privcal.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print({'numpy', 'polars', 'opendp', 'matplotlib', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *args.split()], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "set()"


# --- in a shell --------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell: str) -> None:
    assert {"--install-completion", "--show-completion"} <= set(privcal("--help").stdout.split())
    script = privcal(_PRIVCAL_COMPLETE=f"source_{shell}").stdout
    assert f"complete_{shell}" in script
    assert "privcal" in script


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("cal", {"calibrate"}),
        ("ledger re", {"reconcile"}),
        ("keys ", {"rotate", "destroy"}),
        ("apply --prob", {"--probabilities"}),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_was_typed_is_completed(typed: str, completed: set[str], shell: str) -> None:
    words = f"privcal {typed}"
    done = privcal(
        _PRIVCAL_COMPLETE=f"complete_{shell}",
        COMP_WORDS=words,
        COMP_CWORD=str(words.count(" ")),
        _TYPER_COMPLETE_ARGS=words,
        _TYPER_COMPLETE_FISH_ACTION="get-args",
    )
    said = done.stdout.replace('"', " ").replace(":", " ").split()
    assert completed <= set(said)
    assert "demo" not in said
