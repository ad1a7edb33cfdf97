"""The two files of a campaign by mail: a letter with the questions of a round, and the answers to it.

Neither is trusted. A reader checks every part and refuses what it does not know, and nothing in
them is ever unpacked, imported or run. An answer names the letter by its digest, so that it cannot
be taken for the answer to another one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from privcal.secure import canonical
from privcal.trusted.checks import whole
from privcal.trusted.errors import InputError
from privcal.trusted.policy import MAX_ROWS_PER_PERSON
from privcal.trusted.question import UNSIGNED, Question, check_asker, check_name, read_question

QUESTION_FORMAT = "privcal-question"
ANSWER_FORMAT = "privcal-answer"
LETTER_VERSION = 1
"""The version of both files."""

MAX_FILE = 4 << 20
"""Bytes: nobody reads a longer file."""
MAX_QUESTIONS = 128
"""The longest search asks 101."""
MAX_ANSWERS = 10_000
"""Sources that one answer file may speak for."""

SIGNED = (
    "this privcal has signed letters in mailboxes alone (privcal federation calibrate); begin the "
    "campaign anew"
)
"""Said of signed letters and their records, which earlier versions had as files."""
_LEDGER = re.compile("[0-9a-f]{32}")
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Letter:
    """The questions of one round of a campaign, as every source gets them.

    asker
        Who says that they ask.
    plan
        All questions of the campaign. Those of later rounds are here for their kind and their cost:
        where they look depends on the answers.
    questions
        Those that are to be answered now.
    ledgers
        The ids of the ledgers of which an answer is wanted; None where whoever gets it may answer.
    """

    asker: str
    plan: tuple[Question, ...]
    questions: tuple[Question, ...]
    ledgers: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_asker(self.asker)
        check_asker(self.known_as)
        check_plan(self.plan, self.questions)
        if self.ledgers is not None:
            if not 1 <= len(self.ledgers) <= MAX_ANSWERS:
                raise InputError(f"it must be meant for 1 to {MAX_ANSWERS:,} ledgers")
            for ledger in self.ledgers:
                check_ledger(ledger)

    @property
    def known_as(self) -> str:
        """The asker as a ledger records it."""
        return self.asker + UNSIGNED

    @property
    def round(self) -> int:
        return self.questions[0].round

    @property
    def campaign(self) -> str:
        return self.questions[0].campaign

    @cached_property
    def document(self) -> dict[str, Any]:
        return {
            "format": QUESTION_FORMAT,
            "version": LETTER_VERSION,
            "asker": self.asker,
            "plan": [question.facts() for question in self.plan],
            "questions": [question.facts() for question in self.questions],
            "ledgers": None if self.ledgers is None else list(self.ledgers),
        }

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Letter:
        """A letter from its document, every part checked; InputError says what is wrong."""
        if "messages" in document:
            raise InputError(f"it is signed: {SIGNED}")
        parts = {"format", "version", "asker", "plan", "questions", "ledgers"}
        if set(document) != parts:
            raise InputError("it has other parts than a question")
        plan, questions = (_questions(document[name]) for name in ("plan", "questions"))
        ledgers = document["ledgers"]
        if ledgers is not None and not isinstance(ledgers, list):
            raise InputError("its ledgers must be a list")
        return cls(document["asker"], plan, questions, None if ledgers is None else tuple(ledgers))


def check_plan(plan: Sequence[Question], questions: Sequence[Question]) -> None:
    """InputError unless these are the questions of one round of that plan, at the plan's cost."""
    if not 1 <= len(plan) <= MAX_QUESTIONS or not questions:
        raise InputError(f"a campaign must have 1 to {MAX_QUESTIONS} questions")
    planned = {(q.round, q.index): q for q in plan}
    if len(planned) < len(plan):
        raise InputError("a question of the campaign is there twice")
    if len({(q.campaign, q.model) for q in (*plan, *questions)}) > 1:
        raise InputError("all its questions must be of one campaign and about one model")
    places = [(q.round, q.index) for q in questions]
    if sorted(places) != sorted(place for place in planned if place[0] == places[0][0]):
        raise InputError("its questions must be all those of one round of the campaign")
    for question in questions:
        other = planned[question.round, question.index]
        if (question.nano_epsilon, question.query.kind, question.query.length) != (
            other.nano_epsilon,
            other.query.kind,
            other.query.length,
        ):
            raise InputError("its questions are not those that the campaign's plan tells of")


