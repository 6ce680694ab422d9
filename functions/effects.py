"""What handlers ask for while they run: collected here, carried out after the commit."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Outgoing(NamedTuple):
    """A message for another instance; `payload` is encoded already."""

    partition: str
    key: str
    payload: bytes
    deadline_ms: float | None
    trace: str = ""
    """W3C traceparent; empty if the message is not sampled."""


class Emitted(NamedTuple):
    """A value for a named egress."""

    egress: str
    key: str
    payload: bytes


class Delayed(NamedTuple):
    """A message that is sent when the partition's clock has reached `due_ms`."""

    timer: str
    due_ms: int
    partition: str
    key: str
    payload: bytes
    trace: str = ""


class Cancelled(NamedTuple):
    """A delayed message taken back; `partition` is the one that keeps the timer."""

    partition: str
    timer: str


class WindowDue(NamedTuple):
    """A window of a key ends when the watermark has reached `due_ms`."""

    timer: str
    due_ms: int
    key: str


class TooLate(NamedTuple):
    """A message came when all its windows were over; for counting alone."""

    key: str


Effect = Outgoing | Emitted | Delayed | Cancelled | WindowDue | TooLate


class Effects:
    """The effects of one run, in the order in which handlers asked for them.

    One flat list: a failed message is taken back by cutting it off at the message's mark.
    """

    __slots__ = ("items",)

    def __init__(self, items: list[Effect] | None = None) -> None:
        self.items: list[Effect] = [] if items is None else items

    def cut(self, mark: int) -> list[Effect]:
        """Remove and return everything after the mark."""
        tail = self.items[mark:]
        del self.items[mark:]
        return tail


class Routes(Protocol):
    """Tells where a function's keys live. Raises `UnknownFunctionError` for unknown functions."""

    def partition_of(self, function: str, key: str) -> str: ...
