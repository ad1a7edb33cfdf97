"""A site: one data holder's settings, in its own `local/` folder. Nothing that arrives changes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privcal.checks import number, whole
from privcal.documents import read_toml
from privcal.errors import InputError, Refused
from privcal.federation.shared.kit import STARTUP_FILE, Startup
from privcal.federation.site import keys
from privcal.federation.site.keys import SiteKeys
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
MIN_DELAY, MAX_DELAY = 0.1, 600

_TEMPLATE = """\
# What this site answers from, and how. Nothing that arrives from outside can change it.

# A reply is held until so many seconds after its question came, or the next multiple of that, so
# that how long it takes does not tell how many rows there are.
delay = {delay}
"""
_POPULATION = """
[[populations]]
# The labelled scores, read anew for every question that was charged. Another file must be attached
# to the ledger first (privcal ledger attach).
data = {data}
# Every charge is recorded here before an answer leaves, and here is the policy: who may ask what,
# and for how much (privcal ledger policy). Never copy it back from a backup.
ledger = {ledger}
"""
_MODEL = """\
# Questions about this model are answered from these data.
model = {model}
"""
_MAX_ROWS = """\
# Declared to everyone: no number of an answer is larger than so many rows could make it.
max_rows = {max_rows}
"""


@dataclass(frozen=True)
class Population:
    """Data with the ledger of the people they are about."""

    data: Path
    ledger: Path
    model: str | None = None
    """The model that these scores are of; None: whichever is asked for."""
    max_rows: int | None = None

    def source(self, name: str) -> Source:
        """The source that answers. Its rows are not looked at before a question is charged."""
        ledger = Ledger(self.ledger)
        data = Data.at(self.data)
        for note in map(Data.noted, reversed(ledger.notes())):
            if data.same_file(note.path):
                return Source(note, ledger=ledger, name=name, max_rows=self.max_rows)
        raise InputError(
            f"{self.ledger} is not noted for {self.data}; if it holds the same people, say so "
            f"with: privcal ledger attach {self.ledger} {self.data}"
        )


@dataclass(frozen=True)
class Site:
    """A site's settings, as its `local/privcal.toml` says them."""

    folder: Path
    populations: tuple[Population, ...]
    delay: float = DELAY

    @property
    def name(self) -> str:
        return name_of(self.folder)

    @classmethod
    def load(cls, folder: str | Path) -> Site:
        """The settings in a site's folder (that of its start-up kit)."""
        folder = Path(folder)
        path = folder / "local" / SETTINGS
        if not path.exists():
            raise InputError(f"there is no {path}; run privcal site init first")
        table = read_toml(path, "settings of a site")
        _only(table, ("delay", "populations"), str(path))
        rows = table.get("populations")
        if not isinstance(rows, list) or not rows or not all(isinstance(r, dict) for r in rows):
            raise InputError(f"{path} must have at least one [[populations]]")
        populations = tuple(_population(row, folder / "local", str(path)) for row in rows)
        models = [population.model for population in populations]
        if len(models) > 1 and (None in models or len(set(models)) < len(models)):
            raise InputError(f"{path}: each of several [[populations]] needs a model of its own")
        return cls(folder, populations, _delay(table.get("delay", DELAY)))

    def population(self, model: str | None) -> Population:
        """The population that a question about a model is answered from."""
        for population in self.populations:
            if population.model is None or population.model == model:
                return population
            if model is None and len(self.populations) == 1:
                return population
        raise Refused("model")


def _population(row: dict[str, Any], local: Path, where: str) -> Population:
    _only(row, ("data", "ledger", "model", "max_rows"), f"{where} [[populations]]")
    for name in ("data", "ledger"):
        if not isinstance(row.get(name), str):
            raise InputError(f"{where}: {name} must be a path")
    model = row.get("model")
    if model is not None and (not isinstance(model, str) or not model):
        raise InputError(f"{where}: model must be a name")
    return Population(
        local / row["data"], local / row["ledger"], model, _max_rows(row.get("max_rows"))
    )


def name_of(folder: Path) -> str:
    """A site's name, as its kit says it: the folder may be called otherwise, in a container say."""
    try:
        return Startup.read(folder, "site").name
    except InputError:
        return folder.resolve().name


def init(
    folder: str | Path,
    data: str | Path,
    policy: Policy | None = None,
    *,
    person: str | None = None,
    model: str | None = None,
    delay: float = DELAY,
    max_rows: int | None = None,
    warn: Callable[[str], None] | None = None,
) -> Site:
    """Write a site's settings, make its keys unless it has some, and create its ledger, or take
    the one its data have.

    A new ledger needs a policy; `person` is the column of person ids, None protects single rows.
    The data are checked. Nothing is overwritten.
    """
    folder = Path(folder)
    local = folder / "local"
    if not local.is_dir():
        raise InputError(f"{folder} is not a site's folder: it has no local/")
    for kind, file in STARTUP_FILE.items():
        if kind != "site" and (folder / "startup" / file).exists():
            raise InputError(f"{folder} is the folder of a {kind}; name that of a site")
    settings = local / SETTINGS
    for path in (settings, local / LEDGER):
        if path.exists():
            raise InputError(
                f"{path} exists already; this site was set up before (privcal site add: more data)"
            )
    head = _TEMPLATE.format(delay=_delay(delay))
    if has_keys := keys.exist(folder):
        SiteKeys.load(folder)  # say now what is wrong with them, not when there is a ledger
    text = _settings_of(folder, local / LEDGER, data, policy, person, model, max_rows, warn)
    if not has_keys:
        SiteKeys.make(folder)
    _write(settings, head + text)
    return Site.load(folder)


