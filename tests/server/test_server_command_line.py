"""Commands against a server: each has the same effect and output as on the store itself."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import cluster
import pytest
from click.testing import CliRunner, Result
from server_kit import SECRET, World, serving
from server_kit import _tenant as tenant_of

from redrive import Redrive
from redrive.cli import main
from redrive.cli.accounts import LocalAccounts
from redrive.core.roles import Role
from redrive.desk.audit import Audit
from redrive.desk.circuits import Circuits
from redrive.desk.letters import DeadLetters
from redrive.desk.notifications import Notifications
from redrive.desk.outbox_and_sinks import Outbox, Sinks
from redrive.desk.policies import Policies
from redrive.desk.run_starter import RunStarter
from redrive.desk.runs import Runs
from redrive.desk.saved_views import SavedViews
from redrive.desk.schedules import Schedules
from redrive.desk.workflows import Workflows
from redrive.errors import InputError, NotFound
from redrive.remote.client import Address, Client
from redrive.remote.desk import Remote, RemoteAccounts, RemoteRuns, remote
from redrive.server.auth.admin import AccountAdmin, make_operator
from redrive.store.accounts import NewToken

_ID = re.compile(r"\b[0-9a-hjkmnp-tv-z]{26}\b")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(\+00:00|Z| UTC)?")
_SPAN = re.compile(r"(\b\d+(\.\d+)? ?(ms|s|m|h|d)\b ?)+")
_NUMBER = re.compile(r'"id": \d+')
_SECRET = re.compile(r"rdk_[\w-]+|#\d+\.[\w-]{20,}")
FACETS = {
    "runs": Runs, "starter": RunStarter, "dlq": DeadLetters, "circuits": Circuits, "outbox": Outbox, "sinks": Sinks,
    "audit": Audit, "policies": Policies, "workflows": Workflows, "notifications": Notifications,
    "schedules": Schedules, "views": SavedViews,
}  # fmt: skip
DERIVED = {"Audit.export"}
"""Calls that work on a server because they use nothing but other calls."""


def calls_of(kind: type) -> dict[str, Any]:
    return {name: getattr(kind, name) for name, _ in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"}


@pytest.mark.parametrize("facet", FACETS)
def test_the_remote_desk_has_the_methods_of_the_local_desk(facet: str) -> None:
    here, there = FACETS[facet], getattr(Remote("http://there", "token"), facet)
    assert isinstance(there, here)
    calls = calls_of(type(there))
    assert calls.keys() == calls_of(here).keys()
    for name, call in calls_of(here).items():
        if f"{here.__name__}.{name}" in DERIVED:
            continue
        assert calls[name] is not call, "the call would work on a store"
        mine, other = (inspect.signature(each).parameters for each in (call, calls[name]))
        options = {each.name for each in other.values() if each.kind is each.VAR_KEYWORD}
        missing = mine.keys() - other.keys()
        assert options or not missing, name
        for shared in mine.keys() & other.keys():
            assert str(mine[shared]) == str(other[shared]), name


def test_the_remote_accounts_have_the_methods_of_the_local_accounts() -> None:
    here, there = calls_of(LocalAccounts), calls_of(RemoteAccounts)
    assert here.keys() == there.keys()
    for name in here:
        assert str(inspect.signature(here[name])) == str(inspect.signature(there[name])), name


async def test_a_call_with_wrong_arguments_is_not_sent() -> None:
    runs = remote(RemoteRuns, Client(Address.read("http://there"), "token"))
    with pytest.raises(TypeError, match="unexpected"):
        await runs.get("x", nothing="at all")  # type: ignore[call-arg]
    with pytest.raises(InputError, match="expected RunFilter, not dict"):
        await runs.list({"status": "FAILED"})  # type: ignore[arg-type]


@dataclass
class Both:
    """Two equal stores: commands open one directly and the other through a server."""

    store: str
    server: str
    token: str
    ids: dict[str, str]
    letters: list[str] = field(default_factory=list)

    @property
    def who(self) -> str:
        """Return the token's name in the log, which contains its id."""
        return f"token:walk:{self.token.split('_')[1]}"

    def here(self, *words: str, **more: str) -> Result:
        return CliRunner().invoke(main, list(words), env={"REDRIVE_URL": self.store, **more})

    def there(self, *words: str, **more: str) -> Result:
        env = {"REDRIVE_URL": self.server, "REDRIVE_TOKEN": self.token, **more}
        return CliRunner().invoke(main, list(words), env=env)

    def same(self, *words: str, by: bool = False, tenant: bool = False, code: int = 0, **more: str) -> Result:
        """Run a command on both; check that exit code and output are equal, apart from new ids and times."""
        extra = [*(("--by", self.who) if by else ()), *(("--tenant", "acme") if tenant else ())]
        one, other = self.here(*words, *extra, **more), self.there(*words, **more)
        assert (one.exit_code, other.exit_code) == (code, code), f"{one.output}\n{other.output}"
        assert plain(other.stdout) == plain(one.stdout)
        assert plain(other.stderr) == plain(one.stderr)
        return other


