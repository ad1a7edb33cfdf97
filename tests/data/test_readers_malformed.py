"""What a row is worth is decided by that row and the schema alone, however malformed it is.

Every reader gets a file D and the same file with one odd row more, first, in the middle and
last. Not strict, the odd row changes nothing about any other; strict, it is refused by name
exactly where it is malformed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privcal.data import lines
from privcal.data.readers import read_scores, read_sources
from privcal.data.scores import Scores, content_digest
from privcal.trusted.queries import FAMILY, BinnedGap, EventHats, Gap, Hats, Nll, Query
from tests.support.builders import a_file, sentence

QUERIES: list[Query] = [
    *(query() for query in FAMILY.values()),
    Gap(0.01),
    Nll(100.0, 1000.0),
    BinnedGap(0.01, 1000),
    Hats(100.0, (-1.0, 0.0, 1.0)),
    EventHats(100.0, (-1.0, 0.0, 1.0), 2),
]
N, M = 6, 3
INDICES = (0, N // 2, N)
LOGITS = np.random.default_rng(5).normal(0, 3, (N, M)).astype(np.float32)
LABELS = np.array([0, 2, 1, 1, 0, 2])
PERSON = ["007", "7", "ann", "ann", "bob", "é"]


@pytest.fixture(autouse=True)
def _no_warning_is_let_through() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def one_sentence(path: Path, **options: Any) -> str:
    text = sentence(read_scores, path, **options)
    assert len(text) < 400
    assert str(path) in text
    return text


def one_row_more(less: Scores, more: Scores, index: int, malformed: bool) -> None:
    """`more` is `less` with one row at `index`; nothing else may differ by a single bit."""
    others = np.delete(np.arange(len(more)), index)
    assert len(more) == len(less) + 1
    assert more.classes == less.classes
    assert more.outputs.array.dtype == less.outputs.array.dtype
    assert more.outputs.dtype == less.outputs.dtype
    assert more.labels.dtype == less.labels.dtype
    assert more.labels[others].tolist() == less.labels.tolist()
    assert more.valid[others].tolist() == less.valid.tolist()
    assert more.valid[index] == (not malformed)
    assert (more.person is None) == (less.person is None)
    if more.person is not None and less.person is not None:
        assert more.person[others].tolist() == less.person.tolist()
    for query in QUERIES:
        before, after = query.contributions(less), query.contributions(more)
        assert np.array_equal(after.values[others], before.values)
        assert np.array_equal(after.cells[others], before.cells)
        odd = after.values[index]
        assert np.abs(odd).sum() <= query.bound
        assert not (malformed and odd.any())
        moved = after.sum(query.length) - before.sum(query.length)
        assert np.abs(moved).sum() <= query.bound


# --- CSV ---------------------------------------------------------------------------------

HEADER = b"label,logit_0,logit_1,logit_2,person,note"
LINES = [
    ",".join([str(y), *map(str, row), who, f"note {i}"]).encode()
    for i, (y, row, who) in enumerate(zip(LABELS, LOGITS.tolist(), PERSON, strict=True))
]

MALFORMED_LINES = {
    "a letter for a zero": b"0,O.5,1,2,zed,n",
    "a decimal comma": b"0,0,5,1,2,zed,n",
    "a logit left out": b"0,,1,2,zed,n",
    "a blank for a logit": b"0, ,1,2,zed,n",
    "a label left out": b",0.5,1,2,zed,n",
    "an id left out": b"0,0.5,1,2,,n",
    "an id of blanks": b"0,0.5,1,2,   ,n",
    "a word for no id": b"0,0.5,1,2,NA,n",
    "a field too many": b"0,0.5,1,2,zed,n,",
    "a field too few": b"0,0.5,1,2,zed",
    "one field": b"0",
    "blanks": b"  x ",
    "only commas": b",,,,,",
    "too many commas": b",,,,,,,,,,,",
    "a quotation mark that opens": b'0,0.5,1,2,zed,"n',
    "a quotation mark that opens early": b'"0,0.5,1,2,zed,n',
    "text after a quotation mark": b'0,0.5,1,2,zed,"n"n',
    "a quotation mark in a number": b'0,0."5,1,2,zed,n',
    "only a quotation mark": b'"',
    "three quotation marks": b'"""',
    "nan": b"0,nan,1,2,zed,n",
    "NaN": b"0,0.5,1,NaN,zed,n",
    "inf": b"0,inf,1,2,zed,n",
    "-inf": b"0,0.5,-Infinity,2,zed,n",
    "1e400": b"0,1e400,1,2,zed,n",
    "-1e400": b"0,0.5,-1e400,2,zed,n",
    "digits without end": b"0," + b"9" * 100_000 + b",1,2,zed,n",
    "hexadecimal": b"0,0x10,1,2,zed,n",
    "an underscore": b"0,1_0,1,2,zed,n",
    "digits of another script": "0,٣,1,2,zed,n".encode(),
    "an empty exponent": b"0,1e,1,2,zed,n",
    "a label below 0": b"-1,0.5,1,2,zed,n",
    "a label above the last": b"3,0.5,1,2,zed,n",
    "half a label": b"1.5,0.5,1,2,zed,n",
    "a label beyond 64 bits": b"99999999999999999999,0.5,1,2,zed,n",
    "a label beyond 128 bits": b"9" * 60 + b",0.5,1,2,zed,n",
    "a label beyond floats": b"1e400,0.5,1,2,zed,n",
    "a label that is no number": b"nan,0.5,1,2,zed,n",
    "a label of text": b"cat,0.5,1,2,zed,n",
    "text that is not UTF-8": b"0,0.5,1,2,zed,\xff\xfe",
    "an id that is not UTF-8": b"0,0.5,1,2,z\xe9d,n",
    "half a letter": b"0,0.5,1,2,zed,\xc3",
    "NUL in a number": b"0,0.5\x00,1,2,zed,n",
    "only NUL": b"\x00",
    "NULs and commas": b"\x00,\x00,\x00,\x00,\x00,\x00",
    "the separator of units": b"0,0.5,1,2,zed,a\x1fb",
    "a separator of units for a comma": b"0,0.5,1,2,zed\x1fn",
    "only separators of units": b"\x1f\x1f\x1f\x1f\x1f",
    "a mark of byte order": b"\xef\xbb\xbf0,0.5,1,2,zed,n",
    "the header again": HEADER,
    "a very long line": b"x" * 3_000_000,
    "a very long line of commas": b"," * 1_000_000,
}
WELL_FORMED_LINES = {
    "an ordinary one": b"0,0.5,1,2,zed,n",
    "quoted numbers": b'"0","0.5","1","2","zed","n"',
    "a comma in quotation marks": b'0,0.5,1,2,zed,"n, m"',
    "doubled quotation marks": b'0,0.5,1,2,"z""ed","""n"""',
    "a quotation mark within text": b'0,0.5,1,2,zed,5" tall',
    "empty quotation marks": b'0,0.5,1,2,zed,""',
    "whole labels with a point": b"1.0,0.5,1,2,zed,n",
    "a label of truth": b"true,0.5,1,2,zed,n",
    "blanks around": b" 1 , 0.5 ,\t1, 2,zed,n",
    "signs": b"+1,+0.5,-1,+2,zed,n",
    "exponents": b"1e0,5E-1,1e+0,.2e1,zed,n",
    "points": b"1.,.5,1.,-.2,zed,n",
    "leading zeros": b"01,00.5,01,02,0,n",
    "denormal": b"0,1e-400,5e-324,-0.0,zed,n",
    "huge": b"0,1e308,-1e308,3e38,zed,n",
    "no note": b"0,0.5,1,2,zed,",
    "NUL in a note": b"0,0.5,1,2,zed,a\x00b",
    "another script": "0,0.5,1,2,ζεδ,ñ".encode(),
    "a return within a note": b"0,0.5,1,2,zed,a\rb",
    "an end of line from elsewhere": b"0,0.5,1,2,zed,n\r",
    "a very long note": b"0,0.5,1,2,zed," + b"x" * 3_000_000,
    "a very long note in quotation marks": b'0,0.5,1,2,zed,"' + b"x" * 3_000_000 + b'"',
    "somebody else's id": b"0,0.5,1,2,ann,n",
}
ODD_LINES = [
    pytest.param(line, malformed, id=name)
    for malformed, group in ((True, MALFORMED_LINES), (False, WELL_FORMED_LINES))
    for name, line in group.items()
]


