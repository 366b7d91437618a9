-- Starting runs.

-- name: put_index
-- Insert searchable values of runs. Runs that were just accepted are named by their public ids.
INSERT INTO redrive.run_index (field, value, run, tenant)
SELECT n.field, n.value, n.run, n.tenant
FROM (SELECT w.field, w.value, w.tenant,
             COALESCE(w.run, (SELECT r.id FROM redrive.runs AS r WHERE r.public_id = w.public_id)) AS run
      FROM unnest(CAST(:public_ids AS text[]), CAST(:runs AS bigint[]), CAST(:tenants AS text[]),
                  CAST(:fields AS text[]), CAST(:texts AS text[]))
          AS w (public_id, run, tenant, field, value) OFFSET 0) AS n
WHERE n.run IS NOT NULL
ON CONFLICT (field, value, run) DO NOTHING;

-- name: drop_index
-- Remove the searchable values of runs.
DELETE FROM redrive.run_index WHERE run = ANY (CAST(:runs AS bigint[]));

-- name: start_single
-- Fast path for one run without a key.
WITH clock AS (
    SELECT COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp())) AS now
), taker AS MATERIALIZED (
    SELECT w.id, w.version FROM redrive.workers AS w
    WHERE w.id = CAST(:worker AS bigint) AND w.state = 'LIVE' AND NOT w.draining AND CAST(:delay AS bigint) <= 0
      AND NOT EXISTS (SELECT 1 FROM redrive.pauses AS p WHERE p.workflow = CAST(:workflow AS text) OFFSET 0)
), accepted AS (
    INSERT INTO redrive.runs (id, public_id, tenant, workflow, queue, rank, status, available_at, worker, fence,
                              started_at, deadline, timeout, version, created_at, correlation_id, parent)
    SELECT nextval('redrive.runs_id_seq'), CAST(:public_id AS text), CAST(:tenant AS text), CAST(:workflow AS text),
           CAST(:queue AS text), CAST(:rank AS bigint),
           CASE WHEN taker.id IS NULL THEN 'PENDING' ELSE 'RUNNING' END,
           CASE WHEN taker.id IS NULL THEN clock.now + CAST(:delay AS bigint) END,
           taker.id,
           CASE WHEN taker.id IS NULL THEN 0 ELSE 1 END,
           CASE WHEN taker.id IS NULL THEN NULL ELSE clock.now END,
           LEAST(CAST(:deadline AS bigint), clock.now + CAST(:timeout AS bigint)), CAST(:timeout AS bigint),
           COALESCE(taker.version, CAST(:version AS text)), clock.now, CAST(:correlation_id AS text),
           CAST(:parent AS text)
    FROM clock LEFT JOIN taker ON true
    ON CONFLICT (public_id) DO NOTHING
    RETURNING id, worker, deadline
), kept AS (
    INSERT INTO redrive.inputs (run, tenant, input, options)
    SELECT accepted.id, CAST(:tenant AS text), CAST(:input AS text), CAST(:options AS text) FROM accepted
)
SELECT clock.now, taker.version, accepted.id, accepted.deadline
FROM clock LEFT JOIN taker ON true LEFT JOIN accepted ON accepted.worker IS NOT NULL;

