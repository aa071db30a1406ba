"""Calls after a commit whose errors nobody has to handle: the rows are stored, whatever becomes of the call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any

from django.db import transaction


def after_commit(act: Callable[..., object], *args: Any, **options: Any) -> None:
    """Call `act` once the current transaction is committed, or now without one. Its errors are logged, not raised."""
    # With a name, which Django logs with an error: a partial without one makes the commit raise an AttributeError.
    transaction.on_commit(update_wrapper(partial(act, *args, **options), act), robust=True)
