"""A site's own work in a secure sum, SHARE and OPEN, against the bare calls of the library below it.

CPU time of one site with 30 numbers, over rounds that take turns. The floor is what cannot be saved:
one HPKE box and one Ed25519 signature for every site in SHARE, and in OPEN each checked and opened.
Sites are in this process, the ledger of the one that is measured is on disk.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.data import synthetic
from benchmarks.paired import ratio

ROWS, CLASSES, BINS, ROUNDS = 30, 10, 15, 9
TARGETS = {50: 0.060, 300: 1.2}
"""CPU seconds of SHARE and OPEN together, by the number of sites."""


def run() -> None:
    if find_spec("cryptography") is None:
        report.note("skipped: cryptography is not installed (pip install 'privcal[secure]')")
        return
    rows, verdicts = [], []
    for sites in TARGETS:
        seconds = _measure(sites)
        medians = {name: statistics.median(times) for name, times in seconds.items()}
        for what in ("share", "open"):
            floor = seconds[f"{what}, floor"]
            rows.append(
                (
                    str(sites),
                    what.upper(),
                    report.duration(medians[what]),
                    report.duration(medians[f"{what}, floor"]),
                    f"{ratio(seconds[what], floor):.2f}",
                )
            )
        both = medians["share"] + medians["open"]
        verdicts.append((f"SHARE + OPEN, {sites} sites", both, TARGETS[sites]))
    report.table(
        f"secure sums: CPU of one site, {2 * BINS} numbers, {ROUNDS} rounds",
        ("sites", "message", "CPU", "bare HPKE and Ed25519", "ratio"),
        rows,
    )
    for what, both, target in verdicts:
        report.at_most(what, both * 1000, target * 1000, " ms")


def _measure(count: int) -> dict[str, list[float]]:
    """CPU seconds of each round, by what was done."""
    from privcal import Policy, Question, Scores, Source
    from privcal.data.ledger import Ledger
    from privcal.secure.boxes import deal_box
    from privcal.secure.keys import local_keys, member
    from privcal.secure.participant import Participant
    from privcal.secure.sharing import PRIME
    from privcal.secure.terms import Members, Terms, usual_colluding, usual_needed
    from privcal.trusted.policy import SecureRules
    from privcal.trusted.queries import CellHistogram

    colluding = usual_colluding(count)
    policy = Policy(epsilon=100.0, secure=SecureRules(colluding))
    logits, labels = synthetic(ROWS, CLASSES)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        ledger = Ledger.create(path / "h.db", policy, unit="row", marks=path / "marks.db")
        names = [f"hospital {k:03d}" for k in range(count)]
        keys = {name: local_keys(Ledger.in_memory()) for name in names[1:]}
        keys[names[0]] = local_keys(ledger)
        members = Members({name: member(keys[name]) for name in names})
        source = Source(Scores(logits=logits, labels=labels), ledger=ledger)
        site = Participant(names[0], source, keys[names[0]], members, None)
        dealt = [int.from_bytes(os.urandom(15), "big") % PRIME for _ in range(2 * BINS)]
        seconds: dict[str, list[float]] = {}
        for number in range(-1, ROUNDS):  # the first round imports, and tries the keys once
            question = Question.of(CellHistogram(bins=BINS), 1.0, f"run {number + 1}")
            needed = usual_needed(count, colluding)
            sites = tuple(sorted(names))
            terms = Terms(question, "acme", sites, colluding, needed, 10, 1, members.digest)
            boxes = {
                name: deal_box(terms, name, names[0], dealt, members, keys[name]) for name in names
            }
            seal, unseal = bare(count, 16 * 2 * BINS)
            for what, call in (
                ("share", lambda terms=terms: site.share(terms, "acme")),
                ("share, floor", seal),
                ("open", lambda terms=terms, boxes=boxes: site.open(terms, "acme", boxes)),
                ("open, floor", unseal),
            ):
                took = _cpu(call)
                if number >= 0:
                    seconds.setdefault(what, []).append(took)
    return seconds


def bare(count: int, length: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """So many boxes sealed and signed, and checked and opened, with the library alone."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, MLKEM768X25519PrivateKey, Suite

    suite = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
    signing = Ed25519PrivateKey.generate()
    opening = MLKEM768X25519PrivateKey(MLKEM768PrivateKey.generate(), X25519PrivateKey.generate())
    sealing, signed, info, plain = (
        opening.public_key(),
        signing.public_key(),
        bytes(150),
        bytes(length),
    )
    made: list[tuple[bytes, bytes]] = []

    def seal() -> None:
        made.clear()
        for _ in range(count):
            box = suite.encrypt(plain, sealing, info=info)
            made.append((box, signing.sign(box)))

    def unseal() -> None:
        for box, signature in made:
            signed.verify(signature, box)
            suite.decrypt(box, opening, info=info)

    return seal, unseal


def _cpu(call: Callable[[], Any]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began
