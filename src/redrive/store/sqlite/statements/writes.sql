-- Applying transitions.

-- name: fences
-- The fences of these runs; none if the caller is a worker that is dead.
SELECT json_group_array(json_array(id, fence)) FROM runs
WHERE id IN (SELECT value FROM json_each(:runs))
  AND (:worker IS NULL OR EXISTS (SELECT 1 FROM workers WHERE id = :worker AND state = 'LIVE'));

-- name: count_held_fences
-- The number of runs with the given fences; 0 if the caller is a worker that is dead.
SELECT count(*) FROM json_each(:fences) AS named CROSS JOIN runs ON runs.id = CAST(named.key AS INTEGER)
WHERE runs.fence = named.value
  AND (:worker IS NULL OR EXISTS (SELECT 1 FROM workers WHERE id = :worker AND state = 'LIVE'));

-- name: put_entry
-- Insert or replace a journal entry. A begin mark or cancellation after the end changes nothing.
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
-- Insert an attempt that did not succeed; a repeat changes nothing.
INSERT INTO attempts (run, idx, attempt, fence, tenant, ending, began_at, ended_at, category, failure, decision,
                      next_at, worker)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run, idx, attempt, fence) DO NOTHING;

-- name: change_run
-- Write the new states of runs, each of which occurs once.
WITH new (status, available_at, released, taken, ended, now, deaths, diverged, parked_on, seen, run) AS (
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
UPDATE runs SET
    status = new.status,
    available_at = CASE WHEN wakeups > new.seen THEN new.now ELSE new.available_at END,
    worker = CASE WHEN new.released THEN NULL ELSE worker END,
    fence = fence + new.taken,
    finished_at = CASE WHEN new.ended THEN COALESCE(finished_at, new.now) END,
    deaths = COALESCE(new.deaths, runs.deaths),
    diverged_at = CASE new.diverged WHEN 1 THEN COALESCE(diverged_at, new.now) WHEN 0 THEN NULL ELSE diverged_at END,
    parked_on = NULLIF(COALESCE(new.parked_on, runs.parked_on), '')
FROM new WHERE runs.id = new.run;

-- name: set_end
-- Set the status that a run gets after its rollback.
UPDATE runs SET ends_as = ? WHERE id = ?;

-- name: close_entries
-- Close the open entries of a run that was ended from outside.
UPDATE entries SET status = 'CANCELLED', ended_at = ?, wake_at = NULL, limit_at = NULL
WHERE run = ? AND ended_at IS NULL AND superseded = 0;

-- name: drop_waits
-- Delete the waits of a run that was ended from outside.
DELETE FROM waits WHERE run = ?;

-- name: withdraw_questions
-- Withdraw the open questions of a run that ended without success.
UPDATE questions SET status = 'WITHDRAWN', next_at = NULL WHERE run = ? AND status = 'OPEN';

-- name: put_question
-- Insert a question; a repeat changes nothing. One of a replay names the question that it replaces.
WITH new (public_id, tenant, run, idx, run_id, workflow, key, kind, role, people, apart_from, question, shown, schema,
          created_at, due_at, next_at, plan, notify) AS (
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
INSERT INTO questions (public_id, tenant, run, idx, run_id, workflow, key, kind, status, role, people, apart_from,
                       question, shown, schema, created_at, due_at, next_at, plan, notify, replaces)
SELECT public_id, tenant, run, idx, run_id, workflow, key, kind, 'OPEN', role, people, apart_from, question, shown,
       schema, created_at, due_at, next_at, plan, notify,
       (SELECT q.public_id FROM runs AS r LEFT JOIN runs AS old ON old.public_id = r.replay_of
        CROSS JOIN questions AS q ON q.run IN (r.id, old.id) AND q.key = new.key AND q.public_id <> new.public_id
        WHERE r.id = new.run ORDER BY q.id DESC LIMIT 1)
FROM new WHERE true
ON CONFLICT (run, idx) DO NOTHING;

-- name: end_question
-- End an open question.
UPDATE questions SET status = ?, next_at = NULL, answered_at = ?, answered_by = ?, answer = ?, note = ?
WHERE run = ? AND idx = ? AND status = 'OPEN';

-- name: end_wait
-- Delete a wait that is over.
DELETE FROM waits WHERE run = ? AND idx = ?;

-- name: put_wait
-- Insert a wait that begins; a repeat changes nothing.
INSERT INTO waits (run, idx, kind, subject, tenant, since) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (run, idx, subject) DO NOTHING;

-- name: use_event
-- Mark an event as taken, or as set aside, by a journal entry.
UPDATE run_events SET taken = ?, refused = ? WHERE run = ? AND seq = ? AND taken IS NULL;

-- name: put_note
-- Insert or replace the status that the code of a run set.
INSERT INTO run_notes (run, tenant, at, progress, text, data) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (run) DO UPDATE SET
    at = excluded.at, progress = excluded.progress, text = excluded.text, data = excluded.data;

-- name: expired_wait
-- One row if a wait reached its limit, and no wake-up came that its worker has not seen. So it is if the same worker
-- recorded that before, and the reply was lost.
SELECT 1 FROM runs AS r CROSS JOIN entries AS e ON e.run = r.id
WHERE r.id = ? AND e.idx = ?
  AND (r.wakeups <= ? AND e.ended_at IS NULL AND e.wake_at <= ? OR e.status = 'FAILED' AND e.fence = ?);

-- name: return_events
-- Make events unread again that superseded entries took. An event counts as taken only by an entry that stands.
UPDATE run_events SET taken = NULL, refused = NULL
WHERE run IN (SELECT value FROM json_each(:these)) AND taken IN (SELECT value FROM json_each(:indexes));

-- name: drop_superseded_waits
-- Delete the waits of superseded entries.
DELETE FROM waits
WHERE run IN (SELECT value FROM json_each(:these)) AND idx IN (SELECT value FROM json_each(:indexes));

-- name: copy_events
-- Copy the events of a run to the run that replays it, as unread.
INSERT INTO run_events (run, seq, tenant, name, key, by, at, payload, size)
SELECT new.id, v.seq, v.tenant, v.name, v.key, v.by, v.at, v.payload, v.size
FROM runs AS old CROSS JOIN run_events AS v ON v.run = old.id CROSS JOIN runs AS new ON new.public_id = :new
WHERE old.public_id = :old
ON CONFLICT (run, seq) DO NOTHING;

-- name: copy_wakeups
-- Continue the numbers of a run's events in the run that replays it.
UPDATE runs SET wakeups = max(wakeups, (SELECT old.wakeups FROM runs AS old WHERE old.public_id = :old))
WHERE public_id = :new;

-- name: replace_run
-- Send later events of a run to the run that replays it.
UPDATE runs SET replaced_by = :new WHERE public_id = :old;

-- name: copy_owner
-- Give a run that replays another one the owner of that one.
UPDATE runs SET owner = (SELECT old.owner FROM runs AS old WHERE old.public_id = :old) WHERE public_id = :new;

-- name: move_children
-- Give the children of a run to the run that replays it.
UPDATE runs INDEXED BY runs_of_owner SET owner = :new WHERE owner = :old;

-- name: waiting_for
-- The runs that wait for the end of one of these runs.
SELECT w.run FROM json_each(:runs) AS n CROSS JOIN runs AS r ON r.id = n.value
CROSS JOIN waits AS w ON w.kind IN ('letter', 'run') AND w.subject = COALESCE(r.root, r.public_id) AND w.tenant = r.tenant;

-- name: any_run_wait
-- One row if a run waits for the end of another one.
SELECT 1 FROM waits WHERE kind IN ('letter', 'run') LIMIT 1;

-- name: open_attempt
-- One row if this attempt is still open.
SELECT 1 FROM entries WHERE run = ? AND idx = ? AND attempt = ? AND status = 'RUNNING';

-- name: clear_suspicion
-- Reset the deaths of a run that made progress.
UPDATE runs SET deaths = 0 WHERE id = ? AND deaths > 0;

-- name: set_version
-- Set the code version that executes the run.
UPDATE runs SET version = ? WHERE id = ?;

-- name: put_result
-- Insert or replace the result of a run. A result stays when the run is rolled back with its parent.
INSERT INTO results (run, tenant, output, failure) VALUES (?, ?, ?, ?)
ON CONFLICT (run) DO UPDATE SET output = COALESCE(excluded.output, output), failure = excluded.failure
WHERE excluded.output IS NOT NULL OR excluded.failure IS NOT NULL;

-- name: put_letter
-- Insert the dead letter of a run; a second one reopens the first.
INSERT INTO letters (public_id, tenant, run, run_id, workflow, status, code, stage, category, reason, message,
                     fingerprint, payload_hash, step, step_index, attempts, correlation_id, version, created_at, failed_at,
                     expires_at, replay_count, failed_replays)
SELECT ?, runs.tenant, runs.id, runs.public_id, runs.workflow, 'OPEN', ?, ?, ?, ?, ?,
       ?, ?, ?, ?, ?, runs.correlation_id, runs.version, ?, ?, ?,
       -- A run without a letter may have been replayed: the last replay is the one that failed.
       (SELECT COUNT(*) FROM replays AS p WHERE p.letter = runs.letter),
       EXISTS (SELECT 1 FROM replays AS p WHERE p.letter = runs.letter)
FROM runs WHERE runs.id = ?
ON CONFLICT (tenant, run) DO UPDATE SET
    failed_replays = failed_replays + (status <> 'OPEN'),
    status = 'OPEN', code = excluded.code, stage = excluded.stage, category = excluded.category,
    reason = excluded.reason, message = excluded.message, fingerprint = excluded.fingerprint, payload_hash = excluded.payload_hash,
    step = excluded.step, step_index = excluded.step_index, attempts = excluded.attempts,
    version = excluded.version, failed_at = excluded.failed_at, expires_at = excluded.expires_at,
    closed_at = NULL, closed_by = NULL, resolution = NULL;

-- name: put_letter_texts
-- Insert the texts of a letter, with copies of data that a purge of the run removes.
INSERT INTO letter_texts (letter, tenant, failure, input, options)
SELECT l.id, l.tenant, ?, COALESCE(inputs.input, ''), COALESCE(inputs.options, '')
FROM letters AS l LEFT JOIN inputs ON inputs.run = l.run
WHERE l.run = ?
ON CONFLICT (letter) DO UPDATE SET failure = excluded.failure, input = excluded.input, options = excluded.options;

-- name: move_letter
-- Set the status of a letter. The fence of its run protects it. Closing it twice changes nothing; a user reopens it.
UPDATE letters SET
    status = :status,
    closed_at = CASE WHEN :closed THEN :now END,
    closed_by = :by,
    resolution = :resolution,
    expires_at = COALESCE(:now + :expires_in, expires_at)
WHERE public_id IN (SELECT value FROM json_each(:these)) AND (closed_at IS NULL OR :status = 'OPEN');

-- name: move_letter_to_run
-- Move a letter to the run that replaces its first one.
UPDATE letters SET run = (SELECT id FROM runs WHERE public_id = :run), run_id = :run
WHERE public_id = :letter AND closed_at IS NULL;

-- name: reopen_run
-- Make an ended run due, with a new timeout, and with a letter that its end updates.
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
-- Replace the input or the options of a run.
UPDATE inputs SET input = COALESCE(:input, input), options = COALESCE(:options, options) WHERE run = :run;

-- name: supersede
-- Supersede entries. They are kept for the history, with the number of the replay.
UPDATE entries SET superseded = last.number + 1, limit_at = NULL
FROM (SELECT this.value AS run, (SELECT max(o.superseded) FROM entries AS o WHERE o.run = this.value) AS number
      FROM json_each(:these) AS this) AS last
WHERE entries.run = last.run AND entries.idx IN (SELECT value FROM json_each(:indexes)) AND entries.superseded = 0;

-- name: loosen
-- Mark entries that the replayed code need not call again.
UPDATE entries SET loose = 1
WHERE run IN (SELECT value FROM json_each(:these)) AND idx IN (SELECT value FROM json_each(:indexes));

-- name: put_replay
-- Insert a replay.
INSERT INTO replays (letter, number, tenant, mode, digest, request, run_id, by, reason, key, changes, at)
SELECT this.letter, 1 + COALESCE((SELECT max(p.number) FROM replays AS p WHERE p.letter = this.letter), 0), :tenant,
       :mode, :digest, :request, this.run_id, :by, :reason, :key, :changes, :now
FROM (SELECT json_extract(value, '$[0]') AS letter, json_extract(value, '$[1]') AS run_id FROM json_each(:these)) AS this;

-- name: count_replay
-- Count a replay in its letter.
UPDATE letters SET replay_count = replay_count + 1 WHERE public_id IN (SELECT value FROM json_each(:these));

-- name: end_replay
-- Record the outcome of the running replay.
UPDATE replays SET ended_at = :now, outcome = :outcome
WHERE letter IN (SELECT value FROM json_each(:these)) AND ended_at IS NULL;

-- name: insert_circuit_if_new
-- Insert a circuit at its first sample.
INSERT INTO circuits (tenant, key, status, generation, version, wave, next_wave_at, settings, changed_at)
VALUES (?, ?, 'CLOSED', 0, 1, 0, 0, ?, ?)
ON CONFLICT (tenant, key) DO NOTHING;

-- name: put_sample
-- Insert the result of a call that a circuit admitted; a repeat changes nothing.
INSERT INTO circuit_samples (run, idx, attempt, fence, tenant, key, generation, good, category, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run, idx, attempt, fence) DO NOTHING;

-- name: drop_probe
-- Remove a used permit.
DELETE FROM probes WHERE tenant = ? AND key = ? AND generation = ? AND run = ? AND fence = ? AND idx = ?;

-- name: put_audit
-- Insert a line of the audit log; a repeat changes nothing.
INSERT INTO audit (tenant, at, event, by, subject, letter, before, after, reason, token)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (token) DO NOTHING;
