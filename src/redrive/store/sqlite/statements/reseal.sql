-- Rewriting sealed texts under another key. The tables and their columns are filled in: `store/encryption/reencryption.py` lists them.

-- name: texts
-- A page of a table's texts, after a key.
SELECT {owner}, {key}, {columns} FROM {table} WHERE ({key}) > ({position}) ORDER BY {key} LIMIT ?;

-- name: swap
-- Replace the texts of a row that still has the texts that were read.
UPDATE {table} SET {new} WHERE {same};
