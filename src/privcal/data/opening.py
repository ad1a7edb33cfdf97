"""From data to their one ledger.

The same people must not get a second budget because a command was typed differently. So whoever
wants the ledger of some data gets it here: the file is taken as it really is (links resolved, a
folder of .npy files is the file of outputs in it, device and inode compared), and its ledger is
looked for beside it, in a folder that was named, and among all that the high-water marks know to
have been made for it. There is one, or none, or a sentence that says what is in the way. Making
one is an explicit act.

What cannot be seen for certain is told at least: where the same rows are known under another
name (a copy, a renamed file, a CSV saved as Parquet), making a ledger for them warns.
"""

from __future__ import annotations

import contextlib
import filecmp
import sqlite3
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from privcal.data.columns import AS_NAMED, PERSON, Layout
from privcal.data.ledger import Ledger
from privcal.data.place import Data
from privcal.data.readers import read_scores, read_sources
from privcal.data.scores import Scores, content_digest
from privcal.data.tables import is_scores, open_table
from privcal.trusted.book import Book
from privcal.trusted.chain import FOLDED
from privcal.trusted.errors import InputError, Refused
from privcal.trusted.marks import Known, Marks, default_marks, locked, reading
from privcal.trusted.persons import folded
from privcal.trusted.policy import Policy


class SameRows(UserWarning):
    """The same rows have a ledger under another name."""


def find(data: Data, folder: Path | None = None, attaching: Ledger | None = None) -> Ledger | None:
    """The ledger of these data; None if none was ever made.

    A ledger in their place that is noted for other data is an error, unless it is `attaching`.
    """
    usual = ledger_path(data, folder)
    present, gone, perhaps = _known_ledgers(data, attaching)
    for path in _nearby(data, folder):
        ledger = Ledger(path)
        if ledger.id in present or _planted(ledger, gone):
            continue
        if ledger.id in gone or _noted_for(ledger, data, path):
            present[ledger.id] = path.resolve()
        elif path == usual and ledger.path != (attaching and attaching.path):
            raise InputError(_of_others(ledger, data, path))
    paths = list(present.values())
    problem = (
        _renamed(data, paths, perhaps)
        or _two(data, paths)
        or _gone(data, paths, list(gone.values()), usual)
        or _elsewhere(data, paths, usual if folder is not None else None)
    )
    if problem:
        raise InputError(problem)
    return Ledger(paths[0]) if paths else None


def _planted(ledger: Ledger, gone: Mapping[str, Path]) -> bool:
    """Whether anybody who can write here may have put it in the place of the one that is gone."""
    return bool(gone) and ledger.id not in gone and not _seen(ledger.id)


def _noted_for(ledger: Ledger, data: Data, path: Path) -> bool:
    notes = map(Data.noted, ledger.notes())
    mine = (note for note in notes if data.same_file(note.path))
    return any(_same_part(data, note.split, note.value, path) for note in mine)


def _of_others(ledger: Ledger, data: Data, path: Path) -> str:
    notes = ledger.notes()
    whose = f"the ledger of {Data.noted(notes[0])}" if notes else "not noted for any data"
    return (
        f"{path} is {whose}; if {data} holds the same people, say so with: "
        f"privcal ledger attach {path} {data.path}"
    )


def _renamed(data: Data, paths: Sequence[Path], perhaps: Sequence[Path]) -> str | None:
    if paths or not perhaps:
        return None
    return (
        f"{data.path} may be {perhaps[-1]} under a new name, which has a ledger: if so, say it with "
        "privcal ledger attach; if not, copy the file, and use the copy"
    )


def _two(data: Data, paths: Sequence[Path]) -> str | None:
    if len(paths) < 2:
        return None
    return (
        f"{data} has two ledgers, {paths[0]} and {paths[1]}: only its owner can say which one "
        "holds; move the other away"
    )


def _gone(data: Data, paths: Sequence[Path], gone: Sequence[Path], usual: Path) -> str | None:
    if paths or not gone or usual in gone:  # in its usual place a new one takes over what it spent
        return None
    return (
        f"the ledger of {data} was {gone[-1]} and is gone; put it back, or make a new one there, "
        f"which starts with what that had spent: privcal ledger create {data.path} "
        f"--ledger-dir {gone[-1].parent}"
    )


def _elsewhere(data: Data, paths: Sequence[Path], wanted: Path | None) -> str | None:
    if not paths or wanted is None or wanted in paths:
        return None
    return f"{data} already has the ledger {paths[0]}; leave --ledger-dir out to use it"


