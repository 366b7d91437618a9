-- Rewriting sealed texts under another key. The tables and their columns are filled in: `store/encryption/reencrypt.py` lists them.

-- name: texts
-- A page of a table's texts, behind a place.
SELECT {owner}, {key}, {columns} FROM redrive.{table} WHERE ({key}) > ({place}) ORDER BY {key} LIMIT :most;

-- name: swap
-- Exchange the texts of rows that are still what was read. Those that somebody else has locked are left for the next
-- time, so that nobody waits for this.
WITH n AS (
    SELECT n.* FROM unnest({arrays}) AS n ({names})
    JOIN redrive.{table} AS t ON {found} WHERE {same} FOR UPDATE OF t SKIP LOCKED
)
UPDATE redrive.{table} AS t SET {new} FROM n WHERE {found} RETURNING 1;
