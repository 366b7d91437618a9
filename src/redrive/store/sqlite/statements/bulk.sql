-- Bulk actions of letters, where SQLite needs its own form.

-- name: insert_items
-- Insert the letters of a bulk action, by their ids.
INSERT INTO bulk_items (bulk, number, tenant, letter, status)
SELECT :bulk, key + 1, :tenant, value, 'PENDING' FROM json_each(:letters);

-- name: record_results
-- The results of decisions on letters; a repeat changes nothing. The bulk action is named with each result: named once, all its
-- letters would be walked through to find each of these.
UPDATE bulk_items SET status = this.status, run_id = this.run_id, error = this.error, at = :now
FROM (SELECT json_extract(value, '$[0]') AS bulk, json_extract(value, '$[1]') AS number,
             json_extract(value, '$[2]') AS status, json_extract(value, '$[3]') AS run_id,
             json_extract(value, '$[4]') AS error
      FROM json_each(:results)) AS this
WHERE bulk_items.bulk = this.bulk AND bulk_items.number = this.number AND bulk_items.status = 'PENDING'
RETURNING status;

-- name: delete_old_items
-- Remove the letters of bulk actions whose retention time is over.
DELETE FROM bulk_items WHERE (bulk, number) IN (
    SELECT i.bulk, i.number
    FROM (SELECT id FROM bulk_actions WHERE ended_at IS NOT NULL AND ended_at <= :before ORDER BY ended_at LIMIT 10) AS s
    CROSS JOIN bulk_items AS i ON i.bulk = s.id LIMIT :most)
RETURNING number;

-- name: delete_old_bulk
-- Remove bulk actions whose retention time is over, once their letters are removed.
DELETE FROM bulk_actions WHERE id IN (
    SELECT s.id FROM bulk_actions AS s WHERE s.ended_at IS NOT NULL AND s.ended_at <= :before
      AND NOT EXISTS (SELECT 1 FROM bulk_items AS i WHERE i.bulk = s.id)
    ORDER BY s.ended_at LIMIT 10)
RETURNING id;