def add(
    folder: str | Path,
    data: str | Path,
    policy: Policy | None = None,
    *,
    model: str,
    person: str | None = None,
    max_rows: int | None = None,
    warn: Callable[[str], None] | None = None,
) -> Site:
    """Let a site answer about another model too, from data of their own.

    People whose data have a ledger keep it: attach the new file to it first.
    """
    site = Site.load(folder)
    local = site.folder / "local"
    if any(population.model is None for population in site.populations):
        raise InputError(
            f"{local / SETTINGS} has data for whichever model is asked for: say there which model "
            'they are of (model = "...") before others are added'
        )
    if any(population.model == model for population in site.populations):
        raise InputError(f"{local / SETTINGS} has data for model {model!r} already")
    ledger = next(
        path for index in range(2, 1000) if not (path := local / f"privcal-{index}.ledger").exists()
    )
    text = _settings_of(site.folder, ledger, data, policy, person, model, max_rows, warn)
    _write(local / SETTINGS, (local / SETTINGS).read_text("utf-8") + text)
    return Site.load(folder)


def _settings_of(
    folder: Path,
    new_ledger: Path,
    data: str | Path,
    policy: Policy | None,
    person: str | None,
    model: str | None,
    max_rows: int | None,
    warn: Callable[[str], None] | None,
) -> str:
    """The lines of the settings for some data, which are checked, and have a ledger afterwards."""
    max_rows = _max_rows(max_rows)
    rows = Data.at(data, person=person)
    ledger = opening.find(rows)
    _check_ledger(ledger, folder, rows, policy, person)
    if ledger is not None:
        rows = next(note for note in opening.notes_of(rows))
    scores = rows.read(strict=True)
    if max_rows is not None and len(scores) > max_rows:
        raise InputError(f"{data} has more rows than the {max_rows:,} declared; declare more")
    if ledger is None:
        if warn is not None:
            warn_of_ids(rows.path, person, None, warn)
        name = name_of(folder)
        ledger = opening.create(rows, scores, policy, at=new_ledger, name=name, warn=warn)
    model = model or ledger.policy.model
    own = ledger.path == new_ledger.resolve()
    text = _POPULATION.format(
        data=_quoted(rows.path), ledger=_quoted(new_ledger.name if own else ledger.path)
    )
    if model is not None:
        text += _MODEL.format(model=_quoted(model))
    return text if max_rows is None else text + _MAX_ROWS.format(max_rows=max_rows)


def _check_ledger(
    ledger: Ledger | None, folder: Path, data: Data, policy: Policy | None, person: str | None
) -> None:
    """InputError where a site cannot answer from data with this ledger, or without one."""
    if ledger is None:
        if policy is None:
            raise InputError(
                f"{data} has no ledger yet: say with --epsilon what it may spend in all; if these "
                "are people of data that have one, attach it there instead (privcal ledger attach)"
            )
        return
    if policy is not None or person is not None:
        raise InputError(
            f"{data} has the ledger {ledger.path} with rules of its own: leave --epsilon and all "
            "other rules out to use it, and change them with privcal ledger policy"
        )
    assert ledger.path is not None
    local = ledger.path.parent
    if (local / SETTINGS).exists() and local != (folder / "local").resolve():
        raise InputError(
            f"{data} has the ledger {ledger.path}, in the folder of another site; if this kit "
            f"takes its place, move the ledger to {opening.ledger_path(data)} first"
        )


def _write(settings: Path, text: str) -> None:
    with replacing(settings, private=True) as part:
        part.write_text(text, encoding="utf-8")


def _only(table: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in table:
        if name not in known:
            hints = {
                "policy": "; the policy is in the ledger: privcal ledger policy",
                **dict.fromkeys(("data", "ledger", "max_rows"), ", where it belongs"),
            }
            raise InputError(
                f"{where} has no setting {name!r}; there are {', '.join(known)}"
                + hints.get(name, "")
            )


def _quoted(path: str | Path | None) -> str:
    return json.dumps(str(path))


def _delay(value: Any) -> float:
    return number("delay (seconds)", value, MIN_DELAY, MAX_DELAY)


def _max_rows(value: Any) -> int | None:
    return None if value is None else whole("max_rows", value, 1, 2**31 - 1)
