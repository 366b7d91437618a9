"""Declared actions as compensations: HTTP calls, SQL statements, messages; and attacks on them (traps C)."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import cluster
import pytest
from saga_kit import ONCE, Refused, ledger_of, new_app

from redrive import Redrive, RetryPolicy
from redrive.actions import Action, ApiCall, Notify, Sql
from redrive.app import Workflow
from redrive.store.user_database import execute_on_user_database
from redrive.testing import RunReport, engine
from redrive.worker.rollback import ActionRunner


@asynccontextmanager
async def bank(*answers: str) -> AsyncIterator[tuple[int, list[tuple[str, dict[str, str], bytes]]]]:
    """Start a bank on the loopback that gives these answers in turn; yield its port and its requests."""
    asked: list[tuple[str, dict[str, str], bytes]] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, *rest = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip("\r\n").split("\r\n")
        headers = dict(each.split(": ", 1) for each in rest)
        asked.append((line, headers, await reader.readexactly(int(headers.get("Content-Length", 0)))))
        answer = answers[min(len(asked), len(answers)) - 1]
        writer.write(f"HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], asked
    finally:
        server.close()
        await server.wait_closed()


def shop(app: Redrive, undo: Action, *, retry: RetryPolicy = ONCE) -> Workflow[..., Any, Any]:
    """Return an order workflow whose charge is undone by a declared action."""

    @app.step(compensate=undo)
    async def charge(order: dict[str, Any]) -> dict[str, Any]:
        return {"id": order["id"], "amount": 12.5}

    app.registered_steps["charge.undo"].set_options(retry=retry)

    @app.workflow(rollback=True)
    async def buy(order: dict[str, Any]) -> None:
        await charge(order)
        raise Refused("sold out")

    return buy


async def undone(app: Redrive, buy: Workflow[..., Any, Any], id: str = "c/1") -> RunReport:
    async with engine(app) as e:
        run = await e.run(buy, {"id": id}, correlation_id="corr")
        assert [action for _, action, _ in await ledger_of(e, run.id)] == ["charge.undo"]
        return run


# -- calls ------------------------------------------------------------------------------------------------


async def test_a_call_carries_the_filled_in_body_and_the_idempotency_key() -> None:
    async with bank("503 Busy", "200 OK") as (port, asked):
        app = new_app(allow_hosts=f"127.0.0.1:{port}")
        call = ApiCall(
            f"http://127.0.0.1:{port}/refunds/{{{{result.id}}}}?by={{{{step.name}}}}",
            body={"amount": "{{result.amount}}", "order": "{{input.order}}", "for": "{{step.correlation_id}}"},
            headers={"X-Run": "{{step.run_id}}"},
        )
        run = await undone(app, shop(app, call, retry=RetryPolicy(max_retries=1, base_delay=1)))
    assert run.status == "COMPENSATED"
    (first, headers, body), (second, again, _) = asked
    assert first == second == "POST /refunds/c%2F1?by=charge HTTP/1.1"
    assert json.loads(body) == {"amount": 12.5, "order": {"id": "c/1"}, "for": "corr"}
    assert headers["X-Run"] == run.id
    assert headers["Idempotency-Key"] == again["Idempotency-Key"]
    assert headers["Idempotency-Key"].startswith("idem_flow:default:")


@pytest.mark.parametrize(
    ("answer", "category"), [("404 Gone", "not_found"), ("302 Found", "missing_config"), ("500 No", "server_error")]
)
async def test_every_answer_but_a_success_is_a_failure_classified_by_its_status(answer: str, category: str) -> None:
    async with bank(answer) as (port, asked):
        app = new_app(allow_hosts=f"127.0.0.1:{port}")
        run = await undone(app, shop(app, ApiCall(f"http://127.0.0.1:{port}/refunds")))
    assert run.letter is not None
    assert (run.status, run.letter.code, run.letter.category) == ("DLQ_PENDING", "compensation_failed", category)
    assert len(asked) == 1  # redirects are not followed


async def test_a_host_name_that_resolves_to_an_internal_address_is_refused_when_it_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The guard checks the resolved addresses again at run time, which defeats DNS rebinding."""

    async def leads_inside(self: asyncio.AbstractEventLoop, host: str, port: int, **rest: Any) -> Any:
        return [(2, 1, 6, "", ("10.0.0.7", port))]

    async with bank("200 OK") as (_, asked):
        monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", leads_inside)
        app = new_app()
        run = await undone(app, shop(app, ApiCall("https://bank.example/refunds")))
    assert run.letter is not None
    assert (run.status, run.letter.code, asked) == ("DLQ_PENDING", "compensation_failed", [])
    assert "https://bank.example leads to an address that is not public" in run.letter.message


async def test_a_filled_in_value_cannot_change_other_parts_of_the_url() -> None:
    async with bank("200 OK") as (port, asked):
        app = new_app(allow_hosts=f"127.0.0.1:{port}")
        buy = shop(app, ApiCall(f"http://127.0.0.1:{port}/refunds/{{{{result.id}}}}"))
        run = await undone(app, buy, "x?admin=1#@evil.example/{{step.tenant}}")
        assert run.status == "COMPENSATED"
        refused = await undone(
            new := new_app(allow_hosts=f"127.0.0.1:{port}"),
            shop(new, ApiCall(f"http://127.0.0.1:{port}/refunds/{{{{result.id}}}}")),
            "../admin",
        )
    ((line, _, _),) = asked
    assert line == "POST /refunds/x%3Fadmin%3D1%23%40evil.example%2F%7B%7Bstep.tenant%7D%7D HTTP/1.1"
    assert refused.letter is not None
    assert "'.' or '..'" in refused.letter.message


