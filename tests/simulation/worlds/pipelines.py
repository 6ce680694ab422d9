"""The same unreliable world, with pipelines that bring rows in batches beside all other messages.

A driver lets attempts stage rows, decides which of them count, and seals them, by the stories that
the client tells. It may die at any moment; the next one begins the batch again, with other rows,
and the dead one may turn out to be alive. In the end every row of the attempts that were decided
has its effect once, those of a key in order, and no other row has any.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import zip_longest
from math import inf
from typing import Any, TypeAlias, TypeVar

import msgspec
import pyarrow as pa

from sublet.functions.address import PIPELINE_MARK, partition_index_of, partition_name
from sublet.functions.columns import encode_columns, normal_columns
from sublet.functions.key_column import column_of
from sublet.runtime.client.pipeline_protocol import (
    PipelineDriver,
    PipelineProgress,
    Plan,
    Staged,
    Story,
    answer_codec,
    decode_plan,
)
from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.records.staged_batches import RETRY_AFTER_MS, Part
from sublet.runtime.protocol.frames import Kind
from sublet.runtime.protocol.messages import parked_messages
from sublet.runtime.protocol.pipeline_messages import (
    LOWEST_LEFT_MS,
    Decision,
    Description,
    Drop,
    Request,
    Stage,
)
from sublet.statestore.contract import PARKED, STAGED, STAGING
from tests.simulation.oracles.partition import Oracle
from tests.simulation.oracles.verdict import check
from tests.simulation.worlds.client import Client, ClientChannel, Said
from tests.simulation.worlds.handlers import ATTEMPTS, PARTITIONS_PER_FUNCTION
from tests.simulation.worlds.leases import LeaseWorld
from tests.simulation.worlds.node import Node
from tests.simulation.worlds.partition import Mutant, World

LOOK_EVERY_MS = 3.0
DRIVERS_MAX = 4
LIVES_MAX = 3
RETRIES_MAX = 2_000
COLUMNS_FACTOR = 10
"""What a few rows weigh as columns of Arrow, times what they weigh as rows."""

Row = tuple[str, list[Any]]
"""The key and the payload."""
Parts = dict[int, list[list[Row]]]
"""The parts of an attempt, by the partition's index."""

T = TypeVar("T")
Steps: TypeAlias = Generator[Sequence[Said], None, T]
"""What a driver does, step by step: each is what it waits for."""

_decode = msgspec.msgpack.decode
_encode = msgspec.msgpack.encode


