"""Charge first, answer once; a budget is never exceeded, forgotten or refilled by accident."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import privcal
from privcal.data.ledger import Key
from privcal.trusted import source as source_module
from privcal.trusted.epsilon import NANO
from privcal.trusted.queries import Gap, Nll
from privcal.trusted.question import Question
from tests.support.builders import a_ledger, edit, named, outcome, random_scores


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return a_ledger(tmp_path)


def source(path: Path | None, epsilon: float = 1.0) -> privcal.Source:
    return privcal.Source(random_scores(30), privcal.Policy(epsilon=epsilon), ledger=path)


def ask(path: Path, request: str, epsilon: float = 0.25, query: object = None) -> list[float]:
    return source(path).answer(named(request, query or Gap(), epsilon)).values.tolist()


def refusal(path: Path, request: str, epsilon: float = 0.25, query: object = None) -> str:
    return outcome(ask, path, request, epsilon, query)


def test_the_same_request_gets_the_same_answer_free_of_charge(path: Path) -> None:
    first = ask(path, "r1")
    assert ask(path, "r1") == first
    assert ask(path, "r1/0/0") == first  # the same key, written out
    assert source(path).spent == 0.25


def test_the_same_request_from_another_asker_is_another_request(path: Path) -> None:
    mine = source(path).answer(Question.of(Gap(), 0.25, "r1"), "a").values
    yours = source(path).answer(Question.of(Gap(), 0.25, "r1"), "b").values
    assert mine != yours
    assert source(path).spent == 0.5


@pytest.mark.parametrize(("query", "epsilon"), [(Nll(), 0.25), (Gap(2.0), 0.25), (Gap(), 0.24)])
def test_the_same_id_for_another_question_is_refused(
    path: Path, query: object, epsilon: float
) -> None:
    ask(path, "r1")
    assert refusal(path, "r1", epsilon, query) == "id_conflict"
    assert source(path).spent == 0.25


def test_the_cap_is_exact_to_the_last_nano(path: Path) -> None:
    ask(path, "a", 0.998999999)
    assert refusal(path, "b", 0.001000002) == "over_budget"
    ask(path, "c", 0.001000001)
    assert source(path).ledger.nano_spent == NANO
    assert refusal(path, "d", 0.001) == "over_budget"


def test_the_smaller_of_the_two_caps_rules(tmp_path: Path) -> None:
    path = tmp_path / "capped.db"
    privcal.Ledger.create(path, privcal.Policy(0.3), unit="row")
    ask(path, "a", 0.25)
    assert refusal(path, "b", 0.1) == "over_budget"
    privcal.Ledger(path).set_policy(privcal.Policy(5))
    ask(path, "b", 0.75)
    assert refusal(path, "c", 0.1) == "over_budget"  # now the narrower policy's 1.0


def test_one_ledger_adds_up_over_data_models_and_askers(path: Path) -> None:
    for week in range(4):
        later = privcal.Source(
            random_scores(5 + week, seed=week), privcal.Policy(epsilon=1), ledger=path
        )
        later.answer(Question.of(Gap(), 0.25, f"week-{week}"), f"asker-{week}")
    assert refusal(path, "week-5", 0.001) == "over_budget"


def test_a_missing_ledger_is_refused_and_not_made(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.db", "r") == "ledger_missing"
    assert not (tmp_path / "none.db").exists()


def test_a_ledger_that_disappears_while_in_use_is_refused(path: Path) -> None:
    alive = source(path)
    alive.answer(Question.of(Gap(), 0.1, "a"))
    path.unlink()
    assert outcome(alive.answer, Question.of(Gap(), 0.1, "b")) == "ledger_missing"


def test_creating_never_overwrites(path: Path) -> None:
    ask(path, "a")
    with pytest.raises(privcal.InputError, match="never overwritten"):
        privcal.Ledger.create(path, unit="row")
    assert source(path).spent == 0.25


def test_a_new_ledger_in_the_place_of_a_lost_one_starts_with_what_that_had_spent(
    path: Path,
) -> None:
    ask(path, "a", 0.7)
    path.unlink()
    privcal.Ledger.create(path, unit="row")
    assert source(path).spent == 0.7
    assert refusal(path, "b", 0.4) == "over_budget"


def test_a_ledger_restored_from_an_old_copy_is_refused_until_reconciled(
    path: Path, tmp_path: Path
) -> None:
    ask(path, "a", 0.2)
    shutil.copy(path, tmp_path / "backup.db")
    ask(path, "b", 0.5)
    shutil.copy(tmp_path / "backup.db", path)
    assert refusal(path, "c", 0.1) == "ledger_rolled_back"
    assert refusal(path, "a", 0.2) == "ledger_rolled_back"  # even what it still knows
    ledger = privcal.Ledger(path)
    assert ledger.nano_behind() == NANO // 2
    assert ledger.reconcile() == NANO // 2
    assert source(path).spent == 0.7
    assert refusal(path, "d", 0.4) == "over_budget"
    ask(path, "d", 0.3)


def test_an_open_source_notices_a_restore_too(path: Path, tmp_path: Path) -> None:
    shutil.copy(path, tmp_path / "backup.db")
    alive = source(path)
    alive.answer(Question.of(Gap(), 0.1, "a"))
    shutil.move(tmp_path / "backup.db", path)
    assert outcome(alive.answer, Question.of(Gap(), 0.1, "b")) == "ledger_rolled_back"


def test_a_ledger_this_machine_never_saw_needs_its_owners_word(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(path, "a", 0.2)
    on_another_machine(tmp_path, monkeypatch)
    assert refusal(path, "b") == "ledger_rolled_back"
    with pytest.raises(privcal.InputError, match="write_off"):
        privcal.Ledger(path).reconcile()
    privcal.Ledger(path).reconcile(write_off=0.5)
    assert source(path).spent == 0.7
    ask(path, "b", 0.3)


def on_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the marks of this one are not."""
    shutil.rmtree(tmp_path / "elsewhere")
    monkeypatch.setenv("PRIVCAL_MARKS", str(tmp_path / "another-machine" / "marks.db"))


