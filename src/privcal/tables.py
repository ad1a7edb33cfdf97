"""Tables: files and data frames as named columns, read a piece of rows at a time.

The types come from the schema: all columns of a CSV are text, those of other files and of frames have
the type that is written there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privcal import lines
from privcal.errors import InputError

if TYPE_CHECKING:
    import polars as pl

CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
ARROW = (".feather", ".arrow")
ENDINGS = (*CSV, ".parquet", *ARROW)


def ending(path: Path) -> str:
    """The ending of a file's name in small letters, that before `.gz` included."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return "".join(suffixes[-2:]) if suffixes[-1:] == [".gz"] else "".join(suffixes[-1:])


def is_table(given: Any) -> bool:
    """Whether that is a table: a data frame, or a file whose name says so."""
    return not isinstance(given, Path) or ending(given) in ENDINGS


class Table(ABC):
    """Named columns with types, and the rows in pieces."""

    @property
    @abstractmethod
    def where(self) -> str:
        """What errors call it."""

    @property
    @abstractmethod
    def schema(self) -> dict[str, pl.DataType | type[pl.DataType]]:
        """Names and types of the columns."""

    @property
    def rows(self) -> int | None:
        """How many rows there are, where that is known without reading them."""
        return None

    @abstractmethod
    def pieces(
        self, wanted: Sequence[str], *, strict: bool, rows: int | None = None
    ) -> Iterator[pl.DataFrame]:
        """Some columns, one or more pieces of rows, none larger than `rows` where that is given."""


def open_table(given: Any) -> Table:
    """The table in a file, or a data frame: of Polars, pandas, or whatever gives Arrow data."""
    if not isinstance(given, Path):
        return Frame(_frame(given))
    if not given.exists():
        raise InputError(f"there is no file {given}")
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
