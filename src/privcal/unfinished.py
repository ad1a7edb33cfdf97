"""A run on this machine that was interrupted: what it asks is on disk until its map is written.

The same command then finds its own campaign again, and answers already paid for come back free.
Under a new campaign they would all be charged a second time.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

from privcal.errors import InputError
from privcal.files import replacing


class Unfinished:
    """The record of the run that writes `out`, in `out.unfinished`."""

    def __init__(self, out: Path, plan: dict[str, Any], campaign: str | None) -> None:
        self.path = out.with_name(f"{out.name}.unfinished")
        before = self._read()
        self.resumed = before is not None and campaign in (None, before.get("campaign"))
        if self.resumed and before is not None:
            for part, value in plan.items():
                if before.get("plan", {}).get(part) != value:
                    raise InputError(
                        f"{self.path} is of a run with another {part}, which was interrupted after "
                        "it began to pay: finish it with its own command, or remove that file"
                    )
            self.campaign = str(before["campaign"])
        else:
            self.campaign = campaign or secrets.token_hex(8)
        self._plan = plan

    def _read(self) -> dict[str, Any] | None:
        try:
            found = json.loads(self.path.read_text("utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            found = None
        if not isinstance(found, dict) or not isinstance(found.get("campaign"), str):
            raise InputError(f"{self.path} is damaged; remove it to begin anew")
        return found

    def begin(self) -> None:
        """On disk before anybody is asked."""
        with replacing(self.path) as part:
            document = {"campaign": self.campaign, "plan": self._plan}
            part.write_text(json.dumps(document, indent=2), encoding="utf-8")

    def end(self) -> None:
        self.path.unlink(missing_ok=True)
