-- Events that were sent to runs, and the status that the code of a run set.

-- name: events
-- The events of a run after a seq, in order.
SELECT v.seq, v.at, v.tenant, v.name, v.key, v.by, v.payload, v.taken, v.refused
FROM redrive.run_events AS v
WHERE v.run = CAST(:run AS bigint) AND v.seq > CAST(:after AS integer)
ORDER BY v.seq LIMIT CAST(:most AS bigint);

-- name: event
-- One event of a run.
SELECT v.seq, v.at, v.tenant, v.name, v.key, v.by, v.payload, v.taken, v.refused
FROM redrive.run_events AS v WHERE v.run = CAST(:run AS bigint) AND v.seq = CAST(:seq AS integer);

-- name: unread_events
-- The wake-ups and the fence of a run, and its unread events in order; one row without an event if there is none.
SELECT r.wakeups, r.fence, v.seq, v.at, v.tenant, v.name, v.key, v.by, v.payload, v.taken, v.refused
FROM redrive.runs AS r LEFT JOIN redrive.run_events AS v ON v.run = r.id AND v.taken IS NULL
WHERE r.id = CAST(:run AS bigint)
ORDER BY v.seq;

-- name: wakeups
-- The number of wake-ups of each of these runs.
SELECT id, wakeups FROM redrive.runs WHERE id = ANY (CAST(:runs AS bigint[]));
