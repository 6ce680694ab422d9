"""Who waits for whom: each busy key with its waiters, what may run, what is tried again.

Pure bookkeeping of messages that wait by themselves. A key is *busy* while a message of it runs
beside others, awaits something or waits for a retry; later messages of it are its waiters, in
order, and the first of them becomes ready when the key is released, which then stays busy for it.
Runs that go on alone hold no keys: they are told apart by the partition.

What one message locks depends on the kind of function: its key; everything, in a function with one
state; only itself, in one without.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from sublet.runtime.partition.model.work import QueuedMessage
from sublet.runtime.protocol.messages import Message


class KeyLocks:
    __slots__ = ("_kind", "keys", "ready", "retries")

    def __init__(self, kind: str) -> None:
        """`kind` is that of the function."""
        self._kind = kind
        self.keys: dict[str, deque[QueuedMessage]] = {}
        """Each busy lock with its waiters."""
        self.ready: deque[QueuedMessage] = deque()
        """What may run now; its keys are busy."""
        self.retries: list[tuple[float, int, QueuedMessage]] = []
        """A heap: when each is tried again, and its order."""

    def lock_of(self, message: Message) -> str:
        kind = self._kind
        if kind == "keyed":
            return message.key
        return "" if kind == "stateful" else f"\x00{message.id}"

    def hold(self, waiting: QueuedMessage) -> None:
        """Let later messages of its key wait for this one."""
        self.keys.setdefault(self.lock_of(waiting.message), deque())

    def is_busy(self, key: str) -> bool:
        """Tell whether new messages of a key have to wait for others."""
        kind = self._kind
        return (key if kind == "keyed" else "") in self.keys and kind != "stateless"

    def hold_all(self, keys: Iterable[str]) -> None:
        """As `hold`, of messages of these keys that run together."""
        if self._kind == "keyed":
            held = self.keys
            for key in keys:
                if key not in held:
                    held[key] = deque()
        elif self._kind == "stateful":
            self.keys.setdefault("", deque())

    def release_all(self, keys: Iterable[str]) -> None:
        """As `release`, of those that `hold_all` held."""
        if self._kind == "keyed":
            for key in keys:
                self.release(key)
        elif self._kind == "stateful":
            self.release("")

    def requeue_front(self, lock: str, messages: Sequence[QueuedMessage]) -> None:
        """Put messages that came back from a run before those that were taken after them."""
        self.keys.setdefault(lock, deque()).extendleft(reversed(messages))

    def release(self, lock: str) -> None:
        """Let the next message go on, if the key is busy."""
        waiters = self.keys.get(lock)
        if waiters is None:
            return
        if waiters:
            self.ready.append(waiters.popleft())
        else:
            del self.keys[lock]

    def make_ready_or_wait(self, waiting: QueuedMessage) -> None:
        """Let a message run next, or wait for its busy key."""
        lock = self.lock_of(waiting.message)
        waiters = self.keys.get(lock)
        if waiters is None:
            self.keys[lock] = deque()
            self.ready.append(waiting)
        else:
            waiters.append(waiting)

    def retry_at(self, at_ms: float, waiting: QueuedMessage) -> None:
        heappush(self.retries, (at_ms, waiting.message.order, waiting))

    def take_retries(self, now_ms: float) -> None:
        """Let run, or wait for their keys, those whose time has come."""
        retries = self.retries
        while retries and retries[0][0] <= now_ms:
            waiting = heappop(retries)[2]
            if waiting.holds_key:
                self.ready.append(waiting)
            else:
                self.make_ready_or_wait(waiting)

    def retry_now(self, waiting: QueuedMessage, now_ms: float) -> None:
        """Let a message not wait for its retry any longer, if it does."""
        self.retries[:] = [
            (now_ms, order, each) if each is waiting else (at_ms, order, each)
            for at_ms, order, each in self.retries
        ]
        heapify(self.retries)

    def remove(self, waiting: QueuedMessage) -> bool:
        """Take a message from the waiters of its key; return whether it was one."""
        waiters = self.keys.get(self.lock_of(waiting.message))
        if waiters is None or waiting not in waiters:
            return False
        waiters.remove(waiting)
        return True

    def has_same_waiter(self, waiting: QueuedMessage) -> bool:
        """Tell whether a message with its idempotency key waits for the one that goes on."""
        message = waiting.message
        waiters = self.keys.get(self.lock_of(message), ())
        return waiting not in waiters and any(
            each.message.extra.idempotency_key == message.extra.idempotency_key
            and each.message.key == message.key
            for each in waiters
        )

    def clear(self) -> None:
        self.ready.clear()
        self.keys.clear()
