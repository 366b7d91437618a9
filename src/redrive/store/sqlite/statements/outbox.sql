-- The outbox: messages, sinks, deliveries.

-- name: put_sink
-- A sink that an app has.
INSERT INTO sinks (name, kind, seen_at) VALUES (:name, :kind, :now)
ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, seen_at = excluded.seen_at;

-- name: drop_topics
-- A sink no longer wants what it wanted.
DELETE FROM sink_topics WHERE sink = :name;

-- name: put_topic
-- What a sink wants.
INSERT INTO sink_topics (sink, topic, wild) VALUES (?, ?, ?);

-- name: last_message
-- The newest id that was ever given.
SELECT COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'messages'), 0);

-- name: sinks_for
-- The sinks that want messages on a topic.
SELECT s.name FROM sinks AS s WHERE EXISTS (
    SELECT 1 FROM sink_topics AS t
    WHERE t.sink = s.name AND (t.topic = :topic OR (t.wild AND substr(:topic, 1, length(t.topic)) = t.topic)));

-- name: put_message
-- A message; a repeat finds it there.
INSERT INTO messages (
    id, public_id, tenant, topic, key, run_id, correlation_id, created_at, payload, trace, bundle)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (public_id) DO NOTHING;

-- name: messages_between
-- Which numbers in a row are those of messages.
SELECT id FROM messages WHERE id BETWEEN :first AND :last;

-- name: put_bundle
-- Messages that somebody brings to a sink from their commit on.
INSERT INTO bundles (id, sink, tenant, first, last, size, lease_until) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: put_delivery
-- A delivery of a message that is new.
INSERT INTO deliveries (message, sink, tenant, key, status, available_at) VALUES (?, ?, ?, ?, ?, ?);

-- name: no_bundle
-- A repeat, because a reply was lost, and with it what was given to the carriers: it is anybody's.
UPDATE bundles SET lease_until = 0
WHERE finished_at IS NULL AND id IN (
    SELECT m.bundle FROM json_each(:messages) AS w CROSS JOIN messages AS m ON m.public_id = w.value
    WHERE m.bundle IS NOT NULL);

-- name: any_due
-- Whether a claim would find something.
SELECT 1 WHERE EXISTS (
    SELECT 1 FROM deliveries INDEXED BY deliveries_due
    WHERE sink = :sink AND available_at IS NOT NULL AND available_at <= :now AND lease_until <= :now)
OR EXISTS (
    SELECT 1 FROM bundles INDEXED BY bundles_open
    WHERE sink = :sink AND finished_at IS NULL AND lease_until <= :now);

-- name: expired_bundles
-- Bundles that whoever had them did not finish in time.
SELECT id FROM bundles INDEXED BY bundles_open
WHERE sink = :sink AND finished_at IS NULL AND lease_until <= :now;

-- name: bundle_of
-- The bundle of a message.
SELECT bundle FROM messages WHERE public_id = :message AND bundle IS NOT NULL;

-- name: finish_bundles
-- Bundles of which everything arrived.
UPDATE bundles SET finished_at = :now
WHERE sink = :sink AND id IN (SELECT value FROM json_each(:bundles)) AND finished_at IS NULL
RETURNING id;

-- name: unfold
-- Give each message of some bundles a delivery, as if it had been claimed when it was committed.
INSERT INTO deliveries (message, sink, tenant, status, fence, available_at, lease_until)
SELECT m.id, b.sink, m.tenant, 'PENDING', :fence, m.created_at, b.lease_until
FROM json_each(:bundles) AS w CROSS JOIN bundles AS b ON b.id = w.value
CROSS JOIN messages AS m ON m.id BETWEEN b.first AND b.last AND m.bundle = b.id
WHERE (:sink IS NULL OR b.sink = :sink) AND b.finished_at IS NULL;

-- name: drop_bundles
-- Bundles that were unfolded.
DELETE FROM bundles
WHERE id IN (SELECT value FROM json_each(:bundles)) AND (:sink IS NULL OR sink = :sink) AND finished_at IS NULL;

-- name: due_deliveries
-- Deliveries whose time has come and that nobody has in hand: all of them, or only those that are suspects or are not.
SELECT m.id, m.public_id, m.tenant, m.topic, m.key, m.payload, m.run_id, m.correlation_id, m.created_at, m.trace, d.fence,
       d.attempt, d.deaths, d.lease_until > 0
