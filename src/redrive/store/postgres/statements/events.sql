-- Sending an event: the function of the schema does it in one round trip.

-- name: send_event
-- Store an event for a run and wake the run.
SELECT run, run_id, tenant, workflow, status, worker, seq, at, woke, full_up, first FROM redrive.send_event(
    CAST(:now AS bigint), :run_id, :tenant, :name, :key, :by, :payload, CAST(:most AS integer),
    CAST(:most_bytes AS bigint), :noted, :told, :token);
