"""What a source's owner allows."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from privcal.errors import InputError, Refused
from privcal.privacy.epsilon import from_nano, to_nano
from privcal.queries import FAMILY
from privcal.question import Question

MAX_ROWS_PER_PERSON = 1000
BUDGETS = ("population", "person")


@dataclass(frozen=True)
class Policy:
    """The owner's rules, as an object or a small TOML file with the same names.

    They are kept in the ledger. A policy that comes with a question can only narrow them.

    Attributes
    ----------
    epsilon
        All that may ever be spent, over all askers and campaigns: on this population, or on
        each person of it (see `budget`).
    epsilon_per_request
        The most one request may cost; by default the total.
    queries
        The kinds of query allowed; by default the whole family.
    rows_per_person
        Where person ids are given: how many rows of one person count. The noise grows with it.
    askers
        Who may ask; by default anyone who can reach the source.
    model
        The model these scores must come from; by default any.
    budget
        "population": one budget for everybody, used up for all alike. "person": the ledger
        accounts for each person, and whoever comes later has the whole budget; needs ids.
    minimum_epsilon
        The least one request may cost. Without one, a budget of 1 could be split into a thousand
        million requests, each a line of the ledger and all of them next to noise. At the default
        such a budget is a thousand requests, and a search of six questions can still be had for
        a total of 0.006.
    epsilon_by_asker
        For some askers, by name: all that they may ever spend, over all their campaigns. Whoever
        is not named has no limit but the total.
    requests_per_hour
        The most requests that are charged within an hour, over all askers; by default any number.
        Stored answers are given again without being counted.
    approve
        Whether nothing is answered before the owner has approved the campaign.
    """

    epsilon: float = 1.0
    epsilon_per_request: float | None = None
    queries: tuple[str, ...] | None = None
    rows_per_person: int = 1
    askers: tuple[str, ...] | None = None
    model: str | None = None
    budget: str = "population"
    minimum_epsilon: float = 0.001
    epsilon_by_asker: dict[str, float] | None = field(default=None, hash=False)
    requests_per_hour: int | None = None
    approve: bool = False

    def __post_init__(self) -> None:
        for name in ("epsilon", "epsilon_per_request", "minimum_epsilon"):
            value = getattr(self, name)
            if value is not None or name != "epsilon_per_request":
                object.__setattr__(self, name, from_nano(to_nano(value, f"policy {name}")))
        self._check_limits()
        for name in ("queries", "askers"):
            value = getattr(self, name)
            if value is not None:
                listed = isinstance(value, (list, tuple))
                if not listed or not all(isinstance(v, str) for v in value):
                    raise InputError(f"policy {name} must be a list of names, not {value!r}")
                object.__setattr__(self, name, tuple(value))
        unknown = set(self.queries or ()) - set(FAMILY)
        if unknown:
            raise InputError(
                f"policy queries: unknown kind {sorted(unknown)[0]!r}; the family is {', '.join(FAMILY)}"
            )
        rows = self.rows_per_person
        if (
            isinstance(rows, bool)
            or not isinstance(rows, int)
            or not 1 <= rows <= MAX_ROWS_PER_PERSON
        ):
            raise InputError(
                f"policy rows_per_person must be a whole number from 1 to {MAX_ROWS_PER_PERSON}, not {rows!r}"
            )
        if self.model is not None and (not isinstance(self.model, str) or not self.model):
            raise InputError(f"policy model must be a name, not {self.model!r}")
        if self.budget not in BUDGETS:
            raise InputError(f"policy budget must be population or person, not {self.budget!r}")

    def _check_limits(self) -> None:
        """Those of one asker, of an hour, of the owner's own approval."""
        table = self.epsilon_by_asker
        if table is not None:
            if not isinstance(table, dict) or not all(isinstance(who, str) for who in table):
                raise InputError(
                    f"policy epsilon_by_asker must be a table of askers' names, not {table!r}"
                )
            nano = {who: to_nano(e, f"policy epsilon_by_asker {who}") for who, e in table.items()}
            object.__setattr__(
                self, "epsilon_by_asker", {who: from_nano(n) for who, n in nano.items()}
            )
        rate = self.requests_per_hour
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int) or rate < 1):
            raise InputError(
                f"policy requests_per_hour must be a whole number of at least 1, not {rate!r}"
            )
        if not isinstance(self.approve, bool):
            raise InputError(f"policy approve must be true or false, not {self.approve!r}")

    @classmethod
    def load(cls, path: str | Path, over: Policy | None = None) -> Policy:
        """Read a policy from TOML; a name it does not know is an error, not a silence.

        What the file does not say is as in `over`, or the default.
        """
        try:
            table: dict[str, Any] = tomllib.loads(Path(path).read_text("utf-8"))
        except OSError as error:
            raise InputError(f"cannot read policy {path}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"policy {path} is not valid TOML: {error}") from None
        return cls.of(table, path, over)

    @classmethod
    def of(cls, table: dict[str, Any], where: str | Path, over: Policy | None = None) -> Policy:
        """From the settings in a table; `where` it stands is named in errors."""
        known = {f.name for f in fields(cls)}
        for name in table:
            if name not in known:
                raise InputError(
                    f"policy {where} has no setting {name!r}; there are {', '.join(sorted(known))}"
                )
        return replace(over or cls(), **table)

    def to_dict(self) -> dict[str, Any]:
        """As `of` reads it; what is not set is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def narrowed(self, other: Policy | None) -> Policy:
        """What both allow; the kind of budget is the owner's alone."""
        if other is None:
            return self
        if self.model and other.model and self.model != other.model:
            raise InputError(
                f"the owner's policy is for model {self.model!r}, this one for {other.model!r}"
            )
        return Policy(
            epsilon=min(self.epsilon, other.epsilon),
            epsilon_per_request=from_nano(min(self.nano_per_request, other.nano_per_request)),
            minimum_epsilon=max(self.minimum_epsilon, other.minimum_epsilon),
            epsilon_by_asker=_lower(self.epsilon_by_asker, other.epsilon_by_asker),
            requests_per_hour=_lesser(self.requests_per_hour, other.requests_per_hour),
            approve=self.approve or other.approve,
            queries=_both(self.queries, other.queries),
            rows_per_person=min(self.rows_per_person, other.rows_per_person),
            askers=_both(self.askers, other.askers),
            model=self.model or other.model,
            budget=self.budget,
        )

    @property
    def nano_total(self) -> int:
        return to_nano(self.epsilon)

    @property
    def nano_per_request(self) -> int:
        return (
            self.nano_total
            if self.epsilon_per_request is None
            else to_nano(self.epsilon_per_request)
        )

    @property
    def nano_minimum(self) -> int:
        return to_nano(self.minimum_epsilon)

    def nano_of(self, asker: str) -> int | None:
        """All that this asker may ever spend; None where the total is their only limit."""
        epsilon = (self.epsilon_by_asker or {}).get(asker)
        return None if epsilon is None else to_nano(epsilon)

    def check(self, question: Question, asker: str) -> None:
        """Raise Refused unless these rules allow the question. Rows play no part."""
        if self.askers is not None and asker not in self.askers:
            raise Refused("asker")
        if self.queries is not None and question.query.kind not in self.queries:
            raise Refused("query")
        if None not in (self.model, question.model) and question.model != self.model:
            raise Refused("model")
        if question.nano_epsilon > self.nano_per_request:
            raise Refused("over_request_limit")
        if question.nano_epsilon < self.nano_minimum:
            raise Refused("under_minimum")


def _lower(one: dict[str, float] | None, other: dict[str, float] | None) -> dict[str, float] | None:
    """The lower limit of each asker who has one in either table."""
    if one is None or other is None:
        return other if one is None else one
    return {
        who: min(table[who] for table in (one, other) if who in table) for who in {**one, **other}
    }


def _lesser(one: int | None, other: int | None) -> int | None:
    """The lesser of two limits; None is no limit."""
    return min((limit for limit in (one, other) if limit is not None), default=None)


def _both(one: tuple[str, ...] | None, other: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The names on both lists; no list is all names."""
    if one is None or other is None:
        return other if one is None else one
    return tuple(name for name in one if name in other)
