-- Applying transitions.

-- name: fences
-- The fences these runs carry now, for whoever may still write: a worker that lives, or somebody who is no worker.
SELECT json_group_array(json_array(id, fence)) FROM runs
WHERE id IN (SELECT value FROM json_each(:runs))
  AND (:worker IS NULL OR EXISTS (SELECT 1 FROM workers WHERE id = :worker AND state = 'LIVE'));

-- name: count_held_fences
-- How many of these runs carry the fences that are named with them, for whoever may still write.
SELECT count(*) FROM json_each(:fences) AS named CROSS JOIN runs ON runs.id = CAST(named.key AS INTEGER)
WHERE runs.fence = named.value
  AND (:worker IS NULL OR EXISTS (SELECT 1 FROM workers WHERE id = :worker AND state = 'LIVE'));

-- name: put_entry
-- A journal entry as it shall stand. A begin mark or cancellation that comes after the end changes nothing.
INSERT INTO entries (run, idx, tenant, key, kind, name, status, attempt, fence, done, first_at, began_at, ended_at,
                     wake_at, timeout_at, patience, limit_at, input, output, failure, options)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run, idx) DO UPDATE SET
    status = excluded.status,
    attempt = excluded.attempt,
    fence = excluded.fence,
    done = COALESCE(excluded.done, done),
    began_at = CASE WHEN excluded.attempt > attempt OR (excluded.fence > fence AND excluded.status = 'RUNNING')
                    THEN excluded.began_at ELSE began_at END,
    ended_at = CASE WHEN excluded.ended_at IS NOT NULL THEN COALESCE(ended_at, excluded.ended_at) END,
    wake_at = excluded.wake_at,
    timeout_at = excluded.timeout_at,
    patience = COALESCE(excluded.patience, patience),
    limit_at = excluded.limit_at,
    input = COALESCE(excluded.input, input),
    output = COALESCE(excluded.output, output),
    failure = COALESCE(excluded.failure, failure),
    options = COALESCE(excluded.options, options)
WHERE excluded.status NOT IN ('RUNNING', 'CANCELLED')
   OR (excluded.status = 'CANCELLED' AND ended_at IS NULL)
   OR (excluded.status = 'RUNNING' AND ended_at IS NULL
       AND excluded.attempt >= attempt
       AND NOT (status = 'RETRYING' AND excluded.attempt = attempt AND excluded.fence = fence));

-- name: put_attempt
-- A try that did not succeed; a repeat finds it there.
INSERT INTO attempts (run, idx, attempt, fence, tenant, ending, began_at, ended_at, category, failure, decision,
                      next_at, worker)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run, idx, attempt, fence) DO NOTHING;

