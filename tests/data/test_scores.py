"""Scores are checked once, at the door: what is kept, and what is turned away and how."""

import math
import re
import warnings

import numpy as np
import polars as pl
import pytest

from privcal.data.scores import Outputs, Scores, content_digest
from privcal.trusted import scores as scores_module
from privcal.trusted.errors import InputError
from tests.support.builders import python

LOGITS = [[1.0, 2.0, 0.0], [0.0, 5.0, 5.0]]


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_float_arrays_are_kept_without_a_copy(kind, dtype, order):
    array = np.full((5, 4), 0.25, dtype, order)
    scores = Scores(**{kind: array}, labels=[0] * 5)
    assert scores.outputs.array is array


def test_a_column_of_probabilities_is_kept_without_a_copy():
    p = np.array([0.1, 0.9], np.float32)
    assert np.shares_memory(Outputs(probabilities=p).array, p)


@pytest.mark.parametrize("dtype", [int, np.uint8, bool])
def test_whole_numbers_are_taken_as_float64(dtype):
    outputs = Outputs(logits=np.array([[0, 1], [1, 0]], dtype))
    assert outputs.array.dtype == np.float64
    assert outputs.predicted.tolist() == [1, 0]


def test_no_rows_are_allowed():
    scores = Scores(logits=np.empty((0, 3)), labels=[], person=[])
    assert len(scores) == 0
    assert scores.correct.tolist() == []


def test_labels_may_be_whole_floats_or_booleans():
    for labels in ([1.0, 0.0], [True, False], np.array([1, 0], np.uint64)):
        assert Scores(logits=LOGITS, labels=labels).labels.tolist() == [1, 0]


def test_taking_rows_takes_everything_that_belongs_to_them():
    scores = Scores(logits=LOGITS, labels=[0, 2], person=["a", "b"], model="net")
    for rows in ([1], slice(1, 2), np.array([False, True])):
        taken = scores.take(rows)
        assert taken.outputs.array.tolist() == [LOGITS[1]]
        assert (taken.labels.tolist(), taken.person.tolist(), taken.model) == ([2], ["b"], "net")


def test_a_slice_of_rows_is_taken_without_a_copy():
    scores = Scores(logits=np.array(LOGITS), labels=[0, 2])
    assert np.shares_memory(scores.take(slice(1, 2)).outputs.array, scores.outputs.array)


@pytest.mark.parametrize("given_as", [{}, {"logits": LOGITS, "probabilities": LOGITS}])
def test_logits_or_probabilities_are_said_and_only_one_of_them(given_as):
    with pytest.raises(InputError, match="either logits= or probabilities="):
        Scores(**given_as, labels=[0, 0])


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_named_by_row_and_column(kind, dtype, wrong):
    array = np.full((4, 2), 0.5, dtype)
    array[2, 1] = array[3, 0] = wrong
    with pytest.raises(InputError, match=f"{kind} row 2, column 1 is {wrong}"):
        Scores(**{kind: array}, labels=[0] * 4)


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_a_row_is_named_by_its_place_in_the_whole_array(kind, monkeypatch):
    monkeypatch.setattr(scores_module, "BLOCK", 8)
    array = np.full((100, 2), 0.5)
    array[77, 0] = math.nan
    with pytest.raises(InputError, match=f"{kind} row 77, column 0 is nan"):
        Outputs(**{kind: array})


@pytest.mark.parametrize("wrong", [-0.001, 1.001, 7.0])
def test_a_probability_outside_its_range_is_named_by_row_and_column(wrong):
    with pytest.raises(InputError, match=rf"row 1, column 0 is {wrong}, outside \[0, 1\]"):
        Outputs(probabilities=[[0.5, 0.5], [wrong, 1 - wrong]])
    with pytest.raises(InputError, match=rf"row 1, column 0 is {wrong}, outside \[0, 1\]"):
        Outputs(probabilities=[0.5, wrong])


