"""Rows that a pipeline brings in two steps: staged at first, released when their batch is sealed.

Pure bookkeeping of one partition. A pipeline (Spark, say) works in batches of its own, and does the
same one again after a failure, perhaps with other rows or in another order. So its tasks only
*stage* rows here, under the name of their attempt; nothing runs. Whoever knows which attempts count
*seals* the batch: in one commit their rows become messages of a channel that the partition feeds to
itself, in order, and the batch is marked as sealed. What is staged and never sealed has no effect.

Which attempts a batch consists of is *decided* once, in one partition (the function's first), and
stays decided: a driver that dies in the middle of sealing and comes back with other attempts is
told the first decision, and seals that. A driver that *begins* is of a new generation: once it has
sealed what its predecessors have decided, nothing of theirs counts any more, and what they have
staged makes room.

Rows stay in the store until they are taken: a part's rows are a record that holds what was sent, as
it was sent, and what is known of the part is a small record beside it, which every owner has in
memory. The commit that takes a part's last row deletes both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from math import inf
from typing import Any, assert_never

import msgspec

from sublet.functions.address import PIPELINE_MARK, partition_index_of, split_partition_name
from sublet.functions.codec import (
    check_column,
    column_length,
    is_arrow,
    split_column,
)
from sublet.functions.errors import PayloadError
from sublet.functions.key_column import KeyColumn
from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.commit.commit_participant import CommitParticipant
from sublet.runtime.partition.commit.pending_commit import CommitContents
from sublet.runtime.partition.model.corruption import UNREADABLE, damaged, decoded
from sublet.runtime.protocol.frames import Batch, ErrorInfo, Kind
from sublet.runtime.protocol.pipeline_messages import (
    Ask,
    Begin,
    Complete,
    Decide,
    Decision,
    Describe,
    Description,
    Drop,
    Forget,
    KnownPipeline,
    Progress,
    Request,
    Seal,
    Stage,
    Survey,
    Surveyed,
)
from sublet.statestore.contract import STAGED, STAGING, Record

FEED_BYTES_MAX = 4 * 1024 * 1024
"""Of a pipeline's sealed rows, so much stands in the queue; the rest waits in the store."""
KEPT_BYTES_MAX = 8 * 1024 * 1024
"""Staged rows that stay in memory once they are stored, so that they need not be read again."""
COMMIT_BYTES_MAX = 8 * 1024 * 1024
"""Staged rows in one commit; more are refused until it is done: others wait for it, too."""
PARTS_MAX = 10_000
"""Parts that wait in one partition: each is a record that every owner has in memory."""
PIPELINES_MAX = 10_000
"""Pipelines that a partition knows: what it knows of one is kept until it is forgotten."""
SURVEY_MAX = 1_000
ORPHAN_MS = 7 * 24 * 3_600_000
"""Rows that nobody has sealed for so long are dropped: whoever has staged them is gone."""
ORPHAN_SPARED_MS = 24 * 3_600_000
"""But not so soon after a partition has a new owner: its clock may be ahead."""
SHARE_OF_ANY, SHARE_OF_FIRST, SHARE_OF_SMALL = 1 / 2, 7 / 8, 1 / 16
"""Of the room for staged rows. Anyone may fill half of it; who was there first may go on up to
seven eighths, so that of two that wait for room one can seal; and who has brought no more than a
sixteenth finds room as long as there is any, so that history is not kept out by who waits for it.
"""
RETRY_AFTER_MS = 200
RUNS_KNOWN_MAX = 16
"""Runs of drivers that can be told apart from new ones."""
DECISION_MARK = "="
"""Begins the ids of decisions, to keep them apart from those of pipelines."""
DESCRIPTION_MARK = "#"
FLOOR = "^"
"""The id of the record that says from where on the rows of new pipelines are numbered."""
DESCRIPTIONS_BYTES_MAX = 16 * 1024 * 1024
"""What pipelines have said of themselves in one partition, which every owner has in memory."""


class Part(msgspec.Struct, array_like=True, tag="part"):
    """What is stored of staged rows, beside themselves."""

    pipeline: str
    batch: int
    attempt: str
    number: int
    count: int
    size_bytes: int
    orphan_ms: int
    """When it is dropped, on the partition's clock, unless it is sealed by then."""
    first: int = 0
    """The number of its first row in the pipeline's channel; 0: it is not sealed."""
    due_ms: int | None = None
    """When its rows should be done, on the partition's clock."""
    generation: int = 0
    assigns: bool = False
    is_spared: bool = False
    """A new owner has let it live for longer; the next one does not."""

    @property
    def id(self) -> str:
        return f"{self.pipeline}/{self.batch}/{self.attempt}/{self.number}"

    @property
    def last(self) -> int:
        return self.first + self.count - 1


