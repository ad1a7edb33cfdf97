"""What tests of secure sums over a federation share: a calibrator's side, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from privcal.secure.participant import Dealt
from privcal.secure.sharing import combine
from privcal.secure.terms import Terms, threshold
from privcal.transport.calibrator.secure import SecureSites
from privcal.transport.site.settings import Site
from privcal.trusted.policy import Policy, SecureRules
from privcal.trusted.queries import GRID
from privcal.trusted.question import Question
from tests.support.letters import ANN, MODEL, Federation, question

EPSILON = 1e4
"""So much that hardly any noise is left, and a total can be told from another."""

Boxes = dict[str, dict[str, Any]]


def policy(secure: SecureRules | None, **more: Any) -> Policy:
    return Policy(**{"epsilon": 1e6, "model": MODEL, "secure": secure, **more})


def exact(made: Federation, names: Sequence[str], asked: Question) -> list[float]:
    """The sum of these sites' rows: no calibrator ever sees it."""
    sources = [Site.load(made.at(name)).populations[0].source(name) for name in names]
    total = sum(source._exact(asked.query) for source in sources)
    return [float(v) / GRID for v in total]


def agreed(way: SecureSites, names: Sequence[str], campaign: str, **more: Any) -> Terms:
    """Terms that all sites accept, about a question of their own campaign."""
    asked = more.pop("question", None) or question(campaign, epsilon=EPSILON)
    sites = tuple(sorted(names))
    colluding = more.get("colluding", 1)
    facts = {
        "colluding": colluding,
        "needed": threshold(len(sites), colluding),
        "alone": 10,
        "rows_per_person": 1,
        "roster": way.members.digest,
        **more,
    }
    return Terms(asked, ANN, sites, **facts)


def shared(way: SecureSites, terms: Terms, names: Sequence[str] | None = None) -> dict[str, Dealt]:
    """What sites dealt; all of them must have."""
    dealt = dict(way.share(terms, list(names or terms.sites)))
    assert {type(one) for one in dealt.values()} == {Dealt}, dealt
    return dealt  # type: ignore[return-value]


def boxes_of(dealt: Mapping[str, Dealt], to: Sequence[str], dealers: Sequence[str] = ()) -> Boxes:
    """For each receiver the boxes of these dealers, or of all."""
    return {r: {d: dealt[d].boxes[r] for d in dealers or sorted(dealt)} for r in to}


def code(reply: Any) -> Any:
    """A refusal's code; whatever else it is, as it is."""
    return getattr(reply, "code", reply)


def codes(replies: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    return {name: code(reply) for name, reply in replies}


def opened(terms: Terms, sums: Mapping[str, Sequence[int]]) -> list[float]:
    """The total that parts of it make."""
    whole = combine({terms.point(name): row for name, row in sums.items()}, terms.threshold)
    assert whole is not None
    assert whole.wrong == ()
    return [v / GRID for v in whole.values]


def summed(way: SecureSites, terms: Terms, dealers: Sequence[str] = ()) -> list[float]:
    """One secure sum as an honest calibrator asks for it."""
    dealt = shared(way, terms)
    boxes = boxes_of(dealt, terms.sites, dealers)
    assert codes(way.check(terms, boxes)) == dict.fromkeys(terms.sites, ())
    return opened(terms, codes(way.open(terms, boxes)))
