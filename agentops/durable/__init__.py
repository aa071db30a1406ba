"""Durable functions: plain Python whose steps a site stores, so that another process continues after a crash.

It needs httpx and pydantic, but neither the server, Django nor settings. The guide is docs/guides/durable.md.
"""

from agentops.durable.answers import Answer, Call, ChildRun, Decision, Usage
from agentops.durable.codec import Codec
from agentops.durable.errors import (
    Denied,
    LeaseLost,
    RunInterrupted,
    StepFailed,
    StepMismatch,
    StepTimeout,
    UnstorableValue,
)
from agentops.durable.functions import DurableFunction, durable
from agentops.durable.retries import RetryPolicy
from agentops.durable.run import DurableRun
from agentops.durable.serving import serve, serve_forever
from agentops.durable.sync_run import SyncDurableRun

__all__ = [
    "Answer",
    "Call",
    "ChildRun",
    "Codec",
    "Decision",
    "Denied",
    "DurableFunction",
    "DurableRun",
    "LeaseLost",
    "RetryPolicy",
    "RunInterrupted",
    "StepFailed",
    "StepMismatch",
    "StepTimeout",
    "SyncDurableRun",
    "UnstorableValue",
    "Usage",
    "durable",
    "serve",
    "serve_forever",
]
