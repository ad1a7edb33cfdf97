"""Which columns of a table are what: by their usual names, or as somebody says.

Only names are looked at, never a value. So what a table holds is decided by its header, and no row
can change it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from privcal.trusted.errors import InputError

Kind = Literal["logits", "probabilities"]
"""What outputs of all classes are; a confidence alone is not enough for a graph."""

PERSON = "person"
"""The usual name of the person ids; the only one that may be absent."""

SCORES = {"logit": "logits", "probability": "probabilities"}
"""How the names of columns with outputs begin, and what they hold."""

OHDSI = {"probability": "value", "label": "outcomeCount", "person": "subjectId"}
"""The prediction frame of OHDSI's PatientLevelPrediction; an outcome may be counted twice there."""

_ROLE = re.compile(r"label|person|confidence|correct|(?:logit|probability)(?:_.+)?")
KINDS: tuple[Kind, Kind] = ("logits", "probabilities")
ARRAYS = (*KINDS, "log_odds", "confidence")
"""What the outputs are called in an .npz file: as `Scores` does."""
TRUTHS = ("labels", "correct")


@dataclass(frozen=True)
class Layout:
    """What is said of some data beside their names: which column is what, and the classes in order."""

    columns: tuple[tuple[str, str], ...] = ()
    """Pairs of what a column is, such as label, and what it is called."""
    class_names: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        columns: Mapping[str, str] | Layout | None = None,
        class_names: Sequence[str] | None = None,
    ) -> Layout:
        """The layout that was said; one that is there already stays as it is."""
        if isinstance(columns, Layout):
            return columns
        if isinstance(class_names, str):
            raise InputError(f"class_names must be a list of names, not {class_names!r} alone")
        pairs = tuple(sorted((columns or {}).items()))
        taken = [column for _, column in pairs]
        for role, column in pairs:
            if not (_ROLE.fullmatch(role) or role in (*ARRAYS, *TRUTHS, PERSON)):
                raise InputError(
                    f"{role!r} is nothing that a column can be: say label, person, probability, "
                    "probability_0, …, logit, logit_0, …, or confidence and correct, as in "
                    "label=outcome"
                )
            if taken.count(column) > 1:
                raise InputError(f"column {column} cannot be two things at once")
        return cls(pairs, tuple(class_names or ()))

    def __bool__(self) -> bool:
        return bool(self.columns or self.class_names)

    def __str__(self) -> str:
        said = [f"{role}={column}" for role, column in self.columns]
        classes = [f"classes {','.join(self.class_names)}"] if self.class_names else []
        return " ".join([",".join(said), *classes]).strip()

    def note(self) -> dict[str, Any]:
        """As a ledger keeps it."""
        return {"columns": dict(self.columns), "class_names": list(self.class_names)}

    def without_person(self, person: str | None) -> tuple[Layout, str | None]:
        """The same but for the person ids, and the column of these."""
        said = dict(self.columns)
        column = said.pop("person", None)
        if column is None:
            return self, person
        if person not in (None, PERSON, column):
            raise InputError(f"the person ids are said to be in {column} and in {person}")
        return Layout(tuple(sorted(said.items())), self.class_names), column

    def array(self, name: str) -> str:
        """What the array `name` is called in an .npz file."""
        return dict(self.columns).get(name, name)


AS_NAMED = Layout()
"""Nothing is said: names tell."""


@dataclass(frozen=True)
class Roles:
    """What the columns of one table are."""

    kind: str
    """What `Scores` calls it: logits, probabilities, log_odds or confidence."""
    scores: list[str]
    label: str | None
    """The column of the labels or, beside a confidence, of what is correct."""
    person: str | None
    class_names: tuple[str, ...] | None
    counts: bool = False
    """Whether the label is a count of events, of which one is enough."""

    @property
    def used(self) -> Iterator[str]:
        yield from self.scores
        yield from (name for name in (self.label, self.person) if name is not None)

    @property
    def truth(self) -> str:
        """What `Scores` calls the label."""
        return "correct" if self.kind == "confidence" else "labels"


def find_roles(
    where: str, names: Sequence[str], layout: Layout, person: str | None, *, labelled: bool
) -> Roles:
    """What the columns called so are; an InputError that names `where` if that cannot be told."""
    said = dict(layout.columns)
    for role, column in said.items():
        if column not in names:
            raise InputError(f"{where} has no column {column} ({role}); it has {', '.join(names)}")
        if not _ROLE.fullmatch(role):
            raise InputError(f"{where} is a table: say label, logit_0, …, not {role}")
    present = {name: name for name in names if name not in said.values()}
    counts = False
    if any(map(holds_scores, said)):
        present = {role: column for role, column in present.items() if not holds_scores(role)}
    elif set(OHDSI.values()) <= set(names) and not any(map(holds_scores, present)):
        # All three names: unmistakable. A label of the same table would be another thing.
        said = {**OHDSI, **said}
        counts = said["label"] == OHDSI["label"]
        person = said["person"] if person == PERSON else person
    present |= said
    kind, scores, class_names = _scores(where, present, names, layout.class_names)
    truth = "correct" if kind == "confidence" else "label"
    if labelled and truth not in present:
        raise InputError(f"{where} has no column {truth}; --columns {truth}=NAME says which it is")
    label = present.get(truth)
    taken = [*scores, *([] if label is None else [label])]
    if person in taken:
        raise InputError(f"{where}: {person} holds labels or scores, not person ids")
    if person not in (None, PERSON, *names):
        raise InputError(f"{where} has no column {person}; it has {', '.join(names)}")
    person = person if person in names else None
    return Roles(kind, scores, label, person, class_names, counts)


