"""Types of the engine's fixtures."""

from __future__ import annotations

from collections.abc import Callable

from runs.models import Agent, AgentRun

MakeScripted = Callable[..., AgentRun]
MakeHelper = Callable[..., Agent]
DieAt = Callable[..., bool]


class Died(BaseException):
    """Simulates the end of the process: none of the worker's error handling may run after it."""
