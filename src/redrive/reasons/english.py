"""The English catalogue of reasons."""

from __future__ import annotations

from redrive.reasons.codes import Catalogue, ReasonCode


def _plural_form(number: int) -> int:
    return 0 if number == 1 else 1


_TEXTS: dict[str, str] = {
    # text that has no code
    ReasonCode.TEXT: "{text}",
    # why a step, a run or a rollback failed
    ReasonCode.STEP_FAILED: (
        "step {step!r} failed once ({category}): {why}|step {step!r} failed {n} times ({category}): {why}"
    ),
    ReasonCode.STEP_NOT_UNDONE: "step {step!r} could not be rolled back: {why}",
    ReasonCode.WORKFLOW_RAISED: "workflow {workflow!r} raised {error_type}: {message}",
    ReasonCode.WORKFLOW_INPUT_UNUSABLE: "the input of workflow {workflow!r} cannot be used: {why}",
    ReasonCode.STEP_INPUT_UNUSABLE: "the recorded input of step {step!r} cannot be used: {why}",
    ReasonCode.RUN_UNREADABLE: "the stored data of this run cannot be read: {why}",
    ReasonCode.FAILURE_UNREADABLE: "the failure cannot be shown: {why}",
    ReasonCode.WORKERS_DIED: "{n} worker crashed while executing this run|{n} workers crashed while executing this run",
    ReasonCode.STEP_REPLAYED_ALONE: ("only step {step!r} was replayed: retry the run with from_failed to continue it"),
    ReasonCode.DEADLINE_PASSED: "the run passed its deadline",
    ReasonCode.RUN_ROLLED_BACK: "the run was rolled back",
    ReasonCode.RUN_CANCELLED_BY: "cancelled by {by}[: {comment}]",
    ReasonCode.CODE_CHANGED: (
        "the journal contains {recorded}, but the code now calls {asked}: the workflow function changed during this run"
    ),
    ReasonCode.JOURNAL_CALLS: "{calls:list}",
    ReasonCode.JOURNAL_CALL: "{name!r}[ (call {call})][ in branch {branch}]",
    ReasonCode.JOURNAL_NOTHING: "nothing more",
    ReasonCode.COMPENSATION_UNKNOWN: (
        "no compensation is registered for {steps:quoted}: start a worker whose code has it"
    ),
    ReasonCode.COMPENSATION_MISSING: (
        "compensation {compensation!r} of step {step!r} is not registered: start a worker whose code has it"
    ),
    ReasonCode.STORE_REFUSED_DATA: "the store refused the data: {why}",
    ReasonCode.STEP_CUT_SHORT: (
        "step {step!r} runs at most once and was interrupted: it may have happened. Check, then skip it or enter its "
        "result"
    ),
    ReasonCode.CIRCUIT_OPEN: "circuit {circuit!r} is open, so the step was not called",
    ReasonCode.PAYLOAD_TOO_LARGE: (
        "{what} takes {size}, more than the limit of {limit}: store it elsewhere and pass a reference, or raise "
        "REDRIVE_MAX_PAYLOAD"
    ),
    # how the engine closed a dead letter
    ReasonCode.REPLAY_SUCCEEDED: "replayed",
    ReasonCode.STEP_REPLAY_SUCCEEDED: "replayed in part",
    ReasonCode.ROLLED_BACK: "rolled_back",
    ReasonCode.RUN_CANCELLED: "its run was cancelled",
    ReasonCode.LETTER_EXPIRED: "expired",
    # what was decided after an attempt
    ReasonCode.RETRY_SCHEDULED: (
        "attempt {attempt}[ of {of}][, HTTP {status_code}], {cause}[, waiting {delay:duration}][, "
        "Retry-After {retry_after:duration}][ + {jitter:duration} jitter][, next at {next_at:clock}]"
    ),
    ReasonCode.NOT_RETRIED: "attempt {attempt}[ of {of}][, HTTP {status_code}], {cause}, not retried: {why}",
    ReasonCode.ATTEMPT_SUCCEEDED: "attempt {attempt}, succeeded",
    ReasonCode.ATTEMPT_CANCELLED: "attempt {attempt}: cancelled",
    ReasonCode.ATTEMPT_LOST: "attempt {attempt}: the worker crashed; the attempt is repeated under the same number",
    ReasonCode.ATTEMPT_RELEASED: (
        "attempt {attempt}: the worker stopped; the attempt is repeated under the same number"
    ),
    ReasonCode.ATTEMPT_INTERRUPTED: "attempt {attempt}: interrupted; it may have happened and is not repeated",
    ReasonCode.ATTEMPT_ENDED: "attempt {attempt}: {end}",
    ReasonCode.CIRCUIT_WAS_OPEN: "not called: the circuit was open; waiting does not use up attempts",
    ReasonCode.TIMED_OUT: "timed out",
    ReasonCode.NETWORK_ERROR: "network error",
    ReasonCode.RATE_LIMITED: "rate limited",
    ReasonCode.SERVER_ERROR: "server error",
    ReasonCode.DEPENDENCY_UNAVAILABLE: "dependency unavailable",
    ReasonCode.INVALID_DATA: "invalid data",
    ReasonCode.NOT_AUTHORISED: "not authorised",
    ReasonCode.NOT_FOUND: "not found",
    ReasonCode.CLIENT_ERROR: "refused by the other service",
    ReasonCode.CONFIGURATION_MISSING: "configuration missing",
    ReasonCode.INTERNAL_ERROR: "error in the code",
    ReasonCode.UNCLASSIFIED_ERROR: "unclassified error",
    # why an attempt is not repeated
    ReasonCode.RETRIES_EXHAUSTED: "retries are exhausted",
    ReasonCode.NO_RETRY_ALLOWED: "the policy does not allow retries",
    ReasonCode.RETRY_TIME_EXCEEDED: (
        "another attempt would exceed the limit of {limit:duration} since the first attempt"
    ),
    ReasonCode.STEP_AT_MOST_ONCE: "the step runs at most once",
    ReasonCode.RAISED_NON_RETRYABLE: "the error was raised as NonRetryable",
    ReasonCode.IN_NEVER_RETRY_ON: "the policy lists the error in never_retry_on",
    ReasonCode.NOT_IN_RETRY_ON: "the policy does not list the error in retry_on",
    ReasonCode.CATEGORY_NOT_RETRIED: "failures of category {category} are not retried",
    ReasonCode.RUN_ENDING: "the run is ending",
    # why a circuit changed
    ReasonCode.CIRCUIT_PROBE_FAILED: "a probe failed: {category}",
    ReasonCode.CIRCUIT_FAILURES: (
        "{n} failure within {window:duration}, the last one: {category}|{n} failures within "
        "{window:duration}, the last one: {category}"
    ),
    ReasonCode.CIRCUIT_OPEN_TIME_OVER: "it was open for {open_for:duration}",
    ReasonCode.CIRCUIT_PROBE_SUCCEEDED: "a probe succeeded",
    # what follows a failure, in notifications
    ReasonCode.NEXT_ATTEMPT: "attempt {attempt} will follow",
    ReasonCode.NEXT_UNDONE: "the run was rolled back; there is nothing to do",
    ReasonCode.NEXT_DECISION: "the dead letter needs a decision: replay it, edit its input, resolve or ignore it",
    ReasonCode.NEXT_WORKFLOW: (
        "the failure is raised in the workflow; if the workflow does not handle it, the run fails"
    ),
    ReasonCode.NEXT_PROBE: "calls wait until a probe shows that the dependency is available",
    # what a dry run warns of
    ReasonCode.VERSION_CHANGED: (
        "the code has changed since this run: it was recorded with version {version}, the newest is {newest}"
    ),
    ReasonCode.WORKFLOW_NEVER_REGISTERED: (
        "workflow {workflow!r} is not registered: nothing runs until a worker registers it"
    ),
    ReasonCode.WORKFLOW_HAS_NO_WORKER: (
        "no live worker has workflow {workflow!r}: the replay is refused until one has it"
    ),
    ReasonCode.RESULTS_FROM_ORIGINAL_INPUT: "finished steps used the original input and are not repeated",
    ReasonCode.SAME_IDEMPOTENCY_KEY: (
        "{names:list} keeps its old idempotency key, so the other service may repeat its old answer: set "
        "new_operation to send a new key|{names:list} keep their old idempotency keys, so the other services may "
        "repeat their old answers: set new_operation to send new keys"
    ),
    ReasonCode.NEW_IDEMPOTENCY_KEYS: (
        "other services will get new idempotency keys and treat every call as new: a customer could be charged twice"
    ),
    ReasonCode.STEP_MAY_HAVE_HAPPENED: "{step} was interrupted: it may have happened, so check first",
    ReasonCode.STEP_ACTS_AGAIN: "{step} succeeded before and will call external services again: {effect}",
    # why a saved view is refused
    ReasonCode.VIEW_LIST_UNKNOWN: "{given} has no saved views: give one of {lists:list}",
    ReasonCode.TOO_MANY_SHARED_VIEWS: "tenant {tenant!r} already shares {n} views of this list: remove one first",
    ReasonCode.TOO_MANY_VIEWS: "you already have {n} views of this list: remove one first",
    ReasonCode.SHARED_VIEW_NOT_FOUND: "this list has no shared view {name}",
    ReasonCode.VIEW_NOT_FOUND: "this list has no view {name}",
    ReasonCode.VIEW_NAME_INVALID: (
        "{given} cannot be the name of a view: use 1 to {longest} printable characters without a slash"
    ),
    ReasonCode.VIEW_FILTER_TOO_LONG: (
        "the filter of the view is longer than {longest:,} characters: use fewer conditions"
    ),
    ReasonCode.VIEW_FIELD_UNKNOWN: "{list} cannot be filtered by {names}: use {known:list}",
    ReasonCode.VIEW_FILTER_EMPTY: "the filter of the view is empty: filter the list first, for example by code=timeout",
    # why a decision on many dead letters is refused
    ReasonCode.SET_NOT_FOUND: "bulk action {id} does not exist",
    ReasonCode.SET_DONE: "bulk action {id} is finished: all its dead letters were processed",
    ReasonCode.SET_STOPPED: "bulk action {id} was stopped by {by}: start another one for the rest",
    ReasonCode.SET_UNREADABLE: "bulk action {id} cannot be carried out here: {why}",
    ReasonCode.SET_ITEM_STATUS_UNKNOWN: "{given} is not a status of a bulk action's item: use {known:list}",
    ReasonCode.RATE_INVALID: (
        "{given} is not a rate: give a whole number per second, minute or hour, such as 50/s or 600/m"
    ),
    ReasonCode.RATE_OUT_OF_RANGE: (
        "{given:,} is not a valid rate: give 1 to {most:,} per second, minute or hour; to process nothing, pause the "
        "bulk action"
    ),
    ReasonCode.LETTERS_NOT_SELECTED: "no dead letter is selected: select some, or select all that match",
    ReasonCode.LETTER_IDS_NEEDED: "give a LetterFilter or a list of ids, not {given}",
    ReasonCode.LETTER_CHOICE_NEEDED: "give either a filter or ids; an empty filter means all open letters",
    ReasonCode.INDEX_INVALID: "index takes `field:value`",
    ReasonCode.LETTER_IDS_TOO_MANY: "{count:,} ids were given: give 1 to {most:,} ids, or a LetterFilter",
    ReasonCode.LETTER_ID_INVALID: "{id} is not the id of a dead letter",
    ReasonCode.ONLY_OPEN_LETTERS: "only open dead letters can be processed, but the filter selects {statuses:list}",
    ReasonCode.TENANTS_DIFFER: "the filter names tenant {filter!r}, but the call names {call!r}",
    ReasonCode.UNEXPECTED_ERROR: (
        "unexpected error while replaying: {error_type}: {message}. Details are in the server log"
    ),
    # why a decision on one dead letter or run is refused
    ReasonCode.LETTER_NOT_FOUND: "dead letter {id} does not exist",
    ReasonCode.LETTER_GONE: "dead letter {id} does not exist, or its run was purged",
    ReasonCode.COMPENSATION_NOT_FOUND: "the rollback of this run has no such step",
    ReasonCode.LETTER_OR_RUN_NOT_FOUND: "a dead letter or run {id} does not exist",
    ReasonCode.RUN_NOT_FOUND: "run {id} does not exist",
    ReasonCode.LETTER_RUN_PURGED: "the run of {id} was purged: you can no longer decide about it",
    ReasonCode.RUN_PURGED: "run {run} was purged: its input and steps are gone, so it cannot be replayed",
    ReasonCode.RUN_SEALED: "run {run} cannot be replayed from here: {why}",
    ReasonCode.RUN_REPLAYED_AS: "run {run} was replayed as {other}: decide about that run",
    ReasonCode.LETTER_REPLAYING: "{id} is already being replayed by another decision: wait until that ends",
    ReasonCode.LETTER_RESOLVED: "{id} is resolved ({how}): see its run {run}",
    ReasonCode.LETTER_CLOSED: "{id} was closed ({status}: {how}): retry its run {run} instead",
    ReasonCode.LETTER_CLOSED_BEFORE: "{id} is already {status} ({how}): to add something, write a comment",
    ReasonCode.LETTER_NOT_OPEN: "{id} is {status} and cannot be closed as {wanted}",
    ReasonCode.NO_REASON_GIVEN: "no reason was given",
    ReasonCode.KEY_USED: "key {key!r} was already used for another decision on {id}",
    ReasonCode.WORKFLOW_UNREGISTERED: (
        "workflow {workflow!r} was never registered, so it would not run: start a worker that has it, then try again"
    ),
    ReasonCode.WORKFLOW_ABANDONED: (
        "no live worker has workflow {workflow!r} any more, so it would not run: start a worker that has it, then "
        "try again"
    ),
    ReasonCode.CODE_UNREGISTERED: (
        "{kind} {name!r} was never registered, so a value for it cannot be checked: start a worker that has it"
    ),
    ReasonCode.RUN_ENDED: "run {run} has ended as {status} and can no longer be cancelled",
    ReasonCode.RUN_BEING_UNDONE: (
        "run {run} is being rolled back and cannot be cancelled: only a part of it would be rolled back"
    ),
    ReasonCode.RUN_CONFIRMING: (
        "run {run} is confirming its reservations and can no longer be cancelled: it can only continue"
    ),
    # why a replay does not fit its run
    ReasonCode.NOT_REPLAYABLE: "run {run} is {status}: only a failed or partial run can be replayed",
    ReasonCode.ROLLED_BACK_ALREADY: "run {run} is {status}: it was already rolled back",
    ReasonCode.NOT_ROLLED_BACK: "run {run} is {status}: only a failed or partial run can be rolled back",
    ReasonCode.ROLLBACK_STOPPED: (
        "the rollback of run {run} stopped at {compensation!r} of step {step!r}: resume the rollback"
    ),
    ReasonCode.PIVOT_PASSED: (
        "run {run} passed its point of no return, step {step!r}, and cannot be rolled back: replay it"
    ),
    ReasonCode.RUN_UNDONE: (
        "the steps of run {run} were rolled back, so there is nothing to continue from: start it over with FULL, as "
        "a new operation"
    ),
    ReasonCode.ROLLBACK_NEEDS_DECISION: (
        "the rollback of run {run} stopped at {compensation!r} of step {step!r}: resume it (FROM_FAILED), skip it "
        "(SKIP) or mark it as done (COMPLETE), without changing the input"
    ),
    ReasonCode.ROLLBACK_KEEPS_KEYS: (
        "a rollback keeps its idempotency keys: with new keys something could be undone twice"
    ),
    ReasonCode.NOT_UNDONE_YET: "run {run} is not rolled back yet: start it over when it is",
    ReasonCode.NEW_OPERATION_NEEDED: (
        "the steps of run {run} were rolled back, and other services would treat the same calls as repeats: set "
        "new_operation to do them again"
    ),
    ReasonCode.ROLLBACK_RUNNING: "run {run} is being rolled back: wait until the rollback ends or stops",
    ReasonCode.OTHER_COMPENSATION_NEXT: "the next compensation is {compensation!r} of step {step!r}, not {given}",
    ReasonCode.STEP_CONFIRMED: (
        "{confirmation!r} has confirmed a step of this run, so the run can only continue: use FROM_FAILED, SKIP or "
        "COMPLETE, or start it over with FULL as a new operation"
    ),
    ReasonCode.FROM_STEP_NEEDED: "FROM_STEP needs the index of the step to begin at: set from_step",
    ReasonCode.FROM_STEP_UNUSED: "from_step can be used with mode FROM_STEP only, not with {mode}",
    ReasonCode.FROM_STEP_INVALID: "from_step must be the index of a step, not {given}",
    ReasonCode.FROM_STEP_UNKNOWN: "the run has no step with index {index}; the recorded steps are {steps}",
    ReasonCode.INPUT_AND_PATCH: "send the whole input or a patch, not both",
    ReasonCode.INPUT_KEPT: "{mode} keeps the input: to change it, use FROM_FAILED, FROM_STEP or FULL",
    ReasonCode.OUTPUT_UNUSED: "output is the result of the failed step: it can be used with SKIP and COMPLETE only",
    ReasonCode.UNDO_UNUSED: "a compensation can be named with SKIP and COMPLETE only",
    ReasonCode.SKIP_STEPS_UNUSED: "skip_steps can be used with FROM_FAILED and FROM_STEP only",
    ReasonCode.SKIP_STEPS_TWICE: "skip_steps gives step {step!r} two results",
    ReasonCode.STEP_WOULD_REPEAT: (
        "step {step!r} (index {index}) runs at most once and would be called again: begin after it, or at {index} "
        "itself if it is certain that nothing happened"
    ),
    ReasonCode.STEP_UNCERTAIN: (
        "step {step!r} runs at most once and was interrupted when the run ended: it may have happened. Check, then "
        "retry the run with its result in skip_steps, or begin at it with FROM_STEP {index}"
    ),
    ReasonCode.FULL_WOULD_REPEAT: (
        "step {step!r} runs at most once, and FULL would call it again: use FROM_STEP after it, or set new_operation "
        "if this is to be a new operation"
    ),
    ReasonCode.STEP_SUCCEEDED: (
        "step {step!r} succeeded and is not called again, so it cannot be skipped: to get another result for it, "
        "begin at it with FROM_STEP {index}"
    ),
    ReasonCode.NO_STEP_FAILED: (
        "{mode} needs a failed step, and no step of this run failed: use FROM_FAILED, FROM_STEP or FULL"
    ),
    ReasonCode.STEP_CALL_UNCERTAIN: (
        "step {step!r} runs at most once and may have happened: check, then SKIP it with an output, COMPLETE it with "
        "its result, or begin at it with FROM_STEP {index}"
    ),
    ReasonCode.REPLAY_OPTION_UNKNOWN: "a replay has no option {names}; the options are {known:list}",
    ReasonCode.REPLAY_MODE_UNKNOWN: "replay mode {given} does not exist; the modes are {known:list}",
    ReasonCode.RETRY_POLICY_NEEDED: "retry takes a RetryPolicy, not {given}",
    ReasonCode.PATCH_OBJECT_NEEDED: ("a patch must be a JSON object from field to new value; null removes a field"),
    ReasonCode.INPUT_NOT_PATCHABLE: (
        "only an input that is a JSON object can be patched; send the whole input instead"
    ),
    ReasonCode.MASK_AMBIGUOUS: (
        "{paths:list}[ and {more} more]: {mask} stands for a hidden value, but it is not certain for which one. "
        "Enter the real value, or leave the field out of the patch"
    ),
    # why a start is refused
    ReasonCode.START_OPTION_UNKNOWN: "start has no option {names}; it has {known:list}",
    ReasonCode.START_KEY_USED: (
        "the idempotency key of this start was used for run {run} with another input; use a new key for a new input "
        "(workflow {workflow!r}, tenant {tenant!r})"
    ),
    ReasonCode.EVENT_USED: (
        "event {event!r} of stream {stream!r} was received before, with another content or for another workflow, and "
        "started run {run}; a new event needs a new id, and a second consumer a separate stream name "
        "(workflow {workflow!r}, tenant {tenant!r})"
    ),
    ReasonCode.DEADLINE_WITHOUT_ZONE: "deadline has no time zone: use datetime.now(UTC) + ... or a duration",
    ReasonCode.DEADLINE_TOO_FAR: "deadline {given} is beyond the range of a clock: leave it out",
    ReasonCode.INDEX_VALUE_INVALID: "fields to search by hold texts, numbers and truth values, not {given}",
    # why another request is refused
    ReasonCode.POLICY_NEEDED: "expected a RetryPolicy, not {given}",
    ReasonCode.POLICY_TARGET_NEEDED: "name the workflow or the step that the policy is for, or both",
    ReasonCode.POLICY_NOT_FOUND: "no policy is stored for this target",
    ReasonCode.POLICY_INVALID: "the retry policy is invalid: {why}",
    ReasonCode.CIRCUIT_UNKNOWN: (
        "circuit {circuit!r} of tenant {tenant!r} has no recorded state, so calls pass through it. `list` shows the "
        "circuits that have one"
    ),
    ReasonCode.CIRCUIT_SETTINGS_NEEDED: "no setting was given: set failures, window, open_for, probes or on_open",
    ReasonCode.CIRCUIT_NAME_FIXED: "a circuit's name cannot be set: the code defines it",
    ReasonCode.CIRCUIT_KEY_INVALID: "{given} is not a circuit: give its name, or WORKFLOW/STEP for one without a name",
    ReasonCode.NOTIFICATION_NOT_FOUND: "notification {id} does not exist; `redrive notifications list` shows all",
    ReasonCode.RULE_URL_REFUSED: (
        "{why} That is for URLs in the code; a stored rule names a channel that the code registers."
    ),
    ReasonCode.RULE_NOT_FOUND: "no rule is stored for this target",
    ReasonCode.MESSAGE_NOT_FOUND: "message {id} does not exist; delivered messages are kept for a day",
    ReasonCode.MESSAGE_SINK_UNKNOWN: "message {id} has no delivery[ to sink {sink!r}]; its sinks are: {known}",
    ReasonCode.MESSAGE_OVER: "message {id} is finished: {ended}",
    ReasonCode.SINK_NOT_FOUND: "sink {name} does not exist; the sinks are: {known}",
    ReasonCode.SCHEDULE_IN_CODE: (
        "schedule {schedule!r} of workflow {workflow!r} is in the code of a live worker: remove it there, or pause it"
    ),
    ReasonCode.SCHEDULE_NOT_FOUND: (
        "workflow {workflow!r} has no schedule {schedule!r} for tenant {tenant!r}; its schedules are: {known}"
    ),
    ReasonCode.KEY_OF_OTHER_CREDENTIAL: (
        "the idempotency key of this start is bound to run {run} by another credential: use that one, a "
        "credential that may see payloads, or a new key (workflow {workflow!r}, tenant {tenant!r})"
    ),
    ReasonCode.EVENT_KEY_TWICE: "an event is its idempotency key: leave idempotency_key out",
    ReasonCode.SEARCH_NEEDS_PAYLOADS: (
        "a text search also reads redacted values: it needs the permission to see payloads; filter by "
        "workflow, step, code, category, fingerprint or tag instead"
    ),
    ReasonCode.OWN_TENANT: "this is your own tenant: disabling it would lock you out",
    ReasonCode.CONFIRMATION_NEEDED: "nothing was erased: repeat the name of the tenant in `confirm`",
    ReasonCode.TENANT_NEEDED: "this needs one tenant: name it (on a page: at its top) instead of all tenants",
    ReasonCode.TOKEN_TENANT_FIXED: "a token for some workflows works in its own tenant only",
    ReasonCode.TOKEN_SCOPE_TOO_SMALL: "a token for some workflows cannot do this",
    ReasonCode.CROSS_SITE_REQUEST: "requests with a cookie must come from this site; use a token elsewhere",
    ReasonCode.ORIGIN_NEEDED: "requests with a cookie need the header Origin or Sec-Fetch-Site",
    ReasonCode.TOKEN_NEEDED: "the server needs a credential: put a token into {variable}",
    ReasonCode.OTHER_TENANT: "this request is for tenant {tenant!r}: it cannot change data of another tenant",
    ReasonCode.TOKEN_WORKFLOWS: "this token is for these workflows only: {workflows:list}",
    ReasonCode.TOKEN_LACKS_WORKFLOWS: (
        "this token is for these workflows only: {workflows:list}. What you asked for belongs to all workflows"
    ),
    ReasonCode.TOKEN_WORKFLOW_NEEDED: "this token is for several workflows: name one of {workflows:list}",
    ReasonCode.TOKEN_CANNOT_SAVE_VIEWS: "a token for some workflows cannot save views: views apply to all workflows",
    ReasonCode.RUN_NOT_SHOWN: "a run can be changed only through the view that showed it",
    ReasonCode.ENGINE_ONLY: "only the engine can do this, not a user of a tenant",
    ReasonCode.TEXT_SEARCH_SEALED: (
        "letters cannot be searched by text while {variable} seals it: filter by workflow, step, code, category or "
        "fingerprint, or by index, a field that the workflow declared"
    ),
    ReasonCode.STEP_STATEMENT_REFUSED: (
        "{statement} cannot be used in a transactional step: its transaction begins by itself and is committed "
        "together with the step's record"
    ),
    ReasonCode.TOPIC_PATTERN_INVALID: (
        "{given} is not a topic pattern: give a topic such as orders.paid, a prefix such as orders.*, or * for all "
        "topics"
    ),
    ReasonCode.TOPICS_NEEDED: "no topic was given: give at least one, or * for all topics",
    ReasonCode.TOPIC_INVALID: (
        "{given} cannot be a topic: use words of letters, digits, _ and -, joined by dots, at most {longest} "
        "characters, such as orders.paid"
    ),
    ReasonCode.MESSAGE_KEY_INVALID: (
        "{given} cannot be the key of a message: use a text of 1 to {longest} characters without control characters, "
        "such as an order id"
    ),
    ReasonCode.TENANT_NAME_RESERVED: "{name!r} cannot be the name of a tenant: it stands for all tenants",
    ReasonCode.ROLE_UNKNOWN: "role {given} does not exist; the roles are {known:list}",
    ReasonCode.ROLE_NEEDED: (
        "this needs the role {role} or higher[ ({permission})], and yours is {own}: ask a user who has it"
    ),
    ReasonCode.PAYLOAD_PERMISSION_NEEDED: (
        "this needs the right to see payloads, which you lack: ask a user who has it"
    ),
    ReasonCode.OTHER_TENANT_FORBIDDEN: (
        "only an OWNER can work in another tenant than {tenant!r}: ask an OWNER, or leave `tenant` out"
    ),
    ReasonCode.TOKEN_LIMITED: "this token is limited to the workflows {workflows:list} and cannot give more rights",
    ReasonCode.EVENT_HAS_KEY: "an event is its own idempotency key; leave idempotency_key out",
    ReasonCode.START_ITEM_INVALID: (
        "start_many takes tuples of arguments or Start(...), not {type}; write (value,) for a single argument"
    ),
    ReasonCode.TOO_MANY_MESSAGES: "a step publishes at most {limit:,} messages; spread them over several steps",
    # what is wrong with a value that a person typed
    ReasonCode.OBJECT_NEEDED: "{field} must be an object from name to value, not {given}",
    ReasonCode.FLAG_NEEDED: "{field} must be True or False, not {given}",
    ReasonCode.SHORT_TEXT_NEEDED: ("{field} must be a text of 1 to {longest} printable characters, not {given}"),
    ReasonCode.LIMIT_INVALID: "limit is {given}; give a whole number from 1 to {most}",
    ReasonCode.LONG_TEXT_NEEDED: "{field} must be a text of 1 to {longest:,} characters, not {given}",
    ReasonCode.TAGS_NEEDED: "tags must be a list of words, not {given}",
    ReasonCode.TEXT_UNSTORABLE: "{field} contains a NUL or half a character, which databases cannot store",
    ReasonCode.FILTER_VALUE_INVALID: "{field} must be {expected}, not {given}",
    ReasonCode.FILTER_TEXT_EMPTY: "{field} is empty: leave it out to find everything",
    ReasonCode.FILTER_TIME_ZONE_NEEDED: "{field} needs a time zone, for example datetime.now(UTC)",
    ReasonCode.FILTER_TIME_OUT_OF_RANGE: (
        "{field} must be microseconds since 1970, in the years 1 to 9999; {given} is out of range"
    ),
    ReasonCode.PAGE_LIMIT_INVALID: "limit must be a whole number from 1 to {largest}, not {given}",
    ReasonCode.CURSOR_INVALID: "{given} is not a cursor of a list: pass one that a page returned, or none",
    ReasonCode.WHOLE_NUMBER_NEEDED: "{field} must be a whole number from {least} to {most}, not {given}",
    ReasonCode.ENGINE_NAME_TAKEN: "{name!r} is the name that the engine signs with: give your own name in `by`",
    ReasonCode.NOT_JSON: "{what} is not JSON: {why}",
    ReasonCode.MASKED_OUTPUT: "{paths:list}: {mask} stands for a hidden value: enter the real value in {what}",
    ReasonCode.WORKFLOW_INPUT: "the input of workflow {workflow!r}",
    ReasonCode.STEP_OUTPUT: "the output of step {step!r}",
    ReasonCode.VALUE_INVALID: "{what} is not valid: {faults:faults}[ (and {more} more)]",
    ReasonCode.FAULTS: "{faults:faults}[ (and {more} more)]",
    ReasonCode.FAULT: "[{path}: ]{why}",
    ReasonCode.FIELD_UNKNOWN: "unknown field[; expected: {known}]",
    ReasonCode.FORM_LACKS_FIELDS: "the form has no fields for this change: continue as JSON",
    ReasonCode.MODE_KEEPS_INPUT: "this mode keeps the input: undo your change, or choose another mode",
    ReasonCode.INPUT_OBJECT_NEEDED: "enter an object from name to value, such as {example}",
    ReasonCode.POLICY_OBJECT_NEEDED: "enter the retry policy as an object, such as {example}",
    ReasonCode.STEP_CHOICE_NEEDED: "choose the step to continue from",
    ReasonCode.OUTPUT_NEEDED: "enter the result of the step as JSON, such as {example}",
    ReasonCode.OUTPUT_NOT_JSON: "the result is not JSON: {why}. A text needs quotes, such as {example}",
    ReasonCode.JSON_SYNTAX: "line {line}, column {column}: {why}",
    ReasonCode.JSON_TOO_DEEP: "the JSON is nested too deep: store it flat or pass a reference",
    ReasonCode.JSON_NUMBER_TOO_LONG: "a number has too many digits; write it as a text",
    ReasonCode.JSON_NUMBER_TOO_LARGE: ("{number} is larger than any number that can be stored; write it as a text"),
    ReasonCode.JSON_NAME_TWICE: "line {line}: {name} is given twice, first in line {first}; keep one",
    ReasonCode.JSON_CONSTANT: "{word} is not JSON; leave it out, or write it as a text",
    # what is wrong with one place of a value
    ReasonCode.PYDANTIC_RULE: "{message}",
    ReasonCode.NESTED_TOO_DEEP: "nested more than {most} levels deep; store it flat or pass a reference",
    ReasonCode.NUMBER_TOO_LONG: "a number has too many digits; pass it as a string",
    ReasonCode.JSON_INVALID: "this is not valid JSON ({why})",
    ReasonCode.NOT_STORABLE_AS_ANNOTATED: "a {type} cannot be stored as annotated",
    ReasonCode.REFERS_TO_ITSELF: "refers to itself; pass data without cycles",
    ReasonCode.SURROGATES_JOIN: "two surrogates in the text would become one character; pass valid text",
    ReasonCode.NOT_STORABLE: "{kind} cannot be stored; pass data or a reference",
    ReasonCode.INTEGER_TOO_LONG: "an integer of more than 4,300 digits cannot be stored; pass it as a string",
    ReasonCode.NO_JSON_FORM: "{value} has no JSON form here; annotate the value as float",
    ReasonCode.TYPE_DIFFERS: "expected {expected}, got {found}",
    ReasonCode.ANNOTATION_DIFFERS: "this {type} does not fit its annotation",
    ReasonCode.NOT_STORABLE_HERE: "a {type} cannot be stored here ({why})",
    ReasonCode.NOT_READABLE_BACK: "cannot be read back: {error_type}: {message}",
    ReasonCode.CHANGED_BY_READING: "reading the value back would change it; pass text without lone surrogates",
    ReasonCode.UNION_AMBIGUOUS: (
        "a {type} would be read back as {other}; give the members of the union a Literal field that "
        "tells them apart, or put the narrower one first"
    ),
    ReasonCode.ARGUMENTS_TOO_MANY: "{function}() takes {taken} positional arguments, {given} were given",
    ReasonCode.ARGUMENT_TWICE: "{function}() got argument {argument!r} twice",
    ReasonCode.ARGUMENT_MISSING: "{function}() is missing argument {argument!r}",
    ReasonCode.ARGUMENT_UNKNOWN: "{function}() has no parameter {argument!r}[; its parameters are {known:list}]",
    ReasonCode.TEMPLATE_FIELD_MISSING: "field {name!r} does not exist[ in {parent}][, which is {found}]",
    ReasonCode.TEMPLATE_TOO_LARGE: "the filled-in template is too large; use fewer or smaller fields",
    ReasonCode.HEADER_VALUE_INVALID: "a header cannot contain the control characters of this value",
    ReasonCode.PATH_VALUE_INVALID: "the value is empty or contains '.' or '..', which would change the path",
    ReasonCode.NOT_UNICODE: "the text is not valid Unicode",
    ReasonCode.NOT_PLAIN_JSON: "the value is not plain JSON",
    ReasonCode.EXPECTED: "expected {expected}, found {found}",
    ReasonCode.EXPECTED_NOTHING: "expected nothing here, found {found}",
    ReasonCode.FIELD_MISSING: "expected {expected}, but the field is missing",
    ReasonCode.FIELD_NAME_INVALID: "expected the field's name to be {expected}",
    ReasonCode.EXPECTED_UNIQUE: "expected each item once, found a duplicate",
    ReasonCode.EXPECTED_AT_LEAST: "expected a number of at least {bound}, found a smaller one",
    ReasonCode.EXPECTED_AT_MOST: "expected a number of at most {bound}, found a larger one",
    ReasonCode.EXPECTED_ABOVE: "expected a number above {bound}, found a smaller or equal one",
    ReasonCode.EXPECTED_BELOW: "expected a number below {bound}, found a larger or equal one",
    ReasonCode.EXPECTED_MULTIPLE: "expected a multiple of {step}, found another number",
    ReasonCode.EXPECTED_PATTERN: "expected text that matches /{pattern}/, found other text",
    ReasonCode.TOO_FEW_ITEMS: ("expected at least {n} item, found {found}|expected at least {n} items, found {found}"),
    ReasonCode.TOO_MANY_ITEMS: ("expected at most {n} item, found {found}|expected at most {n} items, found {found}"),
    ReasonCode.TOO_FEW_FIELDS: (
        "expected at least {n} field, found {found}|expected at least {n} fields, found {found}"
    ),
    ReasonCode.TOO_MANY_FIELDS: (
        "expected at most {n} field, found {found}|expected at most {n} fields, found {found}"
    ),
    ReasonCode.TEXT_TOO_SHORT: (
        "expected at least {n} character, found {found}|expected at least {n} characters, found {found}"
    ),
    ReasonCode.TEXT_TOO_LONG: (
        "expected at most {n} character, found {found}|expected at most {n} characters, found {found}"
    ),
    ReasonCode.ONE_OF: "{options:or}[ or one of {more} more]",
    ReasonCode.KIND_OBJECT: "an object",
    ReasonCode.KIND_LIST: "a list",
    ReasonCode.KIND_LIST_OF: "a list of {n} item|a list of {n} items",
    ReasonCode.KIND_TEXT: "text",
    ReasonCode.KIND_INTEGER: "a whole number",
    ReasonCode.KIND_NUMBER: "a number",
    ReasonCode.KIND_FRACTION: "a number with a fraction",
    ReasonCode.KIND_BOOLEAN: "true or false",
    ReasonCode.KIND_NULL: "null",
    ReasonCode.KIND_VALUE: "a value",
    ReasonCode.KIND_SCALAR: "a single value",
    ReasonCode.KIND_OTHER_VALUE: "a different value",
    ReasonCode.KIND_FOREIGN: "a value that JSON cannot represent",
    ReasonCode.KIND_TIME: "a datetime or microseconds since 1970",
    ReasonCode.KIND_STATUS: "the name of a status",
}

ENGLISH = Catalogue(texts=_TEXTS, form=_plural_form, either=" or ")
