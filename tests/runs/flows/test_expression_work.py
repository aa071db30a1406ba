"""The work of expressions is limited: an expensive one fails its node, and no other flow waits for it."""

from __future__ import annotations

from typing import Any

import pytest

from runs.flows.kernel import expressions, work
from runs.flows.kernel.bindings import BindingTooExpensive, resolve
from runs.flows.kernel.expressions import ExpressionFailed, ExpressionTooExpensive, compiled, evaluate
from tests.support.flows import EXPENSIVE, MANY, SCOPE, KernelRun


def test_the_work_of_an_expression_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "MAX_STEPS", 100_000)
    for expression in EXPENSIVE:
        assert len(expression) <= 200
        compiled(expression)
        with pytest.raises(ExpressionTooExpensive, match="is too expensive: it takes more than 100000 steps"):
            raise AssertionError(f"{expression}: {evaluate(expression, SCOPE)}")
    with pytest.raises(BindingTooExpensive, match="100000 steps"):
        resolve([f"{{{{ inputs.rows[{n}:] }}}}" for n in range(1_000)], SCOPE)


def test_an_error_does_not_contain_the_value() -> None:
    """A reference takes 8 bytes, its value as text half a megabyte."""
    with pytest.raises(ExpressionFailed, match=r"abs\(\) takes number, not array$"):
        evaluate(f"abs([inputs.text]|{MANY})", SCOPE)


def test_ordinary_expressions_are_within_the_limit() -> None:
    assert evaluate("inputs.rows[?id < `1000` && starts_with(name, 'name')].name | length(@)", SCOPE) == 1_000
    assert evaluate("length(sort_by(inputs.rows, &name)[].{a: id, b: name})", SCOPE) == 2_000
    assert evaluate("inputs.same[0] == inputs.same[1]", SCOPE) is True
    assert evaluate("[`1` == `true`, `1` == `1.0`, contains(`[1]`, `1`), `2` < `1`, 'a' < 'b']", {}) == [
        False,
        True,
        True,
        False,
        True,
    ]


def constant(name: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "type": "constant", "value": 1, **fields}


def test_an_expensive_expression_fails_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "MAX_STEPS", 20_000)
    expensive = EXPENSIVE[0]
    edge: dict[str, Any] = {"from": "a", "to": "b"}
    each = {**edge, "forEach": {"in": "inputs.rows[:3]"}}
    for nodes, edges, failed in [
        ([constant("a", when=expensive)], [], "a"),
        ([constant("a", value=f"{{{{ {expensive} }}}}")], [], "a"),
        ([constant("a", value=f"is {{{{ {expensive} }}}}")], [], "a"),
        ([constant("a", state={"set": {"x": f"{{{{ {expensive} }}}}"}})], [], "a"),
        ([constant("a"), constant("b")], [{**edge, "when": expensive}], ""),
        ([constant("a"), constant("b")], [{**edge, "forEach": {"in": expensive}}], "b"),
        ([constant("a"), constant("b", when=expensive)], [each], "b"),
    ]:
        run = KernelRun({"flow_id": "f", "nodes": nodes, "edges": edges}, inputs=SCOPE["inputs"])
        assert (run.snapshot["status"], run.failure.error_type) == ("failed", "expression_too_expensive"), nodes
        assert "takes more than 20000 steps" in run.failure.message
        assert run.snapshot["nodeStatus"].get(failed, "failed") == "failed"
        assert run.folded() == run.snapshot


def test_a_node_that_continues_on_error_does_not_stop_the_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "MAX_STEPS", 20_000)
    tolerant = constant("b", when=EXPENSIVE[0], policy={"continueOnError": True})
    edge = {"from": "a", "to": "b", "forEach": {"in": "inputs.rows[:3]"}}
    nodes = [constant("a"), tolerant]
    run = KernelRun({"flow_id": "f", "nodes": nodes, "edges": [edge]}, inputs=SCOPE["inputs"])

    assert run.snapshot["status"] == "completed"
    errors = [item["error"]["type"] for item in run.snapshot["outputs"]["b"]["iterations"]]
    assert errors == ["expression_too_expensive"] * 3
    assert run.folded() == run.snapshot


def test_an_advance_ends_after_long_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next advance continues the flow; other flows come first."""
    monkeypatch.setattr(work, "MAX_STEPS", 5_000)
    nodes = [constant(f"n{n}", value="{{ length(inputs.rows[*].id) }}") for n in range(10)]
    run = KernelRun({"flow_id": "f", "nodes": nodes}, inputs=SCOPE["inputs"])

    assert run.snapshot["status"] == "completed"
    assert run.advances == 4  # three nodes each, and the last one
    assert run.folded() == run.snapshot
