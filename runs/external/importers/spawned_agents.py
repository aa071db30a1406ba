"""Sub-agents that a call spawned, as events of the run with the call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from runs.external.event_input import IncomingEvent
from runs.external.importers.answer_events import event_id
from timeline.events import Payload
from timeline.events.child import ChildRunCompleted, ChildRunStarted

#: The tools that spawn sub-agents.
SPAWNING_TOOLS = ("Agent", "Task")
#: The name of an agent without a name.
UNNAMED = "claude-code"
#: The kinds of events.
START, END = "child", "child-end"


def event_id_of(kind: str, key: str) -> str:
    """Return the ID of an event about the agent with this ID. The agent's ID alone is enough to find the event."""
    return event_id(f"{kind}:{key}")


@dataclass(frozen=True, kw_only=True)
class SpawnedAgent:
    """A sub-agent, with the facts in the run that has its call."""

    run_ref: str
    #: The suffix of `run_ref`.
    key: str
    agent: str = ""
    #: Whether it keeps working after the result of its call.
    is_in_background: bool = False

    def events(self, run_ref: str, call_id: str, at: datetime | None, *, has_failed: bool) -> Iterator[IncomingEvent]:
        """Yield the events that follow from the call's result: the start and, unless in the background, the end."""
        started = ChildRunStarted(run_id=self.run_ref, agent=self.agent or None, call_id=call_id)
        payloads: list[tuple[str, Payload]] = [(START, started)]
        if not self.is_in_background:
            status = "failed" if has_failed else "completed"
            ended = ChildRunCompleted(run_id=self.run_ref, agent=self.agent or None, call_id=call_id, status=status)
            payloads.append((END, ended))
        for kind, payload in payloads:
            yield IncomingEvent(run_ref, payload.event_type, payload, event_id=event_id_of(kind, self.key), ts=at)
