"""Registering what undoes, confirms or cancels a step: a function or a declared action, checked at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_args

from redrive.actions import Action, ApiCall, Sql
from redrive.core.circuit import circuit_key
from redrive.core.json_schema import find_faults
from redrive.core.payload import Signature
from redrive.core.run_options import StepOptions
from redrive.core.template import explain_missing_field, parse_fields
from redrive.errors import ConfigurationError, InputError, RegistrationError
from redrive.http.client import require_h11
from redrive.http.ssrf import check_url
from redrive.policy import Circuit
from redrive.settings import AllowedHost
from redrive.worker.definitions import Step
from redrive.worker.rollback import run_action

# -- Registering what undoes, confirms or cancels a step: a function or a declared action, checked a -----


FollowUpDefinition: TypeAlias = Callable[..., Any] | Action
_STEP_TEMPLATE_FIELDS = ("name", "idempotency_key", "run_id", "tenant", "correlation_id")


@dataclass(frozen=True, slots=True)
class FollowUpRole:
    """What a follower does to its step."""

    verb: str
    past: str


UNDO, CONFIRM = FollowUpRole("undo", "undone"), FollowUpRole("confirm", "confirmed")
CANCEL = FollowUpRole("cancel", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUpStep:
    """A step that does something about another. `uncertain`: also without knowing what that gave."""

    of: Step[Any, Any]
    step: Step[Any, Any]
    uncertain: bool = False

    def check_types(self) -> None:
        """Refuse templates that name no field of the step, and a `result` that cannot be None."""
        if self.step.action is not None:
            self._check_templates(self.step.action)
        elif self.uncertain and not accepts_missing_result(self.step):
            raise RegistrationError(
                f"{self.step.name}() also undoes step {self.of.name!r} if nobody knows whether it happened, "
                "with None for its result: annotate it as optional, as in `result: Receipt | None`"
            )

    def _check_templates(self, action: Action) -> None:
        signature = self.of.signature
        schemas: dict[str, dict[str, Any]] = {
            "input": signature.schema_in(),
            "result": signature.schema_out(),
            "step": {
                "type": "object",
                "properties": {name: {} for name in _STEP_TEMPLATE_FIELDS},
                "additionalProperties": False,
            },
        }
        for text, (root, *rest) in parse_fields(action.to_json()):
            missing = explain_missing_field(schemas[root], rest)
            if missing is not None:
                raise RegistrationError(
                    f"{type(action).__name__} of step {self.of.name!r} names {{{{{text}}}}}, but {root} {missing}"
                )


def accepts_missing_result(step: Step[Any, Any]) -> bool:
    """True if this can be called without knowing the result of the step it is about."""
    if step.action is not None:
        return not any(parts[0] == "result" for _, parts in parse_fields(step.action.to_json()))
    schema = step.signature.schema_in()
    result = schema.get("properties", {}).get("result", {})
    return not result or not find_faults(None, {**result, "$defs": schema.get("$defs", {})})


@dataclass(slots=True)
class FollowUpSteps:
    """What was registered to follow steps, and what declared actions may refer to."""

    allowed: Sequence[AllowedHost] = ()
    connections: dict[str, str] = field(default_factory=dict)
    all: list[FollowUpStep] = field(default_factory=list)

    def make(
        self,
        step: Step[Any, Any],
        how: FollowUpDefinition,
        role: FollowUpRole,
        names: Mapping[str, Any],
        name: str,
        options: StepOptions,
    ) -> Step[Any, Any]:
        """The step that does something about another; a wrong one is refused with what it should be."""
        if "result" in step.signature.parameters:
            raise RegistrationError(
                f"step {step.name!r} has a parameter called 'result', which is what its result is called "
                f"when it is to be {role.past}; give the parameter another name"
            )
        if not callable(how):
            self._check_action(step, how)
            return _make_action_step(how, name, options)
        signature = Signature.of(how, names=names)
        _check_parameters(step, name, signature, role)
        return Step(how, name=name, options=options, signature=signature)

    def add(self, follower: FollowUpStep) -> None:
        """Keep it; what its types say is checked now if they are known, at the latest when the app opens."""
        with suppress(RegistrationError):
            follower.of.signature.prepare()
            follower.step.signature.prepare()
        if follower.of.signature.is_prepared and follower.step.signature.is_prepared:
            follower.check_types()
        self.all.append(follower)

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


def check_follow_up(step: str, how: Any, role: FollowUpRole) -> None:
    """Refuse what is neither a function nor a declared action."""
    if not isinstance(how, get_args(Action)) and not inspect.isroutine(how):
        raise RegistrationError(
            f"what is to {role.verb} step {step!r} is a function or a declared action (ApiCall, Sql, Notify, "
            f"Manual), not {how!r}"
        )


def _check_parameters(step: Step[Any, Any], name: str, signature: Signature, role: FollowUpRole) -> None:
    wanted = (*step.signature.parameters, "result")
    if signature.parameters != wanted:
        raise RegistrationError(
            f"{name}({', '.join(signature.parameters)}) cannot {role.verb} step {step.name!r}: it is called "
            f"with the step's arguments, then with its result, so it must be {name}({', '.join(wanted)})"
        )


def _make_action_step(action: Action, name: str, options: StepOptions) -> Step[Any, Any]:
    async def declared(input: dict[str, Any], result: Any) -> Any:
        return await run_action(action, input, result)

    return Step(declared, name=name, options=options, signature=Signature.of(declared), action=action)


# -- The circuits that an app's steps name: each name means one thing ------------------------------------


def check_circuit(what: str, circuit: Any, registered: Mapping[str, Step[Any, Any]]) -> None:
    """Refuse what is no circuit, and a second definition of one whose settings differ."""
    if circuit is None:
        return
    if not isinstance(circuit, Circuit):
        raise RegistrationError(
            f'circuit of {what} takes a Circuit, not {type(circuit).__name__}; write circuit=Circuit("payments")'
        )
    for step in registered.values():
        other = step.options.circuit
        if other is not None and circuit.name is not None and other.name == circuit.name and other != circuit:
            raise RegistrationError(
                f"two definitions of circuit {circuit.name!r} differ: {what} has {_format_settings(circuit)}, "
                f"step {step.name!r} has {_format_settings(other)}; make it once and give it to both"
            )


def circuit_names(registered: Mapping[str, Step[Any, Any]]) -> list[str]:
    """The names of circuits that steps give."""
    circuits = (step.options.circuit for step in registered.values())
    return sorted({circuit.name for circuit in circuits if circuit is not None and circuit.name})


def find_circuit(registered: Mapping[str, Step[Any, Any]], key: str) -> Circuit:
    """The circuit behind a key, as the code has it."""
    workflow = key.partition("/")[0]
    for step in registered.values():
        circuit = step.options.circuit
        if circuit is not None and circuit_key(circuit, workflow, step.name) == key:
            return circuit
    known = ", ".join(circuit_names(registered)) or "none"
    raise ConfigurationError(
        f"no step has a circuit {key!r}; there are: {known}, and WORKFLOW/STEP for those without a name"
    )


def _format_settings(circuit: Circuit) -> str:
    values = {name: value for name, value in circuit.to_json().items() if name != "name"}
    return ", ".join(f"{name}={value}" for name, value in values.items())
