"""A party's own keys: made where it is, closed to others, replaced and destroyed; never shown."""

from __future__ import annotations

import base64
import json
import os
import time
import traceback
from pathlib import Path
from typing import Any

import pytest

from privcal.trusted.errors import InputError

pytest.importorskip("cryptography", reason="needs cryptography: pip install privcal[secure]")

from privcal.secure.keys import (
    CLASSICAL,
    HYBRID,
    OVERHEAD,
    SealingKey,
    check_public_key,
    check_signature,
    check_signing,
    seal,
)
from privcal.transport.keys import OLD_FOR, Keys, bind, destroy, rotate
from privcal.transport.letter import id_of

DAY = 24 * 3600
POSIX = pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "party"


def make(folder: Path, name: str = "site-1", role: str = "site") -> Keys:
    return Keys.make(folder, name, role)


def file_of(folder: Path) -> Path:
    [path] = (folder / "keys").iterdir()
    return path


def test_keys_that_were_made_are_the_ones_that_are_loaded(folder: Path) -> None:
    made, loaded = make(folder), Keys.load(folder)
    assert (made.public, made.sealing.public) == (loaded.public, loaded.sealing.public)
    check_signature(made.public, "a text", loaded.sign("a text"))
    assert loaded.sealing.open(seal(made.sealing.public, b"x", b"about"), b"about") == b"x"


def test_two_parties_make_different_keys(tmp_path: Path) -> None:
    made = []
    for name in ("a", "b"):
        made.append(make(tmp_path / name))
    assert made[0].public != made[1].public
    assert made[0].sealing.public != made[1].sealing.public


@POSIX
def test_only_the_partys_account_can_read_its_keys(folder: Path) -> None:
    old = os.umask(0)
    try:
        make(folder)
        assert file_of(folder).stat().st_mode & 0o777 == 0o600
        rotate(folder)
        assert file_of(folder).stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(old)
    assert file_of(folder).parent.stat().st_mode & 0o777 == 0o700


def test_keys_are_never_overwritten_by_making_some(folder: Path) -> None:
    make(folder)
    before = file_of(folder).read_bytes()
    with pytest.raises(InputError, match="there already"):
        make(folder)
    assert file_of(folder).read_bytes() == before


@POSIX
def test_keys_are_not_written_through_a_link_that_somebody_left(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "keys").mkdir(parents=True)
    (folder / "keys" / "privcal.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="there already"):
        make(folder)
    assert not (tmp_path / "elsewhere").exists()


def test_a_start_up_kit_of_an_older_privcal_gets_one_sentence(folder: Path) -> None:
    (folder / "startup").mkdir(parents=True)
    for act in (make, Keys.load, rotate, lambda folder: bind(folder, [])):
        with pytest.raises(
            InputError, match=r"^[^\n]+ start-up kit of an older privcal: make a new"
        ):
            act(folder)
    assert [path.name for path in folder.iterdir()] == ["startup"]


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "nowhere" / "party", tmp_path / "file"):
        with pytest.raises(InputError, match="cannot make"):
            make(place)


@pytest.mark.parametrize("name", ["", "a b", "-a", "ä", "a/b", "x" * 64, "a\n", 7, None])
def test_some_names_are_no_partys(folder: Path, name: Any) -> None:
    with pytest.raises(InputError, match="the name of a party must be"):
        make(folder, name)
    assert not folder.exists()


def test_a_role_is_one_of_two(tmp_path: Path) -> None:
    for role in ("site", "calibrator"):
        assert make(tmp_path / role, "a", role).role == Keys.load(tmp_path / role).role == role
    with pytest.raises(InputError, match="the role of a party must be one of calibrator, site"):
        make(tmp_path / "other", "a", "server")


