-- The outbox: sinks, deliveries, bundles, messages.
-- PostgreSQL's plans are made while the tables are small, and kept. So a statement names its rows by an array, or looks
-- them up row by row behind OFFSET 0: that leaves the planner no other way than the index.

-- name: put_sink
-- Store a sink of an app.
INSERT INTO redrive.sinks (name, kind, seen_at) VALUES (:name, :kind, :now)
ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, seen_at = excluded.seen_at;

-- name: drop_topics
-- Remove the topics of a sink.
DELETE FROM redrive.sink_topics WHERE sink = :name;

-- name: put_topic
-- Add a topic, or a prefix of topics, to a sink.
INSERT INTO redrive.sink_topics (sink, topic, wild) VALUES (:name, :topic, :wild);

-- name: sink_topics
-- The topics of all sinks.
SELECT t.sink, t.topic, t.wild FROM redrive.sink_topics AS t;

-- name: sinks
-- All sinks, each with the number of deliveries that wait or are dead.
SELECT s.name, s.kind, s.seen_at,
       (SELECT count(*) FROM (SELECT 1 FROM redrive.deliveries AS d /* INDEXED BY deliveries_due */
                              WHERE d.sink = s.name AND d.available_at IS NOT NULL LIMIT 1000) AS due)
       + (SELECT count(*) FROM (SELECT 1 FROM redrive.deliveries AS d /* INDEXED BY deliveries_behind */
                                WHERE d.sink = s.name AND d.behind IS NOT NULL LIMIT 1000) AS behind)
       + (SELECT CAST(COALESCE(sum(b.size), 0) AS bigint) FROM redrive.bundles AS b /* INDEXED BY bundles_open */
          WHERE b.sink = s.name AND b.finished_at IS NULL),
       (SELECT count(*) FROM (SELECT 1 FROM redrive.deliveries AS d /* INDEXED BY deliveries_dead */
                              WHERE d.status = 'DEAD' AND d.sink = s.name LIMIT 1000) AS dead)
FROM redrive.sinks AS s ORDER BY s.name;

-- name: drop_sink
-- Remove a sink.
DELETE FROM redrive.sinks WHERE name = :name RETURNING name;

-- name: skip_sink_deliveries
-- Give up all unfinished deliveries to a sink that was removed.
UPDATE redrive.deliveries AS d SET
    status = 'SKIPPED', available_at = NULL, behind = NULL, finished_at = :now, lease_until = 0, fence = d.fence + 1
WHERE d.sink = :name AND d.finished_at IS NULL;

-- name: expired_bundles
-- Bundles that their relay did not finish within the lease, or whose worker is dead.
SELECT b.id FROM redrive.bundles AS b /* INDEXED BY bundles_open */
WHERE b.sink = :sink AND b.finished_at IS NULL AND (
    b.lease_until <= :at OR (b.worker IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM redrive.workers AS w WHERE w.id = b.worker AND w.lease_until > :at LIMIT 1 OFFSET 0)));

-- name: bundle_of
-- The bundle of a message.
SELECT m.bundle FROM redrive.messages AS m WHERE m.public_id = :message AND m.bundle IS NOT NULL;

-- name: finish_bundles
-- Mark bundles of which every message was delivered.
UPDATE redrive.bundles AS b SET finished_at = :now
WHERE b.sink = :sink AND b.id = ANY (CAST(:bundles AS bigint[])) AND b.finished_at IS NULL
RETURNING id;

-- name: drop_bundles
-- Remove bundles whose messages have deliveries now.
DELETE FROM redrive.bundles AS b
WHERE b.id = ANY (CAST(:bundles AS bigint[])) AND (CAST(:sink AS text) IS NULL OR b.sink = :sink)
  AND b.finished_at IS NULL;

