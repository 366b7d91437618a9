-- Parts of list queries that SQLite needs in its own form.

-- name: runs.held
-- Added for runs that a worker holds: they are few, and have a partial index.
r.id IN (SELECT held.id FROM runs AS held INDEXED BY runs_held WHERE held.worker IS NOT NULL);

-- name: runs.idempotency_key
-- Runs started with this key.
r.id IN (SELECT k.run FROM idempotency AS k WHERE k.given = :idempotency_key);

-- name: runs.index
-- Runs with one of these values in a search field.
r.id IN (SELECT x.run FROM run_index AS x
         WHERE x.field = :index_0_field AND x.value IN (SELECT value FROM json_each(:index_0_values)));

-- name: runs.popular
-- Runs with one of these values in a search field, if there are so many that each row is checked.
EXISTS (SELECT 1 FROM run_index AS x WHERE x.field = :index_0_field
        AND x.value IN (SELECT value FROM json_each(:index_0_values)) AND x.run = r.id);

-- name: letters
-- A page of letters; the conditions and the order are filled in.
SELECT l.id, l.public_id, l.tenant, l.run, l.run_id, l.workflow, l.status, l.code, l.stage, l.category, l.reason,
       t.failure, l.fingerprint, l.payload_hash, t.input, t.options, l.step, l.step_index, l.attempts,
       l.replay_count, l.failed_replays, l.owner, l.correlation_id, l.version, l.created_at, l.failed_at, l.closed_at,
       l.closed_by, l.resolution, l.expires_at, l.escalated_to, l.escalated_at, l.tags
FROM letters AS l {hint} CROSS JOIN letter_texts AS t ON t.letter = l.id
WHERE {conditions} ORDER BY {order} LIMIT :most;

-- name: letters.tag
-- Letters with a tag.
EXISTS (SELECT 1 FROM json_each(l.tags) AS tag WHERE tag.value = :tag);

-- name: letters.index
-- Letters of runs with one of these values in a search field.
l.run IN (SELECT x.run FROM run_index AS x
         WHERE x.field = :index_0_field AND x.value IN (SELECT value FROM json_each(:index_0_values)));

-- name: letters.popular
-- Letters of runs with one of these values in a search field, if there are so many that each row is checked.
EXISTS (SELECT 1 FROM run_index AS x WHERE x.field = :index_0_field
        AND x.value IN (SELECT value FROM json_each(:index_0_values)) AND x.run = l.run);

-- name: messages.topics
-- Messages on all topics that begin alike.
substr(m.topic, 1, length(:topics)) = :topics;

-- name: messages.sink
-- Messages to one sink.
(EXISTS (SELECT 1 FROM deliveries AS d WHERE d.message = m.id AND d.sink = :sink)
 OR EXISTS (SELECT 1 FROM bundles AS b WHERE b.id = m.bundle AND b.sink = :sink));

-- name: messages.dead
-- Messages with a dead delivery.
m.id IN (SELECT d.message FROM deliveries AS d INDEXED BY deliveries_dead WHERE d.status = 'DEAD');

-- name: messages.state
-- Messages with a delivery in one state.
(EXISTS (SELECT 1 FROM deliveries AS d WHERE d.message = m.id AND d.status = :state)
 OR EXISTS (SELECT 1 FROM bundles AS b
            WHERE b.id = m.bundle AND iif(b.finished_at IS NULL, 'PENDING', 'DELIVERED') = :state));

-- name: messages.sink_state
-- Messages whose delivery to one sink is in one state.
(EXISTS (SELECT 1 FROM deliveries AS d WHERE d.message = m.id AND d.sink = json_extract(:sink_state, '$[0]')
                                      AND d.status = json_extract(:sink_state, '$[1]'))
 OR EXISTS (SELECT 1 FROM bundles AS b
            WHERE b.id = m.bundle AND b.sink = json_extract(:sink_state, '$[0]')
              AND iif(b.finished_at IS NULL, 'PENDING', 'DELIVERED') = json_extract(:sink_state, '$[1]')));
