"""The codes of reasons, and the catalogue that a language has for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from string import Formatter

import msgspec


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """The templates of one language.

    A template names parameters as `str.format` does, and has three additions:

        {delay:duration}    seconds in words; other formats are `clock`, `list`, `quoted`, `or`, `faults`
        [ of {of}]          a part that is left out where one of its parameters is None
        one|many            forms by the parameter `n`; `form` says which one a number takes

    `either` joins alternatives.
    """

    texts: Mapping[str, str]
    form: Callable[[int], int]
    either: str


def parameter_names(template: str) -> set[str]:
    """Return the names of the parameters that a template uses."""
    return {name for _, name, _, _ in Formatter().parse(template) if name}


class ReasonCode(StrEnum):
    """The codes of all reasons. They are stored and sent to clients, so a code is never renamed."""

    # text that has no code
    TEXT = "text"

    # why a step, a run or a rollback failed
    STEP_FAILED = "step_failed"
    STEP_NOT_UNDONE = "step_not_undone"
    WORKFLOW_RAISED = "workflow_raised"
    WORKFLOW_INPUT_UNUSABLE = "workflow_input_unusable"
    STEP_INPUT_UNUSABLE = "step_input_unusable"
    RUN_UNREADABLE = "run_unreadable"
    FAILURE_UNREADABLE = "failure_unreadable"
    WORKERS_DIED = "workers_died"
    STEP_REPLAYED_ALONE = "step_replayed_alone"
    DEADLINE_PASSED = "deadline_passed"
    RUN_ROLLED_BACK = "run_rolled_back"
    RUN_CANCELLED_BY = "run_cancelled_by"
    CODE_CHANGED = "code_changed"
    JOURNAL_CALLS = "journal_calls"
    JOURNAL_CALL = "journal_call"
    JOURNAL_NOTHING = "journal_nothing"
    COMPENSATION_UNKNOWN = "compensation_unknown"
    COMPENSATION_MISSING = "compensation_missing"
    STORE_REFUSED_DATA = "store_refused_data"
    STEP_CUT_SHORT = "step_cut_short"
    CIRCUIT_OPEN = "circuit_open"
    PAYLOAD_TOO_LARGE = "payload_too_large"

    # how the engine closed a dead letter
    REPLAY_SUCCEEDED = "replay_succeeded"
    STEP_REPLAY_SUCCEEDED = "step_replay_succeeded"
    ROLLED_BACK = "rolled_back"
    RUN_CANCELLED = "run_cancelled"
    LETTER_EXPIRED = "letter_expired"

    # what was decided after an attempt
    RETRY_SCHEDULED = "retry_scheduled"
    NOT_RETRIED = "not_retried"
    ATTEMPT_SUCCEEDED = "attempt_succeeded"
    ATTEMPT_CANCELLED = "attempt_cancelled"
    ATTEMPT_LOST = "attempt_lost"
    ATTEMPT_RELEASED = "attempt_released"
    ATTEMPT_INTERRUPTED = "attempt_interrupted"
    ATTEMPT_ENDED = "attempt_ended"
    CIRCUIT_WAS_OPEN = "circuit_was_open"
    TIMED_OUT = "timed_out"
    NETWORK_ERROR = "network_error"
    RATE_LIMITED = "rate_limited"
    SERVER_ERROR = "server_error"
    DEPENDENCY_UNAVAILABLE = "dependency_unavailable"
    INVALID_DATA = "invalid_data"
    NOT_AUTHORISED = "not_authorised"
    NOT_FOUND = "not_found"
    CLIENT_ERROR = "client_error"
    CONFIGURATION_MISSING = "configuration_missing"
    INTERNAL_ERROR = "internal_error"
    UNCLASSIFIED_ERROR = "unclassified_error"

    # why an attempt is not repeated
    RETRIES_EXHAUSTED = "retries_exhausted"
    NO_RETRY_ALLOWED = "no_retry_allowed"
    RETRY_TIME_EXCEEDED = "retry_time_exceeded"
    STEP_AT_MOST_ONCE = "step_at_most_once"
    RAISED_NON_RETRYABLE = "raised_non_retryable"
    IN_NEVER_RETRY_ON = "in_never_retry_on"
    NOT_IN_RETRY_ON = "not_in_retry_on"
    CATEGORY_NOT_RETRIED = "category_not_retried"
    RUN_ENDING = "run_ending"

    # why a circuit changed
    CIRCUIT_PROBE_FAILED = "circuit_probe_failed"
    CIRCUIT_FAILURES = "circuit_failures"
    CIRCUIT_OPEN_TIME_OVER = "circuit_open_time_over"
    CIRCUIT_PROBE_SUCCEEDED = "circuit_probe_succeeded"

    # what follows a failure, in notifications
    NEXT_ATTEMPT = "next_attempt"
    NEXT_UNDONE = "next_undone"
    NEXT_DECISION = "next_decision"
    NEXT_WORKFLOW = "next_workflow"
    NEXT_PROBE = "next_probe"

    # what a dry run warns of
    VERSION_CHANGED = "version_changed"
    WORKFLOW_NEVER_REGISTERED = "workflow_never_registered"
    WORKFLOW_HAS_NO_WORKER = "workflow_has_no_worker"
    RESULTS_FROM_ORIGINAL_INPUT = "results_from_original_input"
    SAME_IDEMPOTENCY_KEY = "same_idempotency_key"
    NEW_IDEMPOTENCY_KEYS = "new_idempotency_keys"
    STEP_MAY_HAVE_HAPPENED = "step_may_have_happened"
    STEP_ACTS_AGAIN = "step_acts_again"

    # why a saved view is refused
    VIEW_LIST_UNKNOWN = "view_list_unknown"
    TOO_MANY_SHARED_VIEWS = "too_many_shared_views"
    TOO_MANY_VIEWS = "too_many_views"
    SHARED_VIEW_NOT_FOUND = "shared_view_not_found"
    VIEW_NOT_FOUND = "view_not_found"
    VIEW_NAME_INVALID = "view_name_invalid"
    VIEW_FILTER_TOO_LONG = "view_filter_too_long"
    VIEW_FIELD_UNKNOWN = "view_field_unknown"
    VIEW_FILTER_EMPTY = "view_filter_empty"

    # why a decision on many dead letters is refused
    SET_NOT_FOUND = "set_not_found"
    SET_DONE = "set_done"
    SET_STOPPED = "set_stopped"
    SET_UNREADABLE = "set_unreadable"
    SET_ITEM_STATUS_UNKNOWN = "set_item_status_unknown"
    RATE_INVALID = "rate_invalid"
    RATE_OUT_OF_RANGE = "rate_out_of_range"
    LETTERS_NOT_SELECTED = "letters_not_selected"
    LETTER_IDS_NEEDED = "letter_ids_needed"
    LETTER_IDS_TOO_MANY = "letter_ids_too_many"
    LETTER_ID_INVALID = "letter_id_invalid"
    ONLY_OPEN_LETTERS = "only_open_letters"
    TENANTS_DIFFER = "tenants_differ"
    UNEXPECTED_ERROR = "unexpected_error"

    # why a decision on one dead letter or run is refused
    LETTER_NOT_FOUND = "letter_not_found"
    LETTER_GONE = "letter_gone"
    LETTER_OR_RUN_NOT_FOUND = "letter_or_run_not_found"
    RUN_NOT_FOUND = "run_not_found"
    LETTER_RUN_PURGED = "letter_run_purged"
    RUN_PURGED = "run_purged"
    RUN_SEALED = "run_sealed"
    RUN_REPLAYED_AS = "run_replayed_as"
    LETTER_REPLAYING = "letter_replaying"
    LETTER_RESOLVED = "letter_resolved"
    LETTER_CLOSED = "letter_closed"
    LETTER_CLOSED_BEFORE = "letter_closed_before"
    LETTER_NOT_OPEN = "letter_not_open"
    NO_REASON_GIVEN = "no_reason_given"
    KEY_USED = "key_used"
    WORKFLOW_UNREGISTERED = "workflow_unregistered"
    WORKFLOW_ABANDONED = "workflow_abandoned"
    CODE_UNREGISTERED = "code_unregistered"
    RUN_ENDED = "run_ended"
    RUN_BEING_UNDONE = "run_being_undone"
    RUN_CONFIRMING = "run_confirming"

    # why a replay does not fit its run
    NOT_REPLAYABLE = "not_replayable"
    ROLLED_BACK_ALREADY = "rolled_back_already"
    NOT_ROLLED_BACK = "not_rolled_back"
    ROLLBACK_STOPPED = "rollback_stopped"
    PIVOT_PASSED = "pivot_passed"
    RUN_UNDONE = "run_undone"
    ROLLBACK_NEEDS_DECISION = "rollback_needs_decision"
    ROLLBACK_KEEPS_KEYS = "rollback_keeps_keys"
    NOT_UNDONE_YET = "not_undone_yet"
    NEW_OPERATION_NEEDED = "new_operation_needed"
    ROLLBACK_RUNNING = "rollback_running"
    OTHER_COMPENSATION_NEXT = "other_compensation_next"
    STEP_CONFIRMED = "step_confirmed"
    FROM_STEP_NEEDED = "from_step_needed"
    FROM_STEP_UNUSED = "from_step_unused"
    FROM_STEP_INVALID = "from_step_invalid"
    FROM_STEP_UNKNOWN = "from_step_unknown"
    INPUT_AND_PATCH = "input_and_patch"
    INPUT_KEPT = "input_kept"
    OUTPUT_UNUSED = "output_unused"
    UNDO_UNUSED = "undo_unused"
    SKIP_STEPS_UNUSED = "skip_steps_unused"
    SKIP_STEPS_TWICE = "skip_steps_twice"
    STEP_WOULD_REPEAT = "step_would_repeat"
    STEP_UNCERTAIN = "step_uncertain"
    FULL_WOULD_REPEAT = "full_would_repeat"
    STEP_SUCCEEDED = "step_succeeded"
    NO_STEP_FAILED = "no_step_failed"
    STEP_CALL_UNCERTAIN = "step_call_uncertain"
    REPLAY_OPTION_UNKNOWN = "replay_option_unknown"
    REPLAY_MODE_UNKNOWN = "replay_mode_unknown"
    RETRY_POLICY_NEEDED = "retry_policy_needed"
    PATCH_OBJECT_NEEDED = "patch_object_needed"
    INPUT_NOT_PATCHABLE = "input_not_patchable"
    MASK_AMBIGUOUS = "mask_ambiguous"

    # why a start is refused
    START_OPTION_UNKNOWN = "start_option_unknown"
    START_KEY_USED = "start_key_used"
    EVENT_USED = "event_used"
    DEADLINE_WITHOUT_ZONE = "deadline_without_zone"
    DEADLINE_TOO_FAR = "deadline_too_far"
    INDEX_VALUE_INVALID = "index_value_invalid"

    # why another request is refused
    POLICY_NEEDED = "policy_needed"
    POLICY_TARGET_NEEDED = "policy_target_needed"
    CIRCUIT_UNKNOWN = "circuit_unknown"
    CIRCUIT_SETTINGS_NEEDED = "circuit_settings_needed"
    CIRCUIT_NAME_FIXED = "circuit_name_fixed"
    CIRCUIT_KEY_INVALID = "circuit_key_invalid"
    NOTIFICATION_NOT_FOUND = "notification_not_found"
    MESSAGE_NOT_FOUND = "message_not_found"
    SINK_NOT_FOUND = "sink_not_found"
    SCHEDULE_IN_CODE = "schedule_in_code"
    SCHEDULE_NOT_FOUND = "schedule_not_found"
    EVENT_HAS_KEY = "event_has_key"
    START_ITEM_INVALID = "start_item_invalid"
    TOO_MANY_MESSAGES = "too_many_messages"

    # what is wrong with a value that a person typed
    OBJECT_NEEDED = "object_needed"
    FLAG_NEEDED = "flag_needed"
    SHORT_TEXT_NEEDED = "short_text_needed"
    LONG_TEXT_NEEDED = "long_text_needed"
    TEXT_UNSTORABLE = "text_unstorable"
    WHOLE_NUMBER_NEEDED = "whole_number_needed"
    ENGINE_NAME_TAKEN = "engine_name_taken"
    NOT_JSON = "not_json"
    MASKED_OUTPUT = "masked_output"
    WORKFLOW_INPUT = "workflow_input"
    STEP_OUTPUT = "step_output"
    VALUE_INVALID = "value_invalid"
    FAULTS = "faults"
    FAULT = "fault"
    FIELD_UNKNOWN = "field_unknown"
    FORM_LACKS_FIELDS = "form_lacks_fields"
    MODE_KEEPS_INPUT = "mode_keeps_input"
    INPUT_OBJECT_NEEDED = "input_object_needed"
    POLICY_OBJECT_NEEDED = "policy_object_needed"
    STEP_CHOICE_NEEDED = "step_choice_needed"
    OUTPUT_NEEDED = "output_needed"
    OUTPUT_NOT_JSON = "output_not_json"
    JSON_SYNTAX = "json_syntax"
    JSON_TOO_DEEP = "json_too_deep"
    JSON_NUMBER_TOO_LONG = "json_number_too_long"
    JSON_NUMBER_TOO_LARGE = "json_number_too_large"
    JSON_NAME_TWICE = "json_name_twice"
    JSON_CONSTANT = "json_constant"

    # what is wrong with one place of a value
    PYDANTIC_RULE = "pydantic_rule"
    NESTED_TOO_DEEP = "nested_too_deep"
    NUMBER_TOO_LONG = "number_too_long"
    JSON_INVALID = "json_invalid"
    NOT_STORABLE_AS_ANNOTATED = "not_storable_as_annotated"
    REFERS_TO_ITSELF = "refers_to_itself"
    SURROGATES_JOIN = "surrogates_join"
    NOT_STORABLE = "not_storable"
    INTEGER_TOO_LONG = "integer_too_long"
    NO_JSON_FORM = "no_json_form"
    TYPE_DIFFERS = "type_differs"
    ANNOTATION_DIFFERS = "annotation_differs"
    NOT_STORABLE_HERE = "not_storable_here"
    NOT_READABLE_BACK = "not_readable_back"
    CHANGED_BY_READING = "changed_by_reading"
    UNION_AMBIGUOUS = "union_ambiguous"
    EXPECTED = "expected"
    EXPECTED_NOTHING = "expected_nothing"
    FIELD_MISSING = "field_missing"
    FIELD_NAME_INVALID = "field_name_invalid"
    EXPECTED_UNIQUE = "expected_unique"
    EXPECTED_AT_LEAST = "expected_at_least"
    EXPECTED_AT_MOST = "expected_at_most"
    EXPECTED_ABOVE = "expected_above"
    EXPECTED_BELOW = "expected_below"
    EXPECTED_MULTIPLE = "expected_multiple"
    EXPECTED_PATTERN = "expected_pattern"
    TOO_FEW_ITEMS = "too_few_items"
    TOO_MANY_ITEMS = "too_many_items"
    TOO_FEW_FIELDS = "too_few_fields"
    TOO_MANY_FIELDS = "too_many_fields"
    TEXT_TOO_SHORT = "text_too_short"
    TEXT_TOO_LONG = "text_too_long"
    ONE_OF = "one_of"
    KIND_OBJECT = "kind_object"
    KIND_LIST = "kind_list"
    KIND_TEXT = "kind_text"
    KIND_INTEGER = "kind_integer"
    KIND_NUMBER = "kind_number"
    KIND_FRACTION = "kind_fraction"
    KIND_BOOLEAN = "kind_boolean"
    KIND_NULL = "kind_null"
    KIND_VALUE = "kind_value"
    KIND_OTHER_VALUE = "kind_other_value"
    KIND_FOREIGN = "kind_foreign"