def test_probabilities_that_do_not_sum_to_one_are_named_by_row(monkeypatch):
    monkeypatch.setattr(scores_module, "BLOCK", 2)
    with pytest.raises(InputError, match=r"row 1 sums to 0\.7, not 1 .*; .* give them as logits="):
        Outputs(probabilities=[[0.5, 0.5], [0.5, 0.2]])


def test_probabilities_may_miss_one_by_what_half_precision_rounds():
    p = np.full((1, 1000), 1 / 1000, np.float16)
    assert p.sum(dtype=np.float64) != 1
    assert Outputs(probabilities=p).classes == 1000


@pytest.mark.parametrize("shape", [(3,), (2, 2, 2), ()])
def test_logits_have_two_dimensions(shape):
    with pytest.raises(InputError, match="logits must have two dimensions"):
        Outputs(logits=np.zeros(shape))


def test_there_is_at_least_one_column():
    with pytest.raises(InputError, match="logits have no columns"):
        Outputs(logits=np.empty((2, 0)))


@pytest.mark.parametrize("values", [[["a", "b"]], [[1j, 2]], [[None, 1.0]]])
def test_outputs_are_real_numbers(values):
    with pytest.raises(InputError, match="logits must be numbers"):
        Outputs(logits=values)


@pytest.mark.parametrize("label", [3, -1, 10**15, 99999999999999999999, 1e20])
def test_a_label_out_of_range_is_named_by_its_row(label):
    text = re.escape(f"label of row 1 is {label}; with 3 classes")
    with pytest.raises(InputError, match=f"{text} .* 0 to 2"):
        Scores(logits=LOGITS, labels=[0, label])


def test_a_whole_label_is_named_without_its_point():
    with pytest.raises(InputError, match="label of row 1 is 3; with"):
        Scores(logits=LOGITS, labels=[0.0, 3.0])


def test_a_label_too_wide_for_numpy_is_an_ordinary_wrong_one():
    labels = pl.Series([0, 99999999999999999999], dtype=pl.Int128)
    with pytest.raises(InputError, match="label of row 1 is 99999999999999999999; with 3 classes"):
        Scores(logits=LOGITS, labels=labels)
    assert Scores(logits=LOGITS, labels=labels, strict=False).valid.tolist() == [True, False]


@pytest.mark.parametrize("label", [0.5, math.nan, math.inf])
def test_a_label_that_is_not_whole_is_named_by_its_row(label):
    with pytest.raises(InputError, match=f"label of row 1 is {label}, not a whole number"):
        Scores(logits=LOGITS, labels=[0, label])


@pytest.mark.parametrize("label", ["a", "1", None, 1j, [1, 2, 3], "long" * 100, 10**400])
def test_a_label_that_is_no_number_is_named_by_its_row(label):
    labels = np.empty(2, object)
    labels[:] = [0, None]
    labels[1] = label
    for given in (labels, [0, label])[: 1 if isinstance(label, list) else 2]:
        with pytest.raises(InputError, match=r"label of row 1 is .*, not a whole number") as caught:
            Scores(logits=LOGITS, labels=given)
        assert len(str(caught.value)) < 140
        scores = Scores(logits=LOGITS, labels=given, strict=False)
        assert (scores.labels.tolist(), scores.valid.tolist()) == ([0, 0], [True, False])


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("dtype", ["U3", "S3", complex, "M8[s]"])
@pytest.mark.parametrize("rows", [0, 2])
def test_arrays_of_labels_are_numbers(dtype, rows, strict):
    with pytest.raises(InputError, match="labels must be whole numbers"):
        Scores(
            logits=LOGITS[:rows] or np.empty((0, 3)), labels=np.empty(rows, dtype), strict=strict
        )


def test_labels_have_one_dimension():
    with pytest.raises(InputError, match=r"labels must have one dimension, not shape \(2, 1\)"):
        Scores(logits=LOGITS, labels=[[0], [1]])


