"""Calls after a commit. Their errors must not reach the caller, to whom the transaction would seem to have failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import transaction


def after_commit(call: Callable[..., object], *args: Any, **named: Any) -> None:
    """Call `call` after the current transaction commits, or at once without one. An error is logged, not raised."""

    def made() -> None:
        call(*args, **named)

    # Django's message about an error names the function by this. A functools.partial has none, so Django's own logging
    # would raise.
    made.__qualname__ = getattr(call, "__qualname__", repr(call))
    transaction.on_commit(made, robust=True)
