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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from privcal.columns import AS_NAMED, PERSON, Layout
from privcal.errors import InputError, Refused
from privcal.privacy.chain import Unit
from privcal.privacy.ledger import Ledger
from privcal.privacy.marks import Known, Marks, default_marks, locked, reading
from privcal.privacy.policy import Policy
from privcal.readers import is_scores, outputs_file, read_scores, read_sources, unused_columns
from privcal.scores import Scores


@dataclass(frozen=True)
class Data:
    """Where the rows of one source are: a file, or one value of a column of a table.

    `Data.at` makes one. `person` is the column (or array) of person ids; None protects rows.
    `layout` says which other columns are what, where their names do not.
    """

    path: Path
    split: str | None = None
    value: str | None = None
    person: str | None = None
    model: str | None = None
    layout: Layout = AS_NAMED
    only_confidence: bool = False
    """Whether they held just the confidence in each answer when a ledger noted them."""

    @classmethod
    def at(cls, path: str | Path, **more: Any) -> Data:
        return cls(outputs_file(path).resolve(), **more)

    def __str__(self) -> str:
        return str(self.path) if self.value is None else f"{self.path} ({self.split} {self.value})"

    @property
    def name(self) -> str:
        """What the source is called, unless its owner says otherwise."""
        return self.value or self.path.name.partition(".")[0]

    @property
    def unit(self) -> Unit:
        """Whom a ledger for them protects."""
        return "row" if self.person is None else "person"

    def check_there(self) -> None:
        if not self.path.is_file():
            raise InputError(f"there is no file {self.path}")

    def read(self, strict: bool = False) -> Scores:
        """The rows; a malformed one is marked and counts as zero, or, if strict, is an error."""
        if self.split is None or self.value is None:
            return read_scores(
                self.path,
                model=self.model,
                person=self.person,
                columns=self.layout,
                strict=strict,
            )
        [scores] = read_sources(
            self.path,
            self.split,
            names=[self.value],
            model=self.model,
            person=self.person,
            columns=self.layout,
            strict=strict,
        ).values()
        return scores

    def note(self) -> dict[str, Any]:
        """As a ledger keeps it: how the data are read is then the ledger's, and no asker's."""
        facts = {name: getattr(self, name) for name in ("split", "value", "person")}
        more: dict[str, Any] = {"layout": self.layout.note()} if self.layout else {}
        more |= {"only_confidence": True} if self.only_confidence else {}
        return {"path": str(self.path), **facts, **more}

    @classmethod
    def noted(cls, note: dict[str, Any]) -> Data:
        layout = Layout.of(**note.get("layout", {}))
        return cls(**{**note, "path": Path(note["path"]), "layout": layout})

    def holding(self, scores: Scores) -> Data:
        """The same, knowing whether these rows of theirs are confidences alone."""
        return replace(self, only_confidence=scores.outputs.kind == "confidence")

    def known(self, ledger: str, digest: str) -> Known:
        """As the marks keep it."""
        return Known(ledger, self.path, *self._file(), self.split or "", self.value or "", digest)

    def _file(self) -> tuple[int, int]:
        """The numbers of its disk and of itself there, as far as a database can hold them."""
        facts = self.path.stat()
        return facts.st_dev % 2**63, facts.st_ino % 2**63

    def same_file(self, path: Path) -> bool:
        """Whether that is this file, under this name or as a hard link."""
        both = self.path.exists() and path.exists()
        return path == self.path or (both and self.path.samefile(path))

    def was(self, known: Known) -> bool | None:
        """Whether that is this file, or was before it got another name; None: perhaps.

        A number of an inode is given again when a file is gone, so then the rows decide; where
        they changed too, only the owner can know.
        """
        if self.same_file(known.path) or not self.path.exists():
            return self.same_file(known.path)
        if self._file() != (known.device, known.inode):
            return False
        part = replace(self, split=known.split or None, value=known.value or None)
        with contextlib.suppress(InputError):
            if part.read().content_digest() == known.digest:
                return True
        return False if known.path.exists() else None


class SameRows(UserWarning):
    """The same rows have a ledger under another name."""


