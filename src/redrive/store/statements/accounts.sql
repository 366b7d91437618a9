-- Tenants, users, tokens, sessions and stored responses.

-- name: tenants
-- All registered tenants.
SELECT tenant, created_at, created_by, disabled_at FROM redrive.access_tenants ORDER BY tenant;

-- name: put_tenant
-- Register, disable or enable a tenant.
INSERT INTO redrive.access_tenants AS t (tenant, created_at, created_by, disabled_at)
VALUES (:tenant, :now, :created_by,
        CASE WHEN CAST(:disabled AS boolean) THEN :now END)
ON CONFLICT (tenant) DO UPDATE SET
    disabled_at = CASE WHEN CAST(:disabled AS boolean) THEN excluded.created_at END
WHERE (t.disabled_at IS NULL) = CAST(:disabled AS boolean)
RETURNING 1;

-- name: user
-- The account with an id.
SELECT id, email, home, password, created_at, disabled_at FROM redrive.access_users WHERE id = :id;

-- name: users_by_email
-- The accounts with an address.
SELECT id, email, home, password, created_at, disabled_at FROM redrive.access_users WHERE email = :email ORDER BY id;

-- name: users
-- The users of a tenant, or of all.
SELECT u.id, u.email, u.home, CAST(NULL AS text), u.created_at, u.disabled_at FROM redrive.access_users AS u
WHERE CAST(:tenant AS text) IS NULL
   OR EXISTS (SELECT 1 FROM redrive.access_members AS m WHERE m.user_id = u.id AND m.tenant = CAST(:tenant AS text))
ORDER BY u.email, u.id;

-- name: members
-- The memberships of users in a tenant, or in all.
SELECT user_id, tenant, role, payloads, active FROM redrive.access_members
WHERE user_id = ANY (CAST(:users AS text[])) AND (CAST(:tenant AS text) IS NULL OR tenant = CAST(:tenant AS text))
ORDER BY user_id, tenant;

-- name: insert_user
-- Insert an account. An address has one in each home.
INSERT INTO redrive.access_users (id, email, home, password, created_at)
VALUES (:id, :email, :home, CAST(:password AS text), :now)
ON CONFLICT DO NOTHING RETURNING id;

-- name: change_user
-- Change the password of a user, or disable or enable the user.
UPDATE redrive.access_users SET password = COALESCE(CAST(:password AS text), password),
    disabled_at = CASE WHEN CAST(:disabled AS boolean) THEN COALESCE(disabled_at, :now) END
WHERE id = :id AND email = :email
RETURNING id;

-- name: put_member
-- Add or replace a membership.
INSERT INTO redrive.access_members (user_id, tenant, role, payloads, active)
VALUES (:user, :tenant, :role, :payloads, :active)
ON CONFLICT (user_id, tenant) DO UPDATE SET
    role = excluded.role, payloads = excluded.payloads, active = excluded.active
RETURNING 1;

-- name: token
-- A token with its hash, unless its tenant is disabled.
SELECT id, kind, tenant, role, name, created_by, payloads, workflows, hash, user_id, created_at, expires_at, revoked_at,
       maker_user, maker_token, steps
FROM redrive.access_tokens AS k WHERE id = :id
  AND NOT EXISTS (SELECT 1 FROM redrive.access_tenants AS t WHERE t.tenant = k.tenant AND t.disabled_at IS NOT NULL);

-- name: tokens
-- The tokens of a tenant, or of all.
SELECT id, kind, tenant, role, name, created_by, payloads, workflows, '', user_id, created_at, expires_at, revoked_at,
       maker_user, maker_token, steps
FROM redrive.access_tokens WHERE CAST(:tenant AS text) IS NULL OR tenant = CAST(:tenant AS text) ORDER BY id DESC;

-- name: put_token
-- Insert a token.
INSERT INTO redrive.access_tokens (id, tenant, kind, role, name, created_by, payloads, workflows, user_id, created_at,
                                   expires_at, hash, maker_user, maker_token, steps)
