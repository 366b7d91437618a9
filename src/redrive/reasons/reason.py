"""Reasons: decisions, failures, refusals and faults as a code with parameters.

A reason is stored and sent as data. `render` makes a sentence of it where a user reads it. The sentences are in
`english.json` and `polish.json`, by code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any, TypeAlias, Union

import msgspec

from redrive.reasons.codes import ReasonCode
from redrive.time_values import format_duration

_ENGLISH_MARKS = (",", ".")


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """The templates of one language.

    A template names parameters as `str.format` does, and has three additions:

        {delay:duration}    seconds as `1 m 30 s`; others are `category`, `clock`, `moment`, `list`, `quoted`, `or`,
                            `faults`
        [ of {of}]          a part that is left out if one of its parameters is None
        one|many            forms by the parameter `n`; `form` returns the index of the form for a number

    `language` is the name of the file. `either` is the text between alternatives. `marks` are the separator of
    thousands and the decimal mark.
    """

    language: str
    form: Callable[[int], int]
    either: str
    marks: tuple[str, str] = _ENGLISH_MARKS

    @property
    def texts(self) -> Mapping[str, str]:
        """The templates by code."""
        return _load_texts(self.language)

    def localize(self, number: str) -> str:
        """Return a number, or a duration, with the marks of this language."""
        return number if self.marks == _ENGLISH_MARKS else number.translate(str.maketrans(",.", "".join(self.marks)))


def parameter_names(template: str) -> set[str]:
    """Return the names of the parameters that a template uses."""
    return {name for _, name, _, _ in Formatter().parse(template) if name}


@cache  # read at first use: most processes render a reason in one language, or none
def _load_texts(language: str) -> dict[str, str]:
    texts: dict[str, str] = json.loads(Path(__file__).with_name(f"{language}.json").read_text(encoding="utf-8"))
    return texts


def _polish_form(number: int) -> int:
    if number == 1:
        return 0
    few = number % 10 in (2, 3, 4) and number % 100 not in (12, 13, 14)
    return 1 if few else 2


ENGLISH = Catalogue(language="english", form=lambda number: 0 if number == 1 else 1, either=" or ")
POLISH = Catalogue(language="polish", form=_polish_form, either=" lub ", marks=("\u202f", ","))

Param: TypeAlias = Union[str, int, float, "Reason", tuple[Union[str, "Reason"], ...], None]
"""A parameter: plain JSON, a reason, or several."""

CATEGORY_CODES = {
    "timeout": ReasonCode.TIMED_OUT,
    "network": ReasonCode.NETWORK_ERROR,
    "rate_limit": ReasonCode.RATE_LIMITED,
    "server_error": ReasonCode.SERVER_ERROR,
    "dependency_unavailable": ReasonCode.DEPENDENCY_UNAVAILABLE,
    "validation": ReasonCode.INVALID_DATA,
    "authorization": ReasonCode.NOT_AUTHORISED,
    "not_found": ReasonCode.NOT_FOUND,
    "client_error": ReasonCode.CLIENT_ERROR,
    "missing_config": ReasonCode.CONFIGURATION_MISSING,
    "internal": ReasonCode.INTERNAL_ERROR,
    "unknown": ReasonCode.UNCLASSIFIED_ERROR,
}
"""The codes of the texts of failure categories."""

_OPTIONAL_PART = re.compile(r"\[([^\]]*)\]")
_MAX_QUOTED = 60  # characters of a refused value


@dataclass(frozen=True, slots=True)
class Reason:
    """A code and its parameters. A parameter may be a reason itself.

    `code` may be missing in `ReasonCode`, because a newer process may have stored it.
    """

    code: str
    params: Mapping[str, Param]

    def __init__(self, code: str, /, **params: Param) -> None:
        object.__setattr__(self, "code", code)
        object.__setattr__(self, "params", params)

    def __str__(self) -> str:
        return render(self)

    def __hash__(self) -> int:
        return hash((self.code, tuple(self.params.items())))

    def to_json(self) -> dict[str, Any]:
        """Return the reason as plain JSON."""
        return {"code": str(self.code), "params": {name: _param_to_json(value) for name, value in self.params.items()}}

    def to_text(self) -> str:
        """Return the reason as JSON text, as a column stores it."""
        return json.dumps(self.to_json(), ensure_ascii=False)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reason:
        """Return the reason that `to_json` wrote."""
        return cls(data["code"], **{name: _param_from_json(value) for name, value in data["params"].items()})

    @classmethod
    def from_text(cls, text: str) -> Reason:
        """Return the reason that `to_text` wrote; any other text becomes a reason without a code."""
        try:
            return cls.from_json(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls(ReasonCode.TEXT, text=text)

    @classmethod
    def of_error(cls, error: BaseException) -> Reason:
        """Return the reason that an error was made from, or a reason with its message."""
        found = error.args[0] if error.args else None
        return found if isinstance(found, cls) else cls(ReasonCode.TEXT, text=str(error))

    def map_text(self, change: Callable[[str], str]) -> Reason:
        """Return a copy of the reason with every text changed, for example redacted."""
        return Reason(self.code, **{name: _map_param(value, change) for name, value in self.params.items()})

    @property
    def faults(self) -> tuple[tuple[str, Reason], ...]:
        """The faults that the reason lists, each with its path in the value; "" is the value itself."""
        listed = self.params.get("faults")
        faults = []
        for each in listed if isinstance(listed, tuple) else ():
            if isinstance(each, Reason):
                why = each.params.get("why")
                faults.append((str(each.params.get("path") or ""), why if isinstance(why, Reason) else each))
        return tuple(faults)


def _param_to_json(value: Param) -> Any:
    if isinstance(value, Reason):
        return value.to_json()
    return [_param_to_json(each) for each in value] if isinstance(value, tuple) else value


def _param_from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return Reason.from_json(value)
    return tuple(_param_from_json(each) for each in value) if isinstance(value, list) else value


def _map_param(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, Reason):
        return value.map_text(change)
    if isinstance(value, tuple):
        return tuple(_map_param(each, change) for each in value)
    return change(value) if isinstance(value, str) else value


def quote(value: object) -> str:
    """Return the beginning of a refused value as Python writes it."""
    return f"{value!r:.{_MAX_QUOTED}}"


def _format_param(value: Any, format_spec: str, catalogue: Catalogue) -> str:
    """Return a parameter as the template wants it."""
    if not format_spec:
        return render(value, catalogue) if isinstance(value, Reason) else format(value)
    match format_spec:
        case "duration":
            return catalogue.localize(format_duration(value))
        case "category":
            return render(Reason(CATEGORY_CODES[value]), catalogue)
        case "clock":  # of an ISO time
            return str(value)[11:19]
        case "moment":
            return f"{str(value)[:16].replace('T', ' ')} UTC"
        case "list":
            return ", ".join(_render_each(value, catalogue))
        case "quoted":
            return ", ".join(map(repr, value))
        case "or":
            return catalogue.either.join(_render_each(value, catalogue))
        case "faults":
            return "; ".join(_render_each(value, catalogue))
    text = format(value, format_spec)
    return catalogue.localize(text) if format_spec in (",", "g") else text


def _render_each(values: tuple[Any, ...], catalogue: Catalogue) -> Iterator[str]:
    return (render(each, catalogue) if isinstance(each, Reason) else str(each) for each in values)


_Part: TypeAlias = tuple[tuple[str, ...], tuple[tuple[str, str | None, str, bool], ...]]
"""The parameters without which a part of a template is left out, and its texts, each with the field behind it."""


@cache
def _parse_forms(language: str, code: str) -> tuple[tuple[_Part, ...], ...]:
    """Return the forms of a template, parsed once: a sentence is written with every failed attempt."""
    return tuple(
        tuple(
            (
                tuple(parameter_names(text)) if number % 2 else (),
                tuple((*field[:2], field[2] or "", field[3] == "r") for field in Formatter().parse(text)),
            )
            for number, text in enumerate(_OPTIONAL_PART.split(form))
        )
        for form in _load_texts(language)[code].split("|")
    )


def render(reason: Reason, catalogue: Catalogue = ENGLISH) -> str:
    """Return the sentence for a reason, in English unless another catalogue is given."""
    params = reason.params
    try:
        forms = _parse_forms(catalogue.language, reason.code)
        number = params.get("n")
        # A language may have fewer forms of a sentence than of its numbers; the last one then serves for the rest.
        form = catalogue.form(number) if isinstance(number, int) else 1
        sentence = []
        for needed, fields in forms[min(form, len(forms) - 1)]:
            for each in needed:
                if params.get(each) is None:
                    break
            else:
                for text, name, format_spec, quoted in fields:
                    sentence.append(text)
                    if name is not None:
                        value = repr(params[name]) if quoted else params[name]
                        sentence.append(_format_param(value, format_spec, catalogue))
        return "".join(sentence)
    except (LookupError, TypeError, ValueError):  # stored by a version with other codes or parameters
        return ", ".join([str(reason.code), *(f"{name}={value}" for name, value in params.items())])
