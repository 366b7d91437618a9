-- Applying transitions. What a batch writes is in the function `apply` of the schema, part by part under the names
-- that the SQLite store uses: fences, open_attempt, change_run, clear_suspicion, set_version, put_result,
-- put_entry, close_entries, withdraw_questions, put_question, end_question, expired_wait, end_wait, put_wait, use_event, put_note, put_attempt, put_letter. The rest is in `begin_runs`, which does what `start` does, and in
-- `decide_on_letters`: reopen_run, edit_input, supersede, loosen, move_letter, end_replay, put_replay, put_audit;
-- and in `sample_circuits`: insert_circuit_if_new, put_sample, drop_probe; messages in
-- `publish_bundled`: last_message, messages_between, sinks_for, put_message, put_bundle, put_delivery, clear_bundles.

-- name: apply
-- Write a batch of transitions, each only if its fence still holds.
SELECT now, kept, waiting FROM redrive.apply(
    :worker, :now, :runs, :fences,
    :c_t, :c_status, :c_wake_in, :c_release, :c_take, :c_final, :c_deaths, :c_diverged, :c_parked_on, :c_seen,
    :r_t, :r_tenant, redrive.texts(:r_output), :r_failure,
    :e_t, :e_idx, :e_tenant, redrive.texts(:e_key), :e_kind, :e_name, :e_status, :e_attempt, :e_done, :e_began_ago, :e_ended,
    :e_wake_in, :e_timeout_in, :e_patience, :e_limit_in,
    redrive.texts(:e_input), redrive.texts(:e_output), :e_failure, :e_options,
    CAST(:rare AS json), :all_new);

-- name: write_entry
-- Fast path for one new entry of a run that its worker still holds; NULL if the batch path is needed.
SELECT now, kept FROM redrive.record(
    :worker, :now, :run, :fence, :tenant, :idx, :key, :kind, :name, :entry_status, :attempt, :done, :began_ago,
    :input, :output);

-- name: write_success
-- Fast path for a successful run that its worker still holds.
SELECT now, kept, waiting FROM redrive.finish(:worker, :now, :run, :fence, :tenant, :status, :take, :result);

-- name: write_entry_and_success
-- Fast path for the last entry of a run together with its success. The run ends only if the entry was written.
-- OFFSET 0: the planner must not write the call of `finish` in two places.
SELECT last.now, CASE WHEN last.recorded THEN last.waiting IS NOT NULL ELSE last.recorded END AS kept, last.waiting
FROM (SELECT recorded.now, recorded.kept AS recorded, CASE WHEN recorded.kept THEN
          (SELECT CASE WHEN finished.kept THEN COALESCE(finished.waiting, CAST('{}' AS bigint[])) END
           FROM redrive.finish(:worker, recorded.now, :run, :fence, :tenant, :status, :take, :result) AS finished)
          END AS waiting
      FROM redrive.record(
          :worker, :now, :run, :fence, :tenant, :idx, :key, :kind, :name, :entry_status, :attempt, :done, :began_ago,
          :input, :output) AS recorded
      OFFSET 0) AS last;

-- name: write_entry_once
-- write_entry with the receipt of a remote worker's batch; no row if the batch is not the next one.
WITH next AS MATERIALIZED (
    SELECT m.worker FROM redrive.remote_workers AS m
    WHERE m.worker = CAST(:worker AS bigint) AND m.number = CAST(:number AS bigint) - 1 FOR UPDATE
), written AS MATERIALIZED (
    SELECT one.now, one.kept FROM next CROSS JOIN LATERAL redrive.record(
        next.worker, :now, :run, :fence, :tenant, :idx, :key, :kind, :name, :entry_status, :attempt, :done, :began_ago,
        :input, :output) AS one
), receipt AS (
    UPDATE redrive.remote_workers AS m SET number = CAST(:number AS bigint), digest = :digest, answer = :answer,
        answered_at = written.now
    FROM written WHERE m.worker = CAST(:worker AS bigint) AND written.kept
)
SELECT now, kept FROM written;

