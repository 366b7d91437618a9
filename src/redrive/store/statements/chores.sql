-- Recovery and purging: runs of dead workers, hung and overdue runs, data whose retention time is over.
-- Several nodes do this at once: each skips the rows that another one has locked.
-- OFFSET 0 keeps PostgreSQL's planner from using another index.

-- name: dead_workers_with_runs
-- Dead or stopped workers that still hold runs.
SELECT w.id, w.name, w.version, w.state, w.workflows, w.started_at, w.beat_at, w.lease_until, w.queues,
       w.versions, w.pins
FROM redrive.workers AS w
WHERE w.state <> 'LIVE' AND EXISTS (SELECT 1 FROM redrive.runs AS r WHERE r.worker = w.id LIMIT 1 OFFSET 0)
ORDER BY w.id;

-- name: held
-- The runs that a worker holds.
SELECT r.id, r.public_id, r.tenant, r.workflow, r.queue, r.rank, r.status, r.fence, r.worker, r.available_at,
       r.deadline, r.deaths, r.version, r.created_at, r.started_at, r.finished_at, r.correlation_id, r.parent,
       r.root, r.replay_of, r.generation, r.parked_on, r.diverged_at, r.letter, r.handler_for, r.timeout, r.pin, i.input, i.options
FROM redrive.runs AS r LEFT JOIN redrive.inputs AS i ON i.run = r.id
WHERE r.worker = CAST(:worker AS bigint)
ORDER BY r.id;

-- name: stuck_runs
-- Runs in whose present claim an attempt passed its limit.
WITH late AS MATERIALIZED (
    SELECT e.run, MIN(e.limit_at) AS since FROM redrive.entries AS e /* INDEXED BY entries_limited */
    WHERE e.limit_at IS NOT NULL AND e.limit_at < :now - CAST(:margin AS bigint) AND e.superseded = 0
      AND e.fence = (SELECT holder.fence FROM redrive.runs AS holder
                     WHERE holder.id = e.run AND holder.worker IS NOT NULL)
    GROUP BY e.run ORDER BY MIN(e.limit_at) LIMIT CAST(:most AS bigint)
)
SELECT r.id, r.public_id, r.tenant, r.workflow, r.queue, r.rank, r.status, r.fence, r.worker, r.available_at,
       r.deadline, r.deaths, r.version, r.created_at, r.started_at, r.finished_at, r.correlation_id, r.parent,
       r.root, r.replay_of, r.generation, r.parked_on, r.diverged_at, r.letter, r.handler_for, r.timeout, r.pin, i.input, i.options
FROM late /* CROSS */ JOIN redrive.runs AS r ON r.id = late.run LEFT JOIN redrive.inputs AS i ON i.run = r.id
ORDER BY late.since;

-- name: overdue
-- Unfinished runs that passed their deadline.
SELECT r.id, r.public_id, r.tenant, r.workflow, r.queue, r.rank, r.status, r.fence, r.worker, r.available_at,
       r.deadline, r.deaths, r.version, r.created_at, r.started_at, r.finished_at, r.correlation_id, r.parent,
       r.root, r.replay_of, r.generation, r.parked_on, r.diverged_at, r.letter, r.handler_for, r.timeout, r.pin, i.input, i.options
FROM redrive.runs AS r /* INDEXED BY runs_deadline */ LEFT JOIN redrive.inputs AS i ON i.run = r.id
WHERE r.deadline IS NOT NULL AND r.finished_at IS NULL AND r.status <> 'COMPENSATING'
  AND r.deadline < :now - CAST(:margin AS bigint)
ORDER BY r.deadline LIMIT CAST(:most AS bigint);

-- name: open_entries
-- The entries of these runs that have not ended.
SELECT run, idx, key, kind, name, status, attempt, done, first_at, began_at, ended_at, wake_at, limit_at, input,
       output, failure, options, superseded, loose, heartbeat_at, heartbeat
FROM redrive.entries
WHERE run = ANY (CAST(:runs AS bigint[])) AND ended_at IS NULL AND superseded = 0
ORDER BY run, idx;

