"""How an owner sets a site up, and lets it answer about more data: `privcal site init` and `add`."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from privcal.data import opening
from privcal.data.files import replacing
from privcal.data.ids import warn_of_ids
from privcal.data.ledger import Ledger
from privcal.data.place import Data
from privcal.data.scores import Scores
from privcal.data.scoring import model_name
from privcal.transport import keys
from privcal.transport.keys import CARD, Keys, check_no_kit
from privcal.transport.letter import check_name
from privcal.transport.site.settings import (
    DELAY,
    LEDGER,
    SETTINGS,
    Scoring,
    Site,
    check_delay,
    check_max_rows,
)
from privcal.transport.standing import Standing
from privcal.trusted.errors import InputError, Refused
from privcal.trusted.policy import Policy

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


def init(
    folder: str | Path,
    data: str | Path,
    policy: Policy | None = None,
    *,
    name: str | None = None,
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

    `name` is what the roster calls the site, by default the folder's name. A new ledger needs a
    policy; `person` is the column of person ids, None protects single rows. With `scoring` the data
    are a table, which is scored; `progress` is told how many rows are done, and `attach_to` is the
    ledger (or its data) that these people have. The data are checked. Nothing is overwritten.
    """
    folder = Path(folder)
    check_no_kit(folder)
    settings = folder / SETTINGS
    for path in (settings, folder / LEDGER):
        if path.exists():
            raise InputError(
                f"{path} exists already; this site was set up before (privcal site add: more data)"
            )
    head = _TEMPLATE.format(delay=check_delay(delay))
    name, has_keys = _name(folder, name), keys.exist(folder)
    given = _Given(data, policy, person, model, max_rows, scoring, attach_to, warn, progress)
    if is_new := not folder.exists():
        folder.mkdir(mode=0o700)
    try:
        text = _settings_of(folder, name, folder / LEDGER, given)
    except BaseException:
        if is_new:
            folder.rmdir()
        raise
    if not has_keys:
        Keys.make(folder, name, "site")
    _write(settings, head + text)
    return _bound(folder)


def _name(folder: Path, name: str | None) -> str:
    """The site's name: as its keys have it, as its owner says, or its folder's."""
    if keys.exist(folder):
        own = Keys.load(folder)  # say now what is wrong with them, not when there is a ledger
        if own.role != "site" or name not in (None, own.name):
            raise InputError(
                f"{folder} has the keys of the {own.role} {own.name}; use another folder"
            )
        return own.name
    return check_name("--name, or else the folder's name,", name or folder.resolve().name)


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
    folder, settings = site.folder, site.folder / SETTINGS
    if scoring is not None:
        model = model_name(scoring.model_file)
    if model is None:
        raise InputError("say with --model which model these scores come from")
    if any(population.model is None for population in site.populations):
        raise InputError(
            f"{settings} has data for whichever model is asked for: say there which model "
            'they are of (model = "...") before others are added'
        )
    if any(population.model == model for population in site.populations):
        raise InputError(f"{settings} has data for model {model!r} already")
    ledger = next(
        path
        for index in range(2, 1000)
        if not (path := folder / f"privcal-{index}.ledger").exists()
    )
    given = _Given(data, policy, person, model, max_rows, scoring, attach_to, warn, progress)
    text = _settings_of(folder, site.name, ledger, given)
    _write(settings, settings.read_text("utf-8") + text)
    return _bound(folder)


def _bound(folder: str | Path) -> Site:
    """The site as it is set up now: its keys bound to its ledgers, its card written, its roster noted."""
    site = Site.load(folder)
    site.bind_keys().card.save(site.folder / CARD)
    with suppress(InputError, Refused):  # there is none yet, or not a good one, which health tells
        _ = Standing(folder).latest
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

    def read(self, data: Data, model: str | None, site: Path) -> Scores:
        """The rows, strictly."""
        if self.scoring is None or model is None:
            return data.read(strict=True)
        rows = self.scoring.rows(data, model, site)
        return rows.read(strict=True, progress=self.progress)


def _settings_of(folder: Path, name: str, new_ledger: Path, given: _Given) -> str:
    """The lines of the settings for some data, which are checked, and have a ledger afterwards."""
    max_rows, scoring = check_max_rows(given.max_rows), given.scoring
    rows = Data.at(given.data, person=given.person)
    ledger = opening.find(rows)
    attaching = ledger is None and given.attach_to is not None
    if ledger is None and given.attach_to is not None:
        ledger = opening.ledger_of(given.attach_to)
        _check_ledger(ledger, folder, rows, given.policy, None)
    else:
        _check_ledger(ledger, folder, rows, given.policy, given.person)
        rows = rows if ledger is None else next(note for note in opening.notes_of(rows))
    model = given.model if scoring is None else model_name(scoring.model_file)
    _check_model(model, given.policy if ledger is None else ledger.policy)
    scores = given.read(rows, model, folder)
    if max_rows is not None and len(scores) > max_rows:
        raise InputError(f"{given.data} has more rows than the {max_rows:,} declared; declare more")
    if ledger is None:
        if given.warn is not None and scoring is None:
            warn_of_ids(rows.path, given.person, None, given.warn)
        opening.warn_of_copies([(rows, scores)], {new_ledger.resolve()}, given.warn)
        ledger = opening.create(
            rows, scores, given.policy, at=new_ledger, name=name, warn=given.warn
        )
    if attaching:
        opening.attach(ledger, rows, scores, given.warn)
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
    other = ledger.path.parent
    if (other / SETTINGS).exists() and other != folder.resolve():
        raise InputError(
            f"{data} has the ledger {ledger.path}, in the folder of another site; if this one "
            f"takes its place, move the ledger to {opening.ledger_path(data)} first"
        )


def _write(settings: Path, text: str) -> None:
    with replacing(settings, private=True) as part:
        part.write_text(text, encoding="utf-8")


def _quoted(path: str | Path | None) -> str:
    return json.dumps(str(path))
