-- Sets of letters, where SQLite needs its own form.

-- name: insert_items
-- Insert the letters of a set, by their ids.
INSERT INTO set_items (set_id, number, tenant, letter, status)
SELECT :set, key + 1, :tenant, value, 'PENDING' FROM json_each(:letters);

-- name: record_results
-- The results of decisions on letters; a repeat changes nothing. The set is named with each mark: named once, all its
-- letters would be walked through to find each of these.
UPDATE set_items SET status = this.status, run_id = this.run_id, error = this.error, at = :now
FROM (SELECT json_extract(value, '$[0]') AS set_id, json_extract(value, '$[1]') AS number,
             json_extract(value, '$[2]') AS status, json_extract(value, '$[3]') AS run_id,
             json_extract(value, '$[4]') AS error
      FROM json_each(:marks)) AS this
WHERE set_items.set_id = this.set_id AND set_items.number = this.number AND set_items.status = 'PENDING'
RETURNING status;

-- name: delete_old_items
-- Remove the letters of sets whose retention time is over.
DELETE FROM set_items WHERE (set_id, number) IN (
    SELECT i.set_id, i.number
    FROM (SELECT id FROM sets WHERE ended_at IS NOT NULL AND ended_at <= :before ORDER BY ended_at LIMIT 10) AS s
    CROSS JOIN set_items AS i ON i.set_id = s.id LIMIT :most)
RETURNING number;

-- name: delete_old_sets
-- Remove sets whose retention time is over, once their letters are removed.
DELETE FROM sets WHERE id IN (
    SELECT s.id FROM sets AS s WHERE s.ended_at IS NOT NULL AND s.ended_at <= :before
      AND NOT EXISTS (SELECT 1 FROM set_items AS i WHERE i.set_id = s.id)
    ORDER BY s.ended_at LIMIT 10)
RETURNING id;