def csv(folder: Path, rows: list[bytes], name: str = "x.csv") -> Path:
    return a_file(folder / name, b"\n".join([HEADER, *rows]))


def with_row(rows: list[Any], index: int, row: Any) -> list[Any]:
    return [*rows[:index], row, *rows[index:]]


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize(("line", "malformed"), ODD_LINES)
@pytest.mark.slow
def test_an_odd_line_of_a_csv_changes_no_other(
    tmp_path: Path, line: bytes, malformed: bool, index: int
) -> None:
    less = read_scores(csv(tmp_path, LINES), strict=False)
    assert less.valid.all()
    path = csv(tmp_path, with_row(LINES, index, line), "more.csv")
    more = read_scores(path, strict=False)
    one_row_more(less, more, index, malformed)
    if malformed:
        one_sentence(path)
    else:
        assert content_digest(read_scores(path)) == content_digest(more)


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize(("line", "malformed"), ODD_LINES)
@pytest.mark.slow
def test_an_odd_line_changes_no_other_where_there_are_no_ids(
    tmp_path: Path, line: bytes, malformed: bool, index: int
) -> None:
    less = read_scores(csv(tmp_path, LINES), strict=False, person=None)
    path = csv(tmp_path, with_row(LINES, index, line), "more.csv")
    more = read_scores(path, strict=False, person=None)
    one_row_more(less, more, index, not more.valid[index])
    assert more.valid[index] >= (not malformed)


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("blank", [b"", b"\r", b"  ", b"\t\r"])
def test_a_blank_line_is_no_row(tmp_path: Path, blank: bytes, index: int) -> None:
    path = csv(tmp_path, with_row(LINES, index, blank))
    assert len(read_scores(path)) == len(read_scores(path, strict=False)) == N


