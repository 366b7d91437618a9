-- Starting runs.

-- name: existing_ids
-- Those of these runs that were accepted before: their caller repeats the call after a lost reply.
SELECT public_id FROM runs WHERE public_id IN (SELECT value FROM json_each(?));

-- name: existing_keys
-- The runs that these idempotency keys name. An expired key names none, unless its run is unfinished, or has
-- a letter that could run it again.
SELECT k.tenant, k.key, k.run_id, k.hash, k.maker
FROM json_each(?) AS wanted
JOIN idempotency AS k ON k.tenant = json_extract(wanted.value, '$[0]') AND k.key = json_extract(wanted.value, '$[1]')
WHERE k.expires_at > ?
   OR EXISTS (SELECT 1 FROM runs WHERE runs.id = k.run AND runs.finished_at IS NULL)
   OR EXISTS (SELECT 1 FROM letters
              WHERE letters.tenant = k.tenant AND letters.public_id = 'dl-' || k.run_id AND letters.status IN ('OPEN', 'REPLAYING'));

-- name: last_id
-- The highest run id that was ever used. Ids are not used again, even after a purge.
SELECT COALESCE(max(seq), 0) FROM sqlite_sequence WHERE name = 'runs';

-- name: starting_worker
-- The version of a live worker that claims the runs it starts, and the paused workflows.
SELECT version, (SELECT json_group_array(workflow) FROM pauses) FROM workers WHERE id = ? AND state = 'LIVE' AND NOT draining;

-- name: insert_run
-- Insert a run, unclaimed or claimed by the worker that starts it.
INSERT INTO runs (id, public_id, tenant, workflow, queue, rank, status, available_at, worker, fence, started_at,
                  deadline, timeout, version, created_at, correlation_id, parent, root, replay_of, generation, letter,
                  handler_for, owner)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_input
-- Insert the input of a run.
INSERT INTO inputs (run, tenant, input, options) VALUES (?, ?, ?, ?);

-- name: put_index
-- Insert a searchable value of a run.
INSERT INTO run_index (field, value, run, tenant) VALUES (?, ?, ?, ?) ON CONFLICT (field, value, run) DO NOTHING;

-- name: drop_index
-- Remove the searchable values of runs.
DELETE FROM run_index WHERE run IN (SELECT value FROM json_each(:runs));

-- name: insert_key
-- Bind an idempotency key to its run; it replaces an expired one.
INSERT INTO idempotency (tenant, key, given, run, run_id, hash, created_at, expires_at, maker)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, key) DO UPDATE SET
    run = excluded.run, run_id = excluded.run_id, hash = excluded.hash,
    created_at = excluded.created_at, expires_at = excluded.expires_at, maker = excluded.maker;
