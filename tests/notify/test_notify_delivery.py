"""Delivery of notifications in virtual time, with a real SMTP server and real HTTP servers."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from typing import Any

import pytest
from cases import each
from http_kit import OK, Server, answering, serving
from notify_kit import OPS, Postbox, failing, verified

from redrive import Circuit, Notification, Notify, OutboxFilter, Redrive, RetryPolicy
from redrive.app.notification_chore import NotificationChore
from redrive.core.engine_messages import NotificationFacts, encode_facts
from redrive.core.notification_rules import NotifyRule, NotifyTarget
from redrive.core.redact import Redactor
from redrive.core.transitions import AuditWrite
from redrive.errors import ConfigurationError, InputError, NotFound, RegistrationError
from redrive.http.client import BadStatus, HttpResponse
from redrive.sinks import Message, SinkDefinition
from redrive.store.notifications import NewNotice, RuleRow
from redrive.testing import Engine, engine

KEY = bytes(range(32))
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
BASE = "https://redrive.example.org"
TWICE = RetryPolicy(max_retries=1, base_delay="1m", jitter=0)
DOWN = b"HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n"


def subjects(box: Postbox, to: str = OPS) -> list[str]:
    return [str(mail["Subject"]) for mail in box.to(to)]


def texts(server: Server) -> list[Any]:
    return [json.loads(asked.body) for asked in server.asked]


async def test_many_failures_of_one_cause_are_two_mails_until_a_quiet_hour_has_passed(box: Postbox) -> None:
    app = Redrive(smtp_url=box.url)
    fulfil = failing(app, notify={"email": OPS})
    async with engine(app) as e:
        for order in range(30):
            await fulfil.start(f"A-{order}", why=f"order {order} took too long")
        await e.settle()
        at_once = len(box.mails)
        assert at_once <= 2, "the first, and at most one more for the failures that came while it was sent"
        await e.advance("59m")
        assert len(box.mails) == at_once
        await e.advance("2m")
        counts = [item.count for item in (await app.notifications.list()).items]
        assert sum(counts) == 30
        assert len(counts) == len(box.mails) == 2
        assert subjects(box)[-1].endswith("times with the same cause")
        assert f"This happened {counts[0]} times since" in box.to(OPS)[-1].get_content()
        await e.run(fulfil, "another", why="the card is unknown")
        await e.settle()
        assert len(box.mails) == 3, "another cause is notified at once"
        await e.advance("2h")
        await e.run(fulfil, "A-99", why="order 99 took too long")
        await e.settle()
        assert len(box.mails) == 4, "after a quiet hour the first failure is notified at once again"


async def test_a_muted_cause_is_not_notified_until_it_grows_or_the_mute_expires(box: Postbox) -> None:
    app = Redrive(smtp_url=box.url)
    fulfil = failing(app, notify={"email": OPS})
    async with engine(app) as e:
        await e.run(fulfil, "A-1", why="the bank is down")
        await e.settle()
        (group,) = (await app.dlq.groups()).items
        await app.dlq.mute_group(group.fingerprint, until=e.now + timedelta(hours=5), by="ann")
        await e.advance("2h")
        await e.run(fulfil, "A-2", why="the bank is down")
        await e.settle()
        assert len(box.mails) == 1
        await app.dlq.mute_group(group.fingerprint, by="ann")
        await e.advance("2h")
        await e.run(fulfil, "A-3", why="the bank is down")
        await e.settle()
        assert len(box.mails) == 2, "with this failure the cause has grown"
        await app.dlq.mute_group(group.fingerprint, until=e.now + timedelta(hours=1), by="ann")
        await e.advance("2h")
        await e.run(fulfil, "A-4", why="the bank is down")
        await e.settle()
        assert len(box.mails) == 3


async def test_each_event_is_sent_to_its_subscribers_with_what_happens_next(box: Postbox) -> None:
    app = Redrive(smtp_url=box.url, base_url=BASE)
    events = ["first_failure", "retries_exhausted", "dead_letter"]
    fulfil = failing(app, retry=TWICE, notify={"email": OPS, "on": events, "app": False})
    async with engine(app) as e:
        handle = await fulfil.start("A-17", correlation_id="c-9")
        await e.settle()
        (first,) = box.to(OPS)
        assert first["Subject"] == "[redrive] fulfil failed for the first time at step charge"
        again = (e.now + timedelta(minutes=1)).strftime("attempt 2 will follow (%Y-%m-%dT%H:%M:%SZ)")
        assert f"Next: {again}" in first.get_content()
        assert f"Link: {BASE}/app/runs/{handle.id}" in first.get_content()
        await e.advance("2m")
        assert sorted(subjects(box)[1:]) == [
            "[redrive] fulfil failed at step charge",
            "[redrive] fulfil has no retries left at step charge",
        ]
        last = next(mail for mail in box.to(OPS) if str(mail["Subject"]).endswith("failed at step charge"))
        assert f"Link: {BASE}/app/admin/dlq/dl-{handle.id}" in last.get_content()
        assert "the failure needs a decision: retry it" in last.get_content()
        assert "Correlation id: c-9" in last.get_content()
        assert (await app.notifications.list()).items == [], "the rule does not include the inbox"


async def test_successes_and_unsubscribed_events_are_not_notified(box: Postbox) -> None:
    app = Redrive(smtp_url=box.url)
    failing(app, notify={"email": OPS, "on": ["first_failure"]})

    @app.workflow(notify={"on": []})
    async def quiet() -> None:
        raise ValueError("no")

    @app.workflow(notify={"email": OPS})
    async def good() -> None: ...

    async with engine(app) as e:
        await e.run(quiet)
        await e.run(good)
        assert await e.published("redrive.*") == []


async def test_secrets_are_hidden_on_every_channel(box: Postbox) -> None:
    async with serving(answering(OK)) as server:
        app = Redrive(smtp_url=box.url, allow_hosts="127.0.0.1", redact="tax_id")
        hook = {"url": server.url("/in"), "secret": SECRET}
        fulfil = failing(app, notify={"email": OPS, "slack": server.url("/slack"), "webhook": hook})
        async with engine(app) as e:
            await e.run(fulfil, "A", why="password=hunter2 tax_id=77 card 4111 1111 1111 1111")
            await e.settle()
            (item,) = (await app.notifications.list()).items
            seen = [item.text, box.to(OPS)[0].get_content(), *(asked.body.decode() for asked in server.asked)]
        assert len(seen) == 4
        for text in seen:
            assert "TimeoutError" in text
            for secret in ("hunter2", "tax_id=77", "4111"):
                assert secret not in text


async def test_the_first_of_the_events_is_never_later_than_the_newest() -> None:
    """A notice is stored some time after its event, and both times are shown."""
    app = Redrive()
    failing(app, notify={"app": True})
    async with engine(app) as e:
        store = app.runtime.store
        facts = NotificationFacts(event="dead_letter", tenant="default", workflow="pay", run_id="r", at=store.now())
        notice = encode_facts(facts, NotifyRule(on=(), targets=(), app=True))
        await e.advance("5s")
        await store.notifications.add([NewNotice(public_id="n", tenant="default", lane="pay", notice=notice)])
        await e.settle()
        (item,) = (await app.notifications.list()).items
    assert item.notification.first_at == item.notification.at


async def test_a_process_without_the_code_leaves_channels_to_those_that_have_it(box: Postbox) -> None:
    """A server that does the chores has no workflow code; a worker beside it has the channels."""
    app, server = Redrive(smtp_url=box.url), Redrive()
    app.channel("ops", email=[OPS])
    failing(app)

    async def begin(sinks: list[SinkDefinition]) -> None: ...

    async with engine(app) as e:
        store, runtime = app.runtime.store, app.runtime
        chore = NotificationChore(server, store, runtime.clock, Redactor(), begin, lambda: None)
        facts = NotificationFacts(event="dead_letter", tenant="default", workflow="pay", run_id="r", at=store.now())
        for channel in ("ops", "unheard of"):
            notice = encode_facts(
                facts, NotifyRule(on=(), targets=(NotifyTarget(kind="channel", to=channel),), app=True)
            )
            await store.notifications.add([NewNotice(public_id=channel, tenant="default", lane=channel, notice=notice)])
        assert await chore.run_once() == 0
        assert await runtime.notification_chore.run_once() == 1
        await e.settle()
        assert len(box.to(OPS)) == 1
        message = Message(
            id="m",
            topic="redrive.notify",
            text='{"channel": "ops"}',
            key=None,
            tenant="default",
            committed_at=store.now(),
            run_id="r",
            correlation_id="r",
        )
        with pytest.raises(ConfigurationError, match="'ops' is not registered in this process"):
            await chore.sinks[0].sink.deliver(message)
        await e.advance("2m")
        await e.settle()
        (failed,) = (await app.outbox.list(OutboxFilter(status="PENDING"))).items
        assert "no channel is called 'unheard of'" in (failed.deliveries[0].error or ""), "it is not kept back for good"


async def test_chats_and_webhooks_get_their_own_formats(box: Postbox) -> None:
    async with serving(answering(OK)) as slack, serving(answering(OK)) as teams, serving(answering(OK)) as own:
        app = Redrive(allow_hosts="127.0.0.1", base_url=BASE)
        hook = {"url": own.url("/in"), "secret": SECRET}
        fulfil = failing(app, notify={"slack": slack.url("/s"), "teams": [teams.url("/t")], "webhook": hook})
        async with engine(app) as e:
            why = "<!channel> & all [pay](https://evil.example) **now**\n- 1_2\n1. x"
            run = await e.run(fulfil, "A", why=why)
            await e.settle()
            link = f"{BASE}/app/admin/dlq/dl-{run.id}"
            (said,) = texts(slack)
            assert "*[redrive] fulfil failed at step charge*" in said["text"]
            assert "&lt;!channel&gt; &amp; all" in said["text"], "an error message must not mention a channel"
            assert f"<{link}|Open in Redrive>" in said["text"]
            (card,) = (each["attachments"][0]["content"] for each in texts(teams))
            assert card["actions"][0]["url"] == link
            plain = card["body"][1]["text"]
            assert "TimeoutError" in plain
            assert r"\[pay\](https://evil.example) \*\*now\*\*" in plain, "no link, nothing bold"
            assert "\n\\- 1\\_2\n\n1\\. x" in plain, "and no list"
            assert card["body"][0]["text"].startswith(r"\[redrive\] fulfil")
            (asked,) = own.asked
            assert verified(KEY, asked.headers, asked.body)
            event = json.loads(asked.body)
            assert (event["type"], event["subject"]) == ("redrive.dead_letter", run.id)
            assert event["data"]["url"] == link
            options = (await e.fetch("SELECT options FROM inputs"))[0]["options"]
            assert "127.0.0.1" not in options, "runs carry no URL"
            messages = await e.published("redrive.*")
            assert not any("127.0.0.1" in each.text or SECRET in each.text for each in messages)


async def test_a_channel_that_is_down_loses_nothing_and_delays_no_other(box: Postbox) -> None:
    box.refuses = True
    async with serving(answering(DOWN, DOWN, OK)) as slack:
        app = Redrive(smtp_url=box.url, allow_hosts="127.0.0.1")
        fulfil = failing(app, notify={"email": [OPS, "b@example.org"], "slack": slack.url("/")})
        async with engine(app) as e:
            await e.run(fulfil, "A")
            await e.settle()
            assert len((await app.notifications.list()).items) == 1
            await e.advance("10m")
            assert len(slack.asked) == 3, "until it was accepted, and no more"
            assert box.mails == []
            box.refuses = False
            await e.advance("1h")
            assert (len(box.to(OPS)), len(box.to("b@example.org"))) == (1, 1)
            ids = {str(mail["Message-ID"]) for _, mail in box.mails}
            assert len(ids) == 2
            box.refuses = True
            await e.run(fulfil, "B", why="something else")
            await e.advance("12h")
            dead = (await app.outbox.list(OutboxFilter(status="DEAD"))).items
            assert len(dead) == 2, "own dead letters"
            box.refuses = False
            for message in dead:
                await app.outbox.retry(message.id, by="ann")
            await e.settle()
            assert len(box.to(OPS)) == 2


async def test_an_opened_circuit_is_notified_once_an_hour_however_often_it_opens(box: Postbox) -> None:
    app = Redrive(smtp_url=box.url, base_url=BASE)

    @app.step(circuit=Circuit("bank", failures=1, open_for="1m", on_open="fail"), retry=RetryPolicy(max_retries=0))
    async def pay() -> None:
        raise ConnectionError("refused")

    @app.workflow(notify={"email": OPS, "on": ["circuit_opened"]})
    async def buy() -> None:
        await pay()

    async with engine(app) as e:
        await e.run(buy)
        await e.advance("1s")
        (mail,) = box.to(OPS)
        assert mail["Subject"] == "[redrive] circuit bank is open"
        assert f"Link: {BASE}/app/circuits/one?key=bank" in mail.get_content()
        await e.restart()
        for _ in range(3):
            await e.advance("2m")
            await e.run(buy)
        await e.advance("30m")
        assert len(box.mails) == 1
        await e.advance("1h")
        assert subjects(box)[1:] == ["[redrive] circuit bank is open, 3 times"]


async def test_stored_rules_take_precedence_over_the_code_and_work_without_it(box: Postbox) -> None:
    app = Redrive(smtp_url=box.url)
    fulfil = failing(app)
    async with engine(app) as e:
        await e.run(fulfil, "A", tenant="acme")
        await e.settle()
        await app.notifications.set_rule({"email": "acme@example.org"}, tenant="acme", by="ann")
        await app.notifications.set_rule({"email": "all@example.org"}, workflow="fulfil", by="ann")
        await app.notifications.set_rule({"on": []}, workflow="fulfil", tenant="loud", by="ann")
        await e.advance("2s")
        for tenant in ("acme", "other", "loud"):
            await e.run(fulfil, "A", tenant=tenant)
        await e.settle()
        assert sorted(to for to, _ in box.mails) == ["all@example.org"] * 2, "the workflow before the tenant"
        assert await app.notifications.delete_rule(workflow="fulfil", by="ann")
        await e.advance("2s")
        await e.run(fulfil, "A", why="another", tenant="acme")
        await e.settle()
        assert box.mails[-1][0] == "acme@example.org"
        assert [rule.targets for rule in await app.notifications.rules()] == [("email acme@example.org",), ()]
        lines = [line.event for line in (await app.audit.list()).items if line.event.startswith("notify")]
        assert lines == ["notify.deleted", *["notify.set"] * 3]


async def test_a_stored_url_must_be_public_whatever_hosts_the_operator_allows(box: Postbox) -> None:
    async with serving(answering(OK)) as server:
        app = Redrive(allow_hosts="127.0.0.1")
        app.channel("ops", slack=server.url("/of-the-code"))
        fulfil = failing(app)
        async with engine(app) as e:
            with pytest.raises(InputError, match=r"is not public.*a stored rule names a channel"):
                await app.notifications.set_rule({"slack": server.url("/secret")}, by="ann")
            with pytest.raises(InputError, match="the events are first_failure"):
                await app.notifications.set_rule({"on": ["sunday"]}, by="ann")
            await _stored(e, {"slack": server.url("/secret")})
            await app.notifications.set_rule({"channels": "ops"}, workflow="fulfil", by="ann")
            await e.advance("2s")
            await e.run(fulfil, "A")
            await app.notifications.delete_rule(workflow="fulfil", by="ann")
            await e.advance("2s")
            await e.run(fulfil, "B", why="another cause")
            await e.settle()
            assert [asked.line for asked in server.asked] == ["POST /of-the-code HTTP/1.1"]
            sent = (await app.outbox.list(OutboxFilter(topic="redrive.notify.slack"))).items
            assert ["not public" in str(each.deliveries[0].error) for each in sent] == [True, False]


async def _stored(e: Engine, rule: dict[str, Any]) -> None:
    """Store a rule as an older release may have stored it, with fewer checks."""
    written = json.dumps(NotifyRule.read(rule, "the rule").to_json())
    row = RuleRow(tenant="", workflow="", rule=written, updated_at=0, updated_by="ann")
    line = AuditWrite(event="notify.set", tenant="", by="ann", subject="*", token="t-1")
    await e.store.notifications.set_rule(row, line)


async def test_the_urls_of_stored_rules_are_never_shown(box: Postbox) -> None:
    app = Redrive()
    fulfil = failing(app)
    secret = "https://127.0.0.1/services/T0/B0/topsecret"
    async with engine(app) as e:
        rule = {"slack": secret, "teams": secret, "webhook": {"url": secret, "secret": SECRET}}
        await _stored(e, rule)
        (shown,) = await app.notifications.rules()
        await e.advance("2s")
        await e.run(fulfil, "A")
        await e.settle()
        page = await app.outbox.list()
        assert {each.topic for each in page.items} == {"redrive.notices", *(f"redrive.notify.{kind}" for kind in rule)}
        each = [await app.outbox.get(item.id) for item in page.items]
        assert "topsecret" not in repr((shown, page, each, (await app.audit.list()).items))
        assert SECRET not in repr((shown, page, each, (await app.audit.list()).items))
        slack = next(item for item in each if item.topic == "redrive.notify.slack")
        assert slack.payload["target"] == shown.targets[0], "as the rules are shown"
        assert slack.payload["content"]["facts"]["workflow"] == "fulfil"


async def test_the_answer_of_the_host_of_a_stored_url_is_not_shown() -> None:
    answer = HttpResponse(status_code=403, reason="Topsecret", body=b"topsecret")
    with pytest.raises(BadStatus, match=r"^it answered 403$"):
        answer.raise_for_status("it", quoted=False)
    moved = HttpResponse(status_code=302, reason="Topsecret", headers={"location": "http://topsecret/"})
    with pytest.raises(BadStatus, match=r"^it answered 302\. Redirects are not followed"):
        moved.raise_for_status("it", quoted=False)


async def test_texts_can_be_replaced_and_a_failing_text_falls_back_to_the_default(box: Postbox) -> None:
    app = Redrive(smtp_url=box.url)
    fulfil = failing(app, retry=TWICE, notify={"email": OPS, "on": ["first_failure", "dead_letter"]})
    app.notification("dead_letter", subject="{{workflow}} needs you", text="{{error}} ({{count}})")
    seen: list[Notification] = []

    @app.notification("first_failure")
    def own(notification: Notification) -> tuple[str, str]:
        seen.append(notification)
        raise KeyError("a mistake")

    async with engine(app) as e:
        await e.run(fulfil, "A")
        await e.settle()
        assert subjects(box) == ["[redrive] fulfil failed for the first time at step charge", "fulfil needs you"]
        assert box.to(OPS)[1].get_content() == "TimeoutError: the bank is silent (1)\r\n"
        assert seen[0].step == "charge"


async def test_the_notify_action_of_a_saga_uses_a_channel(box: Postbox) -> None:
    app = Redrive(smtp_url=box.url)
    app.channel("ops", email=[OPS])

    @app.step(compensate=Notify("ops", "Order {{input.order}} was rolled back"))
    async def reserve(order: str) -> str:
        return order

    @app.step(compensate=Notify("elsewhere", "for a sink of one's own"))
    async def book(order: str) -> str:
        return order

    @app.workflow(rollback=True)
    async def fulfil(order: str) -> None:
        await reserve(order)
        await book(order)
        raise ValueError("no stock")

    async with engine(app) as e:
        await e.run(fulfil, "A-17")
        await e.settle()
        (mail,) = box.to(OPS)
        assert mail["Subject"] == "reserve was undone"
        assert mail.get_content().startswith("Order A-17 was rolled back\r\n")


async def test_each_user_marks_inbox_items_as_read_separately(box: Postbox) -> None:
    app = Redrive()
    fulfil = failing(app, notify={})
    async with engine(app) as e:
        for why in ("one", "two"):
            await e.run(fulfil, "A", why=why)
        await e.settle()
        inbox = app.notifications
        newest, _ = (await inbox.list(reader="ann")).items
        assert (newest.title, newest.read_at) == ("[redrive] fulfil failed at step charge", None)
        assert await inbox.mark_read([newest.id], reader="ann") == 1
        assert (await inbox.get(newest.id, reader="ann")).read_at is not None
        assert (await inbox.unread(reader="ann"), await inbox.unread(reader="bob")) == (1, 2)
        assert len((await inbox.list(reader="ann", unread=True)).items) == 1
        with pytest.raises(NotFound, match="does not exist"):
            await inbox.get("ntf-0")


BAD = [
    ({"mail": OPS}, "notify of workflow 'w' has no field 'mail'; its fields are on, email"),
    ({"email": "ops"}, "email of notify of workflow 'w' is 'ops'; give a mail address"),
    ({"email": "a@b\r\nBcc: c@d"}, "give a mail address"),
    ({"on": ["monday"]}, "on of notify of workflow 'w' has 'monday'; the events are first_failure"),
    ({"app": "yes"}, "app of notify of workflow 'w' is 'yes'; give True or False"),
    ({"slack": "hooks.slack.com"}, "slack of notify of workflow 'w' is not a URL"),
    ({"slack": "http://10.0.0.1/x"}, "is not public"),
    ({"webhook": "https://example.org"}, 'takes {"url": "https://...", "secret": "whsec_..."}'),
    ({"webhook": {"url": "https://example.org/", "secret": "whsec_x"}}, "base64 of 24 to 64 bytes"),
    ([OPS], "give an object"),
]


@each("rule, why", BAD)
def test_a_rule_that_makes_no_sense_is_refused_at_registration(rule: Any, why: str) -> None:
    app = Redrive()
    with pytest.raises(RegistrationError) as refused:

        @app.workflow(notify=rule)
        async def w() -> None: ...

    assert why in str(refused.value)


def test_channels_and_texts_are_checked_at_registration() -> None:
    app = Redrive()
    app.channel("ops", email=OPS)
    for name, places, why in (
        ("ops", {"email": OPS}, "two channels are called 'ops'"),
        ("none", {}, "has no destination"),
        ("", {"email": OPS}, "cannot name a channel"),
    ):
        with pytest.raises(RegistrationError, match=why):
            app.channel(name, **places)
    with pytest.raises(RegistrationError, match="is not an event"):
        app.notification("monday", text="x")
    with pytest.raises(ConfigurationError, match="'password' does not exist"):
        app.notification("dead_letter", text="{{password}}")
