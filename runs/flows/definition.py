"""Checks the definition of a flow before any run: first its shape, then the relations between its parts, and its
expressions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from pydantic import ValidationError

from agentops.base.http import strict_json
from agentops.base.schema_checks import TOO_EXPENSIVE, ExpensiveSchema, InvalidSchema, check_schema
from runs.agents.definition import json_fault
from runs.flows.kernel.bindings import expressions_in, texts_in
from runs.flows.kernel.expressions import InvalidExpression, paths
from runs.flows.kernel.graph import Graph, graph_of
from runs.flows.kernel.work import REQUESTS
from runs.flows.shapes import MAX_BYTES, FlowDefinition
from runs.providers.messages import canonical

MAX_POINTER = 200
Path = list[str | int]


@dataclass(frozen=True)
class DefinitionProblem:
    """An error in a definition, and the JSON pointer of the invalid value."""

    code: str
    text: str
    pointer: str


def pointer_of(*path: str | int) -> str:
    """Return a path as a JSON pointer of at most 200 characters."""
    return strict_json.pointer(path)[:MAX_POINTER]


def _problem(code: str, text: str, *path: str | int) -> DefinitionProblem:
    return DefinitionProblem(code, text, pointer_of(*path))


def examine(definition: Any) -> tuple[dict[str, Any] | None, list[DefinitionProblem]]:
    """Return the definition with its defaults (None if its shape is invalid), and all problems.

    Agents and tools are not checked here: see runs.actions.flow_definitions.
    """
    if not isinstance(definition, Mapping):
        return None, [_problem("invalid_shape", "a definition must be an object")]
    fault = json_fault(definition)
    if fault is not None:
        return None, [DefinitionProblem("invalid_value", *fault)]
    if len(canonical(dict(definition)).encode()) > MAX_BYTES:
        return None, [_problem("too_large", f"the definition is longer than {MAX_BYTES} bytes as JSON")]
    try:
        checked = FlowDefinition.model_validate(dict(definition))
    except ValidationError as error:
        return None, list(_shape_problems(error))
    fields = checked.model_dump(by_alias=True, exclude_defaults=True) | {"flow_id": checked.flow_id}
    fields["nodes"] = [
        node | {"type": source.type} for node, source in zip(fields["nodes"], checked.nodes, strict=True)
    ]
    problems = [*_graph_problems(fields), *_input_problems(fields), *_patch_problems(fields["nodes"])]
    return fields, problems


def _shape_problems(error: ValidationError) -> Iterator[DefinitionProblem]:
    """Convert the errors of pydantic."""
    for fault in error.errors(include_url=False, include_input=False):
        path = list(fault["loc"])
        if path[:1] == ["nodes"] and len(path) > 2 and path[2] in REQUESTS:
            del path[2]  # pydantic adds the kind of the node to the path
        text = fault["msg"].removeprefix("Value error, ")
        code = "invalid_shape"
        if fault["type"] == "union_tag_invalid":
            path, code = [*path, "type"], "unknown_node_type"
            text = f"unknown node type {str(fault['ctx']['tag'])[:64]!r}; use one of: {', '.join(REQUESTS)}"
        elif fault["type"] == "union_tag_not_found":
            path, text = [*path, "type"], f"a node needs a type: one of {', '.join(REQUESTS)}"
        yield _problem(code, text, *path)


def _input_problems(fields: Mapping[str, Any]) -> Iterator[DefinitionProblem]:
    schema = fields.get("inputs") or {}
    try:
        check_schema(schema)
    except InvalidSchema as error:
        code = TOO_EXPENSIVE if isinstance(error, ExpensiveSchema) else "invalid_inputs"
        yield _problem(code, str(error), "inputs", *error.path)


def _patch_problems(nodes: Sequence[Mapping[str, Any]]) -> Iterator[DefinitionProblem]:
    """Find pairs of paths in a node's patch of which one contains the other.

    They are refused, because their result would depend on the order of the paths, and JSON objects have no order.
    """
    for index, node in enumerate(nodes):
        seen: set[str] = set()
        #: By each path and its prefixes: the first path that begins with it.
        first_below: dict[str, str] = {}
        for kind, values in (node.get("state") or {}).items():
            for path in values:
                prefixes = list(accumulate(path.split("."), "{}.{}".format))
                other = next((prefix for prefix in prefixes if prefix in seen), first_below.get(path))
                if other is not None:
                    text = f"{path!r} and {other!r} overlap: one contains the other"
                    yield _problem("overlapping_paths", text, "nodes", index, "state", kind, path)
                seen.add(path)
                for prefix in prefixes:
                    first_below.setdefault(prefix, path)


def _graph_problems(fields: Mapping[str, Any]) -> Iterator[DefinitionProblem]:
    problems = [*_repeated_nodes(fields["nodes"]), *_edge_problems(fields)]
    yield from problems
    if problems:
        return  # a graph needs unique nodes and valid edges
    graph = graph_of(fields)
    yield from _start_problems(graph)
    yield from _cycle_problems(graph, fields.get("edges") or [])
    if not graph.cyclic:
        yield from _loop_problems(graph, fields.get("edges") or [])
        yield from _binding_problems(fields, graph)


def _repeated_nodes(nodes: Sequence[Mapping[str, Any]]) -> Iterator[DefinitionProblem]:
    counts: Counter[str] = Counter()
    for index, node in enumerate(nodes):
        counts[node["id"]] += 1
        if counts[node["id"]] > 1:
            yield _problem("duplicate_id", f"another node has the ID {node['id']!r}", "nodes", index, "id")


def _edge_problems(fields: Mapping[str, Any]) -> Iterator[DefinitionProblem]:
    known = {node["id"] for node in fields["nodes"]}
    seen: set[tuple[str, str]] = set()
    gates: dict[str, str] = {}
    for index, edge in enumerate(fields.get("edges") or []):
        for end in ("from", "to"):
            if edge[end] not in known:
                yield _problem("unknown_node", f"there is no node {edge[end]!r}", "edges", index, end)
        pair = (edge["from"], edge["to"])
        if pair in seen:
            yield _problem("duplicate_edge", f"another edge leads from {pair[0]} to {pair[1]}", "edges", index)
        seen.add(pair)
        if pair[0] == pair[1] and "maxIterations" not in edge:
            yield _problem("uncounted_cycle", "an edge from a node to itself needs maxIterations", "edges", index)
        gate = edge.get("gate")
        if gate and "maxIterations" in edge:
            yield _problem("invalid_gate", "a loop edge has no gate", "edges", index, "gate")
        elif gate and gates.setdefault(edge["to"], gate) != gate:
            text = f"another edge into {edge['to']} has the gate {gates[edge['to']]!r}"
            yield _problem("invalid_gate", text, "edges", index, "gate")
        if "forEach" in edge and "maxIterations" in edge:
            yield _problem("invalid_for_each", "a loop edge has no forEach", "edges", index, "forEach")


def _start_problems(graph: Graph) -> Iterator[DefinitionProblem]:
    if all(graph.incoming.values()):
        yield _problem("no_start", "every node has an edge into it, so that none can start", "nodes")


def _cycle_problems(graph: Graph, edges: Sequence[Mapping[str, Any]]) -> Iterator[DefinitionProblem]:
    """Find edges of cycles without a loop edge."""
    cyclic = set(graph.cyclic)
    for index, edge in enumerate(edges):
        inside = edge["from"] in cyclic and edge["to"] in cyclic and "maxIterations" not in edge
        if inside and edge["from"] in graph.reachable(edge["to"]):
            text = f"{edge['from']} -> {edge['to']} is part of a cycle: one of its edges needs maxIterations"
            yield _problem("uncounted_cycle", text, "edges", index)


def _loop_problems(graph: Graph, edges: Sequence[Mapping[str, Any]]) -> Iterator[DefinitionProblem]:
    """Find loop edges that do not lead back, and loops that overlap without containing one another."""
    bodies = graph.bodies
    index_of = {f"{edge['from']}->{edge['to']}": index for index, edge in enumerate(edges)}
    for number, loop in enumerate(graph.loops):
        body, index = bodies[loop.key], index_of[loop.key]
        if not body:
            text = f"no path leads from {loop.target} to {loop.source}, so this edge does not lead back"
            yield _problem("invalid_loop", text, "edges", index)
        for other in graph.loops[:number]:
            shared = body & bodies[other.key]
            if shared and not (body <= bodies[other.key] or body >= bodies[other.key]):
                text = f"the loops {other.key} and {loop.key} overlap: one must contain the other"
                yield _problem("invalid_loop", text, "edges", index)
                break  # one problem for each loop: it may overlap with a thousand others


#: The names that every binding may read.
_ROOTS = ("inputs", "outputs", "state")


def _binding_problems(fields: Mapping[str, Any], graph: Graph) -> Iterator[DefinitionProblem]:
    """Find invalid expressions, and expressions that read values that do not exist at their place."""
    item_names = _item_names(fields)
    for index, node in enumerate(fields["nodes"]):
        at: Path = ["nodes", index]
        names = item_names.get(node["id"], set())
        earlier = graph.ancestors[node["id"]]
        if "when" in node:
            yield from _check_expression(node["when"], [*at, "when"], graph, earlier, names)
        for field in REQUESTS[node["type"]]:
            yield from _check_bindings(node.get(field), [*at, field], graph, earlier, names)
        for kind, values in (node.get("state") or {}).items():
            with_own = earlier | {node["id"]}
            yield from _check_bindings(values, [*at, "state", kind], graph, with_own, {"output"})
    for index, edge in enumerate(fields.get("edges") or []):
        earlier = graph.ancestors[edge["from"]] | {edge["from"]}
        if "when" in edge:
            yield from _check_expression(edge["when"], ["edges", index, "when"], graph, earlier, set())
        if "forEach" in edge:
            each, at = edge["forEach"], ["edges", index, "forEach"]
            yield from _check_expression(each["in"], [*at, "in"], graph, earlier | graph.ancestors[edge["to"]], set())
            if each.get("as") in _ROOTS:
                text = f"{each['as']!r} has another meaning in bindings"
                yield _problem("invalid_for_each", text, "edges", index, "forEach", "as")


def _item_names(fields: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return the names of items that the bindings of each node may read."""
    names: dict[str, set[str]] = {}
    for edge in fields.get("edges") or []:
        if "forEach" in edge:
            names.setdefault(edge["to"], set()).add(edge["forEach"].get("as") or "item")
    return names