@pytest.mark.parametrize("labels", [[], [0], [0, 1, 2]])
def test_there_are_as_many_labels_as_rows(labels):
    with pytest.raises(InputError, match=f"{len(labels)} labels for 2 rows of logits"):
        Scores(logits=LOGITS, labels=labels)


@pytest.mark.parametrize("person", [[], ["a"], ["a", "b", "c"], [["a"], ["b"]]])
def test_there_are_as_many_person_ids_as_rows(person):
    with pytest.raises(InputError, match=r"person ids have shape .* for 2 rows of logits"):
        Scores(logits=LOGITS, labels=[0, 1], person=person)


@pytest.mark.parametrize("missing", [None, math.nan, np.float32("nan"), "", "  ", b""])
def test_a_missing_person_id_is_named_by_its_row(missing):
    with pytest.raises(InputError, match="person id of row 1 is missing"):
        Scores(logits=LOGITS, labels=[0, 1], person=["a", missing])


@pytest.mark.parametrize("odd", [7.5, True, math.inf, ("a",), object])
def test_a_person_id_is_a_whole_number_or_a_string(odd):
    person = np.array(["a", None], object)
    person[1] = odd
    with pytest.raises(InputError, match=r"person id of row 1 is .*; use whole numbers or strings"):
        Scores(logits=LOGITS, labels=[0, 1], person=person)


@pytest.mark.parametrize("same", [7, 7.0, "7", b"7", np.int32(7), np.float32(7)])
def test_a_whole_number_is_one_id_in_any_type(same):
    person = Scores(logits=LOGITS, labels=[0, 1], person=[same, "x"]).person
    assert person.tolist() == ["7", "x"]


def test_every_rejection_is_a_value_error_of_one_line():
    with pytest.raises(ValueError, match="row 0, column 0") as caught:
        Outputs(logits=[[math.nan]])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ragged", [{"logits": [[1.0, 2.0], [1.0]]}, {"labels": [0, [1]]}])
def test_ragged_lists_are_refused(ragged):
    with pytest.raises(InputError):
        Scores(**({"logits": LOGITS, "labels": [0, 1]} | ragged))


def test_a_mask_does_not_hide_a_missing_number():
    with pytest.raises(InputError, match="logits are masked"):
        Outputs(logits=np.ma.masked_invalid([[1.0, math.nan], [1.0, 2.0]]))


@pytest.mark.skipif(np.finfo(np.longdouble).max == np.finfo(float).max, reason="no long double")
def test_no_accepted_logit_makes_a_margin_that_is_no_number():
    logits = np.array([[1, 2]], np.longdouble) * (np.finfo(np.longdouble).max / 4)
    try:
        scores = Scores(logits=logits, labels=[0])
    except InputError:
        return
    assert np.isfinite(scores.label_margin).all()


def test_two_persons_never_become_one():
    try:
        person = Scores(logits=LOGITS, labels=[0, 1], person=[b"\xff", b"\xfe"]).person
    except InputError:
        return
    assert person[0] != person[1]


@pytest.mark.parametrize("missing", ["nan", "NA", " n/a", "None", "NULL", "<NA>", "NaT", "  "])
def test_a_word_for_missing_is_no_person(missing):
    with pytest.raises(InputError, match="person id of row 1 is missing"):
        Scores(logits=LOGITS, labels=[0, 1], person=["a", missing])


def test_a_float_too_large_to_tell_two_ids_apart_is_refused():
    with pytest.raises(InputError, match="person id of row 0"):
        Scores(logits=LOGITS, labels=[0, 1], person=[2.0**53, 2.0**53 + 2])


def test_ids_are_compared_as_text_but_respelling_makes_no_new_person():
    ids = ["7", "007", "7.0", " 7", "7.00 ", "7.5", "a.0", "-3.0", "A b "]
    person = Scores(logits=[[0.0, 1.0]] * 9, labels=[0] * 9, person=ids).person
    assert person.tolist() == ["7", "007", "7", "7", "7", "7.5", "a.0", "-3", "A b"]


