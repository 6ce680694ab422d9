"""Ways to break whole workers, clients and what they build on: the cluster's oracle has to notice
each. What only a partition can do wrong is in `partition`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from math import inf
from typing import Any, ClassVar

import msgspec

from sublet.functions.context import Context
from sublet.functions.errors import UnavailableError
from sublet.functions.state import StateClock
from sublet.runtime.client.channel import Channel
from sublet.runtime.client.client import Client
from sublet.runtime.client.session import Session
from sublet.runtime.cluster.handover import Handover
from sublet.runtime.cluster.membership import FailureDetector, Membership
from sublet.runtime.cluster.partition_routes import PartitionRoutes
from sublet.runtime.hosting.group_commit import GroupCommitter
from sublet.runtime.hosting.partition_host import Host
from sublet.runtime.hosting.peer_outbound import PeerOutbound
from sublet.runtime.hosting.router import Router
from sublet.runtime.leases.adapter import Lending
from sublet.runtime.leases.binding import Binding
from sublet.runtime.partition.features.delivery import Delivery
from sublet.runtime.partition.lifecycle.admission import Admission
from sublet.runtime.partition.model.effects import Acknowledge
from sublet.runtime.partition.records.idempotency import idempotency_id
from sublet.runtime.protocol.frames import Ack, Batch, Data, FunctionInfo, Refused, Topology
from sublet.runtime.protocol.messages import Message
from sublet.runtime.worker import Worker
from sublet.scheduler.placement import place
from sublet.statestore.contract import Commit, Member, Outcome, Recovered, View
from sublet.statestore.memory import MemoryBackend, MemoryStore
from tests.simulation.mutants import partition as mutants
from tests.simulation.worlds.cluster.store import SimulatedDirectory, SimulatedStore
from tests.simulation.worlds.cluster.world import ClusterMutant

RUNTIME = "sublet.runtime"


# The store


class _UnfencedStore(SimulatedStore):
    def apply(self, commits: Sequence[Commit]) -> list[Outcome]:
        for commit in commits:
            tables = self.backend.partitions[commit.partition]
            if tables.commit_id != commit.id:
                tables.apply(commit)
                self.on_commit(commit, Outcome.DONE)
        return [Outcome.DONE] * len(commits)


class DoesNotFence(ClusterMutant):
    """Lets former owners go on to commit (no fence)."""

    store = _UnfencedStore


class ReadsBeforeFencing(ClusterMutant):
    """Reads what there is, and raises the epoch only then (read before fencing)."""

    class store(SimulatedStore):  # noqa: N801
        async def acquire(self, partition: str, worker: str) -> Recovered:
            tables = self.backend.partitions.get(partition)
            before = None if tables is None else tables.recovered()
            await asyncio.sleep(0.03)
            recovered: Recovered = await self.__getattr__("acquire")(partition, worker)
            if before is None:
                return recovered
            return msgspec.structs.replace(before, epoch=recovered.epoch, index=recovered.index)


class ChecksThenWrites(ClusterMutant):
    """Looks whether a commit may be made, and makes it some time after (check-then-write)."""

    class store(SimulatedStore):  # noqa: N801
        def apply(self, commits: Sequence[Commit]) -> list[Outcome]:
            outcomes = []
            for commit in commits:
                tables = self.backend.partitions[commit.partition]
                outcome = Outcome.FENCED
                if tables.epoch == commit.epoch:
                    loop = self.faults.loop
                    loop.call_later(0.03, self._write, commit, context=loop.world.home)
                    outcome = Outcome.DONE
                outcomes.append(outcome)
            return outcomes

        def _write(self, commit: Commit) -> None:
            self.backend.partitions[commit.partition].apply(commit)
            self.on_commit(commit, Outcome.DONE)


class SendsAnotherCommitAfterUnknown(ClusterMutant):
    """Makes a new commit of one whose outcome is not known (retried commit applied twice)."""

    class store(SimulatedStore):  # noqa: N801
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._unknown: set[bytes] = set()

        async def commit(self, commits: Sequence[Commit]) -> list[Outcome]:
            outcomes = await super().commit([self._anew(each) for each in commits])
            for commit, outcome in zip(commits, outcomes, strict=True):
                if outcome is Outcome.UNKNOWN:
                    self._unknown.add(commit.id)
            return outcomes

        def _anew(self, commit: Commit) -> Commit:
            if commit.id not in self._unknown:
                return commit
            index = self.backend.partitions[commit.partition].index + 1
            return msgspec.structs.replace(commit, index=index, id=commit.id + b"'")


class LosesTheOutboxOnTakeover(ClusterMutant):
    """A new owner does not send again what its predecessor had in its outbox (no resend)."""

    class store(SimulatedStore):  # noqa: N801
        async def acquire(self, partition: str, worker: str) -> Recovered:
            recovered: Recovered = await self.__getattr__("acquire")(partition, worker)
            recovered.outbox = []
            return recovered


# What Redis has lost


class _LossMutant(ClusterMutant):
    is_about_loss = True


class DoesNotCompareTokens(_LossMutant):
    """Takes late commits of acquisitions that Redis has lost for those of the next ones."""

    class store(SimulatedStore):  # noqa: N801
        def apply(self, commits: Sequence[Commit]) -> list[Outcome]:
            return super().apply([msgspec.structs.replace(each, token="") for each in commits])


class TakesLostCommitsForDone(_LossMutant):
    """Goes on as an owner although the store has said that its data is gone."""

    class host(Host):  # noqa: N801
        def _commit_ended(self, commit: Commit, outcome: Outcome) -> None:
            super()._commit_ended(commit, Outcome.DONE if outcome is Outcome.GAP else outcome)

    replaced: ClassVar = {f"{RUNTIME}.worker:Host": host}


class BelievesNoOlderDirectory(_LossMutant):
    """Lets a directory that went back keep versions that nobody believes."""

    class membership(Membership):  # noqa: N801
        async def _as_new(self, view: View, known: int) -> View:
            return view

    replaced: ClassVar = {f"{RUNTIME}.worker:Membership": membership}


class AcknowledgesWhatMayBeLost(_LossMutant):
    """Says that repeated messages were taken without asking a store that may have lost them, and
    sends what is missing then without a word."""

    class admission(Admission):  # noqa: N801
        def _acknowledge_again(self, batch: Batch) -> Acknowledge | None:
            taken = self._inbox.taken.get(batch.source, 0)
            if not taken:
                return None
            return Acknowledge(Ack(batch.target, batch.source, taken, None, self._owner.epoch))

    class delivery(Delivery):  # noqa: N801
        def missed(self, destination: str, first: int, now_ms: float) -> None:
            self.resend_from(destination, first)

    replaced: ClassVar = {
        f"{RUNTIME}.partition.parts:Admission": admission,
        f"{RUNTIME}.partition.parts:Delivery": delivery,
    }


class WaitsForEverForWhatWasTaken(_LossMutant):
    """A client does not ask for calls that were taken where their partition goes."""

    class session(Session):  # noqa: N801
        def _ask_whether_known(self, channel: Channel) -> None:
            return

    replaced: ClassVar = {f"{RUNTIME}.client.client:Session": session}


class TakesEveryLossForAFormerOwner(_LossMutant):
    """A client never believes an owner of a lower epoch that it lacks what was taken."""

    class session(Session):  # noqa: N801
        def _is_former(self, channel: Channel, refused: Refused, now_ms: float) -> bool:
            return 0 < refused.epoch < channel.epoch

    replaced: ClassVar = {f"{RUNTIME}.client.client:Session": session}


# Idempotency keys


class _SpreadingClient(Client):
    def _channel(self, route: Any, key: str, idempotency_key: str = "") -> Channel:
        return super()._channel(route, key)


class SpreadsRepeatedRequests(ClusterMutant):
    """A client brings requests without a key anywhere, whatever their idempotency key is."""

    replaced: ClassVar = {"tests.simulation.worlds.cluster.world:Client": _SpreadingClient}


class SpreadsRepeatedRequestsByHttp(ClusterMutant):
    """The client of a worker brings requests without a key anywhere."""

    replaced: ClassVar = {f"{RUNTIME}.services.worker_service:Client": _SpreadingClient}


class RunsWhatConflicts(ClusterMutant):
    """Takes requests for different ones if their messages differ, under one idempotency key."""

    @staticmethod
    def name_of(message: Message) -> str:
        return f"{idempotency_id(message)}\0{bytes(message.payload).hex()}"

    replaced: ClassVar = {
        f"{RUNTIME}.partition.records.idempotency:idempotency_id": name_of,
        f"{RUNTIME}.partition.lifecycle.completion:idempotency_id": name_of,
    }


# Former owners that are asked


class ReadsItsOwnCopyAsFormerOwner(ClusterMutant):
    """Reads what it has stored itself of a partition that it owned, whoever writes there since."""

    class store(SimulatedStore):  # noqa: N801
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._own = MemoryBackend()

        def _acquired(self, partition: str, worker: str) -> Recovered:
            recovered = super()._acquired(partition, worker)
            self._own.partitions[partition] = deepcopy(self.backend.partitions[partition])
            return recovered

        def apply(self, commits: Sequence[Commit]) -> list[Outcome]:
            outcomes = super().apply(commits)
            for commit, outcome in zip(commits, outcomes, strict=True):
                if outcome is Outcome.DONE and commit.partition in self._own.partitions:
                    self._own.partitions[commit.partition].apply(commit)
            return outcomes

        async def load(self, partition: str, keys: Sequence[str]) -> Any:
            return await self._read("load", partition, keys)

        async def records_due(self, partition: str, *what: Any) -> Any:
            return await self._read("records_due", partition, *what)

        async def record_ids(self, partition: str, *what: Any) -> Any:
            return await self._read("record_ids", partition, *what)

        async def _read(self, name: str, partition: str, *what: Any) -> Any:
            found = await self.__getattr__(name)(partition, *what)
            if partition in self._own.partitions:
                found = await getattr(MemoryStore(self._own), name)(partition, *what)
            return found


class TakesItselfForTheOwnerOfAFile(ClusterMutant):
    """On SQLite, reads as the owner without a look at the epoch."""

    @staticmethod
    async def settled(store: Any, partition: str) -> None:
        return

    replaced: ClassVar = {
        "sublet.statestore.sqlite.store:_epoch": lambda source: None,
        f"{RUNTIME}.services.inspection:settled": settled,
        f"{RUNTIME}.services.worker_service:settled": settled,
    }


# Workers that are drained


class RefusesHttpWhileItDrains(ClusterMutant):
    """A worker that is asked to stop refuses what comes by HTTP as long as its door is open."""

    class worker(Worker):  # noqa: N801
        def not_joined(self) -> str:
            return "the worker is stopping" if self.stopping.is_set() else super().not_joined()

    replaced: ClassVar = {"tests.simulation.worlds.cluster.world:Worker": worker}


class EndsBeforeItHasAnswered(ClusterMutant):
    """A worker that is drained does not wait until all who came by HTTP have their reply."""

    class worker(Worker):  # noqa: N801
        async def _answered(self) -> None:
            pass

    replaced: ClassVar = {"tests.simulation.worlds.cluster.world:Worker": worker}


# Time


class CountsDelaysFromTheBeginning(ClusterMutant):
    """Counts the delays of timers from when the run of their handler began."""

    class clock(StateClock):  # noqa: N801
        def moment_ms(self) -> int:
            return self.now_ms

    replaced: ClassVar = {
        f"{RUNTIME}.hosting.partition_host:StateClock": clock,
        f"{RUNTIME}.leases.borrowed_runs:StateClock": clock,
    }


class LetsTimeGoOnInsideOfHandlers(ClusterMutant):
    """Tells handlers the time at which another run of their partition began."""

    class context(Context):  # noqa: N801
        @property
        def now_ms(self) -> int:
            return self._scope.clock.now_ms

    replaced: ClassVar = {f"{RUNTIME}.execution.async_runner:Context": context}


class ComparesTimersAsText(ClusterMutant):
    """Sends timers that are due at one time in the order of their numbers as texts."""

    replaced: ClassVar = {f"{RUNTIME}.partition.features.timers:in_order": str}


# Group commit


class _HearsOthers(GroupCommitter):
    def __init__(
        self, store: Any, on_outcome: Callable[[Commit, Outcome], None], on_group: Any = None
    ) -> None:
        super().__init__(store, partial(self._told, on_outcome), on_group)

    def _told(
        self, on_outcome: Callable[[Commit, Outcome], None], commit: Commit, outcome: Outcome
    ) -> None:
        raise NotImplementedError


class TakesUnknownForDone(ClusterMutant):
    """Goes on as if a commit was made when nobody knows."""

    class committer(_HearsOthers):  # noqa: N801
        def _told(self, on_outcome: Any, commit: Commit, outcome: Outcome) -> None:
            on_outcome(commit, Outcome.DONE if outcome is Outcome.UNKNOWN else outcome)

    replaced: ClassVar = {f"{RUNTIME}.hosting.partition_host:GroupCommitter": committer}


class TakesUnknownForFailed(ClusterMutant):
    """Forgets a commit of which nobody knows whether it was made, and what it would release."""

    class committer(_HearsOthers):  # noqa: N801
        def _told(self, on_outcome: Any, commit: Commit, outcome: Outcome) -> None:
            if outcome is not Outcome.UNKNOWN:
                on_outcome(commit, outcome)

    replaced: ClassVar = {f"{RUNTIME}.hosting.partition_host:GroupCommitter": committer}


class JudgesAGroupByItsFirst(ClusterMutant):
    """Takes the outcome of the first commit of a group for that of all."""

    class store(SimulatedStore):  # noqa: N801
        async def commit(self, commits: Sequence[Commit]) -> list[Outcome]:
            outcomes = await super().commit(commits)
            return outcomes[:1] * len(outcomes)


# Router


class DropsWhatIsNotHere(ClusterMutant):
    """Says nothing when messages come for a partition that is not here."""

    class router(Router):  # noqa: N801
        def _not_here(self, port: PeerOutbound, batch: Batch) -> None:
            return

    replaced: ClassVar = {f"{RUNTIME}.worker:Router": router}


class AcknowledgesOnArrival(ClusterMutant):
    """Says that messages were taken when they have only come (early ack)."""

    class router(Router):  # noqa: N801
        def _data_received(self, port: PeerOutbound, data: Data) -> None:
            super()._data_received(port, data)
            for batch in data.batches:
                if batch.target in self.host.partitions:
                    last = batch.first + batch.count - 1
                    port.acknowledge(Ack(batch.target, batch.source, last))

    replaced: ClassVar = {f"{RUNTIME}.worker:Router": router}


class DoesNotSendRefusedAgain(ClusterMutant):
    """Forgets what a peer has refused."""

    class router(Router):  # noqa: N801
        def _refused(self, port: PeerOutbound, refused: Refused) -> None:
            return

    replaced: ClassVar = {f"{RUNTIME}.worker:Router": router}


class TakesLostLinksForGoodbyes(ClusterMutant):
    """Forgets a client whose link was lost."""

    class router(Router):  # noqa: N801
        def link_ended(self, port: PeerOutbound, reason: str, clean: bool) -> None:
            super().link_ended(port, reason, True)

    replaced: ClassVar = {f"{RUNTIME}.worker:Router": router}


class DoesNotOfferMissedReplies(ClusterMutant):
    """Does not offer a client again what it missed while it had no link."""

    class router(Router):  # noqa: N801
        async def _offer_missed(self, port: PeerOutbound) -> None:
            return

    replaced: ClassVar = {f"{RUNTIME}.worker:Router": router}


# Partitions inside of whole workers


class AnswersBeforeTheCommit(ClusterMutant):
    """Answers callers from memory, also as a former owner (stale read)."""

    replaced: ClassVar = {
        f"{RUNTIME}.hosting.partition_host:Partition": mutants.AnswersBeforeTheCommit.partition,
    }


class BelievesItsOwnClock(ClusterMutant):
    """Lets the clock of a partition go back to that of its owner's machine."""

    replaced: ClassVar = {
        f"{RUNTIME}.hosting.partition_host:Partition": mutants.BelievesItsOwnClock.partition,
    }


