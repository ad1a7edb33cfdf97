"""Scores from files, and one line that names the file for each that cannot be read."""

import math

import numpy as np
import polars as pl
import pytest

from privcal.errors import InputError
from privcal.readers import read_outputs, read_scores, read_sources

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
    return written(tmp_path / "scores.parquet", **TABLE, person=PERSON)


@pytest.fixture
def csv(tmp_path):
    return written(tmp_path / "scores.csv", **TABLE, person=PERSON)


def written(path, **columns):
    table = pl.DataFrame(columns)
    if path.suffix.lower() == ".csv":
        table.write_csv(path)
    else:
        table.write_parquet(path)
    return path


def refusal(path, read=read_scores):
    """The one line with which a file is refused."""
    with pytest.raises(InputError) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message
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
    path = written(tmp_path / f"scores{suffix}", note=["x"], **columns, label=[3])
    assert read_scores(path).outputs.array.tolist() == [[float(j) for j in range(11)]]


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_table_may_hold_probabilities(tmp_path, suffix):
    path = written(
        tmp_path / f"p{suffix}", label=[0, 1], probability_0=[0.25, 1], probability_1=[0.75, 0]
    )
    outputs = read_scores(path).outputs
    assert (outputs.kind, outputs.array.tolist()) == ("probabilities", [[0.25, 0.75], [1.0, 0.0]])


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_one_probability_column_is_that_of_class_one(tmp_path, suffix):
    path = written(tmp_path / f"p{suffix}", label=[0, 1], probability=[0.25, 0.75])
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
    path = written(tmp_path / "late.csv", label=[0] * 2001, logit_0=[1] * 2001, logit_1=[2] * 2001)
    path.write_text(path.read_text() + "1,1,2.5\n")
    assert read_scores(path).outputs.array[-1].tolist() == [1.0, 2.5]


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv"])
def test_a_file_of_no_rows_is_read(tmp_path, suffix):
    path = tmp_path / f"none{suffix}"
    if suffix == ".npz":
        np.savez(path, logits=LOGITS[:0], labels=LABELS[:0])
    else:
        written(path, **{name: column[:0] for name, column in TABLE.items()})
    assert (len(read_scores(path)), read_scores(path).classes) == (0, 3)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_table_is_split_by_a_column_in_order_of_appearance(tmp_path, suffix):
    path = written(tmp_path / f"all{suffix}", **TABLE, person=PERSON, site=["b", "a", "b"])
    sources = read_sources(path, "site", model="net")
    assert list(sources) == ["b", "a"]
    np.testing.assert_array_equal(sources["b"].outputs.array, LOGITS[[0, 2]])
    assert sources["b"].labels.tolist() == [0, 1]
    assert sources["b"].person.tolist() == ["ann", "ann"]
    assert sources["a"].person.tolist() == ["bob"]
    assert sources["a"].model == "net"


def test_a_table_is_split_by_whole_numbers_too(tmp_path):
    path = written(tmp_path / "all.parquet", **TABLE, site=[12, 3, 12])
    assert {site: len(scores) for site, scores in read_sources(path, "site").items()} == {
        "12": 2,
        "3": 1,
    }


def test_splitting_names_the_column_that_is_not_there(csv):
    message = refusal(csv, lambda path: read_sources(path, "site"))
    assert "no column 'site'; it has label, logit_0" in message


def test_splitting_names_the_first_row_without_a_source(tmp_path):
    path = written(tmp_path / "all.csv", **TABLE, site=["a", None, None])
    assert "site of row 1 is missing" in refusal(path, lambda path: read_sources(path, "site"))


def test_only_tables_can_be_split(npz):
    assert "only Parquet and CSV" in refusal(npz, lambda path: read_sources(path, "site"))


def test_a_row_refused_in_splitting_is_named_with_its_file(tmp_path):
    path = written(
        tmp_path / "all.csv", **(TABLE | {"logit_1": [0.0, math.nan, 0.0]}), site=list("aba")
    )
    assert "row 1, column 1 is nan" in refusal(path, lambda path: read_sources(path, "site"))


@pytest.mark.parametrize("name", ["x.npz", "logits.npy", "x.parquet", "x.csv", "x.txt", "folder"])
def test_a_missing_file_is_named(tmp_path, name):
    assert "there is no file" in refusal(tmp_path / name)


@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
def test_a_missing_table_to_split_is_named(tmp_path, name):
    assert "no file" in refusal(tmp_path / name, lambda path: read_sources(path, "site"))


@pytest.mark.parametrize("name", ["x.txt", "x", "x.pkl", "x.csv.gz"])
def test_an_unknown_ending_is_refused_with_the_known_ones(tmp_path, name):
    (tmp_path / name).write_text("label,logit_0\n0,1\n")
    assert "use .npz, .npy, .parquet or .csv" in refusal(tmp_path / name)


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
        path = written(tmp_path / f"x{suffix}", logit_0=[1.0], logit_1=[2.0])
        assert "has no column label" in refusal(path)
        assert read_outputs(path).rows == 1

    @pytest.mark.parametrize(
        "columns", [[], ["logit_0", "probability_0"], ["probability", "probability_0"], ["logit"]]
    )
    def test_has_logits_or_probabilities_and_not_both(self, tmp_path, suffix, columns):
        path = written(tmp_path / f"x{suffix}", label=[0], **{name: [1.0] for name in columns})
        assert "either columns logit_0, logit_1, … or probability_0" in refusal(path)

    @pytest.mark.parametrize("prefix", ["logit", "probability"])
    def test_has_no_gap_between_its_numbers(self, tmp_path, suffix, prefix):
        path = written(
            tmp_path / f"x{suffix}", **{"label": [0], f"{prefix}_0": [1.0], f"{prefix}_2": [0.0]}
        )
        assert f"has {prefix}_2 but no {prefix}_1" in refusal(path)

    @pytest.mark.parametrize("column", ["label", "logit_1"])
    def test_has_numbers_where_numbers_belong(self, tmp_path, suffix, column):
        path = written(tmp_path / f"x{suffix}", **(TABLE | {column: ["1", "many", "0"]}))
        assert f"column {column} must hold numbers" in refusal(path)

    @pytest.mark.parametrize("column", ["label", "logit_1"])
    def test_misses_no_number(self, tmp_path, suffix, column):
        path = written(tmp_path / f"x{suffix}", **(TABLE | {column: [1, None, None]}))
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
    return written(path, label=arrays["labels"], **logits, person=arrays["person"])


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv"])
@pytest.mark.parametrize(("changed", "problem"), WRONG_ROWS)
def test_a_refused_row_is_named_with_its_file(tmp_path, suffix, changed, problem):
    assert problem in refusal(with_wrong_rows(tmp_path, suffix, changed))


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize("name", ["site[1]", "site*", "site?"])
def test_a_path_is_a_name_and_no_pattern(tmp_path, suffix, name):
    other = written(tmp_path / f"site1{suffix}", label=[1], logit_0=[9.0], logit_1=[8.0])
    # Written elsewhere first, as the writer may take patterns too.
    written(tmp_path / f"plain{suffix}", **TABLE).rename(tmp_path / f"{name}{suffix}")
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
