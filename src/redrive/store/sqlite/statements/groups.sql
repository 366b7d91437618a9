-- Failure groups, where SQLite and PostgreSQL differ: the text of a letter lies in a table beside it.

-- name: groups
-- A page of groups with their failures by hour; the conditions and the order are filled in. A cause that was resolved is
-- back if it failed afterwards in that version of the code, or in one in which it had not failed before.
SELECT g.latest, g.tenant, g.fingerprint, g.workflow, g.step, g.open, g.total, g.first_seen, g.last_seen,
       g.sample, l.reason, l.code, l.category, t.failure,
       d.owner, COALESCE(d.muted_until > :at OR d.muted_open >= g.open, false), d.muted_by, d.muted_until,
       d.resolved_at, d.resolved_by, d.resolved_version,
       (SELECT v.version FROM group_versions AS v
        WHERE v.tenant = g.tenant AND v.fingerprint = g.fingerprint AND v.last_seen > d.resolved_at
          AND (v.first_seen > d.resolved_at OR v.version = d.resolved_version)
        ORDER BY v.first_seen LIMIT 1),
       d.retried_at, d.retried_by, d.retried_bulk,
       (SELECT json_group_object(CAST(c.slot AS text), c.seen) FROM group_counts AS c
        WHERE c.tenant = g.tenant AND c.fingerprint = g.fingerprint AND c.seconds = 3600 AND c.slot >= :since)
FROM groups AS g
LEFT JOIN group_decisions AS d ON d.tenant = g.tenant AND d.fingerprint = g.fingerprint
LEFT JOIN letters AS l ON l.public_id = g.sample LEFT JOIN letter_texts AS t ON t.letter = l.id
WHERE {conditions} ORDER BY {order} LIMIT :most OFFSET :skipped;
