-- Short ways: to record one new entry or one end, to find a suspect of a workflow, to list what succeeded.
-- oldest code: 2

-- What nearly every commit of a quiet system is: one new entry of one run, by its worker. `apply` takes half of its
-- time to unfold its arrays, however few rows are in them. What this one does not do by itself it leaves to `apply`,
-- and says so by NULL: whatever is to be decided about an entry that is there already is decided in one place.
CREATE FUNCTION redrive.record(
    by_worker bigint, at_time bigint, of_run bigint, under bigint, of_tenant text, at_idx integer, of_key text,
    of_kind text, of_name text, as_status text, of_attempt integer, as_done integer, began_ago bigint, given text,
    gave text,
    OUT now bigint, OUT kept boolean)
LANGUAGE plpgsql VOLATILE
AS $body$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(redrive.gate(by_worker));
    now := COALESCE(at_time, redrive.micros(clock_timestamp()));

    -- worker_lives, fences
    kept := EXISTS (SELECT 1 FROM redrive.workers AS w WHERE w.id = by_worker AND w.state = 'LIVE')
            AND EXISTS (SELECT 1 FROM redrive.runs AS r WHERE r.id = of_run AND r.fence = under);
    IF NOT kept THEN
        RETURN;
    END IF;

    -- put_entry
    INSERT INTO redrive.entries (run, idx, tenant, key, kind, name, status, attempt, fence, done, first_at, began_at,
                                 ended_at, input, output)
    VALUES (of_run, at_idx, of_tenant, of_key, of_kind, of_name, as_status, of_attempt, under, as_done,
            now - began_ago, now - began_ago, now, given, gave)
    ON CONFLICT (run, idx) DO NOTHING;
    IF NOT FOUND THEN
        kept := NULL;
    END IF;
END $body$;

-- And the last commit of a run that ended well.
CREATE FUNCTION redrive.finish(
    by_worker bigint, at_time bigint, of_run bigint, under bigint, of_tenant text, as_status text, take integer,
    gave text,
    OUT now bigint, OUT kept boolean)
LANGUAGE plpgsql VOLATILE
AS $body$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(redrive.gate(by_worker));
    now := COALESCE(at_time, redrive.micros(clock_timestamp()));

    -- worker_lives, fences
    kept := EXISTS (SELECT 1 FROM redrive.workers AS w WHERE w.id = by_worker AND w.state = 'LIVE')
            AND EXISTS (SELECT 1 FROM redrive.runs AS r WHERE r.id = of_run AND r.fence = under);
    IF NOT kept THEN
        RETURN;
    END IF;

    -- change_run
    UPDATE redrive.runs AS r SET
        status = as_status, available_at = NULL, worker = NULL, fence = r.fence + take,
        finished_at = COALESCE(r.finished_at, now)
    WHERE r.id = of_run;

    -- put_result
    INSERT INTO redrive.results AS o (run, tenant, output, failure) VALUES (of_run, of_tenant, gave, NULL)
    ON CONFLICT (run) DO UPDATE SET output = excluded.output, failure = excluded.failure;
END $body$;

-- Suspects of workflows that nobody here knows are not walked past one by one. Older code uses runs_suspect.
CREATE INDEX runs_suspect_of ON redrive.runs (workflow, available_at, id)
    WHERE worker IS NULL AND available_at IS NOT NULL AND deaths > 0;

-- What succeeded is most of the table, until much is started and little has ended.
CREATE INDEX runs_succeeded ON redrive.runs (id) WHERE status = 'SUCCESS';