def _known_ledgers(
    data: Data, attaching: Ledger | None
) -> tuple[dict[str, Path], dict[str, Path], list[Path]]:
    """What the marks know: ledgers of these data that are there and that are gone, by their ids,
    and files that these data may be under a new name."""
    present: dict[str, Path] = {}
    gone: dict[str, Path] = {}
    perhaps: list[Path] = []
    with _marks() as marks:
        for known in [] if marks is None else marks.data():
            was = data.was(known)
            if was is None and (attaching is None or attaching.id != known.id):
                perhaps.append(known.path)
            if was:
                paths = _paths(marks, known.id)
                if _same_part(data, known.split or None, known.value or None, paths[-1]):
                    there = [path for path in paths if _is(path, known.id)]
                    (present if there else gone)[known.id] = (there or paths)[-1]
    return present, gone, perhaps


def ledger_of(file: str | Path) -> Ledger:
    """A ledger by its file, or by the data that it is for."""
    file = Path(file)
    if is_scores(file):
        data = Data.at(file)
        data = replace(data, layout=layout_of(data))
        split = [note for note in notes_of(data) if note.split is not None]
        if split:
            raise InputError(
                f"{file} is split by its column {split[0].split} and has a ledger for each value: "
                f"name one, such as {ledger_path(split[0])}"
            )
        ledger = find(data)
        if ledger is None:
            raise InputError(
                f"the ledger of {file} is gone; put it back, or make a new one, which starts with "
                f"what that had spent: privcal ledger create {file}"
                if lost(data)
                else f"{file} has no ledger yet; make one with: privcal ledger create {file}"
            )
        return ledger
    if not file.is_file():
        raise InputError(f"there is no ledger {file}")
    ledger = Ledger(file)
    try:
        ledger.facts  # noqa: B018
    except Refused as refused:
        raise InputError(
            f"{file} is not a ledger, or is damaged ({refused.__cause__ or refused})"
        ) from None
    return ledger


def known_as(scores: Scores) -> Path | None:
    """The file under which these rows have a ledger, as far as this machine knows."""
    return next((known.path for known, _ in _known_rows(content_digest(scores))), None)


def private_as(data: Data, folder: Path | None = None) -> Path | None:
    """The file with a ledger that these data are, or are a copy of; None as far as can be seen.

    However somebody splits them and whatever columns they read: a file of which one part has a
    ledger is private as a whole, and so is a copy of it, byte by byte. In another format it is
    known by its rows, as a whole and in the parts that have ledgers. Rows that were changed, left out
    or put in another order are not known.
    """
    if notes := notes_of(data, folder):
        return notes[0].path
    with _marks() as marks:
        known = [] if marks is None else marks.data()
    copied = _copied(data, known)
    return None if copied is None else copied.path


def _copied(data: Data, known: Sequence[Known]) -> Known | None:
    """Which of these the data are a copy of, byte by byte or by the rows of a part."""
    for one in known:
        with contextlib.suppress(OSError):  # gone, or not for us to read
            if filecmp.cmp(one.path, data.path, shallow=False):
                return one
    digests = {one.digest: one for one in reversed(known)}
    for split in dict.fromkeys([None, *(one.split or None for one in known)]):
        with contextlib.suppress(InputError):  # no such column
            for scores in _parts(data, split):
                if (same := digests.get(content_digest(scores))) is not None:
                    return same
    return None


def _parts(data: Data, split: str | None) -> list[Scores]:
    if split is None:
        return [read_scores(data.path, person=None, columns=data.layout, strict=False)]
    split_up = read_sources(data.path, split, person=None, columns=data.layout, strict=False)
    return list(split_up.values())


def lost(data: Data, folder: Path | None = None) -> bool:
    """Whether these data had a ledger at its usual place, and it is gone."""
    with _marks() as marks:
        return marks is not None and marks.spent_at(ledger_path(data, folder)) is not None


def notes_of(data: Data, folder: Path | None = None) -> list[Data]:
    """What ledgers have noted of this file, as a whole or in parts; the newest first."""
    names = {data.path}
    ledgers = _nearby(data, folder)
    with _marks() as marks:
        for known in [] if marks is None else marks.data():
            if data.was(known) is not False:
                names.add(known.path)
                ledgers += [path for path in _paths(marks, known.id) if path.is_file()]
    ledgers = list(dict.fromkeys(ledgers))
    notes = [Data.noted(n) for path in ledgers for n in reversed(Ledger(path).notes())]
    return [note for note in notes if note.path in names or data.same_file(note.path)]


def note_of(data: Data, folder: Path | None = None) -> Data:
    """What a ledger has noted of just these data, read in just this way."""
    how = (data.split, data.value, data.person, data.layout)
    for note in notes_of(data, folder):
        if how == (note.split, note.value, note.person, note.layout):
            return note
    raise InputError(f"the ledger of {data} was changed while they were read; try again")


