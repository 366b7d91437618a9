-- Short ways: to find a suspect of a workflow, to list what succeeded.
-- oldest code: 2

-- Suspects of workflows that nobody here knows are not walked past one by one. Older code uses runs_suspect.
CREATE INDEX runs_suspect_of ON runs (workflow, available_at, id)
    WHERE worker IS NULL AND available_at IS NOT NULL AND deaths > 0;

-- What succeeded is most of the table, until much is started and little has ended.
CREATE INDEX runs_succeeded ON runs (id) WHERE status = 'SUCCESS';
