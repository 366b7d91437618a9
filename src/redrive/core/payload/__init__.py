"""Typed payloads: arguments and results as JSON text, written and read by their annotations.

    call(args) ──encode──▶ {"order": {...}, "express": true} ──decode──▶ call(args)
    result ──encode_result──▶ text ──decode_result──▶ result

- `decode` reads everything that `encode` writes: each text is read back once before it is returned.
- Encoding is strict about Python types: "5" is refused as an int, an int is accepted as a float, and an instance
  of a subclass is accepted as its base. Decoding accepts JSON that users write: strings for dates, decimals and
  ids, and field names or aliases.
- Parameters without annotation, and `Any`, hold plain JSON: a dataclass, a date or a set is written there as
  pydantic writes it, and comes back as dict, str or list. NaN has no JSON form and is refused there; under
  `float` and `Decimal` it is the string "NaN".
- bytes are base64 (URL-safe alphabet). Models are stored by field name. Sets are sorted by their text.
  Aware datetimes keep instant and offset, not the name of the zone; an offset with seconds becomes UTC.
- A union is read as its best match, the first one among equals. A value that would come back as another
  member of the union is refused; a `Literal` field in each member tells them apart.
- Lone surrogates and NUL are kept as JSON escapes, so the text itself is UTF-8 without NUL.
- An enum whose values are not plain scalars is stored by member name.
"""

from redrive.core.payload.codec import check_size
from redrive.core.payload.signature import Signature, encode_any, signature_of_type

__all__ = ["Signature", "check_size", "encode_any", "signature_of_type"]
