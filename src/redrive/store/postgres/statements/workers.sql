-- Workers, where SQLite and PostgreSQL differ: the end of a worker, and its heartbeats.

-- name: retire
-- Mark a worker as stopped, after its last write; `ordered`: by an operator, so that it ends. Runs that it still holds are
-- orphans at once.
UPDATE redrive.workers AS w SET state = 'STOPPED', draining = w.draining OR CAST(:ordered AS boolean)
FROM (SELECT pg_advisory_xact_lock(redrive.gate(CAST(:worker AS bigint)))) AS alone
WHERE w.id = CAST(:worker AS bigint) AND w.state = 'LIVE' RETURNING w.id;

-- name: beat
-- Renew the lease of a live worker, record the heartbeats of its steps, which move the limits of their attempts, and
-- return the runs that it holds. One statement, so that a heartbeat takes one round trip.
WITH clock AS (
    SELECT COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp())) AS now
), renew_lease AS (
    UPDATE redrive.workers AS w SET beat_at = clock.now, lease_until = clock.now + w.lease
    FROM clock WHERE w.id = CAST(:worker AS bigint) AND w.state = 'LIVE'
    RETURNING w.id
), signs AS MATERIALIZED (
    SELECT s.* FROM unnest(CAST(:runs AS bigint[]), CAST(:indexes AS integer[]), CAST(:details AS text[]))
        AS s (run, idx, details)
    WHERE (SELECT r.worker FROM redrive.runs AS r WHERE r.id = s.run) = CAST(:worker AS bigint)
    ORDER BY s.run, s.idx
), record_step_heartbeat AS (
    UPDATE redrive.entries AS e SET
        heartbeat_at = clock.now,
        heartbeat = COALESCE(signs.details, e.heartbeat),
        limit_at = CASE WHEN e.patience IS NULL THEN e.limit_at
                        ELSE LEAST(clock.now + e.patience, e.timeout_at) END
    FROM signs, clock, renew_lease
    WHERE e.run = signs.run AND e.idx = signs.idx AND e.status = 'RUNNING'
), held_ids AS (
    SELECT r.id FROM redrive.runs AS r WHERE r.worker = CAST(:worker AS bigint)
)
SELECT clock.now, EXISTS (SELECT 1 FROM renew_lease) AS alive, ARRAY(SELECT id FROM held_ids) AS held,
       COALESCE((SELECT w.draining FROM redrive.workers AS w WHERE w.id = CAST(:worker AS bigint)), false) AS is_draining
FROM clock;
