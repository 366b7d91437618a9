-- Failure groups: adding the feed to them, and listing them.

-- name: has_feed_rows
-- True if the feed has rows; read without a lock.
SELECT EXISTS (SELECT 1 FROM redrive.letter_feed);

-- name: take_feed_rows
-- The next rows of the feed. The node that deletes them adds them up; other nodes take those behind.
DELETE FROM redrive.letter_feed WHERE id = ANY (ARRAY(
    SELECT f.id FROM redrive.letter_feed AS f ORDER BY f.id LIMIT CAST(:most AS bigint) FOR UPDATE SKIP LOCKED))
RETURNING id, tenant, fingerprint, workflow, step, letter, open, total, seen, at;

-- name: add_to_group
-- Add to a group what changed in it. Sums do not depend on the order of the feed; the sample is of the latest failure.
INSERT INTO redrive.groups AS g (tenant, fingerprint, workflow, step, open, total, first_seen, last_seen, place, sample)
VALUES (:tenant, :fingerprint, :workflow, :step, :open, :total, :first_seen, :last_seen, :place, :sample)
ON CONFLICT (tenant, fingerprint) DO UPDATE SET
    open = g.open + excluded.open,
    total = g.total + excluded.total,
    first_seen = CASE WHEN excluded.place > 0 AND excluded.first_seen < g.first_seen THEN excluded.first_seen
                      ELSE g.first_seen END,
    last_seen = CASE WHEN excluded.place > 0 AND excluded.last_seen > g.last_seen THEN excluded.last_seen
                     ELSE g.last_seen END,
    sample = CASE WHEN excluded.place > g.place THEN excluded.sample ELSE g.sample END,
    place = CASE WHEN excluded.place > g.place THEN excluded.place ELSE g.place END
RETURNING tenant, fingerprint, open, total;

-- name: add_to_hour
-- Count failures of a group in an hour.
INSERT INTO redrive.group_hours AS h (tenant, fingerprint, hour, seen) VALUES (:tenant, :fingerprint, :hour, :seen)
ON CONFLICT (tenant, fingerprint, hour) DO UPDATE SET seen = h.seen + excluded.seen;

-- name: replace_sample
-- Take another letter as the sample of a group, if the old one has left it.
UPDATE redrive.groups AS g SET sample = (
    SELECT l.public_id FROM redrive.letters AS l
    WHERE l.fingerprint = g.fingerprint AND l.tenant = g.tenant ORDER BY l.id DESC LIMIT 1)
WHERE g.tenant = :tenant AND g.fingerprint = :fingerprint AND g.sample = ANY (CAST(:gone AS text[]));

-- name: drop_group
-- Remove a group without letters.
DELETE FROM redrive.groups WHERE tenant = :tenant AND fingerprint = :fingerprint;

-- name: drop_hours
-- The hours of a group that is gone.
DELETE FROM redrive.group_hours WHERE tenant = :tenant AND fingerprint = :fingerprint;

-- name: delete_old_hours
-- Hours that no trend looks back to.
WITH old AS MATERIALIZED (
    SELECT h.tenant, h.fingerprint, h.hour FROM redrive.group_hours AS h WHERE h.hour < CAST(:before AS bigint)
    ORDER BY h.hour LIMIT CAST(:most AS bigint) FOR UPDATE SKIP LOCKED
)
DELETE FROM redrive.group_hours
WHERE (tenant, fingerprint, hour) IN (SELECT old.tenant, old.fingerprint, old.hour FROM old);

-- name: groups.open
-- Groups with letters that wait for a decision.
g.open > 0;

-- name: groups.any
-- Groups with letters.
g.total > 0;

-- name: groups.tenant
-- Groups of one tenant.
g.tenant = :tenant;

-- name: groups.workflows
-- Groups of some workflows.
g.workflow = ANY (CAST(:workflows AS text[]));

-- name: groups.below
-- Groups last seen before a place.
g.place < :below;

-- name: groups.above
-- Groups last seen after a place.
g.place > :above;

-- name: oldest_feed_time
-- The time of the oldest failure that is not folded yet.
SELECT f.at FROM redrive.letter_feed AS f WHERE f.at IS NOT NULL ORDER BY f.id LIMIT 1;
