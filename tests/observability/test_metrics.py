"""The metrics that the source documents require, with their names."""

from __future__ import annotations

from engines import OnStore
from metrics_kit import Metrics, scraped, series

import redrive
from redrive import Circuit, NonRetryable, Redrive, RetryPolicy
from redrive.app import Workflow
from redrive.core.circuit import CircuitStatus
from redrive.core.outcomes import AttemptSucceeded, EntryRef, RunView
from redrive.core.run_options import RunOptions
from redrive.core.states import EntryKind
from redrive.core.transitions import Transition, TransitionResult
from redrive.observability.counters import MAX_CIRCUITS, MAX_SINKS, MAX_STEPS, MAX_WORKFLOWS, OTHER_LABEL, Counters
from redrive.observability.metrics import METRICS, make_registry, render_metrics
from redrive.store.stats import CircuitCount, SinkLag, StoreStats
from redrive.testing import Crash, Http, engine, faults
from redrive.worker.step_call import Tx

QUICK = RetryPolicy(max_retries=2, base_delay=5, factor=2, jitter=0)


def shop() -> tuple[Redrive, Workflow[..., str, object]]:
    """Return a workflow of three steps, the first two of which can be undone."""
    app = Redrive("sqlite:///:memory:")

    @app.step(retry=QUICK)
    async def reserve(order: str) -> str:
        return order

    @reserve.compensate
    async def release(order: str, result: str) -> None: ...

    @app.step(retry=QUICK)
    async def charge(order: str) -> str:
        return order

    @charge.compensate
    async def refund(order: str, result: str) -> None: ...

    @app.step(retry=QUICK)
    async def ship(order: str) -> str:
        return order

    @app.workflow(rollback=True)
    async def fulfil(order: str) -> str:
        for step in (reserve, charge, ship):
            await step(order)
        return order

    return app, fulfil


async def test_counters_of_the_reliability_design(on_store: OnStore) -> None:
    """Attempts and retries, by workflow and step."""
    app, fulfil = shop()
    async with on_store(app) as e:
        with faults(step="charge", fail=[Http(503), TimeoutError]):
            run = await e.run(fulfil, "o1")
        assert run.status == "SUCCESS"
        told = await scraped(e.app.runtime)
        assert told.get("workflow_step_attempts_total", workflow="fulfil", step="charge", outcome="success") == 1
        assert told.total("workflow_step_attempts_total", step="charge") == 3
        assert told.total("workflow_step_attempts_total", outcome="success") == 3
        assert told.total("workflow_step_retries_total", workflow="fulfil", step="charge") == 2
        assert told.labels("workflow_step_retries_total", "category") == {"server_error", "timeout"}
        assert told.get("workflow_runs_finished_total", workflow="fulfil", status="SUCCESS") == 1
        assert told.total("workflow_dlq_moves_total") == 0


async def test_dlq_moves_replays_depth_and_age(on_store: OnStore) -> None:
    """DLQ_by_stage, and how deep and how old the queue is."""
    app = Redrive("sqlite:///:memory:")

    @app.step
    async def post() -> None:
        raise NonRetryable("no such account")

    @app.workflow
    async def book() -> None:
        await post()

    async with on_store(app) as e:
        run = await e.run(book)
        assert run.letter is not None
        await e.advance("1h")
        told = await scraped(e.app.runtime)
        moved = {"workflow": "book", "stage": "exec", "code": "non_retryable"}
        assert told.get("workflow_dlq_moves_total", **moved) == 1
        assert told.get("workflow_dlq_depth", workflow="book") == 1
        assert 3_600 <= (told.get("workflow_dlq_oldest_age_seconds") or 0) < 3_700
        await e.app.dlq.replay(run.letter.id, by="ann")
        await e.settle()
        assert [await e.app.runtime.replay_counter.run_once() for _ in range(2)] == [1, 0]
        told = await scraped(e.app.runtime)
        assert told.get("workflow_dlq_replays_total", workflow="book", mode="FROM_FAILED") == 1
        assert told.get("workflow_dlq_replay_outcomes_total", workflow="book", outcome="failure") == 1
        assert told.get("workflow_dlq_moves_total", **moved) == 2
        await e.app.dlq.ignore(run.letter.id, by="ann")
        told = await scraped(e.app.runtime)
        assert told.total("workflow_dlq_depth") == 0
        assert told.get("workflow_dlq_oldest_age_seconds") == 0


