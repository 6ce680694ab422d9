"""The store for clusters: partitions in Redis, or in a Redis Cluster, whose primaries keep an AOF.

A commit is one call of one function on the server, which compares the epoch, checks everything and
then writes. A group of commits is one call, too, and so with `appendfsync always` one sync: Redis
reads a pipeline in pieces and syncs after each. Large groups are several calls in one pipeline. All
keys of a partition have its name as their hash tag, so that Redis Cluster keeps them together. A
group is there a call for each partition, in one pipeline for each node. Of a partition p, in
`prefix:{p}`:

    (itself)          hash: token, epoch, index, commit, clock_ms, owner
    :state            hash: key to its row without subkey       :cell:KEY  hash: subkey to row
    :keys             sorted by name: all keys with rows         :celled    set: keys with subkeys
    :expiring         by time: rows that expire                  :inbox :sent :egress_first
    :outbox:DEST      by last number: entries                    :egress_next  hashes
    :egress:NAME      by next position: entries
    :record:KIND      hash: id to record; :ids:KIND by id; :due:KIND by time

Beside them `prefix:partitions` and `prefix:emitters:EGRESS` are what readers find partitions by.

A Redis that has lost data, all of it or the newest, is noticed by the next commit of each owner,
and so before any reply leaves: its token is not there any more, or the index is an older one. Who
takes a partition again notices it, too, by what it has known of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import structlog

from sublet.functions.address import split_partition_name
from sublet.functions.errors import UnavailableError
from sublet.statestore.contract import (
    AHEAD,
    DEAD,
    EGRESS,
    EXPIRED,
    JOURNAL,
    PARKED,
    SILENT,
    STAGING,
    WATERMARK,
    Commit,
    EgressEntry,
    OutboxEntry,
    Outcome,
    Record,
    Recovered,
    StateRow,
    StatesPage,
    Trouble,
)
from sublet.statestore.redis.functions import READ_KEYS_MAX, function_name
from sublet.statestore.redis.node import Outages
from sublet.statestore.redis.reads import READ_BYTES_MAX, RedisReads
from sublet.statestore.redis.server import (
    DEFAULT_PREFIX,
    LOOK_EVERY_S,
    RETRY_AFTER_MS,
    TIMEOUT_S,
    RedisServer,
)

log = structlog.get_logger(__name__)

# Redis keeps scores as doubles.
NUMBER_MAX = 2**53
ARGUMENTS_PER_CALL_MAX = 20_000
BYTES_PER_CALL_MAX = 16 * 1024 * 1024
# Redis reads no more in one command.
ARGUMENTS_MAX = 1_000_000
# More would not be sent before its time is over, and sent again and again.
COMMIT_BYTES_MAX = 128 * 1024 * 1024

_OUTCOMES = {each.value: each for each in Outcome}
_COMMIT = function_name("commit")
_ACQUIRE = function_name("acquire")
_RECOVERED = (PARKED, JOURNAL, AHEAD, WATERMARK, EGRESS, EXPIRED, SILENT, STAGING)


class _Packed(NamedTuple):
    """What the function is given of a commit after its token."""

    arguments: list[Any]
    size_bytes: int
    """Of what is to be stored; keys and numbers are short."""


class _Call:
    """Some commits for one call of the function, bounded, as Redis does nothing else meanwhile."""

    __slots__ = ("_arguments", "_bytes", "_keys", "positions")

    def __init__(self) -> None:
        self.positions: list[int] = []
        """Which of the group these are."""
        self._keys: list[str] = []
        self._arguments: list[Any] = []
        self._bytes = 0

    def has_room(self, packed: _Packed) -> bool:
        return not self._keys or (
            len(self._arguments) + len(packed.arguments) <= ARGUMENTS_PER_CALL_MAX
            and self._bytes + packed.size_bytes <= BYTES_PER_CALL_MAX
        )

    def add(self, position: int, key: str, token: str, packed: _Packed) -> None:
        self.positions.append(position)
        self._keys.append(key)
        self._arguments += (1 + len(packed.arguments), token)
        self._arguments += packed.arguments
        self._bytes += packed.size_bytes

    def command(self) -> tuple[Any, ...]:
        return ("FCALL", _COMMIT, len(self._keys), *self._keys, *self._arguments)


class RedisStore:
    """A `Store` in a Redis that all workers of a cluster use."""

    shared = True

    def __init__(
        self,
        url: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        full_sync: bool = False,
        timeout_s: float = TIMEOUT_S,
        look_every_s: float = LOOK_EVERY_S,
        read_bytes_max: int = READ_BYTES_MAX,
    ) -> None:
        """Connects when it is first used, and then raises StoreServerError if this Redis cannot
        keep what the store promises."""
        self._server = RedisServer(
            url,
            prefix=prefix,
            full_sync=full_sync,
            timeout_s=timeout_s,
            look_every_s=look_every_s,
        )
        self._reads = RedisReads(self._server, read_bytes_max)
        self._registry = f"{prefix}:partitions"
        # Of each partition what its last acquisition here has written.
        self._tokens: dict[str, str] = {}
        # Partition to the epoch and index that were there for certain: none older may come after.
        self._known: dict[str, tuple[int, int]] = {}
        # Partition and egress that are known to be named in the store.
        self._emitters: dict[str, set[str]] = {}
        # Partitions whose last commit Redis could not run, so that it is told once.
        self._stuck: set[str] = set()

    @property
    def outages(self) -> Outages:
        """What a directory on the same Redis needs, so that only one of the two tells."""
        return self._server.outages

    def trouble(self) -> Trouble | None:
        return self._server.outages.trouble()

    def _key(self, partition: str) -> str:
        return f"{self._server.prefix}:{{{partition}}}"

    async def acquire(self, partition: str, worker: str) -> Recovered:
        split_partition_name(partition)
        server, key, token = self._server, self._key(partition), secrets.token_hex(8)
        # Of before the question: what others learn meanwhile may be newer than the answer.
        known = self._known.get(partition)
        # A partition that tools cannot find would be worse than a name without one.
        _, (epoch, index, clock_ms) = await server.ask(
            [
                ("ZADD", self._registry, 0, partition),
                ("FCALL", _ACQUIRE, 1, key, token, worker),
            ]
        )
        self._tokens[partition] = token
        # If the data was lost, so were these.
        self._emitters.pop(partition, None)
        # From here on nobody else writes to it, or we are fenced ourselves.
        inbox, sent, first, following, dead_count, key_count, records = await server.ask(
            [
                ("HGETALL", f"{key}:inbox"),
                ("HGETALL", f"{key}:sent"),
                ("HGETALL", f"{key}:egress_first"),
                ("HGETALL", f"{key}:egress_next"),
                ("HLEN", f"{key}:record:{DEAD}"),
                ("ZCARD", f"{key}:keys"),
                self._reads.all_records_call(key, _RECOVERED),
            ]
        )
        lost = known is not None and (int(epoch) <= known[0] or int(index) < known[1])
        numbers_sent = _numbers(sent)
        egress_next = _numbers(following)
        by_kind = await self._reads.all_records(key, _RECOVERED, records)
        parked, journal, ahead, watermarks, egress_marks, expired, silent, staging = [
            [_record(kind, *each) for each in by_kind[kind]] for kind in _RECOVERED
        ]
        outbox = await self._outbox(key, sorted(numbers_sent))
        await self._check_unchanged(partition, token, int(epoch))
        if known is not None and lost:
            self._tell_lost(partition, *known, f"epoch {int(epoch) - 1} index {int(index)}")
        self._known[partition] = (int(epoch), int(index))
        return Recovered(
            epoch=int(epoch),
            index=int(index),
            clock_ms=int(clock_ms),
            inbox=_numbers(inbox),
            sent=numbers_sent,
            outbox=outbox,
            egress={name: (each, egress_next[name]) for name, each in _numbers(first).items()},
            parked=parked,
            journal=journal,
            ahead=ahead,
            watermarks=watermarks,
            egress_marks=egress_marks,
            expired=expired,
            silent=silent,
            staging=staging,
            dead_count=dead_count,
            empty=key_count == 0,
            lost=lost,
            token=token,
        )

    async def _check_unchanged(self, partition: str, token: str, epoch: int) -> None:
        """Fail if what was read since the partition was taken may be of different moments."""
        (newest,) = await self._server.ask([("HMGET", self._key(partition), "token", "epoch")])
        if newest[0] == token.encode():
            return
        if int(newest[1] or 0) <= epoch:
            raise UnavailableError(f"Redis lost {partition} during the takeover", RETRY_AFTER_MS)
        raise UnavailableError(f"another worker has taken over {partition}", RETRY_AFTER_MS)

    async def _outbox(self, key: str, destinations: list[str]) -> list[OutboxEntry]:
        """Read what is not acknowledged."""
        names = {f":outbox:{each}": each for each in destinations}
        found = await self._reads.all_entries(key, names)
        return [
            OutboxEntry(names[suffix], *_entry(each))
            for suffix, packed in found.items()
            for each in packed
        ]

    async def commit(self, commits: Sequence[Commit]) -> list[Outcome]:
        if not commits:
            return []
        packed, refused = _all_packed(commits)
        outcomes = [
            Outcome.REFUSED if each.partition in refused else Outcome.UNKNOWN for each in commits
        ]
        try:
            left_out = await self._name_emitters(commits) | refused
            calls = await self._calls(commits, packed, left_out)
            answers = await self._server.send([each.command() for each in calls])
        except UnavailableError:
            return outcomes
        for call, answer in zip(calls, answers, strict=True):
            if not isinstance(answer, Exception):
                for position, each in zip(call.positions, answer, strict=True):
                    outcomes[position] = self._outcome(commits[position], each)
        return outcomes

    async def _calls(
        self, commits: Sequence[Commit], packed: list[_Packed], left_out: Container[str] = ()
    ) -> list[_Call]:
        """Put commits into as few calls as slots and bounds allow."""
        keys = [self._key(each.partition) for each in commits]
        slots = await self._server.slots_of(keys)
        calls: list[_Call] = []
        open_calls: dict[int, _Call] = {}
        for position, (commit, key, slot) in enumerate(zip(commits, keys, slots, strict=True)):
            if commit.partition in left_out:
                continue
            call = open_calls.get(slot)
            if call is None or not call.has_room(packed[position]):
                call = open_calls[slot] = _Call()
                calls.append(call)
            call.add(position, key, commit.token, packed[position])
        return calls

    def _emitters_key(self, egress: str) -> str:
        return f"{self._server.prefix}:emitters:{egress}"

    async def _name_emitters(self, commits: Sequence[Commit]) -> set[str]:
        """Enter who emits to an egress for the first time, before anything of it can be read.

        Returns the partitions for which that failed; their commits have to wait.
        """
        new = {
            (entry.egress, each.partition)
            for each in commits
            for entry in each.egress
            if entry.egress not in self._emitters.get(each.partition, ())
        }
        if not new:
            return set()
        names = sorted(new)
        answers = await self._server.send(
            [("ZADD", self._emitters_key(egress), 0, name) for egress, name in names]
        )
        unnamed: set[str] = set()
        for (egress, name), answer in zip(names, answers, strict=True):
            if isinstance(answer, Exception):
                unnamed.add(name)
            else:
                self._emitters.setdefault(name, set()).add(egress)
        return unnamed

    def _outcome(self, commit: Commit, answer: bytes) -> Outcome:
        word, _, found = answer.decode().partition(" ")
        if word == "lost":
            self._tell_lost(commit.partition, commit.epoch, commit.index - 1, found)
            # It is told: taking the partition again is no second loss.
            self._known.pop(commit.partition, None)
            word = Outcome.GAP.value
        outcome = _OUTCOMES.get(word)
        if outcome is None:
            # A key of ours that somebody else has written to, or a slot that is being moved.
            if commit.partition not in self._stuck:
                self._stuck.add(commit.partition)
                error = answer.decode()
                log.error("commit_failing", partition=commit.partition, error=error)
            return Outcome.UNKNOWN
        self._stuck.discard(commit.partition)
        if outcome in (Outcome.DONE, Outcome.DUPLICATE):
            newest = (commit.epoch, commit.index)
            # The partition may have been taken again before this answer came.
            self._known[commit.partition] = max(newest, self._known.get(commit.partition, newest))
        return outcome

    def _tell_lost(self, partition: str, epoch: int, index: int, found: str) -> None:
        log.error(
            "redis_lost_its_data",
            redis=self._server.name,
            partition=partition,
            committed=f"epoch {epoch} index {index}",
            found=found,
            problem="acknowledged commits were lost; the partition continues with what is left",
            remedy="docs/operating.md, Redis has lost data",
        )

    async def load(self, partition: str, keys: Sequence[str]) -> list[StateRow]:
        found = await self._reads.rows(self._key(partition), list(dict.fromkeys(keys)))
        return [_row(*each) for each in found]

    async def records(self, partition: str, kind: str, ids: Sequence[str]) -> list[Record]:
        return await self._records(self._key(partition), kind, list(dict.fromkeys(ids)))

    async def _records(self, key: str, kind: str, ids: list[str]) -> list[Record]:
        found = await self._reads.values(key, f":record:{kind}", ids)
        return [_record(kind, id_.encode(), each) for id_, each in found if each is not None]

    async def records_due(
        self, partition: str, kind: str, until_ms: int, limit: int
    ) -> list[Record]:
        found = await self._reads.due(self._key(partition), kind, until_ms, limit)
        return [_record(kind, *each) for each in found]

    async def record_ids(
        self, partition: str, kind: str, limit: int, after: str = ""
    ) -> list[Record]:
        key, start = self._key(partition), f"({after}" if after else "-"
        (ids,) = await self._server.ask(
            [("ZRANGE", f"{key}:ids:{kind}", start, "+", "BYLEX", "LIMIT", 0, limit)]
        )
        return await self._records(key, kind, [each.decode() for each in ids])

    async def states(
        self,
        partition: str,
        epoch: int,
        *,
        keys: Sequence[str] | None = None,
        after: str | None = None,
        limit: int = 0,
    ) -> StatesPage | None:
        upto: str | None = None
        if keys is None:
            start = "-" if after is None else f"({after}"
            keys_key = f"{self._key(partition)}:keys"
            (found,) = await self._server.ask(
                [("ZRANGE", keys_key, start, "+", "BYLEX", "LIMIT", 0, limit)]
            )
            keys = [each.decode() for each in found]
            # Told by the keys, not by the states: those of some may just have been deleted.
            upto = keys[-1] if len(keys) == limit else None
        by_key: dict[str, list[StateRow]] = {}
        for row in sorted(await self.load(partition, keys)):
            by_key.setdefault(row.key, []).append(row)
        (newest,) = await self._server.ask([("HMGET", self._key(partition), "token", "epoch")])
        token = self._tokens.get(partition, "")
        if newest[0] != token.encode() or int(newest[1] or 0) != epoch:
            return None
        return StatesPage([by_key[key] for key in sorted(by_key)], upto)

    async def scan(
        self, function: str, after: tuple[str, str] | None, limit: int
    ) -> list[tuple[str, list[StateRow]]]:
        page: list[tuple[str, list[StateRow]]] = []
        for partition in await self._partitions(function):
            if after is not None and partition < after[0]:
                continue
            start = "-"
            if after is not None and partition == after[0]:
                start = f"({after[1]}"
            while len(page) < limit:
                piece = min(limit - len(page), READ_KEYS_MAX)
                keys_key = f"{self._key(partition)}:keys"
                (keys,) = await self._server.ask(
                    [("ZRANGE", keys_key, start, "+", "BYLEX", "LIMIT", 0, piece)]
                )
                if not keys:
                    break
                start = f"({keys[-1].decode()}"
                by_key: dict[str, list[StateRow]] = {}
                for row in sorted(await self.load(partition, [each.decode() for each in keys])):
                    by_key.setdefault(row.key, []).append(row)
                page += [(partition, by_key[key]) for key in sorted(by_key)]
        return page

    async def _partitions(self, function: str) -> list[str]:
        """Return the names of a function's partitions that were ever acquired, in order."""
        # After the slash comes the zero: all names that begin with the function and a slash.
        (found,) = await self._server.ask(
            [("ZRANGE", self._registry, f"[{function}/", f"({function}0", "BYLEX")]
        )
        names = [each.decode() for each in found]
        return [each for each in names if split_partition_name(each)[0] == function]

    async def read_egress(
        self, egress: str, partition: str, position: int, limit: int
    ) -> list[EgressEntry]:
        key, suffix = self._key(partition), f":egress:{egress}"
        found = await self._reads.some_entries(key, suffix, position, limit)
        return [EgressEntry(egress, *_entry(each)) for each in found]

    async def egress_partitions(self, egress: str) -> dict[str, tuple[int, int]]:
        (found,) = await self._server.ask([("ZRANGE", self._emitters_key(egress), 0, -1)])
        names = [each.decode() for each in found]
        keys = [self._key(each) for each in names]
        firsts = await self._ask_in_pieces([("HGET", f"{k}:egress_first", egress) for k in keys])
        nexts = await self._ask_in_pieces([("HGET", f"{k}:egress_next", egress) for k in keys])
        return {
            name: (int(first), int(following))
            for name, first, following in zip(names, firsts, nexts, strict=True)
            if first is not None and following is not None
        }

    async def _ask_in_pieces(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        answers: list[Any] = []
        for piece in _pieces(commands):
            answers += await self._server.ask(piece)
        return answers

    async def close(self) -> None:
        await self._server.close()


def _pieces(items: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(items), READ_KEYS_MAX):
        yield items[start : start + READ_KEYS_MAX]


def _pairs(found: Any) -> dict[bytes, bytes]:
    """Return a hash as Redis answers it, which is flat where no command says what it is."""
    if isinstance(found, dict):
        return found
    return dict(zip(found[::2], found[1::2], strict=True))


def _numbers(found: Any) -> dict[str, int]:
    return {name.decode(): int(each) for name, each in _pairs(found).items()}


def _number(value: int) -> int:
    """Return a number that Redis can keep exactly."""
    if not -NUMBER_MAX <= value <= NUMBER_MAX:
        raise OverflowError(f"{value} is too large for the store; allowed: up to 2**53")
    return value


def _with_time(time_ms: int | None, value: bytes) -> bytes:
    return b":" + value if time_ms is None else b"%d:%b" % (_number(time_ms), value)


DAMAGED = b"\xc1"
"""The one byte with which no msgpack begins: whoever reads what is behind it says so, by name."""


def _split_time(packed: bytes) -> tuple[int | None, bytes]:
    time_ms, _, value = packed.partition(b":")
    try:
        return (int(time_ms) if time_ms else None), value
    except ValueError:
        # Of one key, or one timer; nobody else has to suffer for it.
        return 0, DAMAGED + packed


def _row(key: str, subkey: bytes, packed: bytes) -> StateRow:
    expires_ms, value = _split_time(packed)
    if value.startswith(DAMAGED):
        expires_ms = None  # It must not be taken for one that is over.
    return StateRow(key, subkey, value, expires_ms)


def _record(kind: str, id_: bytes, packed: bytes) -> Record:
    due_ms, value = _split_time(packed)
    return Record(kind, id_.decode(), value, due_ms)


def _entry(packed: bytes) -> tuple[int, int, bytes]:
    first, length, data = packed.split(b":", 2)
    return int(first), int(length), data


def _packed_entry(entry: OutboxEntry | EgressEntry) -> bytes:
    return b"%d:%d:%b" % (entry.first, entry.length, entry.data)


def _all_packed(commits: Sequence[Commit]) -> tuple[list[_Packed], set[str]]:
    """Return commits packed, and the partitions of those that Redis could never take."""
    packed: list[_Packed] = []
    refused: set[str] = set()
    for commit in commits:
        try:
            packed.append(_packed(commit))
        except OverflowError as error:
            _tell_refused(commit, error)
            packed.append(_Packed([], 0))
            refused.add(commit.partition)
    return packed, refused


def _tell_refused(commit: Commit, error: Exception) -> None:
    log.error("commit_refused", partition=commit.partition, error=str(error))


def _packed(commit: Commit) -> _Packed:
    """Return a commit as the function takes it; OverflowError if it is too much."""
    packed: list[Any] = [
        _number(commit.epoch),
        commit.index - 1,
        _number(commit.index),
        commit.id,
        _number(commit.clock_ms),
    ]

    def add(name: str, of: str, arguments: list[Any]) -> None:
        packed.extend((name, of, len(arguments)))
        packed.extend(arguments)

    if commit.state:
        _add_state(add, commit.state)
    if commit.inbox_forgotten:
        add("HDEL", ":inbox", commit.inbox_forgotten)
    if commit.inbox:
        add("HSET", ":inbox", _flat(commit.inbox.items()))
    _add_outbox(add, commit)
    _add_egress(add, commit)
    if commit.records:
        _add_records(add, commit.records)
    if len(packed) > ARGUMENTS_MAX:
        raise OverflowError(
            f"a commit of {commit.partition} is {len(packed)} arguments for Redis; "
            f"allowed: up to {ARGUMENTS_MAX}. Write fewer rows at a time"
        )
    size_bytes = sum([len(each) for each in packed if type(each) is bytes])
    if size_bytes > COMMIT_BYTES_MAX:
        raise OverflowError(
            f"a commit of {commit.partition} has {size_bytes} bytes; "
            f"allowed: up to {COMMIT_BYTES_MAX}. Write, send and emit less at a time"
        )
    return _Packed(packed, size_bytes)


def _flat(pairs: Iterable[tuple[Any, Any]]) -> list[Any]:
    return [each for pair in pairs for each in pair]


def _add_state(add: Any, rows: list[StateRow]) -> None:
    kept: list[Any] = []
    gone: list[str] = []
    cells: dict[str, list[Any]] = {}
    cells_gone: dict[str, list[bytes]] = {}
    expiring: list[Any] = []
    # Of a row that is there twice, the last counts.
    for row in {(row.key, row.subkey): row for row in rows}.values():
        key, subkey, value, expires_ms = row
        if value is None:
            if subkey:
                cells_gone.setdefault(key, []).append(subkey)
            else:
                gone.append(key)
            continue
        packed = _with_time(expires_ms, value)
        if subkey:
            cells.setdefault(key, []).extend((subkey, packed))
        else:
            kept += (key, packed)
        if expires_ms is not None:
            name = key.encode()
            expiring += (expires_ms, b"%d:%b%b" % (len(name), name, subkey))
    if kept:
        add("rows", "", kept)
    if gone:
        add("rows_gone", "", gone)
    for key, changed in cells.items():
        add("cells", key, changed)
    for key, deleted in cells_gone.items():
        add("cells_gone", key, deleted)
    if expiring:
        add("ZADD", ":expiring", expiring)


def _add_outbox(add: Any, commit: Commit) -> None:
    if commit.outbox_forgotten:
        for destination in commit.outbox_forgotten:
            add("UNLINK", f":outbox:{destination}", [])
        add("HDEL", ":sent", commit.outbox_forgotten)
    for destination, last in commit.outbox_acknowledged.items():
        add("ZREMRANGEBYSCORE", f":outbox:{destination}", ["-inf", _number(last)])
    if not commit.outbox:
        return
    sent: dict[str, int] = {}
    entries: dict[str, list[Any]] = {}
    for entry in commit.outbox:
        last = _number(entry.first + entry.length - 1)
        sent[entry.destination] = last
        entries.setdefault(entry.destination, []).extend((last, _packed_entry(entry)))
    for destination, scored in entries.items():
        add("ZADD", f":outbox:{destination}", scored)
    add("HSET", ":sent", _flat(sent.items()))


def _add_egress(add: Any, commit: Commit) -> None:
    for entry in commit.egress:
        following = _number(entry.first + entry.length)
        add("ZADD", f":egress:{entry.egress}", [following, _packed_entry(entry)])
        add("emitted", entry.egress, [entry.first, following])
    for egress, position in commit.egress_trimmed.items():
        add("trimmed", egress, [_number(position)])


def _add_records(add: Any, records: list[Record]) -> None:
    kinds: dict[str, dict[str, Record]] = {}
    for record in records:
        kinds.setdefault(record.kind, {})[record.id] = record
    for kind, of_kind in kinds.items():
        gone = [each.id for each in of_kind.values() if each.value is None]
        kept = [(each.id, each.value, each.due_ms) for each in of_kind.values()]
        written = [(id_, _with_time(due, value)) for id_, value, due in kept if value is not None]
        due = [(due, id_) for id_, value, due in kept if value is not None and due is not None]
        not_due = [id_ for id_, value, due in kept if value is None or due is None]
        if gone:
            add("HDEL", f":record:{kind}", gone)
            add("ZREM", f":ids:{kind}", gone)
        if not_due:
            add("ZREM", f":due:{kind}", not_due)
        if written:
            add("HSET", f":record:{kind}", _flat(written))
            add("ZADD", f":ids:{kind}", _flat((0, id_) for id_, _ in written))
        if due:
            add("ZADD", f":due:{kind}", _flat(due))
