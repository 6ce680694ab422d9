"""A pipeline that brings rows in batches of its own, each of which has its effect once.

What runs in tasks *stages* rows by an `Attempt`: they are durable, and nothing runs. What drives
the batches *commits* one, by naming the attempts that count: from then on their rows are messages
of the function, and those of other attempts are gone. Whatever fails in between is done again, by
the same process or another one, with the same rows or others. The partition's side is
`staged_batches`.

Every request may be made any number of times, so all of them are repeated, over failovers and while
there is no room, until the timeout of the pipeline.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar
from uuid import uuid4

import msgspec

from sublet.functions.codec import Codec, codec_for, is_arrow, join_column, split_column
from sublet.functions.duration import Duration, milliseconds
from sublet.functions.errors import (
    RejectedError,
    RetryLaterError,
    TooLargeError,
    UnknownOutcomeError,
)
from sublet.functions.key_column import KeyColumn
from sublet.runtime.client.pipeline_protocol import (
    Committed,
    PipelineDriver,
    PipelineProgress,
    Plan,
    Round,
    Staged,
    Story,
    answer_codec,
)
from sublet.runtime.protocol.pipeline_messages import (
    IF_EXISTS,
    LOWEST_LEFT_MS,
    Description,
    IfExists,
    KnownPipeline,
    Name,
    Progress,
    Request,
    Stage,
    Survey,
    Surveyed,
    assignments,
)

PART_BYTES_MAX = 1024 * 1024
PART_ROWS_MAX = 20_000
"""What an attempt adds is cut into parts of this size at most."""
SMALL_PART_BYTES_MAX = 64 * 1024
SMALL_PART_ROWS_MAX = 1_000
"""The same for rows of the lowest urgency: no turn of a worker is long because of them."""
PARTS_AT_ONCE = 8
"""Parts of one attempt that may be under way; then whoever adds more waits."""
REQUESTS_AT_ONCE = 64
_REQUEST_BYTES_OVERHEAD = 1_024
_BACKOFF_MS_MIN = 50.0
_BACKOFF_MS_MAX = 2_000.0

T = TypeVar("T")
Keys = list[str] | KeyColumn

_progress: Codec[Progress] = codec_for(Progress)
_surveyed: Codec[Surveyed] = codec_for(Surveyed)
_encode = msgspec.msgpack.Encoder().encode


class Asker(Protocol):
    """How a client brings a request to a partition of one function."""

    partition_count: int
    message_bytes_max: int

    def ask(self, index: int, request: bytes, codec: Codec[Any]) -> Awaitable[Any]: ...

    def begin(self, task: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something beside, at the latest until the client is closed."""
        ...


