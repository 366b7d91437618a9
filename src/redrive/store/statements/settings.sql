-- Stored policies and pauses.

-- name: policies
-- All stored retry policies.
SELECT tenant, workflow, step, policy, updated_at, updated_by FROM redrive.policies ORDER BY tenant, workflow, step;

-- name: put_policy
-- Store a policy in place of the one it replaces.
INSERT INTO redrive.policies (tenant, workflow, step, policy, updated_at, updated_by)
VALUES (:tenant, :workflow, :step, :policy, :now, :updated_by)
ON CONFLICT (tenant, workflow, step) DO UPDATE SET
    policy = excluded.policy, updated_at = excluded.updated_at, updated_by = excluded.updated_by
RETURNING 1;

-- name: drop_policy
-- Remove a policy.
DELETE FROM redrive.policies WHERE tenant = :tenant AND workflow = :workflow AND step = :step RETURNING 1;

-- name: pause
-- Pause a workflow: its runs are not claimed. The first pause counts.
INSERT INTO redrive.pauses (workflow, paused_at, paused_by)
VALUES (:workflow, :now, :by)
ON CONFLICT (workflow) DO NOTHING RETURNING 1;

-- name: resume
-- Undo a pause.
DELETE FROM redrive.pauses WHERE workflow = :workflow RETURNING 1;

-- name: paused
-- Paused workflows, each with the user who paused it.
SELECT workflow, paused_by FROM redrive.pauses ORDER BY workflow;

-- name: secret
-- A secret of the store.
SELECT secret FROM redrive.store_secrets WHERE name = :name;

-- name: make_secret
-- Store a secret; the first one counts.
INSERT INTO redrive.store_secrets (name, secret) VALUES (:name, :secret) ON CONFLICT (name) DO NOTHING;
