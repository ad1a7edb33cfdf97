"""Sources from files: read, checked, each with its one ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from privcal.errors import InputError
from privcal.privacy import opening
from privcal.privacy.epsilon import to_nano
from privcal.privacy.ledger import Ledger
from privcal.privacy.opening import Data
from privcal.privacy.policy import Policy
from privcal.readers import outputs_file, read_scores, read_sources, unused_columns
from privcal.scores import Scores
from privcal.source import Source


def open_sources(
    paths: Sequence[str | Path],
    *,
    source_column: str | None = None,
    source_names: Sequence[str] | None = None,
    model: str | None = None,
    policy: Policy | str | Path | None = None,
    ledger_dir: str | Path | None = None,
    new_ledgers: bool = False,
    person: str | None = None,
    per_row: bool = False,
    epsilon: float | None = None,
    public: Scores | None = None,
    tell: Callable[[str], None] | None = None,
) -> list[Source]:
    """The sources in these files, each with the one ledger that its data have.

    Parameters
    ----------
    paths
        A file of scores for each source; or tables that `source_column` splits into sources.
    source_names
        The public list of values of that column: each is a source, also if the table has no row
        of it, and rows of others are left out. Without it the table decides which sources exist.
    policy
        Rules (or their TOML file) that narrow those in the ledgers; for new ledgers, their rules.
    ledger_dir
        Where the ledgers are, if not beside the data.
    new_ledgers
        Make ledgers for data that never had any. Say whom they protect: `person` names the column
        of person ids, `per_row` says that every row is a person of its own.
    epsilon
        What a run is going to ask of each: no ledger is made that could not pay it.
    public
        The calibrator's own scores of the same model: the number of classes must agree.
    tell
        Called with what the owner should know: ledgers made, rows that another ledger knows.

    Whatever is wrong is said before any ledger is made.
    """
    folder = None if ledger_dir is None else Path(ledger_dir)
    if new_ledgers:
        check_unit(person, per_row)
    elif person is not None or per_row:
        raise InputError("--person and --per-row are for new ledgers; an old one has it written in")
    opened = []
    for data, scores in _read(paths, source_column, source_names, model, folder, person):
        ledger = opening.find(data, folder)
        if ledger is not None:
            opening.refresh(ledger, data, scores)
        else:
            how = f" --source-column {source_column}" if source_column else ""
            make = f"privcal ledger create {data.path}{how}"
            if opening.lost(data, folder):
                raise InputError(
                    f"the ledger of {data} is gone; put it back, or make a new one, which starts "
                    f"with what that had spent: {make}"
                )
            if not new_ledgers:
                raise InputError(
                    f"{data} has no ledger; its owner makes one with: {make} (or --new-ledger here)"
                )
        opened.append((data, scores, ledger))
    if public is not None:
        mine = public.content_digest()
        for data, scores, _ in opened:
            if scores.content_digest() == mine:
                raise InputError(f"the public rows are those of {data}: they would get no privacy")
    own = [] if public is None else [("the public rows", public)]
    _check_one_model([*own, *((str(data), scores) for data, scores, _ in opened)])
    _check_one_unit([(data, ledger) for data, _, ledger in opened])
    missing = [(data, scores) for data, scores, ledger in opened if ledger is None]
    if missing:
        rules = _rules(policy)
        if epsilon is not None and to_nano(epsilon) > rules.nano_total:
            raise InputError(
                f"new ledgers would hold epsilon {rules.epsilon:g} in all, less than this run's "
                f"{epsilon:g}; say how much in a policy"
            )
        made = dict(_make(missing, rules, folder, None, tell))
        if tell is not None:
            tell(_created(list(made.values())))
    sources = []
    for data, scores, known in opened:
        ledger = known or made[data]
        narrower = None if policy is None else _rules(policy, ledger.policy)
        sources.append(Source(scores, narrower, ledger=ledger))
    return sources


def _rules(policy: Policy | str | Path | None, over: Policy | None = None) -> Policy:
    """Rules, or those in a file; what the file does not say is left as it is."""
    if isinstance(policy, (str, Path)):
        return Policy.load(policy, over)
    return policy or Policy()


def _make(
    missing: Sequence[tuple[Data, Scores]],
    policy: Policy,
    folder: Path | None,
    name: str | None,
    tell: Callable[[str], None] | None,
) -> list[tuple[Data, Ledger]]:
    """Ledgers for these; whatever is wrong with any of them is said before the first is made."""
    for data, scores in missing:
        opening.check_new(data, scores, policy)
    if tell is not None:
        for path in dict.fromkeys(data.path for data, _ in missing):
            warn_of_ids(path, missing[0][0].person, missing[0][0].split, tell)
    return [
        (data, opening.create(data, scores, policy, folder=folder, name=name, warn=tell))
        for data, scores in missing
    ]


def warn_of_ids(
    path: Path, person: str | None, split: str | None, tell: Callable[[str], None]
) -> None:
    """Tell the owner of columns that look like ids and are not used: rows would be protected."""
    for column in unused_columns(path, person=person):
        if column.looks_like_ids and column.name != split:
            tell(
                f"warning: column {column.name} of {path} is not used, and looks like ids: "
                f"{column.different:,} different values in {column.rows:,} rows. If they say whom a "
                f"row is about, protect persons: --person {column.name}"
            )


def create_ledgers(
    path: str | Path,
    policy: Policy | None = None,
    *,
    person: str | None = None,
    per_row: bool = False,
    name: str | None = None,
    ledger_dir: str | Path | None = None,
    source_column: str | None = None,
    source_names: Sequence[str] | None = None,
    tell: Callable[[str], None] | None = None,
) -> list[Ledger]:
    """Make the ledger of a file, or of each source in a table. Explicit, and once.

    The parameters are those of `open_sources`; `name` is what the source is called in what
    leaves it. Where every one of them has a ledger already, that is an error.
    """
    check_unit(person, per_row)
    folder = None if ledger_dir is None else Path(ledger_dir)
    parts = _read([path], source_column, source_names, None, folder, person)
    missing = [(data, scores) for data, scores in parts if opening.find(data, folder) is None]
    if not missing:
        other = opening.find(parts[0][0], folder)
        raise InputError(f"{path} already has the ledger {other and other.path}")
    return [ledger for _, ledger in _make(missing, policy or Policy(), folder, name, tell)]


def attach_data(
    known: Ledger | str | Path,
    path: str | Path,
    *,
    person: str | None = None,
    source_column: str | None = None,
) -> list[tuple[Ledger, Data]]:
    """Say that other data are about a ledger's people: all charges add up there.

    With `source_column`, `known` is a table that is split by it, and each part of the other one
    goes to the ledger of its value. `person` is the column of ids, as before unless said.
    """
    if source_column is None:
        ledger = known if isinstance(known, Ledger) else Ledger(known)
        noted = [Data.noted(note).person for note in ledger.notes()]
        data = Data.at(path, person=person or (noted[-1] if noted else None))
        opening.attach(ledger, data, data.read(strict=True))
        return [(ledger, data)]
    assert not isinstance(known, Ledger)
    before = Data.at(known, split=source_column)
    noted = [note.person for note in opening.notes_of(before)]
    data = Data.at(path, split=source_column, person=person or (noted[0] if noted else None))
    parts = read_sources(data.path, source_column, person=data.person)
    found = []
    for value, scores in parts.items():
        ledger_of = opening.find(replace(before, value=value))
        if ledger_of is None:
            raise InputError(
                f"{before.path} has no ledger for {source_column} {value}; make one first with: "
                f"privcal ledger create {before.path} --source-column {source_column} and a "
                "--source-list that names it"
            )
        found.append((ledger_of, replace(data, value=value), scores))
    for ledger_of, part, scores in found:
        opening.attach(ledger_of, part, scores)
    return [(ledger_of, part) for ledger_of, part, _ in found]


def check_public(public: str | Path, sources: Sequence[str | Path] = ()) -> None:
    """Rows that are somebody's private ones must not be given as public: the map tells them."""
    file = outputs_file(public).resolve()
    same = any(Data.at(path).same_file(file) for path in sources)
    if same or opening.notes_of(Data(file)):
        raise InputError(f"{public} is a source; public rows would get no privacy at all")


