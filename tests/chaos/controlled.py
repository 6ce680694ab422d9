"""Workers that the controller wants: the site stands for the supervisor of all its workers.

Each has a socket to the site, as to `sublet run`: the worker that leads asks on it for more, each
says when it has joined, and one that was drained says so before it ends. How many are wanted is in
a file, which the policy `told` of the app reads.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from sublet.runtime.cli.supervisor import Launches
from sublet.runtime.scaling.actuators import (
    FailedNote,
    JoinedNote,
    ReadyNote,
    StartNote,
    WorkerNote,
    note_line,
)

NOTE_BYTES_MAX = 64 * 1024

_decode = msgspec.json.Decoder(WorkerNote).decode


class Controlled:
    """The slots for workers that the controller wants. `start(slot, launch)` fills one of them."""

    def __init__(self, slots: Sequence[int], wanted: Path, start: Callable[[int, str], None]):
        self.drained: set[int] = set()
        """Slots whose worker is about to end because it was drained."""
        self.launched: dict[int, str] = {}
        """Slots that have a worker, with its launch."""
        self._slots = slots
        self._wanted = wanted
        self._start = start
        self._launches = Launches(len(slots))
        self._joined: set[int] = set()
        self._lines: dict[int, _Line] = {}
        self.want(0)

    def want(self, workers: int) -> None:
        """Let the policy want so many."""
        # Whole, whoever reads it meanwhile.
        new = self._wanted.with_suffix(".new")
        new.write_text(str(workers))
        new.rename(self._wanted)

    @property
    def joined(self) -> int:
        """How many of them are members."""
        return len(self._joined & self.launched.keys())

    def connect(self, slot: int) -> socket.socket:
        """Return the end of a line for the worker that is about to start in a slot."""
        self.disconnect(slot)
        self._joined.discard(slot)
        self.drained.discard(slot)
        here, there = socket.socketpair()
        self._lines[slot] = _Line(here, lambda note: self._heard(slot, note))
        return there

    def disconnect(self, slot: int) -> None:
        """The worker of a slot has ended."""
        if (line := self._lines.pop(slot, None)) is not None:
            line.close()

    def left(self, slot: int) -> None:
        """A worker that was drained has ended, for good."""
        self.disconnect(slot)
        self._joined.discard(slot)
        self.drained.discard(slot)
        self.launched.pop(slot, None)

    def close(self) -> None:
        for slot in list(self._lines):
            self.disconnect(slot)

    def _heard(self, slot: int, note: WorkerNote) -> None:
        match note:
            case JoinedNote():
                self._joined.add(slot)
            case ReadyNote() if note.drained:
                self.drained.add(slot)
            case StartNote():
                self._asked(note)

    def _asked(self, note: StartNote) -> None:
        taken = [self._slots.index(slot) for slot in self.launched]
        starts, refused = self._launches.asked(note, taken, ())
        for launch, index in starts.items():
            slot = self._slots[index]
            self.launched[slot] = launch
            self._start(slot, launch)
        for launch, reason in refused.items():
            for line in self._lines.values():
                line.send(FailedNote(launch=launch, reason=reason))


class _Line:
    """Hears what a worker says, for as long as the loop runs."""

    def __init__(self, here: socket.socket, heard: Callable[[WorkerNote], None]) -> None:
        here.setblocking(False)
        self._socket = here
        self._heard = heard
        self._rest = b""
        asyncio.get_running_loop().add_reader(here, self._read)

    def _read(self) -> None:
        try:
            data = self._socket.recv(NOTE_BYTES_MAX)
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._heard(_decode(line))

    def send(self, note: FailedNote) -> None:
        # Who is gone, or frozen with a full line, hears nothing.
        with suppress(OSError):
            self._socket.send(note_line(note))

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