-- name: start
-- Insert runs with their inputs and keys. A known id is not changed; a bound key keeps its run unless it
-- has expired and its run has ended. The result is the run of each key. Keys are locked in their order. The two INs are
-- placed where the planner cannot make joins of them: it may only use loops, and this way it uses a hash.
-- A live worker that is given has claimed the runs that are due and not paused. No lock is taken for that: if it is
-- declared dead at this moment, the reaper finds the runs that it holds.
WITH clock AS (
    SELECT COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp())) AS now
), taker AS MATERIALIZED (
    SELECT w.id, w.version, ARRAY(SELECT p.workflow FROM redrive.pauses AS p) AS paused
    FROM redrive.workers AS w WHERE w.id = CAST(:worker AS bigint) AND w.state = 'LIVE' AND NOT w.draining
), wanted AS MATERIALIZED (
    SELECT nextval('redrive.runs_id_seq') AS id, clock.now, w.public_id,
           COALESCE(w.tenant, (CAST(:tenants AS text[]))[1]) AS tenant,
           COALESCE(w.workflow, (CAST(:workflows AS text[]))[1]) AS workflow,
           COALESCE(w.queue, (CAST(:queues AS text[]))[1]) AS queue,
           COALESCE(w.rank, (CAST(:ranks AS bigint[]))[1]) AS rank,
           COALESCE(w.delay, (CAST(:delays AS bigint[]))[1]) AS delay, w.timeout, w.deadline,
           COALESCE(w.version, (CAST(:versions AS text[]))[1]) AS version, w.correlation_id, w.parent, w.input,
           COALESCE(w.options, (CAST(:options AS text[]))[1]) AS options, w.key, w.given, w.hash, w.keeps, w.maker,
           w.root, w.replay_of, w.generation, w.letter, w.handler_for, w.owner
    FROM clock, unnest(
        redrive.texts(CAST(:public_ids AS text)), CAST(:tenants AS text[]), CAST(:workflows AS text[]), CAST(:queues AS text[]),
        CAST(:ranks AS bigint[]), CAST(:delays AS bigint[]), CAST(:timeouts AS bigint[]),
        CAST(:deadlines AS bigint[]), CAST(:versions AS text[]), CAST(:correlation_ids AS text[]),
        CAST(:parents AS text[]), redrive.texts(CAST(:inputs AS text)), CAST(:options AS text[]), CAST(:keys AS text[]),
        CAST(:givens AS text[]), CAST(:hashes AS text[]), CAST(:keeps AS bigint[]), CAST(:makers AS text[]), CAST(:roots AS text[]),
        CAST(:replays_of AS text[]), CAST(:generations AS integer[]), CAST(:letters AS text[]),
        CAST(:handlers_for AS text[]), CAST(:owners AS text[]))
    AS w (public_id, tenant, workflow, queue, rank, delay, timeout, deadline, version, correlation_id, parent, input,
          options, key, given, hash, keeps, maker, root, replay_of, generation, letter, handler_for, owner)
), bound AS (
    INSERT INTO redrive.idempotency AS k (tenant, key, given, run, run_id, hash, created_at, expires_at, maker)
    SELECT tenant, key, given, id, public_id, hash, now, now + keeps, maker FROM wanted
    WHERE key IS NOT NULL ORDER BY tenant COLLATE "C", key COLLATE "C"
    ON CONFLICT (tenant, key) DO UPDATE SET (run, run_id, hash, created_at, expires_at, maker) = (
        SELECT CASE WHEN free THEN excluded.run ELSE k.run END,
               CASE WHEN free THEN excluded.run_id ELSE k.run_id END,
               CASE WHEN free THEN excluded.hash ELSE k.hash END,
               CASE WHEN free THEN excluded.created_at ELSE k.created_at END,
               CASE WHEN free THEN excluded.expires_at ELSE k.expires_at END,
               CASE WHEN free THEN excluded.maker ELSE k.maker END
        FROM (SELECT k.expires_at <= excluded.created_at AND k.run_id <> excluded.run_id AND NOT EXISTS (
                  SELECT 1 FROM redrive.runs AS r WHERE r.id = k.run AND r.finished_at IS NULL) AND NOT EXISTS (
                  SELECT 1 FROM redrive.letters AS l
                  WHERE l.tenant = k.tenant AND l.public_id = 'dl-' || k.run_id AND l.status IN ('OPEN', 'REPLAYING')) AS free) AS f)
    RETURNING k.tenant, k.key, k.run_id, k.hash, k.maker
), accepted AS (
    INSERT INTO redrive.runs (id, public_id, tenant, workflow, queue, rank, status, available_at, worker, fence,
                              started_at, deadline, timeout, version, created_at, correlation_id, parent, root,
                              replay_of, generation, letter, handler_for, owner)
    SELECT wanted.id, public_id, tenant, workflow, queue, rank,
           CASE WHEN taker.id IS NULL THEN 'PENDING' ELSE 'RUNNING' END,
           CASE WHEN taker.id IS NULL THEN now + delay END,
           taker.id,
           CASE WHEN taker.id IS NULL THEN 0 ELSE 1 END,
           CASE WHEN taker.id IS NULL THEN NULL ELSE now END,
           LEAST(deadline, now + timeout), timeout, COALESCE(taker.version, wanted.version), now, correlation_id,
           parent, root, replay_of, COALESCE(generation, 0), letter, handler_for, owner
    FROM wanted LEFT JOIN taker ON delay <= 0 AND workflow <> ALL (taker.paused)
    WHERE CASE WHEN key IS NULL THEN true
               ELSE (tenant, key, public_id) IN (SELECT bound.tenant, bound.key, bound.run_id FROM bound) END
    ORDER BY wanted.id
    ON CONFLICT (public_id) DO NOTHING
    RETURNING id, public_id, worker, deadline
), kept AS (
    INSERT INTO redrive.inputs (run, tenant, input, options)
    SELECT wanted.id, wanted.tenant, wanted.input, wanted.options FROM wanted
    WHERE (wanted.id IN (SELECT accepted.id FROM accepted)) IS TRUE
)
SELECT clock.now, (SELECT taker.version FROM taker) AS version, taken.*, keys.*
FROM clock,
     (SELECT array_agg(public_id) AS taken, array_agg(id) AS ids, array_agg(deadline) AS deadlines
      FROM accepted WHERE worker IS NOT NULL) AS taken,
     (SELECT array_agg(tenant) AS tenants, array_agg(key) AS keys, array_agg(run_id) AS bound_to,
             array_agg(hash) AS hashes, array_agg(maker) AS makers FROM bound) AS keys;
