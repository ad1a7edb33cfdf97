"""The calibrator's side of a campaign by mail: the usual loop, answered by files.

Whatever is asked, over a network or by mail, is decided by `privcal.calibrate`. Here its panel
is what came back so far. Where the loop wants to know what nobody has answered yet, it stops, and
these questions are the next letter. So it starts from the beginning every time, and gets as far as
the answers go: those of earlier runs are in the campaign's record, those of this one in files.

The record is a folder beside the first question: the plan, every answer, and every letter as it was
sent. Anybody could have written a letter: the owner who answers knows whom it came from.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from privcal.calibration import methods
from privcal.calibration.campaign import PLAN, Campaign, Recorded, campaign_folder
from privcal.calibration.loop import Result, calibrate
from privcal.calibration.methods.base import Ask, Batch, Method, Rounds
from privcal.data.files import read_json, write_document
from privcal.data.panels import Unusable
from privcal.data.plausible import MAX_SITE_ROWS, beyond
from privcal.data.sources import read_public
from privcal.transport.mail import letters
from privcal.transport.mail.letters import ANSWER_FORMAT, QUESTION_FORMAT, SIGNED, Given, Letter
from privcal.trusted.errors import CalibrationError, InputError
from privcal.trusted.question import UNSIGNED, Question
from privcal.trusted.source import Answer

ANYBODY = "whoever answers"


class Waiting(Exception):
    """The loop wants answers of these sources to these questions, and nobody has given one yet."""

    def __init__(
        self, plan: Sequence[Question], questions: Sequence[Question], names: Sequence[str]
    ) -> None:
        super().__init__("nobody has answered yet")
        self.plan, self.questions, self.names = tuple(plan), tuple(questions), tuple(names)

    @property
    def round(self) -> int:
        return self.questions[0].round

    @property
    def rounds(self) -> int:
        """How many there are in all."""
        return 1 + max(question.round for question in self.plan)


class Mailed:
    """What came back by mail, as a panel."""

    def __init__(
        self,
        asker: str,
        names: Sequence[str],
        answers: Mapping[tuple[str, str], Answer | Exception],
        known: Mapping[str, Any],
    ) -> None:
        self.asker, self.names = asker, names
        self.rows_per_person: int = known["rows_per_person"]
        self.sources: int = known["sources"]
        self.rows_per_source: float | None = known["rows_per_source"]
        self._answers = answers
        self.plan: Sequence[Question] = ()
        self.round: list[Question] = []

    def refusals(self, questions: Sequence[Question]) -> dict[str, str]:
        """None: whoever refuses does so when the letter arrives, and sends no answer."""
        self.plan = questions
        return {}

    def release(self) -> None:
        """Nothing: nobody reserves for longer than it takes to answer a letter."""

    def answered(self, name: str, question: Question) -> bool:
        return (name, question.text()) in self._answers

    def ask(
        self, names: Sequence[str], question: Question
    ) -> Iterator[tuple[str, Answer | Exception]]:
        if not any(self.answered(name, question) for name in names):
            raise Waiting(self.plan, self.round, names)
        for name in names:
            yield name, self._answers.get((name, question.text())) or Unusable("late")


class MailCampaign:
    """A campaign by mail with its record on disk."""

    def __init__(self, record: Campaign) -> None:
        self._record = record
        plan = record.plan
        if plan.get("kit") is not None:
            raise InputError(f"{record.folder} is the record of signed letters: {SIGNED}")
        try:
            self.asker = str(plan["asker"])
            self.name: str = plan["campaign"]
            self.question = Path(plan["question"])
            self.public = None if plan["public"] is None else Path(plan["public"])
            self._needed: int = plan["needed"]
            self._known = {**plan["decided"], "rows_per_person": plan["rows_per_person"]}
            self._epsilon, self._model = plan["epsilon"], plan["model"]
            self._class_names: list[str] | None = plan.get("class_names")  # older records have none
            self._method, self._options = plan["method"], dict(plan["options"])
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"{record.folder / PLAN} is not the record of a campaign by mail"
            ) from None

    @classmethod
    def begin(cls, question: Path, plan: dict[str, Any]) -> tuple[MailCampaign, Waiting]:
        """A new campaign, whose first letter is written to `question`."""
        folder = campaign_folder(question)
        if _letter_path(folder, 0).exists():
            raise InputError(
                f"{question} was asked already, and its record is in {folder}; choose another --out"
            )
        name = plan["campaign"] or secrets.token_hex(8)
        facts = {**plan, "campaign": name, "question": str(question.resolve())}
        made = cls(Campaign.start(folder, facts))
        mailed = Mailed(made.asker, [ANYBODY], {}, made._known)
        try:
            made._run(mailed, mailed, min_sources=1, needed=1)
            raise InputError(f"{plan['method']} asks nothing, so there is nothing to mail")
        except Waiting as waiting:
            made.send(waiting)
            return made, waiting
        except BaseException:
            made._record.remove()
            raise

    def go_on(
        self,
        files: Sequence[Path],
        *,
        min_sources: int | None = None,
        max_rows: int = MAX_SITE_ROWS,
    ) -> tuple[Result, list[str]]:
        """The result, from these answers and those on record, and the names of all that answered.

        `Waiting` where another round must be asked first. It is asked of those alone who answered
        all before, so it waits until as many did as were expected, or as `min_sources` says.
        """
        answers = self._read(files, max_rows)
        names = [*self._record.sites]
        names += sorted({name for name, _ in answers} - set(names))
        least = 1 if min_sources is None else min_sources
        if len(names) < least:
            raise CalibrationError(
                f"{len(names)} sources have answered so far, fewer than the {least} required; wait "
                "for the others",
                (),
            )
        mailed = Mailed(self.asker, names, answers, self._known)
        recorded = Recorded(mailed, self._record)
        needed = self._needed if min_sources is None else min_sources
        return self._run(recorded, mailed, least, needed), list(recorded.names)

    def _run(
        self, panel: Mailed | Recorded, mailed: Mailed, min_sources: int, needed: int
    ) -> Result:
        """The loop; `panel` is `mailed` itself, or with its record around it."""

        def hear(round: int, asks: Sequence[Ask]) -> None:
            if mailed.plan:  # before that the method only says what it would ask
                mailed.round = [
                    Question(self.name, round, i, ask.nano_epsilon, ask.for_run(0), self._model)
                    for i, ask in enumerate(asks)
                ]
                self._check_enough(mailed, needed)

        return calibrate(
            panel,
            _overheard(self.method(), hear),
            self._epsilon,
            min_sources=min_sources,
            campaign=self.name,
            model=self._model,
            class_names=self._class_names,
        )

    def method(self) -> Method:
        """The method as the campaign was begun with it."""
        public = {} if self.public is None else {"public": read_public(self.public)}
        return methods.make(self._method, **self._options, **public)

    def _check_enough(self, mailed: Mailed, needed: int) -> None:
        """Stop before a letter is written that would shut out those who have not answered yet."""
        sent = self._letters()
        round = mailed.round[0].round
        if round == 0 or round < len(sent):
            return
        before = self._questions(sent[round - 1])
        there = [n for n in mailed.names if all(self._has(mailed, n, q) for q in before)]
        if len(there) < needed:
            raise CalibrationError(
                f"{len(there)} of {needed} sources have answered question {round} of "
                f"{1 + mailed.plan[-1].round}; the next one is for those alone who have, so wait "
                f"for the others, or go on without them (--min-sources {len(there)})",
                (),
            )

    def _has(self, mailed: Mailed, name: str, question: Question) -> bool:
        return mailed.answered(name, question) or self._record.kept(name, question) is not None

    @property
    def folder(self) -> Path:
        """The folder of its record."""
        return self._record.folder

    # --- letters ------------------------------------------------------------------------------

    def send(self, waiting: Waiting) -> Path:
        """Write the next letter beside the first question; one that was written before, again."""
        folder, round, sent = self._record.folder, waiting.round, self._letters()
        if round < len(sent):
            document = sent[round]
            if self._questions(document) != list(waiting.questions):
                raise InputError(
                    f"{folder} does not fit what is asked now; were public rows or files there "
                    "changed since it began?"
                )
        else:
            to = [self._ledger(name) for name in waiting.names] if round else None
            ledgers = None if to is None else tuple(sorted(to))
            asker = self.asker.removesuffix(UNSIGNED)
            document = Letter(asker, waiting.plan, waiting.questions, ledgers).document
            write_document(_letter_path(folder, round), document)
        first = self.question
        path = first if round == 0 else first.with_stem(f"{first.stem}-{round + 1}")
        write_document(path, document)
        return path

    def _ledger(self, name: str) -> str:
        """The ledger of a source that answered the first question."""
        kept = self._record.kept(name, self._questions(self._letters()[0])[0])
        assert kept is not None
        return kept.ledger

    def _letters(self) -> list[dict[str, Any]]:
        """The documents of all letters so far, as they were sent."""
        paths = (_letter_path(self._record.folder, round) for round in count())
        return [letters.read_file(path, QUESTION_FORMAT) for path in takewhile(Path.exists, paths)]

    def _questions(self, document: Mapping[str, Any]) -> list[Question]:
        return list(Letter.read(document).questions)

    # --- answers ------------------------------------------------------------------------------

    def _read(
        self, files: Sequence[Path], max_rows: int
    ) -> dict[tuple[str, str], Answer | Exception]:
        """The answers in files, by the name of who answered and the question."""
        sent = self._letters()
        rounds = {letters.digest(document): round for round, document in enumerate(sent)}
        given: dict[tuple[str, int], tuple[Path, Given]] = {}
        for file in files:
            round, answers = self._open(file, sent, rounds)
            for one in answers:
                before, known = given.setdefault((one.name, round), (file, one))
                if known != one:
                    raise InputError(
                        f"{before} and {file} have different answers of {one.name} to one question"
                    )
        _check_ledgers(given)
        return {
            (name, question.text()): self._answer(one, index, question, max_rows)
            for (name, round), (_, one) in given.items()
            for index, question in enumerate(self._questions(sent[round]))
        }

    def _open(
        self, file: Path, sent: Sequence[Mapping[str, Any]], rounds: Mapping[str, int]
    ) -> tuple[int, list[Given]]:
        """The round that a file answers, and what is answered in it."""
        answer = letters.read_file(file, ANSWER_FORMAT)
        round = rounds.get(str(answer.get("question")), -1)
        if round < 0:
            raise InputError(
                f"{file} does not answer a question of campaign {self.name}: it is about another "
                "campaign, or its question was changed on the way"
            )
        questions = self._questions(sent[round])
        try:
            given = letters.read_given(answer)
            for one in given:
                one.check_answers(questions)
        except InputError as error:
            raise InputError(f"{file} cannot be used: {error}") from None
        return round, given

    def _answer(
        self, given: Given, index: int, question: Question, max_rows: int
    ) -> Answer | Exception:
        """An answer is never trusted: whatever is odd about it, it is not used, with a reason."""
        if given.rows_per_person != self._known["rows_per_person"]:
            return Unusable(f"counts {given.rows_per_person} rows of a person")
        values = given.values[index]
        if beyond(values, max_rows, given.rows_per_person, question):
            return Unusable("beyond what its rows and the noise can give")
        return Answer(tuple(values), question, given.ledger)


def _check_ledgers(given: Mapping[tuple[str, int], tuple[Path, Given]]) -> None:
    """One ledger is one source: two answers about the same people would count them twice."""
    names: dict[str, tuple[str, Path]] = {}
    for (name, _), (file, one) in given.items():
        other, where = names.setdefault(one.ledger, (name, file))
        if other != name:
            raise InputError(
                f"{where} and {file} come from one ledger, as {other} and {name}: the same people "
                "would count twice; use one of them"
            )


def _overheard(method: Method, hear: Callable[[int, Sequence[Ask]], None]) -> Method:
    """The same method; `hear` is told of every round before its first question is asked."""

    def run(batch: Batch) -> Rounds:
        rounds, history, number = method.run(batch), None, 0
        while True:
            try:
                asks = rounds.send(history)  # type: ignore[arg-type]
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            hear(number, asks)
            history = yield asks
            number += 1

    twin = copy.copy(method)
    object.__setattr__(twin, "run", run)
    return twin


def _letter_path(folder: Path, round: int) -> Path:
    return folder / f"question-{round + 1}.json"


def find_record(answers: Sequence[Path], folder: Path) -> Path:
    """The record of the campaign that these answers are of, among those in a folder."""
    names: set[str] = set()
    problem = InputError("there are no answers")
    for file in answers:
        try:
            names.add(str(letters.read_file(file, ANSWER_FORMAT).get("campaign")))
        except InputError as error:  # whoever reads on says it, where it matters
            problem = error
    if not names:
        raise problem
    if len(names) > 1:
        raise InputError(
            f"the answers are of several campaigns, {', '.join(sorted(names))}: say with --question "
            "which file yours began with"
        )
    [name] = names
    found = []
    for path in sorted(folder.glob(f"*.campaign/{PLAN}")):
        plan = read_json(path, "record of a campaign")
        if isinstance(plan, dict) and plan.get("campaign") == name and "question" in plan:
            found.append(path.parent)
    if len(found) != 1:
        where = "is in several folders" if found else "is not here"
        raise InputError(
            f"the record of campaign {name} {where}: say with --question which file it began with"
        )
    return found[0]
