"""Named steps of a batch at which a test stops whoever gets there, in whichever process.

A gate is a file: the test arms a step (`Gates.arm`), the first process that reaches it takes the
file away and waits, and the test does meanwhile what it wants to: kill a driver, an executor, a
worker of Sublet. Then it lets the process go on (`Stopped.release`), or it was killed, too.

`BreakableSource` is the data source with gates in it. Production code knows nothing of them: they
are put around methods of `Pipeline` and `Attempt` in each process that makes a writer. Its own
option `gates` is the folder of the files.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sublet.runtime.client import pipelines as client_pipelines
from sublet.runtime.client.pipeline_protocol import Committed, Round
from sublet.runtime.protocol.pipeline_messages import Decide, Seal
from tests.spark.cluster import kill, wait_for

BEGUN = "begun"
"""A query's driver has taken over from earlier ones."""
ADDING = "adding"
"""A task has put some of its rows on their way."""
ENDED = "ended"
"""A task has staged everything, and Spark does not know of it."""
STAGED = "staged"
"""All tasks are done, nothing is decided."""
DECIDED = "decided"
"""It is decided which attempts count, nothing is sealed."""
SEALING = "sealing"
"""The first of several partitions has sealed."""
SEALED = "sealed"
"""All have, and Spark does not know of it."""
STEPS = (BEGUN, ADDING, ENDED, STAGED, DECIDED, SEALING, SEALED)
CUT = "cut-"
"""Before the name of a step: whoever gets there loses all its connections, and goes on."""

WAIT_S = 300.0
LOOK_EVERY_S = 0.01


class Stopped(NamedTuple):
    """A process that waits at a step."""

    step: str
    pid: int
    folder: Path

    def release(self) -> None:
        (self.folder / f"go-{self.step}-{self.pid}").touch()

    def kill(self) -> None:
        kill(self.pid)


class Gates:
    """The folder that a test and the processes of Spark share."""

    def __init__(self, folder: Path, ports: Sequence[int] = ()) -> None:
        """`ports`: those of the workers of Sublet, for whoever is to be cut off from them."""
        self.folder = folder
        self._ports = ports
        folder.mkdir(parents=True, exist_ok=True)

    # In the test

    def arm(self, step: str) -> None:
        """Let the next one that reaches a step stop there."""
        (self.folder / f"armed-{step}").touch()

    def disarm(self, step: str) -> bool:
        """Tell whether nobody had reached it."""
        return self._take(step)

    def stopped(self, step: str, is_running: Callable[[], bool] = lambda: True) -> Stopped:
        """Wait until somebody stands at a step, as long as somebody can come there."""

        def look() -> Stopped | None:
            assert is_running(), f"a driver has ended before step {step}"
            for each in self.folder.glob(f"at-{step}-*"):
                pid = int(each.name.rpartition("-")[2])
                each.unlink()
                return Stopped(step, pid, self.folder)
            return None

        return wait_for(look, f"somebody at step {step}", WAIT_S)

    def cut_count(self, step: str) -> int:
        """Return how many streams whoever reached an armed cut has lost; 0: none, or nobody."""
        found = [each.name for each in self.folder.glob(f"did-{CUT}{step}-*")]
        return max((int(each.rpartition("-")[2]) for each in found), default=0)

    # In processes of Spark

    def _take(self, step: str) -> bool:
        try:
            (self.folder / f"armed-{step}").unlink()
        except FileNotFoundError:
            return False
        return True

    def note(self, committed: Committed) -> None:
        """Keep what came of a commit, for statistics."""
        with (self.folder / "commits.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(committed._asdict()) + b"\n")

    async def reach(self, step: str) -> None:
        if self._take(CUT + step):
            count = cut_connections(self._ports)
            (self.folder / f"did-{CUT}{step}-{count}").touch()
        if not self._take(step):
            return
        (self.folder / f"at-{step}-{os.getpid()}").touch()
        until_s = time.monotonic() + WAIT_S
        while not (self.folder / f"go-{step}-{os.getpid()}").exists():
            if time.monotonic() > until_s:
                os._exit(1)
            await asyncio.sleep(LOOK_EVERY_S)
        (self.folder / f"go-{step}-{os.getpid()}").unlink()


def cut_connections(ports: Sequence[int]) -> int:
    """Break every stream of this process to those ports, as a network does; return how many."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            file = os.dup(int(name))
            try:
                line = socket.socket(fileno=file)
            except OSError:
                os.close(file)
                continue
            with line:
                # The names of Unix sockets are texts.
                if line.family != socket.AF_UNIX and line.getpeername()[1] in ports:
                    line.shutdown(socket.SHUT_RDWR)
                    count += 1
    return count


def install(gates: Gates) -> None:
    """Put gates around the steps in this process; once is enough."""
    pipeline, attempt = client_pipelines.Pipeline, client_pipelines.Attempt
    if hasattr(pipeline, "gates"):
        pipeline.gates = gates
        return
    pipeline.gates = gates  # type: ignore[attr-defined]
    begin, commit, ask_each = pipeline.begin, pipeline.commit, pipeline._ask_each
    add, end = attempt.add, attempt.end

    def reach(step: str) -> Any:
        return pipeline.gates.reach(step)  # type: ignore[attr-defined]

    @functools.wraps(begin)
    async def gated_begin(self: client_pipelines.Pipeline, *words: Any, **named: Any) -> int:
        generation = await begin(self, *words, **named)
        await reach(BEGUN)
        return generation

    @functools.wraps(commit)
    async def gated_commit(self: client_pipelines.Pipeline, *words: Any, **named: Any) -> Any:
        await reach(STAGED)
        committed = await commit(self, *words, **named)
        pipeline.gates.note(committed)  # type: ignore[attr-defined]
        await reach(SEALED)
        return committed

    @functools.wraps(ask_each)
    async def gated_ask_each(self: client_pipelines.Pipeline, wanted: Round) -> Mapping[int, Any]:
        """The first of several seals is alone, so that there is a moment between them."""
        if len(wanted) > 1 and all(isinstance(each, Seal) for each in wanted.values()):
            first = next(iter(wanted))
            answers = await ask_each(self, {first: wanted[first]})
            await reach(SEALING)
            rest = {index: each for index, each in wanted.items() if index != first}
            return {**answers, **await ask_each(self, rest)}
        answers = await ask_each(self, wanted)
        if any(isinstance(each, Decide) for each in wanted.values()):
            await reach(DECIDED)
        return answers

    @functools.wraps(add)
    async def gated_add(
        self: client_pipelines.Attempt, index: int, keys: Sequence[str], payloads: bytes
    ) -> None:
        await add(self, index, keys, payloads)
        await reach(ADDING)

    @functools.wraps(end)
    async def gated_end(self: client_pipelines.Attempt) -> Any:
        staged = await end(self)
        await reach(ENDED)
        return staged

    for owner, name, method in (
        (pipeline, "begin", gated_begin),
        (pipeline, "commit", gated_commit),
        (pipeline, "_ask_each", gated_ask_each),
        (attempt, "add", gated_add),
        (attempt, "end", gated_end),
    ):
        setattr(owner, name, method)
