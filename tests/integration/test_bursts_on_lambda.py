"""`instances = "lambda:NAME"` on real workers, with real environments of the local Lambda, and all
that can happen to them: every count is exact."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sublet.runtime.testing.lambda_local import Behaviour, LambdaLocal, serve
from sublet.scheduler.scaling.plan import Plan
from tests.integration.cluster import until
from tests.integration.fork_server import PROJECT
from tests.integration.lambda_functions import CREDENTIALS, INSTANCE, Functions
from tests.integration.test_scaling import PATIENCE_S, Run, load, redirected, running

pytestmark = pytest.mark.timeout(300)
APP = "tests.integration.scaling_app:app"
SETTINGS = {
    "burst": "sponge:samples=1,calm_samples=3,ignore_samples=0,ignore=0s",
    "instances": "lambda:f",
    "instances_max": "2",
    "aws_region": "us-east-1",
}
MORE = 100
"""Calls that are answered while something is wrong."""


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


class Burst:
    """A cluster with instances of the local Lambda, under load."""

    def __init__(self, rig: LambdaLocal, functions: Functions, run: Run, address: str) -> None:
        self.rig = rig
        self.functions = functions
        self.run = run
        self.address = address

    async def plan_has(self, happened: Callable[[Plan], bool]) -> Plan:
        async def is_so() -> bool:
            return happened(await self.run.plan())

        await until(is_so)
        return await self.run.plan()

    async def helped(self) -> None:
        """Wait until messages run at instances."""
        view = await self.run.directory.view()

        async def is_redirected() -> bool:
            return bool(await redirected(view))

        await until(is_redirected)

    async def answered(self, calls: dict[str, int], more: int = MORE) -> None:
        before = sum(calls.values())
        await self.run.until(lambda _: sum(calls.values()) > before + more)

    async def over(self) -> None:
        """Wait until no instance is wanted, and none runs."""
        await self.plan_has(lambda plan: not plan.instances)
        async with asyncio.timeout(PATIENCE_S):
            await self.rig.until(lambda rig: not rig.of_state("running"))

    async def failure(self) -> str:
        """Wait until a decision has failed; return why."""

        def failed() -> list[str]:
            told = [
                *self.run.events("scaling decision"),
                *self.run.events("scaling decision ended"),
            ]
            return [each["detail"] for each in told if each.get("outcome") == "failed"]

        await self.run.until(lambda _: bool(failed()))
        return failed()[0]

    def refused(self) -> list[str]:
        """Why instances were not taken."""
        answers = [json.loads(each.answer) for each in self.rig.records if each.answer]
        return [each["reason"] for each in answers if not each.get("served", True)]


@asynccontextmanager
async def burst(
    folder: Path, behaviour: Behaviour | None = None, workers: int = 1, **settings: str
) -> AsyncIterator[Burst]:
    async with serve(behaviour) as rig:
        functions = await asyncio.to_thread(Functions, rig)
        await functions.create(INSTANCE, timeout_s=120, variables={"SUBLET_APP": APP})
        chosen = {**SETTINGS, "aws_endpoint": rig.url, **settings}
        given = [text for name, value in chosen.items() for text in ("--set", f"{name}={value}")]
        scaling = f"fixed:workers={workers}"
        async with running(folder, f"{workers}..{workers}", scaling, *given) as run:
            view = await run.until(
                lambda view: len(set(view.placement.values())) == workers and bool(view.lead.holder)
            )
            address = next(iter(view.members.values())).address
            yield Burst(rig, functions, run, address)


async def test_environments_help_through_a_burst_and_are_used_again_in_the_next(
    tmp_path: Path,
) -> None:
    async with burst(tmp_path) as found:
        async with load(found.address):
            await found.helped()
        await found.over()
        cold = [each.cold for each in found.rig.records]
        async with load(found.address):
            await found.rig.until_running(1)
            await found.helped()
        await found.over()

        assert all(cold)
        assert not all(each.cold for each in found.rig.records)
        assert {each.ending for each in found.rig.records} == {"answered"}


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
async def test_an_environment_that_is_killed_or_frozen_costs_no_effect(
    tmp_path: Path, fault: signal.Signals
) -> None:
    async with burst(tmp_path) as found:
        async with load(found.address) as calls:
            await found.helped()
            victim = found.rig.of_state("running")[0]
            os.kill(victim.pid, fault)
            await found.answered(calls, 5 * MORE)
            if fault == signal.SIGSTOP:
                # What it returns now is of leases that have long run at home.
                os.kill(victim.pid, signal.SIGCONT)
                await found.answered(calls)
        await found.over()


async def test_an_event_that_comes_twice_has_one_instance(tmp_path: Path) -> None:
    async with burst(tmp_path, Behaviour(deliveries=2)) as found:
        async with load(found.address) as calls:
            await found.helped()
            await found.answered(calls)
        await found.over()
        await found.rig.until(lambda _: bool(found.refused()))

        assert "has been here before" in found.refused()[0]


async def test_an_old_invitation_and_one_that_comes_late_are_refused(tmp_path: Path) -> None:
    async with burst(tmp_path) as found:
        async with load(found.address):
            await found.helped()
        await found.over()
        # An old one, after its instance has left.
        seen = len(found.rig.records)
        await found.functions.send(json.loads(found.rig.records[0].payload))
        await found.rig.until(lambda rig: len(rig.records) > seen)
        assert len(found.refused()) == 1
        # A new one, that takes until it is not wanted any more.
        found.rig.reclaim()
        found.rig.behave(cold_start_s=600.0)
        async with load(found.address):
            await found.plan_has(lambda plan: bool(plan.instances))
        await found.plan_has(lambda plan: not plan.instances)
        last = found.rig.accepted[-1]
        found.rig.behave(cold_start_s=0.0)
        answer = await found.functions.invoke(json.loads(last))

        assert answer["value"]["served"] is False


async def test_what_is_throttled_stays_at_home_and_is_told(tmp_path: Path) -> None:
    async with burst(tmp_path, Behaviour(refuses_events=True)) as found:
        async with load(found.address) as calls:
            assert "lambda f is throttled" in await found.failure()
            await found.answered(calls)
            # One at a time is allowed: the policy goes on with fewer than it has asked for.
            found.rig.behave(refuses_events=False, concurrency_max=1)
            await found.helped()
            await found.answered(calls)
        await found.over()


async def test_a_function_that_is_missing_is_told_with_what_to_do(tmp_path: Path) -> None:
    async with (
        burst(tmp_path, instances="lambda:other") as found,
        load(found.address) as calls,
    ):
        assert "run `sublet burst deploy`" in await found.failure()
        await found.answered(calls)


@pytest.mark.parametrize("victim", ["the controller", "the served worker"])
async def test_a_worker_that_is_killed_while_instances_run_loses_nothing(
    tmp_path: Path, victim: str
) -> None:
    async with burst(tmp_path, workers=2) as found:
        async with load(found.address) as calls:
            await found.helped()
            plan = await found.plan_has(lambda plan: bool(plan.instances))
            lead = (await found.run.directory.view()).lead
            worker = lead.holder if victim == "the controller" else plan.instances[0].worker
            pids = {each["worker"]: each["pid"] for each in found.run.events("ready")}
            os.kill(int(pids[worker]), signal.SIGKILL)
            await found.run.until(lambda view: worker not in view.members)
            if victim == "the controller":
                await found.run.until(lambda view: view.lead.token > lead.token)
            await found.answered(calls)
            await found.helped()
        await found.over()


async def test_at_the_spend_cap_instances_go_and_work_stays_at_home(tmp_path: Path) -> None:
    # An instance costs 0.05 a second: the cap is reached in the middle.
    prices = {"price_gb_second": "0.05", "instance_gb": "1.0", "spend_cap": "0.5/hour"}
    async with burst(tmp_path, **prices) as found:
        async with load(found.address) as calls:
            await found.helped()
            await found.run.until(
                lambda _: bool(found.run.events("the spend cap is reached: nothing is added"))
            )
            await found.over()
            await found.answered(calls)
            spent = (await found.run.plan()).spent.period

        # Two instances, a second each.
        assert 0.5 <= spent <= 0.5 + 2 * 0.05 * 1.5
        assert found.run.events("the spend cap is near")


# By hand


async def sublet(*arguments: str) -> tuple[int, str]:
    """Run a command; return its exit code, and what it has written."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sublet", *arguments), cwd=PROJECT, stdout=PIPE, stderr=STDOUT
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