@dataclass(frozen=True)
class Given:
    """What one source answered to a letter: whole numbers on the grid, question by question.

    It says nothing of rows but how many of one person count; `ledger` is a random id, by which two
    answers about the same people are known.
    """

    source: str
    ledger: str
    rows_per_person: int
    values: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        check_name("a source's name", self.source)
        check_ledger(self.ledger)
        whole("rows_per_person", self.rows_per_person, 1, MAX_ROWS_PER_PERSON)
        for values in self.values:
            if not all(type(v) is int and abs(v) < 2**62 for v in values):
                raise InputError("its numbers are off the grid")

    @property
    def name(self) -> str:
        """The name in reports: many hospitals call a file data.csv, and the ledger tells them apart."""
        return f"{self.source} ({self.ledger[:8]})"

    @property
    def document(self) -> dict[str, Any]:
        return {**vars(self), "values": [list(values) for values in self.values]}

    @classmethod
    def read(cls, document: Any) -> Given:
        if not isinstance(document, dict) or set(document) != set(cls.__dataclass_fields__):
            raise InputError("an answer has other parts")
        values = document["values"]
        if not isinstance(values, list) or not all(isinstance(v, list) for v in values):
            raise InputError("its values must be lists of numbers")
        return cls(**{**document, "values": tuple(map(tuple, values))})

    def check_answers(self, questions: Sequence[Question]) -> None:
        """InputError unless there are as many numbers as were asked for."""
        if [len(v) for v in self.values] != [q.query.length for q in questions]:
            raise InputError(f"the answer of {self.name} has other numbers than were asked for")


def answer_document(letter: Mapping[str, Any], campaign: str, **parts: Any) -> dict[str, Any]:
    """The document of an answer file; `letter` is the document of the letter that it answers."""
    return {
        "format": ANSWER_FORMAT,
        "version": LETTER_VERSION,
        "campaign": campaign,
        "question": digest(letter),
        **parts,
    }


def digest(document: Mapping[str, Any]) -> str:
    """The SHA-256 of a document in its one spelling, whatever spaces and line ends the file has."""
    return hashlib.sha256(canonical.write(document).encode("ascii")).hexdigest()


def read_file(path: str | Path, format: str) -> dict[str, Any]:
    """The document in a file of this format; InputError for whatever else it is."""
    what = {QUESTION_FORMAT: "question", ANSWER_FORMAT: "answer"}[format]
    path = Path(path)
    try:
        if not path.is_file() and path.exists():
            raise InputError(f"{path} is no plain file")  # a pipe would be waited for
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    try:
        return parse_file(content, format)
    except InputError as error:
        raise InputError(f"{path} cannot be used as {what}: {error}") from None


def parse_file(content: bytes, format: str) -> dict[str, Any]:
    """The same for the content of a file."""
    if len(content) > MAX_FILE:
        raise InputError(f"it is longer than {MAX_FILE >> 20} MiB")
    try:
        document = canonical.read_any_spelling(content.decode("utf-8"), MAX_FILE)
        canonical.write(document)  # no infinity, which 1e999 is read as
    except (ValueError, RecursionError):
        raise InputError("it is no JSON object, or is cut short") from None
    if document.get("format") != format:
        raise InputError(f"it is no {format} file of privcal")
    version = document.get("version")
    if type(version) is not int or version != LETTER_VERSION:
        raise InputError(f"it has version {version}; this privcal reads version {LETTER_VERSION}")
    return document


def check_answer(document: Mapping[str, Any], *parts: str) -> None:
    """InputError unless an answer file has these parts, besides those that all have."""
    if set(document) != {"format", "version", "campaign", "question", *parts}:
        raise InputError("it has other parts than an answer")
    if not isinstance(document["campaign"], str):
        raise InputError("its campaign must be a name")
    if not isinstance(document["question"], str) or not _DIGEST.fullmatch(document["question"]):
        raise InputError("it does not say which question it answers")


def read_given(document: Mapping[str, Any]) -> list[Given]:
    """The answers in the document of an answer file that is not sealed."""
    check_answer(document, "answers")
    answers = document["answers"]
    if not isinstance(answers, list) or not 1 <= len(answers) <= MAX_ANSWERS:
        raise InputError(f"it must have 1 to {MAX_ANSWERS:,} answers")
    return [Given.read(answer) for answer in answers]


def check_ledger(ledger: Any) -> str:
    if not isinstance(ledger, str) or not _LEDGER.fullmatch(ledger):
        raise InputError("a ledger's id must be 32 hexadecimal digits")
    return ledger


def _questions(facts: Any) -> tuple[Question, ...]:
    if not isinstance(facts, list) or len(facts) > MAX_QUESTIONS:
        raise InputError(f"a campaign must have 1 to {MAX_QUESTIONS} questions")
    return tuple(map(read_question, facts))
