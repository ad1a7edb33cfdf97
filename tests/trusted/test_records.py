"""A document of any format either reads, and writes back the same, or is refused in one sentence."""

from __future__ import annotations

import copy
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privcal.calibration.maps import Map, load_map
from privcal.data.scoring import Setup
from privcal.trusted import records
from privcal.trusted.errors import InputError, Refused
from privcal.trusted.policy import Policy, SecureRules
from privcal.trusted.queries import FAMILY, Query, parse
from privcal.trusted.question import Question, read_question
from privcal.trusted.records import Between, By
from tests.support.builders import a_file
from tests.support.every_map import every_map


@dataclass(frozen=True)
class Format:
    """Valid documents, what reads one, and what writes what was read."""

    documents: list[Any]
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


def _as_file(read: Callable[[Path], Any]) -> Callable[[Any], Any]:
    def from_file(document: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = a_file(Path(folder) / "file.json", json.dumps(document))
            return read(path)

    return from_file


POLICY = Policy(
    2.0, 0.5, ("gap", "hats"), 3, ("ann",), "net", "person", 0.01, {"ann": 1.0}, 9, True, 1000,
    SecureRules(2, "ab cd", 3, 5, 4.0, True),
)  # fmt: skip

FORMATS = {
    "map": Format(
        [map.to_dict() for map in every_map(3).values()], _as_file(load_map), Map.to_dict
    ),
    "query": Format([kind().to_dict() for kind in FAMILY.values()], parse, Query.to_dict),
    "question": Format(
        [Question(f"{kind}", 0, 3, 10**8, FAMILY[kind](), "net").facts() for kind in FAMILY],
        read_question,
        Question.facts,
    ),
    "set-up": Format(
        [Setup("y", None, ("a", "b"), ("ill", "well"), "z", "logits", True).to_dict()],
        lambda table: Setup.of(table, "here"),
        Setup.to_dict,
    ),
    "policy": Format([POLICY.to_dict()], lambda table: Policy.of(table, "here"), Policy.to_dict),
}
"""Every format of docs/formats.md that is JSON or TOML; a new one is one line."""

ODD = st.one_of(
    st.sampled_from([None, True, False, 0, 1, -1, 0.5, 2**31, 2**63, 10**400, 1e308, -0.0, 5e-324]),
    st.sampled_from([float("nan"), float("inf"), "", "0", "a/b", "\n", "\udcff", "x" * 5000]),
    st.sampled_from([[], {}, [[]], [None], {"": {}}, [0] * 3000, {"kind": "gap"}]),
    st.recursive(
        st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner), max_leaves=8
    ),
)


