-- Claiming due runs. A lane is one (tenant, queue, rank, workflow, pin); see store/claims.py.

-- name: lanes
-- The first run of each lane after a position: the query skips through the index from lane to lane.
WITH RECURSIVE walk (tenant, queue, rank, workflow, pin, head, n) AS (
    SELECT CAST(:tenant AS text) COLLATE "C", CAST(:queue AS text) COLLATE "C", CAST(:rank AS bigint),
           CAST(:workflow AS text) COLLATE "C", CAST(:pin AS text) COLLATE "C", CAST(NULL AS bigint), 0
    UNION ALL
    SELECT next.tenant, next.queue, next.rank, next.workflow, next.pin, next.available_at, walk.n + 1
    FROM walk CROSS JOIN LATERAL (
        SELECT r.tenant, r.queue, r.rank, r.workflow, r.pin, r.available_at FROM redrive.runs AS r
        WHERE r.worker IS NULL AND r.available_at IS NOT NULL AND r.deaths = 0
          AND (r.tenant, r.queue, r.rank, r.workflow, r.pin)
              > (walk.tenant, walk.queue, walk.rank, walk.workflow, walk.pin)
        ORDER BY r.tenant, r.queue, r.rank, r.workflow, r.pin, r.available_at, r.id LIMIT 1) AS next
    WHERE walk.n < CAST(:most AS integer)
)
SELECT tenant, queue, rank, workflow, pin, head FROM walk WHERE n > 0 ORDER BY n;