@pytest.mark.parametrize("malformed_too", [False, True])
def test_two_odd_lines_do_not_work_together(tmp_path: Path, malformed_too: bool) -> None:
    """Two stray quotation marks, above all, do not swallow the lines between."""
    odd = [*MALFORMED_LINES.values(), *(WELL_FORMED_LINES.values() if malformed_too else [])]
    short = [line for line in odd if len(line) < 1000]
    rows = [line for pair in zip(short, LINES * 20, strict=False) for line in pair]
    scores = read_scores(csv(tmp_path, rows), strict=False)
    assert len(scores) == len(rows)
    plain = read_scores(csv(tmp_path, rows[1::2]))
    for query in QUERIES:
        both = query.contributions(scores).take(np.arange(1, len(rows), 2))
        assert np.array_equal(both.values, query.contributions(plain).values)


LINE = st.one_of(
    st.binary(max_size=60),
    st.lists(
        st.sampled_from(
            [b",", b'"', b"0", b"1", b".5", b"-", b"e", b"nan", b" ", b"\r", b"\x1f", b"\xff", b"x"]
        ),
        max_size=25,
    ).map(b"".join),
    st.sampled_from([*LINES, *(v for v in MALFORMED_LINES.values() if len(v) < 100)]),
).filter(lambda line: b"\n" not in line and bool(line.strip()))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(LINE, min_size=1, max_size=6), st.sampled_from([1, 7, 1 << 24]))
def test_a_file_says_what_its_lines_say_alone(
    tmp_path_factory: pytest.TempPathFactory, rows: list[bytes], piece: int
) -> None:
    folder = tmp_path_factory.mktemp("any")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "PIECE", piece)
        together = read_scores(csv(folder, rows), strict=False)
    assert len(together) == len(rows)
    alone = [read_scores(csv(folder, [row]), strict=False) for row in rows]
    assert together.valid.tolist() == [bool(one.valid[0]) for one in alone]
    for one, row in zip(alone, rows, strict=True):
        strict = csv(folder, [row])
        if one.valid[0]:
            read_scores(strict)
        else:
            one_sentence(strict)
    for query in QUERIES:
        whole = query.contributions(together)
        parts = [query.contributions(one) for one in alone]
        assert np.array_equal(whole.values, np.concatenate([p.values for p in parts]))
        assert np.array_equal(whole.cells, np.concatenate([p.cells for p in parts]))


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize(("line", "malformed"), ODD_LINES)
def test_an_odd_line_changes_no_other_source(
    tmp_path: Path, line: bytes, malformed: bool, index: int
) -> None:
    names = ["note 1", "nobody", "note 4", "n"]
    less = read_sources(csv(tmp_path, LINES), "note", names=names, strict=False)
    more = read_sources(
        csv(tmp_path, with_row(LINES, index, line)), "note", names=names, strict=False
    )
    assert list(less) == list(more) == names
    assert not any(len(source["nobody"]) for source in (less, more))
    for name in ("note 1", "note 4"):
        assert content_digest(more[name]) == content_digest(less[name])
        assert more[name].person.tolist() == less[name].person.tolist()
    assert len(more["n"]) <= 1
    for scores in more.values():
        assert scores.classes == M


