-- Failure groups, where PostgreSQL and SQLite differ: the text of a letter is a column of it.

-- name: groups
-- A page of groups with their failures by hour; the conditions and the order are filled in.
SELECT g.place, g.tenant, g.fingerprint, g.workflow, g.step, g.open, g.total, g.first_seen, g.last_seen,
       g.sample, l.reason, l.code, l.category, l.failure,
       (SELECT CAST(json_object_agg(h.hour, h.seen) AS text) FROM redrive.group_hours AS h
        WHERE h.tenant = g.tenant AND h.fingerprint = g.fingerprint AND h.hour >= CAST(:since AS bigint)) AS hours
FROM redrive.groups AS g LEFT JOIN redrive.letters AS l ON l.public_id = g.sample
WHERE {conditions} ORDER BY g.place {order} LIMIT :most;
