"""Tables: files and data frames as named columns, read a piece of rows at a time.

The types come from the schema: all columns of a CSV are text, those of other files and of frames have
the type that is written there. An array is a column too, and may have several numbers in each row.
"""

from __future__ import annotations

import re
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from privcal.data import lines
from privcal.data.columns import KINDS, PERSON
from privcal.trusted.errors import InputError

if TYPE_CHECKING:
    import polars as pl

CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
ARROW = (".feather", ".arrow")
TABLES = (*CSV, ".parquet", *ARROW)
ENDINGS = (".npz", ".npy", *TABLES)


def ending(path: Path) -> str:
    """The ending of a file's name in small letters, that before `.gz` included."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return "".join(suffixes[-2:]) if suffixes[-1:] == [".gz"] else "".join(suffixes[-1:])


def is_table(given: Any) -> bool:
    """Whether that is a table: a data frame, or a file whose name says so."""
    return not isinstance(given, Path) or ending(given) in TABLES


def is_scores(path: Path) -> bool:
    """Whether a name is one of data: a folder of .npy files, or a file with such an ending."""
    return path.is_dir() or ending(path) in ENDINGS


class Table(ABC):
    """Named columns, and the rows in pieces."""

    @property
    @abstractmethod
    def where(self) -> str:
        """What errors call it."""

    @property
    @abstractmethod
    def schema(self) -> Mapping[str, Any]:
        """Names of the columns, with their types of Polars; of arrays, with what their headers say."""

    @property
    def names(self) -> list[str]:
        """What the columns are called."""
        return list(self.schema)

    @property
    def rows(self) -> int | None:
        """How many rows there are, where that is known without reading them."""
        return None

    @abstractmethod
    def pieces(
        self, wanted: Sequence[str], *, strict: bool, rows: int | None = None
    ) -> Iterator[Any]:
        """Some columns, one or more pieces of rows, none larger than `rows` where that is given.

        A piece is a frame of Polars; of arrays, their parts by name.
        """


def open_table(given: Any) -> Table:
    """The table in a file, or a data frame: of Polars, pandas, or whatever gives Arrow data."""
    if not isinstance(given, Path):
        return Frame(_frame(given))
    if not given.exists():
        raise InputError(f"there is no file {given}")
    if given.is_dir() or ending(given) == ".npy":
        return NpyFiles(outputs_file(given))
    if ending(given) == ".npz":
        return NpzFile(given)
    if ending(given) not in TABLES:
        raise InputError(f"{given} has an unknown ending; use {', '.join(ENDINGS)}")
    return CsvFile(given) if ending(given) in CSV else ColumnFile(given)


@dataclass(frozen=True)
class CsvFile(Table):
    """A CSV file: all columns are text, and each line is a row."""

    path: Path

    @property
    def where(self) -> str:
        return str(self.path)

    @cached_property
    def schema(self) -> dict[str, pl.DataType | type[pl.DataType]]:
        import polars as pl

        return dict.fromkeys(lines.header(self.path), pl.String)

    def pieces(
        self, wanted: Sequence[str], *, strict: bool, rows: int | None = None
    ) -> Iterator[pl.DataFrame]:
        for piece in lines.cells(self.path, _once(wanted), strict=strict):
            yield from _cut(piece, rows)


@dataclass(frozen=True)
class ColumnFile(Table):
    """A Parquet or Arrow file."""

    path: Path

    @property
    def where(self) -> str:
        return str(self.path)

    @property
    def _scan(self) -> pl.LazyFrame:
        import polars as pl

        if ending(self.path) in ARROW:
            return pl.scan_ipc(self.path)
        return pl.scan_parquet(self.path, glob=False)

    @property
    def rows(self) -> int:
        import polars as pl

        with polars_errors(self.where):
            return int(self._scan.select(pl.len()).collect().item())

    @cached_property
    def schema(self) -> dict[str, pl.DataType | type[pl.DataType]]:
        with polars_errors(self.where):
            return dict(self._scan.collect_schema())

    def pieces(
        self, wanted: Sequence[str], *, strict: bool, rows: int | None = None
    ) -> Iterator[pl.DataFrame]:
        scan = self._scan.select(_once(wanted))
        count = 0 if rows is None else self.rows
        for start in range(0, max(1, count), rows or 1):
            with polars_errors(self.where):
                piece = (scan if rows is None else scan.slice(start, rows)).collect()
            yield piece


@dataclass(frozen=True)
class Frame(Table):
    """A table in memory."""

    frame: pl.DataFrame

    @property
    def where(self) -> str:
        return "the table"

    @property
    def schema(self) -> dict[str, pl.DataType | type[pl.DataType]]:
        return dict(self.frame.schema)

    def pieces(
        self, wanted: Sequence[str], *, strict: bool, rows: int | None = None
    ) -> Iterator[pl.DataFrame]:
        yield from _cut(self.frame.select(_once(wanted)), rows)


class ArrayTable(Table):
    """Arrays with an entry for each row."""

    path: Path

    @property
    def where(self) -> str:
        return str(self.path)

    def missing(self, name: str) -> str:
        """What is said where there is no array of this name."""
        return f"{self.path} has no array {name}; it has {', '.join(self.names)}"

    @abstractmethod
    def read(self, name: str) -> npt.NDArray[Any]:
        """A whole array."""

    def pieces(
        self, wanted: Sequence[str], *, strict: bool, rows: int | None = None
    ) -> Iterator[dict[str, npt.NDArray[Any]]]:
        names = _once(wanted)
        shapes = {name: self.schema[name][0] for name in names}
        count = next(iter(shapes.values()), (0,))[:1]
        for name, shape in shapes.items():
            if not shape or shape[:1] != count:
                raise InputError(
                    f"{self.path}: {name} has not one entry for each of {count[0] if count else 1} rows"
                )
        step = rows or max(1, *count)
        parts = [self.parts(name, step) for name in names]
        for arrays in zip(*parts, strict=True):
            yield dict(zip(names, arrays, strict=True))

    def parts(self, name: str, rows: int) -> Iterator[npt.NDArray[Any]]:
        """An array, some rows at a time; at least one part."""
        array = self.read(name)
        for start in range(0, max(1, len(array)), rows):
            yield array[start : start + rows]


@dataclass(frozen=True)
class NpyFiles(ArrayTable):
    """A .npy file whose name says what it holds, and those beside it with the labels and the persons.

    The outputs are opened as a memory map: they may be larger than memory.
    """

    path: Path

    @cached_property
    def kind(self) -> str:
        kinds = [kind for kind in KINDS if kind in self.path.name]
        if len(kinds) != 1:
            raise InputError(
                f"the name of {self.path} must say what it holds: logits or probabilities "
                "(its labels are then in the file with labels in that place)"
            )
        return kinds[0]

    def member(self, name: str) -> Path:
        """The file of an array."""
        return self.path.with_name(self.path.name.replace(self.kind, name))

    @property
    def names(self) -> list[str]:
        return [self.kind, *(n for n in ("labels", PERSON) if self.member(n).exists())]

    @property
    def schema(self) -> Mapping[str, Any]:
        return {name: (self.read(name).shape,) for name in self.names}

    def read(self, name: str) -> npt.NDArray[Any]:
        array: npt.NDArray[Any] = _load(self.member(name), np.ndarray, name == self.kind)
        return array


@dataclass(frozen=True)
class NpzFile(ArrayTable):
    """An .npz file; an array is unpacked some rows at a time where its order allows that."""

    path: Path

    @cached_property
    def names(self) -> list[str]:
        with self._archive() as archive:
            return list(archive.files)

    @cached_property
    def schema(self) -> Mapping[str, Any]:
        return {name: self._header(name) for name in self.names}

    def read(self, name: str) -> npt.NDArray[Any]:
        with self._archive() as archive, _readable(self.path):
            array: npt.NDArray[Any] = archive[name]
        return array

    def parts(self, name: str, rows: int) -> Iterator[npt.NDArray[Any]]:
        shape, fortran, dtype = self.schema[name]
        if fortran or dtype.hasobject:
            yield from super().parts(name, rows)
            return
        width = int(np.prod(shape[1:]))
        with zipfile.ZipFile(self.path) as archive, archive.open(f"{name}.npy") as member:
            _header(member)
            for start in range(0, max(1, shape[0]), rows):
                part = min(rows, shape[0] - start)
                with _readable(self.path):
                    data = member.read(part * width * dtype.itemsize)
                    array = np.frombuffer(data, dtype).reshape(part, *shape[1:])
                yield array

    def _archive(self) -> Any:
        return _load(self.path, np.lib.npyio.NpzFile)

    def _header(self, name: str) -> Any:
        """Shape, order and type of an array."""
        with (
            _readable(self.path),
            zipfile.ZipFile(self.path) as archive,
            archive.open(f"{name}.npy") as member,
        ):
            return _header(member)


def _header(member: Any) -> Any:
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[np.lib.format.read_magic(member)]
    return read(member)


def _load(path: Path, kind: type[Any], mapped: bool = False) -> Any:
    """What NumPy reads, if it is of this kind: never Python objects."""
    with _readable(path):
        content = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    if not isinstance(content, kind):
        raise InputError(f"{path} is not a {ending(path)} file, whatever its name says")
    return content


def read_array(path: Path, name: str = "") -> npt.NDArray[Any]:
    """The array in a .npy file, or the one of this name in an .npz file."""
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    if ending(path) != ".npz":
        array: npt.NDArray[Any] = _load(path, np.ndarray)
        return array
    if name not in (file := NpzFile(path)).names:
        raise InputError(file.missing(name))
    return file.read(name)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """All the kinds of errors that NumPy raises on damaged files become one."""
    try:
        yield
    except Exception as error:
        # NumPy's own words would advise to load what must not be loaded.
        why = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        raise InputError(
            f"{path} is not a readable {ending(path)} file, or is cut short{why}"
        ) from None


def outputs_file(path: str | Path) -> Path:
    """The file that holds the outputs: `path` itself, or the one .npy file of that kind in a folder."""
    path = Path(path)
    if not path.is_dir():
        return path
    files = [path / f"{kind}.npy" for kind in KINDS if (path / f"{kind}.npy").exists()]
    if len(files) != 1:
        raise InputError(f"folder {path} must hold either logits.npy or probabilities.npy")
    return files[0]


def read_with(path: Path) -> list[Path]:
    """The files that are read where this one is named: of .npy files, those with labels and persons too."""
    if not path.is_dir() and ending(path) != ".npy":
        return [path]
    files = NpyFiles(outputs_file(path))
    return [files.member(name) for name in (files.kind, "labels", PERSON)]


@contextmanager
def naming(given: Any) -> Iterator[None]:
    """Errors about rows of a file get its name."""
    try:
        yield
    except InputError as error:
        if not isinstance(given, Path) or str(given) in str(error):
            raise
        raise InputError(f"{given}: {error}") from None


@contextmanager
def with_lines(given: Any, strict: bool = True) -> Iterator[None]:
    """Errors about a row of a CSV file begin with its line, if `strict`."""
    try:
        yield
    except InputError as error:
        problem = str(error).removeprefix(f"{given}: ")
        row = re.search(r"\brow (\d+)\b", problem)
        csv = isinstance(given, Path) and ending(given) in CSV
        if not strict or not csv or row is None:
            raise
        line = lines.line_of(given, int(row[1]))
        raise InputError(f"{given}, line {line}: {problem}") from None


def _once(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _cut(piece: pl.DataFrame, rows: int | None) -> Iterator[pl.DataFrame]:
    return (
        iter([piece]) if rows is None else piece.iter_slices(rows) if len(piece) else iter([piece])
    )


def _frame(given: Any) -> pl.DataFrame:
    """Any data frame as one of Polars."""
    import polars as pl

    if isinstance(given, (pl.DataFrame, pl.LazyFrame)):
        return given.lazy().collect()
    try:
        if hasattr(given, "__arrow_c_stream__"):
            return pl.DataFrame(given)
        return pl.DataFrame({str(name): given[name].to_numpy() for name in given.columns})
    except ImportError:  # pandas, whose Arrow data need PyArrow
        return pl.DataFrame({str(name): given[name].to_numpy() for name in given.columns})
    except Exception as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"scores are read from a file or a data frame, not from a {type(given).__name__} ({first})"
        ) from None


@contextmanager
def polars_errors(where: str) -> Iterator[None]:
    import polars as pl

    try:
        yield
    except (pl.exceptions.PolarsError, OSError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"cannot read {where}: {first}") from None
