"""Sublet: stateful functions in Python, with deadlines, durable state and exactly-once effects.

Everything that users need is here; clients and workers are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sublet.functions.app import App, Function, WindowedFunction
from sublet.functions.context import Batch, Context
from sublet.functions.errors import (
    CallCycleError,
    DeadlineExceededError,
    EgressLostError,
    EncodeError,
    FailedError,
    HandlerError,
    HandlerTimeoutError,
    IdempotencyConflictError,
    InfeasibleError,
    KeyRejectedError,
    NotCancelledError,
    OverloadedError,
    PayloadError,
    RejectedError,
    RequestCancelledError,
    RetryLaterError,
    SideEffectError,
    SnapshotLostError,
    StateTooLargeError,
    StateTypeError,
    SubletError,
    TooLargeError,
    UnavailableError,
    UnknownFunctionError,
    UnknownOutcomeError,
)
from sublet.functions.retry import NO_RETRY, Retry
from sublet.functions.state import (
    Count,
    Fields,
    List,
    Map,
    Max,
    Mean,
    Merged,
    Min,
    Quantiles,
    SetUnion,
    State,
    Sum,
    TopK,
    Value,
)
from sublet.functions.windows import SessionWindow, SlidingWindow, TumblingWindow, Window

if TYPE_CHECKING:
    from sublet.runtime.client.blocking import (
        BlockingAttempt,
        BlockingClient,
        BlockingEgressRange,
        BlockingEgressReader,
        BlockingPipeline,
        BlockingStateSnapshot,
    )
    from sublet.runtime.client.client import Client
    from sublet.runtime.client.egress_cursor import EgressCursor
    from sublet.runtime.client.egress_range import EgressRange
    from sublet.runtime.client.egress_reader import EgressReader, EgressRecord
    from sublet.runtime.client.pipeline_protocol import Committed, PipelineProgress, Staged
    from sublet.runtime.client.pipelines import (
        Attempt,
        Pipeline,
    )
    from sublet.runtime.client.snapshots import (
        KeyState,
        SnapshotPin,
        SnapshotStates,
        StateSnapshot,
    )
    from sublet.runtime.protocol.rpc import CallInfo, EgressGap, EgressValues

__version__ = "0.2.0"

_LATER = {
    "Client": "sublet.runtime.client.client",
    "BlockingClient": "sublet.runtime.client.blocking",
    "BlockingEgressRange": "sublet.runtime.client.blocking",
    "BlockingEgressReader": "sublet.runtime.client.blocking",
    "CallInfo": "sublet.runtime.protocol.rpc",
    "EgressCursor": "sublet.runtime.client.egress_cursor",
    "EgressGap": "sublet.runtime.protocol.rpc",
    "EgressRange": "sublet.runtime.client.egress_range",
    "EgressReader": "sublet.runtime.client.egress_reader",
    "EgressRecord": "sublet.runtime.client.egress_reader",
    "EgressValues": "sublet.runtime.protocol.rpc",
    "Attempt": "sublet.runtime.client.pipelines",
    "BlockingAttempt": "sublet.runtime.client.blocking",
    "BlockingPipeline": "sublet.runtime.client.blocking",
    "Committed": "sublet.runtime.client.pipeline_protocol",
    "Pipeline": "sublet.runtime.client.pipelines",
    "PipelineProgress": "sublet.runtime.client.pipeline_protocol",
    "Staged": "sublet.runtime.client.pipeline_protocol",
    "StateSnapshot": "sublet.runtime.client.snapshots",
    "SnapshotStates": "sublet.runtime.client.snapshots",
    "SnapshotPin": "sublet.runtime.client.snapshots",
    "KeyState": "sublet.runtime.client.snapshots",
    "BlockingStateSnapshot": "sublet.runtime.client.blocking",
}


def __getattr__(name: str) -> object:
    # gRPC takes a third of a second to import; functions alone do not need it.
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module 'sublet' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(module), name)


__all__ = [
    "NO_RETRY",
    "App",
    "Attempt",
    "Batch",
    "BlockingAttempt",
    "BlockingClient",
    "BlockingEgressRange",
    "BlockingEgressReader",
    "BlockingPipeline",
    "BlockingStateSnapshot",
    "CallCycleError",
    "CallInfo",
    "Client",
    "Committed",
    "Context",
    "Count",
    "DeadlineExceededError",
    "EgressCursor",
    "EgressGap",
    "EgressLostError",
    "EgressRange",
    "EgressReader",
    "EgressRecord",
    "EgressValues",
    "EncodeError",
    "FailedError",
    "Fields",
    "Function",
    "HandlerError",
    "HandlerTimeoutError",
    "IdempotencyConflictError",
    "InfeasibleError",
    "KeyRejectedError",
    "KeyState",
    "List",
    "Map",
    "Max",
    "Mean",
    "Merged",
    "Min",
    "NotCancelledError",
    "OverloadedError",
    "PayloadError",
    "Pipeline",
    "PipelineProgress",
    "Quantiles",
    "RejectedError",
    "RequestCancelledError",
    "Retry",
    "RetryLaterError",
    "SessionWindow",
    "SetUnion",
    "SideEffectError",
    "SlidingWindow",
    "SnapshotLostError",
    "SnapshotPin",
    "SnapshotStates",
    "Staged",
    "State",
    "StateSnapshot",
    "StateTooLargeError",
    "StateTypeError",
    "SubletError",
    "Sum",
    "TooLargeError",
    "TopK",
    "TumblingWindow",
    "UnavailableError",
    "UnknownFunctionError",
    "UnknownOutcomeError",
    "Value",
    "Window",
    "WindowedFunction",
]
