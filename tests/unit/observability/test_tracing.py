"""Traces without a worker: what is sampled, what is passed on, what is recorded."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
import structlog
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from sublet.functions.effects import Outgoing
from sublet.runtime.observability.telemetry import SpanTimes
from sublet.runtime.observability.tracing import (
    Tracing,
    current_traceparent,
    new_traceparent,
    open_tracing,
    sampled_traceparent,
)
from sublet.runtime.partition.commit.pending_commit import PendingCommit
from sublet.runtime.partition.records.channels import Outbox
from sublet.runtime.partition.records.commit_encoder import CommitEncoder
from sublet.runtime.partition.records.egress_retention import EgressRetention
from sublet.runtime.protocol.frames import Batch, ErrorInfo, Extra, Kind
from sublet.runtime.protocol.messages import Message

TRACE = "0af7651916cd43dd8448eb211c80319c"
SAMPLED = f"00-{TRACE}-b7ad6b7169203331-01"
UNSAMPLED = f"00-{TRACE}-b7ad6b7169203331-00"


class Recorder:
    """OpenTelemetry's SDK, with all that it was told."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._provider = TracerProvider()
        self._provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self._provider.get_tracer("test")

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def close(self) -> None:
        self._provider.shutdown()


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    made = Recorder()
    yield made
    made.close()


def message(trace: str, key: str = "anna") -> Message:
    return Message("~c", 7, Kind.CALL, key, msgspec.Raw(b"\xc0"), 1, extra=Extra(trace=trace))


def times(**stages_ms: float) -> SpanTimes:
    made = SpanTimes("f", "f/0", "~c", 7, 1, 0, 0, 0, 0, 0, 0)
    for stage, stage_ms in stages_ms.items():
        setattr(made, f"{stage}_ms", stage_ms)
    return made


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        UNSAMPLED,
        SAMPLED.upper(),
        f"01-{TRACE}-b7ad6b7169203331-01",
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"{SAMPLED}-extra",
        f" {SAMPLED}",
    ],
)
def test_a_header_that_is_invalid_or_not_sampled_means_no_trace(header: str | None) -> None:
    assert sampled_traceparent(header) == ""


def test_a_sampled_header_is_taken_as_it_is() -> None:
    assert sampled_traceparent(SAMPLED) == SAMPLED
    assert sampled_traceparent(new_traceparent())


def test_without_a_tracer_a_trace_is_passed_on() -> None:
    tracing = Tracing()

    with tracing.request("POST f", SAMPLED) as trace:
        assert trace == SAMPLED
    run = tracing.started("f", "f/0", message(SAMPLED), 0)

    assert run.traceparent == SAMPLED
    with run.entered():
        assert structlog.contextvars.get_contextvars()["trace_id"] == TRACE
    assert "trace_id" not in structlog.contextvars.get_contextvars()


def test_requests_begin_a_trace_as_often_as_they_should() -> None:
    chances = iter([0.2, 0.3])
    tracing = Tracing(sample_ratio=0.25, uniform=lambda: next(chances))

    with tracing.request("POST f", None) as first, tracing.request("POST f", None) as second:
        assert sampled_traceparent(first)
        assert second == ""


def test_who_decided_against_a_trace_is_obeyed() -> None:
    tracing = Tracing(sample_ratio=1.0)

    with tracing.request("POST f", UNSAMPLED) as trace:
        assert trace == ""


def test_a_request_is_a_span_below_that_of_its_caller(recorder: Recorder) -> None:
    with Tracing(recorder.tracer).request("POST f", SAMPLED) as trace:
        assert current_traceparent() == trace

    (span,) = recorder.spans
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    assert trace == f"00-{TRACE}-{span.get_span_context().span_id:016x}-01"  # type: ignore[union-attr]
    assert current_traceparent() == ""


