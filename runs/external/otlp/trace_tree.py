"""The tree of the received spans of a trace: to which run and to which model call each span belongs.

An agent within another agent gets a child run. All other spans belong to the run of the enclosing agent with a child
run, or else to the run of the trace. An agent that only encloses another one, or agents that hand over to each other,
is not an agent: it would be an empty run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from runs.external.otlp.attribute_names import AGENT, EMBEDDING, HANDOFF, MODEL_CALL, OTHER, TOOL_CALL
from runs.models import OtlpItem

MODEL_KINDS = (MODEL_CALL, EMBEDDING)
#: Maximum child runs of one trace. Further agents belong to the enclosing run.
MAX_CHILDREN = 200
#: The kinds of the work of an agent.
_WORK = (*MODEL_KINDS, TOOL_CALL)


@dataclass(frozen=True, slots=True)
class Place:
    """The spans that enclose a span."""

    #: The outermost known span.
    top: OtlpItem
    #: Whether all enclosing spans are known.
    is_rooted: bool
    #: The innermost enclosing agent, and the innermost enclosing tool call within that agent.
    agent: OtlpItem | None = None
    tool: OtlpItem | None = None
    #: The outermost enclosing model call within both: it is the same call, traced by two libraries.
    model: OtlpItem | None = None


@dataclass
class TraceTree:
    """The received spans of a trace."""

    items: list[OtlpItem]
    #: Spans received until this time no longer wait for the spans that enclose them.
    waited_since: datetime
    #: Whether no span arrived recently. A span that was sent earlier may arrive later.
    is_quiet: bool = True
    #: The IDs of spans that are named like a model call but enclose several, or like an agent but only enclose agents.
    wrappers: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.by_id = {item.item_id: item for item in self.items}
        self._places: dict[str, Place] = {}
        # A wrapper within a wrapper is detected once the inner one is known. Programs do not nest deeper.
        for _ in range(3):
            new_wrappers = self._find_wrappers() | self._find_frames()
            if not new_wrappers:
                break
            self.wrappers |= new_wrappers
            self._places.clear()

    def kind(self, item: OtlpItem) -> str:
        """Return the kind of a span's work."""
        return OTHER if item.item_id in self.wrappers else str(item.kind)

    def place(self, item: OtlpItem) -> Place:
        """Return the place of a span. If the parent IDs form a cycle, a span in it counts as a root."""
        path: list[OtlpItem] = []
        on_path: set[str] = set()
        at: OtlpItem | None = item
        while at is not None and at.item_id not in self._places and at.item_id not in on_path:
            path.append(at)
            on_path.add(at.item_id)
            at = self.by_id.get(at.parent_id)
        if at is None or at.item_id in on_path:
            top = path.pop()
            is_rooted = at is not None or not top.parent_id or (top.has_remote_parent and self.has_waited(top))
            self._places[top.item_id] = Place(top, is_rooted)
            at = top
        for below in reversed(path):
            self._places[below.item_id] = self._within(at)
            at = below
        return self._places[item.item_id]

    def _within(self, parent: OtlpItem) -> Place:
        """Return the place of the spans directly within a span."""
        above, kind = self._places[parent.item_id], self.kind(parent)
        if kind == AGENT:
            return Place(above.top, above.is_rooted, agent=parent)
        if kind == TOOL_CALL:
            return Place(above.top, above.is_rooted, agent=above.agent, tool=parent)
        model = above.model or (parent if kind in MODEL_KINDS else None)
        return Place(above.top, above.is_rooted, above.agent, above.tool, model)

    def has_waited(self, item: OtlpItem) -> bool:
        """Return whether a span no longer waits for the spans that enclose it."""
        return item.received_at <= self.waited_since

    def is_ready(self, item: OtlpItem) -> bool:
        """Return whether the place of a span is final: all enclosing spans are known, or the wait for them is over."""
        return (self.is_quiet and self.place(item).is_rooted) or self.has_waited(item)

    def owner(self, item: OtlpItem) -> OtlpItem | None:
        """Return the agent whose child run a span belongs to; None: the run of the trace."""
        agent = item if self.kind(item) == AGENT else self.place(item).agent
        while agent is not None and agent.item_id not in self._children:
            agent = self.place(agent).agent
        return agent

    def started_by(self, tool: OtlpItem) -> list[OtlpItem]:
        """Return the agents with child runs that a tool call started."""
        return self._started_by.get(tool.item_id, [])

    @cached_property
    def _started_by(self) -> dict[str, list[OtlpItem]]:
        """The agents with child runs, by the ID of the tool call that started them."""
        started: dict[str, list[OtlpItem]] = {}
        for agent in (self.by_id[item_id] for item_id in sorted(self._children)):
            around = self.place(agent).tool
            if around is not None:
                started.setdefault(around.item_id, []).append(agent)
        return started

    @cached_property
    def _children(self) -> set[str]:
        """The IDs of the agents that get child runs: those within another agent, up to `MAX_CHILDREN`."""
        agents = [item for item in self.items if self.kind(item) == AGENT and self._has_agent_around(item)]
        # Agents that already have a run keep it.
        agents.sort(key=lambda item: (item.filed_under is None, item.started_at, item.item_id))
        return {item.item_id for item in agents[:MAX_CHILDREN]}

    def _has_agent_around(self, agent: OtlpItem) -> bool:
        """Return whether an agent is within another agent. A missing parent counts as an agent if it is busy."""
        place = self.place(agent)
        if place.agent is not None or place.is_rooted:
            return place.agent is not None
        return place.top.parent_id in self._busy_parents

    @cached_property
    def _busy_parents(self) -> set[str]:
        """The IDs of missing spans that enclose model or tool calls without an agent in between."""
        busy = set()
        for item in self.items:
            place = self.place(item)
            if self.kind(item) in _WORK and place.agent is None and not place.is_rooted:
                busy.add(place.top.parent_id)
        return busy

    @cached_property
    def enclosing_models(self) -> set[str]:
        """The IDs of all spans that enclose a model call, at any depth."""
        enclosing: set[str] = set()
        for item in self.items:
            if self.kind(item) not in MODEL_KINDS:
                continue
            parent = self.by_id.get(item.parent_id)
            while parent is not None and parent.item_id not in enclosing:
                enclosing.add(parent.item_id)
                parent = self.by_id.get(parent.parent_id)
        return enclosing

    def root(self) -> OtlpItem | None:
        """Return the span that encloses the trace, if it has arrived. Its end is the end of the run."""
        tops = [self.place(item) for item in self.items]
        roots = {place.top.item_id: place.top for place in tops if place.is_rooted}
        return min(roots.values(), key=lambda item: (item.started_at, item.item_id), default=None)

    def outermost_agent(self) -> OtlpItem | None:
        """Return the earliest agent that has no child run; None without an agent."""
        agents = [item for item in self.items if self.kind(item) == AGENT and self.owner(item) is None]
        return min(agents, key=lambda item: item.started_at, default=None)

    def _find_wrappers(self) -> set[str]:
        """Return the IDs of model calls that enclose several answers, which are separate model calls."""
        answers: Counter[str] = Counter()
        for item in self.items:
            outer = self.place(item).model
            is_innermost = self.kind(item) == MODEL_CALL and item.item_id not in self.enclosing_models
            if outer is not None and is_innermost and _has_answer(item):
                answers[outer.item_id] += 1
        return {item_id for item_id, count in answers.items() if count > 1}

    def _find_frames(self) -> set[str]:
        """Return the IDs of unfiled agents without own work that enclose one agent, or agents with a handoff."""
        inner: dict[str, list[str]] = {}
        working: set[str] = set()
        handing: set[str] = set()
        for item in self.items:
            kind, agent = self.kind(item), self.place(item).agent
            if agent is None:
                continue
            if kind == AGENT:
                inner.setdefault(agent.item_id, []).append(item.item_id)
            elif kind in _WORK:
                working.add(agent.item_id)
            elif kind == HANDOFF:
                handing.add(agent.item_id)
        return {
            item_id
            for item_id, agents in inner.items()
            if item_id not in working
            and self.by_id[item_id].filed_under is None
            and (len(agents) == 1 or handing & set(agents))
        }


def _has_answer(item: OtlpItem) -> bool:
    """Return whether a model call has an answer. A filed one counts as if it had, because its output was dropped."""
    facts = item.facts or {}
    return item.filed_under is not None or (bool(facts.get("output")) and "error" not in facts)