def person_column(data: Data, person: str | None = None, per_row: bool = False) -> str | None:
    """The column of person ids: as a ledger of these data says, else as is said here."""
    if per_row and person is not None:
        raise InputError("give --person or --per-row, not both")
    notes = notes_of(data)
    if not notes:
        return None if per_row else person or PERSON
    noted = notes[0].person
    if (per_row and noted is not None) or person not in (None, noted):
        whom = "a row" if noted is None else f"a person, by the column {noted}"
        raise InputError(f"the ledger of {data} protects {whom}, as was said when it was made")
    return noted


def layout_of(data: Data, layout: Layout | None = None) -> Layout:
    """Which columns are what: as a ledger of these data says, else as is said here."""
    notes = notes_of(data)
    if not notes:
        return layout or AS_NAMED
    noted = notes[0].layout
    if layout and layout != noted:
        how = str(noted) or "by the usual names of its columns"
        raise InputError(
            f"the ledger of {data} reads it as was said when it was made ({how}): leave --columns and "
            "--classes out"
        )
    return noted


def check_new(data: Data, scores: Scores, policy: Policy) -> None:
    """Raise InputError where no ledger can be made for these data with these rules."""
    if data.person is not None and scores.person is None:
        raise InputError(f"{data} has no column or array {data.person} with person ids")
    Ledger.in_memory(policy, unit=data.unit)


def create(
    data: Data,
    scores: Scores,
    policy: Policy | None = None,
    *,
    folder: Path | None = None,
    at: Path | None = None,
    name: str | None = None,
    warn: Callable[[str], None] | None = None,
) -> Ledger:
    """Make the ledger of these data (strictly read: `scores`), beside them unless said otherwise.

    Refuses where they have one. The unit is the person where the data name a column of ids.
    """
    check_new(data, scores, policy or Policy())
    if (other := find(data, folder)) is not None:
        raise InputError(f"{data} already has the ledger {other.path}")
    at = (at or ledger_path(data, folder)).resolve()
    ledger = Ledger.create(
        at,
        policy,
        unit=data.unit,
        name=name or data.name,
    )
    warn_of_spellings(ledger, data, scores, warn)
    ledger.attach(data.holding(scores).note(), data.known(ledger.id, content_digest(scores)))
    if not ledger_path(
        data
    ).exists():  # whoever asks about the data, from whatever account, looks there
        with contextlib.suppress(OSError):
            ledger_path(data).parent.mkdir(exist_ok=True)
            ledger_path(data).symlink_to(at)
    return ledger


def warn_of_copies(
    parts: Sequence[tuple[Data, Scores]], own: set[Path], warn: Callable[[str], None] | None = None
) -> None:
    """Tell the owner of a file that it, or one of its `parts`, has a ledger under another name.

    `own` are the places of the ledgers that it is going to have.
    """
    data = parts[0][0]
    with _marks() as marks:
        known = [] if marks is None else marks.data()
        where = {one: _paths(marks, one.id)[-1] for one in known if _paths(marks, one.id)}
    known = [one for one in where if where[one] not in own and not data.same_file(one.path)]
    digests = {content_digest(scores) for _, scores in parts}
    same = next((one for one in known if one.digest in digests), None) or _copied(data, known)
    if same is not None:
        (warn or _warn)(
            f"warning: the same rows have the ledger {where[same]}, as {same.path}; if these are the "
            "same people, use that ledger (privcal ledger attach) and make no second one"
        )


def warn_of_spellings(
    ledger: Book, data: Data, scores: Scores, warn: Callable[[str], None] | None = None
) -> None:
    """Tell the owner where several ids mean one person, or do in a new ledger and not in this one."""
    ids = _ids(scores)
    if (persons := len(set(map(folded, ids)))) == len(ids):
        return
    alike = "capitals, blanks, invisible characters and how letters are encoded"
    text = f"{len(ids):,} ids in {data.person} of {data}"
    if ledger.facts.ids == FOLDED:
        text = f"note: {text} count as {persons:,} persons: {alike} make no difference"
    else:
        text = (
            f"warning: {text} would be {persons:,} persons without {alike}; this ledger was made by "
            "an older privcal, which takes each spelling for a person: spell each id in one way"
        )
    (warn or warnings.warn)(text)


def refresh(ledger: Ledger, data: Data, scores: Scores) -> None:
    """Tell the marks what the file is now, so that it is known again under another name."""
    known = data.known(ledger.id, content_digest(scores))
    with _marks() as marks:
        stale = marks is not None and known not in marks.data()
    if stale:
        with contextlib.suppress(sqlite3.Error, OSError), locked(default_marks()) as marks:
            marks.note(known)


