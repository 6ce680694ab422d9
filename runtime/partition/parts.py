"""How one partition is put together: each part is made with what it works with, and nothing else.

Only `Partition` sees all of them. What is durable is recovered first; then come what waits, how
messages end, the commit, runs, and the features around them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sublet.functions.app import Function
from sublet.runtime.partition.commit.commit_budget import CommitBudget
from sublet.runtime.partition.commit.commit_participant import CommitParticipant
from sublet.runtime.partition.commit.oversized_messages import OversizedMessages
from sublet.runtime.partition.commit.pending_commit import PendingCommit
from sublet.runtime.partition.features.calls import Calls
from sublet.runtime.partition.features.client_departure import ClientDeparture
from sublet.runtime.partition.features.dead_letter_admin import DeadLetterAdmin
from sublet.runtime.partition.features.delivery import Delivery
from sublet.runtime.partition.features.leases import LeaseReturns, Leases
from sublet.runtime.partition.features.pipelines import Pipelines
from sublet.runtime.partition.features.requests import Requests
from sublet.runtime.partition.features.state_editor import StateEditor
from sublet.runtime.partition.features.timers import Timers
from sublet.runtime.partition.features.windows import Windows
from sublet.runtime.partition.lifecycle.admission import Admission
from sublet.runtime.partition.lifecycle.background import BackgroundThrottle
from sublet.runtime.partition.lifecycle.backpressure import Backpressure
from sublet.runtime.partition.lifecycle.cancellation import Cancellation
from sublet.runtime.partition.lifecycle.completion import MessageCompletion
from sublet.runtime.partition.lifecycle.feasibility import Feasibility
from sublet.runtime.partition.lifecycle.inflight_commit import CommitRelease, InFlightCommit
from sublet.runtime.partition.lifecycle.keys_in_use import KeysInUse
from sublet.runtime.partition.lifecycle.message_dispatch import MessageDispatch
from sublet.runtime.partition.lifecycle.parked_messages import ParkedMessages
from sublet.runtime.partition.lifecycle.run_gate import BatchSizer, RunGate
from sublet.runtime.partition.lifecycle.run_preparation import RunPreparation
from sublet.runtime.partition.lifecycle.run_results import RunResults
from sublet.runtime.partition.lifecycle.settlement import RunSettlement
from sublet.runtime.partition.lifecycle.tainted_states import TaintedStates
from sublet.runtime.partition.model.effects import Counters
from sublet.runtime.partition.model.environment import (
    Acquisition,
    StateAccess,
    StreamTopology,
    WorkerEnvironment,
)
from sublet.runtime.partition.queue.arrival_order import ArrivalOrder
from sublet.runtime.partition.queue.awaiting_handlers import AwaitingHandlers
from sublet.runtime.partition.queue.key_locks import KeyLocks
from sublet.runtime.partition.queue.leased_work import LeasedWork
from sublet.runtime.partition.queue.load_tracker import LoadTracker
from sublet.runtime.partition.queue.state_loader import StateLoader
from sublet.runtime.partition.queue.state_prefetch import Prefetch
from sublet.runtime.partition.queue.work_queue import WorkQueue
from sublet.runtime.partition.records.recovery import RecoveredRecords
from sublet.scheduler.batching import batching_of

if TYPE_CHECKING:
    from sublet.runtime.partition.partition import Partition


class PartitionParts:
    def __init__(
        self,
        steps: Partition,
        function: Function,
        acquired: Acquisition,
        worker: WorkerEnvironment,
        states: StateAccess,
        streams: StreamTopology,
        counters: Counters,
    ) -> None:
        """`steps` is the partition itself, of which most parts know only that it goes on."""
        limits, urgency = worker.limits, worker.urgency

        # What is durable
        self.pending = pending = PendingCommit()
        self.records = records = RecoveredRecords(
            function, acquired, worker, streams, pending=pending, counters=counters
        )
        owner, clock, positions = records.owner, records.clock, records.positions
        inbox, outbox, dead_letters = records.inbox, records.outbox, records.dead_letters
        clients, progress, staging = records.clients, records.progress, records.staging

        # What waits
        prefetch = None
        if states.fetchable is not None:
            prefetch = Prefetch(states.fetchable, states.prefetch_keys_max)
        self.states = StateLoader(function, states.cells, prefetch, counters)
        self.arrivals = arrivals = ArrivalOrder(progress, clock)
        self.locks = locks = KeyLocks(function.kind)
        self.leased = leased = LeasedWork(function, locks, states.cells, states.merger)
        load = LoadTracker(steps, worker, lends_parts=leased.mergeable)
        batching = batching_of(function, worker.curve)
        self.queue = queue = WorkQueue(steps, locks, inbox, worker, load, batching)
        self.awaiting = awaiting = AwaitingHandlers(limits.open_calls_max)
        self.parked = parked = ParkedMessages(
            pending=pending,
            progress=progress,
            staging=staging,
            calls=records.calls,
            load=load,
            counters=counters,
        )

        # How messages end
        self.completion = completion = MessageCompletion(
            pending=pending,
            positions=positions,
            parked=parked,
            locks=locks,
            dead_letters=dead_letters,
            idempotency=records.idempotency,
            counters=counters,
        )
        self.settlement = settlement = RunSettlement(
            function,
            completion=completion,
            positions=positions,
            parked=parked,
            locks=locks,
            dead_letters=dead_letters,
            counters=counters,
        )
        self.cancellation = cancellation = Cancellation(
            backlog=queue.backlog,
            locks=locks,
            awaiting=awaiting,
            arrivals=arrivals,
            parked=parked,
            completion=completion,
            leased=leased,
        )

        # Commits
        self.oversized = OversizedMessages(acquired.oversized or ())
        self.budget = budget = CommitBudget(
            limits.commit_messages_max,
            pending=pending,
            oversized=self.oversized,
            is_heavy=acquired.oversized is not None,
        )
        self.background = background = BackgroundThrottle(
            queue=queue,
            live=worker.live,
            staging=staging,
            pending=pending,
            messages_max=limits.commit_messages_max,
        )
        participants: list[CommitParticipant] = [
            clients,
            positions,
            records.timers,
            *([] if progress.window_ends is None else [progress.window_ends]),
            staging,
            records.encoder,
            records.egress,
            budget,
            records.calls,
            records.idempotency,
            dead_letters,
            records.snapshots,
            background,
            completion,
        ]
        self.in_flight_commit = InFlightCommit(
            owner,
            acquired.recovered.index,
            pending,
            participants,
            CommitRelease(
                owner,
                function,
                inbox=inbox,
                outbox=outbox,
                clients=clients,
                urgency=urgency,
                counters=counters,
            ),
        )

        # Runs
        self.tainted = tainted = TaintedStates(
            states.cells, pending=pending, in_flight_commit=self.in_flight_commit, leased=leased
        )
        self.gate = gate = RunGate(
            function,
            queue=queue,
            awaiting=awaiting,
            budget=budget,
            tainted=tainted,
            background=background,
        )
        self.sizer = BatchSizer(function, limits, worker.pace, budget=budget, awaiting=awaiting)
        self.dispatch = dispatch = MessageDispatch(
            function,
            queue=queue,
            locks=locks,
            arrivals=arrivals,
            positions=positions,
            parked=parked,
            completion=completion,
        )
        self.keys = keys = KeysInUse(
            pending=pending,
            locks=locks,
            states=self.states,
            gate=gate,
            awaiting=awaiting,
            leased=leased,
            tainted=tainted,
        )
        self.results = results = RunResults(
            pending=pending,
            timers=records.timers,
            progress=progress,
            versions=leased.versions,
            background=background,
            counters=counters,
        )
        self.returns = returns = LeaseReturns(
            steps, leased=leased, load=load, keys=keys, results=results, settlement=settlement
        )
        self.preparation = preparation = RunPreparation(
            steps,
            gate=gate,
            states=self.states,
            locks=locks,
            completion=completion,
            leased=leased,
            returns=returns,
        )

        # Features
        self.leases = Leases(
            steps,
            gate=gate,
            queue=queue,
            dispatch=dispatch,
            preparation=preparation,
            leased=leased,
            returns=returns,
        )
        self.calls = Calls(steps, journal=records.calls, awaiting=awaiting, positions=positions)
        self.requests = Requests(
            steps,
            cancellation=cancellation,
            pending=pending,
            parked=parked,
            gate=gate,
            leased=leased,
            queue=queue,
        )
        self.timers = Timers(steps, owner, index=records.timers, pending=pending, clock=clock)
        self.windows = Windows(
            steps,
            progress=progress,
            pending=pending,
            locks=locks,
            arrivals=arrivals,
            parked=parked,
            clock=clock,
        )
        self.delivery = Delivery(
            steps, owner, outbox=outbox, pending=pending, in_flight_commit=self.in_flight_commit
        )
        self.departure = departure = ClientDeparture(
            steps,
            clients=clients,
            positions=positions,
            outbox=outbox,
            pending=pending,
            progress=progress,
            arrivals=arrivals,
        )
        self.state_editor = StateEditor(
            steps,
            locks=locks,
            gate=gate,
            keys=keys,
            states=self.states,
            returns=returns,
            pending=pending,
        )
        self.dead_letters = DeadLetterAdmin(
            steps,
            dead_letters=dead_letters,
            clients=clients,
            arrivals=arrivals,
            parked=parked,
            locks=locks,
            pending=pending,
        )
        self.admission = admission = Admission(
            owner,
            inbox=inbox,
            positions=positions,
            clients=clients,
            backpressure=Backpressure(
                acquired.partition,
                limits,
                outbox=outbox,
                backlog=queue.backlog,
                staging=staging,
                progress=progress,
                departure=departure,
            ),
            pending=pending,
            counters=counters,
        )
        self.feasibility = Feasibility(
            function,
            load=load,
            inbox=inbox,
            arrivals=arrivals,
            positions=positions,
            completion=completion,
            admission=admission,
        )
        self.pipelines = Pipelines(
            steps,
            staging=staging,
            inbox=inbox,
            positions=positions,
            pending=pending,
            admission=admission,
            clock=clock,
        )
