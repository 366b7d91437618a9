-- The outbox on PostgreSQL: statements that differ on SQLite. The function `publish_bundled` of the schema writes
-- messages.

-- name: publish
-- Write messages that belong to no run, with a delivery for each sink of their topic.
SELECT 1 FROM redrive.publish_bundled(
    CAST(:now AS bigint), ARRAY[true], CAST(:m_t AS integer[]), CAST(:m_public_id AS text[]), CAST(:m_tenant AS text[]),
    CAST(:m_topic AS text[]), CAST(:m_key AS text[]), CAST(:m_run_id AS text[]), CAST(:m_correlation_id AS text[]),
    CAST(:m_payload AS text[]), CAST(:m_trace AS text[]), NULL, NULL, NULL, NULL, NULL);

-- name: due_deliveries
-- Deliveries that are due within a span of time and not claimed, or claimed by a dead worker: all of them, or only those that are suspects or are not;
-- as many as have payloads of so many bytes together.
WITH due AS MATERIALIZED (
    SELECT d.message, d.fence, d.attempt, d.deaths, d.lease_until > 0 AS suspect, d.available_at
    FROM redrive.deliveries AS d
    WHERE d.sink = :sink AND d.available_at IS NOT NULL
      AND d.available_at >= CAST(:since AS bigint) AND d.available_at < CAST(:before AS bigint)
      AND (d.lease_until <= CAST(:now AS bigint) OR (d.worker IS NOT NULL AND NOT EXISTS (
          SELECT 1 FROM redrive.workers AS w WHERE w.id = d.worker AND w.lease_until > CAST(:now AS bigint)
          LIMIT 1 OFFSET 0)))
      AND (CAST(:suspect AS boolean) IS NULL OR (d.lease_until > 0) = CAST(:suspect AS boolean))
    ORDER BY d.available_at, d.message LIMIT CAST(:most AS bigint) FOR NO KEY UPDATE SKIP LOCKED
), weighed AS (
    SELECT n.id, n.public_id, n.tenant, n.topic, n.key, n.payload, n.run_id, n.correlation_id, n.created_at, n.trace,
           due.fence, due.attempt, due.deaths, due.suspect, due.available_at,
           sum(octet_length(n.payload)) OVER (ORDER BY due.available_at, n.id) - octet_length(n.payload) AS before
    FROM due CROSS JOIN LATERAL (SELECT m.* FROM redrive.messages AS m WHERE m.id = due.message OFFSET 0) AS n
)
SELECT id, public_id, tenant, topic, key, payload, run_id, correlation_id, created_at, trace, fence, attempt, deaths,
       suspect, available_at
FROM weighed WHERE before < CAST(:bytes AS bigint);

-- name: split_bundle
-- Add a delivery of each message of some bundles, as if it had been claimed at its commit. The bundles are locked: another
-- relay that unfolds them waits, and finds them gone.
WITH opened AS (
    SELECT b.id, b.sink, b.first, b.last, b.lease_until, b.worker FROM redrive.bundles AS b
    WHERE b.id = ANY (CAST(:bundles AS bigint[])) AND (CAST(:sink AS text) IS NULL OR b.sink = :sink)
      AND b.finished_at IS NULL
    ORDER BY b.id, b.sink FOR UPDATE
)
INSERT INTO redrive.deliveries (message, sink, tenant, status, fence, available_at, lease_until, worker)
SELECT n.id, o.sink, n.tenant, 'PENDING', CAST(:fence AS bigint), n.created_at, o.lease_until, o.worker
FROM opened AS o CROSS JOIN LATERAL (
    SELECT m.id, m.tenant, m.created_at FROM redrive.messages AS m
    WHERE m.id BETWEEN o.first AND o.last AND m.bundle = o.id OFFSET 0) AS n;

-- name: mark_delivered
-- Note deliveries that arrived, unless another relay has claimed them since.
UPDATE redrive.deliveries AS d SET
    status = 'DELIVERED', attempt = d.attempt + 1, lease_until = 0, error = NULL, tried_at = CAST(:now AS bigint),
    available_at = NULL, finished_at = CAST(:now AS bigint)
WHERE d.sink = :sink AND d.message = ANY (CAST(:messages AS bigint[])) AND d.status = 'PENDING'
  AND d.fence = (CAST(:fences AS bigint[]))[array_position(CAST(:messages AS bigint[]), d.message)];

-- name: deliveries_of
-- The deliveries of some messages.
SELECT d.message, d.sink, d.status, d.attempt, d.available_at, d.lease_until, b.public_id, d.tried_at, d.finished_at,
       d.error
FROM redrive.deliveries AS d LEFT JOIN redrive.messages AS b ON b.id = d.behind
WHERE d.message = ANY (CAST(:messages AS bigint[]))
UNION ALL
SELECT m.id, b.sink, CASE WHEN b.finished_at IS NULL THEN 'PENDING' ELSE 'DELIVERED' END,
       CAST(b.finished_at IS NOT NULL AS integer), CASE WHEN b.finished_at IS NULL THEN m.created_at END,
       CASE WHEN b.finished_at IS NULL THEN b.lease_until ELSE 0 END, NULL, b.finished_at, b.finished_at, NULL
FROM redrive.messages AS m CROSS JOIN LATERAL (
    SELECT i.* FROM redrive.bundles AS i WHERE i.id = m.bundle OFFSET 0) AS b
WHERE m.id = ANY (CAST(:messages AS bigint[]))
ORDER BY 1, 2;
