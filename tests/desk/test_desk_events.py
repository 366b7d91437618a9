"""Automatic effects of a failure: engine events for sinks, and notifications in the inbox."""

from __future__ import annotations

import pytest
from desk_kit import ONCE, failed, new_app, shop
from engines import OnStore

from redrive import Circuit, LetterFilter, Message
from redrive.duration import to_datetime
from redrive.errors import NotFound


async def test_a_subscribed_sink_gets_an_event_for_every_run_end_and_every_letter(on_store: OnStore) -> None:
    s = shop(new_app())
    heard: list[tuple[str, str, str | None]] = []
    everything: list[str] = []

    @s.app.subscribe("redrive.*")
    async def hear(message: Message) -> None:
        if message.topic != "redrive.notices":
            heard.append((message.topic, message.payload["status"], message.payload.get("code")))
            assert {"run_id", "workflow", "tenant", "queue", "at"} <= set(message.payload)

    @s.app.subscribe("*", name="mine")
    async def hear_mine(message: Message) -> None:
        everything.append(message.topic)

    async with on_store(s.app) as e:

        async def since(expected: list[tuple[str, str, str | None]]) -> None:
            await e.settle()
            assert sorted(heard) == sorted(expected)
            heard.clear()

        letter = await failed(e, s.order, "lamp", 40, tenant="acme")
        opened: list[tuple[str, str, str | None]] = [
            ("redrive.letter.opened", "OPEN", "non_retryable"),
            ("redrive.run.ended", "DLQ_PENDING", "non_retryable"),
        ]
        await since(opened)
        await s.app.dlq.replay(letter.id, by="ann")  # fails again: the same letter is reopened
        await since(opened)
        s.ledger.broken.clear()
        await s.app.dlq.replay(letter.id, by="ann")
        await since([("redrive.letter.closed", "RESOLVED", None), ("redrive.run.ended", "SUCCESS", None)])
        s.ledger.broken.add("charge")
        other = await failed(e, s.order, "desk", 50, tenant="acme")
        await since(opened)
        # A member of the tenant decides; on PostgreSQL with the tenant's database rights.
        desk = s.app.runtime.desk(e.store.tenant_view("acme"), s.app.runtime.clock)
        await desk.dlq.ignore(other.id, by="bob")
        await since([("redrive.letter.closed", "IGNORED", None)])
        assert all(each.payload["run_id"] == each.run_id for each in await e.published("redrive.run.*"))
        assert everything == []


async def test_no_engine_event_is_written_without_a_subscribed_sink(on_store: OnStore) -> None:
    s = shop(new_app())

    heard: list[str] = []

    @s.app.subscribe("*")
    async def hear(message: Message) -> None:
        heard.append(message.topic)

    async with on_store(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        await s.app.dlq.resolve(letter.id, by="ann")
        await e.settle()
        assert await e.published("redrive.run.*") == await e.published("redrive.letter.*") == heard == []


async def test_the_inbox_shows_dead_letters_and_opened_circuits_without_configuration(on_store: OnStore) -> None:
    app = new_app()

    @app.step(retry=ONCE, circuit=Circuit("bank", failures=2))
    async def charge() -> None:
        raise ConnectionError("no route")

    @app.workflow
    async def pay() -> None:
        await charge()

    async with on_store(app) as e:
        for _ in range(2):
            await e.run(pay, tenant="acme")
        await e.settle()
        await e.advance("2s")
        inbox = (await app.notifications.list(reader="ann", tenant="acme")).items
        assert sorted(item.event for item in inbox) == ["circuit_opened", "dead_letter"]
        assert (await app.notifications.list(reader="ann", tenant="other")).items == []
        assert {sink.name for sink in await app.sinks.list()} == {"redrive.notices"}, "mail and chat are opt-in"
        await app.notifications.set_rule({"on": []}, by="ann")
        await e.advance("2h")
        before = len((await app.notifications.list(reader="ann")).items)
        await e.run(pay, tenant="third")
        await e.advance("2h")
        assert len((await app.notifications.list(reader="ann")).items) == before, "a stored rule mutes the default"


async def test_a_manual_escalation_is_shown_found_notified_and_reverted(on_store: OnStore) -> None:
    s = shop(new_app())
    async with on_store(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40, tenant="acme")
        await failed(e, s.order, "desk", 50, tenant="acme")
        desk = s.app.runtime.desk(e.store.tenant_view("acme"), s.app.runtime.clock)
        shown = await desk.dlq.escalate(letter.id, to="ADMIN", by="ann", reason="the customer calls")
        assert (shown.escalated_to, shown.status) == ("ADMIN", "OPEN")
        assert shown.escalated_at == to_datetime(e.clock.now())
        for wanted, count in (("*", 1), ("ADMIN", 1), ("kim", 0)):
            assert len((await desk.dlq.list(LetterFilter(escalated=wanted))).items) == count
        await e.settle()
        (told,) = [each for each in (await desk.notifications.list(reader="kim")).items if each.event == "escalated"]
        assert "escalated to ADMIN" in told.title
        await desk.dlq.escalate(letter.id, to=None, by="ann")
        assert (await desk.dlq.list(LetterFilter(escalated="*"))).items == []
        history = [each for each in (await desk.dlq.get(letter.id)).history if each.event == "dlq.escalated"]
        assert [(each.by, each.before, each.after) for each in history] == [
            ("ann", None, "ADMIN"), ("ann", "ADMIN", None),
        ]  # fmt: skip
        assert history[0].reason == "the customer calls"
        with pytest.raises(NotFound):
            await s.app.runtime.desk(e.store.tenant_view("other"), s.app.runtime.clock).dlq.escalate(letter.id, to="x")


async def test_a_letter_that_is_open_for_too_long_is_escalated_once(on_store: OnStore) -> None:
    s = shop(new_app(escalate_after="4h", escalate_to="#on-call"))
    sent: list[str] = []

    @s.app.subscribe("redrive.notify.webhook", name="spy")
    async def spy(message: Message) -> None:
        sent.append(message.payload["target"]["to"])

    async with on_store(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        closed = await failed(e, s.order, "desk", 50)
        await s.app.dlq.resolve(closed.id, by="ann")
        await e.advance("3h")
        assert (await s.app.dlq.get(letter.id)).escalated_to is None
        await e.advance("2h")
        shown = await s.app.dlq.get(letter.id)
        assert shown.escalated_to == "#on-call"
        assert (await s.app.dlq.get(closed.id)).escalated_to is None
        (line,) = [each for each in shown.history if each.event == "dlq.escalated"]
        assert (line.by, line.reason) == ("redrive", "open for longer than 4 h")
        await s.app.dlq.escalate(letter.id, to=None, by="ann")
        await e.advance("1d")
        assert sent == ["on-call"], "the channel was notified once"
