"""Sources from files: read, checked, each with its one ledger."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from privcal.columns import PERSON, Layout
from privcal.errors import InputError
from privcal.privacy import opening
from privcal.privacy.epsilon import to_nano
from privcal.privacy.ledger import Ledger
from privcal.privacy.opening import Data
from privcal.privacy.policy import Policy
from privcal.readers import outputs_file, read_scores, read_sources, unit_of, unused_columns
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
    columns: Mapping[str, str] | None = None,
    class_names: Sequence[str] | None = None,
    epsilon: float | None = None,
    public: Scores | None = None,
    tell: Callable[[str], None] | None = None,
) -> list[Source]:
    """The sources in these files, each with the one ledger that its data have.

    The same people get no second budget because they are asked for differently: a file is known
    by any of its names, and a table is split in one way only. Whatever is wrong is said before
    any ledger is made.

    Parameters
    ----------
    paths
        A file of scores for each source (.npz, .npy, .parquet, .csv); or tables that
        `source_column` splits into sources.
    source_column
        The column of a table whose values are the sources.
    source_names
        The public list of values of that column: each is a source, also if the table has no row
        of it, and rows of others are left out. Without it the table decides which sources exist.
    model
        The name of the model that the scores come from; questions about another are refused.
    policy
        Rules (or their TOML file) that narrow those in the ledgers; for new ledgers, their rules.
    ledger_dir
        The folder of the ledgers, if they are not beside the data.
    new_ledgers
        Make ledgers for data that never had any. Say whom they protect: `person` names the column
        of person ids, `per_row` says that every row is a person of its own. Where a ledger was
        lost, only `create_ledgers` makes another, with what the old one had spent.
    columns, class_names
        Which column is what, and the classes in order, as in `read_scores`. A ledger keeps what was
        said when it was made, and whoever asks later cannot change it.
    epsilon
        The ε that a run is going to ask of each: no ledger is made that could not pay it.
    public
        The calibrator's own scores of the same model. They get no privacy, so rows that have a
        ledger are refused; the number of classes must agree.
    tell
        Called with what the owner should know: ledgers made, rows that another ledger knows,
        columns that look like person ids. Without it warnings are Python warnings.

    Returns
    -------
    list of Source
        In the order of the files, and within a table of the names or of their first rows. All
        have the same number of classes and the same unit of protection.

    Raises
    ------
    InputError
        Where data are malformed or have no ledger, or do not belong together.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> import privcal
    >>> folder = Path(tempfile.mkdtemp())
    >>> os.environ["PRIVCAL_MARKS"] = str(folder / "marks.db")  # to try it out: not your own marks
    >>> np.savez(folder / "ward.npz", logits=[[2.0, 0.0], [0.0, 1.0]], labels=[0, 0])
    >>> [ledger] = privcal.create_ledgers(folder / "ward.npz", privcal.Policy(2.0), per_row=True)
    >>> [source] = privcal.open_sources([folder / "ward.npz"])
    >>> source.name, source.policy.epsilon, source.ledger.id == ledger.id
    ('ward', 2.0, True)
    """
    if isinstance(paths, (str, Path)):
        raise InputError(f"paths must be a list of files, not {str(paths)!r} alone")
    if not paths:
        raise InputError("there are no sources: name their files")
    folder = None if ledger_dir is None else Path(ledger_dir)
    layout, person = Layout.of(columns, class_names).without_person(person)
    if new_ledgers:
        person, per_row = whom(paths, person, per_row)
        check_unit(person, per_row)
    elif person is not None or per_row:
        raise InputError("--person and --per-row are for new ledgers; an old one has it written in")
    opened = [
        (data, scores, _known_ledger(data, scores, folder, new_ledgers))
        for data, scores in _read(paths, source_column, source_names, model, folder, person, layout)
    ]
    named = [(str(data), scores) for data, scores, _ in opened]
    if public is not None:
        check_public(public, named)
        if (file := opening.known_as(public)) is not None:
            raise InputError(f"the public rows are those of {file}: they would get no privacy")
        named = [("the public rows", public), *named]
    _check_one_model(named)
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


def read_sources_of(
    paths: Sequence[str | Path],
    source_column: str | None = None,
    source_names: Sequence[str] | None = None,
    model: str | None = None,
    ledger_dir: Path | None = None,
    person: str | None = None,
    columns: Mapping[str, str] | None = None,
    class_names: Sequence[str] | None = None,
) -> list[tuple[Data, Scores]]:
    """The rows of each source as `open_sources` reads them, with no ledger: for a rehearsal."""
    if not paths:
        raise InputError("there are no sources: name their files")
    layout, person = Layout.of(columns, class_names).without_person(person)
    read = _read(paths, source_column, source_names, model, ledger_dir, person, layout)
    _check_one_model([(str(data), scores) for data, scores in read])
    return read


def _known_ledger(data: Data, scores: Scores, folder: Path | None, new: bool) -> Ledger | None:
    """The ledger of these data; None where one is to be made, and may be."""
    ledger = opening.find(data, folder)
    if ledger is not None:
        opening.refresh(ledger, data, scores)
        return ledger
    make = f"privcal ledger create {data.path}"
    make += f" --source-column {data.split}" if data.split else ""
    make += " with --person COLUMN or --per-row"
    if opening.lost(data, folder):
        raise InputError(
            f"the ledger of {data} is gone; put it back, or make a new one, which starts with what "
            f"that had spent: {make}"
        )
    if not new:
        raise InputError(
            f"{data} has no ledger; its owner makes one with: {make} (calibrate can, with --new-ledger)"
        )
    return None


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
    warn = tell
    for data, scores in missing:
        opening.check_new(data, scores, policy)
    tell = tell or warnings.warn
    for data, scores in {data.path: (data, scores) for data, scores in missing}.values():
        warn_of_ids(data.path, data.person, data.split, tell, data.layout)
        warn_of_probabilities(str(data.path), scores, tell)
    return [
        (data, opening.create(data, scores, policy, folder=folder, name=name, warn=warn))
        for data, scores in missing
    ]


def warn_of_probabilities(name: str, scores: Scores, tell: Callable[[str], None]) -> None:
    """Tell the owner of logits that look like probabilities."""
    if scores.outputs.looks_like_probabilities:
        tell(
            f"warning: the logits of {name} are numbers from 0 to 1 that sum to 1 in each row, as "
            "probabilities do; if they are probabilities, call them so"
        )


def warn_of_ids(
    path: Path,
    person: str | None,
    split: str | None,
    tell: Callable[[str], None],
    layout: Layout | None = None,
) -> None:
    """Tell the owner of columns that look like ids and are not used: rows would be protected."""
    for column in unused_columns(path, person=person, columns=layout):
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
    columns: Mapping[str, str] | None = None,
    class_names: Sequence[str] | None = None,
    tell: Callable[[str], None] | None = None,
) -> list[Ledger]:
    """Make the ledger of a file, or of each source in a table: explicitly, and once.

    Parameters
    ----------
    path
        A file of scores; or a table, with `source_column` and `source_names` as in `open_sources`.
    policy
        The owner's rules, kept in the ledger; by default ε = 1 in all.
    person, per_row
        Whom it protects, for ever: `person` names the column of person ids, `per_row` says that
        every row is a person of its own. One of the two must be said, here or in a Parquet file of
        `privcal score`, which records it.
    name
        The source's name in what leaves it, by default the file's or the column's value; for one
        source only.
    ledger_dir
        The folder for it, by default beside the data.
    columns, class_names
        As in `read_scores`; kept in the ledger.
    tell
        As in `open_sources`.

    Returns
    -------
    list of Ledger
        Those made: of a table, for the sources that had none. Where every one of them has a
        ledger already, that is an `InputError`. Where a ledger at the same place was lost, the new
        one starts with what that had spent.

    Examples
    --------
    >>> import os, tempfile
    >>> import privcal
    >>> folder = Path(tempfile.mkdtemp())
    >>> os.environ["PRIVCAL_MARKS"] = str(folder / "marks.db")  # to try it out: not your own marks
    >>> rows = "A,p1,0.9,1\\nA,p1,0.4,0\\nB,p2,0.7,1\\n"
    >>> size = (folder / "icu.csv").write_text("ward,patient,probability,label\\n" + rows)
    >>> made = privcal.create_ledgers(folder / "icu.csv", person="patient", source_column="ward")
    >>> [(ledger.facts.name, ledger.unit) for ledger in made]
    [('A', 'person'), ('B', 'person')]
    """
    if name is not None and source_column is not None:
        raise InputError("a name is for one source; with a source column each has its value's name")
    layout, person = Layout.of(columns, class_names).without_person(person)
    person, per_row = whom([path], person, per_row)
    check_unit(person, per_row)
    folder = None if ledger_dir is None else Path(ledger_dir)
    parts = _read([path], source_column, source_names, None, folder, person, layout)
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
    columns: Mapping[str, str] | None = None,
    class_names: Sequence[str] | None = None,
) -> list[tuple[Ledger, Data]]:
    """Say that other data are about a ledger's people: all charges add up there.

    Parameters
    ----------
    known
        The ledger, its file, or data that it is for; with `source_column`, a table that is split
        by it.
    path
        Other scores of the same people: a new week, another model's scores, data that were moved.
    person
        The column of person ids in them; by default that of the data before.
    source_column
        Split `path` too: each part goes to the ledger of its value.
    columns, class_names
        As in `read_scores`; by default as said of the data before.

    Returns
    -------
    list of (Ledger, Data)
        Each ledger with what was attached to it. Nothing is attached where any part cannot be.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> import privcal
    >>> folder = Path(tempfile.mkdtemp())
    >>> os.environ["PRIVCAL_MARKS"] = str(folder / "marks.db")  # to try it out: not your own marks
    >>> for week in ("week-1.npz", "week-2.npz"):
    ...     np.savez(folder / week, logits=np.eye(3) + len(week), labels=[0, 1, 2])
    >>> [ledger] = privcal.create_ledgers(folder / "week-1.npz", per_row=True)
    >>> [(same, data)] = privcal.attach_data(ledger, folder / "week-2.npz")
    >>> same.id == ledger.id, data.path.name
    (True, 'week-2.npz')
    """
    layout, person = Layout.of(columns, class_names).without_person(person)
    if source_column is None:
        ledger = known if isinstance(known, Ledger) else opening.ledger_of(known)
        before_it = [Data.noted(note) for note in ledger.notes()]
        last = before_it[-1] if before_it else Data(Path(path))
        data = Data.at(path, person=person or last.person, layout=layout or last.layout)
        opening.attach(ledger, data, data.read(strict=True))
        return [(ledger, data)]
    if isinstance(known, Ledger):
        raise InputError("name the table that source_column splits, not one of its ledgers")
    before = Data.at(known, split=source_column)
    first = (opening.notes_of(before) or [before])[0]
    layout = layout or first.layout
    data = Data.at(path, split=source_column, person=person or first.person, layout=layout)
    parts = []
    for value, scores in read_sources(
        data.path, source_column, person=data.person, columns=layout
    ).items():
        ledger_of_part = opening.find(replace(before, value=value))
        if ledger_of_part is None:
            raise InputError(
                f"{before.path} has no ledger for {source_column} {value}; make one first with: "
                f"privcal ledger create {before.path} --source-column {source_column} and a "
                "--source-list that names it"
            )
        parts.append((ledger_of_part, replace(data, value=value), scores))
    for ledger, part, scores in parts:
        opening.attach(ledger, part, scores)
    return [(ledger, part) for ledger, part, _ in parts]


def read_public(
    path: str | Path,
    sources: Sequence[str | Path] = (),
    *,
    columns: Mapping[str, str] | None = None,
    class_names: Sequence[str] | None = None,
) -> Scores:
    """The calibrator's own scores; a source, here or anywhere, or a copy of one is refused."""
    file = outputs_file(path).resolve()
    same = any(Data.at(source).same_file(file) for source in sources)
    if same or opening.notes_of(Data(file)):
        raise InputError(f"{path} is a source; public rows would get no privacy at all")
    public = read_scores(path, columns=columns, class_names=class_names)
    data = Data(file, layout=Layout.of(columns, class_names))
    if (known := opening.known_as(public) or opening.private_as(data)) is not None:
        raise InputError(f"the public rows are those of {known}: they would get no privacy")
    return public


