"""The accounts behind `budget = "person"`: what each person has spent.

An individual filter, with pure ε. A request of ε asks about everybody present; whoever's account
would exceed the total by it does not count in the answer and is not charged; everybody else counts
and is charged ε.

Proof. Let D and D′ differ by person p's rows, over the whole life of a ledger, and let the answers
so far be the same. Then the next request is the same (it is chosen from the answers). Whether
another person counts in it is decided by the total, by the requests' ε, and by that person's own
account, which grew by the same requests in both worlds: p enters nowhere. So the exact sums of D
and D′ differ only if p counts, and then by at most what one person can change; the noise makes
that answer's probabilities differ by a factor of at most exp(ε), and p's account grows by ε. Where
p does not count, the answer has the same law in both worlds. Multiplied over all requests the
factor is at most exp(sum of the ε in which p counted), and p's account, which never exceeds the
total, is that sum. ∎

In secure sums a question costs a person more against everybody else together: `alone` times its ε,
with a total of its own. By the same proof that total holds too, if p counts no longer once it would
be exceeded. Accounts hold the ε alone; as no question in them cost more than R times its ε, R being
the largest `alone` of any share that was charged, it is enough to keep each account below the R-th
part of that total (`privcal.trusted.charging.person_room`). R depends on requests alone, so p enters
nowhere still. ∎

A charge is on disk before any noise is drawn, and is never given back: a crash in between costs
the persons their ε and gives nobody an answer. What the owner writes off (after a restore, say)
counts against everybody, newcomers too, because it cannot be known whom the lost answers were about.

Persons are known by keyed hashes of their ids. All who have spent the same form one account, and as
a request charges everybody alike, few accounts hold a million persons.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

WIDTH = 16
"""Bytes of a hash: two of a million persons share one with a chance below 2⁻⁸⁸."""

ACCOUNT_TABLES = """
CREATE TABLE IF NOT EXISTS account (number INTEGER PRIMARY KEY, spent INTEGER NOT NULL, hash TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS member (number INTEGER PRIMARY KEY, persons BLOB NOT NULL);
"""
# Two tables, so that an account that moves on as a whole does not write its members again.


@dataclass
class Account:
    """Persons who have each spent the same nano-ε. The number is None until it is stored."""

    number: int | None
    spent: int
    persons: set[bytes]


def person_hash(person: str, secret: bytes) -> bytes:
    """The keyed hash by which an account knows a person."""
    text = person.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, key=secret, digest_size=WIDTH, person=b"privcal-account").digest()


def charge(db: sqlite3.Connection, present: set[bytes], nano: int, cap: int) -> set[bytes]:
    """Charge everybody present whose account stays within `cap`; returns them: only they count."""
    accounts = read(db)
    strangers = present.difference(*(account.persons for account in accounts))
    counted: set[bytes] = set()
    for account in list(accounts):
        paying = account.persons & present if account.spent + nano <= cap else set()
        counted |= paying
        if len(paying) == len(account.persons):
            account.spent += nano
        elif paying:
            _forget(db, account)
            account.persons -= paying
            accounts.append(Account(None, account.spent + nano, paying))
    if strangers and nano <= cap:
        counted |= strangers
        accounts.append(Account(None, nano, strangers))
    by_amount: dict[int, Account] = {}
    for account in accounts:
        first = by_amount.setdefault(account.spent, account)
        if first is not account:
            _forget(db, first)
            _forget(db, account)
            first.persons |= account.persons
    _write(db, by_amount.values())
    return counted


def read(db: sqlite3.Connection) -> list[Account]:
    """All accounts, each held against its hash."""
    accounts = []
    for number, spent, stamp, persons in db.execute(
        "SELECT number, spent, hash, persons FROM account LEFT JOIN member USING (number)"
        " ORDER BY number"
    ):
        if stamp != _hash(number, spent, persons):
            raise sqlite3.DatabaseError("an account of persons is damaged")
        members = {persons[i : i + WIDTH] for i in range(0, len(persons), WIDTH)}
        accounts.append(Account(number, spent, members))
    return accounts


def digest(db: sqlite3.Connection) -> str:
    """A hash over all accounts, for the ledger's chain, so that a missing one is noticed; or ""."""
    text = "".join(stamp for (stamp,) in db.execute("SELECT hash FROM account ORDER BY number"))
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


def _forget(db: sqlite3.Connection, account: Account) -> None:
    """Take an account off the disk: its members change, and it is stored anew."""
    for table in ("account", "member") if account.number is not None else ():
        _one(db.execute(f"DELETE FROM {table} WHERE number = ?", (account.number,)))
    account.number = None


def _write(db: sqlite3.Connection, accounts: Iterable[Account]) -> None:
    for account in accounts:
        if account.number is None:
            persons = b"".join(sorted(account.persons))
            number = db.execute("INSERT INTO member (persons) VALUES (?)", (persons,)).lastrowid
            assert number is not None
            stamp = _hash(number, account.spent, persons)
            db.execute("INSERT INTO account VALUES (?, ?, ?)", (number, account.spent, stamp))
        else:
            # Over those who were charged, whoever else may be in the file by now.
            stamp = _hash(account.number, account.spent, b"".join(sorted(account.persons)))
            _one(
                db.execute(
                    "UPDATE account SET spent = ?, hash = ? WHERE number = ?",
                    (account.spent, stamp, account.number),
                )
            )


def _one(changed: sqlite3.Cursor) -> None:
    """An error unless one row was changed: in a file that somebody built, what is read may not be found."""
    if changed.rowcount != 1:
        raise sqlite3.DatabaseError("an account of persons is damaged")


def _hash(number: int, spent: int, persons: bytes | None) -> str:
    return hashlib.sha256(f"{number}:{spent}:".encode() + (persons or b"")).hexdigest()
