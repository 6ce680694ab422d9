"""The SQL of the folded tables: writing a delta, and reading under what is newer.

Statements carry many rows each. Every call into SQLite gives the interpreter lock away, and a
thread that has to ask for it back once a row crawls beside a busy event loop.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from sublet.statestore.contract import (
    AHEAD,
    DEAD,
    EGRESS,
    EXPIRED,
    IDEMPOTENCY,
    JOURNAL,
    PARKED,
    SILENT,
    STAGING,
    WATERMARK,
    EgressEntry,
    OutboxEntry,
    Record,
    Recovered,
    StateRow,
    StatesPage,
)
from sublet.statestore.delta import (
    DamagedCommitError,
    Delta,
    RecordTuple,
    RowTuple,
    merge_records,
    merge_state,
)
from sublet.statestore.sqlite.file import DamagedChangelogError

Row = TypeVar("Row", bound=tuple[Any, ...])

STATEMENT_ROWS_MAX = 256
STATEMENT_BYTES_MAX = 1024 * 1024
EXPIRED_PER_STATEMENT_MAX = 256
# A query for fewer keys is filled up with the last one, so that few statements are prepared.
KEYS_PER_QUERY = (1, 8, 64, 256)


class Statement(NamedTuple):
    sql: str
    parameters: list[Any]
    rows: int
    size_bytes: int


def statements(
    head: str, tail: str, rows: Iterable[Row], blob_column: int | None = None
) -> Iterator[Statement]:
    """Yield statements `head (?, …), (?, …) … tail` of bounded size for the rows.

    Rows are small but for the column that holds a blob.
    """
    parameters: list[Any] = []
    count = size_bytes = 0
    for row in rows:
        parameters += row
        count += 1
        if blob_column is not None:
            size_bytes += len(row[blob_column])
        if count >= STATEMENT_ROWS_MAX or size_bytes >= STATEMENT_BYTES_MAX:
            yield _statement(head, tail, parameters, count, size_bytes)
            parameters = []
            count = size_bytes = 0
    if count:
        yield _statement(head, tail, parameters, count, size_bytes)


def _statement(
    head: str, tail: str, parameters: list[Any], count: int, size_bytes: int
) -> Statement:
    row = "(" + ",".join("?" * (len(parameters) // count)) + ")"
    return Statement(head + ",".join([row] * count) + tail, parameters, count, size_bytes)


def write_statements(partition: int, delta: Delta) -> Iterator[Statement]:
    """Yield what brings a partition's tables to the delta's index, the last one marking it.

    They may run in several transactions: until the mark is written, the whole changelog is
    applied again after a crash, which comes to the same.
    """
    yield from _state_statements(partition, delta)
    yield from _channel_statements(partition, delta)
    yield from _egress_statements(partition, delta)
    yield from _record_statements(partition, delta)
    yield Statement("UPDATE partition SET folded = ? WHERE id = ?", [delta.index, partition], 1, 0)


def _state_statements(partition: int, delta: Delta) -> Iterator[Statement]:
    # In the order of the table, so that peers meet on the same page.
    rows = delta.state_rows()
    yield from statements(
        "INSERT INTO state VALUES ",
        " ON CONFLICT DO UPDATE SET value = excluded.value, expires_ms = excluded.expires_ms",
        (
            (partition, key, subkey, value, expires_ms)
            for key, subkey, value, expires_ms in rows
            if value is not None
        ),
        blob_column=3,
    )
    yield from statements(
        "DELETE FROM state WHERE (partition, key, subkey) IN (VALUES ",
        ")",
        ((partition, row[0], row[1]) for row in rows if row[2] is None),
    )
    yield from _expired_statements(
        "DELETE FROM state WHERE partition = ?1 AND (key, subkey) IN (SELECT key, subkey"
        " FROM state WHERE partition = ?1 AND expires_ms < ?2 ORDER BY expires_ms LIMIT ?3)",
        [partition, delta.clock_ms, EXPIRED_PER_STATEMENT_MAX],
        sum([row[3] is not None for row in rows]),
    )


def _expired_statements(sql: str, parameters: list[Any], brought: int) -> Iterator[Statement]:
    """Yield what deletes some that expired: twice as many as come, so that none are left behind
    for ever."""
    for _ in range(1 + 2 * brought // EXPIRED_PER_STATEMENT_MAX):
        yield Statement(sql, parameters, 1, 0)


def _channel_statements(partition: int, delta: Delta) -> Iterator[Statement]:
    for table, name, numbers in (
        ("inbox", "source", delta.inbox),
        ("sent", "destination", delta.sent),
    ):
        yield from statements(
            f"INSERT INTO {table} VALUES ",
            " ON CONFLICT DO UPDATE SET last = excluded.last",
            ((partition, end, last) for end, last in numbers.items() if last is not None),
        )
        yield from statements(
            f"DELETE FROM {table} WHERE (partition, {name}) IN (VALUES ",
            ")",
            ((partition, end) for end, last in numbers.items() if last is None),
        )
    for destination, last in delta.outbox_acknowledged.items():
        yield Statement(
            "DELETE FROM outbox WHERE partition = ? AND destination = ? AND first <= ?"
            " AND first + length - 1 <= ?",
            [partition, destination, last, last],
            1,
            0,
        )
    yield from statements(
        "INSERT OR REPLACE INTO outbox VALUES ",
        "",
        ((partition, *entry) for entries in delta.outbox.values() for entry in entries),
        blob_column=4,
    )


def _egress_statements(partition: int, delta: Delta) -> Iterator[Statement]:
    yield from statements(
        "INSERT INTO egress_position VALUES ",
        " ON CONFLICT DO UPDATE SET next = excluded.next",
        ((partition, name, *bounds) for name, bounds in delta.egress_next.items()),
    )
    for name, position in delta.egress_trimmed.items():
        yield Statement(
            "UPDATE egress_position SET first = max(first, min(?, next))"
            " WHERE partition = ? AND egress = ?",
            [position, partition, name],
            1,
            0,
        )
        yield Statement(
            "DELETE FROM egress WHERE partition = ? AND egress = ? AND first < ?"
            " AND first + length <= ?",
            [partition, name, position, position],
            1,
            0,
        )
    yield from statements(
        "INSERT OR REPLACE INTO egress VALUES ",
        "",
        ((partition, *entry) for entries in delta.egress.values() for entry in entries),
        blob_column=4,
    )


def _record_statements(partition: int, delta: Delta) -> Iterator[Statement]:
    rows = [row for of_kind in delta.records.values() for row in of_kind.values()]
    yield from statements(
        "INSERT INTO record VALUES ",
        " ON CONFLICT DO UPDATE SET value = excluded.value, due_ms = excluded.due_ms",
        ((partition, *row) for row in rows if row[2] is not None),
        blob_column=3,
    )
    yield from statements(
        "DELETE FROM record WHERE (partition, kind, id) IN (VALUES ",
        ")",
        ((partition, row[0], row[1]) for row in rows if row[2] is None),
    )
    yield from _expired_statements(
        "DELETE FROM record WHERE partition = ?1 AND kind = ?2 AND id IN (SELECT id FROM record"
        " WHERE partition = ?1 AND kind = ?2 AND due_ms < ?3 ORDER BY due_ms LIMIT ?4)",
        [partition, IDEMPOTENCY, delta.clock_ms, EXPIRED_PER_STATEMENT_MAX],
        len(delta.records.get(IDEMPOTENCY, ())),
    )


# Of changelog rows that are in the tables. Nobody reads them any more, so there is no hurry.
DELETE_FOLDED = (
    "DELETE FROM changelog WHERE seq IN (SELECT seq FROM changelog"
    " WHERE idx <= (SELECT folded FROM partition WHERE id = changelog.partition) LIMIT ?)"
)


def unfolded(connection: sqlite3.Connection, partition: int) -> Delta | None:
    """Return what the changelog holds of a partition beyond its tables, None if nothing."""
    found = connection.execute(
        "SELECT blob FROM changelog WHERE partition = ?1"
        " AND idx > (SELECT folded FROM partition WHERE id = ?1) ORDER BY idx",
        (partition,),
    ).fetchall()
    if not found:
        return None
    delta = Delta()
    try:
        for (blob,) in found:
            delta.absorb(blob)
    except DamagedCommitError as error:
        raise DamagedChangelogError(
            f"the store's changelog is corrupt ({error}); restore the file from a backup"
        ) from error
    return delta


def partition_id(connection: sqlite3.Connection, name: str) -> int | None:
    found = connection.execute("SELECT id FROM partition WHERE name = ?", (name,)).fetchone()
    return None if found is None else int(found[0])


def read_recovered(connection: sqlite3.Connection, partition: int, epoch: int) -> Recovered:
    """Return what a new owner needs, from tables into which everything was folded."""

    def query(sql: str, *parameters: object) -> list[Any]:
        return connection.execute(sql, (partition, *parameters)).fetchall()

    def records(kind: str) -> list[Record]:
        sql = (
            "SELECT kind, id, value, due_ms FROM record"
            " WHERE partition = ? AND kind = ? ORDER BY id"
        )
        return [Record(*row) for row in query(sql, kind)]

    ((index, clock_ms),) = query("SELECT idx, clock_ms FROM partition WHERE id = ?")
    ((dead_count,),) = query("SELECT count(*) FROM record WHERE partition = ? AND kind = ?", DEAD)
    outbox = query(
        "SELECT destination, first, length, data FROM outbox"
        " WHERE partition = ? ORDER BY destination, first"
    )
    positions = query("SELECT egress, first, next FROM egress_position WHERE partition = ?")
    return Recovered(
        epoch=epoch,
        index=index,
        clock_ms=clock_ms,
        inbox=dict(query("SELECT source, last FROM inbox WHERE partition = ?")),
        sent=dict(query("SELECT destination, last FROM sent WHERE partition = ?")),
        outbox=[OutboxEntry(*row) for row in outbox],
        egress={name: (first, after) for name, first, after in positions},
        parked=records(PARKED),
        journal=records(JOURNAL),
        ahead=records(AHEAD),
        watermarks=records(WATERMARK),
        egress_marks=records(EGRESS),
        expired=records(EXPIRED),
        silent=records(SILENT),
        staging=records(STAGING),
        dead_count=dead_count,
        empty=not query("SELECT 1 FROM state WHERE partition = ? LIMIT 1"),
    )


class ReplacedError(Exception):
    """Whoever reads as a partition's owner is not its owner any more."""


