"""What letters cost: one round at a calibrator, a letter at a site, a site's work, and strange files.

Everything runs in this process. Name a clone of da6e529 in PRIVCAL_BESIDE, and the work of its sites
stands beside that of these.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.paired import ratio, take_turns
from privcal.trusted.queries import CellHistogram, Gap
from privcal.trusted.question import Question

PARSED_TARGET = 2.0
ASKED, WORKING, STRANGE, TIMES = (75, 150, 300), 50, 100_000, range(50)
QUESTION = Question("bench", 0, 0, 10**8, CellHistogram(bins=15), "cifar10-wrn28x10")
_OTHER_WORK = """
import json
from benchmarks import federation, report
report.duration, report.table = float, lambda *args: print(json.dumps(args[2]))
federation._many()
"""


def run() -> None:
    if find_spec("cryptography") is None:
        report.note("skipped: cryptography is not installed (pip install 'privcal[secure]')")
        return
    for part in (_rounds, _letters, _work, _strangers):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["PRIVCAL_MARKS"] = str(Path(folder, "marks.db"))  # not the owner's own
            part(Path(folder))


# --- one round at the calibrator ---------------------------------------------------------------


class _Played:
    """A mailbox in memory whose sites have keys alone; what they do is outside the clock."""

    def __init__(self, parties: dict[str, Any], stamp: Any) -> None:
        self._parties, self._stamp = parties, stamp
        self._files: dict[str, dict[str, bytes]] = {}
        self.outside = 0.0

    def put(self, writer: str, name: str, content: bytes) -> None:
        from privcal.transport.content import Reply
        from privcal.transport.letter import Letter

        began = time.process_time()
        letter = Letter.read(content)
        keys = self._parties[letter.reader]
        answer = Reply((tuple(range(QUESTION.query.length)),), 1, None, "0" * 32)
        reply = _written(letter, _read(letter, None, keys), answer, self._stamp, keys)
        self._files.setdefault(keys.id, {})[reply.name] = reply.content
        self.outside += time.process_time() - began

    def list(self, writer: str) -> Iterator[str]:
        return iter(self._files.get(writer, {}))

    def get(self, writer: str, name: str) -> bytes | None:
        return self._files[writer][name]

    def delete(self, writer: str, name: str) -> None: ...

    def close(self) -> None: ...


def _read(letter: Any, signing: str | None, keys: Any) -> Any:
    """What a site does with a letter until it has the request."""
    from privcal.transport.content import Request

    if signing is not None:
        letter.check(signing)
    return Request.read(letter.open(keys.sealing))


def _written(letter: Any, request: Any, reply: Any, stamp: Any, keys: Any) -> Any:
    from privcal.transport.letter import Letter
    from privcal.transport.replied import Replied

    text = Replied.to(request, letter.digest, stamp, reply).text
    return Letter.write(text, keys, request.sender, request.reply_key)


def _joined(folder: Path, count: int) -> tuple[Any, dict[str, Any]]:
    """The standing of a calibrator with so many sites of keys alone, and their keys by ID."""
    from privcal.transport.keys import Keys
    from privcal.transport.roster import Roster
    from privcal.transport.standing import Standing

    (folder / "asker").mkdir(mode=0o700, parents=True)
    asker = Keys.make(folder / "asker", "asker", "calibrator")
    sites = []
    for n in range(count):
        (folder / f"{n}").mkdir(mode=0o700)
        sites.append(Keys.make(folder / f"{n}", f"hospital-{n}", "site"))
    cards, now = [asker.card, *(keys.card for keys in sites)], int(time.time())
    roster = Roster.first(cards, [asker.public], now, now + 10**6).signed(asker)
    standing = Standing(folder / "asker")
    standing.accept(roster, roster.digest)
    return standing, {keys.id: keys for keys in sites}


def _rounds(folder: Path) -> None:
    from benchmarks.secure_site import bare
    from privcal.transport.calibrator.exchange import Exchange
    from privcal.transport.calibrator.letterbook import Letterbook

    rows, asked = [], dict[str, Any](plan=(QUESTION,), questions=(QUESTION,))
    for count in (ASKED[0], *ASKED):  # the first round imports
        where = Path(tempfile.mkdtemp(dir=folder))
        standing, sites = _joined(where, count)
        box = _Played(sites, standing.roster.stamp)
        book = Letterbook(where)
        exchange = Exchange(standing, box, book, every=0.1)
        names = sorted(keys.name for keys in sites.values())
        began = time.process_time()
        replies = dict(exchange.ask("ask", "bench", names, **asked))
        took = time.process_time() - began - box.outside
        assert not any(isinstance(reply, Exception) for reply in replies.values())
        seal, unseal = bare(count, 1200)
        floor = take_turns({"seal": seal, "unseal": unseal}, 3, time.process_time)
        least = sum(statistics.median(times) for times in floor.values())
        size = exchange.travelled
        times = (report.duration(took), report.duration(took / count), f"{took / least:.2f}")
        rows.append((str(count), f"{size:,}", f"{size / count:,.0f}", *times))
    report.table(
        f"federation: one round (ask, {QUESTION.query.length} numbers) at the calibrator, in one process",
        ("sites", "bytes", "a site", "CPU", "a site", "/ bare HPKE and Ed25519"),
        rows[1:],
    )


# --- a letter, and a site's work ---------------------------------------------------------------


def _request(standing: Any, site: str, plan: Sequence[Question]) -> tuple[Any, Any]:
    """A calibrator's letter with the first question of a plan, to a site's ID."""
    from privcal.secure.keys import SealingKey
    from privcal.transport.content import Request
    from privcal.transport.letter import Letter

    roster, keys, key, now = standing.roster, standing.keys, SealingKey.make(), int(time.time())
    who = (roster.federation, roster.stamp, keys.id, site, plan[0].campaign, now, now + 600)
    request = Request("ask", *who, key.public, tuple(plan), (plan[0],))
    return Letter.write(request.text, keys, site, roster.party(site).sealing), request


def _letters(folder: Path) -> None:
    from benchmarks.secure_site import bare
    from privcal.transport.letter import Letter

    standing, sites = _joined(folder, 1)
    [keys], signing, rows = sites.values(), standing.keys.public, {}
    for count in (1, 16, 101):
        plan = [replace(QUESTION, round=n) for n in range(count)]
        letter, request = _request(standing, keys.id, plan)
        seal, unseal = bare(1, len(request.text))
        seal()

        def read(content: bytes = letter.content) -> None:
            for _ in TIMES:
                _read(Letter.read(content), signing, keys)

        def least(
            parts: tuple[Any, ...] = (letter.content, request.text), unseal: Any = unseal
        ) -> None:
            for _ in TIMES:
                [json.loads(part) for part in parts]
                unseal()

        seconds = take_turns({"letter": read, "least": least}, 9, time.process_time)
        each = [report.duration(statistics.median(s) / len(TIMES)) for s in seconds.values()]
        times = ratio(*seconds.values())
        rows[times] = (str(count), f"{len(letter.content):,}", *each, f"{times:.2f}")
    report.table(
        "federation: a letter with a question, until a site has the request",
        ("questions in its plan", "bytes", "CPU", "json, HPKE and Ed25519 alone", "ratio"),
        rows.values(),
    )
    report.at_most("a question parsed", next(iter(rows)), PARSED_TARGET, "×")


def _work(folder: Path) -> None:
    """What sites do for one question: letters, ledgers, sums, noise; two threads, in one process."""
    from benchmarks.federation import made
    from privcal.transport.keys import Keys
    from privcal.transport.letter import Letter
    from privcal.transport.site.settings import Site
    from privcal.transport.site.worker import reply_to
    from privcal.transport.standing import Standing

    names = made(folder / "sites", WORKING)
    standing = Standing(folder / "sites" / "calibrator")
    signing, stamp = standing.keys.public, standing.roster.stamp
    keys = {name: Keys.load(folder / "sites" / name) for name in names}

    def answer(name: str, content: bytes) -> None:
        letter = Letter.read(content)
        request = _read(letter, signing, keys[name])
        reply = reply_to(Site.load(folder / "sites" / name), "calibrator", request)
        assert reply.refused is None
        _written(letter, request, reply, stamp, keys[name])

    seconds = []
    for index in range(3):
        asked = replace(QUESTION, index=index, query=Gap(1.0 + index))
        letters = [_request(standing, keys[name].id, [asked])[0].content for name in names]
        began = time.perf_counter()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(answer, names, letters))
        seconds.append(time.perf_counter() - began)
    each = statistics.median(seconds) / WORKING
    rows = [("letters", report.duration(each), "")]
    if clone := os.environ.get("PRIVCAL_BESIDE"):
        done = subprocess.run(
            [sys.executable, "-c", _OTHER_WORK],
            cwd=clone,
            env={**os.environ, "PYTHONPATH": f"{clone}/src"},
            capture_output=True,
            check=True,
        )
        theirs = json.loads(done.stdout)[1][1]
        rows = [(*rows[0][:2], f"{each / theirs:.2f}"), ("cells", report.duration(theirs), "1")]
    title = f"federation: the work of one of {WORKING} sites for one question, in one process"
    report.table(title, ("version", "time", "ratio"), rows)


# --- strangers ----------------------------------------------------------------------------


def _strangers(folder: Path) -> None:
    """Looks until an honest letter is replied to, in a mailbox with files that are no letters."""
    from benchmarks.federation import made
    from privcal.transport.carry import Carrier
    from privcal.transport.mailbox import FolderBox
    from privcal.transport.site.service import Service
    from privcal.transport.standing import Standing

    [name] = made(folder / "sites", 1)
    settings = folder / "sites" / name / "privcal.toml"
    settings.write_text(settings.read_text().replace("delay = 2.0", "delay = 0.1"))
    standing = Standing(folder / "sites" / "calibrator")
    service = Service(folder / "sites" / name)
    other, rows = "0" * 32, []
    for index, (where, writer, reader, files) in enumerate(
        (
            ("none", other, other, 0),
            ("rosters that are none", "", "roster", STRANGE),
            ("the asker's folder, for other sites", standing.keys.id, other, STRANGE),
            ("the site's own folder", service.id, other, STRANGE),
            ("the asker's folder, for this site", standing.keys.id, service.id, STRANGE // 20),
        )
    ):
        path = folder / f"{index}" / service.federation / writer
        path.mkdir(parents=True)
        for number in range(files):
            part = f"{number + 1}" if reader == "roster" else f"{random.getrandbits(256):064x}"
            (path / f"{reader}-{part}").touch()
        letter, _ = _request(standing, service.id, [replace(QUESTION, campaign=f"c{index}")])
        box, looks, began = FolderBox(folder / f"{index}", service.federation), 0, time.monotonic()
        box.put(letter.sender, letter.name, letter.content)
        carrier = Carrier(box, service)
        while not carrier.replied:
            looks += 1
            carrier.look()
            carrier.wait()
        carrier.close()
        rows.append((where, f"{files:,}", str(looks), f"{time.monotonic() - began:.1f} s"))
    service.close()
    report.table(
        "federation: strange files in a mailbox, until an honest letter is replied to",
        ("strange files", "how many", "looks", "without the time between them"),
        rows,
    )