def find(data: Data, folder: Path | None = None, attaching: Ledger | None = None) -> Ledger | None:
    """The ledger of these data; None if none was ever made.

    A ledger in their place that is noted for other data is an error, unless it is `attaching`.
    """
    present, gone, perhaps = _known_ledgers(data, attaching)
    for path in _nearby(data, folder):
        ledger = Ledger(path)
        if ledger.id in present:
            continue
        notes = [Data.noted(note) for note in ledger.notes()]
        mine = [note for note in notes if data.same_file(note.path)]
        moved = ledger.id in gone  # with its data
        if moved or [note for note in mine if _same_part(data, note.split, note.value, path)]:
            present[ledger.id] = path.resolve()
        elif path == ledger_path(data, folder) and ledger.path != (attaching and attaching.path):
            whose = f"the ledger of {notes[0]}" if notes else "not noted for any data"
            raise InputError(
                f"{path} is {whose}; if {data} holds the same people, say so with: "
                f"privcal ledger attach {path} {data.path}"
            )
    if perhaps and not present:
        raise InputError(
            f"{data.path} may be {perhaps[-1]} under a new name, which has a ledger: if so, say it with "
            "privcal ledger attach; if not, copy the file, and use the copy"
        )
    paths = list(present.values())
    if len(paths) > 1:
        raise InputError(
            f"{data} has two ledgers, {paths[0]} and {paths[1]}: only its owner can say which one "
            "holds; move the other away"
        )
    if not paths and gone and ledger_path(data, folder) not in gone.values():
        last = list(gone.values())[-1]
        raise InputError(
            f"the ledger of {data} was {last} and is gone; put it back, or make a new one there, "
            f"which starts with what that had spent: privcal ledger create {data.path} "
            f"--ledger-dir {last.parent}"
        )
    if paths and folder is not None and ledger_path(data, folder) not in paths:
        raise InputError(
            f"{data} already has the ledger {paths[0]}; leave --ledger-dir out to use it"
        )
    return Ledger(paths[0]) if paths else None


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
    return next((known.path for known, _ in _known_rows(scores.content_digest())), None)


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
    for one in known:
        with contextlib.suppress(OSError):  # gone, or not for us to read
            if filecmp.cmp(one.path, data.path, shallow=False):
                return one.path
    for split in dict.fromkeys([None, *(one.split or None for one in known)]):
        with contextlib.suppress(InputError):  # no such column
            for scores in _parts(data, split):
                if (file := known_as(scores)) is not None:
                    return file
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
    digest = scores.content_digest()
    same = [(known, where) for known, where in _known_rows(digest) if where != at]
    for known, where in same[:1]:
        (warn or _warn)(
            f"warning: the same rows have the ledger {where}, as {known.path}; if these are the same "
            "people, their budget is there already (privcal ledger attach, not a new ledger)"
        )
    ledger = Ledger.create(
        at,
        policy,
        unit=data.unit,
        name=name or data.name,
    )
    ledger.attach(data.holding(scores).note(), data.known(ledger.id, digest))
    if not ledger_path(
        data
    ).exists():  # whoever asks about the data, from whatever account, looks there
        with contextlib.suppress(OSError):
            ledger_path(data).parent.mkdir(exist_ok=True)
            ledger_path(data).symlink_to(at)
    return ledger


def refresh(ledger: Ledger, data: Data, scores: Scores) -> None:
    """Tell the marks what the file is now, so that it is known again under another name."""
    known = data.known(ledger.id, scores.content_digest())
    with _marks() as marks:
        stale = marks is not None and known not in marks.data()
    if stale:
        with contextlib.suppress(sqlite3.Error, OSError), locked(default_marks()) as marks:
            marks.note(known)


def attach(ledger: Ledger, data: Data, scores: Scores) -> None:
    """Say that these data, too, are about the ledger's people: all charges add up there."""
    other = find(data, attaching=ledger)
    if other is not None and other.id != ledger.id:
        raise InputError(f"{data} already has the ledger {other.path}")
    if ledger.unit == "person" and scores.person is None:
        raise InputError(
            f"{ledger.path} protects persons: say which column of {data} has their ids"
        )
    if ledger.unit == "row" and data.person is not None:
        data = replace(data, person=None)
    for note in map(Data.noted, ledger.notes()):
        same = data.same_file(note.path) and (data.split, data.value) == (note.split, note.value)
        if same and note.person != data.person and note.person in _columns(data):
            raise InputError(
                f"{data} is attached with the ids in {note.person}; another column would count "
                "other persons"
            )
    ledger.attach(data.holding(scores).note(), data.known(ledger.id, scores.content_digest()))


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


def _columns(data: Data) -> list[str]:
    """The columns that could hold ids: those that nothing reads, and those said to be something else."""
    unused = unused_columns(data.path, person=data.person, columns=data.layout)
    return [*(column.name for column in unused), *(name for _, name in data.layout.columns)]


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


def _known_rows(digest: str) -> list[tuple[Known, Path]]:
    with _marks() as marks:
        known = [] if marks is None else [known for known in marks.data() if known.digest == digest]
        return [(k, _paths(marks, k.id)[-1]) for k in known if _paths(marks, k.id)]


def _warn(text: str) -> None:
    warnings.warn(text, SameRows, stacklevel=4)
