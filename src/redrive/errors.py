"""Errors that Redrive raises, and what each one means for the caller.

    RedriveError
    ├── ConfigurationError      the app, a decorator or a setting is wrong; nothing was started
    │   └── RegistrationError   a workflow or step cannot be registered as written
    ├── InputError              a call was refused before anything was stored
    │   ├── UnknownWorkflow     no workflow of that name is registered
    │   ├── PayloadError        a value does not fit its type or cannot be written as JSON
    │   └── PayloadTooLarge     a value is larger than REDRIVE_MAX_PAYLOAD
    ├── NotFound                no such run or dead letter (for this tenant)
    ├── NotSignedIn             the caller has no credential, or one that is not valid
    ├── NotAllowed              the caller has no permission; the message says what is missing
    ├── Conflict                the current state contradicts the call
    ├── TooManyEvents           the run has too many unread events; send again later
    ├── StoreError              the store cannot be used as it is
    │   ├── StoreUnavailable    it did not answer; repeat the call
    │   ├── SchemaMismatch      its schema is too old or too new for this code
    │   └── DataRefused         it refused one row because of its content
    ├── MisusedStep             a step was called where a step cannot run
    ├── StepFailed              raised into workflow code: a step failed permanently; catch it to continue
    │   └── ChildFailed         ... a run that this run waited for ended without a result
    ├── WaitExpired             raised into workflow code: no event came in time; it is a TimeoutError, too
    ├── RunFailed               raised by `handle.result()`: the run ended without a result
    │   ├── RunPartial          ... only one step was replayed; retry `from_failed` continues it
    │   └── RunCancelled        ... it was cancelled
    ├── NonRetryable            raise it in a step: never retried
    └── RetryAfter              raise it in a step: retried, but not before the delay

`RunDetached` stands outside the tree: it is a BaseException that unwinds workflow code whose run this
process no longer executes. Code that catches `Exception` does not catch it; let it pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redrive.reasons import Reason

__all__ = [
    "ChildFailed", "ConfigurationError", "Conflict", "DataRefused", "InputError", "MisusedStep", "NonRetryable",
    "NotAllowed", "NotFound", "NotSignedIn", "PayloadError", "PayloadTooLarge", "RunDetached", "RedriveError",
    "RegistrationError", "RetryAfter", "RunCancelled", "RunFailed", "RunPartial", "SchemaMismatch",
    "StepFailed", "StoreError", "StoreUnavailable", "TooManyEvents", "UnknownWorkflow", "WaitExpired",
]  # fmt: skip


class RedriveError(Exception):
    """Base class of all errors that Redrive raises on purpose.

    An error may be made from a `Reason` instead of a message; its text is then the English sentence.
    """

    @property
    def reason(self) -> Reason | None:
        """The reason that the error was made from, if any, for programs and other languages."""
        from redrive.reasons import Reason

        first = self.args[0] if self.args else None
        return first if isinstance(first, Reason) else None


class ConfigurationError(RedriveError):
    """The app, a decorator or a setting is wrong. Nothing was started; correct it and start again.

    Raise it in a step when configuration is missing: the failure is classified `missing_config`
    and is not retried.
    """


class RegistrationError(ConfigurationError):
    """A workflow or step cannot be registered as written."""


class InputError(RedriveError):
    """A call was refused before anything was stored."""


class UnknownWorkflow(InputError):
    """No workflow of that name is registered."""


class PayloadError(InputError):
    """A value does not fit its type, or cannot be written as JSON. `path` names the field."""

    def __init__(self, message: str | Reason, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class PayloadTooLarge(InputError):
    """A value is larger than `REDRIVE_MAX_PAYLOAD`. Store it elsewhere and pass a reference."""


class NotFound(RedriveError):
    """The requested object does not exist, or it belongs to another tenant."""


class NotSignedIn(RedriveError):
    """The call has no credential, or one that is unknown, expired or revoked. Sign in and repeat the call."""


class NotAllowed(RedriveError):
    """The caller is signed in but lacks a permission. Nothing was changed; the message says what is missing.

    `role` is the lowest role that has the permission, if a role gives it.
    """

    def __init__(self, message: str | Reason, *, role: str | None = None) -> None:
        super().__init__(message)
        self.role = role


class Conflict(RedriveError):
    """The current state contradicts the call: the object exists already, or it has changed since."""


class TooManyEvents(RedriveError):
    """The run has as many unread events as a run may have. Send the event again when it has taken some."""


class StoreError(RedriveError):
    """The store cannot be used as it is. The message says what to do."""


class StoreUnavailable(StoreError):
    """The store did not answer. Nothing is lost; repeat the call.

    `problem` is the message without its end, `then`, which says what a worker does about it.
    """

    def __init__(self, message: str | Reason, *, then: str = "") -> None:
        super().__init__(f"{message}; {then}" if then else message)
        self.problem = str(message)


class SchemaMismatch(StoreError):
    """The store's schema is too old or too new for this code."""


