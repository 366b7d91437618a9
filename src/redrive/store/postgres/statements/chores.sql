-- What chores ask: who died, what hangs, what is overdue, what was kept long enough.
-- Several nodes do them at once: rows that one of them has locked are left to it by the others.
-- OFFSET 0 and IS TRUE keep the planner from looking for a row by another index than the one that is meant.

-- name: bury
-- Declare workers dead whose lease has run out, except those in the middle of a write: they are asked again later.
-- A server that has just started says nothing about its workers: they could not renew their leases while it was down.
WITH expired AS MATERIALIZED (
    SELECT w.id FROM redrive.workers AS w
    WHERE w.state = 'LIVE' AND w.lease_until < COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp()))
      AND (CAST(:now AS bigint) IS NOT NULL OR pg_postmaster_start_time() < statement_timestamp() - interval '2 s')
    ORDER BY w.id FOR UPDATE SKIP LOCKED
)
UPDATE redrive.workers AS w SET state = 'DEAD'
FROM expired WHERE w.id = expired.id AND pg_try_advisory_xact_lock(redrive.gate(expired.id))
RETURNING w.id;

-- name: expired
-- Whether there is anybody to bury: a look that takes no lock.
SELECT id, redrive.gate(id) AS gate FROM redrive.workers
WHERE state = 'LIVE' AND lease_until < COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp()));

-- name: cut_off
-- End the connections that have held one of these gates in silence for a second. A client that stands still, or whose
-- machine is gone, between two messages of one statement is waited for without a limit: no timeout covers that.
SELECT a.pid, pg_terminate_backend(a.pid) AS ended
FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND a.datname = current_database()
  AND ((CAST(l.classid AS bigint) << 32) | CAST(l.objid AS bigint)) = ANY (CAST(:gates AS bigint[]))
  AND a.query_start < clock_timestamp() - interval '1 s';

-- name: graves
-- Dead or stopped workers that still hold runs.
SELECT w.id, w.name, w.version, w.state, w.workflows, w.started_at, w.beat_at, w.lease_until FROM redrive.workers AS w
WHERE w.state <> 'LIVE' AND EXISTS (SELECT 1 FROM redrive.runs AS r WHERE r.worker = w.id OFFSET 0)
ORDER BY w.id;

-- name: held
-- The runs that a worker holds.
SELECT r.id, r.public_id, r.tenant, r.workflow, r.queue, r.rank, r.status, r.fence, r.worker, r.available_at,
       r.deadline, r.deaths, r.version, r.created_at, r.started_at, r.finished_at, r.correlation_id, r.parent,
       r.root, r.replay_of, r.generation, r.parked_on, r.diverged_at, r.letter, r.handler_for, r.timeout, i.input, i.options
FROM redrive.runs AS r LEFT JOIN redrive.inputs AS i ON i.run = r.id
WHERE r.worker = CAST(:worker AS bigint)
ORDER BY r.id;

-- name: hung
-- Runs in whose present claim a try passed its limit.
WITH clock AS (
    SELECT COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp())) - CAST(:margin AS bigint) AS latest
), late AS MATERIALIZED (
    SELECT e.run, MIN(e.limit_at) AS since FROM redrive.entries AS e
    WHERE e.limit_at IS NOT NULL AND e.limit_at < (SELECT latest FROM clock) AND e.superseded = 0
      AND e.fence = (SELECT holder.fence FROM redrive.runs AS holder
                     WHERE holder.id = e.run AND holder.worker IS NOT NULL)
    GROUP BY e.run ORDER BY MIN(e.limit_at) LIMIT CAST(:most AS bigint)
)
SELECT r.id, r.public_id, r.tenant, r.workflow, r.queue, r.rank, r.status, r.fence, r.worker, r.available_at,
       r.deadline, r.deaths, r.version, r.created_at, r.started_at, r.finished_at, r.correlation_id, r.parent,
       r.root, r.replay_of, r.generation, r.parked_on, r.diverged_at, r.letter, r.handler_for, r.timeout, i.input, i.options
FROM late JOIN redrive.runs AS r ON r.id = late.run LEFT JOIN redrive.inputs AS i ON i.run = r.id
ORDER BY late.since;

