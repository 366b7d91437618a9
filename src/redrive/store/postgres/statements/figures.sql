-- How much waits in a store, where the databases differ.

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

