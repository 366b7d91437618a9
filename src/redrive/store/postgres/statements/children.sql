-- Runs that wait for other runs, where PostgreSQL needs a lock.

-- name: lock_run
-- One row if the run exists. An end that is being committed is waited for; a later end finds the wait.
SELECT 1 FROM redrive.runs WHERE public_id = :run_id AND tenant IS NOT DISTINCT FROM :tenant FOR SHARE;
