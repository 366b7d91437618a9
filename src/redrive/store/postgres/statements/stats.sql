-- Statistics, where the databases differ.

-- name: sink_lags
-- The unfinished deliveries of each sink, and when the first due one became due.
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

-- name: due_by_lane
-- The due and overdue runs of these lanes, and when the first became due. A rollback gets an earlier due time,
-- to go before others; it counts as waiting from its real due time.
SELECT lane.tenant, lane.queue, lane.workflow, due.runs, due.late, due.since
FROM unnest(CAST(:tenants AS text[]), CAST(:queues AS text[]), CAST(:ranks AS bigint[]), CAST(:workflows AS text[]),
            CAST(:pins AS text[])) AS lane (tenant, queue, rank, workflow, pin)
CROSS JOIN LATERAL (
    SELECT COUNT(*) AS runs, COUNT(*) FILTER (WHERE first.since <= CAST(:now AS bigint) - CAST(:late AS bigint)) AS late,
           MIN(first.since) AS since
    FROM (SELECT r.available_at + CASE WHEN r.status = 'COMPENSATING'
                                            AND r.available_at + CAST(:ahead AS bigint) <= CAST(:now AS bigint)
                                       THEN CAST(:ahead AS bigint) ELSE 0 END AS since
          FROM redrive.runs AS r
          WHERE r.worker IS NULL AND r.available_at IS NOT NULL AND r.deaths = 0
            AND r.tenant = lane.tenant AND r.queue = lane.queue AND r.rank = lane.rank AND r.workflow = lane.workflow
            AND r.pin = lane.pin
            AND r.available_at <= CAST(:now AS bigint)
          ORDER BY r.available_at, r.id LIMIT CAST(:per_lane AS bigint)) AS first) AS due
WHERE due.runs > 0;