# --- arrays and Parquet ------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")
FINE = [0.5, 1.0, 2.0]
# Numbers, label, person, whether that is malformed; where a format has no such value, it is not
# written there.
ODD_ROWS = {
    "an ordinary one": (FINE, 0, "zed", False),
    "nan": ([NAN, 1.0, 2.0], 0, "zed", True),
    "all nan": ([NAN] * 3, 0, "zed", True),
    "inf": ([0.5, INF, 2.0], 0, "zed", True),
    "-inf": ([0.5, 1.0, -INF], 0, "zed", True),
    "inf and -inf": ([INF, -INF, 2.0], 1, "zed", True),
    "huge": ([6e4, -6e4, 0.0], 1, "zed", False),
    "ties": ([0.0, 0.0, 0.0], 2, "zed", False),
    "a label below 0": (FINE, -1, "zed", True),
    "a label far below 0": (FINE, -(2**63), "zed", True),
    "a label above the last": (FINE, 3, "zed", True),
    "a label far above the last": (FINE, 2**63 - 1, "zed", True),
    "half a label": (FINE, 1.5, "zed", True),
    "a label that is no number": (FINE, NAN, "zed", True),
    "a label without end": (FINE, INF, "zed", True),
    "a label of a float": (FINE, 1.0, "zed", False),
    "no id": (FINE, 0, "", True),
    "an id of blanks": (FINE, 0, "  ", True),
    "a word for no id": (FINE, 0, "nan", True),
    "everything": ([NAN, INF, -INF], -1, "", True),
}


def arrays(kind: str, index: int, row: Any = None, label: Any = None, person: Any = None) -> Any:
    """Logits of one dtype, labels of the dtype that this row's label asks for, person ids."""
    logits = LOGITS.astype(kind)
    people = np.array([*PERSON, "zed", "nan"], "U8")[:N]
    whole = row is None or (isinstance(label, int) and abs(label) >= 2**53)
    labels = LABELS.astype(np.int64 if whole else np.float64)
    if row is None:
        return logits, labels, people
    with np.errstate(over="ignore"):
        logits = np.insert(logits, index, np.array(row, kind), axis=0)
    return logits, np.insert(labels, index, label), np.insert(people, index, person)


