"""A site: one data holder's settings, in its own `local/` folder. Nothing here comes from a job."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privcal.errors import InputError
from privcal.files import replacing
from privcal.privacy import opening
from privcal.privacy.ledger import Ledger
from privcal.privacy.opening import Data
from privcal.privacy.policy import Policy
from privcal.source import Source
from privcal.sources import warn_of_ids

SETTINGS = "privcal.toml"
LEDGER = "privcal.ledger"
DELAY = 2.0
MIN_DELAY, MAX_DELAY = 0.1, 600.0

_TEMPLATE = """\
# What this site answers from, and how. Nothing in a job can change it.

# The labelled scores, read anew for every question that was charged. Another file must be attached
# to the ledger first (privcal ledger attach).
data = {data}

# Every charge is recorded here before an answer leaves, and here is the policy: who may ask what,
# and for how much (privcal ledger policy). Never copy it back from a backup.
ledger = {ledger}

# A reply is held until so many seconds after its question came, or the next multiple of that, so
# that how long it takes does not tell how many rows there are.
delay = {delay}
{max_rows}
"""


@dataclass(frozen=True)
class Site:
    """A site's settings, as its `local/privcal.toml` says them."""

    folder: Path
    data: Path
    ledger: Path
    delay: float = DELAY
    max_rows: int | None = None

    @classmethod
    def load(cls, folder: str | Path) -> Site:
        """From a site's folder (that of its start-up kit)."""
        folder = Path(folder)
        path = folder / "local" / SETTINGS
        try:
            table: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
        except OSError as error:
            raise InputError(
                f"cannot read {path}: {error.strerror}; run privcal site init first"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path} is not valid TOML: {error}") from None
        known = ("data", "ledger", "delay", "max_rows")
        for name in table:
            if name not in known:
                rule = "; the policy is in the ledger: privcal ledger policy"
                raise InputError(
                    f"{path} has no setting {name!r}; there are {', '.join(known)}"
                    + (rule if name == "policy" else "")
                )
        for name in ("data", "ledger"):
            if not isinstance(table.get(name), str):
                raise InputError(f"{path}: {name} must be a path")
        return cls(
            folder,
            folder / "local" / table["data"],
            folder / "local" / table["ledger"],
            _delay(table.get("delay", DELAY)),
            _max_rows(table.get("max_rows")),
        )

    def source(self) -> Source:
        """The source behind this site. Its rows are not looked at before a question is charged."""
        ledger = Ledger(self.ledger)
        here = Data.at(self.data)
        for note in map(Data.noted, reversed(ledger.notes())):
            if here.same_file(note.path):
                return Source(note, ledger=ledger, name=self.folder.name, max_rows=self.max_rows)
        raise InputError(
            f"{self.ledger} is not noted for {self.data}; if it holds the same people, say so "
            f"with: privcal ledger attach {self.ledger} {self.data}"
        )


def init(
    folder: str | Path,
    data: str | Path,
    policy: Policy | None = None,
    *,
    person: str | None = None,
    delay: float = DELAY,
    max_rows: int | None = None,
    warn: Callable[[str], None] | None = None,
) -> Site:
    """Write a site's settings, and create its ledger, or take the one that its data have.

    A new ledger needs a policy; `person` is the column of person ids, None protects single rows.
    The data are checked. Nothing is overwritten.
    """
    folder = Path(folder)
    local = folder / "local"
    if not local.is_dir():
        raise InputError(f"{folder} is not a site's folder: it has no local/")
    settings, place = local / SETTINGS, local / LEDGER
    for path in (settings, place):
        if path.exists():
            raise InputError(f"{path} exists already; this site was set up before")
    delay, max_rows = _delay(delay), _max_rows(max_rows)
    rows = Data.at(data, person=person)
    ledger = opening.find(rows)
    if ledger is not None and (policy is not None or person is not None):
        raise InputError(
            f"{data} has the ledger {ledger.path} with rules of its own: leave --epsilon and all "
            "other rules out to use it, and change them with privcal ledger policy"
        )
    if ledger is None and policy is None:
        raise InputError(f"{data} has no ledger yet: say with --epsilon what it may spend in all")
    if ledger is not None:
        rows = next(note for note in opening.notes_of(rows))
    scores = rows.read(strict=True)
    if max_rows is not None and len(scores) > max_rows:
        raise InputError(f"{data} has more rows than the {max_rows:,} declared; declare more")
    if ledger is None:
        if warn is not None:
            warn_of_ids(rows.path, person, None, warn)
        ledger = opening.create(rows, scores, policy, at=place, name=folder.name, warn=warn)
    text = _TEMPLATE.format(
        data=_quoted(rows.path),
        ledger=_quoted(LEDGER if ledger.path == place.resolve() else ledger.path),
        delay=delay,
        max_rows=""
        if max_rows is None
        else "\n# Declared to everyone: no number of an answer is larger than so many rows could "
        f"make it.\nmax_rows = {max_rows}\n",
    )
    with replacing(settings) as part:
        part.write_text(text, encoding="utf-8")
    settings.chmod(0o600)
    return Site.load(folder)


def _quoted(path: str | Path | None) -> str:
    return json.dumps(str(path))


def _delay(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"delay must be a number of seconds, not {value!r}")
    if not MIN_DELAY <= value <= MAX_DELAY:
        raise InputError(f"delay must be from {MIN_DELAY} to {MAX_DELAY:g} seconds, not {value}")
    return float(value)


def _max_rows(value: Any) -> int | None:
    if value is not None and (type(value) is not int or not 1 <= value < 2**31):
        raise InputError(f"max_rows must be a whole number of at least 1, not {value!r}")
    return value
