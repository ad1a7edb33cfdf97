"""The calibrator's own record of a campaign, on disk: what it set out to ask, and what came back.

A campaign that was interrupted goes on where it stopped: it replays its own record first, so that
it asks the same questions, and sites give the answers already paid for again, free of charge.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privcal.calibrate import Panel, Question
from privcal.errors import InputError
from privcal.federation.messages import write_question
from privcal.files import replacing
from privcal.privacy.ledger import Key
from privcal.source import Answer

PLAN, ANSWERS = "campaign.json", "answers.jsonl"


class Campaign:
    """A folder: `campaign.json` says what is asked, `answers.jsonl` grows with every answer."""

    def __init__(self, folder: Path, plan: dict[str, Any]) -> None:
        self.folder, self.plan = folder, plan
        self._kept: dict[tuple[str, str], list[float]] = {}
        path = folder / ANSWERS
        if path.exists():
            for line in path.read_text("utf-8").splitlines():
                try:
                    kept = json.loads(line)
                    self._kept[kept["site"], kept["question"]] = [float(v) for v in kept["values"]]
                except (ValueError, KeyError, TypeError):
                    continue  # cut short by a crash: the site gives that answer again

    @classmethod
    def start(cls, folder: Path, plan: dict[str, Any]) -> Campaign:
        if (folder / PLAN).exists():
            raise InputError(
                f"{folder} holds a campaign already; resume it, or choose another folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / PLAN) as part:
            part.write_text(json.dumps(plan, indent=2, allow_nan=False), encoding="utf-8")
        return cls(folder, plan)

    @classmethod
    def resume(cls, folder: Path) -> Campaign:
        try:
            plan = json.loads((folder / PLAN).read_text("utf-8"))
        except OSError:
            raise InputError(f"{folder} holds no campaign to resume") from None
        except ValueError:
            raise InputError(f"{folder / PLAN} is damaged") from None
        return cls(folder, plan)

    def kept(self, site: str, question: Question) -> list[float] | None:
        return self._kept.get((site, write_question(question)))

    def keep(self, site: str, question: Question, values: Sequence[float]) -> None:
        """On disk before it is used."""
        text = write_question(question)
        self._kept[site, text] = list(values)
        with (self.folder / ANSWERS).open("a", encoding="utf-8") as file:
            line = {"site": site, "question": text, "values": list(values)}
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


class Recorded:
    """A panel that writes every answer to a campaign's record, and asks only for what is not there."""

    def __init__(self, panel: Panel, campaign: Campaign) -> None:
        self._panel, self._campaign = panel, campaign
        self.names, self.asker = panel.names, panel.asker
        self.rows_per_person = panel.rows_per_person

    def ask(
        self, names: Sequence[str], question: Question
    ) -> Iterator[tuple[str, Answer | Exception]]:
        key = Key.parse(self.asker, question.request_id)
        missing = []
        for name in names:
            values = self._campaign.kept(name, question)
            if values is None:
                missing.append(name)
            else:
                yield name, Answer(np.array(values), question.nano_epsilon, key)
        if missing:
            for name, answer in self._panel.ask(missing, question):
                if isinstance(answer, Answer):
                    self._campaign.keep(name, question, [float(v) for v in answer.values])
                yield name, answer