def plain(text: str) -> str:
    """Return a text with ids numbered by appearance, and with placeholders for times and durations."""
    seen: dict[str, str] = {}
    text = _ID.sub(lambda found: seen.setdefault(found[0], f"#{len(seen)}"), text)
    text = _NUMBER.sub("<number>", _SPAN.sub("<span>", text))
    return _SECRET.sub("<secret>", _TIME.sub("<time>", text))


async def _prepared(url: str) -> tuple[str, dict[str, str], list[str]]:
    """Create a tenant with data for all commands, and an owner's token."""
    from server_shop import app, fulfil

    world = World(url)
    app.settings = Redrive(url, secret_key=SECRET, encryption_keys="plain").settings
    async with app:
        told = {"on": ["dead_letter"], "app": True}
        await app.notifications.set_rule(told, workflow="fulfil", tenant="acme", by="test")
        ids = await tenant_of(app, fulfil, "acme", world)
        failed = [await fulfil.start(f"F-{n}", 1000, "k3y", tenant="acme") for n in range(6)]
        for run in failed:
            while (await run.status()) != "DLQ_PENDING":  # noqa: ASYNC110 - a real worker
                await asyncio.sleep(0.02)
        while not (await app.notifications.list(tenant="acme")).items:  # noqa: ASYNC110 - a chore
            await asyncio.sleep(0.05)
        store, clock = app.runtime.store, app.runtime.clock
        access = AccountAdmin(store.accounts, clock, make_operator("test"), SECRET)
        made = await access.create_token(NewToken(tenant="acme", role=Role.OWNER, name="walk", payloads=True))
        while await store.fold(100):
            pass
    return made.secret, ids, [f"dl-{run.id}" for run in failed]


@pytest.fixture(scope="module", params=["sqlite", *cluster.POSTGRES[:1]])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("both")
    with files(folder) if request.param == "sqlite" else databases(request.param) as (here, there, copy):
        token, ids, letters = asyncio.run(_prepared(here))
        copy()
        with serving(there, app=None) as process:
            yield Both(here, process.address, token, ids, letters)


Places = tuple[str, str, Callable[[], None]]


@contextmanager
def files(folder: Path) -> Iterator[Places]:
    """Yield the URLs of two SQLite files, and a function that copies the first to the second."""

    def copy() -> None:
        for file in folder.glob("here.db*"):
            shutil.copy(file, folder / file.name.replace("here", "there"))

    yield f"sqlite:///{folder}/here.db", f"sqlite:///{folder}/there.db", copy


