-- Failure groups, where PostgreSQL and SQLite differ: the text of a letter is a column of it.

-- name: groups
-- A page of groups with their failures by hour; the conditions and the order are filled in. A cause that was resolved is
-- back if it failed afterwards in that version of the code, or in one in which it had not failed before.
SELECT g.latest, g.tenant, g.fingerprint, g.workflow, g.step, g.open, g.total, g.first_seen, g.last_seen,
       g.sample, l.reason, l.code, l.category, l.failure,
       d.owner, COALESCE(d.muted_until > :at OR d.muted_open >= g.open, false), d.muted_by, d.muted_until,
       d.resolved_at, d.resolved_by, d.resolved_version,
       (SELECT v.version FROM redrive.group_versions AS v
        WHERE v.tenant = g.tenant AND v.fingerprint = g.fingerprint AND v.last_seen > d.resolved_at
          AND (v.first_seen > d.resolved_at OR v.version = d.resolved_version)
        ORDER BY v.first_seen LIMIT 1) AS back,
       d.retried_at, d.retried_by, d.retried_bulk,
       (SELECT CAST(json_object_agg(c.slot, c.seen) AS text) FROM redrive.group_counts AS c
        WHERE c.tenant = g.tenant AND c.fingerprint = g.fingerprint AND c.seconds = 3600 AND c.slot >= CAST(:since AS bigint)) AS hours
FROM redrive.groups AS g
LEFT JOIN redrive.group_decisions AS d ON d.tenant = g.tenant AND d.fingerprint = g.fingerprint
LEFT JOIN redrive.letters AS l ON l.public_id = g.sample
WHERE {conditions} ORDER BY {order} LIMIT :most OFFSET CAST(:skipped AS bigint);
