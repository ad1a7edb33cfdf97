"""What somebody with a good certificate and bad intentions does to a federation.

A participant of a FLARE federation is a *cell*: it may send a message to any other cell by name,
over the server, on any channel. An `Intruder` is such a cell, made by hand from a start-up kit: it
shows its certificate, takes the token that the server gives to everyone who has one, and then says
what FLARE's own tools would not say. It uses nothing of privcal.

The attacks are one method each. None waits longer than its timeout; "no reply" is a reply too, and
the one that an attacker should get.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import itertools
import json
import re
import shutil
import tempfile
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
from nvflare.apis.fl_constant import ReservedKey, ServerCommandKey, ServerCommandNames
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from nvflare.fuel.f3.cellnet.defs import ReturnCode as CellReturn
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.message import Message as CellMessage
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix
from nvflare.fuel.sec.authn import set_add_auth_headers_filters
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.admin_name_utils import new_admin_client_name
from nvflare.lighter.utils import load_private_key_file, sign_folders
from nvflare.private.admin_defs import Message
from nvflare.private.defs import ClientType, RequestHeader, TrainingTopic, new_cell_message
from nvflare.private.fed.authenticator import Authenticator
from nvflare.private.fed.utils.fed_utils import fobs_initialize
from nvflare.private.scheduler_constants import ShareableHeader

SECONDS = 2.0
"""How long an attacker waits for a reply."""

NET = "_net_manager"  # the channel of FLARE's NetAgent, which tells about a process and stops it
NET_TOPICS = (
    "process_info", "conns", "peers", "cells", "route", "url_use", "msg_stats", "list_pools",
    "show_pool", "comm_config", "config_vars", "speed", "echo",
)  # fmt: skip


@dataclass(frozen=True)
class Heard:
    """What came back: a return code and whatever was said, as one text to search in."""

    code: str
    payload: Any
    by: str = ""
    """Who replied: the cell that was asked, or one on the way."""

    @property
    def text(self) -> str:
        return f"{self.code} {_spelt(self.payload)}"

    @property
    def served(self) -> bool:
        """Whether the other end did something with it, rather than refuse or ignore it."""
        return self.code == CellReturn.OK


NOTHING = Heard("no reply", None)


class Intruder:
    """A cell with a participant's certificate, and the token that the server gives for it, if any.

    `token` is empty where the server gave none; the attacks are tried all the same.
    """

    def __init__(self, kits: Path, name: str) -> None:
        self.kits, self.name = kits, name
        self.startup = kits / name / "startup"
        project = json.loads((kits / "federation.json").read_text("utf-8"))
        self._project, server = project["name"], project["server"]
        self._server = server["host"]
        stem = "server" if name == self._server else "client"
        self.certificate, self.key = self.startup / f"{stem}.crt", self.startup / f"{stem}.key"
        fobs_initialize()
        flare_decomposers.register()
        fobs.register_enum_types(DriverParams)  # in the reply to `conns`
        # Any certificate may call its cell so: the name of one session of an administrator.
        self.cell = Cell(
            fqcn=new_admin_client_name(),
            root_url=f"http://{self._server}:{server['port']}",
            secure=True,
            credentials={
                DriverParams.CA_CERT.value: str(self.startup / "rootCA.pem"),
                DriverParams.CLIENT_CERT.value: str(self.certificate),
                DriverParams.CLIENT_KEY.value: str(self.key),
                DriverParams.CONNECTION_SECURITY.value: "mtls",
            },
            create_internal_listener=False,
            parent_url=None,
            auth_identity_map={FQCN.ROOT_SERVER: self._server},
        )
        self.token = ""
        self.received: list[bytes] = []
        """All that reached this cell, as it came: what cannot be decoded is seen all the same."""
        receive = self.cell.core_cell.process_message

        def listen(endpoint: Any, connection: Any, app: int, message: CellMessage) -> None:
            payload = message.payload
            if isinstance(payload, (bytes, bytearray, memoryview)):
                self.received.append(bytes(payload))
            self.received.append(str(message.headers).encode())
            receive(endpoint, connection, app, message)

        self.cell.core_cell.process_message = listen
        self._sending = concurrent.futures.ThreadPoolExecutor(64)

    def __enter__(self) -> Intruder:
        self.cell.start()
        with contextlib.suppress(Exception):  # not let in: it goes on without a token
            self._register()
        return self

    def __exit__(self, *problem: object) -> None:
        self._sending.shutdown(wait=False, cancel_futures=True)
        with contextlib.suppress(Exception):
            self.cell.stop()

    def _register(self) -> None:
        about_me = FLContext()
        about_me.set_public_props({ReservedKey.IDENTITY_NAME: self.name})
        token, signature, session, _ = Authenticator(
            cell=self.cell,
            project_name=self._project,
            client_name=self.name,
            client_type=ClientType.ADMIN,
            expected_sp_identity=self._server,
            secure_mode=True,
            root_cert_file=str(self.startup / "rootCA.pem"),
            private_key_file=str(self.key),
            cert_file=str(self.certificate),
            msg_timeout=SECONDS,
            retry_interval=0.5,
            timeout=0.1,  # one try: a server that gives tokens gives one at once
        ).authenticate(about_me, Signal())
        self.token = token
        set_add_auth_headers_filters(self.cell, self.name, token, signature, session)

    # --- saying anything to anyone ------------------------------------------------------------

    def send(
        self,
        target: str,
        channel: str,
        topic: str,
        payload: Any,
        timeout: float = SECONDS,
        *,
        core: bool = True,
        headers: dict[str, Any] | None = None,
    ) -> Heard:
        """Any payload on any channel: as one message (`core`), or as a stream of pieces."""
        request = new_cell_message(dict(headers or {}), payload)
        cell = self.cell.core_cell if core else self.cell
        try:
            reply = cell.send_request(
                target=target,
                channel=channel,
                topic=topic,
                request=request,
                timeout=timeout,
                optional=True,
            )
        except Exception as error:  # refused so early that it could not be sent
            return Heard(f"not sent ({type(error).__name__})", None)
        if reply is None:
            return NOTHING
        code = str(reply.get_header(MessageHeaderKey.RETURN_CODE))
        said = reply.get_header(MessageHeaderKey.ERROR)
        by = str(reply.get_header(MessageHeaderKey.ORIGIN, ""))
        return Heard(code, reply.payload if reply.payload is not None else said, by)

    def at_once(self, *attacks: Callable[[], Heard]) -> list[Heard]:
        """All of them at the same time: an attack waits for its reply, not for another's."""
        return [sent.result() for sent in [self._sending.submit(attack) for attack in attacks]]

    # --- what the server says to a site -------------------------------------------------------

    def admin_request(
        self,
        site: str,
        topic: str,
        headers: dict[str, Any] | None = None,
        body: Any = "",
        timeout: float = SECONDS,
    ) -> Heard:
        """One of the commands that FLARE's server gives its sites, from somebody else."""
        return self.send(
            site, CellChannel.CLIENT_MAIN, topic, command(topic, headers, body), timeout
        )

    def deploy(self, site: str, job: str, app: bytes, timeout: float = SECONDS) -> Heard:
        return self.admin_request(site, *deployment(job, app), timeout=timeout)

    def start(self, site: str, job: str, timeout: float = SECONDS) -> Heard:
        """Reserve what a site has for a job, and start what lies in the run's folder."""
        reserved = self.admin_request(site, *reservation(job), timeout=timeout)
        return self.admin_request(site, *starting(job, ticket(reserved)), timeout=timeout)

    def delete_run(self, site: str, job: str) -> Heard:
        return self.admin_request(site, TrainingTopic.DELETE_RUN, {RequestHeader.JOB_ID: job})

    # --- what a process tells about itself ----------------------------------------------------

    def net(self, target: str, topic: str, payload: Any = None) -> Heard:
        return self.send(target, NET, topic, payload)

    # --- somebody else's campaign -------------------------------------------------------------

    def app_command(self, job: str, topic: str, data: Any, *, core: bool = False) -> Heard:
        """A command to a job's process at the server, past the server's own question of rights."""
        request = Shareable()
        request[ServerCommandKey.TOPIC] = topic
        request[ServerCommandKey.DATA] = data
        target = FQCN.join([FQCN.ROOT_SERVER, job])
        return self.send(
            target, CellChannel.SERVER_COMMAND, ServerCommandNames.APP_COMMAND, request, core=core
        )

    def aux(self, target: str, topic: str, data: dict[str, Any] | None = None) -> Heard:
        """A message from one component to another; "fed.event" has any event fired."""
        request = Shareable()
        request.update(data or {})
        request.set_header(ReservedHeaderKey.PEER_PROPS, {ReservedKey.IDENTITY_NAME: "server"})
        return self.send(target, CellChannel.AUX_COMMUNICATION, topic, request, core=False)

    def jobs(self) -> list[str]:
        """The jobs that run now, as the server's list of cells tells; one that does not, if none.

        An attack that needs a job's name is tried all the same.
        """
        known = self.net("server", "cells").text
        found = sorted(set(re.findall(rf"server\.({_UUID})", known)))
        return found or [str(uuid.uuid4())]

    def again(self, headers: dict[str, Any], payload: bytes, timeout: float = SECONDS) -> Heard:
        """A message that somebody else sent, byte for byte, from this cell."""
        encoding = MessageHeaderKey.PAYLOAD_ENCODING
        return self.send(
            headers[MessageHeaderKey.DESTINATION],
            headers[MessageHeaderKey.CHANNEL],
            headers[MessageHeaderKey.TOPIC],
            payload,
            timeout,
            headers={encoding: headers[encoding]} if encoding in headers else None,
        )


