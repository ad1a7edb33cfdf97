"""Rows run in processes that may end: a row takes nobody with it, whatever the model makes of it.

A graph may take all memory there is, go on for hours or end its process (the least whole number
divided by -1 does) when it meets a certain row. Were that everybody's process, that one row would
decide whether any row has scores. So a process without rows (`main`) has the model, and makes a
child of itself for some rows at a time. A row on which such a child ends or fails, or which takes
too long or too much memory there, is run again in a child of its own. Where that fails too, it
counts as malformed, and the rows after it go on in another child.

Proof that whether a row has scores is a function of that row and the model. If it is run alone,
only the row and a process that met no other decide: that process copies nothing of a row into its
memory, and limits are of what the row adds. If it is run among others, it may lack memory or time
that these took; but then it is run alone. And if it does not fail among others, it would not fail
alone, where it has twice the time and twice the memory, and nobody has taken any. So it has scores
if and only if it has them alone. ∎ Which scores these are is for `privcal.data.scoring.model`.

This takes a machine that has the memory which a row is allowed, and on which no row takes twice as
long as it did before. It is for Linux: other systems may not limit memory, and where processes
cannot make children of themselves (Windows), rows are run where they were read.
"""

from __future__ import annotations

import contextlib
import marshal
import mmap
import os
import select
import signal
import struct
import subprocess
import sys
import weakref
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from privcal.trusted.errors import InputError

ALIGNMENT = 64

Feed = dict[str, npt.NDArray[Any]]


class Limits(NamedTuple):
    """What one row may take: seconds of the processor, and bytes beyond those of the model."""

    seconds: float
    room: int


AMONG = Limits(5.0, 1 << 30)
"""For a row that is run among others, and the time for all since the last of `OFTEN`."""

OFTEN = 64

ALONE = Limits(10.0, 1 << 31)
"""For a row that is run alone. Twice as much, or more: see the proof."""

FEW = 16
"""Rows that are tried at once after one that failed; four times as many after these, and so on."""

HEAD = struct.Struct("<qdqq")
"""Of a request: its rows, its limits, and how many bytes follow."""

DONE, TEXT = 8, 256
"""Bytes before the scores in a reply: how many rows have them, and what went wrong with the next."""

STATUS = struct.Struct("<q")


