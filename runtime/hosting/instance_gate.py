"""Who of those that were invited may serve a worker: an instance with its code, and once.

That it was invited at all is proved by its key, before it comes here. No I/O.
"""

from __future__ import annotations

SERVED_KEPT_MAX = 100_000
"""Names of instances that have been here; there are never so many in a plan."""


class InstanceGate:
    def __init__(self) -> None:
        self._served: dict[str, None] = {}

    def refusal(self, name: str, code: str, own: str) -> str:
        """Let an instance in that has the worker's `own` code, and remember it; return why not, or
        an empty text."""
        if name in self._served:
            return f"{name} has been here before; each instance may come once"
        if code != own:
            return (
                f"{name} has the code {code!r} and this worker {own!r}: deploy the same "
                "code for instances"
            )
        self._served[name] = None
        if len(self._served) > SERVED_KEPT_MAX:
            del self._served[next(iter(self._served))]
        return ""
