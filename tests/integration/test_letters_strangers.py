"""Strangers, members and the curious, at real sites with a folder between them: nothing is theirs."""

from __future__ import annotations

import ctypes
import io
import json
import os
import pickle
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privcal

pytest.importorskip("cryptography", reason="letters need cryptography: privcal[secure]")
if not Path("/proc/self/cmdline").exists():
    pytest.skip("finds processes in /proc", allow_module_level=True)

from privcal.secure.keys import SealingKey
from privcal.secure.panel import Secure
from privcal.transport.content import Reply
from privcal.transport.keys import Keys
from privcal.transport.letter import MAX_LETTER, Letter, digest, file_name
from privcal.transport.replied import Replied
from privcal.transport.site import log, outbox, setup
from privcal.transport.site.service import STATUS
from privcal.transport.site.settings import LEDGER
from privcal.transport.standing import Standing
from privcal.trusted.errors import InputError
from privcal.trusted.policy import Policy
from privcal.trusted.queries import CellHistogram
from tests.integration.test_site_processes import children, until
from tests.support import campaigns
from tests.support.letters import (
    ANN,
    BOB,
    MODEL,
    Asker,
    Federation,
    federation,
    nano,
    question,
    write_rows,
)

pytestmark = pytest.mark.slow

CARL, HOSPITAL, NAMES = "carl", "site-3", ("site-1", "site-2", "site-3")
CANARY = "canary-7f3a9c"
"""In names of folders, files and models, in person ids, and in what errors say."""


# --- sites as processes ---------------------------------------------------------------------


def command(*args: object, **how: Any) -> subprocess.Popen[str]:
    """`privcal`, as a person runs it."""
    env = {**os.environ, **how.pop("env", {})}
    words = [sys.executable, "-P", "-m", "privcal", *map(str, args)]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how}
    return subprocess.Popen(words, env=env, text=True, **how)


@contextmanager
def running(fed: Federation, name: str, **how: Any) -> Iterator[subprocess.Popen[str]]:
    """Meanwhile this site runs, and looks into the mailbox ten times a second."""
    way = ("--folder", fed.mailbox, "--every", 0.1)
    with tempfile.TemporaryFile("w") as said:
        process = command("site", "run", fed.at(name), *way, stdout=said, stderr=said, **how)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Three hospitals, of which the first has secrets, and three calibrators; nothing runs."""
    folder = tmp_path_factory.mktemp("strangers")
    secret = write_rows(folder / CANARY / f"{CANARY}.npz", 30, 7, f"{CANARY}-person")
    other = write_rows(folder / CANARY / "other.npz", 30, 8)
    init = setup.init

    def with_secrets(at: Path, data: Path, *given: Any, **more: Any) -> Any:
        if at.name != "site-1":
            return init(at, data, *given, **more)
        init(at, secret, *given, person="person", **more)
        return setup.add(at, other, Policy(1.0), model=f"{CANARY}-model", warn=lambda text: None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVCAL_MARKS", str(folder / "marks.db"))
        with pytest.MonkeyPatch.context() as secrets:
            secrets.setattr(setup, "init", with_secrets)
            who, wanted = (ANN, BOB, CARL), campaigns.policy(epsilon=1000.0)
            fed = federation(folder / "f", 3, calibrators=who, policy=wanted, start=False)
        yield fed


@pytest.fixture(scope="module")
def sites(made: Federation) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """They run, and each has answered: its process with the data is there."""
    with ExitStack() as stack:
        processes = {name: stack.enter_context(running(made, name)) for name in NAMES}
        for name in NAMES:
            assert answer(made.asker(), name, "begin").answers
        yield processes


@pytest.fixture
def fed(made: Federation, sites: object) -> Federation:
    return made


def answer(by: Asker, name: str, *args: Any, **more: Any) -> Reply:
    """A site's reply to one question, through the mailbox."""
    return replied(by, name, by.request("ask", name, question(*args, **more)))


def replied(by: Asker, name: str, request: Any) -> Reply:
    letter = by.put(name, request)
    until(lambda: by.replies(name, request, letter))
    return by.replies(name, request, letter)[-1]


