"""The calibrator's own record of a campaign, on disk: what it is going to ask, and what came back.

A campaign that was interrupted goes on where it stopped: it replays its own record first, so that
it asks the same questions, and sites give the answers already paid for again, free of charge.

What is asked next depends on who answered before. So a question after which another was asked is
settled: whoever left at it stays away, and whoever was not there at first does not join. Otherwise
a site that came back would change the next question, and every site would refuse the new one under
the old one's name.

Of a secure sum the record has its terms before anybody is asked, the set whose answers are summed
before it is opened, and the total. Whatever of it is on record is the same when the campaign goes on.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from privcal.checks import number, whole
from privcal.documents import read_json, write_document
from privcal.errors import CalibrationError, InputError
from privcal.panels import Panel, Unusable, code_of, problem_of
from privcal.privacy.laws import NoiseLaw
from privcal.question import Question, read_question
from privcal.secure.terms import Terms, read_terms
from privcal.secure.way import Chosen, Decided
from privcal.source import Answer
from privcal.totals import Part, Total

PLAN, ANSWERS, LOCK = "campaign.json", "answers.jsonl", "lock"


class Campaign:
    """A folder: `campaign.json` says what is asked, `answers.jsonl` grows with every answer."""

    def __init__(self, folder: Path, plan: dict[str, Any]) -> None:
        self.folder, self.plan = folder, plan
        self.sites: list[str] = []  # those that were asked the first question
        self._asked: list[str] = []
        self._kept: dict[tuple[str, str], tuple[list[float], str]] = {}
        self._left: dict[tuple[str, str], str] = {}
        self._terms: dict[str, Sequence[Terms]] = {}
        self._chosen: dict[str, Chosen] = {}
        self._totals: dict[str, tuple[Total, Mapping[str, str]]] = {}
        path = folder / ANSWERS
        if path.exists():
            text = path.read_text("utf-8")
            for line in text.splitlines():
                try:
                    self._read(json.loads(line))
                except (ValueError, KeyError, TypeError):
                    continue  # cut short by a crash: the site gives that answer again
            if text and not text.endswith("\n"):
                self._write("")  # or the next line would be lost with the one cut short

    def _read(self, line: Any) -> None:
        question = str(line["question"])
        if "terms" in line:
            self._terms[question] = [read_terms(text, len(text)) for text in line["terms"]]
        elif "chosen" in line:
            names, left = line["chosen"], line["others"]
            self._chosen[str(line["digest"])] = Chosen(tuple(map(str, names)), _texts(left))
        elif "total" in line:
            total = _read_total(line["total"], read_question(json.loads(question)))
            self._totals[question] = total, _texts(line["others"])
        elif "values" in line:
            values = [float(v) for v in line["values"]]
            self._kept[line["site"], question] = (values, str(line["ledger"]))
        elif "left" in line:
            self._left[line["site"], question] = str(line["left"])
        else:
            sites = [str(name) for name in line["asked"]]
            if question not in self._asked:
                self._asked.append(question)
            if question == self._asked[0]:
                self.sites += [name for name in sites if name not in self.sites]

    @classmethod
    def start(cls, folder: Path, plan: dict[str, Any]) -> Campaign:
        """A new record in this folder, for this run alone."""
        folder.mkdir(parents=True, exist_ok=True)
        _take(folder)
        if cls.began(folder):  # one that never asked anything may begin again
            raise InputError(
                f"{folder} holds a campaign already; go on with it (--resume), or choose another --out"
            )
        write_document(folder / PLAN, plan)
        return cls(folder, plan)

    @classmethod
    def resume(cls, folder: Path) -> Campaign:
        """The record that was begun in this folder, for this run alone."""
        if not (folder / PLAN).is_file():
            raise InputError(f"{folder} holds no campaign to resume")
        plan = read_json(folder / PLAN, "record of a campaign")
        if not isinstance(plan, dict):
            raise InputError(f"{folder / PLAN} is not a record of a campaign")
        _take(folder)
        return cls(folder, plan)

    @staticmethod
    def began(folder: Path) -> bool:
        """Whether a campaign there has asked anything."""
        return (folder / ANSWERS).exists()

    def remove(self) -> None:
        """Remove the record: its result is written, and it has done its work."""
        shutil.rmtree(self.folder)

    def decided(self, now: Callable[[], tuple[int, float | None]]) -> tuple[int, float | None]:
        """How many sources there are and about how many rows at each, as when the campaign began.

        They decide what is asked; `now` says how it is where nothing is on record.
        """
        if "decided" not in self.plan:
            sources, rows = now()
            self.plan["decided"] = {"sources": sources, "rows_per_source": rows}
            write_document(self.folder / PLAN, self.plan)
        facts = self.plan["decided"]
        try:
            rows = facts["rows_per_source"]
            return whole("sources", facts["sources"], 1), rows and number("rows", rows, 1)
        except (InputError, TypeError, KeyError):
            raise InputError(f"{self.folder / PLAN} is not a record of a campaign") from None

    @property
    def sites_settled(self) -> bool:
        """Whether it is settled who takes part."""
        return len(self._asked) > 1

    def settled(self, question: Question) -> bool:
        """Whether another question was asked after this one."""
        return question.text() in self._asked[:-1]

    def kept(self, site: str, question: Question) -> tuple[list[float], str] | None:
        """The answer of a site, and the id of its ledger; None where there is none."""
        return self._kept.get((site, question.text()))

    def why_left(self, site: str, question: Question) -> str:
        """The reason for which a site left at a question."""
        return self._left.get((site, question.text()), "late")

    def ask(self, question: Question, sites: Sequence[str]) -> None:
        """Record that sites are asked, before they are: from then on they may be charged."""
        text = question.text()
        if text not in self._asked or (not self.sites_settled and set(sites) - set(self.sites)):
            self._note({"question": text, "asked": list(sites)})

    def keep(self, site: str, question: Question, answer: Answer) -> None:
        """Record an answer, before it is used."""
        values = [float(v) for v in answer.values]
        line = {"question": question.text(), "site": site, "ledger": answer.ledger}
        self._note({**line, "values": values})

    def leave(self, site: str, question: Question, reason: str) -> None:
        """Record that a site left at a question."""
        self._note({"question": question.text(), "site": site, "left": reason})

    # --- of secure sums: `privcal.secure.way.Record` ------------------------------------

    def begun(self, now: Callable[[], Decided]) -> Decided:
        """What questions and terms go by, as when the campaign began; `now` says it otherwise."""
        if "terms" not in self.plan:
            self.plan["terms"] = json.loads(json.dumps(asdict(now())))
            write_document(self.folder / PLAN, self.plan)
        try:
            facts = self.plan["terms"]
            return Decided(**{**facts, "names": tuple(facts["names"])})
        except (TypeError, KeyError):
            raise InputError(f"{self.folder / PLAN} is not a record of a campaign") from None

    def terms(self, question: Question) -> Sequence[Terms]:
        """On which terms a question was asked; none where it was not."""
        return self._terms.get(question.text(), ())

    def asks(self, terms: Sequence[Terms]) -> None:
        """Record the terms of a question, before it is asked."""
        question = terms[0].question
        if not self.terms(question):
            self._note({"question": question.text(), "terms": [each.text for each in terms]})

    def chosen(self, terms: Terms) -> Chosen | None:
        """The set that is opened."""
        return self._chosen.get(terms.digest)

    def chooses(self, terms: Terms, chosen: Chosen) -> None:
        """Record the set that is opened, before it is: no other ever can be."""
        line = {"question": terms.question.text(), "digest": terms.digest}
        self._note({**line, "chosen": list(chosen.names), "others": dict(chosen.left)})

    def total(self, question: Question) -> tuple[Total, Mapping[str, str]] | None:
        """What was opened, and why others are not in it."""
        return self._totals.get(question.text())

    def keeps(self, total: Total, left: Mapping[str, str]) -> None:
        """Record a total, before it is used."""
        line = {"question": total.question.text(), "total": _facts_of(total)}
        self._note({**line, "others": dict(left)})

    def _note(self, line: dict[str, Any]) -> None:
        self._write(json.dumps(line))
        self._read(line)

    def _write(self, line: str) -> None:
        with (self.folder / ANSWERS).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())


class Recorded:
    """A panel that writes every answer to a campaign's record, and asks only for what is not there."""

    def __init__(self, panel: Panel, campaign: Campaign) -> None:
        self._panel, self._campaign = panel, campaign
        asked = campaign.sites
        joined = (
            () if campaign.sites_settled else (name for name in panel.names if name not in asked)
        )
        self.names: Sequence[str] = [*asked, *joined]
        self.asker = panel.asker
        self.rows_per_person = panel.rows_per_person
        self.model: str | None = getattr(panel, "model", None)
        # The questions go by these, so they stay what they were when the campaign began.
        self.sources, self.rows_per_source = campaign.decided(
            lambda: (len(self.names), panel.rows_per_source)
        )

    def refusals(self, questions: Sequence[Question]) -> dict[str, str]:
        """The refusals of the panel; none once a question was asked, or the next would be others."""
        refused = self._panel.refusals(questions)  # whoever does not refuse reserves what it costs
        return {} if self._campaign.sites else refused

    def release(self) -> None:
        self._panel.release()

    def ask(
        self, names: Sequence[str], question: Question
    ) -> Iterator[tuple[str, Answer | Exception]]:
        settled = self._campaign.settled(question)
        missing = []
        for name in names:
            kept = self._campaign.kept(name, question)
            if kept is not None:
                yield name, Answer(np.array(kept[0]), question, kept[1])
            elif settled:
                yield name, problem_of(self._campaign.why_left(name, question))
            elif name not in self._panel.names:
                self._campaign.leave(name, question, "absent")
                yield name, Unusable("absent")
            else:
                missing.append(name)
        if missing:
            self._campaign.ask(question, names)
            for name, answer in self._panel.ask(missing, question):
                if isinstance(answer, Answer):
                    self._campaign.keep(name, question, answer)
                else:
                    self._campaign.leave(name, question, code_of(answer))
                yield name, answer