-- name: overdue
-- Unfinished runs that passed their deadline.
SELECT r.id, r.public_id, r.tenant, r.workflow, r.queue, r.rank, r.status, r.fence, r.worker, r.available_at,
       r.deadline, r.deaths, r.version, r.created_at, r.started_at, r.finished_at, r.correlation_id, r.parent,
       r.root, r.replay_of, r.generation, r.parked_on, r.diverged_at, r.letter, r.handler_for, r.timeout, i.input, i.options
FROM redrive.runs AS r LEFT JOIN redrive.inputs AS i ON i.run = r.id
WHERE r.deadline IS NOT NULL AND r.finished_at IS NULL AND r.status <> 'COMPENSATING'
  AND r.deadline < COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp())) - CAST(:margin AS bigint)
ORDER BY r.deadline LIMIT CAST(:most AS bigint);

-- name: open_entries
-- The entries of these runs that have not ended.
SELECT run, idx, key, kind, name, status, attempt, done, first_at, began_at, ended_at, wake_at, limit_at, input,
       output, failure, options, superseded, loose, heartbeat_at, heartbeat
FROM redrive.entries
WHERE run = ANY (CAST(:runs AS bigint[])) AND ended_at IS NULL AND superseded = 0
ORDER BY run, idx;

-- name: moment
-- What time it is.
SELECT COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp()));

-- name: expiring
-- Runs with open letters that nobody decided on in time.
SELECT r.id, r.public_id, r.tenant, r.workflow, r.queue, r.rank, r.status, r.fence, r.worker, r.available_at,
       r.deadline, r.deaths, r.version, r.created_at, r.started_at, r.finished_at, r.correlation_id, r.parent,
       r.root, r.replay_of, r.generation, r.parked_on, r.diverged_at, r.letter, r.handler_for, r.timeout, i.input, i.options
FROM redrive.letters AS l JOIN redrive.runs AS r ON r.id = l.run LEFT JOIN redrive.inputs AS i ON i.run = r.id
WHERE l.status = 'OPEN'
  AND l.expires_at <= COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp()))
ORDER BY l.expires_at LIMIT CAST(:most AS bigint);

-- name: old_letters
-- Letters that were closed long enough ago.
DELETE FROM redrive.letters WHERE id = ANY (ARRAY(
    SELECT id FROM redrive.letters
    WHERE closed_at IS NOT NULL AND closed_at <= CAST(:before AS bigint)
    ORDER BY closed_at LIMIT CAST(:most AS bigint) FOR UPDATE SKIP LOCKED))
RETURNING public_id;

-- name: ended_workflows
-- The workflows with finished runs that are not purged yet: one look along the index for each.
WITH RECURSIVE names (workflow) AS (
    (SELECT r.workflow FROM redrive.runs AS r
     WHERE r.finished_at IS NOT NULL AND r.status <> 'DLQ_PENDING' AND r.purged_at IS NULL AND r.workflow > ''
     ORDER BY r.workflow, r.finished_at, r.id LIMIT 1)
    UNION ALL
    SELECT next.workflow FROM names CROSS JOIN LATERAL (
        SELECT r.workflow FROM redrive.runs AS r
        WHERE r.finished_at IS NOT NULL AND r.status <> 'DLQ_PENDING' AND r.purged_at IS NULL
          AND r.workflow > names.workflow
        ORDER BY r.workflow, r.finished_at, r.id LIMIT 1) AS next
)
SELECT workflow FROM names;

-- name: old_runs
-- Runs that ended, and whose letters were closed, long enough ago, and whether a key still names them.
SELECT old.id, EXISTS (SELECT 1 FROM redrive.idempotency AS k WHERE k.run = old.id OFFSET 0) AS named
FROM unnest(CAST(:names AS text[])) AS n (workflow)
CROSS JOIN LATERAL (
    SELECT r.id FROM redrive.runs AS r
    WHERE r.workflow = n.workflow AND r.finished_at IS NOT NULL AND r.status <> 'DLQ_PENDING'
      AND r.purged_at IS NULL AND r.finished_at <= CAST(:before AS bigint)
      AND NOT EXISTS (SELECT 1 FROM redrive.letters AS l
                      WHERE l.run = r.id AND (l.closed_at IS NULL OR l.closed_at > CAST(:before AS bigint)) OFFSET 0)
    ORDER BY r.finished_at, r.id LIMIT CAST(:most AS bigint) FOR UPDATE OF r SKIP LOCKED) AS old
LIMIT CAST(:most AS bigint);

