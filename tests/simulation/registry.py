"""All simulated worlds by name, with the mutants that each of them has to notice.

Whoever plays a seed asks here: the tests, the campaign, the replay of one seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.simulation.mutants import cluster as cluster_mutants
from tests.simulation.mutants import instances as instance_mutants
from tests.simulation.mutants import leases as lease_mutants
from tests.simulation.mutants import outside as outside_mutants
from tests.simulation.mutants import partition as mutants
from tests.simulation.mutants import pipelines as pipeline_mutants
from tests.simulation.mutants import snapshots as snapshot_mutants
from tests.simulation.mutants import windows as window_mutants
from tests.simulation.worlds.cluster.elastic import ElasticWorld
from tests.simulation.worlds.cluster.world import ClusterWorld
from tests.simulation.worlds.instances import InstanceWorld
from tests.simulation.worlds.leases import LeaseWindowWorld, LeaseWorld
from tests.simulation.worlds.outside import OutsideWorld
from tests.simulation.worlds.partition import World
from tests.simulation.worlds.pipelines import LeasePipelineWorld, PipelineWorld
from tests.simulation.worlds.snapshots import SnapshotWorld
from tests.simulation.worlds.windows import WindowWorld

Trace = Callable[[float, str], None]
"""Hears each event: when it happens, and what."""


class Played(NamedTuple):
    """What happened in a seed that went well."""

    events: int
    messages: int
    faults: Mapping[str, int]


class WorldKind(NamedTuple):
    """One of the worlds. `play` raises what is wrong; `ViolationError` if the oracle says so."""

    about: str
    play: Callable[[int, str, Trace | None], Played]
    """Takes a seed, the name of a mutant or nothing, and who wants to hear of it."""
    mutants: Mapping[str, type[Any]]


def _of_partitions(kind: type[World], about: str, known: Mapping[str, type[Any]]) -> WorldKind:
    def play(seed: int, mutant: str, trace: Trace | None) -> Played:
        world = kind(seed, known[mutant]() if mutant else None)
        if trace is not None:
            world.trace = lambda now_ms, what, arguments: trace(now_ms, _told(what, arguments))
        world.run()
        return Played(world.events, world.messages, world.faults)

    return WorldKind(about, play, known)


def _of_clusters(kind: type[ClusterWorld], about: str, known: Mapping[str, type[Any]]) -> WorldKind:
    def play(seed: int, mutant: str, trace: Trace | None) -> Played:
        world = kind(seed, known[mutant]() if mutant else None, tracing=trace is not None)
        try:
            world.run()
        finally:
            for line in world.story or ():
                at_ms, _, what = line.lstrip().partition(" ")
                assert trace is not None
                trace(float(at_ms), what)
        messages = len(world.script) + len(world.events_told)
        return Played(world.loop.turn_count, messages, world.faults)

    return WorldKind(about, play, known)


def _told(what: Callable[..., None], arguments: tuple[Any, ...]) -> str:
    owner: Any = getattr(what, "__self__", None)
    partition = getattr(owner, "partition", None)
    who = getattr(owner, "name", "") or getattr(partition, "name", partition) or ""
    name = getattr(what, "__name__", repr(what)).strip("_")
    told = ", ".join(_brief(each) for each in arguments)
    return f"{who} {name}({told})".strip()


def _brief(value: Any) -> str:
    """Return what a person wants to see of an argument."""
    if isinstance(value, list) and len(value) == 3:
        value = value[1]  # A frame on its way, between its ends.
    partition: Any = getattr(value, "partition", None)
    if hasattr(partition, "epoch"):
        return f"{partition.name} of epoch {partition.epoch}"
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _known() -> dict[str, WorldKind]:
    return {
        "partition": _of_partitions(World, "all that messages can do", mutants.MUTANTS),
        "windows": _of_partitions(WindowWorld, "windows, watermarks", window_mutants.MUTANTS),
        "leases": _of_partitions(LeaseWorld, "the same, with work lent", lease_mutants.MUTANTS),
        "lease-windows": _of_partitions(
            LeaseWindowWorld, "windows, with work lent", lease_mutants.WINDOW_MUTANTS
        ),
        "lease-instances": _of_partitions(
            InstanceWorld, "work lent to instances that come and go", instance_mutants.MUTANTS
        ),
        "pipelines": _of_partitions(
            PipelineWorld, "rows in batches beside messages", pipeline_mutants.MUTANTS
        ),
        "lease-pipelines": _of_partitions(
            LeasePipelineWorld, "rows in batches, with work lent", {}
        ),
        "snapshots": _of_partitions(
            SnapshotWorld, "states read as they were at a commit", snapshot_mutants.MUTANTS
        ),
        "outside": _of_partitions(
            OutsideWorld, "side effects, and requests cancelled by hand", outside_mutants.MUTANTS
        ),
        "cluster": _of_clusters(ClusterWorld, "whole workers, clients", cluster_mutants.MUTANTS),
        # Its mutants are played by `test_elastic_protocol`; they are not measured yet.
        "elastic": _of_clusters(ElasticWorld, "whole workers that come and go by load", {}),
    }


WORLDS = _known()

NAMED_BREAKAGES = {
    "no fence": "IsNotFenced",
    "check-then-write": "ChecksThenWrites",
    "read before fencing": "ReadsBeforeFencing",
    "retried commit applied twice": "ChangesACommitOnResend",
    "max-watermark": "SkipsGaps",
    "sequence reset on takeover": "NumbersAnewOnTakeover",
    "watermark written separately": "StoresPositionsSeparately",
    "early send": "DeliversBeforeTheCommit",
    "early ack": "AcknowledgesOnArrival",
    "ack of a volatile watermark": "AcknowledgesDuplicatesBeforeTheCommit",
    "no resend": "ForgetsTheOutboxOnTakeover",
    "trim on delivery": "TrimsOnDelivery",
    "stale read": "AnswersBeforeTheCommit",
    "memory-only idempotency table": "DoesNotStoreAnswers",
    "untagged partial sums": "AcceptsLateReturns",
}
"""The classic ways to lose or double effects, and the mutant that has each."""


def what_it_breaks(mutant: type[Any]) -> str:
    """Return the first sentence of a mutant's docstring, without the classic name behind it."""
    text = " ".join((mutant.__doc__ or "").split())
    return text.partition(". ")[0].rstrip(".").partition(" (")[0]