-- name: change_run
-- The new states of runs, each of which is named once.
WITH new (status, available_at, released, taken, ended, now, deaths, diverged, parked_on, run) AS (
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
UPDATE runs SET
    status = new.status,
    available_at = new.available_at,
    worker = CASE WHEN new.released THEN NULL ELSE worker END,
    fence = fence + new.taken,
    finished_at = CASE WHEN new.ended THEN COALESCE(finished_at, new.now) END,
    deaths = COALESCE(new.deaths, runs.deaths),
    diverged_at = CASE new.diverged WHEN 1 THEN COALESCE(diverged_at, new.now) WHEN 0 THEN NULL ELSE diverged_at END,
    parked_on = NULLIF(COALESCE(new.parked_on, runs.parked_on), '')
FROM new WHERE runs.id = new.run;

-- name: set_end
-- What a run becomes when everything is undone.
UPDATE runs SET ends_as = ? WHERE id = ?;

-- name: close_entries
-- A run ended from outside: what is still open in it will not go on.
UPDATE entries SET status = 'CANCELLED', ended_at = ?, wake_at = NULL, limit_at = NULL
WHERE run = ? AND ended_at IS NULL AND superseded = 0;

-- name: open_attempt
-- Whether this attempt still goes on.
SELECT 1 FROM entries WHERE run = ? AND idx = ? AND attempt = ? AND status = 'RUNNING';

-- name: clear_suspicion
-- The run made progress, so it did not kill its workers.
UPDATE runs SET deaths = 0 WHERE id = ? AND deaths > 0;

-- name: set_version
-- Other code than before goes on with the run.
UPDATE runs SET version = ? WHERE id = ?;

-- name: put_result
-- What a run ended with; an ending that brings nothing of its own keeps what is there.
INSERT INTO results (run, tenant, output, failure) VALUES (?, ?, ?, ?)
ON CONFLICT (run) DO UPDATE SET output = excluded.output, failure = excluded.failure
WHERE excluded.output IS NOT NULL OR excluded.failure IS NOT NULL;

-- name: put_letter
-- The dead letter of a run; a second one reopens the first.
INSERT INTO letters (public_id, tenant, run, run_id, workflow, status, code, stage, category, reason, fingerprint,
                     payload_hash, step, step_index, attempts, correlation_id, version, created_at, failed_at,
                     expires_at)
SELECT ?, runs.tenant, runs.id, runs.public_id, runs.workflow, 'OPEN', ?, ?, ?, ?, ?,
       ?, ?, ?, ?, runs.correlation_id, runs.version, ?, ?, ?
FROM runs WHERE runs.id = ?
ON CONFLICT (tenant, run) DO UPDATE SET
    replay_count = replay_count + (status = 'REPLAYING'),
    status = 'OPEN', code = excluded.code, stage = excluded.stage, category = excluded.category,
    reason = excluded.reason, fingerprint = excluded.fingerprint, payload_hash = excluded.payload_hash,
    step = excluded.step, step_index = excluded.step_index, attempts = excluded.attempts,
    version = excluded.version, failed_at = excluded.failed_at, expires_at = excluded.expires_at,
    closed_at = NULL, closed_by = NULL, resolution = NULL;

-- name: put_letter_texts
-- What the letter of a run tells, with copies of what a purge of the run would take away.
INSERT INTO letter_texts (letter, tenant, failure, input, options)
SELECT l.id, l.tenant, ?, COALESCE(inputs.input, ''), COALESCE(inputs.options, '')
FROM letters AS l LEFT JOIN inputs ON inputs.run = l.run
WHERE l.run = ?
ON CONFLICT (letter) DO UPDATE SET failure = excluded.failure, input = excluded.input, options = excluded.options;

-- name: move_letter
-- A letter's new status; it is in the hands of whoever holds the run's fence. Closing it a second time changes nothing.
UPDATE letters SET
    status = :status,
    closed_at = CASE WHEN :closed THEN :now END,
    closed_by = :by,
    resolution = :resolution
WHERE public_id IN (SELECT value FROM json_each(:these)) AND closed_at IS NULL;

-- name: move_letter_to_run
-- A letter goes over to the run that was started in place of its own.
UPDATE letters SET run = (SELECT id FROM runs WHERE public_id = :run), run_id = :run
WHERE public_id = :letter AND closed_at IS NULL;

-- name: reopen_run
-- Make an ended run due: with a fresh timeout, and with a letter that hears how it ends.
UPDATE runs SET
    status = COALESCE(:status, status),
    available_at = COALESCE(:now + :wake_in, available_at),
    worker = CASE WHEN :release THEN NULL ELSE worker END,
    fence = fence + :take,
    finished_at = CASE WHEN :status IS NULL THEN finished_at END,
    deaths = COALESCE(:deaths, deaths),
    diverged_at = CASE :diverged WHEN 1 THEN COALESCE(diverged_at, :now) WHEN 0 THEN NULL ELSE diverged_at END,
    parked_on = NULLIF(COALESCE(:parked_on, parked_on), ''),
    deadline = :now + timeout,
    letter = this.letter,
    sole_step = :sole_step,
    generation = generation + :new_operation
FROM (SELECT json_extract(value, '$[0]') AS run, json_extract(value, '$[1]') AS letter FROM json_each(:these)) AS this
WHERE runs.id = this.run;

-- name: edit_input
-- What a replayed run is given instead.
UPDATE inputs SET input = COALESCE(:input, input), options = COALESCE(:options, options) WHERE run = :run;

-- name: supersede
-- Entries that no longer count are kept for those who want to know. They are marked with the replay's number.
UPDATE entries SET superseded = last.number + 1, limit_at = NULL
FROM (SELECT this.value AS run, (SELECT max(o.superseded) FROM entries AS o WHERE o.run = this.value) AS number
      FROM json_each(:these) AS this) AS last
WHERE entries.run = last.run AND entries.idx IN (SELECT value FROM json_each(:indexes)) AND entries.superseded = 0;

-- name: loosen
-- Entries that the function need not come by again.
UPDATE entries SET loose = 1
WHERE run IN (SELECT value FROM json_each(:these)) AND idx IN (SELECT value FROM json_each(:indexes));

-- name: put_replay
-- A decision to replay.
INSERT INTO replays (letter, number, tenant, mode, digest, request, run_id, by, reason, key, changes, at)
SELECT this.letter, 1 + COALESCE((SELECT max(p.number) FROM replays AS p WHERE p.letter = this.letter), 0), :tenant,
       :mode, :digest, :request, this.run_id, :by, :reason, :key, :changes, :now
FROM (SELECT json_extract(value, '$[0]') AS letter, json_extract(value, '$[1]') AS run_id FROM json_each(:these)) AS this;

-- name: end_replay
-- How the replay that is under way ended.
UPDATE replays SET ended_at = :now, outcome = :outcome
WHERE letter IN (SELECT value FROM json_each(:these)) AND ended_at IS NULL;

-- name: insert_circuit_if_new
-- The first time that something is marked down about a circuit.
INSERT INTO circuits (tenant, key, status, generation, version, wave, next_wave_at, settings, changed_at)
VALUES (?, ?, 'CLOSED', 0, 1, 0, 0, ?, ?)
ON CONFLICT (tenant, key) DO NOTHING;

-- name: put_mark
-- How a call ended that a circuit let through; a repeat finds it there.
INSERT INTO circuit_marks (run, idx, attempt, fence, tenant, key, generation, good, category, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run, idx, attempt, fence) DO NOTHING;

-- name: drop_probe
-- A permit that was used is given back.
DELETE FROM probes WHERE tenant = ? AND key = ? AND generation = ? AND run = ? AND fence = ? AND idx = ?;

-- name: put_audit
-- A line of the audit log; one that is sent again is there already.
INSERT INTO audit (tenant, at, event, by, subject, letter, before, after, reason, token)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (token) DO NOTHING;
