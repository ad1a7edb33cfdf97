"""A URL holds no secret, and a file of credentials is its owner's alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from privcal.transport.post.address import PROTOCOLS, read_credentials, read_url
from privcal.trusted.errors import InputError


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privcal.transport.post.address.find_spec", lambda name: name)


@pytest.mark.parametrize(
    "url",
    [
        "sftp://ann:secret@host/box",
        "sftp://:secret@host/box",
        "s3://key:secret@bucket/box",
        "https://ann:secret@host/box",
        "gs://ann:secret@host/box",
        "sftp://ann:secret@host:port/box",
        "sftp://ann:se@cret@host/box",
    ],
)
def test_a_url_with_a_password_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InputError) as problem:
        read_url(url)
    assert "secret" not in str(problem.value)
    assert "cret@" not in str(problem.value)


@pytest.mark.parametrize(
    "url",
    [
        "gs://bucket/box",
        "http://host/box",
        "file:///srv/box",
        "SFTP://host/box",
        "sftp:///box",
        "sftp://host/box?x=1",
        "sftp://host/box#x",
        "sftp://host/box*",
        "sftp://host/b[o]x",
        "sftp://host/../box",
        "sftp://host/a box",
        "sftp://host/box\n",
        "simplecache::sftp://host/box",
        "sftp://host/box::file",
        "s3://key@bucket/box",
        "sftp://host:port/box",
    ],
)
def test_an_address_that_is_none_of_ours_is_refused(url: str) -> None:
    with pytest.raises(InputError):
        read_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "sftp://ann@host:2222/srv/box",
        "sftp://host/box",
        "s3://bucket/a/box",
        "https://host/dav/box",
        "smb://ann@host/share/box",
        "abfs://container/box",
    ],
)
def test_a_good_address_is_taken_as_it_is(url: str) -> None:
    assert read_url(url) == url
    assert url.partition("://")[0] in PROTOCOLS


def test_a_missing_package_is_named_with_the_way_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privcal.transport.post.address.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"fsspec and paramiko: pip install 'privcal\[mailbox\]'"):
        read_url("sftp://host/box")
    with pytest.raises(InputError, match="pip install fsspec webdav4"):
        read_url("https://host/box")


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "credentials.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_credentials_come_from_a_file_of_the_owners(tmp_path: Path) -> None:
    path = written(tmp_path, 'password = "a word"\nknown_hosts = "/etc/hosts"\n')
    assert read_credentials(path, "sftp://host/box") == {
        "password": "a word",
        "known_hosts": "/etc/hosts",
    }


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_credentials_that_others_may_read_are_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(InputError, match="open to other accounts"):
        read_credentials(written(tmp_path, 'password = "x"', mode), "sftp://host/box")


@pytest.mark.parametrize("text", ["password = secret", 'secret = "x"', "password = 1", "\0", "[a]"])
def test_odd_credentials_are_refused_and_not_repeated(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError) as problem:
        read_credentials(written(tmp_path, text), "sftp://host/box")
    assert "secret" not in str(problem.value)


@pytest.mark.parametrize("name", ["host", "host_key_policy", "port", "sock", "gss_auth"])
def test_credentials_change_nothing_but_who_one_is(tmp_path: Path, name: str) -> None:
    """A host's key cannot be made to count for nothing there."""
    with pytest.raises(InputError, match="for sftp named key_filename"):
        read_credentials(written(tmp_path, f'{name} = "auto_add"'), "sftp://host/box")


def test_credentials_that_are_missing_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the credentials"):
        read_credentials(tmp_path / "none", "s3://bucket/box")
