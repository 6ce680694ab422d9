"""What a handler sees: its key, its state, and the ways to act on the world.

Nothing that a handler asks for leaves before the commit that also holds its state change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, overload

from sublet.functions.address import Address
from sublet.functions.codec import Codec, codec_for, split_column
from sublet.functions.duration import Duration, milliseconds
from sublet.functions.effects import Cancelled, Delayed, Effects, Emitted, Outgoing, Routes
from sublet.functions.egress import check_egress_name, undeclared_egress
from sublet.functions.errors import (
    CallCycleError,
    KeyRejectedError,
    PayloadError,
    RejectedError,
    TooLargeError,
)
from sublet.functions.retry import NO_RETRY, Retry
from sublet.functions.side_effects import SideEffect, check_name, side_effect
from sublet.functions.state import HasCell, State, StateClock, ValueState
from sublet.functions.type_parameters import M, R, S_co
from sublet.functions.windows import Window

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch

    from sublet.functions.app import Function

T = TypeVar("T")
C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)
F = TypeVar("F", bound=State)

CALL_DEPTH_MAX = 32
NO_WINDOW = Window(0, 0)

_any = codec_for(Any)


class MessageView(NamedTuple):
    """What is known about the message that is being handled."""

    id: str
    attempt: int
    chain: Sequence[str]


class CallRequest(NamedTuple):
    """A call that a handler wants to make."""

    partition: str
    key: str
    payload: bytes
    timeout_ms: float
    reply_codec: Codec[Any]


class Progress(Protocol):
    """How far the time of a partition's windows has come."""

    watermark_ms: int
    """No message of an earlier time is expected any more."""
    seen_ms: int
    """The latest event time of a message so far."""


class Scope(Protocol):
    """What a context needs from whoever runs it."""

    function: Function
    partition: str
    routes: Routes
    clock: StateClock
    now_ms: int
    """The partition's clock when the run began; `clock` goes on with every other run."""
    message_bytes_max: int
    key_bytes_max: int
    progress: Progress
    traced: bool
    """Some message of the run is sampled."""

    def trace(self, index: int) -> str: ...

    def message_view(self, index: int) -> MessageView: ...

    def deadline_ms(self, index: int) -> float | None: ...

    def arrived_ms(self, index: int) -> int:
        """When the message reached the partition, by its clock."""
        ...

    def next_timer(self) -> str: ...

    def monotonic_ms(self) -> float: ...

    def open_call(self, context: Context, request: CallRequest) -> Awaitable[Any]: ...

    def perform(self, context: Context, effect: SideEffect) -> Awaitable[Any]:
        """Do a side effect, unless there is a record of it."""
        ...


if TYPE_CHECKING:

    class _StateOf:
        """What `ctx.state` is, by what stands in `Context[…]`."""

        @overload
        def __get__(self, context: Context[HasCell[C]], owner: object) -> C: ...
        @overload
        def __get__(self, context: Context[F], owner: object) -> F: ...
        @overload
        def __get__(self, context: Context[T], owner: object) -> ValueState[T]: ...
        def __get__(self, context: Any, owner: object) -> Any: ...
        def __set__(self, context: Any, value: Any) -> None: ...


