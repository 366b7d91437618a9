"""Roles and row level security: the database itself separates tenants, under roles that own nothing."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from urllib.parse import urlsplit

import asyncpg
import pytest
from letter_kit import reopens
from postgres_kit import Bench
from store_kit import DAY, HandClock, becomes, entry, failed_try, noted, writes
from tenant_keys import without_tenant

from redrive.core.roles import Role
from redrive.core.states import RunStatus
from redrive.errors import SchemaMismatch, StoreError
from redrive.store.accounts import MemberRow, RequestClaim, SessionRow, TenantRow, TokenKind, TokenRow, UserRow
from redrive.store.filters import AuditFilter, LetterFilter, RunFilter
from redrive.store.letters import Triage
from redrive.store.port import DeskStore
from redrive.store.postgres import PostgresStore
from redrive.store.postgres.connection import Connection
from redrive.store.postgres.roles import check_tenant_isolation, tenant_transaction
from redrive.store.settings import PolicyRow
from redrive.store.sql_files import load_statements, replace_schema

FILLERS = {"text": "$1", "boolean": "false", "text[]": "'{}'"}  # anything else is a number


async def tenant_tables(bench: Bench) -> list[str]:
    """Return every table that has a tenant, whichever migration created it."""
    rows = await bench.sql(
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "JOIN pg_attribute a ON a.attrelid = c.oid "
        "WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') AND a.attname = 'tenant' ORDER BY 1",
        bench.address.schema,
    )
    return [row["relname"] for row in rows]


async def fill_the_rest(bench: Bench, tables: list[str]) -> None:
    """Insert an invented row for each tenant into every table that is still empty."""
    con = await asyncpg.connect(bench.address.url)
    try:
        await con.execute("SET session_replication_role = replica")  # a row may refer to itself here
        for table, number, tenant in ((t, n, x) for t in tables for n, x in enumerate("ab", 1)):
            name = f"{bench.address.schema}.{table}"
            if await con.fetchval(f"SELECT 1 FROM {name} WHERE tenant = $1", tenant) is None:
                for check in await con.fetch(CHECKS, name):  # the values of an invented row need make no sense
                    await con.execute(f'ALTER TABLE {name} DROP CONSTRAINT "{check["conname"]}"')
                columns = await con.fetch(NEEDED, name)
                values = [FILLERS.get(column["type"], str(number)) for column in columns]
                names = ", ".join(f'"{column["name"]}"' for column in columns)
                await con.execute(f"INSERT INTO {name} ({names}) VALUES ({', '.join(values)})", tenant)
    finally:
        await con.close()


CHECKS = "SELECT conname FROM pg_constraint WHERE conrelid = $1::regclass AND contype = 'c'"
NEEDED = """
SELECT attname AS name, format_type(atttypid, NULL) AS type FROM pg_attribute
WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND attnotnull AND NOT atthasdef
  AND attidentity = ''
