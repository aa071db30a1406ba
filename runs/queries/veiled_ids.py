"""Veils IDs that are counted over all projects, before readers receive them.

From a plain ID, a reader of one project could see how much other projects store.
"""

from __future__ import annotations

from django.utils.crypto import salted_hmac

_HALF = 2**32 - 1
_ROUNDS = range(4)


def veil(value: int) -> int:
    """Return a 64-bit number that reveals nothing about `value`, which has at most 64 bits. See `unveil`."""
    left, right = value >> 32, value & _HALF
    for number in _ROUNDS:
        left, right = right, left ^ _mix(number, right)
    return left << 32 | right


def unveil(value: int) -> int:
    """Return the original of a veiled number."""
    left, right = value >> 32 & _HALF, value & _HALF
    for number in reversed(_ROUNDS):
        left, right = right ^ _mix(number, left), left
    return left << 32 | right


def _mix(number: int, half: int) -> int:
    """Return 32 pseudo-random bits: a round of a Feistel network, keyed by SECRET_KEY."""
    mac = salted_hmac("agentops.veiled_ids", f"{number}.{half}", algorithm="sha256")
    return int.from_bytes(mac.digest()[:4], "big")