async def test_one_instance_can_be_tried_and_is_measured(tmp_path: Path) -> None:
    async with burst(tmp_path) as found:
        settings = ("instances=lambda:f", f"aws_endpoint={found.rig.url}", "aws_region=us-east-1")
        given = [part for each in settings for part in ("--set", each)]
        where = ("--connect", found.address)
        code, output = await sublet("burst", "test", *where, *given)
        assert code == 0, output
        assert "dialled in to" in output
        assert "of a worker's core" in output
        await found.over()
        _, explained = await sublet("scale", "explain", *where)
        assert "(trial)" in explained
        found.rig.behave(refuses_events=True)
        code, output = await sublet("burst", "test", *where, *given)

        assert code == 2
        assert "did not come: lambda f is throttled" in output


async def test_environments_are_kept_warm_and_what_helps_is_shown(tmp_path: Path) -> None:
    async with burst(tmp_path, warm="multiple:5", price_gb_second="0.00002") as found:
        # Enough for a usual load that five times of it takes instances.
        async with load(found.address, 1):
            async with asyncio.timeout(PATIENCE_S):
                await found.rig.until(lambda rig: any(b"warm-up" in r.payload for r in rig.records))
        warmed = [each for each in found.rig.records if b"warm-up" in each.payload]
        assert {each.answer for each in warmed} == {b'{"warm": true}'}
        async with load(found.address):
            await found.helped()
            code, status = await sublet("scale", "status", "--connect", found.address)
            _, shown = await sublet("status", "--connect", found.address, "--interval", "0s")
        await found.over()

        assert code == 0
        assert "environments of instances are kept" in status or "serving" in status
        assert "waits/count" in status
        assert "a day if all stays as it is" in status
        assert "instances: " in shown
        invited = [each for each in found.rig.records if b'"instance"' in each.payload]
        assert not all(each.cold for each in invited)


