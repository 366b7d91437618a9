-- What the failure desk asks: cases to decide on, notes on letters, the catalogue, the audit log.

-- name: letters_by_id
-- How letters stand, and the runs they are about.
SELECT public_id, run_id, tenant, status, closed_by, resolution
FROM redrive.letters WHERE public_id = ANY (CAST(:ids AS text[]));

-- name: letters_of_runs
-- The same for the letters of these runs, found by the runs' public ids.
SELECT l.public_id, l.run_id, l.tenant, l.status, l.closed_by, l.resolution
FROM redrive.runs AS r JOIN redrive.letters AS l ON l.run = r.id
WHERE r.public_id = ANY (CAST(:ids AS text[]));

-- name: replays
-- The replays of these letters, in order.
SELECT letter, number, mode, digest, request, run_id, by, reason, key, changes, at, ended_at, outcome
FROM redrive.replays WHERE letter = ANY (CAST(:letters AS text[])) ORDER BY letter, number;

-- name: triage
-- Note an owner or tags on a letter.
UPDATE redrive.letters SET owner = NULLIF(COALESCE(CAST(:owner AS text), owner), ''),
    tags = COALESCE(CAST(:tags AS text), tags)
WHERE public_id = :letter RETURNING 1;

-- name: known
-- Workflows and steps of these names, as the newest code that contains them registered them.
SELECT c.kind, c.name, c.version, c.options, c.schema_in, c.schema_out
FROM redrive.catalogue AS c JOIN redrive.versions AS v ON v.version = c.version
WHERE c.kind IN ('workflow', 'step') AND c.name = ANY (CAST(:names AS text[]))
ORDER BY c.kind, c.name, v.seq DESC;

-- name: workflows
-- Every workflow that any code registered, the newest of that code first.
SELECT c.kind, c.name, c.version, c.options, c.schema_in, c.schema_out
FROM redrive.catalogue AS c JOIN redrive.versions AS v ON v.version = c.version
WHERE c.kind = 'workflow' ORDER BY c.name, v.seq DESC;
