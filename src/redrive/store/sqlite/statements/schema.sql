-- Statements about the schema itself.

-- name: has_schema
-- True if the file has a schema of Redrive.
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'redrive_schema';

-- name: create_schema
-- The table of applied migrations.
CREATE TABLE redrive_schema (
    version     INTEGER PRIMARY KEY,
    name        TEXT    NOT NULL,
    checksum    TEXT    NOT NULL,
    oldest_code INTEGER NOT NULL,
    applied_at  INTEGER NOT NULL
);

-- name: applied
-- The applied migrations.
SELECT version, checksum, oldest_code FROM redrive_schema ORDER BY version;

-- name: record_migration
-- Record a migration.
INSERT INTO redrive_schema (version, name, checksum, oldest_code, applied_at) VALUES (?, ?, ?, ?, ?);

-- name: live_workers
-- The live workers.
SELECT name FROM workers WHERE state = 'LIVE' AND lease_until >= ? ORDER BY id;

-- name: existing_names
-- The tables and indexes in the file.
SELECT name FROM sqlite_master WHERE type IN ('table', 'index', 'view') ORDER BY name;
