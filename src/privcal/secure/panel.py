"""Sources that answer together: whoever asks gets their total, and no part of it.

`Way` is how the messages of a secure sum get to the sites, `SecurePanel` what is done with them: it
settles the terms, has every question summed (`privcal.secure.summing`), and asks the next one of
exactly those whose answers are in the first total, because averages over different sources must
not be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from privcal.data.panels import away_from, own_ledgers
from privcal.data.wording import plural
from privcal.secure.round import NoiseLaw, Part, Round, Total
from privcal.secure.summing import (
    FINAL,
    SHARE,
    Decided,
    Memory,
    Record,
    Step,
    Summed,
    Tell,
    Unfinished,
    Way,
    because,
    beyond,
    sum_of,
    tell_left,
)
from privcal.secure.terms import (
    FEWEST,
    Alone,
    Groups,
    Terms,
    threshold,
    usual_colluding,
    usual_needed,
)
from privcal.trusted import records
from privcal.trusted.errors import InputError
from privcal.trusted.policy import SecureRules
from privcal.trusted.queries import GRID
from privcal.trusted.question import Question
from privcal.trusted.records import Between

USUAL_ALONE = 10
"""How many times ε all others together may learn, where nobody says."""

FEWEST_GROUPED = 60
"""The fewest sites that are summed in groups: fewer leave too little noise to hide in."""


@dataclass(frozen=True)
class Secure:
    """What may be said of a secure sum; what is not said is as the sites' owners want it.

    Parameters
    ----------
    colluding
        How many of the sites may work with the asker and the carrier: by default what the owners'
        policies say, or a fifth of the sites.
    needed
        How many sites must have answered before anything is opened (in each group, where there are
        several). More of them mean less noise, and fewer that may fail. By default nine tenths.
    alone
        How many times ε all others together could learn at most, if more collude; each site adds
        noise of its own for that. By default 10, or less where a policy wants less.
    groups
        In how many groups the sites are summed; the average is then the median of the groups', so
        that a liar spoils one of them alone. From 60 sites on.

    Examples
    --------
    >>> Secure(colluding=5, groups=2)
    Traceback (most recent call last):
    ...
    privcal.trusted.errors.InputError: groups must be one of 1, 3, 5, 7, 9, not 2
    """

    colluding: Annotated[int, Between(0)] | None = None
    needed: Annotated[int, Between(1)] | None = None
    alone: Alone | None = None
    groups: Groups = 1

    def __post_init__(self) -> None:
        records.check(self)


class SecurePanel:
    """Sites that answer together, over some way to them.

    Parameters
    ----------
    way
        How their messages get there.
    options
        What is said of the sums.
    record
        What was asked and opened before; by default nothing, and nothing is kept.
    """

    def __init__(
        self, way: Way, options: Secure | None = None, record: Record | None = None
    ) -> None:
        self._way, self._record = way, record or Memory()
        self._decided = self._record.begun(
            lambda: _decided(
                options or Secure(),
                tuple(way.names),
                way.rows_per_source,
                way.rows_per_person,
                way.rules,
            )
        )
        self.names: Sequence[str] = self._decided.names
        self.asker = way.asker
        self.rows_per_person = self._decided.rows_per_person
        self.sources = len(self.names)
        self.rows_per_source = self._decided.rows_per_source
        self.model: str | None = getattr(way, "model", None)
        self.away = away_from(way)
        self.colluding, self.alone = self._decided.colluding, self._decided.alone
        self.compared = False
        self.noise = self._law(map(self._needed, map(len, self._grouped(self.names))))
        """The law of the noise that is to be expected in the averages."""
        self._planned: Sequence[Question] = ()
        self._sets: list[tuple[str, ...]] = []  # whose answers are in the totals, by group

    @property
    def schema(self) -> dict[str, Any]:
        """What the sources' scores are, where that is known."""
        return getattr(self._way, "schema", {})

    def refusals(self, questions: Sequence[Question]) -> dict[str, str]:
        """The sites that will not take part, and why; the others reserve what it all costs.

        Terms name everybody who is asked. So whoever would refuse is left out of them, and the
        others are offered the new ones, until all who are in them agree.
        """
        if not questions:
            return {}
        self._planned = questions
        if began := self._record.terms(questions[0]):
            for terms in began:
                self._way.offer(terms, questions)  # whoever is willing reserves what it costs
            asked = {
                name for terms in began for name in terms.sites
            }  # or the terms would be others
            then = self._record.refused()
            return {n: then.get(n, "unavailable") for n in self.names if n not in asked}
        refused: dict[str, str] = {}
        while willing := [name for name in self.names if name not in refused]:
            new: dict[str, str] = {}
            try:
                all_terms = self._terms(self._grouped(willing), questions[0])
            except InputError as error:
                why = because(refused)
                raise Unfinished(
                    f"{error}{why}; nobody was asked and nothing charged", True, refused
                ) from None
            for terms in all_terms:
                new |= self._way.offer(terms, questions)
            if new.keys() <= refused.keys():
                break
            refused |= new
        self._record.refuses(refused)
        return refused

    def release(self) -> None:
        if self._planned:
            self._way.release(self._planned[0].campaign)

    def facts(self, law: NoiseLaw) -> dict[str, Any]:
        """What a map tells of the secure sums that it comes of; `law` is that of their noise."""
        return {
            "aggregation": "secure",
            "colluding": self.colluding,
            "honest": law.honest,
            "alone": law.alone,
            "groups": law.groups if law.groups > 1 else None,
        }

    def ask(
        self, names: Sequence[str], question: Question, tell: Tell = lambda step: None
    ) -> Round:
        """The total of these sites' answers; `tell` hears of every reply.

        The first question may go on without some of them. Every later one is about exactly those
        in the first total, or ends before anybody is charged for it.

        Raises
        ------
        Unfinished
            Where there is no total: too few answered, what they gave does not fit, or no honest
            sources of so many rows have it.
        """
        if known := self._record.total(question):
            total, left = known
            for name in total.sources:
                tell(Step(SHARE, name, self.sources, self.sources, charged=True))
            tell_left(left, self.sources, tell)
        else:
            all_terms = self._record.terms(question) or self._settled(names, question)
            self._record.asks(all_terms)
            summed = [sum_of(self._way, terms, self._record, tell) for terms in all_terms]
            self._check(all_terms, summed)
            total = Total(
                question,
                tuple(Part(s.names, tuple(v / GRID for v in s.values)) for s in summed),
                self._law(terms.needed for terms in all_terms),
                own_ledgers({name: id for s in summed for name, id in s.ledgers.items()}),
                tuple(sorted(name for s in summed for name in s.left_out)),
            )
            self._record.keeps(total, {n: why for s in summed for n, why in s.left.items()})
        self._sets = [part.sources for part in total.parts]
        return Round.of(total)

    def _settled(self, names: Sequence[str], question: Question) -> list[Terms]:
        """The terms of a question that was not asked yet; for all but the first, everybody agrees."""
        if not self._sets:
            return self._terms(self._grouped(names), question)
        all_terms = self._terms(self._sets, question, everybody=True)
        for terms in all_terms:
            refused = self._way.offer(terms, self._planned)
            if refused:
                name, code = next(iter(refused.items()))
                raise Unfinished(
                    f"all {len(terms.sites)} sources of the first total are needed for the next "
                    f"question too, and {name} does not take part ({code}); nobody was asked it",
                    again=True,
                    left=refused,
                )
        return all_terms

    def _terms(
        self, groups: Sequence[Sequence[str]], question: Question, everybody: bool = False
    ) -> list[Terms]:
        return [
            Terms(
                question,
                self.asker,
                tuple(sorted(sites)),
                self.colluding,
                len(sites) if everybody else self._needed(len(sites)),
                self.alone,
                self.rows_per_person,
                self._way.members.digest,
                self._decided.groups,
                group,
            )
            for group, sites in enumerate(groups)
        ]

    def _grouped(self, names: Sequence[str]) -> list[tuple[str, ...]]:
        """These names by group; an InputError where one has too few for any terms."""
        group = self._way.members.grouped(self._decided.groups)
        groups: list[list[str]] = [[] for _ in range(self._decided.groups)]
        for name in sorted(set(names) & set(group)):
            groups[group[name]].append(name)
        for sites in groups:
            self._needed(len(sites))
        return [tuple(sites) for sites in groups]

    def _needed(self, sites: int) -> int:
        return needed(self._decided, sites)

    def _law(self, needed: Iterable[int]) -> NoiseLaw:
        """The law of the noise where so many answers are needed in each group: that of the worst."""
        honest = min(needed) - self.colluding
        return NoiseLaw(self.rows_per_person, honest, self.alone, self._decided.groups)

    def _check(self, all_terms: Sequence[Terms], summed: Sequence[Summed]) -> None:
        """Unfinished where no honest sources have such sums, but for so few groups that the median is
        none of theirs."""
        most = self._way.max_rows
        odd = 0
        for terms, one in zip(all_terms, summed, strict=True):
            rows = [most if told is None else min(most, told) for told in one.max_rows.values()]
            odd += beyond(one.values, terms, rows)
        if odd > len(summed) // 2:
            raise Unfinished(
                f"the total of {sum(len(one.names) for one in summed)} sources is beyond what their "
                "rows and the noise can give: one of them at least claims what it does not have; "
                f"{FINAL}",
                again=False,
            )