class Context(Generic[S_co]):
    """Given to a handler with each message. Do not keep it after the handler has returned.

    `Context[int]` has one `int` for each key as its state, `Context[Sum]` a sum, `Context[Account]`
    the fields of a `State` class: what `state=` would declare. Without a type, the state is what
    `state=` declares, and type checkers know nothing about it.
    """

    if TYPE_CHECKING:
        state: _StateOf
    else:
        __slots__ = ("_effects", "_index", "_scope", "key", "state", "window")

    def __init__(self, scope: Scope, effects: Effects) -> None:
        self._scope = scope
        self._effects = effects
        self._index = 0
        self.key = ""
        """The key of this instance."""
        self.state = None
        """The state of this instance: a value, map, list, sum, …; of a windowed function, that of
        this instance in this window."""
        self.window: Window = NO_WINDOW
        """The window that the handler runs for, if the function is windowed."""

    @property
    def function(self) -> str:
        """Full name of the running function."""
        return self._scope.function.name

    @property
    def message_id(self) -> str:
        """Stays the same when the message is tried again. For what is done outside, `run_id` is
        better: no other partition has the same."""
        return self._scope.message_view(self._index).id

    @property
    def attempt(self) -> int:
        """1 for the first try."""
        return self._scope.message_view(self._index).attempt

    @property
    def time_left_ms(self) -> float | None:
        """Milliseconds until the result is due; None without a deadline, negative when late."""
        deadline = self._scope.deadline_ms(self._index)
        return None if deadline is None else deadline - self._scope.monotonic_ms()

    @property
    def watermark_ms(self) -> int:
        """No message of an earlier event time is expected any more, in milliseconds since 1970."""
        return self._scope.progress.watermark_ms

    @property
    def now_ms(self) -> int:
        """The partition's clock in milliseconds since 1970, when this run of the handler began.

        It stands still until the handler has ended, however long that waits or computes; messages
        that are handled in one run share it. From one message of a key to the next it never goes
        back. When a message is run again (a retry, another worker), it is later.
        """
        return self._scope.now_ms

    @overload
    def send(self, function: Function[[]], key: str = "", message: None = None) -> None: ...
    @overload
    def send(self, function: Function[[M]], key: str, message: M) -> None: ...
    @overload
    def send(self, function: Function[[M]], *, message: M) -> None: ...
    @overload
    def send(self, function: str, key: str = "", message: object = None) -> None: ...
    def send(self, function: Function | str, key: str = "", message: object = None) -> None:
        """Send a message, delivered exactly once after this message's commit.

        Messages of this instance to one other instance arrive in the order sent.
        """
        scope = self._scope
        if type(function) is str:
            name, codec = function, self._codec_of(function)
        else:
            name, codec = function.name, function.message_codec  # type: ignore[union-attr]
        try:
            payload = codec.encode_fitting(message)
        except PayloadError as error:
            raise _misfit(function, error) from error
        check_message(key, payload, scope.key_bytes_max, scope.message_bytes_max)
        partition, deadline_ms = scope.routes.partition_of(name, key), self._deadline_ms()
        if scope.traced:
            outgoing = Outgoing(partition, key, payload, deadline_ms, scope.trace(self._index))
        else:
            outgoing = Outgoing(partition, key, payload, deadline_ms)
        self._effects.items.append(outgoing)

    @overload
    def send_many(
        self, function: Function[[M]], keys: Sequence[str], messages: Sequence[M]
    ) -> None: ...
    @overload
    def send_many(
        self, function: Function[[]], keys: Sequence[str], messages: Sequence[None]
    ) -> None: ...
    @overload
    def send_many(self, function: str, keys: Sequence[str], messages: Sequence[object]) -> None: ...
    def send_many(
        self,
        function: Function | str,
        keys: Sequence[str],
        messages: Sequence[object],
    ) -> None:
        """Send many messages at once; `keys` and `messages` have the same length."""
        if len(keys) != len(messages):
            raise RejectedError(f"{len(keys)} keys but {len(messages)} messages")
        scope = self._scope
        name = function if isinstance(function, str) else function.name
        partition_of = scope.routes.partition_of
        payloads = self._encoded_column(function, list(messages))
        append = self._effects.items.append
        deadline_ms = self._deadline_ms()
        trace = scope.trace(self._index) if scope.traced else ""
        for key, payload in zip(keys, payloads, strict=True):
            check_message(key, payload, scope.key_bytes_max, scope.message_bytes_max)
            append(Outgoing(partition_of(name, key), key, payload, deadline_ms, trace))

    @overload
    def send_after(
        self,
        delay: Duration,
        function: Function[[]],
        key: str = "",
        message: None = None,
    ) -> str: ...
    @overload
    def send_after(self, delay: Duration, function: Function[[M]], key: str, message: M) -> str: ...
    @overload
    def send_after(self, delay: Duration, function: Function[[M]], *, message: M) -> str: ...
    @overload
    def send_after(
        self, delay: Duration, function: str, key: str = "", message: object = None
    ) -> str: ...
    def send_after(
        self,
        delay: Duration,
        function: Function | str,
        key: str = "",
        message: object = None,
    ) -> str:
        """Send a message later; return a token for `cancel`, which may be kept in state.

        `delay` counts from this very moment, not from `now_ms`. Timers that one instance sets are
        sent in the order in which they are due.
        """
        scope = self._scope
        name = function if isinstance(function, str) else function.name
        payload = self._encoded(function, message)
        check_message(key, payload, scope.key_bytes_max, scope.message_bytes_max)
        due_ms = scope.clock.moment_ms() + max(0, int(milliseconds(delay)))
        timer = scope.next_timer()
        trace = scope.trace(self._index) if scope.traced else ""
        partition = scope.routes.partition_of(name, key)
        self._effects.items.append(Delayed(timer, due_ms, partition, key, payload, trace))
        return f"{scope.partition}|{timer}"

    def cancel(self, token: str) -> None:
        """Take back a delayed message, if it has not been sent yet. Any function may do it."""
        partition, mark, timer = token.partition("|")
        if not mark or not timer or not token.isprintable():
            raise RejectedError(f"{token!r:.200} is not a token from send_after")
        self._effects.items.append(Cancelled(partition, timer))

    @overload
    def call(
        self,
        function: Function[[], R],
        key: str = "",
        message: None = None,
        *,
        timeout: Duration = "30s",
    ) -> Awaitable[R]: ...
    @overload
    def call(
        self, function: Function[[M], R], key: str, message: M, *, timeout: Duration = "30s"
    ) -> Awaitable[R]: ...
    @overload
    def call(
        self, function: Function[[M], R], *, message: M, timeout: Duration = "30s"
    ) -> Awaitable[R]: ...
    @overload
    def call(
        self, function: str, key: str = "", message: object = None, *, timeout: Duration = "30s"
    ) -> Awaitable[Any]: ...
    def call(
        self,
        function: Function | str,
        key: str = "",
        message: object = None,
        *,
        timeout: Duration = "30s",
    ) -> Awaitable[Any]:
        """Call another instance; await the result. Only in `async def` handlers.

        While this instance waits, its key waits and its partition goes on. If the handler is run
        again (a retry, another worker), it gets the recorded results: it must make the same
        calls in the same order.

        After `timeout`, `DeadlineExceededError` is raised and the call is taken back, as all
        calls are for which the handler has not waited when it ends: what has not begun does not
        run, and a handler that awaits something is interrupted.
        """
        scope = self._scope
        name = function if isinstance(function, str) else function.name
        payload = self._encoded(function, message)
        check_message(key, payload, scope.key_bytes_max, scope.message_bytes_max)
        chain = scope.message_view(self._index).chain
        address = str(Address(name, key))
        if address in chain or address == str(Address(self.function, self.key)):
            path = " → ".join([*chain, str(Address(self.function, self.key)), address])
            raise CallCycleError(
                f"{address} already waits for this call ({path}); use send instead"
            )
        if len(chain) >= CALL_DEPTH_MAX:
            raise CallCycleError(f"the call chain is {len(chain)} deep; allowed: {CALL_DEPTH_MAX}")
        codec = _any if isinstance(function, str) else function.reply_codec
        partition = scope.routes.partition_of(name, key)
        return scope.open_call(
            self, CallRequest(partition, key, payload, milliseconds(timeout), codec)
        )

    @overload
    def run(
        self,
        name: str,
        action: Callable[[], Awaitable[T]],
        *,
        returns: type[T] | None = None,
        retry: Retry = NO_RETRY,
    ) -> Awaitable[T]: ...
    @overload
    def run(
        self,
        name: str,
        action: Callable[[], T],
        *,
        returns: type[T] | None = None,
        retry: Retry = NO_RETRY,
    ) -> Awaitable[T]: ...
    def run(
        self,
        name: str,
        action: Callable[[], Any],
        *,
        returns: Any = None,
        retry: Retry = NO_RETRY,
    ) -> Awaitable[Any]:
        """Do something outside of Sublet, and keep its result; await it. Only in `async def`
        handlers.

        The result is stored before the handler goes on. If the handler is run again (a retry,
        another worker), it gets the stored result, and nothing is done. Only if the worker dies
        after the action and before its result is stored, the action is done again: give the
        outside `run_id(name)` as its idempotency key.

        - `name`: each side effect of a handler has its own.
        - `action`: an `async def`, or a plain function, which runs in a thread.
        - `returns`: the type of the result, if the action is not annotated with it and it is more
          than numbers, texts, lists and dicts.
        - `retry`: how often the action is tried. After the last failure `SideEffectError` is
          raised. `RejectedError` and `FailedError` are not tried again and raised as they are.
        """
        return self._scope.perform(self, side_effect(name, action, returns, retry))

    def run_id(self, name: str) -> str:
        """Return an id for a side effect: always the same for this message and this name, and
        never that of another."""
        check_name(name)
        return f"{self._scope.partition}@{self.message_id}/{name}"

    def emit(self, egress: str, value: object) -> None:
        """Append a value to a named egress, from which readers outside take it.

        If the app declares its egresses, to any other name it is an error.
        """
        check_egress_name(egress)
        declared = self._scope.function.egress
        if declared is not None and egress not in declared:
            raise undeclared_egress(self.function.partition("/")[0], egress, declared)
        payload = _any.encode(value)
        if len(payload) > self._scope.message_bytes_max:
            raise TooLargeError(
                f"the value has {len(payload)} bytes; allowed: {self._scope.message_bytes_max}"
            )
        self._effects.items.append(Emitted(egress, self.key, payload))

    def _encoded(self, function: Function | str, message: object) -> bytes:
        """Return a message as its target takes it. What that would refuse is an error here, in the
        line that sends it: later nobody could tell who has sent it."""
        try:
            return self._codec_of(function).encode_fitting(message)
        except PayloadError as error:
            raise _misfit(function, error) from error

    def _encoded_column(self, function: Function | str, messages: list[object]) -> list[bytes]:
        codec = self._codec_of(function)
        column = codec.encode_column(messages)
        if not codec.is_any:
            try:
                codec.decode_column(column)
            except PayloadError as error:
                raise _misfit(function, error) from error
        return [bytes(each) for each in split_column(column)]

    def _codec_of(self, function: Function | str) -> Codec[Any]:
        """Return how messages for a function are encoded; of another app's, only the name may be
        known, and anything goes."""
        if type(function) is str:
            app = self._scope.function.app
            target = None if app is None else app.functions.get(function)
            return _any if target is None else target.message_codec
        return function.message_codec  # type: ignore[union-attr]

    def _deadline_ms(self) -> float | None:
        return self._scope.deadline_ms(self._index)


