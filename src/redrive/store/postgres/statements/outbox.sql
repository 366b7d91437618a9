-- The outbox: messages, sinks, deliveries. Messages are written by the function `publish` of the schema.
-- Plans are made while the tables are small, and kept. What a statement is about is therefore said as an array, too, or
-- looked up row by row behind OFFSET 0: that leaves no other way than the index.

-- name: put_sink
-- A sink that an app has.
INSERT INTO redrive.sinks (name, kind, seen_at) VALUES (:name, :kind, CAST(:now AS bigint))
ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, seen_at = excluded.seen_at;

-- name: drop_topics
-- A sink no longer wants what it wanted.
DELETE FROM redrive.sink_topics WHERE sink = :name;

-- name: put_topic
-- What a sink wants.
INSERT INTO redrive.sink_topics (sink, topic, wild)
SELECT :name, t.topic, t.wild FROM unnest(CAST(:topics AS text[]), CAST(:wild AS boolean[])) AS t (topic, wild);

-- name: due_deliveries
-- Deliveries that nobody has in hand and whose time has come, within a span of time: all of them, or only those that are
-- suspects or are not; as many as have a payload of so many bytes together.
WITH due AS MATERIALIZED (
    SELECT d.message, d.fence, d.attempt, d.deaths, d.lease_until > 0 AS suspect, d.available_at
    FROM redrive.deliveries AS d
    WHERE d.sink = :sink AND d.available_at IS NOT NULL
      AND d.available_at >= CAST(:since AS bigint) AND d.available_at < CAST(:before AS bigint)
      AND d.lease_until <= CAST(:now AS bigint)
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

-- name: expired_bundles
-- Bundles that whoever had them did not finish in time.
SELECT b.id FROM redrive.bundles AS b
WHERE b.sink = :sink AND b.finished_at IS NULL AND b.lease_until <= CAST(:now AS bigint);

-- name: bundle_of
-- The bundle of a message.
SELECT m.bundle FROM redrive.messages AS m WHERE m.public_id = :message AND m.bundle IS NOT NULL;

-- name: finish_bundles
-- Bundles of which everything arrived.
UPDATE redrive.bundles AS b SET finished_at = CAST(:now AS bigint)
WHERE b.sink = :sink AND b.id = ANY (CAST(:bundles AS bigint[])) AND b.finished_at IS NULL
RETURNING b.id;

-- name: unfold
-- Give each message of some bundles a delivery, as if it had been claimed when it was committed.
WITH gone AS (
    DELETE FROM redrive.bundles AS b
    WHERE b.id = ANY (CAST(:bundles AS bigint[])) AND (CAST(:sink AS text) IS NULL OR b.sink = :sink)
      AND b.finished_at IS NULL
    RETURNING b.id, b.sink, b.first, b.last, b.lease_until
)
INSERT INTO redrive.deliveries (message, sink, tenant, status, fence, available_at, lease_until)
SELECT n.id, g.sink, n.tenant, 'PENDING', CAST(:fence AS bigint), n.created_at, g.lease_until
FROM gone AS g CROSS JOIN LATERAL (
    SELECT m.id, m.tenant, m.created_at FROM redrive.messages AS m
    WHERE m.id BETWEEN g.first AND g.last AND m.bundle = g.id OFFSET 0) AS n;

-- name: next_delivery
-- When the next one is due, or would be if whoever has it died.
SELECT LEAST(
    (SELECT min(d.available_at) FROM redrive.deliveries AS d
     WHERE d.sink = :sink AND d.available_at IS NOT NULL AND d.available_at > CAST(:now AS bigint)),
    (SELECT min(d.lease_until) FROM redrive.deliveries AS d
     WHERE d.sink = :sink AND d.available_at IS NOT NULL AND d.available_at <= CAST(:now AS bigint)
       AND d.lease_until > CAST(:now AS bigint)),
    (SELECT min(b.lease_until) FROM redrive.bundles AS b WHERE b.sink = :sink AND b.finished_at IS NULL));

-- name: first_others
-- For each of some keys, its first message that is not over, is not among the due ones, and comes before their last.
SELECT w.tenant, w.key, (
    SELECT d.message FROM redrive.deliveries AS d
    WHERE d.sink = :sink AND d.tenant = w.tenant AND d.key = w.key AND d.key IS NOT NULL AND d.finished_at IS NULL
      AND d.message < w.place AND d.message <> ALL (CAST(:due AS bigint[]))
    ORDER BY d.message LIMIT 1)
FROM unnest(CAST(:tenants AS text[]), CAST(:keys AS text[]), CAST(:places AS bigint[])) AS w (tenant, key, place);

-- name: ahead
-- Whom the messages of some keys wait behind, from a place on: the one next before it, or whom that one waits for.
SELECT w.tenant, w.key, (
    SELECT COALESCE(d.behind, d.message) FROM redrive.deliveries AS d
    WHERE d.sink = :sink AND d.tenant = w.tenant AND d.key = w.key AND d.key IS NOT NULL AND d.finished_at IS NULL
      AND d.message < w.place AND d.message <> ALL (CAST(:due AS bigint[]))
    ORDER BY d.message DESC LIMIT 1)
FROM unnest(CAST(:tenants AS text[]), CAST(:keys AS text[]), CAST(:places AS bigint[])) AS w (tenant, key, place);

-- name: hold
-- Those of some messages whose delivery is not over and stays so until we are done; what somebody changes is left out.
SELECT d.message FROM redrive.deliveries AS d
WHERE d.sink = :sink AND d.message = ANY (CAST(:messages AS bigint[])) AND d.finished_at IS NULL
ORDER BY d.message FOR SHARE SKIP LOCKED;

-- name: wait_behind
-- Deliveries that wait until an earlier one is over.
UPDATE redrive.deliveries AS d SET behind = CAST(:behind AS bigint), available_at = NULL
WHERE d.sink = :sink AND d.message = ANY (CAST(:messages AS bigint[])) AND d.status = 'PENDING';

-- name: take_deliveries
-- Deliveries that are under way from now on.
UPDATE redrive.deliveries AS d SET
    fence = d.fence + 1, lease_until = CAST(:until AS bigint), deaths = d.deaths + CAST(d.lease_until > 0 AS integer)
WHERE d.sink = :sink AND d.message = ANY (CAST(:messages AS bigint[]));

-- name: going_on
-- Those of some messages whose delivery is not over. Nobody ends them before we are done.
SELECT d.message FROM redrive.deliveries AS d
WHERE d.sink = :sink AND d.message = ANY (CAST(:messages AS bigint[])) AND d.finished_at IS NULL
ORDER BY d.message FOR NO KEY UPDATE;

-- name: mark_delivered
-- Deliveries that arrived, which most of them do; whoever claimed one after us goes before us.
UPDATE redrive.deliveries AS d SET
    status = 'DELIVERED', attempt = d.attempt + 1, lease_until = 0, error = NULL, tried_at = CAST(:now AS bigint),
    available_at = NULL, finished_at = CAST(:now AS bigint)
WHERE d.sink = :sink AND d.message = ANY (CAST(:messages AS bigint[])) AND d.status = 'PENDING'
  AND d.fence = (CAST(:fences AS bigint[]))[array_position(CAST(:messages AS bigint[]), d.message)];

-- name: mark_delivery
-- What became of a delivery; whoever claimed it after us goes before us.
UPDATE redrive.deliveries AS d SET
    status = :status, attempt = CAST(:attempt AS integer), lease_until = 0, deaths = 0,
    error = CASE WHEN CAST(:tried_at AS bigint) IS NULL THEN d.error ELSE :error END,
    tried_at = COALESCE(CAST(:tried_at AS bigint), d.tried_at),
    available_at = CAST(:available_at AS bigint), behind = CAST(:behind AS bigint),
    finished_at = CAST(:finished_at AS bigint)
WHERE d.message = CAST(:message AS bigint) AND d.sink = :sink AND d.fence = CAST(:fence AS bigint)
  AND d.status = 'PENDING';

-- name: release
-- Deliveries of some messages are over: those behind them are due.
UPDATE redrive.deliveries AS d SET behind = NULL, available_at = CAST(:now AS bigint)
WHERE d.sink = :sink AND d.behind IS NOT NULL AND d.behind = ANY (CAST(:messages AS bigint[]));

-- name: not_over
-- The deliveries of a message that a person may decide on.
SELECT d.message, d.sink, d.status, d.available_at FROM redrive.deliveries AS d
WHERE d.message = (SELECT m.id FROM redrive.messages AS m WHERE m.public_id = :message)
  AND (CAST(:sink AS text) IS NULL OR d.sink = :sink) AND d.finished_at IS NULL
ORDER BY d.sink FOR NO KEY UPDATE;

-- name: redeliver
-- A delivery is due at once, with all its attempts before it; one that waits for another goes on waiting.
UPDATE redrive.deliveries AS d SET
    status = 'PENDING', attempt = 0, available_at = CASE WHEN d.behind IS NULL THEN CAST(:now AS bigint) END,
    lease_until = 0, deaths = 0, fence = d.fence + 1
WHERE d.message = CAST(:message AS bigint) AND d.sink = :sink;

-- name: skip
-- A delivery is given up.
UPDATE redrive.deliveries AS d SET
    status = 'SKIPPED', available_at = NULL, behind = NULL, finished_at = CAST(:now AS bigint), lease_until = 0,
    fence = d.fence + 1
WHERE d.message = CAST(:message AS bigint) AND d.sink = :sink;

-- name: blocked_keys
-- Keys whose first message is dead, and how many wait behind it, counted up to a number.
SELECT d.sink, d.tenant, d.key, n.public_id, n.topic, d.attempt, d.tried_at, d.error, (
    SELECT count(*) FROM (
        SELECT 1 FROM redrive.deliveries AS w
        WHERE w.sink = d.sink AND w.tenant = d.tenant AND w.key = d.key AND w.key IS NOT NULL
          AND w.finished_at IS NULL AND w.message > d.message LIMIT 1000) AS others)
FROM redrive.deliveries AS d CROSS JOIN LATERAL (
    SELECT m.public_id, m.topic FROM redrive.messages AS m WHERE m.id = d.message OFFSET 0) AS n
WHERE d.status = 'DEAD' AND d.key IS NOT NULL AND (CAST(:tenant AS text) IS NULL OR d.tenant = :tenant)
ORDER BY d.message LIMIT CAST(:most AS bigint);

-- name: sinks
-- All sinks, and how much waits for each.
SELECT s.name, s.kind, s.seen_at,
       (SELECT json_agg(json_build_array(t.topic, t.wild)) FROM redrive.sink_topics AS t WHERE t.sink = s.name),
       (SELECT count(*) FROM (SELECT 1 FROM redrive.deliveries AS d
                              WHERE d.sink = s.name AND d.available_at IS NOT NULL LIMIT 1000) AS due)
       + (SELECT count(*) FROM (SELECT 1 FROM redrive.deliveries AS d
                                WHERE d.sink = s.name AND d.behind IS NOT NULL LIMIT 1000) AS behind)
       + (SELECT COALESCE(sum(b.size), 0) FROM redrive.bundles AS b
          WHERE b.sink = s.name AND b.finished_at IS NULL),
       (SELECT count(*) FROM (SELECT 1 FROM redrive.deliveries AS d
                              WHERE d.status = 'DEAD' AND d.sink = s.name LIMIT 1000) AS dead)
FROM redrive.sinks AS s ORDER BY s.name;

-- name: drop_sink
-- A sink that no message goes to any more.
DELETE FROM redrive.sinks WHERE name = :name RETURNING name;

-- name: skip_all
-- What was meant for a sink that is gone.
UPDATE redrive.deliveries AS d SET
    status = 'SKIPPED', available_at = NULL, behind = NULL, finished_at = CAST(:now AS bigint), lease_until = 0,
    fence = d.fence + 1
WHERE d.sink = :name AND d.finished_at IS NULL;

-- name: old_messages
-- Messages whose deliveries were all over long enough ago.
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

-- name: old_deliveries
-- The deliveries of messages that are gone.
DELETE FROM redrive.deliveries WHERE message = ANY (CAST(:messages AS bigint[]));

-- name: old_bundles
-- Bundles of which no message is left.
DELETE FROM redrive.bundles WHERE (id, sink) IN (
    SELECT b.id, b.sink FROM redrive.bundles AS b
    WHERE b.finished_at <= CAST(:before AS bigint) AND NOT EXISTS (
        SELECT 1 FROM redrive.messages AS m WHERE m.id BETWEEN b.first AND b.last AND m.bundle = b.id OFFSET 0)
    ORDER BY b.id, b.sink LIMIT CAST(:most AS bigint) FOR UPDATE SKIP LOCKED);
