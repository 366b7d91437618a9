"""The keys of REDRIVE_ENCRYPTION_KEYS and REDRIVE_SECRET_KEY, and the forms of sealed texts.

    enc1:<key id>:<base64>    a payload: AES-256-GCM under a random nonce, another text each time
    det1:<key id>:<base64>    a hash: AES-SIV, the same text each time, so that a store can compare it

The key id is a short hash of the key: it distinguishes a missing key from a damaged text. The tenant is sealed
together with the text, and compared with the row's tenant where that is known. Texts without such a prefix were
written in clear and are read unchanged.

This module is not in `core` because it draws nonces and needs a package that only the extra `encryption`
installs, which is imported with the first key.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import json
import os
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from redrive.core.secret_and_sealed_text import SEALED_TEXT, is_sealed, key_id_of, read_sealed_value
from redrive.errors import ConfigurationError, DataRefused
from redrive.settings import ENVIRONMENT_VARIABLES, parse_encryption_keys

SEALED_ERROR = "redrive.Sealed"
"""The error type of a placeholder for a failure that cannot be opened."""

KEYS_VARIABLE = ENVIRONMENT_VARIABLES["encryption_keys"]
_SECRET_VARIABLE = ENVIRONMENT_VARIABLES["secret_key"]
_NONCE = 12


def missing_key_message(text: str) -> str:
    """Return the message about a text whose key this process does not have."""
    key = key_id_of(text)
    return (
        f"it is encrypted with key {key}, which {KEYS_VARIABLE} does not hold here; add that key and try again, or set "
        f"{_SECRET_VARIABLE} if the key was derived from it"
    )


def can_encrypt() -> bool:
    """Return True if the package that encrypts is installed."""
    return find_spec("cryptography") is not None


def derive_key(secret_key: str) -> bytes:
    """Return the encryption key for a secret key. It must never change: stored payloads need it."""
    return hmac.digest(secret_key.encode(), b"redrive encryption of payloads", "sha256")


class Unreadable(str):
    """A payload that this process could not open: the sealed text, which may be written back as it is."""

    __slots__ = ("why",)

    why: str

    @classmethod
    def of(cls, text: str, why: str) -> Unreadable:
        """Return the sealed text with the reason why it could not be opened."""
        unreadable = cls(text)
        unreadable.why = why
        return unreadable


class _Key:
    """A key, ready to use."""

    __slots__ = ("_aes", "_hash_key", "_head", "_siv", "id", "prefix", "prefix_of_hashes")

    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV
        except ModuleNotFoundError:
            raise ConfigurationError(
                f'{KEYS_VARIABLE} is set, and encryption needs a package: pip install "redrive[encryption]"'
            ) from None
        self.id = hashlib.sha256(b"redrive key id\0" + key).hexdigest()[:8]
        self.prefix = f"enc1:{self.id}:"
        self.prefix_of_hashes = f"det1:{self.id}:"
        self._head = self.prefix.encode()
        self._aes = AESGCM(key)
        self._hash_key = hmac.digest(key, b"redrive shapes of failures", "sha256")
        self._siv = AESSIV(hmac.digest(key, b"redrive hashes", "sha512"))

    def seal(self, data: bytes) -> str:
        nonce = os.urandom(_NONCE)
        sealed = nonce + self._aes.encrypt(nonce, data, self._head)
        return self.prefix + binascii.b2a_base64(sealed, newline=False).decode("ascii")

    def open(self, body: str) -> bytes:
        sealed = binascii.a2b_base64(body, strict_mode=True)
        return self._aes.decrypt(sealed[:_NONCE], sealed[_NONCE:], self._head)

    def seal_hash(self, data: bytes) -> str:
        covered = self._siv.encrypt(data, None)
        return self.prefix_of_hashes + binascii.b2a_base64(covered, newline=False).decode("ascii")

    def hash(self, data: bytes) -> str:
        return hmac.digest(self._hash_key, data, "sha256").hex()[:32]

    def open_hash(self, body: str) -> bytes:
        return self._siv.decrypt(binascii.a2b_base64(body, strict_mode=True), None)


class Keyring:
    """The keys of this process: the first one seals (none does after `plain`), all of them open."""

    def __init__(self, keys: list[bytes | None]) -> None:
        ready = [None if key is None else _Key(key) for key in keys]
        self._writes = ready[0] if ready else None
        self._keys = {key.id: key for key in ready if key is not None}

    @classmethod
    def parse(cls, text: str, secret_key: str = "") -> Keyring | None:
        """Return the keys of the settings; None if they have none.

        The key derived from the secret key is the last. It seals if it is the only one, and opens what it sealed
        before other keys were set.
        """
        keys = parse_encryption_keys(text)
        if secret_key and can_encrypt():
            keys.append(derive_key(secret_key))
        return cls(keys) if keys else None

    def read_only(self) -> Keyring:
        """Return a keyring with the same keys that seals nothing."""
        ring = Keyring([])
        ring._keys = self._keys
        return ring

    @property
    def writes(self) -> str | None:
        """The id of the key that seals; None if texts are written in clear."""
        return None if self._writes is None else self._writes.id

    def seal(self, text: str, tenant: str) -> str:
        """Seal a text. A text that is sealed already, because it could not be opened, stays unchanged."""
        if self._writes is None or not isinstance(text, str) or is_sealed(text):
            return text  # the store refuses a value that is not a text
        return self._writes.seal(_join_tenant(text, tenant))

    def open(self, text: str, tenant: str | None) -> str:
        """Return the text in clear; raise ConfigurationError if it cannot be opened.

        With a tenant, a text that was sealed for another tenant is refused.
        """
        if not text.startswith("enc1:") or not is_sealed(text):
            return text
        return _split_tenant(self._decrypt(text), tenant)

    def open_within(self, text: str, tenant: str | None) -> str:
        """Return a text with the sealed texts inside it opened. Those that cannot be opened stay as they are.

        In JSON, `{"sealed": text}` becomes the value that was sealed.
        """
        if text[:1] in ("{", "["):
            with suppress(ValueError):
                return json.dumps(self.open_value(json.loads(text), tenant))
        return SEALED_TEXT.sub(lambda found: self._try_open(found[0], tenant), text)

    def open_value(self, value: Any, tenant: str | None) -> Any:
        """Return a JSON value with everything sealed inside it opened, as `open_within` does."""
        if isinstance(value, str):
            return self.open_within(value, tenant) if "enc1:" in value else value
        if isinstance(value, list):
            return [self.open_value(each, tenant) for each in value]
        if not isinstance(value, dict):
            return value
        if (text := read_sealed_value(value)) is not None:
            with suppress(ConfigurationError):
                return json.loads(self.open(text, tenant))
        return {name: self.open_value(each, tenant) for name, each in value.items()}

    def _try_open(self, text: str, tenant: str | None) -> str:
        try:
            return self.open(text, tenant)
        except ConfigurationError:
            return text

    def derive_hash(self, text: str, tenant: str) -> str:
        """Return a short hash of a text that only holders of the key that seals can compute."""
        assert self._writes is not None
        return self._writes.hash(_join_tenant(text, tenant))

    def seal_hash(self, hash: str, tenant: str) -> str:
        """Return a hash in a form that reveals nothing without the key; equal hashes have equal forms."""
        if self._writes is None or not hash or is_sealed(hash):
            return hash
        return self._writes.seal_hash(_join_tenant(hash, tenant))

    def covers(self, hash: str, tenant: str) -> list[str]:
        """Return every form in which a hash may be stored: under any of the keys, or in clear."""
        return [*(key.seal_hash(_join_tenant(hash, tenant)) for key in self._keys.values()), hash]

    def open_hash(self, covered: str, tenant: str | None) -> str:
        """Return the hash in clear, as `open` does for texts."""
        if not covered.startswith("det1:") or not is_sealed(covered):
            return covered
        return _split_tenant(self._decrypt(covered), tenant)

    def is_current(self, text: str) -> bool:
        """Return True if the text has the form in which it would be written now."""
        if self._writes is None or not text:
            return not is_sealed(text)
        return text.startswith((self._writes.prefix, self._writes.prefix_of_hashes))

    def _decrypt(self, text: str) -> bytes:
        form, id, body = text.split(":", 2)
        key = self._keys.get(id)
        if key is None:
            raise ConfigurationError(missing_key_message(text))
        from cryptography.exceptions import InvalidTag

        try:
            return key.open(body) if form == "enc1" else key.open_hash(body)
        except (InvalidTag, ValueError):
            raise ConfigurationError(
                f"it is encrypted with key {id}, which {KEYS_VARIABLE} holds, but it was damaged since: restore it "
                "from a backup"
            ) from None


def _join_tenant(text: str, tenant: str) -> bytes:
    try:
        return f"{tenant}\0{text}".encode()  # a tenant never contains a NUL: stores refuse it
    except UnicodeEncodeError as error:
        raise DataRefused(f"the store refused a row: {error}") from None


def _split_tenant(data: bytes, tenant: str | None) -> str:
    owner, _, text = data.decode().partition("\0")
    if tenant is not None and owner != tenant:
        raise ConfigurationError("it was sealed for another tenant than the one whose row it lies in")
    return text
