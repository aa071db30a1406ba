"""The password hashers: Django's, limited to two concurrent hashes in a process.

A hash by Argon2 takes 100 MiB and both cores of a small machine for a tenth of a second.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.contrib.auth.hashers import Argon2PasswordHasher, ScryptPasswordHasher

from agentops.base.refusals import Refusal

#: Concurrent hashes, and further threads that may wait for one. More would occupy all threads of a web process.
AT_ONCE, MOST_WAITING = 2, 2
#: Seconds that a thread waits.
LONGEST_WAIT_S = 10
RETRY_AFTER_S = 2

_doors = threading.BoundedSemaphore(AT_ONCE + MOST_WAITING)
_places = threading.BoundedSemaphore(AT_ONCE)


class HashersBusy(Refusal):
    """The process is already checking the maximum number of passwords. This password was not checked."""

    code = "passwords_busy"
    status = 429
    text = f"too many passwords are being checked: try again in {RETRY_AFTER_S} seconds"
    headers = {"Retry-After": str(RETRY_AFTER_S)}


@contextmanager
def hash_place() -> Iterator[None]:
    """Wait until this thread may hash a password. Raise HashersBusy if others wait already, or it takes too long."""
    if not _doors.acquire(blocking=False):
        raise HashersBusy
    try:
        if not _places.acquire(timeout=LONGEST_WAIT_S):
            raise HashersBusy
        try:
            yield
        finally:
            _places.release()
    finally:
        _doors.release()


class Argon2(Argon2PasswordHasher):
    """Django's Argon2."""

    def encode(self, password: str, salt: str) -> str:
        with hash_place():
            return super().encode(password, salt)

    def verify(self, password: str, encoded: str) -> bool:
        with hash_place():
            return super().verify(password, encoded)


class Scrypt(ScryptPasswordHasher):
    """Django's scrypt. It verifies by encoding."""

    def encode(self, password: str, salt: str, *args: Any, **kwargs: Any) -> str:
        with hash_place():
            return super().encode(password, salt, *args, **kwargs)
