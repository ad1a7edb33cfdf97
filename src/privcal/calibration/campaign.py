"""The calibrator's own record of a campaign, on disk: what it is going to ask, and what came back.

A campaign that was interrupted goes on where it stopped: it replays its own record first, so that
it asks the same questions, and sites give the answers already paid for again, free of charge. One
that is finished is read again, and asks nobody.

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
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

from privcal.data.files import read_json, write_document
from privcal.data.panels import Panel, Unusable, away_from, code_of, problem_of
from privcal.secure.round import Total
from privcal.secure.summing import Chosen, Decided
from privcal.secure.terms import Terms, read_terms
from privcal.trusted import records
from privcal.trusted.checks import number, whole
from privcal.trusted.errors import CalibrationError, InputError
from privcal.trusted.queries import GRID
from privcal.trusted.question import Question, read_question
from privcal.trusted.source import Answer

PLAN, ANSWERS, LOCK = "campaign.json", "answers.jsonl", "lock"
LETTERS = "letters"
"""A folder in the record: letters to sites, with the keys for their replies."""


class Campaign:
    """A folder: `campaign.json` says what is asked, `answers.jsonl` grows with every answer."""

    def __init__(self, folder: Path, plan: dict[str, Any]) -> None:
        self.folder, self.plan = folder, plan
        self._older: Path | None = None  # where the record that was here before is kept
        self.sites: list[str] = []  # those that were asked the first question
        self._asked: list[str] = []
        self._kept: dict[tuple[str, str], tuple[tuple[int, ...], str]] = {}
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
            facts = {**line["total"], "question": read_question(json.loads(question))}
            total = records.read(Total, facts, "total")
            self._totals[question] = total, _texts(line["others"])
        elif "values" in line:
            points = tuple(round(float(v) * GRID) for v in line["values"])
            self._kept[line["site"], question] = (points, str(line["ledger"]))
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
                f"{folder} holds a campaign already; go on with it by the same command, or choose another "
                "--out"
            )
        write_document(folder / PLAN, plan)
        return cls(folder, plan)

    @classmethod
    def resume(cls, folder: Path) -> Campaign:
        """The record that was begun in this folder, for this run alone."""
        if not (folder / PLAN).is_file():
            raise InputError(f"{folder} holds no campaign to resume")
        plan = _read_plan(folder)
        _take(folder)
        return cls(folder, plan)

    @classmethod
    def anew(cls, folder: Path, plan: dict[str, Any], older: Path) -> Campaign:
        """A new record in this folder; the one that is there is kept as `older`."""
        _take(folder)
        folder.rename(older)
        campaign = cls.start(folder, plan)
        campaign._older = older
        return campaign

    @staticmethod
    def began(folder: Path) -> bool:
        """Whether a campaign there has asked anything."""
        return (folder / ANSWERS).exists()

    def remove(self) -> None:
        """Remove the record, which nobody needs any more; one that was here before is back then."""
        shutil.rmtree(self.folder)
        if self._older is not None:
            self._older.rename(self.folder)

    def finish(self) -> None:
        """Record that the result is written: from now on nobody is asked, and no reply can be opened."""
        if not self.finished:
            self.plan["finished"] = True
            write_document(self.folder / PLAN, self.plan)
        shutil.rmtree(self.folder / LETTERS, ignore_errors=True)

    @property
    def finished(self) -> bool:
        """Whether its result was written: it is only read again."""
        return self.plan.get("finished") is True

    @property
    def closed(self) -> bool:
        """Whether it is settled who takes part."""
        return self.finished or self.sites_settled

    def refused(self) -> dict[str, str]:
        """Those that were not asked at all, and why."""
        return _texts(self.plan.get("refused", {}))

    def refuses(self, refused: Mapping[str, str]) -> None:
        """Record who is not asked at all, before the others are."""
        if refused != self.refused():
            self.plan["refused"] = dict(refused)
            write_document(self.folder / PLAN, self.plan)

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

    def kept(self, site: str, question: Question) -> Answer | None:
        """The answer of a site; None where there is none."""
        kept = self._kept.get((site, question.text()))
        return kept and Answer(kept[0], question, kept[1])

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
        line = {"question": question.text(), "site": site, "ledger": answer.ledger}
        self._note({**line, "values": answer.values.tolist()})

    def leave(self, site: str, question: Question, reason: str) -> None:
        """Record that a site left at a question."""
        self._note({"question": question.text(), "site": site, "left": reason})

    # --- of secure sums: `privcal.secure.summing.Record` ------------------------------------

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
        others = campaign.refused() if campaign.closed else panel.names
        self.names: Sequence[str] = [*asked, *(name for name in others if name not in asked)]
        self.asker = panel.asker
        self.rows_per_person = panel.rows_per_person
        self.model: str | None = getattr(panel, "model", None)
        self.away = away_from(panel)
        # The questions go by these, so they stay what they were when the campaign began.
        self.sources, self.rows_per_source = campaign.decided(
            lambda: (len(self.names), panel.rows_per_source)
        )

    @property
    def schema(self) -> dict[str, Any]:
        """What the sources' scores are, where the panel knows it."""
        return getattr(self._panel, "schema", {})

    def refusals(self, questions: Sequence[Question]) -> dict[str, str]:
        """The refusals of the panel; once a question was asked those of then, or the next would be others."""
        refused = self._panel.refusals(questions)  # whoever does not refuse reserves what it costs
        asked = self._campaign.sites
        if not asked:
            self._campaign.refuses(refused)
            return refused
        then = self._campaign.refused() if self._campaign.closed else {}
        return {name: code for name, code in then.items() if name not in asked}

    def release(self) -> None:
        self._panel.release()

    def ask(
        self, names: Sequence[str], question: Question
    ) -> Iterator[tuple[str, Answer | Exception]]:
        settled = self._campaign.finished or self._campaign.settled(question)
        missing = []
        for name in names:
            kept = self._campaign.kept(name, question)
            if kept is not None:
                yield name, kept
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
    return {name: fact for name, fact in records.facts(total).items() if name != "question"}