-- name: next_delivery
-- When the next delivery is due, or the next lease on one expires.
SELECT min(next.time) FROM (
    SELECT min(d.available_at) AS time FROM redrive.deliveries AS d /* INDEXED BY deliveries_due */
    WHERE d.sink = :sink AND d.available_at IS NOT NULL AND d.available_at > :at
    UNION ALL
    SELECT min(d.lease_until) FROM redrive.deliveries AS d /* INDEXED BY deliveries_due */
    WHERE d.sink = :sink AND d.available_at IS NOT NULL AND d.available_at <= :at AND d.lease_until > :at
    UNION ALL
    SELECT min(b.lease_until) FROM redrive.bundles AS b /* INDEXED BY bundles_open */
    WHERE b.sink = :sink AND b.finished_at IS NULL) AS next;

-- name: earlier_unfinished
-- For each of some keys, the first unfinished message before a given one that is not among the due ones.
SELECT w.tenant, w.key, (
    SELECT d.message FROM redrive.deliveries AS d /* INDEXED BY deliveries_in_order */
    WHERE d.sink = :sink AND d.tenant = w.tenant AND d.key = w.key AND d.key IS NOT NULL AND d.finished_at IS NULL
      AND d.message < w.until AND d.message <> ALL (CAST(:due AS bigint[]))
    ORDER BY d.message LIMIT 1)
FROM unnest(CAST(:tenants AS text[]), CAST(:keys AS text[]), CAST(:until AS bigint[])) AS w (tenant, key, until);

-- name: ahead
-- For each of some keys, the message that a given one waits behind: the one before it, or what that one waits behind.
SELECT w.tenant, w.key, (
    SELECT COALESCE(d.behind, d.message) FROM redrive.deliveries AS d /* INDEXED BY deliveries_in_order */
    WHERE d.sink = :sink AND d.tenant = w.tenant AND d.key = w.key AND d.key IS NOT NULL AND d.finished_at IS NULL
      AND d.message < w.until AND d.message <> ALL (CAST(:due AS bigint[]))
    ORDER BY d.message DESC LIMIT 1)
FROM unnest(CAST(:tenants AS text[]), CAST(:keys AS text[]), CAST(:until AS bigint[])) AS w (tenant, key, until);

-- name: lock_unfinished
-- Lock those of some messages whose delivery is unfinished; skip those that another transaction changes.
SELECT d.message FROM redrive.deliveries AS d
WHERE d.sink = :sink AND d.message = ANY (CAST(:messages AS bigint[])) AND d.finished_at IS NULL
ORDER BY d.message FOR SHARE SKIP LOCKED;

-- name: wait_behind
-- Make deliveries wait until an earlier one is finished.
UPDATE redrive.deliveries AS d SET behind = :behind, available_at = NULL
WHERE d.sink = :sink AND d.message = ANY (CAST(:messages AS bigint[])) AND d.status = 'PENDING';

-- name: take_deliveries
-- Claim deliveries.
UPDATE redrive.deliveries AS d SET
    fence = d.fence + 1, lease_until = :until, worker = CAST(:worker AS bigint),
    deaths = d.deaths + CAST(d.lease_until > 0 AS integer)
WHERE d.sink = :sink AND d.message = ANY (CAST(:messages AS bigint[]));

-- name: unfinished
-- Lock and return those of some messages whose delivery is unfinished.
SELECT d.message FROM redrive.deliveries AS d
WHERE d.sink = :sink AND d.message = ANY (CAST(:messages AS bigint[])) AND d.finished_at IS NULL
ORDER BY d.message FOR NO KEY UPDATE;

-- name: record_delivery
-- Note the result of a delivery, unless another relay has claimed it since.
UPDATE redrive.deliveries AS d SET
    status = :status, attempt = :attempt, lease_until = 0, deaths = 0,
    error = CASE WHEN CAST(:tried_at AS bigint) IS NULL THEN d.error ELSE :error END,
    tried_at = COALESCE(CAST(:tried_at AS bigint), d.tried_at), available_at = :available_at, behind = :behind,
    finished_at = :finished_at
WHERE d.message = :message AND d.sink = :sink AND d.fence = :fence AND d.status = 'PENDING';

-- name: release
-- Make deliveries due that wait behind messages whose deliveries are finished.
UPDATE redrive.deliveries AS d SET behind = NULL, available_at = :now
WHERE d.sink = :sink AND d.behind IS NOT NULL AND d.behind = ANY (CAST(:messages AS bigint[]));

