"""CSV files read line by line: one line is one row, and no line changes how another is read.

Each line is split into its fields on its own: at its commas or, where it holds a quotation mark,
by the rules of CSV, except that a quoted field cannot span lines. A line that is not UTF-8, whose
quotation marks do not close or that has another number of fields than the header is malformed
as a whole. No types are guessed: every cell is text or null.

The header decides what separates fields: where it has no comma, a semicolon or a tab may.
A file called `.gz` is compressed.
"""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from privcal.trusted.errors import InputError

if TYPE_CHECKING:
    import polars as pl

PIECE = 1 << 24
"""Bytes read at once; the rest of the last line is added."""

# Separators become the separator of units, so that a quoted field may keep its own. A separator
# that was there before becomes a byte that is never UTF-8: it would split a field in two.
_SEPARATOR = b"\x1f"
_SEPARATED = {
    mark: bytes.maketrans(mark + _SEPARATOR, _SEPARATOR + b"\xff") for mark in (b",", b";", b"\t")
}

_SIMPLE = re.compile(rb'(?:"[^"\x1f]*"|[^"\x1f]*)(?:\x1f(?:"[^"\x1f]*"|[^"\x1f]*))*')
_FIELD = re.compile(r'"([^"]*(?:""[^"]*)*)"(?=\x1f|\Z)|([^"\x1f][^\x1f]*|)(?=\x1f|\Z)')


def header(path: Path) -> list[str]:
    """The names of the columns: the first line that is not blank."""
    with _opened(path) as file:
        names, _ = _header(path, file)
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"{path} has two columns {name}")
        seen.add(name)
    return names


def cells(path: Path, wanted: Sequence[str], *, strict: bool) -> Iterator[pl.DataFrame]:
    """The wanted columns as text, a piece of the file at a time; empty cells are null.

    A line malformed as a whole is an InputError if `strict`; else all its cells are null.
    """
    names = header(path)
    yield _table([], names, wanted)
    row = 0
    with _opened(path) as file:
        _, mark = _header(path, file)
        while piece := file.read(PIECE):
            lines = _lines(piece + file.readline(), mark)
            for problem in _mend(lines, names, row, mark):
                if strict:
                    raise InputError(f"{path}: {problem}")
            row += len(lines)
            yield _table(lines, names, wanted)


def line_of(path: Path, row: int) -> int:
    """The line of the file, counted from 1, on which a row stands: blank lines are no rows."""
    with _opened(path) as file:
        _, mark = _header(path, file)
        file.seek(0)
        left = row + 2  # the header is the first line that is not blank
        for number, line in enumerate(file, 1):
            text = line.removeprefix(codecs.BOM_UTF8).translate(_SEPARATED[mark])
            left -= bool(text.strip())
            if not left:
                return number
    raise InputError(f"{path} was changed while it was read")


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else open(path, "rb") as file:
            yield file  # type: ignore[misc]
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InputError(f"cannot read {path}: it is no gzip file, or is cut short") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def _header(path: Path, file: BinaryIO) -> tuple[list[str], bytes]:
    """The names of the columns, and what separates them."""
    line = file.readline().removeprefix(codecs.BOM_UTF8)
    while line and not line.strip():
        line = file.readline()
    if not line:
        raise InputError(f"cannot read {path}: it is empty")
    mark = next((mark for mark in _SEPARATED if mark in line), b",")
    fields = _fields(line.rstrip(b"\r\n").translate(_SEPARATED[mark]), mark)
    if isinstance(fields, str):
        raise InputError(f"{path}: the first line {fields}")
    return [name.strip() for name in fields], mark


def _lines(piece: bytes, mark: bytes) -> list[bytes]:
    text = piece.translate(_SEPARATED[mark]).replace(b"\r\n", b"\n").removesuffix(b"\r")
    return [_unquoted(line) for line in text.split(b"\n") if line.strip()]


def _unquoted(line: bytes) -> bytes:
    """The line without quotation marks where these hold no comma and no mark, as most do."""
    return line.replace(b'"', b"") if b'"' in line and _SIMPLE.fullmatch(line) else line


def _mend(lines: list[bytes], names: list[str], first: int, mark: bytes) -> Iterator[str]:
    """Unquote, in place, the lines that are not plain; empty the malformed, and say why."""
    commas = len(names) - 1
    suspicious = not _is_utf8(b"\n".join(lines))
    odd = [
        index
        for index, line in enumerate(lines)
        if b'"' in line or line.count(_SEPARATOR) != commas or (suspicious and not _is_utf8(line))
    ]
    for index in odd:
        fields = _fields(lines[index], mark)
        if not isinstance(fields, str) and len(fields) == len(names):
            lines[index] = _SEPARATOR.join(field.encode() for field in fields)
            continue
        lines[index] = _SEPARATOR * commas
        row = first + index
        if isinstance(fields, str):
            yield f"row {row} {fields}"
        elif len(fields) > len(names):
            yield f"row {row} has {len(fields)} fields, the header {len(names)}"
        else:
            yield (
                f"{names[len(fields)]} of row {row} is missing: "
                f"it has {len(fields)} fields, the header {len(names)}"
            )


def _fields(line: bytes, mark: bytes) -> list[str] | str:
    """The fields of one line, or what is wrong with it; within quotation marks, `mark` is text."""
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return "is not UTF-8 text"
    unit = _SEPARATOR.decode()
    if '"' not in text:
        return text.split(unit)
    fields = []
    start = 0
    while start <= len(text):
        field = _FIELD.match(text, start)
        if field is None:
            return "has a stray quotation mark (a quoted field cannot span lines)"
        quoted, plain = field.groups()
        fields.append(plain if quoted is None else quoted.replace('""', '"'))
        start = field.end() + 1
    return [field.replace(unit, mark.decode()) for field in fields]


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _table(lines: list[bytes], names: list[str], wanted: Sequence[str]) -> pl.DataFrame:
    import polars as pl

    columns = {name: column for column, name in enumerate(names, 1)}
    table = pl.read_csv(
        # An empty field before the others, so that no line is blank.
        _SEPARATOR + (b"\n" + _SEPARATOR).join(lines) if lines else b"",
        separator=_SEPARATOR.decode(),
        quote_char=None,
        has_header=False,
        schema=dict.fromkeys(map(str, range(len(names) + 1)), pl.String),
        columns=sorted(columns[name] for name in wanted),
        raise_if_empty=False,
    )
    return table.select(pl.col(str(columns[name])).alias(name) for name in wanted)