async def test_an_app_is_deployed_helps_and_is_removed(tmp_path: Path) -> None:
    """With its whole package: nothing that is installed here is there."""
    async with serve() as rig:
        aws = ("--name", "f", "--aws-endpoint", rig.url)
        code, output = await sublet("burst", "deploy", APP, *aws, "--dry-run")
        assert code == 0, output
        assert "would create function f" in output
        assert not rig.functions
        code, output = await sublet("burst", "deploy", APP, *aws)
        assert code == 0, output
        assert "uploading: 100 %" in output
        function = rig.function("f")
        assert (function.retries, function.event_age_s, function.timeout_s) == (0, 60, 900)
        assert function.handler == "sublet.runtime.faas.handle"
        given = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
        given += ["--set", f"aws_endpoint={rig.url}"]
        async with running(tmp_path, "1..1", "fixed:workers=1", *given) as run:
            view = await run.until(lambda view: bool(view.placement) and bool(view.lead.holder))
            found = Burst(
                rig,
                await asyncio.to_thread(Functions, rig),
                run,
                next(iter(view.members.values())).address,
            )
            async with load(found.address):
                await found.helped()
            await found.over()
            assert not found.refused()
        code, output = await sublet("burst", "deploy", APP, *aws)
        assert "nothing to do" in output
        code, output = await sublet("burst", "remove", *aws, "--yes")

        assert code == 0, output
        assert (rig.functions, rig.roles) == ([], {})


async def test_a_function_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    async with serve() as rig:
        functions = await asyncio.to_thread(Functions, rig)
        await functions.create(INSTANCE)
        code, output = await sublet("burst", "remove", "--name", "f", "--aws-endpoint", rig.url)

        assert code == 2
        assert "has not made the function 'f'; nothing was changed" in output
        assert rig.functions == ["f"]


@pytest.mark.parametrize(
    ("instances", "told"),
    [
        ("local", "need no deployment"),
        ("https://faas.test/", "deployed by its own tools"),
        ("", "give a --name"),
    ],
)
async def test_where_there_is_nothing_to_deploy_that_is_said(instances: str, told: str) -> None:
    code, output = await sublet("burst", "deploy", APP, "--set", f"instances={instances}")

    assert code == 2
    assert told in output
