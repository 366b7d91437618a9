-- Reading runs, journals and letters.

-- name: run
-- One run with its payloads.
SELECT r.id, r.public_id, r.tenant, r.workflow, r.queue, r.rank, r.status, r.fence, r.worker, r.available_at,
       r.deadline, r.deaths, r.version, r.created_at, r.started_at, r.finished_at, r.correlation_id, r.parent,
       r.root, r.replay_of, r.generation, r.parked_on, r.diverged_at, r.letter, r.handler_for, r.timeout, i.input, i.options,
       o.output, o.failure
FROM runs AS r LEFT JOIN inputs AS i ON i.run = r.id LEFT JOIN results AS o ON o.run = r.id
WHERE r.public_id = :public_id AND (:tenant IS NULL OR r.tenant = :tenant);

-- name: runs_by_id
-- Several runs with their payloads.
SELECT r.id, r.public_id, r.tenant, r.workflow, r.queue, r.rank, r.status, r.fence, r.worker, r.available_at,
       r.deadline, r.deaths, r.version, r.created_at, r.started_at, r.finished_at, r.correlation_id, r.parent,
       r.root, r.replay_of, r.generation, r.parked_on, r.diverged_at, r.letter, r.handler_for, r.timeout, i.input, i.options,
       o.output, o.failure
FROM runs AS r LEFT JOIN inputs AS i ON i.run = r.id LEFT JOIN results AS o ON o.run = r.id
WHERE r.public_id IN (SELECT value FROM json_each(?));

-- name: journal
-- All entries of a run, superseded ones too.
SELECT idx, key, kind, name, status, attempt, done, first_at, began_at, ended_at, wake_at, limit_at, input,
       output, failure, options, superseded, loose, heartbeat_at, heartbeat
FROM entries WHERE run = ? ORDER BY idx;

-- name: attempts
-- All tries of a run that did not succeed, in order of time.
SELECT idx, attempt, fence, ending, began_at, ended_at, category, failure, decision, next_at, worker
FROM attempts WHERE run = ? ORDER BY ended_at, began_at, idx, attempt, fence;

-- name: letter
-- One dead letter.
SELECT l.id, l.public_id, l.tenant, l.run, l.run_id, l.workflow, l.status, l.code, l.stage, l.category, l.reason,
       t.failure, l.fingerprint, l.payload_hash, t.input, t.options, l.step, l.step_index, l.attempts,
       l.replay_count, l.owner, l.correlation_id, l.version, l.created_at, l.failed_at, l.closed_at, l.closed_by,
       l.resolution, l.expires_at, l.tags
FROM letters AS l JOIN letter_texts AS t ON t.letter = l.id
WHERE l.public_id = :public_id AND (:tenant IS NULL OR l.tenant = :tenant);

-- name: letter_of
-- The dead letter of a run.
SELECT l.id, l.public_id, l.tenant, l.run, l.run_id, l.workflow, l.status, l.code, l.stage, l.category, l.reason,
       t.failure, l.fingerprint, l.payload_hash, t.input, t.options, l.step, l.step_index, l.attempts,
       l.replay_count, l.owner, l.correlation_id, l.version, l.created_at, l.failed_at, l.closed_at, l.closed_by,
       l.resolution, l.expires_at, l.tags
FROM letters AS l JOIN letter_texts AS t ON t.letter = l.id
WHERE l.run = ?;

-- name: live_workflows
-- What the live workers have registered, one JSON array each.
SELECT workflows FROM workers WHERE state = 'LIVE';

-- name: due_in_lane
-- How many runs of one lane are due, up to a limit.
SELECT count(*) FROM (
    SELECT 1 FROM runs INDEXED BY runs_due
    WHERE worker IS NULL AND available_at IS NOT NULL AND deaths = 0
      AND tenant = ? AND queue = ? AND rank = ? AND workflow = ? AND available_at <= ? LIMIT ?);

-- name: due_suspects
-- How many suspects of each workflow are due, except of those named.
SELECT workflow, count(*) FROM (
    SELECT workflow FROM runs INDEXED BY runs_suspect
    WHERE worker IS NULL AND available_at IS NOT NULL AND deaths > 0 AND available_at <= ?
      AND workflow NOT IN (SELECT value FROM json_each(?)) LIMIT ?)
GROUP BY workflow;
