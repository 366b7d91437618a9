-- Rewriting sealed texts under another key. The tables and their columns are filled in: `store/encryption/reencryption.py` lists them.

-- name: texts
-- A page of a table's texts, after a key.
SELECT {owner}, {key}, {columns} FROM redrive.{table} WHERE ({key}) > ({position}) ORDER BY {key} LIMIT :most;

-- name: swap
-- Replace the texts of rows that still have the texts that were read. Rows that are locked are left for the next time,
-- so that no writer waits for this statement.
WITH n AS (
    SELECT n.* FROM unnest({arrays}) AS n ({names})
    JOIN redrive.{table} AS t ON {found} WHERE {same} FOR UPDATE OF t SKIP LOCKED
)
UPDATE redrive.{table} AS t SET {new} FROM n WHERE {found} RETURNING 1;
