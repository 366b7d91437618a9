-- Saved views: filters of lists that people gave a name.

-- name: views
-- Somebody's own views and those of the tenant; if nobody is named, everybody's.
SELECT tenant, list, owner, name, query, by, at FROM saved_views
WHERE tenant = :tenant AND (:owner IS NULL OR owner IN ('', :owner))
ORDER BY list, name, owner;

-- name: put_view
-- Save a view, unless there are too many others.
INSERT INTO saved_views (tenant, list, owner, name, query, by, at)
SELECT :tenant, :list, :owner, :name, :query, :by, :now
WHERE (SELECT count(*) FROM saved_views
       WHERE tenant = :tenant AND list = :list AND owner = :owner AND name <> :name) < :most
ON CONFLICT (tenant, list, owner, name) DO UPDATE SET query = excluded.query, by = excluded.by, at = excluded.at
RETURNING name;

-- name: drop_view
-- Forget a view.
DELETE FROM saved_views WHERE tenant = :tenant AND list = :list AND owner = :owner AND name = :name
RETURNING name;
