-- The catalogue: workflows, steps and channels that code registered.

-- name: known
-- Workflows, steps and channels of these names, as the newest code that contains them registered them.
SELECT c.kind, c.name, c.version, c.options, c.schema_in, c.schema_out, c.events, c.own
FROM redrive.catalogue AS c JOIN redrive.versions AS v ON v.version = c.version
WHERE c.kind IN ('workflow', 'step', 'channel') AND c.name = ANY (CAST(:names AS text[]))
  AND c.tenant IN ('', CAST(:tenant AS text))
ORDER BY c.kind, c.name, v.seq DESC;

-- name: workflows
-- Every workflow that any code registered, the newest of that code first.
SELECT c.kind, c.name, c.version, c.options, c.schema_in, c.schema_out, c.events, c.own
FROM redrive.catalogue AS c JOIN redrive.versions AS v ON v.version = c.version
WHERE c.kind = 'workflow' AND c.tenant IN ('', CAST(:tenant AS text)) ORDER BY c.name, v.seq DESC;