class DataRefused(StoreError):
    """The store refused one row because of its content. Repeating the call would not help."""


class MisusedStep(RedriveError):
    """A step was called where a step cannot run, such as inside another step's body."""


class StepFailed(RedriveError):
    """A step failed permanently. The error is the same live and after a crash.

    Workflow code may catch it and take another path. If it leaves the workflow function, the run becomes a dead
    letter.
    """

    def __init__(
        self,
        *,
        step: str,
        category: str,
        error_type: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        bases: tuple[str, ...] = (),
        key: str = "",
    ) -> None:
        super().__init__(f"step {step!r} failed ({category}): {error_type}: {message}")
        self.step = step
        self.category = category
        self.error_type = error_type
        self.message = message
        self.details = dict(details or {})
        self.bases = bases
        self.key = key

    def is_a(self, error: type[BaseException] | str) -> bool:
        """Return True if the step raised this class or a subclass, compared by qualified name."""
        name = error if isinstance(error, str) else f"{error.__module__}.{error.__qualname__}"
        return name == self.error_type or name in self.bases


class ChildFailed(StepFailed):
    """A run that this run waited for ended without a result. The error is the same live and after a crash.

    `run_id` and `status` are those of that run; `category`, `error_type` and `message` tell its failure.
    """

    def __init__(self, *, run_id: str, status: str, **failure: Any) -> None:
        super().__init__(**failure)
        self.args = (self.message,)
        self.run_id = run_id
        self.status = status


class WaitExpired(RedriveError, TimeoutError):
    """No event came within the timeout of a wait. The error is the same live and after a crash.

    Workflow code may catch it, as `TimeoutError`. If it leaves the workflow function, the run becomes a dead letter.
    """

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class RunFailed(RedriveError):
    """The run ended without a result. Its dead letter, if it has one, has all details."""

    def __init__(
        self,
        message: str,
        *,
        run_id: str,
        status: str,
        step: str | None = None,
        category: str | None = None,
        error_type: str | None = None,
        code: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.run_id = run_id
        self.status = status
        self.step = step
        self.category = category
        self.error_type = error_type
        self.code = code
        self.details = dict(details or {})


class RunPartial(RunFailed):
    """Only one step of the run was replayed. `retry` with `from_failed` continues it."""


class RunCancelled(RunFailed):
    """The run was cancelled."""


class NonRetryable(RedriveError):
    """Error to raise in a step that must not be retried, whatever the retry policy says."""

    def __init__(self, message: str = "", *, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.details = dict(details or {})


class RetryAfter(RedriveError):
    """Error to raise in a step that is to be retried no earlier than `delay` from now.

    The attempt still counts for the retry policy.
    """

    def __init__(
        self, delay: timedelta | float | str, message: str = "", *, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message or f"retry after {delay}")
        self.delay = delay
        self.details = dict(details or {})


class RunDetached(BaseException):
    """Signal that this process no longer executes the run. Its code unwinds and nothing more is recorded."""


PutDown = RunDetached
"""The former name of `RunDetached`, for code outside the project."""
