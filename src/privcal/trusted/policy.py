"""The policy: what a source's owner allows."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Annotated, Any

from privcal.trusted import records
from privcal.trusted.checks import known, one_of
from privcal.trusted.epsilon import MAX_ALONE, Cost, from_nano, to_nano
from privcal.trusted.errors import InputError, Refused
from privcal.trusted.queries import FAMILY
from privcal.trusted.question import Name, Question
from privcal.trusted.records import Between, By

MAX_ROWS_PER_PERSON = 1000
MAX_ROWS = 2**31 - 1
BUDGETS = ("population", "person")


def _epsilon(name: str, value: Any) -> float:
    return from_nano(to_nano(value, name))


def _in_family(name: str, kind: str) -> str:
    return known("kind of query", kind, FAMILY)


Kind = Annotated[str, _in_family]


def _of_budgets(name: str, kind: str) -> str:
    return one_of(name, kind, BUDGETS)


def _not_empty(name: str, value: str) -> str:
    if not value:
        raise InputError(f"{name} must be a name, not {value!r}")
    return value


Epsilon = Annotated[float, By(_epsilon)]


@dataclass(frozen=True)
class SecureRules:
    """What an owner wants to be so before answers go into secure sums (`[secure]` of a policy).

    Parameters
    ----------
    colluding
        How many hospitals of the roster may work with the asker and the carrier. A number, not a
        share of those asked: whoever asks chooses whom to ask, and would ask their friends. All
        hospitals whose keys one party holds count.
    roster
        The digest of the roster that the owner accepted; by default that of the roster at the site.
    min_honest
        The honest hospitals whose noise must at least be in anything that is opened.
    alone
        How many times ε all others together may at most learn, if more of them collude.
    epsilon_alone
        All that everybody else together may ever learn, over all askers and campaigns; by default
        `alone` times the policy's total.
    required
        Whether nothing leaves but in secure sums.

    Examples
    --------
    >>> Policy(epsilon=2.0, secure=SecureRules(colluding=10)).nano_total_alone
    20000000000
    """

    colluding: Annotated[int, Between(0)]
    roster: Name | None = None
    min_honest: Annotated[int, Between(1)] = 2
    alone: Annotated[int, Between(1, MAX_ALONE)] = 10
    epsilon_alone: Epsilon | None = None
    required: bool = False

    def __post_init__(self) -> None:
        records.check(self)

    def to_dict(self) -> dict[str, Any]:
        """The rules; what is not set is left out."""
        return records.facts(self, given=True)

    def narrowed(self, other: SecureRules | None) -> SecureRules:
        """The rules that allow what these and `other` both do."""
        if other is None:
            return self
        if None not in (self.roster, other.roster) and self.roster != other.roster:
            raise InputError("the owner's policy is for another roster than this one")
        limits = [e for e in (self.epsilon_alone, other.epsilon_alone) if e is not None]
        return SecureRules(
            max(self.colluding, other.colluding),
            self.roster or other.roster,
            max(self.min_honest, other.min_honest),
            min(self.alone, other.alone),
            min(limits, default=None),
            self.required or other.required,
        )


def strictest(rules: Iterable[SecureRules | None]) -> SecureRules | None:
    """What all of these owners want together, whatever their rosters; None where nobody says.

    >>> strictest([SecureRules(2, alone=5), None, SecureRules(3)])
    SecureRules(colluding=3, roster=None, min_honest=2, alone=5, epsilon_alone=None, required=False)
    """
    wanted = [replace(each, roster=None) for each in rules if each is not None]
    return reduce(SecureRules.narrowed, wanted) if wanted else None


@dataclass(frozen=True)
class Policy:
    """The owner's rules, as an object or a small TOML file with the same names.

    They are kept in the ledger. A policy given to `Source` can only narrow them.

    Parameters
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
        For some askers, by name: all that they may ever spend, over all their campaigns, and in
        secure sums the same part of `epsilon_alone`. Whoever is not named has no limit but the totals.
    requests_per_hour
        The most requests that are charged within an hour, over all askers; by default any number.
        Stored answers are given again without being counted.
    approve
        Whether nothing is answered before the owner has approved the campaign.
    rows
        About how many rows there are, if the owner wants to tell: whoever may ask is told, and can
        ask as finely as pays. It is the owner's word, never counted, and nothing is checked by it.
    secure
        What must be so before answers go into secure sums; without it none do at a site.

    Examples
    --------
    >>> policy = Policy(epsilon=2.0, queries=("gap",))
    >>> policy.narrowed(Policy(epsilon=0.5)).epsilon
    0.5
    >>> Policy(rows_per_person=0)
    Traceback (most recent call last):
    ...
    privcal.trusted.errors.InputError: rows_per_person must be a whole number from 1 to 1,000, not 0
    """

    epsilon: Epsilon = 1.0
    epsilon_per_request: Epsilon | None = None
    queries: tuple[Kind, ...] | None = None
    rows_per_person: Annotated[int, Between(1, MAX_ROWS_PER_PERSON)] = 1
    askers: tuple[str, ...] | None = None
    model: Annotated[str, _not_empty] | None = None
    budget: Annotated[str, _of_budgets] = "population"
    minimum_epsilon: Epsilon = 0.001
    epsilon_by_asker: dict[str, Epsilon] | None = field(default=None, hash=False)
    requests_per_hour: Annotated[int, Between(1)] | None = None
    approve: bool = False
    rows: Annotated[int, Between(1, MAX_ROWS)] | None = None
    secure: SecureRules | None = None

    def __post_init__(self) -> None:
        records.check(self)

    @classmethod
    def load(cls, path: str | Path, over: Policy | None = None) -> Policy:
        """Read a policy from the TOML file `path`; a setting that does not exist is an error, not a silence.

        Settings that are not in the file are as in `over`, or the default.
        """
        try:
            table = tomllib.loads(Path(path).read_text("utf-8"))
        except OSError as error:
            raise InputError(f"cannot read policy {path}: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"policy {path} is not valid TOML: {error}") from None
        return cls.of(table, path, over)

    @classmethod
    def of(cls, table: dict[str, Any], where: str | Path, over: Policy | None = None) -> Policy:
        """The policy with the settings in a table; `where` the table is, is named in errors."""
        set_before = {} if over is None else over.to_dict()
        return records.read(cls, {**set_before, **table}, f"policy {where}")

    def to_dict(self) -> dict[str, Any]:
        """The settings as `of` reads them; what is not set is left out."""
        return records.facts(self, given=True)

    def narrowed(self, other: Policy | None) -> Policy:
        """The policy that allows what this one and `other` both do.

        The kind of budget, and what is told of the rows, are the owner's alone.
        """
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
            rows=self.rows,
            secure=self._secure_with(other),
        )

    def _secure_with(self, other: Policy) -> SecureRules | None:
        """The rules of secure sums that both allow; what everybody else may learn never grows by it."""
        if self.secure is None and other.secure is None:
            return None
        rules = other.secure if self.secure is None else self.secure.narrowed(other.secure)
        assert rules is not None
        # An owner who says nothing of secure sums allows their total. Where one of two tells a
        # limit, the other's may still be the lower.
        if self.secure is None or (other.secure is not None and rules.epsilon_alone is not None):
            least = min(self.nano_total_alone, other.nano_total_alone)
            rules = replace(rules, epsilon_alone=from_nano(least))
        return rules

    @property
    def nano_total(self) -> int:
        """`epsilon` in nano-ε."""
        return to_nano(self.epsilon)

    @property
    def nano_total_alone(self) -> int:
        """Nano-ε that everybody else together may ever learn; the total where nothing is said of it."""
        if self.secure is None:
            return self.nano_total
        told = self.secure.epsilon_alone
        return self.secure.alone * self.nano_total if told is None else to_nano(told)

    @property
    def cap(self) -> Cost:
        """Both totals that may ever be spent."""
        return Cost(self.nano_total, self.nano_total_alone)

    @property
    def nano_per_request(self) -> int:
        """The most one question may cost, in nano-ε."""
        return to_nano(self.epsilon_per_request or self.epsilon)

    @property
    def nano_minimum(self) -> int:
        """The least one question may cost, in nano-ε."""
        return to_nano(self.minimum_epsilon)

    def nano_of(self, asker: str) -> int | None:
        """Nano-ε that this asker may ever spend; None where the total is their only limit."""
        epsilon = (self.epsilon_by_asker or {}).get(asker)
        return None if epsilon is None else to_nano(epsilon)

    def cap_of(self, asker: str) -> Cost | None:
        """The same of both totals: of the second as large a part as of the first.

        Or with a little ε an asker could use up the second, and with it everybody's budget.
        """
        nano = self.nano_of(asker)
        if nano is None:
            return None
        return Cost(nano, max(nano, nano * self.nano_total_alone // self.nano_total))

    def admits(self, asker: str) -> bool:
        """Whether `asker` may ask at all."""
        return self.askers is None or asker in self.askers

    def check(self, question: Question, asker: str, secure: bool = False) -> None:
        """Raise Refused unless these rules allow `asker` the question. Rows play no part.

        `secure` says that the answer goes into a secure sum; whether its terms are good is looked
        at elsewhere (`privcal.secure`).
        """
        if not self.admits(asker):
            raise Refused("asker")
        if not secure and self.secure is not None and self.secure.required:
            raise Refused("not_secure")
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