def test_missing_keys_are_said_to_be_missing(folder: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read the keys .* privcal keys make$"):
        Keys.load(folder)
    with pytest.raises(InputError, match="has no keys"):
        destroy(folder)


@POSIX
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_keys_that_others_could_read_or_change_are_not_used(folder: Path, mode: int) -> None:
    make(folder)
    file_of(folder).chmod(mode)
    for act in (Keys.load, rotate):
        with pytest.raises(InputError, match="open to other accounts; close it with chmod go="):
            act(folder)
    file_of(folder).chmod(0o600)
    rotate(folder, signing=True, now=True)


@POSIX
def test_keys_in_a_folder_that_others_may_enter_are_not_used(folder: Path) -> None:
    make(folder)
    file_of(folder).parent.chmod(0o755)
    with pytest.raises(InputError, match="open to other accounts"):
        Keys.load(folder)


def damaged(facts: dict[str, Any], **changes: Any) -> bytes:
    return json.dumps({**facts, **changes}, sort_keys=True, separators=(",", ":")).encode()


DAMAGE: dict[str, Any] = {
    "empty": lambda facts: b"",
    "cut": lambda facts: damaged(facts)[:-10],
    "bytes": lambda facts: bytes(range(256)),
    "a list": lambda facts: b"[]",
    "a part beside": lambda facts: damaged(facts, more=1),
    "a date that is a text": lambda facts: damaged(facts, made="today"),
    "a short signing key": lambda facts: damaged(facts, signing=facts["signing"][4:]),
    "a signing key that is none": lambda facts: damaged(facts, signing=None),
    "a short sealing key": lambda facts: damaged(facts, sealing=facts["sealing"][:-4]),
    "a sealing key of another suite": lambda facts: damaged(
        facts, sealing=facts["sealing"].replace(HYBRID, CLASSICAL)
    ),
    "a sealing key without a suite": lambda facts: damaged(facts, sealing=facts["sealing"][4:]),
    "another public half": lambda facts: damaged(facts, sealing_public=SealingKey.make().public),
    "a public half that is none": lambda facts: damaged(facts, sealing_public=None),
    "a name that cannot be": lambda facts: damaged(facts, name="a b"),
    "a role that is none": lambda facts: damaged(facts, role="server"),
    "an old key without a day": lambda facts: damaged(facts, old=[facts["sealing"]]),
    "an old key that is none": lambda facts: damaged(facts, old=["x", 7]),
    "an old key with a day that is a text": lambda facts: damaged(
        facts, old=[facts["sealing"], "7"]
    ),
    "ledgers that are a text": lambda facts: damaged(facts, ledgers="one"),
    "a ledger that is a number": lambda facts: damaged(facts, ledgers=[1]),
}


def test_keys_of_another_format_are_said_to_be_that(folder: Path) -> None:
    make(folder)
    facts = json.loads(file_of(folder).read_text())
    file_of(folder).write_bytes(damaged(facts, format=1))
    with pytest.raises(InputError, match=r"is not of format 3, .* privcal keys make"):
        Keys.load(folder)


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_keys_are_said_to_be_damaged_without_a_word_of_them(
    folder: Path, name: str
) -> None:
    make(folder)
    facts = json.loads(file_of(folder).read_text())
    file_of(folder).write_bytes(DAMAGE[name](facts))
    with pytest.raises(
        InputError, match=r"privcal\.key is damaged; [^\n]+privcal keys make$"
    ) as error:
        Keys.load(folder)
    told = "".join(traceback.format_exception(error.value))
    assert facts["signing"][8:24] not in told
    assert facts["sealing"][40:60] not in told
    destroy(folder)
    make(folder)


def test_nothing_shows_a_private_key(folder: Path) -> None:
    keys = make(folder)
    facts = json.loads(file_of(folder).read_text())
    for text in (repr(keys), str(keys), f"{keys}", repr(keys.sealing), str([keys, keys.sealing])):
        assert facts["signing"][:20] not in text
        assert facts["sealing"].partition(":")[2][:20] not in text
        raw = base64.b64decode(facts["sealing"].partition(":")[2])
        assert repr(raw[:8])[2:-1] not in text


def test_a_rotated_sealing_key_is_new_and_the_signing_key_stays(folder: Path) -> None:
    old, new = make(folder), rotate(folder)
    assert (new.id, new.public, new.name, new.role) == (old.id, old.public, old.name, old.role)
    assert new.sealing_public != old.sealing_public == new.old.key.public
    assert Keys.load(folder).sealing_public == new.sealing_public
    assert new.card.sealing == new.sealing_public


def test_a_rotated_signing_key_makes_another_party(folder: Path) -> None:
    old, new = make(folder), rotate(folder, signing=True)
    assert len({old.id, new.id}) == len({old.sealing_public, new.sealing_public}) == 2
    assert new.id == id_of(new.public)
    assert new.old is None, "what is dealt is dealt for a name with both keys"


@pytest.mark.parametrize("how", [{"now": True}, {"signing": True}])
def test_keys_that_were_stolen_are_overwritten_where_the_owner_says_so(
    folder: Path, how: dict[str, bool]
) -> None:
    make(folder)
    text = file_of(folder).read_bytes()
    secret = json.loads(text)["sealing"].encode()
    os.link(file_of(folder), folder / "second name")  # what was in the old file's place
    assert rotate(folder, **how).old is None
    left = (folder / "second name").read_bytes()
    assert len(left) == len(text)
    assert not any(text[k : k + 8] in left for k in range(0, len(text), 8))
    assert secret not in file_of(folder).read_bytes()


def test_a_rotated_sealing_key_opens_what_was_sealed_before_for_90_days_and_no_longer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make(folder)
    sealed = seal(before.sealing_public, b"x", b"about")
    bind(folder, ["a"])
    keys, now = rotate(folder), time.time()
    with pytest.raises(ValueError, match="another key"):
        keys.sealing.open(sealed, b"about")
    last = keys.old.until
    assert OLD_FOR - 5 < last - now <= OLD_FOR + 5
    assert keys.as_of(before.sealing_public, last - 1).sealing.open(sealed, b"about") == b"x"
    assert len(keys.openers(last - 1)) == 2
    for late in (last, last + DAY):
        assert keys.as_of(before.sealing_public, late).sealing_public == keys.sealing_public
        assert keys.openers(late) == (keys.sealing,)
    assert keys.as_of("another key", now) is keys
    secret = keys.old.key.secret
    assert secret in file_of(folder).read_text()
    monkeypatch.setattr(time, "time", lambda: last)
    assert bind(folder, ["a"]).old is None
    assert secret not in file_of(folder).read_text(), "it is destroyed when its days are over"


def test_of_two_rotations_the_last_two_keys_are_left(folder: Path) -> None:
    made = [make(folder), rotate(folder), rotate(folder)]
    assert made[2].old.key.public == made[1].sealing_public
    assert made[2].as_of(made[0].sealing_public, time.time()) is made[2]


@pytest.mark.parametrize("rotated", [True, False])
def test_a_restored_ledger_destroys_the_rotated_key_too(folder: Path, rotated: bool) -> None:
    """Else what was opened under it once might be opened for another set."""
    made = make(folder)
    bind(folder, ["a"])
    secrets = [made.sealing.secret]
    if rotated:
        secrets.append(rotate(folder).sealing.secret)
    kept = bind(folder, ["another a"])
    assert kept.lost
    assert kept.openers(time.time()) == ()
    assert kept.as_of(made.sealing_public, time.time()).lost
    assert not any(secret in file_of(folder).read_text() for secret in secrets)


def test_a_lost_key_is_not_kept_as_the_rotated_one(folder: Path) -> None:
    make(folder)
    bind(folder, ["a"])
    bind(folder, ["b"])
    assert rotate(folder).old is None


def test_a_rotation_that_fails_leaves_the_keys_as_they_were(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make(folder).sealing_public

    def full(*args: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(InputError, match="No space left"):
        rotate(folder)
    assert Keys.load(folder).sealing_public == before


def test_destroyed_keys_are_overwritten_and_gone_and_new_ones_can_be_made(folder: Path) -> None:
    old = make(folder)
    text = file_of(folder).read_bytes()
    os.link(file_of(folder), folder / "second name")
    destroy(folder)
    assert list((folder / "keys").iterdir()) == []
    assert text[:40] not in (folder / "second name").read_bytes()
    with pytest.raises(InputError, match="cannot read the keys"):
        rotate(folder)
    assert make(folder).public != old.public


# --- signatures -----------------------------------------------------------------------------


# --- keys and ledgers -------------------------------------------------------------------------


def test_a_sealing_key_goes_with_the_ledgers_it_was_first_used_with(folder: Path) -> None:
    made = make(folder)
    assert bind(folder, ["b", "a"]).ledgers == ("a", "b")
    assert bind(folder, ["a", "b"]).sealing.secret == made.sealing.secret
    assert Keys.load(folder).ledgers == ("a", "b")
    assert bind(folder, ["a", "b", "c"]).sealing.secret == made.sealing.secret, "one more"
    assert Keys.load(folder).ledgers == ("a", "b", "c")


@pytest.mark.parametrize("now", [["a", "another b"], ["a"], [], ["new"]])
def test_a_sealing_key_is_destroyed_where_a_ledger_is_another_or_gone(
    folder: Path, now: list[str]
) -> None:
    made = make(folder)
    bind(folder, ["a", "b"])
    sealed = seal(made.sealing.public, b"x", b"about")
    secret = json.loads(file_of(folder).read_text())["sealing"]
    bind(folder, now)
    for generations in (now, ["a", "b"]):  # it does not come back with the ledger
        kept = bind(folder, generations)
        with pytest.raises(InputError, match=r"destroyed, because a ledger .* privcal keys rotate"):
            kept.sealing.open(sealed, b"about")
    assert secret not in file_of(folder).read_text()
    assert (kept.public, kept.sealing_public) == (made.public, made.sealing_public)
    check_signature(kept.public, "text", kept.sign("text"))
    rotate(folder)
    assert bind(folder, now).sealing.public != made.sealing_public


def test_the_key_of_a_forgotten_opening_is_overwritten_on_disk(folder: Path) -> None:
    make(folder)
    bind(folder, ["a"])
    path = file_of(folder)
    secret = json.loads(path.read_text())["sealing"]
    with path.open("rb") as old:  # whoever had it open sees what became of it
        bind(folder, ["b"])
        assert secret.encode() not in old.read()


def test_a_signature_is_for_one_text_and_one_key(folder: Path, tmp_path: Path) -> None:
    mine, other = make(folder), make(tmp_path / "b")
    signature = mine.sign("a text")
    for public, text, said in (
        (mine.public, "another text", signature),
        (other.public, "a text", signature),
        (mine.public, "a text", other.sign("a text")),
        (mine.public, "a text", None),
        (mine.public, "a text", ""),
        (mine.public, "a text", signature + "\n"),
    ):
        with pytest.raises(ValueError, match="signature is not right"):
            check_signature(public, text, said)


P = 2**255 - 19


def _small_order() -> list[int]:
    """The y of every point of order 1, 2, 4 or 8 on −x² + y² = 1 + d x² y², by the curve's law.

    Of order 1 and 2: y = ±1; of order 4: y = 0; of order 8: those whose double has y = 0, that
    is y² = −x², so that 2y² = 1 − d y⁴.
    """
    d = -121665 * pow(121666, -1, P) % P
    found = [1, P - 1, 0]
    root = pow(1 + d, (P + 3) // 8, P)  # d z² + 2 z − 1 = 0 for z = y²
    if root * root % P != (1 + d) % P:
        root = root * pow(2, (P - 1) // 4, P) % P
    assert root * root % P == (1 + d) % P
    for sign in (1, -1):
        z = (-1 + sign * root) * pow(d, -1, P) % P
        y = pow(z, (P + 3) // 8, P)
        for candidate in (y, y * pow(2, (P - 1) // 4, P) % P):
            if candidate * candidate % P == z:
                found += [candidate, P - candidate]
    return sorted(set(found))


def test_there_are_five_heights_of_points_of_small_order() -> None:
    """Eight points: (0, 1), (0, −1), two at y = 0, four at two opposite heights."""
    assert len(_small_order()) == 5


@pytest.mark.parametrize("y", _small_order())
@pytest.mark.parametrize("sign", [0, 1])
def test_a_signing_key_for_which_anyone_can_sign_is_refused(y: int, sign: int) -> None:
    raw = (y | sign << 255).to_bytes(32, "little")
    with pytest.raises(InputError, match=r"relied on|one spelling"):
        check_signing(base64.b64encode(raw).decode())


def test_such_a_key_would_be_taken_by_the_library_and_anyone_could_sign() -> None:
    """The attack: a signature made without a private key, for the point of order 1."""
    identity = base64.b64encode((1).to_bytes(32, "little")).decode()
    forged = base64.b64encode((1).to_bytes(32, "little") + bytes(32)).decode()
    check_signature(identity, "any text at all", forged)
    with pytest.raises(InputError, match="relied on"):
        check_signing(identity)


@pytest.mark.parametrize(
    "public", [None, 7, "", "x", "A" * 44, base64.b64encode(b"\xff" * 32).decode()]
)
def test_what_is_no_signing_key_is_refused(public: Any) -> None:
    with pytest.raises(InputError):
        check_signing(public)


def test_good_signing_keys_pass(folder: Path) -> None:
    public = make(folder).public
    assert check_signing(public) == public
    for _ in range(20):
        check_signing(rotate(folder, signing=True).public)


# --- sealing --------------------------------------------------------------------------------


@pytest.mark.parametrize("suite", [HYBRID, CLASSICAL])
def test_what_is_sealed_is_opened_with_its_key_and_about_the_same_thing_only(suite: str) -> None:
    key, other = SealingKey.make(suite), SealingKey.make(suite)
    assert check_public_key(key.public) == key.public
    assert SealingKey.read(key.secret).public == key.public
    sealed = seal(key.public, b"a text", b"about")
    assert len(sealed) == len(b"a text") + OVERHEAD[suite]
    assert key.open(sealed, b"about") == b"a text"
    for opener, box, about in (
        (other, sealed, b"about"),
        (key, sealed, b"about something else"),
        (key, sealed[:-1], b"about"),
        (key, sealed[:-1] + bytes([sealed[-1] ^ 1]), b"about"),
        (key, bytes([sealed[0] ^ 1]) + sealed[1:], b"about"),
        (key, b"", b"about"),
        (SealingKey.make(CLASSICAL if suite == HYBRID else HYBRID), sealed, b"about"),
    ):
        with pytest.raises(ValueError, match="sealed for another key"):
            opener.open(box, about)


def test_the_hybrid_is_what_is_made_unless_said_otherwise() -> None:
    assert SealingKey.make().suite == HYBRID


def test_the_hybrid_needs_both_halves() -> None:
    """With either half replaced nothing opens: each alone closes what is sealed."""
    key, other = SealingKey.make(), SealingKey.make()
    sealed = seal(key.public, b"x", b"")
    mine, others = (base64.b64decode(k.secret.partition(":")[2]) for k in (key, other))
    for raw in (mine[:64] + others[64:], others[:64] + mine[64:]):
        mixed = SealingKey.read(f"{HYBRID}:{base64.b64encode(raw).decode()}")
        with pytest.raises(ValueError, match="another key"):
            mixed.open(sealed, b"")
