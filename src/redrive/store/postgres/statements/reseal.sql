-- Rewriting sealed texts under another key. A text is exchanged only if it is still what was read.
-- Rows that somebody else has locked are left for the next time, so that nobody waits for this.

-- name: texts.inputs
-- A page of inputs of runs, behind a place.
SELECT tenant, run, input FROM redrive.inputs
WHERE run > :run ORDER BY run LIMIT :most;

-- name: swap.inputs
-- Exchange the texts of inputs of runs.
WITH n AS (
    SELECT n.* FROM unnest(
        CAST(:run AS bigint[]),
        CAST(:old_input AS text[]),
        CAST(:new_input AS text[]))
        AS n (run, old_input, new_input)
    JOIN redrive.inputs AS t ON t.run = n.run
    WHERE t.input IS NOT DISTINCT FROM n.old_input
    FOR UPDATE OF t SKIP LOCKED
)
UPDATE redrive.inputs AS t SET input = n.new_input
FROM n WHERE t.run = n.run RETURNING 1;

-- name: texts.results
-- A page of results of runs, behind a place.
SELECT tenant, run, output, failure FROM redrive.results
WHERE run > :run ORDER BY run LIMIT :most;

-- name: swap.results
-- Exchange the texts of results of runs.
WITH n AS (
    SELECT n.* FROM unnest(
        CAST(:run AS bigint[]),
        CAST(:old_output AS text[]), CAST(:old_failure AS text[]),
        CAST(:new_output AS text[]), CAST(:new_failure AS text[]))
        AS n (run, old_output, old_failure, new_output, new_failure)
    JOIN redrive.results AS t ON t.run = n.run
    WHERE t.output IS NOT DISTINCT FROM n.old_output
        AND t.failure IS NOT DISTINCT FROM n.old_failure
    FOR UPDATE OF t SKIP LOCKED
)
UPDATE redrive.results AS t SET output = n.new_output, failure = n.new_failure
FROM n WHERE t.run = n.run RETURNING 1;

-- name: texts.entries
-- A page of journal entries, behind a place.
SELECT tenant, run, idx, input, output, failure, heartbeat FROM redrive.entries
WHERE (run, idx) > (:run, :idx) ORDER BY run, idx LIMIT :most;

-- name: swap.entries
-- Exchange the texts of journal entries.
WITH n AS (
    SELECT n.* FROM unnest(
        CAST(:run AS bigint[]), CAST(:idx AS integer[]),
        CAST(:old_input AS text[]), CAST(:old_output AS text[]), CAST(:old_failure AS text[]), CAST(:old_heartbeat AS text[]),
        CAST(:new_input AS text[]), CAST(:new_output AS text[]), CAST(:new_failure AS text[]), CAST(:new_heartbeat AS text[]))
        AS n (run, idx, old_input, old_output, old_failure, old_heartbeat, new_input, new_output, new_failure, new_heartbeat)
    JOIN redrive.entries AS t ON t.run = n.run AND t.idx = n.idx
    WHERE t.input IS NOT DISTINCT FROM n.old_input
        AND t.output IS NOT DISTINCT FROM n.old_output
        AND t.failure IS NOT DISTINCT FROM n.old_failure
        AND t.heartbeat IS NOT DISTINCT FROM n.old_heartbeat
    FOR UPDATE OF t SKIP LOCKED
)
UPDATE redrive.entries AS t SET input = n.new_input, output = n.new_output, failure = n.new_failure, heartbeat = n.new_heartbeat
FROM n WHERE t.run = n.run AND t.idx = n.idx RETURNING 1;

-- name: texts.attempts
-- A page of tries that did not succeed, behind a place.
SELECT tenant, run, idx, attempt, fence, failure, decision FROM redrive.attempts
WHERE (run, idx, attempt, fence) > (:run, :idx, :attempt, :fence) ORDER BY run, idx, attempt, fence LIMIT :most;