@contextmanager
def databases(kind: str) -> Iterator[Places]:
    """Yield the URLs of two PostgreSQL databases, and a function that copies the first to the second."""
    cluster.need_postgres()
    server, name = urlsplit(cluster.shared(kind).url), f"walk_{os.getpid()}"

    async def done(*statements: str) -> None:
        con = await asyncpg.connect(server.geturl())
        try:
            for statement in statements:
                await con.execute(statement)
        finally:
            await con.close()

    here, there = (server._replace(path=f"/{name}_{each}").geturl() for each in ("here", "there"))
    asyncio.run(done(f"CREATE DATABASE {name}_here"))
    try:
        yield here, there, lambda: asyncio.run(done(f"CREATE DATABASE {name}_there TEMPLATE {name}_here"))
    finally:
        drop = "DROP DATABASE IF EXISTS {} WITH (FORCE)"
        asyncio.run(done(drop.format(f"{name}_there"), drop.format(f"{name}_here")))


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REDRIVE_APP", "REDRIVE_TOKEN", "REDRIVE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("REDRIVE_SECRET_KEY", SECRET)


def test_run_commands_are_equal_on_store_and_server(both: Both) -> None:
    run, good = both.ids["run"], both.ids["good"]
    both.same("runs", "list", tenant=True)
    both.same("runs", "list", "--status", "DLQ_PENDING", "--since", "1h", "--limit", "2", "--json", tenant=True)
    both.same("runs", "list", "--all", "-q")
    both.same("runs", "show", run)
    assert "k3y" not in both.same("runs", "show", run, "--json").output
    for each in (run, good, both.ids["booked"]):
        both.same("runs", "why", each)
    both.same("runs", "show", "0" * 26, code=3)
    both.same("runs", "show", "zzzz", code=3)
    here = both.here("runs", "start", "fulfil", "--input", '{"order": "S-1"}', "--app", "server_shop:app",
                     "--tenant", "acme", "--url", both.store)  # fmt: skip
    there = both.there("runs", "start", "fulfil", "--input", '{"order": "S-1"}', "--delay", "1h")
    assert (here.exit_code, there.exit_code, len(there.stdout)) == (0, 0, len(here.stdout)), there.output
    started = there.stdout.strip()
    assert "begins at" in both.there("runs", "why", started).stdout
    event = ("--input", '{"order": "E"}', "--stream", "orders", "--event", "e-1")
    twice = [both.there("runs", "start", "fulfil", *event).stdout for _ in range(2)]
    assert twice[0] == twice[1]
    other = both.there("runs", "start", "fulfil", "--input", '{"order": "F"}', *event[2:])
    assert (other.exit_code, "e-1" in other.stderr) == (4, True)
    wrong = both.there("runs", "start", "fulfil", "--input", '{"oder": "S-1"}')
    assert (wrong.exit_code, "oder" in wrong.stderr) == (5, True)
    assert both.there("runs", "start", "fulfil", "--input", '{"oder": 1}', "--dry-run").exit_code == 5
    assert both.there("runs", "start", "fulfill", "--input", "{}").exit_code == 3
    assert both.there("runs", "cancel", started, "--reason", "twice").stdout == f"cancelled {started}\n"
    both.same("runs", "cancel", good, by=True, code=4)
    both.same("runs", "retry", run, "--dry-run", by=True)
    both.same("runs", "retry", good, by=True, code=4)
    both.same("runs", "rollback", run, "--dry-run", "--json", by=True)


async def _views_saved(both: Both) -> None:
    """Save one view in both stores, and check the views of the server."""
    wanted = ("letters", "paid late", "workflow=fulfil&since=1d")
    here, there = Redrive(both.store), Remote(both.server, both.token)
    async with here.client():
        await here.views.save(*wanted, by="kim", tenant="acme", shared=True)
        await here.views.save("letters", "another tenant's", "workflow=fulfil", by="kim", shared=True)
    async with there.client():
        made = await there.views.save(*wanted, shared=True)
        mine = await there.views.save(*wanted)
        assert (made.shared, mine.shared, made.wanted) == (True, False, {"workflow": "fulfil", "since": "1d"})
        assert [view.shared for view in await there.views.list("letters")] == [True, False]
        await there.views.remove("letters", "paid late")
        assert [view.by for view in await there.views.list()] == [both.who]
        with pytest.raises(NotFound):
            await there.views.remove("letters", "paid late")