@pytest.mark.parametrize("damage", ["garbage", "empty", "truncated", "another database"])
def test_a_damaged_ledger_is_refused(path: Path, damage: str) -> None:
    for i in range(20):
        ask(path, f"r{i}", 0.01)
    content = path.read_bytes()
    if damage == "garbage":
        path.write_bytes(b"not a ledger" * 1000)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.unlink()
        edit(path, "CREATE TABLE entry (x)")
    assert refusal(path, "more", 0.01) == "unavailable"


def test_an_entry_whose_numbers_were_changed_is_noticed(path: Path) -> None:
    ask(path, "a", 0.5)
    edit(path, "UPDATE entry SET epsilon = 1, spent = 1")
    assert refusal(path, "b", 0.1) == "unavailable"
    with pytest.raises(privcal.InputError, match="damaged at entry"):
        privcal.Ledger(path).entries()


def test_a_bit_flipped_anywhere_never_frees_budget(tmp_path: Path) -> None:
    path = tmp_path / "capped.db"
    privcal.Ledger.create(path, privcal.Policy(0.9), unit="row")
    for i in range(3):
        ask(path, f"r{i}", 0.3)
    whole = path.read_bytes()
    for position in range(0, len(whole), 97):
        flipped = bytearray(whole)
        flipped[position] ^= 0x10
        path.write_bytes(flipped)
        try:
            ask(path, "more", 0.1)
        except privcal.Refused:
            continue
        pytest.fail(f"a bit flipped at {position} gave away budget")


def test_a_full_disk_before_the_charge_costs_nothing(path: Path) -> None:
    ask(path, "a", 0.1)
    with full_disk():
        assert refusal(path, "b", 0.1) == "unavailable"
    assert source(path).spent == 0.1
    ask(path, "b", 0.1)


