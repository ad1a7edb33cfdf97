"""A site: one data holder's settings, in its own `local/` folder. Nothing that arrives changes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
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
from privcal.privacy.policy import Policy, SecureRules
from privcal.scores import Scores
from privcal.scoring import Setup, model_name
from privcal.scoring.rows import SCORES, ScoredRows
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
_SCORING = """\
[populations.scoring]
# The data are a table: each of its rows is run through this model, alone, and again when the table
# changes. The model's name above is the SHA-256 of this file: another file is not used.
model_file = {model_file}
"""


@dataclass(frozen=True)
class Scoring:
    """The model file that scores a population's table, and how the table goes through it."""

    model_file: Path
    setup: Setup

    def rows(self, table: Data, model: str, local: Path) -> ScoredRows:
        """The table, as a source opens it; whose rows they are is as its ledger notes it."""
        setup = replace(self.setup, person=table.person)
        folder = local / SCORES / model.removeprefix("sha256:")
        return ScoredRows(table, self.model_file, model, setup, folder)


@dataclass(frozen=True)
class Population:
    """Data with the ledger of the people they are about."""

    data: Path
    ledger: Path
    model: str | None = None
    """The model that these scores are of; None: whichever is asked for."""
    max_rows: int | None = None
    scoring: Scoring | None = None
    """Where the data are a table that the site scores itself."""
    local: Path = Path()
    """The site's folder for what is its own."""

    def source(self, name: str) -> Source:
        """The source that answers. Its rows are not looked at before a question is charged."""
        ledger = Ledger(self.ledger)
        rows = self._rows(self._noted(ledger))
        return Source(rows, ledger=ledger, name=name, max_rows=self.max_rows)

    def make_scores(self) -> None:
        """Score the table as it is now, unless that was done."""
        rows = self._rows(self._noted(Ledger(self.ledger)))
        if isinstance(rows, ScoredRows):
            rows.make()

    def _noted(self, ledger: Ledger) -> Data:
        """The data, as the ledger notes them."""
        data = Data.at(self.data)
        for note in map(Data.noted, reversed(ledger.notes())):
            if data.same_file(note.path):
                return note
        raise InputError(
            f"{self.ledger} is not noted for {self.data}; if it holds the same people, say so "
            f"with: privcal ledger attach {self.ledger} {self.data}"
        )

    def _rows(self, data: Data) -> Data | ScoredRows:
        """These data, or the table in them with the model that scores it."""
        if self.scoring is None or self.model is None:
            return data
        return self.scoring.rows(data, self.model, self.local)


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

    @property
    def secure_rules(self) -> list[SecureRules]:
        """What the owner wants of secure sums, of each ledger that can be read and says something of them."""
        wanted = []
        for population in self.populations:
            with suppress(Refused):
                wanted.append(Ledger(population.ledger).policy.secure)
        return [rules for rules in wanted if rules is not None]

    @property
    def needs_new_keys(self) -> bool:
        """Whether it takes part in no secure sum before its owner makes new keys: the sealing key was
        destroyed, or will be, because a ledger that it goes with is another now."""
        own = SiteKeys.load(self.folder)
        if not self.secure_rules:
            return False
        try:
            now = {Ledger(population.ledger).generation for population in self.populations}
        except Refused:  # nobody knows before all can be read
            return own.lost
        return own.lost or bool(set(own.ledgers) - now)

    def bind_keys(self) -> SiteKeys:
        """The site's keys; the sealing key goes with the ledgers that the site has now (`keys.bind`).

        Refused where one of these is missing. This is done as soon as there are keys, not when they
        are first used: a copy of them from before that would go with whatever ledger it finds.
        """
        generations = {Ledger(population.ledger).generation for population in self.populations}
        return keys.bind(self.folder, generations)


def _population(row: dict[str, Any], local: Path, where: str) -> Population:
    _only(row, ("data", "ledger", "model", "max_rows", "scoring"), f"{where} [[populations]]")
    for name in ("data", "ledger"):
        if not isinstance(row.get(name), str):
            raise InputError(f"{where}: {name} must be a path")
    model = row.get("model")
    if model is not None and (not isinstance(model, str) or not model):
        raise InputError(f"{where}: model must be a name")
    scoring = None if "scoring" not in row else _scoring(row["scoring"], local, where)
    if scoring is not None and model is None:
        raise InputError(f"{where}: a table that is scored needs the name of its model")
    return Population(
        local / row["data"],
        local / row["ledger"],
        model,
        _max_rows(row.get("max_rows")),
        scoring,
        local,
    )


