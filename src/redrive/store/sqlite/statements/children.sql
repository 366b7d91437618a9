-- Runs that wait for other runs, where PostgreSQL needs a lock and SQLite has one writer.

-- name: lock_run
-- One row if the run exists.
SELECT 1 FROM runs WHERE public_id = :run_id AND tenant = :tenant;