def test_a_full_disk_after_the_charge_loses_the_answer_and_the_budget(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = source_module.add_noise
    limit = full_disk()

    def fill_disk_then_draw(*args: object) -> list[int]:
        limit.__enter__()
        return real(*args)

    monkeypatch.setattr(source_module, "add_noise", fill_disk_then_draw)
    try:
        assert refusal(path, "a", 0.1) == "unavailable"
    finally:
        limit.__exit__(None, None, None)
    assert source(path).spent == 0.1
    assert refusal(path, "a", 0.1) == "lost"
    assert source(path).spent == 0.1


class full_disk:
    """No file may grow beyond 64 bytes, so every write to the ledger or its journal fails."""

    def __enter__(self) -> None:
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, self.before[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


def test_what_goes_wrong_with_the_rows_is_unavailable_and_charged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = source(path)
    monkeypatch.setattr(broken, "_exact", lambda *asked: 1 / 0)
    with pytest.raises(privcal.Refused) as refused:
        broken.answer(Question.of(Gap(), 0.1, "a"))
    assert str(refused.value) == "unavailable: the source cannot answer"
    assert broken.spent == 0.1
    assert refusal(path, "a", 0.1) == "lost"


def test_the_ledger_tells_what_left_when_to_whom_at_what_cost(path: Path) -> None:
    source(path).answer(Question.of(Gap(2.0), 0.125, "spring", round=3, index=1), "acme")
    policy, entry = privcal.Ledger(path).entries()
    assert (policy.kind, policy.key) == ("policy", None)
    assert entry.key == Key("acme", "spring", 3, 1)
    assert entry.what == Gap(2.0).canonical()
    assert (entry.epsilon, entry.answered) == (0.125, True)
    assert entry.time.endswith("+00:00")


def test_the_ledger_syncs_every_commit_to_the_disk(path: Path) -> None:
    with privcal.Ledger(path)._open() as book:
        assert book.db.execute("PRAGMA synchronous").fetchone()[0] >= 2  # FULL, or more
        assert book.db.execute("PRAGMA journal_mode").fetchone()[0] == "delete"


def test_an_in_memory_ledger_says_what_it_is() -> None:
    fleeting = source(None)
    assert "not durable" in repr(fleeting.ledger)
    assert not fleeting.ledger.durable
    first = fleeting.answer(Question.of(Gap(), 0.5, "r")).values
    assert fleeting.answer(Question.of(Gap(), 0.5, "r")).values == first
    assert outcome(fleeting.answer, Question.of(Gap(), 0.6, "s")) == "over_budget"


def test_another_spelling_of_its_path_does_not_forget_a_lost_ledger(
    path: Path, tmp_path: Path
) -> None:
    ask(path, "a", 0.7)
    path.unlink()
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    assert (
        privcal.Ledger.create(tmp_path / "link" / path.name, unit="row").nano_spent
        == 7 * NANO // 10
    )


def test_the_marks_remember_every_place_a_ledger_was_at(path: Path, tmp_path: Path) -> None:
    ask(path, "a", 0.5)
    path.rename(tmp_path / "moved.db")
    ask(tmp_path / "moved.db", "b", 0.2)
    assert privcal.Ledger.create(path, unit="row").nano_spent == 7 * NANO // 10


def test_a_copy_that_was_used_leaves_the_original_behind(path: Path, tmp_path: Path) -> None:
    shutil.copy(path, tmp_path / "copy.db")
    ask(tmp_path / "copy.db", "a", 0.5)
    assert refusal(path, "b", 0.1) == "ledger_rolled_back"


def test_a_fresh_ledger_put_in_the_place_of_a_spent_one_is_refused(
    path: Path, tmp_path: Path
) -> None:
    ask(path, "a", 0.9)
    privcal.Ledger.create(tmp_path / "fresh.db", unit="row")
    (tmp_path / "fresh.db").replace(path)
    assert refusal(path, "b", 0.5) == "ledger_rolled_back"
    privcal.Ledger(path).reconcile()
    assert refusal(path, "b", 0.5) == "over_budget"


def test_a_cap_changed_behind_the_ledgers_back_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "capped.db"
    privcal.Ledger.create(path, privcal.Policy(0.3), unit="row")
    edit(path, "UPDATE entry SET what = replace(what, '0.3', '5.0') WHERE kind = 'policy'")
    assert refusal(path, "a", 0.4) == "unavailable"


def test_only_its_owner_can_read_a_ledger(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_answer_is_stored_once(path: Path) -> None:
    ask(path, "a", 0.1)
    for campaign in ("a", "never-charged"):
        with pytest.raises(privcal.Refused, match="lost"):
            privcal.Ledger(path).store(Question.of(Gap(), 0.1, campaign), "local", [12345])
    assert ask(path, "a", 0.1) != [12345 / 2**20]


def test_looking_at_a_ledger_makes_no_files(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_another_machine(tmp_path, monkeypatch)
    assert privcal.Ledger(path).nano_behind() is None
    assert refusal(path, "a") == "ledger_rolled_back"
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "another-machine").exists()


def test_marks_that_cannot_be_opened_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PRIVCAL_MARKS", str(tmp_path / "file" / "marks.db"))
    with pytest.raises(privcal.InputError, match="high-water marks"):
        privcal.Ledger.create(tmp_path / "l.db", unit="row")
    assert not (tmp_path / "l.db").exists()


@pytest.mark.parametrize("asker", [5, None, "", "a\nb"])
def test_a_malformed_asker_is_a_bad_request(asker: object, path: Path) -> None:
    with pytest.raises(privcal.Refused, match="bad_request"):
        source(path).answer(Question.of(Gap(), 0.1, "r"), asker)


def test_a_stored_answer_that_was_changed_is_noticed(path: Path) -> None:
    ask(path, "a", 0.1)
    edit(path, "UPDATE entry SET answer = '[123]' WHERE answer IS NOT NULL")
    assert refusal(path, "a", 0.1) == "unavailable"
    with pytest.raises(privcal.InputError, match="damaged"):
        privcal.Ledger(path).entries()


@pytest.mark.parametrize("how", ["a folder in their place", "taken by somebody else"])
def test_marks_that_cannot_be_written_cost_nothing(path: Path, tmp_path: Path, how: str) -> None:
    ask(path, "a", 0.1)
    marks = tmp_path / "elsewhere" / "marks.db"
    if how == "a folder in their place":
        marks.rename(tmp_path / "kept")
        marks.mkdir()
        assert refusal(path, "b", 0.1) == "unavailable"
        marks.rmdir()
        (tmp_path / "kept").rename(marks)
    else:
        with marks_locked_for_ever(marks):
            assert refusal(path, "b", 0.1) == "unavailable"
    assert source(path).spent == 0.1
    ask(path, "b", 0.1)


@contextmanager
def marks_locked_for_ever(marks: Path) -> Iterator[None]:
    """As good as read-only, for whoever runs the tests as root too."""
    with pytest.MonkeyPatch.context() as patch, closing(sqlite3.connect(marks)) as other:
        patch.setattr("privcal.trusted.marks.BUSY_SECONDS", 0.05)
        other.execute("BEGIN EXCLUSIVE")
        yield


def test_two_copies_of_a_ledger_asked_in_turn_are_told_apart(path: Path, tmp_path: Path) -> None:
    """Also where both have spent the same: the mark knows the entry, not the amount alone."""
    copy = Path(shutil.copy(path, tmp_path / "copy.db"))
    ask(path, "a", 0.25)
    assert refusal(copy, "b", 0.25) == "ledger_rolled_back"
    privcal.Ledger(copy).reconcile()
    assert privcal.Ledger(copy).nano_spent == privcal.Ledger(path).nano_spent
    assert refusal(path, "c", 0.25) == "ledger_rolled_back"
    assert not privcal.Ledger(path).in_step
    ask(copy, "c", 0.25)


def test_a_crash_between_ledger_and_mark_is_no_rollback(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as crash:
        crash.setattr("privcal.trusted.marks.Marks.raise_to", lambda *_: None)
        ask(path, "a", 0.25)
    assert privcal.Ledger(path).in_step
    ask(path, "b", 0.25)
    assert source(path).spent == 0.5


def test_an_account_with_other_marks_is_told_which_to_name(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of another account, with another HOME: what the ledger says of its marks is not repeated."""
    ask(path, "a", 0.2)
    marks = os.environ["PRIVCAL_MARKS"]
    monkeypatch.setenv("PRIVCAL_MARKS", str(tmp_path / "of-cron" / "marks.db"))
    assert refusal(path, "c", 0.1) == "ledger_rolled_back"
    assert not (tmp_path / "of-cron").exists()
    privcal.Ledger.create(tmp_path / "of-cron.db", unit="row")  # now there are such marks
    with pytest.raises(privcal.Refused, match="ledger_rolled_back") as refused:
        ask(path, "c", 0.1)
    assert "does not know it; if its marks are elsewhere, set PRIVCAL_MARKS" in str(
        refused.value.__cause__
    )
    monkeypatch.setenv("PRIVCAL_MARKS", marks)
    ask(path, "c", 0.1)


def test_a_policy_that_changes_before_the_charge_holds_for_it(path: Path) -> None:
    """Looked at under a policy of 1; then the owner allows .1, to others, after approval."""
    late = source(path)
    charge = late.ledger.charge

    def changed(*given: object) -> object:
        privcal.Ledger(path).set_policy(rules[code])
        return charge(*given)  # type: ignore[arg-type]

    late.ledger.charge = changed  # type: ignore[method-assign, assignment]
    rules = {
        "asker": privcal.Policy(askers=("ann",)),
        "over_request_limit": privcal.Policy(epsilon=0.1),
        "awaiting_approval": privcal.Policy(approve=True),
        "unavailable": privcal.Policy(model="v2"),
    }
    for code in rules:
        privcal.Ledger(path).set_policy(privcal.Policy(model="v1"))
        asked = named(code, Gap(), 0.5, model="v1")
        with pytest.raises(privcal.Refused) as refused:
            late.answer(asked)
        assert refused.value.code == code
    assert privcal.Ledger(path).nano_spent == 0


def test_only_their_owner_can_read_the_marks(path: Path, tmp_path: Path) -> None:
    assert (tmp_path / "elsewhere" / "marks.db").stat().st_mode & 0o777 == 0o600


def test_a_ledger_in_memory_does_not_multiply_by_a_fork() -> None:
    fleeting = source(None)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            fleeting.answer(Question.of(Gap(), 0.5, "r"))
            os.write(write, b"answered")
        except privcal.Refused as refused:
            os.write(write, refused.code.encode())
        finally:
            os._exit(0)
    os.close(write)
    assert os.read(read, 100) == b"unavailable"
    os.waitpid(child, 0)
    os.close(read)
    fleeting.answer(Question.of(Gap(), 0.5, "r"))


def test_the_name_and_the_unit_are_fixed_when_a_ledger_is_made(tmp_path: Path) -> None:
    ledger = privcal.Ledger.create(tmp_path / "ward.db", unit="person", name="Ward 7")
    assert (ledger.facts.name, ledger.unit) == ("Ward 7", "person")
    assert privcal.Ledger.create(tmp_path / "ward2.db", unit="row").facts.name == "ward2"
    for wrong in ({"unit": "household"}, {"unit": "row", "name": "a\nb"}):
        with pytest.raises(privcal.InputError):
            privcal.Ledger.create(tmp_path / "x.db", **wrong)
        assert not (tmp_path / "x.db").exists()
    with pytest.raises(TypeError):
        privcal.Ledger.create(tmp_path / "x.db")
    with pytest.raises(TypeError):
        privcal.Source(random_scores(3), privcal.Policy())


def test_a_copy_that_went_its_own_way_owes_what_both_spent(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked on another machine, and carried back over the first one's file."""
    ask(path, "shared", 0.1)
    shutil.copy(path, tmp_path / "usb.db")
    ask(path, "here", 0.3)
    marks = tmp_path / "elsewhere" / "marks.db"
    marks.rename(tmp_path / "kept")
    shutil.copy(tmp_path / "usb.db", path)
    privcal.Ledger(path).reconcile(write_off=0)  # wrong, as its owner did not know better
    ask(path, "there", 0.4)
    (tmp_path / "kept").replace(marks)
    assert refusal(path, "back", 0.1) == "ledger_rolled_back"
    assert privcal.Ledger(path).nano_behind() == 3 * NANO // 10
    with pytest.raises(privcal.InputError, match="was not written with these marks"):
        privcal.Ledger(path).reconcile()  # or somebody changed it: only its owner can know
    privcal.Ledger(path).reconcile(write_off=0)
    assert source(path).spent == 0.8
    assert refusal(path, "back", 0.3) == "over_budget"


def test_a_copy_reconciled_while_another_is_asked_counts_all_of_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copy(path, tmp_path / "copy.db"))
    ask(path, "a", 0.25)
    look = privcal.Ledger.nano_behind

    def look_and_be_late(self: privcal.Ledger) -> int | None:
        behind = look(self)
        ask(path, "b", 0.25)
        return behind

    with monkeypatch.context() as late:
        late.setattr(privcal.Ledger, "nano_behind", look_and_be_late)
        privcal.Ledger(copy).reconcile()
    assert privcal.Ledger(copy).nano_spent == NANO // 2


def test_a_ledger_in_the_place_of_a_lost_one_is_the_same_source(path: Path, tmp_path: Path) -> None:
    id = privcal.Ledger(path).id
    ask(path, "a", 0.25)
    hidden = path.rename(tmp_path / "hidden.db")
    assert privcal.Ledger.create(path, unit="row").id == id
    ask(path, "b", 0.25)
    # The lost one comes to light, and is a copy that went its own way.
    hidden.replace(path)
    assert refusal(path, "c", 0.1) == "ledger_rolled_back"
    privcal.Ledger(path).reconcile()
    assert source(path).spent == 0.5
