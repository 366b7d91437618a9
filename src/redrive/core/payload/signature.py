"""A function's parameters and result as JSON: worked out once at registration, cheap at every call."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Mapping
from enum import Flag
from functools import cache
from typing import Any, Literal, final

import typing_extensions
from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUndefinedAnnotation
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import CoreSchema

from redrive.core.payload.codec import Codec
from redrive.core.payload.plain import SCALARS, Writer, write_any, writers
from redrive.core.payload.types import adapted, box, has_plain_values, joined, split
from redrive.errors import PayloadError, RegistrationError
from redrive.frozen import dataclass

# -- What a function's signature says: its parameters, and what their annotations mean -------------------


REQUIRED = inspect.Parameter.empty
"""The default of a parameter that has none."""

# Python 3.14 evaluates annotations when they are asked for, and would raise for a name defined later.
_LATER: dict[str, Any] = (
    {"annotation_format": importlib.import_module("annotationlib").Format.FORWARDREF}
    if sys.version_info >= (3, 14)
    else {}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter as written."""

    name: str
    annotation: Any
    default: Any
    keyword_only: bool


class NotYet(Exception):
    """A name in an annotation is not defined (yet)."""

    def __init__(self, where: str, name: str) -> None:
        super().__init__(where, name)
        self.where = where
        self.name = name


def name_of(fn: Callable[..., Any]) -> str:
    """What messages call the function."""
    qualname: str = getattr(fn, "__qualname__", type(fn).__qualname__)
    return qualname.rpartition("<locals>.")[2]


def where(name: str) -> str:
    """What messages call a parameter, or the result."""
    return "the result" if name == "return" else f"parameter {name!r}"


def read_signature(fn: Callable[..., Any]) -> inspect.Signature:
    """The function's signature, with names that are not defined yet left for later."""
    return inspect.signature(fn, **_LATER)


def storable_parameters(
    fn: Callable[..., Any], signature: inspect.Signature, reserved: frozenset[str]
) -> tuple[Parameter, ...]:
    """The parameters, or a RegistrationError for one that an input object cannot hold."""
    for each in signature.parameters.values():
        if each.kind in {each.VAR_POSITIONAL, each.VAR_KEYWORD}:
            stars = "*" if each.kind is each.VAR_POSITIONAL else "**"
            raise RegistrationError(
                f"{name_of(fn)}(): parameter '{stars}{each.name}' cannot be stored: input is an object from "
                "parameter name to value. Name each parameter, or take one list or dict"
            )
        if each.name in reserved:
            raise RegistrationError(
                f"{name_of(fn)}(): parameter {each.name!r} has the name of an option of start(). "
                "Rename the parameter"
            )
    return tuple(
        Parameter(
            name=each.name,
            annotation=each.annotation,
            default=each.default,
            keyword_only=each.kind is each.KEYWORD_ONLY,
        )
        for each in signature.parameters.values()
    )


