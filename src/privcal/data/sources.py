"""Sources from files: read, checked, each with its one ledger."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from privcal.data import opening, readers
from privcal.data.columns import PERSON, Layout
from privcal.data.ids import warn_of_ids
from privcal.data.ledger import Ledger
from privcal.data.place import Data
from privcal.data.readers import read_scores, read_sources, unit_of
from privcal.data.scores import Scores, content_digest
from privcal.data.tables import outputs_file
from privcal.data.wording import other_classes
from privcal.trusted import scores as trusted
from privcal.trusted.chain import AS_SPELLED
from privcal.trusted.epsilon import to_nano
from privcal.trusted.errors import InputError
from privcal.trusted.policy import Policy
from privcal.trusted.queries import Query
from privcal.trusted.source import Source


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
    queries: Sequence[Query] = (),
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
    queries
        Those that a run is going to ask: no ledger is made for data that they cannot be asked of.
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
        check_unknown(public)
        named = [("the public set", public), *named]
    check_one_model(named)
    check_queries(((name, s.classes, s.outputs.kind == "confidence") for name, s in named), queries)
    units = [(str(data), data.unit if known is None else known.unit) for data, _, known in opened]
    check_same("{} as its unit of protection", units)
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
        if known is not None and known.facts.ids == AS_SPELLED:
            opening.warn_of_spellings(known, data, scores, tell)
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
    check_one_model([(str(data), scores) for data, scores in read])
    return read


def _known_ledger(data: Data, scores: Scores, folder: Path | None, new: bool) -> Ledger | None:
    """The ledger of these data; None where one is to be made, and may be."""
    ledger = opening.find(data, folder)
    if ledger is not None:
        opening.refresh(ledger, data, scores)
        ledger.rely_on(opening.note_of(data, folder).note())
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
    for data, scores in missing:
        opening.check_new(data, scores, policy)
    tell = tell or warnings.warn
    own = {opening.ledger_path(data, folder) for data, _ in missing}
    ids, logits, known, spelled = list[str](), list[str](), list[str](), list[str]()
    for data, scores in {data.path: (data, scores) for data, scores in missing}.values():
        parts = [part for part in missing if part[0].path == data.path]
        opening.warn_of_copies(parts, own, known.append)
        warn_of_ids(data.path, data.person, data.split, ids.append, data.layout)
        warn_of_probabilities(str(data.path), scores, logits.append)
    _tell_once(tell, ids, "columns are not used, and look like ids")
    _tell_once(tell, logits, "files have logits that look like probabilities")
    _tell_once(tell, known, "sources have ledgers elsewhere", opening.SameRows)
    made: list[tuple[Data, Ledger]] = []
    try:
        for data, scores in missing:
            more: dict[str, Any] = {"folder": folder, "name": name, "warn": spelled.append}
            made.append((data, opening.create(data, scores, policy, **more)))
    finally:
        _tell_once(tell, spelled, "sources have persons under several ids")
        if 0 < len(made) < len(missing):
            tell(f"created before it failed: {', '.join(str(new.path) for _, new in made)}")
    return made


def _tell_once(
    tell: Callable[..., None],
    texts: Sequence[str],
    what: str,
    kind: type[UserWarning] = UserWarning,
) -> None:
    """Tell these, or where there are many that say the same, how many, and the first."""
    if len(texts) > 1:
        texts = [f"warning: {len(texts)} {what}, e.g. {texts[0].removeprefix('warning: ')}"]
    for text in texts:
        tell(text, kind) if tell is warnings.warn else tell(text)


def warn_of_probabilities(name: str, scores: Scores, tell: Callable[[str], None]) -> None:
    """Tell the owner of logits that look like probabilities."""
    if scores.outputs.looks_like_probabilities:
        tell(
            f"warning: the logits of {name} are numbers from 0 to 1 that sum to 1 in each row, as "
            "probabilities do; if they are probabilities, call them so"
        )


def warn_of_exact_figures(path: Path, tell: Callable[[str], None]) -> bool:
    """Tell the owner of a file that has a ledger that exact figures of it are for nobody else.

    Returns whether it has one.
    """
    private = bool(opening.notes_of(Data.at(path)))
    if private:
        tell(
            f"note: {path} has a ledger, and these figures are exact, without privacy: share neither them "
            "nor anything computed from them"
        )
    return private


def create_ledgers(
    path: str | Path | Sequence[str | Path],
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
    """Make the ledger of a file, of each of several, or of each source in a table: explicitly, and once.

    Parameters
    ----------
    path
        A file of scores, or several; or a table, with `source_column` and `source_names` as in
        `open_sources`. Whatever is wrong with any is said before the first ledger is made.
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
    paths = [path] if isinstance(path, (str, Path)) else path
    if not paths:
        raise InputError("there are no data: name their files")
    if name is not None and source_column is not None:
        raise InputError("a name is for one source; with a source column each has its value's name")
    if name is not None and len(paths) > 1:
        raise InputError("a name is for one source; of several files each gives its own")
    layout, person = Layout.of(columns, class_names).without_person(person)
    person, per_row = whom(paths, person, per_row)
    check_unit(person, per_row)
    folder = None if ledger_dir is None else Path(ledger_dir)
    parts = _read(paths, source_column, source_names, None, folder, person, layout)
    missing = [(data, scores) for data, scores in parts if opening.find(data, folder) is None]
    new = {data.path for data, _ in missing}
    if (known := next((data for data, _ in parts if data.path not in new), None)) is not None:
        other = opening.find(known, folder)
        raise InputError(f"{known.path} already has the ledger {other and other.path}")
    return [ledger for _, ledger in _make(missing, policy or Policy(), folder, name, tell)]


