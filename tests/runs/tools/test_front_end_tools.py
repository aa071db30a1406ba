"""Tools of a front end: validation, and their definition for the model."""

from __future__ import annotations

from typing import Any

import pytest

from runs.lifecycle.creation import with_front_end_tools
from runs.tools import front_end_tools
from runs.tools.catalogue import TOOLS
from runs.tools.front_end_tools import FrontEndTools, InvalidFrontEndTool, checked, names_in
from tests.support.run_checks import refuses

COLOUR = {"name": "set_colour", "description": "Colours it.", "parameters": {"properties": {"to": {"type": "string"}}}}


def test_the_agent_s_tools_take_precedence() -> None:
    front_end = checked([COLOUR, {"name": "done", "description": "Mine."}])
    tools = TOOLS.resolve(["done"], {}, [FrontEndTools(front_end)])

    described = {each.name: each for each in tools.definitions()}
    assert set(described) == {"done", "set_colour"}
    assert described["done"].description != "Mine."
    assert described["set_colour"].parameters_json_schema == {"type": "object", **COLOUR["parameters"]}  # type: ignore[dict-item]
    assert [tools.get(name).asks for name in ("done", "set_colour")] == [False, True]  # type: ignore[union-attr]
    assert names_in({"tools": ["done"], "front_end_tools": front_end}) == {"set_colour"}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "set colour"}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"name": None}, "name"),
        ({"name": "set_colour"}, "name"),
        ({"parameters": {"type": "array"}}, "parameters"),
        ({"parameters": {"properties": {"a": {"type": "colour"}}}}, "parameters"),
        ({"parameters": "none"}, "parameters"),
        ({"description": "x" * 10_001}, "description"),
        ({"description": 7}, "description"),
    ],
)
def test_an_invalid_tool_is_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidFrontEndTool) as refused:
        checked([COLOUR, COLOUR | {"name": "other"} | change])

    assert (refused.value.index, refused.value.name) == (1, field)


def test_too_many_tools_are_refused() -> None:
    with pytest.raises(InvalidFrontEndTool, match="at most 64"):
        checked([COLOUR | {"name": f"tool_{number}"} for number in range(65)])
    with pytest.raises(InvalidFrontEndTool, match="200000 characters"):
        checked([COLOUR | {"name": f"tool_{number}", "description": "x" * 9_000} for number in range(30)])


def test_schemas_that_are_expensive_to_check_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression test: backtracking patterns, references to other documents and endless lists were accepted."""
    monkeypatch.setattr(front_end_tools, "MAX_STEPS", 20_000)
    for schema, code in [
        ({"properties": {"a": {"pattern": "((a{99}){99}){99}"}}}, "invalid_tool"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "invalid_tool"),
        ({"required": [*range(10_000), []]}, "invalid_tool"),
        ({"allOf": [{"type": "object"}] * 5_000}, "schema_too_expensive"),
    ]:
        with pytest.raises(InvalidFrontEndTool) as refused:
            checked([COLOUR | {"parameters": schema}])
        assert (refused.value.name, refused.value.code) == ("parameters", code)
    large = {"allOf": [{"type": "object"}] * 100}
    with pytest.raises(InvalidFrontEndTool, match="more than 20000 steps"):
        checked([COLOUR | {"name": f"tool_{number}", "parameters": large} for number in range(20)])


def test_front_end_tools_replace_the_tools_of_the_previous_run() -> None:
    config = {"provider": "anthropic", "tools": ["done"]}
    with_tools = with_front_end_tools(config, [COLOUR])

    assert with_tools == config | {"front_end_tools": [COLOUR]}
    assert with_front_end_tools(with_tools, None) == with_tools
    assert with_front_end_tools(with_tools, []) == config
    with refuses("frontend_tools_unsupported"):
        with_front_end_tools({"provider": "claude_cli"}, [COLOUR])
