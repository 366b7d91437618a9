-- Letters, the decisions on them, and users' notes.

-- name: letters_by_id
-- The state of letters, with the ids of their runs.
SELECT public_id, run_id, tenant, status, closed_by, closed_at, resolution
FROM redrive.letters WHERE public_id = ANY (CAST(:ids AS text[]));

-- name: letters_of_runs
-- The state of the letters of runs, found by the runs' public ids.
SELECT l.public_id, l.run_id, l.tenant, l.status, l.closed_by, l.closed_at, l.resolution
FROM redrive.runs AS r /* CROSS */ JOIN redrive.letters AS l ON l.run = r.id
WHERE r.public_id = ANY (CAST(:ids AS text[]));

-- name: replays
-- The replays of these letters, in order.
SELECT letter, number, mode, digest, request, run_id, by, reason, key, changes, at, ended_at, outcome
FROM redrive.replays WHERE letter = ANY (CAST(:letters AS text[])) ORDER BY letter, number;

-- name: triage
-- Set the owner or the tags of a letter, or escalate it.
UPDATE redrive.letters SET owner = NULLIF(COALESCE(CAST(:owner AS text), owner), ''),
    tags = COALESCE(CAST(:tags AS text), tags),
    escalated_to = NULLIF(COALESCE(CAST(:escalate AS text), escalated_to), ''),
    escalated_at = CASE WHEN CAST(:escalate AS text) IS NULL THEN escalated_at
                        WHEN CAST(:escalate AS text) <> '' THEN :now END
WHERE public_id = :letter RETURNING 1;
