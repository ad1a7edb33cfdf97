"""A carrier that does to a mailbox whatever somebody could who owns the storage.

`Storage` wraps a mailbox, and gives each party a way of its own to it (`Storage.way`). A test tells it
whom to show what: every earlier state again, other letters to other readers, files with any name and
any content; what to hide, delay, repeat, cut, lengthen or change; when to fail and when to hang.
It has no keys, so it reads and signs nothing.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from privcal.transport.mailbox import Box

State = dict[tuple[str, str], bytes]
"""The content of files by their writer and name."""

Hides = Callable[[str, str, str], bool]
Changes = Callable[[str, str, str, bytes], bytes | None]
Lists = Callable[[str, str, list[str]], Iterator[str]]
Troubles = Callable[[str, str, str, str], None]


@dataclass
class Storage:
    """A mailbox under a test's control.

    hides
        Whether a party is not shown a file: of (party, writer, name).
    changes
        What a party reads in place of a file: of (party, writer, name, content).
    lists
        What a party is shown in place of a listing: of (party, writer, names).
    troubles
        Is called before each operation, as (party, operation, writer, name): it raises what the
        operation shall raise, waits as long as it shall hang, or does nothing.
    swallows
        Whether a file that a party puts is dropped, and the party told that it is there.
    planted
        Files that are shown to one party, or to all (""), and are nowhere.
    views
        Parties who see the mailbox as it was, in place of as it is.
    """

    box: Box
    hides: list[Hides] = field(default_factory=list)
    changes: list[Changes] = field(default_factory=list)
    lists: list[Lists] = field(default_factory=list)
    troubles: list[Troubles] = field(default_factory=list)
    swallows: list[Hides] = field(default_factory=list)
    planted: dict[str, State] = field(default_factory=dict)
    views: dict[str, State] = field(default_factory=dict)
    states: list[State] = field(default_factory=lambda: [{}])
    """The mailbox as it was at first and after each put."""
    asked: list[tuple[str, str, str, str]] = field(default_factory=list)
    """All operations, as `troubles` has them."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def way(self, party: str) -> Way:
        """The mailbox as this party has it."""
        return Way(self, party)

    @property
    def state(self) -> State:
        """All letters and rosters that were put, as they are now."""
        return self.states[-1]

    def put_back(self, state: State) -> None:
        """Make the mailbox what it was: files of later are gone, and those of then are there."""
        with self._lock:
            for writer, name in self.state.keys() - state.keys():
                self.box.delete(writer, name)
            for (writer, name), content in state.items():
                if self.state.get((writer, name)) != content:
                    self.box.delete(writer, name)
                    self.box.put(writer, name, content)
            self.states.append(dict(state))

    def plant(self, writer: str, name: str, content: bytes, party: str = "") -> None:
        """Show a file in a writer's folder to a party, or to all."""
        self.planted.setdefault(party, {})[writer, name] = content

    def hide(self, party: str = "", writer: str = "", reader: str = "") -> Hides:
        """Hide what this writer left for this reader (by their IDs) from a party, or any."""

        def hidden(whom: str, folder: str, name: str) -> bool:
            return (
                party in ("", whom) and writer in ("", folder) and name.startswith(reader or name)
            )

        self.hides.append(hidden)
        return hidden

    def fail(self, do: str, party: str = "", error: OSError | None = None) -> Troubles:
        """Fail with an operation of a party's, or anybody's."""

        def trouble(whom: str, what: str, writer: str, name: str) -> None:
            if what == do and party in ("", whom):
                raise error or OSError(5, "Input/output error")

        self.troubles.append(trouble)
        return trouble

    def freeze(self, do: str, party: str = "") -> threading.Event:
        """Hang in an operation of a party's, or anybody's, until the event that is returned."""
        thawed = threading.Event()

        def trouble(whom: str, what: str, writer: str, name: str) -> None:
            if what == do and party in ("", whom):
                thawed.wait(120)

        self.troubles.append(trouble)
        return thawed

    # --- what parties do ----------------------------------------------------------------------

    def meet(self, party: str, do: str, writer: str, name: str = "") -> None:
        self.asked.append((party, do, writer, name))
        for trouble in list(self.troubles):
            trouble(party, do, writer, name)

    def shown(self, party: str, writer: str) -> list[str]:
        """The names in a writer's folder, as a party is shown them."""
        if party in self.views:
            names = [name for folder, name in self.views[party] if folder == writer]
        else:
            names = list(self.box.list(writer))
        for whom in ("", party):
            planted = self.planted.get(whom, {})
            names += [n for folder, n in planted if folder == writer and n not in names]
        return [n for n in names if not any(hides(party, writer, n) for hides in self.hides)]

    def content(self, party: str, writer: str, name: str) -> bytes | None:
        if any(hides(party, writer, name) for hides in self.hides):
            return None
        for whom in (party, ""):
            if (writer, name) in self.planted.get(whom, {}):
                content: bytes | None = self.planted[whom][writer, name]
                break
        else:
            there = self.views.get(party)
            content = self.box.get(writer, name) if there is None else there.get((writer, name))
        for changes in list(self.changes):
            content = None if content is None else changes(party, writer, name, content)
        return content

    def keep(self, party: str, writer: str, name: str, content: bytes) -> None:
        if any(swallows(party, writer, name) for swallows in self.swallows):
            return
        with self._lock:
            self.box.put(writer, name, content)
            if self.state.get((writer, name)) != content:
                self.states.append({**self.state, (writer, name): content})

    def drop(self, writer: str, name: str) -> None:
        with self._lock:
            self.box.delete(writer, name)
            left = {file: c for file, c in self.state.items() if file != (writer, name)}
            self.states.append(left)


