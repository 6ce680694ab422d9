"""AWS Lambda on this machine: boto3 on the one side, `awslambdaric` on the other, both real."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sublet.runtime.testing.lambda_local import Behaviour, LambdaLocal, serve
from tests.integration.cluster import until
from tests.integration.lambda_functions import CREDENTIALS, ROLE, Functions, zipped

PATIENCE_S = 120.0
CODE = """
import os, time
from pathlib import Path
def pid(event, context):
    return {"pid": os.getpid(), "left_ms": context.get_remaining_time_in_millis(), "event": event}
def fails(event, context):
    raise ValueError("no such thing")
def waits(event, context):
    while Path(os.environ["UNTIL"]).exists():
        time.sleep(0.01)
    return os.getpid()
def ends(event, context):
    os._exit(7)
"""


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@asynccontextmanager
async def served(
    behaviour: Behaviour | None = None,
) -> AsyncIterator[tuple[LambdaLocal, Functions]]:
    async with asyncio.timeout(PATIENCE_S), serve(behaviour) as rig:
        yield rig, await asyncio.to_thread(Functions, rig)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


async def test_an_environment_starts_cold_is_frozen_and_used_again() -> None:
    async with served() as (rig, functions):
        await functions.create(CODE, handler="pid")
        first = await functions.invoke({"a": 1})
        assert first["value"]["event"] == {"a": 1}
        assert 0 < first["value"]["left_ms"] <= 60_000
        await rig.until(lambda rig: bool(rig.of_state("frozen")))
        # The signal is sent; the kernel stops each thread when it can.
        await until(lambda: is_stopped(first["value"]["pid"]))
        second = await functions.invoke()

        assert second["value"]["pid"] == first["value"]["pid"]
        await rig.until(lambda rig: len(rig.records) == 2)
        assert [each.cold for each in rig.records] == [True, False]


async def test_a_reclaimed_environment_is_followed_by_a_cold_one() -> None:
    async with served() as (rig, functions):
        await functions.create(CODE, handler="pid")
        first = await functions.invoke()
        await rig.until(lambda rig: bool(rig.of_state("frozen")))
        assert rig.reclaim() == 1
        second = await functions.invoke()

        assert second["value"]["pid"] != first["value"]["pid"]


async def test_an_environment_that_nobody_uses_is_reclaimed() -> None:
    async with served(Behaviour(idle_s=0.1)) as (rig, functions):
        await functions.create(CODE, handler="pid")
        await functions.invoke()

        await rig.until(lambda rig: bool(rig.records) and not rig.environments)


async def test_at_the_time_limit_the_process_is_killed(tmp_path: Path) -> None:
    (tmp_path / "until").touch()
    async with served() as (rig, functions):
        variables = {"UNTIL": str(tmp_path / "until")}
        await functions.create(CODE, handler="waits", timeout_s=1, variables=variables)
        answer = await functions.invoke()

        assert answer["error"] == "Unhandled"
        assert "Task timed out after 1.00 seconds" in answer["value"]["errorMessage"]
        await rig.until(lambda rig: not rig.environments)


async def test_what_a_handler_raises_and_a_process_that_ends_are_errors() -> None:
    async with served() as (_, functions):
        await functions.create(CODE, handler="fails")
        await functions.create(CODE, name="g", handler="ends")
        failed = await functions.invoke()
        ended = await functions.invoke(name="g")

        assert (failed["error"], ended["error"]) == ("Unhandled", "Unhandled")
        assert failed["value"]["errorMessage"] == "no such thing"
        assert ended["value"]["errorType"] == "Runtime.ExitError"


async def test_too_many_at_once_are_throttled_and_events_wait(tmp_path: Path) -> None:
    (until := tmp_path / "until").touch()
    async with served(Behaviour(concurrency_max=1)) as (rig, functions):
        await functions.create(CODE, handler="waits", variables={"UNTIL": str(until)})
        assert await functions.send() == 202
        assert await functions.send() == 202
        with pytest.raises(functions.lambda_.exceptions.TooManyRequestsException):
            await functions.invoke()
        assert len(rig.environments) <= 1
        until.unlink()
        await rig.until(lambda rig: len(rig.records) == 2)

        assert [each.ending for each in rig.records] == ["answered", "answered"]
        assert [each.cold for each in rig.records] == [True, False]


async def test_events_are_refused_or_delivered_twice_on_request() -> None:
    async with served(Behaviour(refuses_events=True)) as (rig, functions):
        await functions.create(CODE, handler="pid")
        with pytest.raises(functions.lambda_.exceptions.TooManyRequestsException):
            await functions.send()
        rig.behave(refuses_events=False, deliveries=2)
        await functions.send({"n": 1})
        await rig.until(lambda rig: len(rig.records) == 2)

        assert len({each.request_id for each in rig.records}) == 1


async def test_a_failed_event_is_tried_again_only_if_configured() -> None:
    async with served(Behaviour(retry_after_s=0.0)) as (rig, functions):
        await functions.create(CODE, handler="fails")
        await functions.send()
        await rig.until(lambda rig: len(rig.records) == 2)
        assert [each.ending for each in rig.records] == ["failed", "dropped"]
        await functions.call(
            functions.lambda_.delete_function_event_invoke_config, FunctionName="f"
        )
        await functions.send()
        await rig.until(lambda rig: len(rig.records) == 6)

        assert [each.ending for each in rig.records][2:] == ["failed"] * 3 + ["dropped"]


async def test_an_environment_that_is_killed_in_the_middle_is_an_error(tmp_path: Path) -> None:
    (until := tmp_path / "until").touch()
    async with served() as (rig, functions):
        await functions.create(CODE, handler="waits", variables={"UNTIL": str(until)})
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(functions.invoke())
            await rig.until_running(1)
            os.kill(rig.environments[0].pid, signal.SIGKILL)
            assert (await waiting)["error"] == "Unhandled"


async def test_what_lambda_refuses_is_refused() -> None:
    async with served() as (_, functions):
        lambda_, create = functions.lambda_, functions.lambda_.create_function
        with pytest.raises(lambda_.exceptions.ResourceNotFoundException):
            await functions.invoke()
        given = {
            "FunctionName": "f",
            "Role": ROLE,
            "Handler": "code.pid",
            "Runtime": "python3.11",
            "Code": {"ZipFile": zipped(CODE)},
        }
        with pytest.raises(lambda_.exceptions.InvalidParameterValueException, match="assumed"):
            await functions.call(create, **given)
        await functions.create(CODE)
        with pytest.raises(lambda_.exceptions.ResourceConflictException):
            await functions.create(CODE)
        for change in (
            {"Timeout": 901},
            {"MemorySize": 20_000},
            {"Code": {"ZipFile": b"no zip"}},
            {"Environment": {"Variables": {"A": "a" * 5_000}}},
        ):
            with pytest.raises(lambda_.exceptions.InvalidParameterValueException):
                await functions.call(create, **{**given, "FunctionName": "g", **change})


async def test_an_update_is_used_by_the_next_invocation_and_a_deleted_function_is_gone() -> None:
    async with served() as (rig, functions):
        await functions.create(CODE, handler="pid")
        await functions.invoke()
        await rig.until(lambda rig: bool(rig.of_state("frozen")))
        code = "def pid(event, context): return 'new'"
        update = functions.lambda_.update_function_code
        await functions.call(update, FunctionName="f", ZipFile=zipped(code))
        assert (await functions.invoke())["value"] == "new"
        await functions.call(functions.lambda_.delete_function, FunctionName="f")

        with pytest.raises(functions.lambda_.exceptions.ResourceNotFoundException):
            await functions.invoke()
