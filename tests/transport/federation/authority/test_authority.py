"""Joining later, new keys before old ones run out, and who is out stays out."""

from __future__ import annotations

import base64
import json
import shutil
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from privcal.trusted.errors import InputError, Refused

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")

from cryptography import x509

from privcal.transport.federation.authority.authority import Authority
from privcal.transport.federation.authority.kits import add, load, provision, renew, revoke
from privcal.transport.federation.authority.project import Member, Project
from privcal.transport.federation.inspection import Finding, check, closed
from privcal.transport.federation.shared.certificates import (
    Holder,
    expiry,
    fingerprint,
    own_certificate,
    root_certificate,
)
from privcal.transport.federation.shared.certificates import load as load_certificate
from privcal.transport.federation.shared.messages import Signer, open_message
from privcal.transport.federation.shared.revocations import Revocations, install, sign
from privcal.transport.federation.shared.revocations import load as revoked_at
from tests.support.federation_parts import ANN, BOB, SERVER, certificate, request

PROJECT = Project(
    name="trial",
    server=Member(SERVER, "server"),
    port=18002,
    sites=(Member("site-1", "one"), Member("site-2", "two")),
    calibrators=(Member(ANN, "lab"), Member(BOB, "lab")),
)
NAMES = [SERVER, "site-1", "site-2", ANN, BOB]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("federation") / "kits"
    provision(PROJECT, folder)
    return folder