def test_dead_letter_commands_are_equal_on_store_and_server(both: Both, tmp_path: Path) -> None:
    one, two, three, four, five, six = both.letters
    both.same("dlq", "list", tenant=True)
    both.same("dlq", "list", "--workflow", "fulfil", "--json", tenant=True)
    asyncio.run(_views_saved(both))
    found = both.same("dlq", "list", "--view", "paid late", "-q", tenant=True).stdout
    assert {*both.letters} <= {*found.split()}
    assert both.same("dlq", "list", "--view", "paid late", "--step", "none", "-q", tenant=True).stdout == ""
    both.same("dlq", "list", "--view", "nothing", tenant=True, code=3)
    others = both.here("dlq", "list", "--view", "another tenant's", "-q")
    assert (others.exit_code, others.stdout) == (0, ""), "a view shows only letters of the tenant that saved it"
    both.same("dlq", "groups", "--json", tenant=True)
    both.same("dlq", "show", one)
    assert "k3y" in both.same("dlq", "show", one, "--reveal", "--json", by=True).output
    both.same("dlq", "assign", one, "--to", "kim", by=True)
    both.same("dlq", "comment", one, "asked the bank", by=True)
    both.same("dlq", "tag", one, "bank", "urgent", by=True)
    both.same("dlq", "replay", one, "--patch", '{"amount": 5}', "--dry-run", by=True)
    both.same("dlq", "replay", one, "--patch", '{"amount": 5}', "--reason", "typo", by=True)
    both.same("dlq", "replay", one, "--patch", '{"amount": 5}', by=True)
    both.same("dlq", "replay", one, "--mode", "full", by=True, code=4)
    both.same("dlq", "show", one, "--json")
    both.same("dlq", "complete", two, "--output", "5", by=True, code=5)
    both.same("dlq", "complete", two, "--output", '"paid"', "--dry-run", by=True)
    both.same("dlq", "complete", two, "--output", '"paid"', by=True)
    both.same("dlq", "resolve", three, "--reason", "refunded", by=True)
    both.same("dlq", "ignore", four, "--json", by=True)
    both.same("dlq", "resolve", four, by=True, code=4)
    both.same("dlq", "reopen", four, "--reason", "a slip", by=True)
    both.same("dlq", "ignore", four, "--json", by=True)
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/1000/7/' \"$1\"\n")
    editor.chmod(0o755)
    both.same("dlq", "edit", five, "--yes", by=True, EDITOR=str(editor), VISUAL="")
    both.same("dlq", "replay", "--all", "--workflow", "fulfil", "--dry-run", by=True, tenant=True)
    both.same("dlq", "ignore", "--all", "--fingerprint", "none", "--yes", by=True, tenant=True)
    begun = both.same("dlq", "resolve", "--all", "--workflow", "fulfil", "--yes", "-q", by=True, tenant=True)
    both.same("dlq", "bulk", "list", tenant=True)
    shown = both.there("dlq", "bulk", "show", begun.stdout.strip())
    assert (shown.exit_code, "RESOLVE" in shown.stdout.upper()) == (0, True)
    assert both.there("dlq", "bulk", "stop", begun.stdout.strip()).exit_code == 0
    both.same("dlq", "show", "dl-" + "0" * 26, code=3)
    assert six


def test_schedule_commands_are_equal_on_store_and_server(both: Both) -> None:
    both.same("schedules", "list", tenant=True)
    both.same("schedules", "list", "--json")
    one = ("remind", "daily")
    acme = ("--tenant", "acme")
    both.same("schedules", "pause", *one, *acme, "--dry-run", by=True)
    assert "paused remind/daily" in both.same("schedules", "pause", *one, *acme, by=True).stdout
    assert "was paused before" in both.same("schedules", "pause", *one, *acme, by=True).stdout
    assert f"paused by {both.who}" in both.same("schedules", "list").stdout
    both.same("schedules", "resume", *one, *acme, "--json", by=True)
    both.same("schedules", "resume", "remind", *acme, by=True, code=3)
    both.same("schedules", "forget", *one, *acme, "--dry-run", by=True)
    both.same("schedules", "forget", *one, *acme, "--reason", "moved", by=True)
    both.same("schedules", "forget", *one, *acme, by=True, code=3)