class GoesOnAfterItIsFenced(ClusterMutant):
    """Goes on as an owner although the store has said that there is another."""

    class host(Host):  # noqa: N801
        def _commit_ended(self, commit: Commit, outcome: Outcome) -> None:
            super()._commit_ended(commit, Outcome.DONE if outcome is Outcome.FENCED else outcome)

    replaced: ClassVar = {f"{RUNTIME}.worker:Host": host}


# Membership and handover


class NoticesNoDeath(ClusterMutant):
    """Never takes anybody for dead."""

    class deaths(FailureDetector):  # noqa: N801
        def dead(self, members: Any, now_ms: float) -> list[str]:
            super().dead(members, now_ms)
            return []

    replaced: ClassVar = {f"{RUNTIME}.cluster.membership:FailureDetector": deaths}


class TakesBeforeItIsReleased(ClusterMutant):
    """Acquires what a peer is to hand over without waiting for that, where nobody fences."""

    class handover(Handover):  # noqa: N801
        def _want(self, partition: str, now_ms: float) -> None:
            self._acquire(partition, None)

    replaced: ClassVar = {f"{RUNTIME}.cluster.membership:Handover": handover}
    store = _UnfencedStore


# Workers with different functions


class PlacesWhereTheFunctionIsNot(ClusterMutant):
    """Places partitions without asking who has their function."""

    replaced: ClassVar = {
        f"{RUNTIME}.cluster.membership:place": lambda *given, able, **options: place(
            *given, **options
        )
    }


