"""What a handler of columns gets in one run, and what becomes of messages that are no columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

pa = pytest.importorskip("pyarrow", reason="the extra 'arrow' is not installed")

from sublet.functions.address import partition_name  # noqa: E402
from sublet.functions.app import App, Function  # noqa: E402
from sublet.functions.columns import encode_columns, normal_columns  # noqa: E402
from sublet.functions.context import Batch  # noqa: E402
from sublet.functions.key_column import column_of  # noqa: E402
from sublet.functions.state import StateClock  # noqa: E402
from sublet.runtime.config.limits import Limits  # noqa: E402
from sublet.runtime.execution.state_cache import StateCache  # noqa: E402
from sublet.runtime.execution.sync_runner import ExecutionEnv, SyncRunner  # noqa: E402
from sublet.runtime.execution.threads import Declared, Position, Watchdog  # noqa: E402
from sublet.runtime.partition.model.work import Chunk, RunResult, Span, Work  # noqa: E402
from sublet.runtime.protocol import frames  # noqa: E402
from sublet.runtime.protocol.frames import Kind  # noqa: E402
from sublet.runtime.protocol.pipeline_messages import Chosen, Seal, Stage  # noqa: E402
from sublet.statestore.contract import STAGED, STAGING  # noqa: E402
from tests.unit.partition.harness import BROKEN, CLIENT, NAME, Owner, batch, make_function  # noqa: E402


class Order(msgspec.Struct):
    amount: int
    note: str | None = None


seen: list[Any] = []
app = App("app")


@app.function(state=int, batch="columns")
def add(batch: Batch[Order]) -> None:
    """Add up amounts by key."""
    table = pa.table({"key": batch.key_column, "amount": batch.columns["amount"]})
    sums = table.group_by("key", use_threads=False).aggregate([("amount", "sum")])
    totals = batch.state.read()
    for key, amount in zip(*(each.to_pylist() for each in sums.columns), strict=True):
        totals[key] += amount
    batch.state.write(totals)
    seen.append(batch)


@app.function(kind="stateless", batch="columns")
def anything(batch: Batch[Any]) -> None:
    seen.append(batch.columns.to_pylist())


@app.function(kind="stateless", batch=True)
def plain(batch: Batch[Order]) -> None:
    seen.append(batch.columns.to_pylist())


class NoRoutes:
    def partition_of(self, function: str, key: str) -> str:
        return partition_name(function, 0)


class NoWatchdog(Watchdog):
    def enter(self, function: Declared, position: Position) -> None: ...

    def leave(self) -> None: ...


def arrow(bare: bool = False, **columns: Any) -> msgspec.Raw:
    table = pa.RecordBatch.from_pydict(columns)
    return msgspec.Raw(encode_columns(normal_columns(table, bare=bare)))


def arrow_chunk(keys: Sequence[str], column: msgspec.Raw) -> Chunk:
    received = frames.Batch(NAME, "|q", 1, Kind.SEND, list(keys), column, len(keys))
    return Chunk(received, 0, 0.0, None)


def rows_chunk(keys: Sequence[str], payloads: Sequence[Any]) -> Chunk:
    return Chunk(batch(1, keys, payloads=payloads, kind=Kind.SEND), 0, 0.0, None)


def run(function: Function, *spans: Span) -> tuple[RunResult, StateCache | None]:
    clock = StateClock(bytes_max=1_000)
    work = Work(1, spans=list(spans))
    cache = None
    if function.state_kind is not None:
        cache = StateCache(
            function.name, function.state_kind, clock, complete=True, bytes_max=lambda: 10**9
        )
        cache.missing(work.keys)
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
    seen.clear()
    return SyncRunner(NoWatchdog()).run(work, env), cache


def states(result: RunResult) -> dict[str, int]:
    return {row.key: msgspec.msgpack.decode(row.value or b"\xc0") for row in result.rows}


def test_columns_and_rows_of_one_run_are_one_batch() -> None:
    came = arrow_chunk(["a", "b", "a", "b"], arrow(amount=[1, 2, 3, 4]))
    rows = rows_chunk(["a", "c"], [{"amount": 10, "note": "x"}, {"amount": 20}])

    result, _ = run(add, Span(came, 1, 4), Span(rows, 0, 2))

    assert states(result) == {"a": 13, "b": 6, "c": 20}
    (got,) = seen
    assert got.columns.schema == add.column_type.schema
    assert got.columns["note"].to_pylist() == [None, None, None, "x", None]
    assert came.decoded is None, "nobody has asked for messages"
    assert list(got.messages) == [Order(2), Order(3), Order(4), Order(10, "x"), Order(20)]


def test_messages_that_do_not_fit_are_failed_by_themselves() -> None:
    rows = rows_chunk(
        ["a", "b", "c", "d"],
        [{"amount": 1}, {"amount": "many"}, {"amount": 2**63}, {"amount": 4}],
    )

    result, _ = run(add, Span(rows, 0, 4))

    assert states(result) == {"a": 1, "d": 4}
    assert {index: each.retryable for index, each in result.failed.items()} == {1: False, 2: False}
    assert result.failed[1].error.code == "bad_payload"
    assert seen[0].keys == ["a", "d"]


def test_what_cannot_be_columns_together_is_tried_one_by_one() -> None:
    result, _ = run(anything, Span(rows_chunk(["a", "b"], [1, {"x": 1}]), 0, 2))

    assert [each.retryable for each in result.failed.values()] == [True, True]
    assert len(set(map(id, result.failed.values()))) == 1
    result, _ = run(
        anything, Span(rows_chunk(["a"], [1]), 0, 1), Span(rows_chunk(["b"], ["x"]), 0, 1)
    )
    assert len(result.failed) == 2
    run(anything, Span(rows_chunk(["b"], [{"x": 1}]), 0, 1))
    assert seen == [[{"x": 1}]]


def test_columns_of_another_deployment_are_looked_at_one_by_one() -> None:
    old = arrow_chunk(["a", "b"], arrow(amount=["1", None], note=["x", "y"]))

    result, _ = run(add, Span(old, 0, 2))

    assert sorted(result.failed) == [0, 1]
    assert not result.failed[0].retryable
    fits = arrow_chunk(["a", "b"], arrow(amount=[1, None]))
    result, _ = run(add, Span(fits, 0, 2))
    assert states(result) == {"a": 1}
    assert list(result.failed) == [1]


def test_a_batch_handler_can_ask_for_columns_of_ordinary_messages() -> None:
    run(plain, Span(rows_chunk(["a"], [{"amount": 1}]), 0, 1))

    assert seen == [[{"amount": 1, "note": None}]]


# In a partition


def staged(column: msgspec.Raw, keys: Sequence[str], attempt: str = "a") -> bytes:
    return msgspec.msgpack.encode(Stage("q", 0, attempt, 0, list(keys), column))


def ask(owner: Owner, number: int, request: bytes) -> Any:
    column = msgspec.Raw(b"\x91" + request)
    owner.receive(frames.Batch(NAME, CLIENT, number, Kind.STAGE, [""], column, 1))
    owner.settle()
    return dict(owner.replies(CLIENT))[number]


def refusal_of(owner: Owner) -> str:
    return " ".join(
        error.message for each in owner.delivered for error in (each.errors or {}).values()
    )


def sealed_columns() -> Owner:
    owner = Owner(make_function(batch="columns"))
    ask(owner, 1, staged(arrow(n=[1, 2, 3]), ["a", "b", "a"]))
    owner.receive(
        frames.Batch(
            NAME,
            CLIENT,
            2,
            Kind.STAGE,
            [""],
            msgspec.Raw(b"\x91" + msgspec.msgpack.encode(Seal("q", 0, [Chosen("a", 1, 3)]))),
            1,
        )
    )
    return owner


def test_columns_run_as_they_are_and_one_by_one_after_a_failure() -> None:
    owner = sealed_columns()
    work = owner.runs[-1]
    assert work.spans
    owner.finish(failed=dict.fromkeys(range(3), BROKEN))
    tried = []
    for _ in range(50):
        if owner.runs:
            work = owner.finish()
            assert work.count == 1, "nobody knows who was to blame"
            tried += [msgspec.msgpack.decode(each.message.payload) for each in work.waiting]
        elif owner.commits:
            owner.commit()
        else:
            owner.pass_time(1_000)
    assert sorted(each["n"] for each in tried) == [1, 2, 3]
    assert not owner.records(STAGED)


def test_beside_the_loop_columns_run_whole_and_alone() -> None:
    owner = Owner(make_function(batch="columns"))
    owner.pace.aside = True
    ask(owner, 1, staged(arrow(n=[1, 2, 3]), ["a", "b", "a"]))
    seal = msgspec.msgpack.encode(Seal("q", 0, [Chosen("a", 1, 3)]))
    owner.receive(frames.Batch(NAME, CLIENT, 2, Kind.STAGE, [""], msgspec.Raw(b"\x91" + seal), 1))
    (work,) = owner.runs
    assert work.spans
    assert work.exclusive
    owner.receive(batch(3, ["c"], payloads=[{"n": 4}]))
    assert len(owner.runs) == 1, "nothing runs beside it"
    owner.finish()
    assert owner.runs
    owner.finish()
    owner.settle()
    assert not owner.records(STAGED)
    assert not [each for each in owner.records(STAGING) if "/" in each]


@pytest.mark.parametrize(
    ("options", "column", "said"),
    [
        ({}, arrow(n=[1]), "takes rows, one by one, and no columns of Arrow"),
        ({"batch": True}, arrow(n=[1]), "no columns of Arrow"),
        (
            {"batch": "columns"},
            msgspec.Raw(bytes(arrow(n=[1])).replace(b"\x00\x08", b"\xff\x09")),
            "cannot be re",
        ),
        ({"batch": "columns"}, arrow(n=[1, 2]), "1 keys and 2 payloads"),
    ],
)
def test_columns_that_cannot_run_are_refused_when_they_are_staged(
    options: dict[str, Any], column: msgspec.Raw, said: str
) -> None:
    owner = Owner(make_function(**options))
    answer = ask(owner, 1, staged(column, ["a"]))

    assert answer == "bad_payload"
    assert said in refusal_of(owner)
    assert not owner.records(STAGED)


def test_keys_that_came_once_each_run_as_keys_of_rows() -> None:
    owner = Owner(make_function(batch="columns"))
    keys = column_of(["a", "b"], [1, 0, 1])
    stage = Stage("q", 0, "a", 0, keys.distinct, arrow(n=[1, 2, 3]), places=keys.places)
    assert ask(owner, 1, msgspec.msgpack.encode(stage)) == [-1, 0, 3, 0]
    bad = msgspec.structs.replace(stage, attempt="b", places=b"\x05\x00\x00\x00" * 3)
    assert ask(owner, 2, msgspec.msgpack.encode(bad)) == "bad_payload"
    seal = msgspec.msgpack.encode(Seal("q", 0, [Chosen("a", 1, 3)]))
    owner.receive(frames.Batch(NAME, CLIENT, 3, Kind.STAGE, [""], msgspec.Raw(b"\x91" + seal), 1))
    assert owner.runs[-1].keys == ["b", "a", "b"]