class Pipeline(msgspec.Struct, array_like=True, tag="pipeline"):
    """What is stored of a pipeline."""

    sealed: int = -1
    """The last batch that is sealed here."""
    next: int = 1
    """The number of the next row in its channel."""
    dead: int = 0
    """How many of its rows have become dead letters."""
    assigns: bool = False


class Floor(msgspec.Struct, array_like=True, tag="floor"):
    """What is stored of all pipelines that were forgotten. Their rows that wait for a retry and
    their dead letters go by their numbers, so nobody who has their name may use those again."""

    next: int = 1
    """No row was ever numbered like this, or higher."""


Stored = Part | Pipeline | Decision | Description | Floor

_decode_request = msgspec.msgpack.Decoder(Request | Survey).decode
_decode_stage = msgspec.msgpack.Decoder(Stage).decode
_decode_stored = msgspec.msgpack.Decoder(Stored).decode
_encode = msgspec.msgpack.Encoder().encode


class Handled:
    """The answer to a request, and what has to be in the commit with it."""

    __slots__ = ("answer", "begins", "error", "forgotten", "records")

    def __init__(
        self,
        answer: Any = None,
        records: Sequence[Record] = (),
        error: ErrorInfo | None = None,
        forgotten: str = "",
        begins: tuple[str, int] | None = None,
    ) -> None:
        self.answer = answer
        self.records = records
        self.error = error
        self.forgotten = forgotten
        """The source of a pipeline whose numbers need not be known any longer."""
        self.begins = begins
        """The source of a pipeline whose first row has this number, and not 1."""


class _Flow:
    """A pipeline, as one partition knows it."""

    __slots__ = (
        "assigns",
        "fed_bytes",
        "fed_count",
        "generation",
        "parked",
        "rows_parked",
        "rows_sealed",
        "rows_staged",
        "sealed",
        "staged",
        "staged_bytes",
        "stored",
    )

    def __init__(self) -> None:
        self.assigns: bool | None = None
        """None: nobody knows yet whether it brings states."""
        self.stored: Pipeline | None = None
        """None: nothing was ever sealed here."""
        self.staged: dict[str, Part] = {}
        """By id, the oldest first."""
        self.sealed: deque[Part] = deque()
        """By number; those before `fed_count` stand in the queue."""
        self.fed_count = 0
        self.fed_bytes = 0
        self.rows_sealed = self.rows_staged = self.staged_bytes = 0
        self.parked: set[int] = set()
        """Numbers of rows that are on record and have never run: they wait for their keys."""
        self.rows_parked = 0
        """Of these, those that are in no part any more."""
        self.generation = 0
        """The latest that has staged something that is still here, or was since the last owner."""

    @property
    def hungry(self) -> bool:
        return self.fed_count < len(self.sealed)

    @property
    def empty(self) -> bool:
        return self.stored is None and not (self.staged or self.sealed)

    def progress(self) -> Progress:
        return Progress(
            -1 if self.stored is None else self.stored.sealed,
            self.rows_sealed + self.rows_parked,
            self.rows_staged,
            0 if self.stored is None else self.stored.dead,
        )

    def stage(self, part: Part) -> None:
        self.staged[part.id] = part
        self.rows_staged += part.count
        self.staged_bytes += part.size_bytes

    def unstage(self, part: Part) -> None:
        del self.staged[part.id]
        self.rows_staged -= part.count
        self.staged_bytes -= part.size_bytes

    def seal(self, part: Part) -> None:
        self.sealed.append(part)
        self.rows_sealed += part.count

    def unseal(self) -> Part:
        """Let go of the first part: of its rows, all are done or on record."""
        part = self.sealed.popleft()
        self.rows_sealed -= part.count
        self.fed_count -= 1
        self.fed_bytes -= part.size_bytes
        if self.parked:
            self.rows_parked += sum(part.first <= each <= part.last for each in self.parked)
        return part

    def park(self, number: int) -> None:
        if number not in self.parked:
            self.parked.add(number)
            self.rows_parked += self._is_in_no_part(number)

    def unpark(self, number: int) -> None:
        if number in self.parked:
            self.parked.remove(number)
            self.rows_parked -= self._is_in_no_part(number)

    def _is_in_no_part(self, number: int) -> bool:
        return not self.sealed or number < self.sealed[0].first


