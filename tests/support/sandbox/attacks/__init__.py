"""Attempts to leave the sandbox, as a program that runs inside it. Needs only the standard library.

Each attack is a function that returns whether it reached something. An error means that it failed. `facts.json`
describes the resources outside.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from types import SimpleNamespace

Attack = Callable[[SimpleNamespace], bool]
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
ATTACKS: dict[str, Attack] = {}


def attack(function: Attack) -> Attack:
    """Register an attack by the name of its function."""
    ATTACKS[function.__name__] = function
    return function


def checked(code: int) -> bool:
    """Return True, or raise the error of a call of the C library."""
    if code < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return True
