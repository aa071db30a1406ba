"""Data with a single writing module: a run's status, a tool call's result, the state of the step loop."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PATHS = [path for package in ("runs", "timeline", "agentops") for path in sorted((ROOT / package).rglob("*.py"))]


def moves_a_status(node: ast.AST) -> bool:
    """Return whether the node is an UPDATE that sets a member of RunStatus."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "update"
        and any(k.arg == "status" and ast.unparse(k.value).startswith("RunStatus.") for k in node.keywords)
    )


def closes_a_call(node: ast.AST) -> bool:
    """Return whether the node creates the event that ends a tool call."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "ToolEnd"


def changes_the_drive(node: ast.AST) -> bool:
    """Return whether the node assigns to an attribute of a drive or of its run."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return isinstance(node, ast.Assign | ast.AugAssign) and any(
        isinstance(target, ast.Attribute) and ast.unparse(target.value) in ("drive", "drive.run") for target in targets
    )


def writers(writes: Callable[[ast.AST], bool], source: str) -> bool:
    return any(writes(node) for node in ast.walk(ast.parse(source)))


#: Kind of write → the only module that may do it.
ONLY = {
    moves_a_status: "runs/lifecycle/transitions.py",
    closes_a_call: "runs/conversation/tool_results.py",
    changes_the_drive: "runs/engine/loop.py",
}


def test_each_kind_of_write_is_in_one_module() -> None:
    writing: dict[Callable[[ast.AST], bool], set[str]] = {writes: set() for writes in ONLY}
    # Importers create the events that a runner would have sent; they do not store them.
    for path in (path for path in PATHS if "importers" not in path.parts):
        for node in ast.walk(ast.parse(path.read_text())):
            for writes, paths in writing.items():
                if writes(node):
                    paths.add(path.relative_to(ROOT).as_posix())

    assert writing == {writes: {path} for writes, path in ONLY.items()}


@pytest.mark.parametrize(
    ("writes", "source"),
    [
        (moves_a_status, "AgentRun.objects.filter(pk=pk).update(status=RunStatus.FAILED)"),
        (closes_a_call, "Entry(ToolEnd(call_id=call.call_id))"),
        (changes_the_drive, "drive.run.step_count = 3"),
        (changes_the_drive, "drive.steps_made += 1"),
    ],
)
def test_a_second_writer_is_detected(writes: Callable[[ast.AST], bool], source: str) -> None:
    assert writers(writes, source)
