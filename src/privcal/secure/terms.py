"""The terms of a secure sum: what is asked, of whom, and how many may work with the asker.

All that a site's promise rests on is in here, is signed by whoever asks, and is computed anew by
every site: two sites that understood a question differently would have different digests, and
nothing that one sealed could be opened by the other. Whom it is asked of are members of a roster.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

from privcal.secure import canonical
from privcal.trusted import records
from privcal.trusted.checks import whole
from privcal.trusted.epsilon import MAX_ALONE
from privcal.trusted.errors import InputError
from privcal.trusted.policy import MAX_ROWS_PER_PERSON
from privcal.trusted.question import Name, Question, read_question
from privcal.trusted.records import Between

# 192 bits. Nobody finds a second roster for a digest with 128; but whoever collects the cards may
# prepare two rosters with one digest, to show one to each half of the owners, and that takes only
# the root: 2⁹⁶ attempts here, 2⁶⁴ with 128 bits, which has been done. Twelve groups can be read
# over the phone in half a minute.
_GROUPS, _GROUP = 12, 4

_ROSTER = "privcal roster 2"


@dataclass(frozen=True)
class Member:
    """A site's public keys: for its signatures, and for what is sealed for it."""

    signing: str
    sealing: str


@dataclass(frozen=True)
class Members:
    """The sites of a roster, by name, and the roster's digest, which owners compare.

    Where there is no roster, as among sources in one process, it is the digest of names and keys.
    """

    by_name: Mapping[str, Member]
    digest: str = ""

    def __post_init__(self) -> None:
        if not self.digest:
            keys = [[name, m.signing, m.sealing] for name, m in sorted(self.by_name.items())]
            digest = digest_groups(canonical.write([_ROSTER, keys]))
            object.__setattr__(self, "digest", digest)

    def grouped(self, groups: int) -> dict[str, int]:
        """The group of every member, of `groups` that differ by one member at most.

        It goes by the whole roster and its digest: whoever asks chooses whom to ask, and neither
        who is in a group nor who is with whom.
        """

        def order(name: str) -> str:
            return hashlib.sha256(f"{self.digest}|{name}".encode()).hexdigest()

        ordered = sorted(self.by_name, key=order)
        return {name: place % groups for place, name in enumerate(ordered)}


def digest_groups(text: str) -> str:
    """A digest of a text, in twelve groups that owners read to each other."""
    digest = hashlib.sha256(text.encode("ascii")).hexdigest()
    starts = range(0, _GROUPS * _GROUP, _GROUP)
    return " ".join(digest[k : k + _GROUP] for k in starts)


VERSION = 1
"""The version of the protocol: of terms, boxes and noise."""

MAX_SITES = 1000
"""The most sites that are asked together."""

GROUPS = (1, 3, 5, 7, 9)
"""The numbers of groups that a secure sum may have: of an even number there is no middle one."""

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


def _groups(name: str, value: int) -> int:
    if value not in GROUPS:
        raise InputError(f"{name} must be one of {', '.join(map(str, GROUPS))}, not {value}")
    return value


Groups = Annotated[int, _groups]
Alone = Annotated[int, Between(1, MAX_ALONE)]
"""How many times ε a site's own noise lets others learn."""


def _sorted(name: str, sites: tuple[str, ...]) -> tuple[str, ...]:
    if "" in sites or list(sites) != sorted(set(sites)):
        raise InputError(f"{name} of a secure sum must be names, sorted, each once")
    return sites


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
        t: how many of them may work with the asker and the carrier.
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
    asker: Name
    sites: Annotated[tuple[str, ...], Between(FEWEST, MAX_SITES), _sorted]
    colluding: Annotated[int, Between(0)]
    needed: int
    alone: Alone
    rows_per_person: Annotated[int, Between(1, MAX_ROWS_PER_PERSON)]
    roster: Name
    groups: Groups = 1
    group: int = 0
    threshold: int = 0
    honest: int = 0
    version: int = VERSION

    def __post_init__(self) -> None:
        records.check(self)
        n, t = len(self.sites), self.colluding
        whole("colluding", t, 0, n - 2)
        least = threshold(n, t)
        whole("needed", self.needed, least, n)
        whole("group", self.group, 0, self.groups - 1)
        wanted = {"threshold": least, "honest": self.needed - t, "version": VERSION}
        for name, value in wanted.items():
            if getattr(self, name) == 0:
                object.__setattr__(self, name, value)
            if getattr(self, name) != value:
                raise InputError(f"{name} of this secure sum must be {value}")

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
        return canonical.write({**records.facts(self), "question": self.question.facts()})

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the one spelling: what boxes, signatures and openings name."""
        return hashlib.sha256(self.text.encode("ascii")).hexdigest()


def read_terms(text: Any, limit: int) -> Terms:
    """Terms from their one spelling; InputError for whatever else it is."""
    facts = canonical.read(text, limit)
    if not facts.get("threshold") or not facts.get("honest"):
        raise InputError("the terms of a secure sum must say the threshold")
    facts["question"] = read_question(facts.get("question"))
    terms = records.read(Terms, facts, "the terms of a secure sum", complete=True)
    if terms.text != text:
        raise InputError("the terms of a secure sum have one spelling")
    return terms
