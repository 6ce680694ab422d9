"""What people are told of how a cluster scales."""

from __future__ import annotations

import pytest

from sublet.functions.errors import RejectedError, UnavailableError
from sublet.runtime.protocol.rpc import (
    PauseScaling,
    ResumeScaling,
    ScaledWorker,
    ScalingReport,
    ScalingRequest,
)
from sublet.runtime.protocol.wire.methods import SCALING
from sublet.runtime.services.scaling_report import ScalingReports
from sublet.scheduler.scaling.actions import Slot
from tests.unit.scaling.harness import World


async def cluster(workers: int, wanted: int, **settings: object) -> World:
    world = World(lambda: {Slot.WORKERS: f"fixed:workers={wanted}"}, **settings)
    for number in range(workers):
        await world.join(f"w{number}")
    return world


async def test_the_leader_tells_workers_slots_decisions_and_money() -> None:
    world = await cluster(1, 3, price_worker_hour=3.6, spend_cap="5/day")
    world.refuses_to_start = {f"1-{number}" for number in range(9)}
    await world.seconds(11)

    report = await world.nodes["w0"].report()
    assert (report.leader, report.workers_wanted, report.workers_max) == ("w0", 3, 8)
    assert report.workers == [
        ScaledWorker(id="w0", state="serving", utilisation=0.5),
        ScaledWorker(launch="1-1", state="starting"),
        ScaledWorker(launch="1-2", state="starting"),
    ]
    (slot,) = report.slots
    assert (slot.slot, slot.policy, slot.paused, slot.failure) == ("workers", "fixed", False, "")
    (decision,) = report.decisions
    assert (decision.action, decision.details) == ("add-workers", {"count": "2"})
    assert decision.because == "1 workers, 3 wanted"
    assert (decision.outcome, decision.ended_wall_ms) == ("", None)
    # One worker from the beginning, two that start since the second before the last ten.
    assert report.price_hour == pytest.approx(3 * 3.6)
    assert report.spent == report.spent_period == pytest.approx(0.03, rel=0.1)
    assert report.spend_cap == "5/day"


async def test_a_report_survives_the_wire() -> None:
    world = await cluster(1, 3)
    await world.seconds(4)
    report = await world.nodes["w0"].report()
    (decision,) = report.decisions
    assert decision.outcome == "done"

    assert SCALING.reply.decode(SCALING.reply.encode(report)) == report
    empty = ScalingReport(leader="w", token=1, workers_min=1, workers_max=1)
    assert SCALING.reply.decode(SCALING.reply.encode(empty)) == empty
    assert SCALING.request.decode(SCALING.request.encode(ScalingRequest(decisions=0))) == (
        ScalingRequest(decisions=20)
    )


async def test_the_latest_decisions_come_first_and_not_more_than_wanted() -> None:
    world = await cluster(3, 1)
    await world.seconds(6)
    node = world.leader
    assert node is not None

    assert [each.number for each in (await node.report()).decisions] == [2, 1]
    assert [each.number for each in (await node.report(1)).decisions] == [2]


async def test_who_does_not_lead_and_knows_nobody_says_to_try_again() -> None:
    world = await cluster(2, 2)
    with pytest.raises(UnavailableError, match="there is no scaling leader now"):
        await world.nodes["w1"].report()
    await world.seconds(2)
    # It knows who leads, not where.
    with pytest.raises(UnavailableError, match="try again"):
        await world.nodes["w1"].report()


async def test_a_cluster_that_does_not_scale_says_how_to_make_it() -> None:
    reports = ScalingReports("w", None, {})
    with pytest.raises(RejectedError, match=r"--workers 1\.\.4 --scaling reactive"):
        await reports.report(ScalingRequest())


async def test_slots_are_paused_and_resumed_by_name() -> None:
    world = await cluster(1, 1)
    await world.seconds(2)
    node = world.nodes["w0"]

    await node.administer(PauseScaling(slot="workers"))
    assert (await node.report()).slots[0].paused
    assert world.plan.paused == ("workers",)
    await node.administer(ResumeScaling(slot="workers"))
    assert not (await node.report()).slots[0].paused
    with pytest.raises(RejectedError, match="there is no policy for 'placement'; allowed: workers"):
        await node.administer(PauseScaling(slot="placement"))
    node.calls.refused = {node.calls.count}
    with pytest.raises(UnavailableError, match="could not be stored"):
        await node.administer(PauseScaling(slot="workers"))
