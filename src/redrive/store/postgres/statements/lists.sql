-- Parts of list queries that PostgreSQL needs in its own form.

-- name: runs.held
-- Added for runs that a worker holds: they are few, and have a partial index.
r.id = ANY (ARRAY(SELECT held.id FROM redrive.runs AS held WHERE held.worker IS NOT NULL ORDER BY held.worker));

-- name: runs.idempotency_key
-- Runs started with this key.
r.id = ANY (ARRAY(SELECT k.run FROM redrive.idempotency AS k WHERE k.given = :idempotency_key));

-- name: runs.index
-- Runs with one of these values in a search field.
r.id = ANY (ARRAY(SELECT x.run FROM redrive.run_index AS x
         WHERE x.field = :index_0_field AND x.value = ANY (CAST(:index_0_values AS text[]))));

-- name: runs.popular
-- Runs with one of these values in a search field, if there are so many that each row is checked.
EXISTS (SELECT 1 FROM redrive.run_index AS x WHERE x.field = :index_0_field
        AND x.value = ANY (CAST(:index_0_values AS text[])) AND x.run = r.id OFFSET 0);

-- name: letters
-- A page of letters; the conditions and the order are filled in.
SELECT l.id, l.public_id, l.tenant, l.run, l.run_id, l.workflow, l.status, l.code, l.stage, l.category, l.reason,
       l.failure, l.fingerprint, l.payload_hash, l.input, l.options, l.step, l.step_index, l.attempts,
       l.replay_count, l.failed_replays, l.owner, l.correlation_id, l.version, l.created_at, l.failed_at, l.closed_at,
       l.closed_by, l.resolution, l.expires_at, l.escalated_to, l.escalated_at, l.tags
FROM redrive.letters AS l {hint} WHERE {conditions} ORDER BY {order} LIMIT CAST(:most AS bigint);

-- name: letters.tag
-- Letters with a tag.
EXISTS (SELECT 1 FROM json_array_elements_text(CAST(l.tags AS json)) AS tag WHERE tag = :tag);

-- name: letters.index
-- Letters of runs with one of these values in a search field.
l.run = ANY (ARRAY(SELECT x.run FROM redrive.run_index AS x
         WHERE x.field = :index_0_field AND x.value = ANY (CAST(:index_0_values AS text[]))));

-- name: letters.popular
-- Letters of runs with one of these values in a search field, if there are so many that each row is checked.
EXISTS (SELECT 1 FROM redrive.run_index AS x WHERE x.field = :index_0_field
        AND x.value = ANY (CAST(:index_0_values AS text[])) AND x.run = l.run OFFSET 0);

-- name: messages.topics
-- Messages on all topics that begin alike.
starts_with(m.topic, :topics);

-- name: messages.sink
-- Messages to one sink.
(EXISTS (SELECT 1 FROM redrive.deliveries AS d WHERE d.message = m.id AND d.sink = :sink OFFSET 0)
 OR EXISTS (SELECT 1 FROM redrive.bundles AS b WHERE b.id = m.bundle AND b.sink = :sink OFFSET 0));

-- name: messages.dead
-- Messages with a dead delivery.
m.id = ANY (ARRAY(SELECT d.message FROM redrive.deliveries AS d WHERE d.status = 'DEAD')) AND :dead = 'DEAD';

-- name: messages.state
-- Messages with a delivery in one state.
(EXISTS (SELECT 1 FROM redrive.deliveries AS d WHERE d.message = m.id AND d.status = :state OFFSET 0)
 OR EXISTS (SELECT 1 FROM redrive.bundles AS b
            WHERE b.id = m.bundle
              AND CASE WHEN b.finished_at IS NULL THEN 'PENDING' ELSE 'DELIVERED' END = :state OFFSET 0));

-- name: messages.sink_state
-- Messages whose delivery to one sink is in one state.
(EXISTS (SELECT 1 FROM redrive.deliveries AS d WHERE d.message = m.id AND d.sink = (CAST(:sink_state AS text[]))[1]
                                                 AND d.status = (CAST(:sink_state AS text[]))[2] OFFSET 0)
 OR EXISTS (SELECT 1 FROM redrive.bundles AS b
            WHERE b.id = m.bundle AND b.sink = (CAST(:sink_state AS text[]))[1]
              AND CASE WHEN b.finished_at IS NULL THEN 'PENDING' ELSE 'DELIVERED' END
                  = (CAST(:sink_state AS text[]))[2] OFFSET 0));
