-- Sending an event. PostgreSQL has one function for it, with parts of the same names.

-- name: receiver
-- The run that gets an event, or its replacement to try next.
SELECT id, public_id, tenant, workflow, status, worker, wakeups, replaced_by FROM runs
WHERE public_id = :run_id AND tenant = COALESCE(:tenant, tenant) AND purged_at IS NULL;

-- name: event_of_key
-- The seq of the event that was sent under a key.
SELECT seq FROM run_events WHERE run = :run AND key = :key;

-- name: unread_size
-- The number and the size of the unread events of a run, from the index alone.
SELECT COUNT(*), COALESCE(SUM(size), 0) FROM run_events INDEXED BY run_events_unread
WHERE run = :run AND taken IS NULL;

-- name: put_event
-- Insert an event.
INSERT INTO run_events (run, seq, tenant, name, key, by, at, payload, size)
VALUES (:run, :seq, :tenant, :name, :key, :by, :at, :payload, :size);

-- name: event_wait
-- One row if a run that sleeps in the store waits for an event.
SELECT 1 FROM runs AS r WHERE r.id = :run AND r.worker IS NULL AND r.status = 'SLEEPING' AND EXISTS (
    SELECT 1 FROM waits AS w WHERE w.run = r.id AND w.kind = 'event' AND w.subject = :name);

-- name: wake_run
-- Count the wake-up of a run, which may be due because of it.
UPDATE runs SET wakeups = :seq, available_at = CASE WHEN :woke THEN :at ELSE available_at END WHERE id = :run;
