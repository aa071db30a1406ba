"""The tree of the received spans of a trace: the run and the model call that each span belongs to.

An agent within another agent is a child run. Spans outside of all agents belong to the run of the trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from runs.external.otlp.attribute_names import AGENT, EMBEDDING, MODEL_CALL, OTHER, TOOL_CALL
from runs.models import OtlpItem

MODEL_KINDS = (MODEL_CALL, EMBEDDING)
#: Maximum child runs of one trace. Further agents belong to the enclosing run.
MAX_CHILDREN = 200
_WORK = (*MODEL_KINDS, TOOL_CALL)


@dataclass(frozen=True, slots=True)
class Place:
    """The spans that enclose a span."""

    #: The outermost known span.
    top: OtlpItem
    #: Whether all enclosing spans are known.
    is_rooted: bool
    #: The innermost enclosing agent, and the innermost tool call within that agent.
    agent: OtlpItem | None = None
    tool: OtlpItem | None = None
    #: The outermost enclosing model call within that agent and outside of that tool call: the same call, seen twice.
    model: OtlpItem | None = None


@dataclass
class TraceTree:
    """The spans of a trace. Changes no rows."""

    items: list[OtlpItem]
    #: Spans received before this time no longer wait for the spans that enclose them.
    waited_since: datetime
    #: Whether no span arrived recently. Requests sent in sequence may overtake each other.
    is_quiet: bool = True
    #: Spans that are named like a model call, but enclose several calls.
    wrappers: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.by_id = {item.item_id: item for item in self.items}
        self._places: dict[str, Place] = {}
        # A wrapper within a wrapper is detected once the inner one is known. Programs do not nest deeper.
        for _ in range(3):
            found = self._find_wrappers()
            if not found:
                break
            self.wrappers |= found
            self._places.clear()

    def kind(self, item: OtlpItem) -> str:
        """Return the kind of a span's work."""
        return OTHER if item.item_id in self.wrappers else str(item.kind)

    def place(self, item: OtlpItem) -> Place:
        """Return the place of a span. A span that encloses itself, by its IDs, is a root."""
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
        above, kind = self._places[parent.item_id], self.kind(parent)
        if kind == AGENT:
            return Place(above.top, above.is_rooted, agent=parent)
        if kind == TOOL_CALL:
            return Place(above.top, above.is_rooted, agent=above.agent, tool=parent)
        model = above.model or (parent if kind in MODEL_KINDS else None)
        return Place(above.top, above.is_rooted, above.agent, above.tool, model)

    def has_waited(self, item: OtlpItem) -> bool:
        return item.received_at <= self.waited_since

    def is_ready(self, item: OtlpItem) -> bool:
        """Return whether the place of a span is final: all enclosing spans are known, or the wait for them is over."""
        return (self.is_quiet and self.place(item).is_rooted) or self.has_waited(item)

    def owner(self, item: OtlpItem) -> OtlpItem | None:
        """Return the agent whose child run a span belongs to; None: the run of the trace."""
        agent = item if self.kind(item) == AGENT else self.place(item).agent
        while agent is not None and not self.is_child(agent):
            agent = self.place(agent).agent
        return agent

    def is_child(self, agent: OtlpItem) -> bool:
        """Return whether an agent has a separate run, below the run of another agent.

        If its enclosing spans have not arrived, its parent counts as an agent if it directly calls models or tools.
        """
        return agent.item_id in self._children

    def started_by(self, tool: OtlpItem) -> list[OtlpItem]:
        """Return the agents with separate runs that a tool call started."""
        return self._started_by.get(tool.item_id, [])

    @cached_property
    def _started_by(self) -> dict[str, list[OtlpItem]]:
        started: dict[str, list[OtlpItem]] = {}
        for agent in (self.by_id[item_id] for item_id in sorted(self._children)):
            around = self.place(agent).tool
            if around is not None:
                started.setdefault(around.item_id, []).append(agent)
        return started

    @cached_property
    def _children(self) -> set[str]:
        agents = [item for item in self.items if self.kind(item) == AGENT and self._has_agent_around(item)]
        # Agents that already have a run keep it.
        agents.sort(key=lambda item: (item.filed_under is None, item.started_at, item.item_id))
        return {item.item_id for item in agents[:MAX_CHILDREN]}

    def _has_agent_around(self, agent: OtlpItem) -> bool:
        place = self.place(agent)
        if place.agent is not None or place.is_rooted:
            return place.agent is not None
        return place.top.parent_id in self._busy_parents

    @cached_property
    def _busy_parents(self) -> set[str]:
        """Return the IDs of missing spans that have models or tools below them without an agent in between."""
        busy = set()
        for item in self.items:
            place = self.place(item)
            if self.kind(item) in _WORK and place.agent is None and not place.is_rooted:
                busy.add(place.top.parent_id)
        return busy

    @cached_property
    def enclosing_models(self) -> set[str]:
        """Return the IDs of all spans with a model call somewhere within them."""
        found: set[str] = set()
        for item in self.items:
            if self.kind(item) not in MODEL_KINDS:
                continue
            parent = self.by_id.get(item.parent_id)
            while parent is not None and parent.item_id not in found:
                found.add(parent.item_id)
                parent = self.by_id.get(parent.parent_id)
        return found

    def root(self) -> OtlpItem | None:
        """Return the span that encloses the trace, if it has arrived. Its end is the end of the run."""
        tops = [self.place(item) for item in self.items]
        roots = {place.top.item_id: place.top for place in tops if place.is_rooted}
        return min(roots.values(), key=lambda item: (item.started_at, item.item_id), default=None)

    def outermost_agent(self) -> OtlpItem | None:
        """Return the earliest agent without an enclosing agent."""
        agents = [item for item in self.items if self.kind(item) == AGENT and self.owner(item) is None]
        return min(agents, key=lambda item: item.started_at, default=None)

    def _find_wrappers(self) -> set[str]:
        """Return the model calls that enclose several model answers, each of which counts separately."""
        answers = Counter(
            place.model.item_id
            for item, place in self._model_calls()
            if place.model is not None and _has_answer(item) and not self._has_inner_answer(item)
        )
        return {item_id for item_id, count in answers.items() if count > 1}

    def _model_calls(self) -> Iterable[tuple[OtlpItem, Place]]:
        return [(item, self.place(item)) for item in self.items if self.kind(item) == MODEL_CALL]

    def _has_inner_answer(self, item: OtlpItem) -> bool:
        return item.item_id in self.enclosing_models


def _has_answer(item: OtlpItem) -> bool:
    facts = item.facts or {}
    return item.filed_under is not None or (bool(facts.get("output")) and "error" not in facts)