def _check_owner(connection: sqlite3.Connection, partition: int, epoch: int | None) -> None:
    """Raise `ReplacedError` if the epoch is not the partition's; None: of nobody.

    After all was read: epochs only grow, so it was the same before.
    """
    if epoch is not None and read_epoch(connection, partition) != epoch:
        raise ReplacedError


# In the query itself, as one more row: a statement more is dear beside a busy event loop, where one
# of few keys takes no longer than getting the interpreter lock back.
_AND_EPOCH = " UNION ALL SELECT NULL, NULL, NULL, epoch FROM partition WHERE id = ?"


def _query_in_blocks(
    connection: sqlite3.Connection,
    partition: int,
    sql: str,
    first: Sequence[object],
    names: Sequence[str],
    epoch: int | None,
) -> Iterator[Any]:
    """Yield the rows of `sql` with `{}` replaced by a list of the names, block by block.

    It has four columns, the first of them never NULL. With an epoch, `ReplacedError` as above.
    """
    start = 0
    while start < len(names):
        left = len(names) - start
        size = next((each for each in KEYS_PER_QUERY if each >= left), KEYS_PER_QUERY[-1])
        block = list(names[start : start + size])
        block += [block[-1]] * (size - len(block))
        start += size
        query, parameters = sql.format(",".join("?" * size)), [*first, *block]
        if epoch is None or start < len(names):
            yield from connection.execute(query, parameters).fetchall()
            continue
        rows = connection.execute(query + _AND_EPOCH, [*parameters, partition]).fetchall()
        # Were it not the last one, the changelog would be read: slow, and never wrong.
        if rows.pop() != (None, None, None, epoch):
            raise ReplacedError
        yield from rows