def calibrate(fed: Federation, who: str, out: Path, *more: object) -> subprocess.Popen[str]:
    way = ("--as", fed.at(who), "--mailbox", fed.mailbox, "--model", MODEL, "--every", 0.05)
    return command(
        *("federation", "calibrate", *way, "--out", out, "--wait", 60, "--method", "acc-t"), *more
    )


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    """All that it said."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    return out + err


def spent(fed: Federation) -> dict[str, int]:
    return {name: fed.ledger(name).nano_spent for name in NAMES}


def everything_in(folder: Path) -> bytes:
    """Every name and every file."""
    paths = sorted(folder.rglob("*"))
    read = (path.read_bytes() if path.is_file() else b"" for path in paths)
    names = (str(path.relative_to(folder)).encode() for path in paths)
    return b"\n".join([*names, *read])


def opened(fed: Federation, keys: list[SealingKey]) -> list[Replied]:
    """What is inside all replies in the mailbox that one of these keys opens."""
    found = []
    for name in NAMES:
        for file in fed.box.list(fed.id(name)):
            content = fed.box.get(fed.id(name), file)
            assert content is not None
            for key in keys:
                try:
                    found.append(Replied.read(Letter.read(content).open(key)))
                except ValueError:
                    continue
    return found


# --- what nobody may learn ------------------------------------------------------------------


@contextmanager
def keys_made() -> Iterator[list[SealingKey]]:
    """All keys for replies that are made meanwhile in this process."""
    keys, make = list[SealingKey](), SealingKey.make
    with pytest.MonkeyPatch.context() as patch:

        def kept(*given: Any) -> SealingKey:
            keys.append(make(*given))
            return keys[-1]

        patch.setattr(SealingKey, "make", kept)
        yield keys


def secrets_of(fed: Federation) -> list[bytes]:
    """Words that nobody but site-1 may see: its paths, people, models, and numbers in its rows."""
    with np.load(fed.folder.parent / CANARY / f"{CANARY}.npz") as rows:
        logits = rows["logits"][:5].ravel()
    numbers = [text for v in logits for text in (repr(float(v)), str(v)) if len(text) > 7]
    assert numbers
    words = [CANARY, str(fed.at("site-1")), LEDGER, "Traceback", *numbers]
    return [word.encode() for word in words] + [logits.tobytes()]


def test_nothing_of_a_sites_files_people_rows_or_errors_reaches_the_mailbox_or_the_calibrator(
    fed: Federation, tmp_path: Path
) -> None:
    """Whatever is asked, also while its data are damaged or gone; in what is sealed, too."""
    data = fed.folder.parent / CANARY / f"{CANARY}.npz"
    secrets, whole, said = secrets_of(fed), data.read_bytes(), ""
    with keys_made() as keys:
        ann, codes = fed.asker(), []
        for kind in ("about", "release"):
            assert replied(ann, "site-1", ann.request(kind, "site-1")).accepted
        assert answer(ann, "site-1", "canary", query=CellHistogram(bins=3)).answers
        codes.append(answer(ann, "site-1", "another", model="x").refused)
        codes.append(answer(ann, "site-1", "dear", model=f"{CANARY}-model", epsilon=5).refused)
        shown = campaigns.calibrated(
            fed, fed.box, tmp_path / "record", secure=Secure(colluding=1), campaign="sum"
        )
        said += repr(vars(shown))
        try:
            data.write_bytes(f"{CANARY}-label".encode())
            codes.append(answer(ann, "site-1", "broken").refused)
            data.unlink()
            codes.append(answer(ann, "site-1", "gone").refused)
            out = tmp_path / "ann" / "map.json"
            out.parent.mkdir()
            page = ("--html", out.with_suffix(".html"), "--min-sites", 2, "--wait", 10)
            said += ended(calibrate(fed, ANN, out, *page))
        finally:
            data.write_bytes(whole)
    assert codes == ["model", "over_request_limit", "unavailable", "unavailable"]
    assert CANARY in (fed.at("site-1") / log.LOG).read_text(), "its owner is told"
    inside = opened(fed, keys)
    assert len({reply.about for reply in inside}) >= 9, "those of the sum among them"
    seen = {
        "the mailbox": everything_in(fed.mailbox),
        "what is sealed": "\n".join(reply.text for reply in inside).encode(),
        "the calibrators' folders": b"".join(everything_in(fed.at(n)) for n in (ANN, BOB)),
        "the record and the map": everything_in(tmp_path),
        "what is printed": said.encode(),
    }
    for where, content in seen.items():
        assert [word for word in secrets if word in content] == [], where


def noisy_values(fed: Federation) -> set[int]:
    """Numbers that left a site, as its ledger stored them; long enough to be told from others."""
    found: set[int] = set()
    for name in NAMES:
        with closing(sqlite3.connect(fed.at(name) / LEDGER)) as db:
            for (text,) in db.execute("SELECT answer FROM entry WHERE answer IS NOT NULL"):
                values = json.loads(text)
                found |= {v for v in values if isinstance(v, int) and abs(v) >= 10**5}
    return found


def readable(values: set[int], seen: bytes) -> set[int]:
    """Those numbers that somebody who sees these bytes can read: in words or in binary."""
    words = {int(word) for word in re.findall(rb"-?\d+", seen)}
    return {
        value
        for value in values
        if value in words
        or value.to_bytes(8, "big", signed=True) in seen
        or value.to_bytes(8, "little", signed=True) in seen
    }


def test_nobody_else_reads_or_ends_a_campaign(fed: Federation, tmp_path: Path) -> None:
    """Another calibrator and a hospital read the mailbox, and say again all that Ann ever said."""
    known = noisy_values(fed)
    with keys_made() as keys:
        campaigns.calibrated(fed, fed.box, tmp_path / "record", campaign="hers")
    secret, paid = noisy_values(fed) - known, spent(fed)
    hers = [fed.box.get(fed.id(ANN), name) for name in fed.box.list(fed.id(ANN))]
    for name in (BOB, HOSPITAL):
        own = Keys.load(fed.at(name))
        for content in filter(None, hers):
            letter = Letter.read(content)
            if letter.reader == own.id:
                continue  # what a site signed and does not know stops it, and nobody else can
            signed = json.dumps(["privcal letter 4", own.id, letter.reader, letter.sealed])
            stolen = Letter(
                own.id, letter.reader, letter.sealed, own.sign(signed.replace(", ", ","))
            )
            stolen.check(own.public)
            for again in (content, stolen.content):
                fed.box.put(fed.id(BOB), file_name(letter.reader, again), again)
    assert answer(fed.asker(BOB), "site-1", "after").answers, "all of them were looked at"
    for name in ("site-2", "site-3"):
        assert answer(fed.asker(BOB), name, "after").answers
    theirs = [SealingKey.make(), *Keys.load(fed.at(BOB)).openers(0), fed.asker(BOB).key]
    theirs += Keys.load(fed.at(HOSPITAL)).openers(0)
    seen = everything_in(fed.mailbox)
    seen += "".join(reply.text for reply in opened(fed, theirs)).encode()
    mine = "".join(reply.text for reply in opened(fed, keys)).encode()
    assert len(readable(secret, mine)) >= 6, "there was something to read"
    assert readable(secret, seen) == set()
    assert spent(fed) == {name: one + nano(0.5) for name, one in paid.items()}


# --- who is answered ------------------------------------------------------------------------


def test_a_stranger_a_hospital_a_removed_calibrator_and_another_federations_hear_nothing(
    fed: Federation, tmp_path: Path
) -> None:
    """Whichever folder they have their letters in; whoever may ask is answered between them."""
    two = federation(tmp_path, 1, calibrators=(ANN,), start=False)
    eve = Keys.make(tmp_path, "eve", "calibrator")
    signers = {
        "a stranger": eve,
        "a hospital": Keys.load(fed.at(HOSPITAL)),
        "who was removed": Keys.load(fed.at(CARL)),
        "of another federation": Keys.load(two.at(ANN)),
    }
    without = fed.without(CARL)
    ann = fed.asker()
    asked = ann.request("ask", "site-1", question("strange"))
    card = fed.roster.named("site-1")
    assert card is not None
    letters = {}
    for who, keys in signers.items():
        for federation_id in (asked.federation, two.roster.federation):
            for stamp in (asked.roster, without.stamp):
                facts = {"sender": keys.id, "federation": federation_id, "roster": stamp}
                text = replace(asked, **facts).text
                letters[Letter.write(text, keys, card.id, card.sealing)] = who
    (fed.mailbox / asked.federation / f"roster-{without.number}").write_text(without.text)
    until(lambda: all(Standing(fed.at(n)).roster.number == without.number for n in NAMES))
    fed.accept(without, ANN, BOB)
    paid, before = spent(fed), set(fed.box.list(card.id))
    for letter in letters:
        own = {letter.sender} - {fed.id(HOSPITAL)}  # there it would stop that hospital
        for writer in (*own, fed.id(ANN), fed.id(BOB), card.id):
            fed.box.put(writer, letter.name, letter.content)
    honest = ann.request("ask", "site-1", question("honest"))
    sent = ann.put("site-1", honest)
    until(lambda: ann.replies("site-1", honest, sent))
    second = answer(ann, "site-1", "honest", 1)  # a look later
    assert second.answers or second.refused == "id_conflict"
    new = [Letter.read(fed.box.get(card.id, n) or b"") for n in set(fed.box.list(card.id)) - before]
    readers = [letter.reader for letter in new if letter not in letters]
    assert set(readers) == {fed.id(ANN)}, "none of them hears a word"
    assert len(readers) == 2, "and nobody else is answered in their place"
    assert paid["site-1"] < fed.ledger("site-1").nano_spent <= paid["site-1"] + 2 * nano(0.5)
    assert {n: spent(fed)[n] for n in NAMES[1:]} == {n: paid[n] for n in NAMES[1:]}


# --- code, files, memory --------------------------------------------------------------------


class Runs:
    """What runs a command where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def bombs(marker: Path) -> list[bytes]:
    """Code in every wrapping, and what is small until it is unpacked."""
    code, zipped = f"import os; os.system('touch {marker}')\n", io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__main__.py", code)
        archive.writestr("zeros", bytes(400 << 20))
    array = io.BytesIO()
    np.save(array, np.array([Runs(marker)], dtype=object), allow_pickle=True)
    made = [zipped.getvalue(), array.getvalue(), code.encode(), b"\x80\x05" + bytes(MAX_LETTER - 2)]
    made += [pickle.dumps(Runs(marker), protocol) for protocol in range(6)]
    deep = [open_ * (MAX_LETTER // len(open_)) for open_ in (b"[", b'{"a":', b'{"from":[')]
    huge = [b'{"privcal": %s}' % (b"9" * (MAX_LETTER - 100)), b'"' + b"\\u0000" * (MAX_LETTER // 6)]
    return [*made, *deep, *huge]


def contents(folder: Path) -> set[str]:
    """What lies in a site's folder, but for what it writes of every letter."""
    own = {LEDGER, outbox.OUTBOX, STATUS, log.LOG}
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    return {name for name in names if not any(name.startswith(one) for one in own)}


def unheard(folder: Path) -> int:
    """How many letters a site that runs has dropped, as it says every few seconds."""
    until((folder / STATUS).exists)
    return sum(json.loads((folder / STATUS).read_text())["unheard"].values())


def peak_megabytes(pids: list[int]) -> int:
    peaks = [re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{p}/status").read_text()) for p in pids]
    return sum(int(peak) for [peak] in peaks) // 1024


def test_no_file_that_anybody_leaves_brings_code_a_file_or_memory_to_a_site(
    fed: Federation, sites: Mapping[str, subprocess.Popen[str]], tmp_path: Path
) -> None:
    """In a calibrator's folder and the site's own, bare, and sealed and signed by a calibrator."""
    marker, ann, at = tmp_path / "marker", fed.asker(), fed.at("site-1")
    card = ann.roster.named("site-1")
    assert card is not None
    parent = sites["site-1"].pid
    before, files = [parent, *children(parent)], contents(at)
    peak = peak_megabytes(before)
    all_of_them, dropped = bombs(marker), unheard(at)
    for bomb in all_of_them:
        for writer in (ann.keys.id, card.id):
            fed.box.put(writer, f"{card.id}-{digest(bomb)}", bomb)
        text = bomb[: MAX_LETTER // 2].decode("latin-1").encode("ascii", "replace").decode()
        letter = Letter.write(text, ann.keys, card.id, card.sealing)
        fed.box.put(ann.keys.id, letter.name, letter.content)
    for n in range(2):
        assert answer(ann, "site-1", "after bombs", query=CellHistogram(bins=2 + n)).facts
    until(lambda: unheard(at) - dropped >= 3 * len(all_of_them))
    assert not marker.exists()
    assert [parent, *children(parent)] == before
    assert contents(at) == files
    assert peak_megabytes(before) < peak + 100


# --- those who die --------------------------------------------------------------------------


def test_calibrators_that_die_leave_nothing_behind_and_lock_nobody_out(
    fed: Federation, sites: Mapping[str, subprocess.Popen[str]], tmp_path: Path
) -> None:
    """Four are killed in mid-campaign; she calibrates a fifth time, and Bob, and no process is left."""
    before = {name: children(process.pid) for name, process in sites.items()}
    dying = [calibrate(fed, ANN, tmp_path / f"{n}.json") for n in range(4)]
    answers = [tmp_path / f"{n}.json.campaign" / "answers.jsonl" for n in range(4)]
    until(
        lambda: (
            all(file.exists() and file.stat().st_size for file in answers)
            or any(p.poll() for p in dying)
        )
    )
    assert not any(p.poll() for p in dying), [p.communicate() for p in dying if p.poll()]
    for process in dying:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    for who in (ANN, BOB):
        out = tmp_path / f"{who}.json"
        ended(calibrate(fed, who, out, "--min-sites", 3))
        assert privcal.load_map(out).provenance["answered"][-1] == 3
    until(lambda: {name: children(process.pid) for name, process in sites.items()} == before)


# --- another account ------------------------------------------------------------------------


@contextmanager
def one_site(folder: Path) -> Iterator[Federation]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVCAL_MARKS", str(folder / "marks.db"))
        yield federation(folder / "f", 1, start=False)


def test_a_site_set_up_by_one_account_and_run_by_another_answers(tmp_path: Path) -> None:
    """Its marks are where PRIVCAL_MARKS says, whatever HOME it is started with."""
    home = tmp_path / "home"
    home.mkdir()
    with (
        one_site(tmp_path) as fed,
        running(fed, "site-1", env={"HOME": str(home), "XDG_STATE_HOME": ""}),
    ):
        assert answer(fed.asker(), "site-1").answers
        assert list(home.rglob("marks.db")) == []


def test_a_site_run_by_an_account_with_other_marks_answers_nothing_and_makes_none(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    other = {"HOME": str(home), "XDG_STATE_HOME": "", "PRIVCAL_MARKS": ""}
    with one_site(tmp_path) as fed:
        with running(fed, "site-1", env=other):
            assert answer(fed.asker(), "site-1").refused == "ledger_rolled_back"
        assert list(home.rglob("marks.db")) == []
        assert fed.ledger("site-1").nano_spent == 0
        assert "set PRIVCAL_MARKS" in (fed.at("site-1") / log.LOG).read_text()


_DROP, _OVERRIDE = 24, (1, 2, 3)


def _like_any_other() -> None:
    """Root, from the next program on, without the right to what is another account's."""
    for right in _OVERRIDE:
        assert ctypes.CDLL(None).prctl(_DROP, right, 0, 0, 0) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another account")
def test_a_site_whose_folder_is_another_accounts_says_so_in_one_sentence(tmp_path: Path) -> None:
    with one_site(tmp_path) as fed:
        paid = spent_by_one(fed)
        for path in (fed.at("site-1"), *fed.at("site-1").rglob("*")):
            os.chown(path, 65534, 65534)
        way = ("--folder", fed.mailbox, "--once")
        run = partial(command, "site", "run", fed.at("site-1"), *way)
        for entrance, says in ((0o700, "is not readable"), (0o755, "error: ")):
            fed.at("site-1").chmod(entrance)
            said = ended(run(preexec_fn=_like_any_other), 2)
            assert says in said
            assert str(fed.at("site-1")) in said
            assert "Traceback" not in said
        assert spent_by_one(fed) == paid


def spent_by_one(fed: Federation) -> int:
    try:
        return fed.ledger("site-1").nano_spent
    except InputError:
        return -1
