"""Commands whose modules are imported when they run, so that `privcal --help` is there at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

Command = Callable[..., None]
SETTINGS = {"max_content_width": 100}
"""Help is as wide as the terminal, up to that many columns."""


class Group(TyperGroup):
    """A group that knows its commands by their names and first lines until one of them is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments call, made of its function if that has not been done."""
        name, command, rest = super().resolve_command(ctx, args)
        path = getattr(getattr(command, "callback", None), "path", None)
        if name is not None and path is not None:
            command = self.commands[name] = made(name, path)
        return name, command, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with their whole first lines, where typer would cut them short."""
        lines = {name: _first_line(command.help or "") for name, command in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl([*lines.items()])


def later(path: str, summary: str) -> Command:
    """A stand-in for the function "module:name" of this package; `summary` is its first line."""

    def stand_in() -> None:
        raise AssertionError(f"{path} was not loaded")

    stand_in.__doc__ = summary
    vars(stand_in)["path"] = path
    return stand_in


def function(path: str) -> Command:
    """The function that a stand-in stands for."""
    module, _, name = path.partition(":")
    found: Command = getattr(import_module(f"privcal.cli.{module}"), name)
    return found


def _first_line(help: str) -> str:
    return " ".join(help.split("\n\n")[0].split())


def made(name: str, path: str) -> Any:
    """The command of that name, made of the function itself."""
    called = function(path)
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name, help=unbroken(called.__doc__ or ""), context_settings=SETTINGS)(called)
    return typer.main.get_command(single)


def unbroken(help: str) -> str:
    r"""A help text in which no example is broken over lines, so that it can be copied.

    Typer leaves paragraphs as they are that begin with "\b".
    """
    lines = [line.strip() for line in help.strip().splitlines()]
    paragraphs = "\n".join(lines).split("\n\n")
    return "\n\n".join(
        "\b\n" + text.replace("\n", " ").strip("`") if text.startswith("`privcal ") else text
        for text in paragraphs
    )


def group(help: str, commands: Mapping[str, Command], epilog: str | None = None) -> typer.Typer:
    """Commands under a common word."""
    words = typer.Typer(
        cls=Group, no_args_is_help=True, help=help, epilog=epilog, context_settings=SETTINGS
    )
    for word, command in commands.items():
        words.command(word)(command)
    return words
