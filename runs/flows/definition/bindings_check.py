"""Errors in the expressions of a definition that can be detected before a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runs.flows.kernel.bindings import expressions_in, texts_in
from runs.flows.kernel.expressions import InvalidExpression, paths
from runs.flows.kernel.graph import Graph
from runs.flows.kernel.work import REQUESTS

#: The names that every binding may read.
ROOTS = ("inputs", "outputs", "state")
Path = list[str | int]
Found = tuple[str, str, Path]


def problems(fields: Mapping[str, Any], graph: Graph) -> Iterator[Found]:
    """Yield code, text and path of each invalid expression, and of each expression that reads a missing value."""
    names = _item_names(fields)
    for index, node in enumerate(fields["nodes"]):
        at: Path = ["nodes", index]
        own = names.get(node["id"], set())
        reachable = graph.ancestors[node["id"]]
        if "when" in node:
            yield from _expression(node["when"], [*at, "when"], graph, reachable, own)
        for field in REQUESTS[node["type"]]:
            yield from _texts(node.get(field), [*at, field], graph, reachable, own)
        for kind, values in (node.get("state") or {}).items():
            seen = reachable | {node["id"]}
            yield from _texts(values, [*at, "state", kind], graph, seen, {"output"})
    for index, edge in enumerate(fields.get("edges") or []):
        seen = graph.ancestors[edge["from"]] | {edge["from"]}
        if "when" in edge:
            yield from _expression(edge["when"], ["edges", index, "when"], graph, seen, set())
        if "forEach" in edge:
            before = seen | graph.ancestors[edge["to"]]
            yield from _expression(edge["forEach"]["in"], ["edges", index, "forEach", "in"], graph, before, set())
            if edge["forEach"].get("as") in ROOTS:
                text = f"{edge['forEach']['as']!r} has another meaning in bindings"
                yield "invalid_for_each", text, ["edges", index, "forEach", "as"]


def _item_names(fields: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return the names of items that the bindings of each node may read."""
    names: dict[str, set[str]] = {}
    for edge in fields.get("edges") or []:
        if "forEach" in edge:
            names.setdefault(edge["to"], set()).add(edge["forEach"].get("as") or "item")
    return names


def _texts(value: Any, path: Path, graph: Graph, seen: set[str], names: set[str]) -> Iterator[Found]:
    for below, text in texts_in(value):
        for expression in expressions_in(text):
            yield from _expression(expression, [*path, *below], graph, seen, names)


def _expression(expression: str, path: Path, graph: Graph, seen: set[str], names: set[str]) -> Iterator[Found]:
    try:
        read = paths(expression)
    except InvalidExpression as error:
        yield "invalid_expression", str(error), path
        return
    for name, below in read:
        if name not in ROOTS and name not in names:
            known = ", ".join(sorted({*ROOTS, *names}))
            yield "unknown_binding", f"{expression[:100]!r} reads {name!r}; bindings can read: {known}", path
        elif name == "outputs" and below is not None and below not in graph.nodes:
            yield "unknown_binding", f"{expression[:100]!r} reads the output of {below!r}, which is no node", path
        elif name == "outputs" and below is not None and below not in seen:
            text = f"{expression[:100]!r} reads the output of {below!r}, from which no path leads here"
            yield "unknown_binding", text, path
