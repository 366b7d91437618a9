-- Whole letters. Their texts are in a separate table, so that a decision writes few pages.

-- name: letter
-- The dead letter with a public id.
SELECT l.id, l.public_id, l.tenant, l.run, l.run_id, l.workflow, l.status, l.code, l.stage, l.category, l.reason,
       t.failure, l.fingerprint, l.payload_hash, t.input, t.options, l.step, l.step_index, l.attempts,
       l.replay_count, l.failed_replays, l.owner, l.correlation_id, l.version, l.created_at, l.failed_at, l.closed_at,
       l.closed_by, l.resolution, l.expires_at, l.escalated_to, l.escalated_at, l.tags
FROM letters AS l JOIN letter_texts AS t ON t.letter = l.id
WHERE l.public_id = :public_id AND (:tenant IS NULL OR l.tenant = :tenant);

-- name: letter_of
-- The dead letter of a run.
SELECT l.id, l.public_id, l.tenant, l.run, l.run_id, l.workflow, l.status, l.code, l.stage, l.category, l.reason,
       t.failure, l.fingerprint, l.payload_hash, t.input, t.options, l.step, l.step_index, l.attempts,
       l.replay_count, l.failed_replays, l.owner, l.correlation_id, l.version, l.created_at, l.failed_at, l.closed_at,
       l.closed_by, l.resolution, l.expires_at, l.escalated_to, l.escalated_at, l.tags
FROM letters AS l JOIN letter_texts AS t ON t.letter = l.id
WHERE l.run = :run;

-- name: references
-- Correlation ids that begin like a text.
SELECT DISTINCT correlation_id FROM (
    SELECT r.correlation_id, r.tenant FROM runs AS r INDEXED BY runs_correlated
    WHERE r.correlation_id IS NOT NULL AND r.correlation_id >= :prefix AND r.correlation_id < :end
    ORDER BY r.correlation_id LIMIT :scanned) AS met
WHERE :tenant IS NULL OR tenant = :tenant
ORDER BY correlation_id LIMIT :most;
