"""The same unreliable world, with pipelines that bring rows in batches beside all other messages.

A driver lets attempts stage rows, decides which of them count, and seals them. It may die at any
moment; the next one begins the batch again, with other rows, and the dead one may turn out to be
alive. In the end every row of the attempts that were decided has its effect once, those of a key in
order, and no other row has any.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from math import inf
from typing import Any

import msgspec
import pyarrow as pa

from sublet.functions.address import partition_index_of, partition_name
from sublet.functions.columns import encode_columns, normal_columns
from sublet.functions.key_column import column_of
from sublet.runtime.frames import Kind
from sublet.runtime.limits import Limits
from sublet.runtime.pipeline_messages import LOWEST_LEFT_MS
from sublet.runtime.staging import Part
from sublet.statestore.contract import STAGED, STAGING
from tests.simulation.client import Client, ClientChannel, Said
from tests.simulation.handlers import ATTEMPTS, PARTITIONS_PER_FUNCTION
from tests.simulation.lease_world import LeaseWorld
from tests.simulation.node import Node
from tests.simulation.oracle import Oracle
from tests.simulation.verdict import check
from tests.simulation.world import Mutant, World

LOOK_EVERY_MS = 3.0
DRIVERS_MAX = 4
RETRIES_MAX = 2_000
COLUMNS_FACTOR = 10
"""What a few rows weigh as columns of Arrow, times what they weigh as rows."""

Row = tuple[str, list[Any]]
"""The key and the payload."""
Parts = dict[int, list[list[Row]]]
"""The parts of an attempt, by the partition's index."""

_decode = msgspec.msgpack.decode


