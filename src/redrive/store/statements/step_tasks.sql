-- Tasks: steps that workers of a queue execute. Nothing waits here for a row that the holder of the run has locked, except for
-- the runs themselves, which are locked before the tasks.

-- name: task_tenants
-- The tenants with due tasks in a queue, the index is read once for each; and whether a suspect is due.
WITH RECURSIVE names (tenant) AS (
    SELECT (SELECT t.tenant FROM redrive.step_tasks AS t /* INDEXED BY step_tasks_ready */
            WHERE t.status = 'READY' AND t.queue = CAST(:queue AS text) AND t.tenant > ''
            ORDER BY t.queue, t.tenant, t.due_at LIMIT 1)
    UNION ALL
    SELECT (SELECT t.tenant FROM redrive.step_tasks AS t /* INDEXED BY step_tasks_ready */
            WHERE t.status = 'READY' AND t.queue = CAST(:queue AS text) AND t.tenant > names.tenant
            ORDER BY t.queue, t.tenant, t.due_at LIMIT 1)
    FROM names WHERE names.tenant IS NOT NULL
)
SELECT names.tenant, EXISTS (
           SELECT 1 FROM redrive.step_tasks AS s /* INDEXED BY step_tasks_suspect */
           WHERE s.status = 'READY' AND s.deaths > 0 AND s.queue = CAST(:queue AS text) AND s.due_at <= :until LIMIT 1)
FROM names
WHERE names.tenant IS NOT NULL AND EXISTS (
    SELECT 1 FROM redrive.step_tasks AS d /* INDEXED BY step_tasks_ready */
    WHERE d.status = 'READY' AND d.queue = CAST(:queue AS text) AND d.tenant = names.tenant AND d.due_at <= :until LIMIT 1);

-- name: take_tasks
-- Give a live worker tasks of a tenant that are due by then, the oldest first. A suspect is given to a worker that holds no
-- other one. The limits of an attempt that is due later count from that time.
UPDATE redrive.step_tasks SET
    status = 'TAKEN', worker = CAST(:worker AS bigint), fence = fence + 1, begun = CAST(:begun AS integer), began_at = :at,
    first_at = COALESCE(first_at, CAST(:at AS bigint)), timeout_at = CASE WHEN due_at > :at THEN due_at ELSE CAST(:at AS bigint) END + timeout,
    limit_at = CASE WHEN due_at > :at THEN due_at ELSE CAST(:at AS bigint) END + CASE WHEN patience < timeout THEN patience ELSE timeout END,
    beat_at = NULL, heartbeat = NULL, admitted = NULL
WHERE (run, idx) IN (
    SELECT t.run, t.idx FROM redrive.step_tasks AS t /* INDEXED BY step_tasks_ready */
    WHERE t.status = 'READY' AND t.queue = CAST(:queue AS text) AND t.tenant = CAST(:tenant AS text) AND t.due_at <= :until
      AND (CAST(:any_name AS boolean) OR t.name = ANY (CAST(:names AS text[]))) AND (t.deaths > 0) = CAST(:suspects AS boolean)
      AND NOT (t.deaths > 0 AND EXISTS (
          SELECT 1 FROM redrive.step_tasks AS s
          WHERE s.worker = CAST(:worker AS bigint) AND s.status = 'TAKEN' AND s.deaths > 0))
      AND EXISTS (SELECT 1 FROM redrive.workers AS w WHERE w.id = CAST(:worker AS bigint) AND w.state = 'LIVE' AND NOT w.draining)
      AND (CAST(:everywhere AS boolean) OR EXISTS (
          SELECT 1 FROM redrive.runs AS r WHERE r.id = t.run AND r.workflow = ANY (CAST(:workflows AS text[]))))
    ORDER BY t.queue, t.tenant, t.due_at LIMIT CAST(:most AS bigint) FOR NO KEY UPDATE OF t SKIP LOCKED)
RETURNING run, idx;

-- name: task_cases
-- Tasks with their runs and their steps.
SELECT t.run, t.idx, t.tenant, t.queue, t.name, t.status, t.attempt, t.fence, t.worker, t.begun, t.deaths, t.due_at, t.began_at,
       t.limit_at, t.admitted, t.settled, t.reply, r.public_id, r.workflow, r.fence, r.status, r.correlation_id, r.root,
       r.generation, i.options, e.key, COALESCE(t.first_at, t.began_at), e.input, e.options
FROM unnest(CAST(:runs AS bigint[]), CAST(:indexes AS integer[])) AS w (run, idx)
/* CROSS */ JOIN redrive.step_tasks AS t ON t.run = w.run AND t.idx = w.idx
/* CROSS */ JOIN redrive.runs AS r ON r.id = w.run
/* CROSS */ JOIN redrive.entries AS e ON e.run = w.run AND e.idx = w.idx
LEFT JOIN redrive.inputs AS i ON i.run = w.run
ORDER BY t.run, t.idx;