-- name: swap.attempts
-- Exchange the texts of tries that did not succeed.
WITH n AS (
    SELECT n.* FROM unnest(
        CAST(:run AS bigint[]), CAST(:idx AS integer[]), CAST(:attempt AS integer[]), CAST(:fence AS bigint[]),
        CAST(:old_failure AS text[]), CAST(:old_decision AS text[]),
        CAST(:new_failure AS text[]), CAST(:new_decision AS text[]))
        AS n (run, idx, attempt, fence, old_failure, old_decision, new_failure, new_decision)
    JOIN redrive.attempts AS t ON t.run = n.run AND t.idx = n.idx AND t.attempt = n.attempt AND t.fence = n.fence
    WHERE t.failure IS NOT DISTINCT FROM n.old_failure
        AND t.decision IS NOT DISTINCT FROM n.old_decision
    FOR UPDATE OF t SKIP LOCKED
)
UPDATE redrive.attempts AS t SET failure = n.new_failure, decision = n.new_decision
FROM n WHERE t.run = n.run AND t.idx = n.idx AND t.attempt = n.attempt AND t.fence = n.fence RETURNING 1;

-- name: texts.letters
-- A page of dead letters, behind a place.
SELECT tenant, id, reason, failure, input, payload_hash FROM redrive.letters
WHERE id > :id ORDER BY id LIMIT :most;

-- name: swap.letters
-- Exchange the texts of dead letters.
WITH n AS (
    SELECT n.* FROM unnest(
        CAST(:id AS bigint[]),
        CAST(:old_reason AS text[]), CAST(:old_failure AS text[]), CAST(:old_input AS text[]), CAST(:old_payload_hash AS text[]),
        CAST(:new_reason AS text[]), CAST(:new_failure AS text[]), CAST(:new_input AS text[]), CAST(:new_payload_hash AS text[]))
        AS n (id, old_reason, old_failure, old_input, old_payload_hash, new_reason, new_failure, new_input, new_payload_hash)
    JOIN redrive.letters AS t ON t.id = n.id
    WHERE t.reason IS NOT DISTINCT FROM n.old_reason
        AND t.failure IS NOT DISTINCT FROM n.old_failure
        AND t.input IS NOT DISTINCT FROM n.old_input
        AND t.payload_hash IS NOT DISTINCT FROM n.old_payload_hash
    FOR UPDATE OF t SKIP LOCKED
)
UPDATE redrive.letters AS t SET reason = n.new_reason, failure = n.new_failure, input = n.new_input, payload_hash = n.new_payload_hash
FROM n WHERE t.id = n.id RETURNING 1;

-- name: texts.idempotency
-- A page of idempotency keys, behind a place.
SELECT tenant, tenant, key, hash FROM redrive.idempotency
WHERE (tenant, key) > (:tenant, :key) ORDER BY tenant, key LIMIT :most;

-- name: swap.idempotency
-- Exchange the texts of idempotency keys.
WITH n AS (
    SELECT n.* FROM unnest(
        CAST(:tenant AS text[]), CAST(:key AS text[]),
        CAST(:old_hash AS text[]),
        CAST(:new_hash AS text[]))
        AS n (tenant, key, old_hash, new_hash)
    JOIN redrive.idempotency AS t ON t.tenant = n.tenant AND t.key = n.key
    WHERE t.hash IS NOT DISTINCT FROM n.old_hash
    FOR UPDATE OF t SKIP LOCKED
)
UPDATE redrive.idempotency AS t SET hash = n.new_hash
FROM n WHERE t.tenant = n.tenant AND t.key = n.key RETURNING 1;

-- name: texts.replays
-- A page of replays, behind a place.
SELECT tenant, letter, number, request, changes, digest FROM redrive.replays
WHERE (letter, number) > (:letter, :number) ORDER BY letter, number LIMIT :most;

-- name: swap.replays
-- Exchange the texts of replays.
WITH n AS (
    SELECT n.* FROM unnest(
        CAST(:letter AS text[]), CAST(:number AS integer[]),
        CAST(:old_request AS text[]), CAST(:old_changes AS text[]), CAST(:old_digest AS text[]),
        CAST(:new_request AS text[]), CAST(:new_changes AS text[]), CAST(:new_digest AS text[]))
        AS n (letter, number, old_request, old_changes, old_digest, new_request, new_changes, new_digest)
    JOIN redrive.replays AS t ON t.letter = n.letter AND t.number = n.number
    WHERE t.request IS NOT DISTINCT FROM n.old_request
        AND t.changes IS NOT DISTINCT FROM n.old_changes
        AND t.digest IS NOT DISTINCT FROM n.old_digest
    FOR UPDATE OF t SKIP LOCKED
)
UPDATE redrive.replays AS t SET request = n.new_request, changes = n.new_changes, digest = n.new_digest
FROM n WHERE t.letter = n.letter AND t.number = n.number RETURNING 1;