@pytest.fixture
def kits(made: Path, tmp_path: Path) -> Path:
    """A copy to work on."""
    return Path(shutil.copytree(made, tmp_path / "kits"))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another federation, with the same names."""
    folder = tmp_path_factory.mktemp("others") / "kits"
    provision(PROJECT, folder)
    return folder


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode)
        for path in folder.rglob("*")
        if path.is_file()
    }


def key_of(kits: Path, name: str) -> str:
    return fingerprint(own_certificate(kits / name).public_key())


def finding(folder: Path, rule: str) -> Finding:
    [found] = [found for found in check(folder) if found.rule == rule]
    return found


def put(renewed: Path, kit: Path) -> None:
    """What a participant does with a renewed certificate."""
    for path in renewed.iterdir():
        shutil.copy(path, kit / "startup")


# --- lifetimes ---------------------------------------------------------------------------


def days_of(certificate: x509.Certificate) -> int:
    return (certificate.not_valid_after_utc - datetime.now(UTC) + timedelta(hours=1)).days


def test_participants_are_certified_for_two_years_by_an_authority_of_ten(made: Path) -> None:
    assert {days_of(own_certificate(made / name)) for name in NAMES} == {730}
    assert {days_of(root_certificate(made / name)) for name in NAMES} == {3650}


def test_lifetimes_are_the_projects_to_say(tmp_path: Path) -> None:
    file = tmp_path / "project.toml"
    file.write_text(
        'name = "trial"\n[server]\nhost = "localhost"\nport = 18002\n'
        '[[sites]]\nname = "site-1"\norg = "one"\n'
        '[[calibrators]]\nname = "ann@lab.org"\norg = "lab"\n'
        "[certificates]\ndays = 90\nauthority_days = 400\n"
    )
    kits = tmp_path / "kits"
    provision(Project.load(file), kits)
    assert days_of(own_certificate(kits / "site-1")) == 90
    assert days_of(root_certificate(kits / "site-1")) == 400
    add(kits, site="site-2", org="two")
    assert days_of(own_certificate(kits / "site-2")) == 90
    renew(kits, "site-1", tmp_path / "renewed")
    put(tmp_path / "renewed", kits / "site-1")
    assert days_of(own_certificate(kits / "site-1")) == 90


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"days": 0}, "days of [certificates] must be a whole number from 1"),
        ({"days": "90"}, "days of [certificates] must be a whole number from 1"),
        ({"days": True}, "days of [certificates] must be a whole number from 1"),
        (
            {"authority_days": 100_000},
            "authority_days of [certificates] must be a whole number from 1",
        ),
        ({"days": 800, "authority_days": 700}, "must not be more than authority_days"),
        ({"years": 2}, "unknown key 'years'"),
        (730, "[certificates] must be a table"),
    ],
)
def test_lifetimes_that_cannot_be_are_one_clear_sentence(table: Any, says: str) -> None:
    with pytest.raises(InputError, match=r"^[^\n]+$") as error:
        Project.from_dict({**PROJECT.to_dict(), "certificates": table})
    assert says in str(error.value)


def test_no_certificate_outlives_the_authority(tmp_path: Path) -> None:
    authority = Authority.create("trial", 10)
    credentials = authority.issue("site", Member("site-1", "one"), 730)
    assert credentials.until == authority.certificate.not_valid_after_utc


def test_an_authority_that_ran_out_signs_nothing() -> None:
    pem, key = certificate("trial", days=-1)
    authority = Authority(x509.load_pem_x509_certificate(pem.encode()), key, [], Revocations())
    with pytest.raises(InputError, match=r"ran out on .*make a new federation"):
        authority.issue("site", Member("site-1", "one"), 730)


# --- what the authority signs ------------------------------------------------------------


def test_the_authoritys_folder_holds_nobody_elses_key(made: Path) -> None:
    secret = json.loads((made / "ca" / "cert.json").read_text())
    assert set(secret) == {"root_cert", "root_pri_key"}
    everything = "".join(p.read_text() for p in (made / "ca").iterdir())
    assert everything.count("PRIVATE KEY-----") == 2  # its own: where it begins, where it ends


def handshake(kits: Path, server: str, client: str) -> str:
    """Mutual TLS in memory, the client looking for the host that it was told; what went wrong."""
    listening = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    calling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context, name in ((listening, server), (calling, client)):
        stem = "server" if name == SERVER else "client"
        startup = kits / name / "startup"
        context.load_cert_chain(startup / f"{stem}.crt", startup / f"{stem}.key")
        context.load_verify_locations(startup / "rootCA.pem")
        context.verify_mode = ssl.CERT_REQUIRED
    calling.check_hostname = server == SERVER
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        calling.wrap_bio(to_client, to_server, server_hostname=server),
        listening.wrap_bio(to_server, to_client, server_side=True),
    ]
    left = list(ends)
    for _ in range(20):
        for end in list(left):
            try:
                end.do_handshake()
                left.remove(end)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                return str(error)
    return "" if not left else "unfinished"


def test_the_server_is_believed_and_a_site_that_poses_as_a_server_is_not(made: Path) -> None:
    assert handshake(made, SERVER, "site-1") == ""
    assert handshake(made, SERVER, ANN) == ""
    assert "unsuitable certificate purpose" in handshake(made, "site-2", "site-1")
    assert "unsuitable certificate purpose" in handshake(made, BOB, ANN)


def test_a_participant_cannot_make_certificates(made: Path) -> None:
    for name in NAMES:
        limits = own_certificate(made / name).extensions
        basic = limits.get_extension_for_class(x509.BasicConstraints)
        assert basic.critical
        assert not basic.value.ca
        assert not limits.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    root = root_certificate(made / ANN).extensions
    assert root.get_extension_for_class(x509.BasicConstraints).value.path_length == 0


def test_a_calibrators_certificate_on_top_of_anothers_is_refused(made: Path) -> None:
    """Ann's key signs a certificate for a calibrator of her own making."""
    startup = made / ANN / "startup"
    ann = {
        "root_cert": (startup / "client.crt").read_text(),
        "root_pri_key": (startup / "client.key").read_text(),
    }
    pem, key = certificate("eve@lab.org", authority=ann)
    message = Signer("eve@lab.org", pem + ann["root_cert"], key).sign(request())
    with pytest.raises(Refused, match="bad_request"):
        open_message(message, made / "site-1" / "startup" / "rootCA.pem", site="site-1")


# --- somebody joins ----------------------------------------------------------------------


@pytest.mark.parametrize(("who", "name"), [("site", "hospital-9"), ("calibrator", "eve@lab.org")])
def test_who_joins_gets_a_closed_kit_and_no_other_kit_changes(
    kits: Path, who: str, name: str
) -> None:
    before = {other: contents(kits / other) for other in NAMES}
    folder = add(kits, **{who: name}, org="nine")  # type: ignore[arg-type]
    assert folder == kits / name
    findings = check(folder)
    assert closed(findings), [found for found in findings if not found.ok]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (folder, *folder.rglob("*")))
    assert {other: contents(kits / other) for other in NAMES} == before
    assert load(kits).find(name) == (who, Member(name, "nine"))
    assert {path.name for path in kits.iterdir()} == {*NAMES, name, "ca", "federation.json"}
    assert not (kits / name / "startup" / "server.key").exists()


