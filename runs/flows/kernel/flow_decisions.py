"""What the kernel takes and returns: reports of ended visits, and decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from runs.flows.kernel.snapshot import Snapshot, Visit
from timeline.events import Payload

#: Error types of failed nodes and flows.
BINDING_FAILED = "binding_failed"
EXPRESSION_TOO_EXPENSIVE = "expression_too_expensive"
OUTPUT_TOO_LARGE = "output_too_large"
FOR_EACH_FAILED = "for_each_failed"
LOOP_EXCEEDED = "loop_exceeded"
STALLED = "stalled"
NODE_FAILED = "node_failed"
FLOW_ENDED = "flow_ended"
ADVANCE_FAILED, ADVANCE_LOST = "advance_failed", "advance_lost"


@dataclass(frozen=True)
class NodeFailure:
    """Why a node or a flow failed."""

    error_type: str
    message: str
    #: The failed run that is the reason, if there is one.
    run_id: str | None = None


@dataclass(frozen=True)
class VisitReport:
    """The end of a visit: its output, or its failure."""

    visit: Visit
    output: JsonValue = None
    failure: NodeFailure | None = None


@dataclass(frozen=True)
class VisitStart:
    """A visit that somebody has to execute. `request` holds the fields of its kind, with bindings replaced."""

    visit: Visit
    kind: str
    request: Mapping[str, JsonValue]


@dataclass(frozen=True)
class Recorded:
    """A visit to store: its item's value when it starts, its output and the state that it sets when it ends."""

    visit: Visit
    kind: str
    value: JsonValue = None
    output: JsonValue = None
    state: Mapping[str, JsonValue] | None = None
    has_ended: bool = False


@dataclass(frozen=True)
class Happened:
    """An event, and the visit that it is about."""

    payload: Payload
    visit: Visit | None = None


@dataclass
class Decisions:
    """The next snapshot, and what has to be stored and started with it, in one transaction."""

    snapshot: Snapshot
    events: list[Happened] = field(default_factory=list)
    starts: list[VisitStart] = field(default_factory=list)
    records: list[Recorded] = field(default_factory=list)
    #: Why the flow failed.
    failure: NodeFailure | None = None
    #: Whether there is more to decide at once: an advance makes a limited number of moves.
    has_more: bool = False