def test_rollback_and_message_commands_are_equal_on_store_and_server(both: Both) -> None:
    booked, message = both.ids["booked"], both.ids["message"]
    both.same("saga", "show", booked)
    both.same("saga", "show", booked, "--json")
    both.same("saga", "resume", booked, "--dry-run", by=True)
    both.same("saga", "skip", booked, "charge", by=True, code=5)
    both.same("saga", "done", booked, "reserve", "--reason", "put back", by=True)
    both.same("saga", "resume", booked, by=True, code=4)
    both.same("outbox", "list", "--status", "DEAD", tenant=True)
    both.same("outbox", "list", "--run", booked, "--json", tenant=True)
    both.same("outbox", "show", message)
    both.same("outbox", "blocked", tenant=True)
    both.same("outbox", "retry", message, "--sink", "nowhere", by=True, code=4)
    both.same("outbox", "skip", message, "--reason", "told them", by=True)
    both.same("outbox", "sinks")
    both.same("outbox", "forget", "nowhere", by=True, code=3)
    both.same("outbox", "forget", "till", "--dry-run", by=True)


def test_circuit_policy_and_workflow_commands_are_equal_on_store_and_server(both: Both) -> None:
    both.same("circuits", "list", tenant=True)
    both.same("circuits", "show", "acme-bank", tenant=True)
    both.same("circuits", "show", "nothing", tenant=True, code=3)
    both.same("circuits", "open", "new", tenant=True, by=True, code=3)
    both.same("circuits", "open", "fulfil/charge", "--yes", "--reason", "asked", tenant=True, by=True)
    both.same("circuits", "set", "fulfil/charge", "failures=20", "window=2m", "--json", tenant=True, by=True)
    both.same("circuits", "set", "fulfil/charge", "--unset", tenant=True, by=True)
    both.same("circuits", "close", "fulfil/charge", tenant=True, by=True)
    both.same("circuits", "reset", "fulfil/charge", tenant=True, by=True)
    of_acme = ("--step", "charge", "--tenant", "acme")
    both.same("policies", "set", *of_acme, "max_retries=8", by=True)
    both.same("policies", "get", *of_acme)
    both.same("policies", "list")
    both.same("policies", "set", "--default", "--tenant", "acme", "never_retry_on=unknown", by=True)
    both.same("policies", "set", "--default", "--tenant", "acme", "max_retries=2", by=True)
    both.same("policies", "get", "--default", "--tenant", "acme")
    both.same("policies", "delete", "--default", "--tenant", "acme", by=True)
    both.same("policies", "delete", *of_acme, by=True)
    both.same("policies", "delete", *of_acme, by=True, code=3)
    both.same("policies", "set", "--step", "chrage", "max_retries=8", by=True, tenant=True, code=3)
    both.same("workflows", "list")
    both.same("workflows", "pause", "remind", by=True)
    both.same("workflows", "list", "--json")
    both.same("workflows", "resume", "remind", by=True)
    both.same("workflows", "pause", "nothing", by=True, code=3)


def test_notification_commands_are_equal_on_store_and_server(both: Both) -> None:
    rule = '{"email": ["ops@example.org"], "on": ["dead_letter"]}'
    both.same("notifications", "set", rule, "--workflow", "fulfil", "--tenant", "acme", by=True)
    both.same("notifications", "rules")
    both.same("notifications", "unset", "--workflow", "fulfil", "--tenant", "acme", by=True)
    gone = both.there("notifications", "unset", "--workflow", "fulfil")
    assert gone.exit_code == 3
    (first, *_) = both.same("notifications", "list", "-q", tenant=True).stdout.split()
    reader = ("--reader", both.who)
    for words in (["list", "--json"], ["show", first], ["show", first, "--json"], ["read", first]):
        here, there = both.here("notifications", *words, *reader), both.there("notifications", *words)
        assert (here.exit_code, plain(here.stdout)) == (there.exit_code, plain(there.stdout)), there.output
    assert first not in both.there("notifications", "list", "--unread", "-q").stdout
    both.same("notifications", "show", "ntf-nothing", code=3)