def test_a_kit_that_was_added_is_like_one_that_was_there_from_the_start(kits: Path) -> None:
    add(kits, site="site-3", org="two")
    one, other = contents(kits / "site-3"), contents(kits / "site-2")
    assert set(one) == set(other)
    own = {"startup/client.crt", "startup/client.key"}
    for file in set(one) - own:
        assert one[file][0].replace(b"site-3", b"site-2") == other[file][0], file


def test_a_calibrator_who_joined_is_believed_by_the_sites_that_were_there(kits: Path) -> None:
    add(kits, calibrator="eve@lab.org", org="lab")
    message = Signer.of_kit(kits / "eve@lab.org").sign(request())
    name = open_message(message, kits / "site-1" / "startup" / "rootCA.pem", site="site-1").asker
    assert name == "eve@lab.org"


@pytest.mark.parametrize(
    ("who", "says"),
    [
        ({"site": "site-1"}, "site-1 is there twice"),
        ({"site": "SITE-1"}, "SITE-1 is there twice"),
        ({"site": "../x"}, "name of the new site must be"),
        ({"site": "ca"}, "nobody can be called ca"),
        ({"calibrator": "eve"}, "name of the new calibrator must be an e-mail address"),
        ({"site": "site-9", "org": "a b"}, "org of the new site must be"),
        ({"site": "site-9", "calibrator": "eve@lab.org"}, "either a site or a calibrator"),
        ({}, "either a site or a calibrator"),
    ],
)
def test_who_cannot_join_changes_nothing(kits: Path, who: dict[str, str], says: str) -> None:
    before = contents(kits)
    with pytest.raises(InputError) as error:
        add(kits, **{"org": "nine", **who})  # type: ignore[arg-type]
    assert says in str(error.value)
    assert contents(kits) == before


def test_the_authority_may_lie_elsewhere(kits: Path, tmp_path: Path) -> None:
    safe = tmp_path / "safe"
    (kits / "ca").rename(safe)
    with pytest.raises(InputError, match="say where the authority's folder is with --ca"):
        add(kits, site="site-9", org="nine")
    assert closed(check(add(kits, site="site-9", org="nine", ca=safe)))
    renew(kits, "site-9", tmp_path / "renewed", ca=safe)
    assert revoke(kits, "site-9", ca=safe).is_file()
    assert not (kits / "ca").exists()


def test_whom_a_certificate_names_is_read_as_flare_reads_it(kits: Path, tmp_path: Path) -> None:
    from nvflare.lighter.utils import _cert_to_submitter, load_crt

    authority = json.loads((kits / "ca" / "cert.json").read_text())
    (tmp_path / "other.crt").write_text(certificate('é, "x"', "", authority=authority)[0])
    paths = [*tmp_path.rglob("*.crt"), *tmp_path.rglob("rootCA.pem")]
    assert len({path.parent for path in paths}) == len(PROJECT.everyone) + 1
    for path in paths:
        holder = Holder.of(load_certificate(path))
        assert (holder.name, holder.org, holder.role) == _cert_to_submitter(load_crt(str(path)))


@pytest.mark.parametrize("damage", ["cert.json", "register.json"])
def test_without_its_key_and_its_register_the_authority_does_nothing(
    kits: Path, damage: str
) -> None:
    (kits / "ca" / damage).write_text("{}")
    with pytest.raises(InputError, match="is not the folder of an authority"):
        revoke(kits, ANN)
    (kits / "ca" / damage).unlink()
    with pytest.raises(InputError, match=f"cannot read .*{damage}"):
        revoke(kits, ANN)


def test_another_federations_authority_is_not_used(kits: Path, others: Path) -> None:
    before = contents(kits)
    for act in (
        lambda: add(kits, site="site-9", org="nine", ca=others / "ca"),
        lambda: renew(kits, "site-1", kits.parent / "renewed", ca=others / "ca"),
        lambda: revoke(kits, "site-1", ca=others / "ca"),
    ):
        with pytest.raises(InputError, match="the authority of another federation"):
            act()
    assert contents(kits) == before


