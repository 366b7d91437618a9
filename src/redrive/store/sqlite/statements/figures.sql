-- How much waits, and since when. Every count stops somewhere.

-- name: open_letters
-- Open letters by workflow: those that are folded into groups, and what changed since.
SELECT workflow, sum(open) FROM (
    SELECT workflow, open FROM (
        SELECT workflow, open FROM groups INDEXED BY groups_open WHERE open > 0 ORDER BY place DESC LIMIT :causes)
    UNION ALL
    SELECT workflow, open FROM (SELECT workflow, open FROM letter_feed ORDER BY id LIMIT :changes))
GROUP BY workflow;

-- name: oldest_letter
-- When the oldest open letter was written.
SELECT created_at FROM letters INDEXED BY letters_by_status WHERE status = 'OPEN' ORDER BY id LIMIT 1;

-- name: due_by_lane
-- The due runs of one lane: how many, how many are overdue, the first. A rollback is made due some time before it is,
-- to go before others; it waits since that time was over.
SELECT count(*), COALESCE(sum(since <= :now - :late), 0), min(since) FROM (
    SELECT available_at + CASE WHEN status = 'COMPENSATING' AND available_at + :ahead <= :now
                               THEN :ahead ELSE 0 END AS since
    FROM (SELECT available_at, status FROM runs INDEXED BY runs_due
          WHERE worker IS NULL AND available_at IS NOT NULL AND deaths = 0
            AND tenant = :tenant AND queue = :queue AND rank = :rank AND workflow = :workflow
            AND available_at <= :now
          ORDER BY available_at, id LIMIT :per_lane));

-- name: suspects
-- Runs that a worker died with: those that wait, and those that a worker has again.
SELECT (SELECT count(*) FROM (SELECT 1 FROM runs INDEXED BY runs_suspect
                              WHERE worker IS NULL AND available_at IS NOT NULL AND deaths > 0 LIMIT :counted))
       + (SELECT count(*) FROM (SELECT 1 FROM runs INDEXED BY runs_held
                                WHERE worker IS NOT NULL AND deaths > 0 LIMIT :counted));

-- name: parked
-- Runs that wait for a circuit.
SELECT count(*) FROM (SELECT 1 FROM runs INDEXED BY runs_parked
                      WHERE parked_on IS NOT NULL AND status = 'SLEEPING' AND worker IS NULL LIMIT :counted);

-- name: circuits_by_status
-- Circuits that are not closed, by name.
SELECT key, status, count(*) FROM circuits WHERE status <> 'CLOSED'
GROUP BY key, status ORDER BY count(*) DESC, key LIMIT :circuits;

-- name: lags
-- What waits for each sink, and since when the first delivery waits that could have gone.
SELECT s.name,
       (SELECT count(*) FROM (SELECT 1 FROM deliveries INDEXED BY deliveries_due
                              WHERE sink = s.name AND available_at IS NOT NULL LIMIT :counted))
       + (SELECT count(*) FROM (SELECT 1 FROM deliveries INDEXED BY deliveries_behind
                                WHERE sink = s.name AND behind IS NOT NULL LIMIT :counted))
       + (SELECT COALESCE(sum(size), 0) FROM bundles INDEXED BY bundles_open
          WHERE sink = s.name AND finished_at IS NULL),
       (SELECT count(*) FROM (SELECT 1 FROM deliveries INDEXED BY deliveries_dead
                              WHERE status = 'DEAD' AND sink = s.name LIMIT :counted)),
       (SELECT min(at) FROM (
            SELECT min(available_at) AS at FROM deliveries INDEXED BY deliveries_due
            WHERE sink = s.name AND available_at IS NOT NULL AND available_at <= :now
            UNION ALL
            SELECT min(m.created_at) FROM bundles AS b INDEXED BY bundles_open JOIN messages AS m ON m.id = b.first
            WHERE b.sink = s.name AND b.finished_at IS NULL))
FROM sinks AS s ORDER BY s.name;

-- name: workers_by_state
-- How many workers live, died or stopped, as long as they are known.
SELECT CASE WHEN state = 'LIVE' AND lease_until < :now THEN 'DEAD' ELSE state END, count(*) FROM workers GROUP BY 1;
