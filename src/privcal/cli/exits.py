"""How a command ends: exit codes, one sentence on standard error, and Ctrl-C."""

from __future__ import annotations

import _thread
import io
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn
from unicodedata import category

import typer

from privcal.cli.later import Group
from privcal.trusted.errors import CalibrationError, InputError, Refused


class Interrupted(BaseException):
    """Ctrl-C, under a name that typer does not turn into an exit code of its own."""


# What an interrupt of a command leaves behind; of one that is not here, nothing at all.
LEFT = {
    "source": "what was finished is on disk, and what was charged stays charged",
    "site": "what was charged stays charged",
    "study": "what was finished is on disk, and the same command goes on",
    "data": "what was finished is on disk",
}


class Commands(Group):
    """The group of all commands; an interrupt of any of them gets through to `run`."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted(LEFT.get(ctx.invoked_subcommand, "nothing was charged")) from None


def run(app: typer.Typer) -> None:
    """0 fine, 2 bad usage or input, 1 anything else; one sentence on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not every system's pipes and files take an ε
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    hook, sys.unraisablehook = sys.unraisablehook, _not_lost(sys.unraisablehook)
    try:
        app(prog_name="privcal")
    except InputError as error:
        _stop(str(error), 2)
    except Refused as error:
        _stop(f"{error}" + (f" ({error.__cause__})" if error.__cause__ else ""), 1)
    except CalibrationError as error:
        most = max(error.spent, default=0)
        charged = f"; charged all the same: up to epsilon {most:g} at each source"
        _stop(f"{error}{charged if most else ''}", 1)
    except Interrupted as interrupt:
        _stop(f"interrupted; {interrupt}", 1)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        _stop(f"cannot read or write{where}: {error.strerror or error}", 1)
    except Exception as error:
        if "PRIVCAL_DEBUG" in os.environ:
            raise
        _stop(f"unexpected {type(error).__name__}: {error} (set PRIVCAL_DEBUG=1 for details)", 1)
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, handler)


def _not_lost(hook: Callable[[Any], object]) -> Callable[[Any], object]:
    """A hook for exceptions that nobody can catch, as in a destructor: it repeats an interrupt.

    Nothing unwinds because of one that was lost, so the second cuts no cleanup short.
    """

    def repeat(lost: Any) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            threading.Timer(0.1, _interrupt).start()  # from here it would be lost again
        else:
            hook(lost)

    return repeat


def _interrupt() -> None:
    main = threading.main_thread().ident
    if main is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, signal.SIGINT)  # wakes it from a wait, too
    else:
        _thread.interrupt_main()


def _stop(message: str, code: int) -> NoReturn:
    print(f"error: {plain(message)}", file=sys.stderr)
    sys.exit(code)


def plain(text: str, instead: Callable[[str], str] = lambda _: "\ufffd") -> str:
    """`text` without letters that a terminal obeys: those that move its cursor or turn the writing."""
    obeyed = (a not in "\n\t" and category(a) in ("Cc", "Cf") for a in text)
    return "".join(instead(a) if yes else a for a, yes in zip(text, obeyed, strict=True))
