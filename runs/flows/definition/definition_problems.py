"""Errors in the definition of a flow: first its shape, then the relations between its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from pydantic import ValidationError

from agentops.base.http import strict_json
from agentops.base.limits.schema_checks import TOO_EXPENSIVE, ExpensiveSchema, InvalidSchema, check_schema
from runs.agents.definition import json_fault
from runs.flows.definition import bindings_check
from runs.flows.definition.shapes import MAX_BYTES, FlowDefinition
from runs.flows.kernel.graph import Graph, graph_of
from runs.providers.messages import canonical

MAX_POINTER = 200
_KINDS = ("agent", "tool", "human", "constant")


@dataclass(frozen=True)
class DefinitionProblem:
    """An error in a definition, and the JSON pointer of the invalid value."""

    code: str
    text: str
    pointer: str


def pointer_of(*path: str | int) -> str:
    """Return a path as a JSON pointer of at most 200 characters."""
    return strict_json.pointer(path)[:MAX_POINTER]


def examine(definition: Any) -> tuple[dict[str, Any] | None, list[DefinitionProblem]]:
    """Return a definition with its defaults, and all its errors. The definition is None if its shape is invalid.

    Agents and tools are not checked here: see runs.actions.flow_definitions.
    """
    if not isinstance(definition, Mapping):
        return None, [DefinitionProblem("invalid_shape", "a definition must be an object", "")]
    fault = json_fault(definition)
    if fault is not None:
        return None, [DefinitionProblem("invalid_value", *fault)]
    if len(canonical(dict(definition)).encode()) > MAX_BYTES:
        return None, [DefinitionProblem("too_large", f"the definition is longer than {MAX_BYTES} bytes as JSON", "")]
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
    for fault in error.errors(include_url=False, include_input=False):
        path = list(fault["loc"])
        if path[:1] == ["nodes"] and len(path) > 2 and path[2] in _KINDS:
            del path[2]  # the tag of pydantic's union for the kind of node
        text = fault["msg"].removeprefix("Value error, ")
        code = "invalid_shape"
        if fault["type"] == "union_tag_invalid":
            path, code = [*path, "type"], "unknown_node_type"
            text = f"unknown node type {str(fault['ctx']['tag'])[:64]!r}; use one of: {', '.join(_KINDS)}"
        elif fault["type"] == "union_tag_not_found":
            path, text = [*path, "type"], f"a node needs a type: one of {', '.join(_KINDS)}"
        yield DefinitionProblem(code, text, pointer_of(*path))


def _input_problems(fields: Mapping[str, Any]) -> Iterator[DefinitionProblem]:
    schema = fields.get("inputs") or {}
    try:
        check_schema(schema)
    except InvalidSchema as error:
        code = TOO_EXPENSIVE if isinstance(error, ExpensiveSchema) else "invalid_inputs"
        yield DefinitionProblem(code, str(error), pointer_of("inputs", *error.path))


def _patch_problems(nodes: Sequence[Mapping[str, Any]]) -> Iterator[DefinitionProblem]:
    """Yield paths of a node's patch that contain one another, because the order of an object's members is undefined."""
    for index, node in enumerate(nodes):
        seen: set[str] = set()
        #: The first path seen within each path.
        within: dict[str, str] = {}
        for kind, values in (node.get("state") or {}).items():
            for path in values:
                above = list(accumulate(path.split("."), "{}.{}".format))
                other = next((each for each in above if each in seen), within.get(path))
                if other is not None:
                    text = f"{path!r} and {other!r} lie within one another"
                    yield DefinitionProblem("overlapping_paths", text, pointer_of("nodes", index, "state", kind, path))
                seen.add(path)
                for each in above:
                    within.setdefault(each, path)


def _graph_problems(fields: Mapping[str, Any]) -> Iterator[DefinitionProblem]:
    problems = [*_repeated_nodes(fields["nodes"]), *_edge_problems(fields)]
    yield from problems
    if problems:
        return  # the graph is unreadable
    graph = graph_of(fields)
    yield from _start_problems(graph)
    yield from _cycle_problems(graph, fields.get("edges") or [])
    if not graph.cyclic:
        yield from _loop_problems(graph, fields.get("edges") or [])
        for code, text, path in bindings_check.problems(fields, graph):
            yield DefinitionProblem(code, text, pointer_of(*path))


def _repeated_nodes(nodes: Sequence[Mapping[str, Any]]) -> Iterator[DefinitionProblem]:
    counts: Counter[str] = Counter()
    for index, node in enumerate(nodes):
        counts[node["id"]] += 1
        if counts[node["id"]] > 1:
            yield DefinitionProblem(
                "duplicate_id", f"another node has the ID {node['id']!r}", pointer_of("nodes", index, "id")
            )


def _edge_problems(fields: Mapping[str, Any]) -> Iterator[DefinitionProblem]:
    known = {node["id"] for node in fields["nodes"]}
    seen: set[tuple[str, str]] = set()
    gates: dict[str, str] = {}
    for index, edge in enumerate(fields.get("edges") or []):
        for end in ("from", "to"):
            if edge[end] not in known:
                yield DefinitionProblem(
                    "unknown_node", f"there is no node {edge[end]!r}", pointer_of("edges", index, end)
                )
        pair = (edge["from"], edge["to"])
        if pair in seen:
            yield DefinitionProblem(
                "duplicate_edge", f"another edge leads from {pair[0]} to {pair[1]}", pointer_of("edges", index)
            )
        seen.add(pair)
        if pair[0] == pair[1] and "maxIterations" not in edge:
            text = "an edge from a node to itself needs maxIterations"
            yield DefinitionProblem("uncounted_cycle", text, pointer_of("edges", index))
        gate = edge.get("gate")
        if gate and "maxIterations" in edge:
            yield DefinitionProblem("invalid_gate", "a loop edge has no gate", pointer_of("edges", index, "gate"))
        elif gate and gates.setdefault(edge["to"], gate) != gate:
            text = f"another edge into {edge['to']} has the gate {gates[edge['to']]!r}"
            yield DefinitionProblem("invalid_gate", text, pointer_of("edges", index, "gate"))
        if "forEach" in edge and "maxIterations" in edge:
            yield DefinitionProblem(
                "invalid_for_each", "a loop edge has no forEach", pointer_of("edges", index, "forEach")
            )


def _start_problems(graph: Graph) -> Iterator[DefinitionProblem]:
    if all(graph.incoming.values()):
        yield DefinitionProblem("no_start", "every node has an edge into it, so that none can start", "/nodes")


def _cycle_problems(graph: Graph, edges: Sequence[Mapping[str, Any]]) -> Iterator[DefinitionProblem]:
    cyclic = set(graph.cyclic)
    for index, edge in enumerate(edges):
        inside = edge["from"] in cyclic and edge["to"] in cyclic and "maxIterations" not in edge
        if inside and edge["from"] in graph.reachable(edge["to"]):
            text = f"{edge['from']} -> {edge['to']} is part of a cycle: one of its edges needs maxIterations"
            yield DefinitionProblem("uncounted_cycle", text, pointer_of("edges", index))


def _loop_problems(graph: Graph, edges: Sequence[Mapping[str, Any]]) -> Iterator[DefinitionProblem]:
    bodies = graph.bodies
    index_of = {f"{edge['from']}->{edge['to']}": index for index, edge in enumerate(edges)}
    for number, loop in enumerate(graph.loops):
        body, at = bodies[loop.key], pointer_of("edges", index_of[loop.key])
        if not body:
            text = f"no path leads from {loop.target} to {loop.source}, so this edge does not lead back"
            yield DefinitionProblem("invalid_loop", text, at)
        for other in graph.loops[:number]:
            shared = body & bodies[other.key]
            if shared and not (body <= bodies[other.key] or body >= bodies[other.key]):
                text = f"the loops {other.key} and {loop.key} overlap: one must contain the other"
                yield DefinitionProblem("invalid_loop", text, at)
                break  # a loop may overlap with a thousand others
