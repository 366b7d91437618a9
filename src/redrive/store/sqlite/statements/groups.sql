-- Failure groups, where SQLite and PostgreSQL differ: the text of a letter lies in a table beside it.

-- name: groups
-- A page of groups with their failures by hour; the conditions and the order are filled in.
SELECT g.place, g.tenant, g.fingerprint, g.workflow, g.step, g.open, g.total, g.first_seen, g.last_seen,
       g.sample, l.reason, l.code, l.category, t.failure,
       (SELECT json_group_object(CAST(h.hour AS text), h.seen) FROM group_hours AS h
        WHERE h.tenant = g.tenant AND h.fingerprint = g.fingerprint AND h.hour >= :since)
FROM groups AS g LEFT JOIN letters AS l ON l.public_id = g.sample LEFT JOIN letter_texts AS t ON t.letter = l.id
WHERE {conditions} ORDER BY g.place {order} LIMIT :most;
