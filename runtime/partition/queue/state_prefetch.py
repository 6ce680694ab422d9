"""Which states of a partition are read before a run asks for them.

Messages that cannot run yet wait anyway: meanwhile the states of their keys are read, all that has
gathered in one go. Pure bookkeeping. Nobody else reads or changes a key while it is being read
here: a run that needs it waits for it. So what arrives is what is stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from sublet.runtime.partition.model.effects import Fetchable
from sublet.runtime.partition.model.environment import PREFETCH_KEYS_MAX
from sublet.runtime.partition.model.work import Chunk, Work

CHUNKS_MAX = 64
READS_MAX = 4
"""So many readings of one partition are under way at once; what is wanted then gathers."""


class _Waiting:
    """A run that needs keys which are being read here."""

    __slots__ = ("keys", "work")

    def __init__(self, keys: set[str]) -> None:
        self.keys = keys
        self.work: Work | None = None
        """None while it reads something else itself."""


class Prefetch:
    __slots__ = (
        "_cells",
        "_keys_max",
        "_loading",
        "_reads",
        "_waiting",
        "_wanted",
        "fetched",
        "fetching",
        "unread_chunks",
    )

    def __init__(self, cells: Fetchable, keys_max: int = PREFETCH_KEYS_MAX) -> None:
        self._cells = cells
        self._keys_max = keys_max
        self.unread_chunks: deque[Chunk] = deque(maxlen=CHUNKS_MAX)
        """Received batches whose keys nobody has looked at."""
        self._wanted: dict[str, None] = {}
        self.fetching: set[str] = set()
        self.fetched: set[str] = set()
        """Here, and not used yet: they must not be forgotten before."""
        self._loading: set[str] = set()
        """Being read for a run."""
        self._reads = 0
        self._waiting: dict[int, _Waiting] = {}

    def arrived(self, chunk: Chunk) -> None:
        if not self._cells.is_complete:
            self.unread_chunks.append(chunk)

    def look(self) -> None:
        """Note which keys of what has come have to be read, as far as there is room."""
        unread = self.unread_chunks
        while unread:
            room = self._keys_max - len(self._wanted) - len(self.fetching) - len(self.fetched)
            if room <= 0:
                return
            chunk = unread[0]
            start = max(chunk.start, chunk.seen)
            stop = chunk.seen = min(chunk.stop, start + room)
            for key in self._cells.unread(chunk.batch.keys[start:stop]):
                if key not in self.fetching and key not in self._loading:
                    self._wanted[key] = None
            if stop == chunk.stop:
                unread.popleft()

    def begin(self) -> Sequence[str]:
        """Return the keys to read now; none while enough is being read."""
        if self._reads >= READS_MAX or not self._wanted:
            return ()
        self._reads += 1
        keys = list(self._wanted)
        self._wanted.clear()
        self.fetching.update(keys)
        return keys

    def load(self, work: Work, missing: Sequence[str]) -> Sequence[str]:
        """A run needs keys that are not in memory: return those that it has to read itself."""
        own = missing
        if self.fetching and not self.fetching.isdisjoint(missing):
            own = [key for key in missing if key not in self.fetching]
            self._waiting[work.id] = _Waiting(self.fetching.intersection(missing))
        if self._wanted:
            for key in own:
                self._wanted.pop(key, None)
        self._loading.update(own)
        return own

    def waits(self, work: Work) -> bool:
        """Tell whether a run that has nothing else to read waits for what is being read here."""
        waiting = self._waiting.get(work.id)
        if waiting is None:
            return False
        waiting.work = work
        return True

    def loaded(self, keys: Iterable[str]) -> None:
        """A run has read these keys."""
        self._loading.difference_update(keys)

    def ended(self, work: Work) -> None:
        """A run will not take place."""
        self._waiting.pop(work.id, None)

    def use(self, keys: Iterable[str]) -> int:
        """A run has these keys; return how many of them were here because of us."""
        before = len(self.fetched)
        self.fetched.difference_update(keys)
        return before - len(self.fetched)

    def touched(self, key: str) -> None:
        """Somebody has changed a key's state: what is being read of it is old."""
        self.fetching.discard(key)
        self._wanted.pop(key, None)

    def forget_unused(self) -> None:
        """Nothing is queued any more that could need what was read."""
        self.fetched.clear()
        self._wanted.clear()
        self.unread_chunks.clear()

    def done(self, keys: Collection[str]) -> tuple[list[str], list[Work]]:
        """Keys were read: return those whose state may be used, and the runs that can begin."""
        self._reads -= 1
        fresh = [key for key in keys if key in self.fetching]
        self.fetching.difference_update(fresh)
        self.fetched.update(fresh)
        able: list[Work] = []
        for number, waiting in list(self._waiting.items()):
            waiting.keys.difference_update(fresh)
            if not waiting.keys:
                del self._waiting[number]
                if waiting.work is not None:
                    able.append(waiting.work)
        return fresh, able