_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


@contextlib.contextmanager
def official(kits: Path, name: str) -> Iterator[Any]:
    """A session by FLARE's own tools; None where the server gives none."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    with tempfile.TemporaryDirectory() as folder:
        kit = Path(shutil.copytree(kits / name, Path(folder, name)))
        config = json.loads((kit / "startup" / "fed_admin.json").read_text("utf-8"))
        config["admin"]["authenticate_msg_timeout"] = SECONDS
        (kit / "startup" / "fed_admin.json").write_text(json.dumps(config), "utf-8")
        try:
            session = new_secure_session(name, str(kit), timeout=SECONDS, auto_login_max_tries=1)
        except Exception:
            yield None
            return
        try:
            yield session
        finally:
            session.close()


# --- what the server's operator sees ----------------------------------------------------------

TAP = """
import os, runpy, sys
if os.path.exists("startup/fed_server.json"):
    from nvflare.fuel.f3.sfm.conn_manager import ConnManager
    carry = ConnManager.process_frame_task
    def listen(self, connection, frame):
        with open({tap!r}, "ab") as file:
            file.write(len(frame).to_bytes(8, "big") + bytes(frame))
        return carry(self, connection, frame)
    ConnManager.process_frame_task = listen
else:  # a site has no tap, and this file must not stand before an attacker's of the same name
    for place in sys.path:
        other = os.path.join(place, "sitecustomize.py")
        if os.path.isfile(other) and not os.path.samefile(other, __file__):
            runpy.run_path(other)
