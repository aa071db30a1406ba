"""Decisions of the kernel."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from runs.flows.definition import examine
from runs.flows.kernel import advance, json_values, snapshot
from runs.flows.kernel.bindings import BindingFailed, expressions_in, resolve
from runs.flows.kernel.expressions import ExpressionFailed, InvalidExpression, compiled, evaluate, is_true
from runs.flows.kernel.flow_decisions import NodeFailure, VisitReport, VisitStart
from runs.flows.kernel.graph import graph_of
from tests.support.flows import KernelRun


def agent(name: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "type": "agent", "agent": "writer", "prompt": f"work on {name}", **fields}


def constant(name: str, value: Any, **fields: Any) -> dict[str, Any]:
    return {"id": name, "type": "constant", "value": value, **fields}


def edge(source: str, target: str, **fields: Any) -> dict[str, Any]:
    return {"from": source, "to": target, **fields}


def flow(nodes: list[dict[str, Any]], edges: list[dict[str, Any]] = (), **fields: Any) -> dict[str, Any]:
    definition = {"flow_id": "sample", "nodes": list(nodes), "edges": list(edges), **fields}
    checked, problems = examine(definition)
    assert not problems
    assert checked is not None
    return checked


def failing(*names: str) -> Any:
    def execute(start: VisitStart) -> VisitReport:
        if start.visit.node in names:
            return VisitReport(start.visit, failure=NodeFailure("boom", "it broke"))
        return VisitReport(start.visit, {"from": start.visit.key})

    return execute


def test_s_014_a_failed_node_fails_the_flow_and_later_nodes_stay_pending() -> None:
    run = KernelRun(flow([agent("a"), agent("b"), agent("c")], [edge("a", "b"), edge("b", "c")]), failing("b")).play()

    assert run.types()[-2:] == ["node.failed", "flow.completed"]
    assert run.of_type("flow.completed")[0].status == "failed"
    assert run.snapshot["nodeStatus"] == {"a": "done", "b": "failed", "c": "pending"}
    assert run.failure == NodeFailure("boom", "node b: it broke")
    assert run.folded() == run.snapshot


def test_s_013_a_node_that_continues_on_error_does_not_stop_the_flow() -> None:
    tolerant = agent("a", policy={"continueOnError": True})
    then = constant("b", "{{ outputs.a.error.message }}")
    run = KernelRun(flow([tolerant, then], [edge("a", "b")]), failing("a")).play()

    assert run.snapshot["status"] == "completed"
    assert run.snapshot["nodeStatus"]["a"] == "failed"
    assert run.snapshot["outputs"]["b"] == "it broke"
    assert run.folded() == run.snapshot


def test_s_015_gate_any_runs_with_the_first_edge_that_fires() -> None:
    nodes = [agent("a"), agent("b"), agent("join")]
    run = KernelRun(flow(nodes, [edge("a", "join", gate="any"), edge("b", "join", gate="any")]))

    run.end(0)

    assert [start.visit.node for start in run.open] == ["b", "join"]


def test_s_015_gate_all_is_skipped_with_the_first_edge_that_is_skipped() -> None:
    nodes = [constant("a", 1), agent("b"), agent("join"), agent("after")]
    edges = [edge("a", "join", when="`false`"), edge("b", "join"), edge("join", "after")]
    run = KernelRun(flow(nodes, edges)).play()

    skipped = [(event.node, event.reason) for event in run.of_type("node.skipped")]
    assert skipped == [("join", "edge"), ("after", "edge")]
    assert run.snapshot["status"] == "completed"
    assert run.folded() == run.snapshot


def test_s_015_a_node_whose_when_is_false_is_skipped_and_its_edges_are_decided() -> None:
    nodes = [constant("a", 1, when="state.wanted"), constant("b", 2), constant("c", 3)]
    edges = [edge("a", "b"), edge("a", "c", when="outputs.a")]
    run = KernelRun(flow(nodes, edges))

    assert run.of_type("node.skipped")[0].reason == "when"
    assert run.snapshot["nodeStatus"] == {"a": "skipped", "b": "done", "c": "skipped"}


def test_s_016_for_each_runs_once_for_every_item_and_keeps_their_order() -> None:
    nodes = [constant("list", ["a", "b", "c"]), agent("each", prompt="{{ letter }}", when="letter != 'b'")]
    run = KernelRun(flow(nodes, [edge("list", "each", forEach={"in": "outputs.list", "as": "letter"})]))

    assert [start.request["prompt"] for start in run.open] == ["a", "c"]
    run.end(1)
    run.end(0)

    assert run.snapshot["outputs"]["each"] == {
        "iterations": [
            {"item": "a", "output": {"visit": "each[0]", "request": {"prompt": "a"}}},
            {"item": "b", "skipped": True},
            {"item": "c", "output": {"visit": "each[2]", "request": {"prompt": "c"}}},
        ]
    }
    sessions = run.snapshot["agentSessions"]
    assert len({sessions["each[0]"], sessions["each[2]"]}) == 2
    assert run.folded() == run.snapshot


@pytest.mark.parametrize("value", ["text", 3, None, {"a": 1}])
def test_s_016_for_each_requires_a_list(value: Any) -> None:
    nodes = [constant("list", value), agent("each")]
    run = KernelRun(flow(nodes, [edge("list", "each", forEach={"in": "outputs.list"})]))

    assert (run.snapshot["status"], run.failure.error_type) == ("failed", "for_each_failed")
    assert "is not a list" in run.failure.message


def test_s_016_two_for_each_edges_into_one_node_are_an_error() -> None:
    nodes = [constant("one", [1]), constant("two", [2]), agent("each")]
    edges = [edge(name, "each", forEach={"in": f"outputs.{name}"}) for name in ("one", "two")]
    run = KernelRun(flow(nodes, edges))

    assert run.failure.error_type == "for_each_failed"


def test_an_item_that_cannot_start_fails_the_flow_before_the_later_ones() -> None:
    nodes = [constant("list", [1, None, 3]), agent("each", prompt="n is {{ item }}")]
    run = KernelRun(flow(nodes, [edge("list", "each", forEach={"in": "outputs.list"})]))

    assert run.failure.error_type == "binding_failed"
    assert [entry["item"] for entry in run.snapshot["outputs"]["each"]["iterations"]] == [1, None]
    assert run.folded() == run.snapshot


def test_overlapping_paths_of_a_patch_are_refused() -> None:
    patch = {"set": {"a.b": 1, "ab": 2}, "merge": {"a": {}}}
    _, problems = examine({"flow_id": "f", "nodes": [constant("a", 1, state=patch)]})

    assert [(problem.code, problem.pointer) for problem in problems] == [
        ("overlapping_paths", "/nodes/0/state/merge/a")
    ]


def counting(start: VisitStart) -> VisitReport:
    return VisitReport(start.visit, {"n": start.visit.iteration + 1})


def test_s_017_a_loop_runs_until_its_condition_fails() -> None:
    definition = flow([agent("tick")], [edge("tick", "tick", when="outputs.tick.n < `3`", maxIterations=5)])
    run = KernelRun(definition, counting).play()

    assert len(run.of_type("node.started")) == 3
    assert [event.iteration for event in run.of_type("loop.iterated")] == [1, 2]
    assert run.snapshot["loopCounters"] == {"tick->tick": 2}
    assert run.snapshot["status"] == "completed"
    assert run.folded() == run.snapshot


def test_s_017_a_loop_over_its_limit_fails_the_flow() -> None:
    definition = flow([agent("tick")], [edge("tick", "tick", when="outputs.tick.n < `9`", maxIterations=2)])
    run = KernelRun(definition, counting).play()

    # The limit is inclusive: two re-entries run.
    assert len(run.of_type("node.started")) == 3
    assert run.failure == NodeFailure("loop_exceeded", "loop tick->tick exceeded 2 iterations")
    assert run.folded() == run.snapshot


def test_a_loop_without_a_condition_runs_to_its_limit() -> None:
    run = KernelRun(flow([agent("tick")], [edge("tick", "tick", maxIterations=2)]), counting).play()

    assert (len(run.started), run.snapshot["status"]) == (3, "completed")


def test_s_018_a_pause_in_the_middle_of_a_loop_loses_no_iteration() -> None:
    nodes = [agent("a"), agent("b", state={"set": {"last.seen": "{{ output.n }}"}}), agent("end")]
    edges = [edge("a", "b"), edge("b", "a", when="outputs.b.n < `4`", maxIterations=5), edge("b", "end")]
    undisturbed = KernelRun(flow(nodes, edges), counting).play()
    run = KernelRun(flow(nodes, edges), counting)
    while not run.is_over:
        run.end()
        if run.is_over:
            break
        paused = {**run.snapshot, "status": "paused"}
        decisions, visits = advance.resume(run.graph, paused)
        assert [visit.key for visit in visits] == [start.visit.key for start in run.open]
        run.snapshot = decisions.snapshot

    assert run.snapshot == undisturbed.snapshot
    assert run.snapshot["state"] == {"last": {"seen": 4}}


def test_s_019_a_graph_in_which_no_node_can_start_is_stalled() -> None:
    # Definitions stored by an earlier version may fail the current check.
    unchecked = {"flow_id": "old", "nodes": [agent("a"), agent("b")], "edges": [edge("a", "b"), edge("b", "a")]}

    run = KernelRun(unchecked)

    assert run.failure.error_type == "stalled"
    assert run.snapshot["status"] == "failed"
    assert run.snapshot["nodeStatus"] == {"a": "pending", "b": "pending"}


SCOPE: dict[str, Any] = {"outputs": {"a": {"n": 3, "tags": ["x"], "none": None}}, "state": {"on": True}, "inputs": {}}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("outputs.a.n == `3`", True),
        ("!(outputs.a.n == `3`)", False),
        ("outputs.a.n > `2` && state.on", True),
        ("state.off || contains(outputs.a.tags, 'x')", True),
        ("outputs.missing", False),
        ("outputs.missing.deep == 'x'", False),
        ("length(outputs.missing) > `0`", False),
        ("outputs.a.tags", True),
        ("inputs", False),
    ],
)
def test_s_020_conditions(condition: str, holds: bool) -> None:
    nodes = [constant("a", SCOPE["outputs"]["a"]), constant("b", 1)]
    definition = {"flow_id": "f", "nodes": nodes, "edges": [edge("a", "b", when=condition)], "state": {"on": True}}

    assert (KernelRun(definition, inputs={}).snapshot["edgeStatus"]["a->b"] == "fired") is holds


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{{ outputs.a.n }}", 3),
        (" {{ outputs.a.tags }} ", ["x"]),
        ("{{ outputs.a.missing }}", None),
        ("n is {{ outputs.a.n }}, tags {{ outputs.a.tags }}", 'n is 3, tags ["x"]'),
        ({"deep": ["{{ state.on }}", 1]}, {"deep": [True, 1]}),
        ("{{ {n: outputs.a.n} }}", {"n": 3}),
        ("{{ outputs.a.n }} and {{ state.on }}", "3 and true"),
        ("no binding: {{", "no binding: {{"),
        ("}} {{ outputs.a.n }} {{ {n: outputs.a.n}}} {{", '}} 3 {"n": 3} {{'),
    ],
)
def test_s_020_bindings(value: Any, expected: Any) -> None:
    assert resolve(value, SCOPE) == expected


def test_unclosed_braces_take_linear_time() -> None:
    """A search from each brace would take quadratic time for a text of the maximum length."""
    assert expressions_in("{{" * 100_000) == []
    assert resolve("{{" * 100_000, SCOPE) == "{{" * 100_000


def test_texts_that_repeat_a_large_value_are_refused_before_they_are_built() -> None:
    scope: Any = {"inputs": "x" * 500_000}
    tracemalloc.start()
    try:
        with pytest.raises(BindingFailed, match="larger than"):
            resolve(["{{ inputs }}{{ inputs }}"] * 100, scope)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", ["a {{ outputs.a.missing }}", "{{ outputs.a.none }}!", "x {{ length(state.no) }}"])
def test_s_020_a_binding_without_a_value_in_a_text_is_an_error(text: str) -> None:
    with pytest.raises(BindingFailed):
        resolve(text, SCOPE)


def test_s_021_set_replaces_and_merge_combines_objects() -> None:
    state: Any = {"a": {"b": {"x": 1}}, "text": "t"}

    assert json_values.merged(state, "a.b", {"y": 2}) == {"x": 1, "y": 2}
    assert json_values.merged(state, "text", {"y": 2}) == {"y": 2}
    assert json_values.merged(state, "a.b", 5) == 5
    json_values.put(state, {"a.b": 7, "text.deep.er": 1, "new.path": []})
    assert state == {"a": {"b": 7}, "text": {"deep": {"er": 1}}, "new": {"path": []}}


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1001,
        "(" * 900,
        "a ==",
        "",
        "|".join(["[@,@]"] * 12),
        "nope(",
    ],
)
def test_an_expression_is_limited(text: str) -> None:
    with pytest.raises(InvalidExpression):
        compiled(text)


@pytest.mark.slow
def test_a_value_with_repeated_references_is_measured_without_being_written() -> None:
    doubling = constant("a", "{{ [outputs.a, outputs.a] }}")
    run = KernelRun({"flow_id": "f", "nodes": [doubling], "edges": [edge("a", "a", maxIterations=60)]})

    assert (run.snapshot["status"], run.failure.error_type) == ("failed", "binding_failed")
    assert is_true(evaluate("length(to_string(inputs)) == `2`", {"inputs": []}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "expression",
    [
        "|".join([f"[{','.join(['@'] * 10)}][]"] * 3),
        f"[*].[{','.join(['@'] * 400)}]",
        f"[*].{{{','.join(f'a{n}: @' for n in range(100))}}}",
    ],
)
def test_an_expression_that_builds_too_much_fails_early(expression: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ExpressionFailed, match="is too expensive: it takes more than"):
            evaluate(expression, [*range(60_000)])  # type: ignore[arg-type]
        assert tracemalloc.get_traced_memory()[1] < 150_000_000
    finally:
        tracemalloc.stop()


#: Expression values that no database can store as JSON, with the error message.
UNSTORABLE = [
    ("to_number('nan')", "NaN or infinity"),
    ("[to_number('1e999')]", "NaN or infinity"),
    ("sum(inputs.large)", "NaN or infinity"),
    ("sum([to_number(inputs.digits), to_number(inputs.digits)])", "more than 4,200 digits"),
    ('`{"deep": [1e999]}`', "NaN or infinity"),
    ('`"\\u0000"`', "NUL"),
    ('{a: `"\\ud800"`}', "unpaired surrogate"),
    ('`{"\\u0000": 1}`', "NUL"),
    ("[" * 120 + "`1`" + "]" * 120, "nested deeper than 100 levels"),
]


@pytest.mark.parametrize(("expression", "problem"), UNSTORABLE)
def test_a_value_that_cannot_be_stored_fails_its_node(expression: str, problem: str) -> None:
    """The flow ends. If advancing failed instead, it would be retried forever."""
    inputs: Any = {"large": [1e308, 1e308], "digits": "9" * 4300}
    binding = f"{{{{ {expression} }}}}"
    for node in (
        constant("a", [binding]),
        constant("a", 1, state={"set": {"x": binding}}),
        constant("a", f"It is {binding}."),
    ):
        run = KernelRun(flow([node]), inputs=inputs)
        assert (run.snapshot["status"], run.failure.error_type) == ("failed", "binding_failed")
        assert problem in run.failure.message

    nodes = [constant("list", 1), agent("each")]
    run = KernelRun(flow(nodes, [edge("list", "each", forEach={"in": f"[{expression}]"})]), inputs=inputs)
    assert (run.snapshot["status"], run.failure.error_type) == ("failed", "for_each_failed")
    assert problem in run.failure.message


def test_a_loop_that_nests_its_own_output_fails_before_it_is_too_deep_to_store() -> None:
    nesting = constant("a", "{{ [outputs.a] }}")
    run = KernelRun(flow([nesting], [edge("a", "a", maxIterations=500)])).play()

    assert (run.snapshot["status"], run.failure.error_type) == ("failed", "binding_failed")
    assert "nested deeper" in run.failure.message


def test_malformed_and_foreign_snapshots_have_different_errors() -> None:
    graph = graph_of(flow([agent("a")]))
    good = dict(snapshot.initial(graph, "run"))

    assert snapshot.load(graph, good)["runId"] == "run"
    for wrong, reason in (
        ({**good, "runId": ""}, "no runId"),
        ({**good, "more": 1}, "has the keys"),
        ({**good, "nodeStatus": {"b": "done"}}, "does not fit"),
    ):
        with pytest.raises(snapshot.SnapshotInvalid, match=reason):
            snapshot.load(graph, wrong)


def test_running_nodes_fail_with_a_stopped_flow() -> None:
    run = KernelRun(flow([agent("a"), agent("b")]))
    run.take(advance.stop(run.graph, run.snapshot))

    assert run.snapshot["nodeStatus"] == {"a": "failed", "b": "failed"}
    assert run.types()[-1] == "flow.completed"
    assert run.folded() == run.snapshot
