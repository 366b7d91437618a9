-- Statements about the schema itself.

-- name: has_schema
-- True if this schema is Redrive's.
SELECT COUNT(*) FROM pg_catalog.pg_tables WHERE schemaname = :schema AND tablename = 'redrive_schema';

-- name: create_schema
-- The table of applied migrations.
CREATE TABLE redrive.redrive_schema (
    version     integer PRIMARY KEY,
    name        text    NOT NULL,
    checksum    text    NOT NULL,
    oldest_code integer NOT NULL,
    applied_at  bigint  NOT NULL
);

-- name: applied
-- The applied migrations.
SELECT version, checksum, oldest_code FROM redrive.redrive_schema ORDER BY version;

-- name: record_migration
-- Record a migration.
INSERT INTO redrive.redrive_schema (version, name, checksum, oldest_code, applied_at)
VALUES (:version, :name, :checksum, :oldest_code,
        COALESCE(CAST(:now AS bigint), CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS bigint)));

-- name: existing_names
-- The tables and indexes in the schema.
SELECT c.relname FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = :schema ORDER BY c.relname;

-- name: lock_migrations
-- Wait until no other process migrates this schema; the lock ends with the transaction.
SELECT pg_advisory_xact_lock(hashtextextended('redrive migrate ' || :schema, 0));

-- name: missing_roles
-- The missing roles of Redrive.
SELECT w.name FROM unnest(ARRAY['redrive_engine', 'redrive_app', 'redrive_login']) AS w (name)
WHERE NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles AS r WHERE r.rolname = w.name);

-- name: current_user
-- The login of this connection, and its rights.
SELECT r.rolname AS name, r.rolsuper AS is_super, r.rolsuper OR r.rolcreaterole AS may_create_roles,
       has_database_privilege(session_user, current_database(), 'CREATE') AS may_create_schemas
FROM pg_catalog.pg_roles AS r WHERE r.rolname = session_user;

-- name: roles_not_granted
-- The roles that this login cannot act in. From version 16 on, a member may lack the right to SET ROLE.
SELECT w.name FROM unnest(ARRAY['redrive_engine', 'redrive_app']) AS w (name)
WHERE NOT EXISTS (
    SELECT 1 FROM pg_catalog.pg_roles AS r WHERE r.rolname = w.name AND pg_has_role(session_user, r.oid,
        CASE WHEN CAST(current_setting('server_version_num') AS integer) < 160000 THEN 'MEMBER' ELSE 'SET' END));

-- name: inherits_engine
-- True if the login has the rights of the engine without a SET ROLE. A superuser needs none.
SELECT EXISTS (
    SELECT 1 FROM pg_catalog.pg_roles AS r, pg_catalog.pg_roles AS m
    WHERE r.rolname = 'redrive_engine' AND m.rolname = session_user AND NOT m.rolsuper
      AND pg_has_role(m.oid, r.oid, 'USAGE'));

-- name: backend_pid
-- The server process of this connection. Behind a pooler it differs from the one announced at connecting.
SELECT pg_backend_pid();

-- name: tenant_tables
-- Every table with a tenant column, and a flag: row level security is forced, even for its owner.
SELECT c.relname AS name, c.relrowsecurity AND c.relforcerowsecurity AS guarded
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = :schema AND c.relkind IN ('r', 'p')
  AND EXISTS (SELECT 1 FROM pg_catalog.pg_attribute AS a
              WHERE a.attrelid = c.oid AND a.attname = 'tenant' AND NOT a.attisdropped)
ORDER BY c.relname;

-- name: excess_role_rights
-- Excess rights of Redrive's roles: superuser, BYPASSRLS, or ownership of the tables.
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
-- The rights of this login beyond Redrive's roles. For a superuser, only that one is listed.
SELECT CASE WHEN r.rolsuper THEN 'is a superuser'
            WHEN r.rolbypassrls THEN 'bypasses row level security'
            ELSE 'owns tables of Redrive' END AS reason
FROM pg_catalog.pg_roles AS r
WHERE r.rolname = session_user
  AND (r.rolsuper OR r.rolbypassrls OR EXISTS (
      SELECT 1 FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
      WHERE n.nspname = :schema AND c.relkind IN ('r', 'p') AND pg_has_role(r.oid, c.relowner, 'MEMBER')));

-- name: insert_probe_run
-- Insert a run that is looked for as another tenant and then rolled back.
INSERT INTO redrive.runs (public_id, tenant, workflow, queue, rank, status, available_at, created_at)
VALUES ('redrive probe ' || CAST(:tenant AS text), CAST(:tenant AS text), '', '', 0, 'PENDING', 0, 0);

-- name: foreign_rows
-- A table in which a transaction sees rows of another tenant; the table's name is filled in.
SELECT '{table}' AS name
WHERE EXISTS (SELECT 1 FROM redrive.{table} WHERE tenant <> :tenant AND tenant <> '');
