"""Whatever fails and whenever, money is neither made nor lost: the harness as a simulator."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from sublet.testing import Harness
from tests.unit.testing.apps import Move, account, bank, transfer, turnover

ACCOUNTS = [f"k{number}" for number in range(6)]
OPENING = 1_000
ROOT = Path(__file__).resolve().parents[3]


def simulate(seed: int) -> tuple[Harness, int]:
    """Move money to and fro while everything breaks; return how many moves there were."""
    chance = random.Random(seed)
    harness = Harness(bank, seed=seed)
    for name in ACCOUNTS:
        harness.set_state(account, name, OPENING)
    moves = 0
    for step in range(15):
        match chance.randrange(6):
            case 0:
                harness.crash(at_commit=chance.randrange(1, 12), applied=chance.random() < 0.5)
            case 1:
                harness.fail_commits(chance.randrange(1, 4), applied=chance.random() < 0.5)
            case 2:
                function = chance.choice([account, transfer])
                # Less than what makes a dead letter, however they add up.
                harness.fail_next(function, key=f"k{step % 6}", after=chance.random() < 0.5)
            case 3:
                harness.advance(chance.choice(["1ms", "100ms", "31s", "2h"]))
            case 4:
                count = chance.randrange(1, 8)
                sources = chance.choices(ACCOUNTS, k=count)
                amounts = [Move(chance.randrange(1, 5), chance.choice(ACCOUNTS)) for _ in sources]
                harness.send_many(account, sources, amounts)
                moves += 2 * count
            case _:
                one, other = chance.sample(ACCOUNTS, 2)
                key = chance.choice(["", f"request-{step}"])
                harness.call(transfer, one, Move(3, other), idempotency_key=key)
                moves += 2
    harness.advance("1h")
    return harness, moves


@pytest.mark.parametrize("seed", range(1, 41))
def test_every_move_happens_once(seed: int) -> None:
    harness, moves = simulate(seed)

    with harness:
        harness.assert_idle()
        assert sum(harness.states(account).values()) == OPENING * len(ACCOUNTS)
        emitted = harness.emitted("moves", Move)
        assert len(emitted) == moves
        assert harness.state(turnover, "all") == sum(move.amount for move in emitted)


def test_a_simulation_is_the_same_in_every_process() -> None:
    program = (
        "import logging; logging.disable(); from tests.unit.testing.test_faults import simulate;"
        "print('hash', simulate(7)[0].trace_hash)"
    )
    hashes = set()
    for hash_seed in ("1", "2"):
        printed = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=200,
            check=True,
        ).stdout
        hashes.add(printed.split("hash ")[1])

    assert hashes == {simulate(7)[0].trace_hash + "\n"}
