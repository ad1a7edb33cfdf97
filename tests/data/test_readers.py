"""Scores from files, and one line that names the file for each that cannot be read."""

import csv as csv_module
import itertools
import math

import numpy as np
import pytest

from privcal.data import lines
from privcal.data.ids import Unused, unused_columns
from privcal.data.readers import read_outputs, read_scores, read_sources
from privcal.data.scores import Scores, content_digest
from privcal.trusted.errors import InputError
from tests.support.builders import a_file, a_table, sentence

LOGITS = np.array([[1.5, 2.0, 0.25], [0.0, 5.0, 5.0], [4.0, -1.0, 0.5]], np.float32)
LABELS = np.array([0, 2, 1])
PERSON = ["ann", "bob", "ann"]
TABLE = {"label": LABELS, **{f"logit_{j}": LOGITS[:, j] for j in range(3)}}


@pytest.fixture
def npz(tmp_path):
    np.savez(tmp_path / "scores.npz", logits=LOGITS, labels=LABELS, person=PERSON)
    return tmp_path / "scores.npz"


@pytest.fixture
def npy(tmp_path):
    np.save(tmp_path / "test_logits.npy", LOGITS)
    np.save(tmp_path / "test_labels.npy", LABELS)
    np.save(tmp_path / "test_person.npy", PERSON)
    return tmp_path / "test_logits.npy"


@pytest.fixture
def folder(tmp_path):
    np.save(tmp_path / "logits.npy", LOGITS)
    np.save(tmp_path / "labels.npy", LABELS)
    np.save(tmp_path / "person.npy", PERSON)
    return tmp_path


@pytest.fixture
def parquet(tmp_path):
    return a_table(tmp_path / "scores.parquet", **TABLE, person=PERSON)


@pytest.fixture
def csv(tmp_path):
    return a_table(tmp_path / "scores.csv", **TABLE, person=PERSON)


def refusal(path, read=read_scores, **options):
    """The one line with which a file is refused."""
    message = sentence(read, path, **options)
    assert str(path) in message
    return message


@pytest.mark.parametrize("form", ["npz", "npy", "folder", "parquet", "csv"])
def test_every_format_gives_the_same_scores(form, request):
    scores = read_scores(request.getfixturevalue(form), model="net")
    assert scores.outputs.kind == "logits"
    np.testing.assert_array_equal(scores.outputs.array, LOGITS)
    assert scores.labels.tolist() == LABELS.tolist()
    assert scores.person.tolist() == PERSON
    assert scores.model == "net"


@pytest.mark.parametrize("form", ["npz", "npy", "folder", "parquet", "csv"])
def test_every_format_has_the_same_digest(form, request):
    scores = read_scores(request.getfixturevalue(form))
    assert content_digest(scores) == content_digest(Scores(logits=LOGITS, labels=LABELS))


@pytest.mark.parametrize("form", ["npz", "npy", "folder", "parquet", "csv"])
def test_outputs_are_read_without_looking_at_labels(form, request):
    np.testing.assert_array_equal(read_outputs(request.getfixturevalue(form)).array, LOGITS)


@pytest.mark.parametrize("form", ["npz", "npy", "folder", "parquet"])
def test_single_precision_stays_single(form, request):
    assert read_scores(request.getfixturevalue(form)).outputs.array.dtype == np.float32


@pytest.mark.parametrize("form", ["npy", "folder"])
def test_npy_files_are_mapped_not_loaded(form, request):
    assert isinstance(read_scores(request.getfixturevalue(form)).outputs.array, np.memmap)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".CSV"])
def test_columns_are_taken_by_number_whatever_their_order(tmp_path, suffix):
    columns = {f"logit_{j}": [float(j)] for j in (10, 2, 0, 9, 1, 3, 8, 4, 7, 5, 6)}
    path = a_table(tmp_path / f"scores{suffix}", note=["x"], **columns, label=[3])
    assert read_scores(path).outputs.array.tolist() == [[float(j) for j in range(11)]]


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_table_may_hold_probabilities(tmp_path, suffix):
    path = a_table(
        tmp_path / f"p{suffix}", label=[0, 1], probability_0=[0.25, 1], probability_1=[0.75, 0]
    )
    outputs = read_scores(path).outputs
    assert (outputs.kind, outputs.array.tolist()) == ("probabilities", [[0.25, 0.75], [1.0, 0.0]])


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_one_probability_column_is_that_of_class_one(tmp_path, suffix):
    path = a_table(tmp_path / f"p{suffix}", label=[0, 1], probability=[0.25, 0.75])
    assert read_scores(path).classes == 2
    assert read_scores(path).correct.tolist() == [True, True]


