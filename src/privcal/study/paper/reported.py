"""The figures the paper reports, under our names."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from privcal.simulate.variants import ONE_SOURCE, ONE_SOURCE_ECE, UNCALIBRATED, Variant

ACC_T, NLL_T, ECE_T = Variant("acc-t"), Variant("nll-t"), Variant("ece-t")
ONE = Variant(ONE_SOURCE_ECE)
OUR_ONE = Variant(ONE_SOURCE)
"""The better fit of one source, by accuracy, which the paper does not have."""
NOTHING = Variant(UNCALIBRATED)
METHODS = (NOTHING, ONE, Variant("histogram-binning"), ECE_T, NLL_T, ACC_T)
"""The paper's methods, in the order of its Table 1."""
PRIVATE = METHODS[2:]
"""Those that ask the sources, and so pay for their answers with noise."""


@dataclass(frozen=True)
class Reported:
    """What the paper reports for one data set."""

    name: str
    classes: int
    rows: int
    """Of its test set."""
    grid: str
    """The name of its settings."""
    severity: int
    under_privacy: dict[Variant, dict[str, float]]
    """ECE by method, `median` and `mean`: its Table 1."""
    without_privacy: dict[str, dict[str, float]]
    """ECE by shift and exact fit."""
    accuracy: dict[str, float]
    """By shift."""


def reported(dataset: str) -> Reported | None:
    """What the paper has for a data set of this name, whatever the spelling; None: nothing.

    Whether a study is like the paper's is another question, for `privcal.study.paper.match`.
    """
    facts = _facts()
    spelt = _SPELT.match(dataset.strip().lower())
    if spelt is None:
        return None
    figures = facts["datasets"][re.sub(r"[^a-z0-9]", "", spelt[1])]
    under_privacy = {Variant(name): ece for name, ece in figures["under_privacy"].items()}
    return Reported(**{**figures, "severity": facts["severity"], "under_privacy": under_privacy})


# The name, a C for the perturbed version, and after the C what a file name may add. Nothing
# else: CIFAR-10.1, ImageNet-V2 and Tiny-ImageNet-C are other data sets.
_SPELT = re.compile(r"(cifar[-_ ]?100?|imagenet)(?:[-_ ]?c(?:[_ ,.(].*)?)?$")


def directions() -> dict[str, dict[str, str | None]]:
    """The paper's table of factors: what more of each does to calibration and to privacy."""
    factors: dict[str, dict[str, str | None]] = _facts()["factors"]
    return factors


@cache
def _facts() -> dict[str, Any]:
    text = (files("privcal.study.paper") / "paper.json").read_text(encoding="utf-8")
    facts: dict[str, Any] = json.loads(text)
    return facts
