"""How a ledger begins: its facts, its first entries, and one in memory. No answer of a durable ledger comes here."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from privcal.trusted.chain import (
    FOLDED,
    POLICY,
    UNITS,
    Chain,
    Facts,
    Unit,
    make_tables,
    now,
    stamp,
    transaction,
)
from privcal.trusted.checks import one_of
from privcal.trusted.epsilon import Cost, from_nano
from privcal.trusted.errors import InputError
from privcal.trusted.policy import Policy
from privcal.trusted.question import check_name


def new_facts(name: str, unit: Unit, marks: str | None, policy: Policy) -> Facts:
    one_of("the unit of protection", unit, UNITS)
    check_name("a source's name", name)
    check_policy_fits(policy, unit)
    created = stamp(now())
    id, secret = secrets.token_hex(16), secrets.token_hex(32)
    return Facts(id, secret, name, unit, marks, created, FOLDED)


def check_policy_fits(policy: Policy, unit: Unit) -> None:
    """An InputError where such a policy makes no sense for such a ledger."""
    if policy.nano_minimum > policy.nano_per_request:
        raise InputError(
            f"the policy's minimum_epsilon {policy.minimum_epsilon:g} is more than one request may "
            f"cost ({from_nano(policy.nano_per_request):g}): nothing could be asked"
        )
    if unit == "row":
        if policy.budget == "person":
            raise InputError("a budget for each person needs person ids: the unit must be person")
        if policy.rows_per_person > 1:
            raise InputError(
                f"the policy lets {policy.rows_per_person} rows of one person count, but the unit "
                "of protection is the row: there are no person ids"
            )


def initialise(
    book: Chain, db: sqlite3.Connection, facts: Facts, policy: Policy, lost: Cost
) -> None:
    """Write a new ledger into empty tables; `lost` is what one that was lost at its path had spent."""
    db.row_factory = sqlite3.Row
    book.db = db
    book.write_facts(facts)
    book.append(POLICY, json.dumps(policy.to_dict(), sort_keys=True))
    if lost.alone:
        book.append_write_off("carried over from a lost ledger", lost)


_IDLE: list[sqlite3.Connection] = []
"""Connections that ledgers in memory take turns in: one of its own would take ten times its room."""


class Memory(Chain):
    """The chain of a ledger in memory, and its tables: between operations they are bytes."""

    def __init__(self) -> None:
        super().__init__()
        self._tables = _empty()
        self.known = False
        """Whether all that stands in the tables was read: nobody else can change them."""

    def fill(self, facts: Facts, policy: Policy) -> None:
        """Let it be a new ledger."""
        with self.opened() as db, transaction(db):
            initialise(self, db, facts, policy, Cost())
            self.known = True

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """The tables, for one operation."""
        db = self._tables if isinstance(self._tables, sqlite3.Connection) else _filled(self._tables)
        try:
            yield db
        except BaseException:
            self.known = False  # what was added may have been rolled back
            raise
        finally:
            if db is not self._tables:
                self._tables = db.serialize()
                _IDLE.append(db)

    def read(self, db: sqlite3.Connection) -> None:
        if not self.known:
            super().read(db)
        self.db, self.known = db, True


def _filled(tables: bytes) -> sqlite3.Connection:
    try:
        db = _IDLE.pop()
    except IndexError:
        db = _connection()
    db.deserialize(tables)
    return db


def _empty() -> bytes | sqlite3.Connection:
    """New tables; with a connection of their own where SQLite cannot make bytes of them."""
    return _blank() if hasattr(sqlite3.Connection, "serialize") else _connection()


@cache
def _blank() -> bytes:
    return _connection().serialize()


def _connection() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA page_size = 512")
    make_tables(db)
    return db
