"""A declaration that cannot work is refused when it is made, with what is allowed."""

from __future__ import annotations

import inspect
from types import NoneType
from typing import Annotated, Any

import msgspec
import pytest

from sublet import (
    App,
    Batch,
    Context,
    Count,
    Function,
    Map,
    PayloadError,
    SessionWindow,
    State,
    Sum,
)
from sublet.functions.app import AsyncFunction, BatchFunction, WindowedFunction


def plain(ctx: Any, message: Any) -> None: ...


async def waiting(ctx: Any, message: Any) -> None: ...


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kind": "global"}, "kind is 'global'; allowed: keyed, stateful, stateless"),
        ({"order": "fifo"}, "order is 'fifo'; allowed: 'key', 'none'"),
        ({"batch": 7}, "batch is 7; allowed: False, True, 'key'"),
        ({"partitions": 0}, r"partitions is 0; allowed: 1\.\.1024"),
        ({"partitions": 1025}, r"partitions is 1025; allowed: 1\.\.1024"),
        ({"batch_size_max": 0}, "batch_size_max is 0; allowed: 1 or more"),
        ({"concurrency": 0}, "concurrency is 0; allowed: 1 or more"),
        ({"name": "no spaces"}, "the function's name is 'no spaces'; allowed: letters"),
        ({"infeasible": "drop"}, "infeasible is 'drop'; allowed: 'run', 'refuse'"),
    ],
)
def test_an_option_that_cannot_be_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        App("app").function(**options)(plain)


@pytest.mark.parametrize("batch", [True, "key"])
def test_batches_are_for_plain_handlers(batch: Any) -> None:
    async def together(batch: Any) -> None: ...

    handler = together if batch is True else waiting
    with pytest.raises(
        ValueError, match="is for plain `def` handlers; an `async def` handler gets"
    ):
        App("app").function(batch=batch)(handler)


def test_blocking_is_for_plain_handlers() -> None:
    with pytest.raises(ValueError, match="blocking=True is for plain `def` handlers"):
        App("app").function(blocking=True)(waiting)


def test_a_function_is_declared_once() -> None:
    app = App("app")
    app.function(plain)
    with pytest.raises(ValueError, match="app/plain is declared twice"):
        app.function(plain)


def test_a_handler_takes_a_context_and_a_message() -> None:
    def lost() -> None: ...

    def greedy(ctx: Any, one: Any, two: Any) -> None: ...

    for handler in (lost, greedy):
        with pytest.raises(TypeError, match=r"a handler takes \(ctx\) or \(ctx, message\)"):
            App("app").function(handler)


def test_work_counts_to_the_app_unless_a_tenant_is_named() -> None:
    app = App("shop")
    assert app.function(plain).tenant == "shop"
    assert app.function(name="other", tenant="gold")(plain).tenant == "gold"


# What annotations declare


class Totals(State):
    total = Sum()


def value_state(ctx: Context[int], message: str) -> float: ...
def kind_state(ctx: Context[Map[str, int]]) -> None: ...
async def fields_state(ctx: Context[Totals], message: list[int]) -> dict[str, int] | None: ...
def undeclared(ctx: Context, message: Any): ...  # type: ignore[no-untyped-def]
def by_key(ctx: Context[Sum], messages: list[int]) -> list[str]: ...
def batched(batch: Batch[int, Count]) -> tuple[str, ...]: ...
def batched_perhaps(batch: Batch[int]) -> list[str] | None: ...
def batched_silently(batch: Batch[int]) -> None: ...


@pytest.mark.parametrize(
    ("handler", "batch", "state", "message", "reply"),
    [
        (value_state, False, "Value(int)", str, float),
        (kind_state, False, "Map(str, int)", Any, NoneType),
        (fields_state, False, "Totals", list[int], dict[str, int] | None),
        (undeclared, False, "Value(typing.Any)", Any, Any),
        (by_key, "key", "Sum()", int, str),
        (batched, True, "Count()", int, str),
        (batched_perhaps, True, "Value(typing.Any)", int, str | None),
        (batched_silently, True, "Value(typing.Any)", int, NoneType),
    ],
)
def test_annotations_declare_state_message_and_reply(
    handler: Any, batch: Any, state: str, message: Any, reply: Any
) -> None:
    function = App("app").function(batch=batch)(handler)

    assert repr(function.state_kind) == state
    assert function.message_codec.type == message
    assert function.reply_codec.type == reply


def test_an_annotation_that_only_a_type_checker_knows_hides_no_other() -> None:
    def handler(ctx: Context[int], message: Hidden) -> str: ...  # type: ignore[name-defined]  # noqa: F821

    function = App("app").function(handler)

    assert repr(function.state_kind) == "Value(int)"
    assert (function.message_codec.type, function.reply_codec.type) == (Any, str)


def test_constraints_of_a_message_are_part_of_its_type() -> None:
    def handler(ctx: Context, message: Annotated[int, msgspec.Meta(ge=0)]) -> None: ...

    function = App("app").function(handler)

    with pytest.raises(PayloadError, match=">= 0"):
        function.message_codec.decode(function.message_codec.encode(-1))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"state": str}, r"app/value_state: the state is declared as Value\(str\), but ctx is"),
        ({"kind": "stateless"}, "app/value_state is stateless, but its context has a state"),
        ({"window": SessionWindow("1s")}, r"sessions merge, and a state of kind Value\(int\)"),
    ],
)
def test_a_declaration_that_its_handler_contradicts_is_refused(
    options: dict[str, Any], text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        App("app").function(**options)(value_state)


def test_a_windowed_function_has_the_state_of_its_context() -> None:
    function = App("app").function(window=SessionWindow("1s"))(by_key)

    assert repr(function.state_kind) == "Sum() in windows"


@pytest.mark.parametrize(
    ("options", "handler", "form"),
    [
        ({}, value_state, Function),
        ({}, fields_state, AsyncFunction),
        ({"batch": "key"}, by_key, BatchFunction),
        ({"window": SessionWindow("1s")}, by_key, WindowedFunction),
    ],
)
def test_a_function_keeps_the_signature_of_its_handler(
    options: dict[str, Any], handler: Any, form: type[Function]
) -> None:
    function = App("app").function(**options)(handler)

    assert type(function) is form
    assert inspect.signature(function) == inspect.signature(handler)
    assert (function.__name__, function.__doc__) == (handler.__name__, handler.__doc__)


def test_only_windows_close() -> None:
    function: Any = App("app").function(value_state)

    with pytest.raises(ValueError, match="app/value_state has no windows; declare it with window="):
        function.on_close(kind_state)


def test_types_of_functions_may_be_written_in_part() -> None:
    assert str(Function[[int], str]).endswith("str, typing.Any]")
    assert Batch[int] == Batch[int, Any]