def test_probabilities_in_npz_and_npy_are_known_by_their_name(tmp_path):
    p = np.array([[0.25, 0.75]])
    np.savez(tmp_path / "p.npz", probabilities=p, labels=[1])
    np.save(tmp_path / "probabilities.npy", p)
    np.save(tmp_path / "labels.npy", [1])
    for path in ("p.npz", "probabilities.npy", ""):
        assert read_scores(tmp_path / path).outputs.kind == "probabilities"


def test_a_late_decimal_in_a_csv_column_is_a_number_all_the_same(tmp_path):
    path = a_table(tmp_path / "late.csv", label=[0] * 2001, logit_0=[1] * 2001, logit_1=[2] * 2001)
    path.write_text(path.read_text() + "1,1,2.5\n")
    assert read_scores(path).outputs.array[-1].tolist() == [1.0, 2.5]


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv"])
def test_a_file_of_no_rows_is_read(tmp_path, suffix):
    path = tmp_path / f"none{suffix}"
    if suffix == ".npz":
        np.savez(path, logits=LOGITS[:0], labels=LABELS[:0])
    else:
        a_table(path, **{name: column[:0] for name, column in TABLE.items()})
    assert (len(read_scores(path)), read_scores(path).classes) == (0, 3)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_table_is_split_by_a_column_in_order_of_appearance(tmp_path, suffix):
    path = a_table(tmp_path / f"all{suffix}", **TABLE, person=PERSON, site=["b", "a", "b"])
    sources = read_sources(path, "site", model="net")
    assert list(sources) == ["b", "a"]
    np.testing.assert_array_equal(sources["b"].outputs.array, LOGITS[[0, 2]])
    assert sources["b"].labels.tolist() == [0, 1]
    assert sources["b"].person.tolist() == ["ann", "ann"]
    assert sources["a"].person.tolist() == ["bob"]
    assert sources["a"].model == "net"


def test_a_table_is_split_by_whole_numbers_too(tmp_path):
    path = a_table(tmp_path / "all.parquet", **TABLE, site=[12, 3, 12])
    assert {site: len(scores) for site, scores in read_sources(path, "site").items()} == {
        "12": 2,
        "3": 1,
    }


def test_splitting_names_the_column_that_is_not_there(csv):
    message = refusal(csv, lambda path: read_sources(path, "site"))
    assert "no column 'site'; it has label, logit_0" in message


def test_splitting_names_the_first_row_without_a_source(tmp_path):
    path = a_table(tmp_path / "all.csv", **TABLE, site=["a", None, None])
    assert "site of row 1 is missing" in refusal(path, lambda path: read_sources(path, "site"))


def test_only_tables_can_be_split(npz):
    assert "only Parquet, Arrow and CSV" in refusal(npz, lambda path: read_sources(path, "site"))


def test_a_row_refused_in_splitting_is_named_with_its_file(tmp_path):
    path = a_table(
        tmp_path / "all.csv", **(TABLE | {"logit_1": [0.0, math.nan, 0.0]}), site=list("aba")
    )
    assert "row 1, column 1 is nan" in refusal(path, lambda path: read_sources(path, "site"))


@pytest.mark.parametrize("name", ["x.npz", "logits.npy", "x.parquet", "x.csv", "x.txt", "folder"])
def test_a_missing_file_is_named(tmp_path, name):
    assert "there is no file" in refusal(tmp_path / name)


@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
def test_a_missing_table_to_split_is_named(tmp_path, name):
    assert "no file" in refusal(tmp_path / name, lambda path: read_sources(path, "site"))


@pytest.mark.parametrize("name", ["x.txt", "x", "x.pkl", "x.json.gz"])
def test_an_unknown_ending_is_refused_with_the_known_ones(tmp_path, name):
    (tmp_path / name).write_text("label,logit_0\n0,1\n")
    assert "use .npz, .npy, .csv" in refusal(tmp_path / name)


