"""What a probability is of: trust in the predicted class, or the risk of one class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from privcal.data.scores import Scores
from privcal.data.wording import name_of
from privcal.trusted.scores import BoolArray


@dataclass(frozen=True)
class Target:
    """What a curve predicts, a sketch asks about, and a diagram compares with what came true.

    >>> str(Target()), str(Target(1, "ill"))
    ('being right', 'the risk of class ill')
    """

    event: int | None = None
    """The class whose risk it is, counted from 0; None: whether the predicted class is right."""
    event_name: str = field(default="", compare=False)
    """What that class is called: its number, where classes have no names."""

    @classmethod
    def of(cls, event: int | None, names: Sequence[str] | None = None) -> Target:
        """The target that an `event` says, by the names of all classes where there are some."""
        return cls() if event is None else cls(event, name_of(event, names))

    def outcome(self, scores: Scores) -> BoolArray:
        """Whether it came true, for each row."""
        return scores.correct if self.event is None else scores.labels == self.event

    # --- in words ------------------------------------------------------------------------

    def __str__(self) -> str:
        return "being right" if self.event is None else f"the risk{self.of_class}"

    @property
    def of_class(self) -> str:
        """Behind the name of anything that is about one class; empty for being right."""
        return "" if self.event is None else f" of class {self.event_name}"

    @property
    def claim(self) -> str:
        """What a model's own probability of it is called."""
        return "confidence" if self.event is None else "risk"

    @property
    def observed(self) -> str:
        """What the share of rows is called for which it came true."""
        return "accuracy" if self.event is None else f"how often it was class {self.event_name}"

    @property
    def curve(self) -> str:
        """The one against the other, in a word."""
        return "reliability" if self.event is None else "risk"

    @property
    def diagram(self) -> str:
        """What the picture of that is called."""
        return "reliability diagram" if self.event is None else "calibration curve"