def check_unit(person: str | None, per_row: bool) -> None:
    """Whom a new ledger protects must be said."""
    if (person is None) != per_row:
        raise InputError(
            "a new ledger says whom it protects: --person COLUMN (a person, with all their rows) "
            "or --per-row (each row is a person of its own)"
        )


def _read(
    paths: Sequence[str | Path],
    column: str | None,
    names: Sequence[str] | None,
    model: str | None,
    folder: Path | None,
    person: str | None,
) -> list[tuple[Data, Scores]]:
    """Each file once, strictly, with the person ids that its ledger speaks of."""
    if names is not None and column is None:
        raise InputError(
            "a list of sources needs the column that splits the table: --source-column"
        )
    files = [outputs_file(path).resolve() for path in paths]
    for place, file in enumerate(files):
        for other in files[:place]:
            if file == other or (file.exists() and other.exists() and file.samefile(other)):
                twice = (
                    f"{file} is given twice"
                    if file == other
                    else f"{other} and {file} are one file"
                )
                raise InputError(twice)
    found: list[tuple[Data, Scores]] = []
    for file in files:
        data = Data(file, split=column, model=model, person=person)
        # The unit is the ledger's, never the asker's: each part is read by the column noted for it.
        noted = {note.value: note.person for note in reversed(opening.notes_of(data, folder))}
        for value, column_of in noted.items():
            if person is not None and column_of != person:
                whom = "single rows" if column_of is None else f"persons by the column {column_of}"
                raise InputError(
                    f"the ledger of {replace(data, value=value)} protects {whom}, not by {person}: "
                    "leave --person out"
                )
        if column is None:
            data = replace(data, person=noted.get(None, person))
            found.append((data, read_scores(file, model=model, person=data.person)))
            continue
        read = {
            by: read_sources(file, column, names=names, model=model, person=by)
            for by in {person, *noted.values()}
        }
        for value in read[person]:
            part = replace(data, value=value, person=noted.get(value, person))
            found.append((part, read[part.person][value]))
    return found