def read_state(
    connection: sqlite3.Connection,
    partition: int,
    keys: Sequence[str],
    newer: Mapping[str, Mapping[bytes, RowTuple]],
    epoch: int | None = None,
) -> list[StateRow]:
    """Return the rows of distinct keys, those of `newer` in place of those in the table.

    With the epoch of an owner, here and below: `ReplacedError` if it is not the partition's any
    more, since then `newer` is not all that is newer.
    """
    rows = _query_in_blocks(
        connection,
        partition,
        "SELECT key, subkey, value, expires_ms FROM state WHERE partition = ? AND key IN ({})",
        (partition,),
        keys,
        epoch,
    )
    if not newer:
        return [StateRow(*row) for row in rows]
    return [row for of_key in merge_state(rows, newer).values() for row in of_key]


def read_records(
    connection: sqlite3.Connection,
    partition: int,
    kind: str,
    ids: Sequence[str],
    newer: Mapping[str, RecordTuple],
    epoch: int | None = None,
) -> list[Record]:
    """Return the named records that exist, in the order of the distinct ids."""
    rows = _query_in_blocks(
        connection,
        partition,
        "SELECT kind, id, value, due_ms FROM record"
        " WHERE partition = ? AND kind = ? AND id IN ({})",
        (partition, kind),
        ids,
        epoch,
    )
    found = {row.id: row for row in merge_records(rows, newer)}
    return [found[each] for each in ids if each in found]