class Pipeline:
    """Brings batches of rows to one function, each once. Made by `Client.pipeline`."""

    def __init__(self, asker: Asker, name: str, generation: int, timeout: Duration) -> None:
        name = _checked_name(name, "pipeline")
        count, bytes_max = asker.partition_count, asker.message_bytes_max
        self._driver = PipelineDriver(name, generation, count, bytes_max)
        self._asker = asker
        self._timeout_s = milliseconds(timeout) / 1000.0

    @property
    def name(self) -> str:
        return self._driver.name

    @property
    def generation(self) -> int:
        """Of its driver; see `begin`."""
        return self._driver.generation

    @property
    def partition_count(self) -> int:
        """How many partitions the function has; a key's is `partition_index_of`."""
        return self._asker.partition_count

    @property
    def completed(self) -> int:
        """The last batch of which it is known here that it is sealed everywhere; -1: none."""
        return self._driver.completed

    # In tasks

    def attempt(
        self, batch: int, name: str = "", *, urgency: Literal["normal", "lowest"] = "normal"
    ) -> Attempt:
        """Begin to stage rows of a batch, under a name that nobody has had before.

        `urgency`: what `commit` will be told; with "lowest", rows are brought in small parts.
        """
        return Attempt(self, self._asker, batch, name or uuid4().hex, urgency)

    # In whatever drives them

    async def begin(self, run: str = "") -> int:
        """Take over from earlier drivers; return the new generation, which tasks have to know.

        What those have decided is finished first. From then on they decide nothing, and what they
        have staged in vain is dropped where it is in the way. Without this everything is done once
        as well, but rows of drivers that died before they decided take room until they are old.

        - `run`: the name of this driver's run, where it and its tasks cannot talk: whoever begins
          the run that was begun last is of the same generation; an earlier run is refused.
        """
        return await self._tell(self._driver.begin(_checked_name(run, "run") if run else None))

    async def commit(
        self,
        batch: int,
        staged: Sequence[Staged],
        *,
        deadline: Duration | None = None,
        urgency: Literal["normal", "lowest"] = "normal",
        completed: int = -1,
    ) -> Committed:
        """Let the rows of these attempts be messages of the function: all of them, once.

        Returns when that is durable, not when they have run. If another process has decided about
        the batch before, its attempts count, not these. Batches are committed in order; which
        numbers they have does not matter otherwise.

        - `deadline`: when the rows should be done, from the commit on.
        - `urgency`: "lowest" for what may wait for everything else, such as history.
        - `completed`: the last batch whose commit has returned, if that was in another process.
          Who does not know finishes the one before once more, which only takes time.
        """
        left_ms = _time_left_ms(deadline, urgency)
        wanted = Plan([each for each in staged if each.parts], left_ms)
        return await self._tell(self._driver.commit(batch, wanted, completed))

    async def drop(self, batch: int, staged: Sequence[Staged]) -> None:
        """Forget what these attempts have staged, if they were not committed."""
        await self._tell(self._driver.drop(batch, Plan(list(staged))))

    async def progress(self) -> PipelineProgress:
        """Tell how far it is."""
        return await self._tell(self._driver.progress())

    async def wait_taken(self) -> None:
        """Return when all that was committed so far is taken: it was run, or waits for a retry."""
        wait_s = 0.02
        left: Sequence[int] | None = None
        while left := await self._tell(self._driver.untaken(left)):
            await asyncio.sleep(wait_s)
            wait_s = min(1.0, 1.5 * wait_s)

    async def describe(self, text: bytes = b"", *, anew: bool = False) -> Description:
        """Keep what is to be known of the pipeline, if nothing is kept yet; return what is kept,
        and whether it is complete.

        - `anew`: replace what is kept. For a driver that has begun (see `begin`): it is refused
          if another one has begun since.
        """
        return await self._tell(self._driver.describe(text, anew=anew))

    async def complete(self, mark: str = "", *, as_driver: bool = False) -> Description:
        """Say for good that nothing more is to come; return when all that was committed is taken.

        - `mark`: where it ends, for whoever goes on from there; the first one counts.
        - `as_driver`: who says so has begun (see `begin`), and is refused if another one has begun
          since, which may have more to bring.
        """
        await self.wait_taken()
        return await self._tell(self._driver.complete(mark, as_driver=as_driver))

    async def wait_complete(self, timeout: Duration | None = None) -> Description:
        """Return when somebody has said that the pipeline is complete, or the timeout has
        passed."""
        loop = asyncio.get_running_loop()
        until_s = math.inf if timeout is None else loop.time() + milliseconds(timeout) / 1000.0
        wait_s = 0.1
        while (found := await self.describe()).completed_ms is None and loop.time() < until_s:
            await asyncio.sleep(min(wait_s, until_s - loop.time()))
            wait_s = min(5.0, 1.5 * wait_s)
        return found

    async def forget(self) -> None:
        """Let nothing be known of it any longer. Who uses its name again is a new pipeline: nothing
        of the former one may still be under way."""
        await self._tell(self._driver.forget())

    # Requests

    async def _tell(self, story: Story[T]) -> T:
        """Ask what a story asks for, until its end."""
        try:
            wanted = next(story)
            while True:
                wanted = story.send(await self._ask_each(wanted))
        except StopIteration as ended:
            told: T = ended.value
            return told

    async def _ask_each(self, wanted: Round) -> Mapping[int, Any]:
        """Ask partitions at once; the first error is raised when all have answered."""
        answers: dict[int, Any] = {}
        errors: list[Exception] = []
        room = asyncio.Semaphore(REQUESTS_AT_ONCE)

        async def ask(index: int, request: Request) -> None:
            async with room:
                try:
                    codec = answer_codec(request)
                    answers[index] = await self._ask(index, _encode(request), codec)
                except Exception as error:  # The others are answered first.
                    errors.append(error)

        async with asyncio.TaskGroup() as tasks:
            for index, request in wanted.items():
                tasks.create_task(ask(index, request))
        if errors:
            raise errors[0]
        return {index: answers[index] for index in wanted}

    async def _ask(self, index: int, request: bytes, codec: Codec[Any]) -> Any:
        """Ask one partition, and retry until the timeout."""
        return await _ask_with_retries(self._asker, index, request, codec, self._timeout_s)


