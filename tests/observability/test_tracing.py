"""Tracing as the source documents require it: one trace from a start to its steps and compensations."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from engines import OnStore
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import redrive
from redrive import FailureEvent, Redrive, RetryPolicy
from redrive.core.run_options import add_trace, check_traceparent, split_trace
from redrive.observability.tracing import Tracing, current_traceparent, make_tracing, set_request_trace
from redrive.sinks import Message, encode_cloud_event
from redrive.testing import Engine, engine, faults

SECRET = "password=hunter2"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Yield the ended spans. The provider is patched in, because a process can set the global one only once."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def shop() -> tuple[Redrive, object]:
    app = Redrive("sqlite:///:memory:")

    @app.step
    async def reserve() -> str:
        return "r1"

    @reserve.compensate
    async def release(result: str) -> None: ...

    @app.step(retry=RetryPolicy(max_retries=1, base_delay=1, jitter=0))
    def charge() -> None:
        trace.get_current_span().set_attribute("seen.by", "the step")

    @app.workflow
    async def mourn(event: FailureEvent) -> None: ...

    @app.workflow(rollback=True, on_failure=mourn)
    async def order() -> None:
        await reserve()
        await charge()

    return app, order


def named(found: InMemorySpanExporter) -> dict[str, list[ReadableSpan]]:
    told: dict[str, list[ReadableSpan]] = {}
    for span in sorted(found.get_finished_spans(), key=lambda span: span.start_time or 0):
        told.setdefault(span.name, []).append(span)
    return told


async def test_one_trace_from_start_through_attempts_compensations_and_handlers(
    on_store: OnStore, spans: InMemorySpanExporter
) -> None:
    app, order = shop()
    async with on_store(app) as e:
        assert isinstance(e, Engine)
        with faults(step="charge", fail=[ConnectionError(SECRET), ConnectionError(SECRET)]):
            run = await e.run(order, tenant="acme", correlation_id="req-7")
        assert run.status == "COMPENSATED"
        record = await e.app.runs.get(run.id)
        (handler,) = record.handled_by
        handling = await e.app.runs.get(handler)
    told = named(spans)
    (start,) = told["start order"]
    assert start.context is not None
    trace_id = f"{start.context.trace_id:032x}"
    assert record.trace_id == handling.trace_id == trace_id
    assert {span.context.trace_id for each in told.values() for span in each if span.context} == {
        start.context.trace_id
    }
    assert [span.status.is_ok for span in told["attempt charge"]] == [False, False]
    assert [span.attributes["redrive.attempt"] for span in told["attempt charge"] if span.attributes] == [1, 2]
    assert {"claim order", "execute order", "attempt reserve", "attempt release", "execute mourn"} <= told.keys()
    first, attempt = told["execute order"][0], told["attempt reserve"][0]
    assert first.parent is not None
    assert first.parent.span_id == start.context.span_id
    assert attempt.parent is not None
    assert first.context is not None
    assert attempt.parent.span_id == first.context.span_id
    assert attempt.attributes is not None
    assert attempt.attributes["redrive.correlation_id"] == "req-7"
    assert SECRET not in str([span.to_json() for each in told.values() for span in each])


async def test_letters_carry_the_trace_and_steps_see_their_span(spans: InMemorySpanExporter) -> None:
    app = Redrive("sqlite:///:memory:")

    @app.step
    def charge() -> None:
        trace.get_current_span().set_attribute("seen.by", "the step")
        raise ValueError("no")

    @app.workflow
    async def pay() -> None:
        await charge()

    async with engine(app) as e:
        run = await e.run(pay)
        assert run.letter is not None
        letter = await e.app.dlq.get(run.letter.id)
    (attempt,) = named(spans)["attempt charge"]
    assert attempt.context is not None
    assert letter.trace_id == f"{attempt.context.trace_id:032x}"
    assert attempt.attributes is not None
    assert attempt.attributes["seen.by"] == "the step"


async def test_messages_carry_the_trace_to_their_receivers(on_store: OnStore, spans: InMemorySpanExporter) -> None:
    app = Redrive("sqlite:///:memory:")
    heard: list[Message] = []

    @app.subscribe("orders.*")
    async def hear(message: Message) -> None:
        heard.append(message)

    @app.step
    def tell() -> None:
        redrive.publish("orders.paid", {"id": 1})

    @app.workflow
    async def order() -> None:
        await tell()
        redrive.publish("orders.done", {"id": 1})

    async with on_store(app) as e:
        run = await e.run(order)
        kept = {message.topic: message.trace_id for message in (await e.app.outbox.list()).items}
    told = named(spans)
    (attempt,), (execute,) = told["attempt tell"], told["execute order"]
    assert attempt.context is not None
    assert execute.context is not None
    trace_id = f"{attempt.context.trace_id:032x}"
    assert run.status == "SUCCESS"
    assert kept == {"orders.paid": trace_id, "orders.done": trace_id}
    (paid,), (done,) = told["publish orders.paid"], told["publish orders.done"]
    assert paid.parent is not None
    assert done.parent is not None
    assert paid.parent.span_id == attempt.context.span_id
    assert done.parent.span_id == execute.context.span_id
    (first,) = [message for message in heard if message.topic == "orders.paid"]
    assert first.traceparent is not None
    assert first.traceparent.startswith(f"00-{trace_id}-{attempt.context.span_id:016x}-")
    assert json.loads(encode_cloud_event(first))["traceparent"] == first.traceparent


async def test_without_an_sdk_messages_pass_on_the_trace_of_the_start() -> None:
    app = Redrive("sqlite:///:memory:")

    @app.workflow
    async def order() -> None:
        redrive.publish("orders.done", {"id": 1})

    async with engine(app) as e:
        set_request_trace(PARENT)
        run = await e.run(order)
        set_request_trace(None)
        assert (await e.app.runs.get(run.id)).trace_id == PARENT[3:35]
        (message,) = (await e.app.outbox.list()).items
        assert message.trace_id == PARENT[3:35]


def test_without_an_sdk_a_context_is_passed_on_without_tracing() -> None:
    assert make_tracing() is None
    set_request_trace("nonsense")
    assert current_traceparent() is None
    set_request_trace(PARENT)
    assert current_traceparent() == PARENT
    set_request_trace(None)


def test_the_context_that_a_request_brought_is_the_parent_of_the_start(spans: InMemorySpanExporter) -> None:
    set_request_trace(PARENT)
    made = make_tracing()
    assert isinstance(made, Tracing)
    with made.trace_start("order") as kept:
        assert kept is not None
        assert kept[3:35] == PARENT[3:35]
    set_request_trace(None)


def test_a_trace_is_stored_before_the_options_and_split_off_again() -> None:
    text = '{"override":null}'
    traced = add_trace(text, PARENT)
    assert split_trace(traced) == (PARENT, text)
    assert add_trace(add_trace(text, PARENT.replace("b7", "c7")), PARENT) == traced
    assert split_trace(text) == (None, text)
    for wrong in (None, "", PARENT[:-1], f"00-{'0' * 32}-b7ad6b7169203331-01", PARENT.upper()):
        assert check_traceparent(wrong) is None
