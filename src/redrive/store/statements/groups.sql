-- Failure groups: adding the feed to them, listing them, and what users decide about them.

-- name: has_feed_rows
-- True if the feed has rows; read without a lock.
SELECT EXISTS (SELECT 1 FROM redrive.letter_feed);

-- name: take_feed_rows
-- The next rows of the feed. The node that deletes them adds them up; other nodes take those behind.
DELETE FROM redrive.letter_feed WHERE id = ANY (ARRAY(
    SELECT f.id FROM redrive.letter_feed AS f ORDER BY f.id LIMIT CAST(:most AS bigint) FOR UPDATE SKIP LOCKED))
RETURNING id, tenant, fingerprint, workflow, step, letter, open, total, seen, at, version;

-- name: add_to_group
-- Add to a group what changed in it. Sums do not depend on the order of the feed; the sample is of the latest failure.
INSERT INTO redrive.groups AS g (tenant, fingerprint, workflow, step, open, total, first_seen, last_seen, latest, sample)
VALUES (:tenant, :fingerprint, :workflow, :step, :open, :total, :first_seen, :last_seen, :latest, :sample)
ON CONFLICT (tenant, fingerprint) DO UPDATE SET
    open = g.open + excluded.open,
    total = g.total + excluded.total,
    first_seen = CASE WHEN excluded.latest > 0 AND excluded.first_seen < g.first_seen THEN excluded.first_seen
                      ELSE g.first_seen END,
    last_seen = CASE WHEN excluded.latest > 0 AND excluded.last_seen > g.last_seen THEN excluded.last_seen
                     ELSE g.last_seen END,
    sample = CASE WHEN excluded.latest > g.latest THEN excluded.sample ELSE g.sample END,
    latest = CASE WHEN excluded.latest > g.latest THEN excluded.latest ELSE g.latest END
RETURNING tenant, fingerprint, open, total;

-- name: add_to_count
-- Count failures of a group in a minute or an hour.
INSERT INTO redrive.group_counts AS c (tenant, fingerprint, seconds, slot, seen, kept_until)
VALUES (:tenant, :fingerprint, :seconds, :slot, :seen, :kept_until)
ON CONFLICT (tenant, fingerprint, seconds, slot) DO UPDATE SET seen = c.seen + excluded.seen;

-- name: add_to_version
-- Count failures of a group in a version of the code.
INSERT INTO redrive.group_versions AS v (tenant, fingerprint, version, first_seen, last_seen, seen)
VALUES (:tenant, :fingerprint, :version, :first_seen, :last_seen, :seen)
ON CONFLICT (tenant, fingerprint, version) DO UPDATE SET
    first_seen = CASE WHEN excluded.first_seen < v.first_seen THEN excluded.first_seen ELSE v.first_seen END,
    last_seen = CASE WHEN excluded.last_seen > v.last_seen THEN excluded.last_seen ELSE v.last_seen END,
    seen = v.seen + excluded.seen;

-- name: replace_sample
-- Take another letter as the sample of a group, if the old one has left it.
UPDATE redrive.groups AS g SET sample = (
    SELECT l.public_id FROM redrive.letters AS l
    WHERE l.fingerprint = g.fingerprint AND l.tenant = g.tenant ORDER BY l.id DESC LIMIT 1)
WHERE g.tenant = :tenant AND g.fingerprint = :fingerprint AND g.sample = ANY (CAST(:gone AS text[]));

-- name: drop_group
-- Remove a group without letters.
DELETE FROM redrive.groups WHERE tenant = :tenant AND fingerprint = :fingerprint;

-- name: drop_counts
-- The counts of a group that is gone.
DELETE FROM redrive.group_counts WHERE tenant = :tenant AND fingerprint = :fingerprint;

-- name: drop_versions
-- The versions of a group that is gone.
DELETE FROM redrive.group_versions WHERE tenant = :tenant AND fingerprint = :fingerprint;

-- name: delete_old_counts
-- Minutes and hours that no chart looks back to.
WITH old AS MATERIALIZED (
    SELECT c.tenant, c.fingerprint, c.seconds, c.slot FROM redrive.group_counts AS c
    WHERE c.kept_until <= CAST(:at AS bigint)
    ORDER BY c.kept_until LIMIT CAST(:most AS bigint) FOR UPDATE SKIP LOCKED
)
DELETE FROM redrive.group_counts
WHERE (tenant, fingerprint, seconds, slot) IN (SELECT old.tenant, old.fingerprint, old.seconds, old.slot FROM old);

