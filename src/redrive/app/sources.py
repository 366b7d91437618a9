"""Sources: brokers whose messages start runs. Their registration, and the acceptance of messages in batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from redrive.app.registration import SinkOptions, register_sink
from redrive.clock import Clock
from redrive.core.engine_messages import RUN_ENDED_TOPIC
from redrive.core.roles import DEFAULT_TENANT
from redrive.errors import ConfigurationError, DataRefused, RedriveError, RegistrationError, StoreError
from redrive.policy import RetryPolicy
from redrive.sinks import Sink

if TYPE_CHECKING:
    from redrive.app.app import Redrive
    from redrive.desk.run_starter import StartRequest

log = logging.getLogger("redrive.sources")

UNLIMITED_RETRY = RetryPolicy(max_retries=-1, base_delay=0.2, factor=2.0, max_delay=60.0)
"""Retries of what a bridge writes into its broker, which may be away for days."""

_RESTART_PAUSE = 1.0  # seconds before a source that ended with an error is served again


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A message that asks for a run. Messages with the same tenant, stream and id start one run.

    `input` is the input of the workflow, `options` are those of `start`, except `tenant` and `idempotency_key`.
    """

    stream: str
    id: str
    workflow: str
    input: Any
    tenant: str = DEFAULT_TENANT
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The run of a message; `new` if the message started it now."""

    run_id: str
    new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The reason why a message starts nothing. It would be refused again, so the source must not offer it again."""

    reason: str


Accept: TypeAlias = Callable[[Sequence[Arrival]], Awaitable[list[Accepted | Refused]]]
"""Accepts messages, and returns an answer for each, in order. Accepted runs are durable when it returns.

It raises StoreError if the store does not answer: then the source keeps its messages and offers them again.
"""


@runtime_checkable
class Source(Protocol):
    """A broker whose messages start runs, registered with `app.source(name, source)`.

    A source that has `deliver(message)` too is a sink: it gets the engine's event of each run that ended, in which
    `origin` has the stream and the id of the message that started the run.
    """

    async def serve(self, accept: Accept) -> None:
        """Take messages until it is cancelled. Acknowledge each after `accept` returned, never before."""

    async def close(self) -> None:
        """Close connections; the source may be served again."""


def register_source(app: Redrive, name: str, source: Source) -> None:
    """Register a source under a name that no other source has."""
    if not isinstance(name, str) or not 0 < len(name) <= 190 or not name.isprintable():
        raise RegistrationError(f"{name!r} cannot name a source: use a text of 1 to 190 printable characters")
    if name in app.registered_sources:
        raise RegistrationError(f"two sources are called {name!r}; give one of them another name")
    if not isinstance(source, Source):
        raise RegistrationError(f"source {name!r} is {source!r}, which lacks `async def serve(accept)` or `close()`")
    bind_to_app(source, app)
    if isinstance(source, Sink):
        # With this limit others deliver what a dead bridge was delivering after 30 s, the shortest lease.
        options = SinkOptions(UNLIMITED_RETRY, timeout=10)
        register_sink(app.registered_sinks, f"source:{name}", type(source).__name__, RUN_ENDED_TOPIC, source, options)
    app.registered_sources[name] = source


def bind_to_app(part: object, app: Redrive) -> None:
    """Tell a source or a sink its app, if it has the method `bind`."""
    bind = getattr(part, "bind", None)
    if bind is not None:
        bind(app)


class Acceptor:
    """Starts the runs that messages ask for, many in one commit."""

    def __init__(self, app: Redrive) -> None:
        self._app = app

    async def __call__(self, arrivals: Sequence[Arrival]) -> list[Accepted | Refused]:
        requests = [_read_arrival(each) for each in arrivals]
        started = iter(await self._start([each for each in requests if not isinstance(each, Refused)]))
        return [each if isinstance(each, Refused) else next(started) for each in requests]

    async def _start(self, requests: Sequence[StartRequest]) -> list[Accepted | Refused]:
        if not requests:
            return []
        runtime = self._app.runtime
        try:
            found = await runtime.ask_store(lambda: runtime.starter.start_each(requests))
        except DataRefused as error:
            if len(requests) == 1:
                return [Refused(reason=str(error))]
            # Halving finds the message with the bad text in few commits.
            half = len(requests) // 2
            return [*await self._start(requests[:half]), *await self._start(requests[half:])]
        return [
            Refused(reason=str(each))
            if isinstance(each, RedriveError)
            else Accepted(run_id=each.public_id, new=each.new)
            for each in found
        ]


def _read_arrival(arrival: Arrival) -> StartRequest | Refused:
    """Return the start that a message asks for; refuse one that a program cannot have meant."""
    if not isinstance(arrival.input, Mapping):
        kind = type(arrival.input).__name__
        return Refused(reason=f"the input must be an object with the workflow's arguments by name, not {kind}")
    if "tenant" in arrival.options or "idempotency_key" in arrival.options:
        return Refused(
            reason="the options of a message cannot set tenant or idempotency_key: they belong to its arrival"
        )
    from redrive.desk.run_starter import StartRequest

    return StartRequest(
        workflow=arrival.workflow,
        event=(arrival.stream, arrival.id),
        from_source=True,
        input=arrival.input,
        options={**arrival.options, "tenant": arrival.tenant},
    )


async def serve_sources(app: Redrive) -> None:
    """Serve the sources of an open app and deliver to its sinks, until cancelled or a source is misconfigured."""
    runtime, accept = app.runtime, Acceptor(app)
    await runtime.start_delivery()
    names = app.registered_sources.items()
    tasks = [asyncio.create_task(_serve_source(name, each, accept, runtime.clock)) for name, each in names]
    try:
        await asyncio.gather(*tasks) if tasks else await asyncio.Event().wait()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _, source in names:
            await source.close()


async def _serve_source(name: str, source: Source, accept: Accept, clock: Clock) -> None:
    """Serve a source for as long as the task lives. One that fails is served again after a pause."""
    while True:
        try:
            await source.serve(accept)
            log.error("source %r ended by itself; it is served again in a moment", name)
        except ConfigurationError:
            raise
        except StoreError as error:
            log.warning("source %r was interrupted: %s", name, error)
        except Exception:  # of any kind: a source must not give up
            log.exception("unexpected error in source %r; it is served again in a moment", name)
        await clock.sleep(_RESTART_PAUSE)