-- name: surplus_runs
-- Finished runs beyond the last of their workflow, and whether a key still names them; an open letter keeps its run.
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
      AND NOT EXISTS (SELECT 1 FROM redrive.letters AS l WHERE l.run = r.id AND l.closed_at IS NULL OFFSET 0)
    ORDER BY r.finished_at, r.id LIMIT CAST(:most AS bigint) FOR UPDATE OF r SKIP LOCKED) AS surplus
LIMIT CAST(:most AS bigint);

-- name: mark_purged
-- What is left of a purged run while its key lives.
UPDATE redrive.runs SET purged_at = CAST(:now AS bigint) WHERE id = ANY (CAST(:runs AS bigint[]));

-- name: drop_replays
-- The replays of purged runs that never had a letter.
DELETE FROM redrive.replays AS p
WHERE p.letter = ANY (ARRAY(
          SELECT 'dl-' || r.public_id FROM redrive.runs AS r WHERE r.id = ANY (CAST(:runs AS bigint[]))))
  AND NOT EXISTS (SELECT 1 FROM redrive.letters AS l WHERE l.public_id = p.letter OFFSET 0);

-- name: drop_entries
-- The journal of purged runs.
DELETE FROM redrive.entries WHERE run = ANY (CAST(:runs AS bigint[]));

-- name: drop_attempts
-- The failed tries of purged runs.
DELETE FROM redrive.attempts WHERE run = ANY (CAST(:runs AS bigint[]));

-- name: drop_inputs
-- The inputs of purged runs.
DELETE FROM redrive.inputs WHERE run = ANY (CAST(:runs AS bigint[]));

-- name: drop_results
-- The results of purged runs.
DELETE FROM redrive.results WHERE run = ANY (CAST(:runs AS bigint[]));

-- name: drop_runs
-- The purged runs themselves.
DELETE FROM redrive.runs WHERE id = ANY (CAST(:runs AS bigint[]));

-- name: old_keys
-- Idempotency keys that have expired, unless their run goes on, or a letter could still replay it.
SELECT k.tenant, k.key, k.run FROM redrive.idempotency AS k
WHERE k.expires_at <= CAST(:now AS bigint)
  AND NOT EXISTS (SELECT 1 FROM redrive.runs AS r WHERE r.id = k.run AND r.finished_at IS NULL OFFSET 0)
  AND NOT EXISTS (SELECT 1 FROM redrive.letters AS l
                  WHERE l.public_id = 'dl-' || k.run_id AND l.status IN ('OPEN', 'REPLAYING') OFFSET 0)
ORDER BY k.expires_at LIMIT CAST(:most AS bigint) FOR UPDATE OF k SKIP LOCKED;

-- name: drop_key
-- Expired keys.
DELETE FROM redrive.idempotency AS k USING unnest(CAST(:tenants AS text[]), CAST(:keys AS text[])) AS n (tenant, key)
WHERE k.tenant = n.tenant AND k.key = n.key AND k.expires_at <= CAST(:now AS bigint);

-- name: purged_before
-- Those of these runs of which only the state and the result are left.
SELECT id FROM redrive.runs WHERE id = ANY (CAST(:runs AS bigint[])) AND purged_at IS NOT NULL;

-- name: old_workers
-- Workers that ended long ago and hold nothing.
DELETE FROM redrive.workers WHERE id = ANY (ARRAY(
    SELECT w.id FROM redrive.workers AS w
    WHERE w.state <> 'LIVE' AND w.lease_until <= CAST(:before AS bigint)
      AND NOT EXISTS (SELECT 1 FROM redrive.runs AS r WHERE r.worker = w.id OFFSET 0)
    ORDER BY w.id LIMIT CAST(:most AS bigint) FOR UPDATE SKIP LOCKED))
RETURNING id;

-- name: old_audit
-- Lines of the audit log that were kept long enough. They are in order of time, so the oldest ones tell.
DELETE FROM redrive.audit WHERE id = ANY (ARRAY(
    SELECT id FROM (SELECT id, at FROM redrive.audit ORDER BY id LIMIT CAST(:most AS bigint)) AS oldest
    WHERE at <= CAST(:before AS bigint)))
RETURNING id;

-- name: old_replays
-- The lineage of letters that are gone.
DELETE FROM redrive.replays WHERE letter = ANY (CAST(:letters AS text[]));
