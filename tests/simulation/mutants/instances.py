"""Deliberate defects of how instances are let in, lent to, heard, and let go."""

from __future__ import annotations

from typing import Any

import msgspec

from sublet.runtime.hosting.instance_gate import InstanceGate
from sublet.runtime.protocol.lease_messages import LeaseMessage
from sublet.scheduler.binding.standing import StandingLeases
from sublet.scheduler.scaling.plan import OWN_INSTANCES, Plan
from tests.simulation.mutants.leases import AcceptsLateReturns
from tests.simulation.worlds.instances import InstanceMutant
from tests.simulation.worlds.lease_worker import TimedLending

_decode = msgspec.msgpack.Decoder(LeaseMessage).decode


class LetsAnInstanceInTwice(InstanceMutant):
    """Does not remember who has been there: a second process uses the same invitation."""

    class gate(InstanceGate):  # noqa: N801
        def refusal(self, name: str, code: str, own: str) -> str:
            self._served.clear()
            return super().refusal(name, code, own)


class LendsBeyondItsTime(InstanceMutant):
    """Goes on lending to instances that the plan has no longer."""

    class standing(StandingLeases):  # noqa: N801
        def _wanted(self, plan: Plan) -> dict[str, tuple[float, tuple[str, ...]]]:
            before = {
                name: [lessee for lessee in each.lessees if lessee.startswith(OWN_INSTANCES)]
                for name, each in self._before.items()
            }
            return {
                name: (share, tuple(dict.fromkeys([*lessees, *before.get(name, ())])))
                for name, (share, lessees) in super()._wanted(plan).items()
            }

        @property
        def _before(self) -> dict[str, Any]:
            return getattr(self, "_kept", {})

        def follow(self, plan: Plan) -> bool:
            self._kept = dict(self._by_function)
            return super().follow(plan)


class CommitsLateReturnsOfInstances(AcceptsLateReturns, InstanceMutant):
    """Takes what an instance returns after the work was given up and done at home."""


class RunsWhatInstancesOffer(InstanceMutant):
    """Listens to all that an instance says, not only to what it returns."""

    class lending(TimedLending):  # noqa: N801
        def message(self, worker: str, raw: msgspec.Raw) -> None:
            self.desk.message(worker, _decode(raw))


MUTANTS: dict[str, type[InstanceMutant]] = {
    each.__name__: each
    for each in (
        LetsAnInstanceInTwice,
        LendsBeyondItsTime,
        CommitsLateReturnsOfInstances,
        RunsWhatInstancesOffer,
    )
}
