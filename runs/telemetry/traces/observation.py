"""An observation: the run, a turn, a model call or a tool call, as represented in tracing systems."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any
from uuid import UUID

from runs.telemetry.sink_kind import OutgoingEvent

#: The name of the trace, and of its outermost observation.
RUN_NAME = "agent-run"


class ObservationKind(Enum):
    """The kind of an observation."""

    RUN = "run"
    TURN = "turn"
    GENERATION = "generation"
    TOOL = "tool"


@dataclass(frozen=True)
class TraceFacts:
    """The facts that all observations of a run share."""

    run_id: UUID
    #: The ID of the first run of the lineage, or of the flow run. It groups the traces of a conversation or a flow.
    session_id: str
    agent_id: str
    provider: str
    model: str
    title: str
    labels: Sequence[str] = ()
    #: Values displayed with the trace.
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits: the ID of the run."""
        return self.run_id.hex


@dataclass(frozen=True)
class ObservedFailure:
    """Why an observation failed."""

    type: str
    text: str


@dataclass(frozen=True)
class Observation:
    """An observation at the time of an event. Its ID is the same for each repeat."""

    kind: ObservationKind
    id: str
    parent_id: str | None
    name: str
    trace: TraceFacts
    event: OutgoingEvent
    started_at: datetime
    #: None while it is open.
    ended_at: datetime | None = None
    #: Of a model call: messages in the form of the GenAI conventions. Of others any JSON value. Masked.
    input: Any = None
    output: Any = None
    failure: ObservedFailure | None = None
    #: Of a run: its status.
    status: str = ""
    #: Of a model call.
    model: str = ""
    response_id: str = ""
    finish_reason: str = ""
    #: Tokens by the names of `TurnUsage`, without zeros.
    usage: Mapping[str, int] = field(default_factory=dict)
    cost_usd: float | None = None
    #: Of a tool call.
    call_id: str = ""


def run_span(run_id: UUID) -> str:
    """Return the ID of a run's observation: 16 hexadecimal digits."""
    return span_id("run", run_id)


def turn_span(run_id: UUID, step: int) -> str:
    """Return the ID of a turn's observation."""
    return span_id("turn", run_id, step)


def span_id(*parts: object) -> str:
    """Return 16 hexadecimal digits that depend only on the parts."""
    return hashlib.sha256(":".join(map(str, parts)).encode()).hexdigest()[:16]