def attach_data(
    known: Ledger | str | Path,
    path: str | Path,
    *,
    person: str | None = None,
    source_column: str | None = None,
    columns: Mapping[str, str] | None = None,
    class_names: Sequence[str] | None = None,
    tell: Callable[[str], None] | None = None,
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
        The column of person ids in them; by default the one that the ledger was made with. Another one
        may be named where they do not have that, and where the ledger protects rows none may.
    source_column
        Split `path` too: each part goes to the ledger of its value.
    columns, class_names
        As in `read_scores`; by default as said of the data before.
    tell
        As in `open_sources`.

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
        notes = [Data.noted(note) for note in ledger.notes()] or [Data(Path(path))]
        person, layout = person or notes[0].person, layout or notes[-1].layout
        data = Data.at(path, person=person, layout=layout)
        scores = data.read(strict=True)
        opening.attach(ledger, data, scores, tell)
        warn_of_ids(data.path, data.person, None, tell or warnings.warn, data.layout)
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
        opening.attach(ledger, part, scores, tell)
    warn_of_ids(data.path, data.person, source_column, tell or warnings.warn, layout)
    return [(ledger, part) for ledger, part, _ in parts]


def class_names_of(
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    class_names: Sequence[str] | None = None,
) -> tuple[str, ...] | None:
    """What the classes of a source's file are called: as declared, else by its columns; no row is read."""
    file = outputs_file(path).resolve()
    layout, _ = Layout.of(columns, class_names).without_person(None)
    layout = opening.layout_of(Data(file), layout)
    return readers.class_names_of(file, layout)


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
    check_unknown(public, Data(file, layout=Layout.of(columns, class_names)))
    return public


def check_unknown(public: Scores, data: Data | None = None) -> None:
    """Rows that have a ledger on this machine must not be given as public; `data` is their file."""
    known = opening.known_as(public) or (data and opening.private_as(data))
    if known is not None:
        raise InputError(f"the public rows are those of {known}: they would get no privacy")


def check_public(public: trusted.Scores, sources: Iterable[tuple[str, trusted.Scores]]) -> None:
    """Rows that a source keeps private must not be given as public: the map tells them."""
    digest = content_digest(public)
    for name, rows in sources:
        if content_digest(rows) == digest:
            raise InputError(f"the public rows are those of {name}: they would get no privacy")


def whom(paths: Iterable[str | Path], person: str | None, per_row: bool) -> tuple[str | None, bool]:
    """The column of person ids, or that each row is a person: as said, else as all files record it."""
    if person is not None or per_row:
        return person, per_row
    units = {unit_of(Path(path)) for path in paths}
    return PERSON if units == {"person"} else None, units == {"row"}


def check_queries(
    sources: Iterable[tuple[str, int | None, bool]], queries: Sequence[Query]
) -> None:
    """An InputError where what is asked about is none of a source's: a class, or all outputs.

    Of each source its name, its number of classes if that is known, and whether it has only the
    confidence in each answer.
    """
    wanted = max((query.classes for query in queries), default=0)
    needing = [query.kind for query in queries if query.all_classes]
    for name, classes, only_confidence in sources:
        if classes is not None and classes < wanted:
            raise InputError(
                f"{name} has scores of {classes} classes, 0 to {classes - 1}: there is no class "
                f"{wanted - 1} to ask about"
            )
        if needing and only_confidence:
            raise InputError(
                f"this run asks for {needing[0]}, which needs the outputs of all classes; {name} has "
                "only the confidence in each answer, which will do for sketch, histogram-binning and "
                "one-hot-binning"
            )


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


def check_one_model(named: Sequence[tuple[str, trusted.Scores]]) -> None:
    """An InputError unless these are scores of one model, whoever's rows it scores."""
    only, every = "only the confidence in each answer", "outputs of all classes"
    kinds = [(name, only if s.outputs.kind == "confidence" else every) for name, s in named]
    check_same("{}", kinds)
    check_same(
        "scores of {} classes",
        [(name, s.classes) for name, s in named],
        "they are not of one model",
    )
    called = [(name, s.class_names) for name, s in named if s.class_names]
    for name, names in called:
        if names != called[0][1]:
            raise other_classes(*called[0], name, names)


def check_same(what: str, facts: Iterable[tuple[str, object]], so: str = "ask them apart") -> None:
    """An InputError unless this is the same of all of them, as far as it is known."""
    known = {fact: name for name, fact in facts if fact}
    if len(known) > 1:
        (one, first), (other, second) = list(known.items())[:2]
        raise InputError(f"{first} has {what.format(one)}, {second} {what.format(other)}: {so}")


def _created(made: Sequence[Ledger]) -> str:
    folders = {ledger.path.parent for ledger in made if ledger.path is not None}
    where = f"in {next(iter(folders))}" if len(folders) == 1 else "beside the data"
    count = "1 ledger" if len(made) == 1 else f"{len(made)} ledgers, each"
    first = made[0]
    return (
        f"created {where}: {count} with a total of epsilon {first.policy.epsilon:g}, protecting "
        f"each {first.unit}"
    )
