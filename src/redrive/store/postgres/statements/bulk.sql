-- Bulk actions of letters, where PostgreSQL needs its own form.

-- name: insert_items
-- Insert the letters of a bulk action, by their ids.
INSERT INTO redrive.bulk_items (bulk, number, tenant, letter, status)
SELECT CAST(:bulk AS bigint), n.number, :tenant, n.letter, 'PENDING'
FROM unnest(CAST(:letters AS text[])) WITH ORDINALITY AS n (letter, number);

-- name: record_results
-- Record the results of decisions; a repeat changes nothing. The bulk action is given with each number, and pending letters
-- are recognised by their missing time: otherwise the planner would scan all of them.
UPDATE redrive.bulk_items AS i SET status = n.status, run_id = n.run_id, error = n.error, at = CAST(:now AS bigint)
FROM (SELECT CAST(:bulk AS bigint) AS bulk, m.number, m.status, m.run_id, m.error
      FROM unnest(CAST(:number AS bigint[]), CAST(:status AS text[]), CAST(:run_id AS text[]), CAST(:error AS text[]))
          AS m (number, status, run_id, error) OFFSET 0) AS n
WHERE i.bulk = n.bulk AND i.number = n.number AND i.at IS NULL
RETURNING i.status;

-- name: delete_old_items
-- Remove the letters of bulk actions whose retention time is over.
DELETE FROM redrive.bulk_items AS d USING (
    SELECT i.bulk, i.number
    FROM (SELECT id FROM redrive.bulk_actions WHERE ended_at IS NOT NULL AND ended_at <= CAST(:before AS bigint)
          ORDER BY ended_at LIMIT 10) AS s
    JOIN redrive.bulk_items AS i ON i.bulk = s.id LIMIT CAST(:most AS bigint)) AS o
WHERE d.bulk = o.bulk AND d.number = o.number
RETURNING d.number;

-- name: delete_old_bulk
-- Remove bulk actions whose retention time is over, once their letters are removed.
DELETE FROM redrive.bulk_actions WHERE id = ANY (ARRAY(
    SELECT s.id FROM redrive.bulk_actions AS s WHERE s.ended_at IS NOT NULL AND s.ended_at <= CAST(:before AS bigint)
      AND NOT EXISTS (SELECT 1 FROM redrive.bulk_items AS i WHERE i.bulk = s.id OFFSET 0)
    ORDER BY s.ended_at LIMIT 10 FOR UPDATE OF s SKIP LOCKED))
RETURNING id;