-- name: write_entry_and_success_once
-- write_entry_and_success with such a receipt.
WITH next AS MATERIALIZED (
    SELECT m.worker FROM redrive.remote_workers AS m
    WHERE m.worker = CAST(:worker AS bigint) AND m.number = CAST(:number AS bigint) - 1 FOR UPDATE
), recorded AS MATERIALIZED (
    SELECT one.now, one.kept FROM next CROSS JOIN LATERAL redrive.record(
        next.worker, :now, :run, :fence, :tenant, :idx, :key, :kind, :name, :entry_status, :attempt, :done, :began_ago,
        :input, :output) AS one
), ended AS MATERIALIZED (
    SELECT one.kept, one.waiting FROM recorded CROSS JOIN LATERAL redrive.finish(
        CAST(:worker AS bigint), recorded.now, :run, :fence, :tenant, :status, :take, :result) AS one
    WHERE recorded.kept
), receipt AS (
    UPDATE redrive.remote_workers AS m SET number = CAST(:number AS bigint), digest = :digest, answer = :answer,
        answered_at = recorded.now
    FROM recorded WHERE m.worker = CAST(:worker AS bigint) AND recorded.kept
)
SELECT recorded.now, recorded.kept, ended.waiting FROM recorded LEFT JOIN ended ON true;

-- name: apply_with_rest
-- Write a batch of transitions with more than runs and journals. Functions write the rest of the kept ones. Runs start
-- before letters change, because a letter may move to a new run.
SELECT applied.now, applied.kept, applied.waiting,
       redrive.decide_on_letters(applied.now, :runs, applied.kept, CAST(:told AS json)),
       redrive.sample_circuits(applied.now, :runs, :fences, applied.kept, CAST(:told AS json)),
       redrive.publish_bundled(
           applied.now, applied.kept, CAST(:m_t AS integer[]), CAST(:m_public_id AS text[]), CAST(:m_tenant AS text[]),
           CAST(:m_topic AS text[]), CAST(:m_key AS text[]), CAST(:m_run_id AS text[]),
           CAST(:m_correlation_id AS text[]), CAST(:m_payload AS text[]), CAST(:m_trace AS text[]),
           CAST(:m_group AS integer[]), CAST(:g_topic AS text[]), CAST(:c_sink AS text[]), CAST(:c_lease AS bigint[]),
           CAST(:worker AS bigint))
FROM redrive.apply(
    :worker, :now, :runs, :fences,
    :c_t, :c_status, :c_wake_in, :c_release, :c_take, :c_final, :c_deaths, :c_diverged, :c_parked_on, :c_seen,
    :r_t, :r_tenant, redrive.texts(:r_output), :r_failure,
    :e_t, :e_idx, :e_tenant, redrive.texts(:e_key), :e_kind, :e_name, :e_status, :e_attempt, :e_done, :e_began_ago, :e_ended,
    :e_wake_in, :e_timeout_in, :e_patience, :e_limit_in,
    redrive.texts(:e_input), redrive.texts(:e_output), :e_failure, :e_options,
    CAST(:rare AS json), :all_new) AS applied
CROSS JOIN LATERAL redrive.begin_runs(applied.now, applied.kept, CAST(:begun AS json)) AS begun;

-- name: set_end
-- Set the status that runs get after their rollback. Few transitions do so, and those hold the runs' fences.
UPDATE redrive.runs AS r SET ends_as = n.ends_as
FROM unnest(CAST(:runs AS bigint[]), CAST(:ends AS text[])) AS n (run, ends_as)
WHERE r.id = n.run AND r.id = ANY (CAST(:runs AS bigint[]));

-- name: note
-- Add lines to the audit log.
SELECT redrive.decide_on_letters(COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp())),
                                 ARRAY[CAST(0 AS bigint)], ARRAY[true], CAST(:told AS json));