@pytest.mark.parametrize("name", ["x.npz", "logits.npy", "x.parquet", "x.csv"])
def test_an_empty_file_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    refusal(tmp_path / name)


@pytest.mark.parametrize("form", ["npz", "npy", "parquet"])
@pytest.mark.parametrize("kept", [0.05, 0.3, 0.6, 0.99])
def test_a_file_cut_short_is_refused(form, kept, request):
    path = request.getfixturevalue(form)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    refusal(path)


def test_a_csv_cut_within_a_row_is_refused(csv):
    csv.write_text("label,logit_0,logit_1\n0,1.5,2\n1,2")
    assert "logit_1 of row 1 is missing" in refusal(csv)


@pytest.mark.parametrize("name", ["x.npz", "logits.npy", "x.parquet"])
def test_a_file_of_something_else_is_refused(tmp_path, name):
    (tmp_path / name).write_text("this is no array\nat all\n" * 10)
    refusal(tmp_path / name)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00,\n\x81", b"label,logit_0\n0,1,2,3\n"])
def test_a_csv_that_cannot_be_parsed_is_refused(csv, content):
    csv.write_bytes(content)
    refusal(csv)


def test_an_npz_needs_labels(tmp_path):
    np.savez(tmp_path / "x.npz", logits=LOGITS)
    assert "holds no labels" in refusal(tmp_path / "x.npz")
    assert read_outputs(tmp_path / "x.npz").rows == 3


@pytest.mark.parametrize(
    "held", [{}, {"logits": LOGITS, "probabilities": LOGITS}, {"scores": LOGITS}]
)
def test_an_npz_holds_logits_or_probabilities_and_not_both(tmp_path, held):
    np.savez(tmp_path / "x.npz", **held, labels=LABELS)
    assert "either logits or probabilities" in refusal(tmp_path / "x.npz")


def test_an_npz_of_python_objects_is_never_unpickled(tmp_path):
    np.savez(tmp_path / "x.npz", logits=LOGITS.astype(object), labels=LABELS)
    refusal(tmp_path / "x.npz")


def test_an_npy_without_its_labels_is_refused_with_the_file_that_is_missing(npy):
    (npy.parent / "test_labels.npy").unlink()
    assert str(npy.parent / "test_labels.npy") in refusal(npy)
    assert read_outputs(npy).rows == 3


@pytest.mark.parametrize("name", ["scores.npy", "logits_probabilities.npy"])
def test_the_name_of_an_npy_says_what_it_holds(tmp_path, name):
    np.save(tmp_path / name, LOGITS)
    assert "logits or probabilities" in refusal(tmp_path / name)


def test_a_folder_holds_logits_or_probabilities_and_not_both(tmp_path):
    assert "either logits.npy or probabilities.npy" in refusal(tmp_path)
    np.save(tmp_path / "logits.npy", LOGITS)
    np.save(tmp_path / "probabilities.npy", LOGITS)
    assert "either logits.npy or probabilities.npy" in refusal(tmp_path)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
class TestATable:
    def test_needs_a_label_column(self, tmp_path, suffix):
        path = a_table(tmp_path / f"x{suffix}", logit_0=[1.0], logit_1=[2.0])
        assert "has no column label" in refusal(path)
        assert read_outputs(path).rows == 1

    @pytest.mark.parametrize(
        "columns",
        [
            [],
            ["logit_0", "probability_0"],
            ["probability", "probability_0"],
            ["logit", "probability"],
        ],
    )
    def test_has_logits_or_probabilities_and_not_both(self, tmp_path, suffix, columns):
        path = a_table(tmp_path / f"x{suffix}", label=[0], **{name: [1.0] for name in columns})
        assert "either columns logit_0, logit_1, … or probability_0" in refusal(path)

    @pytest.mark.parametrize("prefix", ["logit", "probability"])
    def test_has_no_gap_between_its_numbers(self, tmp_path, suffix, prefix):
        path = a_table(
            tmp_path / f"x{suffix}", **{"label": [0], f"{prefix}_0": [1.0], f"{prefix}_2": [0.0]}
        )
        assert f"has {prefix}_2 but no {prefix}_1" in refusal(path)

    @pytest.mark.parametrize("column", ["label", "logit_1"])
    def test_has_numbers_where_numbers_belong(self, tmp_path, suffix, column):
        path = a_table(tmp_path / f"x{suffix}", **(TABLE | {column: ["1", "many", "0"]}))
        assert f"{column} of row 1 is 'many', not a number" in refusal(path)

    @pytest.mark.parametrize("column", ["label", "logit_1"])
    def test_misses_no_number(self, tmp_path, suffix, column):
        path = a_table(tmp_path / f"x{suffix}", **(TABLE | {column: [1, None, None]}))
        assert f"{column} of row 1 is missing" in refusal(path)


