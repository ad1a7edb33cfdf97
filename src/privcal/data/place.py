"""Where the rows of one source are, how they are read, and what a ledger notes of that."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from privcal.data.columns import AS_NAMED, Layout
from privcal.data.readers import read_scores, read_sources
from privcal.data.scores import Scores, content_digest
from privcal.data.tables import outputs_file
from privcal.trusted.chain import Unit
from privcal.trusted.errors import InputError
from privcal.trusted.marks import Known


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
            if content_digest(part.read()) == known.digest:
                return True
        return False if known.path.exists() else None
