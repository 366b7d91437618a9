-- Saved views: filters of lists, saved under a name.

-- name: views
-- The views of one owner and those that the tenant shares; without an owner, all of them.
SELECT tenant, list, owner, name, query, by, at FROM redrive.saved_views
WHERE tenant = :tenant AND (CAST(:owner AS text) IS NULL OR owner IN ('', CAST(:owner AS text)))
ORDER BY list, name, owner;

-- name: put_view
-- Save a view, unless there are too many others.
INSERT INTO redrive.saved_views (tenant, list, owner, name, query, by, at)
SELECT CAST(:tenant AS text), CAST(:list AS text), CAST(:owner AS text), CAST(:name AS text), CAST(:query AS text),
       CAST(:by AS text), :now
WHERE (SELECT count(*) FROM redrive.saved_views
       WHERE tenant = CAST(:tenant AS text) AND list = CAST(:list AS text) AND owner = CAST(:owner AS text)
         AND name <> CAST(:name AS text)) < CAST(:most AS bigint)
ON CONFLICT (tenant, list, owner, name) DO UPDATE SET query = excluded.query, by = excluded.by, at = excluded.at
RETURNING name;

-- name: drop_view
-- Remove a view.
DELETE FROM redrive.saved_views WHERE tenant = :tenant AND list = :list AND owner = :owner AND name = :name
RETURNING name;
