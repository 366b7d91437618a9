-- Claiming due runs. A lane is one (tenant, queue, rank, workflow, pin); see store/claims.py.

-- name: worker_version
-- The version of a worker that may claim, and the versions and pins of its workflows.
SELECT version, versions, pins FROM workers WHERE id = ? AND state = 'LIVE' AND NOT draining;

-- name: lanes
-- The first run of each lane after a position. The query skips through the index lane by lane, to the next pin, else
-- workflow, rank, queue, tenant; one comparison of all five would walk through every run of the lane it leaves.
WITH RECURSIVE heads (id, n) AS (
    SELECT NULL, 0
    UNION ALL
    SELECT COALESCE(
            (SELECT id FROM runs INDEXED BY runs_due
             WHERE worker IS NULL AND available_at IS NOT NULL AND deaths = 0
               AND tenant = COALESCE(head.tenant, :tenant)
               AND queue = COALESCE(head.queue, :queue) AND rank = COALESCE(head.rank, :rank)
               AND workflow = COALESCE(head.workflow, :workflow) AND pin > COALESCE(head.pin, :pin)
             ORDER BY pin, available_at, id LIMIT 1),
            (SELECT id FROM runs INDEXED BY runs_due
             WHERE worker IS NULL AND available_at IS NOT NULL AND deaths = 0
               AND tenant = COALESCE(head.tenant, :tenant)
               AND queue = COALESCE(head.queue, :queue) AND rank = COALESCE(head.rank, :rank)
               AND workflow > COALESCE(head.workflow, :workflow)
             ORDER BY workflow, pin, available_at, id LIMIT 1),
            (SELECT id FROM runs INDEXED BY runs_due
             WHERE worker IS NULL AND available_at IS NOT NULL AND deaths = 0
               AND tenant = COALESCE(head.tenant, :tenant)
               AND queue = COALESCE(head.queue, :queue) AND rank > COALESCE(head.rank, :rank)
             ORDER BY rank, workflow, pin, available_at, id LIMIT 1),
            (SELECT id FROM runs INDEXED BY runs_due
             WHERE worker IS NULL AND available_at IS NOT NULL AND deaths = 0
               AND tenant = COALESCE(head.tenant, :tenant) AND queue > COALESCE(head.queue, :queue)
             ORDER BY queue, rank, workflow, pin, available_at, id LIMIT 1),
            (SELECT id FROM runs INDEXED BY runs_due
             WHERE worker IS NULL AND available_at IS NOT NULL AND deaths = 0
               AND tenant > COALESCE(head.tenant, :tenant)
             ORDER BY tenant, queue, rank, workflow, pin, available_at, id LIMIT 1)), heads.n + 1
    FROM heads LEFT JOIN runs AS head ON head.id = heads.id
    WHERE heads.n < :most AND (heads.n = 0 OR heads.id IS NOT NULL)
)
SELECT runs.tenant, runs.queue, runs.rank, runs.workflow, runs.pin, runs.available_at
FROM heads CROSS JOIN runs ON runs.id = heads.id;

-- name: candidates
-- The oldest due runs of these lanes, up to a number of each.
SELECT lane.key, (
    SELECT json_group_array(json_array(available_at, id)) FROM (
        SELECT available_at, id FROM runs INDEXED BY runs_due
        WHERE worker IS NULL AND available_at IS NOT NULL AND deaths = 0
          AND tenant = json_extract(lane.value, '$[0]') AND queue = json_extract(lane.value, '$[1]')
          AND rank = json_extract(lane.value, '$[2]') AND workflow = json_extract(lane.value, '$[3]')
          AND pin = json_extract(lane.value, '$[4]')
          AND available_at <= :now
        ORDER BY available_at, id LIMIT :most))
FROM json_each(:lanes) AS lane
ORDER BY lane.key;

-- name: next_due
-- When the next run of these lanes is due.
SELECT min((
    SELECT available_at FROM runs INDEXED BY runs_due
    WHERE worker IS NULL AND available_at IS NOT NULL AND deaths = 0
      AND tenant = json_extract(lane.value, '$[0]') AND queue = json_extract(lane.value, '$[1]')
      AND rank = json_extract(lane.value, '$[2]') AND workflow = json_extract(lane.value, '$[3]')
      AND pin = json_extract(lane.value, '$[4]')
    ORDER BY available_at LIMIT 1))
FROM json_each(:lanes) AS lane;

-- name: next_suspect
-- The suspect that is due first, of workflows that the worker has, with their pins, that are not paused; of its queues.
SELECT runs.id, runs.available_at
FROM json_each(:workflows) AS known CROSS JOIN runs ON runs.id = (
    SELECT id FROM runs INDEXED BY runs_suspect_of
    WHERE worker IS NULL AND available_at IS NOT NULL AND deaths > 0
      AND workflow = json_extract(known.value, '$[0]') AND pin = json_extract(known.value, '$[1]')
      AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
      AND (:tenant IS NULL OR tenant = :tenant)
    ORDER BY available_at, id LIMIT 1)
ORDER BY runs.available_at, runs.id LIMIT 1;

-- name: paused_names
-- The paused workflows.
SELECT workflow FROM pauses;

-- name: take
-- Claim the runs for the worker. The version is the one that began the run, and so is its pin.
UPDATE runs SET
    status = CASE status WHEN 'COMPENSATING' THEN status ELSE 'RUNNING' END,
    worker = :worker,
    fence = fence + 1,
    available_at = NULL,
    parked_on = NULL,
    started_at = COALESCE(started_at, :now),
    version = CASE fence WHEN 0 THEN COALESCE((SELECT value FROM json_each(:versions) WHERE key = workflow), :version)
                         ELSE version END,
    pin = CASE fence WHEN 0 THEN COALESCE((SELECT value FROM json_each(:pins) WHERE key = workflow), '') ELSE pin END
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: claimed_runs
-- Everything that a worker needs to execute these runs, in order of their ids.
SELECT runs.status, runs.id, runs.public_id, runs.tenant, runs.workflow, runs.fence, runs.version, inputs.input,
       inputs.options, runs.deadline, runs.deaths, runs.correlation_id, runs.root, runs.generation,
       runs.created_at, runs.diverged_at, runs.letter, runs.sole_step, runs.started_at,
       runs.handler_for, runs.ends_as, runs.queue
FROM runs JOIN inputs ON inputs.run = runs.id
WHERE runs.id IN (SELECT value FROM json_each(?))
ORDER BY runs.id;

-- name: journals
-- The journals of these runs, for execution.
SELECT idx, key, kind, name, status, attempt, done, first_at, began_at, ended_at, wake_at, limit_at, input,
       output, failure, options, superseded, loose, heartbeat_at, heartbeat, run
FROM entries
WHERE run IN (SELECT value FROM json_each(?))
ORDER BY run, idx;