WRONG_ROWS = [
    ({"logits": np.where(np.eye(3), math.nan, LOGITS)[[2, 1, 0]]}, "row 0, column 2 is nan"),
    ({"labels": [0, 3, 0]}, "label of row 1 is 3"),
    ({"person": ["a", "", "b"]}, "person id of row 1"),
]


def with_wrong_rows(tmp_path, suffix, changed):
    arrays = {"logits": LOGITS, "labels": LABELS, "person": PERSON} | changed
    path = tmp_path / f"x{suffix}"
    if suffix == ".npz":
        np.savez(path, **arrays)
        return path
    logits = {f"logit_{j}": np.asarray(arrays["logits"])[:, j] for j in range(3)}
    return a_table(path, label=arrays["labels"], **logits, person=arrays["person"])


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv"])
@pytest.mark.parametrize(("changed", "problem"), WRONG_ROWS)
def test_a_refused_row_is_named_with_its_file(tmp_path, suffix, changed, problem):
    assert problem in refusal(with_wrong_rows(tmp_path, suffix, changed))


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize("name", ["site[1]", "site*", "site?"])
def test_a_path_is_a_name_and_no_pattern(tmp_path, suffix, name):
    other = a_table(tmp_path / f"site1{suffix}", label=[1], logit_0=[9.0], logit_1=[8.0])
    # Written elsewhere first, as the writer may take patterns too.
    a_table(tmp_path / f"plain{suffix}", **TABLE).rename(tmp_path / f"{name}{suffix}")
    assert other.exists()
    scores = read_scores(tmp_path / f"{name}{suffix}")
    assert scores.labels.tolist() == LABELS.tolist()


def test_an_npy_named_npz_is_refused(npy):
    path = npy.rename(npy.with_suffix(".npz"))
    refusal(path)


def test_an_npz_named_npy_is_refused(npz):
    np.save(npz.parent / "labels.npy", LABELS)
    refusal(npz.rename(npz.parent / "logits.npy"))


def test_an_npy_with_a_damaged_header_is_refused(npy):
    npy.write_bytes(npy.read_bytes().replace(b"(3, 3)", b"(3, 3 "))
    refusal(npy)


def test_an_npy_with_an_endless_header_is_refused_in_one_line(npy):
    whole = npy.read_bytes()
    npy.write_bytes(whole[:8] + b"\xff\xff" + whole[10:] + b" " * 70_000)
    refusal(npy)


@pytest.mark.parametrize(("offset", "value"), [(8, 99), (6, 1)], ids=["compression", "encrypted"])
def test_an_npz_that_cannot_be_unpacked_is_refused(npz, offset, value):
    whole = bytearray(npz.read_bytes())
    directory = whole.index(b"PK\x01\x02")  # the central directory's first entry, of the logits
    whole[offset] = value
    whole[directory + offset + 2] = value
    npz.write_bytes(whole)
    refusal(npz)


def test_a_csv_with_one_name_twice_is_refused(csv):
    csv.write_text("label,logit_0,logit_0\n0,1,2\n")
    refusal(csv)


def test_ids_in_a_csv_stay_text(tmp_path):
    (tmp_path / "t.csv").write_text(
        "label,probability,person,ward\n0,0.1,007,01\n1,0.2,7,1\n0,0.3,1e5,01\n1,0.4,100000,1\n"
    )
    assert read_scores(tmp_path / "t.csv").person.tolist() == ["007", "7", "1e5", "100000"]
    assert list(read_sources(tmp_path / "t.csv", "ward")) == ["01", "1"]


