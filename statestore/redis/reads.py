"""Reads of one partition in Redis, a bounded piece at a time.

A call stops when its answer has so many bytes, and the next one goes on from there: Redis does
nothing else while it reads, and an answer that does not come in time would be asked for again and
again. What is small comes with one call. Where a read goes on is told by names, never by cursors of
the server, so that a Redis which was restarted in the middle, or another one, can go on with it.

Only the packed values are here; `store` knows what they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from sublet.statestore.redis.functions import READ_KEYS_MAX, function_name
from sublet.statestore.redis.server import RedisServer

# As much as is sent with one call. A few values more may come: those that were read together.
READ_BYTES_MAX = 16 * 1024 * 1024

_FIRST = "-"
_NO_LIMIT = 2**53


class RedisReads:
    def __init__(self, server: RedisServer, bytes_max: int) -> None:
        self._server = server
        self._bytes_max = bytes_max

    async def _call(self, name: str, key: str, *arguments: Any) -> Any:
        return await self._server.call(name, key, self._bytes_max, *arguments, reads=True)

    async def values(
        self, key: str, suffix: str, names: Sequence[Any]
    ) -> list[tuple[Any, bytes | None]]:
        """Return what a hash has under names, in their order."""
        found: list[tuple[Any, bytes | None]] = []
        while len(found) < len(names):
            piece = names[len(found) : len(found) + READ_KEYS_MAX]
            found += zip(piece, await self._call("get", key, suffix, *piece), strict=False)
        return found

    async def rows(self, key: str, names: Sequence[str]) -> list[tuple[str, bytes, bytes]]:
        """Return key, subkey and value of all rows of some keys.

        Rows of one key may be of different commits if they are too large for one answer, and
        somebody commits meanwhile.
        """
        found: list[tuple[str, bytes, bytes]] = []
        start = 0
        while start < len(names):
            piece = names[start : start + READ_KEYS_MAX]
            plain, *celled = await self._call("load", key, *piece)
            start += len(plain)
            found += [
                (name, b"", value)
                for name, value in zip(piece, plain, strict=False)
                if value is not None
            ]
            for packed_name, subkeys, some in celled:
                name = packed_name.decode()
                cells = [*zip(subkeys, some, strict=False)]
                if len(some) < len(subkeys):
                    cells += await self.values(key, f":cell:{name}", subkeys[len(some) :])
                found += [(name, subkey, each) for subkey, each in cells if each is not None]
        return found

    async def due(
        self, key: str, kind: str, until_ms: int, limit: int
    ) -> list[tuple[bytes, bytes]]:
        """Return the ids and values of the first records that are due before then.

        Less than `limit` only if there are no more, whatever is committed meanwhile.
        """
        found: dict[bytes, bytes] = {}
        last: list[bytes] = []
        while (room := min(limit - len(found), READ_KEYS_MAX)) > 0:
            ids, values, last = await self._call("due", key, kind, until_ms, room, *last)
            pairs = zip(ids, values, strict=False)
            found.update((id_, value) for id_, value in pairs if value is not None)
            if not last:
                break
        return list(found.items())

    def all_records_call(self, key: str, kinds: Sequence[str]) -> tuple[Any, ...]:
        """Return the command whose answer `all_records` begins with."""
        return self._records_call(key, dict.fromkeys(kinds, _FIRST))

    def _records_call(self, key: str, starts: Mapping[str, Any]) -> tuple[Any, ...]:
        name = function_name("records")
        return ("FCALL_RO", name, 1, key, self._bytes_max, *_flat(starts.items()))

    async def all_records(
        self, key: str, kinds: Sequence[str], answer: Any
    ) -> dict[str, list[tuple[bytes, bytes]]]:
        """Return all records of some kinds, by id, given the first answer."""
        found: dict[str, list[tuple[bytes, bytes]]] = {kind: [] for kind in kinds}
        starts: dict[str, Any] = dict.fromkeys(kinds, _FIRST)
        while True:
            # Of the last kinds nothing is there if the first ones have filled the answer.
            for kind, (following, ids, values) in zip(list(starts), answer, strict=False):
                pairs = zip(ids, values, strict=True)
                found[kind] += [(id_, value) for id_, value in pairs if value is not None]
                if following:
                    starts[kind] = following
                else:
                    del starts[kind]
            if not starts:
                return found
            (answer,) = await self._server.ask([self._records_call(key, starts)])

    async def all_entries(self, key: str, suffixes: Iterable[str]) -> dict[str, list[bytes]]:
        """Return all members of some sorted sets."""
        starts: dict[str, Any] = dict.fromkeys(suffixes, "-inf")
        found: dict[str, list[bytes]] = {suffix: [] for suffix in starts}
        while starts:
            some = dict(islice(starts.items(), READ_KEYS_MAX))
            answer = await self._call("entries", key, _NO_LIMIT, *_flat(some.items()))
            for suffix, (following, entries) in zip(some, answer, strict=False):
                found[suffix] += entries
                if following:
                    starts[suffix] = following
                else:
                    del starts[suffix]
        return found

    async def some_entries(self, key: str, suffix: str, after: int, limit: int) -> list[bytes]:
        """Return the first members of a sorted set behind a score: `limit`, or fewer if they are
        large, one at least. They are of one moment."""
        answer = await self._call("entries", key, limit, suffix, after)
        return [each for _, entries in answer for each in entries]


def _flat(pairs: Iterable[tuple[Any, Any]]) -> list[Any]:
    return [each for pair in pairs for each in pair]
