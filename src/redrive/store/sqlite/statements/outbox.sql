-- The outbox on SQLite: writing messages, and statements that differ on PostgreSQL.

-- name: last_message
-- The highest id that was ever used.
SELECT COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'messages'), 0);

-- name: sinks_for
-- The sinks of a topic. The pattern `*` does not match the engine's own topics.
SELECT s.name FROM sinks AS s WHERE EXISTS (
    SELECT 1 FROM sink_topics AS t
    WHERE t.sink = s.name AND (t.topic = :topic OR (
        t.wild AND substr(:topic, 1, length(t.topic)) = t.topic AND (t.topic <> '' OR substr(:topic, 1, 8) <> 'redrive.'))));

-- name: put_message
-- Insert a message; a repeat changes nothing.
INSERT INTO messages (
    id, public_id, tenant, topic, key, run_id, correlation_id, created_at, payload, trace, bundle)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (public_id) DO NOTHING;

-- name: messages_between
-- The ids of a range that messages have.
SELECT id FROM messages WHERE id BETWEEN :first AND :last;

-- name: put_bundle
-- Insert a bundle that a relay delivers from its commit on.
INSERT INTO bundles (id, sink, tenant, first, last, size, lease_until, worker) VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: put_delivery
-- Insert a delivery of a new message.
INSERT INTO deliveries (message, sink, tenant, key, status, available_at) VALUES (?, ?, ?, ?, ?, ?);

-- name: clear_bundles
-- After a lost reply no carrier knows its bundles: end their leases, so that any relay takes the messages.
UPDATE bundles SET lease_until = 0
WHERE finished_at IS NULL AND id IN (
    SELECT m.bundle FROM json_each(:messages) AS w CROSS JOIN messages AS m ON m.public_id = w.value
    WHERE m.bundle IS NOT NULL);

-- name: has_due_deliveries
-- One row if a claim would find a delivery.
SELECT 1 WHERE EXISTS (
    SELECT 1 FROM deliveries INDEXED BY deliveries_due
    WHERE sink = :sink AND available_at IS NOT NULL AND available_at <= :now AND (
        lease_until <= :now OR (worker IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM workers AS w WHERE w.id = deliveries.worker AND w.lease_until > :now))))
OR EXISTS (
    SELECT 1 FROM bundles INDEXED BY bundles_open
    WHERE sink = :sink AND finished_at IS NULL AND (
        lease_until <= :now OR (worker IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM workers AS w WHERE w.id = bundles.worker AND w.lease_until > :now))));

-- name: split_bundle
-- Add a delivery of each message of some bundles, as if it had been claimed at its commit.
INSERT INTO deliveries (message, sink, tenant, status, fence, available_at, lease_until, worker)
SELECT m.id, b.sink, m.tenant, 'PENDING', :fence, m.created_at, b.lease_until, b.worker
FROM json_each(:bundles) AS w CROSS JOIN bundles AS b ON b.id = w.value
CROSS JOIN messages AS m ON m.id BETWEEN b.first AND b.last AND m.bundle = b.id
WHERE (:sink IS NULL OR b.sink = :sink) AND b.finished_at IS NULL;

-- name: due_deliveries
-- Deliveries that are due within a span of time and not claimed, or claimed by a dead worker: all of them, or only those that are suspects or are not;
-- as many as have payloads of so many characters together.
WITH due AS MATERIALIZED (
    SELECT d.message, d.fence, d.attempt, d.deaths, d.lease_until > 0 AS suspect, d.available_at
    FROM deliveries AS d INDEXED BY deliveries_due
    WHERE d.sink = :sink AND d.available_at IS NOT NULL AND d.available_at >= :since AND d.available_at < :before
      AND (d.lease_until <= :now OR (d.worker IS NOT NULL AND NOT EXISTS (
          SELECT 1 FROM workers AS w WHERE w.id = d.worker AND w.lease_until > :now)))
      AND (:suspect IS NULL OR (d.lease_until > 0) = :suspect)
    ORDER BY d.available_at, d.message LIMIT :most
), weighed AS MATERIALIZED (
    SELECT due.*, sum(length(m.payload)) OVER (ORDER BY due.available_at, due.message) - length(m.payload) AS before
    FROM due CROSS JOIN messages AS m ON m.id = due.message
)
SELECT m.id, m.public_id, m.tenant, m.topic, m.key, m.payload, m.run_id, m.correlation_id, m.created_at, m.trace,
       w.fence, w.attempt, w.deaths, w.suspect, w.available_at
FROM weighed AS w CROSS JOIN messages AS m ON m.id = w.message WHERE w.before < :bytes;

-- name: mark_delivered
-- Note deliveries that arrived, unless another relay has claimed them since.
UPDATE deliveries SET
    status = 'DELIVERED', attempt = attempt + 1, lease_until = 0, error = NULL, tried_at = :now, available_at = NULL,
    finished_at = :now
FROM (SELECT m.value AS message, json_extract(:fences, '$[' || m.key || ']') AS fence FROM json_each(:messages) AS m) AS w
WHERE deliveries.message = w.message AND deliveries.sink = :sink AND deliveries.fence = w.fence
  AND deliveries.status = 'PENDING';

-- name: deliveries_of
-- The deliveries of some messages.
SELECT d.message, d.sink, d.status, d.attempt, d.available_at, d.lease_until, b.public_id, d.tried_at, d.finished_at,
       d.error
FROM json_each(:messages) AS w JOIN deliveries AS d ON d.message = w.value LEFT JOIN messages AS b ON b.id = d.behind
UNION ALL
SELECT m.id, b.sink, iif(b.finished_at IS NULL, 'PENDING', 'DELIVERED'), b.finished_at IS NOT NULL,
       iif(b.finished_at IS NULL, m.created_at, NULL), iif(b.finished_at IS NULL, b.lease_until, 0), NULL,
       b.finished_at, b.finished_at, NULL
FROM json_each(:messages) AS w JOIN messages AS m ON m.id = w.value JOIN bundles AS b ON b.id = m.bundle
ORDER BY 1, 2;