def test_a_lone_numbered_column_is_not_guessed_at(tmp_path):
    (tmp_path / "t.csv").write_text("label,probability_0\n0,0.9\n1,0.1\n")
    with pytest.raises(InputError, match="must be called probability"):
        read_scores(tmp_path / "t.csv")


def test_labels_may_be_true_and_false(tmp_path):
    (tmp_path / "t.csv").write_text("label,probability\ntrue,0.9\nfalse,0.1\n")
    assert read_scores(tmp_path / "t.csv").labels.tolist() == [1, 0]


def text(tmp_path, content, name="t.csv"):
    return a_file(tmp_path / name, content)


def test_two_stray_quotation_marks_do_not_swallow_the_lines_between(tmp_path):
    path = text(
        tmp_path,
        'label,logit_0,logit_1,note\n0,1,2,a\n1,3,4,"b\n0,5,6,c\n1,7,8,d"\n0,9,10,e\n',
    )
    assert "row 1 has a stray quotation mark (a quoted field cannot span lines)" in refusal(path)
    scores = read_scores(path, strict=False)
    assert scores.valid.tolist() == [True, False, True, True, True]
    assert scores.outputs.array[2:].tolist() == [[5, 6], [7, 8], [9, 10]]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("0,O.5,2,ann", "logit_0 of row 1 is 'O.5', not a number"),
        ("zero,0.5,2,ann", "label of row 1 is 'zero', not a number"),
        ("0,1,5,2,ann", "row 1 has 5 fields, the header 4"),
        ("0,1", "logit_1 of row 1 is missing: it has 2 fields, the header 4"),
        ("0,1, ,ann", "logit_1 of row 1 is missing"),
        ('0,1,2,"ann', "row 1 has a stray quotation mark"),
        (b"0,1,2,\xe9", "row 1 is not UTF-8 text"),
        ("0,1e999,2,ann", "logits row 1, column 0 is inf"),
        ("0,1,2,", "person id of row 1 is missing"),
        ("99999999999999999999,1,2,ann", "label of row 1 is 1e+20; with 2 classes"),
    ],
)
@pytest.mark.parametrize("before", ["", "\n\n"])
def test_a_malformed_line_of_a_csv_is_named_by_its_row(tmp_path, line, problem, before):
    line = line if isinstance(line, bytes) else line.encode()
    start = f"{before}label,logit_0,logit_1,person\n{before}1,2,3,bob\n{before}".encode()
    assert problem in refusal(text(tmp_path, start + line + b"\n1,2,3,bob\n"))


def test_a_row_is_named_by_its_place_in_a_file_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "PIECE", 10)
    rows = ["0,1,2"] * 77
    path = text(tmp_path, "\n".join(["label,logit_0,logit_1", *rows, "0,1,x", *rows]))
    assert "logit_1 of row 77 is 'x'" in refusal(path)
    path = text(tmp_path, "\n".join(["label,logit_0,logit_1", *rows, "0,1", *rows]))
    assert "logit_1 of row 77 is missing" in refusal(path)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("piece", [1, 1 << 24])
def test_a_csv_may_come_from_anywhere(tmp_path, end, last, mark, piece, monkeypatch):
    monkeypatch.setattr(lines, "PIECE", piece)
    rows = ['"label", logit_0,"logit_1",person', '0, 1.5,"2",ann', "", '1,"3",4e0,"b, ""c"""']
    path = text(tmp_path, mark + (end.join(rows) + (end if last else "")).encode())
    scores = read_scores(path)
    assert scores.outputs.array.tolist() == [[1.5, 2.0], [3.0, 4.0]]
    assert scores.labels.tolist() == [0, 1]
    assert scores.person.tolist() == ["ann", 'b, "c"']


def test_a_line_is_split_by_the_rules_of_csv(tmp_path):
    """Every line of up to six of these characters, against Python's own reader."""
    header = ["a", "b", "c"]
    every = ["".join(line) for n in range(1, 7) for line in itertools.product(',"x ', repeat=n)]
    every = [line for line in every if line.strip()]
    path = text(tmp_path, "\n".join([",".join(header), *every]))
    [_, found] = lines.cells(path, header, strict=False)
    for line, row in zip(every, found.rows(), strict=True):
        try:
            [fields] = csv_module.reader([line], strict=True)
        except csv_module.Error:
            fields = []
        expected = fields if len(fields) == 3 else [""] * 3
        assert row == tuple(cell or None for cell in expected), line