class PlacesOnlyItsOwnFunctions(ClusterMutant):
    """Whoever proposes the placement forgets functions that only others have."""

    class membership(Membership):  # noqa: N801
        def _wanted(self, view: View, *others: Any) -> dict[str, str]:
            wanted = super()._wanted(view, *others)
            return {
                partition: worker
                for partition, worker in wanted.items()
                if partition.rpartition("/")[0] in self._functions
            }

    replaced: ClassVar = {f"{RUNTIME}.worker:Membership": membership}


class TakesAWorkerForTheFormerOneAtItsAddress(ClusterMutant):
    """Enters a worker that is started anew at an address with the functions that were there."""

    class directory(SimulatedDirectory):  # noqa: N801
        async def join(self, member: Member, functions: Mapping[str, int], **more: Any) -> View:
            for each in self.backend.members.values():
                if each.address == member.address and each.functions is not None:
                    functions = {name: self.backend.functions[name] for name in each.functions}
            joined: View = await self.__getattr__("join")(member, functions, **more)
            return joined


class LendsToWhoLacksTheFunction(ClusterMutant):
    """Lends work to any peer."""

    class host(Host):  # noqa: N801
        def _open_lending(self, binding: Binding) -> Lending:
            return super()._open_lending(binding._replace(has=lambda worker, function: True))

    replaced: ClassVar = {f"{RUNTIME}.worker:Host": host}


