-- Recovery and purging, where PostgreSQL and SQLite differ: dead workers, and old runs.
-- Several nodes do this at once: each skips the rows that another one has locked.
-- OFFSET 0 keeps the planner from using another index.

-- name: expire_workers
-- Declare workers dead whose lease has expired, except those in the middle of a write: a later call tries again.
-- A server that has just started declares none: they could not renew their leases while it was down.
WITH expired AS MATERIALIZED (
    SELECT w.id FROM redrive.workers AS w
    WHERE w.state = 'LIVE' AND w.lease_until < COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp()))
      AND (CAST(:now AS bigint) IS NOT NULL OR pg_postmaster_start_time() < statement_timestamp() - interval '2 s')
    ORDER BY w.id FOR UPDATE SKIP LOCKED
)
UPDATE redrive.workers AS w SET state = 'DEAD'
FROM expired WHERE w.id = expired.id AND pg_try_advisory_xact_lock(redrive.gate(expired.id))
RETURNING w.id;

-- name: expired_workers
-- Workers whose lease has expired, each with its gate; read without a lock.
SELECT id, redrive.gate(id) AS gate FROM redrive.workers
WHERE state = 'LIVE' AND lease_until < COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp()));

-- name: end_idle_connections
-- End the connections that have held one of these gates idle for a second. No timeout covers a client that hangs, or
-- whose machine is gone, between two messages of one statement: the server would wait without a limit.
SELECT a.pid, pg_terminate_backend(a.pid) AS ended
FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND a.datname = current_database()
  AND ((CAST(l.classid AS bigint) << 32) | CAST(l.objid AS bigint)) = ANY (CAST(:gates AS bigint[]))
  AND a.query_start < clock_timestamp() - interval '1 s';

-- name: old_runs
-- Runs whose retention time is over since they ended and their letters were closed; with `failed`, without
-- failed runs that have a letter, and without those that other runs wait for. The flag: a key names the run.
SELECT old.id, EXISTS (SELECT 1 FROM redrive.idempotency AS k WHERE k.run = old.id OFFSET 0) AS named
FROM unnest(CAST(:names AS text[])) AS n (workflow)
CROSS JOIN LATERAL (
    SELECT r.id FROM redrive.runs AS r
    WHERE r.workflow = n.workflow AND r.finished_at IS NOT NULL AND r.status <> 'DLQ_PENDING'
      AND r.purged_at IS NULL AND r.finished_at <= CAST(:before AS bigint)
      AND NOT EXISTS (SELECT 1 FROM redrive.letters AS l
                      WHERE l.run = r.id AND (
                          l.closed_at IS NULL OR l.closed_at > CAST(:before AS bigint)
                          OR (CAST(:failed AS boolean) AND r.status <> 'SUCCESS')) OFFSET 0)
      AND NOT EXISTS (SELECT 1 FROM redrive.waits AS w WHERE w.kind IN ('letter', 'run')
                      AND w.subject = COALESCE(r.root, r.public_id) AND w.tenant = r.tenant OFFSET 0)
    ORDER BY r.finished_at, r.id LIMIT CAST(:most AS bigint) FOR UPDATE OF r SKIP LOCKED) AS old
LIMIT CAST(:most AS bigint);

-- name: surplus_runs
-- Finished runs beyond the number that their workflow keeps, except with an open letter, or, with `failed`, failed ones
-- with any letter, or that other runs wait for. The flag: a key names the run.
SELECT surplus.id, EXISTS (SELECT 1 FROM redrive.idempotency AS k WHERE k.run = surplus.id OFFSET 0) AS named
FROM unnest(CAST(:names AS text[])) AS n (workflow)
CROSS JOIN LATERAL (
    SELECT r.finished_at, r.id FROM redrive.runs AS r
    WHERE r.workflow = n.workflow AND r.finished_at IS NOT NULL AND r.status <> 'DLQ_PENDING'
      AND r.purged_at IS NULL
    ORDER BY r.finished_at DESC, r.id DESC LIMIT 1 OFFSET CAST(:keep AS bigint)) AS newest
CROSS JOIN LATERAL (
    SELECT r.id FROM redrive.runs AS r
    WHERE r.workflow = n.workflow AND (r.finished_at, r.id) <= (newest.finished_at, newest.id)
      AND r.finished_at IS NOT NULL AND r.status <> 'DLQ_PENDING' AND r.purged_at IS NULL
      AND NOT EXISTS (SELECT 1 FROM redrive.letters AS l WHERE l.run = r.id AND (
                          l.closed_at IS NULL OR (CAST(:failed AS boolean) AND r.status <> 'SUCCESS')) OFFSET 0)
      AND NOT EXISTS (SELECT 1 FROM redrive.waits AS w WHERE w.kind IN ('letter', 'run')
                      AND w.subject = COALESCE(r.root, r.public_id) AND w.tenant = r.tenant OFFSET 0)
    ORDER BY r.finished_at, r.id LIMIT CAST(:most AS bigint) FOR UPDATE OF r SKIP LOCKED) AS surplus
LIMIT CAST(:most AS bigint);