-- name: show_begun
-- Let the journal show that attempts began. An entry that is being written just now is left out.
UPDATE redrive.entries AS e SET status = 'RUNNING', attempt = t.attempt, began_at = :at, wake_at = NULL
FROM redrive.step_tasks AS t
WHERE t.run = e.run AND t.idx = e.idx AND e.ended_at IS NULL AND (e.run, e.idx) IN (
    SELECT x.run, x.idx FROM unnest(CAST(:runs AS bigint[]), CAST(:indexes AS integer[])) AS w (run, idx)
    /* CROSS */ JOIN redrive.entries AS x ON x.run = w.run AND x.idx = w.idx
    FOR NO KEY UPDATE OF x SKIP LOCKED);

-- name: show_waiting
-- Let the journal show that a step waits for its next attempt.
UPDATE redrive.entries AS e SET status = :shown, attempt = CAST(:made AS integer), wake_at = CAST(:due_at AS bigint)
WHERE e.ended_at IS NULL AND (e.run, e.idx) IN (
    SELECT x.run, x.idx FROM redrive.entries AS x WHERE x.run = CAST(:run AS bigint) AND x.idx = CAST(:index AS integer)
    FOR NO KEY UPDATE OF x SKIP LOCKED);

-- name: begin_tasks
-- Note that the bodies of tasks are called from now on.
UPDATE redrive.step_tasks AS t SET
    begun = 1, began_at = :at, timeout_at = CAST(:at AS bigint) + timeout,
    limit_at = CAST(:at AS bigint) + CASE WHEN patience < timeout THEN patience ELSE timeout END
FROM unnest(CAST(:runs AS bigint[]), CAST(:indexes AS integer[]), CAST(:fences AS bigint[])) AS n (of_run, of_idx, of_fence)
WHERE t.run = n.of_run AND t.idx = n.of_idx AND t.fence = n.of_fence AND t.worker = CAST(:worker AS bigint) AND t.status = 'TAKEN'
RETURNING run, idx, fence;

-- name: admit_task
-- Note how its circuit admitted a task.
UPDATE redrive.step_tasks SET admitted = :admitted
WHERE run = CAST(:run AS bigint) AND idx = CAST(:index AS integer) AND fence = CAST(:fence AS bigint);

-- name: beat_tasks
-- Record heartbeats of tasks that their worker still has, which move the limits of the attempts.
UPDATE redrive.step_tasks AS t SET
    beat_at = :at, heartbeat = COALESCE(n.details, t.heartbeat),
    limit_at = CASE WHEN t.patience IS NULL OR CAST(:at AS bigint) + t.patience > t.timeout_at THEN t.timeout_at
                    ELSE CAST(:at AS bigint) + t.patience END
FROM unnest(CAST(:runs AS bigint[]), CAST(:indexes AS integer[]), CAST(:fences AS bigint[]), CAST(:details AS text[])) AS n (of_run, of_idx, of_fence, details)
WHERE t.run = n.of_run AND t.idx = n.of_idx AND t.fence = n.of_fence AND t.worker = CAST(:worker AS bigint) AND t.status = 'TAKEN'
RETURNING run, idx, fence;

-- name: lock_task_runs
-- Lock runs that will be woken, in the order in which all others lock them.
SELECT r.id FROM redrive.runs AS r WHERE r.id = ANY (CAST(:runs AS bigint[])) ORDER BY r.id FOR NO KEY UPDATE;

-- name: settle_task
-- Record the answer to a ticket, if the task was not taken from its worker.
UPDATE redrive.step_tasks SET
    status = :status, attempt = CAST(:attempt AS integer), due_at = CAST(:due_at AS bigint), deaths = CAST(:deaths AS integer),
    output = CAST(:output AS text), failure = CAST(:failure AS text), settled = CAST(:fence AS bigint), reply = CAST(:reply AS text), limit_at = NULL, begun = 0
WHERE run = CAST(:run AS bigint) AND idx = CAST(:index AS integer) AND fence = CAST(:fence AS bigint) AND status = 'TAKEN'
RETURNING run, idx;

-- name: put_task_attempt
-- Insert an attempt that did not succeed; a repeat changes nothing.
INSERT INTO redrive.attempts (run, idx, attempt, fence, tenant, ending, began_at, ended_at, category, failure, decision,
                              next_at, worker)
VALUES (CAST(:run AS bigint), CAST(:index AS integer), CAST(:attempt AS integer), CAST(:fence AS bigint), :tenant, :ending, CAST(:began_at AS bigint), CAST(:ended_at AS bigint), CAST(:category AS text), CAST(:failure AS text), CAST(:decision AS text),
        CAST(:next_at AS bigint), CAST(:worker AS bigint))
ON CONFLICT (run, idx, attempt, fence) DO NOTHING;

