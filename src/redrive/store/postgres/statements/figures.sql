-- How much waits, and since when. Every count stops somewhere.

-- name: open_letters
-- Open letters by workflow: those that are folded into groups, and what changed since.
SELECT counted.workflow, CAST(SUM(counted.open) AS bigint) AS open FROM (
    (SELECT g.workflow, g.open FROM redrive.groups AS g WHERE g.open > 0
     ORDER BY g.place DESC LIMIT CAST(:causes AS bigint))
    UNION ALL
    (SELECT f.workflow, f.open FROM redrive.letter_feed AS f ORDER BY f.id LIMIT CAST(:changes AS bigint))) AS counted
GROUP BY counted.workflow;

-- name: oldest_letter
-- When the oldest open letter was written.
SELECT l.created_at FROM redrive.letters AS l WHERE l.status = 'OPEN' ORDER BY l.id LIMIT 1;

-- name: due_by_lane
-- The due runs of these lanes: how many, how many are overdue, the first. A rollback is made due some time before it is,
-- to go before others; it waits since that time was over.
SELECT lane.workflow, due.runs, due.late, due.since
FROM unnest(CAST(:tenants AS text[]), CAST(:queues AS text[]), CAST(:ranks AS bigint[]), CAST(:workflows AS text[]))
    AS lane (tenant, queue, rank, workflow)
CROSS JOIN LATERAL (
    SELECT COUNT(*) AS runs, COUNT(*) FILTER (WHERE first.since <= CAST(:now AS bigint) - CAST(:late AS bigint)) AS late,
           MIN(first.since) AS since
    FROM (SELECT r.available_at + CASE WHEN r.status = 'COMPENSATING'
                                            AND r.available_at + CAST(:ahead AS bigint) <= CAST(:now AS bigint)
                                       THEN CAST(:ahead AS bigint) ELSE 0 END AS since
          FROM redrive.runs AS r
          WHERE r.worker IS NULL AND r.available_at IS NOT NULL AND r.deaths = 0
            AND r.tenant = lane.tenant AND r.queue = lane.queue AND r.rank = lane.rank AND r.workflow = lane.workflow
            AND r.available_at <= CAST(:now AS bigint)
          ORDER BY r.available_at, r.id LIMIT CAST(:per_lane AS bigint)) AS first) AS due
WHERE due.runs > 0;

-- name: suspects
-- Runs that a worker died with: those that wait, and those that a worker has again.
SELECT (SELECT COUNT(*) FROM (SELECT 1 FROM redrive.runs AS r
                              WHERE r.worker IS NULL AND r.available_at IS NOT NULL AND r.deaths > 0
                              ORDER BY r.available_at LIMIT CAST(:counted AS bigint)) AS waiting)
       + (SELECT COUNT(*) FROM (SELECT 1 FROM redrive.runs AS r
                                WHERE r.worker IS NOT NULL AND r.deaths > 0
                                ORDER BY r.worker LIMIT CAST(:counted AS bigint)) AS held);

-- name: parked
-- Runs that wait for a circuit.
SELECT COUNT(*) FROM (SELECT 1 FROM redrive.runs AS r
                      WHERE r.parked_on IS NOT NULL AND r.status = 'SLEEPING' AND r.worker IS NULL
                      ORDER BY r.tenant, r.parked_on COLLATE "C", r.id LIMIT CAST(:counted AS bigint)) AS parked;

-- name: circuits_by_status
-- Circuits that are not closed, by name.
SELECT c.key, c.status, COUNT(*) FROM redrive.circuits AS c WHERE c.status <> 'CLOSED'
GROUP BY c.key, c.status ORDER BY COUNT(*) DESC, c.key LIMIT CAST(:circuits AS bigint);

-- name: lags
-- What waits for each sink, and since when the first delivery waits that could have gone.
SELECT s.name,
       (SELECT COUNT(*) FROM (SELECT 1 FROM redrive.deliveries AS d
                              WHERE d.sink = s.name AND d.available_at IS NOT NULL
                              LIMIT CAST(:counted AS bigint)) AS due)
       + (SELECT COUNT(*) FROM (SELECT 1 FROM redrive.deliveries AS d
                                WHERE d.sink = s.name AND d.behind IS NOT NULL
                                LIMIT CAST(:counted AS bigint)) AS behind)
       + (SELECT COALESCE(SUM(b.size), 0) FROM redrive.bundles AS b
          WHERE b.sink = s.name AND b.finished_at IS NULL),
       (SELECT COUNT(*) FROM (SELECT 1 FROM redrive.deliveries AS d
                              WHERE d.status = 'DEAD' AND d.sink = s.name LIMIT CAST(:counted AS bigint)) AS dead),
       LEAST((SELECT d.available_at FROM redrive.deliveries AS d
              WHERE d.sink = s.name AND d.available_at IS NOT NULL AND d.available_at <= CAST(:now AS bigint)
              ORDER BY d.available_at LIMIT 1),
             (SELECT MIN(n.created_at) FROM redrive.bundles AS b CROSS JOIN LATERAL (
                  SELECT m.created_at FROM redrive.messages AS m WHERE m.id = b.first OFFSET 0) AS n
              WHERE b.sink = s.name AND b.finished_at IS NULL))
FROM redrive.sinks AS s ORDER BY s.name;

-- name: workers_by_state
-- How many workers live, died or stopped, as long as they are known.
SELECT CASE WHEN w.state = 'LIVE' AND w.lease_until < CAST(:now AS bigint) THEN 'DEAD' ELSE w.state END, COUNT(*)
FROM redrive.workers AS w GROUP BY 1;
