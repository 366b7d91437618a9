"""A conformance suite for sources and sinks: what a broker's adapter must survive.

    async def test_my_source_conforms():
        await check_source(MyTrial())

A *trial* gives the suite its broker: a real one, which the trial can make unavailable for a while. Each check fails
with an AssertionError that names the rule. The suite needs no store and no worker: it accepts messages itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Protocol, TypeVar

from redrive.app.sources import Accept, Accepted, Arrival, Refused, Source
from redrive.errors import StoreUnavailable
from redrive.sinks import Message, Sink

T = TypeVar("T")
_PATIENCE = 60.0  # seconds for a broker to deliver again what was not acknowledged
_POISON = "poison"
_UNUSUAL = '{"text": "żółć \\u0000 \\ud83d\\ude00", "large": "' + "x" * 100_000 + '"}'


class SourceTrial(Protocol):
    """A broker with an empty queue, for `check_source`."""

    def make_source(self) -> Source:
        """Return a source for the queue, as a new process would have it."""

    async def send(self, id: str, number: int) -> None:
        """Add a message with this id, whose input contains the number."""

    async def outcome(self, id: str) -> str | None:
        """Return "accepted" if the message was acknowledged, the reason if it was refused, None until then."""

    def outage(self) -> AbstractAsyncContextManager[None]:
        """Make the broker unavailable during the block. It may lose messages, but not its address."""


class SinkTrial(Protocol):
    """A broker with an empty queue, for `check_sink`."""

    def make_sink(self) -> Sink:
        """Return a sink for the queue, as a new process would have it."""

    async def arrived(self) -> Sequence[tuple[str, Any]]:
        """Return the id and the payload of each message in the queue, in order."""

    def outage(self) -> AbstractAsyncContextManager[None]:
        """Make the broker unavailable during the block. It may lose messages, but not its address."""


class _Runs:
    """Accepts messages as the engine does: one run for each stream and id. `before` and `after` may interfere."""

    def __init__(self) -> None:
        self.started: dict[tuple[str, str], str] = {}
        self.calls = 0
        self.before: Callable[[], Awaitable[None]] | None = None
        self.after: Callable[[], Awaitable[None]] | None = None

    async def __call__(self, arrivals: Sequence[Arrival]) -> list[Accepted | Refused]:
        self.calls += 1
        if self.before is not None:
            await self.before()
        answers = [self._accept(each) for each in arrivals]
        if self.after is not None:
            await self.after()
        return answers

    def _accept(self, arrival: Arrival) -> Accepted | Refused:
        if _POISON in arrival.id:
            return Refused(reason="the message is poisonous")
        key = (arrival.stream, arrival.id)
        new = key not in self.started
        return Accepted(run_id=self.started.setdefault(key, f"run-{len(self.started)}"), new=new)


async def check_source(trial: SourceTrial) -> None:
    """Check that a source starts each message once and acknowledges it only after its run is stored."""
    runs = _Runs()
    async with _serving(trial, runs):
        await _check_many(trial, runs)
        await _check_refusal(trial, runs)
        await _check_store_outage(trial, runs)
    await _check_crash(trial, runs)
    async with _serving(trial, runs):
        await _check_repeat(trial, runs)
        await _check_broker_outage(trial, runs)


async def _check_many(trial: SourceTrial, runs: _Runs) -> None:
    ids = [f"many-{number}" for number in range(20)]
    await asyncio.gather(*(trial.send(id, number) for number, id in enumerate(ids)))
    for id in reversed(ids):
        await _wait_for(trial, id, "accepted", "each message must be acknowledged, in whatever order they come")
    assert len(runs.started) == len(ids), "each message must be offered under another id"


async def _check_refusal(trial: SourceTrial, runs: _Runs) -> None:
    for number, id in enumerate(("before-bad", _POISON, "after-bad")):
        await trial.send(id, number)
    await _wait_for(trial, _POISON, "the message is poisonous", "a refused message must get the reason")
    for id in ("before-bad", "after-bad"):
        await _wait_for(trial, id, "accepted", "a refused message must not stop the others")
    calls = runs.calls
    await trial.send("later", 0)
    await _wait_for(trial, "later", "accepted", "messages must be taken after a refusal")
    assert runs.calls <= calls + 2, "a refused message must not be offered again"


async def _check_store_outage(trial: SourceTrial, runs: _Runs) -> None:
    failures = 0

    async def fail_twice() -> None:
        nonlocal failures
        failures += 1
        if failures <= 2:
            assert await trial.outcome("kept") is None, "a message must not be acknowledged before it is accepted"
            raise StoreUnavailable("the store does not answer")

    runs.before = fail_twice
    await trial.send("kept", 1)
    await _wait_for(trial, "kept", "accepted", "a message must be offered again when the store did not answer")
    runs.before = None


async def _check_crash(trial: SourceTrial, runs: _Runs) -> None:
    accepted = asyncio.Event()

    async def hang() -> None:
        accepted.set()
        await asyncio.Event().wait()

    runs.after = hang
    async with _serving(trial, runs):
        await trial.send("crash", 1)
        await asyncio.wait_for(accepted.wait(), _PATIENCE)
    runs.after = None
    assert await trial.outcome("crash") is None, "a message must not be acknowledged before accept has returned"
    count = len(runs.started)
    async with _serving(trial, runs):
        await _wait_for(
            trial, "crash", "accepted", "a message must come again after a crash before its acknowledgement"
        )
    assert len(runs.started) == count, "a message that comes again must have the same stream and id"


async def _check_repeat(trial: SourceTrial, runs: _Runs) -> None:
    count = len(runs.started)
    for _ in range(2):
        await trial.send("twice", 1)
    await _wait_for(trial, "twice", "accepted", "a repeated message must be acknowledged")
    assert len(runs.started) == count + 1, "the same id must be the same run"


async def _check_broker_outage(trial: SourceTrial, runs: _Runs) -> None:
    async with trial.outage():
        await asyncio.sleep(0)
    await trial.send("after-outage", 1)
    await _wait_for(trial, "after-outage", "accepted", "a source must take messages again when its broker is back")


@asynccontextmanager
async def _serving(trial: SourceTrial, accept: Accept) -> AsyncIterator[None]:
    source = trial.make_source()
    assert isinstance(source, Source), f"{source!r} lacks `async def serve(accept)` or `close()`"
    task = asyncio.create_task(source.serve(accept))
    try:
        yield
        assert not task.done(), f"a source must serve until it is cancelled: {task}"
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await source.close()


async def _wait_for(trial: SourceTrial, id: str, wanted: str, rule: str) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            while (outcome := await trial.outcome(id)) is None:  # noqa: ASYNC110 - a broker has no event
                await asyncio.sleep(0.02)
            assert wanted in outcome, f"{rule}: message {id!r} has the outcome {outcome!r}"
            return
    raise AssertionError(f"{rule}: message {id!r} has no outcome after {_PATIENCE:g} s")


async def check_sink(trial: SinkTrial) -> None:
    """Check that a sink returns only when a message has arrived, with its id, its payload and its order."""
    sink = trial.make_sink()
    assert isinstance(sink, Sink), f"{sink!r} lacks `async def deliver(message)` or `close()`"
    try:
        await _check_order(trial, sink)
        await _check_duplicate(trial, sink)
        await _check_payload(trial, sink)
        await _check_outage(trial, sink)
    finally:
        await sink.close()


async def _check_order(trial: SinkTrial, sink: Sink) -> None:
    ids = [f"order-{number}" for number in range(5)]
    for id in ids:
        await sink.deliver(_make_message(id, key="k"))
    assert [id for id, _ in await trial.arrived()] == ids, "messages must be there when deliver returns, in order"


async def _check_duplicate(trial: SinkTrial, sink: Sink) -> None:
    message = _make_message("twice")
    await sink.deliver(message)
    await sink.close()  # the first process died before it recorded the delivery
    other = trial.make_sink()
    await other.deliver(message)
    await other.close()
    await sink.deliver(_make_message("reopened"))
    copies = [payload for id, payload in await trial.arrived() if id == "twice"]
    assert copies, "a message must arrive under its id"
    assert copies == [message.payload] * len(copies), "a message that arrives twice must be the same"
    assert "reopened" in {id for id, _ in await trial.arrived()}, "a sink may be used again after close"


async def _check_payload(trial: SinkTrial, sink: Sink) -> None:
    message = _make_message("unusual", text=_UNUSUAL)
    await sink.deliver(message)
    arrived = dict(await trial.arrived())
    assert arrived["unusual"] == message.payload, "any JSON must arrive unchanged"


async def _check_outage(trial: SinkTrial, sink: Sink) -> None:
    lost, rule = _make_message("lost"), "deliver must raise while the broker is away, within 30 s"
    async with trial.outage():
        try:
            async with asyncio.timeout(30):
                await sink.deliver(lost)
        except TimeoutError as error:
            raise AssertionError(rule) from error
        except Exception:  # of any kind: the relay repeats the delivery
            pass
        else:
            raise AssertionError(rule)
    async with asyncio.timeout(_PATIENCE):
        while True:
            try:
                await sink.deliver(lost)
                break
            except Exception:  # as a relay would
                await asyncio.sleep(0.05)
    assert "lost" in {id for id, _ in await trial.arrived()}, "a sink must deliver again when its broker is back"


def _make_message(id: str, *, key: str | None = None, text: str = '{"n": 1}') -> Message:
    return Message(
        id=id, topic="trial.sent", text=text, key=key, tenant="trial", committed_at=0, run_id="run", correlation_id="c"
    )