async def test_retry_delays_retry_success_compensations_and_their_success() -> None:
    """retry_delays, retry_success_rate, compensation_invocations, compensation_success_rate."""
    app, fulfil = shop()
    async with engine(app) as e:
        with (
            faults(step="reserve", fail=[ConnectionError]),
            faults(step="refund", fail=[ConnectionError]),
            faults(step="ship", fail=[ConnectionError] * 3),
        ):
            run = await e.run(fulfil, "o1")
        assert run.status == "COMPENSATED"
        told = await scraped(e.app.runtime)
        where = {"workflow": "fulfil"}
        assert told.get("workflow_step_retry_delay_seconds_count", **where) == 4  # 5, 5, 10 s and the refund's
        assert told.get("workflow_step_retry_delay_seconds_bucket", **where, le="5.0") >= 2
        outcomes = "workflow_step_retry_outcomes_total"
        assert told.get(outcomes, **where, step="reserve", outcome="success") == 1
        assert told.get(outcomes, **where, step="ship", outcome="failure") == 1
        invoked = "workflow_compensation_invocations_total"
        assert told.total(invoked, step="refund") == 2
        assert told.total(invoked) == 3
        ended = "workflow_compensation_outcomes_total"
        assert told.total(ended, outcome="success") == 2
        assert told.total(ended, outcome="failure") == 0


async def test_histograms_for_stage_latency() -> None:
    """claim, execute, commit, publish."""
    app, fulfil = shop()

    @app.subscribe("orders.*")
    async def hear(message: object) -> None: ...

    @app.step
    async def tell() -> None:
        redrive.publish("orders.done", {"id": 1})

    @app.workflow
    async def say() -> None:
        await tell()

    async with engine(app) as e:
        await e.run(fulfil, "o1")
        await e.run(say)
        told = await scraped(e.app.runtime)
        counted = {
            stage: told.get("workflow_stage_latency_seconds_count", stage=stage)
            for stage in ("claim", "execute", "commit", "publish")
        }
        assert counted["execute"] == 4
        assert counted["publish"] == 1
        assert all(counted.values())
        assert told.get("workflow_commit_batch_size_count") == counted["commit"]
        assert told.total("workflow_outbox_deliveries_total", outcome="delivered") == 1
        assert series(METRICS) <= told.names


async def test_parked_steps_and_open_circuits_are_reported() -> None:
    app = Redrive("sqlite:///:memory:")

    @app.step(circuit=Circuit("payments", failures=1), retry=QUICK)
    async def pay() -> None: ...

    @app.workflow
    async def order() -> None:
        await pay()

    async with engine(app) as e:
        with faults(step="pay", fail=[ConnectionError]):
            await order.start()
            await e.advance("10s")
        told = await scraped(e.app.runtime)
        assert told.get("workflow_circuits", circuit="payments", state="OPEN") == 1
        assert told.get("workflow_step_parked_total", workflow="order", step="pay") == 1
        assert told.get("workflow_runs_parked") == 1


async def test_worker_deaths_and_lost_attempts_are_counted() -> None:
    app, fulfil = shop()
    async with engine(app) as e:
        with faults(step="charge", fail=[Crash]):
            run = await e.run(fulfil, "o1")
        assert run.status == "SUCCESS"
        told = await scraped(e.app.runtime)
        assert told.get("workflow_worker_deaths_total") == 1
        assert told.get("workflow_step_attempts_total", workflow="fulfil", step="charge", outcome="lost") == 1