def attach(
    ledger: Ledger, data: Data, scores: Scores, warn: Callable[[str], None] | None = None
) -> None:
    """Say that these data, too, are about the ledger's people: all charges add up there.

    They are known by the same column of ids as before. Another column may be named where these
    data do not have that one; their owner is told where it hardly holds the same ids.
    """
    other = find(data, attaching=ledger)
    if other is not None and other.id != ledger.id:
        raise InputError(f"{data} already has the ledger {other.path}")
    if ledger.unit == "person" and scores.person is None:
        raise InputError(
            f"{ledger.path} protects persons: say which column of {data} has their ids"
        )
    if ledger.unit == "row" and data.person is not None:
        raise InputError(
            f"{ledger.path} protects each row, as was said when it was made: {data} cannot be attached "
            f"by the person ids in {data.person}; leave --person out"
        )
    notes = [Data.noted(note) for note in ledger.notes()]
    there = open_table(data.path).names
    # The oldest decides: a column that was named for one file says nothing of others.
    own = next((note.person for note in notes if note.person in there), data.person)
    if data.person != own:
        raise InputError(
            f"{ledger.path} knows persons by the ids in {own}, and {data} has them: another "
            f"column would count other persons; use --person {own}"
        )
    if notes and data.person != notes[0].person:
        _warn_of_other_ids(ledger, notes, data, scores, warn or warnings.warn)
    warn_of_spellings(ledger, data, scores, warn)
    ledger.attach(data.holding(scores).note(), data.known(ledger.id, content_digest(scores)))


def _ids(scores: Scores) -> set[str]:
    return set() if scores.person is None else set(scores.person) - {""}


def _warn_of_other_ids(
    ledger: Ledger, notes: Sequence[Data], data: Data, scores: Scores, warn: Callable[[str], None]
) -> None:
    """Tell the owner of ids that can hardly be those by which the ledger knows its people."""
    person, before = ledger.facts.person, set()
    for note in notes:
        with contextlib.suppress(InputError):  # it is gone, or changed
            before |= set(map(person, _ids(note.read())))
    ids = set(map(person, _ids(scores)))
    known, unique = ids & before, len(ids) == len(scores)
    if 10 * len(known) < len(ids) or unique:
        each = ", and every row has an id of its own" if unique else ""
        warn(
            f"warning: {len(known):,} of {len(ids):,} ids in {data.person} of {data} are known from the "
            f"ledger's data so far{each}; where {data.person} says something else than "
            f"{notes[-1].person} did, one person counts as several"
        )


def ledger_path(data: Data, folder: Path | None = None) -> Path:
    """The usual place of a ledger, beside the data: `hospital.npz.ledger`, or `icu.csv.ledgers/<value>.ledger`."""
    name = "" if data.value is None else quote(data.value, safe=" ")
    if folder is not None:
        return folder.resolve() / ".".join(filter(None, (data.path.name, name, "ledger")))
    if data.value is None:
        return data.path.with_name(f"{data.path.name}.ledger")
    return data.path.with_name(f"{data.path.name}.ledgers") / f"{name}.ledger"


def _nearby(data: Data, folder: Path | None) -> list[Path]:
    """Ledgers that lie beside the data, for all or a part of them, or in the folder."""
    beside = data.path.with_name(f"{data.path.name}.ledgers")
    some = sorted(beside.glob("*.ledger"))[:1] if beside.is_dir() else []
    whole = replace(data, split=None, value=None)
    paths = [ledger_path(whole), *some, ledger_path(data), ledger_path(data, folder)]
    return [path for path in dict.fromkeys(paths) if path.is_file()]


def _same_part(data: Data, split: str | None, value: str | None, ledger: Path) -> bool:
    """Whether a ledger for this file is for this part of it; a file is split in one way only."""
    if split != data.split:
        how = "as a whole" if split is None else f"split by its column {split}"
        raise InputError(
            f"{data.path} already has ledgers, such as {ledger}, {how}: ask it in the same way"
        )
    return value == data.value


@contextmanager
def _marks() -> Iterator[Marks | None]:
    try:
        with reading(default_marks()) as marks:
            yield marks
    except sqlite3.Error as error:
        raise InputError(f"{error}; say with PRIVCAL_MARKS where they are") from None


def _paths(marks: Marks | None, ledger: str) -> list[Path]:
    """Where this ledger has been, the newest last."""
    return [] if marks is None else marks.places(ledger)


def _is(path: Path, id: str) -> bool:
    return path.is_file() and Ledger(path).id == id


def _seen(ledger: str) -> bool:
    with _marks() as marks:
        return marks is not None and marks.head(ledger) is not None


def _known_rows(digest: str) -> list[tuple[Known, Path]]:
    with _marks() as marks:
        known = [] if marks is None else [known for known in marks.data() if known.digest == digest]
        return [(k, _paths(marks, k.id)[-1]) for k in known if _paths(marks, k.id)]


def _warn(text: str) -> None:
    warnings.warn(text, SameRows, stacklevel=4)
