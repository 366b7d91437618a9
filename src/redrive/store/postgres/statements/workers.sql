-- Workers, where SQLite and PostgreSQL differ: the end of a worker, and its heartbeats.

-- name: retire
-- Mark a worker as stopped, after its last write; `ordered`: by an operator, so that it ends. Runs that it still holds are
-- orphans at once.
UPDATE redrive.workers AS w SET state = 'STOPPED', draining = w.draining OR CAST(:ordered AS boolean)
FROM (SELECT pg_advisory_xact_lock(redrive.gate(CAST(:worker AS bigint)))) AS alone
WHERE w.id = CAST(:worker AS bigint) AND w.state = 'LIVE' RETURNING w.id;

-- name: beat
-- Renew the leases of live workers, record the heartbeats of their steps, which move the limits of their attempts, and
-- return the runs that each worker holds. One statement, so that heartbeats take one round trip. The workers are locked
-- in the order of their ids: two servers may renew the same ones.
WITH clock AS (
    SELECT COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp())) AS now
), live AS MATERIALIZED (
    SELECT w.id FROM redrive.workers AS w WHERE w.id = ANY (CAST(:workers AS bigint[])) AND w.state = 'LIVE'
    ORDER BY w.id FOR NO KEY UPDATE
), renew_lease AS (
    UPDATE redrive.workers AS w SET beat_at = clock.now, lease_until = clock.now + w.lease
    FROM clock, live WHERE w.id = live.id
    RETURNING w.id
), signs AS MATERIALIZED (
    SELECT s.* FROM unnest(CAST(:holders AS bigint[]), CAST(:runs AS bigint[]), CAST(:indexes AS integer[]),
                           CAST(:details AS text[])) AS s (worker, run, idx, details)
    WHERE (SELECT r.worker FROM redrive.runs AS r WHERE r.id = s.run) = s.worker
    ORDER BY s.run, s.idx
), record_step_heartbeat AS (
    UPDATE redrive.entries AS e SET
        heartbeat_at = clock.now,
        heartbeat = COALESCE(signs.details, e.heartbeat),
        limit_at = CASE WHEN e.patience IS NULL THEN e.limit_at
                        ELSE LEAST(clock.now + e.patience, e.timeout_at) END
    FROM signs, clock, renew_lease
    WHERE signs.worker = renew_lease.id AND e.run = signs.run AND e.idx = signs.idx AND e.status = 'RUNNING'
)
SELECT clock.now, g.id, renew_lease.id IS NOT NULL AS alive,
       ARRAY(SELECT r.id FROM redrive.runs AS r WHERE r.worker = g.id) AS held_ids, COALESCE(w.draining, false) AS is_draining
FROM clock CROSS JOIN unnest(CAST(:workers AS bigint[])) AS g (id)
LEFT JOIN renew_lease ON renew_lease.id = g.id LEFT JOIN redrive.workers AS w ON w.id = g.id;
