-- Tenants, people, tokens, sessions, remembered answers.

-- name: tenants
-- All registered tenants.
SELECT tenant, created_at, created_by, disabled_at FROM access_tenants ORDER BY tenant;

-- name: put_tenant
-- Register a tenant, or let it be disabled or not.
INSERT INTO access_tenants AS t (tenant, created_at, created_by, disabled_at)
VALUES (:tenant, :now, :created_by, CASE WHEN :disabled THEN :now END)
ON CONFLICT (tenant) DO UPDATE SET disabled_at = CASE WHEN :disabled THEN :now END
WHERE (t.disabled_at IS NULL) = :disabled
RETURNING 1;

-- name: user
-- One account.
SELECT id, email, home, password, created_at, disabled_at FROM access_users WHERE id = :id;

-- name: users_at
-- The accounts with an address.
SELECT id, email, home, password, created_at, disabled_at FROM access_users WHERE email = :email ORDER BY id;

-- name: users
-- The people of a tenant, or of all.
SELECT u.id, u.email, u.home, NULL, u.created_at, u.disabled_at FROM access_users AS u
WHERE :tenant IS NULL
   OR EXISTS (SELECT 1 FROM access_members AS m WHERE m.user_id = u.id AND m.tenant = :tenant)
ORDER BY u.email, u.id;

-- name: members
-- What people are to a tenant, or to all.
SELECT user_id, tenant, role, payloads, active FROM access_members
WHERE user_id IN (SELECT value FROM json_each(:users)) AND (:tenant IS NULL OR tenant = :tenant)
ORDER BY user_id, tenant;

-- name: insert_user
-- Write a new account; an address has one in each home.
INSERT INTO access_users (id, email, home, password, created_at)
VALUES (:id, :email, :home, :password, :now)
ON CONFLICT DO NOTHING RETURNING id;

-- name: change_user
-- Another password for a person, or the end of all sign-ins.
UPDATE access_users SET password = COALESCE(:password, password),
    disabled_at = CASE WHEN :disabled THEN COALESCE(disabled_at, :now) END
WHERE id = :id AND email = :email
RETURNING id;

-- name: put_member
-- What a person is to a tenant.
INSERT INTO access_members (user_id, tenant, role, payloads, active)
VALUES (:user, :tenant, :role, :payloads, :active)
ON CONFLICT (user_id, tenant) DO UPDATE SET
    role = excluded.role, payloads = excluded.payloads, active = excluded.active;

-- name: token
-- A token with its hash, unless its tenant is disabled.
SELECT id, kind, tenant, role, name, created_by, payloads, workflows, hash, user_id, created_at, expires_at, revoked_at,
       maker_user, maker_token
FROM access_tokens AS k WHERE id = :id
  AND NOT EXISTS (SELECT 1 FROM access_tenants AS t WHERE t.tenant = k.tenant AND t.disabled_at IS NOT NULL);

-- name: tokens
-- The tokens of a tenant, or of all.
SELECT id, kind, tenant, role, name, created_by, payloads, workflows, '', user_id, created_at, expires_at, revoked_at,
       maker_user, maker_token
FROM access_tokens WHERE :tenant IS NULL OR tenant = :tenant ORDER BY id DESC;

-- name: put_token
-- Keep a new token.
INSERT INTO access_tokens (id, tenant, kind, role, name, created_by, payloads, workflows, user_id, created_at,
                           expires_at, hash, maker_user, maker_token)
VALUES (:id, :tenant, :kind, :role, :name, :created_by, :payloads, :workflows, :user, :now, :now + :lasts, :hash,
        :maker_user, :maker_token)
ON CONFLICT (id) DO NOTHING RETURNING id;

-- name: revoke_token
-- Let a token hold no longer.
UPDATE access_tokens SET revoked_at = :now WHERE id = :id AND revoked_at IS NULL
  AND (:tenant IS NULL OR tenant = :tenant)
RETURNING id;

-- name: session
-- One sign-in, unless its tenant is disabled.
SELECT hash, tenant, user_id, created_at, expires_at FROM access_sessions AS s WHERE hash = :hash
  AND NOT EXISTS (SELECT 1 FROM access_tenants AS t WHERE t.tenant = s.tenant AND t.disabled_at IS NOT NULL);

-- name: put_session
-- Keep a sign-in.
INSERT INTO access_sessions (hash, tenant, user_id, created_at, expires_at)
VALUES (:hash, :tenant, :user, :now, :now + :lasts)
ON CONFLICT (hash) DO NOTHING;

-- name: old_sessions
-- Sign-ins that have expired.
DELETE FROM access_sessions WHERE expires_at <= :now;

-- name: end_sessions
-- End one sign-in, or all of a person.
DELETE FROM access_sessions WHERE hash = :hash OR user_id = :user;

-- name: put_answer
-- Begin a request; one that was given up may be begun again. Gives when it was begun first.
INSERT INTO access_answers AS a (tenant, key, digest, begun_at, expires_at)
VALUES (:tenant, :key, :digest, :now, :now + :keeps)
ON CONFLICT (tenant, key) DO UPDATE SET begun_at = excluded.begun_at
WHERE a.status IS NULL AND a.digest = excluded.digest AND a.begun_at <= :now - :patience
RETURNING expires_at - :keeps;

-- name: answer
-- A request that was begun, and its answer.
SELECT tenant, key, digest, status, body FROM access_answers WHERE tenant = :tenant AND key = :key;

-- name: keep_answer
-- Remember the answer to a request.
UPDATE access_answers SET status = :status, body = :body, size = length(:body)
WHERE tenant = :tenant AND key = :key AND status IS NULL;

-- name: drop_answer
-- Forget a request that came to nothing.
DELETE FROM access_answers WHERE tenant = :tenant AND key = :key AND status IS NULL;

-- name: answer_usage
-- How many answers a tenant has, and how large they are together.
SELECT count(*), COALESCE(sum(size), 0) FROM access_answers WHERE tenant = :tenant;

-- name: old_answers
-- Answers that were kept long enough.
DELETE FROM access_answers WHERE tenant = :tenant AND expires_at <= :now;

-- name: tables_of_tenants
-- Our tables with a tenant in them, and whether their rows belong to runs.
SELECT m.name,
       EXISTS (SELECT 1 FROM pragma_table_info(m.name) AS r WHERE r.name = 'run') AS of_run
FROM sqlite_master AS m
WHERE m.type = 'table' AND m.name IN (SELECT value FROM json_each(:ours))
  AND EXISTS (SELECT 1 FROM pragma_table_info(m.name) AS c WHERE c.name = 'tenant')
ORDER BY m.name;

-- name: some_runs
-- Runs of a tenant that is erased, a few at a time.
SELECT id FROM runs WHERE tenant = :tenant ORDER BY id LIMIT :most;

-- name: erase_of_runs
-- Remove what belongs to runs from a table.
DELETE FROM {table} WHERE tenant = :tenant AND run IN (SELECT value FROM json_each(:runs));

-- name: erase_runs
-- Remove runs.
DELETE FROM runs WHERE tenant = :tenant AND id IN (SELECT value FROM json_each(:runs));

-- name: erase_rows
-- Remove what else a tenant has in a table.
DELETE FROM {table} WHERE tenant = :tenant;

-- name: erase_strangers
-- Remove people whom no tenant knows any more.
DELETE FROM access_users WHERE NOT EXISTS (SELECT 1 FROM access_members AS m WHERE m.user_id = access_users.id);
