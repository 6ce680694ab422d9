"""Ways to break a controller, its shell and its policies: the world that scales has to notice
each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from sublet.functions.errors import SubletError
from sublet.runtime.scaling.shell import Scaling
from sublet.scheduler.scaling.actions import Action, Migrate, Slot
from sublet.scheduler.scaling.controller import Controller
from sublet.scheduler.scaling.effects import StopWorker
from sublet.scheduler.scaling.plan import Plan
from sublet.scheduler.scaling.policies.balance import Balance
from sublet.scheduler.scaling.policy import ScalingPolicy, scaling_named
from sublet.scheduler.scaling.view import ClusterView
from sublet.statestore.contract import StoredPlan, View
from tests.simulation.worlds.cluster.elastic import ElasticMutant, WatchedDirectory

SHELL = "sublet.runtime.scaling.shell"
CONTROLLER = "sublet.scheduler.scaling.controller"
SEATS = "sublet.scheduler.scaling.seats"


# Tokens


class ActsWithoutItsToken(ElasticMutant):
    """Drains workers without its token, so that a former leader still can."""

    class shell(Scaling):  # noqa: N801
        async def _stop(self, effect: StopWorker, token: int) -> None:
            try:
                await self._cluster.drain_worker(effect.worker)
            except SubletError as error:
                self.controller.failed(effect.worker, str(error), self._clock.monotonic_ms())

    replaced: ClassVar = {f"{SHELL}:Scaling": shell}


class StoresPlansOfAnyToken(ElasticMutant):
    """The directory stores the plan of whoever believes to lead."""

    class directory_inside(WatchedDirectory):  # noqa: N801
        async def replan(self, token: int, number: int, plan: bytes) -> int | None:
            former = self._of.plan
            self._of.plan = StoredPlan(former.version + 1, token, number, plan)
            self._watch.planned(self._worker, self._of.plan)
            return self._of.plan.version


class GivesOneTokenTwice(ElasticMutant):
    """Whoever asks for the lead gets it, under the token that there is."""

    class directory_inside(WatchedDirectory):  # noqa: N801
        async def lead(self, worker: str, expected_token: int, *, above: int = 0) -> Any:
            before = self._of.lead
            led = await super().lead(worker, before.token, above=0)
            if led is not None and before.token:
                self._of.lead = type(before)(worker, before.token)
                self._watch.leads(worker, before.token)
                return self._view()
            return led


# Intents


class ActsBeforeItsIntent(ElasticMutant):
    """Carries out what it wants with the plan, not after it is stored."""

    class controller(Controller):  # noqa: N801
        def _write(self) -> None:
            super()._write()
            self._act(self._number, self._now_ms)

    replaced: ClassVar = {f"{SHELL}:Controller": controller}


class GoesOnWithoutAStoredPlan(ElasticMutant):
    """Takes a plan that could not be stored for stored."""

    class controller(Controller):  # noqa: N801
        def not_written(self, number: int) -> None:
            self.written(number, self._now_ms)

    replaced: ClassVar = {f"{SHELL}:Controller": controller}


class ReconcilesNothing(ElasticMutant):
    """A successor keeps its predecessor's launches in the plan, and does nothing about them."""

    class controller(Controller):  # noqa: N801
        def lead(self, token: int, plan: Plan | None, now_ms: float, wall_ms: float) -> None:
            super().lead(token, plan, now_ms, wall_ms)
            inherited = [] if plan is None else list(plan.launches)
            kept = self._starts.launches
            self._starts._starts.clear()
            self._starts.launches = lambda: [*inherited, *kept()]  # type: ignore[method-assign]

    replaced: ClassVar = {f"{SHELL}:Controller": controller}


# Bounds


class DrainsBelowTheMinimum(ElasticMutant):
    """Drains whoever a policy names, however few are left."""

    class controller(Controller):  # noqa: N801
        def _shrink_refusal(self, left: int, serving: Sequence[str], now_ms: float) -> str:
            refusal = super()._shrink_refusal(left, serving, now_ms)
            return "" if "minimum" in refusal else refusal

    replaced: ClassVar = {f"{SHELL}:Controller": controller}


class DrainsWithoutLookingAgain(ElasticMutant):
    """The directory drains a worker although the cluster has changed since it was looked at."""

    class directory_inside(WatchedDirectory):  # noqa: N801
        async def drain(
            self, worker: str, *, token: int | None = None, expected_version: int | None = None
        ) -> View | None:
            return await super().drain(worker, token=token)


def _nobody_is_needed(worker: object, others: object, functions: Collection[str]) -> str:
    return ""


def _all_can_be_replaced(view: object, leaving: object) -> str:
    return ""


class DrainsTheLastWithAFunction(ElasticMutant):
    """Drains a worker although no other has its functions."""

    replaced: ClassVar = {
        f"{CONTROLLER}:irreplaceable": _nobody_is_needed,
        "sublet.runtime.cluster.membership:_irreplaceable": _all_can_be_replaced,
    }


class IgnoresTheCap(ElasticMutant):
    """Adds workers when the money is spent."""

    class controller(Controller):  # noqa: N801
        def _why_no_growth(self, now_ms: float) -> str:
            refusal = super()._why_no_growth(now_ms)
            return "" if "spend cap" in refusal else refusal

    replaced: ClassVar = {f"{SHELL}:Controller": controller}


class ForgetsMoneyInAFailover(ElasticMutant):
    """A successor begins to count what is spent at nothing."""

    class controller(Controller):  # noqa: N801
        def lead(self, token: int, plan: Plan | None, now_ms: float, wall_ms: float) -> None:
            bare = Plan() if plan is None else plan
            super().lead(token, _without_money(bare), now_ms, wall_ms)

    replaced: ClassVar = {f"{SHELL}:Controller": controller}


def _without_money(plan: Plan) -> Plan:
    return msgspec.structs.replace(plan, spent=Plan().spent)


# Policies


class _Restless(Balance):
    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        workers = [each.id for each in cluster.serving]
        for partition, owner in sorted(cluster.placement.items()):
            others = [each for each in workers if each != owner]
            if others and f"partition {partition}" not in cluster.under_way:
                return [Migrate(partition=partition, worker=others[0], because="to move")]
        return ()


def _instead(name: str, policy: type[Any]) -> Mapping[str, object]:
    def named(slot: Slot, text: str) -> ScalingPolicy:
        found = scaling_named(slot, text)
        return policy() if text.partition(":")[0] == name else found  # type: ignore[no-any-return]

    return {f"{SEATS}:scaling_named": named}


class MovesWithoutGain(ElasticMutant):
    """Moves partitions though nothing is gained by it."""

    replaced: ClassVar = _instead("balance", _Restless)


MUTANTS: dict[str, type[ElasticMutant]] = {
    each.__name__: each
    for each in list(globals().values())
    if isinstance(each, type) and issubclass(each, ElasticMutant) and each is not ElasticMutant
}
