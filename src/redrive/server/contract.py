"""The codes of problems: what each error becomes on its way out, and what a client takes it for again."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from redrive import errors
from redrive.core.roles import Role
from redrive.reasons import Reason
from redrive.store.accounts import TokenKind, TokenRow

# -- The codes of problems: what each error becomes on its way out, and what a client takes it for a -----


class ErrorKind(msgspec.Struct, frozen=True, gc=False):
    """How an error is told: the status, a word that stays, and the same in words."""

    status: int
    code: str
    title: str


_K = ErrorKind
ERROR_KINDS: Mapping[type[BaseException], ErrorKind] = {
    errors.NotFound: _K(404, "not_found", "There is no such thing"),
    errors.NotSignedIn: _K(401, "not_signed_in", "A valid credential is needed"),
    errors.NotAllowed: _K(403, "not_allowed", "This credential may not do that"),
    errors.Conflict: _K(409, "conflict", "It exists already, or has moved on"),
    errors.UnknownWorkflow: _K(422, "unknown_workflow", "No code registered this workflow"),
    errors.PayloadTooLarge: _K(413, "payload_too_large", "A value is too large"),
    errors.PayloadError: _K(422, "payload_does_not_fit", "A value does not fit its type"),
    errors.InputError: _K(422, "invalid_input", "The request does not make sense"),
    errors.DataRefused: _K(422, "data_refused", "The store refused what was sent"),
    errors.StoreUnavailable: _K(503, "store_unavailable", "The store does not answer; repeat the request"),
    errors.SchemaMismatch: _K(503, "schema_mismatch", "The store's schema does not fit this server"),
    errors.StoreError: _K(503, "store_error", "The store cannot be used"),
    errors.RegistrationError: _K(500, "configuration", "The server is not set up for this"),
    errors.ConfigurationError: _K(500, "configuration", "The server is not set up for this"),
    errors.MisusedStep: _K(500, "internal", "Something went wrong here"),
    errors.StepFailed: _K(500, "internal", "Something went wrong here"),
    errors.RunPartial: _K(409, "run_partial", "Only a part of the run was replayed"),
    errors.RunCancelled: _K(409, "run_cancelled", "The run was cancelled"),
    errors.RunFailed: _K(409, "run_failed", "The run ended without a result"),
    errors.NonRetryable: _K(500, "internal", "Something went wrong here"),
    errors.RetryAfter: _K(500, "internal", "Something went wrong here"),
    errors.RedriveError: _K(500, "internal", "Something went wrong here"),
}
"""What each error becomes; the first that fits, from the leaves of the tree to its root."""

HTTP_PROBLEMS = {
    400: ("bad_request", "The request cannot be read"),
    404: ("no_such_path", "There is no such path"),
    405: ("method_not_allowed", "This path has no such method"),
    408: ("too_slow", "The request took too long to arrive"),
    409: ("request_in_progress", "The same request is under way"),
    411: ("length_required", "The length of the body is needed"),
    413: ("payload_too_large", "The body is too large"),
    415: ("unsupported_media_type", "The body must be application/json"),
    422: ("invalid_request", "The request does not fit its description"),
    429: ("too_many_requests", "Too many requests"),
    431: ("headers_too_large", "The headers are too large"),
    503: ("stopping", "The server is stopping"),
}
"""Problems of HTTP itself: for each status the code and its words."""

_INPUT_STATUSES = frozenset({400, 408, 411, 413, 415, 422, 431})


def make_error(status: int, code: str, detail: str | Reason) -> errors.RedriveError:
    """The error that a problem was made from, or the one nearest to it."""
    for kind, known in ERROR_KINDS.items():
        if known.code == code and known.status == status and issubclass(kind, errors.RedriveError):
            return _construct_error(kind, detail)
    if status in (429, 503):
        return errors.StoreUnavailable(detail)
    if status == 409:
        return errors.Conflict(detail)
    return errors.InputError(detail) if status in _INPUT_STATUSES else errors.StoreError(detail)


def _construct_error(kind: type[errors.RedriveError], detail: str | Reason) -> errors.RedriveError:
    """Some errors take more than a sentence; what tells them apart is not sent."""
    try:
        return kind(detail)
    except TypeError:
        return errors.RedriveError(detail)


# -- People and tokens that somebody wants to have; apart, since asking for them needs none of their -----


class NewUser(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A person to be known. Without a password a code to sign in once is made."""

    email: str
    tenant: str
    role: Role
    password: str | None = None
    payloads: bool = False


class NewToken(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A token to be made. `lasts` is in seconds; a signed one has an end in any case."""

    tenant: str
    role: Role
    name: str
    kind: TokenKind = TokenKind.KEY
    workflows: tuple[str, ...] = ()
    payloads: bool = False
    lasts: int | None = None


class IssuedToken(msgspec.Struct, frozen=True, gc=False):
    """A token, and its secret, which is shown now and never again."""

    token: TokenRow
    secret: str
