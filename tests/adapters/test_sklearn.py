"""A fitted estimator and a map are a classifier, as scikit-learn understands it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.base import clone, is_classifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_is_fitted

from privcal.adapters.sklearn import MapClassifier
from privcal.calibration.maps import BinsMap, TemperatureMap
from privcal.trusted.errors import InputError
from tests.support.every_map import every_map

RNG = np.random.default_rng(3)
X = RNG.normal(0, 1, (120, 4))
TWO = np.where(X[:, 0] + RNG.normal(0, 1, 120) > 0, "yes", "no")
THREE = np.array(["a", "b", "c"])[(X[:, :2] > 0).sum(axis=1)]


@pytest.mark.parametrize("name", sorted(every_map(3)))
@pytest.mark.parametrize("y", [TWO, THREE], ids=["two", "three"])
def test_probabilities_reach_the_map_as_probabilities(name: str, y: np.ndarray) -> None:
    model = LogisticRegression().fit(X, y)
    map = every_map(len(model.classes_))[name]
    served = MapClassifier(model, map)
    p = model.predict_proba(X)
    np.testing.assert_array_equal(served.predict_proba(X), map.predict_proba(probabilities=p))
    np.testing.assert_array_equal(served.confidence(X), map.confidence(probabilities=p))
    np.testing.assert_array_equal(served.predict(X), model.classes_[map.predict(probabilities=p)])
    assert served.scores_from_ == "predict_proba"
    if "risk" in name:
        np.testing.assert_array_equal(served.risk(X), map.risk(probabilities=p))
    else:
        with pytest.raises(InputError, match="is not of a risk"):
            served.risk(X)
    assert 0 <= served.score(X, y) <= 1


def test_decision_values_reach_the_map_as_logits() -> None:
    map = every_map(3)["curve"]
    for y in (TWO, THREE):
        model = LogisticRegression().fit(X, y)
        served = MapClassifier(model, map, scores_from="decision_function")
        z = model.decision_function(X)
        z = np.stack([0 * z, z], axis=1) if z.ndim == 1 else z
        np.testing.assert_array_equal(served.predict_proba(X), map.predict_proba(z))
        assert served.scores_from_ == "decision_function"
    # Where the estimator has no probabilities, decision values are what there is.
    assert MapClassifier(LinearSVC().fit(X, THREE), map).scores_from_ == "decision_function"
    assert MapClassifier(RidgeClassifier().fit(X, TWO), map).predict(X[:2]).tolist()


def test_a_temperature_is_told_where_there_is_one() -> None:
    model = LogisticRegression().fit(X, TWO)
    assert MapClassifier(model, TemperatureMap(1.5)).temperature_ == 1.5
    assert not hasattr(MapClassifier(model, BinsMap((0.5,))), "temperature_")


def test_a_map_may_be_the_path_of_its_file(tmp_path: Path) -> None:
    model = LogisticRegression().fit(X, TWO)
    TemperatureMap(1.5).save(tmp_path / "map.json")
    served = MapClassifier(model, tmp_path / "map.json")
    expected = MapClassifier(model, TemperatureMap(1.5)).predict_proba(X)
    np.testing.assert_array_equal(served.predict_proba(X), expected)


# --- nothing is trained -----------------------------------------------------------------------------


def test_fit_trains_nothing_and_an_untrained_estimator_is_told() -> None:
    model = LogisticRegression().fit(X, TWO)
    before = model.coef_.copy()
    served = MapClassifier(model, TemperatureMap(2.0))
    check_is_fitted(served)
    assert served.fit(X, TWO[::-1]) is served
    np.testing.assert_array_equal(model.coef_, before)
    for act in (lambda s: s.fit(X, TWO), lambda s: s.predict(X), check_is_fitted):
        with pytest.raises(NotFittedError):
            act(MapClassifier(LogisticRegression(), TemperatureMap(2.0)))


def test_a_clone_and_a_pickle_say_the_same() -> None:
    served = MapClassifier(LogisticRegression().fit(X, THREE), every_map(3)["offsets"])
    for again in (clone(served), pickle.loads(pickle.dumps(served))):
        np.testing.assert_array_equal(again.predict_proba(X), served.predict_proba(X))
        assert again.get_params().keys() == served.get_params().keys()
    # Cross-validation clones and fits: the model stays the one that the map is of.
    model = LogisticRegression().fit(X, TWO)
    served = MapClassifier(model, TemperatureMap(2.0))
    scores = cross_val_score(served, X, TWO, cv=3)
    assert scores.mean() == pytest.approx(model.score(X, TWO))


def test_it_ends_a_pipeline_and_may_hold_one() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=list("abcd"))
    inner = make_pipeline(
        StandardScaler(), FunctionTransformer(seen := []), RandomForestClassifier(5, random_state=0)
    )
    inner.set_params(functiontransformer__func=lambda x: seen.append(type(x)) or x)
    inner.fit(frame, TWO)
    served = MapClassifier(inner, TemperatureMap(2.0)).set_output(transform="pandas")
    p = served.predict_proba(frame)
    assert seen[-1] is pd.DataFrame
    assert isinstance(p, np.ndarray)
    assert served.n_features_in_ == 4
    assert served.feature_names_in_.tolist() == list("abcd")
    outer = make_pipeline(FunctionTransformer(), served).set_output(transform="pandas")
    np.testing.assert_array_equal(outer.predict_proba(frame), p)
    assert is_classifier(outer)


# --- what cannot be -----------------------------------------------------------------------------------


def test_a_map_of_another_model_and_scores_that_are_not_there_are_refused() -> None:
    with pytest.raises(InputError, match="a model with 5 classes, and LogisticRegression has 3"):
        MapClassifier(LogisticRegression().fit(X, THREE), every_map(5)["offsets"]).predict(X)
    with pytest.raises(InputError, match="SVC has no predict_proba: there is nothing to calibrate"):
        MapClassifier(SVC().fit(X, TWO), TemperatureMap(2.0), scores_from="predict_proba").fit()
    with pytest.raises(
        InputError, match="scores_from must be one of auto, predict_proba, decision_f"
    ):
        MapClassifier(LogisticRegression().fit(X, TWO), TemperatureMap(2.0), scores_from="x").fit()
    pairs = SVC(decision_function_shape="ovo").fit(X, np.arange(120) % 4)
    with pytest.raises(InputError, match="gives 6 values for 4 classes, one for each pair"):
        MapClassifier(pairs, TemperatureMap(2.0)).predict(X)


# --- scikit-learn's own checks -------------------------------------------------------------------------


class Trained(MapClassifier):
    """One that does train, because the checks of scikit-learn bring rows of their own each time."""

    def fit(self, X: Any = None, y: Any = None) -> Trained:
        self.trained_ = clone(self.estimator).fit(X, y)
        return self

    def _fitted(self) -> Any:
        check_is_fitted(self, "trained_")
        return self.trained_

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "trained_")


CANNOT_APPLY: dict[str, str] = {}


@pytest.mark.parametrize("scores_from", ["predict_proba", "decision_function"])
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_checks_pass(scores_from: str) -> None:
    served = Trained(LogisticRegression(), TemperatureMap(2.0), scores_from=scores_from)
    results = check_estimator(served, on_fail=None, on_skip=None)
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert failed.keys() == CANNOT_APPLY.keys(), failed
    assert len(results) > 40
