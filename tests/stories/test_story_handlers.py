"""The engine document's failure handlers: pattern 1 for one workflow, pattern 2 for all of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from redrive import FailureEvent, Redrive, RetryPolicy
from redrive.app import Workflow
from redrive.testing import engine


@dataclass
class World:
    """The systems that the handlers call: a chat, a table, a metric and a pager."""

    app: Redrive = field(default_factory=lambda: Redrive("sqlite:///:memory:"))
    chat: list[str] = field(default_factory=list)
    saved: list[FailureEvent] = field(default_factory=list)
    metric: list[str] = field(default_factory=list)
    pager: list[str] = field(default_factory=list)


def failing(world: World, name: str, **options: object) -> Workflow[..., None, None]:
    app = world.app

    @app.step(name=f"{name} step", retry=RetryPolicy(max_retries=2, base_delay=1, jitter=0))
    async def step(amount: int) -> None:
        raise ConnectionError("refused")

    @app.workflow(name=name, **options)  # type: ignore[call-overload,untyped-decorator]
    async def process(amount: int) -> None:
        await step(amount)

    return process  # type: ignore[no-any-return]


async def test_pattern_1_per_workflow_failure_handler() -> None:
    world = World()
    app = world.app

    @app.step
    async def send_alert(text: str) -> None:
        world.chat.append(text)

    @app.step
    async def save_to_dlq(event: FailureEvent) -> None:
        world.saved.append(event)

    @app.workflow
    async def handle_payment_failure(event: FailureEvent) -> None:
        await send_alert(f"Payment {event.run_id} failed after {event.attempts} attempts: {event.error}")
        await save_to_dlq(event)

    process_payment = failing(world, "ProcessPayment", on_failure=handle_payment_failure)
    other = failing(world, "Other")
    async with engine(app) as e:
        run = await e.run(process_payment, 40)
        await e.run(other, 41)
        (handler,) = await e.handlers(run)
        assert handler.status == "SUCCESS"
        assert [step.name for step in handler.steps] == ["send_alert", "save_to_dlq"]
        assert world.chat == [f"Payment {run.id} failed after 3 attempts: ConnectionError: refused"]
        (event,) = world.saved
        assert (event.run_id, event.workflow, event.input) == (run.id, "ProcessPayment", {"amount": 40})
        assert run.letter is not None
        assert (event.started_at, event.failed_at) == (run.described.started_at, run.letter.failed_at)


async def test_pattern_2_a_global_failure_handler_catches_all_failures() -> None:
    world = World()
    app = world.app

    @app.step
    async def send_metric(workflow: str) -> None:
        world.metric.append(workflow)

    @app.step
    async def page_oncall(summary: str) -> None:
        world.pager.append(summary)
        if "Third" in summary:
            raise ValueError("no such team")

    @app.on_failure
    async def global_failure_handler(event: FailureEvent) -> None:
        await send_metric(event.workflow)
        await page_oncall(f"{event.workflow} failed: {event.error}")

    names = ["First", "Second", "Third"]
    workflows = [failing(world, name) for name in names]
    async with engine(app) as e:
        runs = [await e.run(workflow, 40) for workflow in workflows]
        ends = [str(handler.status) for run in runs for handler in await e.handlers(run)]
        assert ends == ["SUCCESS", "SUCCESS", "DLQ_PENDING"]
        await e.finish_all()
        assert world.metric == names  # and the handler that failed has not been handled itself
        assert world.pager == [f"{name} failed: ConnectionError: refused" for name in names]
        letters = (await app.dlq.list()).items
        assert sorted(letter.workflow for letter in letters) == [*names, "global_failure_handler"]