async def known_pipelines(asker: Asker, timeout: Duration) -> list[KnownPipeline]:
    """Return the pipelines that a function knows, by name."""
    found: list[KnownPipeline] = []
    after = ""
    while True:
        request = _encode(Survey(after))
        page: Surveyed = await _ask_with_retries(
            asker, 0, request, _surveyed, milliseconds(timeout) / 1000.0
        )
        if not page.pipelines:
            return found
        found += page.pipelines
        after = found[-1].name


async def _ask_with_retries(
    asker: Asker, index: int, request: bytes, codec: Codec[Any], timeout_s: float
) -> Any:
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + timeout_s
    backoff_ms = _BACKOFF_MS_MIN
    while True:
        try:
            return await asker.ask(index, request, codec)
        except (RetryLaterError, UnknownOutcomeError) as error:
            # Who was sent away has waited for a worker already, and would only wait again.
            wait_ms = max(backoff_ms, min(getattr(error, "retry_after_ms", 0), _BACKOFF_MS_MAX))
            wait_s = wait_ms / 1000.0 * (0.75 + random.random() / 2)
            if loop.time() + wait_s > give_up_s:
                raise
        await asyncio.sleep(wait_s)
        backoff_ms = min(2 * backoff_ms, _BACKOFF_MS_MAX)


class Attempt:
    """Rows that one task stages for a batch; in vain, unless they are committed."""

    def __init__(
        self, pipeline: Pipeline, asker: Asker, batch: int, name: str, urgency: str = "normal"
    ) -> None:
        if batch < 0:
            raise RejectedError(f"the batch is {batch}; allowed: 0 or more")
        self._name = _checked_name(name, "attempt")
        self._batch = batch
        self._pipeline = pipeline
        self._asker = asker
        is_small = urgency == "lowest"
        self._part_bytes_max = SMALL_PART_BYTES_MAX if is_small else PART_BYTES_MAX
        self._part_rows_max = SMALL_PART_ROWS_MAX if is_small else PART_ROWS_MAX
        self._parts: dict[int, tuple[int, int]] = {}
        self._room = asyncio.Semaphore(PARTS_AT_ONCE)
        self._under_way: set[asyncio.Task[None]] = set()
        self._error: Exception | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def batch(self) -> int:
        return self._batch

    async def add(self, index: int, keys: Sequence[str], payloads: bytes) -> None:
        """Stage rows for one partition: their keys, and a msgpack array of their payloads.

        They run in the order in which they are added. Returns when they are on their way; it waits
        as long as too much is.
        """
        await self._add(index, keys, payloads, assigns=False)

    async def assign(
        self, index: int, keys: Sequence[str], states: bytes, if_exists: IfExists = "fail"
    ) -> None:
        """As `add`, for states: no handler runs, the state of each key becomes what is given.

        - `states`: a msgpack array; each as `sublet state put` takes it.
        - `if_exists`: a key that has a state by then keeps it, and the row becomes a dead letter
          ("fail") or is nothing ("keep"); or the state is replaced ("overwrite").

        All that a pipeline brings is states, or none of it.
        """
        if if_exists not in IF_EXISTS:
            allowed = ", ".join(IF_EXISTS)
            raise RejectedError(f"if_exists is {if_exists!r:.100}; allowed: {allowed}")
        await self._add(index, keys, assignments(states, if_exists), assigns=True)

    async def _add(
        self, index: int, keys: Sequence[str], payloads: bytes, *, assigns: bool
    ) -> None:
        if not 0 <= index < self._pipeline.partition_count:
            count = self._pipeline.partition_count
            raise RejectedError(f"partition {index}; allowed: 0..{count - 1}")
        keys = keys if isinstance(keys, KeyColumn) else list(keys)
        for some, column in self._pieces(keys, payloads):
            part_count, row_count = self._parts.get(index, (0, 0))
            self._parts[index] = part_count + 1, row_count + len(some)
            name, batch = self._pipeline.name, self.batch
            generation = self._pipeline.generation
            request = Stage(
                name,
                batch,
                self.name,
                part_count,
                some.distinct if isinstance(some, KeyColumn) else some,
                msgspec.Raw(column),
                generation,
                assigns,
                some.places if isinstance(some, KeyColumn) else b"",
            )
            await self._room.acquire()
            task = self._asker.begin(self._stage(index, _encode(request)))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        self._check()

    def _pieces(self, keys: Keys, column: bytes) -> Iterator[tuple[Keys, bytes]]:
        row_bytes_max = self._asker.message_bytes_max - _REQUEST_BYTES_OVERHEAD
        limit = min(self._part_bytes_max, row_bytes_max)
        rows_max = self._part_rows_max
        size_bytes = len(column) + _keys_bytes(keys)
        if size_bytes <= limit and len(keys) <= rows_max:
            if keys:
                yield keys, column
            return
        if is_arrow(column):
            yield from _slices(keys, column, rows_max, limit, row_bytes_max)
            return
        items = split_column(column)
        if len(items) != len(keys):
            raise RejectedError(f"{len(keys)} keys but {len(items)} payloads")
        start = size = 0
        for place, (key, item) in enumerate(zip(keys, items, strict=True)):
            # In UTF-8, a key is longer than it looks.
            row_bytes = len(key.encode()) + len(memoryview(item)) + 5
            if row_bytes > row_bytes_max:
                raise TooLargeError(
                    f"the row of key {key!r:.60} has {row_bytes} bytes; allowed: {row_bytes_max}"
                )
            if place > start and (size + row_bytes > limit or place - start >= rows_max):
                yield keys[start:place], join_column(items[start:place])
                start, size = place, 0
            size += row_bytes
        yield keys[start:], join_column(items[start:])

    async def _stage(self, index: int, request: bytes) -> None:
        try:
            if self._error is None:
                await self._pipeline._ask(index, request, _progress)
        except Exception as error:
            # Whatever it is, it belongs to whoever adds the next rows, or ends the attempt.
            self._error = self._error or error
        finally:
            self._room.release()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    async def end(self) -> Staged:
        """Wait until everything is durable; return what it is, for `Pipeline.commit`."""
        for _ in range(PARTS_AT_ONCE):
            await self._room.acquire()
        for _ in range(PARTS_AT_ONCE):
            self._room.release()
        self._check()
        return Staged(self.name, dict(self._parts))

    async def drop(self, timeout: Duration | None = None) -> None:
        """Forget what was staged, and stage no more; `TimeoutError` if that takes longer than the
        timeout: then a later batch does it."""
        self._error = self._error or RejectedError("the attempt was dropped")
        for task in tuple(self._under_way):
            # What waits for room would find it after the drop.
            task.cancel()
        async with asyncio.timeout(None if timeout is None else milliseconds(timeout) / 1000.0):
            await self._pipeline.drop(self.batch, [Staged(self.name, dict(self._parts))])