def test_user_and_audit_commands_are_equal_on_store_and_server(both: Both) -> None:
    both.same("users", "create", "ann@acme.example", "--role", "STAFF", tenant=True)
    both.same("users", "create", "ann@acme.example", "--role", "STAFF", tenant=True, code=4)
    both.same("users", "list", tenant=True)
    both.same("users", "show", "ann@acme.example", "--json")
    both.same("users", "role", "ann@acme.example", "VIEWER", "--payloads", tenant=True)
    both.same("users", "disable", "ann@acme.example")
    both.same("users", "enable", "ann@acme.example")
    both.same("users", "code", "ann@acme.example")
    both.same("users", "show", "unknown@acme.example", code=3)
    both.same("tokens", "create", "--role", "STAFF", "--workflow", "fulfil", "--name", "ci", tenant=True)
    both.same("tokens", "create", "--role", "VIEWER", "--kind", "jwt", "--lasts", "1h", "-q", tenant=True)
    both.same("tokens", "list", tenant=True)
    both.same("tokens", "show", both.ids["token"], "--json")
    both.same("tokens", "revoke", both.ids["token"])
    both.same("tokens", "show", "nothing", code=3)
    both.same("tenants", "create", "globex", "-q")
    both.same("tenants", "list", "-q")
    both.same("tenants", "show", "nowhere", code=3)
    both.same("tenants", "disable", "globex")
    both.same("tenants", "erase", "globex", "--yes", "-q", by=True)
    both.same("audit", "list", "--letter", both.letters[-1], "--lang", "pl", tenant=True)
    both.same("audit", "list", "--event", "workflow.", "--limit", "2", "--json", tenant=True)
    both.same("audit", "export", "--event", "circuit.opened", "--format", "json", tenant=True)
    exported = both.there("tenants", "export", "acme").stdout
    assert '"kind": "run"' in exported


def test_problems_with_token_address_or_command_are_explained(both: Both, tmp_path: Path) -> None:
    both.token, token = "", both.token
    anonymous = both.there("runs", "list")
    both.token = "rdk_nonsense"
    unknown = both.there("runs", "list")
    both.token = token
    assert (anonymous.exit_code, "REDRIVE_TOKEN" in anonymous.stderr) == (5, True)
    assert unknown.exit_code == 5
    gone = both.there("runs", "list", REDRIVE_URL="http://127.0.0.1:9")
    assert (gone.exit_code, "does not answer" in gone.stderr) == (1, True)
    path = both.there("runs", "list", REDRIVE_URL=f"{both.server}/elsewhere")
    assert (path.exit_code, "URL" in path.stderr) == (1, True)
    user = both.there("runs", "list", REDRIVE_URL="http://ann:pw@127.0.0.1:9")
    assert (user.exit_code, "REDRIVE_TOKEN" in user.stderr, "pw" in user.stderr) == (1, True, False)
    for words in (["migrate"], ["reencrypt"], ["server", "--port", "0"]):
        refused = both.there(*words, "--url", both.server)
        assert (refused.exit_code != 0, "database" in refused.output) == (True, True), words
    remote = both.there("worker", "server_shop:app", "--url", both.server)  # its app has sinks, which need the store
    assert (remote.exit_code, "beside the store" in remote.output) == (1, True), remote.output
    healthy = both.there("doctor", "--json")
    findings = {one["check"]: one for one in json.loads(healthy.stdout)["findings"]}
    assert findings["token"]["text"] == f"{both.who}, OWNER of acme"
    assert {"server", "workers", "circuits", "letters"} <= findings.keys()
    assert both.there("doctor", REDRIVE_URL="http://127.0.0.1:9").exit_code == 1
    assert "REDRIVE_TOKEN" in both.there("doctor", REDRIVE_TOKEN="rdk_nonsense").stdout
    named = f"{both.server}?tenant=globex"
    assert both.there("runs", "list", REDRIVE_URL=named).stdout == ""
    assert "k3y" not in both.there("runs", "list", "--json").stdout