@pytest.mark.parametrize("order", ["<", ">"])
def test_an_id_that_is_no_text_spoils_its_own_row_alone(order):
    ids = np.array(["ann", "bob"], f"{order}U3")
    ids.view(f"{order}u4")[0] = 0x7FFFFFFF
    scores = Scores(logits=LOGITS, labels=[0, 1], person=ids, strict=False)
    assert scores.valid.tolist() == [False, True]
    assert scores.person.tolist() == ["", "bob"]
    with pytest.raises(InputError, match="person id of row 0 is missing"):
        Scores(logits=LOGITS, labels=[0, 1], person=ids)


def odd_logits(dtype=np.float64):
    """Six rows, the malformed ones between the others."""
    return np.array(
        [[1, 2, 0], [math.nan, 1, 2], [0, 5, 5], [math.inf, 1, -math.inf], [3, 1, 2], [9, 9, 8]],
        dtype,
    )


@pytest.mark.parametrize("block", [1, 8, 1 << 17])
@pytest.mark.parametrize("order", ["C", "F"])
def test_not_strict_a_malformed_row_is_marked(block, order, monkeypatch):
    monkeypatch.setattr(scores_module, "BLOCK", block)
    outputs = Outputs(logits=np.asarray(odd_logits(), order=order), strict=False)
    assert outputs.valid.tolist() == [True, False, True, False, True, True]
    scores = Scores(
        logits=odd_logits(),
        labels=[0, 1, 3, 1, 2, 1.5],
        person=["a", "b", "c", "d", None, "f"],
        strict=False,
    )
    assert scores.valid.tolist() == [True, False, False, False, False, False]
    assert scores.labels.tolist() == [0, 0, 0, 0, 0, 0]
    assert scores.person.tolist() == ["a", "b", "c", "d", "", "f"]


def test_what_is_well_formed_is_so_in_either_way():
    given = {"logits": LOGITS, "labels": [1, 2], "person": ["a", "b"]}
    assert Scores(**given).valid.tolist() == Scores(**given, strict=False).valid.tolist()
    assert Scores(**given).valid.all()


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"outputs": np.zeros((2, 2, 2))}, "two dimensions"),
        ({"outputs": np.zeros((2, 0))}, "no columns"),
        ({"outputs": np.array([["a", "b"]] * 2)}, "must be numbers"),
        ({"labels": [0]}, "1 labels for 2 rows"),
        ({"labels": [[0], [1]]}, "one dimension"),
        ({"person": ["a"]}, "person ids have shape"),
    ],
)
def test_what_is_wrong_with_a_whole_column_is_refused_in_either_way(kind, strict, changed, problem):
    given = {"outputs": np.full((2, 2), 0.5), "labels": [0, 1]} | changed
    with pytest.raises(InputError, match=problem):
        Scores(**{kind: given.pop("outputs")}, **given, strict=strict)


@pytest.mark.parametrize("rows", [[5, 4, 3, 2, 1], slice(1, None), np.arange(6) > 0])
def test_taking_rows_keeps_which_are_malformed(rows):
    scores = Scores(
        logits=odd_logits(), labels=[0, 1, 3, 1, 2, 1], person=[*"abcd", "", "f"], strict=False
    )
    taken = scores.take(rows)
    assert taken.valid.tolist() == scores.valid[rows].tolist()
    assert taken.labels.tolist() == scores.labels[rows].tolist()
    assert taken.take([0]).valid.tolist() == taken.valid[:1].tolist()
    assert not taken.take([]).valid.size


