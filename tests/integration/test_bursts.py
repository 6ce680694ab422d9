"""`burst = "sponge"` on real processes: instances come, are killed, go; every count is exact."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.integration.cluster import until
from tests.integration.test_scaling import Run, load, redirected, running

SETTINGS = {
    "burst": "sponge:samples=1,calm_samples=3,ignore_samples=0,ignore=0s",
    "instances": "local",
    "instances_max": "2",
}


async def come(run: Run, instances: int) -> list[int]:
    """Wait until so many instances have come; return their processes."""
    await run.until(lambda _: len(run.events("serving")) >= instances)
    return [int(each["pid"]) for each in run.events("serving")]


@pytest.mark.timeout(240)
async def test_instances_help_through_a_burst_and_one_that_is_killed_costs_no_effect(
    tmp_path: Path,
) -> None:
    given = [text for name, value in SETTINGS.items() for text in ("--set", f"{name}={value}")]
    async with running(tmp_path, "1..2", "fixed:workers=1", *given) as run:
        view = await run.until(lambda view: bool(view.placement) and bool(view.lead.holder))
        (member,) = view.members.values()

        async def is_redirected() -> bool:
            return bool(await redirected(view))

        async def has_none() -> bool:
            return not (await run.plan()).instances

        async with load(member.address) as calls:
            victim, _ = await come(run, 2)
            await until(is_redirected)
            os.kill(victim, signal.SIGKILL)
            # Another one takes its place, since the burst goes on.
            await come(run, 3)
            before = sum(calls.values())
            await run.until(lambda _: sum(calls.values()) > before + 200)
        await until(has_none)
        await run.until(lambda _: len(run.events("left")) >= 2)