-- name: find_due_lanes
-- Everything that a claim needs to choose, without a lock: the lanes after the cursor and then those before it,
-- until enough queues have due runs; the first runs of those lanes, and as many again to share between them,
-- because other workers may claim some first; the first suspect; the workflows that are not paused, each with the pins
-- that the worker serves. A worker for some queues passes over the lanes of others, as over those of workflows that it
-- does not have.
WITH RECURSIVE clock AS (
    SELECT COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp())) AS now
), allowed AS (
    SELECT array_agg(w.name) AS names, array_agg(w.pin) AS pins, array_agg(w.name || '@' || w.pin) AS keys
    FROM unnest(CAST(:workflows AS text[]), CAST(:pins AS text[])) AS w (name, pin)
    WHERE NOT EXISTS (SELECT 1 FROM redrive.pauses AS p WHERE p.workflow = w.name)
), walk (tenant, queue, rank, workflow, pin, head, n, around, queues, last_tenant, last_queue) AS (
    SELECT CAST(:tenant AS text) COLLATE "C", CAST(:queue AS text) COLLATE "C", CAST(:rank AS bigint),
           CAST(:workflow AS text) COLLATE "C", CAST(:pin AS text) COLLATE "C", CAST(NULL AS bigint), 0, false, 0,
           CAST(NULL AS text) COLLATE "C", CAST(NULL AS text) COLLATE "C"
    UNION ALL
    SELECT next.tenant, next.queue, next.rank, next.workflow, next.pin, next.head, walk.n + 1, next.around,
           walk.queues + CASE WHEN due.yes AND (next.tenant, next.queue) IS DISTINCT FROM
                                               (walk.last_tenant, walk.last_queue) THEN 1 ELSE 0 END,
           CASE WHEN due.yes THEN next.tenant ELSE walk.last_tenant END,
           CASE WHEN due.yes THEN next.queue ELSE walk.last_queue END
    FROM walk CROSS JOIN clock CROSS JOIN allowed CROSS JOIN LATERAL (
        (SELECT r.tenant, r.queue, r.rank, r.workflow, r.pin, r.available_at AS head, walk.around FROM redrive.runs AS r
         WHERE r.worker IS NULL AND r.available_at IS NOT NULL AND r.deaths = 0
           AND (r.tenant, r.queue, r.rank, r.workflow, r.pin)
               > (walk.tenant, walk.queue, walk.rank, walk.workflow, walk.pin)
           AND (CAST(:only AS text) IS NULL OR r.tenant = CAST(:only AS text))
         ORDER BY r.tenant, r.queue, r.rank, r.workflow, r.pin, r.available_at, r.id LIMIT 1)
        UNION ALL
        (SELECT r.tenant, r.queue, r.rank, r.workflow, r.pin, r.available_at, true FROM redrive.runs AS r
         WHERE r.worker IS NULL AND r.available_at IS NOT NULL AND r.deaths = 0
           AND CAST(:wraps AS boolean) AND NOT walk.around
           AND (CAST(:only AS text) IS NULL OR r.tenant = CAST(:only AS text))
         ORDER BY r.tenant, r.queue, r.rank, r.workflow, r.pin, r.available_at, r.id LIMIT 1)
        LIMIT 1) AS next
    CROSS JOIN LATERAL (
        SELECT next.head <= clock.now AND next.workflow || '@' || next.pin = ANY (allowed.keys)
           AND (CAST(:queues AS text[]) IS NULL OR next.queue = ANY (CAST(:queues AS text[]))) AS yes) AS due
    WHERE walk.n < CAST(:most AS integer)
      AND (walk.queues < CAST(:capacity AS integer)
           OR (walk.tenant, walk.queue) IS NOT DISTINCT FROM (walk.last_tenant, walk.last_queue))
      AND (NOT walk.around OR (walk.tenant, walk.queue, walk.rank, walk.workflow, walk.pin)
                              <= (CAST(:tenant AS text), CAST(:queue AS text), CAST(:rank AS bigint),
                                  CAST(:workflow AS text), CAST(:pin AS text)))
), lanes AS MATERIALIZED (
    SELECT * FROM walk
    WHERE n > 0 AND (NOT around OR (tenant, queue, rank, workflow, pin)
                                   <= (CAST(:tenant AS text), CAST(:queue AS text), CAST(:rank AS bigint),
                                       CAST(:workflow AS text), CAST(:pin AS text)))
), share AS MATERIALIZED (
    SELECT GREATEST(1, CAST(:capacity AS integer) - COUNT(DISTINCT (lanes.tenant, lanes.queue)) + 1)
           + CAST(:capacity AS integer) / GREATEST(1, COUNT(DISTINCT (lanes.tenant, lanes.queue))) AS most
    FROM lanes, clock, allowed WHERE lanes.head <= clock.now AND lanes.workflow || '@' || lanes.pin = ANY (allowed.keys)
      AND (CAST(:queues AS text[]) IS NULL OR lanes.queue = ANY (CAST(:queues AS text[])))
)
SELECT clock.now, allowed.keys, suspect.id AS suspect, suspect.available_at AS suspect_at, lanes.tenant, lanes.queue,
       lanes.rank, lanes.workflow, lanes.pin, lanes.head, first.ids, first.dues
FROM clock CROSS JOIN allowed
LEFT JOIN LATERAL (
    SELECT one.id, one.available_at FROM unnest(allowed.names, allowed.pins) AS n (name, pin) CROSS JOIN LATERAL (
        SELECT r.id, r.available_at FROM redrive.runs AS r
        WHERE r.worker IS NULL AND r.available_at IS NOT NULL AND r.deaths > 0
          AND r.workflow = n.name AND r.pin = n.pin
          AND (CAST(:queues AS text[]) IS NULL OR r.queue = ANY (CAST(:queues AS text[])))
          AND (CAST(:only AS text) IS NULL OR r.tenant = CAST(:only AS text))
        ORDER BY r.available_at, r.id LIMIT 1) AS one
    WHERE CAST(:suspect AS boolean)
    ORDER BY one.available_at, one.id LIMIT 1) AS suspect ON true