def save(folder: Path, form: str, logits: Any, labels: Any, person: Any) -> Path:
    folder.mkdir()
    if form == "npz":
        np.savez(folder / "x.npz", logits=logits, labels=labels, person=person)
        return folder / "x.npz"
    if form in ("npy", "fortran"):
        np.save(folder / "logits.npy", np.asfortranarray(logits) if form == "fortran" else logits)
        np.save(folder / "labels.npy", labels)
        np.save(folder / "person.npy", person)
        return folder
    columns = {f"logit_{j}": logits[:, j] for j in range(M)}
    pl.DataFrame({"label": labels, **columns, "person": person.tolist()}).write_parquet(
        folder / "x.parquet"
    )
    return folder / "x.parquet"


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
@pytest.mark.parametrize("form", ["npz", "npy", "fortran", "parquet"])
@pytest.mark.parametrize(
    ("row", "label", "person", "malformed"),
    [pytest.param(*row, id=name) for name, row in ODD_ROWS.items()],
)
@pytest.mark.slow
def test_an_odd_row_changes_no_other(
    tmp_path: Path, form: str, kind: str, row: Any, label: Any, person: str, malformed: bool,
    index: int,
) -> None:  # fmt: skip
    if form == "parquet" and kind == "float16":
        kind = "float32"
    more_arrays = arrays(kind, index, row, label, person)
    less_arrays = arrays(kind, index)
    less_arrays = (less_arrays[0], less_arrays[1].astype(more_arrays[1].dtype), less_arrays[2])
    less = read_scores(save(tmp_path / "less", form, *less_arrays), strict=False)
    path = save(tmp_path / "more", form, *more_arrays)
    one_row_more(less, read_scores(path, strict=False), index, malformed)
    if malformed:
        one_sentence(path)
    else:
        assert read_scores(path).valid.all()


PROBABILITIES = np.array([[0.25, 0.5, 0.25], [1, 0, 0], [0.2, 0.2, 0.6]])


@pytest.mark.parametrize("index", [0, 1, 3])
@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("row", "malformed"),
    [
        ([0.5, 0.25, 0.25], False),
        ([0.5, 0.25, 0.2505], False),
        ([0.5, 0.25, 0.26], True),
        ([0.5, 0.25, 0.24], True),
        ([0.0, 0.0, 0.0], True),
        ([1.25, -0.25, 0.0], True),
        ([-0.0, 0.5, 0.5], False),
        ([NAN, 0.5, 0.5], True),
        ([INF, -INF, 1.0], True),
        ([3.0, 4.0, 5.0], True),
    ],
)
def test_an_odd_row_of_probabilities_changes_no_other(
    tmp_path: Path, kind: str, row: list[float], malformed: bool, index: int
) -> None:
    table = PROBABILITIES.astype(kind)
    np.savez(tmp_path / "less.npz", probabilities=table, labels=[0, 1, 2])
    more = np.insert(table, index, np.array(row, kind), axis=0)
    np.savez(tmp_path / "more.npz", probabilities=more, labels=np.insert([0, 1, 2], index, 1))
    less = read_scores(tmp_path / "less.npz", strict=False)
    one_row_more(less, read_scores(tmp_path / "more.npz", strict=False), index, malformed)
    if malformed:
        one_sentence(tmp_path / "more.npz")


@pytest.mark.parametrize("index", [0, 1, 3])
@pytest.mark.parametrize("p", [0.0, 1.0, 0.5, -1e-9, 1.0000001, NAN, INF, -INF])
def test_an_odd_probability_of_one_column_changes_no_other(
    tmp_path: Path, p: float, index: int
) -> None:
    malformed = not 0 <= p <= 1
    column = [0.25, 0.5, 1.0]
    np.savez(tmp_path / "less.npz", probabilities=column, labels=[0, 1, 1])
    more = np.insert(column, index, p)
    np.savez(tmp_path / "more.npz", probabilities=more, labels=np.insert([0, 1, 1], index, 1))
    less = read_scores(tmp_path / "less.npz", strict=False)
    one_row_more(less, read_scores(tmp_path / "more.npz", strict=False), index, malformed)