class KnowsOnlyItsOwnFunctions(ClusterMutant):
    """Tells handlers that functions which only other workers have do not exist."""

    class routes(PartitionRoutes):  # noqa: N801
        def learn(self, functions: Iterable[FunctionInfo]) -> None:
            return

    replaced: ClassVar = {f"{RUNTIME}.worker:PartitionRoutes": routes}


class TakesWhatItLacksForAbsent(ClusterMutant):
    """Tells clients that no worker has what the worker itself lacks."""

    class membership(Membership):  # noqa: N801
        def _topology(self, view: View) -> Topology:
            told = super()._topology(view)
            functions = [
                msgspec.structs.replace(each, absent=each.name not in self._functions)
                for each in told.functions
            ]
            placement = {
                partition: worker
                for partition, worker in told.placement.items()
                if partition.rpartition("/")[0] in self._functions
            }
            return msgspec.structs.replace(told, functions=functions, placement=placement)

    replaced: ClassVar = {f"{RUNTIME}.worker:Membership": membership}


class SaysThatNothingHappenedToWhatWasSent(ClusterMutant):
    """A client tells all callers of a function that nobody has any more that nothing happened."""

    class session(Session):  # noqa: N801
        def _fail_absent(self, channel: Channel, now_ms: float) -> float:
            wake_ms = super()._fail_absent(channel, now_ms)
            if wake_ms == inf:
                message = f"no worker has the function of {channel.partition}"
                for segment in (*channel.sent, *channel.resend, *channel.awaiting):
                    self.stats.in_flight -= segment.fail(lambda: UnavailableError(message))
            return wake_ms

    replaced: ClassVar = {f"{RUNTIME}.client.client:Session": session}


