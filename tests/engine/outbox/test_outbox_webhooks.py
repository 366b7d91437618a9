"""Webhooks: signatures, guarded addresses, and verification as a receiver does it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import pytest
from http_kit import OK, answering, leads_to, serving

import redrive
from redrive import OutboxFilter, Redrive, RetryPolicy
from redrive.errors import ConfigurationError, RegistrationError
from redrive.http.client import HttpClient
from redrive.testing import engine

KEY, OLD = bytes(range(32)), bytes(range(1, 33))
SECRET, OLD_SECRET = (f"whsec_{base64.b64encode(key).decode()}" for key in (KEY, OLD))
SOON = RetryPolicy(max_retries=2, base_delay="1s", factor=1, jitter=0)


def answer(status: int, *headers: str) -> bytes:
    lines = "".join(f"{each}\r\n" for each in headers)
    return f"HTTP/1.1 {status} x\r\nContent-Length: 0\r\n{lines}\r\n".encode()


def hooked(url: str, **options: Any) -> tuple[Redrive, Any]:
    app = Redrive(allow_hosts=options.pop("allow", "127.0.0.1"))
    app.webhook("hook", url, "orders.*", **{"secret": SECRET, "retry": SOON, **options})

    @app.workflow
    async def pay(order: int) -> None:
        redrive.publish("orders.paid", {"order": order, "note": "zażółć 😀"}, key=str(order))

    return app, pay


async def delivery(app: Redrive) -> Any:
    (message,) = (await app.outbox.list()).items
    return message.deliveries[0]


def verified(secret: bytes, headers: dict[str, str], body: bytes) -> bool:
    """Verify a request as a receiver does, written from the specification and not from our code."""
    signed = b".".join([headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body])
    wanted = base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
    given = [each.split(",", 1) for each in headers["webhook-signature"].split(" ")]
    return any(version == "v1" and hmac.compare_digest(text, wanted) for version, text in given)


async def test_a_receiver_can_verify_and_read_a_message() -> None:
    async with serving(answering(OK)) as server:
        app, pay = hooked(server.url("/in?x=1"))
        async with engine(app) as e:
            report = await e.run(pay, 7, tenant="ac me", correlation_id="c-1")
            assert (await delivery(app)).status == "DELIVERED"
        (asked,) = server.asked
        assert asked.line == "POST /in?x=1 HTTP/1.1"
        assert verified(KEY, asked.headers, asked.body)
        assert not verified(OLD, asked.headers, asked.body)
        assert not verified(KEY, asked.headers, asked.body + b" ")
        assert abs(int(asked.headers["webhook-timestamp"]) - time.time()) < 60
        assert asked.headers["content-type"] == "application/cloudevents+json"
        event = json.loads(asked.body)
        assert event == {
            "specversion": "1.0",
            "id": asked.headers["webhook-id"],
            "source": "urn:redrive:ac%20me",
            "type": "orders.paid",
            "subject": report.described.id,
            "time": event["time"],
            "datacontenttype": "application/json",
            "correlationid": "c-1",
            "partitionkey": "7",
            "data": {"order": 7, "note": "zażółć 😀"},
        }


async def test_both_secrets_sign_while_a_secret_is_rotated() -> None:
    async with serving(answering(OK)) as server:
        app, pay = hooked(server.url(), secret=[SECRET, OLD_SECRET])
        async with engine(app) as e:
            await e.run(pay, 7)
        (asked,) = server.asked
        assert verified(KEY, asked.headers, asked.body)
        assert verified(OLD, asked.headers, asked.body)


@pytest.mark.parametrize("status", [301, 400, 404, 500, 503])
async def test_every_status_but_success_is_retried_and_then_dead(status: int) -> None:
    async with serving(answering(answer(status, "Location: http://127.0.0.1:1/"))) as server:
        app, pay = hooked(server.url("/secret-path"))
        async with engine(app) as e:
            await e.run(pay, 7)
            assert (await delivery(app)).status == "PENDING"
            await e.advance("5s")
            dead = await delivery(app)
            assert (dead.status, dead.attempt) == ("DEAD", 3)
            assert str(status) in dead.error
            assert "secret-path" not in dead.error
        assert [asked.headers["webhook-id"] for asked in server.asked] == [server.asked[0].headers["webhook-id"]] * 3


async def test_a_message_answered_with_410_is_dead_at_once() -> None:
    async with serving(answering(answer(410))) as server:
        app, pay = hooked(server.url())
        async with engine(app) as e:
            await e.run(pay, 7)
            assert (await delivery(app)).status == "DEAD"
        assert len(server.asked) == 1


async def test_retry_after_is_respected() -> None:
    async with serving(answering(answer(429, "Retry-After: 600"), OK)) as server:
        app, pay = hooked(server.url())
        async with engine(app) as e:
            await e.run(pay, 7)
            await e.advance("9m")
            assert len(server.asked) == 1
            await e.advance("2m")
            assert (await delivery(app)).status == "DELIVERED"


async def test_a_redirect_is_not_followed() -> None:
    async with serving(answering(OK)) as inside:
        async with serving(answering(answer(302, f"Location: {inside.url()}"))) as server:
            app, pay = hooked(server.url())
            async with engine(app) as e:
                await e.run(pay, 7)
                assert "Redirects are not followed" in (await delivery(app)).error
        assert inside.asked == []


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8080/",
        "http://10.0.0.1/",
        "http://169.254.169.254/latest/meta-data",
        "http://[::1]/",
        "http://0x7f.1/",
        "http://2130706433/",
        "file:///etc/passwd",
        "http://user:pass@example.org/",
        "gopher://example.org/",
    ],
)
def test_an_internal_address_is_refused_at_registration(url: str) -> None:
    with pytest.raises(RegistrationError, match="webhook 'hook'"):
        hooked(url, allow="")


async def test_a_host_name_with_an_internal_address_is_refused_when_it_is_called() -> None:
    async with serving(answering(OK)) as server:
        app, pay = hooked(f"http://rebinding.example:{server.port}/", allow="")
        sink: Any = app.registered_sinks["hook"].sink
        sink._client = HttpClient((), lookup=leads_to(["127.0.0.1"]))
        async with engine(app) as e:
            await e.run(pay, 7)
            assert (await delivery(app)).status == "PENDING"
            await e.advance("5s")
            assert (await delivery(app)).status == "DEAD"
        assert server.asked == []


async def test_an_endpoint_outage_delays_delivery() -> None:
    app, pay = hooked("http://127.0.0.1:1/", retry=RetryPolicy(max_retries=9, base_delay="1s"))
    async with engine(app) as e:
        await e.run(pay, 7)
        assert "127.0.0.1:1" in (await delivery(app)).error
        assert len((await app.outbox.list(OutboxFilter(status="PENDING", sink="hook"))).items) == 1


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "hunter2", "whsec_aHVudGVyMg==", "whsec_%%%", [], [SECRET, "no"], None]
)
def test_a_bad_secret_is_refused_without_being_shown(secret: Any) -> None:
    with pytest.raises((ConfigurationError, TypeError)) as refused:
        hooked("https://example.org/", secret=secret)
    assert "hunter2" not in str(refused.value)
    assert "aHVudGVyMg" not in str(refused.value)