# Of Parquet alone: columns of other types, and nulls.
PARQUET_TYPES = {
    "text": (pl.String, pl.String, pl.String),
    "singles": (pl.Float32, pl.Int8, pl.String),
    "doubles": (pl.Float64, pl.Float64, pl.Int64),
    "wide": (pl.Float64, pl.Int128, pl.Int64),
    "wholes": (pl.Int64, pl.UInt64, pl.Categorical),
    "decimals": (pl.Decimal(20, 3), pl.Decimal(38, 0), pl.Float64),
    "truths": (pl.Float64, pl.Boolean, pl.Binary),
}
PARQUET_ROWS = [
    ("an ordinary one", {}, False),
    ("no logit", {"logit_1": None}, True),
    ("no label", {"label": None}, True),
    ("no id", {"person": None}, True),
    ("nothing", dict.fromkeys(["label", "person", *(f"logit_{j}" for j in range(M))]), True),
]


def parquet(path: Path, types: Any, rows: list[dict[str, Any]]) -> Path:
    number, label, person = types
    schema = {"label": label, **{f"logit_{j}": number for j in range(M)}, "person": person}
    columns = {}
    for name, dtype in schema.items():
        values = [row[name] for row in rows]
        if dtype == pl.String:
            values = [None if v is None else str(v) for v in values]
        if dtype == pl.Binary:
            values = [None if v is None else str(v).encode() for v in values]
        if dtype == pl.Boolean:
            values = [None if v is None else bool(v) for v in values]
        if dtype == pl.Categorical:
            columns[name] = pl.Series([None if v is None else str(v) for v in values]).cast(dtype)
        elif isinstance(dtype, pl.Decimal):
            columns[name] = pl.Series(values, dtype=pl.Int64).cast(dtype)
        else:
            columns[name] = pl.Series(values, dtype=dtype, strict=False)
    pl.DataFrame(columns).write_parquet(path)
    return path


