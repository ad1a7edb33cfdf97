"""One secure sum, as whoever asks sees it: SHARE, CHECK, OPEN, and the total that comes of it.

Nothing that a site says is trusted. A dealer whose boxes are missing, malformed or badly signed is
left out at once, one whom others cannot open as `privcal.secure.complaints` has it. Then the set
whose answers are summed is fixed and on record, and never changes: a site opens one set for each
question. A sum that is malformed is not used, and as long as few are, neither is one that does not
fit the others.

It may be any site's fault that another's sum does not fit: whoever dealt it a false share brings
that about. So whoever is left out here is not blamed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from privcal.errors import REFUSALS
from privcal.panels import Unusable, code_of, may_be_charged, problem_of
from privcal.plausible import BOXES
from privcal.privacy.sharing import PRIME, combine
from privcal.secure.complaints import settle
from privcal.secure.terms import Terms
from privcal.secure.way import Chosen, Record, Way

if TYPE_CHECKING:  # they need cryptography, which the base install does not bring
    from privcal.secure.boxes import Box
    from privcal.secure.participant import Dealt

SHARE, CHECK, OPEN = "share", "check", "open"

FINAL = "the campaign cannot go on, and a new one is charged anew"
"""The end of a sentence about a sum that nobody can have any more."""

MALFORMED = "malformed"
"""Said of a sum that is none."""


@dataclass(frozen=True)
class Step:
    """What is new of one site: it replied, or its answer will not be in the sum.

    `done` of `of` sites have replied in this stage. `charged` says that the question was, or may
    have been, charged there, and `left` why its answer is not in the sum.
    """

    stage: str
    name: str
    done: int
    of: int
    charged: bool = False
    left: Exception | None = None


Tell = Callable[[Step], None]


class Unfinished(RuntimeError):
    """A secure sum that came to nothing, in words.

    `again` says whether the same campaign may still have it, free of charge for all who paid.
    """

    def __init__(self, message: str, again: bool) -> None:
        super().__init__(message)
        self.again = again


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
    if missing := [name for name in chosen.names if name not in dealt]:
        raise Unfinished(
            f"the answers of {len(chosen.names)} sources are to be opened, and "
            f"{', '.join(missing[:3])} cannot be asked for theirs just now"
            + because({name: left.get(name, "gone") for name in missing}),
            again=True,
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
