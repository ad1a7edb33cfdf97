"""What tests of secure sums over a federation share: a calibrator's side, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from privcal.data.ledger import Ledger
from privcal.secure.participant import Dealt
from privcal.secure.sharing import combine
from privcal.secure.terms import Terms, threshold
from privcal.transport.federation.calibrator.roster import pin
from privcal.transport.federation.calibrator.secure import SecureSites
from privcal.transport.federation.shared.roster import roster_path
from privcal.transport.federation.site import settings as site
from privcal.transport.federation.site import setup
from privcal.transport.federation.site.roster import accept, own_card
from privcal.trusted.policy import Policy, SecureRules
from privcal.trusted.queries import GRID
from privcal.trusted.question import Question
from tests.support import federation_parts as parts
from tests.support.federation_parts import ANN, MODEL, question

EPSILON = 1e4
"""So much that hardly any noise is left, and a total can be told from another."""

Boxes = dict[str, dict[str, Any]]


def rules(**more: Any) -> SecureRules:
    return SecureRules(**{"colluding": 1, "min_honest": 2, "alone": 10, **more})


def policy(secure: SecureRules | None, **more: Any) -> Policy:
    return Policy(**{"epsilon": 1e6, "model": MODEL, "secure": secure, **more})


def set_up(kits: Path, names: Sequence[str], rows: int = 30, **more: Any) -> None:
    """Sites with rows of their own, and everybody's roster."""
    for n, name in enumerate(names):
        data = parts.write_rows(kits.parent / "data" / f"{name}.npz", rows, seed=n)
        setup.init(kits / name, data, policy(rules()), **{"delay": 0.1, **more})
    exchange_rosters(kits, names)


def exchange_rosters(kits: Path, names: Sequence[str], by: Sequence[str] = (ANN,)) -> None:
    """A calibrator gathers the sites' cards as they are now, and each owner takes its roster."""
    cards = [own_card(kits / name) for name in names]
    for calibrator in by:
        pin(kits / calibrator, cards, rekeyed=names)
    for name in names:
        accept(kits / name, roster_path(kits / by[0]))


def exact(kits: Path, names: Sequence[str], asked: Question) -> list[float]:
    """The sum of these sites' rows: no calibrator ever sees it."""
    sources = [site.Site.load(kits / name).populations[0].source(name) for name in names]
    total = sum(source._exact(asked.query) for source in sources)
    return [float(v) / GRID for v in total]


def ledger_of(kits: Path, name: str) -> Ledger:
    return Ledger(kits / name / "local" / site.LEDGER)


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


Said = Callable[[str, bytes], bytes]