class BatchState(Generic[C_co, T]):
    """The states of a batch's keys, read in one step and written in one step."""

    __slots__ = ("_cells",)

    def __init__(self, cells: Mapping[str, Any]) -> None:
        self._cells = cells

    def __getitem__(self, key: str) -> C_co:
        """Return one key's state, as `ctx.state` in other handlers."""
        return self._cells[key]  # type: ignore[no-any-return]

    def read(self) -> dict[str, T]:
        """Return the value of every key of the batch. Only for states that are one value."""
        return {key: cell.get() for key, cell in self._cells.items()}

    def write(self, values: Mapping[str, T]) -> None:
        """Set the values of keys that are in the batch. Only for states that are one value."""
        cells = self._cells
        for key, value in values.items():
            cells[key].set(value)


if TYPE_CHECKING:

    class _BatchStateOf:
        """What `batch.state` is, by what stands in `Batch[…, …]`."""

        @overload
        def __get__(self, batch: Batch[Any, HasCell[C]], owner: object) -> BatchState[C, Any]: ...
        @overload
        def __get__(self, batch: Batch[Any, F], owner: object) -> BatchState[F, Any]: ...
        @overload
        def __get__(self, batch: Batch[Any, T], owner: object) -> BatchState[ValueState[T], T]: ...
        def __get__(self, batch: Any, owner: object) -> Any: ...
        def __set__(self, batch: Any, value: Any) -> None: ...


