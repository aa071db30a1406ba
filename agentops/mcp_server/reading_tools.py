"""The tools that read: projects, agents, runs, messages, tool calls, errors and events."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import Field

from agentops.mcp_server.api_access import Api, Query, ask
from agentops.mcp_server.api_tool import ApiTool, Arguments, Cursor, Filter, Moment, RowId, RunId

#: Rows of a page. Messages come with their content, so there are fewer of them.
DEFAULT_ROWS, MAX_ROWS = 20, 100
MAX_MESSAGES = 20
#: Errors and calls that a run's summary lists.
IN_SUMMARY = 5
Limit = Annotated[int, Field(ge=1, le=MAX_ROWS)]
Status = Literal["queued", "running", "waiting", "paused", "resumed", "completed", "failed", "stopped"]
CallStatus = Literal["planned", "running", "completed", "error", "denied", "unknown"]


class ListArguments(Arguments):
    limit: Limit = DEFAULT_ROWS
    cursor: Cursor = None


class ListRuns(ListArguments):
    status: list[Status] = Field(default=[], max_length=8)
    agent_id: Filter = Field(default=None, description="Name of the agent.")
    text: Filter = Field(default=None, description="A text in the title or the messages.")
    label: Filter = None
    created_after: Moment = None
    created_before: Moment = None


class SearchTexts(ListArguments):
    q: str = Field(max_length=500, description="Words; all of them are in a result.")
    run_id: RunId | None = None
    kind: list[Literal["message", "tool_call", "event"]] = Field(default=[], max_length=3)
    only_errors: bool = Field(default=False, description="Failed calls, and events that report a failure.")
    after: Moment = None
    before: Moment = None


class OneRun(Arguments):
    run_id: RunId


class ListOfRun(ListArguments):
    run_id: RunId


class ListMessages(ListOfRun):
    limit: Annotated[int, Field(ge=1, le=MAX_MESSAGES)] = 10


class ListCalls(ListOfRun):
    status: list[CallStatus] = Field(default=[], max_length=6)
    tool_name: Filter = None


class OneCall(OneRun):
    call_id: RowId = Field(description="The `id` of the call in `list_tool_calls`.")


class OneMessage(OneRun):
    message_id: RowId


class ListEvents(OneRun):
    after_seq: int = Field(default=0, ge=0, le=2**53, description="Start after this sequence number.")
    limit: Limit = DEFAULT_ROWS


async def list_projects(api: Api, _: str, args: ListArguments) -> Any:
    return await _page(api, "projects", args)


async def list_agents(api: Api, project: str, args: ListArguments) -> Any:
    return await _page(api, f"{project}/agents", args)


async def list_runs(api: Api, project: str, args: ListRuns) -> Any:
    filters = {"status": ",".join(args.status), "q": args.text}
    names = ("agent_id", "label", "created_after", "created_before")
    return await _page(api, f"{project}/agent-runs", args, filters | {name: getattr(args, name) for name in names})


async def search(api: Api, project: str, args: SearchTexts) -> Any:
    filters = {"kind": ",".join(args.kind), "only": "errors" if args.only_errors else None}
    names = ("q", "run_id", "after", "before")
    return await _page(api, f"{project}/search", args, filters | {name: getattr(args, name) for name in names})


async def get_run(api: Api, project: str, args: OneRun) -> Any:
    path = _run(project, args)
    return {
        "run": await ask(api, path),
        "usage": (await ask(api, f"{path}/usage", {"limit": 1}))["totals"],
        "first_errors": (await ask(api, f"{path}/errors", {"limit": IN_SUMMARY}))["results"],
        "failed_tool_calls": (
            await ask(api, f"{path}/tool-calls", {"limit": IN_SUMMARY, "status": "error,denied,unknown"})
        )["results"],
        "last_seq": (await ask(api, f"{path}/events", {"limit": 1}))["last_seq"],
    }


async def list_messages(api: Api, project: str, args: ListMessages) -> Any:
    path = f"{_run(project, args)}/messages"
    page = await _page(api, path, args)
    return page | {"results": [await ask(api, f"{path}/{row['id']}") for row in page["results"]]}


async def get_message(api: Api, project: str, args: OneMessage) -> Any:
    return await ask(api, f"{_run(project, args)}/messages/{args.message_id}")


async def list_tool_calls(api: Api, project: str, args: ListCalls) -> Any:
    filters = {"status": ",".join(args.status), "tool_name": args.tool_name}
    return await _page(api, f"{_run(project, args)}/tool-calls", args, filters)


async def get_tool_call(api: Api, project: str, args: OneCall) -> Any:
    return await ask(api, f"{_run(project, args)}/tool-calls/{args.call_id}")


async def list_errors(api: Api, project: str, args: ListOfRun) -> Any:
    return await _page(api, f"{_run(project, args)}/errors", args)


async def list_events(api: Api, project: str, args: ListEvents) -> Any:
    page = await ask(api, f"{_run(project, args)}/events", {"afterSeq": args.after_seq, "limit": args.limit})
    is_more = page.pop("next") is not None
    return page | {"next_after_seq": page["results"][-1]["seq"] if is_more else None}


def _run(project: str, args: OneRun | ListOfRun) -> str:
    return f"{project}/agent-runs/{args.run_id}"


async def _page(api: Api, path: str, args: ListArguments, filters: Query | None = None) -> dict[str, Any]:
    """Return a page of a list, with the cursor of the next one in place of links."""
    page: dict[str, Any] = await ask(api, path, {**(filters or {}), "limit": args.limit, "cursor": args.cursor})
    following = page.pop("next")
    page.pop("previous", None)
    cursor = parse_qs(urlsplit(following).query)["cursor"][0] if following else None
    return page | {"next_cursor": cursor}


READING_TOOLS = (
    ApiTool("list_projects", "List projects", "List the projects that you may see.", ListArguments, list_projects),
    ApiTool("list_agents", "List agents", "List the agents of a project.", ListArguments, list_agents),
    ApiTool(
        "list_runs", "List runs",
        "List runs, newest first, with filters. Failed ones: status failed, and paused with status_reason error.",
        ListRuns, list_runs,
    ),
    ApiTool("search", "Search runs", "Search the messages, tool calls and events of all runs.", SearchTexts, search),
    ApiTool(
        "get_run", "Get a run",
        "Get a run: status, summary, prompt, result, error, usage, its first errors and failed tool calls, and the "
        "number of its last event.",
        OneRun, get_run,
    ),
    ApiTool("list_messages", "Read messages", "Read the conversation of a run in order.", ListMessages, list_messages),
    ApiTool("get_message", "Get a message", "Get one message; long texts are cut later.", OneMessage, get_message),
    ApiTool(
        "list_tool_calls", "List tool calls", "List the tool calls of a run, without inputs and outputs.",
        ListCalls, list_tool_calls,
    ),
    ApiTool("get_tool_call", "Get a tool call", "Get a tool call with its input and output.", OneCall, get_tool_call),
    ApiTool("list_errors", "List errors", "List the errors of a run, with their causes.", ListOfRun, list_errors),
    ApiTool(
        "list_events", "List events",
        "List the events of a run in order: what happened when. The end: after_seq a little below last_seq.",
        ListEvents, list_events,
    ),
)  # fmt: skip
