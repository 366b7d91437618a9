-- Runs that wait for other runs: the function of the schema reads one in one round trip.

-- name: awaited_run
-- The run with an id after every end of it that is being committed, for a run that waits for it.
SELECT wakeups, fence, tenant, run_id, workflow, subject, status, output, failure, open_letter, owner, executed, ends_as
FROM redrive.awaited_run(CAST(:run AS bigint), :run_id);
