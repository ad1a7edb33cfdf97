"""An entry for a registry: valid, readable as YAML, and silent about rows, paths and askers."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml

import privcal
from privcal import InputError
from privcal.registry import OWNER, checked, entry_of, schema, to_yaml

ROWS = 317


def asked(tmp_path: Path, policy: privcal.Policy | None = None, **more: Any) -> privcal.Ledger:
    """A ledger that paid for a campaign of five questions."""
    rng = np.random.default_rng(0)
    person = [f"patient-{i}" for i in range(ROWS)] if more.get("unit") == "person" else None
    scores = privcal.Scores(
        logits=rng.normal(size=(ROWS, 3)), labels=rng.integers(0, 3, ROWS), person=person
    )
    ledger = privcal.Ledger.create(
        tmp_path / "secret-path.ledger",
        policy or privcal.Policy(epsilon=2.0),
        **{"unit": "row", "name": "ward", **more},
    )
    source = privcal.Source(scores, ledger=ledger)
    privcal.calibrate([source], "acc-t", epsilon=0.5, asker="mallory", campaign="hush")
    return ledger


def test_an_entry_says_what_a_registry_asks_for(tmp_path: Path) -> None:
    entry = entry_of(asked(tmp_path))["deployment"]
    assert entry["product"]["data_curators"] == ["ward"]
    assert entry["privacy_loss"]["privacy_parameters"] == {"epsilon": 0.5}
    assert "allows 2 in all" in entry["privacy_loss"]["privacy_parameters_description"]
    assert entry["privacy_loss"]["privacy_unit"] == "Row"
    assert "removing one row" in entry["privacy_loss"]["privacy_unit_description"]
    assert entry["model"]["release_type"] == "Multiple releases"
    assert "Laplace" in entry["implementation"]["mechanisms"]
    assert "how many were right, minus" in entry["product"]["description"]


def test_a_person_is_the_unit_where_the_ledger_protects_persons(tmp_path: Path) -> None:
    policy = privcal.Policy(epsilon=3.0, budget="person", rows_per_person=2)
    loss = entry_of(asked(tmp_path, policy, unit="person"))["deployment"]["privacy_loss"]
    assert loss["privacy_unit"] == "Person"
    assert "all rows of one person; at most 2 of them" in loss["privacy_unit_description"]
    assert loss["privacy_parameters"] == {"epsilon": 3.0}
    assert "any one person" in loss["privacy_parameters_description"]


def test_an_entry_tells_nothing_that_is_the_owners_alone(tmp_path: Path) -> None:
    policy = privcal.Policy(epsilon=2.0, askers=("mallory",), rows=300)
    text = to_yaml(entry_of(asked(tmp_path, policy)))
    for secret in (str(ROWS), "300", "mallory", "hush", "secret-path", str(tmp_path), "/"):
        assert secret not in text, secret
    assert "declares" in text  # that rows are told of, not how many


def test_what_only_the_owner_knows_is_marked(tmp_path: Path) -> None:
    text = to_yaml(entry_of(asked(tmp_path)))
    assert text.count(OWNER) == 5


def test_a_ledger_from_which_nothing_left_has_no_entry(tmp_path: Path) -> None:
    ledger = privcal.Ledger.create(tmp_path / "new.ledger", unit="row")
    with pytest.raises(InputError, match="nothing has left"):
        entry_of(ledger)


def test_yaml_reads_back_what_was_written_whatever_the_name(tmp_path: Path) -> None:
    names = [
        "a: b # c", "- x", "yes", "1e3", "'\"\\", "tab\there\nline", "\x00\x1b\x7f\x85\xa0",
        "\u2028\u2029\ufeff", "😀 ünï", "{{ }} %TAG !!python/object:os.system", "", "null", "~",
    ]  # fmt: skip
    document = {"names": names, "inner": {f"n{i}": name for i, name in enumerate(names)}, "e": 0.25}
    assert yaml.safe_load(to_yaml(document)) == document
    assert yaml.safe_load(to_yaml({"a": "\ud800"})) == {"a": "\ufffd"}
    entry = entry_of(asked(tmp_path))
    assert yaml.safe_load(to_yaml(entry)) == entry


# --- the schema ------------------------------------------------------------------------------


def changed(entry: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The entry with one thing wrong, for everything that can be."""
    here = entry
    for step in path:
        here = here[step]
    wrong: list[Any] = ["x", None, True, 0, -1.5, "", "x" * 3000, [], {}, [[]], ["ok", 1]]
    for value in wrong:
        if not path:
            yield f"all: {value!r:.20}", value
            continue
        other = copy.deepcopy(entry)
        inner = other
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = value
        yield f"{path}: {value!r:.20}", other
    if isinstance(here, dict):
        for name in here:
            without = copy.deepcopy(entry)
            inner = without
            for step in path:
                inner = inner[step]
            del inner[name]
            yield f"{path} without {name}", without
            more = copy.deepcopy(entry)
            inner = more
            for step in path:
                inner = inner[step]
            inner[f"{name}_more"] = "x"
            yield f"{path} with more", more
            yield from changed(entry, (*path, name))


def test_our_check_refuses_exactly_what_the_schema_refuses(tmp_path: Path) -> None:
    entry = entry_of(asked(tmp_path))
    jsonschema.Draft202012Validator.check_schema(schema())
    judge = jsonschema.Draft202012Validator(schema())
    assert judge.is_valid(entry)
    tried = refused = 0
    for what, other in changed(entry):
        try:
            checked(other)
            ours = True
        except InputError:
            ours = False
        assert ours == judge.is_valid(other), what
        tried, refused = tried + 1, refused + (not ours)
    assert refused > 200
    assert tried > refused  # some changes are allowed: a description of one letter


def test_the_schema_uses_no_word_that_our_check_does_not_know() -> None:
    known = {
        "$schema", "title", "type", "additionalProperties", "required", "properties", "enum",
        "items", "minItems", "minLength", "maxLength", "pattern", "exclusiveMinimum", "$ref", "$defs",
    }  # fmt: skip

    def words(rule: Any) -> Iterator[str]:
        if isinstance(rule, dict):
            for name, value in rule.items():
                yield name
                parts = value.values() if name in ("properties", "$defs") else [value]
                for part in parts:
                    yield from words(part)

    assert set(words(schema())) <= known


def test_ledger_show_writes_an_entry(run: Any, tmp_path: Path) -> None:
    ledger, out = asked(tmp_path), tmp_path / "entry.yaml"
    code, stdout, _ = run("ledger", "show", ledger.path, "--registry", out)
    assert code == 0
    assert "to be read and filled in" in stdout
    jsonschema.validate(yaml.safe_load(out.read_text("utf-8")), schema())
    code, stdout, _ = run("ledger", "show", ledger.path, "--registry", out, "--json")
    assert json.loads(stdout)["spent"] == 0.5
    code, _, stderr = run("ledger", "show", ledger.path, "--registry", tmp_path / "entry.txt")
    assert code == 2
    assert "must end in .yaml" in stderr
    code, _, stderr = run("ledger", "show", ledger.path, "--registry", ledger.path)
    assert code == 2
