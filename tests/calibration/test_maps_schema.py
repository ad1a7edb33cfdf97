"""The schema of a map's file: every map keeps to it, and a damaged one does not."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest

from privcal.calibration.maps import KINDS, MAX_DIRECTIONS, MAX_POINTS, MAX_SHIFT
from tests.support.every_map import every_map

jsonschema = pytest.importorskip("jsonschema")


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return json.loads((resources.files("privcal") / "schemas" / "map.json").read_text("utf-8"))


def errors(schema: dict[str, Any], document: Any) -> list[Any]:
    return list(jsonschema.Draft202012Validator(schema).iter_errors(document))


def test_the_schema_is_one_and_knows_every_kind(schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    known = [kind["properties"]["kind"] for kind in schema["oneOf"]]
    assert {kind["const"] for kind in known[:-1]} == set(KINDS) == set(known[-1]["not"]["enum"])


def test_the_schema_has_the_limits_of_the_code(schema: dict[str, Any]) -> None:
    by_kind = {kind["properties"]["kind"].get("const"): kind for kind in schema["oneOf"]}
    curve = by_kind["curve"]["properties"]
    assert schema["$defs"]["points"]["maxItems"] == MAX_POINTS
    assert curve["directions"]["maxItems"] == MAX_DIRECTIONS
    assert by_kind["offsets"]["properties"]["offsets"]["items"]["maximum"] == MAX_SHIFT


@pytest.mark.parametrize("name", sorted(every_map(3)))
def test_every_map_keeps_to_the_schema(name: str, schema: dict[str, Any]) -> None:
    map = every_map(3)[name].with_provenance(
        classes=3,
        model="net",
        note="so",
        left_out=2,
        class_names=["a", "b", "c"],
        made_from="logits",
    )
    document = json.loads(json.dumps(map.to_dict()))
    assert errors(schema, document) == []
    # Whatever field is gone, the file is no map (directions are new, and may be).
    for field in document.keys() - {"directions"}:
        assert errors(schema, {k: v for k, v in document.items() if k != field}), field


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("warm", {"temperature": 0}),
        ("warm", {"temperature": "1.5"}),
        ("warm", {"version": 2}),
        ("warm", {"format": "map"}),
        ("warm", {"private": 1}),
        ("warm", {"kind": "curve"}),
        ("warm", {"provenance": {"classes": 0}}),
        ("warm", {"provenance": {"model": 3}}),
        ("warm", {"provenance": {"class_names": "a"}}),
        ("warm", {"provenance": {"made_from": "guesses"}}),
        ("bins", {"values": []}),
        ("bins", {"values": [0.5, 1.5]}),
        ("bins", {"values": [True]}),
        ("curve", {"scores": [1.0]}),
        ("curve", {"log_odds": [0.0, "1"]}),
        ("curve", {"directions": [[0.0, 2000.0]]}),
        ("risk", {"event": -1}),
        ("risk", {"event": 0.5}),
        ("offsets", {"offsets": []}),
        ("offsets", {"corrected": None}),
    ],
)
def test_a_damaged_map_does_not(name: str, damage: dict[str, Any], schema: dict[str, Any]) -> None:
    assert errors(schema, every_map(3)[name].to_dict() | damage)


def test_a_kind_of_another_package_may_have_fields_of_its_own(schema: dict[str, Any]) -> None:
    document = every_map(3)["warm"].to_dict()
    del document["temperature"]
    assert errors(schema, document | {"kind": "theirs", "own": [1, 2]}) == []
