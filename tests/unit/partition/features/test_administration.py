"""Changes by hand go through the partition's own machine, between its messages."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sublet.functions.app import App, Function
from sublet.functions.context import Context
from sublet.functions.retry import NO_RETRY
from sublet.functions.state import StateClock
from sublet.runtime.config.limits import Limits
from sublet.runtime.execution.state_cache import StateCache
from sublet.runtime.partition.model.effects import LoadStates, Ready, Run, Settled, Store
from sublet.runtime.partition.model.environment import (
    Acquisition,
    StateAccess,
    WorkerEnvironment,
)
from sublet.runtime.partition.model.work import Failure, RunResult, Work
from sublet.runtime.partition.partition import Partition
from sublet.runtime.partition.records.dead_letters import DeadLetter
from sublet.runtime.protocol.frames import Batch, ErrorInfo, Extra, Kind
from sublet.runtime.protocol.messages import Message
from sublet.statestore.contract import DEAD, PARKED, Commit, Outcome, Record, Recovered, StateRow

CLIENT = "~client"
app = App("desk", partitions=1)


@app.function(state=int, retry=NO_RETRY)
def add(ctx: Context, amount: int) -> int:
    raise NotImplementedError  # The test itself says what comes of a run.


class SteadyPace:
    def batch_size(self, function: Function, limit: int) -> int:
        return limit

    def off_loop(self, function: Function) -> bool:
        return False

    def learn(self, function: Function, count: int, elapsed_ms: float) -> None:
        return


class Desk:
    """One partition, with everything that it asked for."""

    def __init__(self) -> None:
        recovered = Recovered(
            epoch=1,
            index=0,
            clock_ms=0,
            inbox={},
            sent={},
            outbox=[],
            egress={},
            parked=[],
            journal=[],
            dead_count=0,
            empty=True,
        )
        assert add.state_kind is not None
        self.cells = StateCache(
            add.name, add.state_kind, StateClock(), complete=True, bytes_max=lambda: 1 << 20
        )
        self.machine = Partition(
            add,
            Acquisition(partition="desk/add/0", recovered=recovered, now_ms=0, wall_ms=0),
            WorkerEnvironment(limits=Limits(), pace=SteadyPace()),
            StateAccess(cells=self.cells),
        )
        self.machine.start(0)
        self.sent = 0
        self.take()

    def take(self) -> list[Any]:
        """Return what the partition asks for, which has its turn whenever it wants it."""
        effects: list[Any] = []
        while self.machine.effects:
            asked, self.machine.effects = self.machine.effects, []
            effects += asked
            if any(isinstance(each, Ready) for each in asked):
                self.machine.take(0)
        return effects

    def send(self, key: str, amount: int, extra: Extra | None = None) -> None:
        self.sent += 1
        self.machine.batch_arrived(
            Batch(
                target="desk/add/0",
                source=CLIENT,
                first=self.sent,
                kind=Kind.SEND,
                keys=[key],
                payloads=msgspec.Raw(msgspec.msgpack.encode([amount])),
                count=1,
                extras={0: extra} if extra else None,
            ),
            0,
        )

    def only(self, kind: type[Any]) -> Any:
        (found,) = [each for each in self.take() if isinstance(each, kind)]
        return found

    def finish(self, work: Work, failure: str = "") -> None:
        result = RunResult()
        result.values = [None] * work.count
        if failure:
            error = ErrorInfo("handler_failed", failure)
            result.failed = {index: Failure(error, True) for index in range(work.count)}
        self.machine.finished(work, result, 0)

    def committed(self) -> None:
        self.machine.committed(Outcome.DONE, 0)

    def records(self, commit: Commit, kind: str) -> dict[str, bytes | None]:
        return {each.id: each.value for each in commit.records if each.kind == kind}


@pytest.fixture
def desk() -> Desk:
    return Desk()


def row(key: str, value: int | None) -> StateRow:
    return StateRow(key, b"", None if value is None else msgspec.msgpack.encode(value))


def test_a_replaced_state_is_told_when_it_is_committed_and_seen_by_the_next_message(
    desk: Desk,
) -> None:
    assert desk.machine.state_editor.hold("k")
    desk.machine.state_editor.replace("k", [row("k", 7)], "ticket", 0)

    commit = desk.only(Store).commit
    assert commit.state == [row("k", 7)]
    assert desk.take() == []  # Nothing is told before the commit is done.
    desk.committed()
    assert desk.only(Settled).ticket == "ticket"
    cell: Any = desk.cells.cells["k"]
    assert cell.get() == 7
    assert desk.machine.state_editor.hold("k")


def test_a_deleted_state_is_empty_for_the_next_message(desk: Desk) -> None:
    assert desk.machine.state_editor.hold("k")
    desk.machine.state_editor.replace("k", [row("k", 7)], 1, 0)
    desk.committed()
    assert desk.machine.state_editor.hold("k")
    desk.machine.state_editor.replace("k", [row("k", None)], 2, 0)

    assert desk.take()[-1].commit.state == [row("k", None)]
    cell: Any = desk.cells.cells["k"]
    assert cell.is_empty


def test_a_key_whose_message_runs_cannot_be_held(desk: Desk) -> None:
    desk.send("k", 1)
    work = desk.only(Run).work

    assert not desk.machine.state_editor.hold("k")
    assert desk.machine.state_editor.hold("other")
    desk.finish(work)
    assert desk.machine.state_editor.hold("k")


def test_a_key_can_be_held_once(desk: Desk) -> None:
    assert desk.machine.state_editor.hold("k")
    assert not desk.machine.state_editor.hold("k")


def test_messages_of_a_held_key_wait_and_then_run(desk: Desk) -> None:
    assert desk.machine.state_editor.hold("k")
    desk.send("k", 1)
    desk.send("other", 1)

    work = desk.only(Run).work
    assert work.keys == ["other"]
    desk.finish(work)
    desk.take()
    desk.machine.state_editor.release("k", 0)
    assert desk.only(Run).work.keys == ["k"]


def test_a_wanted_commit_comes_after_the_one_under_way(desk: Desk) -> None:
    desk.machine.state_editor.flush("first", 0)
    desk.take()
    desk.machine.state_editor.flush("second", 0)

    assert desk.take() == []
    desk.committed()
    assert [each for each in desk.take() if isinstance(each, Settled)] == [Settled("first")]
    desk.committed()
    assert desk.only(Settled) == Settled("second")


def kill(desk: Desk, extra: Extra | None = None) -> tuple[str, Message]:
    """Let a message die; return the id of its letter, and the message in it."""
    desk.send("k", 5, extra)
    run = next(each for each in desk.take() if isinstance(each, Run | LoadStates))
    desk.finish(run.work, "broken")
    commit = desk.only(Store).commit
    ((id_, value),) = desk.records(commit, DEAD).items()
    assert value is not None
    desk.committed()
    desk.take()
    return id_, msgspec.msgpack.decode(value, type=DeadLetter).message


def test_a_replayed_letter_is_deleted_and_parked_in_one_commit_and_runs_as_if_new(
    desk: Desk,
) -> None:
    id_, message = kill(desk)

    desk.machine.dead_letters.replay(id_, message, "ticket", 0)

    effects = desk.take()
    commit = next(each.commit for each in effects if isinstance(each, Store))
    work = next(each.work for each in effects if isinstance(each, Run))
    assert desk.records(commit, DEAD) == {id_: None}
    parked = desk.records(commit, PARKED)[id_]
    assert parked is not None
    again = msgspec.msgpack.decode(parked, type=Message)
    assert (again.attempt, again.last_error, bytes(again.payload)) == (1, None, b"\x05")
    assert again.order > message.order
    assert desk.machine.open_from_clients == 1
    desk.finish(work)
    desk.committed()
    last = next(each.commit for each in desk.take() if isinstance(each, Store))
    assert last.records == [Record(PARKED, id_, None)]
    assert desk.machine.open_from_clients == 0


def test_a_replayed_letter_that_fails_again_is_a_letter_again(desk: Desk) -> None:
    id_, message = kill(desk)
    desk.machine.dead_letters.replay(id_, message, "ticket", 0)
    work = desk.only(Run).work
    desk.finish(work, "still broken")
    desk.committed()

    last = next(each.commit for each in desk.take() if isinstance(each, Store))
    assert desk.records(last, DEAD)[id_] is not None


def test_a_replay_is_not_answered_by_the_failure_that_its_idempotency_key_remembers(
    desk: Desk,
) -> None:
    id_, message = kill(desk, Extra(idempotency_key="once"))
    assert message.extra.idempotency_key == "once"

    desk.machine.dead_letters.replay(id_, message, "ticket", 0)

    assert desk.only(Run).work.waiting[0].message.extra.idempotency_key == ""


def test_a_replay_waits_behind_the_messages_of_its_key(desk: Desk) -> None:
    id_, message = kill(desk)
    assert desk.machine.state_editor.hold("k")

    desk.machine.dead_letters.replay(id_, message, "ticket", 0)

    assert not [each for each in desk.take() if isinstance(each, Run)]
    desk.machine.state_editor.release("k", 0)
    assert desk.only(Run).work.keys == ["k"]


def test_a_dropped_letter_leaves_room_for_another(desk: Desk) -> None:
    id_, _ = kill(desk)

    desk.machine.dead_letters.drop(id_, "ticket", 0)

    commit = desk.only(Store).commit
    assert commit.records == [Record(DEAD, id_, None)]


def test_a_partition_that_is_lost_holds_nothing(desk: Desk) -> None:
    desk.machine.stop(Outcome.FENCED)

    assert not desk.machine.state_editor.hold("k")
    desk.take()
    desk.machine.state_editor.release("k", 0)
    assert desk.take() == []
