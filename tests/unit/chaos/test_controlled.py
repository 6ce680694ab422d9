"""A site stands for the supervisor of its workers: it starts what the controller wants, once."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import msgspec

from sublet.runtime.scaling.actuators import (
    FailedNote,
    JoinedNote,
    ReadyNote,
    StartNote,
    SupervisorNote,
    WorkerNote,
    note_line,
)
from tests.chaos.controlled import Controlled

SLOTS = range(5, 7)


class Site:
    def __init__(self, folder: Path) -> None:
        self.started: list[tuple[int, str]] = []
        self.file = folder / "wanted"
        self.controlled = Controlled(SLOTS, self.file, self._start)
        self._changed = asyncio.Event()
        self._workers: dict[int, socket.socket] = {}

    def _start(self, slot: int, launch: str) -> None:
        self.started.append((slot, launch))
        self.connect(slot)

    def connect(self, slot: int) -> None:
        self._workers[slot] = self.controlled.connect(slot)

    def close(self) -> None:
        self.controlled.close()
        for each in self._workers.values():
            each.close()

    async def says(self, slot: int, note: WorkerNote) -> None:
        """Let a worker say something, and the site hear it."""
        self._workers[slot].sendall(note_line(note))
        # It is in the buffer already: the loop looks twice at what can be read.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def hears(self, slot: int) -> SupervisorNote:
        line = self._workers[slot].recv(65_536)
        return msgspec.json.decode(line, type=SupervisorNote)


async def test_what_the_controller_wants_is_started_once_and_ends_when_it_is_drained(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path)
    site.connect(0)
    await site.says(0, JoinedNote())
    await site.says(0, StartNote(token=1, launches=["1-1"]))
    await site.says(0, StartNote(token=1, launches=["1-1"]))
    assert site.started == [(5, "1-1")]
    assert site.controlled.joined == 0

    await site.says(5, JoinedNote())
    assert site.controlled.joined == 1
    await site.says(5, ReadyNote(address="", pid=1, functions=[], drained=True))
    assert site.controlled.drained == {5}
    site.controlled.left(5)
    assert not site.controlled.launched
    site.close()


async def test_who_was_replaced_is_not_obeyed_and_what_is_too_much_is_refused(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path)
    site.connect(0)
    await site.says(0, StartNote(token=2, launches=["2-1", "2-2", "2-3"]))
    assert site.started == [(5, "2-1"), (6, "2-2")]
    told = site.hears(0)
    assert isinstance(told, FailedNote)
    assert told.launch == "2-3"
    await site.says(0, StartNote(token=1, launches=["1-9"]))
    assert len(site.started) == 2
    site.close()


async def test_how_many_are_wanted_is_in_a_file(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert site.file.read_text() == "0"
    site.controlled.want(2)
    assert site.file.read_text() == "2"