"""


@asynccontextmanager
async def as_login(bench: Bench, *roles: str) -> AsyncIterator[str]:
    """Create a login that is neither superuser nor owner, with these roles; yield its URL."""
    name = f"login_{uuid.uuid4().hex[:12]}"
    await bench.sql(f"CREATE ROLE {name} LOGIN NOSUPERUSER NOCREATEROLE NOBYPASSRLS")
    for role in roles:
        await bench.sql(f"GRANT {role} TO {name}")
    try:
        yield bench.url.replace("postgres@", f"{name}@")
    finally:
        await bench.sql(f"DROP OWNED BY {name}")
        await bench.sql(f"DROP ROLE {name}")


def login_of(url: str) -> str:
    return str(urlsplit(url).username)


async def two_tenants(bench: Bench) -> None:
    """Create everything a tenant can have, for `a` and for `b`."""
    kit = bench.kit
    runs = []
    for tenant in ("a", "b"):
        worker, run = await kit.held(tenant=tenant, key="k", key_hash="h", key_keeps=DAY)
        step = writes(run, entry(0, output=tenant), attempts=(failed_try(0),))
        assert (await bench.store.apply([step], worker=worker))[0].kept
        await kit.fail(worker, run)
        policy = PolicyRow(tenant=tenant, workflow="", step="", policy="{}", updated_at=0, updated_by="x")
        await bench.store.set_policy(policy, noted("policy.set", tenant=tenant))
        await bench.store.retire(worker)
        await credentials_of(bench, tenant)
        runs.append(await kit.look(run))
    answers = await bench.store.apply([reopens(run) for run in runs])
    assert [answer.kept for answer in answers] == [True, True]


async def credentials_of(bench: Bench, tenant: str) -> None:
    """Create a tenant with a user, a token, a sign-in and an open request."""
    accounts, line = bench.store.accounts, noted(tenant=tenant)
    await accounts.put_tenant(TenantRow(tenant=tenant), line)
    member = MemberRow(user=f"u-{tenant}", tenant=tenant, role=Role.ADMIN)
    await accounts.add_user(UserRow(id=member.user, email=f"{tenant}@x.org", members=(member,)), line)
    token = {"kind": TokenKind.KEY, "role": Role.STAFF, "name": "ci", "created_by": "ann"}
    await accounts.put_token(TokenRow(id=f"t-{tenant}", tenant=tenant, **token), None, line)
    await accounts.put_session(SessionRow(hash=f"s-{tenant}", tenant=tenant, user=member.user), DAY)
    await accounts.claim_request(RequestClaim(tenant=tenant, key="k", digest="d", patience=DAY, keeps=DAY))


async def test_a_tenant_sees_only_its_own_users(bench: Bench) -> None:
    await two_tenants(bench)
    alone = bench.store.as_tenant("a").accounts
    assert [user.email for user in await alone.users(None)] == ["a@x.org"]
    assert [row.tenant for row in await alone.tenants()] == ["a"]
    assert [row.tenant for row in await alone.tokens(None)] == ["a"]
    assert not await alone.revoke_token("t-b", None, noted(tenant="a"))
    staff = {"tenant": "a", "role": Role.STAFF}
    for email in ("b@x.org", "new@x.org"):  # whether another tenant knows the address or not
        for id, added in ((f"1 {email}", True), (f"2 {email}", False)):
            new = UserRow(id=id, email=email, home="a", members=(MemberRow(user=id, **staff),))
            assert await alone.add_user(new, noted(tenant="a")) is added
    assert len(await alone.users("a")) == 3
    foreign = UserRow(id="u7", email="c@x.org", home="b", members=(MemberRow(user="u7", **staff),))
    with pytest.raises(StoreError, match="row-level security"):
        await alone.add_user(foreign, noted(tenant="a"))


async def test_a_tenant_s_connection_cannot_create_an_owner(bench: Bench) -> None:
    """An OWNER acts in all tenants, so the database allows only the engine to create one."""
    await two_tenants(bench)
    alone, audit = bench.store.as_tenant("a").accounts, noted(tenant="a")
    token = {"tenant": "a", "kind": TokenKind.KEY, "name": "ci", "created_by": "ann"}
    await alone.put_member(MemberRow(user="u-a", tenant="a", role=Role.ADMIN), audit)
    await alone.put_token(TokenRow(id="t1", role=Role.ADMIN, **token), None, audit)
    owner = MemberRow(user="u-a", tenant="a", role=Role.OWNER)
    with pytest.raises(StoreError, match="row-level security"):
        await alone.put_member(owner, audit)
    with pytest.raises(StoreError, match="row-level security"):
        await alone.put_token(TokenRow(id="t2", role=Role.OWNER, **token), None, audit)
    await bench.store.accounts.put_token(TokenRow(id="t3", role=Role.OWNER, **token), None, audit)
    with pytest.raises(StoreError, match="row-level security"):
        await alone.revoke_token("t3", "a", audit)
    await bench.store.accounts.put_member(owner, audit)
    assert [row.members[0].role for row in await alone.users("a")] == [Role.OWNER]


async def test_every_table_with_a_tenant_has_policies_even_for_its_owner(bench: Bench) -> None:
    rows = await bench.sql(
        "SELECT c.relname, c.relrowsecurity, c.relforcerowsecurity FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid "
        "WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') AND a.attname = 'tenant' ORDER BY 1",
        bench.address.schema,
    )
    assert [row["relname"] for row in rows] == await tenant_tables(bench) != []
    assert all(row["relrowsecurity"] and row["relforcerowsecurity"] for row in rows)


async def test_the_engine_s_connections_act_as_the_engine(bench: Bench) -> None:
    async with bench.store._pool.connection() as line:
        row = await line.con.fetchrow(
            "SELECT rolname AS me, rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user"
        )
    assert dict(row) == {"me": "redrive_engine", "rolsuper": False, "rolbypassrls": False}


# -- a tenant's transaction ----------------------------------------------------------------------------


async def test_a_query_without_a_tenant_condition_finds_no_foreign_row(bench: Bench) -> None:
    """The query has no tenant condition, for every table with a tenant, under a real login that owns nothing."""
    await two_tenants(bench)
    tables = await tenant_tables(bench)
    await fill_the_rest(bench, tables)
    async with as_login(bench, "redrive_app") as url:
        con = await asyncpg.connect(url.partition("?")[0])
        try:
            for table in tables:
                query = replace_schema(f"SELECT DISTINCT tenant FROM redrive.{table}", bench.address.schema)
                # Without a tenant there are only the rows that hold for all, such as code of all tenants.
                assert [row for row in await con.fetch(query) if row["tenant"]] == [], table
                for tenant in ("a", "b"):
                    async with con.transaction():
                        await con.execute("SELECT set_config('redrive.tenant', $1, true)", tenant)
                        assert {row["tenant"] for row in await con.fetch(query)} - {""} == {tenant}, table
                assert [row for row in await con.fetch(query) if row["tenant"]] == [], (
                    table
                )  # the pooled connection has dropped the tenant
        finally:
            await con.close()


async def test_the_owner_of_the_tables_sees_no_rows(bench: Bench) -> None:
    await two_tenants(bench)
    schema = bench.address.schema
    async with as_login(bench) as url:
        await bench.sql(f"GRANT USAGE ON SCHEMA redrive TO {login_of(url)}")
        await bench.sql(f"ALTER TABLE redrive.runs OWNER TO {login_of(url)}")
        con = await asyncpg.connect(url.partition("?")[0])
        try:
            assert await con.fetchval(f"SELECT count(*) FROM {schema}.runs") == 0
        finally:
            await con.close()
            await bench.sql("ALTER TABLE redrive.runs OWNER TO postgres")


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM redrive.letters",
        "SELECT * FROM redrive.workers",
        "UPDATE redrive.redrive_schema SET version = 9",
        "UPDATE redrive.audit SET by = 'zoe'",
        "DELETE FROM redrive.audit",
        "DELETE FROM redrive.replays",
        "INSERT INTO redrive.pauses VALUES ('w', 0, 'eve')",
        "SELECT password FROM redrive.access_users",
        "UPDATE redrive.access_users SET password = 'x'",
        "SELECT hash FROM redrive.access_tokens",
        "UPDATE redrive.access_tokens SET role = 'OWNER'",
        "SELECT hash FROM redrive.access_sessions",
        "INSERT INTO redrive.access_sessions VALUES ('h', 'a', 'u', 0, 0)",
        "INSERT INTO redrive.access_tenants VALUES ('c', 0, '', NULL)",
    ],
)
async def test_a_tenant_s_user_has_limited_rights(bench: Bench, statement: str) -> None:
    async with bench.line() as line, tenant_transaction(line, "a"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await line.script(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO redrive.policies VALUES ('b', '', 'x', '{}', 0, '')",
        "INSERT INTO redrive.policies VALUES ('', '', 'x', '{}', 0, '')",
        "INSERT INTO redrive.audit (tenant, at, event, by, subject) VALUES ('b', 0, '', '', '')",
        "INSERT INTO redrive.access_members VALUES ('u', 'b', 'ADMIN', 0, 1)",
        "UPDATE redrive.runs SET tenant = 'b'",
        """SELECT redrive.decide_on_letters(0, ARRAY[0]::bigint[], ARRAY[true], '{"audit": [{
               "t": 1, "tenant": "b", "event": "dlq.retry", "by": "x", "subject": "y"}]}')""",
    ],
)
async def test_a_tenant_s_user_writes_nothing_for_another_tenant(bench: Bench, statement: str) -> None:
    await two_tenants(bench)
    async with bench.line() as line, tenant_transaction(line, "a"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
            await line.script(statement)


@pytest.mark.parametrize("table", ["runs", "letters", "entries", "policies"])
async def test_a_change_without_a_tenant_condition_changes_no_foreign_rows(bench: Bench, table: str) -> None:
    await two_tenants(bench)
    async with bench.line() as line, tenant_transaction(line, "a"):
        changed = await line.con.fetch(
            replace_schema(f"UPDATE redrive.{table} SET tenant = tenant RETURNING tenant", bench.address.schema)
        )
    assert {row["tenant"] for row in changed} == {"a"}


async def test_the_database_alone_separates_tenants_without_the_view(bench: Bench) -> None:
    """No code adds the tenant to queries here: only row level security remains."""
    await two_tenants(bench)
    rows = (await bench.store.runs(RunFilter(), limit=10, cursor=None)).items
    theirs = next(row for row in rows if row.tenant == "b")
    before = await bench.store.run(theirs.public_id)
    alone = bench.store.as_tenant("a")
    assert await alone.run(theirs.public_id) is None
    assert await alone.journal(theirs.id) == await alone.cases([theirs.public_id]) == []
    assert {run.tenant for run in (await alone.runs(RunFilter(), limit=10, cursor=None)).items} == {"a"}
    assert (await alone.audit(AuditFilter(tenant="b"), limit=10, cursor=None)).items == []
    (answer,) = await alone.apply([becomes(theirs, RunStatus.FAILED)])
    assert not answer.kept
    note = Triage(letter=f"dl-{theirs.public_id}", owner="eve", audit=noted(tenant="a"))
    assert not await alone.triage(note)
    with pytest.raises(StoreError, match="row-level security"):
        await alone.start([bench.kit.new(tenant="b")])
    assert before is not None
    assert await bench.store.run(theirs.public_id) == before
    letter = await bench.store.letter_of(theirs.id)
    assert letter is not None
    assert (letter.owner, letter.status) == (None, "REPLAYING")


async def test_a_connection_never_keeps_a_tenant(bench: Bench) -> None:
    """A single connection is used in turn for two tenants, for the engine, and after a failed call."""
    await two_tenants(bench)
    store = await bench.beside(pool_size="2")

    async def seen(people: DeskStore) -> set[str]:
        return {run.tenant for run in (await people.runs(RunFilter(), limit=10, cursor=None)).items}

    for tenant in ("a", "b", "a"):
        assert await seen(store.as_tenant(tenant)) == {tenant}
        assert await seen(store) == {"a", "b"}
        with pytest.raises(StoreError):
            await store.as_tenant(tenant).start([bench.kit.new(tenant="c")])
        assert await seen(store) == {"a", "b"}
    async with store._pool.connection() as line:
        assert await line.con.fetchval("SELECT current_setting('redrive.tenant', true)") in ("", None)
        assert await line.con.fetchval("SELECT current_user") == "redrive_engine"


async def test_the_engine_cannot_change_the_record_of_migrations(bench: Bench) -> None:
    async with bench.line() as line:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await line.script("DELETE FROM redrive.redrive_schema")


@pytest.mark.parametrize("statement", ["UPDATE redrive.audit SET by = 'zoe'", "TRUNCATE redrive.audit"])
async def test_the_engine_only_appends_to_the_audit_log(bench: Bench, statement: str) -> None:
    await bench.store.note([noted()])
    async with bench.line() as line:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await line.script(statement)
    assert len(await bench.sql("SELECT 1 FROM redrive.audit WHERE by = 'ann'")) == 1


async def test_no_role_has_the_right_to_change_the_audit_log(bench: Bench) -> None:
    rows = await bench.sql(
        "SELECT DISTINCT grantee FROM information_schema.role_table_grants "
        "WHERE table_schema = $1 AND table_name = 'audit' AND privilege_type IN ('UPDATE', 'TRUNCATE') "
        "AND grantee <> (SELECT tableowner FROM pg_tables WHERE schemaname = $1 AND tablename = 'audit')",
        bench.address.schema,
    )
    assert rows == []


@pytest.mark.parametrize("tenant", ["", "a' OR '1'='1", "*", "%", "A"])
async def test_no_tenant_name_opens_another_tenant_s_rows(bench: Bench, tenant: str) -> None:
    await two_tenants(bench)
    page = await bench.store.tenant_view(tenant).runs(RunFilter(), limit=10, cursor=None)
    assert page.items == []


# -- checks at the start -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("ALTER TABLE redrive.letters NO FORCE ROW LEVEL SECURITY", "table letters lacks forced"),
        ("ALTER TABLE redrive.inputs DISABLE ROW LEVEL SECURITY", "table inputs lacks forced"),
        ("CREATE TABLE redrive.extras (tenant text)", "table extras lacks forced"),
        ("CREATE POLICY hole ON redrive.runs TO PUBLIC USING (true)", "one tenant sees another's rows in runs"),
    ],
)
async def test_a_database_that_does_not_separate_tenants_is_refused(bench: Bench, change: str, complaint: str) -> None:
    await bench.sql(change)
    with pytest.raises(StoreError, match=complaint) as caught:
        await PostgresStore(bench.url, HandClock()).open()
    assert "Nothing was started" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("ALTER ROLE redrive_app BYPASSRLS", "role redrive_app bypasses row level security"),
        ("ALTER ROLE redrive_engine SUPERUSER", "role redrive_engine is a superuser"),
        ("GRANT postgres TO redrive_app", "role redrive_app is the owner of a table, or a member of its owner"),
    ],
)
async def test_a_role_with_too_many_rights_is_refused(bench: Bench, change: str, complaint: str) -> None:
    con = await asyncpg.connect(bench.address.url)
    line = Connection(con, bench.address, {})
    tried = con.transaction()  # roles belong to the whole server: other tests must not see this one
    await tried.start()
    try:
        await con.execute(change)
        with pytest.raises(StoreError, match=complaint):
            await check_tenant_isolation(line, bench.address)
    finally:
        await tried.rollback()
        await con.close()


