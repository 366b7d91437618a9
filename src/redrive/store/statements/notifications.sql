-- Notifications: collected notices, sent notifications, who read them, and the rules about them.

-- name: put_notice
-- Store a notice; a repeat changes nothing.
INSERT INTO redrive.notices (public_id, tenant, lane, created_at, notice)
VALUES (:public_id, :tenant, :lane, :now, :notice)
ON CONFLICT (public_id) DO NOTHING;

-- name: put_lane
-- Add a lane; one that exists is not touched.
INSERT INTO redrive.notice_lanes (tenant, lane) VALUES (:tenant, :lane) ON CONFLICT (tenant, lane) DO NOTHING;

-- name: due_lanes
-- Lanes that are due, with the number of their notices that are not sent.
SELECT l.tenant, l.lane, l.version, count(*), min(n.created_at), max(n.id)
FROM (SELECT d.tenant, d.lane, d.version, d.next_at FROM redrive.notice_lanes AS d
      WHERE d.next_at <= :now AND EXISTS (
          SELECT 1 FROM redrive.notices AS o
          WHERE o.tenant = d.tenant AND o.lane = d.lane AND o.sent_at IS NULL OFFSET 0)
      ORDER BY d.next_at LIMIT CAST(:most AS bigint)) AS l
JOIN redrive.notices AS n ON n.tenant = l.tenant AND n.lane = l.lane AND n.sent_at IS NULL
GROUP BY l.tenant, l.lane, l.version, l.next_at ORDER BY l.next_at;

-- name: newest_notices
-- The newest notices of a lane that are not sent.
SELECT id, tenant, created_at, notice FROM redrive.notices
WHERE tenant = :tenant AND lane = :lane AND sent_at IS NULL AND id <= CAST(:last AS bigint)
ORDER BY id DESC LIMIT CAST(:newest AS bigint);

-- name: reschedule_lane
-- Set when a lane is due next, unless another process changed the lane first.
UPDATE redrive.notice_lanes SET version = version + 1, next_at = :next_at
WHERE tenant = :tenant AND lane = :lane AND version = :version RETURNING version;

-- name: mark_sent
-- Mark the notices of a lane as sent.
UPDATE redrive.notices SET sent_at = :now
WHERE tenant = :tenant AND lane = :lane AND sent_at IS NULL AND id <= CAST(:last AS bigint) RETURNING id;

-- name: put_notification
-- Store a notification.
INSERT INTO redrive.notifications (public_id, tenant, event, workflow, count, in_app, created_at, content)
VALUES (:public_id, :tenant, :event, :workflow, :count, :in_app, :now, :content)
ON CONFLICT (public_id) DO NOTHING;

-- name: notifications
-- A page of the inbox, as one reader sees it.
SELECT n.id, n.public_id, n.tenant, n.event, n.workflow, n.count, n.created_at, n.content, r.read_at
FROM redrive.notifications AS n
LEFT JOIN redrive.notification_reads AS r ON r.notification = n.id AND r.reader = :reader
WHERE n.in_app AND {conditions}
ORDER BY n.id {order} LIMIT CAST(:most AS bigint);

-- name: unread
-- The number of notifications that one reader has not read.
SELECT count(*) FROM (
    SELECT 1 FROM redrive.notifications AS n
    LEFT JOIN redrive.notification_reads AS r ON r.notification = n.id AND r.reader = :reader
    WHERE n.in_app AND {conditions} LIMIT CAST(:most AS bigint)) AS found;

-- name: mark_read
-- Note that a reader has read notifications.
INSERT INTO redrive.notification_reads (notification, tenant, reader, read_at)
SELECT n.id, n.tenant, :reader, :now
FROM redrive.notifications AS n
LEFT JOIN redrive.notification_reads AS r ON r.notification = n.id AND r.reader = :reader
WHERE n.in_app AND {conditions}
ON CONFLICT (notification, reader) DO NOTHING RETURNING notification;

-- name: notifications.tenant
-- Notifications of a tenant.
n.tenant = :tenant;

-- name: notifications.workflows
-- Notifications about some workflows.
n.workflow = ANY (CAST(:workflows AS text[]));

-- name: notifications.ids
-- Notifications with these ids.
n.public_id = ANY (CAST(:ids AS text[]));

-- name: notifications.unread
-- Notifications that the reader has not read.
r.read_at IS NULL;

-- name: notifications.below
-- Notifications older than a position.
n.id < :below;

-- name: notifications.above
-- Notifications newer than a position.
n.id > :above;

-- name: rules
-- All stored rules.
SELECT tenant, workflow, rule, updated_at, updated_by FROM redrive.notify_rules ORDER BY tenant, workflow;

-- name: put_rule
-- Store a rule in place of the one it replaces.
INSERT INTO redrive.notify_rules (tenant, workflow, rule, updated_at, updated_by)
VALUES (:tenant, :workflow, :rule, :now, :updated_by)
ON CONFLICT (tenant, workflow) DO UPDATE SET
    rule = excluded.rule, updated_at = excluded.updated_at, updated_by = excluded.updated_by
RETURNING 1;

-- name: drop_rule
-- Remove a rule.
DELETE FROM redrive.notify_rules WHERE tenant = :tenant AND workflow = :workflow RETURNING tenant;

-- name: delete_old_notices
-- Remove notices that were sent before a time.
DELETE FROM redrive.notices WHERE id = ANY (ARRAY(
    SELECT id FROM redrive.notices WHERE sent_at IS NOT NULL AND sent_at <= CAST(:before AS bigint)
    LIMIT CAST(:most AS bigint) FOR UPDATE SKIP LOCKED)) RETURNING id;

-- name: missing_lanes
-- Add lanes that were removed while a notice was added to them.
INSERT INTO redrive.notice_lanes (tenant, lane)
SELECT DISTINCT tenant, lane FROM redrive.notices WHERE sent_at IS NULL
ON CONFLICT (tenant, lane) DO NOTHING;

-- name: delete_old_lanes
-- Remove lanes in which nothing happened since a time.
DELETE FROM redrive.notice_lanes WHERE (tenant, lane) IN (
    SELECT l.tenant, l.lane FROM redrive.notice_lanes AS l
    WHERE l.next_at <= CAST(:before AS bigint) AND NOT EXISTS (
        SELECT 1 FROM redrive.notices AS n
        WHERE n.tenant = l.tenant AND n.lane = l.lane AND n.sent_at IS NULL OFFSET 0)
    LIMIT CAST(:most AS bigint) FOR UPDATE SKIP LOCKED) RETURNING lane;

-- name: delete_old_notifications
-- Remove notifications from before a time.
DELETE FROM redrive.notifications WHERE id = ANY (ARRAY(
    SELECT id FROM redrive.notifications WHERE created_at <= CAST(:before AS bigint)
    ORDER BY created_at LIMIT CAST(:most AS bigint) FOR UPDATE SKIP LOCKED)) RETURNING id;

-- name: delete_old_reads
-- Remove the reads of notifications that were removed.
DELETE FROM redrive.notification_reads WHERE notification = ANY (CAST(:notifications AS bigint[]));
