"""Mailboxes that lie elsewhere: on an SFTP server, in a bucket, or in whatever else fsspec reaches.

`open_box` opens any mailbox by its address. What talks to a server is a process of its own
(`child`), which may hang or be killed; fsspec and the libraries below it are imported there alone.
`remote` gives it orders, and `check` tells whether a mailbox is fit.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from privcal.transport.mailbox import Box, FolderBox
from privcal.transport.post.address import is_remote, read_credentials, read_url
from privcal.transport.post.remote import RemoteBox
from privcal.trusted.errors import InputError

FLARE = "flare:"


def open_box(where: str, federation: str, credentials: Path | None = None) -> Box:
    """A federation's part of the mailbox at `where`: a folder, a URL, or `flare:` and an admin's kit.

    `credentials` is a file with what a server asks for, which only its owner may read. Without one
    the places count that the server's own tools know: an SSH agent and keys, an AWS profile.
    """
    if is_remote(where):
        url = read_url(where)
        options = {} if credentials is None else read_credentials(credentials, url)
        return RemoteBox(url, federation, options)
    if credentials is not None:
        raise InputError(f"{where} needs no credentials: give --credentials with a URL")
    if where.startswith(FLARE):
        opened: Box = import_module("privcal.transport.flare").FlareBox(
            where.removeprefix(FLARE), federation
        )
        return opened
    return FolderBox(where, federation)
