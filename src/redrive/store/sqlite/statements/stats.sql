-- Statistics, where the databases differ.

-- name: sink_lags
-- The unfinished deliveries of each sink, and when the first due one became due.
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

-- name: due_by_lane
-- The due and overdue runs of these lanes, and when the first became due. A rollback gets an earlier due time,
-- so that it goes first.
SELECT tenant, queue, workflow, json_extract(due, '$[0]'), json_extract(due, '$[1]'), json_extract(due, '$[2]') FROM (
    SELECT json_extract(lane.value, '$[0]') AS tenant, json_extract(lane.value, '$[1]') AS queue,
           json_extract(lane.value, '$[3]') AS workflow, (
        SELECT json_array(count(*), COALESCE(sum(since <= :now - :late), 0), min(since)) FROM (
            SELECT available_at + CASE WHEN status = 'COMPENSATING' AND available_at + :ahead <= :now
                                       THEN :ahead ELSE 0 END AS since
            FROM (SELECT available_at, status FROM runs INDEXED BY runs_due
                  WHERE worker IS NULL AND available_at IS NOT NULL AND deaths = 0
                    AND tenant = json_extract(lane.value, '$[0]') AND queue = json_extract(lane.value, '$[1]')
                    AND rank = json_extract(lane.value, '$[2]') AND workflow = json_extract(lane.value, '$[3]')
                    AND pin = json_extract(lane.value, '$[4]')
                    AND available_at <= :now
                  ORDER BY available_at, id LIMIT :per_lane))) AS due
    FROM json_each(:lanes) AS lane)
WHERE json_extract(due, '$[0]') > 0;
