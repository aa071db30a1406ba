"""Properties of every flow, in any order of completion: the kernel plays random graphs in random orders."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from runs.flows.definition import examine
from runs.flows.kernel.flow_decisions import NodeFailure, VisitReport, VisitStart
from tests.support.flows import KernelRun

CONDITIONS = [None, None, "outputs.{source}.n > `1`", "outputs.{source}.n == `0`", "`false`"]


@st.composite
def nodes(draw: st.DrawFn, name: str, *, tolerant: bool) -> dict[str, Any]:
    node: dict[str, Any] = {"id": name, "type": "agent", "agent": "writer", "prompt": "go"}
    if draw(st.booleans()):
        node = {"id": name, "type": "constant", "value": {"n": draw(st.integers(0, 3)), "list": [1, 2]}}
    if draw(st.integers(0, 4)) == 0:
        node["when"] = "state.never"
    return {
        **node,
        "policy": {"continueOnError": tolerant or draw(st.booleans())},
        "state": {"set": {f"by.{name}": "{{ output.n }}"}},
    }


@st.composite
def edges_into(draw: st.DrawFn, target: str, earlier: list[str]) -> list[dict[str, Any]]:
    gate, edges = draw(st.sampled_from(["any", "all"])), []
    for source in earlier:
        if draw(st.integers(0, 2)):
            continue
        edge: dict[str, Any] = {"from": source, "to": target, "gate": gate}
        if condition := draw(st.sampled_from(CONDITIONS)):
            edge["when"] = condition.format(source=source)
        # With "any", the list would depend on which source completes first.
        if gate == "all" and draw(st.integers(0, 5)) == 0:
            edge["forEach"] = {"in": f"outputs.{source}.list"}
        edges.append(edge)
    if draw(st.integers(0, 3)) == 0:
        back = {"from": target, "to": draw(st.sampled_from([*earlier, target]))}
        edges.append({**back, "maxIterations": draw(st.integers(1, 3))})
    return edges


@st.composite
def flows(draw: st.DrawFn, *, tolerant: bool = True) -> dict[str, Any]:
    """Generate a valid definition of agents and constants; edges lead forward, loops back.

    `tolerant`: no failure ends the flow, so the result does not depend on which failure comes first.
    """
    names = [f"n{index}" for index in range(draw(st.integers(1, 6)))]
    edges = [edge for later, name in enumerate(names) for edge in draw(edges_into(name, names[:later]))]
    definition = {
        "flow_id": "random",
        "nodes": [draw(nodes(name, tolerant=tolerant)) for name in names],
        "edges": edges,
    }
    while (checked := _without_problems(definition)) is None:
        # Omit refused edges, such as overlapping loops.
        _, problems = examine(definition)
        del edges[max(int(problem.pointer.split("/")[2]) for problem in problems)]
    return checked


def _without_problems(definition: dict[str, Any]) -> dict[str, Any] | None:
    checked, problems = examine(definition)
    return None if problems else checked


def outcome_of(start: VisitStart) -> VisitReport:
    """Return the same outcome for a visit, whenever it ends."""
    seed = sum(map(ord, start.visit.key))
    if seed % 5 == 0:
        return VisitReport(start.visit, failure=NodeFailure("boom", "it broke"))
    return VisitReport(start.visit, {"n": seed % 4, "list": list(range(seed % 3))})


def play(definition: dict[str, Any], order: list[int]) -> KernelRun:
    run = KernelRun(definition, outcome_of)
    turns = iter(order)
    while run.open and not run.is_over:
        run.end(next(turns, 0))
    return run


@given(flows(), st.lists(st.integers(0, 20), max_size=40), st.lists(st.integers(0, 20), max_size=40))
def test_any_order_of_completion_gives_the_same_result(definition: Any, one: list[int], other: list[int]) -> None:
    first, second = play(definition, one), play(definition, other)

    assert first.snapshot == second.snapshot
    assert first.snapshot["status"] in ("completed", "failed")
    assert first.is_over
    assert "running" not in first.snapshot["nodeStatus"].values()
    for loop in first.graph.loops:
        assert first.snapshot["loopCounters"][loop.key] <= (loop.max_iterations or 0)
    # Nothing is started twice.
    keys = [start.visit.key for start in first.started]
    assert len(keys) == len(set(keys))


@given(flows(tolerant=False), st.lists(st.integers(0, 20), max_size=40))
def test_replayed_events_equal_the_snapshot_at_every_point(definition: Any, order: list[int]) -> None:
    run = KernelRun(definition, outcome_of)
    turns = iter(order)
    while True:
        assert run.folded() == run.snapshot
        if not run.open or run.is_over:
            break
        run.end(next(turns, 0))


@given(flows(), st.lists(st.integers(0, 20), max_size=40), st.integers(0, 20))
def test_saving_and_loading_at_any_point_changes_nothing(definition: Any, order: list[int], at: int) -> None:
    run = KernelRun(definition, outcome_of)
    turns = iter(order)
    for number in range(100):
        if number == at:
            # A new process, which has only the stored data.
            other = KernelRun(json.loads(json.dumps(definition)), outcome_of)
            other.snapshot = json.loads(json.dumps(run.snapshot))
            other.open, other.started = list(run.open), []
            run = other
        if not run.open or run.is_over:
            break
        run.end(next(turns, 0))

    assert run.snapshot == play(definition, order).snapshot


@given(flows(), st.lists(st.integers(0, 20), max_size=20))
def test_a_repeated_report_changes_nothing(definition: Any, order: list[int]) -> None:
    run = play(definition, order)
    again = KernelRun(definition, outcome_of)
    turns = iter(order)
    while again.open and not again.is_over:
        report = again.execute(again.open.pop(next(turns, 0) % len(again.open)))
        again.advance(report, report)
        again.advance(report)

    assert again.snapshot == run.snapshot