def namespace(fn: Callable[..., Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """What names mean where the function was written."""
    inner = inspect.unwrap(fn)
    found = {**getattr(inner, "__globals__", {}), **names}
    code = getattr(inner, "__code__", None)
    for name, cell in zip(
        code.co_freevars if code else (), getattr(inner, "__closure__", None) or (), strict=True
    ):
        with contextlib.suppress(ValueError):  # not assigned yet
            found[name] = cell.cell_contents
    return found


def resolve(fn: Callable[..., Any], name: str, annotation: Any, names: Mapping[str, Any]) -> Any:
    """What an annotation means; Any if there is none. Raises NotYet or RegistrationError."""
    holder = types.SimpleNamespace(__annotations__={name: annotation})
    try:
        hint = typing.get_type_hints(holder, dict(names), include_extras=True)[name]
    except NameError as error:
        raise NotYet(where(name), str(error.name)) from None
    except Exception as error:
        raise RegistrationError(
            f"{name_of(fn)}(): the annotation of {where(name)} cannot be understood: {error}"
        ) from error
    return Any if hint in (REQUIRED, typing.NoReturn, typing.Never) else hint


# -- A function's parameters and result as JSON: worked out once at registration, cheap at every cal -----


_RETURN = "return"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Everything that needs resolved annotations."""

    input: Codec
    output: Codec
    input_adapter: TypeAdapter[Any]
    output_adapter: TypeAdapter[Any]
    names: tuple[str, ...]
    fields: tuple[tuple[str, Mapping[type, Writer], Writer], ...]
    """For each parameter the text before its value, and the short ways to write the value."""
    result: tuple[Mapping[type, Writer], Writer]
    immutable: frozenset[type]
    """Results of these types need no copy."""


@final
class Signature:
    """How one function's calls and results are stored. Make it with `Signature.of`."""

    __slots__ = ("_fn", "_names", "_parameters", "_plan", "_positional", "_returns", "_schemas", "name")

    def __init__(
        self,
        fn: Callable[..., Any],
        parameters: tuple[Parameter, ...],
        returns: Any,
        names: Mapping[str, Any],
    ) -> None:
        self.name = name_of(fn)
        self._fn = fn
        self._returns = returns
        self._parameters = parameters
        self._positional = sum(not parameter.keyword_only for parameter in parameters)
        self._names = names
        self._plan: _Plan | None = None
        self._schemas: tuple[str, str] | None = None

    @classmethod
    def of(
        cls,
        fn: Callable[..., Any],
        *,
        skip_first: bool = False,
        reserved: frozenset[str] = frozenset(),
        names: Mapping[str, Any] | None = None,
    ) -> Signature:
        """Read a function's signature, or say in a RegistrationError why it cannot be stored.

        `skip_first` leaves out a parameter that the engine supplies. `names` helps to resolve annotations
        written as text, beside the function's globals and closure. A name that is not defined yet is looked
        up again by `prepare`, at the latest by the first call.
        """
        read = read_signature(fn)
        if skip_first:
            read = read.replace(parameters=list(read.parameters.values())[1:])
        parameters = storable_parameters(fn, read, reserved)
        signature = cls(fn, parameters, read.return_annotation, dict(names or {}))
        with contextlib.suppress(NotYet):
            signature._plan = signature._build()
        return signature

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return tuple(parameter.name for parameter in self._parameters)

    @property
    def is_prepared(self) -> bool:
        """True if every annotation is resolved."""
        return self._plan is not None

    def prepare(self) -> None:
        """Resolve what `of` could not. Raises RegistrationError if a name is still unknown."""
        if self._plan is None:
            try:
                self._plan = self._build()
            except NotYet as missing:
                raise RegistrationError(
                    f"{self.name}(): the annotation of {missing.where} refers to {missing.name!r}, which is "
                    "not defined. Define or import it at module level, and not only under TYPE_CHECKING"
                ) from None

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """A call as the JSON text of an object from parameter name to value, defaults included."""
        plan = self._plan or self._prepared()
        if kwargs or len(args) != len(self._parameters) or len(args) != self._positional:
            args = self._bind(args, kwargs)
        text = "{"
        for (prefix, short, other), value in zip(plan.fields, args, strict=True):
            written = short.get(type(value), other)(value)
            if written is None:
                return plan.input.encode(dict(zip(plan.names, args, strict=True)))
            text += prefix + written
        return text + "}"

    def decode(self, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments, typed, ready for the call."""
        plan = self._plan or self._prepared()
        values = plan.input.decode(text)
        positional, keywords = [], {}
        for parameter in self._parameters:
            value = values.get(parameter.name, parameter.default)
            if parameter.keyword_only:
                keywords[parameter.name] = value
            else:
                positional.append(value)
        return tuple(positional), keywords

    def encode_result(self, value: Any) -> str:
        """A result as JSON text, by the return annotation."""
        plan = self._plan or self._prepared()
        short, other = plan.result
        written = short.get(type(value), other)(value)
        return plan.output.encode(value) if written is None else written

    def decode_result(self, text: str) -> Any:
        """The typed result."""
        return (self._plan or self._prepared()).output.decode(text)

    def roundtrip_result(self, value: Any, text: str) -> Any:
        """What live workflow code gets, so that it sees what resumed code will see."""
        plan = self._plan or self._prepared()
        return value if type(value) in plan.immutable else plan.output.decode(text)

    def schema_in(self) -> dict[str, Any]:
        """The JSON Schema of the input object; {} if a type has none."""
        schema = _json_schema((self._plan or self._prepared()).input_adapter, "validation")
        if schema:
            schema["additionalProperties"] = False
            for parameter in self._parameters:
                if type(parameter.default) in SCALARS:
                    schema["properties"][parameter.name]["default"] = parameter.default
        return schema

    def schema_out(self) -> dict[str, Any]:
        """The JSON Schema of the result; {} if its type has none."""
        schema = _json_schema((self._plan or self._prepared()).output_adapter, "serialization")
        shared = {"$defs": schema["$defs"]} if "$defs" in schema else {}
        return {**schema["properties"][_RETURN], **shared} if schema else {}

    def schemas(self) -> tuple[str, str]:
        """Both as JSON text. They are made once: a worker tells them whenever it starts."""
        if self._schemas is None:
            self._schemas = json.dumps(self.schema_in()), json.dumps(self.schema_out())
        return self._schemas

    def _prepared(self) -> _Plan:
        self.prepare()
        return typing.cast("_Plan", self._plan)

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """One value per parameter, in order."""
        if len(args) > self._positional:
            raise PayloadError(
                f"{self.name}() takes {self._positional} positional arguments, {len(args)} were given"
            )
        left = dict(kwargs)
        values = list(args)
        for parameter in self._parameters[: len(args)]:
            if parameter.name in left:
                raise PayloadError(
                    f"{self.name}() got argument {parameter.name!r} twice", path=parameter.name
                )
        for parameter in self._parameters[len(args) :]:
            value = left.pop(parameter.name, parameter.default)
            if value is REQUIRED:
                raise PayloadError(
                    f"{self.name}() is missing argument {parameter.name!r}", path=parameter.name
                )
            values.append(value)
        if left:
            known = ", ".join(parameter.name for parameter in self._parameters) or "none"
            extra = next(iter(left))
            raise PayloadError(f"{self.name}() has no parameter {extra!r}; it takes: {known}", path=extra)
        return tuple(values)

    def _build(self) -> _Plan:
        names = namespace(self._fn, self._names)
        hints = {each.name: self._hint(each, names) for each in self._parameters}
        returns = resolve(self._fn, _RETURN, self._returns, names)
        required = {each.name for each in self._parameters if each.default is REQUIRED}
        marked = {
            name: hint if name in required else typing_extensions.NotRequired[hint]
            for name, hint in hints.items()
        }
        input_adapter = self._adapter(marked, names)
        output_adapter = self._adapter({_RETURN: returns}, names)
        return _Plan(
            input=Codec(_closed(adapted(input_adapter))),
            output=Codec(_unboxed(adapted(output_adapter)), ("result",)),
            input_adapter=input_adapter,
            output_adapter=output_adapter,
            names=tuple(hints),
            fields=tuple(
                (("," if position else "") + f'"{name}":', *writers(hint))
                for position, (name, hint) in enumerate(hints.items())
            ),
            result=writers(returns),
            immutable=frozenset(writers(returns)[0].keys() & SCALARS.keys()),
        )

    def _hint(self, parameter: Parameter, names: Mapping[str, Any]) -> Any:
        hint = resolve(self._fn, parameter.name, parameter.annotation, names)
        return hint if parameter.default is not None else typing.Optional[hint]  # noqa: UP045

    def _adapter(self, hints: Mapping[str, Any], names: Mapping[str, Any]) -> TypeAdapter[Any]:
        try:
            return box(self.name, hints, names)
        except Exception as error:
            problems = (self._problem(name, hint, names) for name, hint in hints.items())
            raise next(filter(None, problems), error) from error

    def _problem(self, name: str, hint: Any, names: Mapping[str, Any]) -> Exception | None:
        try:
            box(self.name, {name: hint}, names)
        except PydanticUndefinedAnnotation as error:
            return NotYet(where(name), str(error.name))
        except Exception as error:
            return RegistrationError(
                f"{self.name}(): {where(name)} cannot be stored as JSON: {_first_line(error)}"
            )
        return None


def _closed(schema: CoreSchema) -> CoreSchema:
    """The input object takes no other fields than the parameters: a misspelt one must not be ignored."""
    node, definitions = split(schema)
    return joined({**node, "extra_behavior": "forbid"}, definitions)


def _unboxed(schema: CoreSchema) -> CoreSchema:
    node, definitions = split(schema)
    return joined(node["fields"][_RETURN]["schema"], definitions)


class _AsWritten(GenerateJsonSchema):
    """Describes enums as they are written: sums of flags, and the names of members whose values are no JSON.

    pydantic offers no other way to say that than deriving from its generator.
    """

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """A default that is no JSON is left out of the schema; nobody needs to be warned of that."""

    def enum_schema(self, schema: Any) -> dict[str, Any]:
        if issubclass(schema["cls"], Flag):
            return {"type": "integer"}
        if has_plain_values(schema["members"]):
            return super().enum_schema(schema)
        return {"type": "string", "enum": [member.name for member in schema["members"]]}


def _json_schema(adapter: TypeAdapter[Any], mode: Literal["validation", "serialization"]) -> dict[str, Any]:
    try:
        return adapter.json_schema(by_alias=False, mode=mode, schema_generator=_AsWritten)
    except PydanticInvalidForJsonSchema:
        return {}


def _first_line(error: Exception) -> str:
    text, cut, _ = str(error).partition("\n")[0].partition(" Set `arbitrary_types_allowed")
    return f"{text} Use a dataclass, a pydantic model or plain data" if cut else text


# -- Values that come without an annotation, as plain JSON text ------------------------------------------


def _takes(payload: Any) -> None:
    """Stands for whoever takes a payload, so that what is wrong with one is said as for any parameter."""


_BEFORE = len('{"payload":')


@cache
def _signature() -> Signature:
    # Not when this is imported: it takes longer than importing, and nearly every value is plain.
    return Signature.of(_takes)


def encode_any(payload: Any) -> str:
    """Compact JSON for a value of any kind, or a PayloadError that names the place in it."""
    text = write_any(payload)
    return _signature().encode((payload,), {})[_BEFORE:-1] if text is None else text