-- name: runs_with_expired_letters
-- Runs with open letters that were not decided on in time.
SELECT r.id, r.public_id, r.tenant, r.workflow, r.queue, r.rank, r.status, r.fence, r.worker, r.available_at,
       r.deadline, r.deaths, r.version, r.created_at, r.started_at, r.finished_at, r.correlation_id, r.parent,
       r.root, r.replay_of, r.generation, r.parked_on, r.diverged_at, r.letter, r.handler_for, r.timeout, r.pin, i.input, i.options
FROM redrive.letters AS l /* INDEXED BY letters_expiring */
/* CROSS */ JOIN redrive.runs AS r ON r.id = l.run LEFT JOIN redrive.inputs AS i ON i.run = r.id
WHERE l.status = 'OPEN' AND l.expires_at <= :now ORDER BY l.expires_at LIMIT CAST(:most AS bigint);

-- name: unescalated
-- The oldest open letter that is not escalated, of each tenant and workflow: the index is read once for each.
WITH RECURSIVE heads (id) AS (
    SELECT (SELECT l.id FROM redrive.letters AS l /* INDEXED BY letters_unescalated */
            WHERE l.status = 'OPEN' AND l.escalated_to IS NULL AND l.tenant > ''
            ORDER BY l.tenant, l.workflow, l.failed_at LIMIT 1)
    UNION ALL
    SELECT COALESCE(
        (SELECT l.id FROM redrive.letters AS l /* INDEXED BY letters_unescalated */
         WHERE l.status = 'OPEN' AND l.escalated_to IS NULL AND l.tenant = h.tenant AND l.workflow > h.workflow
         ORDER BY l.workflow, l.failed_at LIMIT 1),
        (SELECT l.id FROM redrive.letters AS l /* INDEXED BY letters_unescalated */
         WHERE l.status = 'OPEN' AND l.escalated_to IS NULL AND l.tenant > h.tenant
         ORDER BY l.tenant, l.workflow, l.failed_at LIMIT 1))
    FROM heads /* CROSS */ JOIN redrive.letters AS h ON h.id = heads.id
)
SELECT h.tenant, h.workflow, h.failed_at FROM heads /* CROSS */ JOIN redrive.letters AS h ON h.id = heads.id;

-- name: letters_to_escalate
-- Open letters of a workflow that failed before a time and are not escalated, the oldest first.
SELECT l.public_id FROM redrive.letters AS l /* INDEXED BY letters_unescalated */
WHERE l.tenant = :tenant AND l.workflow = :workflow AND l.status = 'OPEN' AND l.escalated_to IS NULL
  AND l.failed_at <= CAST(:before AS bigint)
ORDER BY l.failed_at LIMIT CAST(:most AS bigint);

-- name: delete_old_letters
-- Remove letters whose retention time is over.
DELETE FROM redrive.letters WHERE id = ANY (ARRAY(
    SELECT l.id FROM redrive.letters AS l /* INDEXED BY letters_closed */
    WHERE l.closed_at IS NOT NULL AND l.closed_at <= CAST(:before AS bigint)
    ORDER BY l.closed_at LIMIT CAST(:most AS bigint) FOR UPDATE SKIP LOCKED))
RETURNING public_id;

-- name: delete_old_replays
-- Remove the replays of removed letters.
DELETE FROM redrive.replays WHERE letter = ANY (CAST(:letters AS text[]));

-- name: ended_workflows
-- The workflows with finished runs that are not purged yet: the index is read once for each.
WITH RECURSIVE names (workflow) AS (
    SELECT (SELECT r.workflow FROM redrive.runs AS r /* INDEXED BY runs_finished */
            WHERE r.workflow > '' AND r.finished_at IS NOT NULL AND r.status <> 'DLQ_PENDING' AND r.purged_at IS NULL
            ORDER BY r.workflow, r.finished_at, r.id LIMIT 1)
    UNION ALL
    SELECT (SELECT r.workflow FROM redrive.runs AS r /* INDEXED BY runs_finished */
            WHERE r.workflow > names.workflow AND r.finished_at IS NOT NULL AND r.status <> 'DLQ_PENDING'
              AND r.purged_at IS NULL
            ORDER BY r.workflow, r.finished_at, r.id LIMIT 1)
    FROM names WHERE names.workflow IS NOT NULL
)
SELECT workflow FROM names WHERE workflow IS NOT NULL;

-- name: mark_purged
-- Mark runs as purged whose state and result are kept while a key names them.
UPDATE redrive.runs SET purged_at = :now WHERE id = ANY (CAST(:runs AS bigint[]));