@dataclass
class Way:
    """One party's way to the mailbox (`mailbox.Box`)."""

    storage: Storage
    party: str

    def list(self, writer: str) -> Iterator[str]:
        self.storage.meet(self.party, "list", writer)
        names = iter(self.storage.shown(self.party, writer))
        for lists in list_of(self.storage.lists):
            names = lists(self.party, writer, [*names])
        yield from names

    def get(self, writer: str, name: str) -> bytes | None:
        self.storage.meet(self.party, "get", writer, name)
        return self.storage.content(self.party, writer, name)

    def put(self, writer: str, name: str, content: bytes) -> None:
        self.storage.meet(self.party, "put", writer, name)
        self.storage.keep(self.party, writer, name, content)

    def delete(self, writer: str, name: str) -> None:
        self.storage.meet(self.party, "delete", writer, name)
        self.storage.drop(writer, name)

    def close(self) -> None:
        """End nothing."""


list_of = list
"""The builtin, which `Way.list` hides."""


class Dice:
    """Tricks by chance, the same ones from the same seed as far as threads allow.

    While `playing`, each operation may fail, be hidden, late, repeated, cut, replaced by an older
    state or by another file's content. Afterwards everything that was put is there again, so that
    what was only lost for a time is found.
    """

    def __init__(self, storage: Storage, seed: int, chance: float = 0.2) -> None:
        self.storage, self.playing, self.chance = storage, True, chance
        self.everything: State = {}
        """All that was ever put, whether or not the storage said so."""
        self._dice, self._lock = random.Random(seed), threading.Lock()
        storage.troubles.append(self._trouble)
        storage.hides.append(lambda *_: self._falls(0.5))
        storage.changes.append(self._change)
        storage.lists.append(self._list)
        storage.swallows.append(self._swallow)

    def stop(self) -> None:
        """Behave from now on, and put everything there that ever was."""
        self.playing = False
        self.storage.views.clear()
        self.storage.put_back({**self.storage.state, **self._ever})

    @property
    def _ever(self) -> State:
        return {file: content for state in self.storage.states for file, content in state.items()}

    def _falls(self, weight: float = 1.0) -> bool:
        with self._lock:
            return self.playing and self._dice.random() < self.chance * weight

    def _trouble(self, party: str, do: str, writer: str, name: str) -> None:
        if self._falls(0.3):
            raise TimeoutError("it does not answer")
        if self._falls(0.1):
            states = self.storage.states
            with self._lock:
                state = states[self._dice.randrange(len(states))]
                there = self._dice.random()
            if there < 0.4:
                self.storage.views[party] = state
            elif there < 0.8:
                self.storage.views.pop(party, None)
            else:
                self.storage.put_back(state)

    def _change(self, party: str, writer: str, name: str, content: bytes) -> bytes | None:
        if not self._falls(0.5):
            return content
        with self._lock:
            trick = self._dice.randrange(5)
            other = self._dice.choice(list_of(self.storage.state.values()) or [b""])
            cut = self._dice.randrange(len(content) + 1)
        return [None, content[:cut], content + b"\n", other, b"\0" * len(content)][trick]

    def _list(self, party: str, writer: str, names: list[str]) -> Iterator[str]:
        if not self._falls():
            return iter(names)
        with self._lock:
            self._dice.shuffle(names)
            fewer = names[: self._dice.randrange(len(names) + 1)]
        odd = ["../x", "*", "a\nb", f"{'0' * 32}-{'0' * 64}", *(n.upper() for n in fewer[:2])]
        return iter([*fewer, *fewer, *odd])

    def _swallow(self, party: str, writer: str, name: str) -> bool:
        return self._falls(0.3)
