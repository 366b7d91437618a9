-- What the failure desk asks: cases to decide on, notes on letters, the catalogue, the audit log.

-- name: letters_by_id
-- Letters, and the runs they are about.
SELECT id, public_id, tenant, run, run_id, workflow, status, code, stage, category, reason, failure, fingerprint,
       payload_hash, input, options, step, step_index, attempts, replay_count, owner, correlation_id, version,
       created_at, failed_at, closed_at, closed_by, resolution, expires_at, tags
FROM letters WHERE public_id IN (SELECT value FROM json_each(?));

-- name: letters_of_runs
-- The letters of these runs, found by the runs' public ids.
SELECT l.id, l.public_id, l.tenant, l.run, l.run_id, l.workflow, l.status, l.code, l.stage, l.category, l.reason,
       l.failure, l.fingerprint, l.payload_hash, l.input, l.options, l.step, l.step_index, l.attempts,
       l.replay_count, l.owner, l.correlation_id, l.version, l.created_at, l.failed_at, l.closed_at, l.closed_by,
       l.resolution, l.expires_at, l.tags
FROM runs AS r CROSS JOIN letters AS l ON l.run = r.id
WHERE r.public_id IN (SELECT value FROM json_each(?));

-- name: replays
-- The replays of these letters, in order.
SELECT letter, number, mode, digest, request, run_id, by, reason, key, changes, at, ended_at, outcome
FROM replays WHERE letter IN (SELECT value FROM json_each(?)) ORDER BY letter, number;

-- name: triage
-- Note an owner or tags on a letter.
UPDATE letters SET owner = NULLIF(COALESCE(:owner, owner), ''), tags = COALESCE(:tags, tags) WHERE public_id = :letter;

-- name: known
-- Workflows and steps of these names, as the newest code that contains them registered them.
SELECT c.kind, c.name, c.version, c.options, c.schema_in, c.schema_out
FROM catalogue AS c JOIN versions AS v ON v.version = c.version
WHERE c.kind IN ('workflow', 'step') AND c.name IN (SELECT value FROM json_each(?))
ORDER BY c.kind, c.name, v.seq DESC;

-- name: workflows
-- Every workflow that any code registered, the newest of that code first.
SELECT c.kind, c.name, c.version, c.options, c.schema_in, c.schema_out
FROM catalogue AS c JOIN versions AS v ON v.version = c.version
WHERE c.kind = 'workflow' ORDER BY c.name, v.seq DESC;
