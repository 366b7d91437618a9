-- Letters, the decisions on them, and what people note on them.

-- name: letters_by_id
-- How letters stand, and the runs they are about.
SELECT public_id, run_id, tenant, status, closed_by, resolution
FROM redrive.letters WHERE public_id = ANY (CAST(:ids AS text[]));

-- name: letters_of_runs
-- The same for the letters of these runs, found by the runs' public ids.
SELECT l.public_id, l.run_id, l.tenant, l.status, l.closed_by, l.resolution
FROM redrive.runs AS r /* CROSS */ JOIN redrive.letters AS l ON l.run = r.id
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
