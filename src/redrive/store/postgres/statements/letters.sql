-- Whole letters. Their texts are columns of the letter.

-- name: letter
-- The dead letter with a public id.
SELECT id, public_id, tenant, run, run_id, workflow, status, code, stage, category, reason, failure, fingerprint,
       payload_hash, input, options, step, step_index, attempts, replay_count, failed_replays, owner, correlation_id,
       version, created_at, failed_at, closed_at, closed_by, resolution, expires_at, escalated_to, escalated_at, tags
FROM redrive.letters WHERE public_id = :public_id AND (CAST(:tenant AS text) IS NULL OR tenant = :tenant);

-- name: letter_of
-- The dead letter of a run.
SELECT id, public_id, tenant, run, run_id, workflow, status, code, stage, category, reason, failure, fingerprint,
       payload_hash, input, options, step, step_index, attempts, replay_count, failed_replays, owner, correlation_id,
       version, created_at, failed_at, closed_at, closed_by, resolution, expires_at, escalated_to, escalated_at, tags
FROM redrive.letters WHERE run = :run;

-- name: references
-- Correlation ids that begin like a text.
SELECT DISTINCT correlation_id FROM (
    SELECT r.correlation_id, r.tenant FROM redrive.runs AS r
    WHERE r.correlation_id IS NOT NULL AND CAST(r.correlation_id AS name) >= CAST(:prefix AS name)
      AND CAST(r.correlation_id AS name) < CAST(:end AS name)
    ORDER BY CAST(r.correlation_id AS name) LIMIT CAST(:scanned AS bigint)) AS met
WHERE CAST(:tenant AS text) IS NULL OR tenant = :tenant
ORDER BY correlation_id LIMIT CAST(:most AS bigint);
