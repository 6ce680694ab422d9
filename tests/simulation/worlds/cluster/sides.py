"""What some clusters tell beside their story: side stories, each with functions, callers, chance
and an oracle of its own.

The stories of the other seeds stay what they were: who is not chosen draws nothing. Clusters that
lose data, or whose workers have different functions, have no side stories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, ClassVar

from sublet.functions.app import App
from sublet.runtime.config.settings import WorkerConfig
from sublet.statestore.memory import MemoryBackend

if TYPE_CHECKING:
    from tests.simulation.worlds.cluster.loop import Process
    from tests.simulation.worlds.cluster.world import Caller, ClusterWorld

SHARE = 0.4
"""How many of the seeds that may have side stories have some."""


class SideStory:
    """One of them, in one cluster."""

    name: ClassVar[str]
    share: ClassVar[float] = 0.5
    """How often it is told where there are side stories."""

    is_quiet = False
    """Whether nothing may go wrong beside it, but that workers come and leave."""

    def __init__(self, world: ClusterWorld, seed: int) -> None:
        self.world = world
        self.chance = Random(f"{self.name} {seed}")

    def declare(self) -> App:
        """Return the functions that it is about."""
        raise NotImplementedError

    def configure(self, config: WorkerConfig) -> WorkerConfig:
        """Return what workers are to be like."""
        return config

    def replaced(self) -> Mapping[str, object]:
        """Return what stands in workers instead of what they have: `module:name` to that."""
        return {}

    def processes(self) -> Sequence[Process]:
        """Return those that are neither workers nor clients."""
        return ()

    def unrest(self) -> str:
        """Say what still has to happen; nothing if it is over."""
        return ""

    def new_backend(self) -> MemoryBackend | None:
        """Return what the cluster's data is to be in, if that is not all the same."""
        return None

    def plan(self, story_ms: int) -> None:
        """Let callers and others do what they do until then."""
        raise NotImplementedError

    def judge(self) -> None:
        """Raise `ViolationError` if anything is not as it must be; the cluster rests."""
        raise NotImplementedError

    def end(self) -> None:
        """Give back what it has taken of the machine."""

    def new_callers(self, count: int) -> list[Caller]:
        """Return clients that only this story has."""
        from tests.simulation.worlds.cluster.world import Caller

        callers = [Caller(self.world, f"{self.name}{number}") for number in range(count)]
        self.world.callers.extend(callers)
        return callers


def side_stories(world: ClusterWorld, seed: int) -> list[SideStory]:
    """Return those that a seed tells."""
    # A name that leaves the seeds of all `FINDINGS` as they were.
    chance = Random(f"beside {seed}")
    if world.losses.are_there or world.releases.are_different or chance.random() >= SHARE:
        return []
    return [kind(world, seed) for kind in _kinds() if chance.random() < kind.share]


def _kinds() -> list[type[SideStory]]:
    from tests.simulation.worlds.cluster.clockwork import Clockwork
    from tests.simulation.worlds.cluster.http import Balancer
    from tests.simulation.worlds.cluster.readers import Readers
    from tests.simulation.worlds.cluster.repeats import Repeats

    return [Repeats, Clockwork, Readers, Balancer]
