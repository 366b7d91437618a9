-- Secrets of the store: random, made once by the first process that opens it, never shown to a tenant.
-- oldest code: 21

CREATE TABLE store_secrets (
    name   TEXT NOT NULL PRIMARY KEY,
    secret TEXT NOT NULL
) WITHOUT ROWID;
