"""Sealing texts before they are stored, with the keys of REDRIVE_ENCRYPTION_KEYS.

    enc1:<key id>:<base64>    a payload: AES-256-GCM under a random nonce, another text each time
    det1:<key id>:<base64>    a hash: AES-SIV, the same text each time, so that a store can compare it

The key id is a short hash of the key: it tells a key that is missing here from a text that was damaged.
The tenant is sealed in together with the text, and compared with the row's wherever that is known. Texts
without such a beginning were written in clear and are read as they are.

This is no part of `core` because it draws nonces and needs a package that only the extra `encryption`
brings, which is imported with the first key and not before.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import os
import re

from redrive.errors import ConfigurationError, DataRefused
from redrive.settings import ENVIRONMENT_VARIABLES, parse_encryption_keys

NO_KEY = "in clear"
"""Stands for the id of a key where there is none."""

SEALED_ERROR = "redrive.Sealed"
"""The type of the error that stands for one which cannot be opened."""

_VARIABLE = ENVIRONMENT_VARIABLES["encryption_keys"]
_HEAD = re.compile(r"(?:enc1|det1):([0-9a-f]{8}):")
_PREFIXES = frozenset({"enc1:", "det1:"})
_NONCE = 12


def is_sealed(text: str) -> bool:
    """True for a text that looks sealed. What the engine writes in clear never does: it is JSON or words."""
    return text[:5] in _PREFIXES and _HEAD.match(text) is not None


def key_id_of(text: str) -> str:
    """The id of the key that a text is sealed with."""
    head = _HEAD.match(text)
    return NO_KEY if head is None else head[1]


def missing_key_message(text: str) -> str:
    """What to tell whoever meets a text that this process could not open."""
    key = key_id_of(text)
    return f"it is sealed with key {key}, which {_VARIABLE} does not hold here; add that key and try again"


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
    """One key, ready to use."""

    __slots__ = ("_aes", "_head", "_siv", "id", "prefix", "prefix_of_hashes")

    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV
        except ModuleNotFoundError:
            raise ConfigurationError(
                f'{_VARIABLE} is set, and encryption needs a package: pip install "redrive[encryption]"'
            ) from None
        self.id = hashlib.sha256(b"redrive key id\0" + key).hexdigest()[:8]
        self.prefix = f"enc1:{self.id}:"
        self.prefix_of_hashes = f"det1:{self.id}:"
        self._head = self.prefix.encode()
        self._aes = AESGCM(key)
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

    def open_hash(self, body: str) -> bytes:
        return self._siv.decrypt(binascii.a2b_base64(body, strict_mode=True), None)


class Keyring:
    """The keys of this process: the first one writes (none does after `plain`), all of them read."""

    def __init__(self, keys: list[bytes | None]) -> None:
        ready = [None if key is None else _Key(key) for key in keys]
        self._writes = ready[0] if ready else None
        self._keys = {key.id: key for key in ready if key is not None}

    @classmethod
    def parse(cls, text: str) -> Keyring | None:
        """The keys that a setting names; None if it names none."""
        keys = parse_encryption_keys(text)
        return cls(keys) if keys else None

    def read_only(self) -> Keyring:
        """The same keys for reading, with nothing sealed that is written."""
        ring = Keyring([])
        ring._keys = self._keys
        return ring

    @property
    def writes(self) -> str | None:
        """The id of the key that seals what is written; None if it is written in clear."""
        return None if self._writes is None else self._writes.id

    def seal(self, text: str, tenant: str) -> str:
        """Seal a text. One that is sealed already, since it could not be opened, stays as it is."""
        if self._writes is None or not isinstance(text, str) or is_sealed(text):
            return text  # what is no text at all is for the store to refuse
        return self._writes.seal(_join_tenant(text, tenant))

    def open(self, text: str, tenant: str | None) -> str:
        """The text that was sealed, or written in clear. ConfigurationError if it cannot be had.

        Where the tenant is given, a text that was sealed for another one is refused.
        """
        if not text.startswith("enc1:") or not is_sealed(text):
            return text
        return _split_tenant(self._decrypt(text), tenant)

    def seal_hash(self, hash: str, tenant: str) -> str:
        """A hash in a form that tells nothing without the key, and is the same for the same hash."""
        if self._writes is None or not hash or is_sealed(hash):
            return hash
        return self._writes.seal_hash(_join_tenant(hash, tenant))

    def covers(self, hash: str, tenant: str) -> list[str]:
        """Every form in which a hash may have been written: under any of the keys, or in clear."""
        return [*(key.seal_hash(_join_tenant(hash, tenant)) for key in self._keys.values()), hash]

    def open_hash(self, covered: str, tenant: str | None) -> str:
        """The hash that was covered, as `open` does for texts."""
        if not covered.startswith("det1:") or not is_sealed(covered):
            return covered
        return _split_tenant(self._decrypt(covered), tenant)

    def is_current(self, text: str) -> bool:
        """True if the text is as it would be written now."""
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
                f"it is sealed with key {id}, which {_VARIABLE} holds, but it was damaged since: restore it "
                "from a backup"
            ) from None


def _join_tenant(text: str, tenant: str) -> bytes:
    try:
        return f"{tenant}\0{text}".encode()  # no tenant contains a NUL: no store would take it
    except UnicodeEncodeError as error:
        raise DataRefused(f"the store refused a row: {error}") from None


def _split_tenant(data: bytes, tenant: str | None) -> str:
    owner, _, text = data.decode().partition("\0")
    if tenant is not None and owner != tenant:
        raise ConfigurationError("it was sealed for another tenant than the one whose row it lies in")
    return text
