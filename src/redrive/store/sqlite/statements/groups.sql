-- Failure groups: folding the feed into them, and listing them.

-- name: anything_fed
-- Whether there is anything to fold: a look that takes no lock.
SELECT EXISTS (SELECT 1 FROM letter_feed);

-- name: take_feed
-- The next rows of the feed, which belong to whoever deletes them.
DELETE FROM letter_feed WHERE id IN (SELECT id FROM letter_feed ORDER BY id LIMIT :most)
RETURNING id, tenant, fingerprint, workflow, step, letter, open, total, seen, at;

-- name: add_to_group
-- Add to a group what changed in it. Sums do not depend on the order; the sample is of the latest failure.
INSERT INTO groups (tenant, fingerprint, workflow, step, open, total, first_seen, last_seen, place, sample)
VALUES (:tenant, :fingerprint, :workflow, :step, :open, :total, :first_seen, :last_seen, :place, :sample)
ON CONFLICT (tenant, fingerprint) DO UPDATE SET
    open = open + excluded.open,
    total = total + excluded.total,
    first_seen = CASE WHEN excluded.place > 0 THEN min(first_seen, excluded.first_seen) ELSE first_seen END,
    last_seen = CASE WHEN excluded.place > 0 THEN max(last_seen, excluded.last_seen) ELSE last_seen END,
    sample = CASE WHEN excluded.place > place THEN excluded.sample ELSE sample END,
    place = max(place, excluded.place);

-- name: add_to_hour
-- Count failures of a group in an hour.
INSERT INTO group_hours (tenant, fingerprint, hour, seen) VALUES (:tenant, :fingerprint, :hour, :seen)
ON CONFLICT (tenant, fingerprint, hour) DO UPDATE SET seen = seen + excluded.seen;

-- name: other_sample
-- A group's sample has left it: another letter stands for it.
UPDATE groups SET sample = (SELECT l.public_id FROM letters AS l
                            WHERE l.fingerprint = groups.fingerprint AND l.tenant = groups.tenant
                            ORDER BY l.id DESC LIMIT 1)
WHERE tenant = :tenant AND fingerprint = :fingerprint
  AND sample IN (SELECT value FROM json_each(:gone));

-- name: drop_group
-- A group without letters is none.
DELETE FROM groups WHERE tenant = :tenant AND fingerprint = :fingerprint AND total = 0 AND open = 0
RETURNING tenant, fingerprint;

-- name: drop_hours
-- The hours of a group that is gone.
DELETE FROM group_hours WHERE tenant = :tenant AND fingerprint = :fingerprint;

-- name: old_hours
-- Hours that no trend looks back to.
DELETE FROM group_hours WHERE (tenant, fingerprint, hour) IN (
    SELECT tenant, fingerprint, hour FROM group_hours WHERE hour < :before ORDER BY hour LIMIT :most);

-- name: groups
-- A page of groups; the conditions and the order are filled in.
SELECT g.place, g.tenant, g.fingerprint, g.workflow, g.step, g.open, g.total, g.first_seen, g.last_seen,
       g.sample, l.reason, l.code, l.category, t.failure
FROM groups AS g LEFT JOIN letters AS l ON l.public_id = g.sample LEFT JOIN letter_texts AS t ON t.letter = l.id
WHERE {conditions} ORDER BY g.place {order} LIMIT :most;

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
g.workflow IN (SELECT value FROM json_each(:workflows));

-- name: groups.below
-- Groups last seen before a place.
g.place < :below;

-- name: groups.above
-- Groups last seen after a place.
g.place > :above;

-- name: hours
-- The failures of these groups, by hour.
SELECT h.tenant, h.fingerprint, h.hour, h.seen
FROM json_each(:groups) AS wanted
CROSS JOIN group_hours AS h ON h.tenant = json_extract(wanted.value, '$[0]')
                           AND h.fingerprint = json_extract(wanted.value, '$[1]') AND h.hour >= :since;

-- name: oldest_fed
-- When that happened which is to be folded next.
SELECT at FROM letter_feed WHERE at IS NOT NULL ORDER BY id LIMIT 1;
