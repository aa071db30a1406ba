"""Types of the engine's fixtures."""

from __future__ import annotations

from collections.abc import Callable

from runs.models import Agent, AgentRun

MakeScripted = Callable[..., AgentRun]
MakeHelper = Callable[..., Agent]
DieAt = Callable[..., bool]


class Died(BaseException):
    """Stands for the end of the process: nothing of the worker's own handling may run after it."""
