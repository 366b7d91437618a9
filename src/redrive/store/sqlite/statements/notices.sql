-- Notifications: facts, what was told, who read it, and the rules about it.

-- name: put_notice
-- Facts that are to be told; a repeat finds them there.
INSERT INTO notices (public_id, tenant, lane, created_at, notice) VALUES (:public_id, :tenant, :lane, :now, :notice)
ON CONFLICT (public_id) DO NOTHING;

-- name: put_lane
-- A lane that something is in; one that is known is not touched.
INSERT INTO notice_lanes (tenant, lane) VALUES (:tenant, :lane) ON CONFLICT (tenant, lane) DO NOTHING;

-- name: due_lanes
-- Lanes with something to tell whose turn it is, with how much that is.
SELECT l.tenant, l.lane, l.version, count(*), min(n.created_at), max(n.id)
FROM (SELECT d.tenant, d.lane, d.version, d.next_at FROM notice_lanes AS d
      WHERE d.next_at <= :now AND EXISTS (
          SELECT 1 FROM notices AS o WHERE o.tenant = d.tenant AND o.lane = d.lane AND o.told_at IS NULL)
      ORDER BY d.next_at LIMIT :most) AS l
JOIN notices AS n ON n.tenant = l.tenant AND n.lane = l.lane AND n.told_at IS NULL
GROUP BY l.tenant, l.lane, l.version, l.next_at ORDER BY l.next_at;

-- name: newest_notices
-- The newest facts of a lane.
SELECT id, tenant, created_at, notice FROM notices
WHERE tenant = :tenant AND lane = :lane AND told_at IS NULL AND id <= :last ORDER BY id DESC LIMIT :newest;

-- name: turn_lane
-- A lane is told, and rests for a while, unless somebody was quicker.
UPDATE notice_lanes SET version = version + 1, next_at = :next_at
WHERE tenant = :tenant AND lane = :lane AND version = :version RETURNING version;

-- name: mark_told
-- Facts that are told now.
UPDATE notices SET told_at = :now
WHERE tenant = :tenant AND lane = :lane AND told_at IS NULL AND id <= :last RETURNING id;

-- name: put_notification
-- What is told.
INSERT INTO notifications (public_id, tenant, event, workflow, count, in_app, created_at, content)
VALUES (:public_id, :tenant, :event, :workflow, :count, :in_app, :now, :content)
ON CONFLICT (public_id) DO NOTHING;

-- name: notifications
-- A page of the inbox, as one reader sees it.
SELECT n.id, n.public_id, n.tenant, n.event, n.workflow, n.count, n.created_at, n.content, r.read_at
FROM notifications AS n LEFT JOIN notification_reads AS r ON r.notification = n.id AND r.reader = :reader
WHERE n.in_app AND {conditions}
ORDER BY n.id {order} LIMIT :most;

-- name: unread
-- How many of the inbox one reader has not read.
SELECT count(*) FROM (
    SELECT 1 FROM notifications AS n LEFT JOIN notification_reads AS r ON r.notification = n.id AND r.reader = :reader
    WHERE n.in_app AND {conditions} LIMIT :most);

-- name: mark_read
-- A reader read these.
INSERT INTO notification_reads (notification, tenant, reader, read_at)
SELECT n.id, n.tenant, :reader, :now
FROM notifications AS n LEFT JOIN notification_reads AS r ON r.notification = n.id AND r.reader = :reader
WHERE n.in_app AND {conditions}
ON CONFLICT (notification, reader) DO NOTHING RETURNING notification;

-- name: notifications.tenant
-- Of a tenant.
n.tenant = :tenant;

-- name: notifications.workflows
-- About some workflows.
n.workflow IN (SELECT value FROM json_each(:workflows));

-- name: notifications.ids
-- Some of them.
n.public_id IN (SELECT value FROM json_each(:ids));

-- name: notifications.unread
-- Not read yet.
r.read_at IS :unread;

-- name: notifications.below
-- Older than a place.
n.id < :below;

-- name: notifications.above
-- Newer than a place.
n.id > :above;

-- name: rules
-- All stored rules.
SELECT tenant, workflow, rule, updated_at, updated_by FROM notify_rules ORDER BY tenant, workflow;

-- name: put_rule
-- Store a rule in place of the one it replaces.
INSERT INTO notify_rules (tenant, workflow, rule, updated_at, updated_by)
VALUES (:tenant, :workflow, :rule, :now, :updated_by)
ON CONFLICT (tenant, workflow) DO UPDATE SET
    rule = excluded.rule, updated_at = excluded.updated_at, updated_by = excluded.updated_by;

-- name: drop_rule
-- Remove a rule.
DELETE FROM notify_rules WHERE tenant = :tenant AND workflow = :workflow RETURNING tenant;

-- name: old_notices
-- Facts that were told long enough ago.
DELETE FROM notices WHERE id IN (
    SELECT id FROM notices WHERE told_at IS NOT NULL AND told_at <= :before LIMIT :most) RETURNING id;

-- name: missing_lanes
-- Lanes that went while something was added to them.
INSERT INTO notice_lanes (tenant, lane) SELECT DISTINCT tenant, lane FROM notices WHERE told_at IS NULL
ON CONFLICT (tenant, lane) DO NOTHING;

-- name: old_lanes
-- Lanes in which nothing happened for long.
DELETE FROM notice_lanes WHERE (tenant, lane) IN (
    SELECT l.tenant, l.lane FROM notice_lanes AS l
    WHERE l.next_at <= :before AND NOT EXISTS (
        SELECT 1 FROM notices AS n WHERE n.tenant = l.tenant AND n.lane = l.lane AND n.told_at IS NULL)
    LIMIT :most) RETURNING lane;

-- name: old_notifications
-- What was told long enough ago.
DELETE FROM notifications WHERE id IN (
    SELECT id FROM notifications WHERE created_at <= :before ORDER BY created_at LIMIT :most) RETURNING id;

-- name: old_reads
-- Who read what is gone.
DELETE FROM notification_reads WHERE notification IN (SELECT value FROM json_each(:notifications));
