"""The input of the kernel (reports of ended visits) and its output (decisions)."""

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
    """The failure of a node or a flow."""

    error_type: str
    message: str
    #: The failed run that caused the failure, if any.
    run_id: str | None = None


@dataclass(frozen=True)
class VisitReport:
    """The end of a visit: its output, or its failure."""

    visit: Visit
    output: JsonValue = None
    failure: NodeFailure | None = None


@dataclass(frozen=True)
class VisitStart:
    """A visit to execute. `request` has the fields of its node that `REQUESTS` names, with bindings replaced."""

    visit: Visit
    kind: str
    request: Mapping[str, JsonValue]


@dataclass(frozen=True)
class VisitRecord:
    """A visit to store: the item's value when it starts, its output and its state changes when it ends."""

    visit: Visit
    kind: str
    value: JsonValue = None
    output: JsonValue = None
    state: Mapping[str, JsonValue] | None = None
    has_ended: bool = False


@dataclass(frozen=True)
class NewEvent:
    """A new event, and the visit that it refers to."""

    payload: Payload
    visit: Visit | None = None


@dataclass
class Decisions:
    """The next snapshot, with the rows to store and the visits to start in the same transaction."""

    snapshot: Snapshot
    events: list[NewEvent] = field(default_factory=list)
    starts: list[VisitStart] = field(default_factory=list)
    records: list[VisitRecord] = field(default_factory=list)
    #: Why the flow failed.
    failure: NodeFailure | None = None
    #: Whether to advance again immediately: an advance makes a limited number of moves.
    has_more: bool = False
