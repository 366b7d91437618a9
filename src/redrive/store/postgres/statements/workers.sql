-- Workers, what their code contains, and their heartbeats.

-- name: insert_worker
-- A worker that may claim from now on.
INSERT INTO redrive.workers (name, version, state, workflows, lease, started_at, beat_at, lease_until)
SELECT :name, :version, 'LIVE', :workflows, CAST(:lease AS bigint), clock.now, clock.now,
       clock.now + CAST(:lease AS bigint)
FROM (SELECT COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp())) AS now) AS clock
RETURNING id, started_at;

-- name: see_version
-- Remember when a version of the user's code was first seen.
INSERT INTO redrive.versions (version, first_seen_at)
SELECT :version, COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp()))
WHERE NOT EXISTS (SELECT 1 FROM redrive.versions AS v WHERE v.version = :version)
ON CONFLICT (version) DO NOTHING;

-- name: put_catalogue
-- What a version contains; a version without a hash of its own may be registered with other contents.
INSERT INTO redrive.catalogue AS c (kind, name, version, options, schema_in, schema_out)
SELECT n.kind, n.name, CAST(:version AS text), n.options, n.schema_in, n.schema_out
FROM unnest(CAST(:kinds AS text[]), CAST(:names AS text[]), CAST(:options AS text[]), CAST(:schemas_in AS text[]),
            CAST(:schemas_out AS text[])) AS n (kind, name, options, schema_in, schema_out)
ORDER BY n.kind COLLATE "C", n.name COLLATE "C"
ON CONFLICT (kind, name, version) DO UPDATE SET
    options = excluded.options, schema_in = excluded.schema_in, schema_out = excluded.schema_out
WHERE c.options <> excluded.options OR c.schema_in <> excluded.schema_in OR c.schema_out <> excluded.schema_out;

-- name: retire
-- A worker that ends; what it still holds is an orphan at once, after its last write.
UPDATE redrive.workers AS w SET state = 'STOPPED'
FROM (SELECT pg_advisory_xact_lock(redrive.gate(CAST(:worker AS bigint)))) AS alone
WHERE w.id = CAST(:worker AS bigint) AND w.state = 'LIVE';

-- name: all_workers
-- All workers still known, newest first.
SELECT id, name, version, state, workflows, started_at, beat_at, lease_until FROM redrive.workers ORDER BY id DESC;

-- name: lease_of
-- How long a worker's lease is.
SELECT lease FROM redrive.workers WHERE id = :worker;

-- name: beat
-- A heartbeat: it keeps a worker alive (but raises none from the dead), notes the signs of life of its steps, which
-- move the ends of their patience, and tells what the worker holds.
WITH clock AS (
    SELECT COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp())) AS now
), renew AS (
    UPDATE redrive.workers AS w SET beat_at = clock.now, lease_until = clock.now + w.lease
    FROM clock WHERE w.id = CAST(:worker AS bigint) AND w.state = 'LIVE'
    RETURNING w.id
), signs AS MATERIALIZED (
    SELECT s.* FROM unnest(CAST(:runs AS bigint[]), CAST(:indexes AS integer[]), CAST(:details AS text[]))
        AS s (run, idx, details)
    WHERE (SELECT r.worker FROM redrive.runs AS r WHERE r.id = s.run) = CAST(:worker AS bigint)
    ORDER BY s.run, s.idx
), step_beat AS (
    UPDATE redrive.entries AS e SET
        heartbeat_at = clock.now,
        heartbeat = COALESCE(signs.details, e.heartbeat),
        limit_at = CASE WHEN e.patience IS NULL THEN e.limit_at
                        ELSE LEAST(clock.now + e.patience, e.timeout_at) END
    FROM signs, clock, renew
    WHERE e.run = signs.run AND e.idx = signs.idx AND e.status = 'RUNNING'
), held_ids AS (
    SELECT r.id FROM redrive.runs AS r WHERE r.worker = CAST(:worker AS bigint)
)
SELECT clock.now, EXISTS (SELECT 1 FROM renew) AS alive, ARRAY(SELECT id FROM held_ids) AS held FROM clock;
