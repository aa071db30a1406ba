"""Assertions that are expected to fail."""

from __future__ import annotations

from typing import Any

import pytest


def failure_of(check: Any, *arguments: Any, **options: Any) -> str:
    """Return the message with which a check fails."""
    with pytest.raises(AssertionError) as failed:
        check(*arguments, **options)
    return str(failed.value)
