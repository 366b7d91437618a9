"""Problems: the HTTP status, code and title that stand for each error, for the server and its clients."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from redrive import errors
from redrive.reasons import Reason


class ErrorKind(msgspec.Struct, frozen=True, gc=False):
    """A kind of problem: its HTTP status, its code, which never changes, and its title."""

    status: int
    code: str
    title: str


_K = ErrorKind
ERROR_KINDS: Mapping[type[BaseException], ErrorKind] = {
    errors.NotFound: _K(404, "not_found", "Not found"),
    errors.NotSignedIn: _K(401, "not_signed_in", "A valid credential is needed"),
    errors.NotAllowed: _K(403, "not_allowed", "This credential may not do that"),
    errors.Conflict: _K(409, "conflict", "Conflict with the current state"),
    errors.TooManyEvents: _K(429, "too_many_events", "The run has too many unread events"),
    errors.UnknownWorkflow: _K(422, "unknown_workflow", "No code registered this workflow"),
    errors.PayloadTooLarge: _K(413, "payload_too_large", "A value is too large"),
    errors.PayloadError: _K(422, "payload_does_not_fit", "A value does not fit its type"),
    errors.InputError: _K(422, "invalid_input", "The request is invalid"),
    errors.DataRefused: _K(422, "data_refused", "The store refused what was sent"),
    errors.StoreUnavailable: _K(503, "store_unavailable", "The store does not answer; repeat the request"),
    errors.SchemaMismatch: _K(503, "schema_mismatch", "The schema of the store does not fit this server"),
    errors.StoreError: _K(503, "store_error", "The store cannot be used"),
    errors.RegistrationError: _K(500, "configuration", "The server is misconfigured; see its log"),
    errors.ConfigurationError: _K(500, "configuration", "The server is misconfigured; see its log"),
    errors.MisusedStep: _K(500, "internal", "Internal error"),
    errors.ChildFailed: _K(500, "internal", "Internal error"),
    errors.StepFailed: _K(500, "internal", "Internal error"),
    errors.WaitExpired: _K(500, "internal", "Internal error"),
    errors.RunPartial: _K(409, "run_partial", "Only a part of the run was replayed"),
    errors.RunCancelled: _K(409, "run_cancelled", "The run was cancelled"),
    errors.RunFailed: _K(409, "run_failed", "The run ended without a result"),
    errors.NonRetryable: _K(500, "internal", "Internal error"),
    errors.RetryAfter: _K(500, "internal", "Internal error"),
    errors.RedriveError: _K(500, "internal", "Internal error"),
}
"""The problem for each error. The first that fits counts: subclasses come before their base."""

HTTP_PROBLEMS = {
    400: ("bad_request", "The request cannot be read"),
    404: ("no_such_path", "Unknown path"),
    405: ("method_not_allowed", "This path has no such method"),
    408: ("too_slow", "The request took too long to arrive"),
    409: ("request_in_progress", "The same request is being handled"),
    411: ("length_required", "The length of the body is needed"),
    413: ("payload_too_large", "The body is too large"),
    415: ("unsupported_media_type", "The body must be application/json"),
    422: ("invalid_request", "The request does not fit its description"),
    429: ("too_many_requests", "Too many requests"),
    431: ("headers_too_large", "The headers are too large"),
    503: ("stopping", "The server is stopping"),
}
"""Problems of HTTP itself: the code and the title for each status."""

_INPUT_STATUSES = frozenset({400, 408, 411, 413, 415, 422, 431})


def make_error(status: int, code: str, detail: str | Reason) -> errors.RedriveError:
    """Return the error that a problem was made from, or the nearest one."""
    for kind, known in ERROR_KINDS.items():
        if known.code == code and known.status == status and issubclass(kind, errors.RedriveError):
            try:
                return kind(detail)
            except TypeError:  # the error needs more than a sentence, which the problem does not have
                return errors.RedriveError(detail)
    if status in (429, 503):
        return errors.StoreUnavailable(detail)
    if status == 409:
        return errors.Conflict(detail)
    if status == 426:
        return errors.ConfigurationError(detail)
    return errors.InputError(detail) if status in _INPUT_STATUSES else errors.StoreError(detail)