-- name: texts.run_index
-- A page of what runs are searched by, behind a place. It is covered for no tenant.
SELECT '', field, value, run, value FROM redrive.run_index
WHERE (field, value, run) > (:field, :value, :run) ORDER BY field, value, run LIMIT :most;

-- name: swap.run_index
-- Exchange the texts of what runs are searched by.
WITH n AS (
    SELECT n.* FROM unnest(
        CAST(:field AS text[]), CAST(:value AS text[]), CAST(:run AS bigint[]),
        CAST(:old_value AS text[]),
        CAST(:new_value AS text[]))
        AS n (field, value, run, old_value, new_value)
    JOIN redrive.run_index AS t ON t.field = n.field AND t.value = n.value AND t.run = n.run
    FOR UPDATE OF t SKIP LOCKED
)
UPDATE redrive.run_index AS t SET value = n.new_value
FROM n WHERE t.field = n.field AND t.value = n.old_value AND t.run = n.run RETURNING 1;

-- name: texts.sets
-- A page of sets, behind a place.
SELECT tenant, id, request FROM redrive.sets
WHERE id > :id ORDER BY id LIMIT :most;

-- name: swap.sets
-- Exchange the texts of sets.
WITH n AS (
    SELECT n.* FROM unnest(
        CAST(:id AS bigint[]),
        CAST(:old_request AS text[]),
        CAST(:new_request AS text[]))
        AS n (id, old_request, new_request)
    JOIN redrive.sets AS t ON t.id = n.id
    WHERE t.request IS NOT DISTINCT FROM n.old_request
    FOR UPDATE OF t SKIP LOCKED
)
UPDATE redrive.sets AS t SET request = n.new_request
FROM n WHERE t.id = n.id RETURNING 1;

-- name: texts.set_items
-- A page of letters of sets, behind a place.
SELECT tenant, set_id, number, error FROM redrive.set_items
WHERE (set_id, number) > (:set_id, :number) ORDER BY set_id, number LIMIT :most;

-- name: swap.set_items
-- Exchange the texts of letters of sets.
WITH n AS (
    SELECT n.* FROM unnest(
        CAST(:set_id AS bigint[]), CAST(:number AS bigint[]),
        CAST(:old_error AS text[]),
        CAST(:new_error AS text[]))
        AS n (set_id, number, old_error, new_error)
    JOIN redrive.set_items AS t ON t.set_id = n.set_id AND t.number = n.number
    WHERE t.error IS NOT DISTINCT FROM n.old_error
    FOR UPDATE OF t SKIP LOCKED
)
UPDATE redrive.set_items AS t SET error = n.new_error
FROM n WHERE t.set_id = n.set_id AND t.number = n.number RETURNING 1;

-- name: texts.messages
-- A page of messages, behind a place.
SELECT tenant, id, payload FROM redrive.messages
WHERE id > :id ORDER BY id LIMIT :most;

-- name: swap.messages
-- Exchange the texts of messages.
WITH n AS (
    SELECT n.* FROM unnest(
        CAST(:id AS bigint[]),
        CAST(:old_payload AS text[]),
        CAST(:new_payload AS text[]))
        AS n (id, old_payload, new_payload)
    JOIN redrive.messages AS t ON t.id = n.id
    WHERE t.payload IS NOT DISTINCT FROM n.old_payload
    FOR UPDATE OF t SKIP LOCKED
)
UPDATE redrive.messages AS t SET payload = n.new_payload
FROM n WHERE t.id = n.id RETURNING 1;

-- name: texts.deliveries
-- A page of deliveries of messages, behind a place.
SELECT tenant, message, sink, error FROM redrive.deliveries
WHERE (message, sink) > (:message, :sink) ORDER BY message, sink LIMIT :most;

