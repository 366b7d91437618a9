-- Stored policies and pauses.

-- name: policies
-- All stored retry policies.
SELECT tenant, workflow, step, policy, updated_at, updated_by FROM policies ORDER BY tenant, workflow, step;

-- name: put_policy
-- Store a policy in place of the one it replaces.
INSERT INTO policies (tenant, workflow, step, policy, updated_at, updated_by) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, workflow, step) DO UPDATE SET
    policy = excluded.policy, updated_at = excluded.updated_at, updated_by = excluded.updated_by;

-- name: drop_policy
-- Remove a policy.
DELETE FROM policies WHERE tenant = ? AND workflow = ? AND step = ?;

-- name: pause
-- Let nothing of a workflow be claimed; the first pause counts.
INSERT INTO pauses (workflow, paused_at, paused_by) VALUES (?, ?, ?) ON CONFLICT (workflow) DO NOTHING;

-- name: resume
-- Undo a pause.
DELETE FROM pauses WHERE workflow = ?;

-- name: paused
-- Paused workflows and who paused them.
SELECT workflow, paused_by FROM pauses ORDER BY workflow;

-- name: secret
-- A secret of the store.
SELECT secret FROM store_secrets WHERE name = ?;

-- name: make_secret
-- Store a secret; the first one counts.
INSERT INTO store_secrets (name, secret) VALUES (?, ?) ON CONFLICT (name) DO NOTHING;
