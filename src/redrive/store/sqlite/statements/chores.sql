-- Recovery and purging, where SQLite and PostgreSQL differ: dead workers, and old runs.

-- name: expire_workers
-- Declare workers dead whose lease has expired.
UPDATE workers SET state = 'DEAD' WHERE state = 'LIVE' AND lease_until < :now;

-- name: expired_workers
-- Workers whose lease has expired; read without a lock.
SELECT id FROM workers WHERE state = 'LIVE' AND lease_until < :now;

-- name: old_runs
-- Runs whose retention time is over since they ended and their letters were closed; with `failed`, without
-- failed runs that have a letter, and without those that other runs wait for. The flag: a key names the run.
SELECT r.id, EXISTS (SELECT 1 FROM idempotency AS k WHERE k.run = r.id)
FROM json_each(:names) AS n CROSS JOIN runs AS r INDEXED BY runs_finished ON r.workflow = n.value
WHERE r.finished_at IS NOT NULL AND r.status <> 'DLQ_PENDING' AND r.purged_at IS NULL AND r.finished_at <= :before
  AND NOT EXISTS (SELECT 1 FROM letters AS l WHERE l.run = r.id AND (
      l.closed_at IS NULL OR l.closed_at > :before OR (:failed AND r.status <> 'SUCCESS')))
  AND NOT EXISTS (SELECT 1 FROM waits AS w WHERE w.kind IN ('letter', 'run')
                  AND w.subject = COALESCE(r.root, r.public_id) AND w.tenant = r.tenant)
LIMIT :most;

-- name: surplus_runs
-- Finished runs beyond the number that their workflow keeps, except with an open letter, or, with `failed`, failed ones
-- with any letter, or that other runs wait for. The flag: a key names the run.
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
  AND NOT EXISTS (SELECT 1 FROM letters AS l WHERE l.run = r.id AND (
      l.closed_at IS NULL OR (:failed AND r.status <> 'SUCCESS')))
  AND NOT EXISTS (SELECT 1 FROM waits AS w WHERE w.kind IN ('letter', 'run')
                  AND w.subject = COALESCE(r.root, r.public_id) AND w.tenant = r.tenant)
LIMIT :most;
