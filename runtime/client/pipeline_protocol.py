"""What a pipeline asks of partitions, and in which order. It does not ask: whoever drives it does.

Each story here is a generator. It yields *rounds*, requests by the index of their partition, all of
which may be made at once; it is sent their answers by the same index, and returns what came of it.
A request that fails ends the story: everything may be told again from its beginning, by anyone.
The client tells them over the network (`pipelines`), the simulated worlds over an unreliable
one.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from sublet.functions.codec import Codec, codec_for
from sublet.functions.errors import TooLargeError
from sublet.runtime.protocol.pipeline_messages import (
    Ask,
    Begin,
    Chosen,
    Complete,
    Decide,
    Decision,
    Describe,
    Description,
    Drop,
    Forget,
    Name,
    Progress,
    Request,
    Seal,
)

_PLAN_BYTES_OVERHEAD = 16 * 1_024
"""What an answer has beside a plan: the names of runs."""

T = TypeVar("T")
Round: TypeAlias = Mapping[int, Request]
Story: TypeAlias = Generator[Round, Mapping[int, Any], T]


class Staged(msgspec.Struct, array_like=True, frozen=True):
    """What an attempt has staged: handed to whoever commits the batch."""

    attempt: Name
    parts: Mapping[int, tuple[int, int]]
    """Partition (by its index) to how many parts and rows it was given."""

    @property
    def row_count(self) -> int:
        return sum(rows for _, rows in self.parts.values())


class Plan(msgspec.Struct, array_like=True, frozen=True):
    """What a batch consists of, as it is decided."""

    staged: list[Staged]
    time_left_ms: int | None = None

    @property
    def attempts(self) -> list[str]:
        return [each.attempt for each in self.staged]

    @property
    def indexes(self) -> set[int]:
        """The partitions that have rows of it."""
        return {index for each in self.staged for index in each.parts}


class Committed(NamedTuple):
    """What came of a commit."""

    row_count: int | None
    """Rows that became messages; None: the batch was committed long ago, nobody knows by whom."""
    is_ours: bool
    """False: another process had decided before which attempts count, and those were sealed."""


class PipelineProgress(NamedTuple):
    """How far a pipeline is, over all partitions."""

    sealed: int
    """The last batch that is sealed in some partition; -1: none."""
    rows_waiting: int
    """Committed and not taken yet, about: taken are those that were run, or wait for a retry."""
    rows_staged: int
    """Of batches that are not committed."""
    rows_dead: int = 0
    """Taken, and failed for good: they are dead letters."""


_encode = msgspec.msgpack.Encoder().encode
decode_plan = msgspec.msgpack.Decoder(Plan).decode
_progress: Codec[Any] = codec_for(Progress)
_ANSWERS: Mapping[type, Codec[Any]] = {
    Begin: codec_for(Decision),
    Decide: codec_for(Decision),
    Describe: codec_for(Description),
    Complete: codec_for(Description),
}


def answer_codec(request: Request) -> Codec[Any]:
    """Return what reads the answer to a request."""
    return _ANSWERS.get(type(request), _progress)


class PipelineDriver:
    """What one process knows of the pipeline that it drives."""

    def __init__(
        self, name: str, generation: int, partition_count: int, message_bytes_max: int
    ) -> None:
        self.name = name
        self.generation = generation
        """Of this driver: what `begin` returned, here or in the process that has begun."""
        self.completed = -1
        """The last batch of which it is known here that it is sealed everywhere; -1: none."""
        self._partition_count = partition_count
        self._message_bytes_max = message_bytes_max

    def begin(self, run: str | None) -> Story[int]:
        """Take over from earlier drivers; finish what they have decided."""
        decision: Decision = (yield {0: Begin(self.name, run)})[0]
        if decision.batch >= 0:
            yield from self._seal(decision.batch, decode_plan(decision.plan))
        self.completed = decision.batch
        self.generation = decision.generation
        return self.generation

    def commit(self, batch: int, wanted: Plan, completed: int = -1) -> Story[Committed]:
        """Decide about a batch, unless somebody has; seal it, and first any that is not yet."""
        encoded = self._encoded(batch, wanted)
        self.completed = max(self.completed, completed)
        while True:
            request = Decide(self.name, batch, encoded, self.completed, self.generation)
            decision: Decision = (yield {0: request})[0]
            if decision.batch > batch:
                yield from self.drop(batch, wanted)
                return Committed(None, is_ours=False)
            plan = decode_plan(decision.plan)
            yield from self._seal(decision.batch, plan)
            self.completed = max(self.completed, decision.batch)
            if decision.batch == batch:
                break
        is_ours = plan.attempts == wanted.attempts
        if not is_ours:
            yield from self.drop(batch, wanted, sealed=plan.indexes)
        return Committed(sum(each.row_count for each in plan.staged), is_ours)

    def _encoded(self, batch: int, plan: Plan) -> msgspec.Raw:
        """Return a plan as it is decided; refuse one that could not be, or not be told to whoever
        finishes it."""
        encoded = _encode(plan)
        size_bytes = len(encoded)
        limit = self._message_bytes_max - _PLAN_BYTES_OVERHEAD
        if size_bytes > limit:
            pairs = sum(len(each.parts) for each in plan.staged)
            raise TooLargeError(
                f"batch {batch} of {self.name} has {len(plan.staged)} attempts with rows in "
                f"{pairs} places, a decision of {size_bytes} bytes; allowed: {limit} (use fewer "
                "tasks, or cluster the rows by partition)"
            )
        return msgspec.Raw(encoded)

    def _seal(self, batch: int, plan: Plan) -> Story[None]:
        chosen: dict[int, list[Chosen]] = {}
        for each in plan.staged:
            for index, (part_count, row_count) in each.parts.items():
                chosen.setdefault(index, []).append(Chosen(each.attempt, part_count, row_count))
        yield {
            index: Seal(self.name, batch, some, plan.time_left_ms) for index, some in chosen.items()
        }

    def drop(self, batch: int, plan: Plan, sealed: Collection[int] = ()) -> Story[None]:
        """Drop what was staged in vain, where no seal has done so."""
        yield {
            index: Drop(self.name, batch, plan.attempts)
            for index in plan.indexes
            if index not in sealed
        }

    def progress(self) -> Story[PipelineProgress]:
        """Tell how far it is."""
        found = (yield self._everywhere(Ask(self.name))).values()
        return PipelineProgress(
            max(each.sealed for each in found),
            sum(each.rows_waiting for each in found),
            sum(each.rows_staged for each in found),
            sum(each.rows_dead for each in found),
        )

    def untaken(self, among: Iterable[int] | None = None) -> Story[Sequence[int]]:
        """Return the partitions in which rows wait that were committed."""
        # Each answer is a commit of its partition: who is done is not asked again.
        found = yield self._everywhere(Ask(self.name), among)
        return [index for index, each in found.items() if each.rows_waiting]

    def describe(self, text: bytes, *, anew: bool) -> Story[Description]:
        """Keep what is to be known of it; return what is kept."""
        request = Describe(self.name, text, self.generation if anew else 0)
        found: Description = (yield {0: request})[0]
        return found

    def complete(self, mark: str, *, as_driver: bool) -> Story[Description]:
        """Say for good that nothing more is to come. All that was committed has to be taken."""
        request = Complete(self.name, mark, self.generation if as_driver else 0)
        found: Description = (yield {0: request})[0]
        return found

    def forget(self) -> Story[None]:
        """Let nothing be known of it any longer."""
        yield self._everywhere(Forget(self.name), range(1, self._partition_count))
        # Where it is decided, it is known until all others have forgotten it: who fails in between
        # finds it again.
        yield {0: Forget(self.name)}
        self.completed = -1

    def _everywhere(self, request: Request, among: Iterable[int] | None = None) -> Round:
        return dict.fromkeys(range(self._partition_count) if among is None else among, request)