-- name: unfinished_deliveries
-- The unfinished deliveries of a message, locked for a user's decision.
SELECT d.message, d.sink, d.status, d.available_at FROM redrive.deliveries AS d
WHERE d.message = (SELECT m.id FROM redrive.messages AS m WHERE m.public_id = :message)
  AND (CAST(:sink AS text) IS NULL OR d.sink = :sink) AND d.finished_at IS NULL
ORDER BY d.sink FOR NO KEY UPDATE;

-- name: retry_delivery
-- Make a delivery due at once with all its attempts; one that waits behind another keeps waiting.
UPDATE redrive.deliveries AS d SET
    status = 'PENDING', attempt = 0, available_at = CASE WHEN d.behind IS NULL THEN :now END,
    lease_until = 0, deaths = 0, fence = d.fence + 1
WHERE d.message = :message AND d.sink = :sink;

-- name: skip
-- Give up a delivery.
UPDATE redrive.deliveries AS d SET
    status = 'SKIPPED', available_at = NULL, behind = NULL, finished_at = :now, lease_until = 0, fence = d.fence + 1
WHERE d.message = :message AND d.sink = :sink;

-- name: blocked_keys
-- Keys whose first message is dead, with the number of messages that wait behind it, counted up to 1,000.
SELECT d.sink, d.tenant, d.key, (SELECT m.public_id FROM redrive.messages AS m WHERE m.id = d.message),
       (SELECT m.topic FROM redrive.messages AS m WHERE m.id = d.message), d.attempt, d.tried_at, d.error, (
    SELECT count(*) FROM (
        SELECT 1 FROM redrive.deliveries AS w /* INDEXED BY deliveries_in_order */
        WHERE w.sink = d.sink AND w.tenant = d.tenant AND w.key = d.key AND w.key IS NOT NULL
          AND w.finished_at IS NULL AND w.message > d.message LIMIT 1000) AS others)
FROM redrive.deliveries AS d /* INDEXED BY deliveries_dead */
WHERE d.status = 'DEAD' AND d.key IS NOT NULL AND (CAST(:tenant AS text) IS NULL OR d.tenant = :tenant)
ORDER BY d.message LIMIT CAST(:most AS bigint);

-- name: message_by_id
-- The message with a public id.
SELECT m.id, m.public_id, m.tenant, m.topic, m.key, m.payload, m.run_id, m.correlation_id, m.created_at, m.trace
FROM redrive.messages AS m WHERE m.public_id = :message AND (CAST(:tenant AS text) IS NULL OR m.tenant = :tenant);

-- name: delete_old_messages
-- Remove messages whose deliveries were all finished before a time.
DELETE FROM redrive.messages WHERE id = ANY (ARRAY(
    SELECT m.id FROM redrive.messages AS m
    WHERE m.created_at <= CAST(:before AS bigint) AND NOT EXISTS (
        SELECT 1 FROM redrive.deliveries AS d
        WHERE d.message = m.id AND (d.finished_at IS NULL OR d.finished_at > CAST(:before AS bigint)) OFFSET 0)
      AND NOT EXISTS (
        SELECT 1 FROM redrive.bundles AS b
        WHERE b.id = m.bundle AND (b.finished_at IS NULL OR b.finished_at > CAST(:before AS bigint)) OFFSET 0)
    ORDER BY m.id LIMIT CAST(:most AS bigint) FOR UPDATE SKIP LOCKED))
RETURNING id;

-- name: delete_old_deliveries
-- Remove the deliveries of messages that were removed.
DELETE FROM redrive.deliveries WHERE message = ANY (CAST(:messages AS bigint[]));

-- name: delete_old_bundles
-- Remove finished bundles of which no message is left.
DELETE FROM redrive.bundles WHERE (id, sink) IN (
    SELECT b.id, b.sink FROM redrive.bundles AS b
    WHERE b.finished_at <= CAST(:before AS bigint) AND NOT EXISTS (
        SELECT 1 FROM redrive.messages AS m WHERE m.id BETWEEN b.first AND b.last AND m.bundle = b.id OFFSET 0)
    ORDER BY b.id, b.sink LIMIT CAST(:most AS bigint) FOR UPDATE SKIP LOCKED);