VALUES (:id, :tenant, :kind, :role, :name, :created_by, :payloads, :workflows, :user,
        :now,
        :now + CAST(:lasts AS bigint), :hash,
        CAST(:maker_user AS text), CAST(:maker_token AS text), :steps)
ON CONFLICT (id) DO NOTHING RETURNING id;

-- name: revoke_token
-- Revoke a token.
UPDATE redrive.access_tokens SET revoked_at = :now
WHERE id = :id AND revoked_at IS NULL AND (CAST(:tenant AS text) IS NULL OR tenant = CAST(:tenant AS text))
RETURNING id;

-- name: session
-- A sign-in, unless its tenant is disabled.
SELECT hash, tenant, user_id, created_at, expires_at FROM redrive.access_sessions AS s WHERE hash = :hash
  AND NOT EXISTS (SELECT 1 FROM redrive.access_tenants AS t WHERE t.tenant = s.tenant AND t.disabled_at IS NOT NULL);

-- name: put_session
-- Insert a sign-in.
INSERT INTO redrive.access_sessions (hash, tenant, user_id, created_at, expires_at)
VALUES (:hash, :tenant, :user, :now,
        :now + CAST(:lasts AS bigint))
ON CONFLICT (hash) DO NOTHING;

-- name: delete_old_sessions
-- Remove sign-ins that have expired.
DELETE FROM redrive.access_sessions WHERE expires_at <= :now;

-- name: end_sessions
-- End one sign-in, or all of a user.
DELETE FROM redrive.access_sessions WHERE hash = CAST(:hash AS text) OR user_id = CAST(:user AS text);

-- name: claim_request
-- Begin a request; one that was abandoned may begin again. Return when it first began.
INSERT INTO redrive.access_answers AS a (tenant, key, digest, begun_at, expires_at)
VALUES (:tenant, :key, :digest, :now,
        :now + CAST(:keeps AS bigint))
ON CONFLICT (tenant, key) DO UPDATE SET begun_at = excluded.begun_at
WHERE a.status IS NULL AND a.digest = excluded.digest AND a.begun_at <= excluded.begun_at - CAST(:patience AS bigint)
RETURNING expires_at - CAST(:keeps AS bigint);

-- name: answer
-- A request and its response.
SELECT tenant, key, digest, status, body FROM redrive.access_answers WHERE tenant = :tenant AND key = :key;

-- name: drop_request
-- Remove a request that had no effect.
DELETE FROM redrive.access_answers WHERE tenant = :tenant AND key = :key AND status IS NULL;

-- name: response_usage
-- The number of a tenant's responses, and their size in bytes.
SELECT count(*), COALESCE(sum(size), 0) FROM redrive.access_answers WHERE tenant = :tenant;

-- name: delete_old_answers
-- Remove responses whose retention time is over.
DELETE FROM redrive.access_answers
WHERE tenant = :tenant AND expires_at <= :now;

-- name: runs_to_erase
-- Some runs of a tenant that is being erased.
SELECT id FROM redrive.runs WHERE tenant = :tenant ORDER BY id LIMIT CAST(:most AS bigint);

-- name: erase_run_rows
-- Remove the rows of runs from a table.
DELETE FROM redrive.{table} WHERE tenant = :tenant AND run = ANY (CAST(:runs AS bigint[])) RETURNING 1;

-- name: erase_runs
-- Remove runs.
DELETE FROM redrive.runs WHERE tenant = :tenant AND id = ANY (CAST(:runs AS bigint[])) RETURNING 1;

-- name: erase_tenant_rows
-- Remove the other rows of a tenant from a table.
DELETE FROM redrive.{table} WHERE tenant = :tenant RETURNING 1;

-- name: erase_users_without_tenant
-- Remove users that are a member of no tenant.
DELETE FROM redrive.access_users AS u
WHERE NOT EXISTS (SELECT 1 FROM redrive.access_members AS m WHERE m.user_id = u.id);
