"""A site: one data holder's settings, in its own folder. Nothing that arrives changes them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privcal.data.files import read_toml
from privcal.data.place import Data
from privcal.transport import keys
from privcal.transport.keys import Keys
from privcal.trusted.book import Book
from privcal.trusted.checks import number, whole
from privcal.trusted.errors import InputError, Refused
from privcal.trusted.source import Rows, Source

if TYPE_CHECKING:  # a site that scores nothing does not import how that is done
    from privcal.data.scoring import Setup
    from privcal.data.scoring.rows import ScoredRows

SETTINGS = "privcal.toml"
LEDGER = "privcal.ledger"
DELAY = 2.0
MIN_DELAY, MAX_DELAY = 0.1, 600


@dataclass(frozen=True)
class Scoring:
    """The model file that scores a population's table, and how the table goes through it."""

    model_file: Path
    setup: Setup

    def rows(self, table: Data, model: str, site: Path) -> ScoredRows:
        """The table, as a source opens it; whose rows they are is as its ledger notes it."""
        from privcal.data.scoring.rows import SCORES, ScoredRows

        setup = replace(self.setup, person=table.person)
        folder = site / SCORES / model.removeprefix("sha256:")
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
    site: Path = Path()
    """The site's folder."""

    def source(self, name: str) -> Source:
        """The source that answers. Its rows are not looked at before a question is charged."""
        ledger = Book(self.ledger)
        noted = self._noted(ledger)
        ledger.rely_on(noted.note())
        rows: Rows = self._scored(noted) or noted
        return Source(rows, ledger=ledger, name=name, max_rows=self.max_rows)

    def make_scores(self) -> None:
        """Score the table as it is now, unless that was done."""
        if scored := self._scored(self._noted(Book(self.ledger))):
            scored.make()

    def _noted(self, ledger: Book) -> Data:
        """The data, as the ledger notes them."""
        data = Data.at(self.data)
        for note in map(Data.noted, reversed(ledger.notes())):
            if data.same_file(note.path):
                return note
        raise InputError(
            f"{self.ledger} is not noted for {self.data}; if it holds the same people, say so "
            f"with: privcal ledger attach {self.ledger} {self.data}"
        )

    def _scored(self, data: Data) -> ScoredRows | None:
        """The table in these data with the model that scores it, where the site does that itself."""
        if self.scoring is None or self.model is None:
            return None
        return self.scoring.rows(data, self.model, self.site)


@dataclass(frozen=True)
class Site:
    """A site's settings, as its `privcal.toml` says them."""

    folder: Path
    populations: tuple[Population, ...]
    delay: float = DELAY

    @property
    def name(self) -> str:
        """The name in its keys, which its card and the roster have too."""
        return Keys.load(self.folder).name

    @classmethod
    def load(cls, folder: str | Path) -> Site:
        """The settings in a site's folder."""
        folder = Path(folder)
        path = folder / SETTINGS
        if not path.exists():
            raise InputError(f"there is no {path}; run privcal site init first")
        table = read_toml(path, "settings of a site")
        _only(table, ("delay", "populations"), str(path))
        rows = table.get("populations")
        if not isinstance(rows, list) or not rows or not all(isinstance(r, dict) for r in rows):
            raise InputError(f"{path} must have at least one [[populations]]")
        populations = tuple(_population(row, folder, str(path)) for row in rows)
        models = [population.model for population in populations]
        if len(models) > 1 and (None in models or len(set(models)) < len(models)):
            raise InputError(f"{path}: each of several [[populations]] needs a model of its own")
        return cls(folder, populations, check_delay(table.get("delay", DELAY)))

    def population(self, model: str | None) -> Population:
        """The population that a question about a model is answered from."""
        for population in self.populations:
            if population.model is None or population.model == model:
                return population
            if model is None and len(self.populations) == 1:
                return population
        raise Refused("model")

    def admits(self, asker: str) -> bool:
        """Whether any policy of the site lets `asker` ask.

        It is read from the ledgers anew, and rows play no part. Where a ledger cannot be read, whoever
        asks is let in as far as to be told so.
        """
        for population in self.populations:
            try:
                if Book(population.ledger).policy.admits(asker):
                    return True
            except Refused:
                return True
        return False

    def bind_keys(self) -> Keys:
        """The site's keys; the sealing key goes with the ledgers that the site has now (`keys.bind`).

        Refused where one of these is missing. This is done as soon as there are keys, not when they
        are first used: a copy of them from before that would go with whatever ledger it finds.
        """
        generations = {Book(population.ledger).generation for population in self.populations}
        return keys.bind(self.folder, generations)


def _population(row: dict[str, Any], folder: Path, where: str) -> Population:
    _only(row, ("data", "ledger", "model", "max_rows", "scoring"), f"{where} [[populations]]")
    for name in ("data", "ledger"):
        if not isinstance(row.get(name), str):
            raise InputError(f"{where}: {name} must be a path")
    model = row.get("model")
    if model is not None and (not isinstance(model, str) or not model):
        raise InputError(f"{where}: model must be a name")
    scoring = None if "scoring" not in row else _scoring(row["scoring"], folder, where)
    if scoring is not None and model is None:
        raise InputError(f"{where}: a table that is scored needs the name of its model")
    return Population(
        folder / row["data"],
        folder / row["ledger"],
        model,
        check_max_rows(row.get("max_rows")),
        scoring,
        folder,
    )


def _scoring(row: Any, folder: Path, where: str) -> Scoring:
    from privcal.data.scoring import Setup

    if not isinstance(row, dict) or not isinstance(row.get("model_file"), str):
        raise InputError(f"{where}: scoring needs a model_file")
    facts = {name: value for name, value in row.items() if name != "model_file"}
    return Scoring(folder / row["model_file"], Setup.of(facts, where))


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


def check_delay(value: Any) -> float:
    """`value` if a reply may be held for so many seconds."""
    return number("delay (seconds)", value, MIN_DELAY, MAX_DELAY)


def check_max_rows(value: Any) -> int | None:
    """`value` if an owner may declare so many rows; None where nothing is declared."""
    return None if value is None else whole("max_rows", value, 1, 2**31 - 1)
