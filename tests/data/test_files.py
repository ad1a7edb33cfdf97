"""A file of ours is read as a whole, or refused with a sentence that names it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from privcal.data.files import read_document, read_json, read_toml, replacing, write_document
from privcal.trusted.errors import InputError


def read(path: Path) -> dict[str, object]:
    return read_document(path, "recipe", "privcal-recipe", 2)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    document = {"format": "privcal-recipe", "version": 2, "eggs": [1, 2.5, None, "ε"]}
    write_document(tmp_path / "r.json", document)
    assert read(tmp_path / "r.json") == document


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[1", "no", "[" * 100_000, "1" * 5000, '{"a": NaN}', '{"a": Infinity}', "\ufeff{}",
    ],
)  # fmt: skip
def test_what_is_not_json_is_said_to_be_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text, "utf-8")
    with pytest.raises(InputError, match=r"r\.json is not a recipe: it is not JSON, or is cut"):
        read_json(tmp_path / "r.json", "recipe")


def test_bytes_that_are_no_text_are_no_json(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(InputError, match="is not a recipe"):
        read_json(tmp_path / "r.json", "recipe")


def test_a_missing_file_or_a_folder_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(InputError, match=f"cannot read recipe {path}: "):
            read_json(path, "recipe")


@pytest.mark.parametrize("text", ["[]", "3", "null", '{"format": "privcal-map", "version": 2}'])
def test_another_format_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text, "utf-8")
    with pytest.raises(InputError, match=r"r\.json is not a privcal recipe$"):
        read(tmp_path / "r.json")


@pytest.mark.parametrize("version", ["3", "1", "true", "2.0", '"2"', "null"])
def test_another_version_is_refused(tmp_path: Path, version: str) -> None:
    text = f'{{"format": "privcal-recipe", "version": {version}}}'
    (tmp_path / "r.json").write_text(text, "utf-8")
    with pytest.raises(InputError, match=r"has version .*; this privcal reads version 2$"):
        read(tmp_path / "r.json")


def test_what_cannot_be_written_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    write_document(tmp_path / "r.json", {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_document(tmp_path / "r.json", {"a": float("nan")})
    assert read_json(tmp_path / "r.json", "recipe") == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


@pytest.mark.parametrize(
    "text", ["a = ", "a = 1\na = 2", "a = " + "[" * 100_000, "a = " + "1" * 5000]
)
def test_what_is_not_toml_is_said_to_be_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.toml").write_text(text, "utf-8")
    with pytest.raises(InputError, match=r"recipe .*r\.toml is not valid TOML: "):
        read_toml(tmp_path / "r.toml", "recipe")


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_a_private_file_is_never_open_to_others(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with replacing(tmp_path / "key", private=True) as part:
            assert part.stat().st_mode & 0o777 == 0o600
            part.write_text("secret", "utf-8")
    finally:
        os.umask(before)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