@pytest.mark.parametrize("index", [0, 2, 4])
@pytest.mark.parametrize(("name", "changed", "malformed"), PARQUET_ROWS)
@pytest.mark.parametrize("types", PARQUET_TYPES)
def test_a_null_in_parquet_changes_no_other_row(
    tmp_path: Path, types: str, name: str, changed: Any, malformed: bool, index: int
) -> None:
    rows = [
        {"label": i % 2, "person": 7 + i // 2, **{f"logit_{j}": i - j for j in range(M)}}
        for i in range(4)
    ]
    less = read_scores(parquet(tmp_path / "less.parquet", PARQUET_TYPES[types], rows), strict=False)
    assert less.valid.all()
    more = with_row(rows, index, rows[0] | changed)
    path = parquet(tmp_path / "more.parquet", PARQUET_TYPES[types], more)
    one_row_more(less, read_scores(path, strict=False), index, malformed)
    if malformed:
        assert f"of row {index} is missing" in one_sentence(path)


@pytest.mark.parametrize("index", [0, 2, 4])
@pytest.mark.parametrize("cell", ["x", "", " ", "0x1", "1,5", "99999999999999999999", "1e999"])
@pytest.mark.parametrize("column", ["label", "logit_1"])
def test_text_in_parquet_is_read_cell_by_cell(
    tmp_path: Path, column: str, cell: str, index: int
) -> None:
    table = {"label": ["0", "1.0", " 2", "true"], "logit_0": ["1", ".5", "1e3", "-0"]}
    table |= {"logit_1": ["1", "2", "3", "4"], "logit_2": ["0", "0", "0", "0"]}
    pl.DataFrame(table).write_parquet(tmp_path / "less.parquet")
    less = read_scores(tmp_path / "less.parquet")
    assert less.labels.tolist() == [0, 1, 2, 1]
    more = {name: with_row(values, index, "0") for name, values in table.items()}
    more[column][index] = cell
    pl.DataFrame(more).write_parquet(tmp_path / "more.parquet")
    scores = read_scores(tmp_path / "more.parquet", strict=False)
    odd = column == "logit_1" and cell == "99999999999999999999"  # a number like any other
    one_row_more(less, scores, index, not odd)


def test_a_label_beyond_64_bits_in_parquet_is_an_ordinary_wrong_label(tmp_path: Path) -> None:
    labels = pl.Series([0, 99999999999999999999], dtype=pl.Int128)
    columns = {f"logit_{j}": [1.0, 2.0] for j in range(M)}
    pl.DataFrame({"label": labels, **columns}).write_parquet(tmp_path / "x.parquet")
    assert "label of row 1 is 1e+20; with 3 classes" in one_sentence(tmp_path / "x.parquet")


# --- schema ------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [True, False])
class TestWhatTheSchemaDecidesIsRefusedEitherWay:
    @pytest.mark.parametrize("dtype", [pl.Date, pl.List(pl.Float64), pl.Binary, pl.Categorical])
    @pytest.mark.parametrize("rows", [0, 1])
    @pytest.mark.parametrize("name", ["label", "logit_1"])
    def test_a_column_of_no_numbers(
        self, tmp_path: Path, strict: bool, dtype: Any, rows: int, name: str
    ) -> None:
        columns = {c: pl.Series([1.0] * rows) for c in ("label", "logit_0", "logit_1")}
        columns[name] = pl.Series([None] * rows, dtype=dtype)
        pl.DataFrame(columns).write_parquet(tmp_path / "x.parquet")
        text = one_sentence(tmp_path / "x.parquet", strict=strict)
        assert f"column {name} must hold numbers" in text

    @pytest.mark.parametrize("dtype", [pl.Date, pl.List(pl.String), pl.Boolean])
    @pytest.mark.parametrize("rows", [0, 1])
    def test_a_column_of_no_ids(self, tmp_path: Path, strict: bool, dtype: Any, rows: int) -> None:
        columns = {c: pl.Series([1.0] * rows) for c in ("label", "logit_0", "logit_1")}
        columns["person"] = pl.Series([None] * rows, dtype=dtype)
        pl.DataFrame(columns).write_parquet(tmp_path / "x.parquet")
        text = one_sentence(tmp_path / "x.parquet", strict=strict)
        assert "person must hold ids" in text

    @pytest.mark.parametrize("rows", [0, 2])
    def test_labels_of_text_in_an_npz(self, tmp_path: Path, strict: bool, rows: int) -> None:
        path = tmp_path / "x.npz"
        np.savez(path, logits=np.zeros((rows, 2)), labels=np.array(["0", "1"])[:rows])
        assert "labels must be whole numbers" in one_sentence(path, strict=strict)

    def test_arrays_of_different_lengths(self, tmp_path: Path, strict: bool) -> None:
        np.savez(tmp_path / "x.npz", logits=np.zeros((2, 2)), labels=[0])
        one_sentence(tmp_path / "x.npz", strict=strict)

    @pytest.mark.parametrize(
        "header",
        [b"", b"label,logit_0,logit_0", b"label,logit_0,logit_2", b"logit_0,logit_1", b"\xff,x"],
    )
    @pytest.mark.parametrize("rows", [0, 1])
    def test_a_header(self, tmp_path: Path, strict: bool, header: bytes, rows: int) -> None:
        (tmp_path / "x.csv").write_bytes(header + b"\n" + b"0,1,2\n" * rows)
        one_sentence(tmp_path / "x.csv", strict=strict)
