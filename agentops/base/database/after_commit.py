"""What is done after a commit, and must not fail it: whoever has committed would take it for a failed transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import transaction


def after_commit(call: Callable[..., object], *args: Any, **named: Any) -> None:
    """Call `call` once the current transaction has committed, at once without one. An error is logged, not raised."""

    def made() -> None:
        call(*args, **named)

    # Django's message about an error names the function by this. functools.partial has none: the error would get out.
    made.__qualname__ = getattr(call, "__qualname__", repr(call))
    transaction.on_commit(made, robust=True)
