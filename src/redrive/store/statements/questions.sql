-- Questions to people, which users see as tasks.

-- name: questions
-- A page of questions.
SELECT q.id, q.public_id, q.tenant, q.run, q.idx, q.run_id, q.workflow, q.key, q.kind, q.status, q.role, q.people,
       q.apart_from, q.question, q.shown, q.schema, q.created_at, q.due_at, q.next_at, q.plan, q.late_at, q.notify,
       q.owner, q.answered_at, q.answered_by, q.answer, q.note, q.replaces
FROM redrive.questions AS q
WHERE {conditions}
ORDER BY q.id {order} LIMIT CAST(:most AS bigint);

-- name: questions.tenant
-- Questions of a tenant.
q.tenant = :tenant;

-- name: questions.workflow
-- Questions of one workflow.
q.workflow = :workflow;

-- name: questions.workflows
-- Questions of some workflows.
q.workflow = ANY (CAST(:workflows AS text[]));

-- name: questions.run_id
-- Questions of one run.
q.run_id = :run_id;

-- name: questions.open
-- Questions that wait for an answer.
q.status = 'OPEN';

-- name: questions.closed
-- Questions that wait for no answer any more.
q.status <> 'OPEN';

-- name: questions.status
-- Questions in one state.
q.status = :status;

-- name: questions.owner
-- Questions that are assigned to a user.
q.owner = :owner;

-- name: questions.person
-- Questions that are assigned to a user, or that name the user.
(q.owner = :person OR q.people LIKE :quoted ESCAPE '\');

-- name: questions.roles
-- Questions that a user with one of these roles may answer.
q.role = ANY (CAST(:roles AS text[]));

-- name: questions.late
-- Questions of which a step is past: a reminder or an escalation.
q.late_at IS NOT NULL;

-- name: questions.below
-- Questions older than a position.
q.id < :below;

-- name: questions.above
-- Questions newer than a position.
q.id > :above;

-- name: question
-- One question.
SELECT q.id, q.public_id, q.tenant, q.run, q.idx, q.run_id, q.workflow, q.key, q.kind, q.status, q.role, q.people,
       q.apart_from, q.question, q.shown, q.schema, q.created_at, q.due_at, q.next_at, q.plan, q.late_at, q.notify,
       q.owner, q.answered_at, q.answered_by, q.answer, q.note, q.replaces
FROM redrive.questions AS q
WHERE q.public_id = :public_id AND q.tenant = COALESCE(CAST(:tenant AS text), q.tenant);

-- name: open_questions
-- The number of open questions of a tenant, and since when the first of them is open.
SELECT COUNT(*), MIN(found.created_at) FROM (
    SELECT q.created_at FROM redrive.questions AS q
    WHERE q.status = 'OPEN' AND q.tenant = COALESCE(CAST(:tenant AS text), q.tenant)
      AND (CAST(:some AS boolean) = false OR q.workflow = ANY (CAST(:workflows AS text[])))
    ORDER BY q.id LIMIT CAST(:most AS bigint)) AS found;

-- name: lock_question_run
-- The run of a question. Locked first, as by all who wake a run or end its waits.
SELECT r.id FROM redrive.questions AS q JOIN redrive.runs AS r ON r.id = q.run
WHERE q.public_id = :public_id FOR NO KEY UPDATE OF r;

-- name: answer_question
-- Record an answer that came in time. The first one wins.
UPDATE redrive.questions SET status = 'ANSWERED', answered_at = CAST(:now AS bigint), answered_by = :by, answer = :answer,
    note = :note, next_at = NULL
WHERE public_id = :public_id AND status = 'OPEN' AND kind = 'ask' AND (due_at IS NULL OR due_at >= CAST(:now AS bigint))
RETURNING run;

-- name: assign_question
-- Assign an open question to a user; NULL leaves it unassigned.
UPDATE redrive.questions SET owner = :owner WHERE public_id = :public_id AND status = 'OPEN' RETURNING run;

-- name: asked_question
-- The wake-ups and the fence of a run, and the answer of one of its questions, if there is one.
SELECT r.wakeups, r.fence, q.answered_by, q.answered_at, q.answer, q.note, r.tenant
FROM redrive.runs AS r
LEFT JOIN redrive.questions AS q ON q.run = r.id AND q.idx = CAST(:idx AS integer) AND q.status = 'ANSWERED'
WHERE r.id = CAST(:run AS bigint);

-- name: due_questions
-- Open questions of which a step is due.
SELECT q.id, q.public_id, q.tenant, q.run, q.idx, q.run_id, q.workflow, q.key, q.kind, q.status, q.role, q.people,
       q.apart_from, q.question, q.shown, q.schema, q.created_at, q.due_at, q.next_at, q.plan, q.late_at, q.notify,
       q.owner, q.answered_at, q.answered_by, q.answer, q.note, q.replaces
FROM redrive.questions AS q /* INDEXED BY questions_next */
WHERE q.next_at IS NOT NULL AND q.status = 'OPEN' AND q.next_at <= :now
ORDER BY q.next_at LIMIT CAST(:most AS bigint);

-- name: advance_question
-- Record that a step of an open question is done, unless another process did it first.
UPDATE redrive.questions SET role = :role, people = :people, plan = :plan, next_at = :next_at,
    late_at = COALESCE(late_at, CAST(:now AS bigint))
WHERE public_id = :public_id AND status = 'OPEN' AND next_at = CAST(:was_due_at AS bigint)
RETURNING run;

-- name: delete_old_questions
-- Remove questions that began before a time and whose runs are purged.
DELETE FROM redrive.questions WHERE id = ANY (ARRAY(
    SELECT q.id FROM redrive.questions AS q
    WHERE q.created_at <= CAST(:before AS bigint)
      AND NOT EXISTS (SELECT 1 FROM redrive.runs AS r WHERE r.id = q.run AND r.purged_at IS NULL)
    ORDER BY q.created_at LIMIT CAST(:most AS bigint) FOR UPDATE OF q SKIP LOCKED)) RETURNING id;