def needed(decided: Decided, sites: int) -> int:
    """How many of so many sites must answer before their sum is opened; an InputError where no number
    will do."""
    t, honest, wanted = decided.colluding, decided.min_honest, decided.needed
    where = "" if decided.groups == 1 else f" in each of {decided.groups} groups"
    fewest = max(FEWEST, t + 2, t + honest)
    if sites < fewest:
        raise InputError(
            f"a secure sum with {plural(t, 'source')} that may work with the asker needs at least {fewest} "
            f"sources{where}, and there are {sites}"
        )
    least = max(threshold(sites, t), t + honest)
    if wanted is None:
        return max(usual_needed(sites, t), least)
    if not least <= wanted <= sites:
        raise InputError(
            f"of {sites} sources{where}, of which {t} may work with the asker, {least} to {sites} can "
            f"be needed, not {wanted}"
        )
    return wanted


def expected(options: Secure, sources: int, rows_per_person: int) -> tuple[int, NoiseLaw]:
    """How many may collude, and the law of the noise, in sums of so many sources whose owners say
    nothing of it.

    >>> expected(Secure(), 50, rows_per_person=1)
    (10, NoiseLaw(rows_per_person=1, honest=35, alone=10, groups=1))
    """
    decided = _decided(options, tuple(map(str, range(sources))), None, rows_per_person, None)
    honest = needed(decided, sources // options.groups) - decided.colluding
    law = NoiseLaw(rows_per_person, honest, decided.alone, decided.groups)
    return decided.colluding, law


def _decided(
    options: Secure,
    names: tuple[str, ...],
    rows_per_source: float | None,
    rows_per_person: int,
    rules: SecureRules | None,
) -> Decided:
    """What the terms go by: what is said, within what the owners want."""
    if options.groups > 1 and len(names) < FEWEST_GROUPED:
        raise InputError(
            f"groups are for {FEWEST_GROUPED} sources and more, and there are {len(names)}: sum them in one"
        )
    colluding, alone = options.colluding, options.alone
    if colluding is None:
        colluding = usual_colluding(len(names)) if rules is None else rules.colluding
    if alone is None:
        alone = USUAL_ALONE if rules is None else min(USUAL_ALONE, rules.alone)
    if rules is not None and colluding < rules.colluding:
        raise InputError(
            f"the owners reckon with {rules.colluding} sources that work with the asker: colluding "
            f"cannot be {colluding}"
        )
    if rules is not None and alone > rules.alone:
        raise InputError(f"the owners allow alone to be {rules.alone} at most, not {alone}")
    return Decided(
        names,
        rows_per_source,
        rows_per_person,
        colluding,
        options.needed,
        alone,
        options.groups,
        1 if rules is None else rules.min_honest,
    )
