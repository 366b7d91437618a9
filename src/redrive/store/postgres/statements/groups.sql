-- Failure groups: folding the feed into them, and listing them.

-- name: anything_fed
-- Whether there is anything to fold: a look that takes no lock.
SELECT EXISTS (SELECT 1 FROM redrive.letter_feed);

-- name: take_feed
-- The next rows of the feed, which belong to whoever deletes them; others take those behind.
DELETE FROM redrive.letter_feed WHERE id = ANY (ARRAY(
    SELECT id FROM redrive.letter_feed ORDER BY id LIMIT CAST(:most AS bigint) FOR UPDATE SKIP LOCKED))
RETURNING id, tenant, fingerprint, workflow, step, letter, open, total, seen, at;

-- name: add_to_group
-- Add to groups what changed in them, in their order. Sums do not depend on the order of the feed; the sample is of
-- the latest failure.
INSERT INTO redrive.groups AS g (tenant, fingerprint, workflow, step, open, total, first_seen, last_seen, place, sample)
SELECT * FROM unnest(
    CAST(:tenant AS text[]), CAST(:fingerprint AS text[]), CAST(:workflow AS text[]), CAST(:step AS text[]),
    CAST(:open AS bigint[]), CAST(:total AS bigint[]), CAST(:first_seen AS bigint[]), CAST(:last_seen AS bigint[]),
    CAST(:place AS bigint[]), CAST(:sample AS text[]))
ON CONFLICT (tenant, fingerprint) DO UPDATE SET
    open = g.open + excluded.open,
    total = g.total + excluded.total,
    first_seen = CASE WHEN excluded.place > 0 THEN LEAST(g.first_seen, excluded.first_seen) ELSE g.first_seen END,
    last_seen = CASE WHEN excluded.place > 0 THEN GREATEST(g.last_seen, excluded.last_seen) ELSE g.last_seen END,
    sample = CASE WHEN excluded.place > g.place THEN excluded.sample ELSE g.sample END,
    place = GREATEST(g.place, excluded.place);

-- name: add_to_hour
-- Count failures of groups in hours.
INSERT INTO redrive.group_hours AS h (tenant, fingerprint, hour, seen)
SELECT * FROM unnest(CAST(:tenant AS text[]), CAST(:fingerprint AS text[]), CAST(:hour AS bigint[]),
                     CAST(:seen AS bigint[]))
ON CONFLICT (tenant, fingerprint, hour) DO UPDATE SET seen = h.seen + excluded.seen;

-- name: other_sample
-- A group's sample has left it: another letter stands for it.
UPDATE redrive.groups AS g SET sample = (
    SELECT l.public_id FROM redrive.letters AS l
    WHERE l.fingerprint = g.fingerprint AND l.tenant = g.tenant ORDER BY l.id DESC LIMIT 1)
WHERE g.tenant = :tenant AND g.fingerprint = :fingerprint AND g.sample = ANY (CAST(:gone AS text[]));

-- name: drop_group
-- A group without letters is none.
DELETE FROM redrive.groups AS g
USING unnest(CAST(:tenants AS text[]), CAST(:fingerprints AS text[])) AS n (tenant, fingerprint)
WHERE g.tenant = n.tenant AND g.fingerprint = n.fingerprint AND g.total = 0 AND g.open = 0
RETURNING g.tenant, g.fingerprint;

-- name: drop_hours
-- The hours of a group that is gone.
DELETE FROM redrive.group_hours WHERE tenant = :tenant AND fingerprint = :fingerprint;

-- name: old_hours
-- Hours that no trend looks back to.
DELETE FROM redrive.group_hours AS h USING (
    SELECT tenant, fingerprint, hour FROM redrive.group_hours WHERE hour < CAST(:before AS bigint)
    ORDER BY hour LIMIT CAST(:most AS bigint) FOR UPDATE SKIP LOCKED) AS o
WHERE h.tenant = o.tenant AND h.fingerprint = o.fingerprint AND h.hour = o.hour;

-- name: groups
-- A page of groups; the conditions and the order are filled in.
SELECT g.place, g.tenant, g.fingerprint, g.workflow, g.step, g.open, g.total, g.first_seen, g.last_seen,
       g.sample, l.reason, l.code, l.category, l.failure
FROM redrive.groups AS g LEFT JOIN redrive.letters AS l ON l.public_id = g.sample
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
g.workflow = ANY (CAST(:workflows AS text[]));

-- name: groups.below
-- Groups last seen before a place.
g.place < :below;

-- name: groups.above
-- Groups last seen after a place.
g.place > :above;

-- name: hours
-- The failures of these groups, by hour.
SELECT h.tenant, h.fingerprint, h.hour, h.seen
FROM unnest(CAST(:tenant AS text[]), CAST(:fingerprint AS text[])) AS wanted (tenant, fingerprint)
JOIN redrive.group_hours AS h ON h.tenant = wanted.tenant AND h.fingerprint = wanted.fingerprint
WHERE h.hour >= CAST(:since AS bigint);

-- name: oldest_fed
-- When that happened which is to be folded next, and what time it is.
SELECT COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp())) AS now,
       (SELECT at FROM redrive.letter_feed WHERE at IS NOT NULL ORDER BY id LIMIT 1) AS at;
