-- Workers, what their code contains, and their heartbeats.

-- name: insert_worker
-- A worker that may claim from now on.
INSERT INTO workers (name, version, state, workflows, lease, started_at, beat_at, lease_until)
VALUES (:name, :version, 'LIVE', :workflows, :lease, :now, :now, :now + :lease);

-- name: see_version
-- Remember when a version of the user's code was first seen.
INSERT INTO versions (version, first_seen_at) VALUES (?, ?) ON CONFLICT (version) DO NOTHING;

-- name: put_catalogue
-- What a version contains; a version without a hash of its own may be registered with other contents.
INSERT INTO catalogue (kind, name, version, options, schema_in, schema_out) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (kind, name, version) DO UPDATE SET
    options = excluded.options, schema_in = excluded.schema_in, schema_out = excluded.schema_out
WHERE options <> excluded.options OR schema_in <> excluded.schema_in OR schema_out <> excluded.schema_out;

-- name: retire
-- A worker that ends; what it still holds is an orphan at once.
UPDATE workers SET state = 'STOPPED' WHERE id = ? AND state = 'LIVE';

-- name: all_workers
-- All workers still known, newest first.
SELECT id, name, version, state, workflows, started_at, beat_at, lease_until FROM workers ORDER BY id DESC;

-- name: renew
-- A heartbeat keeps a worker alive, but raises none from the dead.
UPDATE workers SET beat_at = :now, lease_until = :now + lease WHERE id = :worker AND state = 'LIVE';

-- name: lease_of
-- How long a worker's lease is.
SELECT lease FROM workers WHERE id = ?;

-- name: held_ids
-- The runs that a worker holds.
SELECT id FROM runs WHERE worker = ?;

-- name: step_beat
-- A sign of life from a step, as long as its run is this worker's; it moves the end of the step's patience.
UPDATE entries SET
    heartbeat_at = :now,
    heartbeat = COALESCE(:details, heartbeat),
    limit_at = CASE WHEN patience IS NULL THEN limit_at
                    ELSE min(:now + patience, COALESCE(timeout_at, :now + patience)) END
WHERE run = :run AND idx = :idx AND status = 'RUNNING'
  AND EXISTS (SELECT 1 FROM runs WHERE id = :run AND worker = :worker);