_TAKEN: dict[tuple[int, Path], int] = {}
"""Open files of locks, by process and folder: closing one would end the lock."""


def _take(folder: Path) -> None:
    """Make the record this run's, until its process ends: two would take turns in writing it.

    On systems without such locks, runs go on.
    """
    try:
        import fcntl

        key = (os.getpid(), folder.absolute())
        if key in _TAKEN:
            os.close(_TAKEN.pop(key))
        _TAKEN[key] = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.lockf(_TAKEN[key], fcntl.LOCK_EX | fcntl.LOCK_NB)
        ours, file = os.fstat(_TAKEN[key]), (folder / LOCK).stat()
        taken = ours.st_ino != file.st_ino  # its folder was removed, and is somebody else's
    except (BlockingIOError, FileNotFoundError):
        taken = True
    except (ImportError, OSError):
        return
    if taken:
        raise CalibrationError(
            f"another run is writing {folder}; nothing was charged by this one", ()
        )


def _facts_of(total: Total) -> dict[str, Any]:
    """A total as JSON has it; its question stands beside it."""
    return {
        "parts": [asdict(part) for part in total.parts],
        "noise": asdict(total.noise),
        "ledgers": dict(total.ledgers),
        "left_out": list(total.left_out),
    }


def _read_total(facts: Any, question: Question) -> Total:
    parts = (
        Part(tuple(map(str, part["sources"])), tuple(float(v) for v in part["values"]))
        for part in facts["parts"]
    )
    noise, left_out = NoiseLaw(**facts["noise"]), tuple(map(str, facts["left_out"]))
    return Total(question, tuple(parts), noise, _texts(facts["ledgers"]), left_out)


