"""Automatic effects of a failure: engine events for sinks, and notifications in the inbox."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import empty_schema
import pytest
from desk_kit import ONCE, failed, new_app, shop
from engines import KINDS, OnStore

from redrive import Circuit, LetterFilter, Message, Redrive, RunFailed
from redrive.desk.models import Caller
from redrive.errors import InputError, NotFound
from redrive.time_values import to_datetime


async def test_a_subscribed_sink_gets_an_event_for_every_run_end_and_every_letter(on_store: OnStore) -> None:
    s = shop(new_app())
    heard: list[tuple[str, str, str | None]] = []
    everything: list[str] = []

    @s.app.subscribe("redrive.*")
    async def hear(message: Message) -> None:
        heard.append((message.topic, message.payload.get("status", ""), message.payload.get("code")))
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


async def test_each_tenant_has_its_own_rule_for_escalation(on_store: OnStore) -> None:
    s = shop(new_app(escalate_after="8h"))
    s.app.channel("ops", email="ops@example.com")
    async with on_store(s.app) as e:
        set_rule = s.app.notifications.set_rule
        await set_rule({"escalate": {"after": "2h", "to": "kim"}}, tenant="acme", by="ann")
        await set_rule({"escalate": {"after": 0}}, tenant="quiet", by="ann")
        await set_rule({"escalate": {"after": "4h"}}, tenant="acme", workflow="other", by="ann")
        for tenant in ("acme", "quiet", "zebra"):
            await failed(e, s.order, "lamp", 40, tenant=tenant)

        async def escalated() -> dict[str, str | None]:
            return {each.tenant: each.escalated_to for each in (await s.app.dlq.list()).items}

        await e.advance("1h")
        assert await escalated() == {"acme": None, "quiet": None, "zebra": None}
        await e.advance("2h")
        assert await escalated() == {"acme": "kim", "quiet": None, "zebra": None}
        await e.advance("6h")
        assert await escalated() == {"acme": "kim", "quiet": None, "zebra": "ADMIN"}
        # A rule about escalation alone leaves notifications as they were.
        heard = (await s.app.notifications.list(reader="kim", tenant="acme")).items
        assert {each.event for each in heard} == {"dead_letter", "escalated"}
        stored = {each.tenant: each for each in await s.app.notifications.rules() if each.workflow is None}
        assert (stored["acme"].escalate_after, stored["acme"].escalate_to) == (7200.0, "kim")
        # A later rule of the same place replaces it.
        await set_rule({"escalate": {"after": "30m", "to": "#ops"}}, by="ann")
        await s.app.notifications.delete_rule(tenant="quiet", by="ann")
        await e.advance("1h")
        assert (await escalated())["quiet"] == "#ops"


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        ({"escalate": "4h"}, "escalate of the rule is '4h'; give an object"),
        ({"escalate": {"to": "ADMIN"}}, "escalate of the rule is"),
        ({"escalate": {"after": "soon"}}, "after of escalate of the rule is 'soon'"),
        ({"escalate": {"after": "4h", "to": "#"}}, "give a role, a user, or # and the name of a channel"),
    ],
)
async def test_a_wrong_escalation_is_refused(rule: dict[str, Any], what: str) -> None:
    app = new_app()
    async with app.client():
        with pytest.raises(InputError, match=re.escape(what)):
            await app.notifications.set_rule(rule, by="ann")


async def test_over_http_letters_are_escalated_to_channels_of_the_tenant_only(on_store: OnStore) -> None:
    s = shop(new_app(escalate_to="#all-hands"), notify={"channels": ["shop"]})
    for name in ("shop", "ops", "all-hands", "theirs"):
        s.app.channel(name, email=f"{name}@example.com")
    async with on_store(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40, tenant="acme")
        view, runtime = e.store.tenant_view("acme"), s.app.runtime
        caller = runtime.desk(view, runtime.clock, Caller("token:staff"))
        await s.app.notifications.set_rule({"channels": ["ops"]}, tenant="acme", workflow="another", by="ann")
        await s.app.notifications.set_rule({"channels": ["theirs"]}, tenant="globex", by="ann")
        for to in ("#shop", "#ops", "#all-hands", "ADMIN", "kim"):
            assert (await caller.dlq.escalate(letter.id, to=to, by="sam")).escalated_to == to
        owner = runtime.desk(e.store, runtime.clock, Caller("token:owner"))
        for desk, to in ((caller, "#theirs"), (caller, "#unheard-of"), (owner, "#theirs")):
            with pytest.raises(InputError, match=f"no notification rule of tenant 'acme' names the channel '{to}'"):
                await desk.dlq.escalate(letter.id, to=to, by="sam")
        assert (await s.app.dlq.escalate(letter.id, to="#theirs", by="root")).escalated_to == "#theirs"
        with pytest.raises(InputError, match="no channel is called 'unheard-of': check the name, or register it"):
            await s.app.dlq.escalate(letter.id, to="#unheard-of", by="root")
        assert (await s.app.dlq.get(letter.id)).escalated_to == "#theirs"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_process_without_code_knows_the_channels_that_workers_registered(kind: str, tmp_path: Path) -> None:
    if kind == "sqlite":
        await _check_channels(f"sqlite:///{tmp_path}/shop.db")
    else:
        async with empty_schema.ready(kind) as url:
            await _check_channels(url)


async def _check_channels(url: str) -> None:
    app = Redrive(url)
    app.channel("ops", email="ops@example.com")

    @app.workflow
    async def order() -> None:
        raise ValueError("no stock")

    async with app:
        handle = await order.start()
        with pytest.raises(RunFailed):
            await handle.result()
    bare, letter = Redrive(url), f"dl-{handle.id}"
    async with bare.client():
        assert (await bare.dlq.escalate(letter, to="#ops", by="root")).escalated_to == "#ops"
        unknown = pytest.raises(InputError, match="no channel is called 'opps'")
        with unknown:
            await bare.dlq.escalate(letter, to="#opps", by="root")
        for rule in ({"channels": ["opps"]}, {"escalate": {"after": "4h", "to": "#opps"}}):
            with unknown:
                await bare.notifications.set_rule(rule, by="ann")
        assert (await bare.notifications.set_rule({"channels": ["ops"]}, by="ann")).targets == ("channel ops",)
        assert len(await bare.notifications.rules()) == 1


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
