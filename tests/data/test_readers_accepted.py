"""Files and arrays as people have them: accepted where they are unmistakable, else one sentence."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import privcal
from privcal.data.columns import Layout
from privcal.data.ids import unused_columns
from privcal.data.readers import read_outputs, read_scores
from privcal.data.scores import Outputs, content_digest
from privcal.trusted.errors import InputError
from privcal.trusted.queries import CellHistogram, Gap, Hats, Nll
from tests.support.builders import a_file

LOGITS = np.array([[2.0, 0.0, -1.0], [0.0, 1.0, 0.5], [0.25, 0.0, 3.0]])
NAMED = "label,logit_cat,logit_dog,logit_eel\ncat,2,0,-1\neel,0,1,0.5\neel,0.25,0,3\n"


def same(one: privcal.Scores, other: privcal.Scores) -> bool:
    return content_digest(one) == content_digest(other)


def text(folder: Path, content: str | bytes, name: str = "x.csv") -> Path:
    return a_file(folder / name, content)


# --- classes with names ------------------------------------------------------------------


def test_classes_are_called_as_their_columns(tmp_path: Path) -> None:
    scores = read_scores(text(tmp_path, NAMED))
    assert scores.class_names == ("cat", "dog", "eel")
    assert scores.labels.tolist() == [0, 2, 2]
    assert same(scores, privcal.Scores(logits=LOGITS, labels=[0, 2, 2]))
    assert scores.take([2, 0]).class_names == scores.class_names


def test_a_list_of_classes_decides_their_order(tmp_path: Path) -> None:
    path = text(tmp_path, NAMED)
    scores = read_scores(path, class_names=["eel", "cat", "dog"])
    assert scores.labels.tolist() == [1, 0, 0]
    assert scores.outputs.array.tolist() == LOGITS[:, [2, 0, 1]].tolist()
    for names, problem in (
        (["cat", "dog"], "a column of another class than those listed, logit_eel"),
        (["cat", "dog", "eel", "fox"], "no column logit_fox"),
    ):
        with pytest.raises(InputError, match=problem):
            read_scores(path, class_names=names)


def test_numbered_columns_may_have_a_list_of_classes(tmp_path: Path) -> None:
    numbered = NAMED.replace("cat,logit_dog", "0,logit_1").replace("_eel", "_2")
    path = text(tmp_path, numbered.replace("logit_cat", "logit_0"))
    with pytest.raises(InputError, match=r"label of row 0 is 'cat', not a number; .* --classes"):
        read_scores(path)
    assert read_scores(path, class_names=["cat", "dog", "eel"]).labels.tolist() == [0, 2, 2]
    with pytest.raises(InputError, match="3 classes, and 2 are named"):
        read_scores(path, class_names=["cat", "dog"])


@pytest.mark.parametrize("label", ["fox", "", "Cat", "3", "-1", "1.5", "nan", "cat eel"])
def test_a_label_that_is_no_class_spoils_its_own_row_alone(tmp_path: Path, label: str) -> None:
    path = text(tmp_path, f"{NAMED}{label},0,0,0\n")
    scores = read_scores(path, strict=False)
    assert scores.valid.tolist() == [True, True, True, False]
    with pytest.raises(InputError, match=r"label of row 3 is .*none of the classes cat, dog, eel"):
        read_scores(path)
    for query in (Gap(), Nll(), Hats()):
        less = query.contributions(read_scores(text(tmp_path, NAMED, "less.csv")))
        assert np.array_equal(query.contributions(scores).values[:3], less.values)


def test_one_endless_label_does_not_fill_the_memory(tmp_path: Path) -> None:
    long = "x" * 500_000
    path = text(tmp_path, NAMED + "cat,1,2,3\n" * 200 + f"{long},0,0,0\n")
    tracemalloc.start()
    valid = read_scores(path, strict=False).valid
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert valid.tolist() == [True] * 203 + [False]
    assert peak < 100e6


def test_a_number_is_the_place_of_a_class_unless_all_names_are_numbers(tmp_path: Path) -> None:
    path = text(tmp_path, NAMED.replace("\ncat,2", "\n 1 ,2").replace("\neel,0.25", "\n2.0,0.25"))
    assert read_scores(path).labels.tolist() == [1, 2, 2]
    digits = text(tmp_path, "label,logit_0,logit_1,logit_2\n7,2,0,-1\n3,0,1,0.5\n", "d.csv")
    assert read_scores(digits, class_names=["3", "5", "7"]).labels.tolist() == [2, 0]
    with pytest.raises(InputError, match="label of row 0 is '0', none of the classes 3, 5, 7"):
        read_scores(
            text(tmp_path, "label,logit_0,logit_1,logit_2\n0,2,0,-1\n", "e.csv"),
            class_names=["3", "5", "7"],
        )


@pytest.mark.parametrize("dtype", [pl.String, pl.Categorical, pl.Enum(["cat", "dog", "eel"])])
def test_names_may_be_text_or_categories(tmp_path: Path, dtype: Any) -> None:
    frame = pl.read_csv(NAMED.encode()).with_columns(pl.col("label").cast(dtype))
    frame.write_parquet(tmp_path / "x.parquet")
    for given in (frame, tmp_path / "x.parquet"):
        assert read_scores(given).labels.tolist() == [0, 2, 2]


def test_arrays_may_have_class_names(tmp_path: Path) -> None:
    labels = np.array(["cat", "eel", "eel"])
    scores = privcal.Scores(logits=LOGITS, labels=labels, class_names=["cat", "dog", "eel"])
    assert scores.labels.tolist() == [0, 2, 2]
    np.savez(tmp_path / "x.npz", logits=LOGITS, labels=labels, class_names=["cat", "dog", "eel"])
    assert read_scores(tmp_path / "x.npz").class_names == ("cat", "dog", "eel")
    for wrong in (["a", "a", "b"], ["a", "b", ""], "abc"):
        with pytest.raises(InputError):
            privcal.Scores(logits=LOGITS, labels=labels, class_names=wrong)


def test_sources_name_their_classes_alike(tmp_path: Path) -> None:
    one = text(tmp_path, NAMED)
    other = text(tmp_path, NAMED.replace("logit_cat,logit_dog", "logit_dog,logit_cat"), "y.csv")
    with pytest.raises(
        InputError,
        match=r"x\.csv has the classes cat, dog, eel, .* dog, cat, eel: .* --classes cat,dog,eel",
    ):
        privcal.open_sources([one, other], new_ledgers=True, per_row=True)


# --- tables ------------------------------------------------------------------------------

PLAIN = "label,logit_0,logit_1\n0,2,0\n1,0.5,1\n"


@pytest.mark.parametrize("mark", [";", "\t"])
@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".tsv", ".tsv.gz"])
def test_the_header_says_what_separates_fields(tmp_path: Path, mark: str, ending: str) -> None:
    content = PLAIN.replace(",", mark).replace("label", '"label"').encode()
    content = gzip.compress(content) if ending.endswith(".gz") else content
    expected = read_scores(text(tmp_path, PLAIN, "plain.csv"))
    assert same(read_scores(text(tmp_path, content, f"x{ending}")), expected)


def test_a_separator_within_quotation_marks_is_text(tmp_path: Path) -> None:
    path = text(tmp_path, 'label;logit_0;logit_1;person\n0;2;0;"a;b"\n1;0.5;1;"a,b"\n')
    assert read_scores(path).person.tolist() == ["a;b", "a,b"]  # type: ignore[union-attr]


def test_a_decimal_comma_gets_a_sentence(tmp_path: Path) -> None:
    path = text(tmp_path, "label;logit_0;logit_1\n0;2;0\n1;0,5;1\n")
    with pytest.raises(InputError, match="logit_0 of row 1 is '0,5', with a decimal comma"):
        read_scores(path)
    assert read_scores(path, strict=False).valid.tolist() == [True, False]


def test_a_damaged_gzip_file_gets_a_sentence(tmp_path: Path) -> None:
    whole = gzip.compress(PLAIN.encode() * 50)
    for content in (whole[:-20], b"label,logit_0\n", whole[:30] + b"\xff" * 30):
        with pytest.raises(InputError, match="no gzip file, or is cut short"):
            read_scores(text(tmp_path, content, "x.csv.gz"))


def test_one_logit_is_the_log_odds_of_class_one(tmp_path: Path) -> None:
    path = text(tmp_path, "label,logit\n1,1.5\n0,-0.25\n1,0\n")
    odds = np.array([1.5, -0.25, 0.0])
    scores = read_scores(path)
    expected = privcal.Scores(probabilities=1 / (1 + np.exp(-odds)), labels=[1, 0, 1])
    assert scores.classes == 2
    assert scores.outputs.predicted.tolist() == [1, 0, 0] == expected.outputs.predicted.tolist()
    ours, theirs = (privcal.TemperatureMap(2.0).confidence(s) for s in (scores, expected))
    assert ours == pytest.approx(theirs)
    assert same(scores, privcal.Scores(log_odds=odds, labels=[1, 0, 1]))
    np.savez(tmp_path / "x.npz", log_odds=odds, labels=[1, 0, 1])
    assert same(read_scores(tmp_path / "x.npz"), scores)


def test_ohdsis_predictions_are_known(tmp_path: Path) -> None:
    content = "rowId,subjectId,value,outcomeCount\n1,7,0.2,0\n2,8,0.9,3\n3,7,0.6,1\n"
    scores = read_scores(text(tmp_path, content))
    assert scores.labels.tolist() == [0, 1, 1]
    assert scores.outputs.array.ravel().tolist() == [0.2, 0.9, 0.6]
    assert scores.person.tolist() == ["7", "8", "7"]  # type: ignore[union-attr]
    assert read_scores(text(tmp_path, content), person=None).person is None
    assert [column.name for column in unused_columns(text(tmp_path, content))] == ["rowId"]
    for odd in ("-1", "0.5", "1.5", "inf", "", "x"):
        path = text(tmp_path, f"{content}4,9,0.5,{odd}\n", "odd.csv")
        assert read_scores(path, strict=False).valid.tolist() == [True] * 3 + [False]
    with pytest.raises(InputError, match="must have either"):
        read_scores(text(tmp_path, "value,outcomeCount\n0.5,1\n", "two.csv"))


@pytest.mark.parametrize("form", ["polars", "lazy", "pandas", "arrow"])
def test_data_frames_are_read_as_files_are(form: str) -> None:
    frame: Any = pl.read_csv(NAMED.encode()).with_columns(person=pl.Series(["a", "b", "a"]))
    made = {"polars": frame, "lazy": frame.lazy(), "pandas": frame.to_pandas()}
    scores = read_scores({**made, "arrow": frame.to_arrow()}[form])
    assert same(scores, privcal.Scores(logits=LOGITS, labels=[0, 2, 2]))
    assert scores.person.tolist() == ["a", "b", "a"]  # type: ignore[union-attr]


@pytest.mark.parametrize("odd", [3, None, {"label": [1]}, [[1, 2]]])
def test_what_is_no_table_gets_a_sentence(odd: Any) -> None:
    with pytest.raises(InputError, match="a file or a data frame"):
        read_scores(odd)


# --- columns of other names --------------------------------------------------------------

VISITS = "id,died,risk,other\na,1,0.75,0.5\nb,0,0.25,0.5\n"


def test_columns_may_have_any_name(tmp_path: Path) -> None:
    path = text(tmp_path, VISITS)
    said = {"label": "died", "probability": "risk", "person": "id"}
    scores = read_scores(path, columns=said)
    assert same(scores, privcal.Scores(probabilities=[0.75, 0.25], labels=[1, 0]))
    assert scores.person.tolist() == ["a", "b"]  # type: ignore[union-attr]
    logits = read_scores(path, columns={"label": "died", "logit_0": "other", "logit_1": "risk"})
    assert logits.outputs.array.tolist() == [[0.5, 0.75], [0.5, 0.25]]
    assert [c.name for c in unused_columns(path, columns=said)] == ["other"]


def test_what_is_said_of_scores_is_all_that_is_taken_for_scores(tmp_path: Path) -> None:
    path = text(tmp_path, "label,logit_0,logit_1,sure,correct\n1,2,0,0.5,1\n")
    scores = read_scores(path, columns={"confidence": "sure"})
    assert scores.outputs.array.tolist() == [[0.5]]
    assert read_scores(path).classes == 2
    assert read_outputs(path, columns={"probability": "sure"}).classes == 2


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"label": "dead", "probability": "risk"}, r"has no column dead \(label\)"),
        ({"outcome": "died"}, "'outcome' is nothing that a column can be"),
        ({"label": "risk", "probability": "risk"}, "risk cannot be two things at once"),
        ({"probability": "risk"}, "has no column label; --columns label=NAME"),
        ({"label": "died"}, "must have either"),
        ({"labels": "died", "probability": "risk"}, "is a table: say label"),
    ],
)
def test_columns_said_wrongly_get_a_sentence(
    tmp_path: Path, columns: dict[str, str], problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        read_scores(text(tmp_path, VISITS), columns=columns)


def test_arrays_may_have_any_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", z=LOGITS, y=[0, 1, 2], logits=LOGITS + 1)
    scores = read_scores(tmp_path / "x.npz", columns={"logits": "z", "labels": "y"})
    assert same(scores, privcal.Scores(logits=LOGITS, labels=[0, 1, 2]))
    with pytest.raises(InputError, match="no array q"):
        read_scores(tmp_path / "x.npz", columns={"logits": "q"})


def test_a_layout_comes_back_from_a_note() -> None:
    layout = Layout.of({"label": "died", "probability": "risk"}, ["no", "yes"])
    assert Layout.of(**layout.note()) == layout
    assert str(layout) == "label=died,probability=risk classes no,yes"


# --- numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [3, 10, 90])
def test_probabilities_may_be_rounded_to_three_decimals(classes: int) -> None:
    p = np.random.default_rng(classes).dirichlet(np.ones(classes), 300)
    rounded = p.round(3)
    assert (np.abs(rounded.sum(axis=1) - 1) > 5e-4).any()
    outputs = Outputs(probabilities=rounded)
    top = rounded.max(axis=1) / rounded.sum(axis=1)
    assert privcal.TemperatureMap(1.0).confidence(outputs) == pytest.approx(top)


def test_what_no_rounding_explains_is_refused_with_the_tolerance() -> None:
    with pytest.raises(InputError, match=r"sums to 0\.994, not 1 \(to 0\.005, as rounding"):
        Outputs(probabilities=[[0.994] + [0.0] * 9])
    with pytest.raises(InputError, match=r"to 0\.05"):
        Outputs(probabilities=[[0.9] + [0.0] * 999])


def test_an_impossible_class_gets_a_sentence() -> None:
    with pytest.raises(InputError, match=r"row 0, column 1 is -inf; give an impossible class"):
        Outputs(logits=[[0.0, -np.inf]])


def test_logits_that_look_like_probabilities_are_remarked_and_nothing_else() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(4), 30)
    assert Outputs(logits=p).looks_like_probabilities
    assert not Outputs(logits=np.log(p)).looks_like_probabilities
    assert not Outputs(probabilities=p).looks_like_probabilities
    assert not Outputs(logits=np.zeros((0, 3))).looks_like_probabilities
    assert not Outputs(logits=np.ones((3, 1))).looks_like_probabilities


def test_tensors_with_gradients_and_short_floats_are_taken() -> None:
    torch = pytest.importorskip("torch")
    map = privcal.TemperatureMap(2.0)
    tensor = torch.tensor(LOGITS, dtype=torch.float32, requires_grad=True)
    assert map.confidence(tensor).tolist() == map.confidence(LOGITS.astype("f4")).tolist()
    short = tensor.bfloat16()
    expected = map.confidence(short.detach().float().numpy())
    assert map.confidence(short).tolist() == expected.tolist()
    scores = privcal.Scores(logits=short, labels=torch.tensor([0, 1, 2]))
    assert scores.outputs.array.dtype == np.float32


def test_bfloat16_arrays_are_taken() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    short = LOGITS.astype(ml_dtypes.bfloat16)
    assert Outputs(logits=short).array.tolist() == short.astype(np.float32).tolist()


def test_a_vector_of_logits_is_one_row_to_a_map_and_probabilities_are_many() -> None:
    map = privcal.TemperatureMap(2.0)
    assert map.confidence(LOGITS[0]).tolist() == map.confidence(LOGITS[:1]).tolist()
    assert map.predict_proba(LOGITS[0].tolist()).shape == (1, 3)
    assert map.confidence(probabilities=[0.5, 0.75, 0.25]).shape == (3,)
    with pytest.raises(InputError, match=r"log-odds of class 1 go to log_odds="):
        privcal.Scores(logits=[1.0, 2.0], labels=[0, 1])
    cells = CellHistogram(1).contributions(privcal.Scores(log_odds=[1.0], labels=[1]))
    assert cells.cells.tolist() == [[1]]


class OldFrame:
    """A data frame that gives no Arrow data, or would with a package that is not there."""

    columns = ("label", "probability")

    def __init__(self, arrow: bool) -> None:
        if arrow:
            self.__arrow_c_stream__ = self._fail

    def _fail(self, *_: Any) -> None:
        raise ImportError("no PyArrow")

    def __getitem__(self, name: str) -> pl.Series:
        return pl.Series([0, 1] if name == "label" else [0.25, 0.75])


@pytest.mark.parametrize("arrow", [False, True])
def test_frames_without_arrow_data_are_read_column_by_column(arrow: bool) -> None:
    expected = privcal.Scores(probabilities=[0.25, 0.75], labels=[0, 1])
    assert same(read_scores(OldFrame(arrow)), expected)
