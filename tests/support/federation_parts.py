"""What tests of the federation share: kits, data, certificates of one's own making."""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from privcal.data.datasets import cifar10c
from privcal.secure.keys import SealingKey
from privcal.transport.federation.authority.kits import provision
from privcal.transport.federation.authority.project import Member, Project
from privcal.transport.federation.one_machine.demo import free_port
from privcal.transport.federation.shared.messages import Signer
from privcal.transport.federation.shared.requests import Request
from privcal.trusted.queries import Gap, Query
from privcal.trusted.question import Question

ANN, BOB, SERVER = "ann@lab.org", "bob@lab.org", "localhost"
MODEL = "resnet50-v3"
SEAL = SealingKey.make()
"""A calibrator's key for replies; a real one is made for each request."""


def make_kits(folder: Path, sites: int) -> Path:
    project = Project(
        name="trial",
        server=Member(SERVER, "server"),
        port=free_port(),
        sites=tuple(Member(f"site-{n}", f"org_{n}") for n in range(1, sites + 1)),
        calibrators=(Member(ANN, "lab"), Member(BOB, "lab")),
    )
    provision(project, folder)
    return folder


def write_rows(path: Path, rows: int, seed: int = 0, person: str | None = None) -> Path:
    """Rows of real scores, as a site has them."""
    scores = cifar10c("motion_blur")
    mine = scores.take(np.random.default_rng(seed).permutation(len(scores))[:rows])
    people = {} if person is None else {"person": [f"{person}-{n}" for n in range(rows)]}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, labels=mine.labels, logits=mine.outputs.array, **people)
    return path


def question(
    campaign: str = "c",
    round: int = 0,
    query: Query | None = None,
    epsilon: float = 0.5,
    **more: Any,
) -> Question:
    facts = {"index": 0, "model": MODEL, **more}
    return Question(
        campaign, round, nano_epsilon=round_nano(epsilon), query=query or Gap(1.5), **facts
    )


def round_nano(epsilon: float) -> int:
    return round(epsilon * 10**9)


def signer(kits: Path, name: str = ANN) -> Signer:
    return Signer.of_kit(kits / name)


def facts_of(asked: Question) -> dict[str, Any]:
    return dict(json.loads(asked.text()))


def request(*questions: Question, kind: str = "question", **more: Any) -> Request:
    """A request of now to site-1; `more` replaces its parts."""
    asked = questions or (question(),)
    facts = {"sites": ("site-1",), "seal": SEAL.public, "issued": int(time.time()), **more}
    return Request(kind, asked[0].campaign, () if kind in ("release", "about") else asked, **facts)


def message(by: Signer, text: str, **parts: Any) -> str:
    """Any text, signed as a request is; `parts` replace parts of the message afterwards."""
    from nvflare.lighter.utils import sign_content

    signed = spelt(["privcal request 3", text])
    facts = {
        "privcal": 3,
        "request": text,
        "signature": sign_content(signed, by.key),
        "certificate": by.certificate,
    }
    return spelt({**facts, **parts})


def spelt(facts: Any) -> str:
    """The spelling of everything that travels."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":"))


def certificate(
    name: str, role: str = "lead", *, authority: dict[str, Any] | None = None, days: int = 360
) -> tuple[str, Any]:
    """A certificate (PEM) and its key: self-signed, or by the authority of `ca/cert.json`."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.x509.oid import NameOID

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, name),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "lab"),
            x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, role),
        ]
    )
    issuer, by = subject, key
    if authority is not None:
        issuer = x509.load_pem_x509_certificate(authority["root_cert"].encode()).subject
        by = serialization.load_pem_private_key(authority["root_pri_key"].encode(), None)
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=400))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), critical=False
        )
        .sign(by, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM).decode(), key


def key_pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
