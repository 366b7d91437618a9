-- Runs that wait for other runs. PostgreSQL has one function for it.

-- name: waiting_run
-- The wake-ups, the fence and the tenant of a run that waits.
SELECT wakeups, fence, tenant FROM runs WHERE id = :run;

-- name: run_end
-- The state of a run: the name under which others wait for it, its result, and the run in its place.
SELECT r.public_id, r.workflow, COALESCE(r.root, r.public_id), r.status, o.output, o.failure,
       EXISTS (SELECT 1 FROM letters AS l WHERE l.run = r.id AND l.closed_at IS NULL) AS open_letter,
       r.owner, r.fence > 0 AS executed, r.ends_as, r.replaced_by
FROM runs AS r LEFT JOIN results AS o ON o.run = r.id
WHERE r.public_id = :run_id AND r.tenant = :tenant;
