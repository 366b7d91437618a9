-- Accounts, where SQLite needs its own form.

-- name: save_response
-- Store the response to a request.
UPDATE access_answers SET status = :status, body = :body, size = length(CAST(:body AS BLOB))
WHERE tenant = :tenant AND key = :key AND status IS NULL;

-- name: tables_with_tenant
-- Redrive's tables with a tenant column, and a flag for those with a run column.
SELECT m.name,
       EXISTS (SELECT 1 FROM pragma_table_info(m.name) AS r WHERE r.name = 'run') AS of_run
FROM sqlite_master AS m
WHERE m.type = 'table' AND m.name IN (SELECT value FROM json_each(:ours))
  AND EXISTS (SELECT 1 FROM pragma_table_info(m.name) AS c WHERE c.name = 'tenant')
ORDER BY m.name;
