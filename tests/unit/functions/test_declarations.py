"""A declaration that cannot work is refused when it is made, with what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from sublet import App


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