def _texts(facts: Any) -> dict[str, str]:
    return {str(name): str(text) for name, text in facts.items()}


def campaign_folder(out: Path) -> Path:
    """The folder with the record of the campaign that writes `out`."""
    return out.with_name(out.name + ".campaign")


def _aggregation(secure: dict[str, Any] | None) -> str:
    """The options of a run that decide how answers are put together.

    >>> _aggregation({"colluding": None, "needed": 8, "alone": None, "groups": 1})
    '--aggregation secure,needed=8'
    """
    if secure is None:
        return "--aggregation each"
    said = {name: value for name, value in secure.items() if value is not None}
    if said.get("groups") == 1:
        del said["groups"]
    return ",".join(["--aggregation secure", *(f"{name}={said[name]}" for name in said)])


def kept_name(path: Path, campaign: str, taken: Callable[[Path], bool] = Path.exists) -> Path:
    """The name under which the result of a campaign is kept when another takes its place.

    >>> kept_name(Path("map.json"), "autumn").name
    'map-autumn.json'
    """
    name = f"{path.stem}-{quote(campaign, safe=' ')[:80]}"
    numbered = (f"{name}-{n}" if n > 1 else name for n in count(1))
    paths = (path.with_name(f"{each}{path.suffix}") for each in numbered)
    return next(each for each in paths if not taken(each))


def paid_map(path: Path) -> tuple[str, float] | None:
    """The campaign of a map that was paid for, and what it cost each source; None if none is there."""
    try:
        document = read_json(path, "map") if path.exists() else {}
        facts = document["provenance"]
        return str(facts["campaign"]), number("epsilon_per_source", facts["epsilon_per_source"], 0)
    except (InputError, KeyError, TypeError):
        return None


