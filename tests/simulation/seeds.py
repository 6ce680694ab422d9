"""How tests play seeds: many in one test, and with the command that replays the one that fails."""

from __future__ import annotations

from tests.simulation.registry import WORLDS

SEEDS_PER_TEST = 50


def chunks(count: int) -> list[range]:
    """Return the seeds from 0 on, as many as one test plays at a time."""
    seeds = range(count)
    return [seeds[at : at + SEEDS_PER_TEST] for at in range(0, count, SEEDS_PER_TEST)]


def play_all(world: str, seeds: range) -> None:
    """Raise what is wrong with the first seed that fails."""
    for seed in seeds:
        try:
            WORLDS[world].play(seed, "", None)
        except Exception as error:
            command = f"python -m tests.simulation.campaign --world {world} --replay {seed} --trace"
            error.add_note(f"replay: {command}")
            raise
