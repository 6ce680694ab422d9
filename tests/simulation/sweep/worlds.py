"""The simulated worlds with nothing wrong in them but one call of the store: the k-th."""

from __future__ import annotations

from typing import Any, NamedTuple

from sublet.statestore.contract import Commit, Outcome
from tests.simulation.sweep.store import SLOW_S, Way
from tests.simulation.worlds.leases import LeaseWindowWorld, LeaseWorld
from tests.simulation.worlds.node import Node
from tests.simulation.worlds.partition import World
from tests.simulation.worlds.swarm import Swarm


class SweptSwarm(Swarm):
    """Lets one call go wrong, and partitions migrate if that is the story."""

    def __init__(self, world: World, seed: int, way: Way, failing: int) -> None:
        super().__init__(world, seed)
        self.clock_jumps = self.read_failures = self.copies = self.looks = 0.0
        self.pauses = self.slow_ms = self.group_ms = self.losses = self.clogs = 0.0
        self.migrations = 0.0
        self.way, self.failing, self.calls = way, failing, 0

    def _is_next(self) -> bool:
        self.calls += 1
        return self.calls == self.failing

    def read_fails(self) -> bool:
        return self.way is Way.FAILS and self._is_next()

    def commit(self, node: Node, commit: Commit) -> None:
        world = self._world
        if not self._is_next():
            world.soon(node.reach_store, commit)
            return
        if self.way is Way.SLOW:
            world.after(SLOW_S * 1000, node.reach_store, commit)
            return
        if self.way in (Way.NO_ANSWER, Way.CRASH_AFTER):
            world.apply(commit)
        if self.way in (Way.CRASH_BEFORE, Way.CRASH_AFTER):
            world.soon(world.crash_owner, node)
        else:
            world.soon(node.committed, Outcome.UNKNOWN)


class Story(NamedTuple):
    kind: type[World]
    seed: int
    takeovers: bool = False
    migrations: int = 0


STORIES = {
    "migrations": Story(World, 30, migrations=6),
    "takeovers during load": Story(World, 17, takeovers=True),
    "leases": Story(LeaseWorld, 21),
    "leases of windows": Story(LeaseWindowWorld, 39),
}


def play(name: str, way: Way, failing: int) -> Any:
    """Let a story happen while one call goes wrong; return its world, judged."""
    story = STORIES[name]
    kind: Any = story.kind

    class Swept(kind):  # type: ignore[misc]
        def new_swarm(self, seed: int) -> Swarm:
            swarm = SweptSwarm(self, seed, way, failing)
            swarm.migrations = story.migrations
            return swarm

        def _random_takeover(self) -> None:
            if story.takeovers:
                super()._random_takeover()

        def _reset_link(self) -> None:
            return

        def plan_faults(self, faults_ms: float) -> None:
            return

        def _say_goodbye(self) -> None:
            """Whoever takes over after that knows of it only by silence."""

    world = Swept(story.seed)
    world.commit_loss = 0.0
    world.run()
    return world
