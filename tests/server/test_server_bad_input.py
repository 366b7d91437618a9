"""Invalid requests: the answer is a problem document that repeats nothing of the request."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from server_kit import World

from redrive.errors import InputError
from redrive.reasons import Reason
from redrive.remote.client import Address, Client

JSON = {"content-type": "application/json"}
MARK = "p4yl0ad"


def deep(levels: int, open: str = "[", close: str = "]") -> bytes:
    return (open * levels + close * levels).encode()


BODIES: dict[str, tuple[bytes, dict[str, str], int]] = {
    "no JSON": (b"{nope " + MARK.encode(), JSON, 400),
    "half a document": (b'{"workflow": "' + MARK.encode(), JSON, 400),
    "nothing": (b"", JSON, 422),
    "a text": (json.dumps(MARK).encode(), JSON, 422),
    "a list": (b"[]", JSON, 422),
    "a number that is none": (b'{"workflow": NaN}', JSON, 422),
    "not UTF-8": (b'{"workflow": "\xff\xfe"}', JSON, 400),
    "lists in lists": (b'{"workflow": "remind", "input": {"to": ' + deep(5000) + b"}}", JSON, 422),
    "objects in objects": (b'{"input":' * 100 + b"1" + b"}" * 100, JSON, 422),
    "a million brackets": (b"[" * 1_000_000, JSON, 422),
    "brackets in a text": (json.dumps({"workflow": "[{" * 500}).encode(), JSON, 422),
    "a huge number": (b'{"workflow": "remind", "priority": 1' + b"0" * 5000 + b"}", JSON, 422),
    "an unknown field": (json.dumps({"workflow": "remind", MARK * 9: MARK}).encode(), JSON, 422),
    "a wrong type": (json.dumps({"workflow": {"x": MARK}}).encode(), JSON, 422),
    "half a character": (b'{"workflow": "remind", "input": {"to": "\\ud800"}}', JSON, 422),
    "a NUL": (b'{"workflow": "re\\u0000mind"}', JSON, 422),
    "a wrong duration": (b'{"workflow": "remind", "delay": "soon"}', JSON, 422),
    "a wrong policy": (b'{"workflow": "remind", "retry": {"max_retries": "many"}}', JSON, 422),
    "a form": (b"workflow=remind", {"content-type": "application/x-www-form-urlencoded"}, 415),
    "plain text": (b'{"workflow": "remind"}', {"content-type": "text/plain"}, 415),
    "no type": (b'{"workflow": "remind"}', {"content-type": ""}, 415),
    "two types": (b'{"workflow": "remind"}', {"content-type": "application/json, text/html"}, 415),
    "parts": (b"--x--", {"content-type": "multipart/form-data; boundary=x"}, 415),
}


@pytest.fixture
def one_world(rough_worlds: Callable[[str], World]) -> World:
    """Return a server on SQLite, for requests that are refused before the store is asked."""
    return rough_worlds("sqlite")


@pytest.mark.parametrize("kind", BODIES)
def test_an_invalid_body_is_answered_with_a_problem(one_world: World, kind: str) -> None:
    body, headers, expected = BODIES[kind]
    client = one_world.client("acme", "STAFF")
    before = client.get("/runs?workflow=remind&limit=500").json()["items"]
    response = client.post("/runs", content=body, headers=headers)
    assert response.status_code == expected, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert MARK not in response.text
    assert "Traceback" not in response.text
    assert len(client.get("/runs?workflow=remind&limit=500").json()["items"]) == len(before)


def test_an_invalid_name_or_number_of_an_event_is_refused(one_world: World) -> None:
    client = one_world.client("acme", "STAFF")
    run = client.post("/runs", json={"workflow": "remind", "input": {"to": "ann"}, "delay": "1h"}).json()["id"]
    for name in ("%20", "%ff"):
        response = client.post(f"/runs/{run}/events/{name}", json=1)
        assert response.status_code == 422, response.text
    for after in ("-1", "9" * 30, "x"):
        response = client.get(f"/runs/{run}/events?after={after}")
        assert response.status_code == 422, response.text
        assert "after" in response.text
    assert client.get(f"/runs/{run}/events").json() == []


def test_an_invalid_input_is_not_repeated_in_the_answer(world: World) -> None:
    client = world.client("acme", "STAFF")
    for wrong in ({"order": {"card": MARK}}, {"order": "A", "amount": MARK}, {"order": "A", "more": MARK}):
        response = client.post("/runs", json={"workflow": "fulfil", "input": wrong})
        assert response.status_code == 422, response.text
        assert MARK not in response.text


def test_starting_a_run_takes_policies_and_limits_and_refuses_invalid_ones(world: World) -> None:
    client = world.client("acme", "STAFF")
    options = {"timeout": "2h", "step_timeout": 30, "heartbeat_timeout": "20s", "retry": {"max_retries": 9}}
    assert client.post("/runs", json={"workflow": "remind", **options}).status_code == 201
    batch = {"runs": [{"workflow": "remind", **options}]}
    assert client.post("/runs:batch", json=batch).status_code == 201
    for wrong, status, code in [
        ({"step_timeout": 0}, 422, "time_limit_zero"),
        ({"step_timeout": "soon"}, 422, None),
        ({"failure_queue": "alarm"}, 422, "failure_queue_unused"),
        ({"on_failure": "fulfil"}, 422, "handler_unfit"),
        ({"on_failure": "nosuch"}, 422, "code_unregistered"),
    ]:
        response = client.post("/runs", json={"workflow": "remind", **wrong})
        assert response.status_code == status, (wrong, response.text)
        assert code is None or response.json()["reason_code"] == code, wrong


async def test_a_client_turns_a_refusal_into_the_same_error(world: World) -> None:
    client = world.client("acme", "STAFF")
    body = {"workflow": "fulfil", "input": {"order": 7, "amount": "x"}}
    response = client.post("/runs", json=body)
    problem = response.json()
    assert (response.status_code, problem["reason_code"]) == (422, "value_invalid")
    assert problem["reason_params"]["what"]["params"] == {"workflow": "fulfil"}
    assert {fault["path"] for fault in problem["errors"]} == {"order", "amount"}
    assert {fault["reason_code"] for fault in problem["errors"]} <= {"expected", "pydantic_rule"}
    assert problem["detail"] == str(
        Reason.from_json({"code": problem["reason_code"], "params": problem["reason_params"]})
    )
    remote = Client(Address.read(str(client.base_url).split("/api/")[0]), client.headers["authorization"].split()[1])
    try:
        with pytest.raises(InputError) as refused:
            await remote.request("POST", "runs", body=body)
    finally:
        remote.close()
    assert refused.value.reason is not None
    assert {path for path, _ in refused.value.reason.faults} == {"order", "amount"}
    assert str(refused.value) == problem["detail"]


def test_a_body_that_is_too_large_is_refused_by_its_length(one_world: World) -> None:
    client = one_world.client("acme", "STAFF")
    huge = b'{"workflow": "' + b"x" * (17 << 20) + b'"}'
    response = client.post("/runs", content=huge, headers=JSON)
    assert (response.status_code, response.json()["code"]) == (413, "payload_too_large")
    large = {"workflow": "remind", "input": {"to": "x" * (2 << 20)}}
    assert client.post("/runs", json=large).status_code == 413


def test_a_chunked_body_that_is_too_large_is_refused_while_it_arrives(one_world: World) -> None:
    def parts():
        for _ in range(20):
            yield b"[" * (1 << 20)

    client = one_world.client("acme", "STAFF")
    assert client.post("/runs", content=parts(), headers=JSON).status_code == 413


def raw(world: World, request: bytes) -> bytes:
    """Send bytes and return the first bytes of the answer."""
    address = urlsplit(world.address)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        connection.sendall(request)
        try:
            return connection.recv(4096)
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize(
    "request_",
    [
        b"GARBAGE\r\n\r\n",
        b"GET /api/v1/runs HTTP/9.9\r\n\r\n",
        b"POST /api/v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /api/v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
        b"POST /api/v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"GET /api/v1/runs HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /api/v1/runs?" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_bytes_that_are_not_a_request_are_refused_and_the_server_keeps_running(
    one_world: World, request_: bytes
) -> None:
    answer = raw(one_world, request_)
    assert answer == b"" or answer.split()[1] in (b"400", b"401", b"404", b"414", b"431"), answer[:200]
    assert b"Traceback" not in answer
    assert one_world.client("acme", "VIEWER").get("/me").status_code == 200


def test_clients_that_send_half_a_request_do_not_keep_others_waiting(one_world: World) -> None:
    address = urlsplit(one_world.address)
    held = [socket.create_connection((address.hostname, address.port), timeout=20) for _ in range(50)]
    try:
        for connection in held:
            connection.sendall(b"POST /api/v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert one_world.client("acme", "VIEWER").get("/me").status_code == 200
    finally:
        for connection in held:
            connection.close()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/runs?limit=0", 422),
        ("/runs?limit=501", 422),
        ("/runs?limit=many", 422),
        ("/runs?cursor=nonsense", 422),
        (f"/runs?cursor={'A' * 300}", 422),
        ("/runs?status=ASLEEP", 422),
        ("/runs?since=yesterday", 422),
        ("/runs?since=2026-01-01T00:00:00", 422),
        ("/runs?since=1970-01-02T00:00:00Z&until=2200-12-31T23:59:59Z", 200),
        ("/runs?since=0001-01-01T00:00:00Z&until=9999-12-31T23:59:59Z", 422),
        ("/runs?index=nocolon", 422),
        ("/runs?workflow=%00", 422),
        ("/runs/%00", 404),
        ("/runs/..%2f..%2fetc", 404),
        ("/runs/" + "x" * 500, 404),
        ("/workflow-dlq/%F0%9F%92%A9", 404),
        ("/workflow-dlq?text=%25%25", 403),
        ("/workflow-dlq?index=api_key:k3y-s3cr3t", 403),
        ("/runs?index=card.api_key:k3y", 403),
        ("/bulk-replays/none", 404),
        ("/nowhere", 404),
    ],
)
def test_unusual_queries_have_defined_answers(world: World, path: str, expected: int) -> None:
    response = world.client("acme", "ADMIN").get(path)
    if path.endswith("workflow=%00") and response.status_code == 200:
        assert response.json()["items"] == []  # SQLite searches for NUL and finds nothing.
        return
    assert response.status_code == expected, response.text


@pytest.mark.parametrize(
    ("path", "body", "detail"),
    [
        ("/runs?limit=all", None, "query.limit: must be a whole number"),
        ("/runs?limit=0", None, "query.limit: must be at least 1"),
        ("/runs?since=soon", None, "query.since: must be a time such as 2026-11-19T08:00:00Z"),
        ("/outbox?status=LATE", None, "query.status: must be 'PENDING', 'DELIVERED', 'DEAD' or 'SKIPPED'"),
        ("/workflow-dlq?code=late", None, "code must be compensation_failed or infrastructure_failure or"),
        ("/runs", {"workflow": 5, "input": [], "more": 1}, "body.workflow: must be a text; body.input: must be an obj"),
        ("/runs", {"input": {}}, "body.workflow: is required"),
        ("/runs", {"workflow": "remind", "priority": True}, "body.priority: must be a whole number"),
        ("/runs", {"workflow": "remind", "delay": True}, "body.delay.float: must be a number; body.delay.str: must be"),
        ("/workflow-dlq/replay", {"ids": "dl-1"}, "body.ids: must be a list"),
        ("/workflow-dlq/replay", {"new_operation": "no way"}, "body.new_operation: must be true or false"),
        ("/workflow-dlq/resolve", {"reason": "x" * 10_001}, "body.reason: must have at most 10000 characters"),
    ],
)
def test_an_invalid_field_is_named_with_the_rule_it_breaks(
    one_world: World, path: str, body: dict[str, object] | None, detail: str
) -> None:
    client = one_world.client("acme", "ADMIN")
    response = client.get(path) if body is None else client.post(path, json=body)
    assert response.status_code == 422, response.text
    assert response.json()["detail"].startswith(detail)


def test_an_unsupported_method_is_answered_with_405(one_world: World) -> None:
    client = one_world.client("acme", "ADMIN")
    assert client.request("PATCH", "/runs").status_code == 405
    assert client.delete("/runs").status_code == 405


def test_answers_have_headers_against_sniffing_scripts_and_caching(one_world: World) -> None:
    client = one_world.client("acme", "ADMIN")
    for response in (client.get("/runs"), client.get("/runs/none")):
        headers = response.headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


def test_the_page_of_the_document_loads_nothing_from_other_hosts(one_world: World) -> None:
    client = one_world.bearer(None, headers={"X-Once": "1"})
    page = client.get(f"{one_world.address}/api/docs")
    assert page.status_code == 200
    assert "http" not in page.text.replace("<!doctype html>", "")
    assert "script" not in page.text
    assert client.get(f"{one_world.address}/api/docs.css").headers["content-type"].startswith("text/css")
    document = client.get(f"{one_world.address}/api/v1/openapi.json").json()
    assert document["openapi"].startswith("3.1")


def test_health_and_readiness_need_no_credential(world: World) -> None:
    client = world.bearer(None, headers={"X-Once": "2"})
    for path in ("/healthz", "/readyz"):
        assert client.get(world.address + path).json() == {"status": "ok"}
