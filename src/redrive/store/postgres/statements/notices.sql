-- Notifications: facts, what was told, who read it, and the rules about it.

-- name: put_notice
-- Facts that are to be told; a repeat finds them there.
INSERT INTO redrive.notices (public_id, tenant, lane, created_at, notice)
VALUES (:public_id, :tenant, :lane, :now, :notice)
ON CONFLICT (public_id) DO NOTHING;

-- name: put_lane
-- A lane that something is in; one that is known is not touched.
INSERT INTO redrive.notice_lanes (tenant, lane) VALUES (:tenant, :lane) ON CONFLICT (tenant, lane) DO NOTHING;

-- name: due_lanes
-- Lanes with something to tell whose turn it is, with how much that is.
SELECT l.tenant, l.lane, l.version, count(*), min(n.created_at), max(n.id)
FROM (SELECT d.tenant, d.lane, d.version, d.next_at FROM redrive.notice_lanes AS d
      WHERE d.next_at <= CAST(:now AS bigint) AND EXISTS (
          SELECT 1 FROM redrive.notices AS o
          WHERE o.tenant = d.tenant AND o.lane = d.lane AND o.told_at IS NULL OFFSET 0)
      ORDER BY d.next_at LIMIT CAST(:most AS bigint)) AS l
JOIN redrive.notices AS n ON n.tenant = l.tenant AND n.lane = l.lane AND n.told_at IS NULL
GROUP BY l.tenant, l.lane, l.version, l.next_at ORDER BY l.next_at;

-- name: newest_notices
-- The newest facts of a lane.
SELECT id, tenant, created_at, notice FROM redrive.notices
WHERE tenant = :tenant AND lane = :lane AND told_at IS NULL AND id <= CAST(:last AS bigint)
ORDER BY id DESC LIMIT CAST(:newest AS bigint);

-- name: turn_lane
-- A lane is told, and rests for a while, unless somebody was quicker.
UPDATE redrive.notice_lanes SET version = version + 1, next_at = :next_at
WHERE tenant = :tenant AND lane = :lane AND version = :version RETURNING version;

-- name: mark_told
-- Facts that are told now.
UPDATE redrive.notices SET told_at = :now
WHERE tenant = :tenant AND lane = :lane AND told_at IS NULL AND id <= CAST(:last AS bigint) RETURNING id;

-- name: put_notification
-- What is told.
INSERT INTO redrive.notifications (public_id, tenant, event, workflow, count, in_app, created_at, content)
VALUES (:public_id, :tenant, :event, :workflow, :count, :in_app, :now, :content)
ON CONFLICT (public_id) DO NOTHING;

-- name: publish
-- The messages that bring it to people, and a delivery for each sink that wants one.
SELECT 1 FROM redrive.publish_bundled(
    CAST(:now AS bigint), ARRAY[true], CAST(:m_t AS integer[]), CAST(:m_public_id AS text[]), CAST(:m_tenant AS text[]),
    CAST(:m_topic AS text[]), CAST(:m_key AS text[]), CAST(:m_run_id AS text[]), CAST(:m_correlation_id AS text[]),
    CAST(:m_payload AS text[]), CAST(:m_trace AS text[]), NULL, NULL, NULL, NULL);

-- name: notifications
-- A page of the inbox, as one reader sees it.
SELECT n.id, n.public_id, n.tenant, n.event, n.workflow, n.count, n.created_at, n.content, r.read_at
FROM redrive.notifications AS n
LEFT JOIN redrive.notification_reads AS r ON r.notification = n.id AND r.reader = :reader
WHERE n.in_app AND {conditions}
ORDER BY n.id {order} LIMIT CAST(:most AS bigint);

-- name: unread
-- How many of the inbox one reader has not read.
SELECT count(*) FROM (
    SELECT 1 FROM redrive.notifications AS n
    LEFT JOIN redrive.notification_reads AS r ON r.notification = n.id AND r.reader = :reader
    WHERE n.in_app AND {conditions} LIMIT CAST(:most AS bigint)) AS found;

-- name: mark_read
-- A reader read these.
INSERT INTO redrive.notification_reads (notification, tenant, reader, read_at)
SELECT n.id, n.tenant, :reader, CAST(:now AS bigint)
FROM redrive.notifications AS n
LEFT JOIN redrive.notification_reads AS r ON r.notification = n.id AND r.reader = :reader
WHERE n.in_app AND {conditions}
ON CONFLICT (notification, reader) DO NOTHING RETURNING notification;

-- name: notifications.tenant
-- Of a tenant.
n.tenant = :tenant;

-- name: notifications.workflows
-- About some workflows.
n.workflow = ANY (CAST(:workflows AS text[]));

-- name: notifications.ids
-- Some of them.
n.public_id = ANY (CAST(:ids AS text[]));

-- name: notifications.unread
-- Not read yet.
r.read_at IS NOT DISTINCT FROM CAST(:unread AS bigint);

-- name: notifications.below
-- Older than a place.
n.id < :below;

-- name: notifications.above
-- Newer than a place.
n.id > :above;

-- name: rules
-- All stored rules.
SELECT tenant, workflow, rule, updated_at, updated_by FROM redrive.notify_rules ORDER BY tenant, workflow;

-- name: put_rule
-- Store a rule in place of the one it replaces.
INSERT INTO redrive.notify_rules (tenant, workflow, rule, updated_at, updated_by)
VALUES (:tenant, :workflow, :rule, :now, :updated_by)
ON CONFLICT (tenant, workflow) DO UPDATE SET
    rule = excluded.rule, updated_at = excluded.updated_at, updated_by = excluded.updated_by;

-- name: drop_rule
-- Remove a rule.
DELETE FROM redrive.notify_rules WHERE tenant = :tenant AND workflow = :workflow RETURNING tenant;

-- name: old_notices
-- Facts that were told long enough ago.
DELETE FROM redrive.notices WHERE id = ANY (ARRAY(
    SELECT id FROM redrive.notices WHERE told_at IS NOT NULL AND told_at <= CAST(:before AS bigint)
    LIMIT CAST(:most AS bigint) FOR UPDATE SKIP LOCKED)) RETURNING id;

-- name: missing_lanes
-- Lanes that went while something was added to them.
INSERT INTO redrive.notice_lanes (tenant, lane)
SELECT DISTINCT tenant, lane FROM redrive.notices WHERE told_at IS NULL
ON CONFLICT (tenant, lane) DO NOTHING;

-- name: old_lanes
-- Lanes in which nothing happened for long.
DELETE FROM redrive.notice_lanes AS g USING (
    SELECT l.tenant, l.lane FROM redrive.notice_lanes AS l
    WHERE l.next_at <= CAST(:before AS bigint) AND NOT EXISTS (
        SELECT 1 FROM redrive.notices AS n
        WHERE n.tenant = l.tenant AND n.lane = l.lane AND n.told_at IS NULL OFFSET 0)
    LIMIT CAST(:most AS bigint) FOR UPDATE SKIP LOCKED) AS o
WHERE g.tenant = o.tenant AND g.lane = o.lane RETURNING g.lane;

-- name: old_notifications
-- What was told long enough ago.
DELETE FROM redrive.notifications WHERE id = ANY (ARRAY(
    SELECT id FROM redrive.notifications WHERE created_at <= CAST(:before AS bigint)
    ORDER BY created_at LIMIT CAST(:most AS bigint) FOR UPDATE SKIP LOCKED)) RETURNING id;

-- name: old_reads
-- Who read what is gone.
DELETE FROM redrive.notification_reads WHERE notification = ANY (CAST(:notifications AS bigint[]));
