"""Typed payloads: arguments and results to JSON text and back, by annotation, exactly or not at all.

    call(args) ──encode──▶ {"order": {...}, "express": true} ──decode──▶ call(args)
    result ──encode_result──▶ text ──decode_result──▶ result

- What `encode` accepts, `decode` reads back: every text is read once before it is handed out.
- Encoding is strict about Python types ("5" is no int; an int is a float, a subclass is its base).
  Decoding takes JSON as people write it: strings for dates, decimals and ids, names or aliases.
- Parameters without annotation, and `Any`, hold plain JSON: a dataclass, a date or a set given there is
  written as pydantic would write it and comes back as dict, str or list. NaN has no JSON form and is
  refused there; under `float` and `Decimal` it is the string "NaN".
- bytes are base64 (URL-safe alphabet). Models are stored by field name. Sets are sorted by their text.
  Aware datetimes keep instant and offset, not the zone's name; an offset with seconds becomes UTC.
- A union is read as its best match, the first one among equals. A value that would come back as another
  member of the union is refused; give the members a `Literal` field to tell them apart.
- Lone surrogates and NUL survive as JSON escapes, so the text itself is UTF-8 without NUL.
- An enum whose values are not plain scalars is stored by member name.
"""

from redrive.core.payload.codec import check_size
from redrive.core.payload.signature import Signature, encode_any

__all__ = ["Signature", "check_size", "encode_any"]
