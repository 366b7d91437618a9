-- Workers, where SQLite and PostgreSQL differ: the end of a worker, and its heartbeats.

-- name: retire
-- Mark a worker as stopped; `ordered`: by an operator, so that it ends. Runs that it still holds are orphans at once.
UPDATE workers SET state = 'STOPPED', draining = draining OR :ordered WHERE id = :worker AND state = 'LIVE' RETURNING id;

-- name: renew_lease
-- Renew the lease of a live worker; a dead one stays dead.
UPDATE workers SET beat_at = :now, lease_until = :now + lease WHERE id = :worker AND state = 'LIVE' RETURNING id;

-- name: is_draining
-- True if a worker should end.
SELECT draining FROM workers WHERE id = :worker;

-- name: held_ids
-- The runs that a worker holds.
SELECT id FROM runs WHERE worker = :worker;

-- name: record_step_heartbeat
-- Record the heartbeat of a step while this worker holds its run; it moves the limit of the attempt.
UPDATE entries SET
    heartbeat_at = :now,
    heartbeat = COALESCE(:details, heartbeat),
    limit_at = CASE WHEN patience IS NULL THEN limit_at
                    ELSE min(:now + patience, COALESCE(timeout_at, :now + patience)) END
WHERE run = :run AND idx = :idx AND status = 'RUNNING'
  AND EXISTS (SELECT 1 FROM runs WHERE id = :run AND worker = :worker);
