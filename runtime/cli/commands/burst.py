"""`sublet burst serve` and `test`: instances that help through bursts."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import typer

from sublet.functions.errors import RejectedError, UnavailableError
from sublet.runtime.cli.cluster_lookup import Reached, Where, ask
from sublet.runtime.cli.commands.config import settings_of
from sublet.runtime.cli.commands.run import SWITCH_INTERVAL_S, loaded_of, target_of
from sublet.runtime.cli.exit_codes import UsageError, exit_with
from sublet.runtime.config.settings import ConfigError, WorkerConfig
from sublet.runtime.protocol.rpc import AdministerRequest, ScalingRequest, TryInstance

TRIAL_S_MAX = 60.0
"""So long `test` waits for an instance; the controller gives it up before."""
LOOK_S = 0.1
TRIAL = "trial"
"""In place of a policy, of the decisions that `test` asks for."""


def serve(target: str | None, flags: Mapping[str, object]) -> None:
    """Serve the invitation that this process was given."""
    from sublet.runtime.faas import NotInvitedError, invitation_of
    from sublet.runtime.faas import serve as serve_invitation
    from sublet.runtime.observability.logging_setup import set_up_logging
    from sublet.runtime.scaling.instances import INVITATION

    try:
        # Neither a setting nor the app's business.
        invitation = invitation_of(os.environ.pop(INVITATION, ""))
        config = settings_of(flags)
        loaded = loaded_of(target_of(target, config))
    except (ConfigError, UsageError) as error:
        exit_with(error)
    except NotInvitedError as error:
        exit_with(UsageError(str(error)))
    set_up_logging(config.log_level, config.log_format, colors=sys.stderr.isatty(), pid=os.getpid())
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        serve_invitation(invitation, loaded, config)
    except UnavailableError as error:
        exit_with(error)


class Tried(NamedTuple):
    """What was seen of one instance."""

    instance: str
    worker: str
    came_after_ms: float
    worker_core_ms: float


def test(where: Where, flags: Mapping[str, object], as_json: bool) -> None:
    """Have one instance started, and say how soon it came and how quick it is."""
    try:
        config = settings_of({**flags, "data_dir": where.data_dir, "config": where.config})
    except ConfigError as error:
        exit_with(error, as_json=as_json)
    tried = ask(where, _try_one, as_json)
    try:
        core_ms = _instance_core_ms(config)
    except UsageError as error:
        exit_with(error, as_json=as_json)
    speed = None if core_ms is None else tried.worker_core_ms / core_ms
    if as_json:
        told: dict[str, Any] = {"ok": True, "instance": tried.instance, "worker": tried.worker}
        told |= {"came_after_ms": tried.came_after_ms, "speed": speed}
        typer.echo(json.dumps({**told, "worker_core_ms": tried.worker_core_ms}))
        return
    typer.echo(
        f"{tried.instance} dialled in to {tried.worker} after {tried.came_after_ms / 1000:.2f} s"
    )
    if speed is None:
        typer.echo("speed: not measured; only functions of AWS Lambda can be asked")
    else:
        typer.echo(f"speed: {speed:.2f} of a worker's core")


async def _try_one(reached: Reached) -> Tried:
    """Ask for an instance and watch until it has come. Raises if it does not."""
    client = reached.client
    before = await client.scaling(ScalingRequest(decisions=1, measure=True))
    last = max((each.number for each in before.decisions), default=0)
    await client.administer(AdministerRequest(action=TryInstance(worker=before.leader)))
    try:
        async with asyncio.timeout(TRIAL_S_MAX):
            while True:
                report = await client.scaling(ScalingRequest(decisions=100))
                if report.token != before.token:
                    raise UnavailableError("another worker leads the scaling now", 1_000)
                for each in report.instances:
                    if each.trial and each.state == "serving" and each.took_ms:
                        core_ms = before.core_ms
                        return Tried(each.id, each.worker, each.took_ms, core_ms)
                for decision in report.decisions:
                    if decision.policy == TRIAL and decision.number > last and decision.problem:
                        raise RejectedError(f"the instance did not come: {decision.problem}")
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise UnavailableError(
            f"the instance has not come within {TRIAL_S_MAX:.0f} s; see `sublet scale explain`"
        ) from None


def _instance_core_ms(config: WorkerConfig) -> float | None:
    """Return what a fixed piece of computing takes at an instance; None if it cannot be asked."""
    import msgspec

    from sublet.runtime.scaling.aws import KIND, AwsAccess, AwsError, function_of, told_errors
    from sublet.runtime.scaling.instances import Measure

    if not config.instances.startswith(KIND):
        return None
    try:
        client = AwsAccess(config.aws_region, config.aws_endpoint).client("lambda")
        with told_errors(config.instances):
            answer = client.invoke(
                FunctionName=function_of(config.instances), Payload=msgspec.json.encode(Measure())
            )
            found = json.loads(answer["Payload"].read())
    except (AwsError, ValueError) as error:
        raise UsageError(str(error)) from None
    if answer.get("FunctionError") or "core_ms" not in found:
        raise UsageError(
            f"{config.instances} answers {found!r:.300}; deploy it again with `sublet burst deploy`"
        )
    return float(found["core_ms"])