class Graph:
    """A checked graph, as one row at a time is run through it."""

    def __init__(self, content: bytes, session: Any, output: str, columns: int, dtype: str) -> None:
        self._facts = (content, output, columns, dtype)
        self._session = session
        self._output, self.columns, self.dtype = output, columns, np.dtype(dtype)
        self._places: Feed = {}

    def run(self, row: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Its output for one row, copied to a place that is aligned alike for all."""
        for name, values in row.items():
            place = self._places.get(name)
            if place is None or place.shape != values.shape:
                place = self._places[name] = _aligned(values)
            place[...] = values
        [result] = self._session.run([self._output], self._places)
        return np.reshape(result, self.columns)

    def run_all(self, feed: Feed, rows: int, stop: bool) -> tuple[npt.NDArray[Any], dict[int, str]]:
        """The output for each of some rows, NaN where it has none, and why; to `stop` after the first such."""
        found = np.full((rows, self.columns), np.nan, self.dtype)
        failed: dict[int, str] = {}
        first, step = 0, rows
        while first < rows and not (stop and failed):
            end = min(first + step, rows)
            done, _ = self._ask(feed, slice(first, end), AMONG)
            found[first : first + len(done)] = done
            first, step = first + len(done), 4 * step
            if first < end:
                done, why = self._ask(feed, slice(first, first + 1), ALONE)
                if len(done):
                    found[first] = done[0]
                else:
                    failed[first] = why
                first, step = first + 1, FEW
        return found, failed

    def _ask(self, feed: Feed, rows: slice, limits: Limits) -> tuple[npt.NDArray[Any], str]:
        """The output for each of these rows, up to the first that fails; and why that did."""
        if not hasattr(os, "fork"):
            return self._here(feed, rows)
        try:
            parts = [(name, _plain(block[rows])) for name, block in feed.items()]
            content, count = marshal.dumps(parts), rows.stop - rows.start
            _send(self._process, HEAD.pack(count, *limits, len(content)) + content)
            size = STATUS.size + self.room(count)
            assert self._process.stdout is not None
            reply = self._process.stdout.read(size)
            if len(reply) < size:
                raise RuntimeError("the process that runs the model has ended")
        except BaseException:  # half a reply may be left
            self.__dict__.pop("_process")
            raise
        (status,), text = STATUS.unpack(reply[: STATUS.size]), reply[STATUS.size :]
        why = text[DONE:TEXT].rstrip(b"\0").decode("utf-8", "replace")
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            why = f"it ended the process: {signal.strsignal(number)}"
            if number == signal.SIGPROF:
                why = f"it took more than {limits.seconds:g} seconds of the processor"
        return self.scores(text, count)[: np.frombuffer(text, np.int64, 1)[0]], why

    def _here(self, feed: Feed, rows: slice) -> tuple[npt.NDArray[Any], str]:
        """The same in this process, on systems where none can make a child of itself."""
        found, why = np.empty((0, self.columns), self.dtype), ""
        for row in range(rows.start, rows.stop):
            try:
                one = self.run({name: block[row : row + 1] for name, block in feed.items()})
            except Exception as error:
                return found, first_line(error)
            found = np.concatenate([found, one[None].astype(self.dtype)])
        return found, why

    @cached_property
    def _process(self) -> subprocess.Popen[bytes]:
        """The process that makes children: started once, gone when this graph is."""
        process = subprocess.Popen(
            # -P: nothing is imported from the folder it is started in. A session: Ctrl-C is not for it.
            [sys.executable, "-P", "-c", f"from {__name__} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        weakref.finalize(self, _stop, process)
        facts = marshal.dumps(self._facts)
        _send(process, HEAD.pack(0, 0.0, 0, len(facts)) + facts)
        return process

    def room(self, rows: int) -> int:
        """Bytes of a reply about some rows."""
        return TEXT + rows * self.columns * self.dtype.itemsize

    def scores(self, reply: Any, rows: int) -> npt.NDArray[Any]:
        """The scores in such a reply."""
        found = np.frombuffer(reply, self.dtype, rows * self.columns, offset=TEXT)
        return found.reshape(rows, self.columns)


def open_session(content: bytes) -> Any:
    """A session on one thread, with everything fixed that a result could depend on."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.use_deterministic_compute = True
    options.enable_mem_pattern = False  # the second run would lay its tensors out unlike the first
    options.log_severity_level = 4  # a row that fails is told in our own words, or not at all
    try:
        return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise InputError(f"ONNX Runtime cannot load it ({first_line(error)[:300]})") from None


def _aligned(like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Room for such an array, at a boundary of the widest vector registers."""
    if like.dtype == np.object_:  # texts, which the runtime copies
        return np.empty_like(like)
    room = np.empty(like.nbytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + like.nbytes].view(like.dtype).reshape(like.shape)


def _send(process: subprocess.Popen[bytes], content: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(content)
    process.stdin.flush()


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # a child that it has goes after its row: see `_rows`
    with contextlib.suppress(OSError):  # what could not be sent
        process.communicate()


def _plain(block: npt.NDArray[Any]) -> tuple[str, tuple[int, ...], Any]:
    """An array in what `marshal` writes: its type, its shape, and its bytes or texts."""
    text = block.dtype == np.object_
    return block.dtype.str, block.shape, block.ravel().tolist() if text else block.tobytes()


def _array(dtype: str, shape: tuple[int, ...], content: Any) -> npt.NDArray[Any]:
    if isinstance(content, bytes):
        return np.frombuffer(content, dtype).reshape(shape)
    return np.array(content, np.object_).reshape(shape)


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# --- in the process, and in its children -------------------------------------------------------


def main() -> None:
    """Run rows in children, one after the other, as long as standard input is open.

    It neither reads what is of rows nor copies it: its memory is the same whatever there was.
    """
    content, *facts = marshal.loads(_exactly(HEAD.unpack(_exactly(HEAD.size))[-1]))
    graph = Graph(content, open_session(content), *facts)
    while head := _exactly(HEAD.size):
        rows, seconds, room, size = HEAD.unpack(head)
        with mmap.mmap(-1, graph.room(rows)) as shared:
            child = os.fork()
            if child == 0:
                _rows(graph, rows, Limits(seconds, room), size, shared)
            reply = STATUS.pack(os.waitpid(child, 0)[1])
            with memoryview(shared) as whole:
                for part in (memoryview(reply), whole):
                    sent = 0
                    while sent < len(part):
                        sent += os.write(1, part[sent:])


def _rows(graph: Graph, rows: int, limits: Limits, size: int, shared: mmap.mmap) -> NoReturn:
    """Be a child: run rows until one fails, and end."""
    try:
        feed = {name: _array(*facts) for name, facts in marshal.loads(_exactly(size))}
        _limit(limits.room)
        found, done = graph.scores(shared, rows), np.frombuffer(shared, np.int64, 1)
        parent = select.poll()
        parent.register(0, 0)
        for row in range(rows):
            if row % OFTEN == 0:
                if parent.poll(0):  # nobody is there to hear
                    break
                signal.setitimer(signal.ITIMER_PROF, limits.seconds)
            found[row] = graph.run({name: block[row : row + 1] for name, block in feed.items()})
            done[0] = row + 1
    except BaseException as error:
        content = first_line(error).encode("utf-8", "replace")[: TEXT - DONE]
        shared[DONE : DONE + len(content)] = content
    finally:
        os._exit(0)


def _limit(room: int) -> None:
    """Let this process take as much memory as it has, and so much more; and write no rows to disk."""
    import resource

    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # rather this one than any other
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + room
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _exactly(size: int) -> bytes:
    """So many bytes of standard input and not one more, which are for somebody else; none at its end."""
    content = bytearray()
    while len(content) < size and (part := os.read(0, size - len(content))):
        content += part
    return bytes(content)
