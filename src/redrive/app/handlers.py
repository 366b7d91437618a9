"""Which workflows are told of failures: each workflow's own handler, and the one for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redrive.clock import MICROS
from redrive.core.classify import Category
from redrive.core.ending import Ending, LetterCode
from redrive.core.failure import Failure
from redrive.core.handlers import event_text
from redrive.core.options import Handler, OnFailure, RunOptions
from redrive.core.outcome import RunView
from redrive.errors import PayloadError, RegistrationError
from redrive.reasons import Reason, ReasonCode

if TYPE_CHECKING:
    from redrive.app.app import Redrive
    from redrive.app.workflow import Workflow

__all__ = ["Handlers"]


class Handlers:
    """The failure handlers of an app, by name: they may be registered after the workflows they handle."""

    def __init__(self, app: Redrive) -> None:
        self._app = app
        self._own: dict[str, str] = {}
        self._for_all: str | None = None

    def note(self, workflow: str, handler: Any) -> None:
        """Remember the handler that a workflow was registered with, if it was."""
        if handler is not None:
            self._own[workflow] = self._name(handler, f"on_failure of workflow {workflow!r}")

    def note_for_all(self, handler: Workflow[Any, Any, Any]) -> None:
        """Remember the handler of all failures; there is one."""
        name = self._name(handler, "@app.on_failure")
        if self._for_all is not None:
            raise RegistrationError(
                f"@app.on_failure is workflow {self._for_all!r} already, so {name!r} cannot be it as well; "
                "let one workflow do both, or give on_failure= to the workflows that need the other"
            )
        self._for_all = name

    def _name(self, handler: Any, what: str) -> str:
        if isinstance(handler, str) and handler:
            return handler
        for name, workflow in self._app.registered_workflows.items():
            if workflow is handler:
                return name
        raise RegistrationError(
            f"{what} is {handler!r:.80}; give a workflow of the same app, or the name of one"
        )

    def of(self, workflow: str) -> OnFailure | None:
        """What a failure of this workflow starts; the same workflow is not started twice."""
        names = dict.fromkeys(name for name in (self._own.get(workflow), self._for_all) if name is not None)
        if not names:
            return None
        settings = self._app.settings
        handlers = tuple(self._handler(workflow, name) for name in names)
        return OnFailure(handlers=handlers, limit=settings.max_payload, base_url=settings.base_url)

    def check(self) -> None:
        """Refuse handlers that do not exist or cannot take the event, before anything depends on them."""
        for name in self._app.registered_workflows:
            self.of(name)
        handling = {*self._own.values(), *([] if self._for_all is None else [self._for_all])}
        for name in sorted(handling):
            _refuse_misfit(self._app.registered_workflows[name])

    def _handler(self, workflow: str, name: str) -> Handler:
        found = self._app.registered_workflows.get(name)
        if found is None:
            known = ", ".join(sorted(self._app.registered_workflows))
            raise RegistrationError(
                f"on_failure of workflow {workflow!r} is {name!r}, which is not registered; "
                f"there are: {known}"
            )
        return Handler(
            workflow=name,
            parameter=_parameter(found),
            options=found.own_options.to_json(),
            timeout=None if found.timeout is None else int(found.timeout * MICROS),
        )


def _parameter(handler: Workflow[Any, Any, Any]) -> str:
    names = handler.signature.parameters
    if not names:
        raise RegistrationError(
            f"workflow {handler.name!r} handles failures, so it must take one parameter: "
            f"async def {handler.name}(event: FailureEvent)"
        )
    return names[0]


def _refuse_misfit(handler: Workflow[Any, Any, Any]) -> None:
    """An event that says as little as one can must be accepted, or the first failure would find out."""
    failure = Failure.of(Category.UNKNOWN, "a sample")
    ending = Ending(
        failure=failure, code=LetterCode.NON_RETRYABLE, reason=Reason(ReasonCode.TEXT, text="a sample")
    )
    run = RunView(id=0, public_id="0", tenant="t", workflow="w", fence=0, input="{}", options=RunOptions())
    event = event_text(run, ending, OnFailure(handlers=(), limit=1 << 20), 0)
    parameter = _parameter(handler)
    try:
        handler.signature.decode(f'{{"{parameter}":{event}}}')
    except PayloadError as error:
        raise RegistrationError(
            f"workflow {handler.name!r} handles failures, but a FailureEvent does not fit it: {error}. "
            f"Annotate {parameter!r} with FailureEvent, and give other parameters defaults"
        ) from None