FROM deliveries AS d INDEXED BY deliveries_due CROSS JOIN messages AS m ON m.id = d.message
WHERE d.sink = :sink AND d.available_at IS NOT NULL AND d.available_at <= :now AND d.lease_until <= :now
  AND (:suspect IS NULL OR (d.lease_until > 0) = :suspect)
ORDER BY d.available_at, d.message LIMIT :most;

-- name: next_delivery
-- When the next one is due, or would be if whoever has it died.
SELECT min(at) FROM (
    SELECT min(available_at) AS at FROM deliveries INDEXED BY deliveries_due
    WHERE sink = :sink AND available_at IS NOT NULL AND available_at > :now
    UNION ALL
    SELECT min(lease_until) FROM deliveries INDEXED BY deliveries_due
    WHERE sink = :sink AND available_at IS NOT NULL AND available_at <= :now AND lease_until > :now
    UNION ALL
    SELECT min(lease_until) FROM bundles INDEXED BY bundles_open WHERE sink = :sink AND finished_at IS NULL);

-- name: first_others
-- For each of some keys, its first message that is not over, is not among the due ones, and comes before their last.
SELECT w.tenant, w.key, (
    SELECT d.message FROM deliveries AS d INDEXED BY deliveries_in_order
    WHERE d.sink = :sink AND d.tenant = w.tenant AND d.key = w.key AND d.key IS NOT NULL
      AND d.finished_at IS NULL AND d.message < w.last AND d.message NOT IN (SELECT value FROM json_each(:due))
    ORDER BY d.message LIMIT 1)
FROM (SELECT json_extract(value, '$[0]') AS tenant, json_extract(value, '$[1]') AS key,
             json_extract(value, '$[2]') AS last FROM json_each(:lanes)) AS w;

-- name: ahead
-- Whom the messages of some keys wait behind, from a place on: the one next before it, or whom that one waits for.
SELECT w.tenant, w.key, (
    SELECT COALESCE(d.behind, d.message) FROM deliveries AS d INDEXED BY deliveries_in_order
    WHERE d.sink = :sink AND d.tenant = w.tenant AND d.key = w.key AND d.key IS NOT NULL
      AND d.finished_at IS NULL AND d.message < w.place AND d.message NOT IN (SELECT value FROM json_each(:due))
    ORDER BY d.message DESC LIMIT 1)
FROM (SELECT json_extract(value, '$[0]') AS tenant, json_extract(value, '$[1]') AS key,
             json_extract(value, '$[2]') AS place FROM json_each(:lanes)) AS w;

-- name: wait_behind
-- Deliveries that wait until an earlier one is over.
UPDATE deliveries SET behind = ?, available_at = NULL WHERE message = ? AND sink = ? AND status = 'PENDING';

-- name: take_deliveries
-- Deliveries that are under way from now on.
UPDATE deliveries SET fence = fence + 1, lease_until = :until, deaths = deaths + (lease_until > 0)
WHERE sink = :sink AND message IN (SELECT value FROM json_each(:messages));

-- name: going_on
-- Those of some messages whose delivery is not over.
SELECT message FROM deliveries
WHERE sink = :sink AND message IN (SELECT value FROM json_each(:messages)) AND finished_at IS NULL;

-- name: mark_delivered
-- Deliveries that arrived, which most of them do; whoever claimed one after us goes before us.
UPDATE deliveries SET
    status = 'DELIVERED', attempt = attempt + 1, lease_until = 0, error = NULL, tried_at = :now, available_at = NULL,
    finished_at = :now
FROM json_each(:marks) AS w
WHERE deliveries.message = json_extract(w.value, '$[0]') AND deliveries.sink = :sink
  AND deliveries.fence = json_extract(w.value, '$[1]') AND deliveries.status = 'PENDING';

-- name: mark_delivery
-- What became of a delivery; whoever claimed it after us goes before us.
UPDATE deliveries SET
    status = :status, attempt = :attempt, lease_until = 0, deaths = 0,
    error = CASE WHEN :tried_at IS NULL THEN error ELSE :error END, tried_at = COALESCE(:tried_at, tried_at),
    available_at = :available_at, behind = :behind, finished_at = :finished_at
WHERE message = :message AND fence = :fence AND sink = :sink AND status = 'PENDING';

-- name: release
-- Deliveries of some messages are over: those behind them are due.
UPDATE deliveries SET behind = NULL, available_at = :now
WHERE sink = :sink AND behind IS NOT NULL AND behind IN (SELECT value FROM json_each(:messages));