def _check_one_model(found: Sequence[tuple[str, Scores]]) -> None:
    """One model has one number of classes, whoever's rows it scores."""
    (first, scores), *others = found
    for name, other in others:
        if other.classes != scores.classes:
            raise InputError(
                f"{first} have scores of {scores.classes} classes and {name} of {other.classes}: "
                "they are not of one model"
            )


def _check_one_unit(opened: Sequence[tuple[Data, Ledger | None]]) -> None:
    units = [
        ledger.unit if ledger is not None else "row" if data.person is None else "person"
        for data, ledger in opened
    ]
    if len(set(units)) > 1:
        row, person = (opened[units.index(unit)][0] for unit in ("row", "person"))
        raise InputError(
            f"{row} protects single rows and {person} persons: what is said of one would not hold "
            "for the other; ask them apart"
        )


def _created(made: Sequence[Ledger]) -> str:
    folders = {ledger.path.parent for ledger in made if ledger.path is not None}
    where = f"in {next(iter(folders))}" if len(folders) == 1 else "beside the data"
    count = "1 ledger" if len(made) == 1 else f"{len(made)} ledgers, each"
    first = made[0]
    return (
        f"created {where}: {count} with a total of epsilon {first.policy.epsilon:g}, protecting "
        f"each {first.unit}"
    )
