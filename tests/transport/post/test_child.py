"""What the process that talks to a server takes of it has an end, and what it says is a line."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys

import pytest

from privcal.transport.letter import file_name
from privcal.transport.post import child
from privcal.transport.post.child import Files, answered, sentence
from privcal.transport.post.frames import MAX_FRAME, read_frame, write_frame
from tests.transport.post.conftest import OTHER


class Endless:
    """A file system whose folders have no end."""

    def __init__(self, name) -> None:
        self._name = name

    def names(self, path):
        return (self._name(k) for k in itertools.count())


def files(system) -> Files:
    made = Files.__new__(Files)
    made.system, made._root = system, "/box"
    return made


def test_a_listing_without_an_end_is_cut_and_a_random_part_told(monkeypatch) -> None:
    monkeypatch.setattr(child, "MAX_LISTED", 5_000)
    monkeypatch.setattr(child, "MAX_KEPT", 100)
    listing = files(Endless(lambda k: f"/box/x/{OTHER}-{k:064x}")).list("x").decode().split()
    assert len(set(listing)) == 100
    assert max(int(name[33:], 16) for name in listing) > 4_000


def test_a_listing_that_comes_slowly_is_cut_in_time(monkeypatch) -> None:
    monkeypatch.setattr(child, "LIST_SECONDS", 0.0)
    assert len(files(Endless(lambda k: f"{OTHER}-{k:064x}")).list("x").decode().split()) == 1


def test_the_longest_listing_fits_into_a_frame() -> None:
    assert child.MAX_KEPT * (len(file_name(OTHER, b"")) + 1) < MAX_FRAME


def test_only_names_of_a_mailbox_are_told() -> None:
    odd = ["../../x", "/etc/passwd", "a\nb", "*", "", "..", f"{OTHER}-{'A' * 64}", "roster-0"]
    good = [f"{OTHER}-{'0' * 64}", "roster-7"]

    class System:
        def names(self, path):
            return iter([*odd, *(f"/elsewhere/{name}" for name in good)])

    assert files(System()).list("x").decode().split("\n") == good


def test_a_system_of_which_nothing_is_known_forgets_its_cache_before_a_listing() -> None:
    class System:
        fresh = False

        def invalidate_cache(self):
            self.fresh = True

        def ls(self, path, detail):
            assert self.fresh
            assert (path, detail) == ("/box/x", False)
            return [f"/box/x/{OTHER}-{'0' * 64}"]

    assert files(System()).list("x")


def test_a_dead_line_is_not_taken_for_a_missing_file() -> None:
    class System:
        alive = True

        def open(self, *args, **kwargs):
            raise OSError("Failure")

    system = System()
    order = {"do": "get", "path": "x", "limit": 5}
    assert answered(files(system), order, b"") == b"0"
    system.alive = False
    with pytest.raises(OSError, match="Failure"):
        answered(files(system), order, b"")


def test_an_error_is_told_in_a_line() -> None:
    assert sentence(OSError("a\n\tb \x1b[1m c")) == "a b [1m c"
    assert sentence(ValueError()) == "ValueError"
    assert len(sentence(ValueError("x" * 9_999))) == 300


def test_a_frame_that_is_too_long_or_cut_is_the_end() -> None:
    write_frame(whole := io.BytesIO(), b"content")
    assert read_frame(io.BytesIO(whole.getvalue())) == b"content"
    for content in (b"", b"\0\0", whole.getvalue()[:-1], b"\xff\xff\xff\xff", b"\x7f" * 100):
        with pytest.raises(EOFError):
            read_frame(io.BytesIO(content))


def test_what_a_library_prints_is_no_frame_and_memory_has_a_limit() -> None:
    program = (
        "import builtins, sys\n"
        "from privcal.transport.post import child\n"
        "class Files:\n"
        "    def __init__(self, url, options): print('a library prints')\n"
        "    def list(self, path): return b'x' * (child.MEMORY * 2)\n"
        "    def get(self, path, limit): return b'content'\n"
        "child.Files = Files\n"
        "child.main()\n"
    )
    pipe = subprocess.PIPE
    started = subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=-3)
    write_frame(started.stdin, b'{"url":"","options":{}}')
    write_frame(started.stdin, b'{"do":"get","path":"x","limit":1}\n')
    assert read_frame(started.stdout) == b"+content"
    write_frame(started.stdin, b'{"do":"list","path":"x","limit":1}\n')
    assert read_frame(started.stdout) == b"-MemoryError"
    assert started.wait(10) == 1
    started.stdin.close()
    started.stdout.close()