async def test_the_check_leaves_nothing_behind(bench: Bench) -> None:
    await (await bench.beside()).close()
    assert await bench.sql("SELECT 1 FROM redrive.runs") == []


async def test_a_role_that_owns_the_tables_is_refused(bench: Bench) -> None:
    await bench.sql("ALTER TABLE redrive.runs OWNER TO redrive_engine")
    with pytest.raises(StoreError, match="redrive_engine is the owner of a table"):
        await PostgresStore(bench.url, HandClock()).open()


# -- logins of every kind ------------------------------------------------------------------------------


async def test_a_login_inherits_no_rights_from_the_engine(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Statements of a transactional step run as the login and must not see the rows of all tenants."""
    await two_tenants(bench)
    query = replace_schema("SELECT count(*) FROM redrive.runs", bench.address.schema)
    async with as_login(bench, "redrive_login") as url:
        con = await asyncpg.connect(url.partition("?")[0])
        try:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await con.fetchval(query)
            await con.execute("SET ROLE redrive_engine")
            assert await con.fetchval(query) == 2
        finally:
            await con.close()
        store = PostgresStore(url, bench.clock)
        await store.open()
        await store.close()
        assert "inherits redrive_engine" not in caplog.text
    async with as_login(bench, "redrive_engine", "redrive_app") as url:
        store = PostgresStore(url, bench.clock)
        await store.open()
        await store.close()
        assert "inherits redrive_engine" in caplog.text


@pytest.mark.parametrize("roles", [("redrive_login",), ("redrive_engine", "redrive_app")])
async def test_a_plain_login_with_the_roles_can_do_everything_the_engine_does(
    bench: Bench, roles: tuple[str, ...]
) -> None:
    async with as_login(bench, *roles) as url:
        store = PostgresStore(url, bench.clock)
        await store.open()
        other = Bench.around(store, bench.clock, url)
        worker, run = await other.kit.held(tenant="a")
        await other.kit.fail(worker, run)
        assert len((await store.tenant_view("a").letters(LetterFilter(), limit=5, cursor=None)).items) == 1
        line = store.lease_connection()
        assert line.beat({worker: {}})[worker].alive
        line.close()
        await store.close()


async def test_a_login_without_the_app_role_works_but_serves_no_tenant_view(bench: Bench) -> None:
    async with as_login(bench, "redrive_engine") as url:
        store = PostgresStore(url, bench.clock)
        await store.open()
        await store.expire_workers()
        with pytest.raises(StoreError, match="GRANT redrive_login"):
            await store.tenant_view("a").runs(RunFilter(), limit=5, cursor=None)
        await store.close()


async def test_a_login_without_the_roles_is_told_what_to_grant(bench: Bench) -> None:
    async with as_login(bench) as url:
        with pytest.raises(StoreError, match="GRANT redrive_login"):
            await PostgresStore(url, HandClock()).open()


async def test_a_login_that_may_not_create_is_told_what_an_administrator_must_do(bench: Bench) -> None:
    async with as_login(bench, "redrive_engine", "redrive_app") as url:
        empty = re.sub(r"schema=\w+", "schema=not_there_yet", url)
        with pytest.raises(SchemaMismatch, match="GRANT CREATE ON DATABASE"):
            await PostgresStore(empty, HandClock()).open()


async def test_an_owner_without_superuser_rights_sets_up_and_works(bench: Bench) -> None:
    """The usual way in production: the database's owner migrates, and the roles exist or can be created."""
    async with as_login(bench) as url:
        name = login_of(url)
        await bench.sql(f"ALTER ROLE {name} CREATEROLE")
        database = bench.address.url.rpartition("/")[2]
        await bench.sql(f"GRANT CREATE ON DATABASE {database} TO {name}")
        if not await bench.sql("SELECT 1 WHERE current_setting('server_version_num')::int < 160000"):
            await bench.sql(f"GRANT redrive_login TO {name} WITH ADMIN OPTION")
        own = re.sub(r"schema=\w+", "schema=owned", url)
        store = PostgresStore(own, HandClock())
        await store.open()
        other = Bench.around(store, HandClock(), own)
        await other.kit.held()
        await store.close()
        await bench.sql("DROP SCHEMA owned CASCADE")


def test_every_statement_names_tables_with_their_schema() -> None:
    """The search path of a login must not matter."""
    package = "redrive.store.postgres"
    ours = (
        name
        for file in files(package).joinpath("migrations").iterdir()
        for name in re.findall(r"^CREATE TABLE redrive\.(\w+)", file.read_text("utf-8"), re.MULTILINE)
    )
    tables = "|".join(ours)
    assert "|audit" in tables
    bare = re.compile(rf"\b(?:FROM|JOIN|INTO|UPDATE)\s+(?:{tables})\b", re.IGNORECASE)
    for file in files(package).joinpath("statements").iterdir():
        for name, text in load_statements(package, file.name).items():
            assert bare.findall(text) == [], f"{file.name}: {name}"


async def test_every_key_of_a_tenant_s_table_has_the_tenant_or_a_reason_not_to(bench: Bench) -> None:
    tables = await tenant_tables(bench)
    rows = await bench.sql(
        "SELECT k.conrelid::regclass::text AS place, array_agg(a.attname::text ORDER BY p.n) AS columns "
        "FROM pg_constraint k, unnest(k.conkey) WITH ORDINALITY AS p (attnum, n), pg_attribute a "
        "WHERE k.connamespace = $1::regnamespace AND k.contype IN ('p', 'u', 'f', 'x') "
        "AND a.attrelid = k.conrelid AND a.attnum = p.attnum GROUP BY k.oid, k.conrelid "
        "UNION ALL SELECT i.indrelid::regclass::text, array_agg(a.attname::text ORDER BY a.attnum) "
        "FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
        "JOIN pg_attribute a ON a.attrelid = i.indexrelid WHERE i.indisunique "
        "AND c.relnamespace = $1::regnamespace GROUP BY i.indexrelid, i.indrelid",
        bench.address.schema,
    )
    keys = {(row["place"].rpartition(".")[2], tuple(row["columns"])) for row in rows}
    of_tenants = {key for key in keys if key[0] in tables}
    assert len(of_tenants) > 30
    assert without_tenant(of_tenants) == set()
