-- How much waits in a store, where the databases differ.

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