class Pipeline:
    """What outlives its drivers: the log of batches that are done, and what is true of them."""

    def __init__(self, world: PipelineWorld, name: str, function: str, life: int = 1) -> None:
        self.world = world
        self.name = name
        self.function = function
        self.life = life
        """A name that was forgotten may be used again."""
        self.chance = random.Random(f"{name} {life} {world.seed}")
        self.batch_count = self.chance.randint(1, 4)
        keyed = world.functions[function].kind == "keyed"
        self.assigns = keyed and random.Random(f"states {name} {world.seed}").random() < 0.3
        """It brings states: for its rows, no handler runs."""
        self.columns = not self.assigns and world.functions[function].takes_columns
        """Its rows come as columns of Arrow, some of them."""
        self.has_runs = random.Random(f"runs {name} {world.seed}").random() < 0.5
        """Its tasks begin the run of their driver by themselves."""
        end_chance = random.Random(f"end {life} {name} {world.seed}")
        self.ends_complete = end_chance.random() < 0.7
        self.ends_forgotten = end_chance.random() < 0.4
        self.logged = -1
        self.attempts: dict[str, Parts] = {}
        self.decided: dict[int, list[str]] = {}
        """Batch to the attempts that count."""
        self.mark = ""
        """What was said of its end."""
        self.said: list[Said] = []
        self.driver_count = 0
        self.zombie_count = 0
        """Drivers that go on although others have taken their place."""
        self.is_forgotten = False
        """Or about to be."""
        self.finished = False
        self.is_followed = False

    def ended_forgotten(self) -> None:
        """Nothing is known of it any more, so somebody may use its name."""
        if not self.finished and self.life < LIVES_MAX and self.chance.random() < 0.6:
            self.is_followed = True
            following = Pipeline(self.world, self.name, self.function, self.life + 1)
            self.world.pipelines.append(following)
            self.world.after(self.chance.random() * 20, following.begin)
        self.finished = True

    def begin(self) -> None:
        """Let a driver go on behind what is logged; not if somebody else has the name by now."""
        if self.is_followed:
            return
        self.driver_count += 1
        Driver(self, self.driver_count).go_on()

    def stage(self, batch: int, attempt: str) -> Parts:
        """Return what an attempt stages: other rows than those of any other."""
        parts: Parts = {}
        for number in range(self.chance.randint(0, 4)):
            rows = [
                self._row(batch, f"{attempt}.{number}.{row}")
                for row in range(self.chance.choice([1, 2, 6]))
            ]
            for index in range(PARTITIONS_PER_FUNCTION):
                mine = [
                    each
                    for each in rows
                    if partition_index_of(each[0], PARTITIONS_PER_FUNCTION) == index
                ]
                if mine:
                    parts.setdefault(index, []).append(mine)
        self.attempts[attempt] = parts
        return parts

    def _row(self, batch: int, name: str) -> Row:
        life = "'" * (self.life - 1)
        uid, amount = f"{self.name}{life}.{batch}.{name}", self.chance.randint(1, 9)
        payload: list[Any] = ["add", uid, amount]
        if self.chance.random() < 0.15 and not self.assigns:
            payload = ["fail", uid, amount, self.chance.randint(1, ATTEMPTS - 1)]
        return self.chance.choice(self.world.keys), payload

    def staged(self, attempt: str) -> Staged:
        parts = self.attempts[attempt].items()
        counts = {index: (len(some), sum(len(each) for each in some)) for index, some in parts}
        return Staged(attempt, counts)

    def was_decided(self, decision: Decision) -> None:
        if decision.batch >= 0:
            attempts = decode_plan(decision.plan).attempts
            known = self.decided.setdefault(decision.batch, attempts)
            check(known == attempts, "a decision was changed", self.name, decision, known)

    def were_taken(self, upto: int) -> None:
        """All rows up to a batch have run, or failed and wait for a retry, says somebody."""
        tried = self.world.pipeline_oracle.tried_by(self.function)
        waiting = [payload[1] for _, payload in self.rows(upto) if payload[1] not in tried]
        check(not waiting, "rows were told as taken that wait", self.name, waiting)

    def is_at(self, progress: PipelineProgress) -> None:
        with_rows = [
            batch for batch, some in self.decided.items() if any(self.attempts[e] for e in some)
        ]
        sealed = max(with_rows, default=-1)
        check(progress.sealed == sealed, "how far it is", self.name, progress, sealed)
        check(not progress.rows_dead, "rows are dead", self.name, progress)

    def ended(self, description: Description) -> None:
        check(description.completed_ms is not None, "it has not ended", self.name)
        self.mark = self.mark or description.mark
        check(description.mark == self.mark, "its end was changed", description, self.mark)

    def rows(self, upto: float = inf) -> Iterator[Row]:
        """All rows that have to have their effect, in the order of their partitions' channels."""
        for index in range(PARTITIONS_PER_FUNCTION):
            for batch in sorted(each for each in self.decided if each <= upto):
                for attempt in self.decided[batch]:
                    for part in self.attempts[attempt].get(index, ()):
                        yield from part


class SupersededError(Exception):
    """Another driver has begun."""


