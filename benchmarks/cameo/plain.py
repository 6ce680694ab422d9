"""The tenants of the overhead experiment on a worker without any order: what scheduling costs.

Importing this module in a worker takes the order's machinery away before the worker is built:
nothing is ranked, costs and paths are told to nobody, and partitions have their turns as they came.
"""

from typing import Any

from benchmarks.cameo.app import many
from sublet.runtime.hosting import turns
from sublet.scheduler.urgency import Urgency

__all__ = ["many"]


class FirstCome:
    """In the place of `ReadyQueue`."""

    def __init__(self, order: object, starvation_ms: float = 0.0) -> None:
        self._items: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self._items)

    def put(self, name: str, item: Any, rank: float, arrived_ms: float) -> None:
        if name not in self._items:
            self._items[name] = item

    def pop(self, now_ms: float) -> Any:
        return self._items.pop(next(iter(self._items)))

    def discard(self, name: str) -> None:
        self._items.pop(name, None)

    def rank(self) -> float:
        return 0.0


def _no_rank(self: Urgency, *work: Any) -> float:
    return 0.0


def _no_context(self: Urgency, *work: Any) -> int:
    return 0


setattr(turns, "ready_queue", FirstCome)  # noqa: B010  # Its type is another; its use is the same.
setattr(Urgency, "rank", _no_rank)  # noqa: B010
setattr(Urgency, "context_version", _no_context)  # noqa: B010