def test_numbers_in_a_csv_are_the_nearest_doubles(tmp_path):
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**64, 3000, np.uint64).view(np.float64)
    bits = bits[np.isfinite(bits)][:2000]
    spelled = [f"{v!r}" for v in bits[:1000].tolist()] + [f"{v:.25e}" for v in bits[1000:2000]]
    rows = [f"0,{v},0" for v in spelled]
    path = text(tmp_path, "\n".join(["label,logit_0,logit_1", *rows]))
    assert read_scores(path).outputs.array[:, 0].tolist() == [float(v) for v in spelled]


@pytest.mark.parametrize("cell", ["TRUE", "True", " true ", "1", "1.0", "+1", "1e0", "01"])
def test_a_label_may_be_spelled_in_many_ways(tmp_path, cell):
    path = text(tmp_path, f"label,logit_0,logit_1\n{cell},1,2\nfalse,1,2\n")
    assert read_scores(path).labels.tolist() == [1, 0]


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_columns_that_nothing_reads_are_not_looked_at(tmp_path, suffix):
    path = a_table(tmp_path / f"x{suffix}", **TABLE, person_2=[None, "", "a"], n=[None, None, 1])
    assert read_scores(path).valid.all()


# --- person ids by another name ----------------------------------------------------------

IDS = ["x1", "x2", "x2"]


@pytest.fixture(params=["npz", "npy", "parquet", "csv"])
def with_ids(request, tmp_path):
    """A file of each format with ids under two names."""
    if request.param == "npz":
        np.savez(tmp_path / "x.npz", logits=LOGITS, labels=LABELS, person=PERSON, patient_id=IDS)
        return tmp_path / "x.npz"
    if request.param == "npy":
        named = {"logits": LOGITS, "labels": LABELS, "person": PERSON, "patient_id": IDS}
        for name, array in named.items():
            np.save(tmp_path / f"x.{name}.npy", array)
        return tmp_path / "x.logits.npy"
    path = tmp_path / f"x.{request.param}"
    return a_table(path, **TABLE, person=PERSON, patient_id=IDS)


def test_ids_may_have_another_name(with_ids):
    assert read_scores(with_ids).person.tolist() == PERSON
    assert read_scores(with_ids, person="patient_id").person.tolist() == IDS
    assert read_scores(with_ids, person=None).person is None


@pytest.mark.parametrize("strict", [True, False])
def test_a_name_of_ids_that_is_not_there_is_refused(with_ids, strict):
    message = refusal(with_ids, person="mrn", strict=strict)
    if with_ids.suffix == ".npy":
        assert "there is no file" in message
        assert "x.mrn.npy with the person ids" in message
    else:
        assert "mrn; it has " in message
        assert "patient_id" in message.partition("it has")[2]


def test_ids_are_neither_labels_nor_scores(with_ids):
    table = with_ids.suffix in (".csv", ".parquet")
    for name in ("label", "logit_1") if table else ("labels", "logits"):
        assert "holds labels or scores" in refusal(with_ids, person=name)


def test_the_usual_name_of_ids_may_be_absent(tmp_path):
    assert read_scores(a_table(tmp_path / "x.csv", **TABLE)).person is None


def test_a_table_of_sources_may_have_ids_of_another_name(tmp_path):
    path = a_table(tmp_path / "x.csv", **TABLE, mrn=IDS, site=list("aba"))
    assert read_sources(path, "site", person="mrn")["a"].person.tolist() == ["x1", "x2"]
    assert read_sources(path, "site")["a"].person is None


# --- a public list of sources ------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize("strict", [True, False])
def test_a_public_list_of_sources_fixes_which_there_are(tmp_path, suffix, strict):
    path = a_table(tmp_path / f"x{suffix}", **TABLE, person=PERSON, site=["b", "rare", "b"])
    sources = read_sources(path, "site", names=["c", "b", "a"], strict=strict)
    assert list(sources) == ["c", "b", "a"]
    assert [len(scores) for scores in sources.values()] == [0, 2, 0]
    assert {scores.classes for scores in sources.values()} == {3}
    assert sources["c"].person.tolist() == []
    assert list(read_sources(path, "site", strict=strict)) == ["b", "rare"]
    assert read_sources(path, "site", names=[], strict=strict) == {}


