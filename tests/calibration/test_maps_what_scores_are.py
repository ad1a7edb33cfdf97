"""What scores are is said by somebody or by names, remembered by maps, and never guessed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import privcal
from privcal.calibration.application import apply_map
from privcal.calibration.fit import fit_anyhow, fit_local
from privcal.calibration.maps import CurveMap, RiskMap, TemperatureMap
from privcal.calibration.sketch import Sketch
from tests.support.builders import a_source, a_table

MAP = TemperatureMap(2.0)
NAMES = ("high", "low", "medium")
ACTS = ("confidence", "predict", "predict_proba")


def probabilities(rows: int = 60, classes: int = 3, seed: int = 0) -> Any:
    return np.random.default_rng(seed).dirichlet(np.ones(classes), rows)


def labels(rows: int = 60) -> Any:
    return np.random.default_rng(9).integers(0, 3, rows)


def sources(names: tuple[str, ...] | None = NAMES, kind: str = "probabilities") -> Any:
    made = []
    for seed in range(3):
        given: Any = {kind: probabilities(seed=seed)}
        scores = privcal.Scores(**given, labels=labels(), class_names=names)
        made.append(a_source(scores, name=f"s{seed}", epsilon=9))
    return made


def table(path: Path, names: tuple[str, ...] = NAMES, seed: int = 0, **change: Any) -> Path:
    p = dict(zip(NAMES, probabilities(seed=seed).T, strict=True))
    columns = {f"probability_{name}": p[name] for name in names}
    texts = [NAMES[label] for label in labels()]
    return a_table(path, {**columns, "label": texts, **change})


# --- probabilities and logits -------------------------------------------------------------------


@pytest.mark.parametrize("act", ACTS)
def test_probabilities_are_not_taken_for_logits(act: str) -> None:
    p = probabilities()
    with pytest.raises(privcal.InputError, match=r"give them as probabilities= .* as logits="):
        getattr(MAP, act)(p)
    insisted = getattr(MAP, act)(logits=p)
    assert insisted == pytest.approx(getattr(MAP, act)(p + 1))
    # One row of another sum is enough to see that they are logits, wherever it is.
    p[-1] *= 3
    assert len(getattr(MAP, act)(p)) == len(p)


def test_a_row_of_logits_that_nearly_sums_to_one_is_served() -> None:
    assert MAP.confidence([[0.4, 0.6004]]).shape == (1,)
    with pytest.raises(privcal.InputError, match="probabilities="):
        MAP.confidence([[0.4, 0.6]])


def test_scores_that_are_no_logits_are_not_fitted_evaluated_or_applied_as_such(
    tmp_path: Path,
) -> None:
    p = probabilities()
    scores = privcal.Scores(logits=p, labels=labels())
    for act in (privcal.evaluate, privcal.fit_temperature, MAP.confidence):
        with pytest.raises(privcal.InputError, match="give them as probabilities="):
            act(scores)
    np.savez(tmp_path / "x.npz", logits=p)
    with pytest.raises(privcal.InputError, match="give them as probabilities="):
        apply_map(MAP, tmp_path / "x.npz")
    # What the sentence advises gives what logits give.
    shifted = privcal.fit_temperature(privcal.Scores(logits=p + 1, labels=labels()))
    assert shifted.temperature == pytest.approx(fit_anyhow(scores).temperature, abs=1e-5)


def test_a_source_does_not_look_at_what_its_logits_look_like() -> None:
    alike, other = (
        a_source(privcal.Scores(logits=z, labels=labels()), epsilon=9)
        for z in (probabilities(), probabilities() * 3)
    )
    for source in (alike, other):
        assert privcal.calibrate([source], "acc-t", epsilon=1.0).answered == 1
        assert fit_local(source.scores).temperature > 0


@pytest.mark.parametrize("made", [pl.DataFrame, "pandas"])
def test_names_of_columns_say_what_a_frame_holds(made: Any) -> None:
    made = pytest.importorskip("pandas").DataFrame if made == "pandas" else made
    p = probabilities()
    frame = made({f"probability_{n}": p[:, j] for j, n in enumerate(NAMES)})
    map = MAP.with_provenance(class_names=list(NAMES))
    for act in ACTS:
        assert np.array_equal(getattr(map, act)(frame), getattr(map, act)(probabilities=p))
    # In whatever order the columns are, a class keeps its place.
    assert np.array_equal(map.predict(frame[list(frame.columns)[::-1]]), p.argmax(axis=1))
    risk = made({"probability": p[:, 0], "patient": ["x"] * len(p)})
    assert np.array_equal(MAP.confidence(risk), MAP.confidence(probabilities=p[:, 0]))
    with pytest.raises(privcal.InputError, match="probability_sick"):
        map.confidence(made({"probability_sick": p[:, 0], "probability_low": p[:, 1]}))


def test_a_map_remembers_what_it_was_made_from(tmp_path: Path) -> None:
    made = privcal.calibrate(sources(), "acc-t", epsilon=1.0).map
    made.save(tmp_path / "map.json")
    map = privcal.load_map(tmp_path / "map.json")
    assert (map.made_from, map.classes, map.class_names) == ("probabilities", 3, NAMES)
    p = probabilities()
    for act in ACTS:
        assert np.array_equal(getattr(map, act)(p), getattr(map, act)(probabilities=p))
    assert map.confidence(logits=np.log(p)) == pytest.approx(map.confidence(p))
    with pytest.raises(privcal.InputError, match="made from probabilities: other scores need"):
        map.confidence(np.log(p))
    with pytest.raises(privcal.InputError, match="declare what it will be given"):
        map.kind_given(None)
    of_logits = privcal.calibrate(sources(kind="logits"), "acc-t", epsilon=1.0).map
    assert of_logits.made_from == "logits"
    mixed = [*sources()[:2], *sources(kind="logits")[2:]]
    assert privcal.calibrate(mixed, "acc-t", epsilon=1.0).map.made_from is None


def test_exactly_one_thing_is_mapped() -> None:
    for given in ({}, {"logits": [[1.0, 2.0]], "probabilities": [[0.5, 0.5]]}):
        with pytest.raises(privcal.InputError, match="give one of scores"):
            MAP.confidence(**given)


def test_scores_are_not_a_source() -> None:
    given = privcal.Scores(probabilities=probabilities(), labels=labels())
    with pytest.raises(privcal.InputError, match=r"a Scores is not a source: privcal\.Source\("):
        privcal.calibrate([given])  # type: ignore[list-item]


def test_labels_that_are_names_need_the_names() -> None:
    with pytest.raises(privcal.InputError, match="give class_names="):
        privcal.Scores(probabilities=probabilities(1), labels=["high"])


# --- classes ------------------------------------------------------------------------------------


def test_names_come_from_what_is_said_and_not_from_labels() -> None:
    unnamed = privcal.calibrate(sources(None), "acc-t", epsilon=1.0).map
    assert (unnamed.classes, unnamed.class_names) == (3, None)
    empty = privcal.Scores(probabilities=np.empty((0, 3)), labels=[], class_names=NAMES)
    source = a_source(empty, epsilon=9)
    assert privcal.calibrate([source], "acc-t", epsilon=1.0).map.class_names == NAMES


@pytest.mark.parametrize("aggregation", ["each", "secure"])
def test_asking_together_makes_no_difference(aggregation: str) -> None:
    if aggregation == "secure":
        pytest.importorskip("cryptography")
    map = privcal.calibrate(sources(), "sketch", epsilon=1.0, aggregation=aggregation).map
    assert (map.classes, map.class_names) == (3, NAMES)


def test_a_model_of_other_classes_is_refused() -> None:
    map = privcal.calibrate(sources(), "acc-t", epsilon=1.0).map
    with pytest.raises(privcal.InputError, match="with 3 classes, and the scores have 2"):
        map.confidence(probabilities=probabilities(classes=2))
    for names in (NAMES[::-1], ("a", "b", "c")):
        other = privcal.Scores(probabilities=probabilities(), labels=labels(), class_names=names)
        with pytest.raises(privcal.InputError, match="this map has the classes high, low, medium"):
            map.confidence(other)
        with pytest.raises(privcal.InputError, match="this map has the classes high, low, medium"):
            privcal.evaluate(other, map)


def test_an_estimator_with_other_text_labels_is_another_model() -> None:
    sklearn = pytest.importorskip("sklearn.linear_model")
    from privcal.adapters.sklearn import MapClassifier

    x, map = [[0.0], [1.0], [2.0], [3.0]], MAP.with_provenance(class_names=["ill", "well"])
    model = sklearn.LogisticRegression().fit(x, ["ill", "ill", "well", "well"])
    assert len(MapClassifier(model, map).predict_proba(x)) == 4
    other = sklearn.LogisticRegression().fit(x, ["bad", "bad", "good", "good"])
    with pytest.raises(privcal.InputError, match="LogisticRegression has bad, good"):
        MapClassifier(other, map).predict_proba(x)
    # Numbers may be places: they say nothing of names.
    assert (
        len(MapClassifier(sklearn.LogisticRegression().fit(x, [0, 0, 1, 1]), map).predict(x)) == 4
    )


def test_sources_that_disagree_are_shown_both_orders() -> None:
    apart = [sources()[0], sources(NAMES[::-1])[1]]
    with pytest.raises(
        privcal.InputError, match=r"s0 has .* high, low, medium, and s1 has medium, low"
    ):
        privcal.calibrate(apart, "acc-t", epsilon=1.0)
    assert all(source.spent == 0 for source in apart)
    declared = {"class_names": ["x", "y", "z"]}
    with pytest.raises(privcal.InputError, match="this run has the classes x, y, z"):
        privcal.calibrate(sources(), "acc-t", epsilon=1.0, **declared)
    assert privcal.calibrate(sources(None), "acc-t", 1.0, **declared).map.class_names == tuple(
        "xyz"
    )


def test_a_sketch_knows_the_classes_and_its_maps_do(tmp_path: Path) -> None:
    result = privcal.calibrate(sources(), "sketch", epsilon=1.0, event=2)
    assert result.sketch is not None
    result.sketch.save(tmp_path / "sketch.json")
    sketch = Sketch.load(tmp_path / "sketch.json")
    assert sketch == result.sketch
    assert sketch.fit().map.class_names == NAMES
    assert "class medium" in sketch.fit().map.describe()
    assert "class medium" in repr(sketch.evaluate())
    document = json.loads((tmp_path / "sketch.json").read_text())
    assert document["version"] == 4
    for schema in ({"rows": 60}, {"classes": "3"}, {"class_names": [1]}, []):
        (tmp_path / "odd.json").write_text(json.dumps(document | {"schema": schema}))
        with pytest.raises(privcal.InputError, match="the schema"):
            Sketch.load(tmp_path / "odd.json")


def test_a_risk_is_called_by_its_class() -> None:
    scores = privcal.Scores(probabilities=probabilities(), labels=labels(), class_names=NAMES)
    evaluation = privcal.evaluate(scores, event="low")
    assert evaluation.risk is not None
    assert (evaluation.risk.event, evaluation.risk.event_name) == (1, "low")
    assert privcal.RiskDisplay.from_evaluation(evaluation).what == "how often it was class low"
    with pytest.raises(privcal.InputError, match="no class 'nope'; the classes are high, low, med"):
        privcal.evaluate(scores, event="nope")
    risk = RiskMap(1.0, (-1.0, 1.0), (-1.0, 1.0), event=1)
    assert risk.describe().endswith("risk of class 1")
    assert risk.with_provenance(class_names=list(NAMES)).describe().endswith("risk of class low")


def test_rows_of_another_model_refine_nothing() -> None:
    map = privcal.calibrate(sources(), "sketch", epsilon=9.0).map
    own = privcal.Scores(probabilities=probabilities(), labels=labels())
    assert privcal.refine(map, own, force=True).class_names == NAMES
    two = privcal.Scores(probabilities=probabilities(classes=2), labels=[0, 1] * 30)
    with pytest.raises(privcal.InputError, match="with 3 classes, and the scores have 2"):
        privcal.refine(map, two, force=True)


# --- files of the last edition --------------------------------------------------------------------


def test_a_map_that_says_nothing_of_this_is_read_as_before(tmp_path: Path) -> None:
    curve = CurveMap(1.0, (0.0, 2.0), (0.0, 1.0), provenance={"method": "sketch", "sources": 3})
    curve.save(tmp_path / "map.json")
    old = privcal.load_map(tmp_path / "map.json")
    assert (old.made_from, old.classes, old.class_names) == (None, None, None)
    assert old.confidence([[2.0, 0.0]]).round(3).tolist() == [0.731]


# --- commands -------------------------------------------------------------------------------------


@pytest.fixture
def clinics(tmp_path: Path) -> list[Path]:
    return [table(tmp_path / f"c{seed}.csv", seed=seed) for seed in range(3)]


def test_an_event_is_given_by_its_name(run: Any, clinics: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "risk.json"
    new = ("--new-ledger", "--per-row")
    page = ("--html", tmp_path / "risk.html")
    said, _ = run.ok("calibrate", *clinics, *new, "--event", "medium", "--out", out, *page)
    assert "The risk of class medium" in " ".join(said.split())
    assert "how often it was class medium" in (tmp_path / "risk.html").read_text("utf-8")
    map = privcal.load_map(out)
    assert isinstance(map, RiskMap)
    assert (map.event, map.class_names, map.made_from) == (2, NAMES, "probabilities")
    # A file of two classes is another model's.
    pl.DataFrame({"probability_0": [0.5], "probability_1": [0.5]}).write_csv(tmp_path / "two.csv")
    code, _, err = run("apply", out, tmp_path / "two.csv", "--out", tmp_path / "o.csv")
    assert (code, "the scores have 2 classes, and 3 are named: high, low" in err) == (2, True)
    # The map's names are the result's.
    np.savez(tmp_path / "x.npz", probabilities=probabilities(), labels=labels())
    run.ok("apply", out, tmp_path / "x.npz", "--out", tmp_path / "o.csv")
    assert set(pl.read_csv(tmp_path / "o.csv")["predicted"]) <= set(NAMES)


def test_an_event_that_is_no_class_costs_nothing(run: Any, clinics: list[Path]) -> None:
    new = ("--new-ledger", "--per-row", "--out", clinics[0].parent / "m.json")
    for event, why in (("nope", "the classes are high, low, medium"), ("-1", "must be a whole")):
        assert why in run.fails("calibrate", *clinics, *new, "--event", event)
    assert not list(clinics[0].parent.glob("*.ledger"))


def test_the_risk_comes_first_and_a_baseline_needs_no_map(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    values = run.json("evaluate", clinics[0], "--event", "low")["before"]
    assert values["event"] == 1
    assert list(values).index("prevalence") < list(values).index("ece")
    map = RiskMap(1.0, (-1.0, 1.0), (-2.0, 2.0), event=1)
    map.save(tmp_path / "risk.json")
    page = tmp_path / "page.html"
    said, _ = run.ok("evaluate", clinics[0], "--map", tmp_path / "risk.json", "--html", page)
    said = " ".join(said.split())
    assert said.startswith("This map corrects the risk of class")
    assert said.index("prevalence") < said.index("accuracy")
    assert "This map corrects the risk of class" in page.read_text("utf-8")


def test_a_campaign_by_mail_takes_names_that_its_asker_gives(
    run: Any, clinics: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    classes = ("--classes", ",".join(NAMES))
    begin = ("campaign", "new", "--out", "q.json", "--event", "medium")
    assert "name the classes in order (--classes" in run.fails(*begin)
    run.ok(*begin, *classes)
    assert json.loads((tmp_path / "q.json").read_text())["questions"][0]["query"]["event"] == 2
    run.ok("ledger", "create", clinics[0], "--per-row")
    code, said, _ = run("source", "answer", clinics[0], "q.json", "--yes", "--out", "a.json")
    assert (code, "how many are of class medium" in " ".join(said.split())) == (0, True)
    said, _ = run.ok("calibrate", "--answers", "a.json", "--out", "m.json")
    assert privcal.load_map("m.json").class_names == NAMES
    assert "risk of class medium" in " ".join(said.split())
    describe = ("campaign", "describe", "--sources", 3, "--event", "medium", *classes)
    assert '"event": 2' in run(*describe, "--json")[1]
    assert "how many are of class medium" in " ".join(run(*describe)[1].split())


# --- malformed cells ------------------------------------------------------------------------------


def test_a_bad_cell_is_found_by_its_line(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "row 9.csv"
    file.write_text("\nprobability_0,probability_1,label\n\n0.5,0.5,1\n\n0.5,,1\n")
    for command in (["evaluate"], ["thresholds", tmp_path / "map.json"]):
        MAP.save(tmp_path / "map.json")
        assert "row 9.csv, line 6: probability_1 of row 1 is missing" in run.fails(*command, file)
    file.write_text("probability_0,probability_1,label\n0.5,0.5,1\n0.5,0.7,1\n")
    assert "line 3: probabilities row 1 sums to 1.2" in run("evaluate", file)[2]
    code, _, err = run("apply", tmp_path / "map.json", file, "--out", tmp_path / "o.csv")
    assert (code, "line 3: probabilities row 1 sums to 1.2" in err) == (2, True)


# --- together -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_of_probabilities_called_logits_is_not_applied(
    run: Any, tmp_path: Path, ending: str
) -> None:
    MAP.save(tmp_path / "map.json")
    file = tmp_path / f"x.{ending}"
    frame = pl.DataFrame({"logit_a": [0.5, 0.7], "logit_b": [0.5, 0.3]})
    frame.write_csv(file) if ending == "csv" else frame.write_parquet(file)
    code, _, err = run("apply", tmp_path / "map.json", file, "--out", tmp_path / "o.csv")
    assert (code, "give them as probabilities=" in err) == (2, True)
    assert not (tmp_path / "o.csv").exists()


def test_an_evaluation_says_which_classes_risk_it_shows(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    RiskMap(1.0, (-1.0, 1.0), (-2.0, 2.0), event=1).save(tmp_path / "risk.json")
    for more, first in ((), "low"), (("--event", "medium"), "medium"):
        said = run("evaluate", clinics[0], "--map", tmp_path / "risk.json", *more)[1]
        what = f"The first measures are of the risk of class {first}, the others"
        assert what in " ".join(said.split())


def test_an_error_about_a_class_names_those_that_there_are(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    asked = ("calibrate", *clinics, "--new-ledger", "--per-row", "--out", tmp_path / "m.json")
    code, _, err = run(*asked, "--event", 7)
    assert (code, "there is no class '7'; the classes are high, low, medium" in err) == (2, True)
    run.ok(*asked, "--event", "low")
    assert "was begun with event 1, not without it" in run.fails(*asked)


def test_what_to_do_about_another_order_is_true_of_arrays_too() -> None:
    p = probabilities()
    named = MAP.with_provenance(class_names=["a", "b", "c"])
    scores = privcal.Scores(probabilities=p, labels=labels(), class_names=["b", "a", "c"])
    with pytest.raises(privcal.InputError, match="put the columns in one order"):
        named.confidence(scores)
    with pytest.raises(privcal.InputError, match="a Scores is not a list of sources"):
        privcal.calibrate(scores)