class Batch(Generic[M, S_co]):
    """All messages of one run, as columns: what a `batch=True` handler gets.

    `Batch[Payment, int]` has messages of type `Payment` and an `int` as each key's state; the
    second stands for what it would in `Context[int]`. Return a list with one reply for each
    message, or None.
    """

    if TYPE_CHECKING:
        state: _BatchStateOf
    else:
        __slots__ = ("_columns", "_context", "_messages", "keys", "state")

    def __init__(
        self,
        context: Context[S_co],
        keys: Sequence[str],
        messages: Sequence[M] | Callable[[], Sequence[M]],
        state: BatchState[Any, Any],
        columns: RecordBatch | None = None,
    ) -> None:
        """Messages that came as columns are made only if somebody asks for them."""
        self._context = context
        self.keys = keys
        """The key of each message."""
        self._messages = messages
        self._columns = columns
        self.state = state
        """The states of these keys."""

    @property
    def messages(self) -> Sequence[M]:
        """The messages, in their declared type."""
        if callable(self._messages):
            self._messages = self._messages()
        return self._messages

    @property
    def columns(self) -> RecordBatch:
        """The messages as a `pyarrow.RecordBatch`: one row for each, one column for each field of
        the declared type, or one named `value` if that has no fields. Needs pyarrow."""
        if self._columns is None:
            self._columns = self._context._scope.function.column_type.of_messages(self.messages)
        return self._columns

    @property
    def key_column(self) -> Array:
        """The keys as a `pyarrow.Array` of strings, to group by. Needs pyarrow."""
        import pyarrow

        return pyarrow.array(self.keys, pyarrow.string())

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[tuple[str, M]]:
        return iter(zip(self.keys, self.messages, strict=True))

    @property
    def context(self) -> Context[S_co]:
        """For `send`, `send_many`, `emit`, `send_after`; it has no key of its own."""
        return self._context


def _misfit(function: Function | str, error: PayloadError) -> PayloadError:
    name = function if isinstance(function, str) else function.name
    return PayloadError(f"{name} does not take this message: {error}")


def check_message(key: object, payload: bytes, key_bytes_max: int, payload_bytes_max: int) -> None:
    """Refuse a key or payload that no partition would take."""
    if type(key) is not str:
        raise KeyRejectedError(f"a key is a str, not {type(key).__name__}; use str(key)")
    size = len(key)
    if not key.isascii():
        try:
            size = len(key.encode())
        except UnicodeEncodeError as error:
            raise KeyRejectedError(f"the key is not valid Unicode: {error}") from None
    if size > key_bytes_max:
        raise KeyRejectedError(f"the key has {size} bytes; allowed: {key_bytes_max}")
    if len(payload) > payload_bytes_max:
        raise TooLargeError(f"the message has {len(payload)} bytes; allowed: {payload_bytes_max}")
