"""Which values of an egress a batch has, and which of its tasks reads which. Pure.

Spark keeps an offset of each batch in the query's checkpoint, as JSON, and asks for the values
between two of them, again if it has to. Ours holds a cursor. As positions have no gaps, two cursors
are the same values whenever they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sublet.functions.errors import EgressLostError, RejectedError
from sublet.runtime.client.egress_cursor import EgressCursor
from sublet.runtime.protocol.egress import described
from sublet.runtime.protocol.rpc import EgressGap

ROWS_PER_TASK = 50_000
"""By default, there is one task for so many rows: starting a task takes longer than reading
fewer."""

Offset = dict[str, str]


class Span(NamedTuple):
    """The values between two cursors, of the partitions that the second one names."""

    start: EgressCursor
    end: EgressCursor

    @property
    def rows(self) -> dict[str, int]:
        """Partition to how many values it has here, of those that have any."""
        start = self.start
        counts = {partition: stop - (start.get(partition) or 0) for partition, stop in self.end}
        return {partition: count for partition, count in counts.items() if count > 0}


def placed(place: str, first: EgressCursor, end: EgressCursor) -> EgressCursor:
    """Return the cursor that an option names: "earliest", "latest", or a cursor."""
    if place == "earliest":
        return first
    return end if place == "latest" else EgressCursor(place)


def first_offset(egress: str, cursor: EgressCursor) -> Offset:
    """Return the offset at which a query begins."""
    return {"egress": egress, "cursor": str(cursor), "began": str(cursor)}


def next_offset(start: Offset, end: EgressCursor) -> Offset:
    """Return the offset of the batch that begins at `start` and ends at a cursor.

    Of the first batch it also says where that began: Spark does not keep it, and asks for a first
    offset again when it repeats that batch, when what is the latest, or the oldest, is another one.
    """
    cursor = cursor_of(start)
    if all((cursor.get(partition) or 0) == position for partition, position in end):
        return start
    found = {"egress": start["egress"], "cursor": str(end)}
    if start.get("began") == start["cursor"]:
        found["began"] = start["cursor"]
    return found


def latest_offset(
    start: Offset, first: EgressCursor, end: EgressCursor, rows_max: int | None
) -> Offset:
    """Return the offset of the next batch, of no more than so many values, given what is kept.

    `end` may be the end of another moment, which retention, and so the query, has passed: an offset
    never goes back.
    """
    position = cursor_of(start)
    span = Span(later(position, first), later(position, end))
    return next_offset(start, admitted(span, rows_max))


def cursor_of(offset: Mapping[str, Any]) -> EgressCursor:
    return EgressCursor(offset["cursor"])


def check_offset(egress: str, offset: Mapping[str, Any]) -> None:
    """Refuse an offset that this source did not create."""
    if not all(isinstance(offset.get(name), str) for name in ("egress", "cursor")):
        raise RejectedError(
            f"the checkpoint holds {str(offset)!r:.100}, which is not an offset of an egress: it "
            "belongs to another kind of query; use a new checkpoint"
        )
    if offset["egress"] != egress:
        raise RejectedError(
            f"the checkpoint belongs to a query that reads the egress {offset['egress']!r}, but "
            f"the option egress is {egress!r}; use a new checkpoint"
        )


def span_of(start: Offset, end: Offset) -> Span:
    """Return what the batch between two offsets has."""
    return Span(EgressCursor(end.get("began", start["cursor"])), cursor_of(end))


def checked(egress: str, span: Span, kept: EgressCursor, *, skips_lost: bool) -> list[EgressGap]:
    """Return what of a span is gone, given from where on each partition is kept.

    `EgressLostError` if that is not to be skipped, and `RejectedError` if the span is beyond what
    was written.
    """
    start, end = span
    for partition, position in start:
        written = end.get(partition) or 0
        if position > written:
            raise RejectedError(
                f"the cursor or checkpoint is at position {position} of {partition}, but {egress} "
                f"ends at {written}: it belongs to another cluster, or the store has lost data; "
                "start with a new checkpoint"
            )
    lost = [
        EgressGap(
            partition=partition, first=start.get(partition) or 0, next=kept.get(partition) or 0
        )
        for partition in span.rows
        if (start.get(partition) or 0) < (kept.get(partition) or 0)
    ]
    if lost and not skips_lost:
        raise EgressLostError(
            f"{egress}: {described(lost)}; keep more (settings egress_max, egress_bytes_max, "
            "egress_keep_ms), or skip them (option on_loss=skip)"
        )
    return lost


def later(one: EgressCursor, other: EgressCursor) -> EgressCursor:
    """Return for each partition the later of its positions in two cursors."""
    positions = one.positions
    for partition, position in other:
        positions[partition] = max(position, positions.get(partition, 0))
    return EgressCursor.at(positions)


def admitted(span: Span, rows_max: int | None) -> EgressCursor:
    """Return where to end so that a span has no more than so many values.

    Partitions get equal shares, so that a busy one does not starve the others.
    """
    start, end = span
    rows = span.rows
    if rows_max is None or sum(rows.values()) <= rows_max:
        return end
    shares = dict.fromkeys(rows, 0)
    room = rows_max
    wanting = sorted(rows)
    while room and wanting:
        if share := room // len(wanting):
            for partition in wanting:
                shares[partition] += min(share, rows[partition] - shares[partition])
            room = rows_max - sum(shares.values())
            wanting = [each for each in wanting if shares[each] < rows[each]]
            continue
        # Fewer rows than partitions: another partition goes first in each batch.
        turn = sum(position for _, position in start) % len(wanting)
        for partition in (wanting[turn:] + wanting[:turn])[:room]:
            shares[partition] += 1
        break
    positions = {
        partition: (start.get(partition) or 0) + shares.get(partition, 0) for partition, _ in end
    }
    return EgressCursor.at(positions)


def planned(span: Span, tasks: int | None) -> list[Span]:
    """Cut a span into what single tasks read: at most so many, and none without a value.

    Values of one partition stay together, and so in order, unless there are to be more tasks than
    partitions. By default there is a task for every `ROWS_PER_TASK` values.
    """
    rows = span.rows
    if not rows:
        return []
    total = sum(rows.values())
    if tasks is None:
        tasks = min(-(-total // ROWS_PER_TASK), len(rows))
    if tasks <= len(rows):
        return _packed(span, rows, tasks)
    return _sliced(span, rows, min(tasks, total))


def _packed(span: Span, rows: Mapping[str, int], tasks: int) -> list[Span]:
    """Give whole partitions to tasks, the largest first, each to the task with the fewest rows."""
    loads = [0] * tasks
    given: list[list[str]] = [[] for _ in range(tasks)]
    for partition in sorted(rows, key=lambda each: (-rows[each], each)):
        index = loads.index(min(loads))
        loads[index] += rows[partition]
        given[index].append(partition)
    start, end = span.start, span.end
    return [
        Span(
            EgressCursor.at({each: start.get(each) or 0 for each in some}),
            EgressCursor.at({each: end.get(each) or 0 for each in some}),
        )
        for some in given
    ]


def _sliced(span: Span, rows: Mapping[str, int], tasks: int) -> list[Span]:
    """Lay all values in one line, and cut that into equal parts."""
    total = sum(rows.values())
    found: list[Span] = []
    for index in range(tasks):
        first, stop = index * total // tasks, (index + 1) * total // tasks
        begins: dict[str, int] = {}
        ends: dict[str, int] = {}
        before = 0
        for partition in sorted(rows):
            position = span.start.get(partition) or 0
            begin, end = max(first - before, 0), min(stop - before, rows[partition])
            if begin < end:
                begins[partition], ends[partition] = position + begin, position + end
            before += rows[partition]
        found.append(Span(EgressCursor.at(begins), EgressCursor.at(ends)))
    return found
