"""Follow-up steps, which undo, confirm or cancel another step: their checks and their registration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from redrive.actions import Action, ApiCall, Sql
from redrive.core.json_schema import find_faults
from redrive.core.payload import Signature
from redrive.core.run_options import StepOptions
from redrive.core.template import explain_missing_field, parse_fields
from redrive.errors import InputError, RegistrationError
from redrive.http.client import require_h11
from redrive.http.ssrf import check_url
from redrive.settings import AllowedHost
from redrive.worker.definitions import Step
from redrive.worker.rollback import run_action

FollowUpDefinition: TypeAlias = Callable[..., Any] | Action
FollowUpVerb: TypeAlias = Literal["undo", "confirm", "cancel"]
_STEP_TEMPLATE_FIELDS = ("name", "idempotency_key", "run_id", "tenant", "correlation_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUpStep:
    """A step that follows up another one. `uncertain`: also if the result of that step is unknown."""

    of: Step[Any, Any]
    step: Step[Any, Any]
    uncertain: bool = False

    def check_types(self) -> None:
        """Refuse templates with unknown fields of the step, and a `result` that cannot be None but must."""
        action, signature = self.step.action, self.of.signature
        if action is None:
            if self.uncertain and not accepts_missing_result(self.step):
                raise RegistrationError(
                    f"{self.step.name}() also undoes step {self.of.name!r} if the step's outcome is unknown, with None "
                    "for its result: annotate the result as optional, as in `result: Receipt | None`"
                )
            return
        step_fields: dict[str, Any] = {name: {} for name in _STEP_TEMPLATE_FIELDS}
        schemas: dict[str, dict[str, Any]] = {
            "input": signature.build_input_schema(),
            "result": signature.build_output_schema(),
            "step": {"type": "object", "properties": step_fields, "additionalProperties": False},
        }
        for text, (root, *rest) in parse_fields(action.to_json()):
            missing = explain_missing_field(schemas[root], rest)
            if missing is not None:
                raise RegistrationError(
                    f"{type(action).__name__} of step {self.of.name!r} names {{{{{text}}}}}, but {root} {missing}"
                )


def accepts_missing_result(step: Step[Any, Any]) -> bool:
    """Return True if a follow-up step can be called without the result of the step before it."""
    if step.action is not None:
        return not any(parts[0] == "result" for _, parts in parse_fields(step.action.to_json()))
    schema = step.signature.build_input_schema()
    result = schema.get("properties", {}).get("result", {})
    return not result or not find_faults(None, {**result, "$defs": schema.get("$defs", {})})


def check_follow_up(step: str, definition: Any, verb: FollowUpVerb) -> None:
    """Refuse a definition that is neither a function nor a declared action."""
    if not isinstance(definition, get_args(Action)) and not inspect.isroutine(definition):
        raise RegistrationError(
            f"{definition!r} cannot {verb} step {step!r}: give a function or a declared action (ApiCall, Sql, Notify, "
            "Manual)"
        )


@dataclass(slots=True)
class FollowUpSteps:
    """The follow-up steps of an app, with the hosts and connections that declared actions may use."""

    allowed: Sequence[AllowedHost] = ()
    connections: dict[str, str] = field(default_factory=dict)
    all: list[FollowUpStep] = field(default_factory=list)

    def add(
        self,
        step: Step[Any, Any],
        definition: FollowUpDefinition,
        verb: FollowUpVerb,
        names: Mapping[str, Any],
        name: str,
        options: StepOptions,
        *,
        uncertain: bool,
    ) -> Step[Any, Any]:
        """Make a follow-up step from a function or a declared action, check it and keep it."""
        if "result" in step.signature.parameters:
            raise RegistrationError(
                f"step {step.name!r} has a parameter called 'result', the name under which {name!r} gets the step's "
                "result: rename the parameter"
            )
        if callable(definition):
            signature = Signature.of(definition, names=names)
            expected = (*step.signature.parameters, "result")
            if signature.parameters != expected:
                raise RegistrationError(
                    f"{name}({', '.join(signature.parameters)}) cannot {verb} step {step.name!r}: it is called with "
                    f"the step's arguments, then with its result, so it must be {name}({', '.join(expected)})"
                )
            made: Step[Any, Any] = Step(definition, name=name, options=options, signature=signature)
        else:
            self._check_action(step, definition)
            action = definition

            async def declared(input: dict[str, Any], result: Any) -> Any:
                return await run_action(action, input, result)

            made = Step(declared, name=name, options=options, signature=Signature.of(declared), action=action)
        follow_up = FollowUpStep(of=step, step=made, uncertain=uncertain)
        # A type may be defined later in the module; then its check waits until the app is opened.
        with suppress(RegistrationError):
            step.signature.prepare()
            made.signature.prepare()
        if step.signature.is_prepared and made.signature.is_prepared:
            follow_up.check_types()
        self.all.append(follow_up)
        return made

    def _check_action(self, step: Step[Any, Any], action: Action) -> None:
        what = f"{type(action).__name__} of step {step.name!r}"
        if isinstance(action, Sql) and action.connection not in self.connections:
            known = ", ".join(sorted(self.connections)) or "none"
            raise RegistrationError(
                f"{what} names connection {action.connection!r}; registered are: {known}. Register it first: "
                f"app.connection({action.connection!r}, url)"
            )
        if isinstance(action, ApiCall):
            require_h11()
            try:
                check_url(action.origin, self.allowed)
            except InputError as error:
                raise RegistrationError(f"{what}: {error}") from None
