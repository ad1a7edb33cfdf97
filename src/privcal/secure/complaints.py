"""Whose boxes are left out, and who is left out of opening, where sites cannot open each other's.

After SHARE everybody knows that each box was signed by its dealer and has the right length; whether
it opens, its receiver alone can say. If receiver r complains about dealer d, one of the two is at
fault, and nobody can tell which: d may have sealed rubbish, or r may have lost its key, or lie. As
r opens nothing unless all of the set's boxes are good, one of them must go: d's answer from the
set, or r from those who open it.

The rule: leave out as few as settle all complaints, and of several such choices the one that costs
the fewest answers, for to lose a receiver costs only what can be spared in opening.

What a liar can do. All that k dishonest receivers complain about is settled by leaving out these k,
so no more than k go; and as answers go only where that leaves out fewer, at most k − 1 honest
answers do: of one liar alone, none. A dishonest dealer whose boxes are bad for two others goes
itself; with one bad box it keeps that one receiver from opening, and no more. If so few are left
that nothing could be opened, the complaints are settled on one side alone: by leaving out
everybody who complained, or else everybody they complained about.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

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
