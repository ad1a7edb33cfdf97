"""`privcal sketch prior`."""

from __future__ import annotations

from privcal.cli.console import show
from privcal.cli.options import Json, MapOut, Public
from privcal.data.files import check_outputs
from privcal.data.sources import read_public
from privcal.planning.simulate.answers import prior_map
from privcal.version import __version__


def prior(out: MapOut, public: Public = None, as_json: Json = False) -> None:
    """The map that a sketch gives before any answer: it needs no data and costs no ε.

    What is believed of a model that meets a new domain: its confidence is too high, by so much.
    `privcal advise` says when that is as good as anything that asks.

    Examples:

    `privcal sketch prior --out map.json`

    `privcal sketch prior --public clean.npz --out map.json`
    """
    check_outputs([out], [public])
    rows = None if public is None else read_public(public)
    facts = {"method": "sketch, before any answer", "epsilon_per_source": 0.0}
    map = prior_map(rows).with_provenance(**facts, sources=0, privcal=__version__)
    map.save(out)
    said = f"{map.describe()}, as believed before any answer; map written to {out}"
    show(as_json, {"out": str(out), "map": map.to_dict()}, said)