@pytest.mark.parametrize(
    "given_as",
    [
        {"logits": odd_logits(np.float16)},
        {"logits": odd_logits(np.float32)},
        {"logits": np.full((6, 2), 0x7F800001, np.uint32).view(np.float32)},  # a signalling NaN
        {"probabilities": np.full((6, 1), 0x7F800001, np.uint32).view(np.float32)},
        {"probabilities": odd_logits()},
        {"probabilities": np.array([math.nan, math.inf, -math.inf, -1, 2, 0.5])},
    ],
)
def test_malformed_rows_neither_raise_nor_warn(given_as):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = Scores(**given_as, labels=[0, 1, -1, 10**18, 1, 1], strict=False)
        assert not scores.valid[:4].all()
        assert scores.correct.shape == scores.outputs.top.shape == (6,)
        assert np.isfinite(scores.label_margin).all()
        assert len(content_digest(scores)) == 64


def test_labels_and_ids_are_copied_into_memory(tmp_path):
    np.save(tmp_path / "labels.npy", [0, 2])
    np.save(tmp_path / "person.npy", ["a", "b"])
    labels = np.load(tmp_path / "labels.npy", mmap_mode="r")
    person = np.load(tmp_path / "person.npy", mmap_mode="r")
    scores = Scores(logits=LOGITS, labels=labels, person=person)
    assert not isinstance(scores.labels, np.memmap)
    assert not isinstance(scores.person, np.memmap)
    assert not np.shares_memory(scores.labels, labels)


def test_labels_cut_short_after_reading_do_no_harm(tmp_path):
    """In a process of its own: reading a memory map beyond its file ends the process."""
    script = f"""if True:
        import os
        import numpy as np
        import privcal
        folder = {str(tmp_path)!r}
        np.save(folder + "/logits.npy", np.zeros((100_000, 2)))
        np.save(folder + "/labels.npy", np.ones(100_000, np.int64))
        np.save(folder + "/person.npy", np.arange(100_000))
        scores = privcal.read_scores(folder)
        for name in ("labels", "person"):
            os.truncate(f"{{folder}}/{{name}}.npy", 0)
        print(scores.labels.sum(), scores.person[-1])
    """
    done = python(script)
    assert (done.returncode, done.stdout) == (0, "100000 99999\n"), done.stderr


def test_a_digest_tells_whether_rows_are_the_same():
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 3, (50, 3)).astype(np.float32)
    labels = rng.integers(0, 3, 50)
    digest = content_digest(Scores(logits=logits, labels=labels))
    same = [
        {"logits": logits.astype(float), "labels": labels.astype(np.uint8)},
        {"logits": np.asfortranarray(logits), "labels": labels.tolist()},
        {"logits": logits.astype(">f4"), "labels": labels, "model": "net"},
        {"logits": logits, "labels": labels, "person": range(50)},
        {"logits": [[float(str(v)) for v in row] for row in logits], "labels": labels},
    ]
    for given in same:
        assert content_digest(Scores(**given)) == digest
    changed = logits.copy()
    changed[-1, -1] = np.nextafter(changed[-1, -1], np.float32(9))
    p = np.full((50, 3), 1 / 3)
    others = [
        Scores(logits=changed, labels=labels),
        Scores(logits=logits, labels=[*labels[:-1], (labels[-1] + 1) % 3]),
        Scores(logits=logits[::-1], labels=labels[::-1]),
        Scores(logits=logits[1:], labels=labels[1:]),
        Scores(logits=logits.reshape(25, 6), labels=labels[:25]),
        Scores(probabilities=p, labels=labels),
        Scores(logits=p, labels=labels),
    ]
    assert len({digest, *(content_digest(scores) for scores in others)}) == len(others) + 1


def test_a_digest_is_the_same_whatever_the_block(monkeypatch):
    scores = Scores(logits=odd_logits(), labels=[0] * 6, strict=False)
    digest = content_digest(scores)
    monkeypatch.setattr(scores_module, "BLOCK", 3)
    assert content_digest(scores) == digest
    assert content_digest(scores.take([0, 3, 2, 1, 4, 5])) == digest  # 1 and 3 are malformed