def _places(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a document: the way from its top to every value in it."""
    yield at
    if isinstance(document, (dict, list)):
        inside = document.items() if isinstance(document, dict) else enumerate(document)
        for name, value in inside:
            yield from _places(value, (*at, name))


def _kept(document: Any, written: Any) -> bool:
    """Whether all of a document is in what was written.

    Defaults may be added, `false` and `null` may be left out, and ε is cut to nano-ε.
    """
    if isinstance(document, dict) and isinstance(written, dict):
        return all(
            _kept(value, written[name]) if name in written else value is None or value is False
            for name, value in document.items()
        )
    if isinstance(document, list) and isinstance(written, list):
        return len(document) == len(written) and all(map(_kept, document, written))
    if type(written) is float and not isinstance(document, bool):
        return math.isclose(float(document), written, rel_tol=1e-9, abs_tol=1e-9)
    return document == written and isinstance(document, bool) == isinstance(written, bool)


@st.composite
def _mutated(draw: st.DrawFn, documents: list[Any]) -> Any:
    document = json.loads(json.dumps(draw(st.sampled_from(documents))))
    for _ in range(draw(st.integers(0, 2))):
        *way, last = draw(st.sampled_from([p for p in _places(document) if p] or [(None,)]))
        inside = document
        for name in way:
            inside = inside[name]
        act = draw(st.sampled_from(["replace", "replace", "remove", "add", "nest", "twin"]))
        if act == "remove":
            del inside[last]
        elif act == "nest":
            inside[last] = [inside[last]]
        elif act == "replace":
            inside[last] = copy.deepcopy(draw(ODD))
        elif isinstance(inside, dict):
            inside["extra" if act == "add" else draw(st.text(max_size=3))] = copy.deepcopy(
                draw(ODD)
            )
        else:
            inside.append(copy.deepcopy(inside[last] if act == "twin" else draw(ODD)))
    return document


@pytest.mark.parametrize("name", FORMATS)
def test_a_valid_document_reads_and_writes_back_the_same(name: str) -> None:
    format = FORMATS[name]
    for document in format.documents:
        document = json.loads(json.dumps(document))
        assert json.loads(json.dumps(format.write(format.read(document)))) == document


@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_random_document_reads_and_writes_back_the_same_or_gets_one_sentence(
    name: str, data: st.DataObject
) -> None:
    format = FORMATS[name]
    document = data.draw(_mutated(format.documents))
    try:
        value = format.read(copy.deepcopy(document))
    except (InputError, Refused) as error:
        said = str(error)
        assert 0 < len(said) < 600, said
        assert said.isprintable(), said
        return
    written = json.loads(json.dumps(format.write(value), allow_nan=False))
    assert _kept(document, written)
    assert format.write(format.read(written)) == format.write(value)


@dataclass(frozen=True)
class Inner:
    size: Annotated[int, Between(1, 3)]


def _lower(name: str, value: str) -> str:
    if value != value.lower():
        raise InputError(f"{name} must be in lower case")
    return value


@dataclass(frozen=True)
class Record:
    inner: Inner
    words: Annotated[tuple[Annotated[str, _lower], ...], Between(1, 2)] = ("a",)
    pair: tuple[float, float] | None = None
    budget: Literal["population", "person"] = "person"
    table: dict[str, int] = None  # type: ignore[assignment]
    by: Annotated[complex, By(lambda name, value: complex(value))] = 0j

    def __post_init__(self) -> None:
        records.check(self)


def test_a_record_is_read_by_the_types_and_rules_of_its_fields() -> None:
    facts = {"inner": {"size": 2}, "pair": [1, 2.5], "table": {"x": 1}, "by": 1}
    record = records.read(Record, facts, "it")
    assert record == Record(Inner(2), ("a",), (1.0, 2.5), table={"x": 1}, by=1 + 0j)
    assert records.write(record)["inner"] == {"size": 2}
    assert records.write(record)["pair"] == [1.0, 2.5]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"inner": {"size": 4}}, "it: inner: size must be a whole number from 1 to 3, not 4"),
        ({"inner": {"size": True}}, "it: inner: size must be a whole number from 1 to 3, not True"),
        ({"inner": {}}, "it: inner: size is missing"),
        ({"inner": [1]}, r"it: inner must be an object, not \[1\]"),
        ({"outer": 1}, "it has no 'outer'; there are budget, by, inner, pair, table, words"),
        ({"words": ["a", 1]}, "it: words must be text, not 1"),
        ({"words": ["a", "B"]}, "it: words must be in lower case"),
        ({"words": []}, "it: words must be a list of 1 to 2 values"),
        ({"pair": [1]}, "it: pair must be a list of 2 values"),
        ({"pair": [1, float("nan")]}, "it: pair must be a number, not nan"),
        ({"budget": "all"}, "it: budget must be one of population, person, not 'all'"),
        ({"table": {"x": 0.5}}, "it: table 'x' must be a whole number, not 0.5"),
        ({"table": {"x\n" * 99: 0.5}}, r"it: table 'x\\n.*\.\.\. must be a whole number, not 0.5"),
    ],
)
def test_whatever_breaks_a_rule_is_named_with_its_place(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=f"^{says}$"):
        records.read(Record, {"inner": {"size": 2}, "table": {}} | change, "it")


def test_a_complete_object_has_every_field() -> None:
    assert records.read(Inner, {"size": 1}, "it", complete=True) == Inner(1)
    with pytest.raises(InputError, match=r"^it: words is missing$"):
        records.read(Record, {"inner": {"size": 2}, "table": {}}, "it", complete=True)


def test_a_type_that_json_cannot_hold_is_refused_when_its_class_is_made_known() -> None:
    @dataclass
    class Odd:
        own: bytes

    with pytest.raises(InputError, match=r"^Odd.own is a .*, which JSON cannot hold"):
        records.readers(Odd)
