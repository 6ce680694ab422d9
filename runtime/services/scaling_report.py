"""How the cluster scales, for people: from the controller of the worker that leads."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from sublet.functions.errors import RejectedError, UnavailableError
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.rpc import (
    AdministerRequest,
    PauseScaling,
    ResumeScaling,
    ScaledInstance,
    ScaledWorker,
    ScalingDecision,
    ScalingRedirect,
    ScalingReport,
    ScalingRequest,
    ScalingSlot,
    TryInstance,
)
from sublet.runtime.scaling.calibration import core_ms
from sublet.runtime.scaling.shell import Scaling
from sublet.scheduler.scaling.actions import Decision, Slot

RETRY_MS = 1_000


class ScalingReports:
    """Answers what is asked about scaling here, or has the worker that leads answer."""

    def __init__(self, worker: str, scaling: Scaling | None, addresses: Mapping[str, str]) -> None:
        """`addresses`: of all workers, by id."""
        self._worker = worker
        self._scaling = scaling
        self._addresses = addresses

    async def report(self, request: ScalingRequest) -> ScalingReport:
        scaling = self._known()
        if scaling.controller.leads:
            found = report_of(self._worker, scaling, request.decisions)
            if request.measure:
                measured_ms = await asyncio.to_thread(core_ms)
                found = msgspec.structs.replace(found, core_ms=measured_ms)
            return found
        async with self._leader(request.passed_on) as leader:
            return await leader.scaling(msgspec.structs.replace(request, passed_on=True))

    async def administer(self, request: AdministerRequest) -> None:
        """Pause or resume a slot; return when that is stored."""
        action = request.action
        assert isinstance(action, PauseScaling | ResumeScaling | TryInstance)
        scaling = self._known()
        if not scaling.controller.leads:
            async with self._leader(request.passed_on) as leader:
                await leader.administer(msgspec.structs.replace(request, passed_on=True))
            return
        if isinstance(action, TryInstance):
            _slot(Slot.INSTANCES.value, scaling)
            if not await scaling.try_instance(action.worker):
                raise UnavailableError("the plan could not be stored; try again", RETRY_MS)
            return
        slot = _slot(action.slot, scaling)
        pause = isinstance(action, PauseScaling)
        if not await (scaling.pause(slot) if pause else scaling.resume(slot)):
            raise UnavailableError("the plan could not be stored; try again", RETRY_MS)

    def _known(self) -> Scaling:
        if self._scaling is None:
            raise RejectedError(
                "this cluster does not scale by itself; start workers with a policy, such as "
                "`sublet run APP --workers 1..4 --scaling reactive`"
            )
        return self._scaling

    def _leader(self, passed_on: bool) -> UnaryClient:
        address = self._addresses.get(self._known().holder)
        if address is None or passed_on:
            raise UnavailableError("there is no scaling leader now; try again", RETRY_MS)
        return UnaryClient(address)


def _slot(name: str, scaling: Scaling) -> Slot:
    known = [each.slot for each in scaling.controller.slots()]
    if name not in known:
        raise RejectedError(f"there is no policy for {name!r}; allowed: {', '.join(known)}")
    return Slot(name)


def report_of(worker: str, scaling: Scaling, decisions: int) -> ScalingReport:
    """Return what the controller of this worker, which leads, knows."""
    controller = scaling.controller
    settings, plan, spending = controller.settings, controller.plan, controller.spending
    scaling.look_at_instances()
    latest = list(controller.decisions)[-decisions:]
    return ScalingReport(
        leader=worker,
        token=plan.token,
        dry_run=settings.dry_run,
        workers_min=settings.workers_min,
        workers_max=settings.workers_max,
        workers_wanted=plan.workers,
        workers=workers_of(scaling),
        slots=[
            ScalingSlot(
                slot=each.slot,
                policy=each.policy,
                paused=each.paused,
                failure=each.failure,
                figures={name: float(value) for name, value in each.figures.items()},
            )
            for each in controller.slots()
        ],
        decisions=[_described(each) for each in reversed(latest)],
        price_hour=controller.price_hour,
        spent=spending.spent.total,
        spent_period=spending.spent.period,
        spend_cap=settings.spend_cap,
        redirects=[
            ScalingRedirect(function=name, share=each.share, lessees=list(each.lessees))
            for name, each in sorted(plan.redirects.items())
        ],
        instances=instances_of(scaling),
        warm=controller.warm_wanted,
        spend_forecast=controller.spend_forecast,
    )


def instances_of(scaling: Scaling) -> list[ScaledInstance]:
    """Return those that help, and those that were asked for and have not come."""
    controller = scaling.controller
    redirected: dict[str, list[str]] = {}
    for function, each in sorted(controller.plan.redirects.items()):
        for lessee in each.lessees:
            redirected.setdefault(lessee, []).append(function)
    return [
        ScaledInstance(
            id=each.planned.id,
            worker=each.planned.worker,
            state="serving" if each.serves else "starting",
            since_ms=each.planned.since_ms,
            until_ms=each.planned.until_ms,
            took_ms=each.took_ms or 0.0,
            trial=each.is_trial,
            functions=redirected.get(each.planned.id, []),
        )
        for each in controller.instances
    ]


def workers_of(scaling: Scaling) -> list[ScaledWorker]:
    """Return all members, and those that are starting."""
    view = scaling.view()
    owned = Counter(view.placement.values())
    members = []
    for id_, each in view.workers.items():
        state = "draining" if each.draining else "silent" if each.silent else "serving"
        members.append(
            ScaledWorker(
                id=id_,
                launch=each.facts.launch,
                state=state,
                utilisation=each.utilisation,
                waiting_ms=each.waiting_ms,
                partitions=owned[id_],
                instances=len(view.instances.get(id_, ())),
                instances_starting=view.instances_starting.get(id_, 0),
            )
        )
    starting = [ScaledWorker(launch=each.id, state="starting") for each in view.plan.launches]
    return members + starting


def _described(decision: Decision) -> ScalingDecision:
    action: dict[str, Any] = msgspec.to_builtins(decision.action)
    kind, because, figures = (action.pop(name) for name in ("action", "because", "figures"))
    outcome = decision.outcome
    return ScalingDecision(
        number=decision.number,
        wall_ms=decision.wall_ms,
        slot=decision.slot,
        policy=decision.policy,
        action=kind,
        details={name: _text(value) for name, value in action.items()},
        because=because,
        figures={name: float(value) for name, value in figures.items()},
        outcome="" if outcome is None else outcome.ending.value,
        problem="" if outcome is None else outcome.detail,
        ended_wall_ms=decision.ended_wall_ms,
        repeated=decision.repeated,
    )


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
