"""Tasks over processes, one thread each; their pieces come back in whatever order they finish."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from privcal.errors import InputError

_IN_SCRIPT = 64
"""The exit code of a process that met the very call that started it."""

_Task = TypeVar("_Task")
_Piece = TypeVar("_Piece")


def check_script() -> None:
    """End a process that was started by a script which calls a study outside of any guard.

    Such a process runs the script again, comes to the call, and would start processes in turn.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(_IN_SCRIPT)


def work(
    do: Callable[[_Task], Iterator[_Piece]], tasks: Sequence[_Task], jobs: int
) -> Iterator[_Piece]:
    """What the tasks yield. `do` is a function of a module, so that a process can import it."""
    if jobs == 1:
        for task in tasks:
            yield from do(task)
        return
    context = multiprocessing.get_context("spawn")  # fork would copy other libraries' threads
    todo, results = context.Queue(), context.Queue()
    for task in tasks:
        todo.put(task)
    for _ in range(jobs):
        todo.put(None)
    with _workers(context, jobs, (do, todo, results)) as workers:
        left = len(tasks)
        while left:
            try:
                kind, content = results.get(timeout=1)
            except queue.Empty:
                if any(w.exitcode == _IN_SCRIPT for w in workers):
                    raise InputError(
                        "each process of a study runs the script that calls it: put the call under "
                        'if __name__ == "__main__": or say jobs=1'
                    ) from None
                if not all(w.is_alive() or w.exitcode == 0 for w in workers):
                    raise RuntimeError(
                        "a process of the study died; run it again to go on"
                    ) from None
                continue
            if kind == "piece":
                yield content
            elif kind == "error":
                raise content
            else:
                left -= 1


@contextmanager
def _workers(context: Any, jobs: int, args: tuple[Any, ...]) -> Iterator[list[Any]]:
    workers = [context.Process(target=_worker, args=args, daemon=True) for _ in range(jobs)]
    with _environment():
        for worker in workers:
            worker.start()
    try:
        yield workers
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


_SETTINGS = {
    # Linear algebra on one thread: the processes share the cores already.
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    # Memory that was freed is used again, not given back and asked for anew with every array: that
    # takes longer than most of the arithmetic. (Bytes; the C library of Linux reads these.)
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}
"""What libraries read when they are loaded, before any code of ours runs in a process."""


@contextmanager
def _environment() -> Iterator[None]:
    """Processes started here have `_SETTINGS`."""
    before = {name: os.environ.get(name) for name in _SETTINGS}
    os.environ.update(_SETTINGS)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _worker(do: Callable[[Any], Iterator[Any]], todo: Any, results: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    os.environ["PRIVCAL_THREADS"] = "1"  # the processes share the cores already
    while (task := todo.get()) is not None:
        try:
            for piece in do(task):
                results.put(("piece", piece))
        except Exception as error:
            results.put(("error", error))
            return
        results.put(("done", None))