def check_public(public: Scores, sources: Iterable[tuple[str, Scores]]) -> None:
    """Rows that a source keeps private must not be given as public: the map tells them."""
    digest = public.content_digest()
    for name, scores in sources:
        if scores.content_digest() == digest:
            raise InputError(f"the public rows are those of {name}: they would get no privacy")


def whom(paths: Iterable[str | Path], person: str | None, per_row: bool) -> tuple[str | None, bool]:
    """The column of person ids, or that each row is a person: as said, else as all files record it."""
    if person is not None or per_row:
        return person, per_row
    units = {unit_of(Path(path)) for path in paths}
    return PERSON if units == {"person"} else None, units == {"row"}


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
    layout: Layout,
) -> list[tuple[Data, Scores]]:
    """Each file once, strictly, with the person ids that its ledger speaks of."""
    if names is not None and column is None:
        raise InputError(
            "a list of sources needs the column that splits the table: --source-column"
        )
    if isinstance(names, str):
        raise InputError(f"the names of sources must be a list, not {names!r} alone")
    if names is not None and not names:
        raise InputError("the names of sources are an empty list: name one at least")
    files = [outputs_file(path).resolve() for path in paths]
    for index, file in enumerate(files):
        for other in files[:index]:
            if file == other:
                raise InputError(f"{file} is given twice")
            if file.exists() and other.exists() and file.samefile(other):
                raise InputError(f"{other} and {file} are one file")
    parts: list[tuple[Data, Scores]] = []
    for file in files:
        data = Data(file, split=column, model=model, person=person)
        data = replace(data, layout=opening.layout_of(data, layout))
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
            parts.append((data, data.read(strict=True)))
            continue
        read = {
            by: read_sources(file, column, names=names, model=model, person=by, columns=data.layout)
            for by in {person, *noted.values()}
        }
        for value in read[person]:
            part = replace(data, value=value, person=noted.get(value, person))
            parts.append((part, read[part.person][value]))
    return parts


def _check_one_model(named: Sequence[tuple[str, Scores]]) -> None:
    """One model has one number of classes, whoever's rows it scores."""
    (first, scores), *others = named
    for name, other in others:
        kinds = [s.outputs.kind == "confidence" for s in (scores, other)]
        if kinds[0] != kinds[1]:
            alone, all_of_them = (first, name) if kinds[0] else (name, first)
            raise InputError(
                f"{alone} holds only the confidence in each answer, and {all_of_them} the outputs of "
                "all classes: ask them apart"
            )
        if None not in (scores.class_names, other.class_names) and (
            scores.class_names != other.class_names
        ):
            raise InputError(
                f"{first} and {name} name their classes differently, or in another order"
            )
        if other.classes != scores.classes:
            raise InputError(
                f"{first} have scores of {scores.classes} classes and {name} of {other.classes}: "
                "they are not of one model"
            )


def _check_one_unit(opened: Sequence[tuple[Data, Ledger | None]]) -> None:
    units = [data.unit if ledger is None else ledger.unit for data, ledger in opened]
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
