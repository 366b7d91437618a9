-- Tenants, people, tokens, sessions, and the answers to requests that carry a key.
-- oldest code: 2
-- The names begin alike, because files are shared with tables of the user's own, which often has some called users.

CREATE TABLE access_tenants (
    tenant      TEXT    PRIMARY KEY,
    created_at  INTEGER NOT NULL,
    created_by  TEXT    NOT NULL,
    disabled_at INTEGER
);

CREATE TABLE access_users (
    id          TEXT    PRIMARY KEY,
    email       TEXT    NOT NULL UNIQUE,
    password    TEXT,
    created_at  INTEGER NOT NULL,
    disabled_at INTEGER
);

CREATE TABLE access_members (
    user_id  TEXT    NOT NULL,
    tenant   TEXT    NOT NULL,
    role     TEXT    NOT NULL CHECK (role IN ('OWNER', 'ADMIN', 'STAFF', 'VIEWER')),
    payloads INTEGER NOT NULL,
    active   INTEGER NOT NULL,
    PRIMARY KEY (user_id, tenant)
);
CREATE INDEX access_members_of_tenant ON access_members (tenant, user_id);

-- workflows is a JSON array of names; an empty one means all. hash is of the secret.
CREATE TABLE access_tokens (
    id         TEXT    PRIMARY KEY,
    tenant     TEXT    NOT NULL,
    kind       TEXT    NOT NULL CHECK (kind IN ('key', 'jwt', 'code')),
    role       TEXT    NOT NULL CHECK (role IN ('OWNER', 'ADMIN', 'STAFF', 'VIEWER')),
    name       TEXT    NOT NULL,
    created_by TEXT    NOT NULL,
    payloads   INTEGER NOT NULL,
    workflows  TEXT    NOT NULL,
    user_id    TEXT,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    hash       TEXT    NOT NULL
);
CREATE INDEX access_tokens_of_tenant ON access_tokens (tenant, id);

CREATE TABLE access_sessions (
    hash       TEXT    PRIMARY KEY,
    tenant     TEXT    NOT NULL,
    user_id    TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
);
CREATE INDEX access_sessions_of_user ON access_sessions (user_id);
CREATE INDEX access_sessions_expiring ON access_sessions (expires_at);

-- A request is begun when its row is written, and over when it has a status.
CREATE TABLE access_answers (
    tenant     TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    digest     TEXT    NOT NULL,
    begun_at   INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    status     INTEGER,
    body       TEXT,
    PRIMARY KEY (tenant, key),
    CHECK ((status IS NULL) = (body IS NULL))
);
CREATE INDEX access_answers_expiring ON access_answers (expires_at);
