"""The definition of a tool, and the types of its arguments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from mcp.types import Tool as ToolDescription
from mcp.types import ToolAnnotations
from pydantic import BaseModel, ConfigDict, Field

from agentops.mcp_server.api_access import Api, ApiRefusal, ask

A = TypeVar("A", bound="Arguments")

#: In JSON Schema syntax.
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


@dataclass(frozen=True)
class ApiTool:
    """An MCP tool: name, description for the model, arguments, and the API requests it makes."""

    name: str
    title: str
    description: str
    arguments: type[Arguments]
    #: Returns a JSON value. Its arguments are the API, the path of the project, and the tool's arguments.
    call: Callable[[Api, str, Any], Awaitable[Any]]
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


async def project_path(api: Api, name: str | None) -> str:
    """Return the API path of a project; without a name, of the only project."""
    if name is not None:
        return f"projects/{name}"
    projects = await ask(api, "projects")
    rows = projects["results"] if isinstance(projects, dict) else projects
    if len(rows) != 1:
        slugs = ", ".join(row["slug"] for row in rows[:20]) or "none"
        raise ApiRefusal("project_required", f"name the project, one of: {slugs}")
    return f"projects/{rows[0]['slug']}"
