"""Tools that a front end provides and runs. The run waits without a worker until the front end sends the result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_ai.tools import ToolDefinition

from agentops.base.limits.schema_checks import TOO_EXPENSIVE, ExpensiveSchema, InvalidSchema, check_schema
from agentops.base.limits.schema_work import new_budget
from agentops.base.limits.work_budget import WorkBudget
from runs.statuses import Effect
from runs.tools.base import Arguments, Tool, ToolContext
from runs.tools.conversation_tools import Question
from runs.tools.functions import parse
from runs.tools.registry import NAME

#: The key of these tools in a run's `agent_config`.
CONFIG_KEY = "front_end_tools"
MAX_TOOLS = 64
#: Maximum characters of a description, and of all tools as JSON.
MAX_DESCRIPTION, MAX_TOTAL = 10_000, 200_000
#: Maximum steps of the check of all schemas: the requests that contain them share few threads.
MAX_STEPS = 500_000
_FIELDS = ("name", "description", "parameters")


class InvalidFrontEndTool(ValueError):
    """A front end sent an invalid tool definition. `index` is its position in the list, `name` the invalid field."""

    def __init__(self, index: int, name: str, text: str, *, code: str = "invalid_tool") -> None:
        super().__init__(text)
        self.index, self.name, self.code = index, name, code


def checked(definitions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools in the form that a run stores. Raises `InvalidFrontEndTool`."""
    if len(definitions) > MAX_TOOLS:
        raise InvalidFrontEndTool(MAX_TOOLS, "", f"a front end can bring at most {MAX_TOOLS} tools")
    # Check the size before the schemas, whose check takes time proportional to their size.
    if len(json.dumps([{name: each.get(name) for name in _FIELDS} for each in definitions])) > MAX_TOTAL:
        raise InvalidFrontEndTool(0, "", f"all tools together must have at most {MAX_TOTAL} characters as JSON")
    budget = new_budget(MAX_STEPS)
    tools = [_checked(index, each, budget) for index, each in enumerate(definitions)]
    names = [each["name"] for each in tools]
    twice = next((index for index, name in enumerate(names) if name in names[:index]), None)
    if twice is not None:
        raise InvalidFrontEndTool(twice, "name", f"there are two tools with the name {names[twice]!r}")
    return tools


def _checked(index: int, definition: Mapping[str, Any], budget: WorkBudget) -> dict[str, Any]:
    name, text = definition.get("name"), definition.get("description") or ""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidFrontEndTool(index, "name", "the name must have 1 to 64 of A-Z a-z 0-9 _ -")
    if not isinstance(text, str) or len(text) > MAX_DESCRIPTION:
        raise InvalidFrontEndTool(index, "description", f"the description must be a text of at most {MAX_DESCRIPTION}")
    schema = definition.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise InvalidFrontEndTool(index, "parameters", 'the parameters must be a JSON Schema with "type": "object"')
    try:
        check_schema(schema, budget)
    except ExpensiveSchema as error:
        raise InvalidFrontEndTool(index, "parameters", str(error), code=TOO_EXPENSIVE) from None
    except InvalidSchema as error:
        raise InvalidFrontEndTool(index, "parameters", f"this is no JSON Schema: {str(error)[:200]}") from None
    return {"name": name, "description": text, "parameters": {"type": "object", **schema}}


def names_in(config: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the front end's tools that a run can call. The agent's tools take precedence."""
    own = config.get("tools") or []
    return frozenset(each["name"] for each in config.get(CONFIG_KEY) or () if each["name"] not in own)


class FrontEndTools:
    """The tools of a front end as a toolset."""

    def __init__(self, definitions: Sequence[Mapping[str, Any]]) -> None:
        self._tools = {each["name"]: _tool(each) for each in definitions}

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def definitions(self) -> list[ToolDefinition]:
        return [tool.definition for tool in self._tools.values()]

    def open(self) -> None:
        """Do nothing: front-end tools have no server."""

    def close(self) -> None:
        """Do nothing."""


def _tool(definition: Mapping[str, Any]) -> Tool:
    name = definition["name"]

    def ask(ctx: ToolContext, arguments: Arguments) -> Question:
        return Question(front_end_question(name, parse(arguments)), is_for_program=True)

    return Tool(
        name=name,
        description=definition["description"],
        parameters_schema=definition["parameters"],
        execute=ask,
        # The site runs nothing, and no worker can lose the call.
        effect=Effect.READ,
        inline=True,
        asks=True,
    )


def front_end_question(name: str, arguments: object) -> str:
    """Return the request to a front end as text, for a person who answers in its place."""
    text = json.dumps(arguments, ensure_ascii=False)
    return f"The front end has to run {name}, and to answer with its result. Arguments: {text}"