def read_records_due(
    connection: sqlite3.Connection,
    partition: int,
    kind: str,
    until_ms: int,
    limit: int,
    newer: Mapping[str, RecordTuple],
    epoch: int | None = None,
) -> list[Record]:
    # Each newer record hides at most one row of the table.
    rows = connection.execute(
        "SELECT kind, id, value, due_ms FROM record"
        " WHERE partition = ? AND kind = ? AND due_ms < ? ORDER BY due_ms, id LIMIT ?",
        (partition, kind, until_ms, limit + len(newer)),
    ).fetchall()
    _check_owner(connection, partition, epoch)
    due = [
        (record.due_ms, record.id, record)
        for record in merge_records(rows, newer)
        if record.due_ms is not None and record.due_ms < until_ms
    ]
    return [record for _, _, record in sorted(due)[:limit]]


def read_record_ids(
    connection: sqlite3.Connection,
    partition: int,
    kind: str,
    limit: int,
    newer: Mapping[str, RecordTuple],
    after: str = "",
    epoch: int | None = None,
) -> list[Record]:
    rows = connection.execute(
        "SELECT kind, id, value, due_ms FROM record"
        " WHERE partition = ? AND kind = ? AND id > ? ORDER BY id LIMIT ?",
        (partition, kind, after, limit + len(newer)),
    ).fetchall()
    _check_owner(connection, partition, epoch)
    merged = [record for record in merge_records(rows, newer) if record.id > after]
    return sorted(merged, key=lambda record: record.id)[:limit]


def read_epoch(connection: sqlite3.Connection, partition: int) -> int:
    ((epoch,),) = connection.execute("SELECT epoch FROM partition WHERE id = ?", (partition,))
    return int(epoch)


def read_index(connection: sqlite3.Connection, partition: int, epoch: int) -> int:
    """Return the index of the last commit; `ReplacedError` if it may be another owner's."""
    ((found, index),) = connection.execute(
        "SELECT epoch, idx FROM partition WHERE id = ?", (partition,)
    )
    if found != epoch:
        raise ReplacedError
    return int(index)