"""


def frames(tap: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Headers and payload of every message that reached a tapped server."""
    with tap.open("rb") as file:
        while size := file.read(8):
            frame = file.read(int.from_bytes(size, "big"))
            if len(frame) < PREFIX_LEN:
                return  # being written
            start = PREFIX_LEN + Prefix.from_bytes(frame).header_len
            if start > PREFIX_LEN:
                yield msgpack.unpackb(frame[PREFIX_LEN:start]), frame[start:]


# --- the messages themselves ------------------------------------------------------------------


def command(topic: str, headers: dict[str, Any] | None = None, body: Any = "") -> Message:
    request = Message(topic=topic, body=body)
    request.set_headers(headers or {})
    return request


def _meta(job: str) -> dict[str, Any]:
    return {"job_id": job, "name": "privcal-campaign", "resource_spec": {}, "min_clients": 1,
            "deploy_map": {"app": ["@ALL"]}}  # fmt: skip


def deployment(job: str, app: bytes) -> tuple[str, dict[str, Any], bytes]:
    """Topic, headers and body of "take this app": an archive that FLARE unpacks."""
    return (
        TrainingTopic.DEPLOY,
        {
            RequestHeader.JOB_ID: job,
            RequestHeader.JOB_META: _meta(job),
            RequestHeader.APP_NAME: "app",
        },
        app,
    )


def reservation(job: str) -> tuple[str, dict[str, Any], Any]:
    return TrainingTopic.CHECK_RESOURCE, {RequestHeader.JOB_ID: job}, {}


def ticket(reserved: Heard) -> str:
    """What a site gave for a reservation: a job is started with it."""
    given = getattr(reserved.payload, "body", None)
    if not isinstance(given, Shareable):
        return ""
    return str(given.get_header(ShareableHeader.RESOURCE_RESERVE_TOKEN, ""))


