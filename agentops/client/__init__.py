"""A client of agentops sites: controls and reads runs, and records your own agent loop as runs.

It needs httpx and pydantic, but neither the server, Django nor settings. The guide is docs/guides/client.md.
"""

from agentops.client.async_client import AsyncClient
from agentops.client.errors import (
    AccessDenied,
    AgentopsError,
    ApiError,
    ConnectionFailed,
    Deleted,
    InvalidRequest,
    ServerUnavailable,
    StateConflict,
    StreamReset,
    TooManyRequests,
    Unauthorized,
    UnknownObject,
)
from agentops.client.objects import Approval, Event, Message, Run, RunDetail, SentCommand, ToolCall
from agentops.client.recorder import RecordedCall, RecordedRun, Recorder
from agentops.client.sync_client import Client

__all__ = [
    "AccessDenied",
    "AgentopsError",
    "ApiError",
    "Approval",
    "AsyncClient",
    "Client",
    "ConnectionFailed",
    "Deleted",
    "Event",
    "InvalidRequest",
    "Message",
    "RecordedCall",
    "RecordedRun",
    "Recorder",
    "Run",
    "RunDetail",
    "SentCommand",
    "ServerUnavailable",
    "StateConflict",
    "StreamReset",
    "TooManyRequests",
    "ToolCall",
    "Unauthorized",
    "UnknownObject",
]