# --- new keys ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [SERVER, "site-1", ANN])
def test_a_renewed_certificate_takes_the_place_of_the_old_one(
    kits: Path, tmp_path: Path, name: str
) -> None:
    before, old = contents(kits / name), own_certificate(kits / name)
    until = renew(kits, name, tmp_path / "renewed")
    assert contents(kits / name) == before
    files = {path.name for path in (tmp_path / "renewed").iterdir()}
    assert files == {path.name for path in (kits / name / "startup").glob("*.[ck][re][ty]")}
    put(tmp_path / "renewed", kits / name)
    new = own_certificate(kits / name)
    assert (new.subject, new.issuer) == (old.subject, old.issuer)
    assert fingerprint(new.public_key()) != fingerprint(old.public_key())
    assert new.not_valid_after_utc == until.replace(microsecond=0)
    findings = check(kits / name)
    assert closed(findings), [found for found in findings if not found.ok]


def test_the_old_key_is_good_until_it_is_revoked(kits: Path, tmp_path: Path) -> None:
    old = Signer.of_kit(kits / ANN)
    renew(kits, ANN, tmp_path / "renewed")
    root = str(kits / "site-1" / "startup" / "rootCA.pem")
    assert open_message(old.sign(request()), root, site="site-1").asker == ANN


def test_half_a_renewal_is_found(kits: Path, tmp_path: Path, others: Path) -> None:
    renew(kits, "site-1", tmp_path / "renewed")
    shutil.copy(tmp_path / "renewed" / "client.crt", kits / "site-1" / "startup")
    assert "is not the key of" in finding(kits / "site-1", "certificate").sentence
    shutil.copytree(others / "site-2" / "startup", tmp_path / "foreign")
    for file in ("client.crt", "client.key"):
        shutil.copy(tmp_path / "foreign" / file, kits / "site-2" / "startup")
    assert "not made by the authority" in finding(kits / "site-2", "certificate").sentence


def test_a_renewal_is_not_written_over_anything(kits: Path) -> None:
    with pytest.raises(InputError, match="new or an empty folder"):
        renew(kits, "site-1", kits / "site-1" / "startup")