def starting(job: str, reserved: str = "") -> tuple[str, dict[str, Any], Any]:
    return (
        TrainingTopic.START_JOB,
        {
            RequestHeader.JOB_ID: job,
            RequestHeader.JOB_META: _meta(job),
            ShareableHeader.RESOURCE_RESERVE_TOKEN: reserved,
        },
        {},
    )


# --- code by a race ---------------------------------------------------------------------------

EXECUTOR = "privcal.transport.federation.executor.SiteExecutor"
CODE = """
import os
with open({marker!r}, "a") as file:
    file.write(f"ran in process {{os.getpid()}}, sees {{sorted(os.listdir('local'))}}\\n")
"""


def app_archive(
    startup: Path, folder: Path, code: str | None = None, megabytes: tuple[int, int] = (150, 400)
) -> bytes:
    """An app as a site takes it, signed with a kit's key; with `code`, as it must not.

    The code lies between two files of zeros: small as they travel, large as they are unpacked, so
    that unpacking takes long enough for other messages to arrive meanwhile.
    """
    folder.mkdir(parents=True)
    config = {
        "format_version": 2,
        "executors": [{"tasks": ["privcal"], "executor": {"path": EXECUTOR, "args": {}}}],
        "components": [],
    }
    files: dict[str, bytes] = {
        "config/config_fed_client.json": json.dumps(config).encode(),
        "config/config_fed_server.json": b'{"format_version": 2, "workflows": []}',
    }
    if code is not None:
        first, last = (
            {name: bytes(size * 2**20)}
            for name, size in zip(("aaa/zeros", "zzz/zeros"), megabytes, strict=True)
        )
        files = {**first, "custom/sitecustomize.py": code.encode(), **files, **last}
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    stem = "server" if (startup / "server.key").exists() else "client"
    key = load_private_key_file(str(startup / f"{stem}.key"))
    sign_folders(str(folder), key, str(startup / f"{stem}.crt"))
    signatures = [p.relative_to(folder).as_posix() for p in folder.rglob(".*") if p.is_file()]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted([*files, *signatures], key=lambda n: _order(n, list(files))):
            archive.write(folder / name, name)
    return packed.getvalue()


def _order(name: str, files: Sequence[str]) -> int:
    """Signatures come first, then the files in the order in which they were listed."""
    return files.index(name) if name in files else -1


def race(
    say: Callable[[str, tuple[str, dict[str, Any], Any], float], Heard],
    site: str,
    good: bytes,
    evil: bytes,
    marker: Path,
    *,
    seconds: float = 12.0,
) -> list[Heard]:
    """Two deployments of one job and its start, so close together that code is there for a moment.

    `say(site, request, timeout)` sends. Deploying `evil` takes a while, and is refused at the end.
    While its first large file is unpacked, `good` is deployed under the same name and accepted;
    while its second is unpacked, with the code between them on disk by then, the job is started.
    Where the moment lies is found by trying, for `seconds`, or until the marker is there: the
    refusals tell whether `good` came too early or too late.
    """
    end = time.monotonic() + seconds
    heard: list[Heard] = []

    def slow(job: str, patience: float) -> tuple[float, str]:
        began = time.monotonic()
        heard.append(reply := say(site, deployment(job, evil), patience))
        return min(time.monotonic() - began, seconds / 4), reply.text

    takes, _ = slow(str(uuid.uuid4()), seconds / 4)
    # Everything is unpacked twice: to look at it, and from the middle on in the run's folder.
    share, later = 0.56, itertools.cycle((0.17, 0.25, 0.12))
    with concurrent.futures.ThreadPoolExecutor(1) as aside:
        while not marker.exists() and time.monotonic() + takes < end:
            job = str(uuid.uuid4())
            reserved = ticket(say(site, reservation(job), min(SECONDS, takes)))
            began = time.monotonic()
            unpacking = aside.submit(slow, job, takes + 2)
            time.sleep(share * takes)
            heard.append(say(site, deployment(job, good), takes))
            time.sleep(max(0.0, began + (share + next(later)) * takes - time.monotonic()))
            heard.append(say(site, starting(job, reserved), takes))
            takes, said = unpacking.result()
            share += 0.04 if "no code" in said else -0.04 if "deployed" in said else 0.0
    return heard


# --- helpers ----------------------------------------------------------------------------------


def _spelt(payload: Any) -> str:
    if isinstance(payload, Message):
        return f"{payload.body} {payload.headers}"
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return bytes(payload).decode("latin-1")
    return str(payload)
