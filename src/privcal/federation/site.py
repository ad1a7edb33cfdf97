"""A site: one data holder's settings, in its own `local/` folder. Nothing here comes from a job."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privcal.errors import InputError
from privcal.files import replacing
from privcal.privacy.ledger import Ledger
from privcal.privacy.policy import Policy
from privcal.readers import read_scores
from privcal.source import Source

SETTINGS = "privcal.toml"
LEDGER = "privcal.ledger"
DELAY = 2.0
MIN_DELAY, MAX_DELAY = 0.1, 600.0

_TEMPLATE = """\
# What this site answers, and from what. Only this file decides; nothing in a job can change it.

# The labelled scores, read anew for every question.
data = {data}

# Every charge is recorded here before an answer leaves. Never copy it back from a backup.
ledger = {ledger}

# A reply is held until so many seconds after its question came, or the next multiple of that, so
# that how long it takes does not tell how many rows there are.
delay = {delay}
{max_rows}
[policy]
# All that may ever be spent on this population, over all askers and campaigns.
epsilon = {epsilon}
# The most that one question may cost (default: all of it).
{epsilon_per_request}
# Who may ask, by the name in their certificate (default: whoever the federation admits).
{askers}
# The model these scores come from: questions about another are refused.
{model}
# Where person ids are given: how many rows of one person count. The noise grows with it.
rows_per_person = {rows_per_person}
"""


@dataclass(frozen=True)
class Site:
    """A site's settings, as its `local/privcal.toml` says them."""

    folder: Path
    data: Path
    ledger: Path
    policy: Policy
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
        known = {"data", "ledger", "delay", "max_rows", "policy"}
        for name in table:
            if name not in known:
                raise InputError(f"{path} has no setting {name!r}; there are {', '.join(known)}")
        for name in ("data", "ledger"):
            if not isinstance(table.get(name), str):
                raise InputError(f"{path}: {name} must be a path")
        if not isinstance(table.get("policy"), dict):
            raise InputError(f"{path} has no [policy]")
        return cls(
            folder,
            folder / "local" / table["data"],
            folder / "local" / table["ledger"],
            Policy.of(table["policy"], path),
            _delay(table.get("delay", DELAY)),
            _max_rows(table.get("max_rows")),
        )

    def source(self) -> Source:
        """The source behind this site; raises InputError for its owner's eyes."""
        return Source(read_scores(self.data), self.policy, Ledger(self.ledger), self.folder.name)


def init(
    folder: str | Path,
    data: str | Path,
    epsilon: float,
    *,
    model: str | None = None,
    askers: tuple[str, ...] | None = None,
    epsilon_per_request: float | None = None,
    rows_per_person: int = 1,
    delay: float = DELAY,
    max_rows: int | None = None,
) -> Site:
    """Write a site's settings, create its ledger, check its data. Refuses to overwrite either."""
    folder, data = Path(folder), Path(data)
    local = folder / "local"
    if not local.is_dir():
        raise InputError(f"{folder} is not a site's folder: it has no local/")
    settings, ledger = local / SETTINGS, local / LEDGER
    for path in (settings, ledger):
        if path.exists():
            raise InputError(f"{path} exists already; this site was set up before")
    policy = Policy(epsilon, epsilon_per_request, None, rows_per_person, askers, model)
    delay, max_rows = _delay(delay), _max_rows(max_rows)
    scores = read_scores(data)
    Source(scores, policy)  # says what does not fit together
    if max_rows is not None and len(scores) > max_rows:
        raise InputError(f"{data} has more rows than the {max_rows:,} declared; declare more")
    Ledger.create(ledger, epsilon)
    text = _TEMPLATE.format(
        data=_quoted(data.resolve()),
        ledger=_quoted(LEDGER),
        delay=delay,
        max_rows=""
        if max_rows is None
        else f"\n# Declared to everyone: this site never counts more rows.\nmax_rows = {max_rows}\n",
        epsilon=policy.epsilon,
        epsilon_per_request=_line("epsilon_per_request", policy.epsilon_per_request),
        askers=_line("askers", None if policy.askers is None else list(policy.askers)),
        model=_line("model", policy.model),
        rows_per_person=rows_per_person,
    )
    with replacing(settings) as part:
        part.write_text(text, encoding="utf-8")
    settings.chmod(0o600)
    return Site.load(folder)


def _line(name: str, value: Any) -> str:
    return f"# {name} =" if value is None else f"{name} = {json.dumps(value)}"


def _quoted(path: str | Path) -> str:
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
