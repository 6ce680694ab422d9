"""What a handler returns is its reply, or its error: before anything that it did counts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from enum import IntEnum
from typing import Any

import msgspec
import pytest

from sublet import App, Batch, Context, TumblingWindow
from sublet.functions.app import Function
from sublet.runtime.execution.failures import BadReplyError
from sublet.runtime.execution.replies import ReplyCheck

BYTES_MAX = 1_000


class Item(msgspec.Struct):
    name: str
    price: float


class Level(IntEnum):
    LOW = 1


def check_of(reply: Any) -> ReplyCheck:
    def handler(ctx: Context, message: int) -> Any: ...

    handler.__annotations__["return"] = reply
    return ReplyCheck(App("shop").function(handler), BYTES_MAX)


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        (int, 5),
        (int, -(2**63)),
        (int, 2**64 - 1),
        (int, Level.LOW),
        (float, 1.5),
        (float, 1),
        (str, "text"),
        (bytes, b"x" * (BYTES_MAX - 3)),
        (bool, True),
        (None, None),
        (int | None, None),
        (list[int], [1, 2]),
        (Item, Item("tea", 1.5)),
        (Item, {"name": "tea", "price": 1}),
        (datetime, datetime(2026, 1, 1)),  # noqa: DTZ001
        (Any, {"a": Item("tea", 1.5)}),
        (Any, 2**64 - 1),
        (Any, None),
    ],
)
def test_a_reply_that_fits_is_sent_as_it_is(reply: Any, value: Any) -> None:
    check = check_of(reply)
    kept = [check.fit(value, 0, True), *check.fit_all([value], [0], True)]

    assert [msgspec.msgpack.encode(each) for each in kept] == [msgspec.msgpack.encode(value)] * 2


@pytest.mark.parametrize(
    ("reply", "value", "told"),
    [
        (int, "5", "the value does not fit int: Expected `int`, got `str`"),
        (int, None, "the value does not fit int: Expected `int`, got `None`"),
        (int, True, "the value does not fit int: Expected `int`, got `bool`"),
        (int, 2**64, "cannot encode an int"),
        (int, object(), "cannot encode a value of type object"),
        (str, "\udcff", "cannot encode a value of type str"),
        (str, "x" * BYTES_MAX, "returned a reply of 1003 bytes; allowed: 1000"),
        (bytes, b"x" * BYTES_MAX, "returned a reply of 1003 bytes; allowed: 1000"),
        (None, 5, "the value does not fit NoneType"),
        (list[int], [1, "2"], r"Expected `int`, got `str` - at `\$\[1\]`"),
        (Item, Item("tea", "much"), r"got `str` - at `\$\.price`"),  # type: ignore[arg-type]
        (Any, [object()], r"cannot encode a value of type object at `\$\[0\]`"),
        (Any, 2**64, "cannot encode an int"),
        (Any, ["x" * BYTES_MAX], "returned a reply of 1004 bytes; allowed: 1000"),
    ],
)
def test_a_reply_that_does_not_fit_is_an_error(reply: Any, value: Any, told: str) -> None:
    check = check_of(reply)
    with pytest.raises(BadReplyError, match=told):
        check.fit(value, 0, True)
    with pytest.raises(BadReplyError, match=told):
        check.fit_all((value,), [0], True)
    if check.exact is type(value):
        assert check.ranged
        assert not check.ranged[0] <= value <= check.ranged[1]


def test_only_replies_that_somebody_waits_for_are_looked_at() -> None:
    check = check_of(int)

    assert check.fit(object(), 0, False) is None
    assert check.fit(object(), 0, {1}) is None
    assert list(check.fit_all([object(), 5, object()], [3, 4, 5], {4})) == [None, 5, None]
    assert len(check.fit_all([object()], [0], False)) == 1
    with pytest.raises(BadReplyError):
        check.fit_all([1, object()], [3, 4], {4})


def test_what_can_be_changed_later_is_sent_as_it_was() -> None:
    check = check_of(list[int])
    reply = [1]
    kept = [check.fit(reply, 0, True), *check.fit_all([reply], [0], True)]
    reply.append(2)

    assert [msgspec.msgpack.encode(each) for each in kept] == [msgspec.msgpack.encode([1])] * 2


def test_a_message_that_no_window_takes_has_no_reply() -> None:
    app = App("shop")

    @app.function(window=TumblingWindow("1m"))
    def clicks(ctx: Context[int], message: int) -> int:
        return 1

    check = ReplyCheck(clicks, BYTES_MAX)
    assert check.fit(None, 0, True) is None
    with pytest.raises(BadReplyError):
        check.fit("text", 0, True)


def test_large_replies_fit_together_if_each_of_them_does() -> None:
    check = check_of(bytes)

    assert len(check.fit_all([b"x" * 900] * 5, range(5), True)) == 5
    with pytest.raises(BadReplyError, match="1903 bytes"):
        check.fit_all([b"x" * 900, b"x" * 1_900], range(2), True)


def _batched() -> Function:
    app = App("shop")

    @app.function(batch=True)
    def handler(batch: Batch[int, int]) -> list[int]:
        return []

    return handler


def _by_key() -> Function:
    app = App("shop")

    @app.function(batch="key")
    def handler(ctx: Context[int], messages: list[int]) -> list[int]:
        return []

    return handler


@pytest.mark.parametrize("declare", [_batched, _by_key])
def test_each_reply_of_a_batch_is_of_the_type_of_one(declare: Callable[[], Function]) -> None:
    check = ReplyCheck(declare(), BYTES_MAX)

    assert check.fit_all([1, 2], [0, 1], True) == [1, 2]
    with pytest.raises(BadReplyError, match="Expected `int`, got `str`"):
        check.fit_all([1, "2"], [0, 1], True)
