"""Signatures of functions: their annotations, and the JSON of their arguments and results.

The schemas are built once, at registration, so that each call is cheap.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, final

import msgspec
import typing_extensions
from pydantic import TypeAdapter
from pydantic.errors import PydanticUndefinedAnnotation

from redrive.core.payload.codec import Codec
from redrive.core.payload.faults import Path
from redrive.core.payload.plain_json import SCALAR_WRITERS, Writer, find_writers, write_any
from redrive.core.payload.pydantic_adapters import (
    build_adapter,
    build_json_schema,
    correct_schema,
    join_definitions,
    split_definitions,
)
from redrive.errors import PayloadError, RegistrationError
from redrive.reasons import Param, Reason, ReasonCode

REQUIRED = inspect.Parameter.empty
"""The default of a parameter that has none."""

_RETURN = "return"
_PREFIX_LENGTH = len('{"payload":')

# Python 3.14 evaluates annotations when they are read, and would raise for a name that is defined later.
_FORWARDREF_OPTIONS: dict[str, Any] = (
    {"annotation_format": importlib.import_module("annotationlib").Format.FORWARDREF}
    if sys.version_info >= (3, 14)
    else {}
)


class Parameter(msgspec.Struct, frozen=True):
    """A parameter of a function, with its annotation as written."""

    name: str
    annotation: Any
    default: Any
    keyword_only: bool


class UnresolvedName(Exception):
    """A name in an annotation is not defined, or not yet."""

    def __init__(self, where: str, name: str) -> None:
        super().__init__(where, name)
        self.where = where
        self.name = name


def function_name(fn: Callable[..., Any]) -> str:
    qualname: str = getattr(fn, "__qualname__", type(fn).__qualname__)
    return qualname.rpartition("<locals>.")[2]


def describe_parameter(name: str) -> str:
    return "the result" if name == "return" else f"parameter {name!r}"


def read_signature(fn: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function; names that are not defined yet are resolved later."""
    return inspect.signature(fn, **_FORWARDREF_OPTIONS)


def read_parameters(
    fn: Callable[..., Any], signature: inspect.Signature, reserved: frozenset[str]
) -> tuple[Parameter, ...]:
    """Return the parameters; raise a RegistrationError for one that an input object cannot hold."""
    for each in signature.parameters.values():
        if each.kind in {each.VAR_POSITIONAL, each.VAR_KEYWORD}:
            stars = "*" if each.kind is each.VAR_POSITIONAL else "**"
            raise RegistrationError(
                f"{function_name(fn)}(): parameter '{stars}{each.name}' cannot be stored: input is an object from "
                "parameter name to value. Name each parameter, or take one list or dict"
            )
        if each.name in reserved:
            raise RegistrationError(
                f"{function_name(fn)}(): parameter {each.name!r} has the name of an option of start(). "
                "Rename the parameter"
            )
    return tuple(
        Parameter(each.name, each.annotation, each.default, each.kind is each.KEYWORD_ONLY)
        for each in signature.parameters.values()
    )


