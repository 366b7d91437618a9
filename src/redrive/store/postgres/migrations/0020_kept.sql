-- The last runs of a workflow are found by when they ended, without a look at those that did not.
-- oldest code: 19

-- As before (0001), but workflow by workflow: how many are kept is said for each.
DROP INDEX redrive.runs_finished;
CREATE INDEX runs_finished ON redrive.runs (workflow, finished_at, id)
    WHERE finished_at IS NOT NULL AND status <> 'DLQ_PENDING' AND purged_at IS NULL;
