-- Statements about the schema itself.

-- name: has_schema
-- Whether this schema was set up by Redrive.
SELECT COUNT(*) FROM pg_catalog.pg_tables WHERE schemaname = :schema AND tablename = 'redrive_schema';

-- name: create_schema
-- The table that remembers which migrations were applied.
CREATE TABLE redrive.redrive_schema (
    version     integer PRIMARY KEY,
    name        text    NOT NULL,
    checksum    text    NOT NULL,
    oldest_code integer NOT NULL,
    applied_at  bigint  NOT NULL
);

-- name: applied
-- The migrations applied so far.
SELECT version, checksum, oldest_code FROM redrive.redrive_schema ORDER BY version;

-- name: record_migration
-- Remember a migration.
INSERT INTO redrive.redrive_schema (version, name, checksum, oldest_code, applied_at)
VALUES (:version, :name, :checksum, :oldest_code,
        COALESCE(CAST(:now AS bigint), CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS bigint)));

-- name: existing_names
-- Tables that were in the schema before Redrive, to say which one is in the way.
SELECT c.relname FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = :schema ORDER BY c.relname;

-- name: lock_migrations
-- Wait until nobody else migrates this schema; ends with the transaction.
SELECT pg_advisory_xact_lock(hashtextextended('redrive migrate ' || :schema, 0));

-- name: missing_roles
-- Those of our roles that do not exist.
SELECT w.name FROM unnest(ARRAY['redrive_engine', 'redrive_app', 'redrive_login']) AS w (name)
WHERE NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles AS r WHERE r.rolname = w.name);

-- name: current_user
-- Who is connected, and what this user may do.
SELECT r.rolname AS name, r.rolsuper AS is_super, r.rolsuper OR r.rolcreaterole AS may_create_roles,
       has_database_privilege(session_user, current_database(), 'CREATE') AS may_create_schemas
FROM pg_catalog.pg_roles AS r WHERE r.rolname = session_user;

-- name: roles_not_granted
-- Those of the two roles that this user cannot act as. From version 16 on, a member may lack the right to SET ROLE.
SELECT w.name FROM unnest(ARRAY['redrive_engine', 'redrive_app']) AS w (name)
WHERE NOT EXISTS (
    SELECT 1 FROM pg_catalog.pg_roles AS r WHERE r.rolname = w.name AND pg_has_role(session_user, r.oid,
        CASE WHEN CAST(current_setting('server_version_num') AS integer) < 160000 THEN 'MEMBER' ELSE 'SET' END));

-- name: inherits_engine
-- Whether the statements of this user have the rights of the engine without a SET ROLE. A superuser needs none.
SELECT EXISTS (
    SELECT 1 FROM pg_catalog.pg_roles AS r, pg_catalog.pg_roles AS m
    WHERE r.rolname = 'redrive_engine' AND m.rolname = session_user AND NOT m.rolsuper
      AND pg_has_role(m.oid, r.oid, 'USAGE'));

-- name: backend_pid
-- The server's process behind this connection; a pooler announces itself by naming another one.
SELECT pg_backend_pid();

-- name: tenant_tables
-- Every table with a tenant in it, and whether the tenants are kept apart in it, even from its owner.
SELECT c.relname AS name, c.relrowsecurity AND c.relforcerowsecurity AS guarded
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = :schema AND c.relkind IN ('r', 'p')
  AND EXISTS (SELECT 1 FROM pg_catalog.pg_attribute AS a
              WHERE a.attrelid = c.oid AND a.attname = 'tenant' AND NOT a.attisdropped)
ORDER BY c.relname;

-- name: excess_role_rights
-- Why our roles would see more than they should: as superusers, past row security, or as the owner of the tables.
SELECT r.rolname AS name,
       CASE WHEN r.rolsuper THEN 'is a superuser'
            WHEN r.rolbypassrls THEN 'bypasses row level security'
            ELSE 'is the owner of a table, or a member of its owner' END AS reason
FROM pg_catalog.pg_roles AS r
WHERE r.rolname IN ('redrive_engine', 'redrive_app')
  AND (r.rolsuper OR r.rolbypassrls OR EXISTS (
      SELECT 1 FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
      WHERE n.nspname = :schema AND c.relkind IN ('r', 'p') AND pg_has_role(r.oid, c.relowner, 'MEMBER')))
ORDER BY r.rolname;

-- name: excess_login_rights
-- What this login may do beyond acting as our roles. A superuser may do everything, so that is all to be said.
SELECT CASE WHEN r.rolsuper THEN 'is a superuser'
            WHEN r.rolbypassrls THEN 'bypasses row level security'
            ELSE 'owns tables of Redrive' END AS reason
FROM pg_catalog.pg_roles AS r
WHERE r.rolname = session_user
  AND (r.rolsuper OR r.rolbypassrls OR EXISTS (
      SELECT 1 FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
      WHERE n.nspname = :schema AND c.relkind IN ('r', 'p') AND pg_has_role(r.oid, c.relowner, 'MEMBER')));

-- name: insert_probe_run
-- A run that is written, looked for under another tenant's name, and rolled back.
INSERT INTO redrive.runs (public_id, tenant, workflow, queue, rank, status, available_at, created_at)
VALUES ('redrive probe ' || CAST(:tenant AS text), CAST(:tenant AS text), '', '', 0, 'PENDING', 0, 0);

-- name: foreign_rows
-- A tenant table in which a transaction sees rows that are not its tenant's; the table's name is filled in.
SELECT '{table}' AS name
WHERE EXISTS (SELECT 1 FROM redrive.{table} WHERE tenant <> :tenant AND tenant <> '');
