"""How a table goes through a model: what an owner says once, for a command or for a site."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privcal.checks import one_of
from privcal.errors import InputError
from privcal.scoring.model import Model

if TYPE_CHECKING:
    from privcal.onnx.outputs import Kind


@dataclass(frozen=True)
class Setup:
    """How a table goes through a model.

    Parameters
    ----------
    label
        The column (in an npz: the array) of the true classes.
    person
        That of person ids, if there is one.
    features
        For a model that takes all its numbers as one matrix: their columns, in order.
    classes
        The names of the classes, where the model has none or the labels have others.
    output, kind
        Which output of the model holds the scores, and whether logits or probabilities, where the
        file leaves it open.
    missing
        Whether blank cells go to the model, as NaN or empty text: for one that knows what to do.
    """

    label: str
    person: str | None = None
    features: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    output: str | None = None
    kind: Kind | None = None
    missing: bool = False

    def open(self, path: str | Path) -> Model:
        """The model in a file, as this setup reads it."""
        return Model(path, output=self.output, kind=self.kind, classes=self.classes)

    def to_dict(self) -> dict[str, Any]:
        """As settings have it; what is not said is left out, and so is the person, who is the ledger's."""
        facts = {
            "label": self.label,
            "features": None if self.features is None else list(self.features),
            "classes": None if self.classes is None else list(self.classes),
            "output": self.output,
            "as": self.kind,
            "allow_missing": self.missing or None,
        }
        return {name: value for name, value in facts.items() if value is not None}

    @classmethod
    def of(cls, facts: dict[str, Any], where: str) -> Setup:
        """The setup that `to_dict` wrote; `where` is named in errors."""
        known = ("label", "features", "classes", "output", "as", "allow_missing")
        for name, value in facts.items():
            if name not in known:
                raise InputError(f"{where}: scoring has no {name!r}; it has {', '.join(known)}")
            if name in ("features", "classes"):
                good = isinstance(value, list) and all(isinstance(v, str) for v in value)
            else:
                good = isinstance(value, bool if name == "allow_missing" else str)
            if not good:
                raise InputError(f"{where}: scoring {name} cannot be {value!r}")
        if "label" not in facts:
            raise InputError(f"{where}: scoring needs the column of the labels")
        features, classes = (
            tuple(facts[name]) if name in facts else None for name in ("features", "classes")
        )
        kind: Any = facts.get("as")
        if kind is not None:
            one_of(f"{where}: scoring as", kind, ("logits", "probabilities"))
        return cls(
            facts["label"],
            features=features,
            classes=classes,
            output=facts.get("output"),
            kind=kind,
            missing=facts.get("allow_missing", False),
        )
