"""The libraries of model vendors. They are large, so they are never imported within a transaction.

A transaction that needs a library that is not imported yet is rolled back, and repeated after the import.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import TypeVar

from pydantic_ai.providers import infer_provider_class

T = TypeVar("T")
#: The name of the provider whose models need these libraries.
VENDORS = "llm"
#: Vendors whose libraries this process has imported, or tried to import.
_loaded: set[str] = set()
#: Whether the current code runs within `repeating`.
_may_repeat: ContextVar[bool] = ContextVar("may_repeat", default=False)


class NotLoaded(Exception):
    """The library of `vendor` has to be imported first."""

    def __init__(self, vendor: str) -> None:
        super().__init__(f"the library of {vendor} is not loaded")
        self.vendor = vendor


def repeating(act: Callable[[], T]) -> T:
    """Return the result of `act`. If it needs a library that is not imported, import it and call `act` again.

    `act` contains whole transactions, and has no other effects.
    """
    if _may_repeat.get():
        return act()
    token = _may_repeat.set(True)
    try:
        while True:
            try:
                return act()
            except NotLoaded as missing:
                load(missing.vendor)
    finally:
        _may_repeat.reset(token)


def require(vendor: str) -> None:
    """Import the library of a vendor. Raises ImportError if it is missing, and ValueError for an unknown vendor.

    Within `repeating`, raises `NotLoaded` instead of importing a new library.
    """
    if vendor not in _loaded and _may_repeat.get():
        raise NotLoaded(vendor)
    _loaded.add(vendor)
    infer_provider_class(vendor)


def load(vendor: str) -> None:
    """Import the library of a vendor, if it is installed. `require` reports a missing one."""
    with suppress(ImportError, ValueError):
        infer_provider_class(vendor)
    _loaded.add(vendor)
