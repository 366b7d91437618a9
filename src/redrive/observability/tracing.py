"""Spans, through the API of OpenTelemetry: start, claim, execute, one for each attempt, publish.

The application sets up the SDK. Without an SDK no spans are made, but the trace context of a request is still
passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from redrive.core.outcomes import RunView
from redrive.core.run_options import check_traceparent
from redrive.store.outbox import MessageRow

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

_request_trace: ContextVar[str | None] = ContextVar("redrive_traceparent", default=None)


def set_request_trace(traceparent: str | None) -> None:
    """Make the current task part of the trace that a request named."""
    _request_trace.set(check_traceparent(traceparent))


@cache
def _import_api() -> ModuleType | None:
    """Return OpenTelemetry's API, or None if it is not installed."""
    try:
        from opentelemetry import trace
    except ModuleNotFoundError:
        return None
    return trace


def current_traceparent() -> str | None:
    """Return the trace of the caller's current span, else that of its request."""
    api = _import_api()
    return (None if api is None else _format_traceparent(api.get_current_span())) or _request_trace.get()


def make_tracing() -> Tracing | None:
    """Make a tracer if OpenTelemetry is installed and the application set up an SDK."""
    api = _import_api()
    if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        return None
    return Tracing(api.get_tracer("redrive"))


class Tracing:
    """Maker of the spans of runs."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def trace_start(self, workflow: str) -> Iterator[str | None]:
        """Trace the start of runs; yield the traceparent that the runs keep."""
        from opentelemetry import trace

        outer = None if trace.get_current_span().get_span_context().is_valid else _parent_context(_request_trace.get())
        attributes = {"redrive.workflow": workflow}
        with self._tracer.start_as_current_span(
            f"start {workflow}", context=outer, kind=trace.SpanKind.PRODUCER, attributes=attributes
        ) as span:
            yield _format_traceparent(span)

    def trace_execution(self, run: RunView, claimed_at: int) -> Span:
        """Begin the span of an execution and make it the task's current span; the caller ends it.

        `claimed_at` is in microseconds since 1970.
        """
        from opentelemetry import context, trace

        self._start_span(f"claim {run.workflow}", run, start_time=claimed_at * 1_000).end()
        span = self._start_span(f"execute {run.workflow}", run, kind=trace.SpanKind.CONSUMER)
        context.attach(trace.set_span_in_context(span))
        return span

    @contextmanager
    def trace_attempt(self, run: RunView, step: str, attempt: int) -> Iterator[None]:
        """Trace one attempt. An error adds its type but not its text, which may hold secrets."""
        from opentelemetry.trace import Status, StatusCode

        about: dict[str, str | int] = {**_run_attributes(run), "redrive.step": step, "redrive.attempt": attempt}
        with self._tracer.start_as_current_span(
            f"attempt {step}", attributes=about, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield
            except BaseException as error:
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(Status(StatusCode.ERROR, type(error).__qualname__))
                raise

    @contextmanager
    def trace_delivery(self, message: MessageRow, sink: str) -> Iterator[Callable[[], None]]:
        """Trace one delivery; yield the function that marks it as failed."""
        from opentelemetry import trace

        about = {
            "redrive.sink": sink,
            "redrive.message_id": message.public_id,
            "redrive.run_id": message.run_id,
            "redrive.tenant": message.tenant,
            "redrive.correlation_id": message.correlation_id,
        }
        with self._tracer.start_as_current_span(
            f"publish {message.topic}",
            context=_parent_context(message.trace),
            kind=trace.SpanKind.PRODUCER,
            attributes=about,
            record_exception=False,
        ) as span:
            yield lambda: span.set_status(trace.Status(trace.StatusCode.ERROR))

    def _start_span(self, name: str, run: RunView, **more: Any) -> Span:
        return self._tracer.start_span(
            name, context=_parent_context(run.options.trace), attributes=_run_attributes(run), **more
        )


def _run_attributes(run: RunView) -> dict[str, str]:
    return {
        "redrive.run_id": run.public_id,
        "redrive.workflow": run.workflow,
        "redrive.tenant": run.tenant,
        "redrive.correlation_id": run.correlation_id or run.public_id,
    }


def _format_traceparent(span: Span) -> str | None:
    known = span.get_span_context()
    if not known.is_valid:
        return None
    return f"00-{known.trace_id:032x}-{known.span_id:016x}-{int(known.trace_flags):02x}"


def _parent_context(traceparent: str | None) -> Context:
    """Return the parent context of a span; an empty one starts a new trace."""
    from opentelemetry import context, trace

    if traceparent is None:
        return context.Context()
    _, trace_id, span_id, flags = traceparent.split("-")
    known = trace.SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=trace.TraceFlags(int(flags, 16))
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(known), context.Context())