async def test_a_field_missing_at_run_time_becomes_a_letter_that_names_it() -> None:
    app = new_app()
    run = await undone(app, shop(app, Notify("ops", "{{result.iban}}")))
    assert run.letter is not None
    assert (run.status, run.letter.category) == ("DLQ_PENDING", "validation")
    assert "field 'iban' does not exist in result" in run.letter.message


# -- statements -------------------------------------------------------------------------------------------

ATTACK = "1'); DROP TABLE entries; --"


async def test_a_statement_undoes_an_entry_in_sqlite_without_sql_injection(tmp_path: Path) -> None:
    file = tmp_path / "books.db"
    with closing(sqlite3.connect(file)) as con, con:
        con.execute("CREATE TABLE entries (id TEXT, amount REAL, void INTEGER DEFAULT 0, why TEXT)")
        con.executemany("INSERT INTO entries (id) VALUES (?)", [(ATTACK,), ("other",)])
    app = new_app()
    app.connection("books", f"sqlite:///{file}")
    undo = Sql(
        "books",
        "UPDATE entries SET void = 1, amount = ?, why = ? WHERE id = ?",
        ["{{result.amount}}", "order {{input.order.id}}", "{{result.id}}"],
    )
    run = await undone(app, shop(app, undo), ATTACK)
    assert run.status == "COMPENSATED"
    with closing(sqlite3.connect(file)) as con:
        assert con.execute("SELECT id, void, amount, why FROM entries ORDER BY void").fetchall() == [
            ("other", 0, None, None),
            (ATTACK, 1, 12.5, f"order {ATTACK}"),
        ]
    (entry,) = [step for step in run.steps if step.kind == "undo"]
    assert entry.output == 1  # row


@pytest.mark.parametrize("version", cluster.POSTGRES)
async def test_a_statement_undoes_an_entry_in_postgresql(version: str) -> None:
    cluster.need_postgres()
    async with cluster.fresh(version) as fresh:
        url = fresh.partition("?")[0]
        await execute_on_user_database(url, "CREATE TABLE entries (id text, void boolean DEFAULT false)", ())
        await execute_on_user_database(url, "INSERT INTO entries (id) VALUES ($1)", (ATTACK,))
        app = new_app()
        app.connection("books", url)
        undo = Sql("books", "UPDATE entries SET void = true WHERE id = $1", ["{{result.id}}"])
        run = await undone(app, shop(app, undo), ATTACK)
        assert run.status == "COMPENSATED"
        assert await execute_on_user_database(url, "DELETE FROM entries WHERE void", ()) == 1


@pytest.mark.parametrize("kind", ["sqlite", *cluster.POSTGRES[:1]])
async def test_no_driver_executes_two_statements(tmp_path: Path, kind: str) -> None:
    """`Sql` refuses two statements when it is declared. The driver is the second defence."""
    two = "DELETE FROM entries; DELETE FROM entries"
    if kind == "sqlite":
        file = tmp_path / "books.db"
        with closing(sqlite3.connect(file)) as con, con:
            con.execute("CREATE TABLE entries (id TEXT)")
        with pytest.raises(sqlite3.ProgrammingError, match="one statement"):
            await execute_on_user_database(f"sqlite:///{file}", two, ())
        return
    cluster.need_postgres()
    async with cluster.fresh(kind) as fresh:
        with pytest.raises(Exception, match="multiple commands"):
            await execute_on_user_database(fresh.partition("?")[0], "SELECT 1; SELECT 2", ())


async def test_a_missing_database_becomes_a_letter_and_creates_no_file(tmp_path: Path) -> None:
    app = new_app()
    app.connection("books", f"sqlite:///{tmp_path}/missing.db")
    run = await undone(app, shop(app, Sql("books", "DELETE FROM entries")))
    assert run.letter is not None
    assert run.letter.code == "compensation_failed"
    assert list(tmp_path.iterdir()) == []


# -- messages ---------------------------------------------------------------------------------------------


async def test_a_message_is_filled_in_and_published_with_the_record() -> None:
    app = new_app()
    buy = shop(app, Notify("ops", "Order {{input.order.id}}: {{result.amount}} goes back"))
    async with engine(app) as e:
        run = await e.run(buy, {"id": "c/1"})
        (message,) = await e.published("redrive.notify")
    (entry,) = [step for step in run.steps if step.kind == "undo"]
    assert (
        entry.output
        == message.payload
        == {"channel": "ops", "subject": "charge was undone", "text": "Order c/1: 12.5 goes back"}
    )


async def test_the_http_client_closes_its_connections_with_the_worker() -> None:
    class Client:
        closed = 0

        async def __aexit__(self, *_: object) -> None:
            self.closed += 1

    actions = ActionRunner({}, ())
    client = actions._client = Client()  # type: ignore[assignment]
    await actions.close()
    await actions.close()
    assert client.closed == 1
