"""Logits that come with the package."""

from __future__ import annotations

from importlib.resources import as_file, files

import numpy as np

from privcal.checks import known
from privcal.scores import Scores

CIFAR10C = "cifar10c_wrn28x10_severity5.npz"
"""Logits of one Wide ResNet-28-10 on the CIFAR-10 test images, clean and under 15 corruptions at
severity 5: `labels`, one (10000, 10) float16 array for each shift, and in `meta` how it was made
(by `privcal data`, from the images on)."""
NOT_SHIFTS = ("labels", "meta")


def shifts() -> list[str]:
    """Names of the shifts in the bundled archive; `clean` is the unperturbed one.

    >>> len(shifts()), shifts()[0]
    (16, 'clean')
    """
    with as_file(files(__package__) / CIFAR10C) as path, np.load(path) as archive:
        return [key for key in archive.files if key not in NOT_SHIFTS]


def cifar10c(shift: str) -> Scores:
    """The bundled CIFAR-10-C scores under one shift.

    Parameters
    ----------
    shift : str
        One of `shifts()`.

    Returns
    -------
    Scores
        Logits (10000, 10) of a Wide ResNet-28-10, with labels.

    >>> cifar10c("fog").outputs.rows
    10000
    """
    known("shift", shift, shifts())
    with as_file(files(__package__) / CIFAR10C) as path, np.load(path) as archive:
        return Scores(logits=archive[shift], labels=archive["labels"], model="wrn-28-10")
