-- Saved views: filters of lists that people gave a name.
-- oldest code: 17

-- query is that of an address. owner is whose it is, and none ('') for those that a tenant shares.
CREATE TABLE saved_views (
    tenant TEXT    NOT NULL,
    list   TEXT    NOT NULL,
    owner  TEXT    NOT NULL,
    name   TEXT    NOT NULL,
    query  TEXT    NOT NULL,
    by     TEXT    NOT NULL,
    at     INTEGER NOT NULL,
    PRIMARY KEY (tenant, list, owner, name)
) WITHOUT ROWID;
