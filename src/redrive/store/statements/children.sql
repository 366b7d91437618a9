-- Runs that wait for the ends of other runs, and runs that end with their owner.

-- name: children_of
-- Runs that end with an owner, by the name under which others wait for them.
SELECT COALESCE(r.root, r.public_id) AS run_id, r.workflow, r.finished_at IS NULL AS under_way
FROM redrive.runs AS r /* INDEXED BY runs_of_owner */
WHERE r.owner = :owner AND r.tenant IS NOT DISTINCT FROM :tenant AND r.replaced_by IS NULL ORDER BY r.id;

-- name: run_waits
-- Waits for runs, in order, from a position on.
SELECT w.subject, w.run, w.kind, w.tenant FROM (
    SELECT a.subject, a.run, a.kind, a.tenant FROM (
        SELECT n.subject, n.run, n.kind, n.tenant FROM redrive.waits AS n /* INDEXED BY waits_for */
        WHERE n.kind = 'letter' AND (n.subject, n.run) > (CAST(:subject AS text), CAST(:run AS bigint))
        ORDER BY n.subject, n.run LIMIT CAST(:most AS bigint)) AS a
    UNION ALL
    SELECT b.subject, b.run, b.kind, b.tenant FROM (
        SELECT n.subject, n.run, n.kind, n.tenant FROM redrive.waits AS n /* INDEXED BY waits_for */
        WHERE n.kind = 'run' AND (n.subject, n.run) > (CAST(:subject AS text), CAST(:run AS bigint))
        ORDER BY n.subject, n.run LIMIT CAST(:most AS bigint)) AS b) AS w
ORDER BY w.subject, w.run LIMIT CAST(:most AS bigint);

-- name: ended_subjects
-- Those of the runs that have ended, or that a full replay replaced.
-- One subquery for each run: with EXISTS, PostgreSQL may read all open letters into a hash table.
SELECT c.public_id, c.tenant, c.status, c.replaced_by,
       (SELECT l.id FROM redrive.letters AS l WHERE l.run = c.id AND l.closed_at IS NULL LIMIT 1) IS NOT NULL AS open_letter
FROM redrive.runs AS c
WHERE c.public_id = ANY (CAST(:subjects AS text[])) AND (c.finished_at IS NOT NULL OR c.replaced_by IS NOT NULL);

-- name: wake_waiting
-- Count the wake-up of a run, which is due because of it if no worker has it; with `asleep`, only if it is not due yet.
UPDATE redrive.runs SET
    wakeups = wakeups + 1,
    available_at = CASE WHEN worker IS NULL AND status IN ('SLEEPING', 'COMPENSATING') THEN :now ELSE available_at END
WHERE id = CAST(:run AS bigint) AND finished_at IS NULL
  AND (NOT CAST(:asleep AS boolean)
       OR (worker IS NULL AND status IN ('SLEEPING', 'COMPENSATING') AND (available_at IS NULL OR available_at > :now)))
RETURNING id, wakeups, worker IS NULL AND status IN ('SLEEPING', 'COMPENSATING') AS due;

-- name: wake_free
-- As wake_waiting, for all of these runs whose rows are free. It waits for no lock, so it cannot be part of a deadlock.
UPDATE redrive.runs SET
    wakeups = wakeups + 1,
    available_at = CASE WHEN worker IS NULL AND status IN ('SLEEPING', 'COMPENSATING') THEN :now ELSE available_at END
WHERE id = ANY (ARRAY(
          SELECT r.id FROM redrive.runs AS r
          WHERE r.id = ANY (CAST(:runs AS bigint[])) AND r.finished_at IS NULL FOR NO KEY UPDATE SKIP LOCKED))
  AND (NOT CAST(:asleep AS boolean)
       OR (worker IS NULL AND status IN ('SLEEPING', 'COMPENSATING') AND (available_at IS NULL OR available_at > :now)))
RETURNING id, wakeups, worker IS NULL AND status IN ('SLEEPING', 'COMPENSATING') AS due;

-- name: owned_runs
-- Runs under way that have an owner, in order, from a position on; with the state of the owner.
SELECT c.owner, c.id, c.public_id, (SELECT p.status FROM redrive.runs AS p WHERE p.public_id = c.owner) AS status
FROM (SELECT r.owner, r.id, r.public_id FROM redrive.runs AS r /* INDEXED BY runs_owned */
      WHERE r.owner IS NOT NULL AND r.finished_at IS NULL
        AND (r.owner, r.id) > (CAST(:owner AS text), CAST(:run AS bigint))
      ORDER BY r.owner, r.id LIMIT CAST(:most AS bigint)) AS c
ORDER BY c.owner, c.id;