class Driver:
    """One process that drives a pipeline: goes on step by step, and may die between two."""

    def __init__(self, pipeline: Pipeline, number: int) -> None:
        self.pipeline = pipeline
        self.world = pipeline.world
        self.chance = pipeline.chance
        self.number = number
        self.column_chance = random.Random(f"columns {pipeline.name} {number} {self.world.seed}")
        self.run_chance = random.Random(f"runs {pipeline.name} {number} {self.world.seed}")
        self.client = self._some_client()
        self.is_dead = self.is_lost = False
        self._driver = self._new_driver()
        self._story = self._drive()
        self._waits: Sequence[Said] = ()
        self._rests_until_ms = 0.0

    def _new_driver(self) -> PipelineDriver:
        mutant = self.world.mutant or Mutant()
        return mutant.driver(self.pipeline.name, 0, PARTITIONS_PER_FUNCTION, 2**20)

    def _some_client(self) -> Client:
        return self.chance.choice(
            [each for each in self.world.clients if each is not self.world.deserter]
        )

    def go_on(self) -> None:
        if self.is_dead:
            return
        rest_ms = self._rests_until_ms - self.world.now_ms
        if rest_ms > 0 or not all(said.replies for said in self._waits):
            self.world.after(max(LOOK_EVERY_MS, rest_ms), self.go_on)
            return
        if self._dies():
            self.world.fault("dead driver")
            self.is_lost = True
            # Who forgets a pipeline is the last one that drives it.
            self.is_dead = self.pipeline.is_forgotten or self.chance.random() < 0.6
            self.pipeline.zombie_count += not self.is_dead
            self.world.after(self.chance.random() * 60, self.pipeline.begin)
        self._waits = self._step()
        if self._story.gi_frame is not None:  # type: ignore[attr-defined]
            self.world.soon(self.go_on)

    def _step(self) -> Sequence[Said]:
        try:
            return next(self._story, ())
        except SupersededError:
            if not self.is_lost:
                # What an earlier one had said came later: it is begun again, as any query is.
                self.world.fault("superseded driver")
                self.is_lost = True
                self.world.after(self.chance.random() * 60, self.pipeline.begin)
            return ()

    def _dies(self) -> bool:
        may = self.world.faulty and not self.is_lost and self.number < DRIVERS_MAX
        return may and self.chance.random() < self.world.deaths

    # What it does

    def _drive(self) -> Steps[None]:
        pipeline = self.pipeline
        if not pipeline.is_forgotten:
            yield from self._bring_all()
            yield from self._complete()
            if self.is_lost or pipeline.zombie_count or not pipeline.ends_forgotten:
                pipeline.finished |= not self.is_lost
                return
            # What comes later would make it known again.
            yield pipeline.said
            if self.is_lost or pipeline.zombie_count:
                pipeline.finished |= not self.is_lost
                return
            pipeline.is_forgotten = True
        yield from self._tell(self._driver.forget(), self.client)
        # One that died while it forgot may still be heard.
        yield pipeline.said
        pipeline.ended_forgotten()

    def _bring_all(self) -> Steps[None]:
        pipeline, chance = self.pipeline, self.chance
        yield from self._begin(self._driver, self.client)
        for batch in range(pipeline.logged + 1, pipeline.batch_count):
            chosen: list[Staged] = []
            for number in range(chance.randint(0, 3)):
                attempt = f"{batch}-{self.number}-{number}"
                fails = chance.random() < 0.3
                yield from self._stage(batch, attempt, fails=fails)
                if not fails:
                    chosen.append(pipeline.staged(attempt))
            left_ms = chance.choice([None, 50, 5_000, LOWEST_LEFT_MS])
            plan = Plan([each for each in chosen if each.parts], left_ms)
            yield from self._tell(self._driver.commit(batch, plan), self.client)
            yield ()
            if not self.is_lost:
                pipeline.logged = batch

    def _begin(self, driver: PipelineDriver, client: Client) -> Steps[int]:
        """Take over from earlier drivers; or join the run of this one, from another process."""
        run = f"run-{self.number}" if self.pipeline.has_runs else None
        return (yield from self._tell(driver.begin(run), client))

    def _stage(self, batch: int, attempt: str, *, fails: bool) -> Steps[None]:
        parts = self.pipeline.stage(batch, attempt)
        executor = self._some_client()
        generation = self._driver.generation
        if self.pipeline.has_runs and self.run_chance.random() < 0.5:
            generation = yield from self._begin(self._new_driver(), executor)
        requests: list[tuple[int, Request]] = []
        for index, some in parts.items():
            for number, rows in enumerate(some):
                keys, payloads = [key for key, _ in rows], [payload for _, payload in rows]
                places, column = b"", msgspec.Raw(_encode(payloads))
                if self.pipeline.columns and self.column_chance.random() < 0.7:
                    keys, places, column = as_columns(keys, payloads)
                name, assigns = self.pipeline.name, self.pipeline.assigns
                request = Stage(
                    name, batch, attempt, number, keys, column, generation, assigns, places
                )
                requests.append((index, request))
        self.chance.shuffle(requests)
        if fails:
            for index, stage in requests[: self.chance.randint(0, len(requests))]:
                self._say(index, stage, executor)
            if self.chance.random() < 0.5:
                for index in parts:
                    self._say(index, Drop(self.pipeline.name, batch, [attempt]), executor)
            return
        yield from self._ask(requests, executor)

    def _complete(self) -> Steps[None]:
        """Wait until all rows are taken, and say that nothing more is to come."""
        if not self.pipeline.ends_complete:
            return
        upto = self._driver.completed
        left: Sequence[int] | None = None
        wait_ms = 1.0
        while left := (yield from self._tell(self._driver.untaken(left), self.client)):
            self._rests_until_ms = self.world.now_ms + wait_ms
            wait_ms = min(2_000.0, 2 * wait_ms)
            yield ()
        self.pipeline.were_taken(upto)
        progress = yield from self._tell(self._driver.progress(), self.client)
        self.pipeline.is_at(progress)
        for mark in (f"by {self.number}", "once more"):
            story = self._driver.complete(mark, as_driver=True)
            self.pipeline.ended((yield from self._tell(story, self.client)))

    # How it does it

    def _tell(self, story: Story[T], client: Client) -> Steps[T]:
        """Ask what a story asks for, until its end."""
        try:
            wanted = next(story)
            while True:
                requests = list(wanted.items())
                if requests and self.chance.random() < 0.3:
                    requests += requests
                answers = yield from self._ask(requests, client)
                wanted = story.send(answers)
        except StopIteration as ended:
            told: T = ended.value
            return told

    def _ask(
        self, requests: Sequence[tuple[int, Request]], client: Client
    ) -> Steps[Mapping[int, Any]]:
        """Ask until there is room for everything; return the answers by partition."""
        answers: dict[int, Any] = {}
        left = list(requests)
        for _ in range(RETRIES_MAX):
            asked = [(each, self._say(*each, client)) for each in left]
            yield [said for _, said in asked]
            left = []
            for (index, request), said in asked:
                answer, error = said.replies[0]
                if error is None:
                    answers[index] = answer_codec(request).decode(_encode(answer))
                    if isinstance(answers[index], Decision):
                        self.pipeline.was_decided(answers[index])
                    continue
                if "has begun since" in error.message:
                    raise SupersededError
                is_full = error.code == "overloaded"
                check(is_full, "a request of a pipeline failed", request, error)
                left.append((index, request))
            if not left:
                return answers
            self.world.fault("no room for rows")
            self._rests_until_ms = self.world.now_ms + RETRY_AFTER_MS * self.chance.random()
            yield ()
        check(False, "there is never room for rows", left)
        return {}

    def _say(self, index: int, request: Request, client: Client) -> Said:
        partition = partition_name(self.pipeline.function, index)
        channel = client.channels.get(partition)
        if channel is None:
            channel = client.channels[partition] = ClientChannel(client, partition)
        said = Said(Kind.STAGE, "", request, "")
        self.pipeline.said.append(said)
        channel.say(said)
        return said


