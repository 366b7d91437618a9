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
    ReasonCode.STEP_NOT_UNDONE: "step {step!r} could not be undone: {why}",
    ReasonCode.WORKFLOW_RAISED: "workflow {workflow!r} raised {error_type}: {message}",
    ReasonCode.WORKFLOW_INPUT_UNUSABLE: "the input of workflow {workflow!r} cannot be used: {why}",
    ReasonCode.STEP_INPUT_UNUSABLE: "the recorded input of step {step!r} cannot be used: {why}",
    ReasonCode.RUN_UNREADABLE: "the stored data of this run cannot be read: {why}",
    ReasonCode.FAILURE_UNREADABLE: "the failure cannot be shown: {why}",
    ReasonCode.WORKERS_DIED: ("{n} worker died while executing this run|{n} workers died while executing this run"),
    ReasonCode.STEP_REPLAYED_ALONE: ("only step {step!r} was replayed: retry the run with from_failed to continue it"),
    ReasonCode.DEADLINE_PASSED: "the run passed its deadline",
    ReasonCode.RUN_ROLLED_BACK: "the run was rolled back",
    ReasonCode.RUN_CANCELLED_BY: "cancelled by {by}[: {comment}]",
    ReasonCode.CODE_CHANGED: (
        "the journal holds {recorded}, but the code now asks for {asked}; the workflow function changed "
        "while this run was under way"
    ),
    ReasonCode.JOURNAL_CALLS: "{calls:list}",
    ReasonCode.JOURNAL_CALL: "{name!r}[ (call {call})][ in branch {branch}]",
    ReasonCode.JOURNAL_NOTHING: "nothing more",
    ReasonCode.COMPENSATION_UNKNOWN: (
        "no compensation is registered for {steps:quoted}: start a worker whose code has it"
    ),
    ReasonCode.COMPENSATION_MISSING: (
        "{compensation!r}, which undoes step {step!r}, is not registered: start a worker whose code has it"
    ),
    ReasonCode.STORE_REFUSED_DATA: "the store refused the data: {why}",
    ReasonCode.STEP_CUT_SHORT: (
        "step {step!r} runs at most once and was cut short: it may have happened. Find out, then skip it "
        "or give its result by hand"
    ),
    ReasonCode.CIRCUIT_OPEN: "circuit {circuit!r} is open, so the step was not called",
    ReasonCode.PAYLOAD_TOO_LARGE: (
        "{what} takes {size}, more than the limit of {limit}; store it elsewhere and pass a reference, "
        "or raise REDRIVE_MAX_PAYLOAD"
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
    ReasonCode.ATTEMPT_LOST: ("attempt {attempt}: the worker died; the attempt is repeated under the same number"),
    ReasonCode.ATTEMPT_RELEASED: (
        "attempt {attempt}: the worker stopped; the attempt is repeated under the same number"
    ),
    ReasonCode.ATTEMPT_INTERRUPTED: ("attempt {attempt}: cut short: it may have happened, and is not called again"),
    ReasonCode.ATTEMPT_ENDED: "attempt {attempt}: {end}",
    ReasonCode.CIRCUIT_WAS_OPEN: "not called: the circuit was open; waiting uses up no attempt",
    ReasonCode.TIMED_OUT: "timed out",
    ReasonCode.NETWORK_ERROR: "network error",
    ReasonCode.RATE_LIMITED: "rate limited",
    ReasonCode.SERVER_ERROR: "server error",
    ReasonCode.DEPENDENCY_UNAVAILABLE: "dependency unavailable",
    ReasonCode.INVALID_DATA: "invalid data",
    ReasonCode.NOT_AUTHORISED: "not authorised",
    ReasonCode.NOT_FOUND: "not found",
    ReasonCode.CLIENT_ERROR: "refused by the other side",
    ReasonCode.CONFIGURATION_MISSING: "configuration missing",
    ReasonCode.INTERNAL_ERROR: "error in the code",
    ReasonCode.UNCLASSIFIED_ERROR: "unclassified error",
    # why an attempt is not repeated
    ReasonCode.RETRIES_EXHAUSTED: "retries are exhausted",
    ReasonCode.NO_RETRY_ALLOWED: "the policy allows no retry",
    ReasonCode.RETRY_TIME_EXCEEDED: ("another attempt would exceed the limit of {limit:duration} since the first"),
    ReasonCode.STEP_AT_MOST_ONCE: "the step runs at most once",
    ReasonCode.RAISED_NON_RETRYABLE: "it was raised as NonRetryable",
    ReasonCode.IN_NEVER_RETRY_ON: "the policy names it in never_retry_on",
    ReasonCode.NOT_IN_RETRY_ON: "the policy's retry_on does not name it",
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
    ReasonCode.NEXT_ATTEMPT: "attempt {attempt} follows",
    ReasonCode.NEXT_UNDONE: "its steps were undone: nothing to do",
    ReasonCode.NEXT_DECISION: "its dead letter is open: replay it, edit its input, resolve or ignore it",
    ReasonCode.NEXT_WORKFLOW: (
        "the failure is raised in the workflow; if the workflow does not handle it, the run fails"
    ),
    ReasonCode.NEXT_PROBE: "calls wait until a probe shows that the dependency is available",
    # what a dry run warns of
    ReasonCode.VERSION_CHANGED: ("the code has changed since: recorded with version {version}, the newest is {newest}"),
    ReasonCode.WORKFLOW_NEVER_REGISTERED: (
        "workflow {workflow!r} is not registered: nothing runs until a worker registers it"
    ),
    ReasonCode.WORKFLOW_HAS_NO_WORKER: (
        "no live worker has workflow {workflow!r}: the replay is refused until one has it"
    ),
    ReasonCode.RESULTS_FROM_ORIGINAL_INPUT: "results that are reused were computed from the original input",
    ReasonCode.SAME_IDEMPOTENCY_KEY: (
        "{names:list} is called with the idempotency key of the original input: a service that has seen "
        "the key may answer as it did then; new_operation sends a new key|{names:list} are called with "
        "the idempotency key of the original input: a service that has seen the key may answer as it did "
        "then; new_operation sends a new key"
    ),
    ReasonCode.NEW_IDEMPOTENCY_KEYS: (
        "outside services will see new idempotency keys and take every call for a new one"
    ),
    ReasonCode.STEP_MAY_HAVE_HAPPENED: "{step} was cut short: it may have happened, so look first",
    ReasonCode.STEP_ACTS_AGAIN: "{step} succeeded before and acts on the outside world again: {effect}",
    # why a saved view is refused
    ReasonCode.VIEW_LIST_UNKNOWN: "views are of {lists:list}, not of {given}",
    ReasonCode.TOO_MANY_SHARED_VIEWS: (
        "tenant {tenant!r} shares {n} views of this list already; remove one of them first"
    ),
    ReasonCode.TOO_MANY_VIEWS: "you have {n} views of this list already; remove one of them first",
    ReasonCode.SHARED_VIEW_NOT_FOUND: "there is no shared view {name} of this list",
    ReasonCode.VIEW_NOT_FOUND: "there is no view {name} of this list",
    ReasonCode.VIEW_NAME_INVALID: (
        "a view has a name of 1 to {longest} printable characters without a slash, not {given}"
    ),
    ReasonCode.VIEW_FILTER_TOO_LONG: (
        "the filter of a view is at most {longest:,} characters long; leave something out"
    ),
    ReasonCode.VIEW_FIELD_UNKNOWN: "{list} cannot be narrowed by {names}; there are {known:list}",
    ReasonCode.VIEW_FILTER_EMPTY: ("the filter of a view is empty: narrow the list first, for example by code=timeout"),
    # why a decision on many dead letters is refused
    ReasonCode.SET_NOT_FOUND: "there is no set {id}",
    ReasonCode.SET_DONE: "set {id} is done: all its letters were decided on",
    ReasonCode.SET_STOPPED: "set {id} was stopped by {by}; begin another one for what is left",
    ReasonCode.SET_UNREADABLE: "set {id} cannot be carried out here: {why}",
    ReasonCode.SET_ITEM_STATUS_UNKNOWN: "letters of a set are {known:list}, not {given}",
    ReasonCode.RATE_INVALID: (
        "{given} is not a rate: give a whole number per second, minute or hour, such as 50/s or 600/m"
    ),
    ReasonCode.RATE_OUT_OF_RANGE: (
        "a rate is from 1 to {most:,} per second, minute or hour, not {given:,}; to start nothing, pause the set"
    ),
    ReasonCode.LETTERS_NOT_SELECTED: "no dead letter is selected; select some, or choose all that match",
    ReasonCode.LETTER_IDS_NEEDED: "give a LetterFilter or a list of ids, not {given}",
    ReasonCode.LETTER_IDS_TOO_MANY: "give from 1 to {most:,} ids, not {count:,}; or a LetterFilter",
    ReasonCode.LETTER_ID_INVALID: "{id} is not the id of a dead letter",
    ReasonCode.ONLY_OPEN_LETTERS: "only open letters are decided on, and the filter wants {statuses:list}",
    ReasonCode.TENANTS_DIFFER: "the filter names tenant {filter!r}, and the call {call!r}",
    ReasonCode.UNEXPECTED_ERROR: (
        "unexpected error while replaying: {error_type}: {message}. Details are in the server log"
    ),
    # why a decision on one dead letter or run is refused
    ReasonCode.LETTER_NOT_FOUND: "there is no dead letter {id}",
    ReasonCode.LETTER_GONE: "there is no dead letter {id}, or its run was purged",
    ReasonCode.LETTER_OR_RUN_NOT_FOUND: "there is no dead letter or run {id}",
    ReasonCode.RUN_NOT_FOUND: "there is no run {id}",
    ReasonCode.LETTER_RUN_PURGED: "the run of {id} was purged: nothing can be decided about it any more",
    ReasonCode.RUN_PURGED: "run {run} was purged: its input and steps are gone, it cannot be replayed",
    ReasonCode.RUN_SEALED: "run {run} cannot be replayed from here: {why}",
    ReasonCode.RUN_REPLAYED_AS: "run {run} was replayed as {other}; decide about that one",
    ReasonCode.LETTER_REPLAYING: ("{id} is being replayed already, with another decision; wait until that ends"),
    ReasonCode.LETTER_RESOLVED: "{id} is resolved ({how}): see its run {run}",
    ReasonCode.LETTER_CLOSED: "{id} was closed ({status}: {how}); retry its run {run} instead",
    ReasonCode.LETTER_CLOSED_BEFORE: "{id} is {status} already ({how}): add a comment to say more",
    ReasonCode.LETTER_NOT_OPEN: "{id} is {status} and cannot be closed as {wanted}",
    ReasonCode.NO_REASON_GIVEN: "no reason was given",
    ReasonCode.KEY_USED: "key {key!r} was used for another decision on {id}",
    ReasonCode.WORKFLOW_UNREGISTERED: (
        "workflow {workflow!r} was never registered, so it would not run: start a worker that has it, then decide again"
    ),
    ReasonCode.WORKFLOW_ABANDONED: (
        "no live worker has workflow {workflow!r} any more, so it would not run: start a worker that has "
        "it, then decide again"
    ),
    ReasonCode.CODE_UNREGISTERED: (
        "{kind} {name!r} was never registered, so a value for it cannot be checked: start a worker that has it"
    ),
    ReasonCode.RUN_ENDED: "run {run} has ended as {status} and can no longer be cancelled",
    ReasonCode.RUN_BEING_UNDONE: (
        "run {run} is being rolled back, which is not cancelled: half of it would stay undone"
    ),
    ReasonCode.RUN_CONFIRMING: (
        "run {run} is confirming what it reserved and can no longer be cancelled; it only goes forward"
    ),
    # why a replay does not fit its run
    ReasonCode.NOT_REPLAYABLE: "run {run} is {status}: only a failed or partial run is replayed",
    ReasonCode.ROLLED_BACK_ALREADY: "run {run} is {status}: it is rolled back already",
    ReasonCode.NOT_ROLLED_BACK: "run {run} is {status}: only a failed or partial run is rolled back",
    ReasonCode.ROLLBACK_STOPPED: (
        "the rollback of run {run} stopped at {compensation!r} of step {step!r}: resume that one"
    ),
    ReasonCode.PIVOT_PASSED: (
        "run {run} passed its point of no return, step {step!r}, and can only go forward: replay it"
    ),
    ReasonCode.RUN_UNDONE: (
        "the steps of run {run} were undone, so there is nothing to continue from: start it anew with "
        "FULL, as a new operation"
    ),
    ReasonCode.ROLLBACK_NEEDS_DECISION: (
        "run {run} is being undone, and stopped at {compensation!r} of step {step!r}: resume that "
        "(FROM_FAILED), skip it (SKIP) or say that it is done (COMPLETE), with the input as it was"
    ),
    ReasonCode.ROLLBACK_KEEPS_KEYS: ("a rollback keeps its idempotency keys, or something could be undone twice"),
    ReasonCode.NOT_UNDONE_YET: "run {run} is not undone yet; it can be started anew when it is",
    ReasonCode.NEW_OPERATION_NEEDED: (
        "the steps of run {run} were undone, and outside services would take the same calls for repeats: "
        "say new_operation to have it done anew"
    ),
    ReasonCode.ROLLBACK_RUNNING: "run {run} is being rolled back; wait until that is over, or has stopped",
    ReasonCode.OTHER_COMPENSATION_NEXT: (
        "the compensation that is next is {compensation!r} of step {step!r}, not {given}"
    ),
    ReasonCode.STEP_CONFIRMED: (
        "{confirmation!r} has confirmed a step of this run, so it only goes forward: use FROM_FAILED, "
        "SKIP or COMPLETE, or start it anew with FULL as a new operation"
    ),
    ReasonCode.FROM_STEP_NEEDED: "FROM_STEP wants the index of the step to begin at: say from_step",
    ReasonCode.FROM_STEP_UNUSED: "from_step goes with mode FROM_STEP alone, not with {mode}",
    ReasonCode.FROM_STEP_INVALID: "from_step is the index of a step, not {given}",
    ReasonCode.FROM_STEP_UNKNOWN: ("there is no step with index {index} to begin at; the recorded steps are {steps}"),
    ReasonCode.INPUT_AND_PATCH: "send the whole input or a patch, not both",
    ReasonCode.INPUT_KEPT: "{mode} keeps the input; edit it with FROM_FAILED, FROM_STEP or FULL",
    ReasonCode.OUTPUT_UNUSED: "output is the result of the failed step; it goes with SKIP and COMPLETE",
    ReasonCode.UNDO_UNUSED: "a compensation is named to SKIP it, or to COMPLETE it by hand",
    ReasonCode.SKIP_STEPS_UNUSED: "skip_steps goes with FROM_FAILED and FROM_STEP",
    ReasonCode.SKIP_STEPS_TWICE: "skip_steps gives step {step!r} two results",
    ReasonCode.STEP_WOULD_REPEAT: (
        "step {step!r} (index {index}) runs at most once and would be called again: begin behind it, or "
        "at {index} itself if it is certain that nothing happened"
    ),
    ReasonCode.STEP_UNCERTAIN: (
        "step {step!r} runs at most once and was cut short when the run ended: it may have happened. "
        "Find out, then retry the run with its result in skip_steps, or begin at it with FROM_STEP "
        "{index}"
    ),
    ReasonCode.FULL_WOULD_REPEAT: (
        "step {step!r} runs at most once, and FULL would call it again: use FROM_STEP behind it, or say "
        "new_operation if this is to be a new operation"
    ),
    ReasonCode.STEP_SUCCEEDED: (
        "step {step!r} succeeded and is not called again, so it cannot be skipped; to have another "
        "result for it, begin at it with FROM_STEP {index}"
    ),
    ReasonCode.NO_STEP_FAILED: (
        "{mode} is about a failed step, and no step failed here: use FROM_FAILED, FROM_STEP or FULL"
    ),
    ReasonCode.STEP_CALL_UNCERTAIN: (
        "step {step!r} runs at most once and may have happened: find out, then SKIP it with an output, "
        "complete it by hand, or begin at it with FROM_STEP {index}"
    ),
    ReasonCode.REPLAY_OPTION_UNKNOWN: "a replay has no option {names}; it has {known:list}",
    ReasonCode.REPLAY_MODE_UNKNOWN: "there is no replay mode {given}; there are {known:list}",
    ReasonCode.RETRY_POLICY_NEEDED: "retry takes a RetryPolicy, not {given}",
    ReasonCode.PATCH_OBJECT_NEEDED: ("a patch must be a JSON object from field to new value; null removes a field"),
    ReasonCode.INPUT_NOT_PATCHABLE: (
        "only an input that is a JSON object can be patched; send the whole input instead"
    ),
    ReasonCode.MASK_AMBIGUOUS: (
        "{paths:list}[ and {more} more]: {mask} stands for a hidden value, but it is not certain for "
        "which one. Type the real value or leave the field out of a patch"
    ),
    # why another request is refused
    ReasonCode.POLICY_NEEDED: "a RetryPolicy is expected, not {given}",
    ReasonCode.POLICY_TARGET_NEEDED: "name the workflow, the step, or both, that the policy is for",
    ReasonCode.CIRCUIT_UNKNOWN: (
        "nothing ever happened to a circuit {circuit!r} of tenant {tenant!r}: calls go through it. "
        "`list` shows those that something happened to"
    ),
    ReasonCode.CIRCUIT_SETTINGS_NEEDED: "say what to set: failures, window, open_for, probes, on_open",
    ReasonCode.CIRCUIT_NAME_FIXED: "a circuit's name cannot be set: the code defines it",
    ReasonCode.CIRCUIT_KEY_INVALID: ("{given} is not a circuit: give its name, or WORKFLOW/STEP for one that has none"),
    ReasonCode.NOTIFICATION_NOT_FOUND: ("there is no notification {id}; `redrive notifications list` shows all"),
    ReasonCode.MESSAGE_NOT_FOUND: "there is no message {id}; those that were delivered are kept for a day",
    ReasonCode.SINK_NOT_FOUND: "there is no sink {name}; there are: {known}",
    ReasonCode.SCHEDULE_IN_CODE: (
        "a live worker has schedule {schedule!r} of workflow {workflow!r} in its code; remove it there, or pause it"
    ),
    ReasonCode.SCHEDULE_NOT_FOUND: (
        "workflow {workflow!r} has no schedule {schedule!r} for tenant {tenant!r}; there are: {known}"
    ),
    # what is wrong with a URL, an HTTP request or a start
    ReasonCode.URL_TOO_LONG: "a URL must be a text of at most {most} characters",
    ReasonCode.URL_SCHEME_MISSING: "a URL must begin with http:// or https:// and a host",
    ReasonCode.URL_CHARACTER_INVALID: "a URL cannot contain {character}; in path and query, write it percent-encoded",
    ReasonCode.URL_HAS_CREDENTIALS: "a URL cannot hold a user name or password; send it as a header",
    ReasonCode.URL_HOST_INVALID: "the host of the URL is not valid",
    ReasonCode.URL_PORT_INVALID: "the port of the URL must be a number from 1 to 65535",
    ReasonCode.URL_HOST_UNUSUAL: (
        "the host {host} of the URL is neither a name nor an address in its usual form: four decimal numbers "
        "without leading zeros, or IPv6 in brackets without a zone. Names are plain ASCII (write xn--… for "
        "others) and end without a dot"
    ),
    ReasonCode.URL_PORT_TAKEN: "{origin}: port {port} belongs to {protocol}, not to HTTP",
    ReasonCode.HTTP_METHOD_INVALID: "{method} is not an HTTP method: methods are capital letters",
    ReasonCode.HTTP_HEADER_INVALID: "the header {name} cannot be sent: it must be one line of plain text",
    ReasonCode.HTTP_HEADER_RESERVED: "the header {name} is set by the client: leave it out",
    ReasonCode.RESPONSE_NOT_JSON: "the body of the response is not JSON",
    ReasonCode.RESPONSE_TRUNCATED: "the body of the response is too large and was cut",
    ReasonCode.EVENT_HAS_KEY: "an event is its own idempotency key: leave idempotency_key out",
    ReasonCode.START_ITEM_INVALID: (
        "start_many takes tuples of arguments or Start(...), not {type}: write (value,) for a single argument"
    ),
    ReasonCode.WORKFLOW_NOT_REGISTERED: "no workflow is called {workflow}: registered are {known}",
    # what is wrong with a value that a person typed
    ReasonCode.OBJECT_NEEDED: "{field} must be an object from name to value, not {given}",
    ReasonCode.FLAG_NEEDED: "{field} is True or False, not {given}",
    ReasonCode.SHORT_TEXT_NEEDED: ("{field} must be a text of 1 to {longest} printable characters, not {given}"),
    ReasonCode.LONG_TEXT_NEEDED: "{field} must be a text of 1 to {longest:,} characters, not {given}",
    ReasonCode.TEXT_UNSTORABLE: "{field} has a NUL or half a character in it, which no database stores",
    ReasonCode.ENGINE_NAME_TAKEN: ("{name!r} is how the engine signs its own decisions; say who you are in `by`"),
    ReasonCode.NOT_JSON: "{what} is not JSON: {why}",
    ReasonCode.MASKED_OUTPUT: (
        "{paths:list}: {mask} stands for a hidden value, which no step gives; type the real value into {what}"
    ),
    ReasonCode.WORKFLOW_INPUT: "the input of workflow {workflow!r}",
    ReasonCode.STEP_OUTPUT: "the output of step {step!r}",
    ReasonCode.VALUE_INVALID: "{what} does not fit: {faults:faults}[ (and {more} more)]",
    ReasonCode.FAULTS: "{faults:faults}[ (and {more} more)]",
    ReasonCode.FAULT: "[{path}: ]{why}",
    ReasonCode.FIELD_UNKNOWN: "there is no such field[; expected: {known}]",
    ReasonCode.FORM_LACKS_FIELDS: "the form has no fields for this change: continue as JSON",
    ReasonCode.MODE_KEEPS_INPUT: ("this mode keeps the input as it was: undo your change, or choose another mode"),
    ReasonCode.INPUT_OBJECT_NEEDED: "an object from name to value is needed here, such as {example}",
    ReasonCode.POLICY_OBJECT_NEEDED: "a retry policy is an object, such as {example}",
    ReasonCode.STEP_CHOICE_NEEDED: "choose the step to continue from",
    ReasonCode.OUTPUT_NEEDED: "enter the result of the step as JSON, such as {example}",
    ReasonCode.OUTPUT_NOT_JSON: "the result is not JSON: {why}. A text needs quotes, such as {example}",
    ReasonCode.JSON_SYNTAX: "line {line}, column {column}: {why}",
    ReasonCode.JSON_TOO_DEEP: "it is nested too deep to be read; store it flat or pass a reference",
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
    ReasonCode.REFERS_TO_ITSELF: "refers to itself; pass data without circles",
    ReasonCode.SURROGATES_JOIN: "two surrogates in it would become one character; pass valid text",
    ReasonCode.NOT_STORABLE: "{kind} cannot be stored; pass data or a reference",
    ReasonCode.INTEGER_TOO_LONG: "an integer of more than 4,300 digits cannot be stored; pass it as a string",
    ReasonCode.NO_JSON_FORM: "{value} has no JSON form here; annotate the value as float",
    ReasonCode.TYPE_DIFFERS: "expected {expected}, got {found}",
    ReasonCode.ANNOTATION_DIFFERS: "this {type} does not fit its annotation",
    ReasonCode.NOT_STORABLE_HERE: "a {type} cannot be stored here ({why})",
    ReasonCode.NOT_READABLE_BACK: "cannot be read back: {error_type}: {message}",
    ReasonCode.CHANGED_BY_READING: "reading it back would change it; pass text without lone surrogates",
    ReasonCode.UNION_AMBIGUOUS: (
        "a {type} would be read back as {other}; give the members of the union a Literal field that "
        "tells them apart, or put the narrower one first"
    ),
    ReasonCode.EXPECTED: "expected {expected}, found {found}",
    ReasonCode.EXPECTED_NOTHING: "expected nothing here, found {found}",
    ReasonCode.FIELD_MISSING: "expected {expected}, but the field is missing",
    ReasonCode.FIELD_NAME_INVALID: "expected the field's name to be {expected}",
    ReasonCode.EXPECTED_UNIQUE: "expected every item once, found one twice",
    ReasonCode.EXPECTED_AT_LEAST: "expected a number of at least {bound}, found a smaller one",
    ReasonCode.EXPECTED_AT_MOST: "expected a number of at most {bound}, found a larger one",
    ReasonCode.EXPECTED_ABOVE: "expected a number above {bound}, found one that is not",
    ReasonCode.EXPECTED_BELOW: "expected a number below {bound}, found one that is not",
    ReasonCode.EXPECTED_MULTIPLE: "expected a multiple of {step}, found a number between two",
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
    ReasonCode.KIND_TEXT: "text",
    ReasonCode.KIND_INTEGER: "a whole number",
    ReasonCode.KIND_NUMBER: "a number",
    ReasonCode.KIND_FRACTION: "a number with a fraction",
    ReasonCode.KIND_BOOLEAN: "true or false",
    ReasonCode.KIND_NULL: "null",
    ReasonCode.KIND_VALUE: "a value",
    ReasonCode.KIND_OTHER_VALUE: "a different value",
    ReasonCode.KIND_FOREIGN: "something that JSON does not have",
}

ENGLISH = Catalogue(texts=_TEXTS, form=_plural_form, either=" or ")
