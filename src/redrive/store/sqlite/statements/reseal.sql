-- Rewriting sealed texts under another key. The tables and their columns are filled in: `store/encryption/reencrypt.py` lists them.

-- name: texts
-- A page of a table's texts, behind a place.
SELECT {owner}, {key}, {columns} FROM {table} WHERE ({key}) > ({place}) ORDER BY {key} LIMIT ?;

-- name: swap
-- Exchange the texts of a row that is still what was read.
UPDATE {table} SET {new} WHERE {same};
