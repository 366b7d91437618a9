"""`app.circuits`: lists circuits, opens and closes them, changes their settings; every change is audited."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from engines import OnStore

from redrive import Circuit, CircuitFilter, Redrive, RetryPolicy
from redrive.errors import ConfigurationError, InputError, NotFound
from redrive.store.filters import AuditFilter
from redrive.testing import Engine, engine


def bank() -> tuple[Redrive, Any, list[int]]:
    app = Redrive("sqlite:///:memory:")
    calls: list[int] = []

    @app.step(circuit=Circuit("payments"), retry=RetryPolicy(max_retries=0), effect="charges the card")
    async def charge(amount: int) -> int:
        calls.append(amount)
        if amount < 0:
            raise ConnectionError("the bank does not answer")
        return amount

    @app.workflow
    async def pay(amount: int) -> int:
        return await charge(amount)

    return app, pay, calls


async def events(e: Engine) -> list[tuple[str, str, str | None]]:
    lines = (await e.app.audit.list(AuditFilter(event="circuit."))).items
    return [(line.event, line.by, line.reason) for line in reversed(lines)]


async def test_a_circuit_opened_by_a_user_blocks_calls_until_a_user_closes_it() -> None:
    app, pay, calls = bank()
    async with engine(app) as e:
        opened = await app.circuits.open("payments", by="ann", reason="the bank asked us to stop")
        assert (opened.status, opened.until, opened.changed_by) == ("OPEN", None, "ann")
        handle = await pay.start(1)
        await e.advance("2d")
        assert calls == []
        assert (await app.circuits.get("payments")).parked == 1
        closed = await app.circuits.close("payments", by="ben")
        assert (closed.status, closed.generation) == ("CLOSED", 2)
        await e.advance("2s")
        assert await handle.result() == 1
        assert await events(e) == [
            ("circuit.opened", "ann", "the bank asked us to stop"),
            ("circuit.closed", "ben", None),
        ]


async def test_a_repeated_decision_on_a_circuit_changes_nothing() -> None:
    app, _, _ = bank()
    async with engine(app) as e:
        assert (await app.circuits.close("payments", by="ann")).generation == 0
        first = await app.circuits.open("payments", by="ann")
        assert await app.circuits.open("payments", by="ben") == first
        assert len(await events(e)) == 1


async def test_transitions_made_by_the_engine_are_audited() -> None:
    app, pay, _ = bank()
    async with engine(app) as e:
        for _ in range(5):
            await e.run(pay, -1)
        handle, opened = await pay.start(1), await app.circuits.get("payments")
        assert opened.changed_at is not None
        assert opened.until == opened.changed_at + timedelta(minutes=1)
        await e.advance("62s")
        assert await handle.result() == 1
        assert ((await app.circuits.get("payments")).changed_at or opened.changed_at) >= opened.until
        assert await events(e) == [
            ("circuit.opened", "redrive", "5 failures within 1 m, the last one: network"),
            ("circuit.half_opened", "redrive", "it was open for 1 m"),
            ("circuit.closed", "redrive", "a test call succeeded"),
        ]


async def test_settings_can_be_changed_and_reset_while_workers_run() -> None:
    app, pay, _ = bank()
    async with engine(app) as e:
        found = await app.circuits.set("payments", by="ann", failures=2, window="5m")
        assert found.override == {"failures": 2, "window": 300.0}
        found = await app.circuits.set("payments", by="ann", on_open="fail")
        assert found.override == {"failures": 2, "window": 300.0, "on_open": "fail"}
        for _ in range(2):
            await e.run(pay, -1)
        found = await app.circuits.get("payments")
        assert found.settings is not None
        assert (found.status, found.settings.failures, found.settings.open_for) == ("OPEN", 2, 60.0)
        assert (await e.run(pay, 1)).status == "DLQ_PENDING"  # calls now fail at once
        found = await app.circuits.unset("payments", by="ben")
        assert (found.override, found.status) == (None, "OPEN")
        handle = await pay.start(1)
        await e.settle()
        assert (await handle.describe()).parked_on == "payments"
        assert [event for event, _, _ in await events(e)][:2] == ["circuit.set", "circuit.set"]
        assert (await events(e))[-1][:2] == ("circuit.unset", "ben")


async def test_a_reset_forgets_the_failures_and_the_stored_settings() -> None:
    app, pay, _ = bank()
    async with engine(app) as e:
        await app.circuits.set("payments", by="ann", failures=5)
        for _ in range(4):
            await e.run(pay, -1)
        found = await app.circuits.reset("payments", by="ann")
        assert (found.status, found.generation, found.override) == ("CLOSED", 1, None)
        for _ in range(4):
            await e.run(pay, -1)
        assert (await app.circuits.get("payments")).status == "CLOSED"
        assert (await events(e))[-1] == ("circuit.reset", "ann", None)


async def test_circuits_are_listed_by_tenant_and_status() -> None:
    app, pay, _ = bank()
    async with engine(app) as e:
        await e.run(pay, -1)
        await app.circuits.open("payments", tenant="acme", by="ann")
        page = await app.circuits.list(limit=1)
        assert [(one.key, one.tenant) for one in page.items] == [("payments", "acme")]
        rest = await app.circuits.list(limit=1, cursor=page.next)
        assert [(one.tenant, one.status) for one in rest.items] == [("default", "CLOSED")]
        opened = await app.circuits.list(CircuitFilter(status="OPEN"))
        assert [one.tenant for one in opened.items] == ["acme"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"failures": 0}, "failures is 0. Give a whole number from 1 on"),
        ({"probes": 1000}, "probes is 1000. Give a whole number from 1 to 100"),
        ({"window": "soon"}, "window is 'soon'"),
        ({"name": "other"}, "a circuit's name cannot be set"),
        ({"filures": 3}, "did you mean 'failures'"),
        ({}, "no setting was given"),
    ],
)
async def test_wrong_settings_are_refused_and_change_nothing(given: dict[str, Any], words: str) -> None:
    app, _, _ = bank()
    async with engine(app):
        with pytest.raises(InputError, match=words):
            await app.circuits.set("payments", by="ann", **given)
        with pytest.raises(NotFound, match="circuit 'payments' of tenant"):
            await app.circuits.get("payments")


@pytest.mark.parametrize("key", ["", "pay\x00ments", 7, "x" * 402])
async def test_a_wrong_key_is_refused(key: Any) -> None:
    app, _, _ = bank()
    async with engine(app):
        for act in (app.circuits.open, app.circuits.close, app.circuits.reset):
            with pytest.raises(InputError, match="is not a circuit"):
                await act(key, by="ann")
    with pytest.raises(InputError, match="status must be CLOSED or OPEN or HALF_OPEN"):
        CircuitFilter(status="AJAR")


async def test_no_user_can_sign_as_the_engine() -> None:
    app, _, _ = bank()
    async with engine(app):
        with pytest.raises(InputError, match="the name that the engine signs with"):
            await app.circuits.open("payments", by="redrive")


async def test_a_dry_run_names_the_circuits_that_are_not_closed() -> None:
    app, pay, _ = bank()
    async with engine(app) as e:
        run = await e.run(pay, -1)
        assert run.letter is not None
        assert (await app.dlq.replay(run.letter.id, dry_run=True)).open_circuits == ()
        await app.circuits.open("payments", by="ann")
        assert (await app.dlq.replay(run.letter.id, dry_run=True)).open_circuits == ("payments",)


async def test_the_testing_kit_lists_the_circuits() -> None:
    app, _, _ = bank()
    async with engine(app) as e:
        with pytest.raises(ConfigurationError, match=r"no step has a circuit 'paymnts'; there are: payments"):
            await e.circuit("paymnts", "open")
        with pytest.raises(ConfigurationError, match="'open', 'half_open' or 'closed', not 'ajar'"):
            await e.circuit("payments", "ajar")  # type: ignore[arg-type]


async def test_calls_are_counted_while_the_circuit_is_closed(on_store: OnStore) -> None:
    app = Redrive("sqlite:///:memory:")

    @app.step(retry=RetryPolicy(max_retries=0), circuit=Circuit("bank", failures=5, window="60s"))
    async def charge(good: bool) -> None:
        if not good:
            raise ConnectionError("no route")

    @app.workflow(dead_letter=False)
    async def pay(good: bool) -> None:
        await charge(good)

    async with on_store(app) as e:
        for good in (True, False, True, True, False):
            await e.run(pay, good, tenant="acme")
            await e.advance("1s")
        await e.advance("1s")
        view = e.store.tenant_view("acme")
        desk = app.runtime.desk(view, app.runtime.clock)
        one = await desk.circuits.get("bank", tenant="acme")
        assert (one.status, one.failures, one.successes) == ("CLOSED", 2, 3)
        assert one.succeeded_at is not None
        assert one.failed_at is not None
        assert one.succeeded_at < one.failed_at
        assert (await desk.circuits.list()).items == [one]
        await e.advance("2m")
        later = await desk.circuits.get("bank", tenant="acme")
        assert (later.failures, later.successes) == (0, 0), "they are outside the window now"
        assert (later.succeeded_at, later.failed_at) == (one.succeeded_at, one.failed_at)
        assert await e.store.tenant_view("other").circuit_stats([]) == []
