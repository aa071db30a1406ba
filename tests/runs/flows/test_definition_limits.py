"""The largest allowed definitions: their check runs during a request, in processes that serve all users."""

from __future__ import annotations

import time
from typing import Any

from runs.flows.definition import DefinitionProblem, examine
from runs.flows.shapes import MAX_EDGES, MAX_NODES

#: Limit in seconds of CPU time. Each check takes about one, and would take minutes if it were quadratic.
BOUND_S = 10.0


def constants(number: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"id": f"n{index}", "type": "constant", "value": 1, **fields} for index in range(number)]


def examined(nodes: list[dict[str, Any]], edges: list[dict[str, Any]] = ()) -> list[DefinitionProblem]:  # type: ignore[assignment]
    began = time.process_time()
    _, problems = examine({"flow_id": "large", "nodes": nodes, "edges": list(edges)})
    assert time.process_time() - began < BOUND_S
    return problems


def test_the_bindings_of_a_large_graph_are_checked() -> None:
    pairs = [(index, index + step) for index in range(MAX_NODES) for step in (1, 2, 3, 4) if index + step < MAX_NODES]
    edges = [
        {"from": f"n{source}", "to": f"n{target}", "when": "outputs.n499" if source == 7 else "outputs.n0"}
        for source, target in pairs
    ]
    assert len(edges) > MAX_EDGES - 20
    problems = examined(constants(MAX_NODES), edges)

    assert {(problem.code, problem.pointer.partition("/when")[1]) for problem in problems} == {
        ("unknown_binding", "/when")
    }
    assert len(problems) == 4


def test_overlapping_loops_are_reported_once_each() -> None:
    chain = [{"from": f"n{index}", "to": f"n{index + 1}"} for index in range(MAX_NODES - 1)]
    loops = [
        {"from": f"n{index + 200}", "to": f"n{index + step}", "maxIterations": 2}
        for index in range(290)
        for step in range(5)
    ]
    problems = examined(constants(MAX_NODES), [*chain, *loops])

    assert {problem.code for problem in problems} == {"invalid_loop"}
    assert len(problems) < len(loops)


def test_the_paths_of_large_patches_are_compared() -> None:
    patch = {kind: {f"{kind}{index}.a.b": 1 for index in range(1000)} for kind in ("set", "merge")}
    patch["merge"]["set7"] = 1
    problems = examined(constants(14, state=patch))

    assert [problem.pointer for problem in problems] == [f"/nodes/{index}/state/merge/set7" for index in range(14)]