-- name: delete_old_versions
-- Versions in which no failure was seen for long: with many releases, they would pile up.
WITH old AS MATERIALIZED (
    SELECT v.tenant, v.fingerprint, v.version FROM redrive.group_versions AS v
    WHERE v.last_seen < CAST(:before AS bigint)
    ORDER BY v.last_seen LIMIT CAST(:most AS bigint) FOR UPDATE SKIP LOCKED
)
DELETE FROM redrive.group_versions
WHERE (tenant, fingerprint, version) IN (SELECT old.tenant, old.fingerprint, old.version FROM old);

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

-- name: groups.fingerprint
-- The group of one cause.
g.fingerprint = :fingerprint;

-- name: groups.muted
-- Groups that are muted: for a time that is not over, or until they grow.
(d.muted_until > :at OR d.muted_open >= g.open);

-- name: groups.unmuted
-- Groups that are not muted.
(d.muted_until > :at OR d.muted_open >= g.open) IS NOT TRUE;

-- name: groups.below
-- Groups last seen before a position.
g.latest < :below;

-- name: groups.above
-- Groups last seen after a position.
g.latest > :above;

-- name: oldest_feed_time
-- The time of the oldest failure that is not folded yet.
SELECT f.at FROM redrive.letter_feed AS f WHERE f.at IS NOT NULL ORDER BY f.id LIMIT 1;

-- name: group_totals
-- The number of groups and of their open letters, and of both those of muted groups; the conditions are filled in.
SELECT COUNT(*), CAST(COALESCE(SUM(g.open), 0) AS bigint),
       CAST(COALESCE(SUM(CASE WHEN d.muted_until > :at OR d.muted_open >= g.open THEN 1 ELSE 0 END), 0) AS bigint),
       CAST(COALESCE(SUM(CASE WHEN d.muted_until > :at OR d.muted_open >= g.open THEN g.open ELSE 0 END), 0) AS bigint)
FROM redrive.groups AS g
LEFT JOIN redrive.group_decisions AS d ON d.tenant = g.tenant AND d.fingerprint = g.fingerprint
WHERE {conditions};

-- name: open_in_feed
-- Open letters in the feed that no group contains yet. Its alias is that of the groups: the same conditions are filled in.
SELECT CAST(COALESCE(SUM(g.open), 0) AS bigint)
FROM (SELECT f.open, f.tenant, f.fingerprint, f.workflow FROM redrive.letter_feed AS f ORDER BY f.id LIMIT 100000) AS g
WHERE {conditions};

-- name: tenant_counts
-- Failures by minute or by hour, of one tenant if given.
SELECT c.slot, CAST(SUM(c.seen) AS bigint) FROM redrive.group_counts AS c /* INDEXED BY group_counts_of_tenants */
WHERE c.fingerprint = '' AND c.seconds = CAST(:seconds AS integer) AND c.slot >= CAST(:since AS bigint)
  AND c.tenant = COALESCE(CAST(:tenant AS text), c.tenant)
GROUP BY c.slot;

-- name: failure_counts
-- Failures by minute or by hour, of the groups that match; the conditions are filled in.
SELECT c.slot, CAST(SUM(c.seen) AS bigint)
FROM redrive.groups AS g /* CROSS */ JOIN redrive.group_counts AS c ON c.tenant = g.tenant AND c.fingerprint = g.fingerprint
WHERE {conditions} AND c.seconds = CAST(:seconds AS integer) AND c.slot >= CAST(:since AS bigint)
GROUP BY c.slot;

-- name: group_versions
-- The versions in which a group failed, the latest first.
SELECT version, first_seen, last_seen, seen FROM redrive.group_versions
WHERE tenant = :tenant AND fingerprint = :fingerprint ORDER BY last_seen DESC, version LIMIT CAST(:most AS bigint);

-- name: assign_group
-- Assign a group to a user, or to none.
INSERT INTO redrive.group_decisions (tenant, fingerprint, owner)
SELECT g.tenant, g.fingerprint, CAST(:owner AS text) FROM redrive.groups AS g
WHERE g.tenant = :tenant AND g.fingerprint = :fingerprint
ON CONFLICT (tenant, fingerprint) DO UPDATE SET owner = excluded.owner
RETURNING fingerprint;