-- name: swap.deliveries
-- Exchange the texts of deliveries of messages.
WITH n AS (
    SELECT n.* FROM unnest(
        CAST(:message AS bigint[]), CAST(:sink AS text[]),
        CAST(:old_error AS text[]),
        CAST(:new_error AS text[]))
        AS n (message, sink, old_error, new_error)
    JOIN redrive.deliveries AS t ON t.message = n.message AND t.sink = n.sink
    WHERE t.error IS NOT DISTINCT FROM n.old_error
    FOR UPDATE OF t SKIP LOCKED
)
UPDATE redrive.deliveries AS t SET error = n.new_error
FROM n WHERE t.message = n.message AND t.sink = n.sink RETURNING 1;

-- name: texts.audit
-- A page of lines of the audit log, behind a place.
SELECT tenant, id, before, after FROM redrive.audit
WHERE id > :id ORDER BY id LIMIT :most;

-- name: texts.access_answers
-- A page of remembered answers, behind a place.
SELECT tenant, tenant, key, body FROM redrive.access_answers
WHERE (tenant, key) > (:tenant, :key) ORDER BY tenant, key LIMIT :most;

-- name: swap.access_answers
-- Exchange the texts of remembered answers.
WITH n AS (
    SELECT n.* FROM unnest(
        CAST(:tenant AS text[]), CAST(:key AS text[]),
        CAST(:old_body AS text[]),
        CAST(:new_body AS text[]))
        AS n (tenant, key, old_body, new_body)
    JOIN redrive.access_answers AS t ON t.tenant = n.tenant AND t.key = n.key
    WHERE t.body IS NOT DISTINCT FROM n.old_body
    FOR UPDATE OF t SKIP LOCKED
)
UPDATE redrive.access_answers AS t SET body = n.new_body
FROM n WHERE t.tenant = n.tenant AND t.key = n.key RETURNING 1;

-- name: texts.notices
-- A page of facts to be told, behind a place.
SELECT tenant, id, notice FROM redrive.notices
WHERE id > :id ORDER BY id LIMIT :most;

-- name: swap.notices
-- Exchange the texts of facts to be told.
WITH n AS (
    SELECT n.* FROM unnest(
        CAST(:id AS bigint[]),
        CAST(:old_notice AS text[]),
        CAST(:new_notice AS text[]))
        AS n (id, old_notice, new_notice)
    JOIN redrive.notices AS t ON t.id = n.id
    WHERE t.notice IS NOT DISTINCT FROM n.old_notice
    FOR UPDATE OF t SKIP LOCKED
)
UPDATE redrive.notices AS t SET notice = n.new_notice
FROM n WHERE t.id = n.id RETURNING 1;

-- name: texts.notifications
-- A page of what was told, behind a place.
SELECT tenant, id, content FROM redrive.notifications
WHERE id > :id ORDER BY id LIMIT :most;

-- name: swap.notifications
-- Exchange the texts of what was told.
WITH n AS (
    SELECT n.* FROM unnest(
        CAST(:id AS bigint[]),
        CAST(:old_content AS text[]),
        CAST(:new_content AS text[]))
        AS n (id, old_content, new_content)
    JOIN redrive.notifications AS t ON t.id = n.id
    WHERE t.content IS NOT DISTINCT FROM n.old_content
    FOR UPDATE OF t SKIP LOCKED
)
UPDATE redrive.notifications AS t SET content = n.new_content
FROM n WHERE t.id = n.id RETURNING 1;

-- name: texts.notify_rules
-- A page of rules about notifications, behind a place.
SELECT tenant, tenant, workflow, rule FROM redrive.notify_rules
WHERE (tenant, workflow) > (:tenant, :workflow) ORDER BY tenant, workflow LIMIT :most;

-- name: swap.notify_rules
-- Exchange the texts of rules about notifications.
WITH n AS (
    SELECT n.* FROM unnest(
        CAST(:tenant AS text[]), CAST(:workflow AS text[]),
        CAST(:old_rule AS text[]),
        CAST(:new_rule AS text[]))
        AS n (tenant, workflow, old_rule, new_rule)
    JOIN redrive.notify_rules AS t ON t.tenant = n.tenant AND t.workflow = n.workflow
    WHERE t.rule IS NOT DISTINCT FROM n.old_rule
    FOR UPDATE OF t SKIP LOCKED
)
UPDATE redrive.notify_rules AS t SET rule = n.new_rule
FROM n WHERE t.tenant = n.tenant AND t.workflow = n.workflow RETURNING 1;
