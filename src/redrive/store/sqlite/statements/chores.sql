-- What chores ask: who died, what hangs, what is overdue, what was kept long enough.

-- name: bury
-- Declare workers dead whose lease has run out.
UPDATE workers SET state = 'DEAD' WHERE state = 'LIVE' AND lease_until < ?;

-- name: expired
-- Whether there is anybody to bury: a look that takes no lock.
SELECT count(*) FROM workers WHERE state = 'LIVE' AND lease_until < ?;

-- name: graves
-- Dead or stopped workers that still hold runs.
SELECT id, name, version, state, workflows, started_at, beat_at, lease_until FROM workers
WHERE state <> 'LIVE' AND EXISTS (SELECT 1 FROM runs WHERE runs.worker = workers.id)
ORDER BY id;

-- name: held
-- The runs that a worker holds.
SELECT r.id, r.public_id, r.tenant, r.workflow, r.queue, r.rank, r.status, r.fence, r.worker, r.available_at,
       r.deadline, r.deaths, r.version, r.created_at, r.started_at, r.finished_at, r.correlation_id, r.parent,
       r.root, r.replay_of, r.generation, r.parked_on, r.diverged_at, r.letter, r.handler_for, r.timeout, i.input, i.options
FROM runs AS r LEFT JOIN inputs AS i ON i.run = r.id
WHERE r.worker = ?
ORDER BY r.id;

-- name: hung
-- Runs in whose present claim a try passed its limit.
SELECT r.id, r.public_id, r.tenant, r.workflow, r.queue, r.rank, r.status, r.fence, r.worker, r.available_at,
       r.deadline, r.deaths, r.version, r.created_at, r.started_at, r.finished_at, r.correlation_id, r.parent,
       r.root, r.replay_of, r.generation, r.parked_on, r.diverged_at, r.letter, r.handler_for, r.timeout, i.input, i.options
FROM (SELECT e.run FROM entries AS e INDEXED BY entries_limited
      CROSS JOIN runs AS holder ON holder.id = e.run
      WHERE e.limit_at IS NOT NULL AND e.limit_at < :before AND e.superseded = 0
        AND holder.worker IS NOT NULL AND holder.fence = e.fence
      GROUP BY e.run ORDER BY min(e.limit_at) LIMIT :most) AS late
CROSS JOIN runs AS r ON r.id = late.run LEFT JOIN inputs AS i ON i.run = r.id;

-- name: overdue
-- Unfinished runs that passed their deadline.
SELECT r.id, r.public_id, r.tenant, r.workflow, r.queue, r.rank, r.status, r.fence, r.worker, r.available_at,
       r.deadline, r.deaths, r.version, r.created_at, r.started_at, r.finished_at, r.correlation_id, r.parent,
       r.root, r.replay_of, r.generation, r.parked_on, r.diverged_at, r.letter, r.handler_for, r.timeout, i.input, i.options
FROM runs AS r INDEXED BY runs_deadline LEFT JOIN inputs AS i ON i.run = r.id
WHERE r.deadline IS NOT NULL AND r.finished_at IS NULL AND r.deadline < ? AND r.status <> 'COMPENSATING'
ORDER BY r.deadline LIMIT ?;

-- name: open_entries
-- The entries of these runs that have not ended.
SELECT run, idx, key, kind, name, status, attempt, done, first_at, began_at, ended_at, wake_at, limit_at, input,
       output, failure, options, superseded, loose, heartbeat_at, heartbeat
FROM entries
WHERE run IN (SELECT value FROM json_each(?)) AND ended_at IS NULL AND superseded = 0
ORDER BY run, idx;

-- name: expiring
-- Runs with open letters that nobody decided on in time.
SELECT r.id, r.public_id, r.tenant, r.workflow, r.queue, r.rank, r.status, r.fence, r.worker, r.available_at,
       r.deadline, r.deaths, r.version, r.created_at, r.started_at, r.finished_at, r.correlation_id, r.parent,
       r.root, r.replay_of, r.generation, r.parked_on, r.diverged_at, r.letter, r.handler_for, r.timeout, i.input, i.options
FROM letters AS l INDEXED BY letters_expiring CROSS JOIN runs AS r ON r.id = l.run LEFT JOIN inputs AS i ON i.run = r.id
WHERE l.status = 'OPEN' AND l.expires_at <= ? ORDER BY l.expires_at LIMIT ?;

-- name: old_letters
-- Letters that were closed long enough ago.
DELETE FROM letters WHERE id IN (
    SELECT id FROM letters INDEXED BY letters_closed
    WHERE closed_at IS NOT NULL AND closed_at <= ? ORDER BY closed_at LIMIT ?)
RETURNING public_id;

-- name: ended_workflows
-- The workflows with finished runs that are not purged yet: one look along the index for each.
WITH RECURSIVE names (workflow) AS (
    SELECT min(r.workflow) FROM runs AS r INDEXED BY runs_finished
    WHERE r.workflow > '' AND r.finished_at IS NOT NULL AND r.status <> 'DLQ_PENDING' AND r.purged_at IS NULL
    UNION ALL
    SELECT (SELECT min(r.workflow) FROM runs AS r INDEXED BY runs_finished
            WHERE r.workflow > names.workflow AND r.finished_at IS NOT NULL AND r.status <> 'DLQ_PENDING'
              AND r.purged_at IS NULL)
    FROM names WHERE names.workflow IS NOT NULL
)
SELECT workflow FROM names WHERE workflow IS NOT NULL;