@pytest.mark.parametrize("names", [["a", "a"], ["a", ""]])
def test_a_public_list_names_each_source_once(tmp_path, names):
    path = a_table(tmp_path / "x.csv", **TABLE, site=list("aba"))
    with pytest.raises(InputError, match="must differ and not be empty"):
        read_sources(path, "site", names=names)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_not_strict_a_row_without_a_source_belongs_to_none(tmp_path, suffix):
    path = a_table(tmp_path / f"x{suffix}", **TABLE, site=["a", None, ""])
    assert "site of row 1 is missing" in refusal(path, lambda path: read_sources(path, "site"))
    sources = read_sources(path, "site", strict=False)
    assert {name: len(scores) for name, scores in sources.items()} == {"a": 1}


def test_not_strict_a_malformed_row_is_marked_at_its_source(tmp_path):
    path = text(tmp_path, "label,logit_0,logit_1,site\n0,1,2,a\n0,x,2,b\n5,1,2,a\n1,1,2,b\n")
    sources = read_sources(path, "site", strict=False)
    assert {name: scores.valid.tolist() for name, scores in sources.items()} == {
        "a": [True, False],
        "b": [False, True],
    }


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_table_may_be_split_by_its_labels(tmp_path, suffix):
    path = a_table(tmp_path / f"x{suffix}", **TABLE)
    assert list(read_sources(path, "label")) == ["0", "2", "1"]


# --- what nothing reads ------------------------------------------------------------------


@pytest.mark.parametrize("form", [".parquet", ".csv", ".npz"])
def test_columns_that_nothing_reads_are_told(tmp_path, form):
    path = tmp_path / f"x{form}"
    extra = {"patient_id": ["a", "b", "a"], "age": [61.5, 62.0, 61.5], "ward": [3, 3, 3]}
    if form == ".npz":
        np.savez(path, logits=LOGITS, labels=LABELS, person=PERSON, **extra)
    else:
        a_table(path, **TABLE, person=PERSON, **extra)
    assert unused_columns(path) == [
        Unused("patient_id", 2, 3, False),
        Unused("age", 2, 3, True),
        Unused("ward", 1, 3, False),
    ]
    assert [c.name for c in unused_columns(path) if c.looks_like_ids] == ["patient_id"]
    names = [c.name for c in unused_columns(path, person="patient_id")]
    assert names == ["person", "age", "ward"]


@pytest.mark.parametrize("form", ["npz", "npy", "folder", "parquet", "csv"])
def test_nothing_is_left_where_everything_is_read(form, request):
    assert unused_columns(request.getfixturevalue(form)) == []


def test_an_array_that_cannot_be_read_is_known_by_its_name(tmp_path):
    ids = np.array(["a", None, 3], object)
    np.savez(tmp_path / "x.npz", logits=LOGITS, labels=LABELS, mrn=ids)
    [mrn] = unused_columns(tmp_path / "x.npz")
    assert (mrn.name, mrn.rows, mrn.looks_like_ids) == ("mrn", 0, True)


def words(text: str) -> list[str]:
    return text.split()