def _check_bindings(
    value: Any, path: Path, graph: Graph, earlier: set[str], names: set[str]
) -> Iterator[DefinitionProblem]:
    for path_in_value, text in texts_in(value):
        for expression in expressions_in(text):
            yield from _check_expression(expression, [*path, *path_in_value], graph, earlier, names)


def _check_expression(
    expression: str, path: Path, graph: Graph, earlier: set[str], names: set[str]
) -> Iterator[DefinitionProblem]:
    """Check the expression at `path`. It may read `_ROOTS`, `names`, and the outputs of the `earlier` nodes."""
    try:
        read = paths(expression)
    except InvalidExpression as error:
        yield _problem("invalid_expression", str(error), *path)
        return
    begin = f"{expression[:100]!r} reads"
    for name, node in read:
        if name not in _ROOTS and name not in names:
            known = ", ".join(sorted({*_ROOTS, *names}))
            yield _problem("unknown_binding", f"{begin} {name!r}; bindings can read: {known}", *path)
        elif name == "outputs" and node is not None and node not in graph.nodes:
            yield _problem("unknown_binding", f"{begin} the output of {node!r}, which is no node", *path)
        elif name == "outputs" and node is not None and node not in earlier:
            text = f"{begin} the output of {node!r}, from which no path leads here"
            yield _problem("unknown_binding", text, *path)
