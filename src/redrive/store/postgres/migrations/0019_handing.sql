-- Replayed runs that a worker has from the decision on: the row of such a run was written twice.
-- oldest code: 17

-- As before (0009), but for `worker`: whose a reopened run is, if anybody's.
CREATE OR REPLACE FUNCTION redrive.decide_on_letters(
    now bigint, runs bigint[], kept boolean[], told json, OUT done boolean)
LANGUAGE plpgsql VOLATILE
AS $body$
#variable_conflict use_column
DECLARE
    part record;
    these record;
BEGIN
    SELECT p.reopens, p.starts, p.moves, p.ends, p.replays, p.audit INTO part
    FROM json_to_record(told) AS p (reopens json, starts json, moves json, ends json, replays json, audit json);

    IF part.reopens IS NOT NULL THEN
        -- reopen_run
        FOR these IN
            SELECT n.sole_step, n.new_operation, n.status, n.wake_in, n.release, n.take, n.deaths, n.diverged,
                   n.parked_on, n.worker,
                   array_agg(decide_on_letters.runs[n.t]) AS runs, array_agg(n.letter) AS letters
            FROM json_to_recordset(part.reopens) AS n (
                t integer, letter text, sole_step text, new_operation integer, status text, wake_in bigint,
                release boolean, take integer, deaths integer, diverged boolean, parked_on text, worker bigint)
            WHERE kept[n.t] GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
        LOOP
            UPDATE redrive.runs AS r SET
                status = COALESCE(these.status, r.status),
                available_at = COALESCE(decide_on_letters.now + these.wake_in, r.available_at),
                worker = CASE WHEN these.release THEN these.worker ELSE r.worker END,
                fence = r.fence + COALESCE(these.take, 0),
                finished_at = CASE WHEN these.status IS NULL THEN r.finished_at END,
                deaths = COALESCE(these.deaths, r.deaths),
                diverged_at = CASE WHEN these.diverged THEN COALESCE(r.diverged_at, decide_on_letters.now)
                                   WHEN these.diverged IS NULL THEN r.diverged_at END,
                parked_on = CASE WHEN these.parked_on IS NULL THEN r.parked_on ELSE NULLIF(these.parked_on, '') END,
                deadline = decide_on_letters.now + r.timeout,
                letter = these.letters[array_position(these.runs, r.id)],
                sole_step = these.sole_step,
                generation = r.generation + these.new_operation
            WHERE r.id = ANY (these.runs);
        END LOOP;

        -- edit_input
        FOR these IN
            SELECT decide_on_letters.runs[n.t] AS run, n.input, n.options
            FROM json_to_recordset(part.reopens) AS n (t integer, input text, options text)
            WHERE kept[n.t] AND (n.input IS NOT NULL OR n.options IS NOT NULL)
        LOOP
            UPDATE redrive.inputs AS i SET
                input = COALESCE(these.input, i.input), options = COALESCE(these.options, i.options)
            WHERE i.run = these.run;
        END LOOP;

        -- supersede
        FOR these IN
            SELECT n.supersedes AS indexes, array_agg(decide_on_letters.runs[n.t]) AS runs
            FROM json_to_recordset(part.reopens) AS n (t integer, supersedes integer[])
            WHERE kept[n.t] AND cardinality(n.supersedes) > 0 GROUP BY 1
        LOOP
            UPDATE redrive.entries AS e SET limit_at = NULL, superseded = 1 + (
                SELECT max(o.superseded) FROM redrive.entries AS o WHERE o.run = e.run)
            WHERE e.run = ANY (these.runs) AND e.idx = ANY (these.indexes) AND e.superseded = 0;
        END LOOP;

        -- loosen
        FOR these IN
            SELECT n.loosens AS indexes, array_agg(decide_on_letters.runs[n.t]) AS runs
            FROM json_to_recordset(part.reopens) AS n (t integer, loosens integer[])
            WHERE kept[n.t] AND cardinality(n.loosens) > 0 GROUP BY 1
        LOOP
            UPDATE redrive.entries AS e SET loose = 1
            WHERE e.run = ANY (these.runs) AND e.idx = ANY (these.indexes);
        END LOOP;
    END IF;

    IF part.starts IS NOT NULL THEN
        -- insert_run, insert_input
        WITH started AS (
            INSERT INTO redrive.runs (public_id, tenant, workflow, queue, rank, status, available_at, deadline, timeout,
                                      version, created_at, correlation_id, parent, root, replay_of, generation, letter)
            SELECT n.public_id, n.tenant, n.workflow, n.queue, n.rank, 'PENDING', decide_on_letters.now + n.delay,
                   LEAST(n.deadline, decide_on_letters.now + n.timeout), n.timeout, n.version, decide_on_letters.now,
                   n.correlation_id, n.parent, n.root, n.replay_of, n.generation, n.letter
            FROM json_to_recordset(part.starts) AS n (
                t integer, public_id text, tenant text, workflow text, queue text, rank bigint, delay bigint,
                deadline bigint, timeout bigint, version text, correlation_id text, parent text, root text,
                replay_of text, generation integer, letter text)
            WHERE kept[n.t]
            RETURNING id, public_id
        )
        INSERT INTO redrive.inputs (run, tenant, input, options)
        SELECT started.id, n.tenant, n.input, n.options
        FROM started JOIN json_to_recordset(part.starts) AS n (
            public_id text, tenant text, input text, options text) ON n.public_id = started.public_id;
    END IF;

    IF part.moves IS NOT NULL THEN
        -- move_letter, follow_run
        FOR these IN
            SELECT n.status, n.closed, n.by AS who, n.resolution, n.run AS new_run, array_agg(n.letter) AS letters
            FROM json_to_recordset(part.moves) AS n (
                t integer, letter text, status text, closed boolean, by text, resolution text, run text)
            WHERE kept[n.t] GROUP BY 1, 2, 3, 4, 5
        LOOP
            UPDATE redrive.letters AS l SET
                status = these.status,
                closed_at = CASE WHEN these.closed THEN decide_on_letters.now END,
                closed_by = these.who,
                resolution = these.resolution,
                run = CASE WHEN these.new_run IS NULL THEN l.run
                           ELSE (SELECT r.id FROM redrive.runs AS r WHERE r.public_id = these.new_run) END,
                run_id = COALESCE(these.new_run, l.run_id)
            WHERE l.public_id = ANY (these.letters) AND l.closed_at IS NULL;
        END LOOP;
    END IF;

    IF part.ends IS NOT NULL THEN
        -- end_replay
        FOR these IN
            SELECT n.outcome, array_agg(n.letter) AS letters
            FROM json_to_recordset(part.ends) AS n (t integer, letter text, outcome text)
            WHERE kept[n.t] GROUP BY 1
        LOOP
            UPDATE redrive.replays AS p SET ended_at = decide_on_letters.now, outcome = these.outcome
            WHERE p.letter = ANY (these.letters) AND p.ended_at IS NULL;
        END LOOP;
    END IF;

    IF part.replays IS NOT NULL THEN
        -- put_replay
        INSERT INTO redrive.replays (letter, number, tenant, mode, digest, request, run_id, by, reason, key, changes,
                                     at)
        SELECT n.letter, 1 + COALESCE((SELECT max(p.number) FROM redrive.replays AS p WHERE p.letter = n.letter), 0),
               n.tenant, n.mode, n.digest, n.request, n.run_id, n.by, n.reason, n.key, n.changes, decide_on_letters.now
        FROM json_to_recordset(part.replays) AS n (
            t integer, letter text, tenant text, mode text, digest text, request text, run_id text, by text,
            reason text, key text, changes text)
        WHERE kept[n.t];
    END IF;

    IF part.audit IS NOT NULL THEN
        -- put_audit
        INSERT INTO redrive.audit (tenant, at, event, by, subject, letter, before, after, reason, token)
        SELECT n.tenant, decide_on_letters.now, n.event, n.by, n.subject, n.letter, n.before, n.after, n.reason, n.token
        FROM json_to_recordset(part.audit) AS n (
            t integer, tenant text, event text, by text, subject text, letter text, before text, after text,
            reason text, token text)
        WHERE kept[n.t]
        ON CONFLICT (token) WHERE token IS NOT NULL DO NOTHING;
    END IF;
    done := true;
END $body$;
