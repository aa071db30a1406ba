"""The graph of a flow: its nodes in topological order, its edges, and its loops with the nodes that they repeat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import JsonValue


@dataclass(frozen=True)
class Node:
    """A node. `spec` holds the fields of its kind as in the definition, with bindings."""

    id: str
    kind: str
    spec: Mapping[str, JsonValue]
    when: str | None = None
    continues_on_error: bool = False
    #: Values by dotted path that replace values of the state when the node is done.
    sets: Mapping[str, JsonValue] = field(default_factory=dict)
    #: Values by dotted path that are merged into objects of the state when the node is done.
    merges: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Edge:
    """An edge. An edge with `max_iterations` is a loop edge: it leads back to an earlier node."""

    source: str
    target: str
    when: str | None = None
    #: forEach: the expression of the list, and the name of an item in the scope.
    each_in: str | None = None
    each_as: str = "item"
    max_iterations: int | None = None

    @property
    def key(self) -> str:
        return f"{self.source}->{self.target}"

    @property
    def is_loop(self) -> bool:
        return self.max_iterations is not None


@dataclass(frozen=True)
class Graph:
    """The nodes and edges of a definition."""

    nodes: Mapping[str, Node]
    edges: Sequence[Edge]
    #: The nodes with an `any` gate. All other nodes have an `all` gate.
    any_gates: frozenset[str] = frozenset()
    state: Mapping[str, JsonValue] = field(default_factory=dict)

    @cached_property
    def incoming(self) -> dict[str, list[Edge]]:
        """The forward edges into each node."""
        return {node: [e for e in self.edges if e.target == node and not e.is_loop] for node in self.nodes}

    @cached_property
    def outgoing(self) -> dict[str, list[Edge]]:
        """The edges out of each node. Loop edges come first, inner loops before outer loops."""
        own: dict[str, list[Edge]] = {node: [] for node in self.nodes}
        for edge in self.edges:
            own[edge.source].append(edge)
        for edges in own.values():
            edges.sort(key=lambda e: len(self.bodies[e.key]) if e.is_loop else len(self.nodes) + 1)
        return own

    @cached_property
    def order(self) -> list[str]:
        """The nodes in topological order. The nodes of `cyclic` come last."""
        waiting = {node: len(self.incoming[node]) for node in self.nodes}
        ready = [node for node, count in waiting.items() if not count]
        done: list[str] = []
        while ready:
            node = ready.pop(0)
            done.append(node)
            for edge in self._forward[node]:
                waiting[edge.target] -= 1
                if not waiting[edge.target]:
                    ready.append(edge.target)
        return done + [node for node in self.nodes if waiting[node] > 0]

    @cached_property
    def cyclic(self) -> list[str]:
        """The nodes on a cycle that has no loop edge (`max_iterations`), and the nodes that follow such a cycle."""
        seen: set[str] = set()
        for node in self.order:
            if all(edge.source in seen for edge in self.incoming[node]):
                seen.add(node)
        return [node for node in self.nodes if node not in seen]

    @cached_property
    def loops(self) -> list[Edge]:
        return [edge for edge in self.edges if edge.is_loop]

    @cached_property
    def bodies(self) -> dict[str, frozenset[str]]:
        """The nodes of each loop, by the key of its edge: all nodes on paths from its first node to its last one."""
        return {
            loop.key: frozenset(self._reach([loop.target], self._next) & self._reach([loop.source], self._previous))
            for loop in self.loops
        }

    @cached_property
    def around(self) -> dict[str, list[Edge]]:
        """The loops that contain each node."""
        return {node: [loop for loop in self.loops if node in self.bodies[loop.key]] for node in self.nodes}

    def left_by(self, edge: Edge) -> list[Edge]:
        """Return the loops that an edge leaves. Whether the edge fires is decided after these loops."""
        return [loop for loop in self.around[edge.source] if edge.target not in self.bodies[loop.key]]

    def reachable(self, node: str) -> set[str]:
        """Return the nodes that can be reached forward from a node, including the node."""
        return self._reach([node], self._next)

    @cached_property
    def ancestors(self) -> dict[str, set[str]]:
        """The nodes that may have run before each node: all nodes with a path to it, including paths along loops."""
        previous: dict[str, list[str]] = {name: [] for name in self.nodes}
        for edge in self.edges:
            previous[edge.target].append(edge.source)
        return {name: self._reach(previous[name], previous) for name in self.nodes}

    @cached_property
    def _forward(self) -> dict[str, list[Edge]]:
        return {node: [e for e in self.edges if e.source == node and not e.is_loop] for node in self.nodes}

    @cached_property
    def _next(self) -> dict[str, list[str]]:
        return {node: [edge.target for edge in edges] for node, edges in self._forward.items()}

    @cached_property
    def _previous(self) -> dict[str, list[str]]:
        return {node: [edge.source for edge in edges] for node, edges in self.incoming.items()}

    @staticmethod
    def _reach(starts: Iterable[str], neighbours: Mapping[str, Sequence[str]]) -> set[str]:
        """Return the nodes that can be reached from `starts`, including these."""
        reached = set(starts)
        waiting = list(reached)
        while waiting:
            for node in neighbours[waiting.pop()]:
                if node not in reached:
                    reached.add(node)
                    waiting.append(node)
        return reached


def graph_of(definition: Mapping[str, Any]) -> Graph:
    """Return the graph of a checked definition."""
    nodes = {spec["id"]: _node(spec) for spec in definition["nodes"]}
    edges = [_edge(spec) for spec in definition.get("edges") or []]
    any_gates = {spec["to"] for spec in definition.get("edges") or [] if spec.get("gate") == "any"}
    return Graph(nodes, edges, frozenset(any_gates), definition.get("state") or {})


def _node(spec: Mapping[str, Any]) -> Node:
    patch = spec.get("state") or {}
    return Node(
        id=spec["id"],
        kind=spec["type"],
        spec=spec,
        when=spec.get("when"),
        continues_on_error=bool((spec.get("policy") or {}).get("continueOnError")),
        sets=patch.get("set") or {},
        merges=patch.get("merge") or {},
    )


def _edge(spec: Mapping[str, Any]) -> Edge:
    each = spec.get("forEach") or {}
    return Edge(
        source=spec["from"],
        target=spec["to"],
        when=spec.get("when"),
        each_in=each.get("in"),
        each_as=each.get("as") or "item",
        max_iterations=spec.get("maxIterations"),
    )