def _texts(facts: Any) -> dict[str, str]:
    return {str(name): str(text) for name, text in facts.items()}


def campaign_folder(out: Path) -> Path:
    """The folder with the record of the campaign that writes `out`."""
    return out.with_name(out.name + ".campaign")


def _aggregation(secure: dict[str, Any] | None) -> str:
    """The options of a run that decide how answers are put together.

    >>> _aggregation({"colluding": None, "needed": 8, "alone": None, "groups": 1})
    '--aggregation secure --needed 8'
    """
    if secure is None:
        return "--aggregation each"
    said = {name: value for name, value in secure.items() if value is not None}
    if said.get("groups") == 1:
        del said["groups"]
    return " ".join(["--aggregation secure", *(f"--{name} {said[name]}" for name in said)])


def open_campaign(out: Path, plan: dict[str, Any], resume: bool, name: str | None) -> Campaign:
    """A new campaign, or the one that was begun for `out`, if it asks the same."""
    folder = campaign_folder(out)
    if not resume:
        return Campaign.start(folder, {**plan, "campaign": name or secrets.token_hex(8)})
    campaign = Campaign.resume(folder)
    wanted = plan if name is None else {**plan, "campaign": name}
    for part, value in wanted.items():
        begun = campaign.plan.get(part)
        if begun != value:
            was, wants = (
                (_aggregation(begun), _aggregation(value))
                if part == "secure"
                else (f"{part} {begun!r}", repr(value))
            )
            raise InputError(
                f"the campaign in {folder} was begun with {was}, not {wants}; resume it with the same, or remove that folder to give up what "
                "it paid"
            )
    return campaign
