"""Whose fault an exception is that ends a handler, and what is told and kept of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from sublet import (
    App,
    Context,
    DeadlineExceededError,
    EncodeError,
    HandlerError,
    OverloadedError,
    RejectedError,
    SideEffectError,
    StateTypeError,
    SubletError,
    UnknownFunctionError,
)
from sublet.functions.codec import codec_for
from sublet.runtime.execution.failures import (
    FRAMES_MAX,
    TRACEBACK_CHARS_MAX,
    BadReplyError,
    failure_of,
)
from sublet.runtime.execution.threads import HandlerInterrupt
from sublet.runtime.partition.model.work import Failure

app = App("shop")
HERE = "tests/unit/execution/test_failures.py"


@app.function(timeout="1s")
def place(ctx: Context[int], quantity: int) -> int:
    return quantity


DECLARED = place.__wrapped__.__code__.co_firstlineno


def encode(value: object) -> bytes:
    """Let Sublet raise, called from here."""
    return codec_for(Any).encode(value)


ENCODES = encode.__code__.co_firstlineno + 2


def failed(act: Callable[[], object], key: str | None = "ada") -> Failure:
    try:
        act()
    except BaseException as error:
        return failure_of(error, place, key)
    raise AssertionError("it did not raise")


def raising(error: BaseException) -> Callable[[], object]:
    def act() -> object:
        raise error

    return act


def test_what_a_handler_raises_is_told_with_its_key_and_line() -> None:
    failure = failed(lambda: 1 // 0)

    line = test_what_a_handler_raises_is_told_with_its_key_and_line.__code__.co_firstlineno + 1
    assert failure.error.code == "handler_failed"
    assert failure.error.message == (
        "shop/place raised ZeroDivisionError: integer division or modulo by zero "
        f"(key 'ada', {HERE}:{line})"
    )
    assert failure.retryable
    assert "failure = failed(lambda: 1 // 0)" in failure.traceback()
    assert failure.traceback().endswith("ZeroDivisionError: integer division or modulo by zero")


def test_what_sublet_raises_in_a_handler_is_the_handlers_error_and_not_tried_again() -> None:
    failure = failed(lambda: encode(object()))

    assert failure.error.code == "handler_failed"
    assert failure.error.message.startswith("shop/place raised EncodeError: cannot encode a value")
    assert failure.error.message.endswith(f"(key 'ada', {HERE}:{ENCODES})")
    assert not failure.retryable
    # Of what Sublet does to come to it, nothing is told.
    assert "functions/codec.py" not in failure.traceback()
    assert "_UnsupportedError" not in failure.traceback()
    assert "return codec_for(Any).encode(value)" in failure.traceback()


@pytest.mark.parametrize(
    "error",
    [
        RejectedError("sold out"),
        UnknownFunctionError("sold out"),
        EncodeError("sold out"),
        OverloadedError("sold out", 7),
        DeadlineExceededError("sold out"),
    ],
)
def test_an_error_of_sublets_that_a_handler_raises_itself_is_its_answer(error: SubletError) -> None:
    failure = failed(raising(error))

    assert (failure.error.code, failure.error.message) == (error.code, str(error))
    assert failure.retryable == isinstance(error, OverloadedError)
    assert failure.traceback() == ""


def test_what_a_called_function_replied_is_an_answer_wherever_it_is_raised() -> None:
    error = UnknownFunctionError("there is no function a/b")
    error.is_reply = True

    failure = failure_of(error.with_traceback(_of_sublet(object())), place, "ada")

    assert failure.error.code == "unknown_function"


def test_what_sublet_refuses_before_the_handler_sees_it_is_the_messages_error() -> None:
    traceback = _of_sublet(object())
    assert traceback is not None
    # Without the frames of this file: no user code has run.
    while traceback.tb_frame.f_globals["__name__"].startswith("tests."):
        traceback = traceback.tb_next
        assert traceback is not None

    failure = failure_of(RejectedError("no event time").with_traceback(traceback), place, "ada")

    assert failure.error.code == "rejected"


def _of_sublet(value: object) -> Any:
    try:
        encode(value)
    except EncodeError as error:
        return error.__traceback__
    raise AssertionError(value)


def test_errors_of_states_keep_their_code() -> None:
    error = StateTypeError("declared as int").with_traceback(_of_sublet(object()))

    failure = failure_of(error, place, "ada")

    assert (failure.error.code, failure.retryable) == ("bad_state", False)
    assert failure.error.message.startswith(
        "shop/place raised StateTypeError: declared as int (key"
    )
    assert issubclass(StateTypeError, HandlerError)


def test_a_side_effect_that_failed_is_tried_again_and_shows_what_it_raised() -> None:
    error = SideEffectError("side effect 'charge' raised OSError: no route")
    error.__cause__ = OSError("no route")

    failure = failure_of(error.with_traceback(_of_sublet(object())), place, "ada")

    assert (failure.error.code, failure.retryable) == ("side_effect_failed", True)
    assert "OSError: no route\n\nThe above exception was the direct cause" in failure.traceback()


def test_a_reply_that_is_none_is_told_with_the_line_of_its_handler() -> None:
    failure = failure_of(BadReplyError("returned what cannot be its reply: …"), place, "ada")

    assert failure.error.message == (
        f"shop/place returned what cannot be its reply: … (key 'ada', {HERE}:{DECLARED})"
    )
    assert not failure.retryable


def test_a_handler_that_takes_too_long_is_told_with_the_line_where_it_was() -> None:
    failure = failed(raising(HandlerInterrupt()))

    line = raising.__code__.co_firstlineno + 2
    assert failure.error.code == "handler_timeout"
    assert failure.error.message.endswith(f"timeout of 1000 ms (key 'ada', {HERE}:{line})")
    given_up = failure_of(HandlerInterrupt(), place, "ada")
    assert given_up.error.message.endswith(f"(key 'ada', {HERE}:{DECLARED})")


def test_the_line_is_one_that_the_authors_wrote_not_one_of_a_library() -> None:
    failure = failed(lambda: json.loads("{"))

    line = test_the_line_is_one_that_the_authors_wrote_not_one_of_a_library.__code__.co_firstlineno
    assert failure.error.message.endswith(f"(key 'ada', {HERE}:{line + 1})")
    assert "json/decoder.py" in failure.traceback()


def test_messages_without_a_key_and_of_several_keys_are_told_without_one() -> None:
    for key in ("", None):
        assert f" zero ({HERE}:" in failed(lambda: 1 // 0, key).error.message


def test_a_traceback_keeps_its_bounds_and_its_end() -> None:
    def down(depth: int) -> int:
        if depth:
            return down(depth - 1) + up(depth - 1)
        raise ValueError("x" * 10_000)

    def up(depth: int) -> int:
        return down(depth) + 1

    failure = failed(lambda: down(400))

    assert len(failure.traceback()) <= TRACEBACK_CHARS_MAX + 3
    assert failure.traceback().endswith("x" * 100)
    assert failure.traceback().count('  File "') <= FRAMES_MAX
    assert len(failure.error.message) < 2_300


def test_an_exception_that_cannot_be_told_is_told_all_the_same() -> None:
    class UnspeakableError(Exception):
        def __str__(self) -> str:
            raise TypeError("no text")

    failure = failed(raising(UnspeakableError("\udcff")))
    half = failed(raising(ValueError("\udcff")))

    assert "its message is unavailable (TypeError)" in failure.error.message
    assert "UnspeakableError" in failure.traceback()
    (half.error.message + half.traceback()).encode()


def test_failures_alike_have_one_kind_whatever_their_keys_and_texts() -> None:
    kinds = {
        failed(raising(ValueError(text)), key).kind for key, text in (("a", "one"), ("b", "two"))
    }

    assert len(kinds) == 1
    assert failed(raising(KeyError("x"))).kind not in kinds