-- name: not_over
-- The deliveries of a message that a person may decide on.
SELECT d.message, d.sink, d.status, d.available_at
FROM messages AS m JOIN deliveries AS d ON d.message = m.id
WHERE m.public_id = :message AND (:sink IS NULL OR d.sink = :sink) AND d.finished_at IS NULL;

-- name: redeliver
-- A delivery is due at once, with all its attempts before it; one that waits for another goes on waiting.
UPDATE deliveries SET
    status = 'PENDING', attempt = 0, available_at = CASE WHEN behind IS NULL THEN :now END,
    lease_until = 0, deaths = 0, fence = fence + 1
WHERE message = :message AND sink = :sink;

-- name: skip
-- A delivery is given up.
UPDATE deliveries SET status = 'SKIPPED', available_at = NULL, behind = NULL, finished_at = :now, lease_until = 0,
    fence = fence + 1
WHERE message = :message AND sink = :sink;

-- name: blocked_keys
-- Keys whose first message is dead, and how many wait behind it, counted up to a number.
SELECT d.sink, d.tenant, d.key, m.public_id, m.topic, d.attempt, d.tried_at, d.error, (
    SELECT count(*) FROM (
        SELECT 1 FROM deliveries AS w INDEXED BY deliveries_in_order
        WHERE w.sink = d.sink AND w.tenant = d.tenant AND w.key = d.key AND w.key IS NOT NULL
          AND w.finished_at IS NULL AND w.message > d.message LIMIT 1000))
FROM deliveries AS d INDEXED BY deliveries_dead JOIN messages AS m ON m.id = d.message
WHERE d.status = 'DEAD' AND d.key IS NOT NULL AND (:tenant IS NULL OR d.tenant = :tenant)
ORDER BY d.message LIMIT :most;

-- name: sinks
-- All sinks, and how much waits for each.
SELECT s.name, s.kind, s.seen_at,
       (SELECT json_group_array(json_array(t.topic, t.wild)) FROM sink_topics AS t WHERE t.sink = s.name),
       (SELECT count(*) FROM (SELECT 1 FROM deliveries AS d INDEXED BY deliveries_due
                              WHERE d.sink = s.name AND d.available_at IS NOT NULL LIMIT 1000))
       + (SELECT count(*) FROM (SELECT 1 FROM deliveries AS d INDEXED BY deliveries_behind
                                WHERE d.sink = s.name AND d.behind IS NOT NULL LIMIT 1000))
       + (SELECT COALESCE(sum(b.size), 0) FROM bundles AS b INDEXED BY bundles_open
          WHERE b.sink = s.name AND b.finished_at IS NULL),
       (SELECT count(*) FROM (SELECT 1 FROM deliveries AS d INDEXED BY deliveries_dead
                              WHERE d.status = 'DEAD' AND d.sink = s.name LIMIT 1000))
FROM sinks AS s ORDER BY s.name;

-- name: drop_sink
-- A sink that no message goes to any more.
DELETE FROM sinks WHERE name = :name RETURNING name;

-- name: skip_all
-- What was meant for a sink that is gone.
UPDATE deliveries SET status = 'SKIPPED', available_at = NULL, behind = NULL, finished_at = :now, lease_until = 0,
    fence = fence + 1
WHERE sink = :name AND finished_at IS NULL;

-- name: old_messages
-- Messages whose deliveries were all over long enough ago.
DELETE FROM messages WHERE id IN (
    SELECT m.id FROM messages AS m
    WHERE m.created_at <= :before AND NOT EXISTS (
        SELECT 1 FROM deliveries AS d
        WHERE d.message = m.id AND (d.finished_at IS NULL OR d.finished_at > :before))
      AND NOT EXISTS (
        SELECT 1 FROM bundles AS b
        WHERE b.id = m.bundle AND (b.finished_at IS NULL OR b.finished_at > :before))
    ORDER BY m.id LIMIT :most)
RETURNING id;

-- name: old_deliveries
-- The deliveries of messages that are gone.
DELETE FROM deliveries WHERE message IN (SELECT value FROM json_each(:messages));

-- name: old_bundles
-- Bundles of which no message is left.
DELETE FROM bundles WHERE (id, sink) IN (
    SELECT b.id, b.sink FROM bundles AS b
    WHERE b.finished_at <= :before AND NOT EXISTS (
        SELECT 1 FROM messages AS m WHERE m.id BETWEEN b.first AND b.last AND m.bundle = b.id)
    ORDER BY b.id LIMIT :most);
