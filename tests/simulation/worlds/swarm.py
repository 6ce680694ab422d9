"""More that goes wrong, each kind switched on or off by the seed, at a rate of its own.

A world where everything fails at once hides what only shows when one thing fails: so every seed
chooses a few kinds, and a quarter of them choose none. Chance is the swarm's own; what else a seed
decides stays as it was without it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sublet.runtime.protocol.frames import Ack, Batch, Refused
from sublet.statestore.contract import Commit, Outcome

if TYPE_CHECKING:
    from tests.simulation.worlds.node import Node
    from tests.simulation.worlds.partition import World

HOUR_MS = 3_600_000
READ_AGAIN_MS = 5.0

Link = tuple[str, str]


class Swarm:
    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        chance = self.chance = random.Random(f"swarm {seed}")
        calm = chance.random() < 0.25

        def some(*rates: float) -> float:
            rate = chance.choice([0.0, 0.0, *rates])
            return 0.0 if calm else rate

        self.clock_jumps = some(0.5, 1.0)
        """How often a new owner's wall clock is up to an hour off."""
        self.pauses = some(2, 5)
        """How many owners stop for long and then go on with what came meanwhile."""
        self.read_failures = some(0.1, 0.4)
        self.slow_ms = some(30, 300)
        """How long the store takes for what it is slow at."""
        self.group_ms = some(1, 10)
        """How long commits of several partitions gather; now and then a group is torn."""
        self.copies = some(0.05, 0.3)
        """How many frames arrive once more, perhaps long after."""
        self.losses = some(2, 5)
        """How many links lose everything, or all acknowledgements, in one direction."""
        self.clogs = some(3, 8)
        """How many links stop one after another and come back in another order."""
        self.migrations = some(2, 6)
        self.looks = some(0.1, 0.3)
        """How many messages only read: they must see what was answered before."""
        self._paused: dict[Node, list[tuple[Callable[..., None], tuple[Any, ...]]]] = {}
        self._deaf: dict[Link, bool] = {}
        self._clogged: dict[Link, list[list[Any]]] = {}
        self._group: list[tuple[Node, Commit]] = []

    def plan(self, faults_ms: float) -> None:
        """Let it happen until then."""
        plans = [
            (self.pauses, self._world.pause),
            (self.losses, self._deafen),
            (self.migrations, self._migrate),
        ]
        for count, what in plans:
            for _ in range(int(count)):
                self._world.after(self.chance.random() * faults_ms, what)
        if self.clogs:
            self._world.after(self.chance.random() * faults_ms, self._clog, int(self.clogs))

    # Owners that stop and go on

    def pause_ms(self) -> float:
        self._world.fault("pause")
        return self.chance.random() * self.chance.choice([20, 200, 5_000])

    def pause_node(self) -> None:
        world = self._world
        alive = [each for each in world.nodes if each.alive and each not in self._paused]
        if alive:
            node = self.chance.choice(alive)
            self._paused[node] = []
            world.after(self.pause_ms(), self._go, node)

    def _go(self, node: Node) -> None:
        for what, arguments in self._paused.pop(node):
            what(*arguments)

    def holds(self, what: Callable[..., None], arguments: tuple[Any, ...]) -> bool:
        """Tell whether an event has to wait, because its owner is paused."""
        if not self._paused:
            return False
        owner: Any = getattr(what, "__self__", None)
        if owner is self._world and what == self._world._arrive:
            if arguments[0] in self._clogged:
                return False  # It waits for its link first, behind those that came before it.
            owner = arguments[1][0]
        held = next((each for node, each in self._paused.items() if node is owner), None)
        if held is None:
            return False
        held.append((what, arguments))
        return True

    # Clocks

    def wall_offset_ms(self) -> int:
        """Return how wrong the clock of a new owner is."""
        if not self._world.faulty or self.chance.random() >= self.clock_jumps:
            return 0
        self._world.fault("clock jump")
        return int(self.chance.choice([-1, 1]) * self.chance.choice([0.001, 1]) * HOUR_MS)

    # The store

    def delay_ms(self) -> float:
        """Return how much longer than usual something takes."""
        if not self.slow_ms or not self._world.faulty or self.chance.random() >= 0.1:
            return 0.0
        self._world.fault("slow store")
        return self.chance.random() * self.slow_ms

    def read_fails(self) -> bool:
        fails = self._world.faulty and self.chance.random() < self.read_failures
        if fails:
            self._world.fault("read failed")
        return fails

    def commit(self, node: Node, commit: Commit) -> None:
        """Bring a commit to the store, perhaps with others as a group."""
        if not self.group_ms or not self._world.faulty:
            self._world.store_soon(node.reach_store, commit)
            return
        if not self._group:
            self._world.after(self.chance.random() * self.group_ms, self._commit_group)
        self._group.append((node, commit))

    def _commit_group(self) -> None:
        world, group = self._world, self._group
        self._group = []
        is_torn = world.faulty and self.chance.random() < 0.2
        if not is_torn:
            for node, commit in group:
                node.reach_store(commit)
            return
        world.fault("torn group")
        for node, commit in group:
            if self.chance.random() < 0.5:
                world.apply(commit)
            world.soon(node.committed, Outcome.UNKNOWN)

    # The network

    def copy_delay_ms(self) -> float | None:
        """Return after how long a frame arrives once more, if it does."""
        if not self._world.faulty or self.chance.random() >= self.copies:
            return None
        self._world.fault("late copy")
        return self.chance.random() * self.chance.choice([20, 500, 5_000])

    def _random_link(self) -> Link | None:
        links = self._world.links()
        return self.chance.choice(links) if links else None

    def _deafen(self) -> None:
        link = self._random_link()
        if link is not None and link not in self._deaf:
            self._world.fault("one-way loss")
            self._deaf[link] = self.chance.random() < 0.5
            after_ms = self.chance.random() * self.chance.choice([20, 200])
            self._world.after(after_ms, self._hear_again, link)

    def _hear_again(self, link: Link) -> None:
        del self._deaf[link]
        self._world.link_noticed(link)

    def loses(self, link: Link, frame: Batch | Ack | Refused) -> bool:
        only_acknowledgements = self._deaf.get(link)
        if only_acknowledgements is None:
            return False
        return not only_acknowledgements or isinstance(frame, Ack)

    def _clog(self, count: int) -> None:
        world, step_ms = self._world, self.chance.random() * 10
        links = [link for link in world.links() if link not in self._clogged]
        chosen = self.chance.sample(links, min(count, len(links)))
        for number, link in enumerate(chosen):
            world.after(number * step_ms, self._stop_link, link)
        self.chance.shuffle(chosen)
        for number, link in enumerate(chosen, len(chosen)):
            world.after(number * step_ms, self._free_link, link)

    def _stop_link(self, link: Link) -> None:
        self._world.fault("clogged link")
        self._clogged.setdefault(link, [])

    def _free_link(self, link: Link) -> None:
        for carried in self._clogged.pop(link, []):
            self._world.after(0, self._world._arrive, link, carried)

    def clogs_up(self, link: Link, carried: list[Any]) -> bool:
        """Tell whether a frame has to wait for its link."""
        held = self._clogged.get(link)
        if held is None:
            return False
        held.append(carried)
        return True

    # Partitions that move as planned

    def _migrate(self) -> None:
        world = self._world
        node = world.owners[self.chance.choice(sorted(world.owners))]
        if node.alive and not node.draining and node not in self._paused:
            world.fault("migration")
            node.draining = True
            patience_ms = self.chance.choice([0, 5, 50, 300])
            world.after(0, self._release, node, world.now_ms + patience_ms)

    def _release(self, node: Node, until_ms: float) -> None:
        """Let a partition go once nothing runs in it, or nobody wants to wait any longer."""
        world, name = self._world, node.partition.name
        if world.owners[name] is not node or not node.alive:
            return
        if node in self._paused or not (node.partition.idle or world.now_ms >= until_ms):
            world.after(1, self._release, node, until_ms)
            return
        if self.chance.random() < 0.8:
            world.stop_node(node)
        world.take_over(name, crash=self.chance.random() < 0.2)
        if self.chance.random() < 0.2:
            # Whoever has just taken it dies before it has done much.
            world.after(self.chance.random() * 20, world.take_over_from, world.owners[name])