OF_IDS = words("""
id ID _id ids pid PID eid uid guid uuid subject_id SUBJECT_ID hadm_id stay_id patientunitstayid
uniquepid patienthealthsystemstayid USUBJID SUBJID RSUBJID SUBJECT subjectId PTID PATID pat_id
PAT_ID PAT_MRN_ID PatID PatNr patient_num PATIENT_NUM patient_ide encounter_num person_id
person_source_value PERSON_ID subject_reference Patient.identifier patient.id patient_key
PatientKey patient_no patientNo PatientNumber patient_number patientnumber patient patients person
subject participant participant_id ParticipantId participant_no MRN mrn EMRN hmrn MPI empi
medical_record_number MedicalRecordNumber hospital_number HospitalNumber hosp_no NHSNumber NHS_No
nhs_number nhsno CHI_Number CHINumber SSN social_security_number medicare_number MedicareNo MBI
beneficiary_id BENE_ID member_id MemberNumber enrolid encrypted_hesid hesid ALF_E study_id
record_id case-number case_id CaseNo Patientennummer Patienten-ID PatientenNr Patientenkennung
Patient_Pseudonym pseudonym Pseudonym Fallnummer FallNr Fall-ID Aufnahmenummer PIZ KVNR
Versichertennummer Probanden-ID Probandennummer Teilnehmernummer Kundennummer KundenNr id_patient
IDPatient numero_patient NuméroPatient num_patient no_dossier NumDossier numero_dossier
code_patient id_paciente IDPaciente paciente NHC numero_historia num_historia DNI id_sujeto
codigo_paciente NúmeroPaciente codice_fiscale CodiceFiscale id_paziente codice_paziente paziente
CPF prontuario id_pessoa num_utente BSN patiëntnummer PatiëntNr patientnr ZIS_nummer personnummer
Personnummer pnr lopnr lopenr cpr_nr CPR-nummer cprnr fødselsnummer fnr pasient_id pasientnr
henkilötunnus hetu potilas_id PESEL id_pacjenta pacjent_id rodné_číslo TC_kimlik_no aadhaar 患者ID
患者番号 病人编号 病历号 住院号 身份证号 환자번호 등록번호 пациент_id номер_пациента customer_id CustomerID customer_no
CUST_ID account_number AccountNo acct_no client_id clientId ClientNumber iban user_id UserId
userKey borrower_id visit_id encounter_id EncounterID identifier patientHash patient_token csn
PAT_ENC_CSN_ID patientId PatientID
""")
OF_FEATURES = words("""
covid valid invalid grid age ward humidity split sex gender bmi weight height heart_rate HeartRate
systolic_bp SpO2 gcs patient_age PatientAge patient_sex patientWeight person_years subject_matter
case_mix CaseMixIndex cases_per_day number_of_visits NumVisits n_admissions num_medications
number_of_patients n_patients patient_days visit_number visit_count length_of_stay stay_days stay
study site hospital hospital_name hospital_type hospital_beds clinic center postcode zip_code zip
icd_code icd10 diagnosis_code diagnosis dx_code procedure_code drg drg_code cpt_code loinc
admission_type admission_date encounter_class discharge_date date time year month hour room
room_no bed unit unit_code fluid acid uric_acid amino_acid lipid steroid opioid thyroid
thyroid_nodule amyloid carotid carcinoid sinusoid ellipsoid sigmoid bid bid_price solid rapid mid
midline idle ideal_weight width video audio identity_verified incident residual nodule model score
risk label prediction confidence entropy loss key_feature code currency country region state city
smoker diabetic hypertension anticoagulants hash_rate reference_range token_count tokens no yes
notes number nr_of_beds pt_ratio ptt aptt pt_inr pat_smear chi_square chi2 nir_spectrum
cns_disease nip_test medical_history num_hospital_visits number_customer_service_calls
patient_no_show no_history hospital_code medical_code num_user_logins clinical_code family_history
social_history clinical_stage chart_time record_type record_length health_score national_rank tax
tax_rate account_age account_balance balance income loan_amount term member_since user_agent
client_type customer_segment customers individual_income fall_risk falls national_income embedding
fold batch split_index index row lab_no_growth urine_nr culture_no_growth history_of_falls hr
nrs_score num_codes code_status ref_level
""")


@pytest.mark.parametrize("name", [*OF_IDS, "person id"])
def test_a_name_may_say_that_a_column_holds_ids(name):
    assert Unused(name, 2, 1000, False).looks_like_ids


@pytest.mark.parametrize("name", OF_FEATURES)
def test_other_names_do_not(name):
    assert not Unused(name, 2, 1000, False).looks_like_ids


def test_many_different_values_look_like_ids_unless_measured():
    assert Unused("x", 1000, 1000, False).looks_like_ids
    assert Unused("x", 200, 1000, False).looks_like_ids
    assert not Unused("x", 1000, 1000, True).looks_like_ids
    assert not Unused("x", 50, 1000, False).looks_like_ids
    assert not Unused("x", 5, 5, False).looks_like_ids


@pytest.mark.parametrize("name", ["x.npz", "x.csv", "x.parquet"])
def test_nothing_is_told_of_a_missing_file(tmp_path, name):
    assert "there is no file" in refusal(tmp_path / name, unused_columns)
