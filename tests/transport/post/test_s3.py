"""What is listed of a bucket is what is there now, page after page."""

from __future__ import annotations

from pathlib import Path

import pytest

from privcal.transport.letter import file_name
from privcal.transport.post.remote import RemoteBox
from tests.transport.post.conftest import FEDERATION, OTHER, OWN


@pytest.mark.slow
def test_more_files_than_a_page_has_are_all_listed(s3) -> None:
    box = RemoteBox(s3.url, FEDERATION, s3.options)
    names = {file_name(OTHER, b"%d" % k) for k in range(1050)}
    for k in range(1050):
        box.put(OWN, file_name(OTHER, b"%d" % k), b"%d" % k)
    assert set(box.list(OWN)) == names


def test_the_keys_of_an_account_come_from_the_places_of_aws(
    s3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile, or the environment; nothing is given to privcal."""
    profile = tmp_path / "credentials"
    profile.write_text("[site]\naws_access_key_id = k\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.options["endpoint_url"])
    monkeypatch.setenv("AWS_PROFILE", "site")
    box = RemoteBox(s3.url, FEDERATION)
    box.put(OWN, file_name(OTHER, b"x"), b"x")
    assert box.get(OWN, file_name(OTHER, b"x")) == b"x"