class Staging(CommitParticipant):
    """What pipelines have brought to one partition."""

    def __init__(
        self,
        partition: str,
        records: Sequence[Record],
        clock_ms: int,
        *,
        limits: Limits,
        partition_count: int = 0,
        takes_states: bool = False,
        check_columns: Callable[[msgspec.Raw], None] | None = None,
    ) -> None:
        """With a count, the partition has only its own share of all keys. `check_columns` raises
        `PayloadError` for columns of Arrow that the function cannot take; without it, it takes
        none."""
        self.bytes = 0
        """Staged or sealed, and not taken yet."""
        self.sealed_rows = 0
        """Sealed, and in parts of which not all is taken."""
        self.fed_rows = 0
        """Of these, what was put into the queue."""
        self.hungry: dict[str, _Flow] = {}
        """Source to those of whom not everything that is sealed is in the queue."""
        self.feed_bytes_max = FEED_BYTES_MAX
        self.kept_bytes_max = KEPT_BYTES_MAX
        self._partition = partition
        self._bytes_max = limits.staged_bytes_max
        self._key_bytes_max = limits.key_bytes_max
        self._partition_count = partition_count
        self._flows: dict[str, _Flow] = {}
        """By source."""
        self._floor = Floor()
        self._decisions: dict[str, Decision] = {}
        self._descriptions: dict[str, Description] = {}
        self._descriptions_bytes = 0
        self._takes_states = takes_states
        self._check_columns = check_columns
        self._with_dead: set[str] = set()
        """Pipelines of which more rows are dead letters than is stored."""
        self._spared: dict[str, Part] = {}
        """Parts of which it is not stored that they were."""
        self._part_count = 0
        self._staging: dict[str, None] = {}
        """Sources that have rows here which are not sealed, those first that have them longest."""
        self._orphans_ms: float = inf
        """No part is an orphan before."""
        self._kept: dict[str, bytes] = {}
        """Rows of parts, by id, the oldest first: all that are not committed yet, and others."""
        self._kept_bytes = 0
        self._pending: list[str] = []
        self._pending_bytes = 0
        self._sealing: list[str] = []
        self._loading: set[str] = set()
        self._unreadable: set[str] = set()
        self._recover(records, clock_ms)

    def _recover(self, records: Sequence[Record], clock_ms: int) -> None:
        parts: list[Part] = []
        for record in records:
            stored = decoded(_decode_stored, self._partition, record)
            if isinstance(stored, Part):
                parts.append(stored)
            elif isinstance(stored, Decision):
                self._decisions[record.id.removeprefix(DECISION_MARK)] = stored
            elif isinstance(stored, Description):
                self._describe_as(record.id.removeprefix(DESCRIPTION_MARK), stored)
            elif isinstance(stored, Floor):
                self._floor = stored
            else:
                flow = self._flow(record.id)
                flow.stored, flow.assigns = stored, stored.assigns
        for part in sorted(parts, key=lambda each: (each.first, each.orphan_ms, each.id)):
            flow = self._flow(part.pipeline)
            flow.assigns = part.assigns
            self.bytes += part.size_bytes
            self._part_count += 1
            if part.first:
                flow.seal(part)
                self.sealed_rows += part.count
                self.hungry[PIPELINE_MARK + part.pipeline] = flow
            else:
                spared_ms = clock_ms + ORPHAN_SPARED_MS
                if part.orphan_ms < spared_ms and not part.is_spared:
                    part.orphan_ms, part.is_spared = spared_ms, True
                    self._spared[part.id] = part
                self._staged(flow, part)
                flow.generation = max(flow.generation, part.generation)

    def _flow(self, pipeline: str) -> _Flow:
        return self._flows.setdefault(PIPELINE_MARK + pipeline, _Flow())

    def __contains__(self, source: str) -> bool:
        return source in self._flows

    def _staged(self, flow: _Flow, part: Part) -> None:
        flow.stage(part)
        self._staging.setdefault(PIPELINE_MARK + part.pipeline)
        self._orphans_ms = min(self._orphans_ms, part.orphan_ms)

    def _unstaged(self, flow: _Flow, part: Part) -> None:
        flow.unstage(part)
        if not flow.staged:
            del self._staging[PIPELINE_MARK + part.pipeline]

    # Requests

    def has_room_for(self, size_bytes: int) -> bool:
        """Tell whether a request of this size may be in the next commit."""
        return not self._pending_bytes or self._pending_bytes + size_bytes <= COMMIT_BYTES_MAX

    def handle(self, request: bytes | msgspec.Raw, clock_ms: int) -> Handled:
        """Carry out a request; what it changes has to be in the commit with its answer."""
        try:
            asked = _decode_request(request)
        except UNREADABLE as error:
            return _refused("bad_payload", f"no request of a pipeline: {error}")
        if isinstance(asked, Survey):
            return Handled(self._surveyed(asked.after))
        handled = None if self._knows(asked.pipeline) else self._to_unknown(asked)
        if handled is None:
            handled = self._carry_out(asked, request, clock_ms)
            source = PIPELINE_MARK + asked.pipeline
            if (flow := self._flows.get(source)) is not None and flow.empty:
                del self._flows[source]
        return handled

    def _to_unknown(self, asked: Request) -> Handled | None:
        """Return the answer to a request about a pipeline of which nothing is known, if it is not
        to become known."""
        if isinstance(asked, Ask | Drop | Forget):
            return Handled(Progress(-1))
        if isinstance(asked, Describe) and not asked.text:
            return Handled(Description())
        # Of most, more than one thing is known: names are only counted if it may be close.
        known = len(self._flows) + len(self._decisions) + len(self._descriptions)
        if known < PIPELINES_MAX or len(self._names()) < PIPELINES_MAX:
            return None
        return _refused(
            "rejected",
            f"{self._partition} knows {PIPELINES_MAX} pipelines, the maximum; forget those that "
            "will not come back (`sublet pipelines list`, `sublet pipelines forget`)",
        )

    def _names(self) -> set[str]:
        flows = {source.removeprefix(PIPELINE_MARK) for source in self._flows}
        return flows | self._decisions.keys() | self._descriptions.keys()

    def _surveyed(self, after: str) -> Surveyed:
        found = []
        for name in sorted(each for each in self._names() if each > after)[:SURVEY_MAX]:
            decision = self._decisions.get(name, Decision())
            described = self._descriptions.get(name, Description())
            found.append(
                KnownPipeline(name, decision.batch, described.completed_ms, described.mark)
            )
        return Surveyed(found)

    def _carry_out(self, asked: Request, request: bytes | msgspec.Raw, clock_ms: int) -> Handled:
        match asked:
            case Stage():
                return self._stage(asked, bytes(request), clock_ms)
            case Seal():
                return self._seal(asked, clock_ms)
            case Decide():
                return self._decide(asked)
            case Begin():
                return self._begin(asked)
            case Drop():
                return self._drop(asked)
            case Forget():
                return self._forget(asked)
            case Describe():
                return self._describe(asked)
            case Complete():
                return self._complete(asked, clock_ms)
            case Ask():
                return Handled(self._flow(asked.pipeline).progress())
            case _:
                assert_never(asked)

    def _knows(self, pipeline: str) -> bool:
        return (
            PIPELINE_MARK + pipeline in self._flows
            or pipeline in self._decisions
            or pipeline in self._descriptions
        )

    def _stage(self, asked: Stage, value: bytes, clock_ms: int) -> Handled:
        refusal = self._refusal_of_rows(asked)
        if refusal is not None:
            return _refused("bad_payload", refusal)
        pipeline, batch, attempt, number = asked.pipeline, asked.batch, asked.attempt, asked.part
        generation, assigns = asked.generation, asked.assigns
        size_bytes, orphan_ms = len(value), clock_ms + ORPHAN_MS
        part = Part(pipeline, batch, attempt, number, asked.row_count, size_bytes, orphan_ms)
        part.generation, part.assigns = generation, assigns
        known = self._flows.get(PIPELINE_MARK + pipeline)
        records: list[Record] = []
        if known is not None:
            if known.assigns not in (None, assigns):
                text = f"pipeline {pipeline} brings {'messages' if assigns else 'states'}"
                return _refused("rejected", f"{text}; use another name")
            if generation < known.generation:
                return _superseded(pipeline)
            if generation > known.generation:
                for former in tuple(known.staged.values()):
                    records += self._dropped(known, former)
            sealed = known.stored is not None and batch <= known.stored.sealed
            if sealed or part.id in known.staged:
                # A straggler, or a repetition: of one part, an attempt says one thing.
                return Handled(known.progress(), records)
        flow = self._flow(pipeline)
        flow.generation, flow.assigns = generation, assigns
        if (refused := self._no_room_for(part, flow)) is not None:
            return Handled(None, records, refused)
        self._staged(flow, part)
        self.bytes += size_bytes
        self._part_count += 1
        self._kept[part.id] = value
        self._kept_bytes += size_bytes
        self._pending.append(part.id)
        self._pending_bytes += size_bytes
        records += Record(STAGED, part.id, value), _stored_part(part)
        return Handled(flow.progress(), records)

    def _no_room_for(self, part: Part, flow: _Flow) -> ErrorInfo | None:
        """Return why a part has to wait, or can never be taken, if it has to."""
        if not self._part_count:
            return None
        own_bytes = flow.staged_bytes + part.size_bytes
        share = SHARE_OF_ANY
        if own_bytes <= SHARE_OF_SMALL * self._bytes_max:
            share = 1.0
        elif next(iter(self._staging), PIPELINE_MARK + part.pipeline) == (
            PIPELINE_MARK + part.pipeline
        ):
            share = SHARE_OF_FIRST
        if self.bytes + part.size_bytes <= share * self._bytes_max and self._part_count < PARTS_MAX:
            return None
        text = (
            f"{self.bytes} bytes of staged rows in {self._part_count} parts wait in "
            f"{self._partition}; allowed: {self._bytes_max} (staged_bytes_max), {PARTS_MAX}"
        )
        attempted = [each for each in flow.staged.values() if each.attempt == part.attempt]
        attempt_bytes = sum(each.size_bytes for each in attempted) + part.size_bytes
        is_too_much = (
            attempt_bytes > SHARE_OF_FIRST * self._bytes_max or len(attempted) >= PARTS_MAX
        )
        if attempted and is_too_much:
            # They stay until the batch is sealed, so there is nothing to wait for.
            own = f"{attempt_bytes} bytes in {len(attempted) + 1} parts are of one task's own"
            return ErrorInfo("too_large", f"{text}; {own}: bring smaller batches", 0)
        return ErrorInfo("overloaded", text, RETRY_AFTER_MS)

    def _refusal_of_rows(self, asked: Stage) -> str | None:
        try:
            # That it is whole, and has as many items as it says, was seen when it was decoded.
            count = column_length(asked.payloads)
            if is_arrow(asked.payloads):
                if asked.assigns or self._check_columns is None:
                    return f"{self._partition} takes rows, one by one, and no columns of Arrow"
                self._check_columns(asked.payloads)
            if asked.places:
                KeyColumn(asked.keys, asked.places).check()
        except PayloadError as error:
            return f"the columns of a part: {error}"
        if asked.assigns and not self._takes_states:
            return f"{self._partition} takes no states; allowed: a keyed function without windows"
        if not asked.keys or asked.row_count != count:
            return f"a part has {asked.row_count} keys and {count} payloads; allowed: as many"
        limit = self._key_bytes_max
        longest = max(asked.keys, key=len)
        if len(longest) * 4 > limit and any(len(key.encode()) > limit for key in asked.keys):
            return f"a key has more than {limit} bytes; the longest one is {longest!r:.60}"
        # Who hashes in another way is wrong about most keys: it shows in a few.
        for key in (asked.keys[0], asked.keys[-1]) if self._partition_count else ():
            index = partition_index_of(key, self._partition_count)
            if index != split_partition_name(self._partition)[1]:
                return (
                    f"the key {key!r:.100} belongs to partition {index}, not to {self._partition}"
                )
        return None

    def _seal(self, asked: Seal, clock_ms: int) -> Handled:
        flow = self._flow(asked.pipeline)
        stored = flow.stored or Pipeline(next=self._floor.next)
        if asked.batch <= stored.sealed:
            return Handled(flow.progress())
        chosen, refusal = self._chosen(asked, flow)
        if refusal is not None:
            return _refused("rejected", refusal)
        due_ms = None if asked.time_left_ms is None else clock_ms + asked.time_left_ms
        following, records = stored.next, []
        for part in chosen:
            self._unstaged(flow, part)
            part.first, part.due_ms = following, due_ms
            following += part.count
            self.sealed_rows += part.count
            flow.seal(part)
            records.append(_stored_part(part))
        for part in [each for each in flow.staged.values() if each.batch <= asked.batch]:
            records += self._dropped(flow, part)
        source = PIPELINE_MARK + asked.pipeline
        begins = (source, stored.next) if flow.stored is None and stored.next > 1 else None
        flow.stored = Pipeline(asked.batch, following, stored.dead, bool(flow.assigns))
        records.append(Record(STAGING, asked.pipeline, _encode(flow.stored)))
        if flow.hungry:
            self.hungry[source] = flow
        return Handled(flow.progress(), records, begins=begins)

    def _chosen(self, asked: Seal, flow: _Flow) -> tuple[list[Part], str | None]:
        """Return the parts that count, in order; or what is wrong about them."""
        found: dict[str, Part] = {}
        for attempt, part_count, row_count in map(msgspec.structs.astuple, asked.chosen):
            rows = 0
            for number in range(min(part_count, PARTS_MAX + 1)):
                id_ = f"{asked.pipeline}/{asked.batch}/{attempt}/{number}"
                part = flow.staged.get(id_)
                if part is None or id_ in found:
                    text = f"part {id_} is not staged in {self._partition}, or named twice"
                    return [], f"{text}: {_LOST}"
                found[id_] = part
                rows += part.count
            if rows != row_count:
                text = f"attempt {attempt} has {rows} rows in {self._partition}, not {row_count}"
                return [], text
        return list(found.values()), None

    def _decide(self, asked: Decide) -> Handled:
        known = self._decisions.get(asked.pipeline, Decision())
        if asked.generation < known.generation:
            return _superseded(asked.pipeline)
        if asked.batch <= known.batch or asked.completed < known.batch:
            return Handled(known)
        plan = asked.plan.copy()
        return self._decided(
            asked.pipeline, Decision(asked.batch, plan, asked.generation, known.runs)
        )

    def _begin(self, asked: Begin) -> Handled:
        known = self._decisions.get(asked.pipeline, Decision())
        runs = known.runs
        if asked.run is not None:
            if asked.run in runs[:-1]:
                return _superseded(asked.pipeline)
            if asked.run in runs:
                return Handled(known)
            runs = [*runs, asked.run][-RUNS_KNOWN_MAX:]
        following = Decision(known.batch, known.plan, known.generation + 1, runs)
        return self._decided(asked.pipeline, following)

    def _decided(self, pipeline: str, decision: Decision) -> Handled:
        self._decisions[pipeline] = decision
        return Handled(decision, [Record(STAGING, DECISION_MARK + pipeline, _encode(decision))])

    def _describe(self, asked: Describe) -> Handled:
        known = self._descriptions.get(asked.pipeline, Description())
        is_final = bool(known.text) and not asked.generation
        if not asked.text or is_final or known.completed_ms is not None:
            return Handled(known)
        if self._is_superseded(asked.pipeline, asked.generation):
            return _superseded(asked.pipeline)
        total = self._descriptions_bytes + len(asked.text) - len(known.text)
        if total > DESCRIPTIONS_BYTES_MAX:
            text = f"{total} bytes of descriptions in {self._partition}; allowed: "
            return _refused("rejected", f"{text}{DESCRIPTIONS_BYTES_MAX}; forget some pipelines")
        described = Description(asked.text, known.completed_ms, known.mark)
        return self._described(asked.pipeline, described)

    def _complete(self, asked: Complete, clock_ms: int) -> Handled:
        known = self._descriptions.get(asked.pipeline, Description())
        if known.completed_ms is not None:
            return Handled(known)
        if self._is_superseded(asked.pipeline, asked.generation):
            return _superseded(asked.pipeline)
        completed = Description(known.text, clock_ms, asked.mark)
        return self._described(asked.pipeline, completed)

    def _is_superseded(self, pipeline: str, generation: int) -> bool:
        """Tell whether another driver has begun since one of this generation; 0: it is none."""
        decision = self._decisions.get(pipeline, Decision())
        return 0 < generation < decision.generation

    def _described(self, pipeline: str, description: Description) -> Handled:
        self._describe_as(pipeline, description)
        record = Record(STAGING, DESCRIPTION_MARK + pipeline, _encode(description))
        return Handled(description, [record])

    def _describe_as(self, pipeline: str, description: Description | None) -> None:
        before = self._descriptions.pop(pipeline, None)
        self._descriptions_bytes -= 0 if before is None else len(before.text)
        if description is not None:
            self._descriptions[pipeline] = description
            self._descriptions_bytes += len(description.text)

    def _drop(self, asked: Drop) -> Handled:
        flow = self._flow(asked.pipeline)
        records: list[Record] = []
        for part in list(flow.staged.values()):
            if part.batch == asked.batch and part.attempt in asked.attempts:
                records += self._dropped(flow, part)
        return Handled(flow.progress(), records)

    def _forget(self, asked: Forget) -> Handled:
        source = PIPELINE_MARK + asked.pipeline
        flow = self._flow(asked.pipeline)
        if rows := flow.progress().rows_waiting:
            text = f"{rows} rows of {asked.pipeline} wait in {self._partition}: forget it later"
            return _refused("overloaded", text, RETRY_AFTER_MS)
        records: list[Record] = []
        for part in list(flow.staged.values()):
            records += self._dropped(flow, part)
        del self._flows[source]
        self._decisions.pop(asked.pipeline, None)
        self._describe_as(asked.pipeline, None)
        for mark in ("", DECISION_MARK, DESCRIPTION_MARK):
            records.append(Record(STAGING, mark + asked.pipeline, None))
        if flow.stored is not None and flow.stored.next > self._floor.next:
            self._floor = Floor(flow.stored.next)
            records.append(Record(STAGING, FLOOR, _encode(self._floor)))
        return Handled(Progress(-1), records, forgotten=source)

    def _dropped(self, flow: _Flow, part: Part) -> list[Record]:
        self._unstaged(flow, part)
        self._release(part.id)
        return self._deleted(part)

    def _deleted(self, part: Part) -> list[Record]:
        self.bytes -= part.size_bytes
        self._part_count -= 1
        return [Record(STAGED, part.id, None), Record(STAGING, part.id, None)]

    def orphans(self, clock_ms: int) -> list[Record]:
        """Drop what was staged long ago and never sealed; return what the next commit deletes."""
        records: list[Record] = []
        if clock_ms < self._orphans_ms:
            return records
        self._orphans_ms = inf
        for source in tuple(self._staging):
            flow = self._flows[source]
            # The oldest is the first.
            for part in tuple(flow.staged.values()):
                if part.orphan_ms > clock_ms:
                    self._orphans_ms = min(self._orphans_ms, part.orphan_ms)
                    break
                records += self._dropped(flow, part)
            if flow.empty:
                del self._flows[source]
        return records

    # Commits, and rows in memory

    def contribute(self, contents: CommitContents) -> None:
        """What was staged so far is in the commit that starts now."""
        if self._pending:
            self._sealing, self._pending = self._pending, []
            self._pending_bytes = 0
        if not (self._with_dead or self._spared):
            return
        records = contents.records
        for source in sorted(self._with_dead):
            flow = self._flows.get(source)
            if flow is not None and flow.stored is not None:
                name = source.removeprefix(PIPELINE_MARK)
                records.append(Record(STAGING, name, _encode(flow.stored)))
        self._with_dead.clear()
        for id_, part in self._spared.items():
            flow = self._flows.get(PIPELINE_MARK + part.pipeline)
            # Unless it was sealed or dropped since.
            if flow is not None and id_ in flow.staged:
                records.append(_stored_part(part))
        self._spared.clear()

    def died(self, source: str) -> None:
        """A row of a pipeline has become a dead letter, in the commit that comes next."""
        flow = self._flows.get(source)
        if flow is not None and flow.stored is not None:
            flow.stored.dead += 1
            self._with_dead.add(source)

    def revived(self, source: str) -> None:
        """A row of a pipeline is no dead letter any more, after the commit that comes next."""
        flow = self._flows.get(source)
        if flow is not None and flow.stored is not None and flow.stored.dead:
            flow.stored.dead -= 1
            self._with_dead.add(source)

    def parked(self, source: str, number: int) -> None:
        """A row of a pipeline is on record, and has not run yet."""
        flow = self._flows.get(source)
        if flow is not None:
            flow.park(number)

    def unparked(self, source: str, number: int) -> None:
        """A row that was on record has ended, or waits for a retry."""
        flow = self._flows.get(source)
        if flow is not None:
            flow.unpark(number)

    def stored(self, contents: CommitContents, now_ms: float) -> None:
        """What that commit holds can be read from the store."""
        for id_ in self._sealing:
            if self._kept_bytes > self.kept_bytes_max:
                self._release(id_)
        self._sealing = []

    def _release(self, id_: str) -> None:
        self._kept_bytes -= len(self._kept.pop(id_, b""))

    # Feeding the queue

    def feed(self, clock_ms: int) -> tuple[list[Batch], list[str]]:
        """Return what may stand in the queue now, as messages; and the ids of parts that have to
        be read from the store (see `loaded`) before more can."""
        batches: list[Batch] = []
        wanted: list[str] = []
        for source, flow in tuple(self.hungry.items()):
            self._feed_one(source, flow, clock_ms, batches, wanted)
            if not flow.hungry:
                del self.hungry[source]
        return batches, wanted

    def _feed_one(
        self, source: str, flow: _Flow, clock_ms: int, batches: list[Batch], wanted: list[str]
    ) -> None:
        ahead_bytes, waits = flow.fed_bytes, False
        for part in islice(flow.sealed, flow.fed_count, None):
            ahead_bytes += part.size_bytes
            if ahead_bytes > self.feed_bytes_max and ahead_bytes > part.size_bytes:
                return
            value = self._kept.get(part.id)
            if value is None:
                waits = True
                if part.id not in self._loading and part.id not in self._unreadable:
                    self._loading.add(part.id)
                    wanted.append(part.id)
            elif not waits:
                rows = _decode_stage(value)
                self.fed_rows += part.count
                flow.fed_count += 1
                flow.fed_bytes += part.size_bytes
                self._release(part.id)
                left_ms = None if part.due_ms is None else max(0, part.due_ms - clock_ms)
                batches.append(
                    Batch(
                        self._partition,
                        source,
                        part.first,
                        Kind.ASSIGN if rows.assigns else Kind.SEND,
                        rows.row_keys(),
                        rows.payloads,
                        part.count,
                        left_ms,
                    )
                )

    def loaded(self, ids: Iterable[str], records: Sequence[Record]) -> list[str]:
        """The store has answered what `feed` asked for.

        What is missing or cannot be read stops its pipeline here; returned is what is to be said
        of it.
        """
        problems: list[str] = []
        found = {record.id: record.value for record in records}
        counts = {each.id: each.count for flow in self.hungry.values() for each in flow.sealed}
        for id_ in ids:
            self._loading.discard(id_)
            try:
                value = found.get(id_)
                if value is None:
                    raise msgspec.DecodeError("it is not there")
                stored = _decode_stage(value)
                rows = stored.row_count
                KeyColumn(stored.keys, stored.places).check()
                if rows != counts.get(id_, rows) or rows != column_length(stored.payloads):
                    raise msgspec.DecodeError(f"it has {rows} rows")
                check_column(stored.payloads)
            except (*UNREADABLE, PayloadError) as error:
                self._unreadable.add(id_)
                what = f"{STAGED} record {id_!r:.300}"
                problems.append(str(damaged(self._partition, what, error)))
            else:
                # However much there is: it is about to be fed.
                self._release(id_)
                self._kept[id_] = value
                self._kept_bytes += len(value)
        return problems

    def reached(self, source: str, upto: int) -> list[Record]:
        """All rows up to a number are done, or on record: return what the next commit deletes."""
        flow = self._flows[source]
        records: list[Record] = []
        sealed = flow.sealed
        while sealed and sealed[0].last <= upto:
            part = flow.unseal()
            self.sealed_rows -= part.count
            self.fed_rows -= part.count
            records += self._deleted(part)
        return records


def requests_of(batch: Batch) -> Sequence[msgspec.Raw]:
    """Return the requests of a batch of kind `STAGE`."""
    try:
        return split_column(batch.payloads)
    except PayloadError:
        # A header is checked on the way in, the items are not: each is then refused.
        return [msgspec.Raw(b"\xc1")] * batch.count


def _refused(code: str, text: str, retry_after_ms: int = 0) -> Handled:
    return Handled(error=ErrorInfo(code, text, retry_after_ms))


_LOST = (
    "what was staged is dropped after seven days; if this batch was decided before, it can never "
    "be whole: look at what of it counts, then go on under a new checkpoint or name"
)


def _superseded(pipeline: str) -> Handled:
    return _refused(
        "rejected",
        f"another driver of pipeline {pipeline} has begun since: of two queries with the same "
        "checkpoint, or two writers of the same name, only the one that began last goes on",
    )


def _stored_part(part: Part) -> Record:
    return Record(STAGING, part.id, _encode(part))