def collect_namespace(fn: Callable[..., Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of names where the function was defined: globals, closure and `names`."""
    inner = inspect.unwrap(fn)
    found = {**getattr(inner, "__globals__", {}), **names}
    code = getattr(inner, "__code__", None)
    for name, cell in zip(code.co_freevars if code else (), getattr(inner, "__closure__", None) or (), strict=True):
        with contextlib.suppress(ValueError):  # not assigned yet
            found[name] = cell.cell_contents
    return found


def resolve_annotation(fn: Callable[..., Any], name: str, annotation: Any, names: Mapping[str, Any]) -> Any:
    """Evaluate an annotation; a missing one is Any. Raises UnresolvedName or RegistrationError."""
    holder = types.SimpleNamespace(__annotations__={name: annotation})
    try:
        hint = typing.get_type_hints(holder, dict(names), include_extras=True)[name]
    except NameError as error:
        raise UnresolvedName(describe_parameter(name), str(error.name)) from None
    except Exception as error:
        raise RegistrationError(
            f"{function_name(fn)}(): the annotation of {describe_parameter(name)} cannot be resolved: {error}"
        ) from error
    return Any if hint in (REQUIRED, typing.NoReturn, typing.Never) else hint


class _CallPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Codecs and writers of a signature whose annotations are resolved."""

    input: Codec
    output: Codec
    input_adapter: TypeAdapter[Any]
    output_adapter: TypeAdapter[Any]
    names: tuple[str, ...]
    fields: tuple[tuple[str, Mapping[type, Writer], Writer], ...]
    """For each parameter: the text before its value, and the fast writers of the value."""
    result: tuple[Mapping[type, Writer], Writer]
    immutable: frozenset[type]
    """Results of these types need no copy."""


@final
class Signature:
    """Encodes and decodes the calls and results of one function. Make it with `Signature.of`."""

    __slots__ = ("_fn", "_names", "_parameters", "_plan", "_positional", "_result", "_returns", "_schemas", "name")

    def __init__(
        self,
        fn: Callable[..., Any],
        parameters: tuple[Parameter, ...],
        returns: Any,
        names: Mapping[str, Any],
        result: Path,
    ) -> None:
        self.name = function_name(fn)
        self._fn = fn
        self._returns = returns
        self._parameters = parameters
        self._positional = sum(not parameter.keyword_only for parameter in parameters)
        self._names = names
        self._result = result
        self._plan: _CallPlan | None = None
        self._schemas: tuple[str, str] | None = None

    @classmethod
    def of(
        cls,
        fn: Callable[..., Any],
        *,
        skip_first: bool = False,
        reserved: frozenset[str] = frozenset(),
        names: Mapping[str, Any] | None = None,
        result: Path = ("result",),
    ) -> Signature:
        """Read the signature of a function, or raise a RegistrationError if its calls cannot be stored.

        `skip_first` leaves out a parameter that the engine supplies. Annotations written as text are resolved
        with `names`, and with the globals and the closure of the function. A name that is not defined yet is
        looked up again by `prepare`, or else by the first call. `result` is what errors call the result.
        """
        read = read_signature(fn)
        if skip_first:
            read = read.replace(parameters=list(read.parameters.values())[1:])
        parameters = read_parameters(fn, read, reserved)
        signature = cls(fn, parameters, read.return_annotation, dict(names or {}), result)
        with contextlib.suppress(UnresolvedName):
            signature._plan = signature._build_plan()
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
                self._plan = self._build_plan()
            except UnresolvedName as missing:
                raise RegistrationError(
                    f"{self.name}(): the annotation of {missing.where} refers to {missing.name!r}, which is "
                    "not defined. Define or import it at module level, and not only under TYPE_CHECKING"
                ) from None

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the JSON text of a call: an object from parameter name to value, with defaults."""
        plan = self._plan or self._require_plan()
        if kwargs or len(args) != len(self._parameters) or len(args) != self._positional:
            args = self._bind_arguments(args, kwargs)
        text = "{"
        for (prefix, short, other), value in zip(plan.fields, args, strict=True):
            written = short.get(type(value), other)(value)
            if written is None:
                return plan.input.encode(dict(zip(plan.names, args, strict=True)))
            text += prefix + written
        return text + "}"

    def decode(self, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the typed positional and keyword arguments of a call."""
        plan = self._plan or self._require_plan()
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
        """Return the JSON text of a result, by the return annotation."""
        plan = self._plan or self._require_plan()
        short, other = plan.result
        written = short.get(type(value), other)(value)
        return plan.output.encode(value) if written is None else written

    def decode_result(self, text: str) -> Any:
        return (self._plan or self._require_plan()).output.decode(text)

    def roundtrip_result(self, value: Any, text: str) -> Any:
        """Return the result as live workflow code gets it: equal to what resumed code will decode."""
        plan = self._plan or self._require_plan()
        return value if type(value) in plan.immutable else plan.output.decode(text)

    def build_input_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the input object; {} if a type has none."""
        schema = build_json_schema((self._plan or self._require_plan()).input_adapter, "validation")
        if schema:
            schema["additionalProperties"] = False
            for parameter in self._parameters:
                if type(parameter.default) in SCALAR_WRITERS:
                    schema["properties"][parameter.name]["default"] = parameter.default
        return schema

    def build_output_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the result; {} if its type has none."""
        schema = build_json_schema((self._plan or self._require_plan()).output_adapter, "serialization")
        shared = {"$defs": schema["$defs"]} if "$defs" in schema else {}
        return {**schema["properties"][_RETURN], **shared} if schema else {}

    def get_schema_texts(self) -> tuple[str, str]:
        """Return both schemas as JSON text. They are cached, because a worker registers them at every start."""
        if self._schemas is None:
            self._schemas = json.dumps(self.build_input_schema()), json.dumps(self.build_output_schema())
        return self._schemas

    def _require_plan(self) -> _CallPlan:
        self.prepare()
        return typing.cast("_CallPlan", self._plan)

    def _bind_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return one value per parameter, in order."""
        if len(args) > self._positional:
            taken, given = self._positional, len(args)
            raise PayloadError(Reason(ReasonCode.ARGUMENTS_TOO_MANY, function=self.name, taken=taken, given=given))
        left = dict(kwargs)
        values = list(args)
        for parameter in self._parameters[: len(args)]:
            if parameter.name in left:
                raise self._argument_error(ReasonCode.ARGUMENT_TWICE, parameter.name)
        for parameter in self._parameters[len(args) :]:
            value = left.pop(parameter.name, parameter.default)
            if value is REQUIRED:
                raise self._argument_error(ReasonCode.ARGUMENT_MISSING, parameter.name)
            values.append(value)
        if left:
            raise self._argument_error(ReasonCode.ARGUMENT_UNKNOWN, next(iter(left)), known=self.parameters or None)
        return tuple(values)

    def _argument_error(self, code: ReasonCode, name: str, **params: Param) -> PayloadError:
        return PayloadError(Reason(code, function=self.name, argument=name, **params), path=name)

    def _build_plan(self) -> _CallPlan:
        names = collect_namespace(self._fn, self._names)
        hints = {}
        for each in self._parameters:
            hint = resolve_annotation(self._fn, each.name, each.annotation, names)
            hints[each.name] = hint if each.default is not None else typing.Optional[hint]  # noqa: UP045
        returns = resolve_annotation(self._fn, _RETURN, self._returns, names)
        required = {each.name for each in self._parameters if each.default is REQUIRED}
        marked = {
            name: hint if name in required else typing_extensions.NotRequired[hint] for name, hint in hints.items()
        }
        input_adapter = self._build_adapter(marked, names)
        output_adapter = self._build_adapter({_RETURN: returns}, names)
        input_node, input_definitions = split_definitions(correct_schema(input_adapter))
        input_node = {**input_node, "extra_behavior": "forbid"}  # a misspelt parameter must not be ignored
        output_node, output_definitions = split_definitions(correct_schema(output_adapter))
        output_node = output_node["fields"][_RETURN]["schema"]
        return _CallPlan(
            input=Codec(join_definitions(input_node, input_definitions)),
            output=Codec(join_definitions(output_node, output_definitions), self._result),
            input_adapter=input_adapter,
            output_adapter=output_adapter,
            names=tuple(hints),
            fields=tuple(
                (("," if position else "") + f'"{name}":', *find_writers(hint))
                for position, (name, hint) in enumerate(hints.items())
            ),
            result=find_writers(returns),
            immutable=frozenset(find_writers(returns)[0].keys() & SCALAR_WRITERS.keys()),
        )

    def _build_adapter(self, hints: Mapping[str, Any], names: Mapping[str, Any]) -> TypeAdapter[Any]:
        try:
            return build_adapter(self.name, hints, names)
        except Exception as error:
            for name, hint in hints.items():  # build each hint alone to find the parameter at fault
                what = describe_parameter(name)
                try:
                    build_adapter(self.name, {name: hint}, names)
                except PydanticUndefinedAnnotation as undefined:
                    raise UnresolvedName(what, str(undefined.name)) from error
                except Exception as problem:
                    text, cut, _ = str(problem).partition("\n")[0].partition(" Set `arbitrary_types_allowed")
                    why = f"{text} Use a dataclass, a pydantic model or plain data" if cut else text
                    raise RegistrationError(f"{self.name}(): {what} cannot be stored as JSON: {why}") from error
            raise


@cache
def _payload_signature() -> Signature:
    # Built at the first use, because it takes longer than the import, and nearly every value is plain.
    def accept(payload: Any) -> None: ...

    return Signature.of(accept)


def encode_any(payload: Any) -> str:
    """Return compact JSON for a value of any type, or raise a PayloadError that names the place in it."""
    text = write_any(payload)
    return _payload_signature().encode((payload,), {})[_PREFIX_LENGTH:-1] if text is None else text


def signature_of_type(kind: Any, name: str = "event") -> Signature:
    """Return a signature that encodes and decodes values of one type, as results of a function."""
    try:
        return _signature_of_type(kind, name)
    except TypeError:  # a type that cannot be a key of a cache
        return _make_type_signature(kind, name)


def _make_type_signature(kind: Any, name: str) -> Signature:
    def returns_value() -> None: ...

    returns_value.__annotations__ = {"return": kind}
    returns_value.__name__ = returns_value.__qualname__ = name
    return Signature.of(returns_value, result=())


_signature_of_type = cache(_make_type_signature)