def as_columns(keys: list[str], payloads: list[list[Any]]) -> tuple[list[str], bytes, msgspec.Raw]:
    """Return rows as a table would bring them: each key once, and payloads as Arrow."""
    known = list(dict.fromkeys(keys))
    column = column_of(known, [known.index(key) for key in keys])
    rows = [dict(zip_longest(("op", "uid", "amount", "times"), each)) for each in payloads]
    table = pa.RecordBatch.from_pylist(rows)
    encoded = encode_columns(normal_columns(table, bare=False))
    return column.distinct, column.places, msgspec.Raw(encoded)


class PipelineOracle(Oracle):
    def __init__(self, world: PipelineWorld) -> None:
        super().__init__(world)
        self._pipelines = world

    def judge(self) -> None:
        for pipeline in self._pipelines.pipelines:
            check(pipeline.finished, "a pipeline has not come to its end", pipeline.name)
            client = self._pipelines.clients[0]
            for key, payload in pipeline.rows():
                said = Said(Kind.SEND, key, payload, "")
                self._pipelines.script.append((client, pipeline.function, said))
        super().judge()
        for pipeline in self._pipelines.pipelines:
            self._check_rows_in_order(pipeline)
        for name, tables in self._pipelines.backend.partitions.items():
            self._check_staging(name, tables.records)
            for pipeline in self._pipelines.pipelines:
                if pipeline.is_forgotten and not pipeline.is_followed:
                    self._check_forgotten(pipeline.name, name)

    def tried_by(self, function: str) -> set[str]:
        """Return what a function has done until now, or tried."""
        histories = self._histories().items()
        tried = {uid for (where, _), uids in histories if where == function for uid in uids}
        for name, tables in self._pipelines.backend.partitions.items():
            if not name.startswith(f"{function}/"):
                continue
            for record in tables.records.get(PARKED, {}).values():
                for message in parked_messages(record.id, record.value or b""):
                    if message.attempt > 1:
                        told = _decode(bytes(message.payload))
                        tried.add(told["uid"] if isinstance(told, dict) else told[1])
        return tried

    def _check_forgotten(self, pipeline: str, partition: str) -> None:
        tables = self._pipelines.backend.partitions[partition]
        ids = tables.records.get(STAGING, {})
        known = [each for each in ids if each.lstrip("=#").partition("/")[0] == pipeline]
        check(not known, "a pipeline is not forgotten", partition, known)
        source = PIPELINE_MARK + pipeline
        check(source not in tables.inbox, "its numbers are not forgotten", partition, source)

    def _check_rows_in_order(self, pipeline: Pipeline) -> None:
        function = self._pipelines.functions[pipeline.function]
        if function.order == "none" or function.kind != "keyed":
            return
        histories = self._histories()
        for wanted in self._pipelines.keys:
            uids = [payload[1] for key, payload in pipeline.rows() if key == wanted]
            mine = set(uids)
            history = histories.get((pipeline.function, wanted), [])
            found = [uid for uid in history if uid in mine]
            check(found == uids, "rows are out of order", pipeline.name, wanted, found, uids)

    def _check_staging(self, name: str, records: dict[str, Any]) -> None:
        """All that is left is what was never decided, where nothing was sealed since."""
        staging = {id_: _decode(each.value) for id_, each in records.get(STAGING, {}).items()}
        parts = {id_: msgspec.convert(each, Part) for id_, each in staging.items() if "/" in id_}
        check(parts.keys() == records.get(STAGED, {}).keys(), "rows without a part", name)
        for id_, part in parts.items():
            check(not part.first, "sealed rows are left", name, id_)
            sealed = staging.get(part.pipeline, ["pipeline", -inf])[1]
            check(part.batch > sealed, "rows of a sealed batch are left", name, id_)
        owner = self._pipelines.owners[name].partition.pipelines.staging
        size_bytes = sum(part.size_bytes for part in parts.values())
        check(owner.bytes == size_bytes, "bytes are miscounted", name, owner.bytes, size_bytes)
        check(owner.sealed_rows == owner.fed_rows == 0, "rows are miscounted", name)


