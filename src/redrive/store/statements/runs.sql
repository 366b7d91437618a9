-- Reading runs, their journals and their failed attempts.

-- name: run
-- One run with its payloads.
SELECT r.id, r.public_id, r.tenant, r.workflow, r.queue, r.rank, r.status, r.fence, r.worker, r.available_at,
       r.deadline, r.deaths, r.version, r.created_at, r.started_at, r.finished_at, r.correlation_id, r.parent,
       r.root, r.replay_of, r.generation, r.parked_on, r.diverged_at, r.letter, r.handler_for, r.timeout, r.pin, i.input, i.options,
       o.output, o.failure
FROM redrive.runs AS r LEFT JOIN redrive.inputs AS i ON i.run = r.id LEFT JOIN redrive.results AS o ON o.run = r.id
WHERE r.public_id = :public_id AND (CAST(:tenant AS text) IS NULL OR r.tenant = :tenant);

-- name: runs_by_id
-- Several runs with their payloads.
SELECT r.id, r.public_id, r.tenant, r.workflow, r.queue, r.rank, r.status, r.fence, r.worker, r.available_at,
       r.deadline, r.deaths, r.version, r.created_at, r.started_at, r.finished_at, r.correlation_id, r.parent,
       r.root, r.replay_of, r.generation, r.parked_on, r.diverged_at, r.letter, r.handler_for, r.timeout, r.pin, i.input, i.options,
       o.output, o.failure
FROM redrive.runs AS r LEFT JOIN redrive.inputs AS i ON i.run = r.id LEFT JOIN redrive.results AS o ON o.run = r.id
WHERE r.public_id = ANY (CAST(:public_ids AS text[]));

-- name: journal
-- All entries of a run, superseded ones included.
SELECT idx, key, kind, name, status, attempt, done, first_at, began_at, ended_at, wake_at, limit_at, input,
       output, failure, options, superseded, loose, heartbeat_at, heartbeat
FROM redrive.entries WHERE run = :run ORDER BY idx;

-- name: journals
-- The journals of these runs, superseded entries included.
SELECT run, idx, key, kind, name, status, attempt, done, first_at, began_at, ended_at, wake_at, limit_at, input,
       output, failure, options, superseded, loose, heartbeat_at, heartbeat
FROM redrive.entries WHERE run = ANY (CAST(:runs AS bigint[])) ORDER BY run, idx;

-- name: attempts
-- All attempts of a run that did not succeed, in order of time.
SELECT idx, attempt, fence, ending, began_at, ended_at, category, failure, decision, next_at, worker
FROM redrive.attempts WHERE run = :run ORDER BY ended_at, began_at, idx, attempt, fence;

-- name: live_workflows
-- The workflows of each live worker, the queues that it takes if it does not take all, and the versions of workflows.
SELECT workflows, queues, version, versions FROM redrive.workers WHERE state = 'LIVE';

-- name: due_in_lane
-- The number of due runs of one lane, up to a limit.
SELECT COUNT(*) FROM (
    SELECT 1 FROM redrive.runs /* INDEXED BY runs_due */
    WHERE worker IS NULL AND available_at IS NOT NULL AND deaths = 0
      AND tenant = :tenant AND queue = :queue AND rank = :rank AND workflow = :workflow AND pin = :pin
      AND available_at <= CAST(:at AS bigint) LIMIT CAST(:most AS bigint)) AS due;

-- name: due_suspects
-- The number of due suspects of each workflow, queue and pin, except of the given workflows without a pin.
SELECT workflow, queue, pin, COUNT(*) FROM (
    SELECT workflow, queue, pin FROM redrive.runs /* INDEXED BY runs_suspect */
    WHERE worker IS NULL AND available_at IS NOT NULL AND deaths > 0 AND available_at <= CAST(:at AS bigint)
      AND (pin <> '' OR workflow <> ALL (CAST(:known AS text[]))) LIMIT CAST(:most AS bigint)) AS due
GROUP BY workflow, queue, pin;

-- name: status_note
-- The status that the code of a run set.
SELECT n.tenant, n.at, n.text, n.progress, n.data FROM redrive.run_notes AS n WHERE n.run = CAST(:run AS bigint);

-- name: move_run
-- Move a pinned run that may continue to another version of the code. Without a pin, workers of all versions claim it.
UPDATE redrive.runs SET version = :version, pin = :pin, diverged_at = NULL
WHERE id = CAST(:run AS bigint) AND pin <> '' AND status NOT IN ('SUCCESS', 'CANCELLED', 'COMPENSATED') RETURNING id;
