-- Tenants, people, tokens, sessions, and the answers to requests that carry a key; what a tenant's user may write.
-- oldest code: 2

CREATE TABLE redrive.access_tenants (
    tenant      text   COLLATE "C" PRIMARY KEY,
    created_at  bigint NOT NULL,
    created_by  text   NOT NULL,
    disabled_at bigint
);

CREATE TABLE redrive.access_users (
    id          text   COLLATE "C" PRIMARY KEY,
    email       text   COLLATE "C" NOT NULL UNIQUE,
    password    text,
    created_at  bigint NOT NULL,
    disabled_at bigint
);

CREATE TABLE redrive.access_members (
    user_id  text    COLLATE "C" NOT NULL,
    tenant   text    COLLATE "C" NOT NULL,
    role     text    NOT NULL CHECK (role IN ('OWNER', 'ADMIN', 'STAFF', 'VIEWER')),
    payloads integer NOT NULL,
    active   integer NOT NULL,
    PRIMARY KEY (user_id, tenant)
);
CREATE INDEX access_members_of_tenant ON redrive.access_members (tenant, user_id);

-- workflows is a JSON array of names; an empty one means all. hash is of the secret.
CREATE TABLE redrive.access_tokens (
    id         text    COLLATE "C" PRIMARY KEY,
    tenant     text    COLLATE "C" NOT NULL,
    kind       text    NOT NULL CHECK (kind IN ('key', 'jwt', 'code')),
    role       text    NOT NULL CHECK (role IN ('OWNER', 'ADMIN', 'STAFF', 'VIEWER')),
    name       text    NOT NULL,
    created_by text    NOT NULL,
    payloads   integer NOT NULL,
    workflows  text    NOT NULL,
    user_id    text    COLLATE "C",
    created_at bigint  NOT NULL,
    expires_at bigint,
    revoked_at bigint,
    hash       text    NOT NULL
);
CREATE INDEX access_tokens_of_tenant ON redrive.access_tokens (tenant, id);

CREATE TABLE redrive.access_sessions (
    hash       text   COLLATE "C" PRIMARY KEY,
    tenant     text   COLLATE "C" NOT NULL,
    user_id    text   COLLATE "C" NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint NOT NULL
);
CREATE INDEX access_sessions_of_user ON redrive.access_sessions (user_id);
CREATE INDEX access_sessions_expiring ON redrive.access_sessions (expires_at);

-- A request is begun when its row is written, and over when it has a status.
CREATE TABLE redrive.access_answers (
    tenant     text    COLLATE "C" NOT NULL,
    key        text    COLLATE "C" NOT NULL,
    digest     text    NOT NULL,
    begun_at   bigint  NOT NULL,
    expires_at bigint  NOT NULL,
    status     integer,
    body       text,
    PRIMARY KEY (tenant, key),
    CHECK ((status IS NULL) = (body IS NULL))
);
CREATE INDEX access_answers_expiring ON redrive.access_answers (expires_at);

-- -------------------------------------------------------------------------------------------- rights
GRANT SELECT, INSERT, UPDATE, DELETE ON redrive.access_tenants, redrive.access_users, redrive.access_members,
    redrive.access_tokens, redrive.access_sessions, redrive.access_answers TO redrive_engine;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA redrive TO redrive_engine, redrive_app;

DO $body$
DECLARE
    tenant_table text;
    mine CONSTANT text := $$tenant = (SELECT NULLIF(current_setting('redrive.tenant', true), ''))$$;
BEGIN
    -- What a tenant's user does is written as that user, so every table with a tenant in it may be written, each
    -- for its own tenant. The audit log stays append-only, and credentials have rights of their own, below.
    FOR tenant_table IN
        SELECT c.relname FROM pg_catalog.pg_class AS c
        JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attname = 'tenant' AND NOT a.attisdropped
        WHERE c.relkind IN ('r', 'p') AND c.relname <> 'audit' AND NOT starts_with(CAST(c.relname AS text), 'access_')
          AND c.relnamespace = (SELECT r.relnamespace FROM pg_catalog.pg_class AS r
                                WHERE r.oid = CAST('redrive.runs' AS regclass))
    LOOP
        EXECUTE format('GRANT SELECT, INSERT, UPDATE ON redrive.%I TO redrive_app', tenant_table);
    END LOOP;
    FOREACH tenant_table IN ARRAY ARRAY[
        'access_tenants', 'access_members', 'access_tokens', 'access_sessions', 'access_answers'] LOOP
        EXECUTE format('ALTER TABLE redrive.%I ENABLE ROW LEVEL SECURITY', tenant_table);
        EXECUTE format('ALTER TABLE redrive.%I FORCE ROW LEVEL SECURITY', tenant_table);
        EXECUTE format('CREATE POLICY engine ON redrive.%I TO redrive_engine USING (true) WITH CHECK (true)',
                       tenant_table);
        EXECUTE format('CREATE POLICY tenant ON redrive.%I TO redrive_app USING (%s) WITH CHECK (%2$s)',
                       tenant_table, mine);
    END LOOP;
END $body$;
GRANT DELETE ON redrive.policies, redrive.run_index, redrive.circuit_marks, redrive.probes TO redrive_app;
GRANT INSERT ON redrive.audit TO redrive_app;

-- What the functions that write transitions look at, whoever calls them, and what all tenants share.
GRANT SELECT (id, state, version) ON redrive.workers TO redrive_app;
GRANT SELECT ON redrive.catalogue, redrive.versions, redrive.pauses TO redrive_app;

-- Secrets are the engine's to compare: no tenant's transaction reads a hash.
GRANT SELECT ON redrive.access_tenants TO redrive_app;
GRANT SELECT, INSERT, UPDATE ON redrive.access_members TO redrive_app;
GRANT SELECT (id, tenant, kind, role, name, created_by, payloads, workflows, user_id, created_at, expires_at,
              revoked_at), INSERT, UPDATE (revoked_at) ON redrive.access_tokens TO redrive_app;
GRANT SELECT (tenant) ON redrive.access_sessions TO redrive_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON redrive.access_answers TO redrive_app;

-- A person is seen by the tenants that know the person; anybody may be added.
GRANT SELECT (id, email, created_at, disabled_at), INSERT ON redrive.access_users TO redrive_app;
ALTER TABLE redrive.access_users ENABLE ROW LEVEL SECURITY;
ALTER TABLE redrive.access_users FORCE ROW LEVEL SECURITY;
CREATE POLICY engine ON redrive.access_users TO redrive_engine USING (true) WITH CHECK (true);
CREATE POLICY known ON redrive.access_users FOR SELECT TO redrive_app USING (
    EXISTS (SELECT 1 FROM redrive.access_members AS m WHERE m.user_id = id));
CREATE POLICY added ON redrive.access_users FOR INSERT TO redrive_app WITH CHECK (true);
