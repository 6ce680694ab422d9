"""Traces: which message caused which, in OpenTelemetry's words.

A sampled message carries a W3C traceparent; one that is not sampled carries nothing and costs
nothing. Whatever a traced message causes (sends, calls, timers) carries the id of its run. Spans
are recorded where OpenTelemetry's SDK is set up; elsewhere the traceparent is only passed on, so
that a trace does not end at a worker that records none.
"""

from __future__ import annotations

import random
import re
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import xxhash
from structlog.contextvars import bound_contextvars

from sublet.runtime.observability.telemetry import STAGES, SpanTimes, request_id
from sublet.runtime.partition.model.work import Traced
from sublet.runtime.protocol.frames import ErrorInfo, Kind
from sublet.runtime.protocol.messages import Message

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span, SpanContext, Tracer, TracerProvider

TRACEPARENT_CHARS_MAX = 55
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_ENTRY_POINTS = "opentelemetry_traces_exporter"


def sampled_traceparent(header: str | None) -> str:
    """Return a traceparent that is valid and sampled as it is; nothing for any other."""
    if not header:
        return ""
    found = _TRACEPARENT.fullmatch(header)
    return header if found and int(found[3], 16) & 1 else ""


def current_traceparent() -> str:
    """Return the traceparent of OpenTelemetry's current span, if there is one and it is sampled."""
    # Who has not imported it has no span.
    api = sys.modules.get("opentelemetry.trace")
    get_current_span: Callable[[], Span] | None = getattr(api, "get_current_span", None)
    if get_current_span is None:
        return ""
    return _written(get_current_span().get_span_context())


