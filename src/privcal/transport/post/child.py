"""The process that talks to a server: put, list, get and delete below one URL, for `remote`.

It alone imports fsspec and what a protocol needs below it. Whatever a server does to it, it is
killed in the end, by its parent or its own alarm, and holds no key of privcal's. It reads frames
from its standard input and writes one to its standard output for each:

    {"url", "options"}                     first, and is not answered
    {"do", "path", "limit"} \\n CONTENT     answered with + and bytes, 0 for nothing, - and a sentence

After a sentence it ends, because nobody knows what state its connection is in.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any
from urllib.parse import unquote, urlsplit

from privcal.transport.mailbox import NAME, ROSTER
from privcal.transport.post.frames import FOUND, NOTHING, PROBLEM, read_frame, write_frame

ALARM = 90
"""Seconds after which an operation ends this process, should its parent be gone."""
MEMORY = 1 << 30
"""Bytes that this process may take, whatever a server sends."""
MAX_LISTED, MAX_KEPT = 1_000_000, 200_000
"""Names of a folder that are listed at all, and those that are told of: of more, a random part."""
LIST_SECONDS = 45.0


class Files:
    """A server's files, by fsspec."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        parts = urlsplit(url)
        make = {
            "sftp": _sftp,
            "s3": _s3,
            "https": _webdav,
            "smb": _smb,
            "abfs": _abfs,
        }[parts.scheme]
        self.system, self._root = make(parts, options)

    def path(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}"

    def list(self, path: str) -> bytes:
        """The names of the form that a mailbox has, at most so many, whatever the order they come in."""
        kept: list[str] = []
        matched, end = 0, time.monotonic() + LIST_SECONDS
        for listed, found in enumerate(self._names(self.path(path))):
            name = found.rsplit("/", 1)[-1]
            if NAME.fullmatch(name) or ROSTER.fullmatch(name):
                matched += 1
                if len(kept) < MAX_KEPT:
                    kept.append(name)
                elif (place := random.randrange(matched)) < MAX_KEPT:
                    kept[place] = name
            if listed >= MAX_LISTED or time.monotonic() > end:
                break
        return "\n".join(kept).encode("ascii")

    def _names(self, path: str) -> Iterator[str]:
        if hasattr(self.system, "names"):  # one page after the other, with an end
            yield from self.system.names(path)
        else:
            self.system.invalidate_cache()
            yield from self.system.ls(path, detail=False)

    def get(self, path: str, limit: int) -> bytes:
        """As much of a file as `limit`; FileNotFoundError where the server does not give it."""
        try:
            with self.system.open(self.path(path), "rb", **self._opening) as file:
                content: bytes = file.read(limit)
                return content
        except (ConnectionError, TimeoutError):
            raise
        except OSError as error:  # a folder, or one that may not be read; or the line is dead
            if getattr(self.system, "alive", True):
                raise FileNotFoundError from error
            raise

    @property
    def _opening(self) -> dict[str, Any]:
        opening: dict[str, Any] = getattr(self.system, "opening", {})
        return opening

    def put(self, path: str, content: bytes) -> None:
        try:
            self.system.pipe_file(self.path(path), content)
        except FileNotFoundError:  # make the folders of the federation and the writer, none above
            folders = path.split("/")[:-1]
            for end in range(1, len(folders) + 1):
                with suppress(FileExistsError):
                    folder = self.path("/".join(folders[:end]))
                    self.system.mkdir(folder, create_parents=False)
            self.system.pipe_file(self.path(path), content)

    def delete(self, path: str) -> None:
        self.system.rm_file(self.path(path))


def _made(path: str, **options: Any) -> Any:
    """A file system of our choice of class: an installed package cannot take a protocol over."""
    module, _, name = path.partition(":")
    given = {key: value for key, value in options.items() if value is not None}
    return getattr(import_module(module), name)(skip_instance_cache=True, **given)


def _sftp(url: Any, options: dict[str, Any]) -> tuple[Any, str]:
    user = unquote(url.username) if url.username else None
    given = {"username": user, "port": url.port or 22, **options}
    return _made("privcal.transport.post.sftp:PinnedSFTP", host=url.hostname, **given), url.path


def _s3(url: Any, options: dict[str, Any]) -> tuple[Any, str]:
    region = options.pop("region", None)
    system = _made("privcal.transport.post.s3:Bucket", **options, region=region)
    return system, url.netloc + url.path


def _webdav(url: Any, options: dict[str, Any]) -> tuple[Any, str]:
    user = (options["username"], options["password"]) if options else None
    return _made("webdav4.fsspec:WebdavFileSystem", base_url=url.geturl(), auth=user), ""


def _smb(url: Any, options: dict[str, Any]) -> tuple[Any, str]:
    name = "fsspec.implementations.smb:SMBFileSystem"
    return _made(name, host=url.hostname, port=url.port, **options), url.path


def _abfs(url: Any, options: dict[str, Any]) -> tuple[Any, str]:
    return _made("adlfs:AzureBlobFileSystem", **options), url.netloc + url.path


def answered(files: Files, order: dict[str, Any], content: bytes) -> bytes:
    """What comes of one order."""
    path = order["path"]
    try:
        if order["do"] == "list":
            return FOUND + files.list(path)
        if order["do"] == "get":
            return FOUND + files.get(path, order["limit"])
        if order["do"] == "put":
            files.put(path, content)
        if order["do"] == "delete":
            files.delete(path)
    except FileNotFoundError:
        if order["do"] == "put":
            raise
    return NOTHING


def sentence(error: BaseException) -> str:
    """An error of whatever library, in a line."""
    text = " ".join(f"{error}".split()) or type(error).__name__
    return "".join(c for c in text if c.isprintable())[:300]


def main() -> None:
    """Take orders until the parent ends, or something goes wrong."""
    given, told = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no frame
    logging.disable()
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    first, files = json.loads(read_frame(given)), None
    with suppress(EOFError, KeyboardInterrupt):
        while True:
            order, _, content = read_frame(given).partition(b"\n")
            signal.alarm(ALARM)
            try:
                files = files or Files(first["url"], first["options"])
                reply = answered(files, json.loads(order), content)
            except Exception as error:
                reply = PROBLEM + sentence(error).encode()
            write_frame(told, reply)
            signal.alarm(0)
            if reply.startswith(PROBLEM):
                os._exit(1)  # no thread of a library's keeps it


if __name__ == "__main__":
    main()
