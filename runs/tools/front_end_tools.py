"""Tools that a front end provides and runs. The run waits without a worker until the front end sends the result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentops.base.fair_shares import WorkBudget
from agentops.base.schema_checks import TOO_EXPENSIVE, ExpensiveSchema, InvalidSchema, check_schema
from agentops.base.schema_work import new_budget
from runs.statuses import Effect
from runs.tools.agent_tools import Question
from runs.tools.base import Arguments, Tool, ToolContext
from runs.tools.catalogue import NAME, AgentTools
from runs.tools.functions import parse

#: The key of these tools in a run's `agent_config`.
CONFIG_KEY = "front_end_tools"
MAX_TOOLS = 64
#: Maximum characters of a description.
MAX_DESCRIPTION = 10_000
#: Maximum characters of all tools as JSON.
MAX_TOTAL = 200_000
#: Maximum steps of the check of all schemas. It runs in the request, and requests share few threads.
MAX_STEPS = 500_000
_FIELDS = ("name", "description", "parameters")


class InvalidFrontEndTool(ValueError):
    """A front end sent an invalid tool definition. `index` is its position in the list, `name` the invalid field."""

    def __init__(self, index: int, name: str, text: str, *, code: str = "invalid_tool") -> None:
        super().__init__(text)
        self.index, self.name, self.code = index, name, code


def checked(definitions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Check the tools of a front end, and return them in the form that a run stores. Raises `InvalidFrontEndTool`."""
    if len(definitions) > MAX_TOOLS:
        raise InvalidFrontEndTool(MAX_TOOLS, "", f"a front end can bring at most {MAX_TOOLS} tools")
    # Check the size first: checking the schemas takes time proportional to it.
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
    """Return the names of the front end's tools that a run can call. Names of the agent's tools are left out."""
    agent_tools = config.get("tools") or []
    return frozenset(each["name"] for each in config.get(CONFIG_KEY) or () if each["name"] not in agent_tools)


class FrontEndTools(AgentTools):
    """The tools of a front end as a toolset, without a server."""

    def __init__(self, definitions: Sequence[Mapping[str, Any]]) -> None:
        super().__init__({each["name"]: _tool(each) for each in definitions}, [])


def _tool(definition: Mapping[str, Any]) -> Tool:
    name = definition["name"]

    def ask(ctx: ToolContext, arguments: Arguments) -> Question:
        return Question(front_end_question(name, parse(arguments)), is_for_program=True)

    return Tool(
        name=name,
        description=definition["description"],
        parameters_schema=definition["parameters"],
        execute=ask,
        # The site runs nothing, so a lost worker leaves no unknown outcome.
        effect=Effect.READ,
        inline=True,
        asks=True,
    )


def front_end_question(name: str, arguments: object) -> str:
    """Return a call of a front-end tool as a question to a person, who may answer in place of the front end."""
    text = json.dumps(arguments, ensure_ascii=False)
    return f"The front end has to run {name}, and to answer with its result. Arguments: {text}"
