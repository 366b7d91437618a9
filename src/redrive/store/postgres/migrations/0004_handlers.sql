-- Failure handlers: from a failed run to the runs that handle its failure, and starting those with it.
-- oldest code: 2

CREATE INDEX runs_handling ON redrive.runs (handler_for, id) WHERE handler_for IS NOT NULL;

-- The runs that transitions start, written with them: `kept` tells which of them were. One that is there already was
-- begun by the same decision, whose answer was lost.
CREATE FUNCTION redrive.begin_runs(now bigint, kept boolean[], begun json, OUT done boolean)
LANGUAGE plpgsql VOLATILE STRICT
AS $body$
#variable_conflict use_column
BEGIN
    -- insert_run, insert_input
    WITH started AS (
        INSERT INTO redrive.runs (public_id, tenant, workflow, queue, rank, status, available_at, deadline, timeout,
                                  version, created_at, correlation_id, parent, root, replay_of, generation, letter,
                                  handler_for)
        SELECT n.public_id, n.tenant, n.workflow, n.queue, n.rank, 'PENDING', begin_runs.now + n.delay,
               LEAST(n.deadline, begin_runs.now + n.timeout), n.timeout, n.version, begin_runs.now,
               n.correlation_id, n.parent, n.root, n.replay_of, n.generation, n.letter, n.handler_for
        FROM json_to_recordset(begun) AS n (
            t integer, public_id text, tenant text, workflow text, queue text, rank bigint, delay bigint,
            deadline bigint, timeout bigint, version text, correlation_id text, parent text, root text,
            replay_of text, generation integer, letter text, handler_for text)
        WHERE kept[n.t]
        ON CONFLICT (public_id) DO NOTHING
        RETURNING id, public_id
    )
    INSERT INTO redrive.inputs (run, tenant, input, options)
    SELECT started.id, n.tenant, n.input, n.options
    FROM started JOIN json_to_recordset(begun) AS n (
        public_id text, tenant text, input text, options text) ON n.public_id = started.public_id;
    done := true;
END $body$;