def _keys_bytes(keys: Keys) -> int:
    """Return what keys weigh in a request, at most."""
    if isinstance(keys, KeyColumn):
        return len(keys.places) + _keys_bytes(keys.distinct)
    # In UTF-8, a key is longer than it looks.
    return (
        sum(map(len, keys))
        if all(map(str.isascii, keys))
        else sum(len(key.encode()) for key in keys)
    )


def _slices(
    keys: Keys, column: bytes, rows_max: int, limit: int, row_bytes_max: int
) -> Iterator[tuple[Keys, bytes]]:
    """Return a column of Arrow in parts that are small enough, cut in halves as often as needed."""
    from sublet.functions.columns import decode_columns, slice_columns

    columns = decode_columns(column)
    count = columns.batch.num_rows
    if count != len(keys):
        raise RejectedError(f"{len(keys)} keys but {count} payloads")
    left = [(0, count)]
    while left:
        start, stop = left.pop()
        some, piece = keys[start:stop], slice_columns(columns, start, stop)
        size_bytes = len(piece) + _keys_bytes(some)
        if size_bytes <= limit and stop - start <= rows_max:
            yield some, piece
        elif stop - start > 1:
            middle = (start + stop) // 2
            left += [(middle, stop), (start, middle)]
        elif size_bytes <= row_bytes_max:
            yield some, piece
        else:
            raise TooLargeError(
                f"the row of key {some[0]!r:.60} has {size_bytes} bytes; allowed: {row_bytes_max}"
            )


def _checked_name(name: str, what: str) -> str:
    try:
        return msgspec.convert(name, Name)
    except msgspec.ValidationError:
        allowed = "1 to 100 letters, digits, '.', '_', ':' and '-'"
        raise RejectedError(
            f"the name of the {what} is {name!r:.200}; allowed: {allowed}"
        ) from None


def _time_left_ms(deadline: Duration | None, urgency: str) -> int | None:
    if urgency not in ("normal", "lowest"):
        raise RejectedError(f"the urgency is {urgency!r}; allowed: 'normal', 'lowest'")
    if urgency == "lowest":
        if deadline is not None:
            raise RejectedError("urgency='lowest' cannot have a deadline")
        return LOWEST_LEFT_MS
    return None if deadline is None else max(0, int(milliseconds(deadline)))
