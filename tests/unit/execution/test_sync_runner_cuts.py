"""When a run of user code ends between two messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sublet.functions.address import partition_name
from sublet.functions.app import App, Function
from sublet.functions.context import Context
from sublet.functions.state import StateClock
from sublet.runtime.config.limits import Limits
from sublet.runtime.execution.state_cache import StateCache
from sublet.runtime.execution.sync_runner import LOOK_EVERY_MAX, ExecutionEnv, RunScope, SyncRunner
from sublet.runtime.execution.threads import Declared, Position, Watchdog
from sublet.runtime.partition.model.work import Chunk, RunResult, Span, Work
from sublet.runtime.protocol.frames import Kind
from tests.unit.partition.harness import batch

app = App("app")


@app.function(state=int)
def add(ctx: Context, n: int) -> int:
    ctx.state.set(ctx.state.get() + n)
    return int(ctx.state.get())


@app.function(state=int, batch="key")
def add_all(ctx: Context, numbers: list[int]) -> list[int]:
    ctx.state.set(ctx.state.get() + sum(numbers))
    return [ctx.state.get()] * len(numbers)


class NoRoutes:
    def partition_of(self, function: str, key: str) -> str:
        return partition_name(function, 0)


class NoWatchdog(Watchdog):
    def enter(self, function: Declared, position: Position) -> None: ...

    def leave(self) -> None: ...


def run(
    function: Function,
    keys: Sequence[str],
    payloads: Sequence[Any],
    *,
    limit_s: float,
    **flags: Any,
) -> RunResult:
    assert function.state_kind is not None
    clock = StateClock(bytes_max=1_000)
    cache = StateCache(
        function.name, function.state_kind, clock, complete=True, bytes_max=lambda: 10**9
    )
    cache.missing(keys)
    env = ExecutionEnv(
        f"{function.name}/0",
        function,
        cache=cache,
        clock=clock,
        routes=NoRoutes(),  # type: ignore[arg-type]  # Nobody sends anything.
        limits=Limits(),
        next_timer=lambda: "1",
        monotonic_ms=lambda: 0.0,
    )
    chunk = Chunk(batch(1, keys, payloads=payloads, kind=Kind.CALL), 0, 0.0, None)
    work = Work(1, spans=[Span(chunk, 0, len(keys))])
    scope = RunScope(work, env)
    scope.limit_s = limit_s
    for name, value in flags.items():
        setattr(scope, name, value)
    return SyncRunner(NoWatchdog()).run(work, env, scope)


def test_a_run_within_its_time_is_not_cut() -> None:
    result = run(add, ["a", "b", "a"], [1, 2, 3], limit_s=1_000)

    assert result.cut_at is None
    assert result.values == [1, 2, 4]


def test_a_run_that_is_over_its_time_ends_after_its_first_message() -> None:
    result = run(add, ["a", "b", "a"], [1, 2, 3], limit_s=-1)

    assert result.cut_at == 1
    assert result.values == [1]
    assert [row.key for row in result.rows] == ["a"]


def test_payloads_that_do_not_fit_behind_the_cut_are_judged_when_their_turn_comes() -> None:
    result = run(add, ["a", "b", "c"], [1, 2, "three"], limit_s=-1)

    assert result.cut_at == 1
    assert not result.failed


@pytest.mark.parametrize(("wanted", "cut_at"), [(True, 1), (False, None)])
def test_after_its_quantum_a_run_ends_only_if_somebody_wants_it(
    wanted: bool, cut_at: int | None
) -> None:
    result = run(add, ["a", "b"], [1, 2], limit_s=1_000, quantum_s=-1.0, cut_wanted=wanted)

    assert result.cut_at == cut_at


def test_calls_by_key_are_cut_between_keys() -> None:
    result = run(add_all, ["a", "b", "a", "c"], [1, 2, 3, 4], limit_s=-1)

    # `b` stands between the two of `a` and has to wait by itself; `c` goes back.
    assert result.cut_at == 3
    assert result.values == [4, None, 4]
    assert result.unfinished == {1}


def test_slow_messages_are_looked_after_more_often() -> None:
    result_scope = RunScope.__new__(RunScope)
    result_scope.quantum_s = result_scope.limit_s = 1.0
    result_scope.work = Work(1)

    assert result_scope.look_again_after(1, 0.001) == LOOK_EVERY_MAX
    assert result_scope.look_again_after(1, 0.2) == 4
    assert result_scope.look_again_after(1, 2.0) == 1