def test_nobody_unknown_is_renewed_or_revoked(kits: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no 'eve@lab\.org' in this federation"):
        renew(kits, "eve@lab.org", tmp_path / "renewed")
    with pytest.raises(InputError, match=r"there is no 'eve@lab\.org' in this federation"):
        revoke(kits, "eve@lab.org")


# --- who is out --------------------------------------------------------------------------


def test_without_a_list_nobody_is_revoked(kits: Path) -> None:
    found = revoked_at(kits / "site-1")
    assert found == Revocations()
    assert not found.refuses(ANN, key_of(kits, ANN))


@pytest.mark.parametrize("where", [SERVER, "site-1", BOB])
def test_a_revoked_name_is_refused_with_whatever_key(kits: Path, where: str) -> None:
    install(kits / where, revoke(kits, ANN))
    found = revoked_at(kits / where)
    assert found.refuses(ANN, key_of(kits, ANN))
    assert found.refuses(ANN.upper(), "0" * 64)
    assert found.refuses("somebody@else.org", key_of(kits, ANN))
    assert not found.refuses(BOB, key_of(kits, BOB))
    assert (kits / where / "local" / "revoked.json").stat().st_mode & 0o077 == 0
    assert closed(check(kits / where))


def test_a_revoked_name_never_comes_back(kits: Path, tmp_path: Path) -> None:
    revoke(kits, ANN)
    with pytest.raises(InputError, match="was revoked, for good"):
        renew(kits, ANN, tmp_path / "renewed")
    with pytest.raises(InputError, match="is there twice"):
        add(kits, calibrator=ANN, org="lab")


def test_a_stolen_key_is_out_and_its_name_goes_on(kits: Path, tmp_path: Path) -> None:
    stolen = key_of(kits, "site-1")
    renew(kits, "site-1", tmp_path / "renewed")
    put(tmp_path / "renewed", kits / "site-1")
    install(kits / "site-2", revoke(kits, "site-1", old_keys=True))
    found = revoked_at(kits / "site-2")
    assert found.refuses("site-1", stolen)
    assert not found.refuses("site-1", key_of(kits, "site-1"))
    assert found.names == frozenset()


def test_the_only_key_of_a_name_is_not_an_old_one(kits: Path) -> None:
    with pytest.raises(InputError, match="has one key only: make a new one first"):
        revoke(kits, "site-1", old_keys=True)
    assert not (kits / "revoked.json").exists()


def test_the_server_can_lose_a_key_but_not_its_name(kits: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is the server"):
        revoke(kits, SERVER)
    stolen = key_of(kits, SERVER)
    renew(kits, SERVER, tmp_path / "renewed")
    install(kits / "site-1", revoke(kits, SERVER, old_keys=True))
    assert revoked_at(kits / "site-1").keys == {stolen}


def test_every_list_holds_all_that_was_ever_revoked(kits: Path) -> None:
    for number, name in enumerate(("site-1", ANN, "site-2"), start=1):
        found = install(kits / BOB, revoke(kits, name))
        assert found.number == number
    assert found.names == {"site-1", "site-2", ANN}


def test_a_list_that_was_lost_is_signed_again_with_its_number(kits: Path) -> None:
    first = install(kits / "site-1", revoke(kits, ANN))
    (kits / "revoked.json").unlink()
    assert install(kits / "site-1", revoke(kits, ANN)) == first


def test_a_participant_who_is_revoked_is_told(kits: Path) -> None:
    install(kits / "site-1", revoke(kits, "site-1"))
    assert "own certificate is revoked" in finding(kits / "site-1", "revocations").sentence


# --- attacks on the list -----------------------------------------------------------------


def test_an_older_list_cannot_be_installed_again(kits: Path, tmp_path: Path) -> None:
    old = Path(shutil.copy(revoke(kits, ANN), tmp_path / "old.json"))
    install(kits / "site-1", revoke(kits, BOB))
    with pytest.raises(InputError, match=r"is list 1 and .* has list 2: there is no way back"):
        install(kits / "site-1", old)
    assert revoked_at(kits / "site-1").refuses(BOB, "")


def test_a_running_site_does_not_believe_an_older_list_nor_that_there_is_none(
    kits: Path, tmp_path: Path
) -> None:
    old = Path(shutil.copy(revoke(kits, ANN), tmp_path / "old.json"))
    new = revoke(kits, BOB)
    place = kits / "site-1" / "local" / "revoked.json"
    install(kits / "site-1", new)
    revoked_at(kits / "site-1")
    shutil.copy(old, place)
    for _ in range(2):  # it does not get used to it
        with pytest.raises(InputError, match="older than it was, or gone"):
            revoked_at(kits / "site-1")
    place.unlink()
    with pytest.raises(InputError, match="older than it was, or gone"):
        revoked_at(kits / "site-1")
    install(kits / "site-1", new)
    assert revoked_at(kits / "site-1").refuses(BOB, "")


def test_two_lists_with_one_number_are_not_exchanged(kits: Path, tmp_path: Path) -> None:
    """An authority restored from an old copy signs a number twice."""
    copy = Path(shutil.copytree(kits, tmp_path / "copy"))
    install(kits / "site-1", revoke(kits, ANN))
    with pytest.raises(InputError, match="different lists with the number 1"):
        install(kits / "site-1", revoke(copy, BOB))


def test_a_new_list_holds_at_once(kits: Path) -> None:
    install(kits / "site-1", revoke(kits, ANN))
    assert not revoked_at(kits / "site-1").refuses(BOB, "")
    install(kits / "site-1", revoke(kits, BOB))
    assert revoked_at(kits / "site-1").refuses(BOB, "")


def reworked(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path, bytes], bytes]:
    """The list's own text changed, its signature left as it was."""

    def apply(kits: Path, text: bytes) -> bytes:
        document = json.loads(text)
        facts = json.loads(document["list"])
        change(facts)
        return json.dumps({**document, "list": json.dumps(facts)}).encode()

    return apply


def signed_by(name: str) -> Callable[[Path, bytes], bytes]:
    def apply(kits: Path, text: bytes) -> bytes:
        from nvflare.lighter.utils import load_private_key_file

        stem = "server" if name == SERVER else "client"
        key = load_private_key_file(str(kits / name / "startup" / f"{stem}.key"))
        return sign(Revocations(7, "now"), key).encode()

    return apply


def by_the_authority(**facts: Any) -> Callable[[Path, bytes], bytes]:
    """A text that is no list, though the right key signed it."""

    def apply(kits: Path, text: bytes) -> bytes:
        from cryptography.hazmat.primitives import hashes

        from privcal.transport.federation.shared.revocations import _PREFIX, _padding

        whole = {"version": 1, "number": 1, "time": "", "names": [], "keys": [], **facts}
        content = json.dumps(whole)
        key = Authority.load(kits / "ca").key
        signature = key.sign(_PREFIX + content.encode(), _padding(), hashes.SHA256())
        return json.dumps(
            {"list": content, "signature": base64.b64encode(signature).decode()}
        ).encode()

    return apply


DAMAGES: dict[str, Callable[[Path, bytes], bytes]] = {
    "empty": lambda kits, text: b"",
    "cut": lambda kits, text: text[: len(text) // 2],
    "cut by one": lambda kits, text: text.rstrip()[:-1],
    "no object": lambda kits, text: b"[]",
    "no text": lambda kits, text: bytes(range(256)),
    "a bomb": lambda kits, text: b"[" * 100_000,
    "too long": lambda kits, text: text + b" " * (1 << 20),
    "a part more": lambda kits, text: json.dumps({**json.loads(text), "more": 1}).encode(),
    "a name fewer": reworked(lambda facts: facts["names"].clear()),
    "another number": reworked(lambda facts: facts.update(number=9)),
    "by a calibrator": signed_by(BOB),
    "by a site": signed_by("site-1"),
    "by the server": signed_by(SERVER),
    "of another version": by_the_authority(version=2),
    "without a number": by_the_authority(number="1"),
    "with another kind of key": by_the_authority(keys=["abc"]),
    "with numbers for names": by_the_authority(names=[1]),
    "with a name for a list": by_the_authority(names=ANN),
    "with a part more": by_the_authority(more=1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_list_that_is_damaged_or_not_the_authoritys_is_neither_installed_nor_passed_over(
    kits: Path, tmp_path: Path, damage: str
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_bytes(DAMAGES[damage](kits, revoke(kits, ANN).read_bytes()))
    with pytest.raises(InputError, match=r"^[^\n]+$"):
        install(kits / "site-1", bad)
    assert not (kits / "site-1" / "local" / "revoked.json").exists()
    shutil.copy(bad, kits / "site-1" / "local" / "revoked.json")
    for _ in range(2):
        with pytest.raises(InputError, match=r"^[^\n]+$"):
            revoked_at(kits / "site-1")
    assert not finding(kits / "site-1", "revocations").ok


def test_no_flipped_byte_goes_unnoticed_or_takes_a_name_off_the_list(
    kits: Path, tmp_path: Path
) -> None:
    good = revoke(kits, ANN)
    text, whole = good.read_bytes(), install(kits / "site-1", good)
    bad = tmp_path / "bad.json"
    for position in range(0, len(text) - 1, 3):
        flipped = bytearray(text)
        flipped[position] ^= 1
        bad.write_bytes(flipped)
        with pytest.raises(InputError):
            install(kits / "site-1", bad)
    assert revoked_at(kits / "site-1") == whole


def test_another_federations_list_is_refused(kits: Path, others: Path, tmp_path: Path) -> None:
    theirs = Path(shutil.copytree(others, tmp_path / "theirs"))
    with pytest.raises(InputError, match="not signed by this federation's authority"):
        install(kits / "site-1", revoke(theirs, ANN))


def test_a_list_that_cannot_be_read_stops_a_site(kits: Path) -> None:
    (kits / "site-1" / "local" / "revoked.json").mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        revoked_at(kits / "site-1")


def test_a_link_to_nowhere_and_a_folder_without_a_root_are_not_the_absence_of_a_list(
    kits: Path,
) -> None:
    (kits / "site-1" / "local" / "revoked.json").symlink_to(kits / "nowhere")
    with pytest.raises(InputError, match="cannot be read"):
        revoked_at(kits / "site-1")
    (kits / "site-2" / "startup" / "rootCA.pem").unlink()
    with pytest.raises(InputError, match="no list of revocations can be believed"):
        revoked_at(kits / "site-2")


def test_a_damaged_list_is_not_quietly_replaced(kits: Path) -> None:
    new = revoke(kits, ANN)
    (kits / "site-1" / "local" / "revoked.json").write_text("{")
    with pytest.raises(InputError, match="is damaged: remove it if you are sure"):
        install(kits / "site-1", new)


def test_a_list_is_installed_into_kits_only(kits: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a participant's folder"):
        install(tmp_path, revoke(kits, ANN))


def test_looking_at_the_list_again_reads_no_file(
    kits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(kits / "site-1", revoke(kits, ANN))
    first = revoked_at(kits / "site-1")
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.open", None)
        patch.setattr("pathlib.Path.read_bytes", None)
        assert revoked_at(kits / "site-1") is first


# --- dates -------------------------------------------------------------------------------


def test_what_runs_out_within_thirty_days_is_said_and_is_not_yet_open(tmp_path: Path) -> None:
    kits = tmp_path / "kits"
    provision(Project.from_dict({**PROJECT.to_dict(), "certificates": {"days": 20}}), kits)
    for name in NAMES:
        found = finding(kits / name, "dates")
        assert (found.ok, found.warn) == (True, True)
        end = own_certificate(kits / name).not_valid_after_utc
        assert f"this participant's certificate runs out on {end:%Y-%m-%d}" in found.sentence
        assert "renew" in found.remedy
        assert closed(check(kits / name))


@pytest.mark.parametrize(
    ("days", "expired", "soon"),
    [
        (-1, "begins on", ""),
        (699, "", ""),
        (701, "", "this participant's certificate runs out on"),
        (731, "this participant's certificate ran out on", ""),
        (3621, "this participant's certificate ran out on", "authority runs out on"),
    ],
)
def test_dates_are_told_as_they_come(made: Path, days: int, expired: str, soon: str) -> None:
    found = expiry(made / "site-1", now=datetime.now(UTC) + timedelta(days=days))
    for sentence, said in ((found.expired, expired), (found.soon, soon)):
        assert said in sentence
        assert bool(said) == bool(sentence)


def test_the_authoritys_own_end_is_told(tmp_path: Path) -> None:
    kits = tmp_path / "kits"
    provision(
        Project.from_dict(
            {**PROJECT.to_dict(), "certificates": {"days": 40, "authority_days": 40}}
        ),
        kits,
    )
    at = datetime.now(UTC) + timedelta(days=41)
    assert expiry(kits / ANN, now=at).expired
    found = expiry(kits / ANN, now=at - timedelta(days=12))
    assert found.authority - found.certificate < timedelta(minutes=1)
    assert found.soon


@pytest.mark.parametrize("days", [-1, -200])
def test_a_certificate_that_ran_out_is_open(kits: Path, days: int) -> None:
    authority = json.loads((kits / "ca" / "cert.json").read_text())
    pem, _ = certificate("site-1", authority=authority, days=days)
    (kits / "site-1" / "startup" / "client.crt").write_text(pem)
    found = finding(kits / "site-1", "dates")
    assert (found.ok, found.warn) == (False, False)
    assert "ran out on" in found.sentence


def test_a_certificate_that_is_none_is_open(kits: Path) -> None:
    (kits / "site-1" / "startup" / "client.crt").write_text("-----BEGIN")
    for rule in ("certificate", "dates"):
        assert "is not a certificate" in finding(kits / "site-1", rule).sentence


# --- as a person uses it -----------------------------------------------------------------


def test_the_commands_do_it_all(run: Any, kits: Path, tmp_path: Path) -> None:
    code, said, _ = run("federation", "add", kits, "--site", "site-9", "--org", "nine", "--json")
    assert (code, json.loads(said)) == (0, {"kit": str(kits / "site-9")})
    code, said, _ = run("federation", "renew", kits, "site-9", "--out", tmp_path / "new")
    assert code == 0
    assert "The old ones stay good until they run out or are revoked" in said
    code, said, _ = run("federation", "revoke", kits, "site-9", "--old-keys", "--json")
    assert (code, json.loads(said)["list"]) == (0, str(kits / "revoked.json"))
    code, said, _ = run("federation", "revocations", kits / "site-1", kits / "revoked.json")
    assert (code, "0 names and 1 keys are revoked" in said) == (0, True)
    code, _, said = run("federation", "revoke", kits, "nobody")
    assert (code, "there is no 'nobody'" in said) == (2, True)
    assert run("federation", "check", kits / "site-9")[0] == 0


def test_check_warns_before_it_refuses(run: Any, tmp_path: Path) -> None:
    kits = tmp_path / "kits"
    provision(Project.from_dict({**PROJECT.to_dict(), "certificates": {"days": 20}}), kits)
    code, said, _ = run("federation", "check", kits / "site-1")
    assert code == 0
    assert [line.split()[:2] for line in said.splitlines() if "SOON" in line] == [["SOON", "dates"]]
    _, said, _ = run("federation", "check", kits / "site-1", "--json")
    assert [f["rule"] for f in json.loads(said)["findings"] if f["warn"]] == ["dates"]
