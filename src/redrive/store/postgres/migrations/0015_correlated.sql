-- Runs that belong together are found for one tenant, too.
-- oldest code: 2

-- What a policy guards is looked at behind it, unless it tells nothing by failing. left() is not trusted with that, so
-- that a tenant's transaction came past all of its runs; the first 63 bytes as a name are.
DROP INDEX redrive.runs_correlated;
CREATE INDEX runs_correlated ON redrive.runs (CAST(correlation_id AS name), id) WHERE correlation_id IS NOT NULL;