-- name: mute_group
-- Mute a group until a time, or without one until it has more open letters than now. Those in the feed count, too.
INSERT INTO redrive.group_decisions (tenant, fingerprint, muted_at, muted_by, muted_until, muted_open)
SELECT g.tenant, g.fingerprint, :now, CAST(:by AS text), CAST(:until AS bigint),
       CASE WHEN CAST(:until AS bigint) IS NULL THEN g.open + COALESCE((
           SELECT CAST(SUM(f.open) AS bigint)
           FROM (SELECT n.open, n.tenant, n.fingerprint FROM redrive.letter_feed AS n ORDER BY n.id LIMIT 100000) AS f
           WHERE f.tenant = g.tenant AND f.fingerprint = g.fingerprint), 0) END
FROM redrive.groups AS g
WHERE g.tenant = :tenant AND g.fingerprint = :fingerprint
ON CONFLICT (tenant, fingerprint) DO UPDATE SET
    muted_at = excluded.muted_at, muted_by = excluded.muted_by, muted_until = excluded.muted_until,
    muted_open = excluded.muted_open
RETURNING fingerprint;

-- name: unmute_group
-- End the mute of a group.
UPDATE redrive.group_decisions SET muted_at = NULL, muted_by = NULL, muted_until = NULL, muted_open = NULL
WHERE tenant = :tenant AND fingerprint = :fingerprint AND muted_at IS NOT NULL
RETURNING fingerprint;

-- name: is_muted
-- True if a group is muted, counting also what is in the feed: the newest failure may be the one by which it grew.
SELECT COALESCE(d.muted_until > :now OR d.muted_open >= COALESCE(g.open, 0) + COALESCE((
    SELECT CAST(SUM(f.open) AS bigint)
    FROM (SELECT n.open, n.tenant, n.fingerprint FROM redrive.letter_feed AS n ORDER BY n.id LIMIT 100000) AS f
    WHERE f.tenant = d.tenant AND f.fingerprint = d.fingerprint), 0), false)
FROM redrive.group_decisions AS d
LEFT JOIN redrive.groups AS g ON g.tenant = d.tenant AND g.fingerprint = d.fingerprint
WHERE d.tenant = :tenant AND d.fingerprint = :fingerprint AND d.muted_at IS NOT NULL;

-- name: note_retry
-- Note the bulk action that retries a cause; no tenant means the cause in all of them.
INSERT INTO redrive.group_decisions (tenant, fingerprint, retried_at, retried_by, retried_bulk)
SELECT g.tenant, g.fingerprint, :now, CAST(:by AS text), CAST(:bulk AS text) FROM redrive.groups AS g
WHERE g.fingerprint = :fingerprint AND (g.tenant = :tenant OR CAST(:tenant AS text) = '')
ON CONFLICT (tenant, fingerprint) DO UPDATE SET
    retried_at = excluded.retried_at, retried_by = excluded.retried_by, retried_bulk = excluded.retried_bulk;

-- name: note_resolution
-- Note that a cause is resolved, in the newest code that has its workflow. Its mute ends: a failure after this is news.
INSERT INTO redrive.group_decisions (tenant, fingerprint, resolved_at, resolved_by, resolved_version)
SELECT g.tenant, g.fingerprint, :now, CAST(:by AS text), (
    SELECT c.version FROM redrive.catalogue AS c JOIN redrive.versions AS v ON v.version = c.version
    WHERE c.kind = 'workflow' AND c.name = g.workflow ORDER BY v.seq DESC LIMIT 1)
FROM redrive.groups AS g
WHERE g.fingerprint = :fingerprint AND (g.tenant = :tenant OR CAST(:tenant AS text) = '')
ON CONFLICT (tenant, fingerprint) DO UPDATE SET
    resolved_at = excluded.resolved_at, resolved_by = excluded.resolved_by, resolved_version = excluded.resolved_version,
    muted_at = NULL, muted_by = NULL, muted_until = NULL, muted_open = NULL;

-- name: order.newest
-- The group with the latest failure first.
g.latest DESC;

-- name: order.oldest
-- The group whose latest failure is oldest first: a page read backwards.
g.latest ASC;

-- name: order.count
-- The group with most open letters first.
g.open DESC, g.latest DESC;

-- name: order.trend
-- The group with most failures in the last day first.
(SELECT COALESCE(SUM(c.seen), 0) FROM redrive.group_counts AS c
 WHERE c.tenant = g.tenant AND c.fingerprint = g.fingerprint AND c.seconds = 3600 AND c.slot >= CAST(:since AS bigint)) DESC,
g.latest DESC;