def check_begun(out: Path, plan: dict[str, Any], again: bool, name: str | None) -> bool:
    """Whether `out` has a campaign that asks just this, which goes on or is read again, for free.

    InputError where something else was paid for there, unless it is to be asked anew: `again`. A
    campaign that was interrupted goes on all the same.
    """
    folder, paid = campaign_folder(out), paid_map(out)
    if not Campaign.began(folder):
        if paid is not None and paid[1] and not again and name != paid[0]:
            raise InputError(
                f"{out} is the map of campaign {paid[0]}, which cost epsilon {paid[1]:g} at each source, "
                f"and its record {folder} is gone; give --campaign {paid[0]} to read the stored answers "
                "again, free of charge, --again to ask and pay again, or another --out to keep it"
            )
        return False
    begun = _read_plan(folder)
    wanted = plan if name is None else {**plan, "campaign": name}
    differs = [
        (part, begun[part], value)
        for part, value in wanted.items()
        if part in begun and _unordered(begun[part]) != _unordered(value)
    ]
    if not differs:
        return not again or not _finished(begun, paid)
    if again:
        return False
    raise InputError(
        f"campaign {begun.get('campaign')}, whose record is {folder}, was begun with "
        f"{_difference(*differs[0])}; choose another --out, or ask anew, and pay again, with --again"
    )


def open_campaign(out: Path, plan: dict[str, Any], again: bool, name: str | None) -> Campaign:
    """The campaign that was begun for `out`, if it asks the same; else a new one."""
    folder = campaign_folder(out)
    if check_begun(out, plan, again, name):
        campaign = Campaign.resume(folder)
        if _finished(campaign.plan, paid_map(out)):
            campaign.plan["finished"] = True
        return campaign
    plan = {**plan, "campaign": name or secrets.token_hex(8)}
    if not Campaign.began(folder):
        return Campaign.start(folder, plan)
    older = str(_read_plan(folder).get("campaign"))
    kept = kept_name(out, older, lambda path: campaign_folder(path).exists())
    return Campaign.anew(folder, plan, campaign_folder(kept))


def _read_plan(folder: Path) -> dict[str, Any]:
    plan = read_json(folder / PLAN, "record of a campaign")
    if not isinstance(plan, dict):
        raise InputError(f"{folder / PLAN} is not a record of a campaign")
    return plan


def _finished(plan: Mapping[str, Any], paid: tuple[str, float] | None) -> bool:
    """Whether the result was written; records did not always say so themselves."""
    return plan.get("finished") is True or (paid is not None and paid[0] == plan.get("campaign"))


def _difference(part: str, begun: Any, wanted: Any) -> str:
    """How what is wanted differs from what a campaign was begun with.

    >>> _difference("files", ["a.npz"], ["a.npz", "b.npz"]), _difference("epsilon", 1.0, 2.0)
    ('other files: 1, not 2', 'epsilon 1.0, not 2.0')
    """
    if part == "secure":
        return f"{_aggregation(begun)}, not {_aggregation(wanted)}"
    if part == "options":
        part = next(name for name in {**begun, **wanted} if begun.get(name) != wanted.get(name))
        was, now = begun.get(part), wanted.get(part)
        if was is None or now is None:
            return (
                f"no {part}, not {part} {now}" if was is None else f"{part} {was}, not without it"
            )
        begun, wanted = was, now
    if part not in ("files", "sources"):
        return f"{part} {begun!r}, not {wanted!r}"
    if len(begun) != len(wanted):
        return f"other {part}: {len(begun):,}, not {len(wanted):,}"
    new = next((each for each in wanted if each not in begun), "another name")
    return f"other {part}: not with {wanted.get(new, new) if isinstance(wanted, dict) else new}"


def _unordered(value: Any) -> Any:
    return sorted(value) if isinstance(value, list) and value else value