-- name: old_runs
-- Runs that ended, and whose letters were closed, long enough ago, and whether a key still names them.
SELECT r.id, EXISTS (SELECT 1 FROM idempotency AS k WHERE k.run = r.id)
FROM json_each(:names) AS n CROSS JOIN runs AS r INDEXED BY runs_finished ON r.workflow = n.value
WHERE r.finished_at IS NOT NULL AND r.status <> 'DLQ_PENDING' AND r.purged_at IS NULL AND r.finished_at <= :before
  AND NOT EXISTS (SELECT 1 FROM letters AS l WHERE l.run = r.id AND (l.closed_at IS NULL OR l.closed_at > :before))
LIMIT :most;

-- name: surplus_runs
-- Finished runs beyond the last of their workflow, and whether a key still names them; an open letter keeps its run.
WITH newest (workflow, id) AS MATERIALIZED (
    SELECT n.value, (SELECT r.id FROM runs AS r INDEXED BY runs_finished
                     WHERE r.workflow = n.value AND r.finished_at IS NOT NULL AND r.status <> 'DLQ_PENDING'
                       AND r.purged_at IS NULL
                     ORDER BY r.finished_at DESC, r.id DESC LIMIT 1 OFFSET :keep)
    FROM json_each(:names) AS n
)
SELECT r.id, EXISTS (SELECT 1 FROM idempotency AS k WHERE k.run = r.id)
FROM newest CROSS JOIN runs AS last ON last.id = newest.id
CROSS JOIN runs AS r INDEXED BY runs_finished ON r.workflow = newest.workflow
WHERE (r.finished_at, r.id) <= (last.finished_at, last.id)
  AND r.finished_at IS NOT NULL AND r.status <> 'DLQ_PENDING' AND r.purged_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM letters AS l WHERE l.run = r.id AND l.closed_at IS NULL)
LIMIT :most;

-- name: mark_purged
-- What is left of a purged run while its key lives.
UPDATE runs SET purged_at = ? WHERE id IN (SELECT value FROM json_each(?));

-- name: drop_replays
-- The replays of purged runs that never had a letter.
DELETE FROM replays
WHERE letter IN (SELECT 'dl-' || r.public_id FROM runs AS r WHERE r.id IN (SELECT value FROM json_each(?)))
  AND NOT EXISTS (SELECT 1 FROM letters AS l WHERE l.public_id = replays.letter);

-- name: drop_entries
-- The journal of purged runs.
DELETE FROM entries WHERE run IN (SELECT value FROM json_each(?));

-- name: drop_attempts
-- The failed tries of purged runs.
DELETE FROM attempts WHERE run IN (SELECT value FROM json_each(?));

-- name: drop_inputs
-- The inputs of purged runs.
DELETE FROM inputs WHERE run IN (SELECT value FROM json_each(?));

-- name: drop_results
-- The results of purged runs.
DELETE FROM results WHERE run IN (SELECT value FROM json_each(?));

-- name: drop_runs
-- The purged runs themselves.
DELETE FROM runs WHERE id IN (SELECT value FROM json_each(?));

-- name: old_keys
-- Idempotency keys that have expired, unless their run goes on, or a letter could still replay it.
SELECT k.tenant, k.key, k.run FROM idempotency AS k INDEXED BY idempotency_expiring
WHERE k.expires_at <= ?
  AND NOT EXISTS (SELECT 1 FROM runs AS r WHERE r.id = k.run AND r.finished_at IS NULL)
  AND NOT EXISTS (SELECT 1 FROM letters AS l WHERE l.public_id = 'dl-' || k.run_id AND l.status IN ('OPEN', 'REPLAYING'))
ORDER BY k.expires_at LIMIT ?;

-- name: drop_key
-- An expired key.
DELETE FROM idempotency WHERE tenant = ? AND key = ?;

-- name: purged_before
-- Those of these runs of which only the state and the result are left.
SELECT id FROM runs WHERE id IN (SELECT value FROM json_each(?)) AND purged_at IS NOT NULL;

-- name: old_workers
-- Workers that ended long ago and hold nothing.
DELETE FROM workers WHERE id IN (
    SELECT id FROM workers
    WHERE state <> 'LIVE' AND lease_until <= ?
      AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.worker = workers.id)
    ORDER BY id LIMIT ?);

-- name: old_audit
-- Lines of the audit log that were kept long enough. They are in order of time, so the oldest ones tell.
DELETE FROM audit WHERE id IN (
    SELECT id FROM (SELECT id, at FROM audit ORDER BY id LIMIT :most) WHERE at <= :before);

-- name: old_replays
-- The lineage of letters that are gone.
DELETE FROM replays WHERE letter IN (SELECT value FROM json_each(?));