def new_traceparent() -> str:
    """Begin a trace that nobody has recorded so far."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


def _written(context: SpanContext) -> str:
    if not context.is_valid or not context.trace_flags.sampled:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-01"


def _read(traceparent: str) -> Context:
    """Return an OpenTelemetry context whose span is the given one, or none."""
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        NonRecordingSpan,
        SpanContext,
        TraceFlags,
        set_span_in_context,
    )

    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return Context()
    parent = SpanContext(int(found[1], 16), int(found[2], 16), True, TraceFlags(int(found[3], 16)))
    return set_span_in_context(NonRecordingSpan(parent), Context())


class Tracing:
    """How one worker traces: with a tracer it records spans, without it passes traces on."""

    def __init__(
        self,
        tracer: Tracer | None = None,
        *,
        sample_ratio: float = 0.0,
        with_keys: bool = False,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        """`sample_ratio`: the share of requests without a trace that begins one. `with_keys`:
        spans tell keys as they are, not only their hashes."""
        self._tracer = tracer
        self._sample_ratio = sample_ratio
        self._with_keys = with_keys
        self._uniform = uniform

    @contextmanager
    def request(self, name: str, header: str | None) -> Iterator[str]:
        """A request from outside; yields the traceparent that its message carries, or nothing."""
        parent = sampled_traceparent(header)
        if not parent and not self._begins(header):
            yield ""
        elif self._tracer is None:
            yield parent or new_traceparent()
        else:
            from opentelemetry.trace import SpanKind

            with self._tracer.start_as_current_span(
                name, context=_read(parent), kind=SpanKind.SERVER
            ) as span:
                yield _written(span.get_span_context())

    def _begins(self, header: str | None) -> bool:
        if header and _TRACEPARENT.fullmatch(header):
            return False  # Whoever began that trace has decided against it.
        return bool(self._sample_ratio) and self._uniform() < self._sample_ratio

    def started(self, function: str, partition: str, message: Message, arrived_ms: int) -> Traced:
        """A sampled message, which has arrived at this time of the wall clock, runs now."""
        if self._tracer is None:
            return PassedOn(message.extra.trace)
        from opentelemetry.trace import SpanKind

        key: dict[str, str] = {"sublet.key_hash": xxhash.xxh64_hexdigest(message.key.encode())}
        if self._with_keys:
            key = {"sublet.key": message.key}
        span = self._tracer.start_span(
            function,
            context=_read(message.extra.trace),
            kind=SpanKind.SERVER if message.kind is Kind.CALL else SpanKind.CONSUMER,
            attributes={
                "sublet.function": function,
                "sublet.partition": partition,
                "sublet.request_id": request_id(partition, message.source, message.number),
                "sublet.attempt": message.attempt,
                **key,
            },
            start_time=arrived_ms * 1_000_000,
        )
        return RunSpan(span, arrived_ms)


class PassedOn:
    """A traced run that nobody records here."""

    __slots__ = ("traceparent",)

    def __init__(self, traceparent: str) -> None:
        self.traceparent = traceparent

    def entered(self) -> AbstractContextManager[None]:
        return bound_contextvars(trace_id=self.traceparent[3:35])

    def committed(self, times: SpanTimes) -> None:
        return

    def failed(self, error: ErrorInfo) -> None:
        return


class RunSpan:
    """A traced run, recorded through OpenTelemetry; it ends with the commit of its effects."""

    __slots__ = ("_arrived_ms", "_span", "traceparent")

    def __init__(self, span: Span, arrived_ms: int) -> None:
        self._span = span
        self._arrived_ms = arrived_ms
        self.traceparent = _written(span.get_span_context())

    @contextmanager
    def entered(self) -> Iterator[None]:
        from opentelemetry.trace import use_span

        context = self._span.get_span_context()
        with ExitStack() as stack:
            # Failures come by `failed`: some are not exceptions, and a caller's refusal is no
            # fault of the handler.
            stack.enter_context(
                use_span(self._span, record_exception=False, set_status_on_exception=False)
            )
            stack.enter_context(
                bound_contextvars(
                    trace_id=f"{context.trace_id:032x}", span_id=f"{context.span_id:016x}"
                )
            )
            yield

    def committed(self, times: SpanTimes) -> None:
        span = self._span
        at_ms = float(self._arrived_ms)
        for stage in STAGES:
            stage_ms: float = getattr(times, f"{stage}_ms")
            span.set_attribute(f"sublet.{stage}_ms", stage_ms)
            # The time in the sender lies before the span; the sender's own span shows it.
            if stage != "admission" and stage_ms:
                span.add_event(stage, {"sublet.ms": stage_ms}, timestamp=int(at_ms * 1e6))
                at_ms += stage_ms
        if times.late:
            span.set_attribute("sublet.late", True)
        span.end(end_time=max(int(at_ms * 1e6), self._arrived_ms * 1_000_000))

    def failed(self, error: ErrorInfo) -> None:
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attribute("error.type", error.code)
        self._span.set_status(Status(StatusCode.ERROR, error.message))
        self._span.end()


def open_tracing(
    exporter: str, *, worker: str, sample_ratio: float, with_keys: bool
) -> tuple[Tracing, Callable[[], None]]:
    """Return how a worker traces, and what to call at its end.

    `exporter` is a name under which an exporter of OpenTelemetry is installed; it reads the
    environment variables that OpenTelemetry has for it. Without a name, the provider that the
    program has set up is used, if it has. Raises ValueError with what is allowed.
    """
    if exporter:
        own, shut_down = _own_provider(exporter, worker)
        tracer: Tracer | None = own.get_tracer("sublet")
    else:
        given, shut_down = _given_provider(), _nothing
        tracer = None if given is None else given.get_tracer("sublet")
    return Tracing(tracer, sample_ratio=sample_ratio, with_keys=with_keys), shut_down


def _given_provider() -> TracerProvider | None:
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    provider: TracerProvider = api.get_tracer_provider()
    # Where nobody has set one up, this is a stand-in that records nothing.
    return None if isinstance(provider, api.ProxyTracerProvider) else provider


def _own_provider(exporter: str, worker: str) -> tuple[TracerProvider, Callable[[], None]]:
    from importlib.metadata import entry_points

    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import (
            BatchSpanProcessor,
            ConsoleSpanExporter,
            SimpleSpanProcessor,
        )
    except ImportError:
        raise ValueError(
            f"trace_exporter is {exporter!r}, but OpenTelemetry is not installed; "
            "pip install 'sublet[otel]'"
        ) from None
    found = {each.name: each for each in entry_points(group=_ENTRY_POINTS)}
    if exporter == "console":
        # To standard error, as all that a worker says, and at once: somebody is looking.
        console = ConsoleSpanExporter(out=sys.stderr, formatter=_one_line)
        processor: SpanProcessor = SimpleSpanProcessor(console)
    elif exporter in found:
        processor = BatchSpanProcessor(found[exporter].load()())
    else:
        allowed = ", ".join(sorted({"console", *found}))
        raise ValueError(f"trace_exporter is {exporter!r}; installed: {allowed}")
    resource = Resource.create()
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "sublet"}))
    resource = resource.merge(Resource({"service.instance.id": worker}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(processor)
    return provider, provider.shutdown


def _one_line(span: Any) -> str:
    text: str = span.to_json(indent=None)
    return text + "\n"


def _nothing() -> None:
    return
