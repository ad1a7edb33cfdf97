"""A map applied to a file or a data frame: batch by batch, with everything else that it holds.

What comes out has the other columns of what went in (ids, labels, whatever there is) and, in place of the
model's outputs, the predicted class, the calibrated confidence and, where wanted, the probabilities of
all classes. Where the labels are there, `correct` says whether each prediction is right; so the result
can be read as scores again. Memory does not grow with the outputs.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from privcal.calibration.fit import SHIFT
from privcal.calibration.maps import Map, RiskMap
from privcal.data.columns import PERSON, Layout, find_arrays, find_roles
from privcal.data.files import replacing
from privcal.data.readers import (
    as_numbers,
    check_types,
    labels_of,
    model_of,
    names_in,
    outputs_of,
    to_number,
)
from privcal.data.scores import Outputs, as_labels
from privcal.data.tables import ArrayTable, Table, ending, is_table, open_table, with_lines
from privcal.trusted.errors import InputError

if TYPE_CHECKING:
    import polars as pl

NUMBERS = 1 << 22
"""Numbers in one batch: 32 MB in double precision, of which a few copies are needed."""
WRITTEN = (".parquet", ".csv", ".npz", ".npy")


@dataclass(frozen=True)
class Batch:
    """Some rows: what went in beside the outputs, and what came out."""

    kept: pl.DataFrame
    results: dict[str, npt.NDArray[Any]]
    probabilities: npt.NDArray[np.float64] | None
    class_names: tuple[str, ...] | None
    truth: str | None
    """The column among the others that has the labels, or what is correct."""

    @property
    def rows(self) -> int:
        return len(self.results["confidence"])

    def table(self) -> pl.DataFrame:
        """All of it as columns."""
        import polars as pl

        results = {name: pl.Series(name, values) for name, values in self.results.items()}
        if "correct" in results:
            results["correct"] = _with_nulls(results["correct"])
        if self.probabilities is not None:
            for j, column in enumerate(self.probabilities.T):
                name = f"probability_{j if self.class_names is None else self.class_names[j]}"
                results[name] = pl.Series(name, np.ascontiguousarray(column))
        if clash := [name for name in results if name in self.kept.columns]:
            raise InputError(
                f"there is a column {clash[0]} already, and the result has one: give that another name"
            )
        return (
            self.kept.hstack(list(results.values())) if self.kept.width else pl.DataFrame(results)
        )


def _with_nulls(correct: pl.Series) -> pl.Series:
    """1, 0, or nothing where a label is no class (−1 here)."""
    import polars as pl

    return correct.replace_strict({0: 0, 1: 1}, default=None, return_dtype=pl.Int8)


def apply_map(
    map: Map,
    table: Any,
    *,
    probabilities: bool = False,
    columns: Mapping[str, str] | None = None,
    class_names: Sequence[str] | None = None,
) -> pl.DataFrame:
    """A map applied to the rows of a data frame or a file, with their other columns kept.

    Parameters
    ----------
    map
        The map.
    table
        A data frame (of Polars, pandas, or anything that gives Arrow data) or a file, with columns as
        `read_scores` knows them. Labels are not needed.
    probabilities
        Whether the probabilities of all classes are given too.
    columns, class_names
        As in `read_scores`.

    Returns
    -------
    polars.DataFrame
        The columns that are no outputs, `predicted`, `confidence`, for a map of a risk also `risk`;
        with labels also `correct`. A table of confidences has no predicted class.

    Examples
    --------
    >>> import polars as pl
    >>> visits = pl.DataFrame({"visit": ["a", "b"], "logit_0": [2.0, 0.0], "logit_1": [0.0, 1.0]})
    >>> privcal.apply_map(privcal.TemperatureMap(2.0), visits).rows()
    [('a', 0, 0.7310585786300049), ('b', 1, 0.6224593312018546)]
    """
    import polars as pl

    given = Path(table) if isinstance(table, (str, Path)) else table
    layout = Layout.of(columns, class_names)
    return pl.concat([b.table() for b in batches(map, given, layout, probabilities)])


def batches(map: Map, given: Any, layout: Layout, probabilities: bool) -> Iterator[Batch]:
    """The map applied to some rows after the other; at least one batch, perhaps without rows."""
    map.check_model(model_of(given))
    layout, _ = layout.without_person(None)
    names = map.class_names or ()
    table = open_table(given)
    if isinstance(table, ArrayTable):
        parts = _of_arrays(table, layout, names)
    else:
        parts = _of_table(table, replace(layout, class_names=layout.class_names or names))
    with with_lines(given):
        looked = False
        for outputs, kept, truth, labels in parts:
            if (
                not looked
            ):  # a later batch may be a single row, and the first one of a CSV file has none
                outputs.need_logits(SHIFT)
            looked = looked or outputs.rows > 0
            results = _results(map, outputs, labels)
            of_all = map.predict_proba(logits=outputs) if probabilities else None
            yield Batch(kept, results, of_all, outputs.class_names, truth)


def rows_of(path: Path) -> int | None:
    """How many rows a file has, where that can be told without reading them."""
    table = open_table(path) if is_table(path) and path.is_file() else None
    return table.rows if table is not None else None


def _results(map: Map, outputs: Outputs, labels: Any) -> dict[str, npt.NDArray[Any]]:
    results: dict[str, npt.NDArray[Any]] = {}
    if outputs.kind != "confidence":
        predicted = map.predict(logits=outputs)
        names = outputs.class_names
        results["predicted"] = predicted if names is None else np.array(names)[predicted]
        if labels is not None:
            truth, known = as_labels("labels", labels, outputs, strict=False)
            results["correct"] = np.where(known, predicted == truth, -1).astype(np.int8)
    results["confidence"] = map.confidence(logits=outputs)
    if isinstance(map, RiskMap):
        results["risk"] = map.risk(logits=outputs)
    return results


_Part = tuple[Outputs, "pl.DataFrame", str | None, Any]


def _of_table(table: Table, layout: Layout) -> Iterator[_Part]:
    schema = table.schema
    roles = find_roles(table.where, list(schema), layout, None, labelled=False)
    check_types(table, roles, labelled=False)
    others = [name for name in schema if name not in roles.scores]
    start = 0
    for piece in table.pieces(list(schema), strict=True, rows=max(1, NUMBERS // len(schema))):
        read = as_numbers(table.where, piece, roles.scores, start, strict=True)
        outputs = _outputs(table.where, start, outputs_of(roles, read, schema))
        yield outputs, piece.select(others), roles.label, labels_of(roles, piece)
        start += len(piece)


def _of_arrays(arrays: ArrayTable, layout: Layout, names: tuple[str, ...]) -> Iterator[_Part]:
    import polars as pl

    found = find_arrays(arrays.where, arrays.names, layout, labelled=False)
    kind, own = next(iter(found.items()))
    called = names_in(arrays, layout, kind) or (None if kind == "confidence" else names or None)
    shape = arrays.schema[own][0]
    alike = [n for n, facts in arrays.schema.items() if facts[0][:1] == shape[:1]]
    others = [name for name in alike if name not in (own, "class_names")]
    labels = found.get("labels", "")
    start = 0
    step = max(1, NUMBERS // max(1, int(np.prod(shape[1:]))))
    for piece in arrays.pieces([own, *others], strict=True, rows=step):
        given = {kind: piece[own], "class_names": called}
        kept = {"label" if name == labels else name: piece[name] for name in others}
        outputs = _outputs(arrays.where, start, given)
        yield outputs, pl.DataFrame(kept), "label", piece.get(labels)
        start += outputs.rows


def _outputs(where: str, first_row: int, given: dict[str, Any]) -> Outputs:
    try:
        return Outputs(**given, first_row=first_row)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


# --- to a file -----------------------------------------------------------------------------


def check_written(out: Path, probabilities: bool) -> None:
    """Raise InputError where the result cannot be written to a file of this name."""
    if ending(out) not in WRITTEN:
        raise InputError(f"{out} has an unknown ending; use {', '.join(WRITTEN)}")
    if ending(out) == ".npy" and (not probabilities or "probabilities" not in out.name):
        raise InputError(
            f"{out}: a .npy file holds one array, the probabilities: say --probabilities, and call it so "
            "(its labels go beside it)"
        )


def beside(out: Path) -> list[Path]:
    """The files of labels and person ids that go with a .npy file."""
    if ending(out) != ".npy":
        return []
    return [out.with_name(out.name.replace("probabilities", name)) for name in ("labels", PERSON)]


def write(
    out: Path, parts: Iterator[Batch], progress: Callable[[int], None]
) -> tuple[int, list[str]]:
    """Write batches as they come; how many rows they had, and what the columns are called."""
    counted = _Counted(parts, progress)
    if ending(out) in (".npz", ".npy"):
        names = _write_arrays(out, counted)
    else:
        names = _write_table(out, counted)
    return counted.rows, names


@dataclass
class _Counted:
    parts: Iterator[Batch]
    progress: Callable[[int], None]
    rows: int = 0

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.parts:
            yield batch
            self.rows += batch.rows
            self.progress(self.rows)


def _write_table(out: Path, parts: _Counted) -> list[str]:
    tables = (batch.table() for batch in parts)
    first = next(tables)
    with replacing(out) as part:
        if ending(out) == ".csv":
            with open(part, "wb") as file:
                first.write_csv(file)
                for table in tables:
                    table.write_csv(file, include_header=False)
        else:
            _sink(part, first, tables)
    return first.columns


def _sink(path: Path, first: pl.DataFrame, others: Iterator[pl.DataFrame]) -> None:
    """A Parquet file, written as its rows come: Polars asks for them one batch after the other."""
    from polars.io.plugins import register_io_source

    problems: list[BaseException] = []

    def source(
        columns: list[str] | None, predicate: Any, rows: int | None, size: int | None
    ) -> Iterator[pl.DataFrame]:
        try:
            yield first
            for table in others:
                yield table.cast(first.schema)  # a batch without text has no type for it
        except BaseException as problem:
            problems.append(problem)
            raise

    try:
        # Groups of rows no larger than a few batches: Polars keeps one in memory until it is full.
        rows = max(1000, 4 * NUMBERS // len(first.columns))
        register_io_source(source, schema=first.schema).sink_parquet(path, row_group_size=rows)
    except BaseException:
        if problems:  # ours, not what Polars makes of it
            raise problems[0] from None
        raise


@dataclass
class _Arrays:
    """Equally long arrays that grow; the large one on disk."""

    small: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    class_names: tuple[str, ...] | None = None
    rows: int = 0
    classes: int = 0

    def add(self, batch: Batch, file: Any) -> None:
        import polars as pl

        kept = {("labels" if c.name == "label" else c.name): c for c in batch.kept}
        for name, column in kept.items():
            if column.name == batch.truth and batch.class_names is None:
                column = to_number(column)  # of a CSV it is text
            if not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
                column = column.cast(pl.String, strict=False).fill_null("")
            text = column.dtype == pl.String
            values = np.array(column.to_list(), str) if text else column.to_numpy()
            self.small.setdefault(name, []).append(values)
        for name, values in batch.results.items():
            self.small.setdefault(name, []).append(values)
        self.class_names = batch.class_names
        if batch.probabilities is None:
            return
        if not self.classes:
            self.classes = batch.probabilities.shape[1]
            self.header(file)
        self.rows += batch.rows
        file.write(np.ascontiguousarray(batch.probabilities, "<f8").tobytes())

    def header(self, file: Any) -> None:
        """That of the file of probabilities so far; it is as long for any number of rows."""
        shape = (self.rows, self.classes)
        header = {"descr": "<f8", "fortran_order": False, "shape": shape}
        file.seek(0)
        np.lib.format.write_array_header_1_0(file, header)


def _write_arrays(out: Path, parts: _Counted) -> list[str]:
    arrays = _Arrays()
    with replacing(out) as part, ExitStack() as stack:
        large = part.with_suffix(".raw.npy")
        stack.callback(large.unlink, missing_ok=True)
        with open(large, "wb") as file:
            for batch in parts:
                arrays.add(batch, file)
            if arrays.classes:
                arrays.header(file)
        whole = {name: np.concatenate(values) for name, values in arrays.small.items()}
        if ending(out) == ".npy":
            large.replace(part)
            found = [p for p in zip(beside(out), ("labels", PERSON), strict=True) if p[1] in whole]
            for path, name in found:
                with replacing(path) as other:
                    np.save(other, whole[name])
            return ["probabilities", *(name for _, name in found)]
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            if arrays.classes:
                archive.write(large, "probabilities.npy")
            if arrays.class_names is not None:
                whole["class_names"] = np.array(arrays.class_names)
            for name, values in whole.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, values, allow_pickle=False)
        return [*whole, *(["probabilities"] if arrays.classes else [])]
