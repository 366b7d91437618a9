-- Rewriting sealed texts under another key. A text is exchanged only if it is still what was read.

-- name: texts.inputs
-- A page of inputs of runs, behind a place.
SELECT tenant, run, input FROM inputs
WHERE run > ? ORDER BY run LIMIT ?;

-- name: swap.inputs
-- Exchange the texts of inputs of runs.
UPDATE inputs SET input = ?
WHERE run = ? AND input IS ?;

-- name: texts.results
-- A page of results of runs, behind a place.
SELECT tenant, run, output, failure FROM results
WHERE run > ? ORDER BY run LIMIT ?;

-- name: swap.results
-- Exchange the texts of results of runs.
UPDATE results SET output = ?, failure = ?
WHERE run = ? AND output IS ? AND failure IS ?;

-- name: texts.entries
-- A page of journal entries, behind a place.
SELECT tenant, run, idx, input, output, failure, heartbeat FROM entries
WHERE (run, idx) > (?, ?) ORDER BY run, idx LIMIT ?;

-- name: swap.entries
-- Exchange the texts of journal entries.
UPDATE entries SET input = ?, output = ?, failure = ?, heartbeat = ?
WHERE run = ? AND idx = ? AND input IS ? AND output IS ? AND failure IS ? AND heartbeat IS ?;

-- name: texts.attempts
-- A page of tries that did not succeed, behind a place.
SELECT tenant, run, idx, attempt, fence, failure, decision FROM attempts
WHERE (run, idx, attempt, fence) > (?, ?, ?, ?) ORDER BY run, idx, attempt, fence LIMIT ?;

-- name: swap.attempts
-- Exchange the texts of tries that did not succeed.
UPDATE attempts SET failure = ?, decision = ?
WHERE run = ? AND idx = ? AND attempt = ? AND fence = ? AND failure IS ? AND decision IS ?;

-- name: texts.letters
-- A page of dead letters, behind a place.
SELECT tenant, id, reason, failure, input, payload_hash FROM letters
WHERE id > ? ORDER BY id LIMIT ?;

-- name: swap.letters
-- Exchange the texts of dead letters.
UPDATE letters SET reason = ?, failure = ?, input = ?, payload_hash = ?
WHERE id = ? AND reason IS ? AND failure IS ? AND input IS ? AND payload_hash IS ?;

-- name: texts.idempotency
-- A page of idempotency keys, behind a place.
SELECT tenant, tenant, key, hash FROM idempotency
WHERE (tenant, key) > (?, ?) ORDER BY tenant, key LIMIT ?;

-- name: swap.idempotency
-- Exchange the texts of idempotency keys.
UPDATE idempotency SET hash = ?
WHERE tenant = ? AND key = ? AND hash IS ?;

-- name: texts.replays
-- A page of replays, behind a place.
SELECT tenant, letter, number, request, changes, digest FROM replays
WHERE (letter, number) > (?, ?) ORDER BY letter, number LIMIT ?;

-- name: swap.replays
-- Exchange the texts of replays.
UPDATE replays SET request = ?, changes = ?, digest = ?
WHERE letter = ? AND number = ? AND request IS ? AND changes IS ? AND digest IS ?;

-- name: texts.run_index
-- A page of what runs are searched by, behind a place. It is covered for no tenant.
SELECT '', field, value, run, value FROM run_index
WHERE (field, value, run) > (?, ?, ?) ORDER BY field, value, run LIMIT ?;

-- name: swap.run_index
-- Exchange the texts of what runs are searched by.
UPDATE run_index SET value = ?
WHERE field = ? AND value = ? AND run = ? AND value IS ?;

-- name: texts.sets
-- A page of sets, behind a place.
SELECT tenant, id, request FROM sets
WHERE id > ? ORDER BY id LIMIT ?;

-- name: swap.sets
-- Exchange the texts of sets.
UPDATE sets SET request = ?
WHERE id = ? AND request IS ?;

-- name: texts.set_items
-- A page of letters of sets, behind a place.
SELECT tenant, set_id, number, error FROM set_items
WHERE (set_id, number) > (?, ?) ORDER BY set_id, number LIMIT ?;

-- name: swap.set_items
-- Exchange the texts of letters of sets.
UPDATE set_items SET error = ?
WHERE set_id = ? AND number = ? AND error IS ?;

-- name: texts.messages
-- A page of messages, behind a place.
SELECT tenant, id, payload FROM messages
WHERE id > ? ORDER BY id LIMIT ?;

-- name: swap.messages
-- Exchange the texts of messages.
UPDATE messages SET payload = ?
WHERE id = ? AND payload IS ?;

-- name: texts.deliveries
-- A page of deliveries of messages, behind a place.
SELECT tenant, message, sink, error FROM deliveries
WHERE (message, sink) > (?, ?) ORDER BY message, sink LIMIT ?;

-- name: swap.deliveries
-- Exchange the texts of deliveries of messages.
UPDATE deliveries SET error = ?
WHERE message = ? AND sink = ? AND error IS ?;

-- name: texts.audit
-- A page of lines of the audit log, behind a place.
SELECT tenant, id, before, after FROM audit
WHERE id > ? ORDER BY id LIMIT ?;

-- name: texts.access_answers
-- A page of remembered answers, behind a place.
SELECT tenant, tenant, key, body FROM access_answers
WHERE (tenant, key) > (?, ?) ORDER BY tenant, key LIMIT ?;

-- name: swap.access_answers
-- Exchange the texts of remembered answers.
UPDATE access_answers SET body = ?
WHERE tenant = ? AND key = ? AND body IS ?;

-- name: texts.notices
-- A page of facts to be told, behind a place.
SELECT tenant, id, notice FROM notices
WHERE id > ? ORDER BY id LIMIT ?;

-- name: swap.notices
-- Exchange the texts of facts to be told.
UPDATE notices SET notice = ?
WHERE id = ? AND notice IS ?;

-- name: texts.notifications
-- A page of what was told, behind a place.
SELECT tenant, id, content FROM notifications
WHERE id > ? ORDER BY id LIMIT ?;

-- name: swap.notifications
-- Exchange the texts of what was told.
UPDATE notifications SET content = ?
WHERE id = ? AND content IS ?;

-- name: texts.notify_rules
-- A page of rules about notifications, behind a place.
SELECT tenant, tenant, workflow, rule FROM notify_rules
WHERE (tenant, workflow) > (?, ?) ORDER BY tenant, workflow LIMIT ?;

-- name: swap.notify_rules
-- Exchange the texts of rules about notifications.
UPDATE notify_rules SET rule = ?
WHERE tenant = ? AND workflow = ? AND rule IS ?;
