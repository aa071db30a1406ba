"""The definition of a tool, the types of its arguments, and the limits of its results.

Long texts are truncated, with a note, because a model reads the whole result.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

from mcp.types import Tool as ToolDescription
from mcp.types import ToolAnnotations
from pydantic import BaseModel, ConfigDict, Field

from agentops.mcp_server.api_access import Api, ApiRefusal, get

UUID_PATTERN = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
RunId = Annotated[str, Field(pattern=UUID_PATTERN, description="ID of a run.")]
RowId = Annotated[str, Field(pattern=UUID_PATTERN)]
Cursor = Annotated[str | None, Field(max_length=512, description="The `next_cursor` of the page before.")]
Moment = Annotated[
    str | None, Field(max_length=40, description="Such as 2026-11-20T00:00:00Z, or 24h: 24 hours ago (also m and d).")
]
Filter = Annotated[str | None, Field(max_length=500)]


class Arguments(BaseModel):
    """The arguments of a tool. Unknown arguments are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    project: Annotated[
        str | None,
        Field(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,62}$", description="Slug or ID of the project. Default: the only one."
        ),
    ] = None


#: The function of a tool. It gets the API, the path of the project, and the tool's arguments, and returns a JSON value.
Call = Callable[[Api, str, Any], Awaitable[Any]]


@dataclass(frozen=True)
class ApiTool:
    """An MCP tool: name, description for the model, arguments, and the API requests it makes."""

    name: str
    title: str
    description: str
    arguments: type[Arguments]
    call: Call
    is_write: bool = False
    is_destructive: bool = False
    is_idempotent: bool = True

    def described(self) -> ToolDescription:
        """Return the tool's description in the protocol."""
        return ToolDescription(
            name=self.name,
            title=self.title,
            description=self.description,
            input_schema=self.arguments.model_json_schema(),
            annotations=ToolAnnotations(
                title=self.title,
                read_only_hint=not self.is_write,
                destructive_hint=self.is_destructive,
                idempotent_hint=self.is_idempotent,
                # The tool only accesses this site.
                open_world_hint=False,
            ),
        )


def api_tool(
    title: str, *, is_write: bool = False, is_destructive: bool = False, is_idempotent: bool = True
) -> Callable[[Call], ApiTool]:
    """Turn a function into a tool. The name, the docstring and the type of `args` are those of the tool."""

    def make(call: Any) -> ApiTool:
        description, arguments = " ".join(call.__doc__.split()), get_type_hints(call)["args"]
        return ApiTool(call.__name__, title, description, arguments, call, is_write, is_destructive, is_idempotent)

    return make


async def project_path(api: Api, name: str | None) -> str:
    """Return the API path of a project; without a name, of the only project. Raises `ApiRefusal` if there are more."""
    if name is not None:
        return f"projects/{name}"
    projects = await get(api, "projects")
    rows = projects["results"] if isinstance(projects, dict) else projects
    if len(rows) != 1:
        slugs = ", ".join(row["slug"] for row in rows[:20]) or "none"
        raise ApiRefusal("project_required", f"name the project, one of: {slugs}")
    return f"projects/{rows[0]['slug']}"


#: Maximum characters of a result as JSON.
MAX_RESULT = 50_000
#: Maximum characters of a text in a result, tried in this order until the result is short enough.
_LENGTHS = (20_000, 5_000, 1_000, 200, 50)


def bounded(value: Any) -> str:
    """Return the value as JSON of at most MAX_RESULT characters, with its texts truncated as far as necessary."""
    text = _dumps(value)
    for length in _LENGTHS:
        if len(text) <= MAX_RESULT:
            return text
        text = _dumps(cut(value, length))
    return text if len(text) <= MAX_RESULT else _dumps({"cut": True, "beginning": text[: MAX_RESULT // 2]})


def cut(value: Any, length: int) -> Any:
    """Return a JSON value with its texts truncated to `length` characters and a note of the omitted length."""
    if isinstance(value, str) and len(value) > length:
        return f"{value[:length]}… [{len(value) - length} more characters]"
    if isinstance(value, list):
        return [cut(item, length) for item in value]
    if isinstance(value, dict):
        return {name: cut(item, length) for name, item in value.items()}
    return value


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
