"""A fitted estimator and a map are a classifier of scikit-learn. Needs the extra `sklearn`."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from privcal.calibration.maps import Map, RiskMap, load_map
from privcal.data.wording import other_classes
from privcal.trusted.checks import one_of
from privcal.trusted.errors import InputError

__all__ = ["MapClassifier"]

SCORES = ("predict_proba", "decision_function")


class MapClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A fitted classifier with a calibration map behind it.

    The estimator is used as it is: `fit` never trains it, and it need not be called. Where the estimator
    is fitted, so is this; `sklearn.base.clone` keeps it fitted, as it does a `FrozenEstimator`.

    Scores reach the map as what they are, never guessed: values of `predict_proba` as probabilities,
    those of `decision_function` as logits (of two classes, as the log-odds of the second). Which were
    used is in `scores_from_`. A map belongs to the scores that it was made from.

    Parameters
    ----------
    estimator
        A fitted classifier, or a pipeline that ends in one.
    map
        A `privcal.Map`, or the path of its file.
    scores_from
        `predict_proba` or `decision_function`; with `auto`, `predict_proba` where the estimator has
        it, because decision values are logits of some classifiers only.

    Attributes
    ----------
    classes_
        The estimator's.
    scores_from_
        The method whose values the map is given.
    temperature_
        The map's temperature, where that is all there is to it.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from privcal.sklearn import MapClassifier
    >>> x, y = [[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "yes"]
    >>> model = LogisticRegression().fit(x, y)
    >>> calibrated = MapClassifier(model, privcal.TemperatureMap(2.0))
    >>> model.predict_proba([[3.0]]).round(3).tolist()
    [[0.192, 0.808]]
    >>> calibrated.predict_proba([[3.0]]).round(3).tolist()
    [[0.328, 0.672]]
    >>> calibrated.predict([[3.0]]).tolist(), calibrated.scores_from_
    (['yes'], 'predict_proba')
    """

    def __init__(
        self,
        estimator: Any,
        map: Any,
        *,
        scores_from: Literal["auto", "predict_proba", "decision_function"] = "auto",
    ) -> None:
        self.estimator = estimator
        self.map = map
        self.scores_from = scores_from

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Check that the parts fit together; nothing is trained, and `X` and `y` are not looked at.

        A map is of one fitted model. An estimator that was trained again would be another model, which
        the map is not of: train the estimator, calibrate it anew, and make another of these.
        """
        self._map()
        _ = self.scores_from_, self.classes_
        return self

    def predict_proba(self, X: Any) -> Any:
        """Calibrated probabilities (n, m) of all classes; see `privcal.Map.predict_proba`."""
        return self._map().predict_proba(**self._scores(X))

    def predict(self, X: Any) -> Any:
        """The predicted class of each row: the estimator's own, or the one that a risk makes likeliest."""
        return self.classes_[self._map().predict(**self._scores(X))]

    def confidence(self, X: Any) -> Any:
        """The calibrated probability (n,) that the predicted class of each row is right."""
        return self._map().confidence(**self._scores(X))

    def risk(self, X: Any) -> Any:
        """The calibrated probability (n,) of the class that a map of a risk is of."""
        map = self._map()
        if not isinstance(map, RiskMap):
            raise InputError(f"{map.describe()} is not of a risk")
        return map.risk(**self._scores(X))

    @property
    def classes_(self) -> Any:
        return self._fitted().classes_

    @property
    def n_features_in_(self) -> int:
        return int(self._of_estimator("n_features_in_"))

    @property
    def feature_names_in_(self) -> Any:
        return self._of_estimator("feature_names_in_")

    @property
    def scores_from_(self) -> str:
        estimator = self._fitted()
        one_of("scores_from", self.scores_from, ("auto", *SCORES))
        wanted = SCORES if self.scores_from == "auto" else (self.scores_from,)
        for name in wanted:
            if hasattr(estimator, name):
                return name
        raise InputError(
            f"{type(estimator).__name__} has no {' and no '.join(wanted)}: there is nothing to "
            "calibrate"
        )

    @property
    def temperature_(self) -> float:
        map = self._map()
        if map.kind != "temperature":
            raise AttributeError(f"{map.describe()} is no temperature alone")
        return float(map.temperature)  # type: ignore[attr-defined]

    def set_output(self, *, transform: Any = None) -> Self:
        """Pass the choice of containers on to the estimator, a pipeline say; returns itself."""
        if hasattr(self.estimator, "set_output"):
            self.estimator.set_output(transform=transform)
        return self

    def __sklearn_clone__(self) -> Self:
        return type(self)(**self.get_params(deep=False))

    def __sklearn_is_fitted__(self) -> bool:
        try:
            self._fitted()
        except NotFittedError:
            return False
        return True

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import get_tags

        tags = super().__sklearn_tags__()
        try:
            inner = get_tags(self.estimator)
        except Exception:  # whatever is no estimator is told so where it is used
            return tags
        tags.input_tags = inner.input_tags
        tags.classifier_tags = inner.classifier_tags or tags.classifier_tags
        return tags

    def _of_estimator(self, name: str) -> Any:
        try:
            return getattr(self._fitted(), name)
        except NotFittedError as error:
            raise AttributeError(str(error)) from None

    def _map(self) -> Map:
        map = self.map if isinstance(self.map, Map) else load_map(self.map)
        if map.classes not in (None, len(self.classes_)):
            raise InputError(
                f"this map is of a model with {map.classes} classes, and "
                f"{type(self.estimator).__name__} has {len(self.classes_)}: it is another model"
            )
        ours, theirs = map.class_names, [str(name) for name in self.classes_]
        named = all(isinstance(name, str) for name in self.classes_)  # numbers may be places
        if ours and named and list(ours) != theirs:
            raise other_classes("this map", ours, type(self.estimator).__name__, theirs)
        return map

    def _fitted(self) -> Any:
        """The estimator whose scores are calibrated."""
        check_is_fitted(self.estimator)
        return self.estimator

    def _scores(self, X: Any) -> dict[str, Any]:
        """What the estimator says of rows, under the name of what it is."""
        name = self.scores_from_
        values = np.asarray(getattr(self._fitted(), name)(X))
        if name == "predict_proba":
            return {"probabilities": values}
        if values.ndim == 1:
            values = np.stack([np.zeros_like(values), values], axis=1)
        if values.shape[1] != len(self.classes_):
            raise InputError(
                f"decision_function of {type(self.estimator).__name__} gives {values.shape[1]} values "
                f"for {len(self.classes_)} classes, one for each pair of them; use "
                "scores_from='predict_proba'"
            )
        return {"logits": values}
