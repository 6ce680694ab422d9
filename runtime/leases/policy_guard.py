"""A binding policy of a user's own, with somebody who looks at what it does.

It is user code in the middle of a worker: one that raises, or that says what makes no sense, must
cost leases and nothing else. After its first error it is not asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import structlog

from sublet.scheduler.binding.policy import (
    Ask,
    Bid,
    Bindable,
    BindingContext,
    BindingPolicy,
    Choice,
    Lend,
    Trigger,
)

_log = structlog.get_logger(__name__)

_OURS = "sublet.scheduler."


def guarded(policy: BindingPolicy) -> BindingPolicy:
    """Return a policy that can be trusted: those that come with Sublet are."""
    return policy if type(policy).__module__.startswith(_OURS) else GuardedPolicy(policy)


class GuardedPolicy:
    def __init__(self, policy: BindingPolicy) -> None:
        self._policy = policy
        self._failure = ""

    @property
    def trigger(self) -> Trigger:
        trigger = Trigger.NEVER if self._failure else getattr(self._policy, "trigger", None)
        return trigger if isinstance(trigger, Trigger) else Trigger.NEVER

    @trigger.setter
    def trigger(self, trigger: Trigger) -> None:
        self._policy.trigger = trigger

    @property
    def reason(self) -> str:
        """What the policy says of itself, or why it is not asked any more."""
        return self._failure or str(getattr(self._policy, "reason", ""))

    def bind(self, works: Sequence[Bindable], context: BindingContext) -> Iterable[Choice]:
        return self._choices(lambda: self._policy.bind(works, context), works, context)

    def answered(
        self, works: Sequence[Bindable], bids: Sequence[Bid], context: BindingContext
    ) -> Iterable[Choice]:
        return self._choices(lambda: self._policy.answered(works, bids, context), works, context)

    def declined(self, work: Bindable, worker: str, context: BindingContext) -> Iterable[Choice]:
        return self._choices(lambda: self._policy.declined(work, worker, context), [work], context)

    def _choices(
        self,
        choose: Callable[[], Iterable[Choice]],
        works: Sequence[Bindable],
        context: BindingContext,
    ) -> list[Choice]:
        """Return the choices that can be carried out; none if the policy fails."""
        if self._failure:
            return []
        known = {each.name for each in context.peers}
        given = {id(each) for each in works}
        try:
            return [each for each in choose() if _is_possible(each, given, known)]
        except Exception as error:
            self._failure = f"it failed and is disabled: {type(error).__name__}: {error}"
            _log.exception("a binding policy failed and is disabled")
            return []


def _is_possible(choice: Choice, works: set[int], workers: set[str]) -> bool:
    """Tell whether it speaks of what was asked about, and of workers that may run it."""
    if isinstance(choice, Lend):
        return id(choice.work) in works and choice.worker in workers
    if isinstance(choice, Ask):
        return (
            bool(choice.workers)
            and workers.issuperset(choice.workers)
            and works.issuperset(map(id, choice.works))
        )
    raise TypeError(f"a choice is {choice!r:.100}; allowed: Lend, Ask")