async def test_transactional_steps_are_counted_too() -> None:
    app = Redrive("sqlite:///:memory:")

    @app.step(transactional=True)
    async def debit(tx: Tx) -> None:
        await tx.execute("CREATE TABLE account (amount)")

    @app.workflow
    async def pay() -> None:
        await debit()

    async with engine(app) as e:
        assert (await e.run(pay)).status == "SUCCESS"
        told = await scraped(e.app.runtime)
        assert told.get("workflow_step_attempts_total", workflow="pay", step="debit", outcome="success") == 1


def test_refused_writes_are_counted_only_as_refused() -> None:
    view = RunView(id=1, public_id="r", tenant="t", workflow="w", fence=1, input="{}", options=RunOptions())
    place = EntryRef(0, "k", EntryKind.STEP, "pay")
    outcome = AttemptSucceeded(run=view, place=place, attempt=1, began_ago=5, done=0, input="1", output="1")
    transition = Transition(run=1, tenant="t", fence=1)
    counters = Counters()
    counters.on_settled([outcome], [transition], [TransitionResult(False, 0)], 0.1)
    assert (counters.refused, counters.steps) == (1, {})
    counters.on_settled([outcome], [transition], [TransitionResult(True, 0)], 0.1)
    assert (counters.refused, counters.steps["w", EntryKind.STEP, "pay"].succeeded) == (1, 1)


def test_names_from_users_are_bounded() -> None:
    counters = Counters()
    for number in range(MAX_STEPS + 50):
        counters._find_step("w", EntryRef(0, "k", EntryKind.STEP, f"step {number}")).succeeded += 1
    assert len(counters.steps) == MAX_STEPS + 1
    assert counters.steps[OTHER_LABEL, EntryKind.STEP, OTHER_LABEL].succeeded == 50


def test_made_up_names_add_no_series_from_scrape_to_scrape() -> None:
    """Callers can create circuits and tenants of any name; each scrape here has new ones."""
    counters, seen = Counters(), dict[str, set[str]]()
    for scrape in range(10):
        names = [f"made up {scrape}.{number}" for number in range(60)] + ["x" * 1_000]
        stats = StoreStats(
            now=2_000_000,
            letters=dict.fromkeys(names, 2),
            due=dict.fromkeys(names, 1),
            overdue=dict.fromkeys(names, 1),
            circuits=tuple(CircuitCount(name, CircuitStatus.OPEN, 3) for name in names),
            sinks=tuple(SinkLag(name, 5, 7, 1_000_000) for name in names),
        )
        for name in names:
            counters.count_delivery(name, "DELIVERED", 0.1)
        body, _ = render_metrics(make_registry(counters, lambda stats=stats: stats), "")
        told = Metrics(body.decode())
        for metric, label, total in (
            ("workflow_circuits", "circuit", 3),
            ("workflow_outbox_pending", "sink", 5),
            ("workflow_outbox_dead", "sink", 7),
            ("workflow_dlq_depth", "workflow", 2),
            ("workflow_runs_due", "workflow", 1),
        ):
            seen.setdefault(metric, set()).update(told.labels(metric, label))
            assert told.total(metric) == total * len(names)  # the values are kept, only the names are dropped
        assert told.total("workflow_outbox_lag_seconds", sink=OTHER_LABEL) in (0, 1)
        seen.setdefault("deliveries", set()).update(told.labels("workflow_outbox_deliveries_total", "sink"))
    most = {"workflow_circuits": MAX_CIRCUITS, "workflow_outbox_pending": MAX_SINKS, "deliveries": MAX_SINKS}
    for metric, values in seen.items():
        assert OTHER_LABEL in values
        assert len(values) <= most.get(metric, MAX_SINKS if "outbox" in metric else MAX_WORKFLOWS) + 1, metric
        assert max(map(len, values)) < 1_000


async def test_nothing_is_counted_where_metrics_are_off() -> None:
    app = Redrive("sqlite:///:memory:", metrics="off")
    async with engine(app) as e:
        assert e.app.runtime.counters is None
