"""The circuits that an app's steps name: each name means one thing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redrive.core.circuit import circuit_key
from redrive.errors import ConfigurationError, RegistrationError
from redrive.policy import Circuit
from redrive.worker.definitions import Step

__all__ = ["check_circuit", "circuit_names", "find_circuit"]


def check_circuit(what: str, circuit: Any, registered: Mapping[str, Step[Any, Any]]) -> None:
    """Refuse what is no circuit, and a second definition of one whose settings differ."""
    if circuit is None:
        return
    if not isinstance(circuit, Circuit):
        raise RegistrationError(
            f"circuit of {what} takes a Circuit, not {type(circuit).__name__}; "
            'write circuit=Circuit("payments")'
        )
    for step in registered.values():
        other = step.options.circuit
        if other is not None and circuit.name is not None and other.name == circuit.name and other != circuit:
            raise RegistrationError(
                f"two definitions of circuit {circuit.name!r} differ: {what} has {_settings(circuit)}, "
                f"step {step.name!r} has {_settings(other)}; make it once and give it to both"
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


def _settings(circuit: Circuit) -> str:
    values = {name: value for name, value in circuit.to_json().items() if name != "name"}
    return ", ".join(f"{name}={value}" for name, value in values.items())
