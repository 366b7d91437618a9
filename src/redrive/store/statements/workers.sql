-- Workers and the catalogue of their code.

-- name: insert_worker
-- Insert a worker.
INSERT INTO redrive.workers (name, version, state, workflows, versions, pins, queues, lease, started_at, beat_at, lease_until)
VALUES (:name, :version, 'LIVE', :workflows, :versions, :pins, CAST(:queues AS text), CAST(:lease AS bigint), :now, :now, :now + CAST(:lease AS bigint))
RETURNING id;

-- name: insert_version
-- Insert a version of the user's code, in the order in which versions are first seen.
INSERT INTO redrive.versions (version, first_seen_at)
SELECT CAST(:version AS text), :now
WHERE NOT EXISTS (SELECT 1 FROM redrive.versions AS v WHERE v.version = CAST(:version AS text))
ON CONFLICT (version) DO NOTHING;

-- name: put_catalogue
-- Insert or replace a catalogue item. A version that is not a hash of the code may change its contents.
INSERT INTO redrive.catalogue AS c (tenant, kind, name, version, options, schema_in, schema_out, events, own)
VALUES (:tenant, :kind, :name, :version, :options, :schema_in, :schema_out, :events, :own)
ON CONFLICT (kind, name, tenant, version) DO UPDATE SET
    options = excluded.options, schema_in = excluded.schema_in, schema_out = excluded.schema_out,
    events = excluded.events, own = excluded.own
WHERE c.options <> excluded.options OR c.schema_in <> excluded.schema_in OR c.schema_out <> excluded.schema_out
   OR c.events IS DISTINCT FROM excluded.events OR c.own IS DISTINCT FROM excluded.own;

-- name: all_workers
-- The live workers and the newest others, newest first.
SELECT w.id, w.name, w.version, w.state, w.workflows, w.started_at, w.beat_at, w.lease_until, w.queues, w.versions, w.pins,
       (SELECT v.seq FROM redrive.versions AS v WHERE v.version = w.version),
       w.draining, EXISTS (SELECT 1 FROM redrive.remote_workers AS m WHERE m.worker = w.id) AS remote
FROM redrive.workers AS w
WHERE w.state = 'LIVE' OR w.id > (SELECT MAX(x.id) FROM redrive.workers AS x) - CAST(:most AS bigint)
ORDER BY w.id DESC;

-- name: drain
-- Have a live worker begin nothing more, and end; no row if it was told before.
UPDATE redrive.workers SET draining = true WHERE id = CAST(:worker AS bigint) AND state = 'LIVE' AND NOT draining
RETURNING id;

-- name: count_held_by_worker
-- The number of runs that each worker holds.
SELECT r.worker, COUNT(*) FROM redrive.runs AS r WHERE r.worker IS NOT NULL GROUP BY r.worker;

-- name: count_stalled
-- The runs that live remote workers have held for ten leases without reporting an outcome, by worker. Runs with an
-- attempt under way do not count, because it has a time limit; nor those that woke only now.
SELECT w.id, COUNT(*)
FROM redrive.remote_workers AS m
/* CROSS */ JOIN redrive.workers AS w ON w.id = m.worker AND w.state = 'LIVE'
/* CROSS */ JOIN redrive.runs AS r /* INDEXED BY runs_held */ ON r.worker = w.id
WHERE m.answered_at < :now - 10 * w.lease AND w.started_at < :now - 10 * w.lease
  AND r.started_at < :now - 10 * w.lease AND r.status <> 'SLEEPING' AND r.available_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM redrive.entries AS e
                  WHERE e.run = r.id AND (e.status = 'RUNNING' OR e.wake_at > :now - 10 * w.lease))
GROUP BY w.id;

-- name: lease_of
-- The length of a worker's lease.
SELECT lease FROM redrive.workers WHERE id = :worker;

-- name: names_for_all
-- Those of these workflows and steps that code for all tenants registered.
SELECT DISTINCT c.name FROM redrive.catalogue AS c
WHERE c.tenant = '' AND c.kind IN ('workflow', 'step') AND c.name = ANY (CAST(:names AS text[])) ORDER BY c.name;

-- name: insert_remote_worker
-- Insert what is known of a worker that registered through a server.
INSERT INTO redrive.remote_workers (worker, tenant, token, number, digest, answer, answered_at)
VALUES (CAST(:worker AS bigint), :tenant, :token, 0, '', '', 0);

-- name: remote_worker
-- A worker that registered through a server, with the last batch that it sent.
SELECT r.worker, r.tenant, r.token, r.number, r.digest, r.answer, r.answered_at, w.version, w.workflows, w.queues, w.state,
       w.lease, w.versions
FROM redrive.remote_workers AS r JOIN redrive.workers AS w ON w.id = r.worker WHERE r.worker = CAST(:worker AS bigint);

-- name: count_remote_workers
-- The number of live workers that registered with a token.
SELECT COUNT(*) FROM redrive.remote_workers AS r JOIN redrive.workers AS w ON w.id = r.worker
WHERE r.token = :token AND w.state = 'LIVE';

-- name: count_held
-- The number of runs that the live workers of a token hold.
SELECT COUNT(*) FROM redrive.remote_workers AS m
/* CROSS */ JOIN redrive.workers AS w ON w.id = m.worker AND w.state = 'LIVE'
/* CROSS */ JOIN redrive.runs AS r /* INDEXED BY runs_held */ ON r.worker = w.id
WHERE m.token = :token;

-- name: live_versions
-- The versions of the code that live workers have. With a tenant, workers of other tenants do not count.
SELECT w.version, w.versions
FROM redrive.workers AS w LEFT JOIN redrive.remote_workers AS m ON m.worker = w.id
WHERE w.state = 'LIVE' AND w.lease_until > :now
  AND (CAST(:tenant AS text) = '' OR COALESCE(m.tenant, '') IN ('', CAST(:tenant AS text)));

-- name: put_suspects
-- Remember the runs that are suspected of the death of a worker; no row if it registered again meanwhile.
UPDATE redrive.workers SET suspects = :runs WHERE id = CAST(:worker AS bigint) AND state = 'DEAD' RETURNING id;

-- name: return_worker
-- Mark a dead worker of a token as stopped, because it registered again; return the runs suspected of its death.
UPDATE redrive.workers SET state = 'STOPPED' WHERE id = CAST(:worker AS bigint) AND state = 'DEAD'
  AND EXISTS (SELECT 1 FROM redrive.remote_workers AS m WHERE m.worker = CAST(:worker AS bigint) AND m.token = :token)
RETURNING suspects;

-- name: clear_suspects
-- Take one death back from each of these runs.
UPDATE redrive.runs SET deaths = deaths - 1
WHERE id = ANY (CAST(:runs AS bigint[])) AND deaths > 0 AND finished_at IS NULL;

-- name: count_batch
-- Note that successes of a worker are counted; no row if these were counted before.
UPDATE redrive.workers SET counted = CAST(:number AS bigint)
WHERE id = CAST(:worker AS bigint) AND counted < CAST(:number AS bigint) RETURNING id;

-- name: put_receipt
-- Record a batch as the worker's last one; no row if the batch is not the next.
UPDATE redrive.remote_workers SET number = CAST(:number AS bigint), digest = :digest, answer = :answer,
    answered_at = CAST(:answered_at AS bigint)
WHERE worker = CAST(:worker AS bigint) AND number = CAST(:number AS bigint) - 1 RETURNING worker;