-- name: drop_replays
-- Remove the replays of purged runs that never had a letter.
DELETE FROM redrive.replays AS p
WHERE p.letter = ANY (ARRAY(
          SELECT 'dl-' || r.public_id FROM redrive.runs AS r WHERE r.id = ANY (CAST(:runs AS bigint[]))))
  AND NOT EXISTS (SELECT 1 FROM redrive.letters AS l WHERE l.public_id = p.letter LIMIT 1 OFFSET 0);

-- name: drop_entries
-- Remove the journals of purged runs.
DELETE FROM redrive.entries WHERE run = ANY (CAST(:runs AS bigint[]));

-- name: drop_attempts
-- Remove the failed attempts of purged runs.
DELETE FROM redrive.attempts WHERE run = ANY (CAST(:runs AS bigint[]));

-- name: drop_events
-- Remove the events of purged runs.
DELETE FROM redrive.run_events WHERE run = ANY (CAST(:runs AS bigint[]));

-- name: drop_waits
-- Remove the waits of purged runs.
DELETE FROM redrive.waits WHERE run = ANY (CAST(:runs AS bigint[]));

-- name: drop_notes
-- Remove the statuses that the code of purged runs set.
DELETE FROM redrive.run_notes WHERE run = ANY (CAST(:runs AS bigint[]));

-- name: drop_inputs
-- Remove the inputs of purged runs.
DELETE FROM redrive.inputs WHERE run = ANY (CAST(:runs AS bigint[]));

-- name: drop_results
-- Remove the results of purged runs.
DELETE FROM redrive.results WHERE run = ANY (CAST(:runs AS bigint[]));

-- name: drop_runs
-- Remove purged runs.
DELETE FROM redrive.runs WHERE id = ANY (CAST(:runs AS bigint[]));

-- name: old_keys
-- Idempotency keys that have expired, unless their run is unfinished, or a letter could still replay it.
SELECT k.tenant, k.key, k.run FROM redrive.idempotency AS k /* INDEXED BY idempotency_expiring */
WHERE k.expires_at <= :now
  AND NOT EXISTS (SELECT 1 FROM redrive.runs AS r WHERE r.id = k.run AND r.finished_at IS NULL LIMIT 1 OFFSET 0)
  AND NOT EXISTS (SELECT 1 FROM redrive.letters AS l
                  WHERE l.public_id = 'dl-' || k.run_id AND l.status IN ('OPEN', 'REPLAYING') LIMIT 1 OFFSET 0)
ORDER BY k.expires_at LIMIT CAST(:most AS bigint) FOR UPDATE OF k SKIP LOCKED;

-- name: drop_key
-- Remove an expired key.
DELETE FROM redrive.idempotency WHERE tenant = :tenant AND key = :key AND expires_at <= :now;

-- name: purged_runs
-- Those of these runs of which only the state and the result are left.
SELECT id FROM redrive.runs WHERE id = ANY (CAST(:runs AS bigint[])) AND purged_at IS NOT NULL;

-- name: delete_remote_workers
-- Remove the receipts of workers that were removed.
DELETE FROM redrive.remote_workers WHERE worker = ANY (CAST(:workers AS bigint[]));

-- name: delete_old_workers
-- Remove workers that ended long ago and hold no runs.
DELETE FROM redrive.workers WHERE id = ANY (ARRAY(
    SELECT w.id FROM redrive.workers AS w
    WHERE w.state <> 'LIVE' AND w.lease_until <= CAST(:before AS bigint)
      AND NOT EXISTS (SELECT 1 FROM redrive.runs AS r WHERE r.worker = w.id LIMIT 1 OFFSET 0)
    ORDER BY w.id LIMIT CAST(:most AS bigint) FOR UPDATE SKIP LOCKED))
RETURNING id;

-- name: delete_old_audit
-- Remove audit lines whose retention time is over. They are in order of time, so only the oldest are read.
DELETE FROM redrive.audit WHERE id = ANY (ARRAY(
    SELECT oldest.id FROM (SELECT a.id, a.at FROM redrive.audit AS a ORDER BY a.id LIMIT CAST(:most AS bigint)) AS oldest
    WHERE oldest.at <= CAST(:before AS bigint)))
RETURNING id;
