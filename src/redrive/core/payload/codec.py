"""A codec for the values of one annotation, and the limit on the size of payloads."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, final

from pydantic import BaseModel, ValidationError
from pydantic_core import CoreSchema, SchemaSerializer, SchemaValidator

from redrive.core.payload.faults import (
    Path,
    build_misfit_error,
    build_payload_error,
    build_unwritable_error,
    find_unstorable,
    has_surrogates,
)
from redrive.core.payload.plain_json import dump_typed
from redrive.core.payload.pydantic_adapters import CORE_CONFIG, find_union_classes, split_definitions
from redrive.errors import PayloadError, PayloadTooLarge
from redrive.reasons import Reason, ReasonCode

_SIZE_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@final
class Codec:
    """Writes values of one schema and reads them back. Every text is read back once before it is returned."""

    __slots__ = ("_root", "_schema", "_serializer", "_to_json", "_unions", "_validate_json", "_validator")

    def __init__(self, schema: CoreSchema, root: Path = ()) -> None:
        # Prebuilt serializers of models would use the configuration that the schema corrects.
        self._schema = schema
        self._serializer = SchemaSerializer(schema, CORE_CONFIG, _use_prebuilt=False)
        self._validator = SchemaValidator(schema, CORE_CONFIG, _use_prebuilt=False)
        self._to_json = self._serializer.to_json
        self._validate_json = self._validator.validate_json
        self._unions = find_union_classes(schema)  # type: ignore[arg-type]
        self._root = root

    def encode(self, value: Any) -> str:
        """Return compact JSON text, or raise a PayloadError that names the place."""
        try:
            raw = self._to_json(value, warnings="error", round_trip=True, by_alias=False)
        except Exception as error:  # serializers of user types may raise anything
            if "surrogates not allowed" not in str(error):
                raise self._explain_unwritable(value) from error
            return self._encode_surrogates(value)
        text = raw.decode()
        # pydantic does not refuse a lone surrogate in a key, but writes three replacement characters.
        if not raw.isascii() and "\ufffd\ufffd\ufffd" in text and has_surrogates(value):
            return self._encode_surrogates(value)
        try:
            back = self._validate_json(text, by_alias=True, by_name=True)
        except Exception:
            back = self._read_back(text, value)
        if self._unions:
            self._refuse_union_swaps(value, back, self._root)
        return text

    def decode(self, text: str) -> Any:
        """Return the typed value, or raise a PayloadError that names the place."""
        try:
            return self._validate_json(text, by_alias=True, by_name=True)
        except ValidationError as error:
            if r"\u" not in text or error.errors()[0]["type"] != "json_invalid":
                raise build_misfit_error(error, text, self._root) from None
            return self._decode_surrogates(text, error)
        except Exception as error:
            why = Reason(ReasonCode.NOT_READABLE_BACK, error_type=type(error).__name__, message=str(error))
            raise build_payload_error(self._root, why) from error

    def _read_back(self, text: str, value: Any) -> Any:
        try:
            return self.decode(text)
        except PayloadError as error:
            raise find_unstorable(value, self._root) or error from None

    def _encode_surrogates(self, value: Any) -> str:
        """Encode a value that contains lone surrogates, and check that reading it back changes nothing."""
        text = self._write_surrogates(value)
        back = self._read_back(text, value)
        if self._write_surrogates(back) != text:
            raise build_payload_error(self._root, Reason(ReasonCode.CHANGED_BY_READING))
        self._refuse_union_swaps(value, back, self._root)
        return text

    def _write_surrogates(self, value: Any) -> str:
        try:
            tree = self._serializer.to_python(value, warnings="error", round_trip=True, by_alias=False)
            return dump_typed(tree)
        except Exception as error:
            raise self._explain_unwritable(value) from error

    def _explain_unwritable(self, value: Any) -> PayloadError:
        return build_unwritable_error(value, *split_definitions(self._schema), self._root)

    def _decode_surrogates(self, text: str, error: ValidationError) -> Any:
        """Decode with Python's parser, which accepts lone surrogates; pydantic's refuses them."""
        try:
            tree = json.loads(text)
        except (ValueError, RecursionError):
            raise build_misfit_error(error, text, self._root) from None
        try:
            return self._validator.validate_python(tree, by_alias=True, by_name=True)
        except ValidationError as misfits:
            raise build_misfit_error(misfits, text, self._root) from None

    def _refuse_union_swaps(self, value: Any, back: Any, path: Path) -> None:
        """Refuse a value that was read back as another member of its union."""
        kind, other = type(value), type(back)
        if kind is not other:
            swapped = kind in self._unions and other in self._unions and not issubclass(kind, other)
            if swapped and value != back:
                names = kind.__qualname__, other.__qualname__
                raise build_payload_error(path, Reason(ReasonCode.UNION_AMBIGUOUS, type=names[0], other=names[1]))
            return
        for part, left, right in _pair_children(value, back):
            self._refuse_union_swaps(left, right, (*path, part))


def _pair_children(value: Any, back: Any) -> list[tuple[str | int, Any, Any]]:
    if isinstance(value, dict):
        return [(str(key), item, back.get(key)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [(index, *pair) for index, pair in enumerate(zip(value, back, strict=False))]
    names: list[str] = []
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
    elif isinstance(value, BaseModel):
        names = list(type(value).model_fields)
    return [(name, getattr(value, name), getattr(back, name)) for name in names]


def check_size(text: str, limit: int, what: str | Reason) -> None:
    """Refuse `text` if it takes more than `limit` bytes as UTF-8. `what` names it in the message."""
    # Most texts are far below the limit, so these two comparisons avoid encoding them.
    if len(text) * 4 <= limit or (len(text) <= limit and text.isascii()):
        return
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > limit:
        sizes = _format_size(size), _format_size(limit)
        raise PayloadTooLarge(Reason(ReasonCode.PAYLOAD_TOO_LARGE, what=what, size=sizes[0], limit=sizes[1]))


def _format_size(size: int) -> str:
    for unit, name in _SIZE_UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name} ({size:,} bytes)"
    return f"{size:,} bytes"