-- name: put_task_circuit
-- Insert a circuit at its first sample.
INSERT INTO redrive.circuits (tenant, key, status, generation, version, wave, next_wave_at, settings, changed_at)
VALUES (:tenant, :key, 'CLOSED', 0, 1, 0, 0, :settings, CAST(:at AS bigint))
ON CONFLICT (tenant, key) DO NOTHING;

-- name: put_task_sample
-- Insert the result of a call that a circuit admitted.
INSERT INTO redrive.circuit_samples (run, idx, attempt, fence, tenant, key, generation, good, category, at)
VALUES (CAST(:run AS bigint), CAST(:index AS integer), CAST(:attempt AS integer), CAST(:fence AS bigint), :tenant, :key, CAST(:generation AS bigint), CAST(:good AS integer), CAST(:category AS text), CAST(:at AS bigint))
ON CONFLICT (run, idx, attempt, fence) DO NOTHING;

-- name: wake_task_runs
-- Count a wake-up of each run, which is due because of it if it sleeps in the store.
UPDATE redrive.runs SET
    wakeups = wakeups + 1,
    available_at = CASE WHEN worker IS NULL AND status = 'SLEEPING' THEN CAST(:at AS bigint) ELSE available_at END
WHERE id = ANY (CAST(:runs AS bigint[])) AND finished_at IS NULL
RETURNING id, wakeups, worker IS NULL AND status = 'SLEEPING' AS due;

-- name: park_task
-- Set a task aside, because its run has ended.
UPDATE redrive.step_tasks SET status = 'PARKED', fence = fence + 1, limit_at = NULL
WHERE run = CAST(:run AS bigint) AND idx = CAST(:index AS integer) AND fence = CAST(:fence AS bigint);

-- name: end_task_wait
-- Delete the wait of a task that was set aside; a run that is continued begins another one.
DELETE FROM redrive.waits WHERE run = CAST(:run AS bigint) AND idx = CAST(:index AS integer) AND kind = 'step';

-- name: task_answers
-- The answers of a run's tasks, and those that were set aside.
SELECT t.idx, t.status = 'ANSWERED', t.tenant, t.attempt, t.began_at, t.output, t.failure
FROM redrive.step_tasks AS t /* INDEXED BY step_tasks_answered */
WHERE t.run = CAST(:run AS bigint) AND t.status IN ('ANSWERED', 'PARKED');

-- name: open_tasks
-- The tasks of a run that have no answer yet.
SELECT t.run, t.idx, t.tenant, t.queue, t.name, t.status, t.attempt, t.due_at, t.began_at, t.worker, t.beat_at, t.heartbeat
FROM redrive.step_tasks AS t
WHERE t.run = CAST(:run AS bigint) AND t.status IN ('READY', 'TAKEN')
ORDER BY t.idx LIMIT CAST(:most AS bigint);

-- name: lost_tasks
-- Tasks of workers that are dead or have stopped, and whether their worker died.
SELECT t.run, t.idx, w.state = 'DEAD' AS died FROM redrive.workers AS w /* CROSS */ JOIN redrive.step_tasks AS t /* INDEXED BY step_tasks_taken */
    ON t.worker = w.id AND t.status = 'TAKEN'
WHERE w.state <> 'LIVE' ORDER BY w.id LIMIT CAST(:most AS bigint);

-- name: late_tasks
-- Tasks whose attempt passed its limit while their worker was alive. Heartbeats come several times within a third of the lease.
SELECT t.run, t.idx FROM redrive.step_tasks AS t /* INDEXED BY step_tasks_limited */
WHERE t.status = 'TAKEN' AND t.limit_at < CAST(:before AS bigint) AND EXISTS (
    SELECT 1 FROM redrive.workers AS w WHERE w.id = t.worker AND w.beat_at + (w.lease_until - w.beat_at) / 3 > t.limit_at)
ORDER BY t.limit_at LIMIT CAST(:most AS bigint);

-- name: task_queues
-- The tasks of each queue and tenant: how many are due, since when, and how many workers have begun.
SELECT t.tenant, t.queue, SUM(CASE WHEN t.status = 'READY' AND t.due_at <= :at THEN 1 ELSE 0 END) AS due,
       SUM(CASE WHEN t.status = 'READY' AND t.due_at <= :at - 60000000 THEN 1 ELSE 0 END) AS late,
       SUM(CASE WHEN t.status = 'TAKEN' THEN 1 ELSE 0 END) AS taken,
       MIN(CASE WHEN t.status = 'READY' THEN t.due_at END) AS since
FROM redrive.step_tasks AS t
WHERE t.status IN ('READY', 'TAKEN') AND t.tenant = COALESCE(CAST(:tenant AS text), t.tenant)
GROUP BY t.tenant, t.queue ORDER BY t.queue, t.tenant;

-- name: drop_tasks
-- Remove the tasks of purged runs.
DELETE FROM redrive.step_tasks WHERE run = ANY (CAST(:runs AS bigint[]));