class Pipeline:
    """What outlives its drivers: the log of batches that are done, and what is true of them."""

    def __init__(self, world: PipelineWorld, name: str, function: str) -> None:
        self.world = world
        self.name = name
        self.function = function
        self.chance = random.Random(f"{name} {world.seed}")
        self.batch_count = self.chance.randint(1, 4)
        keyed = world.functions[function].kind == "keyed"
        self.assigns = keyed and random.Random(f"states {name} {world.seed}").random() < 0.3
        """It brings states: for its rows, no handler runs."""
        self.columns = not self.assigns and world.functions[function].takes_columns
        """Its rows come as columns of Arrow, some of them."""
        self.has_runs = random.Random(f"runs {name} {world.seed}").random() < 0.5
        """Its tasks begin the run of their driver by themselves."""
        self.logged = -1
        self.attempts: dict[str, Parts] = {}
        self.decided: dict[int, list[str]] = {}
        """Batch to the attempts that count."""
        self.driver_count = 0
        self.finished = False

    def begin(self) -> None:
        """Let a driver go on behind what is logged."""
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
        uid, amount = f"{self.name}.{batch}.{name}", self.chance.randint(1, 9)
        payload: list[Any] = ["add", uid, amount]
        if self.chance.random() < 0.15 and not self.assigns:
            payload = ["fail", uid, amount, self.chance.randint(1, ATTEMPTS - 1)]
        return self.chance.choice(self.world.keys), payload

    def was_decided(self, batch: int, attempts: list[str]) -> None:
        known = self.decided.setdefault(batch, attempts)
        check(known == attempts, "a decision was changed", self.name, batch, known, attempts)

    def rows(self) -> Iterator[Row]:
        """All rows that have to have their effect, in the order of their partitions' channels."""
        for index in range(PARTITIONS_PER_FUNCTION):
            for batch in sorted(self.decided):
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
        self._completed = -1
        self._generation = 0
        self._story = self._drive()
        self._waits: Sequence[Said] = ()

    def _some_client(self) -> Client:
        return self.chance.choice(
            [each for each in self.world.clients if each is not self.world.deserter]
        )

    def go_on(self) -> None:
        if self.is_dead:
            return
        if not all(said.replies for said in self._waits):
            self.world.after(LOOK_EVERY_MS, self.go_on)
            return
        if self._dies():
            self.world.fault("dead driver")
            self.is_lost = True
            self.is_dead = self.chance.random() < 0.6
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

    def _drive(self) -> Iterator[Sequence[Said]]:
        pipeline, chance = self.pipeline, self.chance
        yield from self._begin(self.client)
        for batch in range(pipeline.logged + 1, pipeline.batch_count):
            chosen: list[str] = []
            for number in range(chance.randint(0, 3)):
                attempt = f"{self.number}-{number}"
                fails = chance.random() < 0.3
                yield from self._stage(batch, f"{batch}-{attempt}", fails=fails)
                if not fails:
                    chosen.append(f"{batch}-{attempt}")
            yield from self._commit(batch, chosen)
            yield ()
            if not self.is_lost:
                pipeline.logged = batch
        if not self.is_lost:
            pipeline.finished = True

    def _begin(self, client: Client) -> Iterator[Sequence[Said]]:
        """Take over from earlier drivers; or join the run of this one, from another process."""
        run = [f"run-{self.number}"] if self.pipeline.has_runs else []
        said = self._say(0, ["begin", self.pipeline.name, *run], client)
        yield (said,)
        answer, error = said.replies[0]
        if error is not None:
            raise SupersededError
        batch, attempts, generation = answer[1:4]
        if attempts is not None:
            self.pipeline.was_decided(batch, attempts)
            yield from self._seal(batch, attempts)
        self._completed, self._generation = max(self._completed, batch), generation

    def _stage(self, batch: int, attempt: str, *, fails: bool) -> Iterator[Sequence[Said]]:
        parts = self.pipeline.stage(batch, attempt)
        executor = self._some_client()
        if self.pipeline.has_runs and self.run_chance.random() < 0.5:
            yield from self._begin(executor)
        requests = []
        for index, some in parts.items():
            for number, rows in enumerate(some):
                keys, payloads = [key for key, _ in rows], [payload for _, payload in rows]
                name, generation = self.pipeline.name, self._generation
                places, column = b"", payloads
                if self.pipeline.columns and self.column_chance.random() < 0.7:
                    keys, places, column = as_columns(keys, payloads)
                request = ["stage", name, batch, attempt, number, keys, column, generation]
                request += [self.pipeline.assigns, places]
                requests.append((index, request))
        self.chance.shuffle(requests)
        if fails:
            for index, request in requests[: self.chance.randint(0, len(requests))]:
                self._say(index, request, executor)
            if self.chance.random() < 0.5:
                for index in parts:
                    self._say(index, ["drop", self.pipeline.name, batch, [attempt]], executor)
            return
        yield from self._ask(requests, executor)

    def _commit(self, batch: int, chosen: list[str]) -> Iterator[Sequence[Said]]:
        name = self.pipeline.name
        while True:
            decide = ["decide", name, batch, chosen, self._completed, self._generation]
            said = self._say(0, decide, self.client)
            yield (said,)
            answer, error = said.replies[0]
            if error is not None:
                raise SupersededError
            decided_batch, attempts = answer[1:3]
            self.pipeline.was_decided(decided_batch, attempts)
            if decided_batch > batch:
                return
            yield from self._seal(decided_batch, attempts)
            self._completed = max(self._completed, decided_batch)
            if decided_batch == batch:
                return

    def _seal(self, batch: int, attempts: list[str]) -> Iterator[Sequence[Said]]:
        left_ms = self.chance.choice([None, 50, 5_000, LOWEST_LEFT_MS])
        wanted: dict[int, list[list[Any]]] = {}
        for attempt in attempts:
            for index, parts in self.pipeline.attempts[attempt].items():
                rows = sum(len(part) for part in parts)
                wanted.setdefault(index, []).append([attempt, len(parts), rows])
        requests = [
            (index, ["seal", self.pipeline.name, batch, some, left_ms])
            for index, some in wanted.items()
        ]
        if self.chance.random() < 0.3:
            requests = [each for each in requests for _ in range(2)]
        yield from self._ask(requests, self.client)

    def _ask(
        self, requests: Sequence[tuple[int, list[Any]]], client: Client
    ) -> Iterator[Sequence[Said]]:
        """Ask until there is room for everything."""
        left = list(requests)
        for _ in range(RETRIES_MAX):
            asked = [(each, self._say(*each, client)) for each in left]
            yield [said for _, said in asked]
            errors = [(each, said.replies[0][1]) for each, said in asked]
            if any("has begun since" in error.message for _, error in errors if error is not None):
                raise SupersededError
            for each, error in errors:
                is_full = error is not None and error.code == "overloaded"
                check(error is None or is_full, "a request of a pipeline failed", each[1], error)
            left = [each for each, error in errors if error is not None]
            if not left:
                return
            self.world.fault("no room for rows")
        check(False, "there is never room for rows", left)

    def _say(self, index: int, request: list[Any], client: Client) -> Said:
        partition = partition_name(self.pipeline.function, index)
        channel = client.channels.get(partition)
        if channel is None:
            channel = client.channels[partition] = ClientChannel(client, partition)
        said = Said(Kind.STAGE, "", request, "")
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
        owner = self._pipelines.owners[name].partition.staging
        size_bytes = sum(part.size_bytes for part in parts.values())
        check(owner.bytes == size_bytes, "bytes are miscounted", name, owner.bytes, size_bytes)
        check(owner.sealed_rows == owner.fed_rows == 0, "rows are miscounted", name)


class PipelineWorld(World):
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
        self.oracle = PipelineOracle(self)
        self.pipelines: list[Pipeline] = []

    def new_node(self, name: str) -> Node:
        node = super().new_node(name)
        staging = node.partition.staging
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