def read_states(
    connection: sqlite3.Connection,
    partition: int,
    keys: Sequence[str] | None,
    after_key: str | None,
    limit: int,
    newer: Mapping[str, Mapping[bytes, RowTuple]],
) -> StatesPage:
    """Return the rows of the distinct keys, or of a page of all, by key."""
    if keys is not None:
        by_key: dict[str, list[StateRow]] = {}
        for row in sorted(read_state(connection, partition, keys, newer)):
            by_key.setdefault(row.key, []).append(row)
        return StatesPage(list(by_key.values()))
    # Newer rows may delete as many keys of the table; one more tells whether there are others.
    table_keys_max = limit + len(newer) + 1
    merged = merge_state(_state_page(connection, partition, after_key, table_keys_max), newer)
    order = sorted(merged)
    upto = order[limit - 1] if limit < len(order) else None
    return StatesPage([merged[key] for key in order[:limit]], upto)


def read_scan_page(
    connection: sqlite3.Connection, function: str, after: tuple[str, str] | None, limit: int
) -> list[tuple[str, list[StateRow]]]:
    """Return a page of a function's keys, by partition and key."""
    page: list[tuple[str, list[StateRow]]] = []
    partitions = connection.execute(
        "SELECT name, id FROM partition WHERE function = ? ORDER BY name", (function,)
    ).fetchall()
    for name, partition in partitions:
        if after is not None and name < after[0]:
            continue
        after_key = after[1] if after is not None and name == after[0] else None
        delta = unfolded(connection, partition)
        newer: Mapping[str, Mapping[bytes, RowTuple]] = {}
        if delta is not None:
            later = (key for key in delta.state_keys() if after_key is None or key > after_key)
            newer = delta.state_of(later)
        rows = _state_page(connection, partition, after_key, limit - len(page) + len(newer))
        merged = merge_state(rows, newer)
        page.extend((name, merged[key]) for key in sorted(merged)[: limit - len(page)])
        if len(page) >= limit:
            break
    return page


def _state_page(
    connection: sqlite3.Connection, partition: int, after_key: str | None, key_limit: int
) -> list[RowTuple]:
    # Keys have any number of rows, so the page is cut at keys, not at rows.
    later = "" if after_key is None else " AND key > ?3"
    return connection.execute(
        "SELECT key, subkey, value, expires_ms FROM state WHERE partition = ?1 AND key IN ("
        f"SELECT DISTINCT key FROM state WHERE partition = ?1{later} ORDER BY key LIMIT ?2)",
        (partition, key_limit) if after_key is None else (partition, key_limit, after_key),
    ).fetchall()


def read_egress_entries(
    connection: sqlite3.Connection, egress: str, partition: int, position: int, limit: int
) -> list[EgressEntry]:
    delta = unfolded(connection, partition)
    kept_from = position
    if delta is not None:
        # Entries that the changelog trims may still be in the table.
        kept_from = max(position, delta.egress_trimmed.get(egress, 0))
    rows = connection.execute(
        "SELECT egress, first, length, data FROM egress"
        " WHERE partition = ?1 AND egress = ?2 AND first + length > ?3"
        # Entries do not overlap, so only one that begins before the position can hold it.
        " AND first >= coalesce((SELECT max(first) FROM egress"
        " WHERE partition = ?1 AND egress = ?2 AND first <= ?3), 0) ORDER BY first LIMIT ?4",
        (partition, egress, kept_from, limit),
    ).fetchall()
    merged = {row[1]: EgressEntry(*row) for row in rows}
    if delta is not None:
        for entry in delta.egress.get(egress, ()):
            if entry.first + entry.length > kept_from:
                merged[entry.first] = entry
    return [merged[first] for first in sorted(merged)[:limit]]


def read_egress_partitions(
    connection: sqlite3.Connection, egress: str
) -> dict[str, tuple[int, int]]:
    stored = {
        partition: (first, after)
        for partition, first, after in connection.execute(
            "SELECT partition, first, next FROM egress_position WHERE egress = ?", (egress,)
        )
    }
    found: dict[str, tuple[int, int]] = {}
    for name, partition in connection.execute(
        "SELECT name, id FROM partition ORDER BY name"
    ).fetchall():
        delta = unfolded(connection, partition)
        bounds = stored.get(partition)
        if delta is not None:
            bounds = delta.egress_bounds(egress, bounds)
        if bounds is not None:
            found[name] = bounds
    return found
