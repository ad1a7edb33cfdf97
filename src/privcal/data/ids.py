"""Columns that nothing reads and that look like person ids: for the owner's eyes alone.

A file whose ids nobody named is read as if each row were a person of its own.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privcal.data.columns import ARRAYS, PERSON, TRUTHS, Layout, find_roles
from privcal.data.readers import to_number
from privcal.data.tables import ArrayTable, NpzFile, open_table
from privcal.trusted.errors import InputError

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Unused:
    """A column that nothing reads: neither label, scores nor person ids."""

    name: str
    different: int
    """The number of different values."""
    rows: int
    decimals: bool
    """Whether the values are numbers of which some are not whole: measured, not given out."""

    @property
    def looks_like_ids(self) -> bool:
        """Whether an owner should be asked if these are person ids.

        Yes where its name is one of an id, or where there are at least twenty different
        values, one for at most ten rows, that are not decimals.
        """
        many = self.different >= 20 and 10 * self.different >= self.rows
        return _names_ids(self.name) or (many and not self.decimals)


def _names_ids(name: str) -> bool:
    """Whether a word of a name, the last two or all of them say that a column holds ids.

    Words are told apart by capitals and by whatever is no letter; accents do not matter. A person
    (patient, Kunde, sujet) is an id only where nothing else is said: patient_age is none.
    """
    plain = "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c))
    parts = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", plain)
    words = re.findall(r"[^\W\d_]+", unicodedata.normalize("NFKC", parts).lower())
    whole = "".join(words)
    if len(words) < 3 and _PERSON_ALONE.fullmatch(whole):
        return True
    return any(_ID_WORD.fullmatch(word) for word in (*words, "".join(words[-2:]), whole))


_PERSON = (
    r"(?:[ru]?subj(?:e[ck]t)?|p(?:at|t|nt)|pati?ent(?:en)?|pa[cz]ient[ei]?|pasient|pacjenta?|potilas"
    r"|person(?:en|a)?|pessoa|participante?|proband(?:en)?|teilnehmer|sujeto?|member|beneficiary"
    r"|versicherten|customer|client[ei]?|klient|kunden?|user|borrower|患者|病人|환자|пациента?)"
)


_FILE = (
    r"(?:nhs|chi|medicare|medicaid|hospital|hosp|record|chart|history|historia|dossier|utente|case"
    r"|fall|aufnahme|encounter|admission|acc(?:oun)?t|(?:social)?security|national|tax|zis|lope?|cpr"
    r"|fødsels|住院|病历|身份证|등록)"
)


_NUMBER = r"(?:id|n(?:o|r|um|umber|ummer|umero)|番号|编号|号码?|번호|номер)"


_CODE = r"(?:ide?|key|code?|codice|codigo|kennung|ref(?:erence)?|pseudonym|hash|token|sourcevalue)"


_PERSON_ALONE = re.compile(
    rf"{_PERSON}|(?:patient|subject|person|participant|case)s?|people|kunde"
    rf"|(?:{_NUMBER}|{_CODE})(?:{_PERSON}|dossier|historia|utente)"
)


_ID_WORD = re.compile(
    rf"{_PERSON}(?:{_NUMBER}|{_CODE})|{_FILE}{_NUMBER}|[epug]?uid|[ep]?ids?|identifier|pseudonym"
    r"|[eh]?mrn|e?mpi|ssn|nhs|mbi|csn|alfe|bsn|nhc|ipp|cpf|dni|curp|prontuario|codicefiscale|pesel|piz|kvnr"
    r"|pnr|fnr|hetu|henkilotunnus|rodnecislo|kimlikno|aadhaar|iban"
    r"|(?:patient|subject|person|participant|case|stay|study|record|unique|user|encounter|enrol|hes)\w*id"
)


def unused_columns(
    path: str | Path,
    *,
    person: str | None = PERSON,
    columns: Mapping[str, str] | Layout | None = None,
) -> list[Unused]:
    """The columns of a table, or arrays of an npz, that nothing reads; only for the owner.

    A file whose person ids have another name than expected is read as if it had none, and every
    row then counts as a person of its own.
    """
    import polars as pl

    path = Path(path)
    layout, person = Layout.of(columns).without_person(person)
    table = open_table(path)
    if not isinstance(table, ArrayTable):
        used = set(find_roles(str(path), table.names, layout, person, labelled=False).used)
        left = [name for name in table.names if name not in used]
        return [_unused(c) for c in pl.concat(table.pieces(left, strict=False))] if left else []
    used = {layout.array(name) for name in (*ARRAYS, *TRUTHS, "class_names")}
    unused = []
    for name in table.names if isinstance(table, NpzFile) else ():
        if name in used or name == person:
            continue
        try:
            array = table.read(name)
        except InputError:  # an array of Python objects: its name still says something
            array = np.empty(0)
        if array.ndim == 1:
            unused.append(_unused(pl.Series(name, array.tolist(), strict=False)))
    return unused


def _unused(column: pl.Series) -> Unused:
    import polars as pl

    values = column.drop_nulls()
    decimals = False
    if column.dtype == pl.String or column.dtype.is_float():
        number = to_number(values)
        decimals = bool(number.is_not_null().all() and (number != number.floor()).any())
    return Unused(column.name, values.n_unique(), len(column), decimals)


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
