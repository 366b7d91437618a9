-- Statements about the schema itself.

-- name: has_schema
-- Whether this file was set up by Redrive.
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'redrive_schema';

-- name: create_schema
-- The table that remembers which migrations were applied.
CREATE TABLE redrive_schema (
    version     INTEGER PRIMARY KEY,
    name        TEXT    NOT NULL,
    checksum    TEXT    NOT NULL,
    oldest_code INTEGER NOT NULL,
    applied_at  INTEGER NOT NULL
);

-- name: applied
-- The migrations applied so far.
SELECT version, checksum, oldest_code FROM redrive_schema ORDER BY version;

-- name: record_migration
-- Remember a migration.
INSERT INTO redrive_schema (version, name, checksum, oldest_code, applied_at) VALUES (?, ?, ?, ?, ?);

-- name: live_workers
-- Workers that may be using the schema right now.
SELECT name FROM workers WHERE state = 'LIVE' AND lease_until >= ? ORDER BY id;

-- name: existing_names
-- Tables that were in the file before Redrive, to say which one is in the way.
SELECT name FROM sqlite_master WHERE type IN ('table', 'index', 'view') ORDER BY name;