class PipelineWorld(World):
    repeats_share = 0.0

    def __init__(self, seed: int, mutant: Mutant | None = None) -> None:
        super().__init__(seed, mutant)
        self.seed = seed
        chance = self._pipeline_chance = random.Random(f"pipelines {seed}")
        self.deaths = chance.choice([0.0, 0.1, 0.3])
        """How often a driver dies between two steps."""
        self.fed_bytes_max = chance.choice([1, 200, 10**9])
        self.kept_bytes_max = chance.choice([0, 200, 10**9])
        self._pipeline_count = chance.randint(1, 2)
        known = {each: getattr(self.limits, each) for each in Limits.__slots__}
        # Enough for all that one driver of each stages for a batch, and no more.
        bytes_max = chance.choice([3_000 * self._pipeline_count, 10**9])
        if random.Random(f"columns {seed}").random() < 0.5:
            self.functions["sim/tally"].batch = "columns"
            bytes_max *= COLUMNS_FACTOR
        self.limits = Limits(**{**known, "staged_bytes_max": bytes_max})
        self.oracle = self.pipeline_oracle = PipelineOracle(self)
        self.pipelines: list[Pipeline] = []

    def new_node(self, name: str) -> Node:
        node = super().new_node(name)
        staging = node.partition.pipelines.staging
        staging.feed_bytes_max, staging.kept_bytes_max = self.fed_bytes_max, self.kept_bytes_max
        return node

    def plan_faults(self, faults_ms: float) -> None:
        super().plan_faults(faults_ms)
        chance = self._pipeline_chance
        for number in range(self._pipeline_count):
            function = chance.choice([each for each in self.targets() if self.interprets(each)])
            pipeline = Pipeline(self, f"q{number}", function)
            self.pipelines.append(pipeline)
            self.after(chance.random() * faults_ms / 2, pipeline.begin)


class LeasePipelineWorld(PipelineWorld, LeaseWorld):
    """The same, in workers that lend."""
