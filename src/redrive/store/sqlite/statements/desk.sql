-- What the failure desk asks: cases to decide on, notes on letters, the catalogue, the audit log.

-- name: letters_by_id
-- How letters stand, and the runs they are about.
SELECT public_id, run_id, tenant, status, closed_by, resolution
FROM letters WHERE public_id IN (SELECT value FROM json_each(?));

-- name: letters_of_runs
-- The same for the letters of these runs, found by the runs' public ids.
SELECT l.public_id, l.run_id, l.tenant, l.status, l.closed_by, l.resolution
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