def test_a_run_is_a_span_with_its_stages(recorder: Recorder) -> None:
    run = Tracing(recorder.tracer).started("shop/cart", "shop/cart/3", message(SAMPLED), 1_000)
    run.committed(times(admission=5, queue=20, running=3.5, committing=1))

    (span,) = recorder.spans
    attributes = dict(span.attributes or {})
    assert span.name == "shop/cart"
    assert span.start_time == 1_000_000_000
    assert span.end_time == 1_024_500_000
    assert [(each.name, each.timestamp) for each in span.events] == [
        ("queue", 1_000_000_000),
        ("running", 1_020_000_000),
        ("committing", 1_023_500_000),
    ]
    assert attributes["sublet.request_id"] == "shop/cart/3@~c:7"
    assert attributes["sublet.admission_ms"] == 5
    assert attributes["sublet.attempt"] == 1
    assert "sublet.key" not in attributes
    assert len(str(attributes["sublet.key_hash"])) == 16


def test_keys_are_told_only_where_that_was_asked_for(recorder: Recorder) -> None:
    tracing = Tracing(recorder.tracer, with_keys=True)
    tracing.started("f", "f/0", message(SAMPLED, "anna"), 0).committed(times())

    attributes = dict(recorder.spans[0].attributes or {})
    assert attributes["sublet.key"] == "anna"
    assert "sublet.key_hash" not in attributes


def test_a_run_that_failed_says_why(recorder: Recorder) -> None:
    run = Tracing(recorder.tracer).started("f", "f/0", message(SAMPLED), 0)
    run.failed(ErrorInfo("handler_failed", "f raised ValueError: no"))

    (span,) = recorder.spans
    assert span.status.status_code is StatusCode.ERROR
    assert dict(span.attributes or {})["error.type"] == "handler_failed"


def test_spans_and_log_lines_of_user_code_belong_to_the_run(recorder: Recorder) -> None:
    run = Tracing(recorder.tracer).started("f", "f/0", message(SAMPLED), 0)

    with run.entered():
        bound = structlog.contextvars.get_contextvars()
        assert (bound["trace_id"], bound["span_id"]) == (TRACE, run.traceparent[36:52])
        assert current_traceparent() == run.traceparent
        with recorder.tracer.start_as_current_span("mine"):
            pass
    run.committed(times())

    mine, own = recorder.spans
    assert mine.parent is not None
    assert mine.parent.span_id == own.get_span_context().span_id  # type: ignore[union-attr]


def test_messages_without_a_trace_leave_without_extras() -> None:
    encoder = CommitEncoder("a/f/0", Outbox({}, []), EgressRetention(), 1_000_000)
    pending = PendingCommit()
    pending.send([Outgoing("a/g/0", "k", b"\x01", None), Outgoing("a/g/0", "l", b"\x02", None)])

    assert _sent(encoder, pending).extras is None


def test_only_the_messages_that_are_sampled_carry_their_trace() -> None:
    encoder = CommitEncoder("a/f/0", Outbox({}, []), EgressRetention(), 1_000_000)
    pending = PendingCommit()
    pending.send(
        [
            Outgoing("a/g/0", "k", b"\x01", None),
            Outgoing("a/g/0", "l", b"\x02", None, SAMPLED),
        ],
        traced=True,
    )

    assert _sent(encoder, pending).extras == {1: Extra(trace=SAMPLED)}


def _sent(encoder: CommitEncoder, pending: PendingCommit) -> Batch:
    contents = pending.seal()
    encoder.contribute(contents)
    (entry,) = contents.outbox
    return msgspec.msgpack.decode(entry.data, type=Batch)


def test_an_exporter_that_is_not_installed_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"trace_exporter is 'nowhere'; installed: .*console"):
        open_tracing("nowhere", worker="w", sample_ratio=0, with_keys=False)


def test_the_console_gets_one_line_for_each_span(capfd: pytest.CaptureFixture[str]) -> None:
    tracing, end = open_tracing("console", worker="w1", sample_ratio=1, with_keys=False)
    with tracing.request("POST f", None):
        pass
    end()

    (line,) = capfd.readouterr().err.splitlines()
    told = msgspec.json.decode(line)
    assert told["name"] == "POST f"
    assert told["resource"]["attributes"]["service.name"] == "sublet"
    assert told["resource"]["attributes"]["service.instance.id"] == "w1"
