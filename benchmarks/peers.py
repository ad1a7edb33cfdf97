"""Other libraries' temperature fits, each as a function from logits and labels to T."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator

import privcal
from benchmarks.data import Labels, Logits
from benchmarks.kernels import NAMES, kernels, using

Fitter = Callable[[Logits, Labels], float]


def privcal_fit(kernel: str, logits: Logits, labels: Labels) -> float:
    """With the checks at the door, as a user pays for them."""
    with using(kernel):
        scores = privcal.Scores(logits=logits, labels=labels)
        return privcal.fit_temperature(scores, "nll").temperature


class _Passthrough(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose features already are its logits."""

    def __init__(self, classes: int = 2) -> None:
        self.classes = classes
        self.classes_ = np.arange(classes)

    def fit(self, X: Any, y: Any) -> _Passthrough:
        return self

    def decision_function(self, X: Logits) -> Logits:
        return X

    def predict(self, X: Logits) -> Labels:
        return np.asarray(X.argmax(axis=1))


def sklearn_fit(logits: Logits, labels: Labels) -> float:
    estimator = FrozenEstimator(_Passthrough(logits.shape[1]))
    fitted = CalibratedClassifierCV(estimator, method="temperature").fit(logits, labels)
    # beta_ is documented as the inverse temperature.
    return 1.0 / float(fitted.calibrated_classifiers_[0].calibrators[0].beta_)


def torch_fit(logits: Logits, labels: Labels) -> float:
    """LBFGS in float32 with a line search and room to converge, unlike the popular recipe."""
    import torch

    x, y = torch.from_numpy(logits), torch.from_numpy(labels)
    log_temperature = torch.zeros((), requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [log_temperature],
        max_iter=200,
        tolerance_grad=1e-7,
        tolerance_change=1e-9,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Any:
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(x / log_temperature.exp(), y)
        loss.backward()
        return loss

    optimiser.step(closure)
    return float(log_temperature.exp())


def fitters() -> dict[str, Fitter]:
    """privcal with each kernel, the one in use first, then the others."""
    fits: dict[str, Fitter] = {
        f"privcal, {NAMES[kernel]}": partial(privcal_fit, kernel) for kernel in kernels()
    }
    fits["scikit-learn"] = sklearn_fit
    if find_spec("torch") is not None:
        fits["torch LBFGS"] = torch_fit
    return fits