def find_arrays(
    where: str, names: Sequence[str], layout: Layout, *, labelled: bool
) -> dict[str, str]:
    """What the outputs, and the labels, are called in a file of arrays, by what they are: outputs first."""
    for role, called in layout.columns:
        if role not in (*ARRAYS, *TRUTHS) or called not in names:
            raise InputError(
                f"{where} has no array {called} ({role}); it has {', '.join(names) or 'none'}"
            )
    said = [role for role, _ in layout.columns if role in ARRAYS]
    known = (*(said or ARRAYS), *TRUTHS)
    found = {role: layout.array(role) for role in known if layout.array(role) in names}
    if set(KINDS) & set(found):
        found.pop("confidence", None)  # beside the outputs of all classes it is one more array
    truth, other = TRUTHS[:: -1 if "confidence" in found else 1]
    found.pop(other, None)
    if len(set(ARRAYS) & set(found)) != 1:
        raise InputError(
            f"{where} must hold either logits or probabilities, or confidence and correct; it holds "
            f"{', '.join(names) or 'nothing'}"
        )
    if labelled and truth not in found:
        raise InputError(f"{where} holds no {truth}")
    return found


def holds_scores(role: str) -> bool:
    return role == "confidence" or role.partition("_")[0] in SCORES


def _scores(
    where: str, present: Mapping[str, str], names: Sequence[str], class_names: tuple[str, ...]
) -> tuple[str, list[str], tuple[str, ...] | None]:
    """What the outputs are, their columns in the order of the classes, and the classes' names."""
    found = {}
    for prefix, kind in SCORES.items():
        several = _numbered(where, prefix, present)
        if not several:
            several = _named(prefix, present)
            several = [] if prefix in present and len(several) == 1 else several
        if prefix in present:
            several = [prefix, *several]
        if several:
            found[prefix] = kind, several
    if not found and "confidence" in present:
        return "confidence", [present["confidence"]], None
    single = [prefix for prefix, (_, several) in found.items() if prefix in several]
    if len(found) != 1 or (single and len(found[single[0]][1]) > 1):
        raise InputError(
            f"{where} must have either columns logit_0, logit_1, … or probability_0, … or one "
            "probability or logit, or confidence and correct (--columns says which they are); it has "
            f"{', '.join(names)}; if these are features, run privcal score MODEL.onnx TABLE first "
            "(docs/scoring.md)"
        )
    [(prefix, (kind, roles))] = found.items()
    given = class_names or None
    if single:
        return kind if prefix == "probability" else "log_odds", [present[prefix]], given
    if len(roles) == 1:
        raise InputError(f"{where} has only {roles[0]}; a single column must be called {prefix}")
    if not re.fullmatch(rf"{prefix}_\d+", roles[0]):
        roles, given = _by_name(where, prefix, roles, class_names)
    return kind, [present[role] for role in roles], given


def _numbered(where: str, prefix: str, present: Mapping[str, str]) -> list[str]:
    roles = [role for role in present if re.fullmatch(rf"{prefix}_\d+", role)]
    roles.sort(key=lambda role: int(role.rpartition("_")[2]))
    if len(roles) > 1:
        for index, role in enumerate(roles):
            if int(role.rpartition("_")[2]) != index:
                raise InputError(f"{where} has {role} but no {prefix}_{index}")
    return roles


def _named(prefix: str, present: Mapping[str, str]) -> list[str]:
    return [role for role in present if role.startswith(f"{prefix}_")]


def _by_name(
    where: str, prefix: str, roles: list[str], class_names: tuple[str, ...]
) -> tuple[list[str], tuple[str, ...]]:
    """Columns that are called after classes: in their own order, unless the classes are listed."""
    if not class_names:
        return roles, tuple(role.removeprefix(f"{prefix}_") for role in roles)
    wanted = [f"{prefix}_{name}" for name in class_names]
    for role in {*wanted} ^ {*roles}:
        what = "no column" if role in wanted else "a column of another class than those listed,"
        raise InputError(f"{where} has {what} {role}; it has {', '.join(roles)}")
    return wanted, class_names


def listed(names: Sequence[str]) -> str:
    """The names of classes in a sentence: ten of them at most."""
    return ", ".join(names[:10]) + ", …" * (len(names) > 10)
