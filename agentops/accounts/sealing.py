"""Encryption of secrets that the site uses but never displays, with AES-256-GCM.

A key is derived from each of the settings AGENTOPS_ENCRYPTION_KEYS, and from SECRET_KEY. The first one encrypts, all
decrypt. The database contains none of them.
"""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from typing import TYPE_CHECKING

from django.conf import settings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


_NONCE_BYTES = 12
_PURPOSE = b"agentops redaction rules 1"


class Unreadable(ValueError):
    """A value cannot be decrypted: its key is not in the settings, or it was changed, or it has another owner."""


def seal(plain: str, owner: str) -> tuple[bytes, str]:
    """Return the encrypted value and the ID of its key. It can be decrypted only with the same `owner`."""
    key_id, cipher = _ciphers()[0]
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + cipher.encrypt(nonce, plain.encode(errors="surrogatepass"), owner.encode()), key_id


def unseal(sealed: bytes, key_id: str, owner: str) -> str:
    """Decrypt a value. Raises `Unreadable`."""
    from cryptography.exceptions import InvalidTag

    cipher = dict(_ciphers()).get(key_id)
    if cipher is None:
        raise Unreadable(f"the settings have no encryption key {key_id}")
    try:
        plain = cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], owner.encode())
    except InvalidTag:
        raise Unreadable("the value was altered, or belongs to another rule") from None
    return plain.decode(errors="surrogatepass")


def _ciphers() -> tuple[tuple[str, AESGCM], ...]:
    """Return the IDs and ciphers of all keys; the first one encrypts."""
    return tuple(_cipher(text) for text in (*settings.AGENTOPS_ENCRYPTION_KEYS, settings.SECRET_KEY))


@lru_cache(maxsize=8)
def _cipher(text: str) -> tuple[str, AESGCM]:
    """Return the ID of the key that is derived from a setting, and its cipher."""
    # Imported here, because it takes 30 ms, and most processes encrypt nothing.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    key = HKDF(algorithm=SHA256(), length=32, salt=None, info=_PURPOSE).derive(text.encode())
    return hashlib.sha256(key).hexdigest()[:16], AESGCM(key)
