"""One secure sum, as whoever asks sees it: SHARE, CHECK, OPEN, and the total that comes of it.

`Way` is how the messages get to the sites, `Record` what is kept of them on the way.

Nothing that a site says is trusted. A dealer whose boxes are missing, malformed or badly signed is
left out at once, one whom others cannot open by the rule below. Then the set
whose answers are summed is fixed and on record, and never changes: a site opens one set for each
question. A sum that is malformed is not used, and as long as few are, neither is one that does not
fit the others. It may be any site's fault that another's sum does not fit: whoever dealt it a false
share brings that about. So whoever is left out here is not blamed.

Whose boxes are left out, and who is left out of opening
--------------------------------------------------------
After SHARE everybody knows that each box was signed by its dealer and has the right length; whether
it opens, its receiver alone can say. If receiver r complains about dealer d, one of the two is at
fault, and nobody can tell which: d may have sealed rubbish, or r may have lost its key, or lie. As
r opens nothing unless all of the set's boxes are good, one of them must go: d's answer from the
set, or r from those who open it.

The rule (`settle`): leave out as few as settle all complaints, and of several such choices the one that
costs the fewest answers, for to lose a receiver costs only what can be spared in opening.

What a liar can do. All that k dishonest receivers complain about is settled by leaving out these k,
so no more than k go; and as answers go only where that leaves out fewer, at most k − 1 honest
answers do: of one liar alone, none. A dishonest dealer whose boxes are bad for two others goes
itself; with one bad box it keeps that one receiver from opening, and no more. If so few are left
that nothing could be opened, the complaints are settled on one side alone: by leaving out
everybody who complained, or else everybody they complained about.

Whether a total can be one of honest sources
--------------------------------------------
A site that answers in a secure sum can claim what it likes, and nobody sees its answer. What the
sites' rows and the noise can give together bounds the total, and so what one of them can claim: the
bound is that of everybody's rows, looser than what is known of an answer that comes by itself
(`beyond`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from privcal.data.panels import Unusable, code_of, may_be_charged, problem_of
from privcal.data.plausible import BEYOND, BOXES
from privcal.secure.round import Total
from privcal.secure.sharing import PRIME, combine
from privcal.secure.terms import Members, Terms
from privcal.trusted.epsilon import NANO
from privcal.trusted.errors import REFUSALS
from privcal.trusted.policy import SecureRules
from privcal.trusted.question import Question

if TYPE_CHECKING:  # they need cryptography, which the base install does not bring
    from privcal.secure.boxes import Box
    from privcal.secure.participant import Dealt


class Way(Protocol):
    """How the messages of a secure sum get to the sites: in this process, or over a network.

    `names` are those of the sites that can be asked, `members` everybody on the roster; `rules` are
    what the owners want of secure sums, all of them together, where that is known, and `max_rows`
    is the most rows that a site may claim to have.

    Each of the three messages goes to all that are named, at once, and comes back from each of them
    once, in whatever order, as what was asked for or as the exception that says why not. It is only
    sent to sites that can be asked; terms may have others, when a campaign goes on.
    """

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def asker(self) -> str: ...

    @property
    def members(self) -> Members: ...

    @property
    def rows_per_person(self) -> int: ...

    @property
    def rows_per_source(self) -> float | None: ...

    @property
    def rules(self) -> SecureRules | None: ...

    @property
    def max_rows(self) -> int: ...

    def offer(self, terms: Terms, questions: Sequence[Question]) -> dict[str, str]:
        """The sites of the terms that would refuse, and why; the others reserve what it all costs."""
        ...

    def release(self, campaign: str) -> None:
        """Give back what is still reserved: the run is over."""
        ...

    def share(self, terms: Terms, names: Sequence[str]) -> Iterator[tuple[str, Dealt | Exception]]:
        """SHARE: what each of these sites dealt. It is charged for, once."""
        ...

    def check(
        self, terms: Terms, boxes: Mapping[str, Mapping[str, Box]]
    ) -> Iterator[tuple[str, Sequence[str] | Exception]]:
        """CHECK: of the boxes for each site, by who dealt them, whose it cannot open."""
        ...

    def open(
        self, terms: Terms, boxes: Mapping[str, Mapping[str, Box]]
    ) -> Iterator[tuple[str, Sequence[int] | Exception]]:
        """OPEN: the sum of what is in the boxes for each site."""
        ...


@dataclass(frozen=True)
class Decided:
    """What the questions of a campaign and their terms go by, as it was when it began.

    `names` are those of the sites that could be asked; `colluding`, `alone` and `groups` are as in the
    terms, `needed` is what the asker said of it, and `min_honest` what the owners want.
    """

    names: tuple[str, ...]
    rows_per_source: float | None
    rows_per_person: int
    colluding: int
    needed: int | None
    alone: int
    groups: int
    min_honest: int


@dataclass(frozen=True)
class Chosen:
    """The set whose answers are summed, and why the others are not in it."""

    names: tuple[str, ...]
    left: Mapping[str, str]


class Record(Protocol):
    """What a calibrator keeps of its secure sums, so that a run that was killed goes on with them.

    Whatever is written here is durable before the next message leaves.
    """

    def begun(self, now: Callable[[], Decided]) -> Decided:
        """What the questions and terms go by, as when the campaign began; `now` says it otherwise."""
        ...

    def refused(self) -> Mapping[str, str]:
        """Those that are in no terms, and why."""
        ...

    def refuses(self, refused: Mapping[str, str]) -> None:
        """These are not going to be asked."""
        ...

    def terms(self, question: Question) -> Sequence[Terms]:
        """On which terms a question was asked; none where it was not."""
        ...

    def asks(self, terms: Sequence[Terms]) -> None:
        """These are going to be asked: from then on sites may be charged."""
        ...

    def chosen(self, terms: Terms) -> Chosen | None:
        """The set that is opened."""
        ...

    def chooses(self, terms: Terms, chosen: Chosen) -> None:
        """This set is going to be opened: from then on no other can be."""
        ...

    def total(self, question: Question) -> tuple[Total, Mapping[str, str]] | None:
        """What was opened, and why others are not in it."""
        ...

    def keeps(self, total: Total, left: Mapping[str, str]) -> None:
        """This was opened."""
        ...


class Memory:
    """A record that ends with the process: for sources in it, which give all of it again."""

    def __init__(self) -> None:
        self._refused: Mapping[str, str] = {}
        self._terms: dict[str, Sequence[Terms]] = {}
        self._chosen: dict[str, Chosen] = {}
        self._totals: dict[str, tuple[Total, Mapping[str, str]]] = {}

    def begun(self, now: Callable[[], Decided]) -> Decided:
        return now()

    def refused(self) -> Mapping[str, str]:
        return self._refused

    def refuses(self, refused: Mapping[str, str]) -> None:
        self._refused = refused

    def terms(self, question: Question) -> Sequence[Terms]:
        return self._terms.get(question.text(), ())

    def asks(self, terms: Sequence[Terms]) -> None:
        self._terms[terms[0].question.text()] = terms

    def chosen(self, terms: Terms) -> Chosen | None:
        return self._chosen.get(terms.digest)

    def chooses(self, terms: Terms, chosen: Chosen) -> None:
        self._chosen[terms.digest] = chosen

    def total(self, question: Question) -> tuple[Total, Mapping[str, str]] | None:
        return self._totals.get(question.text())

    def keeps(self, total: Total, left: Mapping[str, str]) -> None:
        self._totals[total.question.text()] = total, left


Names = frozenset[str]


def settle(
    dealers: Collection[str],
    complaints: Mapping[str, Collection[str]],
    needed: int,
    threshold: int,
) -> tuple[Names, Names] | None:
    """Whose answers are summed, and who opens the sum; None where too few are left for either.

    `complaints` has everybody who could open it, and the dealers whose boxes they complain about.
    No complaint is left between the two sets.

    >>> everybody = {name: set() for name in "abcd"}
    >>> dealers, openers = settle("abcd", everybody | {"a": {"b", "c"}}, 3, 3)
    >>> sorted(dealers), sorted(openers)
    (['a', 'b', 'c', 'd'], ['b', 'c', 'd'])
    >>> dealers, openers = settle("abcd", everybody | {"a": {"d"}, "b": {"d"}}, 3, 3)
    >>> sorted(dealers), sorted(openers)
    (['a', 'b', 'c'], ['a', 'b', 'c', 'd'])
    """
    wanted = frozenset(dealers)
    about = {receiver: wanted & frozenset(bad) for receiver, bad in complaints.items()}
    complainers = frozenset(receiver for receiver, bad in about.items() if bad)
    accused = frozenset().union(*about.values())
    for answers, openers in (_fewest(about), (Names(), complainers), (accused, Names())):
        left = wanted - answers, frozenset(about) - openers
        if len(left[0]) >= needed and len(left[1]) >= threshold:
            return left
    return None


def _fewest(about: Mapping[str, Names]) -> tuple[Names, Names]:
    """The fewest dealers and receivers that have a part in every complaint, few dealers above all.

    By König's theorem: with as many pairs of complaints as possible that have nobody in common, go
    from the receivers in no pair to those they complain about, on to the receivers these are paired
    with, and so on. The dealers that are reached are one side of the answer, the receivers that
    complain and are not reached the other. Each is in a pair, and no pair has two of them, so they
    are as few as there are pairs, and fewer cannot do. Dealers that are reached are so in every
    such answer, hence these are the fewest dealers.
    """
    pairs: dict[str, str] = {}  # receiver: dealer
    for receiver in sorted(about):
        _pair(receiver, about, pairs)
    complain = {receiver for receiver, bad in about.items() if bad}
    todo = [receiver for receiver in complain if receiver not in pairs]
    reached, answers = set(todo), set[str]()
    paired = {dealer: receiver for receiver, dealer in pairs.items()}
    while todo:
        for dealer in about[todo.pop()] - answers:
            answers.add(dealer)
            if paired[dealer] not in reached:  # in no pair, the two would have made one
                reached.add(paired[dealer])
                todo.append(paired[dealer])
    return frozenset(answers), frozenset(complain - reached)


def _pair(receiver: str, about: Mapping[str, Names], pairs: dict[str, str]) -> None:
    """Pair a receiver with a dealer it complains about, if need be by pairing others anew."""
    paired = {dealer: other for other, dealer in pairs.items()}
    came: dict[str, str] = {}  # dealer: the receiver from which it was reached
    todo = [receiver]
    while todo:
        one = todo.pop()
        for dealer in sorted(about[one] - set(came)):
            came[dealer] = one
            if dealer in paired:
                todo.append(paired[dealer])
                continue
            while True:  # back to where it began, everybody takes the one that became free
                one = came[dealer]
                before = pairs.get(one)
                pairs[one] = dealer
                if before is None:
                    return
                dealer = before


_STEPS = 200


def noise_limit(terms: Terms, sources: int, chance: float) -> float:
    """What the noise in one number of the total exceeds with probability below `chance`, either way.

    In points of the grid, for a total of so many sources. Proof. The noise is the sum of |U| Pólya
    shares and |U| discrete Laplace variables (the floors), all independent. Let γ = ε/Δ. A discrete
    Laplace variable with P[k] ∝ e^(−γ|k|) has E e^(sX) = (cosh γ − 1)/(cosh γ − cosh s) for |s| < γ.
    As (cosh x − 1)/x² grows with x > 0, (cosh s − 1)/(cosh γ − 1) ≤ (s/γ)², and so

        E e^(sX) = 1 / (1 − (cosh s − 1)/(cosh γ − 1)) ≤ 1 / (1 − (s/γ)²).

    A share is the h-th part of such a variable: E e^(sX) is the h-th root of the same; a floor has
    alone·γ in place of γ. By Chernoff's bound, with s = uγ and 0 < u < 1, the total's noise N has

        P[N ≥ x/γ] ≤ exp(−ux) · (1 − u²)^(−|U|/h) · (1 − (u/alone)²)^(−|U|),

    which is chance/2 for x = (log(2/chance) − |U|/h · log(1 − u²) − |U| · log(1 − (u/alone)²)) / u.
    Any u will do, so the least of these over a number of them does; N is symmetric. ∎
    """

    def limit(u: float) -> float:
        shares = sources / terms.honest * math.log1p(-u * u)
        floors = sources * math.log1p(-((u / terms.alone) ** 2))
        return (math.log(2 / chance) - shares - floors) / u

    least = min(limit(step / _STEPS) for step in range(1, _STEPS))
    return least * terms.sensitivity * NANO / terms.question.nano_epsilon


def beyond(values: Sequence[int], terms: Terms, rows: Sequence[int]) -> bool:
    """Whether honest sources with at most so many rows each have such a total (on the grid) almost
    never: with probability below `privcal.data.plausible.BEYOND`.

    Their exact sums are at most the bound of the query for each row, in L1, and none of k numbers
    has noise beyond `noise_limit` for a k-th of the probability, but with that probability.
    """
    noise = noise_limit(terms, len(rows), BEYOND / len(values))
    bound = sum(rows) * terms.question.query.bound
    return sum(max(0.0, abs(value) - noise) for value in values) > bound


SHARE, CHECK, OPEN = "share", "check", "open"

FINAL = "the campaign cannot go on, and a new one is charged anew"
"""The end of a sentence about a sum that nobody can have any more."""

MALFORMED = "malformed"
"""Said of a sum that is none."""


@dataclass(frozen=True)
class Step:
    """What is new of one source: it replied, or its answer will not be used.

    `done` of `of` sources have replied in this stage of a secure sum. `charged` says that the question
    was, or may have been, charged there, and `left` why its answer is not used.
    """

    stage: str | None
    name: str
    done: int
    of: int
    charged: bool = False
    left: Exception | None = None


Tell = Callable[[Step], None]


class Unfinished(RuntimeError):
    """A secure sum that came to nothing, in words.

    `again` says whether the same campaign may still have it, free of charge for all who paid, and
    `left` why some of the sources are not in it.
    """

    def __init__(self, message: str, again: bool, left: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.again, self.left = again, left or {}


@dataclass(frozen=True)
class Summed:
    """A sum that was opened: of whose answers, in points of the grid, noise included.

    `ledgers` and `max_rows` are what each of them told of itself, `left` says why the others'
    answers are not in it, and `left_out` whose part in opening it did not fit.
    """

    names: tuple[str, ...]
    values: tuple[int, ...]
    ledgers: Mapping[str, str]
    max_rows: Mapping[str, int | None]
    left: Mapping[str, str]
    left_out: tuple[str, ...]


def sum_of(way: Way, terms: Terms, record: Record, tell: Tell) -> Summed:
    """Ask for one sum. `Unfinished` where there is none, and then nothing was learnt."""
    chosen = record.chosen(terms)
    dealt, left = _share(way, terms, terms.sites if chosen is None else chosen.names, tell)
    if chosen is None:
        if len(dealt) < terms.needed:
            raise Unfinished(
                f"only {len(dealt)} of {len(terms.sites)} sources answered, fewer than the "
                f"{terms.needed} needed{because(left)}; nothing was opened",
                again=True,
                left=left,
            )
        complaints = _check(way, terms, dealt, left, tell)
        chosen, openers = _choose(terms, dealt, left, complaints, tell)
        record.chooses(terms, chosen)
    else:
        _go_on(chosen, dealt, left, tell)
        openers = frozenset(chosen.names)  # whoever found a bad box refuses, as it would again
    sums, odd = _open(way, terms, _boxes(dealt, chosen.names, sorted(openers)), tell)
    if len(sums) < terms.threshold:
        raise Unfinished(
            f"only {len(sums)} of {len(openers)} sources opened their part of the sum, fewer than the "
            f"{terms.threshold} needed{because(odd)}",
            again=True,
            left=odd,
        )
    total = combine({terms.point(name): row for name, row in sums.items()}, terms.threshold)
    if total is None:
        raise Unfinished(
            f"the {len(sums)} parts of the sum do not fit each other: a source deals or opens falsely, "
            f"and which one cannot be told; {FINAL}",
            again=False,
        )
    wrong = {terms.sites[point - 1] for point in total.wrong}
    wrong |= {name for name, code in odd.items() if code == MALFORMED}
    return Summed(
        chosen.names,
        tuple(total.values),
        {name: dealt[name].ledger for name in chosen.names},
        {name: dealt[name].max_rows for name in chosen.names},
        chosen.left,
        tuple(sorted(wrong)),
    )


def _choose(
    terms: Terms,
    dealt: Mapping[str, Dealt],
    left: Mapping[str, str],
    complaints: Mapping[str, frozenset[str]],
    tell: Tell,
) -> tuple[Chosen, frozenset[str]]:
    """The set whose answers are summed, and who opens the sum."""
    settled = settle(dealt, complaints, terms.needed, terms.threshold)
    if settled is None:
        bad = sum(map(bool, complaints.values()))
        raise Unfinished(
            f"too few sources can open what the others dealt: {len(complaints)} of {len(terms.sites)} "
            f"looked, and {bad} of them found boxes that do not open; nothing was opened",
            again=True,
        )
    dealers, openers = settled
    without = sorted(set(dealt) - dealers)
    for name in without:
        tell(Step(CHECK, name, len(complaints), len(complaints), left=Unusable(BOXES)))
    return Chosen(tuple(sorted(dealers)), {**left, **dict.fromkeys(without, BOXES)}), openers


def _go_on(chosen: Chosen, dealt: Mapping[str, Dealt], left: Mapping[str, str], tell: Tell) -> None:
    """The set was fixed before: all of it must be there, and the others stay away."""
    if missing := {n: left.get(n, "gone") for n in chosen.names if n not in dealt}:
        raise Unfinished(
            f"the answers of {len(chosen.names)} sources are to be opened, and "
            f"{', '.join(list(missing)[:3])} cannot be asked for theirs just now{because(missing)}",
            again=True,
            left=missing,
        )
    tell_left(chosen.left, len(dealt), tell)


def tell_left(left: Mapping[str, str], of: int, tell: Tell) -> None:
    """Say once more whose answers are not in a sum that was settled before, and why."""
    for name, code in left.items():
        problem = problem_of(code)
        tell(Step(SHARE, name, of, of, may_be_charged(problem), problem))


def _share(
    way: Way, terms: Terms, names: Sequence[str], tell: Tell
) -> tuple[dict[str, Dealt], dict[str, str]]:
    """What was dealt, every box of it signed and of the right length; and why others did not."""
    dealt: dict[str, Dealt] = {}
    left: dict[str, str] = {}
    here = [name for name in names if name in way.names]
    for name, reply in _once(way.share(terms, here), names):
        problem = reply if isinstance(reply, Exception) else _problem(way, terms, name, reply)
        if problem is None:
            dealt[name] = reply  # type: ignore[assignment]
        else:
            left[name] = code_of(problem)
        charged = problem is None or may_be_charged(problem)
        tell(Step(SHARE, name, len(dealt) + len(left), len(names), charged, problem))
    return dealt, left


_Reply = TypeVar("_Reply")


def _once(
    replies: Iterable[tuple[str, _Reply]], asked: Collection[str]
) -> Iterator[tuple[str, _Reply | Exception]]:
    """The first reply of each that was asked; whoever does not is absent."""
    left = dict.fromkeys(asked)
    for name, reply in replies:
        if name in left:
            del left[name]
            yield name, reply
    for name in left:
        yield name, Unusable("absent")


def _problem(way: Way, terms: Terms, dealer: str, dealt: Dealt) -> Exception | None:
    """What is wrong with what a site dealt, as far as anybody can see."""
    from privcal.secure.boxes import check_box

    try:
        if dealer not in terms.sites or set(dealt.boxes) != set(terms.sites):
            return Unusable(BOXES)
        for receiver, box in dealt.boxes.items():
            check_box(terms, dealer, receiver, box, way.members)
    except (ValueError, TypeError, AttributeError):
        return Unusable(BOXES)
    return None


def _check(
    way: Way,
    terms: Terms,
    dealt: Mapping[str, Dealt],
    left: Mapping[str, str],
    tell: Tell,
) -> dict[str, frozenset[str]]:
    """Everybody who can open a sum, and the dealers whose boxes they cannot open.

    A site that did not deal can open as well as any. One that did not reply is not waited for
    again: there are enough others.
    """
    replied = [name for name in terms.sites if name in dealt or left.get(name) in REFUSALS]
    complaints: dict[str, frozenset[str]] = {}
    replies = way.check(terms, _boxes(dealt, sorted(dealt), replied))
    for done, (name, reply) in enumerate(_once(replies, replied), 1):
        if isinstance(reply, (tuple, list)) and all(isinstance(bad, str) for bad in reply):
            complaints[name] = frozenset(reply) & frozenset(dealt)
        tell(Step(CHECK, name, done, len(replied)))
    return complaints


def _open(
    way: Way, terms: Terms, boxes: Mapping[str, Mapping[str, Box]], tell: Tell
) -> tuple[dict[str, Sequence[int]], dict[str, str]]:
    """The sums that came back and are of the right form; and why others are not there."""
    sums: dict[str, Sequence[int]] = {}
    odd: dict[str, str] = {}
    for done, (name, reply) in enumerate(_once(way.open(terms, boxes), boxes), 1):
        if isinstance(reply, Exception):
            odd[name] = code_of(reply)
        elif _well_formed(reply, terms.question.query.length):
            sums[name] = reply
        else:
            odd[name] = MALFORMED
        tell(Step(OPEN, name, done, len(boxes)))
    return sums, odd


def _well_formed(numbers: Any, length: int) -> bool:
    if not isinstance(numbers, (list, tuple)) or len(numbers) != length:
        return False
    return all(type(number) is int and 0 <= number < PRIME for number in numbers)


def _boxes(
    dealt: Mapping[str, Dealt], dealers: Sequence[str], receivers: Sequence[str]
) -> dict[str, dict[str, Box]]:
    """For each receiver, the boxes of these dealers."""
    return {
        receiver: {dealer: dealt[dealer].boxes[receiver] for dealer in dealers}
        for receiver in receivers
    }


def because(left: Mapping[str, str]) -> str:
    """The first few reasons, in brackets."""
    few = [f"{name}: {code}" for name, code in list(left.items())[:3]]
    return f" ({'; '.join(few)})" if few else ""
