"""The terms of a secure sum: what is asked, of whom, and how many may work with the asker.

All that a site's promise rests on is in here, is signed by whoever asks, and is computed anew by
every site: two sites that understood a question differently would have different digests, and
nothing that one sealed could be opened by the other.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from privcal.checks import whole
from privcal.crypto import canonical
from privcal.errors import InputError
from privcal.privacy.laws import GROUPS, MAX_ALONE, NoiseLaw
from privcal.privacy.policy import MAX_ROWS_PER_PERSON
from privcal.question import Question, check_asker, check_name, read_question

VERSION = 1
"""The version of the protocol: of terms, boxes and noise."""

MAX_SITES = 1000
"""The most sites that are asked together."""

FEWEST = 3
"""The fewest."""


def threshold(sites: int, colluding: int) -> int:
    """The least T with 3(T − t) > 2(n − t): how many sums open a total of n sites, t colluding.

    >>> [threshold(n, t) for n, t in [(3, 1), (8, 2), (50, 10), (300, 60)]]
    [3, 7, 37, 221]
    """
    return colluding + 2 * (sites - colluding) // 3 + 1


def usual_colluding(sites: int) -> int:
    """A fifth of them: how many hospitals may work with the asker, where nobody says."""
    return -(-sites // 5)


def usual_needed(sites: int, colluding: int) -> int:
    """How many answers are waited for, where nobody says: a tenth may fail, as the threshold lets."""
    return max(threshold(sites, colluding), sites - max(1, sites // 10))


@dataclass(frozen=True)
class Terms:
    """What a secure sum is about, and what it promises.

    question
        What is asked.
    asker
        Who asks: what is opened for one asker is never opened for another.
    sites
        Who is asked, sorted. The place in it, from 1, is the point at which a site's share is taken.
    colluding
        t: how many of them may work with the asker and the server.
    needed
        m: how many must have answered before anything is opened.
    alone
        Each site's own noise is that of so many times the ε.
    rows_per_person
        The rows of one person that the noise covers; a site where more count refuses.
    roster
        The digest of the roster that names and keys are from.
    groups, group
        Where the sites are summed in groups: how many there are, and which this is, from 0.
    threshold, honest
        T and h = m − t, as every site computes them too.
    """

    question: Question
    asker: str
    sites: tuple[str, ...]
    colluding: int
    needed: int
    alone: int
    rows_per_person: int
    roster: str
    groups: int = 1
    group: int = 0
    threshold: int = 0
    honest: int = 0
    version: int = VERSION

    def __post_init__(self) -> None:
        check_asker(self.asker)
        check_name("the roster's digest", self.roster)
        if not isinstance(self.question, Question):
            raise InputError("a secure sum is about a question")
        if not all(isinstance(name, str) and name for name in self.sites):
            raise InputError("the sites of a secure sum must be names")
        if list(self.sites) != sorted(set(self.sites)):
            raise InputError("the sites of a secure sum must be sorted, each once")
        n = whole("sites of a secure sum", len(self.sites), FEWEST, MAX_SITES)
        t = whole("colluding", self.colluding, 0, n - 2)
        least = threshold(n, t)
        whole("needed", self.needed, least, n)
        whole("alone", self.alone, 1, MAX_ALONE)
        whole("rows_per_person", self.rows_per_person, 1, MAX_ROWS_PER_PERSON)
        if type(self.groups) is not int or self.groups not in GROUPS:
            raise InputError(f"groups must be one of {', '.join(map(str, GROUPS))}")
        whole("group", self.group, 0, self.groups - 1)
        for name, value in (
            ("threshold", least),
            ("honest", self.needed - t),
            ("version", VERSION),
        ):
            if getattr(self, name) in (0, None):
                object.__setattr__(self, name, value)
            if type(getattr(self, name)) is not int or getattr(self, name) != value:
                raise InputError(f"{name} of this secure sum must be {value}")

    @property
    def noise(self) -> NoiseLaw:
        """The law of the noise in the average."""
        return NoiseLaw(self.rows_per_person, self.honest, self.alone, self.groups)

    @property
    def sensitivity(self) -> int:
        """The most that one person can change a site's sums, in L1 and grid points."""
        return self.rows_per_person * self.question.query.bound

    @property
    def nano_alone(self) -> int:
        """What the question costs against everybody else together, in nano-ε."""
        return self.alone * self.question.nano_epsilon

    def about(self, question: Question) -> Terms:
        """The same terms for another question."""
        return replace(self, question=question)

    def point(self, site: str) -> int:
        """The point at which a site's share is taken."""
        return self.sites.index(site) + 1

    @cached_property
    def text(self) -> str:
        """Their one spelling."""
        facts = {f.name: getattr(self, f.name) for f in fields(self)}
        return canonical.write({**facts, "question": self.question.facts()})

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the one spelling: what boxes, signatures and openings name."""
        return hashlib.sha256(self.text.encode("ascii")).hexdigest()


def read_terms(text: Any, limit: int) -> Terms:
    """Terms from their one spelling; InputError for whatever else it is."""
    facts = canonical.read(text, limit)
    if set(facts) != {f.name for f in fields(Terms)}:
        raise InputError("the terms of a secure sum have other parts")
    if not isinstance(facts["sites"], list) or len(facts["sites"]) > MAX_SITES:
        raise InputError("the sites of a secure sum must be a list, and not too long")
    if not facts["threshold"] or not facts["honest"]:
        raise InputError("the terms of a secure sum must say the threshold")
    question = read_question(facts["question"])
    terms = Terms(**{**facts, "question": question, "sites": tuple(facts["sites"])})
    if terms.text != text:
        raise InputError("the terms of a secure sum have one spelling")
    return terms