LEFT JOIN lanes ON true
LEFT JOIN LATERAL (
    SELECT array_agg(r.id) AS ids, array_agg(r.available_at) AS dues FROM (
        SELECT r.id, r.available_at FROM redrive.runs AS r
        WHERE r.worker IS NULL AND r.available_at IS NOT NULL AND r.deaths = 0
          AND r.tenant = lanes.tenant AND r.queue = lanes.queue AND r.rank = lanes.rank
          AND r.workflow = lanes.workflow AND r.pin = lanes.pin
        ORDER BY r.available_at, r.id LIMIT (SELECT share.most + 1 FROM share)) AS r
) AS first ON lanes.head <= clock.now AND lanes.workflow || '@' || lanes.pin = ANY (allowed.keys)
    AND (CAST(:queues AS text[]) IS NULL OR lanes.queue = ANY (CAST(:queues AS text[])))
ORDER BY lanes.n;

-- name: take
-- Claim runs for the worker, if it is alive: the first of these that no other worker has claimed or locked.
-- The version is the one that began the run, and so is its pin.
WITH clock AS (
    SELECT COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp())) AS now
), claimer AS MATERIALIZED (
    SELECT w.id, w.version, CAST(w.versions AS json) AS versions, CAST(w.pins AS json) AS pins
    FROM redrive.workers AS w WHERE w.id = CAST(:worker AS bigint) AND w.state = 'LIVE'
      AND NOT w.draining
    FOR SHARE
), picked AS MATERIALIZED (
    SELECT r.id FROM claimer CROSS JOIN clock CROSS JOIN unnest(CAST(:ids AS bigint[])) WITH ORDINALITY AS w (id, n)
    JOIN redrive.runs AS r ON r.id = w.id
    WHERE r.worker IS NULL AND r.available_at <= clock.now AND (r.deaths = 0 OR r.id = CAST(:suspect AS bigint))
    ORDER BY w.n LIMIT CAST(:capacity AS bigint)
    FOR UPDATE OF r SKIP LOCKED
), taken AS (
    UPDATE redrive.runs AS r SET
        status = CASE r.status WHEN 'COMPENSATING' THEN r.status ELSE 'RUNNING' END,
        worker = claimer.id,
        fence = r.fence + 1,
        available_at = NULL,
        parked_on = NULL,
        started_at = COALESCE(r.started_at, clock.now),
        version = CASE r.fence WHEN 0 THEN COALESCE(claimer.versions ->> r.workflow, claimer.version) ELSE r.version END,
        pin = CASE r.fence WHEN 0 THEN COALESCE(claimer.pins ->> r.workflow, '') ELSE r.pin END
    FROM picked, claimer, clock WHERE r.id = picked.id
    RETURNING r.id, r.public_id, r.tenant, r.workflow, r.status, r.fence, r.version, r.deadline, r.deaths,
              r.correlation_id, r.root, r.generation, r.created_at, r.diverged_at, r.letter, r.sole_step,
              r.started_at, r.handler_for, r.ends_as, r.queue
)
SELECT clock.now, claimer.id AS claimer, taken.id, taken.public_id, taken.tenant, taken.workflow, taken.status,
       taken.fence, taken.version, i.input, i.options, taken.deadline, taken.deaths, taken.correlation_id,
       taken.root, taken.generation, taken.created_at, taken.diverged_at, taken.letter, taken.sole_step,
       taken.started_at, taken.handler_for, taken.ends_as, taken.queue
FROM clock LEFT JOIN claimer ON true LEFT JOIN taken ON true LEFT JOIN redrive.inputs AS i ON i.run = taken.id
ORDER BY taken.id;

-- name: journals
-- The journals of these runs, superseded entries included.
SELECT run, idx, key, kind, name, status, attempt, done, first_at, began_at, ended_at, wake_at, limit_at, input,
       output, failure, options, superseded, loose, heartbeat_at, heartbeat
FROM redrive.entries
WHERE run = ANY (CAST(:runs AS bigint[]))
ORDER BY run, idx;