class BelievesForEverThatNobodyHasIt(ClusterMutant):
    """A client without links goes on to say that no worker has a function."""

    class session(Session):  # noqa: N801
        def _is_absent(self, channel: Channel) -> bool:
            function = channel.partition.rpartition("/")[0]
            return channel.worker is None and function in self._absent

    replaced: ClassVar = {f"{RUNTIME}.client.client:Session": session}


# Clients


class RenumbersOnReconnect(ClusterMutant):
    """A client gives messages new numbers that it sends again."""

    class session(Session):  # noqa: N801
        def _detach(self, channel: Channel) -> None:
            super()._detach(channel)
            for segment in channel.resend:
                if not segment.acked and segment is channel.resend[-1]:
                    segment.first = channel.next_number
                    channel.next_number += segment.count

    replaced: ClassVar = {f"{RUNTIME}.client.client:Session": session}


class DoesNotSendAgain(ClusterMutant):
    """A client does not send again what was under way on a link that it lost."""

    class session(Session):  # noqa: N801
        def _detach(self, channel: Channel) -> None:
            super()._detach(channel)
            channel.resend.clear()

    replaced: ClassVar = {f"{RUNTIME}.client.client:Session": session}


class BeginsAnewOnReconnect(ClusterMutant):
    """A client goes by another name on each new link, with all that was not acknowledged."""

    class session(Session):  # noqa: N801
        def _detach(self, channel: Channel) -> None:
            super()._detach(channel)
            if channel.resend:
                for segment in reversed(channel.resend):
                    segment.first = 0
                    channel.unsent.appendleft(segment)
                channel.resend.clear()

    replaced: ClassVar = {f"{RUNTIME}.client.client:Session": session}


def _is_mutant(each: Any) -> bool:
    is_kind = isinstance(each, type) and issubclass(each, ClusterMutant)
    return is_kind and each not in (ClusterMutant, _LossMutant)


MUTANTS: dict[str, type[ClusterMutant]] = {
    each.__name__: each for each in list(globals().values()) if _is_mutant(each)
}