def _scoring(row: Any, local: Path, where: str) -> Scoring:
    if not isinstance(row, dict) or not isinstance(row.get("model_file"), str):
        raise InputError(f"{where}: scoring needs a model_file")
    facts = {name: value for name, value in row.items() if name != "model_file"}
    return Scoring(local / row["model_file"], Setup.of(facts, where))


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
    scoring: Scoring | None = None,
    attach_to: Path | None = None,
    warn: Callable[[str], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Site:
    """Write a site's settings, make its keys unless it has some, and create its ledger, or take
    the one its data have.

    A new ledger needs a policy; `person` is the column of person ids, None protects single rows.
    With `scoring` the data are a table, which is scored; `progress` is told how many rows are
    done, and `attach_to` is the ledger (or its data) that these people have. The data are checked.
    Nothing is overwritten.
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
    given = _Given(data, policy, person, model, max_rows, scoring, attach_to, warn, progress)
    text = _settings_of(folder, local / LEDGER, given)
    if not has_keys:
        SiteKeys.make(folder)
    _write(settings, head + text)
    return _bound(folder)


def add(
    folder: str | Path,
    data: str | Path,
    policy: Policy | None = None,
    *,
    model: str | None = None,
    person: str | None = None,
    max_rows: int | None = None,
    scoring: Scoring | None = None,
    attach_to: Path | None = None,
    warn: Callable[[str], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Site:
    """Let a site answer about another model too, from data of their own, or from a table that it scores.

    The model must be named, or be in a file. People whose data have a ledger keep it: attach the
    new file to it first.
    """
    site = Site.load(folder)
    local = site.folder / "local"
    if scoring is not None:
        model = model_name(scoring.model_file)
    if model is None:
        raise InputError("say with --model which model these scores come from")
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
    given = _Given(data, policy, person, model, max_rows, scoring, attach_to, warn, progress)
    text = _settings_of(site.folder, ledger, given)
    _write(local / SETTINGS, (local / SETTINGS).read_text("utf-8") + text)
    return _bound(folder)


def _bound(folder: str | Path) -> Site:
    """The site as it is set up now, its keys bound to its ledgers."""
    site = Site.load(folder)
    site.bind_keys()
    return site


@dataclass(frozen=True)
class _Given:
    """What an owner says of data that a site is to answer from."""

    data: str | Path
    policy: Policy | None
    person: str | None
    model: str | None
    max_rows: int | None
    scoring: Scoring | None = None
    attach_to: Path | None = None
    warn: Callable[[str], None] | None = None
    progress: Callable[[int], None] | None = None

    def read(self, data: Data, model: str | None, local: Path) -> Scores:
        """The rows, strictly."""
        if self.scoring is None or model is None:
            return data.read(strict=True)
        rows = self.scoring.rows(data, model, local)
        return rows.read(strict=True, progress=self.progress)


def _settings_of(folder: Path, new_ledger: Path, given: _Given) -> str:
    """The lines of the settings for some data, which are checked, and have a ledger afterwards."""
    max_rows, scoring = _max_rows(given.max_rows), given.scoring
    rows = Data.at(given.data, person=given.person)
    ledger = opening.find(rows)
    attaching = ledger is None and given.attach_to is not None
    if ledger is None and given.attach_to is not None:
        ledger = opening.ledger_of(given.attach_to)
        _check_ledger(ledger, folder, rows, given.policy, None)
        rows = replace(rows, person=given.person if ledger.unit == "person" else None)
    else:
        _check_ledger(ledger, folder, rows, given.policy, given.person)
        rows = rows if ledger is None else next(note for note in opening.notes_of(rows))
    model = given.model if scoring is None else model_name(scoring.model_file)
    _check_model(model, given.policy if ledger is None else ledger.policy)
    scores = given.read(rows, model, folder / "local")
    if max_rows is not None and len(scores) > max_rows:
        raise InputError(f"{given.data} has more rows than the {max_rows:,} declared; declare more")
    if ledger is None:
        if given.warn is not None and scoring is None:
            warn_of_ids(rows.path, given.person, None, given.warn)
        name = name_of(folder)
        ledger = opening.create(
            rows, scores, given.policy, at=new_ledger, name=name, warn=given.warn
        )
    if attaching:
        opening.attach(ledger, rows, scores)
    model = model or ledger.policy.model or scores.model
    own = ledger.path == new_ledger.resolve()
    text = _POPULATION.format(
        data=_quoted(rows.path), ledger=_quoted(new_ledger.name if own else ledger.path)
    )
    if model is not None:
        text += _MODEL.format(model=_quoted(model))
    text += "" if max_rows is None else _MAX_ROWS.format(max_rows=max_rows)
    return text if scoring is None else text + _scoring_text(scoring)


def _scoring_text(scoring: Scoring) -> str:
    text = _SCORING.format(model_file=_quoted(scoring.model_file.resolve()))
    # JSON's texts, lists of texts and truths are TOML's, too.
    lines = (f"{name} = {json.dumps(value)}\n" for name, value in scoring.setup.to_dict().items())
    return text + "".join(lines)


def _check_model(model: str | None, policy: Policy | None) -> None:
    """InputError where the owner's rules are for another model: every question would be refused."""
    if policy is not None and None not in (policy.model, model) and policy.model != model:
        raise InputError(
            f"the policy is for the model {policy.model}, and this one is {model}; change it with "
            "privcal ledger policy"
        )


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
