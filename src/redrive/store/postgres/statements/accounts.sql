-- Accounts, where PostgreSQL needs its own form.

-- name: save_response
-- Store the response to a request.
UPDATE redrive.access_answers SET status = :status, body = :body, size = octet_length(CAST(:body AS text))
WHERE tenant = :tenant AND key = :key AND status IS NULL;

-- name: tables_with_tenant
-- Redrive's tables with a tenant column, and a flag for those with a run column.
SELECT c.relname AS name,
       EXISTS (SELECT 1 FROM pg_catalog.pg_attribute AS r
               WHERE r.attrelid = c.oid AND r.attname = 'run' AND NOT r.attisdropped) AS of_run
FROM pg_catalog.pg_class AS c
WHERE c.relnamespace = (SELECT relnamespace FROM pg_catalog.pg_class WHERE oid = CAST('redrive.runs' AS regclass)) AND c.relkind IN ('r', 'p') AND c.relname = ANY (CAST(:ours AS text[]))
  AND EXISTS (SELECT 1 FROM pg_catalog.pg_attribute AS a
              WHERE a.attrelid = c.oid AND a.attname = 'tenant' AND NOT a.attisdropped)
ORDER BY c.relname;
